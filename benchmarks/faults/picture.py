"""The survival matrix: faults by methods, one panel for each task."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.faults.outcome import Outcome, cells
from benchmarks.faults.suite import CLEAN, Suite

CELL, ROW, LEFT, TOP, GAP = 46, 17, 170, 128, 40
STYLE = "text{font:11px sans-serif;fill:#777}.title{font-weight:bold;font-size:13px}.in{fill:#222;text-anchor:middle}"


def matrix(suite: Suite, outcomes: Sequence[Outcome]) -> str:
    """All panels as one SVG, one below the other; green has survived in every seed, red in none."""
    drawn, down, width = [], 0, 0
    for task in suite.tasks:
        of_task = [outcome for outcome in outcomes if outcome.task == task and outcome.fault != CLEAN]
        if of_task:
            methods = [method for method in suite.methods_of(task) if any(o.method == method for o in of_task)]
            faults = [fault for fault in suite.branches(task) if any(o.fault == fault for o in of_task)]
            drawn.append(f'<g transform="translate(0 {down})">\n{_panel(task, faults, methods, of_task)}\n</g>')
            down += TOP + ROW * len(faults) + GAP
            width = max(width, LEFT + CELL * len(methods) + 90)
    size = f'width="{width}" height="{down}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>\n' + "\n".join(drawn) + "\n</svg>\n"


def _panel(task: str, faults: Sequence[str], methods: Sequence[str], outcomes: Sequence[Outcome]) -> str:
    found = cells(outcomes)
    out = [f'<text x="10" y="20" class="title">{task}: survived, of its seeds</text>']
    for column, method in enumerate(methods):
        x = LEFT + CELL * (column + 0.5)
        out.append(f'<text x="{x}" y="{TOP - 6}" transform="rotate(-40 {x} {TOP - 6})">{method}</text>')
    for row, fault in enumerate(faults):
        y = TOP + ROW * row
        out.append(f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{fault}</text>')
        for column, method in enumerate(methods):
            of = found.get((fault, method), [])
            if of:
                alive = sum(outcome.survived for outcome in of)
                place = f'x="{LEFT + CELL * column + 1}" y="{y + 1}" width="{CELL - 2}" height="{ROW - 2}"'
                out.append(f'<rect {place} rx="2" fill="{_colour(alive / len(of))}"/>')
                middle = LEFT + CELL * (column + 0.5)
                out.append(f'<text x="{middle}" y="{y + 12.5}" class="in">{alive}/{len(of)}</text>')
    return "\n".join(out)


def _colour(share: float) -> str:
    """From red over yellow to green."""
    return f"hsl({round(120 * share)} 55% 72%)"
