"""Greedy evaluation in environments of its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sp4_lightning.agents.environment import Environments
from sp4_lightning.agents.history import ObservationHistory

Policy = Callable[[Tensor], Tensor]
"""From histories float32 ``[E, K, d]`` to greedy actions int64 ``[E, D]``, both on the CPU."""


def evaluate(
    policy: Policy, environments: Environments, history: int, seeds: Tensor, max_steps: int = 10_000
) -> Tensor:
    """Play one episode per environment.

    Draws no random numbers but the environments' own, so training goes on as if it had not happened.

    Args:
        policy: What to play.
        environments: E environments; they are reset.
        history: Observations the policy looks at, K.
        seeds: int64 ``[E]``, the episodes' seeds.
        max_steps: Steps after which an episode that does not end is cut off.

    Returns:
        float64 ``[E]``, the undiscounted returns.
    """
    window = ObservationHistory(environments.reset(seeds.tolist()), history)
    returns = torch.zeros(len(seeds), dtype=torch.float64)
    running = torch.ones(len(seeds), dtype=torch.bool)
    for _ in range(max_steps):
        step = environments.step(policy(window.window))
        returns += step.reward * running
        window.push(step.successor)
        done = step.terminated | step.truncated
        running &= ~done
        if not running.any():
            break
        # An environment that is done plays on unwatched until the last one is.
        window.begin(step.observation, done)
    return returns
