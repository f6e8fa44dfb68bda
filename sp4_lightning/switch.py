"""Observe, enforce, and the flip: one flag on the device, read by every engine at the start of a step."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

import torch
from torch import Tensor

from sp4_lightning.settings import Mode


class Phase(IntEnum):
    """What an engine may write."""

    OBSERVE = 0
    """Nothing; what would have been clamped is counted."""
    EXACT = 1
    """Skips and exact rules; the learned bounds are still being observed."""
    LEARNED = 2
    """Everything."""


class Switch:
    """The phase of all engines that share it, as a 0-d int64 tensor on their device.

    Args:
        mode: ``observe`` stays in :attr:`Phase.OBSERVE` for ever; ``enforce`` starts in :attr:`Phase.EXACT`.
        warmup_steps: Executed updates every group that trains must have before the flip to
            :attr:`Phase.LEARNED`.
        device: Where the flag lives.
    """

    def __init__(self, mode: Mode, warmup_steps: int, device: torch.device | str = "cpu") -> None:
        self.mode: Mode = mode
        self.warmup_steps = warmup_steps
        start = Phase.OBSERVE if mode == "observe" else Phase.EXACT
        self.phase = torch.tensor(int(start), dtype=torch.int64, device=device)
        # What the host may read without waiting: on a GPU a copy that arrives some time after each check.
        self._known = self.phase.cpu().pin_memory() if self.phase.is_cuda else self.phase

    def advance(self, observed: Iterable[Tensor]) -> None:
        """Flip if every group that has received gradients has been observed long enough.

        A group that has not received any yet does not block the flip; its own bound is +inf until it is armed.

        Args:
            observed: int64 vectors, the executed updates per group of every engine.
        """
        if self.mode == "observe" or (self._known.device.type == "cpu" and int(self._known) == Phase.LEARNED):
            return  # nothing can change
        counts = torch.cat(list(observed))
        ready = ((counts >= self.warmup_steps) | (counts == 0)).all() & (counts > 0).any()
        flips = ready & (self.phase == int(Phase.EXACT))
        self.phase.copy_(torch.where(flips, int(Phase.LEARNED), self.phase))
        if self.phase.is_cuda:
            self._known.copy_(self.phase, non_blocking=True)

    def restore(self, phase: int) -> None:
        """Take over a saved phase as far as the mode allows: an observing run that now enforces starts exact."""
        if self.mode == "enforce":
            self.phase.fill_(int(Phase.LEARNED if phase == Phase.LEARNED else Phase.EXACT))
            self._known.copy_(self.phase)  # waits, also for copies that are still under way
