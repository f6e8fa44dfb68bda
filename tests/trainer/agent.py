"""Short real runs of the agent."""

import torch
from lightning.pytorch import Trainer, seed_everything

from sp4_lightning import SP4Callback
from sp4_lightning.agents import DQNAgent

STARTS = 300


def fit(updates, *callbacks, protection=None, directory=None, accelerator="cpu", **options):
    """Train the agent for some updates; returns agent, trainer and the protecting callback."""
    torch.set_num_threads(1)
    seed_everything(0, verbose=False)
    agent = DQNAgent(
        "CartPole-v1",
        total_steps=STARTS + 4 * updates,
        learning_starts=STARTS,
        epoch_updates=10_000,
        batch_size=64,
        **options,
    )
    sp4 = None if protection is None else SP4Callback(tables=False, **protection)
    trainer = Trainer(
        max_epochs=1,
        accelerator=accelerator,
        default_root_dir=directory,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        callbacks=[*([sp4] if sp4 else []), *callbacks],
    )
    trainer.fit(agent)
    return agent, trainer, sp4
