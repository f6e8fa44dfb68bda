"""The same few functions for different devices; the torch backend is the definition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from sp4_lightning.backends.torch import TorchBackend
from sp4_lightning.errors import BackendError
from sp4_lightning.settings import BackendName
from sp4_lightning.step import Step


class Backend(Protocol):
    """What an engine asks for, in this order, around one update."""

    name: BackendName
    update_every: int
    """How often to count and learn unless the user says."""

    def protect(self, step: Step) -> None:
        """Read every tensor once, decide on the skip, mend the moments and parameters, clamp the gradients."""

    def learn(self, step: Step) -> None:
        """After the update: advance the derived bounds and, on learning steps, the learned ones."""


def choose_backend(name: BackendName | None, params: Sequence[Tensor]) -> Backend:
    """The backend asked for, or the fastest one that works where ``params`` are.

    Raises:
        BackendError: The one asked for cannot be had.
    """
    if name == "cuda":
        raise BackendError(
            f"backend='cuda' was asked for, but this version has no CUDA kernels yet (the parameters are on "
            f"{params[0].device}). Set backend=None or backend='torch'."
        )
    return TorchBackend(params)
