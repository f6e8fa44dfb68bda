"""Writing one engine's bounds into the table: the largest of each group's tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from sp4_lightning.arrays import Array, namespace, view
from sp4_lightning.quantities import QUANTITIES
from sp4_lightning.state import TensorState
from sp4_lightning.table import BoundsTable


class Publication:
    """Where an engine's tensors belong in the table.

    Args:
        state: Of the engine's tensors.
        group_of: Per tensor, the name of its group.
        table: Where to publish.

    Attributes:
        groups: The names of the groups the tensors belong to, in the order of the first tensor of each.
        members: bool ``[len(groups), T]``.
        columns: Per group, its column in the table.
        table: The table.
        clean_tally: int64 ``[3 + len(groups)]``, what an executed update with all gradients adds to an engine's tally.

    Raises:
        ConfigurationError: The table lacks one of the groups.
    """

    def __init__(self, state: TensorState, group_of: Sequence[str], table: BoundsTable) -> None:
        self.groups = list(dict.fromkeys(group_of))
        self.table = table
        self.columns = [table.column(group) for group in self.groups]
        self._state = state
        device = table.values.device
        self.members: Array = view(torch.tensor([[g == name for g in group_of] for name in self.groups], device=device))
        self.clean_tally: Array = view(torch.tensor([1, 0, 0, *(1 for _ in self.groups)], device=device))
        self._is_grad = view(torch.tensor([[quantity == "grad"] for quantity in QUANTITIES], device=device))

    def publish(self) -> None:
        """Write each group's largest bound.

        A tensor that has never had a gradient has no bound and needs none, so it does not hold its group's grad
        bound at +inf.
        """
        xp, values = namespace(self._state.bound), view(self.table.values)
        shown = xp.where(self._is_grad & (self._state.seen == 0), 0.0, self._state.bound)
        largest = xp.amax(xp.where(self.members, shown[:, None], 0.0), -1)
        values[:, self.columns] = xp.asarray(xp.where(largest > 0, largest, math.inf), dtype=xp.float32)
