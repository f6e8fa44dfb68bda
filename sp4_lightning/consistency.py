"""exp_avg against exp_avg_sq: ``|m| <= c * sqrt(v)`` for any history of gradients.

With ``m = sum_k (1-b1) b1^k g_k`` and ``v = sum_k (1-b2) b2^k g_k^2``, Cauchy-Schwarz gives

    m^2 <= c^2 v,   c^2 = (1-b1)^2 / ((1-b2) (1 - b1^2/b2))        when b1^2 < b2

(7.27^2 for betas .9/.999), whatever the gradients were. When the betas change from step to step the constant
follows ``c^2 <- (b1^2/b2) c^2 + (1-b1)^2/(1-b2)``, whose fixed point is the expression above. The rule holds
for Adam, AdamW, NAdam and RAdam, with L2 decay, ``maximize``, skipped steps and clamped gradients. It catches a
lost exp_avg_sq (one step of 4.8e7 learning rates), a flipped bit in exp_avg, and dead elements.

The moments are rounded. If an update moves either by at most a share e of ``decay |x| + weight |g|``
(:func:`sp4_lightning.derived.error`), then ``|m| <= (1+e) (b1 |m| + (1-b1) |g|)`` and
``v >= (1-e) (b2 v + (1-b2) g^2)``, so that c² grows by ``(1+e)^2 / (1-e)``, about 1 + 3e, in every update:

    c^2 <- (1+e)^2/(1-e) * ((b1^2/b2) c^2 + (1-b1)^2/(1-b2))

Where ``(b1^2/b2) (1+e)^2/(1-e) >= 1``, rounding can undo all of the decay of the ratio in updates without a gradient
and there is no rule: in bfloat16 from ``b1^2/b2`` = .954 on, in float32 only within 1e-6 of 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SLACK: dict[torch.dtype, float] = {
    torch.float64: 1e-4,
    torch.float32: 1e-4,
    torch.bfloat16: 5e-2,
}
"""Relative slack of c for all but the rounding of the moments' recursions, such as that of the update itself. Absent
types have no rule: float16 moments under- and overflow."""


def constant_sq(beta1: float, beta2: float, error: float = 0.0) -> float:
    """c² for constant betas; +inf where the rule does not exist (``beta1² >= beta2``, but for the rounding)."""
    decay, gain = rates(beta1, beta2, error)
    return gain / (1 - decay) if decay < 1 else math.inf


def rates(beta1: float, beta2: float, error: float = 0.0) -> tuple[float, float]:
    """``(decay, gain)`` of ``c² <- decay * c² + gain`` for one executed step.

    Args:
        beta1: Decay of exp_avg.
        beta2: Decay of exp_avg_sq.
        error: Relative rounding of one update of either.
    """
    stretch = (1 + error) ** 2 / (1 - error)
    decay = beta1**2 / beta2 if beta2 > 0 else math.inf
    gain = (1 - beta1) ** 2 / (1 - beta2) if beta2 < 1 else math.inf
    return decay * stretch, gain * stretch


def repair(exp_avg: Tensor, exp_avg_sq: Tensor, limit: Tensor, eps: float) -> Tensor:
    """``exp_avg`` clamped to what ``exp_avg_sq`` allows.

    Args:
        exp_avg: First moment.
        exp_avg_sq: Second moment, not negative.
        limit: 0-d, c with its slack.
        eps: The optimizer's epsilon; it keeps the update bounded where exp_avg_sq underflows.

    Returns:
        A new tensor like ``exp_avg``; elements within the limit are bit-identical.
    """
    # An infinite c (the rule is off) times 0 would be NaN.
    allowed = torch.where(limit.isinf(), torch.inf, (exp_avg_sq.sqrt() + eps) * limit)
    return torch.minimum(torch.maximum(exp_avg, -allowed), allowed)
