"""Several discrete actions at once: the shape that every head of the agent shares.

An agent with D action branches of n_1 ... n_D choices answers with one tensor ``[..., D, n_max]``. Places
that a shorter branch does not have hold ``-inf``, so ``argmax`` never picks them, and no gradient reaches
them because an action never points there (Tavakoli et al. 2018, "Action Branching Architectures for Deep
Reinforcement Learning").
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def stack_branches(per_branch: Sequence[Tensor]) -> Tensor:
    """Stack one tensor per branch along a new dimension before the last.

    Args:
        per_branch: D tensors ``[..., n_d]``.

    Returns:
        ``[..., D, n_max]``, padded with ``-inf``.
    """
    width = max(part.shape[-1] for part in per_branch)
    padded = [
        part if part.shape[-1] == width else functional.pad(part, (0, width - part.shape[-1]), value=float("-inf"))
        for part in per_branch
    ]
    return padded[0].unsqueeze(-2) if len(padded) == 1 else torch.stack(padded, dim=-2)


def split_branches(flat: Tensor, branches: Sequence[int]) -> Tensor:
    """Give a head's flat output the branches' shape.

    Args:
        flat: ``[..., sum(branches)]``.
        branches: number of choices of each branch.

    Returns:
        ``[..., D, n_max]``; a view when all branches are equally wide.
    """
    if len(set(branches)) == 1:
        return flat.view(*flat.shape[:-1], len(branches), branches[0])
    return stack_branches(torch.split(flat, list(branches), dim=-1))


def pick(values: Tensor, action: Tensor) -> Tensor:
    """Read the value of the chosen action of every branch.

    Args:
        values: ``[..., D, n_max]``.
        action: int64 ``[..., D]``.

    Returns:
        ``[..., D]``.
    """
    return values.gather(-1, action.unsqueeze(-1)).squeeze(-1)
