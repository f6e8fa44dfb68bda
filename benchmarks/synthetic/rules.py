"""What a rule for the bound on ``|grad|`` is, and two trackers; all columns (tensors) of a batch at once.

A rule names the bound before it sees the update, says what becomes of the gradient, and is told the raw one. Some act
on the moments or on the step as well, or instead.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
ARM_AFTER = 64
"""Updates without a bound, as in the library."""


class Rule:
    """What the bench asks of a rule; this one is plain Adam."""

    def start(self, tensors: int) -> None:
        """Forget everything."""

    def bound(self, rms: Array) -> Array:
        """The bound in force, broadcastable to ``[tensors, elements]``.

        Args:
            rms: ``sqrt(v_hat)`` of Adam before the update, of the gradients as clamped.
        """
        return np.array([[math.inf]])

    def clamp(self, grad: Array, bound: Array, rms: Array) -> Array:
        """What Adam is given for ``grad``, ``[tensors, elements]``; here what is beyond the bound is clamped to it."""
        return np.clip(grad, -bound, bound)

    def observe(self, raw: Array) -> None:
        """Take ``|grad|`` of an update, ``[tensors, elements]``; 0 where there is none."""

    def moments(self, exp_avg: Array, exp_avg_sq: Array, filled: Array) -> tuple[Array, Array]:
        """What Adam is left with for its moments after their update; ``filled`` is ``1 - beta2**t``."""
        return exp_avg, exp_avg_sq

    def step(self, update: Array) -> Array:
        """What is done for ``m_hat / (sqrt(v_hat) + eps)``."""
        return update


def logarithm(raw: Array) -> tuple[Array, Array]:
    """Which tensors have a gradient, and log of their largest; with fewer than 1,000 elements that is the q0.999."""
    largest = raw.max(1)
    return largest > 0, np.log(np.where(largest > 0, largest, 1.0))


class Levels(Rule, ABC):
    """A level and a spread per tensor, started from the first 64 observations."""

    def start(self, tensors: int) -> None:
        self.level, self.spread = np.zeros(tensors), np.zeros(tensors)
        self.seen = np.zeros(tensors, int)
        self.recent = np.full((ARM_AFTER, tensors), np.nan)

    def observe(self, raw: Array) -> None:
        valid, log = logarithm(raw)
        slot, tensor = self.seen % ARM_AFTER, np.arange(len(log))
        self.recent[slot, tensor] = np.where(valid, log, self.recent[slot, tensor])
        level, spread = self.moved(log)
        armed = valid & (self.seen >= ARM_AFTER)
        self.level, self.spread = np.where(armed, level, self.level), np.where(armed, spread, self.spread)
        self.seen += valid
        for column in np.flatnonzero(valid & (self.seen == ARM_AFTER)):
            self.level[column], self.spread[column] = self.started(self.recent[:, column])

    @abstractmethod
    def moved(self, log: Array) -> tuple[Array, Array]:
        """Level and spread after one more observation per tensor."""

    @abstractmethod
    def started(self, first: Array) -> tuple[float, float]:
        """Level and spread of a tensor from its first observations."""

    def armed_bound(self, headroom: Array) -> Array:
        return np.where(self.seen >= ARM_AFTER, np.exp(self.level + headroom), math.inf)[:, None]


class Mean(Levels):
    """Rate-limited mean of log q with headroom from its deviation (``benchmarks/clean_share.py``)."""

    def started(self, first: Array) -> tuple[float, float]:
        level = float(np.median(first))
        return level, float(np.minimum(abs(first - level), 2).mean())

    def moved(self, log: Array) -> tuple[Array, Array]:
        distance = log - self.level
        level = self.level + np.clip(distance / 100, -math.log(1.01), math.log(1.03))
        return level, self.spread + (np.minimum(abs(distance), 2) - self.spread) / 100

    def bound(self, rms: Array) -> Array:
        return self.armed_bound(np.clip(5 * self.spread, math.log(4), math.log(16)))


class ControlChart(Levels):
    """Control chart of log2 of the maximum (issue "Evidence"): mean and mean deviation, limited innovation."""

    OCTAVE = math.log(2)

    def started(self, first: Array) -> tuple[float, float]:
        level = float(first.mean())
        return level, float(abs(first - level).mean())

    def moved(self, log: Array) -> tuple[Array, Array]:
        # 1.2533 makes a normal's mean deviation its standard deviation.
        limit = np.maximum(3 * 1.2533 * self.spread, 0.25 * self.OCTAVE)
        innovation = np.clip(log - self.level, -limit, limit)
        return self.level + 0.01 * innovation, 0.99 * self.spread + 0.01 * abs(innovation)

    def bound(self, rms: Array) -> Array:
        return self.armed_bound(np.maximum(4 * 1.2533 * self.spread, self.OCTAVE))
