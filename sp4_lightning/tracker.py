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

from sp4_lightning.arrays import Array, namespace
from sp4_lightning.settings import LearnedBound
from sp4_lightning.state import TensorState

LARGEST_DEVIATION = 2.0
"""Deviations enter the spread winsorised at this many nats, so that one spike cannot widen the headroom."""


def bound(state: TensorState, learned: LearnedBound) -> Array:
    """The bound on ``|grad|`` in force, float64 of shape ``[T]``; +inf where not armed."""
    xp = namespace(state.level)
    level, spread, seen = state.level, state.spread, state.seen
    headroom = xp.clip(xp.exp(learned.spreads * spread), learned.min_headroom, learned.max_headroom)
    return xp.where(seen >= learned.arm_after, xp.exp(level) * headroom, math.inf)


def observe(state: TensorState, q: Array, valid: Array, learned: LearnedBound, every: int) -> None:
    """Take one observation per tensor.

    Args:
        state: Updated in place.
        q: float64 of shape ``[T]``, the observed quantiles.
        valid: bool of shape ``[T]``; the others keep their state.
        learned: The tracker's settings.
        every: How many updates one observation stands for; rates are scaled by it.
    """
    xp = namespace(state.level)
    level, spread, seen = state.level, state.spread, state.seen
    log_q = xp.log(xp.where(valid, q, 1.0))
    follows = valid & (seen >= learned.arm_after)

    rate = min(1.0, learned.rate * every)
    deviation = log_q - level
    move = xp.clip(deviation * rate, -math.log(learned.fall) * every, math.log(learned.rise) * every)
    widen = (xp.clip(abs(deviation), 0.0, LARGEST_DEVIATION) - spread) * rate
    level += xp.where(follows, move, 0.0)
    spread += xp.where(follows, widen, 0.0)

    collects = valid & ~follows
    if xp is torch or collects.any():
        _collect(state, log_q, collects, learned.arm_after)


def _collect(state: TensorState, log_q: Array, collects: Array, arm_after: int) -> None:
    """Store an observation of a tensor that is not armed; with the last one, level and spread start."""
    xp = namespace(state.level)
    level, spread, seen, recent = state.level, state.spread, state.seen, state.recent
    slot, tensor = xp.clip(seen, 0, arm_after - 1), xp.arange(len(seen))
    recent[slot, tensor] = xp.where(collects, log_q, recent[slot, tensor])
    seen += collects
    arms = collects & (seen == arm_after)
    first_level = xp.quantile(recent, 0.5, 0)
    first_spread = xp.clip(abs(recent - first_level), 0.0, LARGEST_DEVIATION).mean(0)
    level[...] = xp.where(arms, first_level, level)
    spread[...] = xp.where(arms, first_spread, spread)
