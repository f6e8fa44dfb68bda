"""The C++ backend: ``kernels/cpu.cpp`` reads and learns, in one call each; Python mends, which is rare."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_double, c_int64, c_void_p
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from sp4_lightning.arrays import Array
from sp4_lightning.backends.base import Backend
from sp4_lightning.backends.compiling import cpu_library
from sp4_lightning.backends.pointers import Pointers
from sp4_lightning.errors import BackendError
from sp4_lightning.histogram import BINS
from sp4_lightning.hyper import Hyper
from sp4_lightning.publication import Publication
from sp4_lightning.quantities import GRAD, QUANTITIES
from sp4_lightning.settings import BackendName
from sp4_lightning.step import Step
from sp4_lightning.switch import Phase


def _pointers(*names: str) -> list[tuple[str, Any]]:
    return [(name, c_void_p) for name in names]


class _State(ctypes.Structure):
    _fields_ = _pointers("bound", "ratio_sq", "level", "peak", "recent", "budget", "filled", "seen", "counted")


class _Hyper(ctypes.Structure):
    _fields_ = _pointers(
        *("decay", "weight", "fill_decay", "slack", "tiny", "ratio_decay", "ratio_gain", "ratio_slack_sq"),
        *("step_ratio", "step_const", "step_exp_avg", "step_grad", "l2", "weight_decay"),
    )


class _Learned(ctypes.Structure):
    _fields_ = [
        *((name, c_double) for name in ("quantile", "headroom", "log_rise", "log_fall", "budget", "refill")),
        *((name, c_int64) for name in ("rank", "arm_after", "window")),
    ]


class _Call(ctypes.Structure):
    """Mirrors ``Call`` in ``kernels/cpu.cpp``, where the fields are explained."""

    _fields_ = [
        ("tensors", c_int64),
        *_pointers("sizes", "found"),
        ("state", _State),
        ("hyper", _Hyper),
        ("learned", _Learned),
        *_pointers("largest", "limit", "within", "consistent"),
        ("learns", c_int64),
        *_pointers("bins", "acting", "usable", "protects_grad", "lr_each"),
        ("lr", c_double),
        *((name, c_int64) for name in ("ratio_moves", "counts_met", "groups", "columns")),
        *_pointers("group", "members", "table"),
    ]


class CppBackend(Backend):
    """Compiled code on a CPU.

    Args:
        params: The protected parameters of one optimizer, on a CPU.

    Raises:
        BackendError: The parameters are elsewhere, or the code cannot be compiled here.
    """

    name: ClassVar[BackendName] = "cpp"
    update_every: ClassVar[int] = 1
    """Measured with ``benchmarks/cpu_agent.py``: learning on every eighth update would save nothing."""

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
            sizes=_address(self._sizes),
            found=_address(self._pointers.table),
            largest=_address(self._largest),
            limit=_address(self._limit),
            within=_address(self._within),
            consistent=_address(self._consistent),
            bins=_address(self._bins),
        )
        self._raw = _address(self._largest[GRAD])
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
            for name, _ in _Hyper._fields_:
                setattr(self._call.hyper, name, _address(getattr(step.hyper, name)))
        self._pointers.refresh(step.tensors)
        self._call.learns = count
        step.largest, step.limit = self._largest, self._limit
        step.within, step.consistent = self._within, self._consistent
        return bool(self._library.sp4_screen(self._reference))

    def learn(self, step: Step) -> None:
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
        call, publication, learned = self._call, step.publication, step.learned
        self._publication = publication
        for name, _ in _State._fields_:
            setattr(call.state, name, _address(getattr(step.state, name)))
        call.learned = _Learned(
            quantile=learned.quantile,
            headroom=learned.headroom,
            log_rise=np.log(learned.rise) * step.every,
            log_fall=np.log(learned.fall) * step.every,
            budget=learned.budget,
            refill=learned.refill,
            rank=learned.observations(learned.rank, step.every),
            arm_after=learned.observations(learned.arm_after, step.every),
            window=len(step.state.recent),
        )
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
        return _address(self._alive[name])


def _address(array: Array | None) -> int:
    return 0 if array is None else int(array.ctypes.data)
