"""Mending the tensors that a screen has found, element by element."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sp4_lightning import budget, consistency, derived
from sp4_lightning.arrays import Array, looking_is_free
from sp4_lightning.quantities import EXP_AVG, EXP_AVG_SQ, GRAD, PARAM
from sp4_lightning.step import Step
from sp4_lightning.switch import Phase


def mend(step: Step, limit: Tensor, over: Array) -> None:
    """Mend the moments, the parameters and the gradients, as far as the phase allows.

    Args:
        step: The step; what was beyond its bounds is counted in its state.
        limit: float64 ``[4, T]``.
        over: bool ``[4, T]``, the tensors to mend; a pair of moments is flagged under ``exp_avg``.
    """
    params, grads, _, exp_avg_sq = step.tensors
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
        grad = grads[i]
        if grad is not None:
            saved, filled = torch.as_tensor(step.state.budget[i]), torch.as_tensor(step.state.filled[i])
            most = budget.element_limit(limit[GRAD, i], exp_avg_sq[i], saved, filled)
            beyond = _store(grad, grad.clamp(-most, most).to(grad.dtype), over[GRAD, i], clamps)
            clamped[i] += beyond * (step.phase != Phase.EXACT)


def _marked(flags: Array) -> Sequence[int]:
    """The tensors to mend: the flagged ones where looking is free, all of them elsewhere."""
    return flags.nonzero()[0].tolist() if looking_is_free(flags) else range(len(flags))


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
