"""Which tensors a fault is for, found and checked before anything is struck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from sp4_lightning.dynamics import dynamics_of
from sp4_lightning.errors import ConfigurationError
from sp4_lightning.faults.fault import Fault
from sp4_lightning.groups import (
    ParamGroup,
    Patterns,
    groups_of_optimizers,
    groups_of_patterns,
    matching,
    optimizer_names,
    select_groups,
)
from sp4_lightning.naming import did_you_mean, shorten


@dataclass(frozen=True)
class Target:
    """One group's tensors in one optimizer, and the fault that is for them."""

    fault: Fault
    group: str
    optimizer: Optimizer
    name: str
    """The optimizer's."""
    params: Mapping[str, Tensor]

    @property
    def identity(self) -> str:
        """The same in a resumed run."""
        return f"{self.fault}/{self.group}/{self.name}"

    @property
    def torch_groups(self) -> list[dict[str, Any]]:
        """The optimizer's own groups that hold the parameters."""
        wanted = {id(param) for param in self.params.values()}
        return [g for g in self.optimizer.param_groups if any(id(param) in wanted for param in g["params"])]

    def tensors(self) -> dict[str, Tensor]:
        """What there is to strike now, by the parameter's name."""
        if self.fault.what == "param":
            return dict(self.params)
        if self.fault.what == "gradient":
            return {name: param.grad for name, param in self.params.items() if param.grad is not None}
        groups = zip(self.torch_groups, self.moment_keys(), strict=True)
        key_of = {id(param): key for group, key in groups for param in group["params"]}
        found = {}
        for name, param in self.params.items():
            # get: the optimizer's state is a defaultdict, and a look must not add to it.
            tensor = self.optimizer.state.get(param, {}).get(key_of[id(param)])
            if tensor is not None:
                found[name] = tensor
        return found

    def moment_keys(self) -> list[str | None]:
        """Under which key each of the torch groups keeps the moment that is struck."""
        base = getattr(self.optimizer, "base", self.optimizer)
        return [getattr(dynamics_of(base)(group), f"{self.fault.what}_key") for group in self.torch_groups]


def find_targets(
    faults: Sequence[Fault],
    optimizers: Sequence[Optimizer],
    module: nn.Module,
    groups: Mapping[str, Patterns] | None,
) -> list[Target]:
    """The targets of all faults that are not for a batch, in the faults' order.

    Args:
        faults: The faults.
        optimizers: The run's optimizers.
        module: Where parameter names come from.
        groups: As for :class:`~sp4_lightning.SP4Callback`; None takes the optimizers' param groups.

    Raises:
        ConfigurationError: A group, tensor or moment that is not there.
    """
    known = groups_of_optimizers(optimizers, module) if groups is None else groups_of_patterns(module, groups)
    targets = []
    for i, fault in enumerate(faults):
        if fault.what != "batch":
            try:
                targets += _targets_of(fault, optimizers, known)
            except ConfigurationError as error:
                raise ConfigurationError(f"faults[{i}]: {error}") from None
    return targets


def _targets_of(fault: Fault, optimizers: Sequence[Optimizer], groups: Sequence[ParamGroup]) -> list[Target]:
    chosen = select_groups(fault.group, [group.name for group in groups], fault.kind)
    params = {group.name: group.params for group in groups if group.name in chosen}
    names = [name for of_group in params.values() for name in of_group]
    if not matching(fault.tensor, names):
        raise ConfigurationError(
            f"tensor {fault.tensor!r} matches no parameter of {fault.group!r}."
            f"{did_you_mean(fault.tensor, names)} It has {shorten(names, 12) or 'none that is trained'}."
        )
    if fault.what == "lr":
        # Groups may share a torch group, whose one learning rate must not be struck for each of them.
        params = {fault.group: {name: param for of_group in params.values() for name, param in of_group.items()}}
    targets = []
    for group, of_group in params.items():
        wanted = {name: of_group[name] for name in matching(fault.tensor, of_group)}
        for optimizer, name in zip(optimizers, optimizer_names(optimizers), strict=True):
            held = {id(param) for torch_group in optimizer.param_groups for param in torch_group["params"]}
            here = {key: param for key, param in wanted.items() if id(param) in held}
            if here:
                targets.append(_checked(Target(fault, group, optimizer, name, here)))
    if not targets:
        raise ConfigurationError(f"no optimizer holds a parameter of the group {fault.group!r}, so it has no updates.")
    return targets


def _checked(target: Target) -> Target:
    fault = target.fault
    if fault.what in ("exp_avg", "exp_avg_sq"):
        if None in target.moment_keys():
            raise ConfigurationError(
                f"{target.name} keeps no {fault.what} for the group {target.group!r}. Choose another kind or group."
            )
        if fault.step == 0 and not target.tensors():
            raise ConfigurationError(
                f"{target.name} has no {fault.what} before its first update, so step 0 finds nothing to strike. "
                f"Use step: 1 or later."
            )
    return target
