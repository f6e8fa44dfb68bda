"""What each optimizer class is known to do with a gradient: the extensible table behind the exact rules.

The state's names and recursions are those of ``torch.optim``. An optimizer class that is not in the table gets
the learned gradient bound only, and the coverage table says so: nothing is guessed, not even for a subclass,
which may do anything in its ``step``. :func:`register_dynamics` adds a class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

ParamGroupDict = Mapping[str, Any]


@dataclass(frozen=True)
class Dynamics:
    """One torch param group's recursions, with its hyperparameters of this step.

    ``exp_avg`` and ``exp_avg_sq`` are pairs ``(decay, weight)``: ``x <- decay * x + weight * g`` (``g²`` for the
    second). The largest step of a parameter in learning rates (``group["lr"]``) is
    ``step_ratio * c + step_const + step_exp_avg * max|exp_avg| + step_grad * max|grad|``, with ``c`` of
    :mod:`sp4_lightning.consistency`.
    """

    exp_avg_key: str | None = None
    """Where the optimizer's state keeps what is listed under exp_avg; None: it has none."""
    exp_avg_sq_key: str | None = None
    """Likewise for exp_avg_sq."""
    exp_avg: tuple[float, float] | None = None
    """Recursion of exp_avg; None: observed only."""
    exp_avg_sq: tuple[float, float] | None = None
    """Recursion of exp_avg_sq; None: observed only."""
    exp_avg_decays: tuple[float, ...] = ()
    """Other decays that exp_avg may have had in the past, as far as the param group tells."""
    consistent: bool = False
    """exp_avg and exp_avg_sq are averages of the same gradients (Cauchy-Schwarz holds)."""
    bounded_step: bool = False
    """The four step constants below bound the step; False: param is observed only."""
    step_ratio: float = 0.0
    step_const: float = 0.0
    step_exp_avg: float = 0.0
    step_grad: float = 0.0
    eps: float = 0.0
    l2: float = 0.0
    """Weight decay that enters the gradient as ``g + l2 * param``."""
    decay: float = 0.0
    """Decoupled weight decay: ``param *= 1 - lr * decay``."""
    amsgrad: bool = False


DynamicsOf = Callable[[ParamGroupDict], Dynamics]
_TABLE: dict[type[torch.optim.Optimizer], DynamicsOf] = {}


def register_dynamics(*classes: type[torch.optim.Optimizer]) -> Callable[[DynamicsOf], DynamicsOf]:
    """Add optimizer classes to the table.

    Args:
        classes: Matched exactly; a subclass needs its own entry.

    Returns:
        A decorator for a function from a torch param group to its :class:`Dynamics`. It is called when a
        hyperparameter has changed, so it must be cheap and must not read a tensor's value.
    """

    def add(function: DynamicsOf) -> DynamicsOf:
        for cls in classes:
            _TABLE[cls] = function
        return function

    return add


def dynamics_of(optimizer: torch.optim.Optimizer) -> DynamicsOf:
    """The table's entry for this optimizer, or one that knows nothing but Adam's usual state names."""
    return _TABLE.get(type(optimizer), _unknown)


