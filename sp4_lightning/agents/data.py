"""Experience as a dataset: stepping the environments yields training batches."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, IterableDataset

from sp4_lightning.agents.environment import Environments
from sp4_lightning.agents.evaluation import Policy
from sp4_lightning.agents.exploration import explore
from sp4_lightning.agents.history import ObservationHistory
from sp4_lightning.agents.nstep import NStepReturns
from sp4_lightning.agents.replay import Replay, Transitions
from sp4_lightning.agents.schedules import Linear


class Experience(IterableDataset[Transitions]):
    """Acts, remembers, and yields one batch for every update that is due.

    It has a length, on purpose: Lightning fetches one batch ahead from a dataset that has none, and the agent
    would act on networks that are one update old.

    Iterating again goes on where the last iteration stopped.

    Args:
        environments: Where to act.
        policy: Greedy actions for histories.
        history: Observations the policy looks at, K.
        replay: Where transitions are kept.
        returns: How steps become transitions.
        epsilon: Share of random actions over environment steps.
        batch_size: Transitions in a batch, B.
        learning_starts: Environment steps before the first batch.
        update_ratio: Batches per environment step.
        length: Batches in one iteration (one epoch).
        seed: Seed of exploration and sampling.

    Attributes:
        steps: Environment steps taken.
        batches: Batches yielded.
    """

    def __init__(
        self,
        environments: Environments,
        policy: Policy,
        *,
        history: int,
        replay: Replay,
        returns: NStepReturns,
        epsilon: Linear,
        batch_size: int,
        learning_starts: int,
        update_ratio: float,
        length: int,
        seed: int,
    ) -> None:
        self.environments = environments
        self.policy = policy
        self.replay = replay
        self.returns = returns
        self.epsilon = epsilon
        self.batch_size = batch_size
        self.learning_starts = learning_starts
        self.update_ratio = update_ratio
        self.length = length
        self.steps = 0
        self.batches = 0
        self.generator = torch.Generator().manual_seed(seed)
        self.history = ObservationHistory(environments.reset(), history)
        self._episode_return = torch.zeros(environments.num_envs, dtype=torch.float64)
        self._finished: deque[float] = deque(maxlen=20)

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Transitions]:
        for _ in range(self.length):
            while self.steps < self.learning_starts + self.batches / self.update_ratio or not len(self.replay):
                self.step()
            self.batches += 1
            yield self.replay.sample(self.batch_size, self.generator)

    def step(self) -> None:
        """Act once in every environment."""
        window = self.history.window
        greedy = self.policy(window)
        action = explore(greedy, self.environments.actions.branches, self.epsilon.at(self.steps), self.generator)
        step = self.environments.step(action)
        next_window = self.history.push(step.successor)
        self.replay.add(self.returns.push(window, action, step, next_window))
        self.steps += self.environments.num_envs
        self._episode_return += step.reward
        done = step.terminated | step.truncated
        if done.any():
            self.history.begin(step.observation, done)
            self._finished += self._episode_return[done].tolist()
            self._episode_return[done] = 0.0

    @property
    def recent_return(self) -> float:
        """Mean return of the last 20 episodes, exploration included; NaN before the first has ended."""
        return sum(self._finished) / len(self._finished) if self._finished else math.nan

    def state_dict(self) -> dict[str, Any]:
        """All that decides what comes next, as tensors and numbers."""
        return {
            "environments": self.environments.state_dict(),
            "replay": self.replay.state_dict(),
            "returns": self.returns.state_dict(),
            "window": self.history.window,
            "episode_return": self._episode_return.clone(),
            "finished": list(self._finished),
            "generator": self.generator.get_state(),
            "steps": self.steps,
            "batches": self.batches,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where :meth:`state_dict` was taken."""
        self.environments.load_state_dict(state["environments"])
        self.replay.load_state_dict(state["replay"])
        self.returns.load_state_dict(state["returns"])
        self.history.window = state["window"].clone()
        self._episode_return = state["episode_return"].clone()
        self._finished = deque(state["finished"], maxlen=20)
        self.generator.set_state(state["generator"])
        self.steps = state["steps"]
        self.batches = state["batches"]


def _as_is(batch: Any) -> Any:
    return batch


def batch_loader(dataset: IterableDataset[Any] | Sequence[Any]) -> DataLoader[Any]:
    """A loader that hands a dataset's ready batches through.

    Every pass over a ``DataLoader`` draws a seed for workers, also where there are none. It gets a generator
    of its own for that, so that torch's global one is left to the updates.
    """
    generator = torch.Generator()
    return DataLoader(cast(Any, dataset), batch_size=None, collate_fn=_as_is, generator=generator)
