"""Not executing an optimizer's update, exactly and without waiting for the device.

A skipped step is identical to not having called ``step()``: parameters, moments and the step count keep their
bits. Zeroing the gradients is not a skip (momentum still moves the parameters and the count advances), and
multiplying by zero keeps a NaN.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from sp4_lightning.arrays import Array
from sp4_lightning.errors import UnsupportedError


class Skipper(Protocol):
    """How one optimizer's update is skipped."""

    def begin(self, optimizer: Optimizer, skip: Array) -> None:
        """Arrange for the coming update not to be executed where the 0-d bool ``skip`` is set."""

    def end(self, optimizer: Optimizer) -> None:
        """Undo :meth:`begin`; harmless when nothing was begun."""


class HideGradients:
    """On a CPU: gradients are None during the step and put back after it, so the optimizer finds no work."""

    def __init__(self) -> None:
        self._hidden: list[tuple[Tensor, Tensor]] = []

    def begin(self, optimizer: Optimizer, skip: Array) -> None:
        """Hide the gradients if ``skip`` is set; reading it is free on a CPU."""
        if bool(skip):
            for group in optimizer.param_groups:
                for param in group["params"]:
                    if param.grad is not None:
                        self._hidden.append((param, param.grad))
                        param.grad = None

    def end(self, optimizer: Optimizer) -> None:
        """Put the gradients back."""
        for param, grad in self._hidden:
            param.grad = grad
        self._hidden.clear()


class FoundInf:
    """Torch's fused optimizers execute nothing, on the device, where ``optimizer.found_inf`` is 1.

    A flag that a ``GradScaler`` has put there stays in force and is put back.
    """

    def __init__(self) -> None:
        self._scalers: Tensor | None = None
        self._begun = False

    def begin(self, optimizer: Optimizer, skip: Array) -> None:
        """Set the flag."""
        self._scalers = getattr(optimizer, "found_inf", None)
        flag = torch.as_tensor(skip, dtype=torch.float32)
        optimizer.found_inf = flag if self._scalers is None else torch.maximum(self._scalers, flag)  # type: ignore[attr-defined]
        self._begun = True

    def end(self, optimizer: Optimizer) -> None:
        """Remove the flag, or put the scaler's back."""
        if self._begun:
            if self._scalers is None:
                del optimizer.found_inf  # type: ignore[attr-defined]
            else:
                optimizer.found_inf = self._scalers  # type: ignore[attr-defined]
        self._scalers, self._begun = None, False


def skipper_for(optimizer: Optimizer, device: torch.device) -> Skipper:
    """The exact way to skip this optimizer's update.

    Raises:
        UnsupportedError: Off the CPU, an optimizer that does not honour ``found_inf`` on the device.
    """
    if device.type == "cpu":
        return HideGradients()
    if all(group.get("fused") for group in optimizer.param_groups):
        return FoundInf()
    raise UnsupportedError(
        f"{type(optimizer).__name__} on {device} cannot skip an update without waiting for the device. "
        f"Construct it with fused=True (Adam, AdamW, SGD, Adagrad)."
    )
