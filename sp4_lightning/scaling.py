"""Gradients that a GradScaler has left scaled: it hands a fused optimizer its scale to divide by in the kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Unscaled:
    """Divides the gradients ahead of the step, as the kernel would have: bounds are of the gradients themselves."""

    def __init__(self) -> None:
        self._scale: Any = None

    def begin(self, optimizer: Optimizer) -> None:
        """Divide, and leave the kernel nothing to divide by."""
        scale = getattr(optimizer, "grad_scale", None)
        if scale is None:
            return
        self._scale = scale
        grads: list[Tensor] = [
            p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None
        ]
        if grads:
            with torch.no_grad():
                torch._foreach_div_(grads, scale.reshape(()))
        # Removed, not None: after an exception it would meet the scaler's next step, which multiplies by what is there.
        del optimizer.grad_scale  # type: ignore[attr-defined]

    def end(self, optimizer: Optimizer) -> None:
        """Put the scaler's attribute back, but never over a newer one; the scaler removes it itself."""
        if self._scale is not None and not hasattr(optimizer, "grad_scale"):
            optimizer.grad_scale = self._scale  # type: ignore[attr-defined]
        self.drop()

    def drop(self) -> None:
        """Put nothing back: an exception has ended the step."""
        self._scale = None
