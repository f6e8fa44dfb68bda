"""The DQN itself: history attention, trunk, dueling branches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sp4_lightning.agents.attention import HistoryAttention
from sp4_lightning.agents.dueling import AdvantageBranches, ValueHead, dueling_q

FEATURES = 128
"""Size of the trunk's output, which all heads of the agent read."""


class Trunk(nn.Sequential):
    """Two ReLU layers that turn an observation and its history's summary into features.

    Args:
        inputs: size of the input vector.
        width: size of both layers.
    """

    def __init__(self, inputs: int, width: int = FEATURES) -> None:
        super().__init__(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())


class QNetwork(nn.Module):
    """Q values of every choice of every branch, from the last K observations.

    The trunk reads the newest observation and, with attention, the summary of the history beside it. The
    attention is trained end to end by the loss of the Q values.

    Args:
        observation_size: numbers in one observation, d.
        history: observations in the history, K.
        branches: number of choices of each action branch.
        attention: whether there is a history attention; without it only the newest observation counts.
    """

    def __init__(self, observation_size: int, history: int, branches: Sequence[int], attention: bool = True) -> None:
        super().__init__()
        self.attention = HistoryAttention(observation_size, history) if attention else None
        self.trunk = Trunk(observation_size + (self.attention.width if self.attention else 0))
        self.value = ValueHead(FEATURES)
        self.advantages = AdvantageBranches(FEATURES, branches)

    def features(self, history: Tensor) -> Tensor:
        """Features of a state: float ``[B, K, d]``, oldest first, to float ``[B, 128]``."""
        newest = history[:, -1]
        seen = newest if self.attention is None else torch.cat((newest, self.attention(history)), dim=-1)
        features: Tensor = self.trunk(seen)
        return features

    def q_values(self, features: Tensor) -> Tensor:
        """Q values from features: float ``[B, 128]`` to float ``[B, D, n_max]``."""
        return dueling_q(self.value(features), self.advantages(features))

    def forward(self, history: Tensor) -> Tensor:
        """Q values from a history: float ``[B, K, d]`` to float ``[B, D, n_max]``."""
        return self.q_values(self.features(history))
