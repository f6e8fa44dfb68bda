"""Being loud about an optimizer that skips one update after the other."""

from __future__ import annotations

import warnings

from sp4_lightning.errors import SkipStreakError
from sp4_lightning.settings import Settings


def check_streak(name: str, streak: int, settings: Settings) -> None:
    """Warn of, or end, a streak of skips.

    Args:
        name: The optimizer.
        streak: How many updates it has skipped in a row, as read from the device.
        settings: Says when.

    Raises:
        SkipStreakError: The streak has reached ``raise_after_skips``.
    """
    limit = settings.raise_after_skips
    if limit is not None and streak >= limit:
        raise SkipStreakError(
            f"{name} has skipped {streak} updates in a row: its gradients are not finite. Look at the loss and the "
            f"batches, or raise raise_after_skips (now {limit})."
        )
    if streak == settings.max_skip_streak:
        warnings.warn(
            f"{name} has skipped {streak} updates in a row: its gradients are not finite, so nothing is learned.",
            stacklevel=3,
        )
