"""What all backends share: after a look at every tensor, decide on the skip and mend what is beyond its bounds.

Every rule is first *screened* with one number per tensor and then *mended* element by element. On a CPU only the
tensors that a screen names are mended. On other devices looking at the screen would wait for the device, so all
are; an element within its bounds keeps its bits either way.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sp4_lightning.arrays import looking_is_free, namespace
from sp4_lightning.backends.mending import mend
from sp4_lightning.quantities import EXP_AVG, EXP_AVG_SQ, GRAD, PARAM
from sp4_lightning.settings import BackendName
from sp4_lightning.step import Step


class Backend(ABC):
    """What an engine asks for around one update: :meth:`protect`, then :meth:`learn`.

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
    def screen(self, step: Step, count: bool) -> bool:
        """Read every tensor once and fill in the step's ``largest``, ``limit``, ``within`` and ``consistent``.

        Args:
            step: The step.
            count: Whether to count histograms of the gradients too, for :meth:`learn`.

        Returns:
            Whether it is known on the host that every tensor has a gradient and all is within its bounds.
        """

    @abstractmethod
    def learn(self, step: Step) -> None:
        """After the update: advance the derived bounds and, on learning steps, the learned ones; publish those."""

    def protect(self, step: Step) -> None:
        """Read every tensor once, decide on the skip, mend the moments and parameters, clamp the gradients."""
        if step.edited is not None:
            # What somebody else has written is taken as it is, until the next update bounds it again.
            bound = step.state.bound[PARAM]
            step.state.bound[PARAM] = namespace(bound).where(step.edited, math.inf, bound)
        step.clean = self.screen(step, step.learns)
        if step.clean:
            step.usable, step.skip, step.acting = True, False, step.largest[GRAD]
        else:
            self._protect_closely(step)
        if not step.moments_known:
            _start_moment_bounds(step)

    # NumPy warns of what IEEE arithmetic does with an infinite bound or a non-finite gradient; all of it is meant.
    @torch.no_grad()
    @np.errstate(all="ignore")
    def _protect_closely(self, step: Step) -> None:
        xp = namespace(step.largest)
        # A copy, as the second look may reuse the memory of the first.
        raw = step.largest[GRAD] + 0.0
        finite = xp.isfinite(raw)
        step.usable = finite if step.present is None else step.present & finite
        step.skip = (step.protects[GRAD] & ~finite).any()
        pair = step.within[EXP_AVG] & step.within[EXP_AVG_SQ] & step.consistent
        over = ~step.within & step.protects
        over[EXP_AVG] = ~pair & step.protects[EXP_AVG]
        # A skipped step's gradients are left as they are: no update sees them.
        over[GRAD] &= step.usable & ~step.skip
        step.acting = raw
        if not looking_is_free(over) or over.any():
            mend(step, torch.as_tensor(step.limit), over)
            # What enters the update is what the derived bounds follow; what is learned is the raw gradient.
            self.screen(step, count=False)
            step.acting = step.largest[GRAD] + 0.0
            step.largest[GRAD] = raw


def _start_moment_bounds(step: Step) -> None:
    """Start bounds that have no history from the optimizer's state as it is now (zero if it has none)."""
    bound = step.state.bound[EXP_AVG:]
    xp = namespace(bound)
    # An exp_avg_sq that is negative everywhere, which only damage makes, starts at zero.
    largest = xp.clip(xp.nan_to_num(step.largest[EXP_AVG:], nan=math.inf, posinf=math.inf), 0, math.inf)
    bound[...] = xp.where(xp.isinf(bound) & step.hyper.started, largest, bound)
