"""Small vectors: NumPy views of torch memory on a CPU, the torch tensors themselves elsewhere.

The rules do some fifty operations per step on vectors with one element per tensor. On a CPU a NumPy operation
costs a third of a torch one, and the two libraries agree on the names used here, so one text serves both.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Array: TypeAlias = Any
"""``numpy.ndarray`` on a CPU, ``torch.Tensor`` elsewhere."""


def namespace(vector: Array) -> Any:
    """The module whose functions work on a vector."""
    return np if isinstance(vector, np.ndarray) else torch


def namespace_on(device: torch.device) -> Any:
    """The module whose functions work on the vectors of a device."""
    return np if device.type == "cpu" else torch


def view(tensor: Tensor) -> Array:
    """The vector that shares a tensor's memory."""
    return tensor.detach().numpy() if tensor.device.type == "cpu" else tensor


def looking_is_free(flags: Array) -> bool:
    """Whether the host may look at flags without waiting for a device."""
    return isinstance(flags, np.ndarray)


def kth_largest(values: Array, k: int) -> Array:
    """The k-th largest of each column."""
    position = len(values) - k
    if isinstance(values, np.ndarray):
        return np.partition(values, position, 0)[position]
    return values.kthvalue(position + 1, 0).values
