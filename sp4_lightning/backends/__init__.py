"""The same few functions for different devices; the torch backend is the definition."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torch import Tensor

from sp4_lightning.backends.base import Backend
from sp4_lightning.backends.cpp import CppBackend
from sp4_lightning.backends.cuda import CudaBackend
from sp4_lightning.backends.torch import TorchBackend
from sp4_lightning.errors import BackendError
from sp4_lightning.settings import BackendName

_log = logging.getLogger(__name__)


def choose_backend(name: BackendName | None, params: Sequence[Tensor]) -> Backend:
    """The backend asked for, or the fastest one that works where ``params`` are.

    Raises:
        BackendError: The one asked for cannot be had.
    """
    device = params[0].device.type
    if name == "cpp":
        return CppBackend(params)
    if name == "cuda":
        return CudaBackend(params)
    if name is None and device in ("cpu", "cuda"):
        try:
            return CppBackend(params) if device == "cpu" else CudaBackend(params)
        except BackendError as error:
            _log.warning("Using the slower backend 'torch'. %s", error)
    return TorchBackend(params)


__all__ = ["Backend", "choose_backend"]
