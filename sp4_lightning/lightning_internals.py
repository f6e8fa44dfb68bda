"""The one place that touches what Lightning keeps private: when and where it logs, and its stand-in optimizer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.core.optimizer import _MockOptimizer
from torch.optim import Optimizer


def real_optimizers(trainer: Trainer) -> list[Optimizer]:
    """The optimizers without the stand-in that Lightning uses when ``configure_optimizers`` returns None."""
    return [optimizer for optimizer in trainer.optimizers if not isinstance(optimizer, _MockOptimizer)]


def log_step(trainer: Trainer) -> int:
    """The step axis of Lightning's own charts: batches that stepped, whatever the number of optimizers."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def should_log(trainer: Trainer) -> bool:
    """Whether this batch is one that ``log_every_n_steps`` selects."""
    return trainer._logger_connector.should_update_logs


def log_scalars(trainer: Trainer, scalars: Mapping[str, float]) -> None:
    """Write scalars to every logger and make them available to EarlyStopping and ModelCheckpoint.

    ``LightningModule.log_dict`` would cost two hundred times as much for this many keys.
    """
    for logger in trainer.loggers:
        logger.log_metrics(dict(scalars), step=log_step(trainer))
    trainer.callback_metrics.update({key: torch.tensor(value) for key, value in scalars.items()})
