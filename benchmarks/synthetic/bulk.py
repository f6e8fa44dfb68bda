"""Two rules that treat many elements alike: one bound for a group of tensors, one factor for a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.synthetic.rank import Rank, quantile

Array = np.ndarray[Any, Any]


class PerGroup(Rank):
    """The library's tracker over the q0.999 of all elements of a group, whose tensors share its bound.

    Args:
        size: Tensors of a group; they are adjacent.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def start(self, tensors: int) -> None:
        super().start(tensors // self.size)

    def bound(self, rms: Array) -> Array:
        return super().bound(rms).repeat(self.size, 0)

    def observed(self, raw: Array) -> Array:
        return quantile(raw.reshape(len(raw) // self.size, -1), self.learned.quantile)


class Bulk(Rank):
    """The whole tensor rescaled to the bound on its q0.90, which keeps the direction, then clamped (issue "Evidence").

    Both bounds are the library's: the tracker does not mind which quantile it is fed.
    """

    def start(self, tensors: int) -> None:
        super().start(tensors)
        self.bulk = Rank(self.learned)
        self.bulk.start(tensors)

    def bound(self, rms: Array) -> Array:
        self.allowed = self.bulk.bound(rms)
        return super().bound(rms)

    def clamp(self, grad: Array, bound: Array, rms: Array) -> Array:
        q = quantile(abs(grad), 0.9)[:, None]
        self.bulk.observe(q)
        return super().clamp(grad * np.minimum(1.0, self.allowed / np.where(q > 0, q, 1.0)), bound, rms)
