"""Hyperparameters and the constants of the exact rules, as one vector per constant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from sp4_lightning import consistency, derived
from sp4_lightning.arrays import Array, namespace, view
from sp4_lightning.dynamics import Dynamics, ParamGroupDict, dynamics_of

TINY = 1e-300
"""Stands for a decay of zero."""
LARGEST_RATIO = 1e130
"""No float32 moments have a larger c²: 3e38 squared, over the smallest number, is 1e122. Larger ones of float64 moments
are held in check by the optimizer's eps."""


@dataclass(frozen=True)
class Hyper:
    """float64 vectors with one element per protected tensor (T of them), unless said otherwise."""

    started: Array
    """bool ``[2, T]``: exp_avg, exp_avg_sq have a recursion, whose bound starts from the optimizer's state."""
    decay: Array
    """``[2, T]``: of exp_avg and exp_avg_sq; 1 where there is no recursion, which keeps a bound of +inf."""
    weight: Array
    """``[2, T]``: of the gradient and of its square; 0 where there is no recursion."""
    fill_decay: Array
    """Decay of exp_avg_sq but for rounding, which stops that of a bound; 1 where there is no recursion."""
    slack: Array
    """``[4, T]``: factor between a bound and the limit that is enforced."""
    tiny: Array
    """The smallest normal number of each tensor's type, added to every limit: below it moments stop decaying."""
    consistent: tuple[bool, ...]
    """On the host: exp_avg and exp_avg_sq obey Cauchy-Schwarz."""
    ratio_constant: Array
    """c² for these betas."""
    ratio_start: Array
    """c² for moments that other updates have made: with these betas, or with others that a scheduler had set."""
    ratio_decay: Array
    ratio_gain: Array
    ratio_slack_sq: Array
    eps: tuple[float, ...]
    """On the host."""
    l2: Array | None
    """Weight decay that enters the gradient; None: nowhere."""
    step_ratio: Array
    """This and the next three are the largest step of a parameter in learning rates, see ``Dynamics``."""
    step_const: Array
    """+inf where the step has no bound."""
    step_exp_avg: Array
    step_grad: Array
    linear_step: bool
    """On the host: step_exp_avg or step_grad is not zero somewhere."""
    weight_decay: Array | None
    """Decoupled weight decay; None: nowhere."""

    def reach(self, ratio_sq: Array) -> Array:
        """The part of the largest step that gradients do not change, in learning rates."""
        root = namespace(ratio_sq).sqrt(ratio_sq * self.ratio_slack_sq)
        return self.step_ratio * root + self.step_const

    def cap_ratio(self, ratio_sq: Array) -> None:
        """Make c² finite where there is a rule: from infinity, where betas without one leave it, nothing leads back."""
        xp = namespace(ratio_sq)
        ratio_sq[...] = xp.where(self.ratio_gain > 0, xp.clip(ratio_sq, 0.0, LARGEST_RATIO), ratio_sq)

    def limit_ratio(self, ratio_sq: Array) -> Array:
        """c² with its slack, +inf where exp_avg and exp_avg_sq need not be consistent."""
        return namespace(ratio_sq).where(self.ratio_gain > 0, ratio_sq * self.ratio_slack_sq, math.inf)


def build(dynamics: Sequence[Dynamics], dtypes: Sequence[torch.dtype], device: torch.device) -> Hyper:
    """Collect the constants.

    Args:
        dynamics: Per tensor, what its optimizer does.
        dtypes: Per tensor, what its moments are stored in.
        device: Where the vectors go.
    """

    def vector(values: Sequence[object], dtype: torch.dtype = torch.float64) -> Array:
        return view(torch.tensor(values, dtype=dtype, device=device))

    recursions = [[d.exp_avg for d in dynamics], [d.exp_avg_sq for d in dynamics]]
    errors = [derived.error(dtype) for dtype in dtypes]
    decays, weights, slacks = [], [], []
    for row in recursions:
        rounded = [derived.rounding(r[0] if r else 1.0, dtype) for r, dtype in zip(row, dtypes, strict=True)]
        # A decay of exactly 0 would turn a bound of +inf into NaN.
        decays.append([max(decay, TINY) if r else 1.0 for (decay, _), r in zip(rounded, row, strict=True)])
        weights.append([r[1] * (1 + error) if r else 0.0 for r, error in zip(row, errors, strict=True)])
        slacks.append([1 + slack for _, slack in rounded])
    exact = [1.0] * len(dynamics)
    has_ratio = tuple(d.consistent and dtype in consistency.SLACK for d, dtype in zip(dynamics, dtypes, strict=True))
    betas = [
        (derived.slowed(d.exp_avg[0], dtype), d.exp_avg_sq[0]) if d.exp_avg and d.exp_avg_sq else (0.0, 0.0)
        for d, dtype in zip(dynamics, dtypes, strict=True)
    ]
    ratio = [
        consistency.rates(*pair, error) if has else (1.0, 0.0)
        for pair, error, has in zip(betas, errors, has_ratio, strict=True)
    ]
    ratios = [_ratios(*each) for each in zip(dynamics, dtypes, has_ratio, strict=True)]
    return Hyper(
        started=vector([[r is not None for r in row] for row in recursions], torch.bool),
        decay=vector(decays),
        weight=vector(weights),
        fill_decay=vector([d.exp_avg_sq[0] if d.exp_avg_sq else 1.0 for d in dynamics]),
        slack=vector([[1 + 4 * torch.finfo(dtype).eps for dtype in dtypes], exact, *slacks]),
        tiny=vector([torch.finfo(dtype).tiny for dtype in dtypes]),
        consistent=has_ratio,
        ratio_constant=vector([starts[0] for starts in ratios]),
        # c² moves towards the constant of the betas of each update, so it never passes the largest of them; and over an
        # interval of beta1 the constant, falling up to beta1 = beta2 and rising from there on, is largest at an end.
        ratio_start=vector([max(starts) for starts in ratios]),
        ratio_decay=vector([max(decay, TINY) for decay, _ in ratio]),
        ratio_gain=vector([gain for _, gain in ratio]),
        ratio_slack_sq=vector([(1 + consistency.SLACK.get(dtype, 0.0)) ** 2 for dtype in dtypes]),
        eps=tuple(d.eps for d in dynamics),
        l2=vector([d.l2 for d in dynamics]) if any(d.l2 for d in dynamics) else None,
        step_ratio=vector([d.step_ratio for d in dynamics]),
        step_const=vector([d.step_const if d.bounded_step else math.inf for d in dynamics]),
        step_exp_avg=vector([d.step_exp_avg for d in dynamics]),
        step_grad=vector([d.step_grad for d in dynamics]),
        linear_step=any(d.step_exp_avg or d.step_grad for d in dynamics),
        weight_decay=vector([d.decay for d in dynamics]) if any(d.decay for d in dynamics) else None,
    )


