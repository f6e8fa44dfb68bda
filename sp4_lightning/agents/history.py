"""The last K observations of every environment."""

from __future__ import annotations

import torch
from torch import Tensor


class ObservationHistory:
    """A window of K observations per environment that never reaches into an earlier episode.

    At an episode's beginning its first observation fills the whole window.

    Args:
        first: float ``[E, d]``, the first observations.
        length: Observations in the window, K.

    Attributes:
        window: float ``[E, K, d]``, oldest first. It is replaced, never written to, so it can be kept.
    """

    window: Tensor

    def __init__(self, first: Tensor, length: int) -> None:
        self.window = first.unsqueeze(1).repeat(1, length, 1)

    def push(self, observation: Tensor) -> Tensor:
        """Append an observation ``[E, d]`` and drop the oldest; returns the new window."""
        self.window = torch.cat((self.window[:, 1:], observation.unsqueeze(1)), dim=1)
        return self.window

    def begin(self, observation: Tensor, where: Tensor) -> None:
        """Start a new episode.

        Args:
            observation: float ``[E, d]``; its rows matter only where an episode begins.
            where: bool ``[E]``.
        """
        self.window = torch.where(where[:, None, None], observation.unsqueeze(1), self.window)
