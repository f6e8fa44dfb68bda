"""The library's tracker without its optimizer, for what is built upon it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.synthetic.rules import Rule
from sp4_lightning import LearnedBound, tracker
from sp4_lightning.state import TensorState

Array = np.ndarray[Any, Any]


class Rank(Rule):
    """The library's bound: 16 times the 25th largest of the last 1,024 observations."""

    def __init__(self, learned: LearnedBound | None = None) -> None:
        self.learned = learned or LearnedBound()

    def start(self, tensors: int) -> None:
        self.state = TensorState.fresh(tensors, self.learned.window, torch.device("cpu"))

    def bound(self, rms: Array) -> Array:
        return np.asarray(tracker.bound(self.state, self.learned, every=1))[:, None]

    def observe(self, raw: Array) -> None:
        q = self.observed(raw)
        tracker.observe(self.state, q, q > 0, self.learned, every=1)

    def observed(self, raw: Array) -> Array:
        """What is tracked; with fewer than 1,000 elements their largest is their q0.999."""
        return np.asarray(raw.max(1))


def quantile(raw: Array, q: float) -> Array:
    """The q-quantile of the non-zero elements of each tensor, their largest where they are fewer than 32, else 0."""
    count = (raw > 0).sum(1)
    place = np.where(count < 32, count, np.ceil(q * count).astype(int))
    # Zeros are sorted to the front.
    index = np.clip(raw.shape[1] - count + place - 1, 0, raw.shape[1] - 1)
    return np.take_along_axis(np.sort(raw, 1), index[:, None], 1)[:, 0]
