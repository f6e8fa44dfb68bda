"""Vectors of one Gymnasium environment, reset explicitly and restorable to the exact step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor

from sp4_lightning.agents.actions import ActionCodec
from sp4_lightning.errors import CheckpointError, ConfigurationError
from sp4_lightning.naming import did_you_mean


class Step(NamedTuple):
    """What one action did in each of E environments.

    Attributes:
        successor: float32 ``[E, d]``, the observation that the action led to, an episode's last one included.
        reward: float32 ``[E]``.
        terminated: bool ``[E]``, the episode ended in a state that has no future.
        truncated: bool ``[E]``, the episode was cut off; its last state has a value.
        observation: float32 ``[E, d]``, what to act on next: the successor, or a new episode's first
            observation.
    """

    successor: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    observation: Tensor


class Environments:
    """E copies of an environment that step together.

    Gymnasium's autoreset is switched off (``AutoresetMode.DISABLED``): under ``NEXT_STEP`` every episode is
    followed by a step whose action is ignored, which must not be learned from, and under ``SAME_STEP`` the
    last observation hides in the infos. Here a step always returns the true successor, and the reset that
    follows is explicit.

    Episode k of environment i starts from a seed derived from ``(seed, i, k)``. An episode is therefore
    determined by its number and the actions taken in it, and :meth:`load_state_dict` restores any
    deterministic environment by replaying them, also those that cannot be copied, such as Box2D's.

    Args:
        environment: A registered Gymnasium id, for example ``"CartPole-v1"``.
        num_envs: Number of copies, E.
        seed: Source of all episodes' seeds.
        options: Keyword arguments of ``gymnasium.make``, for example ``{"continuous": True}``.
        observation_indices: Entries of the observation that the agent may see; all when None.
        action_bins: Choices per number of a continuous action.

    Raises:
        ConfigurationError: The environment does not exist or cannot be used as given.
    """

    def __init__(
        self,
        environment: str,
        num_envs: int,
        seed: int,
        *,
        options: dict[str, Any] | None = None,
        observation_indices: Sequence[int] | None = None,
        action_bins: int = 3,
    ) -> None:
        self._vector = make_vector(environment, num_envs, options or {})
        self._columns = visible_columns(self._vector.single_observation_space, observation_indices)
        self._seed = seed
        self._episodes = np.zeros(num_envs, dtype=np.int64)
        self._tapes: list[list[npt.NDArray[np.int64]]] = [[] for _ in range(num_envs)]
        self.num_envs = num_envs
        self.observation_size = len(self._columns)
        self.actions = ActionCodec(self._vector.single_action_space, action_bins)

    def reset(self, seeds: Sequence[int] | None = None) -> Tensor:
        """Start an episode in every environment.

        Args:
            seeds: One seed per environment; derived ones when None. :meth:`load_state_dict` knows derived
                seeds only.

        Returns:
            float32 ``[E, d]``, the first observations.
        """
        everywhere = np.ones(self.num_envs, dtype=np.bool_)
        return self._begin(everywhere, self._next_seeds() if seeds is None else list(seeds))

    def step(self, action: Tensor) -> Step:
        """Act once everywhere, and start new episodes where one has ended.

        Args:
            action: int64 ``[E, D]``, one choice per branch.
        """
        raw, reward, terminated, truncated, _ = self._vector.step(self.actions.decode(action))
        for tape, row in zip(self._tapes, action.numpy(), strict=True):
            tape.append(row.copy())
        successor = self._visible(raw)
        done = terminated | truncated
        observation = self._begin(done, self._next_seeds()) if done.any() else successor
        return Step(
            successor,
            torch.from_numpy(reward).float(),
            torch.from_numpy(terminated),
            torch.from_numpy(truncated),
            observation,
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Where every environment is.

        Returns:
            ``seed``, int64 scalar; ``episodes``, int64 ``[E]``, how many have begun; ``actions``, int64
            ``[E, T, D]``, taken in the current ones; ``lengths``, int64 ``[E]``, how many of the T are filled.
        """
        lengths = [len(tape) for tape in self._tapes]
        actions = np.zeros((self.num_envs, max(lengths), len(self.actions.branches)), dtype=np.int64)
        for row, tape in zip(actions, self._tapes, strict=True):
            if tape:
                row[: len(tape)] = tape
        return {
            "seed": torch.tensor(self._seed),
            "episodes": torch.from_numpy(self._episodes.copy()),
            "actions": torch.from_numpy(actions),
            "lengths": torch.tensor(lengths),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Bring every environment to where it was by replaying its episode.

        All environments step together, so each episode starts late enough to arrive with the longest one;
        until then its environment runs idle.

        Raises:
            CheckpointError: The state is of another number of environments.
        """
        if len(state["episodes"]) != self.num_envs:
            raise CheckpointError(
                f"The saved experience is of {len(state['episodes'])} environments, this agent has "
                f"num_envs={self.num_envs}. Use the same number to continue the run."
            )
        self._seed = int(state["seed"])
        episodes, lengths = state["episodes"].numpy(), state["lengths"].numpy()
        actions = state["actions"].numpy()
        longest = int(lengths.max())
        self._episodes = episodes - 1
        seeds = self._next_seeds()
        self._begin(np.ones(self.num_envs, dtype=np.bool_), seeds)
        for time in range(longest):
            position = time - (longest - lengths)
            action = np.where((position >= 0)[:, None], actions[np.arange(self.num_envs), position], 0)
            _, _, terminated, truncated, _ = self._vector.step(self.actions.decode(torch.from_numpy(action)))
            arrive = (position == -1) | ((position < -1) & (terminated | truncated))
            if arrive.any():
                self._begin(arrive, seeds)
        self._episodes = episodes.copy()
        self._tapes = [list(rows[:length]) for rows, length in zip(actions, lengths, strict=True)]

    def close(self) -> None:
        """Release what the environments hold."""
        self._vector.close()

    def _next_seeds(self) -> list[int]:
        return [episode_seed(self._seed, i, int(k)) for i, k in enumerate(self._episodes)]

    def _begin(self, where: npt.NDArray[np.bool_], seeds: list[int]) -> Tensor:
        raw, _ = self._vector.reset(seed=list(seeds), options={"reset_mask": where})
        self._episodes[where] += 1
        for i in np.flatnonzero(where):
            self._tapes[i] = []
        return self._visible(raw)

    def _visible(self, raw: npt.NDArray[Any]) -> Tensor:
        flat = raw.reshape(self.num_envs, -1)[:, self._columns]
        return torch.from_numpy(flat.astype(np.float32, copy=False))


def episode_seed(seed: int, environment: int, episode: int) -> int:
    """Seed of one environment's episode, both counted from 0."""
    return int(np.random.SeedSequence((seed, environment, episode)).generate_state(1)[0])


def make_vector(environment: str, num_envs: int, options: dict[str, Any]) -> SyncVectorEnv[Any, Any]:
    """Make a vector environment without autoreset.

    Raises:
        ConfigurationError: The id is unknown, packages are missing, or the environment refuses the options.
    """
    try:
        vector = gym.make_vec(
            environment,
            num_envs=num_envs,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED},
            disable_env_checker=True,
            **options,
        )
    except (gym.error.UnregisteredEnv, gym.error.DeprecatedEnv) as error:
        raise ConfigurationError(
            f"There is no environment {environment!r}.{did_you_mean(environment, gym.registry)}"
        ) from error
    except (gym.error.Error, ImportError, TypeError) as error:
        with_options = f" with {options}" if options else ""
        raise ConfigurationError(f"The environment {environment!r} cannot be made{with_options}: {error}") from error
    assert isinstance(vector, SyncVectorEnv)
    return vector


def visible_columns(space: gym.Space[Any], indices: Sequence[int] | None) -> npt.NDArray[np.int64]:
    """Columns of the flattened observation that the agent sees.

    Raises:
        ConfigurationError: Observations are not arrays of numbers, or an index is outside them.
    """
    if not isinstance(space, gym.spaces.Box):
        raise ConfigurationError(f"Observations must be a Box of numbers; these are {space}.")
    size = int(np.prod(space.shape))
    if indices is None:
        return np.arange(size)
    if not indices or not all(0 <= i < size for i in indices):
        raise ConfigurationError(f"observation_indices must name entries from 0 to {size - 1}, got {list(indices)}.")
    return np.array(indices, dtype=np.int64)
