"""From results to outcomes, and to everything that is made of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.faults.jobs import Row
from benchmarks.faults.outcome import Outcome
from benchmarks.faults.picture import matrix
from benchmarks.faults.suite import CLEAN, Suite
from benchmarks.faults.tables import write
from benchmarks.faults.verdict import Branch, area, judge, score, updates_lost


def collect(suite: Suite, rows: Sequence[Row], root: Path) -> None:
    """Write the suite's JSON, tables and picture from the results that are there.

    Args:
        suite: The suite.
        rows: Its jobs.
        root: Directory with ``benchmarks/results`` and ``docs``.
    """
    outcomes = [outcome for row in rows for outcome in judged(suite, row)]
    if not outcomes:
        raise SystemExit("There are no results of this suite yet.")
    machines = sorted({json.dumps(result["machine"]) for row in rows for result in _results(row).values()})
    results, docs = root / "benchmarks" / "results", root / "docs"
    for directory in (results, docs):
        directory.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(asdict(outcome)) for outcome in outcomes)
    head = json.dumps({"suite": suite.name, "machines": [json.loads(machine) for machine in machines]})
    (results / f"faults_{suite.name}.json").write_text(f'{head[:-1]}, "branches": [\n{lines}\n]}}\n')
    (results / f"faults_{suite.name}.md").write_text(write(suite, outcomes, [json.loads(m) for m in machines]))
    (docs / f"faults_{suite.name}.svg").write_text(matrix(suite, outcomes))


def judged(suite: Suite, row: Row) -> Iterator[Outcome]:
    """Outcomes of one row's finished branches; none before the clean one is there."""
    results = _results(row)
    spec = suite.specs[row.snapshot.task]
    if CLEAN not in results:
        return
    clean = results[CLEAN]
    for name, branch in results.items():
        held = judge(branch, clean, spec.floor, spec.share)
        lost = updates_lost(branch, clean, all(held))
        yield Outcome(
            row.snapshot.task,
            row.snapshot.method,
            row.snapshot.seed,
            name,
            tuple(held),
            score(branch),
            area(branch),
            lost.updates,
            lost.more,
            branch["moved_along"],
            branch["protection"],
            branch["training_seconds"],
        )


def _results(row: Row) -> dict[str, Branch]:
    """Finished branches by name, those alone that start from the clean branch's snapshot."""
    found = {job.branch: result for job in row.branches if (result := job.result()) is not None}
    start = found.get(CLEAN, {}).get("snapshot")
    return {name: result for name, result in found.items() if result["snapshot"] == start}
