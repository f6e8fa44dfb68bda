"""A suite's tables as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.faults.cells import difference, lost, moved, number, protection, survived
from benchmarks.faults.methods import LIBRARY, REFERENCE
from benchmarks.faults.outcome import Cells, Outcome, cells
from benchmarks.faults.suite import CLEAN, Suite
from benchmarks.tables import table

READING = (
    "A row is a fault, or a fault in one group; a column is a method. `5/5 212` is: of five seeds five survived, and "
    "the mean score at the end was 212. Survived means S1 to S4 of `benchmarks/faults/verdict.py`, against the clean "
    "branch of the same method, seed and snapshot."
)


def write(suite: Suite, outcomes: Sequence[Outcome], machines: Sequence[dict[str, Any]]) -> str:
    """All tables of all tasks."""
    made_on = " and ".join(
        f"{m['processor']}, {m['cores']} cores, Python {m['python']}, torch {m['torch']}" for m in machines
    )
    parts = [
        f"# Fault suite: {suite.name}",
        f"Made by `python -m benchmarks.faults benchmarks/faults/{suite.name}.yaml --collect`; one thread a run, on "
        f"{made_on}. {READING}",
        table(["fault", ""], [[name, fault.says] for name, fault in suite.faults.items()]),
    ]
    for name in suite.tasks:
        of_task = [outcome for outcome in outcomes if outcome.task == name]
        if of_task:
            parts += _task(suite, name, of_task)
    return "\n\n".join(parts) + "\n"


def _task(suite: Suite, name: str, outcomes: Sequence[Outcome]) -> list[str]:
    found = cells(outcomes)
    methods = [method for method in suite.methods_of(name) if any(method == key[1] for key in found)]
    rows = [fault for fault in suite.branches(name) if any(fault == key[0] for key in found)]
    seeds = sorted({outcome.seed for outcome in outcomes})
    parts = [f"## {name}", f"Seeds {', '.join(map(str, seeds))}."]
    titles: dict[str, list[str]] = {}
    for fault in rows:
        if fault != CLEAN:
            titles.setdefault(apart(suite, fault) or "Survived, and score", []).append(fault)
    for title, of_title in titles.items():
        parts += [f"### {title}", grid(of_title, methods, found, survived)]
    parts += ["### Clean branch (F0)", "Score and mean of the curve; against `none`, paired, with 95% intervals."]
    parts += [clean_table(methods, found)]
    faults = [fault for fault in rows if fault != CLEAN]
    parts += ["### Updates lost on three quarters of the clean way: median (worst)", grid(faults, methods, found, lost)]
    if LIBRARY in methods and len(methods) > 1:
        others = [method for method in methods if method != LIBRARY]
        parts += [
            f"### Score of `{LIBRARY}` minus score of the others",
            "Mean over the seeds, and 95% bootstrap interval of the mean.",
            grid(faults, others, found, lambda of: "", against=LIBRARY),
        ]
    if any(outcome.moved_along is not None for outcome in outcomes):
        judged = [fault for fault in faults if any(o.moved_along is not None for o in outcomes if o.fault == fault)]
        parts += ["### Other groups that moved along, on frozen replay, in all seeds together"]
        parts += [grid(judged, methods, found, moved)]
    own = [method for method in methods if method.startswith(LIBRARY)]
    if own:
        parts += ["### What the protection did: skips, repaired elements, clamped share (worst tensor)"]
        parts += [grid(rows, own, found, protection), "### Misses", misses(outcomes, own)]
    return parts


def apart(suite: Suite, branch: str) -> str | None:
    """Title of the table that a branch is shown in, if it is one of its own."""
    return suite.faults[branch.partition(".")[0]].apart


def misses(outcomes: Sequence[Outcome], methods: Sequence[str]) -> str:
    """Every branch of the library that did not survive, and the rules that it broke."""
    lines = [
        f"- {o.method}, {o.fault}, seed {o.seed}: "
        f"{', '.join(f'S{k}' for k, holds in enumerate(o.held, 1) if not holds)}; score {number(o.score)}"
        for o in outcomes
        if o.method in methods and not o.survived
    ]
    return "\n".join(lines) or "None."


def clean_table(methods: Sequence[str], found: Cells) -> str:
    rows = []
    reference = found.get((CLEAN, REFERENCE), [])
    for method in methods:
        of = found.get((CLEAN, method), [])
        if not of:
            continue
        row = [method, number(statistics.fmean(o.score for o in of)), number(statistics.fmean(o.area for o in of))]
        for measure in (lambda o: o.score, lambda o: o.area):
            row.append(difference(of, reference, measure) if method != REFERENCE else "")
        rows.append([*row, f"{statistics.median(o.seconds for o in of):.1f}"])
    return table(["method", "score", "curve", "score - none", "curve - none", "CPU-s of a branch"], rows)


def grid(
    faults: Sequence[str],
    methods: Sequence[str],
    found: Cells,
    cell: Callable[[Sequence[Outcome]], str],
    against: str | None = None,
) -> str:
    """Faults by methods; with ``against`` that method's score minus the column's."""
    rows = []
    for fault in faults:
        row = [fault]
        for method in methods:
            of = found.get((fault, method), [])
            if against is not None:
                row.append(difference(found.get((fault, against), []), of, lambda o: o.score))
            else:
                row.append(cell(of) if of else "-")
        rows.append(row)
    return table(["fault", *methods], rows)
