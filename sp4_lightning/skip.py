"""Not executing an optimizer's update, exactly and without waiting for the device.

A skipped step is identical to not having called ``step()``: parameters, moments and the step count keep their
bits. Zeroing the gradients is not a skip (momentum still moves the parameters and the count advances), and
multiplying by zero keeps a NaN.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from sp4_lightning.arrays import Array
from sp4_lightning.errors import UnsupportedError
from sp4_lightning.settings import Mode


class Skipper:
    """How one optimizer's update is skipped; this one, for observing, never skips."""

    undoes = False
    """All of the running step will be undone, further evaluations of its closure included; on the host."""

    def start(self, optimizer: Optimizer) -> None:
        """Called at the very start of a step, before its closure."""

    def begin(self, optimizer: Optimizer, skip: Array) -> None:
        """Arrange for the coming update not to be executed where the 0-d ``skip`` is set."""

    def end(self, optimizer: Optimizer) -> None:
        """Undo :meth:`begin` behind the update; harmless when nothing was begun."""

    def drop(self, optimizer: Optimizer) -> None:
        """Forget a step that an exception has ended.

        It may be long past, so nothing of it is put back: neither gradients nor parameters are its any more.
        """


class HideGradients(Skipper):
    """On a CPU: gradients are None during the step and put back after it, so the optimizer finds no work."""

    def __init__(self) -> None:
        self._hidden: list[tuple[Tensor, Tensor]] = []

    def begin(self, optimizer: Optimizer, skip: Array) -> None:
        """Hide the gradients if ``skip`` is set; reading it is free on a CPU."""
        self._hidden.clear()
        if bool(skip):
            for group in optimizer.param_groups:
                for param in group["params"]:
                    if param.grad is not None:
                        self._hidden.append((param, param.grad))
                        param.grad = None

    def end(self, optimizer: Optimizer) -> None:
        """Put the gradients back, but never over newer ones."""
        for param, grad in self._hidden:
            if param.grad is None:
                param.grad = grad
        self._hidden.clear()

    def drop(self, optimizer: Optimizer) -> None:
        """Leave the gradients of the bad step None, as ``zero_grad`` would have."""
        self._hidden.clear()


class PutBack(HideGradients):
    """For an optimizer that evaluates its closure several times in a step (LBFGS): all of the step is undone.

    Parameters and state are copied at the start of every step, which such an optimizer's step outweighs.
    """

    def __init__(self) -> None:
        super().__init__()
        self._params: list[tuple[Tensor, Tensor]] = []
        self._state: dict[Tensor, Any] = {}
        self.undoes = False

    def start(self, optimizer: Optimizer) -> None:
        """Copy parameters and state."""
        self._params = [(p, p.detach().clone()) for group in optimizer.param_groups for p in group["params"]]
        self._state = {param: copy.deepcopy(state) for param, state in optimizer.state.items()}
        self.undoes = False

    def begin(self, optimizer: Optimizer, skip: Array) -> None:
        """Remember that one evaluation was bad; hidden gradients count as zeros, which mostly ends the search."""
        self.undoes |= bool(skip)
        super().begin(optimizer, skip)

    def end(self, optimizer: Optimizer) -> None:
        """Put everything back if an evaluation was bad."""
        super().end(optimizer)
        if self.undoes:
            with torch.no_grad():
                for param, before in self._params:
                    param.copy_(before)
            optimizer.state.clear()
            optimizer.state.update(self._state)
        self.drop(optimizer)

    def drop(self, optimizer: Optimizer) -> None:
        """Leave parameters and state where the search was interrupted, as torch does."""
        super().drop(optimizer)
        self._params, self._state, self.undoes = [], {}, False


