"""Bounds in units of ``sqrt(v_hat)``, element by element: no tracker, Adam's own memory is the history."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks.synthetic.rules import ARM_AFTER, Rule

Array = np.ndarray[Any, Any]


class Element(Rule):
    """``|g| <= k sqrt(v_hat)`` for every element (SPAM, ICLR 2025, with k = sqrt(5000)); none where v is 0."""

    def __init__(self, k: float) -> None:
        self.k = k

    def start(self, tensors: int) -> None:
        self.seen = 0

    def bound(self, rms: Array) -> Array:
        return np.where((rms > 0) & (self.seen >= ARM_AFTER), self.k * rms, math.inf)

    def observe(self, raw: Array) -> None:
        self.seen += 1


class Bucket(Element):
    """Every element has a bucket of squared sigmas: ``|g| <= sqrt(bucket v_hat)``, and what is used is taken out.

    The "per-element bucket" of the issue "Evidence".

    Args:
        most: What it holds.
        refill: What comes in with every update.
    """

    def __init__(self, most: float, refill: float) -> None:
        super().__init__(1.0)
        self.most, self.refill = most, refill

    def start(self, tensors: int) -> None:
        super().start(tensors)
        self.bucket: Array = np.array([[self.most]])

    def bound(self, rms: Array) -> Array:
        return np.sqrt(self.bucket) * super().bound(rms)

    def clamp(self, grad: Array, bound: Array, rms: Array) -> Array:
        used = np.minimum(abs(grad), bound) / np.where(rms > 0, rms, math.inf)
        self.bucket = np.clip(self.bucket - used**2, 0, None)
        self.bucket = np.minimum(self.most, self.bucket + self.refill)
        return super().clamp(grad, bound, rms)
