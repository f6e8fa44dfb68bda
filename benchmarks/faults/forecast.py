"""How long a job will take, from those that have ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.faults.jobs import SNAPSHOT, Job
from benchmarks.faults.play import SHARE

MARGIN = 1.3
"""Between the longest job of a kind so far and the next one: shared machines are uneven."""


class Forecast:
    """Seconds by what is trained.

    Args:
        jobs: Those whose results may already be there.
    """

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._longest: dict[tuple[str, bool], float] = {}
        for job in jobs:
            result = job.result()
            if result is not None:
                self.learn(job, result)

    def learn(self, job: Job, result: dict[str, Any]) -> None:
        """Take a finished job into account."""
        key = (job.task, job.branch == SNAPSHOT)
        self._longest[key] = max(self._longest.get(key, 0.0), result["wall_seconds"])

    def seconds(self, job: Job) -> float:
        """The longest of its kind and a margin.

        Where that is not known, what the other part of the same training took says something, or else what other tasks
        did. Where nothing is known it is 0, so that something becomes known.
        """
        snapshot = job.branch == SNAPSHOT
        if (job.task, snapshot) in self._longest:
            return MARGIN * self._longest[job.task, snapshot]
        if (job.task, not snapshot) in self._longest:
            part = SHARE / (1 - SHARE)
            return MARGIN * self._longest[job.task, not snapshot] * (part if snapshot else 1 / part)
        return MARGIN * max((longest for (_, kind), longest in self._longest.items() if kind == snapshot), default=0.0)
