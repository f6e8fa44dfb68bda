"""What is protected: every trainable parameter, its group, and how each of its four quantities is wired."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from sp4_lightning.engine import Engine
from sp4_lightning.errors import ConfigurationError
from sp4_lightning.groups import ParamGroup, exclude_params
from sp4_lightning.naming import shorten
from sp4_lightning.quantities import QUANTITIES, Quantity

LEARNED, EXACT, OBSERVED, NONE, OFF = "learned", "exact", "observed only", "none", "off"
"""A bound learned from history; one that follows exactly; a rule that cannot be derived for this optimizer; the
optimizer keeps no such tensor; switched off by the user."""


@dataclass(frozen=True)
class GroupCoverage:
    """One row of the coverage table."""

    group: str
    optimizer: str | None
    """None: the group is absent."""
    tensors: int
    parameters: int
    quantities: dict[Quantity, str]

    @property
    def wired(self) -> int:
        """How many of the four quantities have a bound."""
        return sum(how in (LEARNED, EXACT) for how in self.quantities.values())

    @property
    def status(self) -> str:
        """``4/4`` and the like, or ``absent``."""
        return "absent" if self.optimizer is None else f"{self.wired}/{len(QUANTITIES)}"


def coverage_of(groups: Sequence[ParamGroup], engines: Sequence[Engine]) -> list[GroupCoverage]:
    """The coverage of every declared group, in order."""
    rows = []
    for group in groups:
        engine = next((engine for engine in engines if group.name in engine.groups), None)
        if engine is None:
            rows.append(GroupCoverage(group.name, None, 0, 0, dict.fromkeys(QUANTITIES, NONE)))
            continue
        members = [i for i, name in enumerate(engine.held.group) if name == group.name]
        parameters = sum(engine.held.params[i].numel() for i in members)
        wiring = {quantity: _how(engine, members[0], quantity) for quantity in QUANTITIES}
        rows.append(GroupCoverage(group.name, engine.name, len(members), parameters, wiring))
    return rows


def _how(engine: Engine, tensor: int, quantity: Quantity) -> str:
    dynamics = engine.viewer.dynamics_of(tensor)
    exists = {
        "param": True,
        "grad": True,
        "exp_avg": dynamics.exp_avg_key is not None,
        "exp_avg_sq": dynamics.exp_avg_sq_key is not None,
    }[quantity]
    derivable = {
        "param": engine.viewer.constants().reach(engine.state.ratio_sq)[tensor] < math.inf,
        "grad": True,
        "exp_avg": dynamics.exp_avg is not None,
        "exp_avg_sq": dynamics.exp_avg_sq is not None,
    }[quantity]
    if not exists:
        return NONE
    if not engine.protects(quantity)[tensor]:
        return OFF
    if not derivable:
        return OBSERVED
    return LEARNED if quantity == "grad" else EXACT


def check_groups(
    groups: Sequence[ParamGroup], optimizers: Sequence[Optimizer], module: nn.Module, exclude: Sequence[str]
) -> list[ParamGroup]:
    """Make sure that every trainable parameter is in exactly one group and one optimizer.

    Args:
        groups: The groups.
        optimizers: All optimizers of the run.
        module: The model.
        exclude: Module paths or globs of parameters to leave unprotected.

    Returns:
        The groups without the excluded parameters.

    Raises:
        ConfigurationError: A parameter in no group, in two optimizers, or in a group but in no optimizer; a group
            over two optimizers; a pattern of ``exclude`` that matches nothing.
    """
    kept = exclude_params(groups, exclude, module)
    (rest,) = exclude_params([ParamGroup("all", dict(module.named_parameters()))], exclude, module)
    owner: dict[int, int] = {}
    for k, optimizer in enumerate(optimizers):
        for param in (p for group in optimizer.param_groups for p in group["params"]):
            if id(param) in owner:
                raise ConfigurationError(
                    f"Parameter {_name(param, module)!r} is in two optimizers, number {owner[id(param)]} and number "
                    f"{k}. Give it to one of them."
                )
            owner[id(param)] = k
    grouped = {id(p) for group in kept for p in group.params.values()}
    for group in kept:
        for name, param in group.params.items():
            if id(param) not in owner:
                raise ConfigurationError(
                    f"Group {group.name!r}: parameter {name!r} is in no optimizer. Give it to one, set "
                    f"requires_grad=False, or exclude it."
                )
        holders = sorted({owner[id(p)] for p in group.params.values()})
        if len(holders) > 1:
            raise ConfigurationError(
                f"Group {group.name!r} is spread over the optimizers number {', '.join(map(str, holders))}. Make it "
                f"one group per optimizer: a step is skipped for all groups of an optimizer together."
            )
    lost = [name for name, p in rest.params.items() if p.requires_grad and id(p) not in grouped]
    if lost:
        raise ConfigurationError(
            f"{len(lost)} trainable parameters are in no group: {shorten(lost)}. Add them to a group, list them in "
            f"`exclude`, or set requires_grad=False."
        )
    return kept


def _name(param: object, module: nn.Module) -> str:
    return next((name for name, other in module.named_parameters() if other is param), "(not in the module)")
