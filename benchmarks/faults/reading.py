"""Reading a suite from its YAML file; what is wrong is said before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

import yaml

from benchmarks.faults.methods import check_method
from benchmarks.faults.suite import FaultSpec, Suite, TaskSpec
from benchmarks.faults.tasks import Task, make_task
from sp4_lightning.errors import ConfigurationError
from sp4_lightning.faults.fault import parse_faults
from sp4_lightning.naming import did_you_mean

Spec = TypeVar("Spec", bound="FaultSpec | TaskSpec")


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
