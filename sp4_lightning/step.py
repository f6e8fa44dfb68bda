"""One step's view of an optimizer: its tensors now, and what has been found out about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from sp4_lightning.arrays import Array
from sp4_lightning.held import Found
from sp4_lightning.hyper import Hyper
from sp4_lightning.publication import Publication
from sp4_lightning.settings import LearnedBound
from sp4_lightning.state import TensorState


@dataclass(slots=True)
class Step:
    """T protected tensors: lists have one entry for each, None where there is no such tensor."""

    tensors: tuple[Found, Found, Found, Found]
    """param, grad, exp_avg, exp_avg_sq."""
    edited: Sequence[bool] | None
    """On the host: the parameter was written by somebody else since the last step; None: none was."""
    present: Sequence[bool] | None
    """On the host: there is a gradient; None: there is one for every tensor."""
    publication: Publication
    """Where the bounds are published when they have been learned."""
    protects: Array
    """bool ``[4, T]``: the quantity's protection is not switched off."""
    hyper: Hyper
    lr: Array | float
    """The learning rate, float64 ``[T]`` or one for all tensors."""
    state: TensorState
    ratio_limit_sq: Array
    """float64 ``[T]``: c² with its slack; +inf where the consistency rule is off."""
    reach: Array
    """float64 ``[T]``: the part of the largest step that gradients do not change, in learning rates."""
    ratio_moves: bool
    """c follows its recursion; otherwise it is at its fixed point."""
    moments_known: bool
    """The moments' bounds have been started from the optimizer's state."""
    learned: LearnedBound
    phase: Array | int
    """See :class:`~sp4_lightning.switch.Phase`."""
    every: int
    """How many updates one observation stands for."""
    learns: bool
    """This step counts and learns."""
    vetoed: Tensor | None
    """Above zero where a GradScaler keeps the update from being executed; None: there is none."""

    largest: Array = field(init=False)
    """float64 ``[4, T]``: each tensor's largest magnitude, NaN or inf where an element is; 0 where there is none."""
    limit: Array = field(init=False)
    """float64 ``[4, T]``: the bounds with their slack, as they are enforced."""
    within: Array = field(init=False)
    """bool ``[4, T]``: ``largest`` is below ``limit``."""
    consistent: Array = field(init=False)
    """bool ``[T]``: ``exp_avg² / c² <= exp_avg_sq`` holds for every element."""
    clean: bool = field(init=False)
    """Known on the host: every tensor has a gradient and all of them are within their bounds."""
    acting: Array = field(init=False)
    """float64 ``[T]``: largest ``|grad|`` that the update sees."""
    usable: Array = field(init=False)
    """bool ``[T]``: there is a gradient and all of it is finite."""
    skip: Array = field(init=False)
    """0-d: the update must not be executed. A bool, or a float32 that is not 0."""
    executed: Array = field(init=False)
    """0-d bool: the update was executed."""
