"""A suite as its YAML file says it: tasks, methods, seeds and faults, checked before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import yaml

from benchmarks.faults.methods import check_method
from benchmarks.faults.tasks import Task, make_task
from sp4_lightning.errors import ConfigurationError
from sp4_lightning.faults.fault import parse_faults
from sp4_lightning.naming import did_you_mean

CLEAN = "F0"
"""The branch without a fault, which every task has."""

Spec = TypeVar("Spec", bound="FaultSpec | TaskSpec")


@dataclass(frozen=True)
class FaultSpec:
    """A fault of the suite.

    Attributes:
        says: What it is, in a few words.
        entries: For :class:`~sp4_lightning.FaultInjector`; steps count from the snapshot.
        groups: One branch for each of these groups that the task has, ``each`` is all of them; the name is put into
            every entry. None: one branch, with the entries as they are.
        apart: Title of another table that the fault belongs to.
    """

    says: str
    entries: list[dict[str, Any]]
    groups: list[str] | str | None = None
    apart: str | None = None

    def branches(self, name: str, groups: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
        """Entries by the branch's name, which is ``fault.group`` where there is one for every group.

        Args:
            name: The fault's.
            groups: The task's groups.
        """
        if self.groups is None:
            return {name: self.entries}
        chosen = [group for group in groups if self.groups == "each" or group in self.groups]
        return {f"{name}.{group}": [{**entry, "group": group} for entry in self.entries] for group in chosen}


@dataclass(frozen=True)
class TaskSpec:
    """A task of the suite.

    Attributes:
        kind: What trains, a name of :data:`benchmarks.faults.tasks.KINDS`.
        faults: Names of the faults that strike it.
        configs: Overlays of ``configs/``, the later one wins.
        overrides: Values that win over the overlays.
        floor: The score of one who has learned nothing.
        share: How much of the way from there to the clean branch's score must be left.
        each: Which groups ``each`` means for this task; all when left out.
        methods: Which of the suite's methods; all when left out.
    """

    kind: str
    faults: list[str]
    configs: list[str] = field(default_factory=list)
    overrides: dict[str, Any] = field(default_factory=dict)
    floor: float = 0.0
    share: float = 0.8
    each: list[str] | None = None
    methods: list[str] | None = None


@dataclass(frozen=True)
class Suite:
    """What a YAML file asks for; ``tasks`` are made, the rest is as it was written."""

    name: str
    tasks: dict[str, Task]
    specs: dict[str, TaskSpec]
    methods: list[str]
    seeds: list[int]
    faults: dict[str, FaultSpec]

    def branches(self, task: str) -> dict[str, list[dict[str, Any]]]:
        """The fault entries of all of a task's branches, the clean one first."""
        spec, made = self.specs[task], self.tasks[task]
        branches: dict[str, list[dict[str, Any]]] = {CLEAN: []}
        for name in spec.faults:
            fault = self.faults[name]
            groups = spec.each if fault.groups == "each" and spec.each is not None else made.groups
            branches |= fault.branches(name, groups)
        return branches

    def methods_of(self, task: str) -> list[str]:
        """The methods that a task is run with."""
        chosen = self.specs[task].methods
        return self.methods if chosen is None else [name for name in self.methods if name in chosen]


def read_suite(path: Path, only: Sequence[str] | None = None) -> Suite:
    """Read and check a suite.

    Args:
        path: The YAML file.
        only: Names of the tasks to take; None takes all.

    Raises:
        ConfigurationError: It is wrong; the message names the key.
    """
    try:
        content = yaml.load(path.read_text(), _Loader)
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    keys = ["tasks", "methods", "seeds", "faults"]
    top = _mapping(content, path.name)
    _check_keys(top, keys, keys, path.name)
    faults = {name: _fault(entry, f"faults.{name}") for name, entry in _mapping(top["faults"], "faults").items()}
    specs = {name: _build(TaskSpec, entry, f"tasks.{name}") for name, entry in _mapping(top["tasks"], "tasks").items()}
    methods = _list(top["methods"], str, "methods")
    for method in methods:
        check_method(method)
    seeds = _list(top["seeds"], int, "seeds")
    _check_names(only or (), specs, "--tasks")
    chosen = [name for name in specs if only is None or name in only]
    tasks = {name: _task(name, specs[name], faults, methods) for name in chosen}
    return Suite(path.stem, tasks, specs, methods, seeds, faults)


def _task(name: str, spec: TaskSpec, faults: Mapping[str, FaultSpec], methods: list[str]) -> Task:
    where = f"tasks.{name}"
    try:
        task = make_task(spec.kind, spec.configs, spec.overrides)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    _check_names(spec.faults, faults, f"{where}.faults")
    _check_names(spec.each or (), task.groups, f"{where}.each")
    _check_names(spec.methods or (), methods, f"{where}.methods")
    for fault in spec.faults:
        if not faults[fault].branches(fault, task.groups):
            raise ConfigurationError(
                f"{where}.faults: {fault} is for {faults[fault].groups}, but the groups are {', '.join(task.groups)}."
            )
    return task


def _fault(entry: Any, where: str) -> FaultSpec:
    fault = _build(FaultSpec, entry, where)
    try:
        parse_faults(fault.entries)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    return fault


def _build(cls: type[Spec], entry: Any, where: str) -> Spec:
    values = _mapping(entry, where)
    needed = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    _check_keys(values, [f.name for f in fields(cls)], needed, where)
    return cls(**values)


def _check_keys(values: Mapping[str, Any], known: list[str], needed: list[str], where: str) -> None:
    for key in values:
        if key not in known:
            raise ConfigurationError(
                f"{where}: there is no key {key!r}.{did_you_mean(str(key), known)} Keys are {', '.join(known)}."
            )
    for key in needed:
        if key not in values:
            raise ConfigurationError(f"{where}: {key} is missing.")


def _check_names(names: Iterable[str], known: Iterable[str], where: str) -> None:
    for name in names:
        if name not in known:
            raise ConfigurationError(f"{where}: there is no {name!r}.{did_you_mean(str(name), known)}")


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigurationError(f"{where} must be a mapping, got {value!r}.")
    return value


def _list(value: Any, kind: type, where: str) -> list[Any]:
    if not isinstance(value, list) or not value or not all(isinstance(entry, kind) for entry in value):
        raise ConfigurationError(f"{where} must be a list of {kind.__name__}, got {value!r}.")
    return value


class _Loader(yaml.SafeLoader):
    """YAML 1.1 takes 1e4 for a text; here it is a number, as on the command line of ``sp4``."""


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), None)
