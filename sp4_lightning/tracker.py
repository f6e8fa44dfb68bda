"""The learned bound: how large one tensor's gradients have repeatedly been of late.

Per tensor, with ``q`` the high quantile of the finite non-zero ``|grad|`` of one update:

    valid observation    a gradient is there, holds no non-finite element and at least one non-zero one
    level                moves towards log of the 25th largest q of the last 1,024 valid observations,
                         by at most ln 1.07 up and ln 1.01 down per update
    bound                16 * exp(level), as it was before this update; +inf until 64 valid observations

What a tensor beyond its bound is clamped to is said in :mod:`sp4_lightning.budget`.

Where only every N-th update is observed, these numbers count the updates that the observations stand for.

Why this shape. It is fed raw values: a tracker fed its own clipped values ratchets down (AdaGC, arXiv 2502.11034)
or never recovers from a change of scale (ZClip, arXiv 2504.02507). A rank cannot be raised by a value it has not seen
25 times, so a spike of any size, and a burst of up to 24, leave the bound where it was. What comes back again and again
is believed: a change of scale by 100 is followed in 94 updates, and a burst that returns with every copy into a target
network (a hundredfold for some 30 of every 250 updates in the agent's value heads) is part of the level. A level that
follows the typical gradient instead, with headroom from its mean deviation, would clamp up to 1.5% of the updates of
such a head on clean runs; this one 0.03% at most (``benchmarks/results/clean_share.json``).
"""

from __future__ import annotations

import math

from sp4_lightning.arrays import Array, kth_largest, namespace
from sp4_lightning.settings import LearnedBound
from sp4_lightning.state import TensorState


def bound(state: TensorState, learned: LearnedBound, every: int) -> Array:
    """The bound on ``|grad|`` in force, float64 of shape ``[T]``; +inf where not armed.

    Args:
        state: What is remembered.
        learned: The tracker's settings, in updates.
        every: How many updates one observation stands for.
    """
    xp = namespace(state.level)
    armed = state.seen >= learned.observations(learned.arm_after, every)
    return xp.where(armed, learned.headroom * xp.exp(state.level), math.inf)


def observe(state: TensorState, q: Array, valid: Array, learned: LearnedBound, every: int) -> None:
    """Take one observation per tensor.

    Args:
        state: Updated in place; its window holds ``learned.window / every`` observations.
        q: float64 of shape ``[T]``, the observed quantiles.
        valid: bool of shape ``[T]``; the others keep their state.
        learned: The tracker's settings, in updates.
        every: How many updates one observation stands for; window, rank, arming and pace are scaled by it.
    """
    xp = namespace(state.level)
    slot, tensor = state.seen % len(state.recent), xp.arange(len(state.seen))
    log_q = xp.log(xp.where(valid, q, 1.0))
    state.recent[slot, tensor] = xp.where(valid, log_q, state.recent[slot, tensor])
    state.seen += valid
    target = kth_largest(state.recent, learned.observations(learned.rank, every))
    move = xp.clip(target - state.level, -math.log(learned.fall) * every, math.log(learned.rise) * every)
    arm_after = learned.observations(learned.arm_after, every)
    moved = xp.where(state.seen == arm_after, target, state.level + move)
    state.level[...] = xp.where(valid & (state.seen >= arm_after), moved, state.level)
