"""Rules upon the library's tracker that act by element, most of them only where a tensor is beyond its bound.

The library's own rule is such a one, and runs as the library.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.synthetic.rank import Rank

Array = np.ndarray[Any, Any]


class RankAndElement(Rank):
    """The smaller of the library's bound and ``k sqrt(v_hat)``, at every update."""

    def __init__(self, k: float) -> None:
        super().__init__()
        self.k = k

    def bound(self, rms: Array) -> Array:
        bound = super().bound(rms)
        return np.where((rms > 0) & np.isfinite(bound), np.minimum(bound, self.k * rms), bound)


class ToLevel(Rank):
    """Beyond the bound the tensor is held to the level, without headroom."""

    def clamp(self, grad: Array, bound: Array, rms: Array) -> Array:
        return super().clamp(grad, np.where(beyond(bound, grad), bound / self.learned.headroom, bound), rms)


class OnAlarm(Rank):
    """Beyond the bound every element is held to ``k sqrt(v_hat)``."""

    def __init__(self, k: float) -> None:
        super().__init__()
        self.k = k

    def clamp(self, grad: Array, bound: Array, rms: Array) -> Array:
        limit = np.where(beyond(bound, grad) & (rms > 0), np.minimum(bound, self.k * rms), bound)
        return super().clamp(grad, limit, rms)


class Doubling(Rank):
    """The library's budget, which doubles with every update without an alarm instead of gaining a constant.

    A burst gets as little as from the library, and what comes back every ten updates gets all there is.
    """

    def start(self, tensors: int) -> None:
        super().start(tensors)
        self.budget = np.full((tensors, 1), self.learned.budget)

    def clamp(self, grad: Array, bound: Array, rms: Array) -> Array:
        alarm = beyond(bound, grad)
        limit = np.where(alarm & (rms > 0), np.minimum(bound, np.sqrt(self.budget) * rms), bound)
        self.budget = np.where(alarm, self.learned.refill, np.minimum(2 * self.budget, self.learned.budget))
        return super().clamp(grad, limit, rms)


class BudgetAndElement(Rank):
    """``30 sqrt(v_hat)`` where there is no alarm, ``sqrt(budget v_hat)`` where there is one (issue "Evidence").

    Args:
        most: What the budget can be.
        saved: What it gains with every update; an alarm spends all of it.
    """

    def __init__(self, most: float, saved: float) -> None:
        super().__init__()
        self.most, self.saved = most, saved

    def start(self, tensors: int) -> None:
        super().start(tensors)
        self.budget = np.full((tensors, 1), self.most)

    def bound(self, rms: Array) -> Array:
        self.alarming = super().bound(rms)
        return np.where((rms > 0) & np.isfinite(self.alarming), 30.0 * rms, self.alarming)

    def clamp(self, grad: Array, bound: Array, rms: Array) -> Array:
        alarm = beyond(self.alarming, grad)
        limit = np.where(alarm & (rms > 0), np.sqrt(self.budget) * rms, bound)
        self.budget = np.minimum(self.most, np.where(alarm, 0.0, self.budget) + self.saved)
        return super().clamp(grad, limit, rms)


def beyond(bound: Array, grad: Array) -> Array:
    """Whether any element of a tensor is, ``[tensors, 1]``."""
    return (abs(grad) > bound).any(1, keepdims=True)
