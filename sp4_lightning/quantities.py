"""The four tensors an optimizer holds for every parameter, under torch's own names."""

from __future__ import annotations

from typing import Literal

Quantity = Literal["param", "grad", "exp_avg", "exp_avg_sq"]
"""What a bound is for. SGD's ``momentum_buffer`` is listed under ``exp_avg``, RMSprop's ``square_avg`` and
Adagrad's ``sum`` under ``exp_avg_sq``."""

QUANTITIES: tuple[Quantity, ...] = ("param", "grad", "exp_avg", "exp_avg_sq")
PARAM, GRAD, EXP_AVG, EXP_AVG_SQ = range(4)
"""Rows of a matrix with one row per quantity."""
