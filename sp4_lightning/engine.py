"""The engine of one optimizer: clamps and learns inside its ``step()``."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch.optim import Optimizer

from sp4_lightning.admission import admit
from sp4_lightning.arrays import view
from sp4_lightning.backends import choose_backend
from sp4_lightning.errors import ConfigurationError
from sp4_lightning.groups import ParamGroup, matching
from sp4_lightning.held import Held
from sp4_lightning.publication import Publication
from sp4_lightning.quantities import EXP_AVG, GRAD, QUANTITIES, Quantity
from sp4_lightning.scaling import Unscaled
from sp4_lightning.settings import Settings
from sp4_lightning.skip import skipper_for
from sp4_lightning.state import TensorState
from sp4_lightning.step import Step
from sp4_lightning.streak import check_streak
from sp4_lightning.switch import Switch
from sp4_lightning.table import BoundsTable
from sp4_lightning.viewing import Viewer


class Engine:
    """Protects the tensors of one optimizer.

    :meth:`start` opens a step, :meth:`before` runs between the gradients and the update, :meth:`after` behind it;
    :class:`~sp4_lightning.attach.Attachment` calls them from the optimizer's step hooks.

    Args:
        optimizer: A torch optimizer.
        groups: The groups of the whole run; the engine takes the parameters that this optimizer holds.
        settings: What to do.
        switch: The phase, shared by all engines of a run.
        table: Where group bounds are published, shared likewise.
        name: What reports call the optimizer.

    Attributes:
        held: The protected tensors.
        state: What is remembered about each of them.
        viewer: Looks at the optimizer anew at every step.
        groups: The names of the groups this optimizer holds parameters of.
        tally: int64 ``[3 + len(groups)]``, the next four in one:
        steps: 0-d, executed updates.
        skipped: 0-d, updates that were not executed because a gradient was not finite.
        streak: 0-d, how many of them in a row until now.
        observed: ``[len(groups)]``, executed updates in which each group had a gradient.
        calls: Updates, executed or not; on the host.

    Raises:
        ConfigurationError: The optimizer holds no parameter of any group.
        UnsupportedError: It holds a tensor, or has an option, that cannot be protected.
        BackendError: The backend asked for cannot be had.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        groups: Sequence[ParamGroup],
        settings: Settings,
        switch: Switch,
        table: BoundsTable,
        name: str | None = None,
    ) -> None:
        self.optimizer = optimizer
        self.settings = settings
        self.name = name or type(optimizer).__name__
        self.held = Held.by(optimizer, groups)
        self.device = device = admit(optimizer, self.held, self.name, settings.mode)
        self.backend = choose_backend(settings.backend, self.held.params)
        self.update_every = settings.update_every or self.backend.update_every
        self.state = TensorState.fresh(
            len(self.held), settings.learned.observations(settings.learned.window, self.update_every), device
        )
        self.join(switch, table)
        self.tally = torch.zeros(3 + len(self.groups), dtype=torch.int64, device=device)
        # Views, which stay valid: counters only ever change in place.
        self.steps, self.skipped, self.streak = self.tally[:3].unbind()
        self.observed = self.tally[3:]
        self.calls = 0

        self._skipper = skipper_for(optimizer, device, settings.mode)
        self._unscaled = Unscaled()
        self._tally = view(self.tally)
        self.viewer = Viewer(optimizer, self.held, self.state, self.name)
        self._protects = view(torch.tensor([self.protects(quantity) for quantity in QUANTITIES], device=device))
        self._pending: Step | None = None
        self.publish()

    def join(self, switch: Switch, table: BoundsTable) -> None:
        """Share a run's switch and table with its other engines.

        Raises:
            ConfigurationError: The table lacks one of the engine's groups.
        """
        self.switch = switch
        self.table = table
        self._phase = view(switch.phase)
        self._publication = Publication(self.state, self.held.group, table)
        self.groups = self._publication.groups

    def protects(self, quantity: Quantity) -> list[bool]:
        """Per tensor, whether this quantity has not been switched off for its group."""
        patterns = [pattern for pattern, quantities in self.settings.disable.items() if quantity in quantities]
        off = {group for pattern in patterns for group in matching(pattern, self.groups)}
        return [group not in off for group in self.held.group]

    def start(self) -> None:
        """Before anything else in a step."""
        self.drop()
        self._skipper.start(self.optimizer)

    def drop(self) -> None:
        """Forget a step that an exception has ended, wherever it was raised; harmless when there is none."""
        self._skipper.drop(self.optimizer)
        self._unscaled.drop()
        if self._pending is not None:
            # The update may have been made, in part even, without the bounds having followed.
            self._pending = None
            self.state.bound[EXP_AVG:] = math.inf
            self.accept_state(parameters=False)

    @property
    def settled(self) -> bool:
        """The step will be undone whatever its further evaluations bring: they need no :meth:`before`."""
        return self._skipper.undoes

    def before(self) -> None:
        """Between the gradients and the update: skip, repair and clamp."""
        self._unscaled.begin(self.optimizer)
        step = self._look()
        try:
            self.backend.protect(step)
        except (RuntimeError, TypeError):
            self.held.refuse_sparse(step.tensors[GRAD])
            raise
        self._pending = step
        self._skipper.begin(self.optimizer, step.skip)

    def after(self) -> None:
        """Behind the update: learn, publish and count.

        Raises:
            SkipStreakError: On a CPU, the streak of skips has reached ``raise_after_skips``.
        """
        self._undo()
        step = self._pending
        if step is None:  # the optimizer did not call its closure
            return
        self.backend.learn(step, self._tally)
        # Only now: what an interrupt leaves half learned is dropped at the next start.
        self._pending = None
        self.viewer.leave()
        self.calls += 1
        if self.device.type == "cpu" and step.skip:
            check_streak(self.name, int(self.streak), self.settings)

    def _look(self) -> Step:
        return self.viewer.look(
            publication=self._publication,
            protects=self._protects,
            learned=self.settings.learned,
            # A plain number where the host may look: NumPy compares its scalars with an enum a hundred times slower.
            phase=int(self._phase) if self.device.type == "cpu" else self._phase,
            every=self.update_every,
            learns=self.calls % self.update_every == 0,
        )

    def _undo(self) -> None:
        self._skipper.end(self.optimizer)
        self._unscaled.end(self.optimizer)

    def publish(self) -> None:
        """Write each group's largest bound to the table."""
        self._publication.publish()

    def notify_scale_change(self, factor: float, groups: Collection[str] | None = None) -> None:
        """Announce that gradients will be ``factor`` times as large from now on, e.g. after rescaling rewards.

        The learned bound is multiplied. The bounds of exp_avg and exp_avg_sq need no announcement: they are
        recursions over the clamped gradients and follow by themselves, and scaled down they would clamp a healthy
        state.

        Args:
            factor: Positive and finite.
            groups: Group names; those this optimizer does not hold are passed over. None means all.

        Raises:
            ConfigurationError: A bad factor.
        """
        if not 0 < factor < math.inf:
            raise ConfigurationError(f"factor must be positive and finite, got {factor!r}.")
        tensors = self._tensors_of(groups)
        self.state.level[tensors] += math.log(factor)
        self.state.recent[:, tensors] += math.log(factor)
        self.state.bound[GRAD, tensors] *= factor
        self.publish()

    def reset(self, groups: Collection[str] | None = None) -> None:
        """Make groups unobserved again, e.g. after their optimizer state or weights were re-initialised.

        Args:
            groups: Group names; those this optimizer does not hold are passed over. None means all.
        """
        tensors = self._tensors_of(groups)
        self.state.forget(tensors)
        self.state.ratio_sq[tensors] = self.viewer.constants().ratio_start[tensors]
        self.accept_state(parameters=False)

    def on_optimizer_loaded(self) -> None:
        """The optimizer has loaded another state: its moments, and the betas that made them, are taken as they are."""
        self.state.bound[EXP_AVG:] = math.inf
        self.state.filled[...] = 0.0
        self.state.ratio_sq[...] = self.viewer.constants().ratio_start
        self.accept_state(parameters=False)

    def accept_state(self, parameters: bool) -> None:
        """Go on from :attr:`state`, which has been written from outside, see :meth:`Viewer.accept_state`."""
        self.viewer.accept_state(parameters)
        self.publish()

    def _tensors_of(self, groups: Collection[str] | None) -> list[int]:
        wanted = self.groups if groups is None else groups
        return [i for i, group in enumerate(self.held.group) if group in wanted]
