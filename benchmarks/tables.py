"""Markdown tables, and intervals to put into them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def bootstrap(pairs: np.ndarray) -> tuple[float, float]:
    """95% percentile interval of the mean (Efron and Tibshirani 1993, chapter 13)."""
    means = np.random.default_rng(0).choice(pairs, (10_000, len(pairs))).mean(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
