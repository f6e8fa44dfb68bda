"""n-step returns of several environments at once."""

from __future__ import annotations

import torch
from torch import Tensor

from sp4_lightning.agents.environment import Step
from sp4_lightning.agents.replay import Transitions


class NStepReturns:
    """Turns single steps into transitions over n steps (Sutton 1988; Hessel et al. 2018 for DQN).

    A transition that starts at time t gathers ``R = sum of gamma^k * r[t+k]`` over the next m steps and
    bootstraps from the state that they end in with ``gamma^m``. m is n, or less when the episode ends before:
    then it bootstraps with 0 if the episode terminated, and with ``gamma^m`` from its last observation if it
    was only truncated (Pardo et al. 2018, "Time Limits in Reinforcement Learning").

    Args:
        num_envs: Number of environments, E.
        steps: Largest number of steps in a transition, n.
        gamma: Discount per step.
    """

    def __init__(self, num_envs: int, steps: int, gamma: float) -> None:
        age = torch.arange(steps)
        self._steps = steps
        self._position = age
        # Steps sit right-aligned, the newest last. Column j sums the rewards from position j on.
        exponent = age[:, None] - age[None, :]
        self._sum_from = torch.where(exponent >= 0, gamma ** exponent.clamp_min(0).double(), 0.0).float()
        self._bootstrap = (gamma ** (steps - age).double()).float()
        self._pending = torch.zeros(num_envs, dtype=torch.int64)
        self._window: dict[str, Tensor] = {}

    def push(
        self,
        history: Tensor,
        action: Tensor,
        step: Step,
        next_history: Tensor,
    ) -> Transitions:
        """Take one step of every environment and return the transitions that it completes.

        Args:
            history: float ``[E, K, d]``, what was acted on.
            action: int64 ``[E, D]``.
            step: What came of it.
            next_history: float ``[E, K, d]``, ending in the action's true successor.

        Returns:
            M >= 0 transitions: one per environment once n steps are there, and all that are left where an
            episode ended; by environment, oldest first.
        """
        new = {
            "history": history,
            "action": action,
            "reward": step.reward,
            "next_observation": next_history[:, -1],
        }
        if not self._window:
            self._window = {name: _empty_window(value, self._steps) for name, value in new.items()}
        self._window = {
            name: torch.cat((self._window[name][:, 1:], value.unsqueeze(1)), dim=1) for name, value in new.items()
        }
        self._pending = (self._pending + 1).clamp_max(self._steps)
        done = step.terminated | step.truncated
        oldest = self._steps - self._pending
        complete = (self._pending == self._steps)[:, None] & (self._position == 0)
        left_over = done[:, None] & (self._position >= oldest[:, None])
        environment, position = (complete | left_over).nonzero(as_tuple=True)
        self._pending[done] = 0
        returns = self._window["reward"] @ self._sum_from
        discount = self._bootstrap * (~step.terminated[:, None])
        return Transitions(
            history=self._window["history"][environment, position],
            action=self._window["action"][environment, position],
            reward=returns[environment, position],
            discount=discount[environment, position],
            next_history=next_history[environment],
            next_observation=self._window["next_observation"][environment, position],
        )

    def state_dict(self) -> dict[str, Tensor]:
        """The steps that wait for their transition to complete."""
        return {"pending": self._pending, **self._window}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._window = {name: value.clone() for name, value in state.items() if name != "pending"}
        self._pending = state["pending"].clone()


def _empty_window(value: Tensor, steps: int) -> Tensor:
    """Room for ``steps`` values like ``value`` per environment: ``[E, ...]`` to ``[E, n, ...]``."""
    return value.new_zeros(value.shape[0], steps, *value.shape[1:])
