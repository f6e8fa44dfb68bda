"""The rules that are compared, by the name of their column."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from benchmarks.synthetic import bulk, elements, moments, on_alarm, rules, vote
from benchmarks.synthetic.rules import Rule
from benchmarks.synthetic.streams import GROUP
from sp4_lightning import LearnedBound, Settings

PRESENT = LearnedBound()
Make = Callable[[], Rule | Settings]


def library(every: int = 1, **changes: float) -> Settings:
    """The library's rule with some constants changed; it acts as soon as it is armed."""
    learned = replace(PRESENT, **changes)  # type: ignore[arg-type]
    return Settings(update_every=every, warmup_steps=learned.arm_after, learned=learned)


bound_alone = partial(library, budget=math.inf, refill=math.inf)
"""The library's rule without its budget: beyond the bound is clamped to the bound."""

LIBRARY: dict[str, Make] = {
    "library": library,
    "library, every 8": lambda: library(every=8),
    "bound alone": bound_alone,
    "budget 900/28": lambda: library(budget=900.0, refill=28.0),
    "budget 400/30": lambda: library(budget=400.0, refill=30.0),
    "budget 200/10": lambda: library(budget=200.0, refill=10.0),
    "rise 1.14": lambda: library(rise=1.14),
    "rise 1.03": lambda: library(rise=1.03),
}
"""The library's rule, and with other constants. Learning on every eighth update is its default on a CPU."""

TRACKERS: dict[str, Make] = {
    "mean": rules.Mean,
    "chart": rules.ControlChart,
    "vote": vote.Vote,
    "bulk rescale": bulk.Bulk,
    "tracked exp_avg_sq": moments.TrackedSquare,
    "bounded update": moments.BoundedUpdate,
}
"""Bounds for a tensor as a whole."""

ELEMENTS: dict[str, Make] = {
    "element 10": lambda: elements.Element(10.0),
    "element 30": lambda: elements.Element(30.0),
    "element bucket 900/28": lambda: elements.Bucket(900.0, 28.0),
    "bound + element 30": lambda: on_alarm.RankAndElement(30.0),
    "budget 600/20 + element 30": lambda: on_alarm.BudgetAndElement(600.0, 20.0),
    "budget 400, doubling": on_alarm.Doubling,
    "level on alarm": on_alarm.ToLevel,
    "element 1 on alarm": lambda: on_alarm.OnAlarm(1.0),
}
"""Bounds by element, and what else can be done where a tensor is beyond its bound."""

FAMILIES = (LIBRARY, TRACKERS, ELEMENTS)
CANDIDATES: dict[str, Make] = {"none": Rule, **LIBRARY, **TRACKERS, **ELEMENTS}

RESOLUTIONS: dict[str, Make] = {
    "library": library,
    "bound alone": bound_alone,
    "one bound a group": lambda: bulk.PerGroup(len(GROUP)),
}
"""One bound a tensor, or one for a group of tensors."""


def by_rank() -> dict[str, Callable[[int], Rule | Settings]]:
    """The curves of the trade-off: one rule each, over the rank; armed as soon as there are that many observations."""

    def constants(rank: int) -> dict[str, int]:
        return {"rank": rank, "arm_after": max(PRESENT.arm_after, rank)}

    return {
        "bound alone": lambda rank: bound_alone(**constants(rank)),
        "bound alone, rise 1.03": lambda rank: bound_alone(**constants(rank), rise=1.03),
        "library": lambda rank: library(**constants(rank)),
    }
