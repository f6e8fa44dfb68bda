"""The engine of one optimizer: clamps and learns inside its ``step()``."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from sp4_lightning.admission import admit
from sp4_lightning.arrays import Array, namespace, view
from sp4_lightning.backends import choose_backend
from sp4_lightning.dynamics import Dynamics
from sp4_lightning.errors import ConfigurationError, SkipStreakError
from sp4_lightning.groups import ParamGroup, matching
from sp4_lightning.held import Held
from sp4_lightning.hyper import Hyper, HyperSource
from sp4_lightning.quantities import EXP_AVG, GRAD, QUANTITIES, Quantity
from sp4_lightning.scaling import Unscaled
from sp4_lightning.settings import Settings
from sp4_lightning.skip import skipper_for
from sp4_lightning.state import TensorState
from sp4_lightning.step import Step
from sp4_lightning.switch import Phase, Switch
from sp4_lightning.table import BoundsTable


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
        groups: The names of the groups this optimizer holds parameters of.
        tally: int64 ``[3 + len(groups)]`` counters, see :attr:`steps` and its neighbours.
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
        self.groups = list(dict.fromkeys(self.held.group))
        self.state = TensorState.fresh(
            len(self.held), settings.learned.observations(settings.learned.window, self.update_every), device
        )
        self.tally = torch.zeros(3 + len(self.groups), dtype=torch.int64, device=device)
        self._tally = view(self.tally)
        self.calls = 0

        self._skipper = skipper_for(optimizer, device)
        self._unscaled = Unscaled()
        self._parameters = sum(len(group["params"]) for group in optimizer.param_groups)
        self._hyper = HyperSource(optimizer, self.held.torch_group, device)
        self._sizes = view(torch.tensor([param.numel() for param in self.held.params], device=device))
        self._members = view(
            torch.tensor([[g == group for g in self.held.group] for group in self.groups], device=device)
        )
        self._protects = view(torch.tensor([self.protects(quantity) for quantity in QUANTITIES], device=device))
        self._pending: Step | None = None
        self.join(switch, table)
        self.state.ratio_sq[...] = self._constants().ratio_start
        self.accept_state(parameters=True)

    def step_is_bounded(self, tensor: int) -> bool:
        """Whether one tensor's parameter has an exact bound with the optimizer's options as they are."""
        return bool(self._constants().reach(self.state.ratio_sq)[tensor] < math.inf)

    @property
    def steps(self) -> Tensor:
        """0-d int64: executed updates."""
        return self.tally[0]

    @property
    def skipped(self) -> Tensor:
        """0-d int64: updates that were not executed because a gradient was not finite."""
        return self.tally[1]

    @property
    def streak(self) -> Tensor:
        """0-d int64: how many of them in a row until now."""
        return self.tally[2]

    @property
    def observed(self) -> Tensor:
        """int64 ``[len(groups)]``: executed updates in which each group had a gradient."""
        return self.tally[3:]

    def join(self, switch: Switch, table: BoundsTable) -> None:
        """Share a run's switch and table with its other engines.

        Raises:
            ConfigurationError: The table lacks one of the engine's groups.
        """
        self.switch = switch
        self.table = table
        self._phase = view(switch.phase)
        self._columns = [table.column(group) for group in self.groups]

    def protects(self, quantity: Quantity) -> list[bool]:
        """Per tensor, whether this quantity has not been switched off for its group."""
        patterns = [pattern for pattern, quantities in self.settings.off.items() if quantity in quantities]
        off = {group for pattern in patterns for group in matching(pattern, self.groups)}
        return [group not in off for group in self.held.group]

    def dynamics_of_tensor(self, tensor: int) -> Dynamics:
        """What the optimizer does with one of its tensors."""
        return self._hyper.dynamics[self.held.torch_group[tensor]]

    def start(self) -> None:
        """Before anything else in a step: what an interrupted one has left undone is undone."""
        self._undo()
        self._skipper.start(self.optimizer)

    def before(self) -> None:
        """Between the gradients and the update: skip, repair and clamp."""
        # NumPy warns of what IEEE arithmetic does with an infinite bound or a non-finite gradient; all of it is meant.
        with torch.no_grad(), np.errstate(all="ignore"):
            self._unscaled.begin(self.optimizer)
            step = self._view()
            try:
                self.backend.protect(step)
            except (RuntimeError, TypeError):
                self.held.refuse_sparse(step.tensors[GRAD])
                raise
        self._moments_known = True
        skip = step.skip & (step.phase > Phase.OBSERVE)
        vetoed = False if step.vetoed is None else view((step.vetoed > 0).any())
        step.executed = (skip | vetoed) == 0
        self._pending = step
        self._skipper.begin(self.optimizer, skip)

    def after(self) -> None:
        """Behind the update: learn, publish and count.

        Raises:
            SkipStreakError: On a CPU, the streak of skips has reached ``raise_after_skips``.
        """
        self._undo()
        step, self._pending = self._pending, None
        if step is None:  # the optimizer did not call its closure
            return
        with np.errstate(all="ignore"):
            self.backend.learn(step)
            if step.learns:
                self.publish()
        self._written = self.held.versions()
        self.calls += 1
        self._count(step)

    def _undo(self) -> None:
        self._skipper.end(self.optimizer)
        self._unscaled.end(self.optimizer)

    def _count(self, step: Step) -> None:
        tally, skipped = self._tally, step.skip & (step.phase > Phase.OBSERVE)
        tally[0] += step.executed
        tally[1] += skipped
        tally[2] = (tally[2] + 1) * skipped
        tally[3:] += step.executed if step.clean else (self._members & (step.usable & step.executed)).any(1)
        if self.device.type == "cpu" and skipped:
            self.check_streak(int(tally[2]))

    def check_streak(self, streak: int) -> None:
        """Be loud about a streak of skips, whose length has been read from the device.

        Raises:
            SkipStreakError: It has reached ``raise_after_skips``.
        """
        limit = self.settings.raise_after_skips
        if limit is not None and streak >= limit:
            raise SkipStreakError(
                f"{self.name} has skipped {streak} updates in a row: its gradients are not finite. Look at the loss "
                f"and the batches, or raise raise_after_skips (now {limit})."
            )
        if streak == self.settings.max_skip_streak:
            warnings.warn(
                f"{self.name} has skipped {streak} updates in a row: its gradients are not finite, nothing is learned.",
                stacklevel=2,
            )

    def publish(self) -> None:
        """Write each group's largest bound to the table.

        A tensor that has never had a gradient has no bound and needs none, so it does not hold its group's grad
        bound at +inf.
        """
        xp, bound, values = namespace(self.state.bound), self.state.bound, view(self.table.values)
        shown = xp.where(self._nothing_seen(), 0.0, bound)
        largest = xp.amax(xp.where(self._members, shown[:, None], 0.0), -1)
        values[:, self._columns] = xp.where(largest > 0, largest, math.inf)
        self._met = self._sizes * xp.isfinite(bound[GRAD])

    def _nothing_seen(self) -> Array:
        rows = self._flags([quantity == "grad" for quantity in QUANTITIES])
        return rows[:, None] & (self.state.seen == 0)

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
        self.state.ratio_sq[tensors] = self._constants().ratio_start[tensors]
        self.accept_state(parameters=False)

    def on_optimizer_loaded(self) -> None:
        """The optimizer has loaded another state: its moments, and the betas that made them, are taken as they are."""
        self.state.bound[EXP_AVG:] = math.inf
        self.state.ratio_sq[...] = self._constants().ratio_start
        self.accept_state(parameters=False)

    def accept_state(self, parameters: bool) -> None:
        """Go on from :attr:`state`, which has been written from outside.

        Args:
            parameters: The parameters as they are now belong to it; otherwise edits of them are still to be found.
        """
        if parameters:
            self._written = self.held.versions()
        # At the next step moments' bounds of +inf start from the optimizer's state.
        self._moments_known = False
        self._ratio_of: Hyper | None = None
        self._hyper.ratio_moves |= bool((self.state.ratio_sq != self._constants().ratio_start).any())
        self.publish()

    def _tensors_of(self, groups: Collection[str] | None) -> list[int]:
        wanted = self.groups if groups is None else groups
        return [i for i, group in enumerate(self.held.group) if group in wanted]

    def _view(self) -> Step:
        grads = self.held.grads()
        keys = [(d.exp_avg_key, d.exp_avg_sq_key) for d in self._hyper.dynamics]
        exp_avg, exp_avg_sq = self.held.moments(self.optimizer, keys)
        hyper, lr = self._refresh(self.held.moment_dtypes(exp_avg))
        if hyper is not self._ratio_of or self._hyper.ratio_moves:
            self._ratio_of = hyper
            self._ratio_limit_sq, self._reach = hyper.limit_ratio(self.state.ratio_sq), hyper.reach(self.state.ratio_sq)
        there = [grad is not None for grad in grads]
        # Until the trackers can be armed every update is observed.
        every = 1 if self.calls < self.settings.learned.arm_after else self.update_every
        return Step(
            tensors=(self.held.found, grads, exp_avg, exp_avg_sq),
            edited=self._edited(),
            present=None if all(there) else self._flags(there),
            met=self._met,
            protects=self._protects,
            hyper=hyper,
            lr=lr,
            state=self.state,
            learned=self.settings.learned,
            # A plain number where the host may look: NumPy compares its scalars with an enum a hundred times slower.
            phase=int(self._phase) if self.device.type == "cpu" else self._phase,
            every=every,
            update_every=self.update_every,
            learns=self.calls % every == 0,
            moments_known=self._moments_known,
            ratio_moves=self._hyper.ratio_moves,
            ratio_limit_sq=self._ratio_limit_sq,
            reach=self._reach,
            vetoed=getattr(self.optimizer, "found_inf", None),
        )

    def _refresh(self, dtypes: list[torch.dtype]) -> tuple[Hyper, Array | float]:
        groups = self.optimizer.param_groups
        if sum(len(group["params"]) for group in groups) != self._parameters:
            raise ConfigurationError(
                f"{self.name} has been given other parameters since the engine was attached. Attach a new one."
            )
        return self._hyper.refresh(groups, dtypes)

    def _constants(self) -> Hyper:
        return self._refresh(self.held.moment_dtypes([None] * len(self.held)))[0]

    def _edited(self) -> Array | None:
        now = self.held.versions()
        if now == self._written:
            return None
        return self._flags([a != b for a, b in zip(now, self._written, strict=True)])

    def _flags(self, flags: Sequence[bool]) -> Array:
        return view(torch.tensor(flags, dtype=torch.bool, device=self.device))
