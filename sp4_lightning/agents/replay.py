"""Uniform experience replay in preallocated tensors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sp4_lightning.errors import CheckpointError


class Transitions(NamedTuple):
    """B transitions over up to n steps; also the agent's training batch.

    Attributes:
        history: float32 ``[B, K, d]``, the last K observations, oldest first.
        action: int64 ``[B, D]``, the choice of each branch.
        reward: float32 ``[B]``, the discounted sum of the rewards on the way.
        discount: float32 ``[B]``, gamma to the number of steps; 0 where the episode terminated.
        next_history: float32 ``[B, K, d]``, where the transition ends.
        next_observation: float32 ``[B, d]``, what the action itself led to, one step on.
    """

    history: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_history: Tensor
    next_observation: Tensor


class Replay:
    """A ring of transitions, sampled uniformly with replacement (Mnih et al. 2015).

    Args:
        capacity: Transitions to keep; the oldest give way.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._storage: Transitions | None = None
        self._next = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, transitions: Transitions) -> None:
        """Store transitions; at most ``capacity`` at a time."""
        count = transitions.reward.shape[0]
        if count == 0:
            return
        if self._storage is None:
            self._storage = Transitions(*(t.new_empty(self.capacity, *t.shape[1:]) for t in transitions))
        head = min(count, self.capacity - self._next)
        for store, new in zip(self._storage, transitions, strict=True):
            store[self._next : self._next + head] = new[:head]
            store[: count - head] = new[head:]
        self._next = (self._next + count) % self.capacity
        self._size = min(self._size + count, self.capacity)

    def sample(self, batch_size: int, generator: torch.Generator) -> Transitions:
        """Draw ``batch_size`` transitions; the replay must not be empty."""
        assert self._storage is not None
        index = torch.randint(self._size, (batch_size,), generator=generator)
        return Transitions(*(store.index_select(0, index) for store in self._storage))

    def state_dict(self) -> dict[str, Tensor]:
        """The filled part of the ring by field, its ``capacity``, and the ``next`` transition's place."""
        state = {"next": torch.tensor(self._next), "capacity": torch.tensor(self.capacity)}
        if self._storage is not None:
            state.update({name: t[: self._size].clone() for name, t in self._storage._asdict().items()})
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` returned.

        Raises:
            CheckpointError: It comes from a replay of another capacity.
        """
        if int(state["capacity"]) != self.capacity:
            raise CheckpointError(
                f"The saved replay keeps {int(state['capacity'])} transitions, this agent has "
                f"buffer_size={self.capacity}. Use the same size to continue the run."
            )
        self._next = int(state["next"])
        self._size = 0
        self._storage = None
        if "reward" in state:
            filled = Transitions(**{name: state[name] for name in Transitions._fields})
            self._size = filled.reward.shape[0]
            self._storage = Transitions(*(t.new_empty(self.capacity, *t.shape[1:]) for t in filled))
            for store, t in zip(self._storage, filled, strict=True):
                store[: self._size] = t
