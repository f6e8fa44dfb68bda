"""Help with misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggest the nearest known name.

    Args:
        name: The name that was not found.
        known: The names that exist.

    Returns:
        ``" Did you mean 'x'?"`` with a leading space, or ``""`` when nothing is near.
    """
    nearest = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def shorten(names: Iterable[str], limit: int = 4) -> str:
    """Join names for an error message, at most ``limit`` of them and a count of the rest."""
    names = list(names)
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