class FoundInf(Skipper):
    """Torch's fused optimizers execute nothing, on the device, where ``optimizer.found_inf`` is 1.

    A flag that a ``GradScaler`` has put there stays in force and is put back.
    """

    def __init__(self) -> None:
        self._scalers: Tensor | None = None
        self._flag: Tensor | None = None

    def begin(self, optimizer: Optimizer, skip: Array) -> None:
        """Set the flag."""
        self._scalers = getattr(optimizer, "found_inf", None)
        flag = torch.as_tensor(skip, dtype=torch.float32)
        self._flag = flag if self._scalers is None else torch.maximum(self._scalers, flag)
        optimizer.found_inf = self._flag  # type: ignore[attr-defined]

    def end(self, optimizer: Optimizer) -> None:
        """Remove the flag, or put the scaler's back, but never over a newer one of its."""
        scalers = self._scalers if self._is_up(optimizer) else None
        self.drop(optimizer)
        if scalers is not None:
            optimizer.found_inf = scalers  # type: ignore[attr-defined]

    def drop(self, optimizer: Optimizer) -> None:
        """Remove the flag, but never a newer one of the scaler's."""
        if self._is_up(optimizer):
            del optimizer.found_inf  # type: ignore[attr-defined]
        self._scalers = self._flag = None

    def _is_up(self, optimizer: Optimizer) -> bool:
        return self._flag is not None and getattr(optimizer, "found_inf", None) is self._flag


class SelectBack(Skipper):
    """Off the CPU, for optimizers that keep all of their state on the device: what a skipped step wrote is taken back.

    Parameters and state are copied ahead of every step, and selected, never multiplied, behind it.
    """

    def __init__(self) -> None:
        self._skip: Array = None
        self._saved: list[tuple[Tensor, Tensor]] = []

    def begin(self, optimizer: Optimizer, skip: Array) -> None:
        """Copy parameters and state."""
        self._skip = skip
        params = [param.detach() for group in optimizer.param_groups for param in group["params"]]
        tensors = [*params, *(tensor for _, tensor in _state_tensors(optimizer))]
        self._saved = [(tensor, tensor.clone()) for tensor in tensors]

    @torch.no_grad()
    def end(self, optimizer: Optimizer) -> None:
        """Select what was before where the step was skipped; state that it has made starts as torch starts it."""
        if self._skip is None:
            return
        skip, known = self._skip > 0, {id(tensor) for tensor, _ in self._saved}
        made = [
            (tensor, torch.full_like(tensor, STARTS_AT.get(name, 0.0)))
            for name, tensor in _state_tensors(optimizer)
            if id(tensor) not in known
        ]
        for tensor, before in (*self._saved, *made):
            tensor.copy_(torch.where(skip, before, tensor))
        self.drop(optimizer)

    def drop(self, optimizer: Optimizer) -> None:
        """Forget the copies."""
        self._skip, self._saved = None, []


STARTS_AT = {"mu_product": 1.0}
"""What torch initialises optimizer state with, where it is not zero (NAdam)."""

_SELECTABLE = (
    *(torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam),
    *(torch.optim.Adamax, torch.optim.Adadelta, torch.optim.RMSprop),
)


def skipper_for(optimizer: Optimizer, device: torch.device, mode: Mode) -> Skipper:
    """The exact way to skip this optimizer's update.

    Raises:
        UnsupportedError: Off the CPU, an optimizer that counts its steps on the host, which cannot know of a skip
            without waiting.
    """
    if device.type == "cpu":
        return PutBack() if isinstance(optimizer, torch.optim.LBFGS) else HideGradients()
    if mode == "observe":
        return Skipper()
    if all(group.get("fused") for group in optimizer.param_groups):
        return FoundInf()
    # Fused ones count their steps on the device too.
    on_device = all(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
    if type(optimizer) in _SELECTABLE and on_device:
        return SelectBack()
    # Without dampening a momentum buffer of zeros is one that is not there yet.
    if type(optimizer) is torch.optim.SGD and not any(group["dampening"] for group in optimizer.param_groups):
        return SelectBack()
    raise UnsupportedError(
        f"{type(optimizer).__name__} on {device} cannot skip an update without waiting for the device. Construct it "
        f"with fused=True (Adam, AdamW, SGD) or capturable=True ({', '.join(c.__name__ for c in _SELECTABLE)})"
        f", or set mode='observe'."
    )


def _state_tensors(optimizer: Optimizer) -> list[tuple[str, Tensor]]:
    return [
        (name, value)
        for entry in optimizer.state.values()
        for name, value in entry.items()
        if isinstance(value, Tensor)
    ]
