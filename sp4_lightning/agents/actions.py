"""Action encoding: what each branch's choice means to the environment."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from torch import Tensor

from sp4_lightning.errors import ConfigurationError


class ActionCodec:
    """Turns one choice per branch into an action of a Gymnasium space.

    ``Discrete(n)`` is one branch of n choices, ``MultiDiscrete(nvec)`` one branch per component, and a
    ``Box`` of d numbers is d branches of ``bins`` choices, evenly spaced from low to high (Tavakoli et al.
    2018, section 4).

    Args:
        space: The action space of one environment.
        bins: Choices per number of a ``Box``.

    Attributes:
        branches: Number of choices of each branch.

    Raises:
        ConfigurationError: The space is of another kind, or a ``Box`` without bounds.
    """

    branches: tuple[int, ...]

    def __init__(self, space: gym.Space[Any], bins: int = 3) -> None:
        choices: list[npt.NDArray[Any]]
        if isinstance(space, gym.spaces.Discrete):
            choices = [space.start + np.arange(space.n)]
        elif isinstance(space, gym.spaces.MultiDiscrete):
            starts = np.asarray(space.start).ravel()
            choices = [start + np.arange(n) for start, n in zip(starts, space.nvec.ravel(), strict=True)]
        elif isinstance(space, gym.spaces.Box):
            if not space.is_bounded():
                raise ConfigurationError(f"An action space needs bounds to be split into bins; this one is {space}.")
            if bins < 2:
                raise ConfigurationError(f"action_bins must be at least 2 for the action space {space}, got {bins}.")
            choices = list(np.linspace(space.low.ravel(), space.high.ravel(), bins, axis=-1))
        else:
            raise ConfigurationError(f"Action spaces can be Discrete, MultiDiscrete or Box; this one is {space}.")
        self.branches = tuple(len(values) for values in choices)
        self._shape = (-1, *(space.shape or ()))
        self._dtype = space.dtype
        # One row per branch; a shorter branch's row is padded with its last value, which no index reaches.
        self._table = np.stack([np.pad(v, (0, max(self.branches) - len(v)), mode="edge") for v in choices])
        self._rows = np.arange(len(choices))

    def decode(self, action: Tensor) -> npt.NDArray[Any]:
        """Translate choices for the vector environment.

        Args:
            action: int64 ``[E, D]``, one choice per branch.

        Returns:
            Array ``[E, *space.shape]`` of the space's dtype.
        """
        values = self._table[self._rows, action.numpy()]
        decoded: npt.NDArray[Any] = values.reshape(self._shape).astype(self._dtype)
        return decoded
