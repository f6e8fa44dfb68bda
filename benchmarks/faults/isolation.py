"""Which groups a fault moves along, judged on frozen replay.

In a whole run every group sees what the others do: through features, targets, bonus and acting. Here a fixed list of
batches is trained on twice from the snapshot, clean and struck, without acting. A group that was not struck and ends
elsewhere than in the clean updates, by more than a tenth of the way that those went, has moved along.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils.data import IterableDataset

from benchmarks.faults.jobs import Job
from benchmarks.faults.methods import make_callbacks
from benchmarks.faults.trainer import make_trainer
from sp4_lightning import FaultInjector
from sp4_lightning.agents.data import batch_loader
from sp4_lightning.lightning_internals import real_optimizers

UPDATES = 50
STRIKE = 10
"""The update that the fault strikes, instead of the suite's own."""

SHARE = 0.1
"""Of the clean way, the difference that is nothing."""


def moved_along(job: Job, checkpoint: dict[str, Any]) -> list[str] | None:
    """Groups beside the struck ones that a job's fault moves; None where it names no group."""
    struck = [fault["group"] for fault in job.faults if "group" in fault]
    if not struck:
        return None
    first = min(fault["step"] for fault in job.faults)
    shifted = [{**fault, "step": fault["step"] - first + STRIKE} for fault in job.faults]
    batches = job.trains.batches(checkpoint, UPDATES)
    start, clean = _weights(job, batches, [])
    _, hit = _weights(job, batches, shifted)
    return [
        group
        for group in clean
        if not any(fnmatchcase(group, pattern) for pattern in struck)
        and not (hit[group] - clean[group]).norm() <= SHARE * (clean[group] - start[group]).norm()
    ]


def _weights(job: Job, batches: list[Any], faults: list[dict[str, Any]]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights by group, flat, before and after the updates."""
    between = _Between()
    trainer = make_trainer(
        [FaultInjector(faults, seed=job.seed), *make_callbacks(job.method), between],
        max_epochs=10**9,
        limit_val_batches=0,
    )
    trainer.fit(job.trains.module(job.seed), batch_loader(_Frozen(batches)), ckpt_path=job.checkpoint)
    return between.before, between.after


class _Between(Callback):
    """Ends the fit after the updates and keeps the weights of both ends."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.last = pl_module.updates + UPDATES
        self.before = weights_by_group(trainer)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        trainer.should_stop |= pl_module.updates >= self.last

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.after = weights_by_group(trainer)


def weights_by_group(trainer: Trainer) -> dict[str, Tensor]:
    """A flat copy of every param group's weights, by its name."""
    groups = [group for optimizer in real_optimizers(trainer) for group in optimizer.param_groups]
    return {group["name"]: torch.cat([p.detach().flatten().double() for p in group["params"]]) for group in groups}


class _Frozen(IterableDataset[Any]):
    """The batches, with a length that a resumed epoch does not reach."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return 10**9

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)
