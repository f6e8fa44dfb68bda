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
        self._objects: list[Tensor | None] = []
        self._where: list[int] = []
        self._copies: list[Tensor] = []
        self._plain = False

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
        known = self._plain and where == self._where and all(map(is_, kept, self._objects))
        self._copies.clear()
        if not known:
            self._objects, self._where = kept, where
            self._plain = True
            self._enter_others(params, exp_avg, exp_avg_sq)
        self._enter_grads(grads, params)

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
        for i, grad in enumerate(grads):
            self._enter(GRAD, i, None if grad is None else self._flat(grad))

    def _enter_others(self, params: Found, exp_avg: Found, exp_avg_sq: Found) -> None:
        for i, param in enumerate(params):
            if param is not None and param.numel() != self._sizes[i]:
                # Whoever reads flat would read what lies behind it.
                raise UnsupportedError(
                    f"A parameter of {self._sizes[i]} elements has {param.numel()} now (shape {tuple(param.shape)}). "
                    f"Make a new parameter and a new optimizer instead of resizing one."
                )
            self._enter(PARAM, i, None if param is None else self._flat(param))
            pair = exp_avg[i], exp_avg_sq[i]
            for quantity, moment in zip((EXP_AVG, EXP_AVG_SQ), self._alike(*pair), strict=True):
                self._enter(quantity, i, None if moment is None else self._flat(moment))

    def _alike(self, m: Tensor | None, v: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """The pair in one order of elements and one type, copied where need be."""
        if m is None or v is None or (m.stride() == v.stride() and m.dtype == v.dtype):
            return m, v
        wide = torch.promote_types(torch.promote_types(m.dtype, v.dtype), torch.float32)
        copies = [m.to(wide).contiguous(), v.to(wide).contiguous()]
        self._copies += copies
        self._plain = False
        return copies[0], copies[1]

    def _enter(self, quantity: int, i: int, tensor: Tensor | None) -> None:
        self.table[quantity, i] = (0, 0) if tensor is None else (tensor.data_ptr(), TYPES.index(tensor.dtype))

    def _flat(self, tensor: Tensor) -> Tensor:
        if tensor.dtype in TYPES and is_dense(tensor):
            return tensor
        copied = (tensor if tensor.dtype in TYPES else tensor.float()).contiguous()
        self._copies.append(copied)
        self._plain = False
        return copied
