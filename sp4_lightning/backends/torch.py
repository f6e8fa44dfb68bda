"""The torch backend: the readable definition of the protection, on any device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sp4_lightning import budget, derived, histogram, tracker
from sp4_lightning.arrays import Array, looking_is_free, namespace_on, view
from sp4_lightning.backends.reading import Reader
from sp4_lightning.backends.screening import ScreeningBackend
from sp4_lightning.quantities import EXP_AVG, EXP_AVG_SQ, GRAD, PARAM
from sp4_lightning.settings import BackendName
from sp4_lightning.step import Step
from sp4_lightning.switch import Phase

HUGE = 1e150
"""Stands for a gradient without a bound: beyond float32, and its square is still a float64."""


class TorchBackend(ScreeningBackend):
    """Plain torch operations, on any device.

    Args:
        params: The protected parameters of one optimizer.
    """

    name: ClassVar[BackendName] = "torch"
    update_every: ClassVar[int] = 8
    """Measured with ``benchmarks/cpu_agent.py``: learning on every update would double the cost of a small agent."""

    def __init__(self, params: Sequence[Tensor]) -> None:
        super().__init__(params)
        self._xp = namespace_on(params[0].device)
        self._reader = Reader(params)
        self._sizes = view(torch.tensor([param.numel() for param in params], device=params[0].device))
        self._counts = torch.empty(0)

    @torch.no_grad()
    @np.errstate(all="ignore")
    def screen(self, step: Step, count: bool) -> bool:
        """Read every tensor once, with torch or NumPy operations."""
        step.largest, excess, counts = self._reader.read(step.tensors, step.ratio_limit_sq, count)
        if counts is not None:
            self._counts = counts
        step.limit = step.state.bound * step.hyper.slack + step.hyper.tiny
        # Strictly below, so that an infinite element is found under a bound of +inf too.
        step.within = step.largest < step.limit
        step.consistent = excess <= 0
        if step.present is not None or not looking_is_free(step.within):
            return False
        return bool(step.within.all() and step.consistent.all())

    @np.errstate(all="ignore")
    def advance(self, step: Step) -> None:
        """Advance every bound by one update; a tensor without a usable gradient keeps its bounds."""
        state, hyper, bound = step.state, step.hyper, step.state.bound
        update = None if step.clean and step.executed else step.usable & step.executed
        raw, grad = step.largest[GRAD], step.acting
        if hyper.l2 is not None:
            grad = grad + hyper.l2 * step.largest[PARAM]
            # An observed NaN parameter makes a gradient of any size.
            grad = self._xp.where(grad < HUGE, grad, HUGE)
        exp_avg = hyper.decay[0] * bound[EXP_AVG] + hyper.weight[0] * grad
        exp_avg_sq = hyper.decay[1] * bound[EXP_AVG_SQ] + hyper.weight[1] * grad * grad
        if step.ratio_moves:
            self._assign(state.ratio_sq, hyper.ratio_decay * state.ratio_sq + hyper.ratio_gain, update)
            step.reach = hyper.reach(state.ratio_sq)
        self._assign(bound[PARAM], self._reached(step, grad, exp_avg), update)
        self._assign(bound[EXP_AVG], exp_avg, update)
        self._assign(bound[EXP_AVG_SQ], exp_avg_sq, update)
        beyond = raw >= step.limit[GRAD]
        self._assign(state.budget, budget.next_budget(state.budget, beyond, step.learned), update)
        self._assign(state.filled, hyper.fill_decay * state.filled + hyper.weight[1], update)
        met = self._sizes * self._xp.isfinite(bound[GRAD]) * (step.phase != Phase.EXACT)
        self._assign(state.counted, state.counted + met, update)
        self._assign(state.peak, self._xp.maximum(raw, state.peak), update)
        if step.learns:
            q = histogram.quantile(view(self._counts), step.learned.quantile, raw)
            valid = q > 0 if update is None else update & (q > 0)
            tracker.observe(state, q, valid, step.learned, step.every)
            bound[GRAD] = self._xp.where(step.protects[GRAD], tracker.bound(state, step.learned, step.every), math.inf)
            step.publication.publish()

    def _assign(self, target: Array, value: Array, where: Array | None) -> None:
        target[...] = value if where is None else self._xp.where(where, value, target)

    def _reached(self, step: Step, grad: Array, exp_avg: Array) -> Array:
        """The largest magnitude that an update can leave in a parameter; +inf where that has no bound."""
        hyper, most = step.hyper, step.reach
        if hyper.linear_step:
            # Where there is no exp_avg its bound is +inf, which 0 does not cancel.
            most = most + self._xp.where(hyper.step_exp_avg > 0, hyper.step_exp_avg * exp_avg, 0.0)
            most = most + hyper.step_grad * grad
        start = step.largest[PARAM] * hyper.slack[PARAM]
        if hyper.weight_decay is not None:
            start = start * self._xp.clip(abs(1 - step.lr * hyper.weight_decay), 1.0, None)
        # Float rounding of the step itself is far below the slack of the derived bounds.
        reached = start + step.lr * (1 + derived.SLACK) * most
        # Neither an observed NaN nor a learning rate of zero times a step without a bound is a bound.
        return self._xp.where(reached >= 0, reached, math.inf)
