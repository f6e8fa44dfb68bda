"""Workers that run jobs until all are done or the time is over."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from benchmarks.faults import BEGAN
from benchmarks.faults.forecast import Forecast
from benchmarks.faults.jobs import SNAPSHOT, Job, Row, all_jobs
from benchmarks.faults.play import play

RESERVE = 10.0
"""Seconds to end the workers and the program."""


class Worker:
    """A process that runs one job after the other."""

    def __init__(self) -> None:
        context: Any = get_context("spawn")  # a fork would inherit torch's threads
        self.pipe, other = context.Pipe()
        self.process: BaseProcess = context.Process(target=_work, args=(other,), daemon=True)
        self.process.start()
        other.close()
        self.job: Job | None = None

    def start(self, job: Job) -> None:
        """Send it a job."""
        self.job = job
        self.pipe.send(job)

    def finish(self) -> tuple[Job, bool, str]:
        """Its job, whether that went well, and the line or traceback to print."""
        job, self.job = self.job, None
        assert job is not None
        try:
            well, text = self.pipe.recv()
        except EOFError:
            self.process.join()
            well, text = False, f"The process ended with exit code {self.process.exitcode}."
        return job, well, text


def _work(pipe: Connection) -> None:
    while True:
        job = pipe.recv()
        try:
            pipe.send((True, play(job)))
        except Exception:
            pipe.send((False, traceback.format_exc()))


class Schedule:
    """What is running, done and failed.

    Args:
        rows: Snapshots and their branches, the most urgent row first.
        workers: How many processes.
        seconds: From the program's beginning on. No job is started that would not end within them, and what still
            runs then is cut off; None: no limit.
    """

    def __init__(self, rows: Sequence[Row], workers: int, seconds: float | None) -> None:
        self.rows = rows
        self.deadline = None if seconds is None else BEGAN + seconds - RESERVE
        self.count = workers
        self.forecast = Forecast(all_jobs(rows))
        self.failed: list[str] = []
        self._workers: list[Worker] = []
        seeds = list(dict.fromkeys(row.snapshot.seed for row in rows))
        # Branches before snapshots within a seed, so that whole rows appear early.
        self._urgency = {
            job.path: (seeds.index(job.seed), job.branch == SNAPSHOT, place) for place, job in enumerate(all_jobs(rows))
        }
        self._waiting: list[Job] = []
        for row in rows:
            self._add(row)

    def run(self) -> None:
        """Work until nothing is left, or the time is over."""
        try:
            while True:
                self._start_jobs()
                busy = [worker for worker in self._workers if worker.job is not None]
                if not busy:
                    return
                ready = connection.wait([worker.pipe for worker in busy], self._left())
                if not ready:
                    print("Time is over: " + ", ".join(str(worker.job) for worker in busy) + " cut off.", flush=True)
                    return
                for worker in busy:
                    if worker.pipe in ready:
                        self._finish(worker)
        finally:
            for worker in self._workers:
                worker.process.terminate()

    def done(self) -> tuple[int, int]:
        """Branches that have a result, and all branches."""
        branches = [job for row in self.rows for job in row.branches]
        return sum(job.result() is not None for job in branches), len(branches)

    def _start_jobs(self) -> None:
        left = self._left()
        while job := next((job for job in self._waiting if left is None or self.forecast.seconds(job) < left), None):
            worker = self._idle()
            if worker is None:
                return
            self._waiting.remove(job)
            worker.start(job)

    def _add(self, row: Row) -> None:
        self._waiting = sorted([*self._waiting, *row.due()], key=lambda job: self._urgency[job.path])

    def _idle(self) -> Worker | None:
        idle = next((worker for worker in self._workers if worker.job is None), None)
        if idle is None and len(self._workers) < self.count:
            idle = Worker()
            self._workers.append(idle)
        return idle

    def _finish(self, worker: Worker) -> None:
        job, well, text = worker.finish()
        if not worker.process.is_alive():
            self._workers.remove(worker)
        if not well:
            self.failed.append(str(job))
            print(f"{job} failed.\n{text}", flush=True)
            return
        print(text, flush=True)
        result = job.result()
        assert result is not None
        self.forecast.learn(job, result)
        if job.branch == SNAPSHOT:
            self._add(next(row for row in self.rows if row.snapshot.path == job.path))

    def _left(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
