"""Where an optimizer's tensors are in a GPU's memory, as the kernels read it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from operator import is_

import numpy as np
import torch
from torch import Tensor

from sp4_lightning.admission import fills
from sp4_lightning.arrays import Array
from sp4_lightning.backends.cuda.call import CHUNK, DIMS, GRADS, LAYOUT, ROW, Grads
from sp4_lightning.backends.pointers import TYPES
from sp4_lightning.errors import UnsupportedError
from sp4_lightning.held import Found

Form = tuple[torch.dtype, torch.Size, tuple[int, ...]]
"""Type, shape and strides."""


class Places:
    """The device's table of T tensors, and the gradients' addresses, which move from step to step.

    Args:
        params: The parameters.
        group: int ``[T]``, the number of each one's group.

    Attributes:
        rows: Device memory with one ``ROW`` per tensor.
        layouts: Device memory with a ``LAYOUT`` for tensors whose elements are not in one order.
        chunks: int64 ``[chunks, 2]`` on the device: tensor and first element.
    """

    def __init__(self, params: Sequence[Tensor], group: Array) -> None:
        self._sizes = [param.numel() for param in params]
        self._group = group
        device = params[0].device
        count = len(params)
        self.rows = torch.zeros(count * ROW.itemsize, dtype=torch.uint8, device=device)
        self.layouts = torch.zeros(count * LAYOUT.itemsize, dtype=torch.uint8, device=device)
        chunks = [(i, start) for i, size in enumerate(self._sizes) for start in range(0, size, CHUNK)]
        self.chunks = torch.tensor(chunks, dtype=torch.int64, device=device)
        first_chunk = np.searchsorted([tensor for tensor, _ in chunks], np.arange(count + 1))
        self._launches = [
            (range(first, min(first + GRADS, count)), int(first_chunk[first])) for first in range(0, count, GRADS)
        ]
        self._blocks = [int(first_chunk[tensors.stop]) - first for tensors, first in self._launches]
        self._grads = [Grads(tensors.start, first) for tensors, first in self._launches]
        self._pointers = [np.frombuffer(memoryview(grads.grad).cast("B"), np.int64) for grads in self._grads]
        self._edited = [np.frombuffer(memoryview(grads.edited).cast("B"), np.uint8) for grads in self._grads]
        self._kept: list[Tensor | None] = []
        self._where: list[int] = []
        # Of each gradient: what is compared at every step, and all of it.
        self._laid: list[tuple[torch.dtype, tuple[int, ...]] | None] = [None] * count
        self._forms: list[Form | None] = [None] * count

    def refresh(self, tensors: Sequence[Found], edited: Sequence[bool] | None) -> None:
        """Find out where everything is now.

        Args:
            tensors: param, grad, exp_avg, exp_avg_sq per tensor.
            edited: Which parameters somebody else has written; None: none.

        Raises:
            UnsupportedError: A tensor that the kernels cannot read.
        """
        params, grads, exp_avg, exp_avg_sq = tensors
        kept = [*params, *exp_avg, *exp_avg_sq]
        where = [0 if tensor is None else tensor.data_ptr() for tensor in kept]
        # Of a gradient that is missing for once nothing is forgotten.
        laid = [
            old if grad is None else (grad.dtype, grad.stride()) for grad, old in zip(grads, self._laid, strict=True)
        ]
        # The same objects at the same addresses: torch never changes the type or strides of such a tensor.
        if where != self._where or laid != self._laid or not all(map(is_, kept, self._kept)):
            self._where = []  # until all of it is entered
            self._forms = [old if grad is None else _form(grad) for grad, old in zip(grads, self._forms, strict=True)]
            self._enter(params, exp_avg, exp_avg_sq, self._forms)
            self._kept, self._where, self._laid = kept, where, laid
        addresses = [0 if grad is None else grad.data_ptr() for grad in grads]
        for (owners, _), pointers, bits in zip(self._launches, self._pointers, self._edited, strict=True):
            own = slice(owners.start, owners.stop)
            pointers[: len(owners)] = addresses[own]
            bits[:] = 0
            if edited is not None:
                flags = np.packbits(edited[own], bitorder="little")
                bits[: len(flags)] = flags

    def launches(self) -> Iterator[tuple[int, Grads]]:
        """Blocks and gradients of every launch."""
        return zip(self._blocks, self._grads, strict=True)

    def _enter(self, params: Found, exp_avg: Found, exp_avg_sq: Found, grads: Sequence[Form | None]) -> None:
        rows = np.zeros(len(params), ROW)
        layouts: list[Array] = []
        for i, (param, m, v, grad) in enumerate(zip(params, exp_avg, exp_avg_sq, grads, strict=True)):
            forms = [_form(param), grad, _form(m), _form(v)]
            for form in forms:
                _check(form, self._sizes[i])
            layout = -1
            if not _in_one_order([form for form in forms if form is not None]):
                layout = len(layouts)
                layouts.append(_layout(forms))
            addresses = (0 if tensor is None else tensor.data_ptr() for tensor in (param, m, v))
            types = [0 if form is None else TYPES.index(form[0]) for form in forms]
            rows[i] = (self._sizes[i], *addresses, types, layout, self._group[i])
        self._upload(rows, self.rows)
        if layouts:
            self._upload(np.array(layouts, LAYOUT), self.layouts)

    def _upload(self, values: Array, target: Tensor) -> None:
        if torch.cuda.is_current_stream_capturing():
            # The graph would read this step's staging memory again at every replay.
            raise UnsupportedError(
                "The optimizer's tensors are not where they were in its last step, and a CUDA graph is being captured. "
                "Make at least two steps before capturing, and keep parameters and optimizer state where they are."
            )
        # Pinned, so that the host need not wait; torch keeps the memory until the copy has been made.
        staged = torch.from_numpy(values.view(np.uint8).reshape(-1)).pin_memory()
        target[: len(staged)].copy_(staged, non_blocking=True)


def _form(tensor: Tensor | None) -> Form | None:
    return None if tensor is None else (tensor.dtype, tensor.shape, tensor.stride())


def _check(form: Form | None, size: int) -> None:
    if form is None:
        return
    dtype, shape, strides = form
    found = f"shape {tuple(shape)}, strides {strides}, {dtype}"
    if math.prod(shape) != size:
        # The kernels would read and write what lies behind it.
        raise UnsupportedError(
            f"A tensor of {size} elements has {math.prod(shape)} now ({found}). Make a new parameter and a new "
            f"optimizer instead of resizing one."
        )
    if dtype not in TYPES:
        raise UnsupportedError(f"backend='cuda' cannot read a tensor of {found}. Set backend='torch'.")
    if any(stride == 0 and extent > 1 for extent, stride in zip(shape, strides, strict=True)):
        raise UnsupportedError(f"A gradient or moment overlaps itself ({found}). Make it contiguous().")
    if sum(extent > 1 for extent in shape) > DIMS:
        raise UnsupportedError(f"A tensor has more than {DIMS} dimensions ({found}). Set backend='torch'.")


def _in_one_order(forms: Sequence[Form]) -> bool:
    """Whether the k-th element in memory is the same one of every tensor."""
    places = {tuple(s for n, s in zip(shape, strides, strict=True) if n > 1) for _, shape, strides in forms}
    return len(places) == 1 and all(fills(tuple(shape), strides) for _, shape, strides in forms)


def _layout(forms: Sequence[Form | None]) -> Array:
    """Row-major extents, and the strides of each quantity; 0 where there is none."""
    shape = next(form[1] for form in forms if form is not None)
    kept = [d for d, extent in enumerate(shape) if extent > 1]
    layout = np.zeros((), LAYOUT)
    layout["dims"] = len(kept)
    layout["size"][: len(kept)] = [shape[d] for d in kept]
    for quantity, form in enumerate(forms):
        if form is not None:
            layout["stride"][quantity, : len(kept)] = [form[2][d] for d in kept]
    return layout
