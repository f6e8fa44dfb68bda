"""SP4Callback: attaches the protection to a Trainer's optimizers, flips it, saves it and logs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from sp4_lightning.errors import ConfigurationError
from sp4_lightning.groups import Patterns
from sp4_lightning.lightning_internals import log_scalars, log_step, real_optimizers, should_log
from sp4_lightning.protection import Protection
from sp4_lightning.quantities import Quantity
from sp4_lightning.report import Report, metrics
from sp4_lightning.settings import BackendName, LearnedBound, Mode, Settings
from sp4_lightning.streak import check_streak
from sp4_lightning.switch import Phase
from sp4_lightning.tables import console, coverage_table, summary_table


class SP4Callback(Callback):
    """Keeps a run alive: learned and exact clamp bounds for every tensor its optimizers hold.

    Args:
        mode: ``enforce`` skips updates with non-finite gradients and applies the exact rules from the first step,
            and the learned bounds after the flip. ``observe`` changes nothing and reports what would have been done.
        groups: Group name -> module path, glob, or a list of them (``{"trunk": "net.trunk", "biases": "*.bias"}``).
            None takes the optimizers' param groups by their ``"name"``, as ``LearningRateMonitor`` does.
        optional: Groups that may be absent from the model.
        exclude: Module paths or globs of trainable parameters to leave unprotected.
        disable: Group name or glob -> quantities (``param``, ``grad``, ``exp_avg``, ``exp_avg_sq``) to leave alone.
        warmup_steps: Updates that every group that trains must have had before the flip.
        update_every: Count and learn on every N-th update; skip, repair and clamp act on each. None chooses a
            number that was measured.
        learned: How the gradients' bounds are learned.
        max_skip_streak: Warn when an optimizer has skipped this many updates in a row.
        raise_after_skips: Raise when it has skipped this many; None never raises.
        backend: ``torch``, ``cuda``, or None for the fastest that works.
        tables: Print the coverage table when a fit starts and a summary when it ends.

    Metrics recorded (on ``log_every_n_steps``, to every logger, and in ``trainer.callback_metrics``):
        - ``sp4/phase``: 0 observe, 1 exact rules only, 2 learned bounds too.
        - ``sp4/skipped_steps``: updates not executed because a gradient was not finite, over all optimizers.
        - ``sp4/skip_streak``: the longest streak of them that lasts until now.
        - ``sp4/clip_fraction``: share of all gradient elements beyond their bound since the previous row.
        - ``sp4/clip_fraction_worst_tensor``: the same for the tensor where it is largest.
        - ``sp4-clip_fraction/{group}``: the same per group.
        - ``sp4-bound_grad/{group}``: the group's largest learned bound; inf until it is armed.
        - ``sp4-max_grad/{group}``: largest gradient element of an executed update since the previous row.
        - ``sp4-repairs/{group}``: elements of param, exp_avg and exp_avg_sq that an exact rule has mended.

    Raises:
        ConfigurationError: A setting or group that cannot be used, or a second SP4Callback in the Trainer.
        UnsupportedError: An optimizer or tensor that cannot be protected.
        CheckpointError: A checkpoint whose bounds do not fit what is trained.
        SkipStreakError: ``raise_after_skips`` was reached.

    Example::

        trainer = Trainer(callbacks=[SP4Callback()])
    """

    def __init__(
        self,
        mode: Mode = "enforce",
        groups: dict[str, str | list[str]] | None = None,
        optional: list[str] | None = None,
        exclude: list[str] | None = None,
        disable: dict[str, list[Quantity]] | None = None,
        warmup_steps: int = 500,
        update_every: int | None = None,
        learned: LearnedBound | None = None,
        max_skip_streak: int = 20,
        raise_after_skips: int | None = None,
        backend: BackendName | None = None,
        tables: bool = True,
    ) -> None:
        self.settings = Settings(
            mode=mode,
            warmup_steps=warmup_steps,
            update_every=update_every,
            disable=disable or {},
            max_skip_streak=max_skip_streak,
            raise_after_skips=raise_after_skips,
            learned=learned or LearnedBound(),
            backend=backend,
        )
        self.groups: Mapping[str, Patterns] | None = groups
        self.optional: Sequence[str] = optional or ()
        self.exclude: Sequence[str] = exclude or ()
        self.tables = tables
        self.protection: Protection | None = None
        self._saved: dict[str, Any] | None = None
        self._logged: Report | None = None
        self._logged_step: int | None = None
        self._phase = Phase.OBSERVE

    def __getstate__(self) -> dict[str, Any]:
        """A copy, or a pickle for another process, has the settings; the engines stay with this one's optimizers."""
        return {**self.__dict__, "protection": None, "_logged": None, "_logged_step": None}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a second callback, which would clamp what the first one has clamped."""
        if sum(isinstance(callback, SP4Callback) for callback in trainer.callbacks) > 1:  # type: ignore[attr-defined]
            raise ConfigurationError("The Trainer has two SP4Callbacks. Keep one; its settings cover all optimizers.")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach the engines: only now has every strategy restored everything."""
        self._detach()
        optimizers = real_optimizers(trainer)
        if not optimizers:
            self.protection = None
            rank_zero_warn("configure_optimizers returned no optimizer: SP4Callback has nothing to protect.")
            return
        self.protection = Protection(
            optimizers,
            pl_module,
            groups=dict(self.groups) if self.groups is not None else None,
            optional=self.optional,
            exclude=self.exclude,
            settings=self.settings,
        )
        self._logged, self._logged_step = None, None
        if self._saved is not None:
            self.protection.load_state_dict(self._saved)
            self._saved = None
        elif trainer.ckpt_path is not None:
            rank_zero_warn("The checkpoint holds no SP4 state: the bounds are learned anew.")
        self._phase = Phase(int(self.protection.switch.phase))
        if self.tables and trainer.is_global_zero:
            console().print(coverage_table(self.protection.coverage()))

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Flip when it is time, and log on the steps that Lightning logs."""
        if self.protection is None:
            return
        self.protection.advance()
        if should_log(trainer) and log_step(trainer) != self._logged_step:
            self._log(trainer, self.protection)

    def _log(self, trainer: Trainer, protection: Protection) -> None:
        report = protection.report()
        if report.phase is not self._phase:
            self._phase = report.phase
            rank_zero_info(f"SP4: the learned bounds are in force (step {log_step(trainer)}).")
        log_scalars(trainer, metrics(report, self._logged))
        self._logged, self._logged_step = report, log_step(trainer)
        for engine, optimizer in zip(protection.engines, report.optimizers, strict=True):
            check_streak(engine.name, optimizer.streak, engine.settings)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the summary."""
        if self.protection is not None and self.tables and trainer.is_global_zero:
            console().print(summary_table(self.protection.report()))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the optimizers as they were found."""
        self._detach()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the optimizers as they were found."""
        self._detach()

    def _detach(self) -> None:
        if self.protection is not None:
            self.protection.detach()

    def notify_scale_change(self, factor: float, groups: list[str] | None = None) -> None:
        """Announce that gradients will be ``factor`` times as large from now on, e.g. after rescaling rewards.

        Args:
            factor: Positive and finite.
            groups: Group names or globs; None means all.

        Raises:
            ConfigurationError: A bad factor, an unknown group, or no fit is running.
        """
        self._running("notify_scale_change").notify_scale_change(factor, groups)

    def reset(self, groups: list[str] | None = None) -> None:
        """Make groups unobserved again, e.g. after an optimizer reset.

        Args:
            groups: Group names or globs; None means all.

        Raises:
            ConfigurationError: An unknown group, or no fit is running.
        """
        self._running("reset").reset(groups)

    def _running(self, what: str) -> Protection:
        if self.protection is None:
            raise ConfigurationError(f"{what} needs a running fit: the optimizers are not known before.")
        return self.protection

    def state_dict(self) -> dict[str, Any]:
        """The bounds and counters; what was loaded, or nothing, before the first step of a fit."""
        if self._saved is not None or self.protection is None:
            return self._saved or {}
        return self.protection.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state until the optimizers are there."""
        self._saved = state_dict or None
