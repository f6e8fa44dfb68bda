"""Hyperparameters and the constants of the exact rules, as one vector per constant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sp4_lightning import consistency, derived
from sp4_lightning.arrays import Array, namespace, view
from sp4_lightning.dynamics import Dynamics

TINY = 1e-300
"""Stands for a decay of zero."""


@dataclass(frozen=True)
class Hyper:
    """float64 vectors with one element per protected tensor (T of them), unless said otherwise."""

    started: Array
    """bool ``[2, T]``: exp_avg, exp_avg_sq have a recursion, whose bound starts from the optimizer's state."""
    decay: Array
    """``[2, T]``: of exp_avg and exp_avg_sq; 1 where there is no recursion, which keeps a bound of +inf."""
    weight: Array
    """``[2, T]``: of the gradient and of its square; 0 where there is no recursion."""
    slack: Array
    """``[4, T]``: factor between a bound and the limit that is enforced."""
    consistent: tuple[bool, ...]
    """On the host: exp_avg and exp_avg_sq obey Cauchy-Schwarz."""
    ratio_start: Array
    """c² for these betas."""
    ratio_decay: Array
    ratio_gain: Array
    ratio_slack_sq: Array
    eps: tuple[float, ...]
    """On the host."""
    l2: Array | None
    """Weight decay that enters the gradient; None: nowhere."""
    bounded_step: Array
    """bool: the step is bounded; the four step constants are in learning rates."""
    step_ratio: Array
    step_const: Array
    step_exp_avg: Array
    step_grad: Array
    linear_step: bool
    """On the host: step_exp_avg or step_grad is not zero somewhere."""
    weight_decay: Array
    """Decoupled weight decay."""
    moved: Array
    """``[3, T]``: step_ratio, step_const, growth of ``|param|`` by decay and rounding, at this learning rate."""
    lr: Array

    def limit_ratio(self, ratio_sq: Array) -> Array:
        """c² with its slack, +inf where exp_avg and exp_avg_sq need not be consistent."""
        xp = np if isinstance(ratio_sq, np.ndarray) else torch
        return xp.where(self.ratio_gain > 0, ratio_sq * self.ratio_slack_sq, math.inf)


def build(dynamics: Sequence[Dynamics], dtypes: Sequence[torch.dtype], device: torch.device) -> Hyper:
    """Collect the constants, all but those that depend on the learning rate.

    Args:
        dynamics: Per tensor, what its optimizer does.
        dtypes: Per tensor, what its moments are stored in.
        device: Where the vectors go.
    """

    def vector(values: Sequence[object], dtype: torch.dtype = torch.float64) -> Array:
        return view(torch.tensor(values, dtype=dtype, device=device))

    recursions = [[d.exp_avg for d in dynamics], [d.exp_avg_sq for d in dynamics]]
    decays, weights, slacks = [], [], []
    for row in recursions:
        rounded = [derived.rounding(r[0] if r else 1.0, dtype) for r, dtype in zip(row, dtypes, strict=True)]
        # A decay of exactly 0 would turn a bound of +inf into NaN.
        decays.append([max(decay, TINY) if r else 1.0 for (decay, _), r in zip(rounded, row, strict=True)])
        weights.append([r[1] if r else 0.0 for r in row])
        slacks.append([1 + slack for _, slack in rounded])
    exact = [1.0] * len(dynamics)
    has_ratio = tuple(d.consistent and dtype in consistency.SLACK for d, dtype in zip(dynamics, dtypes, strict=True))
    betas = [(d.exp_avg[0], d.exp_avg_sq[0]) if d.exp_avg and d.exp_avg_sq else (0.0, 0.0) for d in dynamics]
    ratio = [consistency.rates(*pair) if has else (1.0, 0.0) for pair, has in zip(betas, has_ratio, strict=True)]
    unset = vector([0.0] * len(dynamics))
    return Hyper(
        started=vector([[r is not None for r in row] for row in recursions], torch.bool),
        decay=vector(decays),
        weight=vector(weights),
        slack=vector([[1 + 4 * torch.finfo(dtype).eps for dtype in dtypes], exact, *slacks]),
        consistent=has_ratio,
        ratio_start=vector(
            [_ratio_start(d, pair, has) for d, pair, has in zip(dynamics, betas, has_ratio, strict=True)]
        ),
        ratio_decay=vector([max(decay, TINY) for decay, _ in ratio]),
        ratio_gain=vector([gain for _, gain in ratio]),
        ratio_slack_sq=vector([(1 + consistency.SLACK.get(dtype, 0.0)) ** 2 for dtype in dtypes]),
        eps=tuple(d.eps for d in dynamics),
        l2=vector([d.l2 for d in dynamics]) if any(d.l2 for d in dynamics) else None,
        bounded_step=vector([d.bounded_step for d in dynamics], torch.bool),
        step_ratio=vector([d.step_ratio for d in dynamics]),
        step_const=vector([d.step_const for d in dynamics]),
        step_exp_avg=vector([d.step_exp_avg for d in dynamics]),
        step_grad=vector([d.step_grad for d in dynamics]),
        linear_step=any(d.step_exp_avg or d.step_grad for d in dynamics),
        weight_decay=vector([d.decay for d in dynamics]),
        moved=unset,
        lr=unset,
    )


