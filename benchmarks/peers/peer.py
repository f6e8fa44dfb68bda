"""What every compared method is: something around the steps of one optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer


class Peer:
    """One method around the steps of one torch optimizer; a subclass overrides ``before``, ``after`` or both.

    It sits in torch's own step hooks, so it sees what the optimizer would see: gradients of any shape and dtype,
    after whatever else has changed them. Both methods run without autograd.
    """

    _handles: tuple[Any, ...] = ()

    def attach(self, optimizer: Optimizer) -> None:
        """Act around every step of this optimizer, until :meth:`detach`."""
        self.detach()

        def stepped(*_: Any) -> None:
            with torch.no_grad():
                self.after(optimizer)

        self._handles = (optimizer.register_step_pre_hook(self._stepping),)
        if type(self).after is not Peer.after:
            handle = optimizer.register_step_post_hook(stepped)
            # The last to act before the step is the first after it: what others undo there is what they did.
            optimizer._optimizer_step_post_hooks.move_to_end(handle.id, last=False)  # type: ignore[attr-defined]
            self._handles += (handle,)

    def detach(self) -> None:
        """Leave the optimizer alone."""
        for handle in self._handles:
            handle.remove()
        self._handles = ()

    def before(self, optimizer: Optimizer) -> None:
        """Change gradients in place."""

    def after(self, optimizer: Optimizer) -> None:
        """Change parameters in place."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that is remembered from step to step: tensors, numbers and lists."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""

    def _stepping(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # With a closure, as in Lightning's automatic optimization, the gradients come into being inside the step.
        closure = args[1] if len(args) > 1 else kwargs.get("closure")

        def change(loss: Any = None) -> Any:
            with torch.no_grad():
                self.before(optimizer)
            return loss

        if closure is None:
            return change()
        if len(args) > 1:
            return (args[0], lambda: change(closure()), *args[2:]), kwargs
        return args, {**kwargs, "closure": lambda: change(closure())}


def with_gradient(optimizer: Optimizer) -> Iterator[tuple[Tensor, Tensor]]:
    """Every parameter of the optimizer that has a gradient, and the gradient."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                yield parameter, parameter.grad


def total_norm(optimizer: Optimizer) -> float:
    """The 2-norm of all gradients of the optimizer; 0 where there is none."""
    return float(get_total_norm([gradient for _, gradient in with_gradient(optimizer)]))


def scale_gradients(optimizer: Optimizer, factor: float) -> None:
    """Multiply every gradient of the optimizer."""
    for _, gradient in with_gradient(optimizer):
        gradient.mul_(factor)


def parameters(optimizer: Optimizer) -> list[Tensor]:
    """Every parameter of the optimizer, in its order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