def _ratios(dynamics: Dynamics, dtype: torch.dtype, has_ratio: bool) -> list[float]:
    """c² for the betas as they are, and for those that exp_avg may have been made with."""
    if has_ratio and dynamics.exp_avg and dynamics.exp_avg_sq:
        return [
            consistency.constant_sq(derived.slowed(beta1, dtype), dynamics.exp_avg_sq[0], derived.error(dtype))
            for beta1 in (dynamics.exp_avg[0], *dynamics.exp_avg_decays)
        ]
    # Without the ratio a step that depends on it has no bound.
    return [math.inf if dynamics.step_ratio else 0.0]


_NOT_OPTIONS = frozenset(("params", "param_names", "name", "lr", "initial_lr"))


class HyperSource:
    """This step's :class:`Hyper` and learning rates, rebuilt only where something has changed.

    Args:
        optimizer: The optimizer, whose class says what it does with a gradient.
        torch_group: Per tensor, its index in the optimizer's param groups.
        device: Where the vectors go.

    Attributes:
        dynamics: Per torch param group, as of the last refresh.
        ratio_moves: The betas have changed since the start, so c is not at its fixed point.
    """

    def __init__(self, optimizer: Optimizer, torch_group: Sequence[int], device: torch.device) -> None:
        self._dynamics_of = dynamics_of(optimizer)
        self._torch_group = torch_group
        self._index = torch.tensor(torch_group, device=device)
        self._device = device
        self._options: list[Any] = []
        self._tensors: list[tuple[Tensor, int]] = []
        self._lists: list[tuple[list[Any], list[Any]]] = []
        self._dtypes: list[torch.dtype] = []
        self._rates: list[float | Tensor] = []
        self._lr: Array | float = 0.0
        self._hyper: Hyper | None = None
        self.dynamics: list[Dynamics] = []
        self.ratio_moves = False

    def refresh(self, param_groups: Sequence[ParamGroupDict], dtypes: list[torch.dtype]) -> tuple[Hyper, Array | float]:
        """The constants and the learning rate (one number where all tensors share it, else a vector).

        Args:
            param_groups: The optimizer's, as they are now.
            dtypes: Per tensor, what its moments are stored in.
        """
        options = [group[key] for group in param_groups for key in group if key not in _NOT_OPTIONS]
        if not self.dynamics or self._replaced(options) or self._written():
            before, self.dynamics = self.dynamics, [self._dynamics_of(group) for group in param_groups]
            self.ratio_moves |= bool(before) and _betas(self.dynamics) != _betas(before)
            self._options, self._hyper = options, None
            values = [
                value for option in options for value in (option if isinstance(option, list | tuple) else [option])
            ]
            self._tensors = [(value, value._version) for value in values if isinstance(value, Tensor)]
            self._lists = [(option, list(option)) for option in options if isinstance(option, list)]
        if self._hyper is None or dtypes != self._dtypes:
            self._dtypes = dtypes
            self._hyper = build([self.dynamics[i] for i in self._torch_group], dtypes, self._device)
        rates = [group.get("lr", 0.0) for group in param_groups]
        # A learning rate in a tensor can have been changed in place, which comparing does not show.
        if any(isinstance(rate, Tensor) for rate in rates) or rates != self._rates:
            self._rates, self._lr = rates, self._learning_rate(rates)
        return self._hyper, self._lr

    def _replaced(self, options: list[Any]) -> bool:
        try:
            return options != self._options
        except (RuntimeError, ValueError):
            return True  # arrays of several elements do not say whether they are equal

    def _written(self) -> bool:
        """Whether an option has been changed in place, which comparing with itself does not show."""
        return any(tensor._version != version for tensor, version in self._tensors) or any(
            now != before for now, before in self._lists
        )

    def _learning_rate(self, rates: list[float | Tensor]) -> Array | float:
        rates = [0.0 if rate is None else rate for rate in rates]
        if not any(isinstance(rate, Tensor) for rate in rates) and len(set(rates)) == 1:
            return float(rates[0])
        # Without a copy from the host, which a CUDA graph could not record.
        each = [
            rate.to(self._device, torch.float64).reshape(())
            if isinstance(rate, Tensor)
            else torch.full((), rate, dtype=torch.float64, device=self._device)
            for rate in rates
        ]
        return view(torch.stack(each)[self._index])


def _betas(dynamics: list[Dynamics]) -> list[object]:
    return [(d.exp_avg, d.exp_avg_sq) for d in dynamics]
