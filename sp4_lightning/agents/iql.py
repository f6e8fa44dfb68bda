"""Expectile values of a state: an optimistic and a pessimistic one, which bracket the bootstrap.

Kostrikov et al. 2021, "Offline Reinforcement Learning with Implicit Q-Learning".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXPECTILES = {"iql_high": 0.9, "iql_low": 0.1}
"""Expectile of each of the two values."""


class ExpectileValue(nn.Module):
    """A state value trained to an expectile of Q over the actions that the replay holds.

    Args:
        features: size of the features that describe a state.
        hidden: size of the hidden layer.
    """

    def __init__(self, features: int, hidden: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, features: Tensor) -> Tensor:
        """Value the state: float ``[B, F]`` to float ``[B]``."""
        value: Tensor = self.layers(features).squeeze(-1)
        return value


def expectile_loss(value: Tensor, target: Tensor, expectile: float) -> Tensor:
    """Asymmetric squared error (Kostrikov et al. 2021, eq. 5).

    Args:
        value: float ``[B]``.
        target: float ``[B]``; Q of the lagged network at the action taken.
        expectile: weight of targets above the value; those below weigh ``1 - expectile``.

    Returns:
        float scalar, the mean over the batch.
    """
    error = target - value
    weight = torch.where(error.detach() > 0, expectile, 1.0 - expectile)
    return (weight * error.square()).mean()


def bracket(bootstrap: Tensor, high: Tensor, low: Tensor) -> Tensor:
    """Keep a bootstrap within the expectiles of its state, widened by their distance plus one.

    This limits how fast an over-estimated value can feed on itself. It cannot stop a slow drift of Q and
    both expectiles together.

    Args:
        bootstrap: float ``[B]``, the double-DQN value of the next state.
        high: float ``[B]``, its optimistic value.
        low: float ``[B]``, its pessimistic value.

    Returns:
        float ``[B]``.
    """
    width = (high - low).abs() + 1.0
    return torch.minimum(torch.maximum(bootstrap, low - width), high + width)
