"""The torch backend: the readable definition of the protection, and what CPU users run.

Every rule is first *screened* with one number per tensor and then *mended* element by element. On a CPU only the
tensors that a screen names are mended. On other devices looking at the screen would wait for the device, so all
are; an element within its bounds keeps its bits either way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sp4_lightning import consistency, derived, histogram, tracker
from sp4_lightning.arrays import Array, namespace_on, view
from sp4_lightning.backends.reading import Reader
from sp4_lightning.quantities import EXP_AVG, EXP_AVG_SQ, GRAD, PARAM
from sp4_lightning.settings import BackendName
from sp4_lightning.step import Step
from sp4_lightning.switch import Phase

HUGE = 1e150
"""Stands for a gradient without a bound: beyond float32, and its square is still a float64."""


class TorchBackend:
    """Plain torch operations, on any device.

    Args:
        params: The protected parameters of one optimizer.
    """

    name: BackendName = "torch"
    update_every = 8
    """Measured with ``benchmarks/cpu_agent.py``: learning on every update would double the cost of a small agent."""

    def __init__(self, params: Sequence[Tensor]) -> None:
        self._xp = namespace_on(params[0].device)
        self._reader = Reader(params)

    def protect(self, step: Step) -> None:
        """Read every tensor once, decide on the skip, mend the moments and parameters, clamp the gradients."""
        xp = self._xp
        step.largest, step.excess, step.counts = self._reader.read(step.tensors, step.ratio_limit_sq, step.learns)
        if step.edited is not None:
            # What somebody else has written is taken as it is, until the next update bounds it again.
            step.state.bound[PARAM] = xp.where(step.edited, math.inf, step.state.bound[PARAM])
        limit = step.state.bound * step.hyper.slack + step.hyper.tiny
        # Strictly below, so that an infinite element is found under a bound of +inf too.
        within = step.largest < limit
        consistent = step.excess <= 0
        step.clean = step.present is None and _looking_is_free(within) and bool(within.all() and consistent.all())
        if step.clean:
            step.usable, step.skip, step.acting = True, False, step.largest[GRAD]
        else:
            self._protect_closely(step, limit, within, consistent)
        if not step.moments_known:
            self._start_moment_bounds(step)

    def _protect_closely(self, step: Step, limit: Array, within: Array, consistent: Array) -> None:
        xp, raw = self._xp, step.largest[GRAD]
        finite = xp.isfinite(raw)
        step.usable = finite if step.present is None else step.present & finite
        step.skip = (step.protects[GRAD] & ~finite).any()
        over = ~within & step.protects
        over[EXP_AVG] = ~(within[EXP_AVG] & within[EXP_AVG_SQ] & consistent) & step.protects[EXP_AVG]
        # A skipped step's gradients are left as they are: no update sees them.
        over[GRAD] &= step.usable & ~step.skip
        # What the update sees, and so what the derived bounds follow.
        learned = xp.asarray(step.phase == Phase.LEARNED)
        step.acting = xp.where(learned, xp.minimum(raw, limit[GRAD]), raw)
        if not _looking_is_free(over) or over.any():
            self._mend(step, torch.as_tensor(limit), over)
            mended, _, _ = self._reader.read(step.tensors, step.ratio_limit_sq, count=False)
            # What is learned is the raw gradient; moments and parameters count as they enter the update.
            mended[GRAD] = raw
            step.largest = mended

    def _start_moment_bounds(self, step: Step) -> None:
        """Start bounds that have no history from the optimizer's state as it is now (zero if it has none)."""
        xp, bound = self._xp, step.state.bound[EXP_AVG:]
        # An exp_avg_sq that is negative everywhere, which only damage makes, starts at zero.
        largest = xp.clip(xp.nan_to_num(step.largest[EXP_AVG:], nan=math.inf, posinf=math.inf), 0, math.inf)
        bound[...] = xp.where(xp.isinf(bound) & step.hyper.started, largest, bound)

    def _mend(self, step: Step, limit: Tensor, over: Array) -> None:
        params, grads, _, _ = step.tensors
        repaired, clamped = step.state.repaired, step.state.clamped
        repairs, clamps = step.phase > Phase.OBSERVE, step.phase == Phase.LEARNED
        for i in _marked(over[EXP_AVG]):
            repaired[i] += _mend_moments(step, i, limit[:, i], over[EXP_AVG, i], repairs)
        for i in _marked(over[PARAM]):
            param, most = params[i], limit[PARAM, i]
            if param is not None:
                mended = torch.where(param.isfinite(), param, 0).clamp(-most, most)
                repaired[i] += _store(param, mended, over[PARAM, i], repairs)
        for i in _marked(over[GRAD]):
            grad, most = grads[i], limit[GRAD, i]
            if grad is not None:
                beyond = _store(grad, grad.clamp(-most, most), over[GRAD, i], clamps)
                clamped[i] += beyond * (step.phase != Phase.EXACT)

    def learn(self, step: Step) -> None:
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
        self._assign(state.counted, state.counted + step.met * (step.phase != Phase.EXACT), update)
        self._assign(state.peak, self._xp.maximum(raw, state.peak), update)
        if step.counts is not None:
            q = histogram.quantile(view(step.counts), step.learned.quantile, raw)
            valid = q > 0 if update is None else update & (q > 0)
            tracker.observe(state, q, valid, step.learned, step.every)
            bound[GRAD] = self._xp.where(step.protects[GRAD], tracker.bound(state, step.learned, step.every), math.inf)

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


def _looking_is_free(flags: Array) -> bool:
    return isinstance(flags, np.ndarray)


def _marked(flags: Array) -> Sequence[int]:
    """The tensors to mend: the flagged ones where looking is free, all of them elsewhere."""
    return flags.nonzero()[0].tolist() if _looking_is_free(flags) else range(len(flags))


def _store(tensor: Tensor, mended: Tensor, over: Array, write: Array) -> Tensor:
    """Mend a tensor that the screen has found (``over``), if at all (``write``); returns how many elements differ."""
    changed = (mended != tensor).sum() * torch.as_tensor(over)
    if tensor.device.type != "cpu":
        tensor.copy_(torch.where(write & over, mended, tensor))
    elif write and over:
        tensor.copy_(mended)
    return changed


def _mend_moments(step: Step, i: int, limit: Tensor, over: Array, write: Array) -> Tensor:
    """Mend one tensor's moments in this order: dead elements, exp_avg_sq with its pair, ratio, exp_avg."""
    _, _, exp_avg, exp_avg_sq = step.tensors
    m, v = exp_avg[i], exp_avg_sq[i]
    changed = torch.zeros((), dtype=torch.int64, device=limit.device)
    dead = torch.zeros((), dtype=torch.bool, device=limit.device)
    if m is not None:
        dead = dead | ~m.isfinite()
    if v is not None:
        dead = dead | ~v.isfinite() | (v < 0)
    new_m = None if m is None else torch.where(dead, 0, m)
    if v is not None:
        new_m, new_v = derived.cap_pair(new_m, torch.where(dead, 0, v), limit[EXP_AVG_SQ])
        changed = changed + _store(v, new_v, over, write)
        if new_m is not None and step.hyper.consistent[i]:
            new_m = consistency.repair(new_m, new_v, torch.as_tensor(step.ratio_limit_sq[i]).sqrt(), step.hyper.eps[i])
    if m is not None and new_m is not None:
        changed = changed + _store(m, new_m.clamp(-limit[EXP_AVG], limit[EXP_AVG]), over, write)
    return changed
