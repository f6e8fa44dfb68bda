"""The learned bound: a rate-limited tracker of one tensor's gradient scale, in the log domain.

Per tensor, with ``q`` the high quantile of the finite non-zero ``|grad|`` of one update:

    valid observation    a gradient is there, holds no non-finite element and at least one non-zero one
    first 64 of them     bound = +inf; then  L = median(log q),  s = mean(min(|log q - L|, 2))
    each one after       r = log q - L
                         L += clip(r / 100, -ln 1.01, +ln 1.03)
                         s += (min(|r|, 2) - s) / 100
    bound                exp(L) * clamp(exp(5 s), 4, 16), as it was before this update

Why this shape: it is fed raw values (a tracker fed its own clipped values ratchets down: AdaGC, arXiv
2502.11034, or never recovers from a change of scale: ZClip, arXiv 2504.02507), it moves by a bounded factor
per update (a value cannot raise its own bound), and it moves faster up than down (a bound that is too low
starves a tensor, one that is too high only protects less).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sp4_lightning.settings import LearnedBound
from sp4_lightning.state import TensorState

LARGEST_DEVIATION = 2.0
"""Deviations enter the spread winsorised at this many nats, so that one spike cannot widen the headroom."""


def bound(state: TensorState, learned: LearnedBound) -> Tensor:
    """The bound on ``|grad|`` in force, float64 of shape ``[tensors]``; +inf where not armed."""
    headroom = (learned.spreads * state.spread).exp().clamp(learned.min_headroom, learned.max_headroom)
    return torch.where(state.seen >= learned.arm_after, state.level.exp() * headroom, torch.inf)


def observe(state: TensorState, q: Tensor, valid: Tensor, learned: LearnedBound, every: int) -> None:
    """Take one observation per tensor.

    Args:
        state: Updated in place.
        q: float64 of shape ``[tensors]``, the observed quantiles.
        valid: bool of shape ``[tensors]``; the others keep their state.
        learned: The tracker's settings.
        every: How many updates one observation stands for; rates are scaled by it.
    """
    log_q = torch.where(valid, q, 1.0).log()
    armed = state.seen >= learned.arm_after

    slot = state.seen.clamp(max=learned.arm_after - 1)[None]
    kept = state.recent.gather(0, slot)
    state.recent.scatter_(0, slot, torch.where(valid & ~armed, log_q, kept))
    state.seen += valid
    arming = valid & (state.seen == learned.arm_after)
    first_level = state.recent.median(0).values
    first_spread = (state.recent - first_level).abs().clamp(max=LARGEST_DEVIATION).mean(0)

    rate = min(1.0, learned.rate * every)
    deviation = log_q - state.level
    move = (deviation * rate).clamp(-math.log(learned.fall) * every, math.log(learned.rise) * every)
    widen = (deviation.abs().clamp(max=LARGEST_DEVIATION) - state.spread) * rate
    follows = valid & armed
    state.level.copy_(torch.where(arming, first_level, torch.where(follows, state.level + move, state.level)))
    state.spread.copy_(torch.where(arming, first_spread, torch.where(follows, state.spread + widen, state.spread)))
