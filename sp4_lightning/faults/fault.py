"""One fault: what it does, to which numbers, and when. Checked where it is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal

from sp4_lightning.errors import ConfigurationError
from sp4_lightning.naming import did_you_mean

STRUCK = ("gradient", "param", "exp_avg", "exp_avg_sq", "batch")
DAMAGES = ("nan", "inf", "zero", "scale", "spike")
KINDS = (*(f"{what}_{how}" for what in STRUCK for how in DAMAGES), "lr_scale")


@dataclass(frozen=True)
class Fault:
    """What one entry of :class:`~sp4_lightning.FaultInjector`'s list says.

    Raises:
        ConfigurationError: A value is out of range, or says nothing about this kind.
    """

    kind: str
    """``{what}_{how}``. What: ``gradient``, ``param``, ``exp_avg``, ``exp_avg_sq``, ``batch``. How: ``nan``, ``inf``,
    ``zero``; ``scale`` multiplies everything by ``factor``; ``spike`` sets one element to ``value``, or multiplies one
    that is not zero by ``factor``. And ``lr_scale``, the learning rate times ``factor``."""
    step: int
    """The first update that is struck: how many updates the group's optimizer has made before it. For ``batch``
    kinds, the first batch: how many batches came before it."""
    group: str = "*"
    """Name or glob; each group that it names is struck."""
    tensor: str = "*"
    """Name or glob of parameters in the group."""
    key: str | int | None = None
    """Where the batch keeps the tensor: a dict's key, a named tuple's or object's attribute, a sequence's index."""
    factor: float | None = None
    """For ``scale`` and ``spike``."""
    value: float | None = None
    """For ``spike``."""
    elements: int | Literal["all"] | None = None
    """How many elements, drawn by the seed over all tensors that match. None: one for ``nan``, ``inf`` and ``spike``,
    all for ``zero`` and ``scale``."""
    samples: int | None = None
    """``batch`` only: how many samples (entries of the first dimension) are struck, drawn by the seed. None: all of
    the tensor as one."""
    updates: int | None = 1
    """How many updates in a row; None: for ever."""
    every: int | None = None
    """Strike again each time this many updates have passed since ``step``."""

    @property
    def what(self) -> str:
        """What is struck: the kind without its last word."""
        return self.kind.rpartition("_")[0]

    @property
    def how(self) -> str:
        """What happens to it: the kind's last word."""
        return self.kind.rpartition("_")[2]

    @property
    def count(self) -> int | None:
        """How many elements; None is all."""
        if self.elements is None:
            return 1 if self.how in ("nan", "inf", "spike") else None
        return None if self.elements == "all" else self.elements

    def age(self, step: int) -> int | None:
        """How many updates of its present burst the fault has struck before this one; None: it does not strike."""
        since = step - self.step
        if since >= 0 and self.every is not None:
            since %= self.every
        return since if since >= 0 and (self.updates is None or since < self.updates) else None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigurationError(
                f"there is no kind {self.kind!r}.{did_you_mean(str(self.kind), KINDS)} Kinds are {', '.join(STRUCK)} "
                f"with {', '.join(f'_{how}' for how in DAMAGES)}, and lr_scale."
            )
        for name, least in (("step", 0), ("samples", 1), ("updates", 1), ("every", 1)):
            self._check(name, _is_whole(getattr(self, name), least), f"a whole number of at least {least}")
        for name in ("factor", "value"):
            self._check(name, _is_number(getattr(self, name)), "a finite number")
        for name in ("group", "tensor"):
            self._check(name, isinstance(getattr(self, name), str), "a name or glob")
        self._check("key", isinstance(self.key, (str, int)), "a name or an index")
        self._check("elements", self.elements == "all" or _is_whole(self.elements, 1), "at least 1, or 'all'")
        self._check("every", self.every is None or self.updates is not None, "left out where updates is None")
        for name in self._useless():
            if getattr(self, name) != next(field.default for field in fields(Fault) if field.name == name):
                raise ConfigurationError(f"{name} means nothing to {self.kind}. Remove it.")
        if self.how == "scale" and self.factor is None:
            raise ConfigurationError(f"{self.kind} needs a factor, e.g. factor: 1e6.")
        if self.how == "spike" and (self.factor is None) == (self.value is None):
            raise ConfigurationError(f"{self.kind} needs either a value, e.g. value: 1e8, or a factor.")

    def _useless(self) -> list[str]:
        useless = ["group", "tensor"] if self.what == "batch" else ["key", "samples"]
        if self.what == "lr":
            useless += ["tensor", "elements"]
        if self.how not in ("scale", "spike"):
            useless += ["factor"]
        return useless if self.how == "spike" else [*useless, "value"]

    def _check(self, name: str, holds: bool, allowed: str) -> None:
        value = getattr(self, name)
        # None is the default of what may be left out; step has no default.
        if not holds and (value is not None or name == "step"):
            raise ConfigurationError(f"{name} must be {allowed}, got {value!r}.")


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def parse_faults(entries: Any) -> list[Fault]:
    """The faults of a list of mappings, as YAML gives them.

    Raises:
        ConfigurationError: An entry is wrong or is there twice; the message says which one.
    """
    if not isinstance(entries, (list, tuple)):
        raise ConfigurationError(f"faults must be a list of mappings, got {entries!r}.")
    faults: list[Fault] = []
    for i, entry in enumerate(entries):
        try:
            fault = _parse(entry)
        except ConfigurationError as error:
            raise ConfigurationError(f"faults[{i}]: {error}") from None
        if fault in faults:
            raise ConfigurationError(f"faults[{i}] is faults[{faults.index(fault)}] again. Remove one, or use updates.")
        faults.append(fault)
    return faults


def _parse(entry: Any) -> Fault:
    if not isinstance(entry, Mapping):
        raise ConfigurationError(f"a fault is a mapping such as {{kind: gradient_nan, step: 600}}, got {entry!r}.")
    names = [field.name for field in fields(Fault)]
    for key in entry:
        if key not in names:
            raise ConfigurationError(
                f"there is no {key!r}.{did_you_mean(str(key), names)} Keys are {', '.join(names)}."
            )
    for field in fields(Fault):
        if field.default is MISSING and field.name not in entry:
            raise ConfigurationError(f"{field.name} is missing, e.g. {{kind: gradient_nan, step: 600}}.")
    return Fault(**entry)
