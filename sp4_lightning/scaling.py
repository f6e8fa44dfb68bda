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
            torch._foreach_div_(grads, scale.reshape(()))
        optimizer.grad_scale = None  # type: ignore[attr-defined]

    def end(self, optimizer: Optimizer) -> None:
        """Put the scaler's attribute back, but never over a newer one; the scaler removes it itself."""
        if self._scale is not None and getattr(optimizer, "grad_scale", self._scale) is None:
            optimizer.grad_scale = self._scale  # type: ignore[attr-defined]
        self._scale = None
