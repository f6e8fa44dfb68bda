"""The learned bound of one tensor, in plain Python, written from the docstring of ``sp4_lightning.tracker``."""

import dataclasses
import math

import numpy as np
import torch

from sp4_lightning import LearnedBound, tracker
from sp4_lightning.state import TensorState


class ReferenceTracker:
    def __init__(self, learned, every=1):
        self.learned, self.every = learned, every
        self.window = math.ceil(learned.window / every)
        self.rank = math.ceil(learned.rank / every)
        self.arm_after = math.ceil(learned.arm_after / every)
        self.all = []
        self.level = None

    def observe(self, q):
        """Take one observation; None is an invalid one."""
        if q is None:
            return
        self.all.append(math.log(q))
        if len(self.all) < self.arm_after:
            return
        target = sorted(self.all[-self.window :])[-self.rank]
        if self.level is None:
            self.level = target
            return
        up, down = math.log(self.learned.rise) * self.every, math.log(self.learned.fall) * self.every
        self.level += max(-down, min(up, target - self.level))

    def bound(self):
        return math.inf if self.level is None else self.learned.headroom * math.exp(self.level)


def fresh(tensors, learned=None, every=1, library=np):
    learned = learned or LearnedBound()
    state = TensorState.fresh(tensors, learned.observations(learned.window, every), torch.device("cpu"))
    if library is torch:
        # What other devices run: the same text on torch tensors.
        state = TensorState(**{f.name: torch.as_tensor(getattr(state, f.name)) for f in dataclasses.fields(state)})
    return state


def observe(state, observations, learned=None, every=1, library=np):
    """One observation per tensor, None for an invalid one; what is invalid may be anything, NaN included."""
    nonsense = [math.nan, math.inf, 0.0]
    q = [nonsense[i % 3] if x is None else x for i, x in enumerate(observations)]
    valid = [x is not None for x in observations]
    tracker.observe(
        state,
        library.asarray(q, dtype=library.float64),
        library.asarray(valid),
        learned or LearnedBound(),
        every,
    )
