"""Numbers as text."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
        return f"{100 * value:.2g}%"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
