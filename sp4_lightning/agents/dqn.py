"""The agent as a LightningModule."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Adam
from torch.utils.data import DataLoader

from sp4_lightning.agents.data import Experience, batch_loader
from sp4_lightning.agents.environment import Environments
from sp4_lightning.agents.learner import AUXILIARIES, Learner
from sp4_lightning.agents.nstep import NStepReturns
from sp4_lightning.agents.optimizers import make_optimizers
from sp4_lightning.agents.replay import Replay, Transitions
from sp4_lightning.agents.schedules import Linear
from sp4_lightning.agents.seeding import derive_seed, random_state, restore_random_state
from sp4_lightning.agents.validation import PlayedValidation
from sp4_lightning.errors import ConfigurationError


class DQNAgent(PlayedValidation):
    """A dueling double DQN with action branches and five auxiliary trainers.

    History attention feeds the trunk, implicit quantiles offer risk aversion, two expectile values bracket
    the bootstrap, curiosity pays for surprise. Each is trained in every update, by an Adam of its own. The
    agent makes its environments, replay and data loaders itself and ends the fit after ``total_steps``.
    Validation and test play greedy episodes.

    Args:
        environment: A registered Gymnasium id with vector observations.
        environment_options: Keyword arguments of ``gymnasium.make``, for example ``{"continuous": True}``.
        observation_indices: Entries of the observation that the agent may see; all when None.
        action_bins: Choices per number of a continuous action.
        num_envs: Environments that step together.
        history: Observations that attention looks at.
        auxiliaries: Which of ``iqn``, ``iql_high``, ``iql_low``, ``attention``, ``curiosity`` take part; all
            when None.
        optimizers: ``"six"`` Adams, or ``"one"`` over eight named groups.
        learning_rate: Of all groups.
        learning_rate_schedule: ``"linear"`` falls to 0 at the end of ``total_steps``.
        adam_eps: Adam's eps.
        fused: Whether Adam uses torch's fused kernel; None chooses it where it is right.
        td_loss: Error measure of the Q values.
        total_steps: Environment steps of the whole training, which schedules refer to.
        learning_starts: Environment steps before the first update.
        update_ratio: Updates per environment step.
        batch_size: Transitions per update.
        buffer_size: Transitions the replay keeps.
        n_step: Steps of a return.
        gamma: Discount per step.
        target_sync: Updates between two copies into the lagged networks.
        epsilon_final: Share of random actions after exploration.
        exploration: Share of ``total_steps`` over which random actions fall from all to ``epsilon_final``.
        bonus: Weight of the curiosity bonus at the start; it falls to 0 over the first half.
        quantiles: Taus per update on either side of the IQN's loss.
        cvar: Below 1, actions maximise the mean of this share of worst outcomes instead of Q.
        epoch_updates: Updates in an epoch, after which Lightning validates.
        eval_episodes: Episodes of a validation or test.
        seed: Of everything: initial weights, environments, exploration, sampling and, when training starts,
            torch's global generator.

    Raises:
        ConfigurationError: An environment, auxiliary or combination that does not exist.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> Trainer(max_epochs=-1).fit(DQNAgent("CartPole-v1"))
    """

    def __init__(
        self,
        environment: str = "CartPole-v1",
        *,
        environment_options: dict[str, Any] | None = None,
        observation_indices: list[int] | None = None,
        action_bins: int = 3,
        num_envs: int = 8,
        history: int = 4,
        auxiliaries: list[str] | None = None,
        optimizers: Literal["six", "one"] = "six",
        learning_rate: float = 1e-3,
        learning_rate_schedule: Literal["constant", "linear"] = "linear",
        adam_eps: float = 1e-8,
        fused: bool | None = None,
        td_loss: Literal["huber", "mse"] = "huber",
        total_steps: int = 50_000,
        learning_starts: int = 1_000,
        update_ratio: float = 0.25,
        batch_size: int = 128,
        buffer_size: int = 50_000,
        n_step: int = 3,
        gamma: float = 0.99,
        target_sync: int = 250,
        epsilon_final: float = 0.04,
        exploration: float = 0.16,
        bonus: float = 0.05,
        quantiles: int = 8,
        cvar: float = 1.0,
        epoch_updates: int = 1_000,
        eval_episodes: int = 10,
        seed: int = 0,
    ) -> None:
        if total_steps <= learning_starts:
            raise ConfigurationError(
                f"total_steps={total_steps} leaves nothing to learn after learning_starts={learning_starts}."
            )
        present = AUXILIARIES if auxiliaries is None else auxiliaries
        make_environments = partial(
            Environments,
            environment,
            options=environment_options,
            observation_indices=observation_indices,
            action_bins=action_bins,
        )
        # Without attention nobody reads beyond the newest observation.
        super().__init__(make_environments, history if "attention" in present else 1, eval_episodes, seed)
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.updates = 0
        self.total_updates = math.ceil((total_steps - learning_starts) * update_ratio)
        probe = make_environments(1, seed)
        probe.close()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.learner = Learner(
                probe.observation_size,
                self.history,
                probe.actions.branches,
                auxiliaries=present,
                td_loss=td_loss,
                quantiles=quantiles,
                cvar=cvar,
            )
        final_lr = 0.0 if learning_rate_schedule == "linear" else learning_rate
        self.learning_rate = Linear(learning_rate, final_lr, self.total_updates)
        self.bonus = Linear(bonus, 0.0, self.total_updates / 2)
        self._experience: Experience | None = None
        self._restored: dict[str, Any] | None = None

    def forward(self, history: Tensor) -> Tensor:
        """Q values: float ``[B, K, d]``, the last K observations, to float ``[B, D, n_max]``."""
        q_values: Tensor = self.learner.online(history)
        return q_values

    def policy(self, history: Tensor) -> Tensor:
        """Greedy actions: float ``[E, K, d]`` to int64 ``[E, D]``, both on the CPU."""
        return self.learner.act(history.to(self.device)).cpu()

    def training_step(self, batch: Transitions, batch_idx: int) -> None:
        """Update every network once on a batch."""
        losses = self.learner.losses(batch, self.bonus.at(self.updates))
        lr = self.learning_rate.at(self.updates)
        optimizers = self.optimizers()
        optimizers = optimizers if isinstance(optimizers, list) else [optimizers]
        for optimizer in optimizers:
            optimizer.zero_grad()
            for group in optimizer.param_groups:
                group["lr"] = lr
        self.manual_backward(torch.stack(list(losses.values())).sum())
        for optimizer in optimizers:
            optimizer.step()
        self.updates += 1
        if self.updates % self.hparams["target_sync"] == 0:
            self.learner.sync_targets()
        self._log(losses)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End the fit with the last update."""
        self._stop_when_done()

    def _stop_when_done(self) -> None:
        """End the fit when ``total_steps`` are used up."""
        if self.updates >= self.total_updates:
            self.trainer.should_stop = True

    def configure_optimizers(self) -> list[Adam]:
        """Six Adams or one, over named groups."""
        h = self.hparams
        groups = self.learner.groups()
        return make_optimizers(groups, h["optimizers"], h["learning_rate"], h["adam_eps"], h["fused"])

    @property
    def experience(self) -> Experience:
        """The environments and the replay; made when first asked for."""
        if self._experience is None:
            h = self.hparams
            self._experience = Experience(
                self.make_environments(h["num_envs"], self._training_seed),
                self.policy,
                history=self.history,
                replay=Replay(h["buffer_size"]),
                returns=NStepReturns(h["num_envs"], h["n_step"], h["gamma"]),
                epsilon=Linear(1.0, h["epsilon_final"], h["exploration"] * h["total_steps"]),
                batch_size=h["batch_size"],
                learning_starts=h["learning_starts"],
                update_ratio=h["update_ratio"],
                length=h["epoch_updates"],
                seed=self._training_seed,
            )
        return self._experience

    def train_dataloader(self) -> DataLoader[Any]:
        """Steps the environments, yields batches."""
        return batch_loader(self.experience)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the counter, the replay, the environments and torch's random state."""
        checkpoint["dqn_agent"] = {
            "updates": self.updates,
            "experience": None if self._experience is None else self._experience.state_dict(),
            "random": random_state(self.device),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the counter; the rest waits for training, which may never come."""
        self._restored = checkpoint["dqn_agent"]
        self.updates = checkpoint["dqn_agent"]["updates"]

    def on_train_start(self) -> None:
        """Continue a restored run, or seed a new one."""
        restored, self._restored = self._restored, None
        if restored is not None:
            if restored["experience"] is not None:
                self.experience.load_state_dict(restored["experience"])
            restore_random_state(restored["random"], self.device)
        elif self.updates == 0:
            torch.manual_seed(self._training_seed)
        self._stop_when_done()

    def _log(self, losses: dict[str, Tensor]) -> None:
        """Log what the last update and the last 20 episodes came to, on the logger's own steps only."""
        every = self.trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by the logger connector
        if every == 0 or self.updates % every != 0:
            return
        values: dict[str, Any] = {f"loss/{name}": loss.detach() for name, loss in losses.items()}
        if self._experience is not None:
            values["train/epsilon"] = self._experience.epsilon.at(self._experience.steps)
            values["train/env_steps"] = float(self._experience.steps)
            values["train/return"] = self._experience.recent_return
        self.log_dict(values, batch_size=self.hparams["batch_size"])

    @property
    def _training_seed(self) -> int:
        """Of this process's environments, exploration, sampling and taus."""
        return derive_seed(self.hparams["seed"], "training", self.global_rank)
