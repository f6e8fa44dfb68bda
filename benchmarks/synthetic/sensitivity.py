"""How much each constant of the library's rule matters: every one halved and doubled, the others as they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cache

import numpy as np

from benchmarks.synthetic.candidates import PRESENT, library
from benchmarks.synthetic.measure import of_faults, of_the_rest, trade_off
from benchmarks.synthetic.rules import Rule
from benchmarks.synthetic.streams import CV1, LATE
from benchmarks.synthetic.writing import number, table

SEEDS = range(3)
CLEAN = (CV1, "noise 1 nat", "noise 2 nats", "tails t2", "tails t1 (Cauchy)", "target sync: x100 in 30 of 250")
CLEAN += ("quiet: x0.001 for 500", "rare: x100 in 1% of updates")
"""Clean streams in which any of the rules clamps."""
FAULTS = ("x30, 5 updates", "x1e3 once", "x1e3, 20 updates", "x1e3, 24 updates")
CHANGES = ("x100", "x10000", "x0.1")
PRESENT_ROW = "as it is"
COLUMNS = {
    "inflation, x1e3 for 20": "inflation",
    "x100 followed": "followed",
    "x1e4 followed": "followed",
    "triggered at cv 1": "triggered",
    "clamped, worst clean stream": "clamped",
    "stalled, x30 for 5": "stalled",
    "stalled, x1e3 once": "stalled",
    "stalled, x1e3 for 24": "stalled",
    "longest unharmed burst": "",
    "late reward, times plain Adam": "learned after",
    "x0.1 too wide for": "followed",
}
"""Column -> its figure."""

Rows = Mapping[str, Mapping[str, float]]
"""Changed constant -> column -> mean of the shares, median of the others, over the seeds."""


def changes() -> dict[str, dict[str, float]]:
    """Name -> what is changed. Of a factor it is the logarithm, of the quantile its distance from 1."""
    values: dict[str, tuple[float, float]] = {"quantile": (2 * PRESENT.quantile - 1, (1 + PRESENT.quantile) / 2)}
    for name in ("arm_after", "window", "rank"):
        values[name] = getattr(PRESENT, name) // 2, getattr(PRESENT, name) * 2
    for name in ("rise", "fall"):
        values[name] = getattr(PRESENT, name) ** 0.5, getattr(PRESENT, name) ** 2
    for name in ("headroom", "budget", "refill"):
        values[name] = getattr(PRESENT, name) / 2, getattr(PRESENT, name) * 2
    return {f"{name} {value:.4g}": {name: value} for name, pair in values.items() for value in pair}


def measure() -> Rows:
    """The present rule, and one row for every change."""
    return {name: _row(change) for name, change in {PRESENT_ROW: {}, **changes()}.items()}


@cache
def _plain() -> float:
    return float(np.median([value.value for value in of_the_rest(Rule(), SEEDS, {LATE})]))


def _row(change: Mapping[str, float]) -> dict[str, float]:
    rule = library(**change)
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for value in (*of_faults(rule, SEEDS, FAULTS), *of_the_rest(rule, SEEDS, {*CLEAN, *CHANGES, LATE})):
        values[value.figure, value.stream].append(value.value)

    def median(figure: str, stream: str) -> float:
        return float(np.median(values[figure, stream]))

    cells = (
        median("inflation", "x1e3, 20 updates"),
        median("followed", "x100"),
        median("followed", "x10000"),
        float(np.mean(values["triggered", CV1])),
        max(float(np.mean(values["clamped", stream])) for stream in CLEAN),
        median("stalled", "x30, 5 updates"),
        median("stalled", "x1e3 once"),
        median("stalled", "x1e3, 24 updates"),
        float(np.median(trade_off(rule, SEEDS).unharmed)),
        median("learned after", LATE) / _plain(),
        median("followed", "x0.1"),
    )
    return dict(zip(COLUMNS, cells, strict=True))


def write(rows: Rows) -> str:
    """The table."""
    columns = list(COLUMNS)
    return table("", columns, list(rows), lambda row, k: number(rows[row][columns[k]], COLUMNS[columns[k]]))
