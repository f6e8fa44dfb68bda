"""SPAM: an element's spikes are cut by its own exp_avg_sq, and both moments start afresh now and then."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.optim import Adam, AdamW, Optimizer

from benchmarks.peers.peer import Peer, with_gradient


class SPAM(Peer):
    """Where ``g² > threshold * exp_avg_sq``, ``g`` becomes ``sign(g) * sqrt(threshold * exp_avg_sq)``.

    Every ``reset_every`` steps both moments become 0, Adam's step count goes on, and the learning rate is low for
    ``warmup_steps``, beginning with that very step. Elements are not cut in the first ``settle_steps`` and as many
    from a reset on. After that one with ``exp_avg_sq == 0`` gets no gradient until the next reset.

    Source: Huang et al. 2025 (ICLR), arXiv 2501.06842; TianjinYellow/SPAM-Optimizer, ``galore_torch/SPAM.py`` at
    density 1; all defaults are that file's. ``settle_steps`` (``grad_accu_steps`` there) is not in the paper's
    algorithm. Adam's eps and weight decay are the optimizer's own; AdamW's decay is scaled with the learning rate,
    theirs is not.

    Args:
        threshold: Largest ``g² / exp_avg_sq``.
        reset_every: Steps of the optimizer between two resets.
        warmup_steps: Steps from 0.01 to the full learning rate, along a cosine.
        settle_steps: Steps that ``exp_avg_sq`` has to become a scale.
    """

    def __init__(
        self, threshold: float = 5000.0, reset_every: int = 500, warmup_steps: int = 150, settle_steps: int = 20
    ) -> None:
        self.threshold, self.reset_every = threshold, reset_every
        self.warmup_steps, self.settle_steps = warmup_steps, settle_steps
        self.steps = 0
        self._rates: list[tuple[dict[str, Any], Any]] = []

    def attach(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, (Adam, AdamW)):
            raise TypeError(f"SPAM is a kind of Adam; it cannot work on {type(optimizer).__name__}.")
        super().attach(optimizer)

    def detach(self) -> None:
        super().detach()
        self._restore()

    def before(self, optimizer: Optimizer) -> None:
        self.steps += 1
        since_reset = self.steps % self.reset_every
        for parameter, gradient in with_gradient(optimizer):
            # Adam makes its state in a parameter's first step.
            state = optimizer.state.get(parameter) or {"exp_avg_sq": torch.zeros_like(gradient)}
            if since_reset == 0:
                for name in state.keys() & {"exp_avg", "exp_avg_sq"}:
                    state[name].zero_()
            if since_reset >= self.settle_steps:
                limit = self.threshold * state["exp_avg_sq"]
                gradient.copy_(torch.where(gradient**2 > limit, gradient.sign() * limit.sqrt(), gradient))
        if self.steps >= self.reset_every and since_reset < self.warmup_steps:
            # Their scheduler makes its first step before it is first read.
            factor = 1 - 0.99 * (1 + math.cos(math.pi * (since_reset + 1) / (self.warmup_steps + 1))) / 2
            for group in optimizer.param_groups:
                self._rates.append((group, group["lr"]))
                group["lr"] = group["lr"] * factor

    def after(self, optimizer: Optimizer) -> None:
        # A scheduler, or the module itself, reads and sets the rate between steps.
        self._restore()

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]

    def _restore(self) -> None:
        for group, rate in self._rates:
            group["lr"] = rate
        self._rates.clear()
