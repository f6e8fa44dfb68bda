"""The same few functions for different devices; the torch backend is the definition."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torch import Tensor

from sp4_lightning.backends.base import Backend
from sp4_lightning.backends.cpp import CppBackend
from sp4_lightning.backends.torch import TorchBackend
from sp4_lightning.errors import BackendError
from sp4_lightning.settings import BackendName

_log = logging.getLogger(__name__)


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
    if name == "cpp":
        return CppBackend(params)
    if name is None and params[0].device.type == "cpu":
        try:
            return CppBackend(params)
        except BackendError as error:
            _log.warning("Using the slower backend 'torch'. %s", error)
    return TorchBackend(params)


__all__ = ["Backend", "choose_backend"]
