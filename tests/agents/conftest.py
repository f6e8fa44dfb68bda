"""Short fits of the real agent."""

import pytest
import torch
from lightning.pytorch import Trainer

from sp4_lightning.agents import DQNAgent

SMALL = {
    "learning_starts": 64,
    "batch_size": 32,
    "epoch_updates": 20,
    "eval_episodes": 2,
    "total_steps": 10_000,
}


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """The networks are too small to gain from a second thread, and results must not depend on threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make_agent():
    return lambda **kwargs: DQNAgent(**{**SMALL, **kwargs})


@pytest.fixture
def make_trainer(tmp_path):
    def make(**kwargs):
        defaults = {
            "accelerator": "cpu",
            "max_epochs": 1,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            "limit_val_batches": 0,
            "default_root_dir": tmp_path,
        }
        return Trainer(**{**defaults, **kwargs})

    return make
