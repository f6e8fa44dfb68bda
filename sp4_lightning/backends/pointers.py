"""Where an optimizer's tensors are in memory, for code that reads them flat."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_

import numpy as np
import torch
from torch import Tensor

from sp4_lightning.admission import is_dense
from sp4_lightning.errors import UnsupportedError
from sp4_lightning.held import Found
from sp4_lightning.quantities import EXP_AVG, EXP_AVG_SQ, GRAD, PARAM, QUANTITIES

TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""In the order of ``Type`` in ``kernels/cpu.cpp``."""


class Pointers:
    """The table of addresses and types of T tensors of each quantity.

    A tensor that fills its memory, in whatever order of dimensions, is read where it is: maxima and counts do not
    depend on order. Others, and pairs of moments in different orders, are copied at every step.

    Args:
        sizes: Their numbers of elements.

    Attributes:
        table: int64 ``[4, T, 2]``: address (0: there is no tensor) and index in ``TYPES``.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self.table = np.zeros((len(QUANTITIES), len(sizes), 2), dtype=np.int64)
        self._kept: list[Tensor | None] = []
        self._where: list[int] = []
        # Copies of what stays where it is, and what they are copies of; and this step's copies of gradients.
        self._copies: list[Tensor] = []
        self._originals: list[Tensor] = []
        self._grads: list[Tensor] = []

    def refresh(self, tensors: Sequence[Found]) -> None:
        """Find out where everything is now.

        Args:
            tensors: param, grad, exp_avg, exp_avg_sq per tensor.

        Raises:
            UnsupportedError: A parameter has another number of elements than before.
        """
        params, grads, exp_avg, exp_avg_sq = tensors
        kept = [*params, *exp_avg, *exp_avg_sq]
        where = [0 if tensor is None else tensor.data_ptr() for tensor in kept]
        # The same objects at the same addresses: torch never changes the type or strides of such a tensor.
        if where != self._where or not all(map(is_, kept, self._kept)):
            self._where = []  # until all of it is entered
            self._copies, self._originals = [], []
            self._enter_kept(params, exp_avg, exp_avg_sq)
            self._kept, self._where = kept, where
        if self._copies:
            torch._foreach_copy_(self._copies, self._originals)
        self._enter_grads(grads, params)

    def _enter_kept(self, params: Found, exp_avg: Found, exp_avg_sq: Found) -> None:
        for i, (param, m, v) in enumerate(zip(params, exp_avg, exp_avg_sq, strict=True)):
            if param is not None and param.numel() != self._sizes[i]:
                # Whoever reads flat would read what lies behind it.
                raise UnsupportedError(
                    f"A parameter of {self._sizes[i]} elements has {param.numel()} now (shape {tuple(param.shape)}). "
                    f"Make a new parameter and a new optimizer instead of resizing one."
                )
            # A pair is compared element by element: in one order and one type.
            pair = [moment for moment in (m, v) if moment is not None]
            alike = len({(moment.stride(), moment.dtype) for moment in pair}) < 2
            dtype = None if alike else torch.promote_types(*(moment.dtype for moment in pair))
            self._enter(PARAM, i, self._flat(param))
            self._enter(EXP_AVG, i, self._flat(m, dtype))
            self._enter(EXP_AVG_SQ, i, self._flat(v, dtype))

    def _enter_grads(self, grads: Found, params: Found) -> None:
        # Nearly always all are contiguous and of their parameters' types, and need no look at each.
        plain = [
            grad.data_ptr()
            for grad, param in zip(grads, params, strict=True)
            if grad is not None and param is not None and grad.dtype is param.dtype and grad.is_contiguous()
        ]
        if len(plain) == len(grads):
            self.table[GRAD, :, 0] = plain
            self.table[GRAD, :, 1] = self.table[PARAM, :, 1]
            return
        self._grads = [_readable(grad) for grad in grads if grad is not None]
        found = iter(self._grads)
        for i, grad in enumerate(grads):
            self._enter(GRAD, i, None if grad is None else next(found))

    def _enter(self, quantity: int, i: int, tensor: Tensor | None) -> None:
        self.table[quantity, i] = (0, 0) if tensor is None else (tensor.data_ptr(), TYPES.index(tensor.dtype))

    def _flat(self, tensor: Tensor | None, dtype: torch.dtype | None = None) -> Tensor | None:
        """The tensor, or a copy in row-major order and of a given type that every refresh brings up to date."""
        if tensor is None or (dtype is None and _is_readable(tensor)):
            return tensor
        dtype = dtype or tensor.dtype
        copied = torch.empty(tensor.shape, dtype=dtype if dtype in TYPES else torch.float32)
        self._copies.append(copied)
        self._originals.append(tensor.detach())
        return copied


def _is_readable(tensor: Tensor) -> bool:
    return tensor.dtype in TYPES and is_dense(tensor)


def _readable(tensor: Tensor) -> Tensor:
    if _is_readable(tensor):
        return tensor
    return tensor.to(tensor.dtype if tensor.dtype in TYPES else torch.float32).contiguous()