def is_known(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer's class is in the table."""
    return type(optimizer) in _TABLE


def _unknown(group: ParamGroupDict) -> Dynamics:
    return Dynamics(exp_avg_key="exp_avg", exp_avg_sq_key="exp_avg_sq", amsgrad=bool(group.get("amsgrad", False)))


def _adam_family(group: ParamGroupDict, **step: float) -> Dynamics:
    beta1, beta2 = (float(beta) for beta in group["betas"])
    coupled = not group.get("decoupled_weight_decay", False)
    return Dynamics(
        exp_avg_key="exp_avg",
        exp_avg_sq_key="exp_avg_sq",
        exp_avg=(beta1, 1 - beta1),
        exp_avg_sq=(beta2, 1 - beta2),
        # OneCycleLR and CyclicLR leave there between which values they move beta1.
        exp_avg_decays=tuple(float(group[key]) for key in ("base_momentum", "max_momentum") if key in group),
        consistent=True,
        bounded_step=True,
        eps=group["eps"],
        l2=group["weight_decay"] if coupled else 0.0,
        decay=0.0 if coupled else group["weight_decay"],
        amsgrad=group.get("amsgrad", False),
        **step,
    )


def _bias_correction(group: ParamGroupDict) -> float:
    # sqrt(1 - b2^t) / (1 - b1^t) lies between its values at t = 1 and at infinity (which is 1), so the bound needs
    # no step count, which is itself state that can be damaged.
    beta1, beta2 = (float(beta) for beta in group["betas"])
    return max(1.0, math.sqrt(1 - beta2) / (1 - beta1))


@register_dynamics(torch.optim.Adam)
def _adam(group: ParamGroupDict) -> Dynamics:
    """Kingma & Ba 2015: the step is ``lr * m̂ / (sqrt(v̂) + eps)``, at most c times the bias correction."""
    return _adam_family(group, step_ratio=_bias_correction(group))


@register_dynamics(torch.optim.AdamW)
def _adamw(group: ParamGroupDict) -> Dynamics:
    """Loshchilov & Hutter 2019. Older torch releases do not mark the decay as decoupled."""
    return _adam({**group, "decoupled_weight_decay": True})


@register_dynamics(torch.optim.NAdam)
def _nadam(group: ParamGroupDict) -> Dynamics:
    """Dozat 2016: a share of at most b1 of exp_avg and of at most 1 - b1/2 of the gradient itself.

    One gradient alone obeys ``|g| <= sqrt(v / (1 - b2))``.
    """
    beta1, beta2 = (float(beta) for beta in group["betas"])
    correction = _bias_correction(group)
    return _adam_family(
        group,
        step_ratio=beta1 * correction,
        step_const=(1 - beta1 / 2) / math.sqrt(1 - beta2) * correction,
    )


@register_dynamics(torch.optim.RAdam)
def _radam(group: ParamGroupDict) -> Dynamics:
    """Liu et al. 2020: the first steps are ``lr * m̂``, not normalised; ``|m̂| <= |m| / (1 - b1)``."""
    beta1 = float(group["betas"][0])
    return _adam_family(group, step_ratio=_bias_correction(group), step_exp_avg=1 / (1 - beta1))


@register_dynamics(torch.optim.SGD)
def _sgd(group: ParamGroupDict) -> Dynamics:
    """The momentum buffer starts as the first gradient itself, so dampening cannot be relied on: weight >= 1."""
    momentum = group["momentum"]
    weight = max(1.0, abs(1 - group["dampening"]))
    nesterov = bool(group["nesterov"])
    return Dynamics(
        exp_avg_key="momentum_buffer" if momentum else None,
        exp_avg=(momentum, weight) if momentum else None,
        bounded_step=True,
        step_exp_avg=(momentum if nesterov else 1.0) if momentum else 0.0,
        step_grad=1.0 if nesterov or not momentum else 0.0,
        l2=group["weight_decay"],
    )


@register_dynamics(torch.optim.RMSprop)
def _rmsprop(group: ParamGroupDict) -> Dynamics:
    """``|g| <= sqrt(v / (1 - alpha))``; a centred denominator can vanish, so its step has no bound."""
    alpha, momentum = group["alpha"], group["momentum"]
    return Dynamics(
        exp_avg_key="momentum_buffer" if momentum else None,
        exp_avg_sq_key="square_avg",
        exp_avg_sq=(alpha, 1 - alpha),
        bounded_step=not group["centered"] and momentum < 1,
        step_const=1 / math.sqrt(1 - alpha) / (1 - momentum) if alpha < 1 and momentum < 1 else math.inf,
        eps=group["eps"],
        l2=group["weight_decay"],
    )


@register_dynamics(torch.optim.Adagrad)
def _adagrad(group: ParamGroupDict) -> Dynamics:
    """Duchi et al. 2011: ``|g| <= sqrt(sum)``, so the step is at most one learning rate."""
    return Dynamics(
        exp_avg_sq_key="sum",
        exp_avg_sq=(1.0, 1.0),
        bounded_step=True,
        step_const=1.0,
        eps=group["eps"],
        l2=group["weight_decay"],
    )
