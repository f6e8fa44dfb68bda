"""A tracker whose gain adapts: slow, until a vote of the last updates says that the scale has changed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks.synthetic.rules import ARM_AFTER, Levels, logarithm

Array = np.ndarray[Any, Any]


class Vote(Levels):
    """Level and spread anew from the last 32 when 48 of the last 64 exceed the bound, or 56 are as far below the level.

    Otherwise the level moves by 1/200 of the distance, .005 at most (issue "Evidence", a second look).
    """

    def start(self, tensors: int) -> None:
        super().start(tensors)
        self.votes = np.zeros((2, ARM_AFTER, tensors), bool)

    def started(self, first: Array) -> tuple[float, float]:
        level = float(np.median(first))
        return level, float(np.minimum(abs(first - level), 2).mean())

    def moved(self, log: Array) -> tuple[Array, Array]:
        distance = log - self.level
        spread = self.spread + (np.minimum(abs(distance), 2 * self.spread) - self.spread) / 200
        return self.level + np.clip(distance / 200, -0.005, 0.005), spread

    def observe(self, raw: Array) -> None:
        valid, log = logarithm(raw)
        slot, tensor = self.seen % ARM_AFTER, np.arange(len(log))
        armed, distance = self.seen >= ARM_AFTER, log - self.level
        for votes, cast in zip(self.votes, (distance > self.headroom(), distance < -self.headroom()), strict=True):
            votes[slot, tensor] = np.where(valid, cast & armed, votes[slot, tensor])
        super().observe(raw)
        up, down = self.votes.sum(1)
        for column in np.flatnonzero((up >= 48) | (down >= 56)):
            last = self.recent[(slot[column] - np.arange(32)) % ARM_AFTER, column]
            self.level[column], self.spread[column] = self.started(last)
            self.votes[:, :, column] = False

    def headroom(self) -> Array:
        """Log of the factor between level and bound."""
        return np.clip(5 * self.spread, math.log(4), math.log(16))

    def bound(self, rms: Array) -> Array:
        return self.armed_bound(self.headroom())
