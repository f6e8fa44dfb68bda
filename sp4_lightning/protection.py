"""Protection of all optimizers of one training run: what the callback holds, and plain loops can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from torch import nn
from torch.optim import Optimizer

from sp4_lightning.attach import Attachment
from sp4_lightning.checkpoint import check_engine, load_engine, save_engine
from sp4_lightning.coverage import GroupCoverage, check_groups, coverage_of
from sp4_lightning.engine import Engine
from sp4_lightning.errors import CheckpointError, ConfigurationError, UnsupportedError
from sp4_lightning.groups import (
    ParamGroup,
    Patterns,
    check_disjoint,
    groups_of_optimizers,
    groups_of_patterns,
    optimizer_names,
    select_groups,
)
from sp4_lightning.naming import shorten
from sp4_lightning.optimizer import ClippingOptimizer
from sp4_lightning.report import Report, take_report
from sp4_lightning.settings import Settings
from sp4_lightning.switch import Switch
from sp4_lightning.table import BoundsTable


class Protection:
    """Engines on several optimizers that share one switch and one bounds table.

    A :class:`~sp4_lightning.ClippingOptimizer` keeps its engine, with its own groups and settings; it joins the
    others' switch and table.

    Args:
        optimizers: All optimizers of the run.
        module: The model, where names come from.
        groups: Group name -> module path(s) or glob(s); None takes the torch param groups by name.
        optional: Groups that may be absent.
        exclude: Module paths or globs of parameters to leave unprotected.
        settings: What to do.

    Attributes:
        groups: The groups, absent ones included.
        engines: One per optimizer.
        switch: The shared phase.
        table: The shared published bounds.

    Raises:
        ConfigurationError: A group, pattern or setting that cannot be used.
        UnsupportedError: An optimizer or tensor that cannot be protected.
        BackendError: The backend asked for cannot be had.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        module: nn.Module,
        groups: dict[str, Patterns] | None = None,
        optional: Sequence[str] = (),
        exclude: Sequence[str] = (),
        settings: Settings | None = None,
    ) -> None:
        settings = settings or Settings()
        if not optimizers:
            raise ConfigurationError("There is no optimizer to protect.")
        if groups is None:
            found = _declared(optimizers, module)
            if optional:
                raise ConfigurationError("optional is given without groups; only declared groups can be absent.")
        else:
            found = groups_of_patterns(module, groups, optional)
        self.groups = check_groups(found, optimizers, module, exclude)
        check_disjoint(self.groups)
        present = [group for group in self.groups if group.params]
        for pattern in settings.disable:
            select_groups(pattern, [group.name for group in self.groups], "disable")
        device = next(iter(present[0].params.values())).device if present else "cpu"
        self.table = BoundsTable([group.name for group in present], device)
        self.switch = Switch(settings.mode, settings.warmup_steps, device)
        self.engines: list[Engine] = []
        self._attachments: list[Attachment] = []
        self._adopted: list[ClippingOptimizer] = []
        for optimizer, name in zip(optimizers, optimizer_names(optimizers), strict=True):
            self._add(optimizer, name, present, settings)
        if not self.engines:
            raise ConfigurationError(
                "No optimizer holds a parameter of any group: there is nothing to protect. Name groups that exist, or "
                "exclude less."
            )
        if len({engine.device for engine in self.engines}) > 1:
            raise UnsupportedError(
                f"The optimizers' parameters are on {shorten(sorted({str(e.device) for e in self.engines}))}; one run "
                f"can protect one device."
            )
        # Only now, with every optimizer accepted, is any of them changed.
        adopted = [wrapper.engine for wrapper in self._adopted]
        try:
            for engine in self.engines:
                if engine not in adopted:
                    self._attachments.append(Attachment(engine))
        except ConfigurationError:
            self.detach()
            raise
        names = {id(optimizer): name for optimizer, name in zip(optimizers, optimizer_names(optimizers), strict=True)}
        for wrapper in self._adopted:
            wrapper.flips_itself = False
            wrapper.engine.name = names[id(wrapper)]
            wrapper.engine.join(self.switch, self.table)

    def __reduce__(self) -> NoReturn:
        """Torch copies an optimizer without its hooks, so a copy would protect nothing.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(
            "A Protection lives in its optimizers' hooks, which torch does not copy. Make another one around the "
            "copied optimizers and load this one's state_dict()."
        )

    def _add(self, optimizer: Optimizer, name: str, groups: Sequence[ParamGroup], settings: Settings) -> None:
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if isinstance(optimizer, ClippingOptimizer):
            lacking = [group for group in optimizer.engine.groups if group not in self.table.groups]
            if lacking:
                raise ConfigurationError(
                    f"{name} is a ClippingOptimizer whose group {lacking[0]!r} is not among the run's groups. Give the "
                    f"run no groups, or wrap no optimizer."
                )
            self._adopted.append(optimizer)
            self.engines.append(optimizer.engine)
        elif any(id(p) in held for group in groups for p in group.params.values()):
            self.engines.append(Engine(optimizer, groups, settings, self.switch, self.table, name))

    def coverage(self) -> list[GroupCoverage]:
        """What is wired, group by group."""
        return coverage_of(self.groups, self.engines)

    def advance(self) -> None:
        """Flip to the learned bounds when every group that trains has been observed long enough."""
        self.switch.advance([engine.observed for engine in self.engines])

    def report(self) -> Report:
        """Everything that is known now; one copy from device to host."""
        return take_report(self.engines, self.switch, self.table)

    def notify_scale_change(self, factor: float, groups: Sequence[str] | None = None) -> None:
        """Announce that gradients will be ``factor`` times as large, see :meth:`Engine.notify_scale_change`.

        Raises:
            ConfigurationError: A bad factor or an unknown group.
        """
        names = self._names(groups)
        for engine in self.engines:
            engine.notify_scale_change(factor, names)

    def reset(self, groups: Sequence[str] | None = None) -> None:
        """Make groups unobserved again, see :meth:`Engine.reset`.

        Raises:
            ConfigurationError: An unknown group.
        """
        names = self._names(groups)
        for engine in self.engines:
            engine.reset(names)

    def _names(self, groups: Sequence[str] | None) -> list[str] | None:
        if groups is None:
            return None
        return [name for group in groups for name in select_groups(group, self.table.groups, "groups")]

    def detach(self) -> None:
        """Take the engines out of the optimizers; adopted ones stay where the user put them."""
        for attachment in self._attachments:
            attachment.detach()
        for wrapper in self._adopted:
            wrapper.flips_itself = True

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain types, keyed by names; loads with ``weights_only=True``."""
        return {"engines": {engine.name: save_engine(engine) for engine in self.engines}}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Take over saved state, all of it or, after an error, nothing.

        Raises:
            CheckpointError: It does not fit.
        """
        names = [engine.name for engine in self.engines]
        engines = saved.get("engines")
        if not isinstance(engines, dict):
            raise CheckpointError(
                f"The checkpoint's bounds should be a dict of the optimizers' under 'engines', got {engines!r}: it is "
                f"not what a Protection has saved, or damaged. Drop the callback's state to learn the bounds anew."
            )
        if list(engines) != names:
            raise CheckpointError(
                f"The checkpoint's bounds are of the optimizers [{shorten(engines, 12)}], but the run has "
                f"[{shorten(names, 12)}]. Resume with the same optimizers, or drop the callback's state to learn the "
                f"bounds anew."
            )
        for engine in self.engines:
            check_engine(engine, engines[engine.name])
        for engine in self.engines:
            load_engine(engine, engines[engine.name])


def _declared(optimizers: Sequence[Optimizer], module: nn.Module) -> list[ParamGroup]:
    """Groups by torch param group; those of a ClippingOptimizer are the ones it was given."""
    of_others = groups_of_optimizers([o for o in optimizers if not isinstance(o, ClippingOptimizer)], module)
    own = [group for o in optimizers if isinstance(o, ClippingOptimizer) for group in o.groups]
    return of_others + own
