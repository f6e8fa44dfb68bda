"""What is trained in the fault suite: a task is a LightningModule with a score, a probe and frozen batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.faults.tasks.agent import AgentTask
from benchmarks.faults.tasks.task import Task
from sp4_lightning.errors import ConfigurationError
from sp4_lightning.naming import did_you_mean

__all__ = ["KINDS", "Task", "make_task"]

KINDS: dict[str, Callable[[Sequence[str], dict[str, Any]], Task]] = {"agent": AgentTask}


def make_task(kind: str, configs: Sequence[str], overrides: dict[str, Any]) -> Task:
    """A task as a suite describes it.

    Raises:
        ConfigurationError: The kind, an overlay or a value does not exist.
    """
    if kind not in KINDS:
        raise ConfigurationError(f"there is no kind {kind!r}.{did_you_mean(kind, KINDS)}")
    return KINDS[kind](configs, overrides)
