"""What came of a run: one function a figure, one number per stream."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks.synthetic.adam import BETA2, LR
from benchmarks.synthetic.streams import WARM

Array = np.ndarray[Any, Any]
CALM = 20
"""Updates in a row without a clamp after which a change counts as followed."""
RECOVERED = 100
"""Stalled updates that a fault may cost: "recovery in under 100 steps" (issue "Evidence")."""


def triggered(beyond: Array) -> float:
    """Share of the judged updates in which any element is clamped; ``beyond`` is ``[updates]``."""
    return float((beyond[WARM:] > 0).mean())


def clamped(beyond: Array, elements: int) -> float:
    """Share of the judged updates' elements that are clamped; ``beyond`` counts them, ``[updates]``."""
    return float(beyond[WARM:].mean() / elements)


def stalled(left: Array, usual: Array) -> Array:
    """Updates per element during which Adam's effective rate stays below half of the usual one.

    After a fault ``exp_avg_sq`` is ``usual + excess * BETA2**k`` at k updates from its end, on average exactly; the
    rate is below half while that exceeds ``4 * usual``.

    Args:
        left: ``exp_avg_sq`` as the fault left it.
        usual: The mean square of healthy gradients.
    """
    usual = np.maximum(usual, np.finfo(float).tiny)
    return np.log(np.maximum((left - usual) / (3 * usual), 1.0)) / -math.log(BETA2)


def stall(left: Array, usual: Array, touched: Array) -> float:
    """Updates until nine in ten of the touched elements are at half their usual rate again."""
    return float(np.quantile(stalled(left, usual)[touched], 0.9, method="higher"))


def lost(left: Array, usual: Array, touched: Array) -> float:
    """Updates' worth of movement that a fault costs the median of the touched elements.

    The sum of ``1 - rate / usual rate`` over all updates behind it, with the decay of :func:`stalled`, as an integral.
    Unlike a count of stalled updates it has no threshold under which a rule could hide.
    """
    factor = np.maximum(left / np.maximum(usual, np.finfo(float).tiny), 1.0)[touched]
    return float(np.median(2 * np.log((1 + np.sqrt(factor)) / 2) / -math.log(BETA2)))


def displacement(weights: Array, undisturbed: Array) -> float:
    """Mean distance from where plain Adam would be without the fault, in learning rates."""
    return float(abs(weights - undisturbed).mean() / LR)


def inflation(bound: Array, start: int) -> float:
    """Largest factor by which a fault from ``start`` on raises the bound; NaN where there is none."""
    return float(bound[start:].max() / bound[start]) if math.isfinite(bound[start]) else math.nan


def until_admitted(beyond: Array, start: int) -> float:
    """Updates from a change to the first of 20 in a row without a clamp; infinite if it does not come."""
    calm = np.convolve(beyond[start:] == 0, np.ones(CALM), "valid") == CALM
    return float(calm.argmax()) if calm.any() else math.inf


def until_tight(bound: Array, start: int, factor: float) -> float:
    """Updates from a change down until the bound is within 2 of where it belongs; infinite if it never is."""
    tight = bound[start:] <= 2 * factor * np.median(bound[WARM:start])
    return float(tight.argmax()) if tight.any() and math.isfinite(bound[start]) else math.inf


def blocked(hurt: Array) -> int:
    """Longest burst that does no harm, where ``hurt[k - 1]`` says whether one of k updates does.

    A burst and a change are the same history until the burst ends, so one run with a change has them all.
    """
    return int(hurt.argmax()) if hurt.any() else len(hurt)


def until_learned(weights: Array, start: int, goal: float) -> float:
    """Updates from ``start`` until a task's mean weight is within a tenth of its goal; infinite if it never is."""
    there = abs(weights[start:] - goal) <= 0.1 * abs(goal)
    return float(there.argmax()) if there.any() else math.inf


def learned(weights: Array, goal: float) -> float:
    """Mean weight of the last 200 updates over where it belongs."""
    return float(weights[-200:].mean() / goal)