def _with_lr(hyper: Hyper, rates: Sequence[float | Tensor], device: torch.device) -> Hyper:
    """The same constants with this step's learning rates, one per tensor; a schedule changes nothing else."""
    xp = namespace(device)
    if any(isinstance(rate, Tensor) for rate in rates):
        each = [torch.as_tensor(rate, dtype=torch.float64).to(device).reshape(()) for rate in rates]
        lr = view(torch.stack(each))
    else:
        lr = view(torch.tensor(rates, dtype=torch.float64, device=device))
    # Float rounding of the step itself is far below the slack of the derived bounds.
    lr = lr * (1 + derived.SLACK)
    const = xp.where(hyper.bounded_step, lr * hyper.step_const, math.inf)
    growth = xp.clip(abs(1 - lr * hyper.weight_decay), 1.0, math.inf)
    return replace(hyper, lr=lr, moved=xp.stack([lr * hyper.step_ratio, const, growth]))


def _ratio_start(dynamics: Dynamics, betas: tuple[float, float], has_ratio: bool) -> float:
    if has_ratio:
        return consistency.constant_sq(*betas)
    # Without the ratio a step that depends on it has no bound.
    return math.inf if dynamics.step_ratio else 0.0


class HyperSource:
    """This step's :class:`Hyper`, rebuilt only where something has changed.

    Args:
        torch_group: Per tensor, its index in the optimizer's param groups.
        device: Where the vectors go.
    """

    def __init__(self, torch_group: Sequence[int], device: torch.device) -> None:
        self._torch_group = torch_group
        self._device = device
        self._dynamics: list[Dynamics] = []
        self._dtypes: list[torch.dtype] = []
        self._rates: list[float | Tensor] = []
        self._hyper: Hyper | None = None
        self.ratio_moves = False
        """The betas have changed since the start, so c is not at its fixed point."""

    def refresh(self, dynamics: list[Dynamics], dtypes: list[torch.dtype]) -> Hyper:
        """The constants for these dynamics (per torch param group) and moment types (per tensor)."""
        hyper, rates = self._hyper, [d.lr for d in dynamics]
        if hyper is None or dynamics != self._dynamics or dtypes != self._dtypes:
            self.ratio_moves |= hyper is not None and _betas(dynamics) != _betas(self._dynamics)
            hyper = build([dynamics[i] for i in self._torch_group], dtypes, self._device)
            self._dynamics, self._dtypes, self._rates = dynamics, dtypes, []
        # A learning rate in a tensor can have been changed in place, which comparing would not show.
        if any(isinstance(rate, Tensor) for rate in rates) or rates != self._rates:
            hyper = _with_lr(hyper, [rates[i] for i in self._torch_group], self._device)
            self._rates = rates
        self._hyper = hyper
        return hyper


def _betas(dynamics: list[Dynamics]) -> list[object]:
    return [(d.exp_avg, d.exp_avg_sq) for d in dynamics]
