"""Jobs of a suite, in the order in which they should run, and what is left to do."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults.methods import method_settings
from benchmarks.faults.suite import CLEAN, Suite
from benchmarks.faults.tasks import Task

SNAPSHOT = "snapshot"


@dataclass(frozen=True)
class Job:
    """A snapshot, or a branch that starts from one.

    Attributes:
        task: Name of the task.
        trains: The task itself.
        method: What protects the run.
        seed: Of everything random.
        branch: ``snapshot``, or the branch's name.
        faults: Entries for FaultInjector; none for a snapshot and the clean branch.
        settings: All that the result depends on.
        directory: Where the snapshot and its branches keep their results.
    """

    task: str
    trains: Task
    method: str
    seed: int
    branch: str
    faults: list[dict[str, Any]]
    settings: dict[str, Any]
    directory: Path

    def __str__(self) -> str:
        return f"{self.task} {self.method} seed {self.seed} {self.branch}"

    @property
    def path(self) -> Path:
        """The result."""
        return self.directory / f"{self.branch}.json"

    @property
    def checkpoint(self) -> Path:
        """The state that the snapshot leaves and its branches start from."""
        return self.directory / f"{SNAPSHOT}.ckpt"

    def result(self) -> dict[str, Any] | None:
        """The result, if there is one that was made from the same settings."""
        if not self.path.exists():
            return None
        result: dict[str, Any] = json.loads(self.path.read_text())
        return result if result["settings"] == self.settings else None

    def write(self, result: dict[str, Any]) -> None:
        """Keep the result: written beside its place and renamed, so that a job that is cut off leaves nothing."""
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(result) + "\n")
        os.replace(part, self.path)


@dataclass
class Row:
    """A snapshot and its branches: one task under one method with one seed."""

    snapshot: Job
    branches: list[Job]

    def due(self) -> list[Job]:
        """What can run now: the snapshot, or when it is there the branches without a result from it."""
        snapshot = self.snapshot.result()
        results = [branch.result() for branch in self.branches]
        digests = [None if result is None else result["snapshot"] for result in results]
        if snapshot is None or (None in digests and not self.snapshot.checkpoint.exists()):
            return [self.snapshot]
        return [job for job, digest in zip(self.branches, digests, strict=True) if digest != snapshot["snapshot"]]


def make_rows(suite: Suite, directory: Path) -> list[Row]:
    """All rows of a suite, by seed first, so that one that is cut off has whole seeds."""
    settings = {name: task.settings() for name, task in suite.tasks.items()}
    return [
        _row(suite, task, settings[task], method, seed, directory)
        for seed in suite.seeds
        for task in suite.tasks
        for method in suite.methods_of(task)
    ]


def all_jobs(rows: Sequence[Row]) -> Iterator[Job]:
    """Snapshots and branches alike."""
    for row in rows:
        yield row.snapshot
        yield from row.branches


def _row(suite: Suite, task: str, settings: dict[str, Any], method: str, seed: int, directory: Path) -> Row:
    trains = suite.tasks[task]
    place = directory / suite.name / task / method / str(seed)
    common = {"task": settings, "method": method_settings(method), "seed": seed}

    def job(branch: str, faults: list[dict[str, Any]]) -> Job:
        as_kept = json.loads(json.dumps({**common, "faults": faults}))
        return Job(task, trains, method, seed, branch, faults, as_kept, place)

    branches = suite.branches(task)
    assert next(iter(branches)) == CLEAN
    return Row(job(SNAPSHOT, []), [job(name, faults) for name, faults in branches.items()])
