"""Histograms of magnitudes whose bins are the float's own bits.

A bin is the exponent and the two top mantissa bits of ``|x|`` in float32: 1,024 bins, at most 25% wide, over
the whole range of floats. This is the bit-wise interpolated mapping of DDSketch (Masson et al. 2019): the
relative error of a value is bounded, and two histograms merge by adding integers, so the counts do not depend
on chunking, order or sharding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sp4_lightning.arrays import Array, namespace, view

BINS = 1024
FINITE_BINS = 1020
"""Bins 1,020 and above (exponent 255) hold infinities and NaN."""

_SHIFT = 21  # 23 mantissa bits, of which the two highest are kept


def count(magnitudes: Tensor, row: Tensor, rows: int) -> Tensor:
    """Count non-zero magnitudes in one histogram per row.

    Args:
        magnitudes: float32 or float64 of shape ``[n]``, not negative. float64 is rounded to float32, finite
            values saturating at its largest.
        row: int32 of shape ``[n]``, the row of each.
        rows: How many there are.

    Returns:
        int64 of shape ``[rows, BINS]``. Zeros are in no bin.
    """
    if magnitudes.dtype == torch.float64:
        largest = torch.finfo(torch.float32).max
        magnitudes = torch.where(magnitudes.isfinite(), magnitudes.clamp(max=largest), magnitudes).float()
    bins = (magnitudes.view(torch.int32) >> _SHIFT) + (row + 1) * BINS
    # Row 0 of the result collects the zeros, which would share the lowest bin with denormals.
    counts = torch.bincount(torch.where(magnitudes == 0, 0, bins), minlength=(rows + 1) * BINS)
    return counts.view(-1, BINS)[1:]


def quantile(counts: Array, q: float, maximum: Array, *, few: int = 32) -> Array:
    """Estimate a quantile of the finite non-zero magnitudes of each row, linear inside a bin.

    Args:
        counts: int64 of shape ``[rows, BINS]``.
        q: The quantile, in (0, 1].
        maximum: float64 of shape ``[rows]``, each row's exact largest magnitude; no estimate exceeds it.
        few: A row with fewer values than this gives its maximum: a high quantile of a handful of values is
            their maximum anyway.

    Returns:
        float64 of shape ``[rows]``; 0 where a row is empty.
    """
    xp = namespace(counts)
    finite = counts[:, :FINITE_BINS]
    below_or_in = xp.cumsum(finite, 1)
    total = below_or_in[:, -1]
    rank = xp.clip(xp.ceil(xp.asarray(total, dtype=xp.float64) * q), 1, math.inf)
    index = xp.clip((below_or_in < rank[:, None]).sum(1), 0, FINITE_BINS - 1)
    row = xp.arange(len(counts))
    inside = finite[row, index]
    share = (rank - (below_or_in[row, index] - inside)) / xp.clip(inside, 1, None)
    edges = _EDGES.to(counts.device) if xp is torch else view(_EDGES)
    estimate = xp.minimum(edges[index] + (edges[index + 1] - edges[index]) * share, maximum)
    return xp.where(total < few, maximum, estimate) * (total > 0)


def _edges() -> Tensor:
    bits = torch.arange(FINITE_BINS + 1, dtype=torch.int32) << _SHIFT
    edges = bits.view(torch.float32).double()
    edges[-1] = 2.0**128
    return edges


_EDGES = _edges()
"""The lower edge of every finite bin and, last, infinity's; float64 of shape ``[FINITE_BINS + 1]``."""
