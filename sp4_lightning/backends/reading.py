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
from sp4_lightning.backends.flats import Flats, gather
from sp4_lightning.held import Found
from sp4_lightning.quantities import EXP_AVG, EXP_AVG_SQ, GRAD, QUANTITIES

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
        dtype: What to read into: float32, or float64 if a tensor needs it.
        device: Where the tensors are.
    """

    def __init__(self, segments: Sequence[Segment], dtype: torch.dtype, device: torch.device) -> None:
        self.tensors = [segment.tensor for segment in segments]
        self._cuts = [None if s.whole else slice(s.start, s.stop) for s in segments]
        self._sizes = [s.stop - s.start for s in segments]
        size = sum(self._sizes)
        self._memory = torch.empty(len(QUANTITIES), size, dtype=dtype, device=device)
        rows = view(self._memory)
        self._xp = namespace(rows)
        self._flat, self._signless = rows.reshape(-1), rows[:EXP_AVG_SQ]
        self._exp_avg, self._exp_avg_sq = rows[EXP_AVG], rows[EXP_AVG_SQ]
        self._excess = view(torch.empty(size, dtype=dtype, device=device))
        self._zeros = [view(torch.zeros(n, dtype=dtype, device=device)) for n in self._sizes]
        self._repeats = torch.tensor(self._sizes, device=device)
        self._row = torch.arange(len(segments), dtype=torch.int32, device=device).repeat_interleave(self._repeats)
        self._starts = np.cumsum([0, *(self._sizes * len(QUANTITIES))])[:-1]
        self._starts_of_row = self._starts[: len(segments)]

    def read(self, flats: Sequence[Sequence[Array | None]], ratio_inverse: Array) -> tuple[Array, Array]:
        """Find the segments' maxima.

        Args:
            flats: Flat param, grad, exp_avg, exp_avg_sq per tensor; None reads as zeros.
            ratio_inverse: ``[size]``, 1/c² where exp_avg and exp_avg_sq must be consistent, 0 elsewhere.

        Returns:
            The largest magnitudes, ``[4, segments]``, and the largest ``exp_avg² / c² - exp_avg_sq``, ``[segments]``.
            Both hold NaN where an element is NaN.
        """
        pieces = [
            zeros if row[i] is None else row[i] if cut is None else row[i][cut]  # type: ignore[index]
            for row in flats
            for i, cut, zeros in zip(self.tensors, self._cuts, self._zeros, strict=True)
        ]
        gather(pieces, self._flat)
        # exp_avg_sq keeps its sign: a negative one shows in the excess.
        self._xp.abs(self._signless, out=self._signless)
        self._xp.multiply(self._exp_avg, self._exp_avg, out=self._excess)
        self._xp.multiply(self._excess, ratio_inverse, out=self._excess)
        self._xp.subtract(self._excess, self._exp_avg_sq, out=self._excess)
        largest = self._maxima(self._flat, self._starts, len(QUANTITIES)).reshape(len(QUANTITIES), -1)
        return largest, self._maxima(self._excess, self._starts_of_row, 1)

    def spread(self, per_tensor: Tensor) -> Array:
        """Repeat one value per tensor for each of its elements here."""
        return view(per_tensor[self.tensors].to(self._memory.dtype).repeat_interleave(self._repeats))

    def count(self) -> Tensor:
        """Histograms of the gradients that were read last, int64 ``[segments, bins]``."""
        return histogram.count(self._memory[GRAD], self._row, len(self.tensors))

    def _maxima(self, values: Array, starts: Array, rows: int) -> Array:
        if isinstance(values, np.ndarray):
            # One call for all segments; torch has no segmented maximum that is nearly as fast.
            return np.maximum.reduceat(values, starts)
        return torch.stack(torch._foreach_max(torch.split(values, self._sizes * rows)))


class Reader:
    """Reads one optimizer's tensors.

    Args:
        params: The parameters, none of them empty.
    """

    def __init__(self, params: Sequence[Tensor]) -> None:
        wide = any(param.dtype == torch.float64 for param in params)
        dtype, device = torch.float64 if wide else torch.float32, params[0].device
        self._blocks = [Block(segments, dtype, device) for segments in cut([param.numel() for param in params])]
        self._flats = [Flats(keeps=quantity != "grad") for quantity in QUANTITIES]
        self._count = len(params)
        # Where each tensor's segments begin in the list of all blocks' segments.
        owners = [tensor for block in self._blocks for tensor in block.tensors]
        self._first = np.searchsorted(owners, np.arange(self._count))
        self._ratio: Array | None = None
        self._inverse: list[Array] = []

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
        flats = [flats.of(row) for flats, row in zip(self._flats, tensors, strict=True)]
        largest, excess, counts = [], [], []
        for block, inverse in zip(self._blocks, self._inverse, strict=True):
            block_largest, block_excess = block.read(flats, inverse)
            largest.append(block_largest)
            excess.append(block_excess)
            if count:
                counts.append(block.count())
        return self._join(largest), self._join(excess), self._total(counts) if count else None

    def _join(self, parts: list[Array]) -> Array:
        """Maxima per tensor from maxima per segment, as float64."""
        xp = namespace(parts[0])
        values = parts[0] if len(parts) == 1 else xp.concatenate(parts, -1)
        if values.shape[-1] > self._count:
            ends = [*self._first[1:], values.shape[-1]]
            runs = [values[..., first:end] for first, end in zip(self._first, ends, strict=True)]
            values = xp.stack([xp.amax(run, -1) for run in runs], -1)
        return values.astype(np.float64) if xp is np else values.double()

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
