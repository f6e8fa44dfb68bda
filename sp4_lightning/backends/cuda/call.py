"""The structs of ``kernels/call.cuh``, field by field."""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int64, c_uint32, c_void_p

import numpy as np

from sp4_lightning.backends.structs import HyperPointers, LearnedNumbers, StatePointers, pointers

CHUNK = 1 << 16
DIMS = 8
GRADS = 384

ROW = np.dtype(
    [
        *((name, np.int64) for name in ("size", "param", "exp_avg", "exp_avg_sq")),
        ("type", np.int32, 4),
        ("layout", np.int32),
        ("group", np.int32),
    ]
)
"""One tensor."""

LAYOUT = np.dtype([("dims", np.int64), ("size", np.int64, DIMS), ("stride", np.int64, (4, DIMS))])
"""Where the elements of a tensor are that are not in one order."""

FOUND = ("looked", "learned", "bad", "any_over", "skip", "executed", "found_inf")
"""What one step's kernels tell each other: four bytes each."""


class ScratchPointers(ctypes.Structure):
    """``Scratch``."""

    _fields_ = [
        *pointers("largest", "limit", "most", "mended", "over", "broken", "present", "bins"),
        *pointers("largest_bound", "observed", "found"),
    ]


class Call(ctypes.Structure):
    """``Call``."""

    _fields_ = [
        *((name, c_int64) for name in ("tensors", "chunks", "groups", "columns")),
        *pointers("rows", "layouts", "chunk"),
        ("state", StatePointers),
        ("hyper", HyperPointers),
        ("learned", LearnedNumbers),
        ("scratch", ScratchPointers),
        *pointers("protects", "started", "eps", "phase", "tally", "table", "column", "vetoed", "lr_each"),
        ("lr", c_double),
        *((name, c_int64) for name in ("learns", "ratio_moves", "moments_known")),
    ]


class Grads(ctypes.Structure):
    """``Grads``."""

    _fields_ = [
        ("first_tensor", c_int64),
        ("first_chunk", c_int64),
        ("grad", c_void_p * GRADS),
        ("edited", c_uint32 * (GRADS // 32)),
    ]
