"""Rules upon the library's tracker, which they call; three of them act by element, and only beyond its bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.synthetic.rules import Rule
from sp4_lightning import LearnedBound, tracker
from sp4_lightning.state import TensorState

Array = np.ndarray[Any, Any]


class Rank(Rule):
    """The library's tracker, called without its optimizer, for what is built upon it."""

    def __init__(self, learned: LearnedBound | None = None) -> None:
        self.learned = learned or LearnedBound()

    def start(self, tensors: int) -> None:
        self.state = TensorState.fresh(tensors, self.learned.window, torch.device("cpu"))

    def bound(self, rms: Array) -> Array:
        return np.asarray(tracker.bound(self.state, self.learned, every=1))[:, None]

    def observe(self, largest: Array) -> None:
        tracker.observe(self.state, largest, largest > 0, self.learned, every=1)


class RankAndElement(Rank):
    """The smaller of the library's bound and ``k sqrt(v_hat)``."""

    def __init__(self, k: float) -> None:
        super().__init__()
        self.k = k

    def bound(self, rms: Array) -> Array:
        bound = super().bound(rms)
        return np.where((rms > 0) & np.isfinite(bound), np.minimum(bound, self.k * rms), bound)


class ToLevel(Rank):
    """The library's bound decides whether; where it is exceeded, the tensor is held to the level, without headroom."""

    def limit(self, bound: Array, raw: Array, rms: Array) -> Array:
        return np.where(beyond(bound, raw), bound / self.learned.headroom, bound)


class OnAlarm(Rank):
    """The library's bound decides whether; where it is exceeded, every element is held to ``k sqrt(v_hat)``."""

    def __init__(self, k: float, learned: LearnedBound | None = None) -> None:
        super().__init__(learned)
        self.k = k

    def limit(self, bound: Array, raw: Array, rms: Array) -> Array:
        return np.where(beyond(bound, raw) & (rms > 0), np.minimum(bound, self.k * rms), bound)


class BudgetOnAlarm(Rank):
    """The library's bound decides whether; where it is exceeded, every element is held to ``sqrt(budget v_hat)``.

    The budget, in squared sigmas and one per tensor, is spent by an alarm and saved up between alarms: what is rare may
    be large, what is repeated may not (issue "Evidence").

    Args:
        most: What can be saved up.
        saved: What is saved with every update.
        learned: Of the library's bound.
    """

    def __init__(self, most: float, saved: float, learned: LearnedBound | None = None) -> None:
        super().__init__(learned)
        self.most, self.saved = most, saved

    def start(self, tensors: int) -> None:
        super().start(tensors)
        self.budget = np.full((tensors, 1), self.most)

    def limit(self, bound: Array, raw: Array, rms: Array) -> Array:
        alarm = beyond(bound, raw)
        self.budget = np.minimum(self.most, self.budget + self.saved)
        limit = np.where(alarm & (rms > 0), np.minimum(bound, np.sqrt(self.budget) * rms), bound)
        self.budget = np.where(alarm, 0.0, self.budget)
        return limit


class BudgetAndElement(BudgetOnAlarm):
    """With ``30 sqrt(v_hat)`` where there is no alarm, and the budget instead of the bound where there is one."""

    def bound(self, rms: Array) -> Array:
        self.alarming = super().bound(rms)
        return np.where((rms > 0) & np.isfinite(self.alarming), 30.0 * rms, self.alarming)

    def limit(self, bound: Array, raw: Array, rms: Array) -> Array:
        alarm = beyond(self.alarming, raw)
        self.budget = np.minimum(self.most, self.budget + self.saved)
        limit = np.where(alarm & (rms > 0), np.sqrt(self.budget) * rms, bound)
        self.budget = np.where(alarm, 0.0, self.budget)
        return limit


def beyond(bound: Array, raw: Array) -> Array:
    """Whether any element of a tensor is, ``[tensors, 1]``."""
    return (raw > bound).any(1, keepdims=True)
