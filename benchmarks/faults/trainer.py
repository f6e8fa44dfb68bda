"""The Trainer of all jobs, and what they share beside it."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer


def make_trainer(callbacks: list[Callback], **options: Any) -> Trainer:
    """A Trainer that trains, validates and leaves nothing behind."""
    return Trainer(
        accelerator="cpu",
        max_epochs=options.pop("max_epochs", -1),
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **options,
    )


def load(path: Path) -> dict[str, Any]:
    """A checkpoint's content."""
    content: dict[str, Any] = torch.load(path, weights_only=True)
    return content


def quieten() -> None:
    """One thread, and nothing of what Lightning says about loaders, checkpoints and accelerators."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
