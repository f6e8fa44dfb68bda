"""Dueling branching heads: one state value, one advantage for every choice of every action branch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from sp4_lightning.agents.branches import stack_branches


class ValueHead(nn.Module):
    """The state value V of the dueling architecture.

    Args:
        features: size of the trunk's output.
        hidden: size of the hidden layer.
    """

    def __init__(self, features: int, hidden: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, features: Tensor) -> Tensor:
        """Value the state: float ``[B, features]`` to float ``[B, 1]``."""
        value: Tensor = self.layers(features)
        return value


class AdvantageBranches(nn.Module):
    """One advantage head per action branch.

    Args:
        features: size of the trunk's output.
        branches: number of choices of each branch.
        hidden: size of each branch's hidden layer.
    """

    def __init__(self, features: int, branches: Sequence[int], hidden: int = 64) -> None:
        super().__init__()
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, choices)) for choices in branches
        )

    def forward(self, features: Tensor) -> list[Tensor]:
        """Rate every choice: float ``[B, features]`` to D tensors ``[B, n_d]``."""
        return [head(features) for head in self.heads]


def dueling_q(value: Tensor, advantages: Sequence[Tensor]) -> Tensor:
    """Combine value and advantages: ``Q_d = V + A_d - mean(A_d)``.

    The mean is taken off so that V and A are determined by Q (Wang et al. 2016, "Dueling Network
    Architectures for Deep Reinforcement Learning", eq. 9); each branch shares the same V (Tavakoli et al.
    2018, "Action Branching Architectures for Deep Reinforcement Learning", eq. 1).

    Args:
        value: float ``[B, 1]``.
        advantages: D tensors ``[B, n_d]``.

    Returns:
        float ``[B, D, n_max]``; see :mod:`~sp4_lightning.agents.branches` for the padding.
    """
    return stack_branches([value + a - a.mean(-1, keepdim=True) for a in advantages])
