"""Faults in a batch: its tensor is struck in place, and put back when the batch is done.

In place, because a hook cannot replace an entry of a tuple; put back, because a batch may be a view of the data set,
which would otherwise stay corrupted for ever.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from sp4_lightning.errors import ConfigurationError
from sp4_lightning.faults.fault import Fault
from sp4_lightning.faults.strike import strike
from sp4_lightning.naming import did_you_mean, shorten


def check_batch(faults: Sequence[Fault], batch: Any) -> None:
    """Make sure that a batch has what all faults in batches need.

    Raises:
        ConfigurationError: It lacks something; the message says for which fault.
    """
    for i, fault in enumerate(faults):
        if fault.what == "batch":
            try:
                find_tensor(fault, batch)
            except ConfigurationError as error:
                raise ConfigurationError(f"faults[{i}]: {error}") from None


def find_tensor(fault: Fault, batch: Any) -> Tensor:
    """The tensor that a fault's ``key`` names.

    Raises:
        ConfigurationError: There is none, or it cannot hold the fault.
    """
    entries = _entries(batch)
    if fault.key is None and isinstance(batch, Tensor):
        found: Any = batch
    elif fault.key in entries:
        found = entries[fault.key]
    else:
        raise ConfigurationError(
            f"{fault.kind}: key {fault.key!r} is not in the batch, a {type(batch).__name__}."
            f"{did_you_mean(str(fault.key), map(str, entries))} Keys are {shorten(map(str, entries), 12) or 'none'}."
        )
    if not isinstance(found, Tensor) or not found.is_floating_point():
        kind = found.dtype if isinstance(found, Tensor) else type(found).__name__
        raise ConfigurationError(f"{fault.kind}: key {fault.key!r} of the batch is {kind}, not floating-point numbers.")
    if fault.samples is not None and (found.dim() == 0 or fault.samples > len(found)):
        raise ConfigurationError(
            f"{fault.kind}: samples is {fault.samples}, but key {fault.key!r} has the shape {list(found.shape)}."
        )
    return found


def _entries(batch: Any) -> dict[Any, Any]:
    if isinstance(batch, Mapping):
        return dict(batch)
    numbered = dict(enumerate(batch)) if isinstance(batch, (list, tuple)) else {}
    named = batch._asdict() if hasattr(batch, "_asdict") else getattr(batch, "__dict__", {})
    return {**named, **numbered}


class BatchStrikes:
    """The tensors of the running batch that were struck, and what they held before."""

    def __init__(self) -> None:
        self._before: list[tuple[Tensor, Tensor]] = []

    def strike(self, fault: Fault, batch: Any, draw: random.Random) -> int:
        """Strike the batch; returns how many elements."""
        tensor = find_tensor(fault, batch)
        self._before.append((tensor, tensor.detach().clone()))
        if fault.samples is None:
            return sum(strike(fault, [tensor], draw))
        return sum(sum(strike(fault, [tensor[row]], draw)) for row in draw.sample(range(len(tensor)), fault.samples))

    def put_back(self) -> None:
        """Leave the batch as it came."""
        while self._before:
            tensor, before = self._before.pop()
            tensor.data.copy_(before)
