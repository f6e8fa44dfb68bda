"""Flat vectors over an optimizer's tensors, at as little cost per step as possible."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sp4_lightning.arrays import Array
from sp4_lightning.held import Found


class Flats:
    """The tensors of one quantity as flat vectors.

    On a CPU these are NumPy views, made once and kept as long as every tensor stays where it is in memory; torch takes
    ten times as long to make one as NumPy to read it. A view keeps its memory alive, so an address in use is never
    mistaken for an older tensor's. Strided tensors and types that NumPy lacks are copied at every step.

    Args:
        keeps: Keep views between steps. Not for gradients: they would be kept alive after ``zero_grad``.
    """

    def __init__(self, keeps: bool) -> None:
        self._keeps = keeps
        self._where: list[int] | None = None
        self._views: list[Array | None] = []

    def of(self, tensors: Found) -> list[Array | None]:
        """Flat vectors in the tensors' own order of elements; None where there is no tensor."""
        if not self._keeps:
            return [None if tensor is None else flatten(tensor) for tensor in tensors]
        where = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
        if where != self._where:
            self._where = where
            self._views = [None if t is None or not _viewable(t) else flatten(t) for t in tensors]
        return [
            kept if kept is not None or tensor is None else flatten(tensor)
            for kept, tensor in zip(self._views, tensors, strict=True)
        ]


def flatten(tensor: Tensor) -> Array:
    """One flat vector: a view where strides and type allow, else a copy."""
    tensor = tensor.detach() if tensor.requires_grad else tensor
    if tensor.device.type != "cpu":
        return tensor.reshape(-1)
    return (tensor if _numpy_has(tensor.dtype) else tensor.float()).numpy().reshape(-1)


def _viewable(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and (tensor.device.type != "cpu" or _numpy_has(tensor.dtype))


def _numpy_has(dtype: torch.dtype) -> bool:
    return dtype in (torch.float32, torch.float64, torch.float16)


def gather(pieces: list[Array], out: Array) -> None:
    """Copy flat vectors one behind the other into ``out``, converting to its type."""
    if isinstance(out, np.ndarray):
        np.concatenate(pieces, out=out, casting="same_kind")
    else:
        torch._foreach_copy_(list(out.split([len(piece) for piece in pieces])), pieces)
