"""Bounds that follow from the clamped gradients by the optimizer's own recursions.

    exp_avg       M <- b1 M + w1 max|g|          (Adam: w1 = 1 - b1; SGD's momentum: b1 = mu, w1 = 1)
    exp_avg_sq    V <- b2 V + w2 max|g|^2        (Adam: w2 = 1 - b2; Adagrad: b2 = w2 = 1)
    param         P  = max|p| before the update + lr * (largest step of this optimizer), plus decay

No gradient history can make the optimizer pass them, so they can only fire on a state that something else has
written. They never need a history of their own.
"""

from __future__ import annotations

import torch
from torch import Tensor

SLACK = 1e-4
"""Relative slack of every derived bound, for all but the rounding of the recursion itself (:func:`rounding`)."""


def error(dtype: torch.dtype) -> float:
    """How far rounding can move a moment in one update, relative to ``decay |x| + weight |g|``.

    Torch's ``lerp``, ``mul`` and ``addcmul`` round at most four times by half an eps each; types narrower than float32
    are computed in float32 and rounded where they are stored, at most twice.
    """
    return 2 * torch.finfo(dtype).eps


def slowed(decay: float, dtype: torch.dtype) -> float:
    """The decay with what ``lerp`` may add to it: it knows the decay only as one minus the weight, rounded."""
    return decay + min(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)


def rounding(decay: float, dtype: torch.dtype) -> tuple[float, float]:
    """Account for a recursion that is carried out in ``dtype``.

    Errors of successive updates multiply, also while no gradient renews what is stored (a bfloat16 exp_avg with
    beta1 = .8 is 8% above the exact recursion after 300 zero gradients). So the bound decays by ``decay (1 + error)``,
    the decay :func:`slowed`.
    Where that reaches 1 the stored value need not decay at all (an exp_avg_sq in bfloat16 with beta2 = .999 keeps 1.0
    of itself after 1,000 zero gradients), and neither does its bound.

    Args:
        decay: The recursion's decay, e.g. beta2.
        dtype: What the moment is stored in.

    Returns:
        ``(decay, slack)``: the decay to use for the bound and the relative slack above it.
    """
    rounded = slowed(decay, dtype) * (1 + error(dtype))
    return (rounded, SLACK) if rounded < 1 else (1.0, 1.0)


def cap_pair(exp_avg: Tensor | None, exp_avg_sq: Tensor, limit: Tensor) -> tuple[Tensor | None, Tensor]:
    """Clamp ``exp_avg_sq`` and scale the same elements of ``exp_avg`` by the square root of the factor.

    Clamping exp_avg_sq alone would blow the update up by that factor (one measured step: 48,700 learning rates).

    Args:
        exp_avg: First moment, or None where the optimizer has none.
        exp_avg_sq: Second moment, finite and not negative.
        limit: 0-d, finite or +inf.

    Returns:
        New tensors; elements within the limit are bit-identical.
    """
    over = exp_avg_sq > limit
    if exp_avg is not None:
        shrink = torch.where(over, (limit.to(exp_avg_sq.dtype) / exp_avg_sq).sqrt(), 1.0)
        exp_avg = exp_avg * shrink.to(exp_avg.dtype)
    return exp_avg, torch.where(over, limit.to(exp_avg_sq.dtype), exp_avg_sq)
