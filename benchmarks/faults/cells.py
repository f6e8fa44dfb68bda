"""What stands in a cell of a table: the outcomes of all seeds of one fault under one method."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.faults.outcome import Outcome, pairs
from benchmarks.tables import bootstrap


def survived(of: Sequence[Outcome]) -> str:
    return f"{sum(o.survived for o in of)}/{len(of)} {number(statistics.fmean(o.score for o in of))}"


def lost(of: Sequence[Outcome]) -> str:
    """An even number of seeds has the larger of its two medians, so that a ``>`` is true."""
    by_size = sorted((o.lost, o.lost_more) for o in of)
    shown = [f"{'>' if more else ''}{updates:,}" for updates, more in by_size]
    return f"{shown[len(shown) // 2]} ({shown[-1]})"


def moved(of: Sequence[Outcome]) -> str:
    judged = [o.moved_along for o in of if o.moved_along is not None]
    return str(sum(map(len, judged))) if judged else "-"


def protection(of: Sequence[Outcome]) -> str:
    seen = [o.protection for o in of if o.protection is not None]
    worst = max(p["clamped_worst"] for p in seen)
    share = statistics.fmean(p["clamped"] for p in seen)
    return f"{sum(p['skips'] for p in seen)}, {sum(p['repairs'] for p in seen)}, {share:.1e} ({worst:.1e})"


def difference(a: Sequence[Outcome], b: Sequence[Outcome], measure: Callable[[Outcome], float]) -> str:
    """Mean difference over common seeds and its interval."""
    of = np.array([measure(one) - measure(other) for one, other in pairs(a, b)])
    if not len(of):
        return "-"
    low, high = bootstrap(of)
    return f"{number(of.mean(), '+')} ({number(low, '+')} to {number(high, '+')})"


def number(value: float, sign: str = "") -> str:
    """Three digits: returns are hundreds, accuracies below one."""
    if value == 0:
        return "0"
    return format(value, f"{sign}.3f" if abs(value) < 2 else f"{sign}.0f")
