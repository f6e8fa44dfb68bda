"""AdaGC: each tensor's norm is held to the mean of its own clipped norms."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from benchmarks.peers.peer import Peer, parameters, scale_gradients, total_norm

EPS = 1e-6  # as in the patch


class AdaGC(Peer):
    """Where a tensor's gradient has a norm above ``ratio * reference``, it is scaled to that; the reference follows.

    During warm-up the norm of all gradients is clipped instead, and a tensor's reference is the smallest norm it has
    had after that. A tensor that comes later starts from its first norm. So a gradient of zeros in a tensor's warm-up
    makes its reference 0 for ever, and with it all its later gradients.

    Source: Wang et al. 2025, arXiv 2502.11034; lishuai-97/AdaGC, ``megatron-gpt2.patch``, class ``AdaGC``, which this
    follows. ``ratio`` and ``beta`` are the paper's; the patch has 1.04 and 0.99 (for GPT-2), the authors' code in
    PaddlePaddle/ERNIE 1.03 and 0.98, where the warm-up's smallest norm is of unclipped gradients.

    Args:
        ratio: How far above its reference a norm may be.
        beta: What the reference keeps at each step.
        warmup_steps: Steps of the optimizer with the one limit for all.
        max_norm: That limit.
    """

    def __init__(self, ratio: float = 1.05, beta: float = 0.98, warmup_steps: int = 100, max_norm: float = 1.0) -> None:
        self.ratio, self.beta, self.warmup_steps, self.max_norm = ratio, beta, warmup_steps, max_norm
        self.steps = 0
        self.references: dict[int, float] = {}

    def before(self, optimizer: Optimizer) -> None:
        self.steps += 1
        warm = self.steps > self.warmup_steps
        if not warm and (factor := self.max_norm / (total_norm(optimizer) + EPS)) < 1:
            scale_gradients(optimizer, factor)
        for i, parameter in enumerate(parameters(optimizer)):
            if parameter.grad is None:
                continue
            norm = float(torch.linalg.vector_norm(parameter.grad))
            reference = self.references.setdefault(i, norm)
            if not warm:
                self.references[i] = min(reference, norm)
                continue
            limit = self.ratio * reference
            if norm > limit:
                parameter.grad.mul_(limit / (norm + EPS))
                norm = limit
            self.references[i] = self.beta * reference + (1 - self.beta) * norm

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "references": list(self.references.items())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.references = state["steps"], dict(state["references"])
