"""What the learned bound remembers, when it is taken up at another ``update_every``.

The tracker (:mod:`sp4_lightning.tracker`) counts in observations, one for every N updates: window, rank and arming are
``ceil(updates / N)`` of them. Taken up with one for every M updates,

    bound, level   stay, so the bound that is in force stays
    seen           ceil(seen N / M); a tensor that was not armed stays one observation short of it at least
    recent         its order statistics are spread over the new number of observations such that the old rank-th largest
                   becomes the new rank-th largest, and what was larger or smaller before is so now

The last is done by repeating an observation or leaving it out; those that are kept stay in their order of time, so what
is older is forgotten first, as before. A bound therefore goes on towards the very value it was going towards. Keeping
the largest of every M/N observations instead would turn four spikes in 1,024 updates into the level.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sp4_lightning.settings import LearnedBound


def resample(saved: dict[str, Any], learned: LearnedBound, before: int, now: int) -> dict[str, Any]:
    """Saved state as if it had been learned at another cadence.

    Args:
        saved: A checked :meth:`TensorState.state_dict <sp4_lightning.state.TensorState.state_dict>`; it is not changed.
        learned: The tracker's settings, in updates.
        before: How many updates one observation stood for.
        now: How many it stands for from now on.

    Returns:
        ``saved`` itself where the cadence is the same.
    """
    if before == now:
        return saved
    arm_after = learned.observations(learned.arm_after, now)
    armed = saved["seen"] >= learned.observations(learned.arm_after, before)
    seen = (saved["seen"] * before + now - 1) // now
    seen = torch.where(armed, seen, seen.clamp(max=arm_after - 1))
    ranks = learned.observations(learned.rank, before), learned.observations(learned.rank, now)
    window = learned.observations(learned.window, now)
    recent = saved["recent"].new_full((window, len(seen)), -torch.inf)
    for tensor, (old, new) in enumerate(zip(saved["seen"].tolist(), seen.tolist(), strict=True)):
        kept = _spread(_in_time(saved["recent"][:, tensor], old), min(new, window), ranks)
        recent[torch.arange(new - len(kept), new) % window, tensor] = kept
    return {**saved, "seen": seen, "recent": recent}


def _in_time(ring: Tensor, seen: int) -> Tensor:
    """A ring's observations, the oldest first."""
    return ring[torch.arange(max(0, seen - len(ring)), seen) % len(ring)]


def _spread(values: Tensor, count: int, ranks: tuple[int, int]) -> Tensor:
    """``count`` of the values, repeated or left out, whose rank-th largest is what it was.

    Args:
        values: In their order of time.
        count: How many are wanted.
        ranks: The rank that matters among the values, and among those that are wanted.
    """
    rank, new_rank = ranks
    place = torch.arange(1, count + 1)
    # Rounded up, so that up to the rank the larger ones are the ones left out: four spikes are fewer than four then.
    upper = (place * rank + new_rank - 1) // new_rank
    lower = rank + ((place - new_rank) * (len(values) - rank)) // max(count - new_rank, 1)
    chosen = torch.where(place <= new_rank, upper, lower).clamp(1, max(len(values), 1))
    order = values.argsort(descending=True, stable=True)
    return values.repeat_interleave(torch.bincount(order[chosen - 1], minlength=len(values)))
