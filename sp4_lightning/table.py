"""The published bounds: one device tensor of shape [quantity, group]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sp4_lightning.errors import CheckpointError, ConfigurationError
from sp4_lightning.naming import did_you_mean, shorten
from sp4_lightning.quantities import QUANTITIES, Quantity

FIRST_SLOT = 136
"""Where the four quantities start in the signal table this layout comes from: with eight groups the slots of
the last group are 143, 151, 159 and 167."""


class BoundsTable:
    """The largest bound of each group's tensors, per quantity.

    A value of +inf means that the group has no bound yet. Clamping uses per-tensor bounds only (one scale for a
    group crushes its small tensors); the table is what logs and other code read. Engines write it when they learn and
    when a report is taken, so in between it is up to ``update_every - 1`` updates behind the bounds in force.

    Args:
        groups: Group names, in the order of the columns.
        device: Where the table lives.

    Attributes:
        groups: The group names.
        values: float32 of shape ``[4, len(groups)]``; rows as in :data:`~sp4_lightning.quantities.QUANTITIES`.
    """

    def __init__(self, groups: Sequence[str], device: torch.device | str = "cpu") -> None:
        self.groups = tuple(groups)
        self.values = torch.full((len(QUANTITIES), len(groups)), torch.inf, device=device)

    def __getitem__(self, key: tuple[Quantity, str]) -> Tensor:
        """The bound of ``(quantity, group)`` as a 0-d tensor on the device.

        Raises:
            ConfigurationError: No such quantity or group.
        """
        quantity, group = key
        return self.values[_row(quantity), self.column(group)]

    def column(self, group: str) -> int:
        """The group's column.

        Raises:
            ConfigurationError: No such group.
        """
        if group not in self.groups:
            raise ConfigurationError(
                f"The table has no group {group!r}.{did_you_mean(group, self.groups)} "
                f"Groups are {shorten(self.groups, 12)}."
            )
        return self.groups.index(group)

    def slot(self, group: str, quantity: Quantity) -> int:
        """The slot number of one bound in a flat signal table: ``136 + groups * quantity + group``.

        Raises:
            ConfigurationError: No such quantity or group.
        """
        return FIRST_SLOT + len(self.groups) * _row(quantity) + self.column(group)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain types, keyed by names."""
        values = self.values.cpu()
        return {
            quantity: dict(zip(self.groups, values[row].clone(), strict=True))
            for row, quantity in enumerate(QUANTITIES)
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Take over saved bounds, matched by name.

        Raises:
            CheckpointError: The saved table has other groups; nothing is written.
        """
        for quantity in QUANTITIES:
            got = set(saved.get(quantity, {}))
            if got != set(self.groups):
                raise CheckpointError(
                    f"The saved table's groups for {quantity} are [{shorten(sorted(got), 12)}], but the groups now "
                    f"are [{shorten(sorted(self.groups), 12)}]. Resume with the same groups."
                )
            if not all(isinstance(value, Tensor) and value.numel() == 1 for value in saved[quantity].values()):
                raise CheckpointError(f"The saved table's bounds for {quantity} are not numbers in tensors: damaged.")
        rows = [torch.stack([saved[quantity][group] for group in self.groups]) for quantity in QUANTITIES]
        self.values.copy_(torch.stack(rows))


def _row(quantity: Quantity) -> int:
    if quantity not in QUANTITIES:
        raise ConfigurationError(
            f"There is no quantity {quantity!r}.{did_you_mean(str(quantity), QUANTITIES)} Quantities are "
            f"{', '.join(QUANTITIES)}."
        )
    return QUANTITIES.index(quantity)
