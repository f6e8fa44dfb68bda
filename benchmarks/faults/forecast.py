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
        """The longest of its kind and a margin; 0 where nothing is known, so that something becomes known."""
        snapshot = job.branch == SNAPSHOT
        known = self._longest.get((job.task, snapshot))
        if known is None:  # what is known of the other part of the same training
            other = self._longest.get((job.task, not snapshot), 0.0)
            known = other * (SHARE / (1 - SHARE)) ** (1 if snapshot else -1)
        return MARGIN * known
