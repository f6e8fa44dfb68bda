"""What a suite is: tasks, methods, seeds and faults."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.faults.tasks import Task

CLEAN = "F0"
"""The branch without a fault, which every task has."""


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
