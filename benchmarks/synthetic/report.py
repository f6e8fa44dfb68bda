"""The bench's tables as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from benchmarks.synthetic.candidates import CANDIDATES, CONSTANTS
from benchmarks.synthetic.measure import Points, Results
from benchmarks.synthetic.recommendation import recommend
from benchmarks.synthetic.streams import CHANGE, WARM
from benchmarks.synthetic.writing import cell

TITLES = {
    "stalled": "Stalled updates after a fault: until nine in ten of the elements it touched are at half their usual "
    "rate again",
    "lost": "Lost updates after a fault: by how much the rate of the median touched element is below its usual one, "
    "summed over the updates",
    "displacement": "Displacement by a fault: mean distance from undisturbed plain Adam when it is over, in learning "
    "rates",
    "inflation": "Inflation: largest factor by which a fault raises the bound; - where there is none",
    "triggered": f"Share of updates with a clamped element on clean streams, after {WARM}",
    "clamped": f"Share of clamped elements on clean streams, after {WARM}",
    "followed": f"Updates until a genuine change at update {CHANGE} is followed: up, until 20 in a row are admitted; "
    "down, until the bound is within 2 of where it belongs",
    "learned after": "Tasks: updates from the change until the mean weight is within a tenth of its goal",
    "learned share": "Tasks: rare informative gradients, learned over true value",
}


def write(results: Results, points: Points, seeds: int, machine: str) -> str:
    """The whole of ``synthetic.md``."""
    others = [rule for rule in CANDIDATES if rule not in CONSTANTS]
    parts = [f"{_head(machine, seeds)}\n", recommend(results, points), f"{TRADE_OFF}\n"]
    columns = ["held", "unharmed", "x100 admitted"]
    parts.append(_table("rule", columns, list(points), lambda rule, k: cell(points[rule][k])))
    for figure, title in TITLES.items():
        streams = results[figure]
        parts.append(f"## {title}\n")
        for columns in (["none", *CONSTANTS], ["none", "library", *others[1:]]):
            parts.append(_figure(streams, columns, figure))
    return "\n".join(parts)


def _head(machine: str, seeds: int) -> str:
    return f"""# Rules for the learned bound on synthetic gradients

`python -m benchmarks.synthetic`, {machine}. Cells are medians (and ranges) of {seeds} seeds. `library` and the rules
named after one of its constants run through `ClippingOptimizer`; they and the others are defined in
[`candidates.py`](../synthetic/candidates.py), the streams in [`streams.py`](../synthetic/streams.py)."""


TRADE_OFF = """## The trade-off

![Burst length blocked against updates until a genuine x100 is admitted](../../docs/trade_off.svg)

Bursts are of x1e3. *Held*: the longest that leaves the bound below twice what it was. *Unharmed*: the longest after
which Adam stalls for fewer than 100 updates."""


def _figure(streams: Mapping[str, Mapping[str, Sequence[float]]], columns: Sequence[str], figure: str) -> str:
    shown = [[cell(by_rule[rule], figure) for rule in columns] for by_rule in streams.values()]
    return _table("", columns, list(streams), lambda stream, k: shown[list(streams).index(stream)][k])


def _table(corner: str, columns: Sequence[str], rows: Sequence[str], fill: Callable[[str, int], str]) -> str:
    lines = [f"| {' | '.join([corner, *columns])} |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {' | '.join([row, *(fill(row, k) for k in range(len(columns)))])} |" for row in rows]
    return "\n".join(lines) + "\n"
