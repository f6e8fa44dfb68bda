"""The bench's tables as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.synthetic import result, sensitivity, targets
from benchmarks.synthetic.candidates import ELEMENTS, LIBRARY, RESOLUTIONS, TRACKERS
from benchmarks.synthetic.measure import Groups, Points, Results
from benchmarks.synthetic.streams import CHANGE, WARM
from benchmarks.synthetic.writing import cell, table

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


def write(results: Results, points: Points, groups: Groups, rows: sensitivity.Rows, seeds: int, machine: str) -> str:
    """The whole of ``synthetic.md``."""
    parts = [_head(machine, seeds), result.write(results, points, groups, rows)]
    parts += [TARGETS, targets.write(results), _sensitivity(), sensitivity.write(rows), TRADE_OFF]
    columns = ["held", "unharmed", "x100 admitted"]
    parts.append(table("rule", columns, list(points), lambda rule, k: cell(points[rule][k])))
    parts += [GROUPS, _figure_by_figure(groups)]
    for figure, title in TITLES.items():
        parts.append(f"## {title}")
        for columns in (["none", *LIBRARY], ["none", "library", *TRACKERS], ["none", "library", *ELEMENTS]):
            parts.append(_figure(results[figure], columns, figure))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _head(machine: str, seeds: int) -> str:
    return f"""# Rules for the learned bound on synthetic gradients

`python -m benchmarks.synthetic`, {machine}. Cells are medians (and ranges) of {seeds} seeds, {8 * seeds} for the
reward that is found late. `library` and the rules of its table run through `ClippingOptimizer`; they and the others
are defined in [`candidates.py`](../synthetic/candidates.py), the streams in [`streams.py`](../synthetic/streams.py).
What the rule is and why: [`docs/rule.md`](../../docs/rule.md)."""


TARGETS = """## Targets

What misses its target is in italics. Shares are means over the seeds."""

TRADE_OFF = """## The trade-off

![Burst length blocked against updates until a genuine x100 is admitted](../../docs/trade_off.svg)

Bursts are of x1e3. *Held*: the longest that leaves the bound below twice what it was. *Unharmed*: the longest after
which Adam stalls for fewer than 100 updates."""

GROUPS = """## One bound a tensor or one for its group

Three tensors of a group: the share of clamped elements where nothing is wrong, and the stalled updates of the small
one that is hit."""


def _sensitivity() -> str:
    return f"""## Sensitivity

Every constant of the rule halved and doubled, the others as they are: of rise and fall the logarithm, of the quantile
its distance from 1. Medians of {len(sensitivity.SEEDS)} seeds, shares are means. No tensor here has enough elements for
its quantile to differ from its largest."""


def _figure_by_figure(groups: Groups) -> str:
    rows = [(figure, stream) for figure, streams in groups.items() for stream in streams]
    shown = {f"{figure}: {stream}": groups[figure][stream] for figure, stream in rows}
    return _figure(shown, list(RESOLUTIONS), "")


def _figure(streams: Mapping[str, Mapping[str, Sequence[float]]], columns: Sequence[str], figure: str) -> str:
    shown = {stream: [cell(by_rule[rule], figure) for rule in columns] for stream, by_rule in streams.items()}
    return table("", columns, list(shown), lambda stream, k: shown[stream][k])
