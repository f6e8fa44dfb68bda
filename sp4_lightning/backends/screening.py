"""After a look at every tensor, decide on the skip and mend what is beyond its bounds: all that is not one kernel's.

Every rule is first *screened* with one number per tensor and then *mended* element by element. On a CPU only the
tensors that a screen names are mended. On other devices looking at the screen would wait for the device, so all
are; an element within its bounds keeps its bits either way.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch

from sp4_lightning.arrays import Array, looking_is_free, namespace, view
from sp4_lightning.backends.base import Backend
from sp4_lightning.backends.mending import mend
from sp4_lightning.quantities import EXP_AVG, EXP_AVG_SQ, GRAD, PARAM
from sp4_lightning.step import Step
from sp4_lightning.switch import Phase


class ScreeningBackend(Backend):
    """Asks for :meth:`screen` and :meth:`advance`.

    Args:
        params: The protected parameters of one optimizer.
    """

    @abstractmethod
    def screen(self, step: Step, count: bool) -> bool:
        """Read every tensor once and fill in the step's ``largest``, ``limit``, ``within`` and ``consistent``.

        Args:
            step: The step.
            count: Whether to count histograms of the gradients too, for :meth:`advance`.

        Returns:
            Whether it is known on the host that every tensor has a gradient and all is within its bounds.
        """

    @abstractmethod
    def advance(self, step: Step) -> None:
        """After the update: advance the derived bounds and, on learning steps, the learned ones; publish those."""

    def protect(self, step: Step) -> None:
        """Read every tensor once, decide on the skip, mend the moments and parameters, clamp the gradients."""
        if step.edited is not None:
            # What somebody else has written is taken as it is, until the next update bounds it again.
            bound = step.state.bound[PARAM]
            step.state.bound[PARAM] = namespace(bound).where(self._flags(step.edited), math.inf, bound)
        step.clean = self.screen(step, step.learns)
        if step.clean:
            step.usable, step.skip, step.acting = True, False, step.largest[GRAD]
        else:
            self._protect_closely(step)
        if not step.moments_known:
            _start_moment_bounds(step)
        vetoed = False if step.vetoed is None else view((step.vetoed > 0).any())
        step.executed = (step.skip | vetoed) == 0

    def learn(self, step: Step, tally: Array) -> None:
        """Advance every bound and count the step."""
        self.advance(step)
        if step.clean and step.executed:
            # One addition: operations on vectors of a few numbers cost what their number is.
            tally += step.publication.clean_tally
            tally[2] = 0
            return
        tally[0] += step.executed
        tally[1] += step.skip
        tally[2] = (tally[2] + 1) * step.skip
        tally[3:] += (step.publication.members & (step.usable & step.executed)).any(1)

    def _flags(self, flags: Sequence[bool]) -> Array:
        return view(torch.tensor(flags, dtype=torch.bool, device=self._params[0].device))

    # NumPy warns of what IEEE arithmetic does with an infinite bound or a non-finite gradient; all of it is meant.
    @torch.no_grad()
    @np.errstate(all="ignore")
    def _protect_closely(self, step: Step) -> None:
        xp = namespace(step.largest)
        # A copy, as the second look may reuse the memory of the first.
        raw = step.largest[GRAD] + 0.0
        finite = xp.isfinite(raw)
        step.usable = finite if step.present is None else self._flags(step.present) & finite
        bad = (step.protects[GRAD] & ~finite).any()
        step.skip = bad & (step.phase > Phase.OBSERVE)
        pair = step.within[EXP_AVG] & step.within[EXP_AVG_SQ] & step.consistent
        over = ~step.within & step.protects
        over[EXP_AVG] = ~pair & step.protects[EXP_AVG]
        # A skipped step's gradients are left as they are: no update sees them.
        over[GRAD] &= step.usable & ~bad
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
