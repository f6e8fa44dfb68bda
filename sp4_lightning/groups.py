"""Parameter groups: named lists of tensors that are reported, switched off and flipped together."""

from __future__ import annotations

import fnmatch
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer

from sp4_lightning.errors import ConfigurationError
from sp4_lightning.naming import did_you_mean, shorten

Patterns = str | Sequence[str]


@dataclass(frozen=True)
class ParamGroup:
    """A named group of parameters.

    A group is a *list* of tensors: they need not be contiguous, nor share a shape or an optimizer. Bounds are
    per tensor; the group is what names, settings and reports refer to.

    Attributes:
        name: Unique among the groups.
        params: Parameter name -> parameter. Empty for an optional group that is absent.
    """

    name: str
    params: Mapping[str, Tensor]

    @classmethod
    def of(cls, name: str, params: Iterable[Tensor]) -> ParamGroup:
        """A group of unnamed parameters; they are called ``name[0]``, ``name[1]`` and so on."""
        return cls(name, {f"{name}[{i}]": param for i, param in enumerate(params)})


def groups_of_optimizers(optimizers: Sequence[Optimizer], module: nn.Module | None = None) -> list[ParamGroup]:
    """One group per torch param group, named as ``LearningRateMonitor`` names it.

    A param group's ``"name"`` is used where it is unique. Others are ``{Class}[-k]`` for an optimizer's only
    group and ``{Class}[-k]/{name or pg{i}}`` otherwise, where ``-k`` tells optimizers of one class apart.

    Args:
        optimizers: The optimizers of one training run.
        module: Where parameter names come from; without it they are numbered.

    Returns:
        The groups, in order. Parameters that need no gradient are left out.
    """
    own_names = Counter(str(group["name"]) for opt in optimizers for group in opt.param_groups if "name" in group)
    known = {id(param): name for name, param in module.named_parameters()} if module is not None else {}
    groups = []
    for opt, opt_name in zip(optimizers, optimizer_names(optimizers), strict=True):
        for i, torch_group in enumerate(opt.param_groups):
            own = torch_group.get("name")
            if own is not None and own_names[str(own)] == 1:
                name = str(own)
            elif own is None and len(opt.param_groups) == 1:
                name = opt_name
            else:
                name = f"{opt_name}/{own if own is not None else f'pg{i + 1}'}"
            params = {
                known.get(id(param), f"{name}[{k}]"): param
                for k, param in enumerate(torch_group["params"])
                if param.requires_grad
            }
            groups.append(ParamGroup(name, params))
    return groups


def optimizer_names(optimizers: Sequence[Optimizer]) -> list[str]:
    """``Adam``, ``Adam-1``, ``SGD`` ...: the class, numbered from the second of its kind on."""
    seen: Counter[str] = Counter()
    names = []
    for opt in optimizers:
        kind = type(getattr(opt, "base", opt)).__name__
        names.append(f"{kind}-{seen[kind]}" if seen[kind] else kind)
        seen[kind] += 1
    return names


def groups_of_patterns(
    module: nn.Module, patterns: Mapping[str, Patterns], optional: Sequence[str] = ()
) -> list[ParamGroup]:
    """Groups by module path or glob.

    Args:
        module: The model.
        patterns: Group name -> one or more patterns. A pattern is a module's path (``dqn.trunk``), a parameter's
            name (``dqn.log_alpha``), or a glob over parameter names (``*.bias``).
        optional: Groups that may be absent: one whose patterns match nothing is kept, empty.

    Returns:
        The groups in the mapping's order. Parameters that need no gradient are left out.

    Raises:
        ConfigurationError: A pattern matches nothing, an optional name is not a group, or a parameter is in two
            groups.
    """
    for name in optional:
        if name not in patterns:
            raise ConfigurationError(
                f"optional names {name!r}, which is not one of the groups.{did_you_mean(name, patterns)} "
                f"Groups are {shorten(patterns, 12)}."
            )
    groups = [
        ParamGroup(name, _matches(module, f"Group {name!r}", wanted, name in optional))
        for name, wanted in patterns.items()
    ]
    check_disjoint(groups)
    return groups


