"""What an engine asks of a backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from sp4_lightning.arrays import Array
from sp4_lightning.settings import BackendName
from sp4_lightning.step import Step


class Backend(ABC):
    """Around one update: :meth:`protect`, then :meth:`learn`.

    Args:
        params: The protected parameters of one optimizer.
    """

    name: ClassVar[BackendName]
    update_every: ClassVar[int]
    """How often to count and learn unless the user says."""

    def __init__(self, params: Sequence[Tensor]) -> None:
        self._params = params

    def __reduce__(self) -> tuple[type[Backend], tuple[Sequence[Tensor]]]:
        """A copy or a pickle is made from the parameters: what else there is lies at addresses of the original."""
        return type(self), (self._params,)

    @abstractmethod
    def protect(self, step: Step) -> None:
        """Read every tensor once, set the step's ``skip``, mend the moments and parameters, clamp the gradients."""

    @abstractmethod
    def learn(self, step: Step, tally: Array) -> None:
        """Behind the update: advance every bound, publish the learned ones, and count the step in the tally."""
