"""Every figure of every candidate on every stream, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from benchmarks.synthetic import figures, streams
from benchmarks.synthetic.adam import Run, train
from benchmarks.synthetic.rules import Rule
from benchmarks.synthetic.streams import CHANGES, Stream
from sp4_lightning import Settings

SEEDS = range(5)
FOLLOWED_FOR = 300
"""Updates of a burst or change in the trade-off; what is longer counts as this."""


class Value(NamedTuple):
    """One figure of one rule on one stream under one seed."""

    figure: str
    stream: str
    value: float


Kind = Callable[[int], Sequence[Stream]]
# Every rule meets the same streams.
FAULTS: Kind = cache(streams.faults)
CLEAN: Kind = cache(streams.clean)
CHANGED: Kind = cache(streams.changes)
TASKS: Kind = cache(streams.tasks)


def _of(kind: Kind, seeds: Iterable[int], only: Collection[str] | None) -> list[Stream]:
    return [stream for seed in seeds for stream in kind(seed) if only is None or stream.name in only]


def of_faults(
    rule: Rule | Settings, seeds: Iterable[int] = SEEDS, only: Collection[str] | None = None
) -> Iterator[Value]:
    """Stalled and lost updates, displacement and inflation of the bound.

    Args:
        rule: Which.
        seeds: Of the streams.
        only: Names of streams; None means all.
    """
    made = _of(FAULTS, seeds, only)
    run, undisturbed = train(rule, made), train(Rule(), [_without_fault(stream) for stream in made])
    for k, stream in enumerate(made):
        touched = (stream.gradients != stream.clean).any(0)
        usual = (stream.clean**2).mean(0)
        yield Value("stalled", stream.name, figures.stall(run.exp_avg_sq[k], usual, touched))
        yield Value("lost", stream.name, figures.lost(run.exp_avg_sq[k], usual, touched))
        yield Value("displacement", stream.name, figures.displacement(run.final[k], undisturbed.final[k]))
        yield Value("inflation", stream.name, figures.inflation(run.bound[:, k], stream.start))


def _without_fault(stream: Stream) -> Stream:
    return Stream(stream.name, stream.clean, stream.clean)


def of_the_rest(
    rule: Rule | Settings, seeds: Iterable[int] = SEEDS, only: Collection[str] | None = None
) -> Iterator[Value]:
    """Triggers on clean streams, how changes are followed, how tasks are learned; arguments as for faults."""
    made = [(kind, stream) for kind in (CLEAN, CHANGED, TASKS) for stream in _of(kind, seeds, only)]
    run = train(rule, [stream for _, stream in made])
    for k, (kind, stream) in enumerate(made):
        if kind is CLEAN:
            yield Value("triggered", stream.name, figures.triggered(run.beyond[:, k]))
            yield Value("clamped", stream.name, figures.clamped(run.beyond[:, k], stream.gradients.shape[1]))
        else:
            yield _of_change(run, k, stream) if kind is CHANGED else _of_task(run, k, stream)


def of_groups(rule: Rule | Settings, seeds: Iterable[int] = SEEDS) -> Iterator[Value]:
    """Clamped shares of a group's tensors, and how long the one that is hit stalls."""
    made = [stream for seed in seeds for stream in streams.group(seed)]
    run = train(rule, made)
    for k, stream in enumerate(made):
        if stream.length:
            every = np.ones(stream.gradients.shape[1], bool)
            stalled = figures.stall(run.exp_avg_sq[k], (stream.clean**2).mean(0), every)
            yield Value("stalled", stream.name, stalled)
        else:
            yield Value("clamped", stream.name, figures.clamped(run.beyond[:, k], stream.gradients.shape[1]))


def _of_change(run: Run, k: int, stream: Stream) -> Value:
    factor = CHANGES.get(stream.name, 100.0)
    if factor > 1:
        return Value("followed", stream.name, figures.until_admitted(run.beyond[:, k], stream.start))
    return Value("followed", stream.name, figures.until_tight(run.bound[:, k], stream.start, factor))


def _of_task(run: Run, k: int, stream: Stream) -> Value:
    goal, weights = float(stream.goal.mean()), run.weights[:, k]
    if stream.start == streams.CHANGE:
        return Value("learned after", stream.name, figures.until_learned(weights, stream.start, goal))
    return Value("learned share", stream.name, figures.learned(weights, goal))


class TradeOff(NamedTuple):
    """One rule's point, one value per seed."""

    held: list[float]
    """Longest burst of x1e3 that leaves the bound below twice what it was."""
    unharmed: list[float]
    """Longest burst of x1e3 after which Adam stalls for fewer than 100 updates."""
    admitted: list[float]
    """Updates until a genuine x100 is admitted."""


Points = Mapping[str, TradeOff]
"""rule -> its point."""
Results = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]
"""figure -> stream -> rule -> one value per seed."""
Groups = Results
"""The same of a group's tensors."""


def trade_off(rule: Rule | Settings, seeds: Sequence[int] = SEEDS) -> TradeOff:
    """The point of a rule: how long a burst it blocks, and how long a genuine change has to wait for it."""
    burst = [_shortened(streams.changed(np.random.default_rng([seed, 200]), "burst", 1e3)) for seed in seeds]
    change = [_shortened(streams.changed(np.random.default_rng([seed, 200]), "x100", 1e2)) for seed in seeds]
    run, start = train(rule, burst + change), streams.CHANGE
    held: list[float] = []
    unharmed: list[float] = []
    for k, stream in enumerate(burst):
        # The bound that holds behind a burst of k is the one that update k + 1 meets.
        longest = figures.blocked(run.bound[start + 1 :, k] > 2 * run.bound[start, k])
        held.append(float(longest) if np.isfinite(run.bound[start, k]) else math.nan)
        stalled = figures.stalled(run.power[start:, k], np.array((stream.clean**2).mean()))
        unharmed.append(figures.blocked(stalled >= figures.RECOVERED))
    admitted = [figures.until_admitted(run.beyond[:, k], start) for k in range(len(burst), len(burst + change))]
    return TradeOff(held, unharmed, admitted)


def _shortened(stream: Stream) -> Stream:
    end = stream.start + FOLLOWED_FOR
    return Stream(stream.name, stream.gradients[:end], stream.clean[:end], stream.start, FOLLOWED_FOR)
