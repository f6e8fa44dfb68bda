"""What is trained in the fault suite: a task is a LightningModule with a score, a probe and frozen batches."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from benchmarks.faults.tasks.task import Task
from sp4_lightning.errors import ConfigurationError
from sp4_lightning.naming import did_you_mean

__all__ = ["KINDS", "Task", "make_task"]

KINDS = {"agent": "AgentTask", "digits": "DigitsTask", "minatar": "MinAtarTask"}
"""Classes by the module that has them; one is imported when a suite names it, for some need packages of their own."""


def make_task(kind: str, configs: Sequence[str], overrides: dict[str, Any]) -> Task:
    """A task as a suite describes it.

    Raises:
        ConfigurationError: The kind, an overlay or a value does not exist, or a package is missing.
    """
    if kind not in KINDS:
        raise ConfigurationError(f"there is no kind {kind!r}.{did_you_mean(kind, KINDS)}")
    try:
        module = import_module(f"{__name__}.{kind}")
    except ImportError as error:
        raise ConfigurationError(f"{kind} needs a package: {error}. Install the extra 'bench'.") from error
    task: Task = getattr(module, KINDS[kind])(configs, overrides)
    return task
