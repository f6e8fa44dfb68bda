"""ZClip: the norm's z-score decides, and outliers are pulled back the harder the farther out they are."""

from __future__ import annotations

from typing import Any

from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from benchmarks.peers.peer import Peer, parameters, scale_gradients, total_norm


class ZClip(Peer):
    """Where ``z = (norm - mean) / std`` is above ``z_max``, the norm becomes ``mean + z_max * std / (z / z_max)``.

    Mean and variance follow what this has left of the norm, the clipped value; the fixed limit is no part of it.

    Source: Kumar, Owen, Roy Chowdhury, Güra 2025, arXiv 2504.02507; bluorion-com/ZClip, ``zclip/zclip.py``, mode
    ``zscore`` with ``adaptive_scaling``; all defaults are that file's. It moves the mean before the variance.

    Args:
        alpha: What mean and variance keep at each step.
        z_max: z-score from which on a norm is an outlier.
        max_norm: Fixed limit on top, during warm-up too.
        warmup_steps: Norms that the first mean and variance are of.
    """

    def __init__(self, alpha: float = 0.97, z_max: float = 2.5, max_norm: float = 1.0, warmup_steps: int = 25) -> None:
        self.alpha, self.z_max, self.max_norm, self.warmup_steps = alpha, z_max, max_norm, warmup_steps
        self.norms: list[float] = []
        self.mean: float | None = None
        self.variance = 0.0

    def before(self, optimizer: Optimizer) -> None:
        norm = total_norm(optimizer)
        if self.mean is None:
            self._collect(norm)
            clip_grad_norm_(parameters(optimizer), self.max_norm)
            return
        std = self.variance**0.5
        z = (norm - self.mean) / (std + 1e-6)
        left = self.mean + self.z_max * std / (z / self.z_max) if z > self.z_max else norm
        limit = min(left, self.max_norm)
        if norm > limit:
            scale_gradients(optimizer, limit / (norm + 1e-6))
        self.mean = self.alpha * self.mean + (1 - self.alpha) * left
        self.variance = self.alpha * self.variance + (1 - self.alpha) * (left - self.mean) ** 2

    def state_dict(self) -> dict[str, Any]:
        return {"norms": list(self.norms), "mean": self.mean, "variance": self.variance}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.norms, self.mean, self.variance = list(state["norms"]), state["mean"], state["variance"]

    def _collect(self, norm: float) -> None:
        self.norms.append(norm)
        if len(self.norms) == self.warmup_steps:
            self.mean = sum(self.norms) / self.warmup_steps
            self.variance = sum((seen - self.mean) ** 2 for seen in self.norms) / self.warmup_steps
            self.norms = []
