"""Synthetic gradients of one tensor: clean histories, faults in them, genuine changes, and small learning tasks.

Kinds and sizes are those of the issue "Evidence"; a period of 250 updates with some 30 hundredfold ones is what copies
into a target network do to the agent's value heads (:mod:`sp4_lightning.tracker`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

WARM = 500
"""Updates that are not judged: the default ``warmup_steps`` of the library."""
LONG = 2200
"""Updates of clean streams, changes and tasks."""
CHANGE = 600
"""When a genuine change comes. Behind it the library's window of 1,024 can forget, and its level fall by 100."""
SHORT = WARM + 170
"""Updates of streams with a fault, which comes at ``WARM``: 60 updates of it at most, and what is left to recover."""
ELEMENTS = 64
CV1, LATE = "noise 0.83 nats (cv 1)", "1 with p = 0.1, found late"
"""Names of two streams that targets are about."""


@dataclass(frozen=True)
class Stream:
    """One tensor's gradients: ``gradients[t] + pull * weights``."""

    name: str
    gradients: Array
    """float64 ``[updates, elements]``."""
    clean: Array
    """The same without the fault."""
    start: int = WARM
    """First update of the fault or change."""
    length: int = 0
    """Updates it lasts; 0 where nothing happens."""
    pull: float = 0.0
    """Curvature of a task's loss; 0 where the weights do not matter."""
    goal: Array = field(default_factory=lambda: np.zeros(0))
    """Where a task's weights belong at the end, ``[elements]``."""


def noise(rng: np.random.Generator, updates: int, sd: float = 0.3, elements: int = ELEMENTS) -> Array:
    """Normal elements under a common lognormal scale: a minibatch's gradients, ``sd`` nats from update to update."""
    return rng.standard_normal((updates, elements)) * np.exp(sd * rng.standard_normal((updates, 1)))


def _tails(rng: np.random.Generator, freedom: float) -> Array:
    return rng.standard_t(freedom, (LONG, ELEMENTS))


def _scaled(rng: np.random.Generator, scale: Array) -> Array:
    return noise(rng, LONG) * scale[:, None]


def _between(start: int, end: int, value: float) -> Array:
    scale = np.ones(LONG)
    scale[start:end] = value
    return scale


def _one_hot(rng: np.random.Generator) -> Array:
    return noise(rng, LONG) * (np.arange(ELEMENTS) == rng.integers(0, ELEMENTS, LONG)[:, None])


def scales(rng: np.random.Generator) -> Array:
    """Lognormal scales, sd 2 nats: one scale per tensor is hundreds of sigmas for its small elements."""
    return np.exp(2 * rng.standard_normal(ELEMENTS))


CLEAN: dict[str, Callable[[np.random.Generator], Array]] = {
    "noise 0.1 nats": lambda rng: noise(rng, LONG, 0.1),
    "noise 0.3 nats": lambda rng: noise(rng, LONG, 0.3),
    CV1: lambda rng: noise(rng, LONG, math.sqrt(math.log(2))),
    "noise 1 nat": lambda rng: noise(rng, LONG, 1.0),
    "noise 2 nats": lambda rng: noise(rng, LONG, 2.0),
    "tails t3": lambda rng: _tails(rng, 3),
    "tails t2": lambda rng: _tails(rng, 2),
    "tails t1 (Cauchy)": lambda rng: _tails(rng, 1),
    "trend up x1000": lambda rng: _scaled(rng, np.geomspace(1, 1e3, LONG)),
    "trend down x1000": lambda rng: _scaled(rng, np.geomspace(1, 1e-3, LONG)),
    "target sync: x100 in 30 of 250": lambda rng: _scaled(rng, np.where(np.arange(LONG) % 250 < 30, 100.0, 1.0)),
    "quiet: x0.001 for 500": lambda rng: _scaled(rng, _between(1000, 1500, 1e-3)),
    "all zero for 500": lambda rng: _scaled(rng, _between(1000, 1500, 0.0)),
    "sparse: 1% of the elements": lambda rng: noise(rng, LONG) * (rng.random((LONG, ELEMENTS)) < 0.01),
    "one-hot": _one_hot,
    "rare: x100 in 1% of updates": lambda rng: _scaled(rng, np.where(rng.random(LONG) < 0.01, 100.0, 1.0)),
    "element scales sd 2 nats": lambda rng: noise(rng, LONG) * scales(rng),
    "2 elements, x100 of its group": lambda rng: 100 * noise(rng, LONG, elements=2),
    "1 element": lambda rng: noise(rng, LONG, elements=1),
}


def faulty(rng: np.random.Generator, name: str, factor: float, length: int, kind: str = "even") -> Stream:
    """A stream whose gradients are ``factor`` times as large for ``length`` updates.

    Args:
        rng: Source of the noise.
        name: The stream's.
        factor: 0 for vanished gradients.
        length: Updates.
        kind: ``even``; ``sixth``: only every sixth update is hit; ``scales``: elements of many scales; ``element``: of
            these, only the smallest is hit; ``one-hot``: one element an update; ``one``: a tensor of one element.
    """
    clean = noise(rng, SHORT, elements=1 if kind == "one" else ELEMENTS)
    if kind in ("scales", "element"):
        clean = clean * scales(rng)
    if kind == "one-hot":
        clean = clean * (np.arange(ELEMENTS) == rng.integers(0, ELEMENTS, SHORT)[:, None])
    gradients = clean.copy()
    hit = np.abs(clean[:WARM]).mean(0).argmin() if kind == "element" else slice(None)
    gradients[WARM : WARM + length : 6 if kind == "sixth" else 1, hit] *= factor
    return Stream(name, gradients, clean, length=length)


