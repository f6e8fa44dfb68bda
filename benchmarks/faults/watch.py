"""Callbacks of the suite: one saves the snapshot, one measures a branch."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from benchmarks.faults.tasks import Task
from sp4_lightning import SP4Callback
from sp4_lightning.report import Report

EVERY = 25
"""Updates between two points of the signal's curve."""


class SaveAt(Callback):
    """Saves a checkpoint after some updates and ends the fit.

    Args:
        updates: After how many.
        path: Where to.
    """

    def __init__(self, updates: int, path: Path) -> None:
        self.updates = updates
        self.path = path

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if pl_module.updates == self.updates:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True
            trainer.limit_val_batches = 0


class Watch(Callback):
    """Scores, the learning signal and the protection's counters of a branch.

    Args:
        task: What is trained.
        inputs: The probe's.

    Attributes:
        scores: ``[updates, score]`` of every validation.
        signals: ``[updates, signal]`` from the snapshot on, every 25 updates; None is not finite.
        seconds: CPU time without the validations.
    """

    def __init__(self, task: Task, inputs: Tensor) -> None:
        self.task = task
        self.inputs = inputs
        self.scores: list[tuple[int, float]] = []
        self.signals: list[tuple[int, float | None]] = []
        self.seconds = 0.0
        self._sp4: SP4Callback | None = None
        self._before: Report | None = None
        self._after: Report | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._since = time.process_time()
        self._sp4 = next((c for c in trainer.callbacks if isinstance(c, SP4Callback)), None)
        self._before = self._report()
        self._look(pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if (pl_module.updates - self.signals[0][0]) % EVERY == 0:
            self._look(pl_module)

    def on_validation_start(self, *_: Any) -> None:
        self.seconds += time.process_time() - self._since

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.scores.append((pl_module.updates, float(trainer.callback_metrics[self.task.score])))
        self._since = time.process_time()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.seconds += time.process_time() - self._since
        self._after = self._report()
        if self.signals[-1][0] != pl_module.updates:
            self._look(pl_module)

    def protection(self) -> dict[str, Any] | None:
        """What this library's protection did since the snapshot; None for other methods."""
        if self._before is None or self._after is None:
            return None
        before = {(tensor.group, tensor.name): tensor for tensor in self._before.tensors}
        pairs = [(now, before[now.group, now.name]) for now in self._after.tensors]
        clamped = [now.clamped - was.clamped for now, was in pairs]
        counted = [now.counted - was.counted for now, was in pairs]
        skips = (sum(o.skipped for o in report.optimizers) for report in (self._after, self._before))
        return {
            "skips": next(skips) - next(skips),
            "repairs": sum(now.repaired - was.repaired for now, was in pairs),
            "clamped": sum(clamped) / max(sum(counted), 1),
            "clamped_worst": max(c / max(n, 1) for c, n in zip(clamped, counted, strict=True)),
        }

    def _look(self, module: LightningModule) -> None:
        self.signals.append((module.updates, _finite(self.task.signal(module, self.inputs))))

    def _report(self) -> Report | None:
        return None if self._sp4 is None or self._sp4.protection is None else self._sp4.protection.report()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
