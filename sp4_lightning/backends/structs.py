"""The structs of ``kernels/rules.cuh`` as ctypes has them, for the backends that call compiled code."""

from __future__ import annotations

import ctypes
import math
from ctypes import c_double, c_int64, c_void_p
from typing import Any

from sp4_lightning.arrays import Array
from sp4_lightning.settings import LearnedBound


def pointers(*names: str) -> list[tuple[str, Any]]:
    """Fields that hold addresses."""
    return [(name, c_void_p) for name in names]


def address(array: Array | None) -> int:
    """Where a vector begins in memory, 0 where there is none; the caller keeps it alive."""
    if array is None:
        return 0
    return int(array.data_ptr() if hasattr(array, "data_ptr") else array.ctypes.data)


class _Pointing(ctypes.Structure):
    def point_to(self, owner: object) -> None:
        """Take the addresses of the owner's attributes of the same names."""
        for field in self._fields_:
            setattr(self, field[0], address(getattr(owner, field[0])))


class StatePointers(_Pointing):
    """``State``: of a :class:`~sp4_lightning.state.TensorState`."""

    _fields_ = [
        *pointers("bound", "ratio_sq", "level", "peak", "recent", "budget", "filled"),
        *pointers("seen", "counted", "clamped", "repaired"),
    ]


class HyperPointers(_Pointing):
    """``Hyper``: of a :class:`~sp4_lightning.hyper.Hyper`."""

    _fields_ = pointers(
        *("decay", "weight", "fill_decay", "slack", "tiny", "ratio_decay", "ratio_gain", "ratio_slack_sq"),
        *("step_ratio", "step_const", "step_exp_avg", "step_grad", "l2", "weight_decay"),
    )


class LearnedNumbers(ctypes.Structure):
    """``Learned``: the tracker's settings in observations."""

    _fields_ = [
        *((name, c_double) for name in ("quantile", "headroom", "log_rise", "log_fall", "budget", "refill")),
        *((name, c_int64) for name in ("rank", "arm_after", "window")),
    ]

    @classmethod
    def of(cls, learned: LearnedBound, every: int) -> LearnedNumbers:
        """For one observation in ``every`` updates."""
        return cls(
            quantile=learned.quantile,
            headroom=learned.headroom,
            log_rise=math.log(learned.rise) * every,
            log_fall=math.log(learned.fall) * every,
            budget=learned.budget,
            refill=learned.refill,
            rank=learned.observations(learned.rank, every),
            arm_after=learned.observations(learned.arm_after, every),
            window=learned.observations(learned.window, every),
        )
