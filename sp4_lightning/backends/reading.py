"""Reading an optimizer's tensors in one pass over blocks that stay in cache.

Small tensors share a block and large ones are spread over several, so a tensor costs one copy into the block and not
a dozen operator calls. Maxima and integer counts do not depend on how tensors are cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sp4_lightning import histogram
from sp4_lightning.arrays import Array, namespace, view
from sp4_lightning.held import Found
from sp4_lightning.quantities import EXP_AVG_SQ, GRAD

BLOCK = 2**16
"""Elements per block and quantity: four float32 rows take 1 MB."""


@dataclass(frozen=True)
class Segment:
    """A run of one tensor's elements, in the tensor's own order."""

    tensor: int
    start: int
    stop: int
    whole: bool


class Block:
    """Segments that are read together.

    Args:
        segments: In the order of their tensors.
        params: All parameters.
        dtype: What to read into: float32, or float64 if a tensor needs it.
    """

    def __init__(self, segments: Sequence[Segment], params: Sequence[Tensor], dtype: torch.dtype) -> None:
        device = params[0].device
        self.tensors = [segment.tensor for segment in segments]
        self._cuts = [None if s.whole else slice(s.start, s.stop) for s in segments]
        self._sizes = [s.stop - s.start for s in segments]
        size = sum(self._sizes)
        self._rows = torch.empty(4 * size, dtype=dtype, device=device)
        self._signless = self._rows[: EXP_AVG_SQ * size]
        self._quantity = self._rows.view(4, size).unbind()
        self._excess = torch.empty(size, dtype=dtype, device=device)
        shapes = [params[s.tensor].shape if s.whole else (s.stop - s.start,) for s in segments]
        self._views = [
            part.view(shape) for part, shape in zip(torch.split(self._rows, self._sizes * 4), shapes * 4, strict=True)
        ]
        self._zeros = [torch.zeros(shape, dtype=dtype, device=device) for shape in shapes]
        self._device_sizes = torch.tensor(self._sizes, device=device)
        self._row = torch.arange(len(segments), dtype=torch.int32, device=device).repeat_interleave(self._device_sizes)
        self._starts = np.cumsum([0, *(self._sizes * 4)])[:-1]
        self._starts_of_row = self._starts[: len(segments)]

    def read(self, tensors: Sequence[Found], ratio_inverse: Tensor) -> tuple[Array, Array]:
        """Find the segments' maxima.

        Args:
            tensors: param, grad, exp_avg, exp_avg_sq per tensor; None reads as zeros.
            ratio_inverse: ``[size]``, 1/c² where exp_avg and exp_avg_sq must be consistent, 0 elsewhere.

        Returns:
            The largest magnitudes, ``[4, segments]``, and the largest ``exp_avg² / c² - exp_avg_sq``, ``[segments]``.
            Both hold NaN where an element is NaN.
        """
        pieces = [
            zeros if tensor is None else tensor if cut is None else tensor.reshape(-1)[cut]
            for row in tensors
            for cut, zeros, tensor in zip(self._cuts, self._zeros, self._owners(row), strict=True)
        ]
        torch._foreach_copy_(self._views, pieces)
        # exp_avg_sq keeps its sign: a negative one shows in the excess.
        self._signless.abs_()
        _, _, exp_avg, exp_avg_sq = self._quantity
        torch.mul(exp_avg, exp_avg, out=self._excess).mul_(ratio_inverse).sub_(exp_avg_sq)
        return self._maxima(self._rows, self._starts, 4).reshape(4, -1), self._maxima(
            self._excess, self._starts_of_row, 1
        )

    def _owners(self, row: Found) -> Found:
        return row if len(row) == len(self.tensors) else [row[i] for i in self.tensors]

    def spread(self, per_tensor: Tensor) -> Tensor:
        """Repeat one value per tensor for each of its elements here."""
        return per_tensor[self.tensors].to(self._rows.dtype).repeat_interleave(self._device_sizes)

    def count(self) -> Tensor:
        """Histograms of the gradients that were read last, int64 ``[segments, bins]``."""
        return histogram.count(self._quantity[GRAD], self._row, len(self.tensors))

    def _maxima(self, values: Tensor, starts: Array, rows: int) -> Array:
        if values.device.type == "cpu":
            # One call for all segments; torch has no segmented maximum that is nearly as fast.
            return np.maximum.reduceat(values.numpy(), starts)
        return torch.stack(torch._foreach_max(torch.split(values, self._sizes * rows)))


class Reader:
    """Reads one optimizer's tensors.

    Args:
        params: The parameters, none of them empty.
    """

    def __init__(self, params: Sequence[Tensor]) -> None:
        wide = any(param.dtype == torch.float64 for param in params)
        dtype = torch.float64 if wide else torch.float32
        self._blocks = [Block(segments, params, dtype) for segments in cut([param.numel() for param in params])]
        self._xp = namespace(view(params[0]))
        self._count = len(params)
        # Where each tensor's segments begin in the list of all blocks' segments.
        owners = [tensor for block in self._blocks for tensor in block.tensors]
        self._first = np.searchsorted(owners, np.arange(self._count))
        self._ratio: Array | None = None
        self._inverse: list[Tensor] = []

    def read(self, tensors: Sequence[Found], ratio_limit_sq: Array, count: bool) -> tuple[Array, Array, Tensor | None]:
        """Read everything once.

        Args:
            tensors: param, grad, exp_avg, exp_avg_sq per tensor.
            ratio_limit_sq: float64 ``[T]``, c² with its slack; +inf where the rule is off.
            count: Whether to count histograms of the gradients.

        Returns:
            float64 ``[4, T]`` largest magnitudes (0 where there is no tensor), float64 ``[T]`` largest excess of
            exp_avg over exp_avg_sq, and int64 ``[T, bins]`` counts or None.
        """
        if ratio_limit_sq is not self._ratio:
            self._ratio = ratio_limit_sq
            inverse = torch.as_tensor(1 / ratio_limit_sq)
            self._inverse = [block.spread(inverse) for block in self._blocks]
        largest, excess, counts = [], [], []
        for block, inverse in zip(self._blocks, self._inverse, strict=True):
            block_largest, block_excess = block.read(tensors, inverse)
            largest.append(block_largest)
            excess.append(block_excess)
            if count:
                counts.append(block.count())
        return self._join(largest), self._join(excess), self._total(counts) if count else None

    def _join(self, parts: list[Array]) -> Array:
        """Maxima per tensor from maxima per segment, as float64."""
        values = parts[0] if len(parts) == 1 else self._xp.concatenate(parts, -1)
        if values.shape[-1] > self._count:
            ends = [*self._first[1:], values.shape[-1]]
            runs = [values[..., first:end] for first, end in zip(self._first, ends, strict=True)]
            values = self._xp.stack([self._xp.amax(run, -1) for run in runs], -1)
        return values.astype(np.float64) if self._xp is np else values.double()

    def _total(self, counts: list[Tensor]) -> Tensor:
        if len(counts) == 1:
            return counts[0]
        total = torch.zeros(self._count, histogram.BINS, dtype=torch.int64, device=counts[0].device)
        for block, part in zip(self._blocks, counts, strict=True):
            total.index_add_(0, torch.tensor(block.tensors, device=part.device), part)
        return total


def cut(sizes: Sequence[int]) -> list[list[Segment]]:
    """Cut tensors of these sizes into blocks of at most ``BLOCK`` elements, in order."""
    blocks: list[list[Segment]] = [[]]
    room = BLOCK
    for tensor, size in enumerate(sizes):
        start = 0
        while start < size:
            if room == 0 or (start == 0 and room < size <= BLOCK):
                blocks.append([])
                room = BLOCK
            stop = min(size, start + room)
            blocks[-1].append(Segment(tensor, start, stop, whole=stop - start == size))
            room -= stop - start
            start = stop
    return blocks
