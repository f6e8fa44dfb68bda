"""Messages of Lightning that say nothing about an agent's run, switched off for the ``sp4`` command only."""

from __future__ import annotations

import logging
import warnings

POINTLESS = (
    r"Experiment logs directory .* exists and is not empty",
    r"Checkpoint directory .* exists and is not empty",
    # The dataset has a length so that nothing is fetched ahead of the networks, and it has no workers.
    r"Your `IterableDataset` has `__len__` defined",
    # The agent's own part of the checkpoint resumes its data, bit for bit.
    r"You're resuming from a checkpoint that ended before the epoch ended",
    # After is what is wanted: a state between two updates.
    r"Using ModelCheckpoint with manual optimization",
    # Of Lightning's use of torch, which users cannot change.
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
)


def quieten() -> None:
    """Install the filters."""
    for message in POINTLESS:
        warnings.filterwarnings("ignore", message=message)
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(_is_no_advertisement)


def _is_no_advertisement(record: logging.LogRecord) -> bool:
    return "litlogger" not in record.getMessage()
