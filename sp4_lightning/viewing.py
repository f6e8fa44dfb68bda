"""Looking at an optimizer anew at every step: its tensors, its hyperparameters, and what others have changed."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from sp4_lightning.arrays import Array
from sp4_lightning.dynamics import Dynamics, is_known
from sp4_lightning.errors import ConfigurationError
from sp4_lightning.held import Held
from sp4_lightning.hyper import Hyper, HyperSource
from sp4_lightning.state import TensorState
from sp4_lightning.step import Step


class Viewer:
    """Makes the :class:`~sp4_lightning.step.Step` of each step.

    Args:
        optimizer: The optimizer.
        held: Its protected tensors.
        state: What is remembered about them.
        name: What errors call the optimizer.
    """

    def __init__(self, optimizer: Optimizer, held: Held, state: TensorState, name: str) -> None:
        self._optimizer = optimizer
        self._held = held
        self._state = state
        self._name = name
        self._known = is_known(optimizer)
        self._parameters = self._identify_parameters()
        self._hyper = HyperSource(optimizer, held.torch_group, held.params[0].device)
        self._written: list[int] = []
        self._moments_known = False
        self._ratio_of: Hyper | None = None
        state.ratio_sq[...] = self.constants().ratio_start
        self.accept_state(parameters=True)

    def look(self, **settings: Any) -> Step:
        """The step that is about to be made.

        Args:
            settings: The fields of the step that do not come from the optimizer.

        Raises:
            ConfigurationError: The optimizer has been given other parameters.
        """
        grads = self._held.grads()
        keys = [(d.exp_avg_key, d.exp_avg_sq_key) for d in self._hyper.dynamics]
        exp_avg, exp_avg_sq = self._held.moments(self._optimizer, keys)
        if not self._known:
            exp_avg, exp_avg_sq = self._held.fitting(exp_avg), self._held.fitting(exp_avg_sq)
        hyper, lr = self._refresh(self._held.moment_dtypes(exp_avg))
        if hyper is not self._ratio_of or self._hyper.ratio_moves:
            self._ratio_of = hyper
            if self._hyper.ratio_moves:
                hyper.cap_ratio(self._state.ratio_sq)
            self._ratio_limit_sq = hyper.limit_ratio(self._state.ratio_sq)
            self._reach = hyper.reach(self._state.ratio_sq)
            # An option may have brought a recursion that was not there before, such as momentum.
            self._moments_known = False
        there = [grad is not None for grad in grads]
        return Step(
            tensors=(self._held.found, grads, exp_avg, exp_avg_sq),
            edited=self._edited(),
            present=None if all(there) else there,
            hyper=hyper,
            lr=lr,
            state=self._state,
            moments_known=self._moments_known,
            ratio_moves=self._hyper.ratio_moves,
            ratio_limit_sq=self._ratio_limit_sq,
            reach=self._reach,
            vetoed=getattr(self._optimizer, "found_inf", None),
            **settings,
        )

    def leave(self) -> None:
        """The update has been made: what is written to the parameters from now on is somebody else's."""
        self._written = self._held.versions()
        # Not before: a step that an exception ends may not have started their bounds.
        self._moments_known = True

    def accept_state(self, parameters: bool) -> None:
        """Go on from the state, which has been written from outside.

        Args:
            parameters: The parameters as they are now belong to it; otherwise edits of them are still to be found.
        """
        if parameters:
            self.leave()
        # At the next step moments' bounds of +inf start from the optimizer's state.
        self._moments_known = False
        self._ratio_of = None
        self._hyper.ratio_moves |= bool((self._state.ratio_sq != self.constants().ratio_constant).any())

    def constants(self) -> Hyper:
        """The constants of the rules with the optimizer's options as they are."""
        return self._refresh(self._held.moment_dtypes([None] * len(self._held)))[0]

    def dynamics_of(self, tensor: int) -> Dynamics:
        """What the optimizer does with one of its tensors."""
        return self._hyper.dynamics[self._held.torch_group[tensor]]

    def _refresh(self, dtypes: list[torch.dtype]) -> tuple[Hyper, Array | float]:
        if self._identify_parameters() != self._parameters:
            raise ConfigurationError(
                f"{self._name} has been given other parameters since the engine was attached. Attach a new one."
            )
        return self._hyper.refresh(self._optimizer.param_groups, dtypes)

    def _identify_parameters(self) -> list[int]:
        return [id(param) for group in self._optimizer.param_groups for param in group["params"]]

    def _edited(self) -> list[bool] | None:
        now = self._held.versions()
        return None if now == self._written else [a != b for a, b in zip(now, self._written, strict=True)]
