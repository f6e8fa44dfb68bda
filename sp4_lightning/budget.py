"""What the gradient of a tensor that is beyond its learned bound is clamped to: each element to what *it* is used to.

Adam survives a gradient that is clamped to the learned bound, but exp_avg_sq takes its square, and the learning rate of
that element stays small until it is forgotten: one scale per tensor is hundreds of sigmas for its small elements. So
where a tensor is beyond its bound, every element is clamped to the smaller of the bound and

    sqrt(budget * v̂)        v̂ = exp_avg_sq / filled, before the update

with one budget per tensor, in squared sigmas: ``refill`` more with every update, ``budget`` at most, spent by an update
beyond the bound. What is rare may be large, what is repeated may not. With beta2 = .999, and once exp_avg_sq
has filled, a spike makes it at most 1.4 times as large and a burst of 24 at most twice, whatever their size, so neither
halves the learning rate; and what has come 25 times is about to be believed. The idea and its rivals are measured in
``benchmarks/results/synthetic.md``; SPAM (arXiv 2501.06842) clamps to sqrt(5000 exp_avg_sq) at every update.

``filled`` is what exp_avg_sq would be had every gradient been 1, Adam's 1 - beta2^t, by the same recursion, which holds
for skipped updates, changing betas and optimizers without bias correction too. Attached to a trained optimizer it
starts from 0, and v̂ is too large for a while, never too small.

An element that has had no gradient yet (exp_avg_sq = 0) has nothing it is used to: the bound alone holds for it. So it
does for optimizers without exp_avg_sq.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sp4_lightning.arrays import Array, namespace
from sp4_lightning.settings import LearnedBound


def element_limit(bound: Tensor, exp_avg_sq: Tensor | None, budget: Tensor, filled: Tensor) -> Tensor:
    """The largest ``|grad|`` of every element of a tensor that is beyond its bound.

    Args:
        bound: float64, 0-d.
        exp_avg_sq: Any floating type, of the parameter's shape; None where the optimizer has none.
        budget: float64, 0-d.
        filled: float64, 0-d; 0 where exp_avg_sq is not an average of squared gradients.

    Returns:
        0-d float64, or float32 and wider of the parameter's shape.
    """
    if exp_avg_sq is None:
        return bound
    sq = exp_avg_sq.to(torch.promote_types(exp_avg_sq.dtype, torch.float32))
    # An exp_avg_sq that is only observed may be NaN or negative.
    return torch.where(sq > 0, (sq * (budget / filled)).sqrt(), math.inf).clamp(max=bound)


def next_budget(budget: Array, beyond: Array, learned: LearnedBound) -> Array:
    """The budget of the next update, float64 ``[T]``.

    Args:
        budget: float64 ``[T]``, of this one.
        beyond: bool ``[T]``, the tensor was beyond its bound.
        learned: ``budget`` and ``refill``.
    """
    xp = namespace(budget)
    return xp.clip(xp.where(beyond, 0.0, budget) + learned.refill, 0.0, learned.budget)
