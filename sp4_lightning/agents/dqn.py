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
from sp4_lightning.lightning_internals import log_scalars


class DQNAgent(PlayedValidation):
    """A dueling double DQN with action branches and five auxiliary trainers.

    History attention feeds the trunk, implicit quantiles offer risk aversion, two expectile values bracket the
    bootstrap, curiosity pays for surprise. Each is trained in every update, by an Adam of its own. The agent makes
    its environments, replay and data loaders itself and ends the fit after ``total_steps``.

    Args:
        environment: A registered Gymnasium id with vector observations.
        environment_options: Keyword arguments of ``gymnasium.make``, for example ``{"continuous": True}``.
        observation_indices: Entries of the observation that the agent may see; all when None.
        action_bins: Choices per number of a continuous action.
        num_envs: Environments that step together.
        history: Observations that attention looks at.
        auxiliaries: Which of ``iqn``, ``iql_high``, ``iql_low``, ``attention``, ``curiosity`` take part; None is all.
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
        iql_clip: Whether IQL's two values bound the bootstrap.
        quantiles: Taus per update on either side of the IQN's loss.
        cvar: Actions maximise the IQN's mean over this share of worst outcomes, 1 being its plain mean; None: Q.
        epoch_updates: Updates in an epoch, after which Lightning validates.
        eval_episodes: Episodes of a validation or test.
        seed: Of initial weights, environments, exploration, sampling and, when training starts, torch's generator.

    Raises:
        ConfigurationError: An environment, auxiliary or combination that does not exist.

    Metrics recorded:
        ``loss/{trainer}``: The last update's loss of ``dqn``, ``iqn``, ``iql_high``, ``iql_low``, ``curiosity``.
        ``train/return``: Mean return of the last 20 training episodes, exploration included.
        ``train/epsilon``, ``train/env_steps``: Share of random actions, environment steps so far.
        ``eval/return``, ``test/return``: Mean return of greedy episodes.

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
        total_steps: int = 30_000,
        learning_starts: int = 1_000,
        update_ratio: float = 0.25,
        batch_size: int = 64,
        buffer_size: int = 50_000,
        n_step: int = 5,
        gamma: float = 0.99,
        target_sync: int = 50,
        epsilon_final: float = 0.04,
        exploration: float = 0.16,
        bonus: float = 0.05,
        iql_clip: bool = True,
        quantiles: int = 8,
        cvar: float | None = None,
        epoch_updates: int = 500,
        eval_episodes: int = 10,
        seed: int = 0,
    ) -> None:
        for name, value, choices in (
            ("optimizers", optimizers, ("six", "one")),
            ("learning_rate_schedule", learning_rate_schedule, ("constant", "linear")),
            ("td_loss", td_loss, ("huber", "mse")),
        ):
            if value not in choices:
                raise ConfigurationError(f"{name} must be one of {', '.join(choices)}, got {value!r}.")
        if total_steps <= learning_starts:
            raise ConfigurationError(f"total_steps={total_steps} must exceed learning_starts={learning_starts}.")
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
                iql_clip=iql_clip,
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
        return self.learner.act(history.to(next(self.learner.parameters()))).cpu()

    def training_step(self, batch: Transitions, batch_idx: int) -> None:
        """Update every network once on a batch; end the fit when ``total_steps`` are used up."""
        losses = self.update(batch)
        self.trainer.should_stop |= self.updates >= self.total_updates
        self._log(losses)

    def update(self, batch: Transitions) -> dict[str, Tensor]:
        """Step every optimizer, from batch, networks and torch's generator alone; returns the losses by trainer."""
        losses = self.learner.losses(batch, self.bonus.at(self.updates))
        lr = self.learning_rate.at(self.updates)
        optimizers = self.optimizers()
        optimizers = optimizers if isinstance(optimizers, list) else [optimizers]
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
                for parameter in group["params"]:  # what zero_grad() does, which also reports to torch's profiler
                    parameter.grad = None
        self.manual_backward(torch.stack(list(losses.values())).sum())
        for optimizer in optimizers:
            optimizer.step()
        self.updates += 1
        if self.updates % self.hparams["target_sync"] == 0:
            self.learner.sync_targets()
        return losses

    def configure_optimizers(self) -> list[Adam]:
        """Six Adams or one, over named groups."""
        h = self.hparams
        return make_optimizers(self.learner.groups(), h["optimizers"], h["learning_rate"], h["adam_eps"], h["fused"])

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
                if self.global_rank > 0:  # it was rank 0's; from here on every rank explores by itself
                    self.experience.generator.manual_seed(self._training_seed + self.updates)
            restore_random_state(restored["random"], self.device)
        elif self.updates == 0:
            torch.manual_seed(self._training_seed)
        self.trainer.should_stop |= self.updates >= self.total_updates
        if self.trainer.max_epochs == -1:  # so that the progress bar can say how many there will be
            self.trainer.fit_loop.max_epochs = math.ceil(self.total_updates / self.trainer.num_training_batches)

    def _log(self, losses: dict[str, Tensor]) -> None:
        """Log what the last update and the last 20 episodes came to, on the logger's own steps only."""
        every = self.trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by the logger connector
        if every == 0 or self.updates % every != 0:
            return
        values = {f"loss/{name}": loss.item() for name, loss in losses.items()}
        values["train/epsilon"] = self.experience.epsilon.at(self.experience.steps)
        values["train/env_steps"] = float(self.experience.steps)
        values["train/return"] = self.experience.recent_return
        log_scalars(self.trainer, values)

    @property
    def _training_seed(self) -> int:
        """Of this process's environments, exploration, sampling and taus."""
        return derive_seed(self.hparams["seed"], "training", self.global_rank)
