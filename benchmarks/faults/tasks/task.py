"""The interface of a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor


class Task(ABC):
    """Something that can be trained, saved, resumed bit for bit, and judged.

    Its module counts its updates in ``updates``, ends the fit itself after ``total_updates``, and names the param
    groups of its optimizers.

    Attributes:
        score: The validation metric that says how good the module is: more is better, and always finite.
    """

    score: str

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Everything but the seed that a run's result depends on, as JSON keeps it."""

    @abstractmethod
    def module(self, seed: int) -> LightningModule:
        """A new module."""

    @abstractmethod
    def probe(self, checkpoint: dict[str, Any], count: int) -> Tensor:
        """Fixed inputs, drawn from what a checkpoint holds; the same ones at every call."""

    @abstractmethod
    def signal(self, module: Any, inputs: Tensor) -> float:
        """A number that moves as long as the module learns, from the probe's inputs."""

    @abstractmethod
    def batches(self, checkpoint: dict[str, Any], count: int) -> list[Any]:
        """Training batches, drawn from what a checkpoint holds; the same ones at every call."""

    @cached_property
    def groups(self) -> list[str]:
        """Names of all param groups."""
        configured: Any = self.module(0).configure_optimizers()
        optimizers = configured if isinstance(configured, list) else [configured]
        return [group["name"] for optimizer in optimizers for group in optimizer.param_groups]
