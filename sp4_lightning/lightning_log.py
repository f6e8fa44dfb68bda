"""When and where Lightning logs: the one place that touches its private attributes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from lightning.pytorch import Trainer


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
