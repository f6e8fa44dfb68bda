"""Numbers as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

SHARES = ("triggered", "clamped")
"""Figures that are shares."""


def cell(values: Sequence[float], figure: str = "") -> str:
    """Median, and the range where it is not a single number."""
    low, middle, high = (number(float(f(values)), figure) for f in (np.min, np.median, np.max))
    return middle if low == high else f"{middle} ({low} to {high})"


def number(value: float, figure: str = "") -> str:
    """One value of a figure."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "never"
    if figure in SHARES and value:
        return f"{100 * value:.2g}%" if value < 0.995 else f"{100 * value:.0f}%"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(corner: str, columns: Sequence[str], rows: Sequence[str], fill: Callable[[str, int], str]) -> str:
    """A Markdown table; ``fill`` says what is in a row's k-th column."""
    lines = [f"| {' | '.join([corner, *columns])} |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {' | '.join([row, *(fill(row, k) for k in range(len(columns)))])} |" for row in rows]
    return "\n".join(lines) + "\n"
