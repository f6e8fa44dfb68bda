"""Histograms of magnitudes whose bins are the float's own bits.

A bin is the exponent and the two top mantissa bits of ``|x|`` in float32: 1,024 bins, at most 25% wide, over
the whole range of floats. This is the bit-wise interpolated mapping of DDSketch (Masson et al. 2019): the
relative error of a value is bounded, and two histograms merge by adding integers, so the counts do not depend
on chunking, order or sharding.
"""

from __future__ import annotations

import torch
from torch import Tensor

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


def quantile(counts: Tensor, q: float, maximum: Tensor, *, few: int = 32) -> Tensor:
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
    finite = counts[:, :FINITE_BINS]
    below_or_in = finite.cumsum(1)
    total = below_or_in[:, -1]
    rank = (total * q).ceil().to(torch.int64).clamp_(min=1)
    index = torch.searchsorted(below_or_in, rank[:, None]).clamp_(max=FINITE_BINS - 1)
    inside = finite.gather(1, index)
    below = below_or_in.gather(1, index) - inside
    edges = _edges(counts.device)
    low, high = edges[index], edges[index + 1]
    share = (rank[:, None] - below).double() / inside.clamp(min=1)
    estimate = (low + (high - low) * share).squeeze(1).minimum(maximum)
    return torch.where(total < few, maximum, estimate) * (total > 0)


def _edges(device: torch.device) -> Tensor:
    """The lower edge of every finite bin and, last, infinity's; float64 of shape ``[FINITE_BINS + 1]``."""
    bits = torch.arange(FINITE_BINS + 1, dtype=torch.int32, device=device) << _SHIFT
    edges = bits.view(torch.float32).double()
    edges[-1] = 2.0**128
    return edges
