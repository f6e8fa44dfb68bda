"""Settings of the protection, checked where they are made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from sp4_lightning.errors import ConfigurationError
from sp4_lightning.naming import did_you_mean
from sp4_lightning.quantities import QUANTITIES, Quantity

Mode = Literal["observe", "enforce"]
BackendName = Literal["torch", "cpp", "cuda"]


@dataclass(frozen=True)
class LearnedBound:
    """How the gradient's bound follows its history (see :mod:`sp4_lightning.tracker`).

    The figures that chose the defaults are quoted in :mod:`sp4_lightning.tracker`.
    """

    quantile: float = 0.999
    """The tracked quantile of the finite non-zero ``|grad|`` of one tensor."""
    arm_after: int = 64
    """Updates with a valid observation before the bound is finite."""
    window: int = 1024
    """Updates whose quantiles are remembered."""
    rank: int = 25
    """The level is the rank-th largest of them: what has come fewer times is not believed, so a burst of up to
    ``rank - 1`` updates does not move the bound."""
    rise: float = 1.07
    """Largest factor by which one update can raise the level."""
    fall: float = 1.01
    """Largest factor by which one update can lower the level."""
    headroom: float = 16.0
    """Factor between level and bound."""
    budget: float = 400.0
    """Beyond the bound an element is clamped to ``sqrt(budget * v̂)``, see :mod:`sp4_lightning.budget`; this is the
    largest budget, in squared sigmas. Infinity, for it and ``refill``, leaves it at the bound."""
    refill: float = 15.0
    """What the budget gains with every update after it has been spent."""

    def __post_init__(self) -> None:
        _require(0.5 <= self.quantile <= 1, "learned.quantile", self.quantile, "between 0.5 and 1")
        _require(self.arm_after >= 2, "learned.arm_after", self.arm_after, "at least 2")
        _require(1 <= self.rank <= self.arm_after, "learned.rank", self.rank, f"1 to arm_after ({self.arm_after})")
        _require(self.window >= self.arm_after, "learned.window", self.window, f"at least arm_after ({self.arm_after})")
        _require(1 < self.rise <= 10, "learned.rise", self.rise, "above 1 and at most 10")
        _require(1 < self.fall <= 10, "learned.fall", self.fall, "above 1 and at most 10")
        _require(1 <= self.headroom < math.inf, "learned.headroom", self.headroom, "finite and at least 1")
        _require(self.refill > 0, "learned.refill", self.refill, "above 0")
        _require(self.budget >= self.refill, "learned.budget", self.budget, f"at least refill ({self.refill})")

    def observations(self, updates: int, every: int) -> int:
        """How many observations a number of updates comes to when every N-th one is observed."""
        return math.ceil(updates / every)


@dataclass(frozen=True)
class Settings:
    """Everything about the protection that does not depend on the model.

    Raises:
        ConfigurationError: A value is out of range or a name is unknown.
    """

    mode: Mode = "enforce"
    """``observe`` changes nothing and reports what would have been clamped."""
    warmup_steps: int = 500
    """Executed updates every trained group must have before the learned bounds are applied."""
    update_every: int | None = None
    """Count and learn on every N-th update (skip, repair and clamp act on every update). ``None`` chooses 1 on a GPU
    and 8 on a CPU (``benchmarks/README.md``; ``docs/rule.md`` says what that gives up). A checkpoint that was learned
    with another number is resampled when it is loaded."""
    disable: Mapping[str, Sequence[Quantity]] = field(default_factory=dict)
    """Group name or glob -> quantities that are left alone."""
    max_skip_streak: int = 20
    """Warn when an optimizer has skipped this many updates in a row."""
    raise_after_skips: int | None = None
    """Raise when an optimizer has skipped this many updates in a row; ``None`` never raises."""
    learned: LearnedBound = field(default_factory=LearnedBound)
    """How the gradient's bound is learned."""
    backend: BackendName | None = None
    """``None`` chooses the fastest backend that works on the parameters' device."""

    def __post_init__(self) -> None:
        if self.mode not in ("observe", "enforce"):
            raise ConfigurationError(f"mode must be 'observe' or 'enforce', got {self.mode!r}.")
        if self.backend not in (None, *get_args(BackendName)):
            raise ConfigurationError(f"backend must be 'torch', 'cpp', 'cuda' or None, got {self.backend!r}.")
        _require(self.warmup_steps >= 0, "warmup_steps", self.warmup_steps, "0 or more")
        _require(self.update_every is None or self.update_every >= 1, "update_every", self.update_every, "1 or more")
        _require(self.max_skip_streak >= 1, "max_skip_streak", self.max_skip_streak, "1 or more")
        _require(
            self.raise_after_skips is None or self.raise_after_skips >= 1,
            "raise_after_skips",
            self.raise_after_skips,
            "1 or more, or None",
        )
        for group, quantities in self.disable.items():
            for quantity in [quantities] if isinstance(quantities, str) else quantities:
                if quantity not in QUANTITIES:
                    raise ConfigurationError(
                        f"disable[{group!r}] names the unknown quantity {quantity!r}."
                        f"{did_you_mean(str(quantity), QUANTITIES)} Quantities are {', '.join(QUANTITIES)}."
                    )
            if isinstance(quantities, str):
                raise ConfigurationError(f"disable[{group!r}] must be a list of quantities, got {quantities!r}.")
            if ("exp_avg" in quantities) != ("exp_avg_sq" in quantities):
                raise ConfigurationError(
                    f"disable[{group!r}] = {list(quantities)!r} names one of exp_avg and exp_avg_sq. They are repaired "
                    f"as a pair (an exp_avg_sq clamped alone would blow the update up): name both or neither."
                )


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    # A NaN fails every comparison, so it is refused here like any other bad value.
    if not holds:
        raise ConfigurationError(f"{name} must be {allowed}, got {value!r}.")