FAULTS: dict[str, tuple[float, int, str]] = {
    "x10 once": (10, 1, "even"),
    "x1e2 once": (1e2, 1, "even"),
    "x1e3 once": (1e3, 1, "even"),
    "x1e4 once": (1e4, 1, "even"),
    "x1e6 once": (1e6, 1, "even"),
    "x15, 20 updates": (15, 20, "even"),
    "x30, 5 updates": (30, 5, "even"),
    "x1e3, 5 updates": (1e3, 5, "even"),
    "x1e3, 10 updates": (1e3, 10, "even"),
    "x1e3, 20 updates": (1e3, 20, "even"),
    "x1e3, 24 updates": (1e3, 24, "even"),
    "x1e3, 30 updates": (1e3, 30, "even"),
    "x1e3, 60 updates": (1e3, 60, "even"),
    "x1e3, 24 times, every 6th update": (1e3, 23 * 6 + 1, "sixth"),
    "x1e-4, 60 updates": (1e-4, 60, "even"),
    "element scales: x1e6 once": (1e6, 1, "scales"),
    "element scales: x1e3, 20 updates": (1e3, 20, "scales"),
    "its smallest element: x1e3, 20 updates": (1e3, 20, "element"),
    "one-hot: x1e3, 20 updates": (1e3, 20, "one-hot"),
    "1 element: x1e3, 20 updates": (1e3, 20, "one"),
}

CHANGES = {f"x{factor:g}": factor for factor in (10, 1e2, 1e3, 1e4, 0.1, 0.01)}


def changed(rng: np.random.Generator, name: str, factor: float, sd: float = 0.3) -> Stream:
    """A stream that is ``factor`` times as large from ``CHANGE`` on, for good."""
    clean = noise(rng, LONG, sd)
    gradients = clean.copy()
    gradients[CHANGE:] *= factor
    return Stream(name, gradients, clean, CHANGE, LONG - CHANGE)


def jump(rng: np.random.Generator) -> Stream:
    """Regression whose target becomes a hundredfold, as after a change of reward scale."""
    target = np.where(np.arange(LONG) < CHANGE, 1.0, 100.0)[:, None]
    gradients = noise(rng, LONG) * 0.3 - target
    return Stream("target x100", gradients, gradients, CHANGE, pull=1.0, goal=np.full(ELEMENTS, 100.0))


def rare(rng: np.random.Generator, p: float, first: int = 0) -> Stream:
    """Regression on a target that is 1 with probability ``p`` per update, else 0 (issue "Evidence").

    Args:
        rng: Source of the noise.
        p: How often the target is 1.
        first: Update before which it never is: a reward that is found late.
    """
    seen = (rng.random((LONG, 1)) < p) & (np.arange(LONG)[:, None] >= first)
    gradients = 0.001 * noise(rng, LONG) - seen
    name = f"1 with p = {p:g}" + (", found late" if first else "")
    return Stream(name, gradients, gradients, first or WARM, pull=1.0, goal=np.full(ELEMENTS, p))


def clean(seed: int) -> list[Stream]:
    """One stream of every kind in which nothing is wrong."""
    made = [(name, make(np.random.default_rng([seed, k]))) for k, (name, make) in enumerate(CLEAN.items())]
    return [Stream(name, gradients, gradients) for name, gradients in made]


def faults(seed: int) -> list[Stream]:
    """One stream for every fault, with the same noise under each of a kind."""
    return [faulty(np.random.default_rng([seed, 100]), name, *what) for name, what in FAULTS.items()]


def changes(seed: int) -> list[Stream]:
    """One stream for every genuine change of scale, and one under heavier noise."""
    made = [changed(np.random.default_rng([seed, 200]), name, factor) for name, factor in CHANGES.items()]
    return [*made, changed(np.random.default_rng([seed, 201]), "x100, noise 1 nat", 100.0, 1.0)]


def tasks(seed: int) -> list[Stream]:
    """One of every small learning task, and eight of the one whose outcome varies most."""
    made = [jump(np.random.default_rng([seed, 300]))]
    made += [rare(np.random.default_rng([seed, 301, k]), p) for k, p in enumerate((0.01, 0.03, 0.1))]
    return [*made, *(rare(np.random.default_rng([seed, 302, k]), 0.1, first=CHANGE) for k in range(8))]


GROUP = ("body of 4,096", "its 2 of x100", "its 2 of x0.01: x1e3, 20 updates")


def group(seed: int) -> list[Stream]:
    """Tensors of one group: a large one, a small one of larger gradients, and one of smaller ones, which is hit."""
    rng = np.random.default_rng([seed, 400])
    sizes = zip((4096, 2, 2), (1.0, 100.0, 0.01), strict=True)
    clean = [scale * noise(rng, SHORT, elements=elements) for elements, scale in sizes]
    hit = clean[2].copy()
    hit[WARM : WARM + 20] *= 1e3
    made = zip(GROUP, [*clean[:2], hit], clean, (0, 0, 20), strict=True)
    return [Stream(name, gradients, calm, length=length) for name, gradients, calm, length in made]
