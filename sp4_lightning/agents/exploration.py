"""Epsilon-greedy exploration."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def explore(greedy: Tensor, branches: Sequence[int], epsilon: float, generator: torch.Generator) -> Tensor:
    """Replace an environment's action by a random one with probability epsilon (Mnih et al. 2015).

    All branches of an environment explore together, so that a joint action is either meant or random.

    Args:
        greedy: int64 ``[E, D]``.
        branches: Number of choices of each branch.
        epsilon: Probability in [0, 1].
        generator: Source of randomness. It advances alike whatever epsilon and the greedy action are.

    Returns:
        int64 ``[E, D]``.
    """
    draws = torch.rand(greedy.shape[0], 1 + len(branches), generator=generator)
    random = (draws[:, 1:] * torch.tensor(branches)).long()
    return torch.where(draws[:, :1] < epsilon, random, greedy)
