"""The C++ backend: ``kernels/cpu.cpp`` reads and learns, in one call each; Python mends, which is rare."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_double, c_int64
from typing import ClassVar

import numpy as np
from torch import Tensor

from sp4_lightning.arrays import Array
from sp4_lightning.backends.compiling import cpu_library
from sp4_lightning.backends.pointers import Pointers
from sp4_lightning.backends.screening import ScreeningBackend
from sp4_lightning.backends.structs import HyperPointers, LearnedNumbers, StatePointers, address, pointers
from sp4_lightning.errors import BackendError
from sp4_lightning.histogram import BINS
from sp4_lightning.hyper import Hyper
from sp4_lightning.publication import Publication
from sp4_lightning.quantities import GRAD, QUANTITIES
from sp4_lightning.settings import BackendName
from sp4_lightning.step import Step
from sp4_lightning.switch import Phase


class _Call(ctypes.Structure):
    """Mirrors ``Call`` in ``kernels/cpu.cpp``, where the fields are explained."""

    _fields_ = [
        ("tensors", c_int64),
        *pointers("sizes", "found"),
        ("state", StatePointers),
        ("hyper", HyperPointers),
        ("learned", LearnedNumbers),
        *pointers("largest", "limit", "within", "consistent"),
        ("learns", c_int64),
        *pointers("bins", "acting", "usable", "protects_grad", "lr_each"),
        ("lr", c_double),
        *((name, c_int64) for name in ("ratio_moves", "counts_met", "groups", "columns")),
        *pointers("group", "members", "table"),
    ]


class CppBackend(ScreeningBackend):
    """Compiled code on a CPU.

    Args:
        params: The protected parameters of one optimizer, on a CPU.

    Raises:
        BackendError: The parameters are elsewhere, or the code cannot be compiled here.
    """

    name: ClassVar[BackendName] = "cpp"
    update_every: ClassVar[int] = 8
    """Measured with ``benchmarks/cpu_agent.py``: learning on every update costs half as much again."""

    def __init__(self, params: Sequence[Tensor]) -> None:
        if params[0].device.type != "cpu":
            raise BackendError(
                f"backend='cpp' was asked for, but the parameters are on {params[0].device}. Set backend=None."
            )
        super().__init__(params)
        self._library = cpu_library()
        count = len(params)
        self._sizes = np.array([param.numel() for param in params], dtype=np.int64)
        self._pointers = Pointers(self._sizes.tolist())
        self._largest, self._limit = np.empty((2, len(QUANTITIES), count))
        self._within = np.empty((len(QUANTITIES), count), dtype=np.bool_)
        self._consistent = np.empty(count, dtype=np.bool_)
        self._bins = np.empty((count, BINS), dtype=np.int64)
        self._call = _Call(
            tensors=count,
            sizes=address(self._sizes),
            found=address(self._pointers.table),
            largest=address(self._largest),
            limit=address(self._limit),
            within=address(self._within),
            consistent=address(self._consistent),
            bins=address(self._bins),
        )
        self._raw = address(self._largest[GRAD])
        self._reference = ctypes.byref(self._call)
        self._publication: Publication | None = None
        self._hyper: Hyper | None = None
        # What the call points to, kept alive.
        self._alive: dict[str, Array] = {}

    def screen(self, step: Step, count: bool) -> bool:
        """Read every tensor once, in C++."""
        if step.publication is not self._publication:
            self._bind(step)
        if step.hyper is not self._hyper:
            self._hyper = step.hyper
            self._call.hyper.point_to(step.hyper)
        self._pointers.refresh(step.tensors)
        self._call.learns = count
        step.largest, step.limit = self._largest, self._limit
        step.within, step.consistent = self._within, self._consistent
        return bool(self._library.sp4_screen(self._reference))

    def advance(self, step: Step) -> None:
        """Advance every bound by one update, in C++; a tensor without a usable gradient keeps its bounds."""
        call = self._call
        call.learns = step.learns
        call.counts_met = step.phase != Phase.EXACT
        call.ratio_moves = step.ratio_moves
        if isinstance(step.lr, float):
            call.lr, call.lr_each = step.lr, None
        else:
            call.lr_each = self._keep("lr_each", step.lr)
        if step.clean and step.executed:
            call.acting, call.usable = self._raw, None
        else:
            call.acting = self._keep("acting", step.acting)
            update = np.logical_and(step.usable, step.executed)
            call.usable = self._keep("usable", np.broadcast_to(update, self._consistent.shape))
        self._library.sp4_learn(self._reference)

    def _bind(self, step: Step) -> None:
        """Point to what lives as long as the engine, or until it joins another table."""
        call, publication = self._call, step.publication
        self._publication = publication
        call.state.point_to(step.state)
        call.learned = LearnedNumbers.of(step.learned, step.every)
        call.protects_grad = self._keep("protects_grad", step.protects[GRAD])
        rows = [row.nonzero()[0] for row in publication.members]
        ends = np.cumsum([len(row) for row in rows])
        groups = np.array([ends - [len(row) for row in rows], ends, publication.columns]).T
        call.groups, call.columns = len(rows), publication.table.values.shape[1]
        call.group = self._keep("group", groups)
        call.members = self._keep("members", np.concatenate(rows))
        call.table = publication.table.values.data_ptr()

    def _keep(self, name: str, array: Array) -> int:
        self._alive[name] = np.ascontiguousarray(array)
        return address(self._alive[name])
