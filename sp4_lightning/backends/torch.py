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
from sp4_lightning.arrays import Array, namespace, view
from sp4_lightning.backends.reading import Reader
from sp4_lightning.quantities import EXP_AVG, EXP_AVG_SQ, GRAD, PARAM
from sp4_lightning.settings import BackendName
from sp4_lightning.step import Step
from sp4_lightning.switch import Phase

LARGEST = torch.finfo(torch.float64).max
"""Stands for a bound of +inf in a comparison that must still find an infinite element."""


class TorchBackend:
    """Plain torch operations, on any device.

    Args:
        params: The protected parameters of one optimizer.
    """

    name: BackendName = "torch"
    update_every = 4

    def __init__(self, params: Sequence[Tensor]) -> None:
        self._xp = namespace(params[0].device)
        self._reader = Reader(params)

    def inspect(self, step: Step) -> None:
        """Read every tensor once: largest magnitudes, the skip flag and, on learning steps, the histograms."""
        found = self._reader.read(step.tensors, step.ratio_limit_sq, step.learns)
        step.largest, step.excess, step.counts = found
        finite = self._xp.isfinite(step.largest[GRAD])
        step.usable = step.present & finite
        step.skip = (step.protects[GRAD] & ~finite).any()

    def protect(self, step: Step) -> None:
        """Mend the moments, then the parameters, then clamp the gradients."""
        xp = self._xp
        limit = xp.clip(view(step.state.bound) * step.hyper.slack, 0, LARGEST)
        if step.edited is not None:
            limit[PARAM] = xp.where(step.edited, LARGEST, limit[PARAM])
        within = step.largest <= limit
        consistent = step.excess <= 0
        if not (_looking_is_free(step) and within.all() and consistent.all()):
            over = ~within & step.protects
            over[EXP_AVG] = ~(within[EXP_AVG] & within[EXP_AVG_SQ] & consistent) & step.protects[EXP_AVG]
            # A skipped step's gradients are left as they are: no update sees them.
            over[GRAD] &= step.usable & ~step.skip
            self._mend(step, torch.as_tensor(limit), over)
        if not step.moments_known:
            self._start_moment_bounds(step)

    def _start_moment_bounds(self, step: Step) -> None:
        """Start bounds that have no history from the optimizer's state as it is now (zero if it has none)."""
        xp, bound = self._xp, view(step.state.bound)[EXP_AVG:]
        largest = xp.nan_to_num(step.largest[EXP_AVG:], nan=math.inf, posinf=math.inf)
        bound[...] = xp.where(xp.isinf(bound) & step.hyper.started, largest, bound)

    def _mend(self, step: Step, limit: Tensor, over: Array) -> None:
        params, grads, _, _ = step.tensors
        repaired, clamped = step.state.repaired, step.state.clamped
        repairs, clamps = step.phase > Phase.OBSERVE, step.phase == Phase.LEARNED
        for i in _marked(over[EXP_AVG]):
            repaired[i] += _mend_moments(step, i, limit[EXP_AVG, i], limit[EXP_AVG_SQ, i], repairs)
        for i in _marked(over[PARAM]):
            param, most = params[i], limit[PARAM, i]
            if param is not None:
                mended = torch.where(param.isfinite(), param, 0).clamp(-most, most)
                repaired[i] += _store(param, mended, repairs)
        for i in _marked(over[GRAD]):
            grad, most = grads[i], limit[GRAD, i]
            if grad is not None:
                clamped[i] += _store(grad, grad.clamp(-most, most), clamps)
        mended_largest, _, _ = self._reader.read(step.tensors, step.ratio_limit_sq, count=False)
        # What is learned is the raw gradient; moments and parameters count as they enter the update.
        mended_largest[GRAD] = step.largest[GRAD]
        step.largest = mended_largest

    def learn(self, step: Step) -> None:
        """Advance every bound by one update; a tensor without a usable gradient keeps its bounds."""
        xp, state, hyper = self._xp, step.state, step.hyper
        bound, ratio_sq, peak, counted = map(view, (state.bound, state.ratio_sq, state.peak, state.counted))
        update = step.usable & step.executed
        raw = step.largest[GRAD]
        # The bounds follow the gradients that the update has seen.
        grad = xp.where(step.phase == Phase.LEARNED, xp.minimum(raw, bound[GRAD]), raw)
        if hyper.l2 is not None:
            grad = grad + hyper.l2 * step.largest[PARAM]
        if step.ratio_moves:
            ratio_sq[...] = xp.where(update, hyper.ratio_decay * ratio_sq + hyper.ratio_gain, ratio_sq)
        new = xp.empty_like(bound)
        new[GRAD] = bound[GRAD]
        new[EXP_AVG:] = hyper.decay * bound[EXP_AVG:]
        new[EXP_AVG] += hyper.weight[0] * grad
        new[EXP_AVG_SQ] += hyper.weight[1] * grad * grad
        in_ratio, const, growth = hyper.moved
        moved = in_ratio * xp.sqrt(ratio_sq * hyper.ratio_slack_sq) + const
        if hyper.linear_step:
            linear = hyper.step_exp_avg * new[EXP_AVG] + hyper.step_grad * grad
            moved = moved + hyper.lr * xp.where(hyper.bounded_step, linear, 0.0)
        new[PARAM] = growth * step.largest[PARAM] + moved
        # A learning rate of zero times a step without a bound, or an observed NaN.
        new[PARAM] = xp.where(new[PARAM] >= 0, new[PARAM], math.inf)
        bound[...] = xp.where(update, new, bound)
        counted += step.met * update
        peak[...] = xp.where(update, xp.maximum(raw, peak), peak)
        if step.counts is not None:
            q = histogram.quantile(view(step.counts), step.learned.quantile, raw)
            tracker.observe(state, q, update & (q > 0), step.learned, step.every)
            bound[GRAD] = xp.where(step.protects[GRAD], tracker.bound(state, step.learned), math.inf)


