"""Learned bounds elsewhere than on the gradient: on ``exp_avg_sq``, and on the update itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.synthetic.rank import Rank
from benchmarks.synthetic.rules import Rule
from sp4_lightning import LearnedBound

Array = np.ndarray[Any, Any]
HALF_RATE = replace(LearnedBound(), headroom=2.0)
"""The library's tracker; where sqrt(v_hat) is twice as large, the rate is half."""


class TrackedSquare(Rank):
    """The library's bound on the gradient, and a learned one on ``sqrt(v_hat)`` (issue "Evidence").

    Where exp_avg_sq is clamped, exp_avg is scaled with it; alone it would blow the update up.
    """

    def start(self, tensors: int) -> None:
        super().start(tensors)
        self.square = Rank(HALF_RATE)
        self.square.start(tensors)

    def moments(self, exp_avg: Array, exp_avg_sq: Array, filled: Array) -> tuple[Array, Array]:
        rms = np.sqrt(exp_avg_sq / filled)
        bound = self.square.bound(rms)
        self.square.observe(rms)
        shrink = np.minimum(1.0, bound / np.where(rms > 0, rms, 1.0))
        return exp_avg * shrink, exp_avg_sq * shrink**2


class BoundedUpdate(Rule):
    """No bound on the gradient; a learned one on ``|m_hat| / (sqrt(v_hat) + eps)``."""

    def start(self, tensors: int) -> None:
        self.tracker = Rank(HALF_RATE)
        self.tracker.start(tensors)

    def step(self, update: Array) -> Array:
        bound = self.tracker.bound(update)
        self.tracker.observe(abs(update))
        return np.clip(update, -bound, bound)