def check_disjoint(groups: Sequence[ParamGroup]) -> None:
    """Make sure that no name and no parameter occurs twice.

    Raises:
        ConfigurationError: One does.
    """
    for name, count in Counter(group.name for group in groups).items():
        if count > 1:
            raise ConfigurationError(f"{count} groups are called {name!r}. Give each a name of its own.")
    owner: dict[int, tuple[str, str]] = {}
    for group in groups:
        for param_name, param in group.params.items():
            if id(param) in owner:
                first_group, first_name = owner[id(param)]
                raise ConfigurationError(
                    f"Parameter {param_name!r} is in two groups, {first_group!r} (as {first_name!r}) and "
                    f"{group.name!r}. Narrow one of their patterns."
                )
            owner[id(param)] = (group.name, param_name)


def warn_of_uncovered(optimizer: Optimizer, groups: Sequence[ParamGroup], module: nn.Module | None) -> None:
    """Name the trainable parameters of an optimizer that are in none of the groups, and so are not protected."""
    grouped = {id(param) for group in groups for param in group.params.values()}
    everything = {name: p for group in groups_of_optimizers([optimizer], module) for name, p in group.params.items()}
    lost = [name for name, param in everything.items() if id(param) not in grouped]
    if lost:
        warnings.warn(
            f"{len(lost)} trainable parameters of {type(optimizer).__name__} are in no group and not protected: "
            f"{shorten(lost)}. Add them to a group, or set requires_grad=False.",
            stacklevel=3,
        )


def _matches(module: nn.Module, what: str, wanted: Patterns, optional: bool) -> dict[str, Tensor]:
    """The trainable parameters that any of the patterns name; ``what`` they are for, for the error."""
    named = dict(module.named_parameters())
    found: dict[str, Tensor] = {}
    for pattern in [wanted] if isinstance(wanted, str) else wanted:
        hits = [n for n in named if n == pattern or n.startswith(f"{pattern}.") or fnmatch.fnmatchcase(n, pattern)]
        if not hits and not optional:
            paths = [path for path, _ in module.named_modules() if path] + list(named)
            mend = "Remove the pattern." if what == "exclude" else "Add the group to `optional` if it may be absent."
            raise ConfigurationError(
                f"{what}: {pattern!r} matches no module or parameter of {type(module).__name__}."
                f"{did_you_mean(pattern, paths)} {mend}"
            )
        found.update({n: named[n] for n in hits if named[n].requires_grad})
    return found


def exclude_params(groups: Sequence[ParamGroup], patterns: Sequence[str], module: nn.Module) -> list[ParamGroup]:
    """The groups without the parameters that any glob or module path in ``patterns`` names.

    Raises:
        ConfigurationError: A pattern matches no parameter of the module.
    """
    excluded = {id(param) for pattern in patterns for param in _matches(module, "exclude", pattern, False).values()}
    return [
        ParamGroup(group.name, {n: p for n, p in group.params.items() if id(p) not in excluded}) for group in groups
    ]


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that are, or match, the pattern."""
    return [name for name in names if name == pattern or fnmatch.fnmatchcase(name, pattern)]


def select_groups(pattern: str, names: Sequence[str], setting: str) -> list[str]:
    """The group names a name or glob stands for.

    Args:
        pattern: A name or glob.
        names: The groups that exist.
        setting: Who asks, for the error.

    Raises:
        ConfigurationError: It stands for none.
    """
    hits = matching(pattern, names)
    if not hits:
        raise ConfigurationError(
            f"{setting} names the group {pattern!r}, which does not exist.{did_you_mean(pattern, names)} "
            f"Groups are {shorten(names, 12)}."
        )
    return hits
