"""Validation and test of an agent: greedy episodes in environments of their own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

from sp4_lightning.agents.data import batch_loader
from sp4_lightning.agents.environment import Environments
from sp4_lightning.agents.evaluation import evaluate
from sp4_lightning.agents.seeding import Purpose, episode_seeds


class PlayedValidation(LightningModule):
    """A LightningModule whose validation and test sets are episodes to be played.

    A batch is the seeds of episodes that are played side by side. ``validate`` plays the same episodes every
    time, ``test`` others.

    Args:
        make_environments: From a number of environments and a seed to environments.
        history: Observations the policy looks at, K.
        episodes: Episodes of a validation or test.
        seed: Source of the episodes' seeds.

    Metrics recorded:
        ``eval/return``: Mean undiscounted return of the validation's episodes.
        ``test/return``: The same for the test's.
    """

    def __init__(
        self, make_environments: Callable[[int, int], Environments], history: int, episodes: int, seed: int
    ) -> None:
        super().__init__()
        self.make_environments = make_environments
        self.history = history
        self._episodes = episodes
        self._seed = seed
        self.validation_return = MeanMetric()
        self.test_return = MeanMetric()

    @abstractmethod
    def policy(self, history: Tensor) -> Tensor:
        """Greedy actions: float ``[E, K, d]`` to int64 ``[E, D]``, both on the CPU."""

    def val_dataloader(self) -> DataLoader[Any]:
        """One batch: the seeds of the validation's episodes."""
        return self._seed_loader("validation")

    def test_dataloader(self) -> DataLoader[Any]:
        """One batch: the seeds of the test's episodes."""
        return self._seed_loader("test")

    def validation_step(self, seeds: Tensor, batch_idx: int) -> None:
        """Play episodes, int64 seeds ``[E]``, and log their mean return."""
        self.validation_return.update(self._play(seeds))
        self.log("eval/return", self.validation_return, prog_bar=True, on_epoch=True, batch_size=len(seeds))

    def test_step(self, seeds: Tensor, batch_idx: int) -> None:
        """Play episodes, int64 seeds ``[E]``, and log their mean return."""
        self.test_return.update(self._play(seeds))
        self.log("test/return", self.test_return, on_epoch=True, batch_size=len(seeds))

    def _seed_loader(self, purpose: Purpose) -> DataLoader[Any]:
        return batch_loader([episode_seeds(self._seed, purpose, self._episodes)])

    def _play(self, seeds: Tensor) -> Tensor:
        environments = self.make_environments(len(seeds), self._seed)
        try:
            return evaluate(self.policy, environments, self.history, seeds.cpu())
        finally:
            environments.close()