def _looking_is_free(step: Step) -> bool:
    return step.state.bound.device.type == "cpu"


def _marked(flags: Array) -> Sequence[int]:
    """The tensors to mend: the flagged ones where looking is free, all of them elsewhere."""
    return flags.nonzero()[0].tolist() if isinstance(flags, np.ndarray) else range(len(flags))


def _store(tensor: Tensor, mended: Tensor, write: Array) -> Tensor:
    """Write the mended elements back where ``write`` is set; returns how many differ."""
    changed = (mended != tensor).sum()
    if tensor.device.type != "cpu":
        tensor.copy_(torch.where(write, mended, tensor))
    elif write:
        tensor.copy_(mended)
    return changed


def _mend_moments(step: Step, i: int, first_limit: Tensor, second_limit: Tensor, write: Array) -> Tensor:
    """Mend one tensor's moments in this order: dead elements, exp_avg_sq with its pair, ratio, exp_avg."""
    _, _, exp_avg, exp_avg_sq = step.tensors
    m, v = exp_avg[i], exp_avg_sq[i]
    changed = torch.zeros((), dtype=torch.int64, device=first_limit.device)
    dead = torch.zeros((), dtype=torch.bool, device=first_limit.device)
    if m is not None:
        dead = dead | ~m.isfinite()
    if v is not None:
        dead = dead | ~v.isfinite() | (v < 0)
    new_m = None if m is None else torch.where(dead, 0, m)
    if v is not None:
        new_m, new_v = derived.cap_pair(new_m, torch.where(dead, 0, v), second_limit)
        changed = changed + _store(v, new_v, write)
        if new_m is not None and step.hyper.consistent[i]:
            new_m = consistency.repair(new_m, new_v, torch.as_tensor(step.ratio_limit_sq[i]).sqrt(), step.hyper.eps[i])
    if m is not None and new_m is not None:
        changed = changed + _store(m, new_m.clamp(-first_limit, first_limit), write)
    return changed
