"""The rules that are compared, by the name of their column."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from benchmarks.synthetic import elements, on_alarm, rules
from benchmarks.synthetic.rules import Rule
from sp4_lightning import LearnedBound, Settings

PRESENT = LearnedBound()


def library(every: int = 1, **changes: float) -> Settings:
    """The library's rule with some constants changed; it acts as soon as it is armed."""
    learned = replace(PRESENT, **changes)  # type: ignore[arg-type]
    return Settings(update_every=every, warmup_steps=learned.arm_after, learned=learned)


CONSTANTS: dict[str, Callable[[], Rule | Settings]] = {
    "library": library,
    "library, every 8": lambda: library(every=8),
    "rank 10": lambda: library(rank=10),
    "rank 49": lambda: library(rank=49),
    "headroom 4": lambda: library(headroom=4.0),
    "headroom 64": lambda: library(headroom=64.0),
}
"""The library's rule, and with other constants. Learning on every eighth update is its default on a CPU."""

CHOSEN = "budget 400/15 on alarm"
BUDGET = (400.0, 15.0)
"""Squared sigmas that can be saved up, and saved with every update."""

CANDIDATES: dict[str, Callable[[], Rule | Settings]] = {
    "none": Rule,
    **CONSTANTS,
    "mean": rules.Mean,
    "chart": rules.ControlChart,
    "element 10": lambda: elements.Element(10.0),
    "element 30": lambda: elements.Element(30.0),
    "element bucket 900/28": lambda: elements.Bucket(900.0, 28.0),
    "library + element 30": lambda: on_alarm.RankAndElement(30.0),
    "budget 600/20 + element 30": lambda: on_alarm.BudgetAndElement(600.0, 20.0),
    "level on alarm": on_alarm.ToLevel,
    "element 1 on alarm": lambda: on_alarm.OnAlarm(1.0),
    "budget 900/28 on alarm": lambda: on_alarm.BudgetOnAlarm(900.0, 28.0),
    "budget 200/10 on alarm": lambda: on_alarm.BudgetOnAlarm(200.0, 10.0),
    CHOSEN: lambda: on_alarm.BudgetOnAlarm(*BUDGET),
}


def by_rank() -> dict[str, Callable[[int], Rule | Settings]]:
    """The curves of the trade-off: one rule each, over the rank; armed as soon as there are that many observations."""

    def constants(rank: int) -> dict[str, int]:
        return {"rank": rank, "arm_after": max(PRESENT.arm_after, rank)}

    return {
        "library": lambda rank: library(**constants(rank)),
        "library, rise 1.03": lambda rank: library(**constants(rank), rise=1.03),
        CHOSEN: lambda rank: on_alarm.BudgetOnAlarm(*BUDGET, replace(PRESENT, **constants(rank))),
    }
