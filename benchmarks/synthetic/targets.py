"""The targets of the issue "Evidence", and what is measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from benchmarks.synthetic.figures import RECOVERED
from benchmarks.synthetic.measure import Results
from benchmarks.synthetic.streams import CV1
from benchmarks.synthetic.writing import number, table

RULES = (
    "none",
    "bound alone",
    "library",
    "budget 400/30",
    "budget 900/28",
    "budget 400, doubling",
    "rise 1.14",
    "rise 1.03",
)
SPIKES = ("x10 once", "x1e2 once", "x1e3 once", "x1e4 once", "x1e6 once")


class Target(NamedTuple):
    """One of them."""

    what: str
    most: float
    measured: Callable[[Results, str], float]
    """Of a rule."""
    figure: str = ""


def slowdown(results: Results, rule: str) -> float:
    """The worst over the tasks: its updates over plain Adam's, less 1."""
    tasks = results["learned after"].values()
    return float(max(np.median(by_rule[rule]) / np.median(by_rule["none"]) for by_rule in tasks)) - 1


def _median(figure: str, *streams: str) -> Callable[[Results, str], float]:
    return lambda results, rule: float(max(np.median(results[figure][stream][rule]) for stream in streams))


TARGETS = (
    Target("a spike of any size inflates the bound at most 1.05 times", 1.05, _median("inflation", *SPIKES)),
    Target("x100 is followed within 100 updates", 100, _median("followed", "x100")),
    Target("x1e4 is followed within 300 updates", 300, _median("followed", "x10000")),
    Target(
        "clamped in at most 0.05% of updates at noise cv 1",
        0.0005,
        lambda results, rule: float(np.mean(results["triggered"][CV1][rule])),
        "triggered",
    ),
    Target("recovered from a spike of any size within 100 updates", RECOVERED, _median("stalled", *SPIKES)),
    Target("worst slowdown of a task against plain Adam 5%", 0.05, slowdown, "triggered"),
)


def write(results: Results) -> str:
    """A row for every target; what misses it is in italics."""

    def fill(row: str, k: int) -> str:
        target = next(target for target in TARGETS if target.what == row)
        value = target.measured(results, RULES[k])
        text = number(value, target.figure)
        return f"*{text}*" if value > target.most else text

    return table("", RULES, [target.what for target in TARGETS], fill)
