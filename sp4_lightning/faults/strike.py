"""Writing a fault into tensors, past torch's version counter, as a flipped bit or a bad restore would be."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from sp4_lightning.faults.fault import Fault


def strike(fault: Fault, tensors: Sequence[Tensor], draw: random.Random) -> list[int]:
    """Damage some elements of some tensors.

    Args:
        fault: What to write, and to how many elements.
        tensors: Together they are what elements are drawn from; they need not be contiguous.
        draw: Where the draw comes from.

    Returns:
        How many elements of each tensor were written.
    """
    if fault.count is None:
        for tensor in tensors:
            _write(fault, tensor.data)
        return [tensor.numel() for tensor in tensors]
    candidates = [_candidates(fault, tensor) for tensor in tensors]
    ends = [sum(map(len, candidates[: i + 1])) for i in range(len(tensors))]
    written = [0] * len(tensors)
    total = ends[-1] if ends else 0
    for pick in sorted(draw.sample(range(total), min(fault.count, total))):
        which = next(i for i, end in enumerate(ends) if pick < end)
        flat = int(candidates[which][pick - ends[which]])
        # A view of one element, wherever strides put it.
        element = tensors[which].data[(*np.unravel_index(flat, tensors[which].shape), None)]
        _write(fault, element)
        written[which] += 1
    return written


def _candidates(fault: Fault, tensor: Tensor) -> Sequence[int] | Tensor:
    """Flat indices that may be drawn: a factor would leave a zero as it is."""
    if fault.factor is None:
        return range(tensor.numel())
    return tensor.detach().flatten().nonzero().flatten()


def _write(fault: Fault, target: Tensor) -> None:
    if fault.factor is not None:
        target.mul_(fault.factor)
    elif fault.value is not None:
        target.fill_(fault.value)
    else:
        target.fill_({"nan": math.nan, "inf": math.inf, "zero": 0.0}[fault.how])
