"""What survived: four rules on a branch and the clean branch of the same snapshot.

S1  Every parameter and every number of the optimizers' state is finite at the end.
S2  The largest parameter is at most 10 times the clean branch's.
S3  The mean score of the last two validations is at least ``clean - (1 - share) |clean - floor|``. With the floor at 0
    and a share of 0.8 that is 0.8 times the clean branch's; where scores are negative the floor is what somebody gets
    who has learned nothing, so that the share is one of what has been learned.
S4  The signal (an agent's mean Q of 512 fixed states) has gone at least half as far as the clean branch's, in its
    direction.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

LARGEST = 10.0
WAY = 0.5
MOST = 0.75
LAST = 2

Curve = Sequence[tuple[int, float | None]]
Branch = dict[str, Any]


class Verdict(NamedTuple):
    """Which rules hold."""

    finite: bool
    bounded: bool
    scores: bool
    learns: bool


def judge(branch: Branch, clean: Branch, floor: float, share: float) -> Verdict:
    """Hold a branch against the clean one.

    Args:
        branch: Result of the struck branch.
        clean: Result of the clean one.
        floor: The score of one who has learned nothing.
        share: Of the way from there to the clean score.
    """
    own, reference = score(branch), score(clean)
    lost = (1 - share) * abs(reference - floor)
    way, clean_way = _ways(branch["signals"], clean["signals"])
    return Verdict(
        finite=branch["finite"],
        bounded=branch["largest"] is not None and branch["largest"] <= LARGEST * clean["largest"],
        scores=own >= reference - lost,
        learns=way[-1] is not None and way[-1] >= WAY * _known(clean_way[-1]),
    )


def score(branch: Branch) -> float:
    """Mean score of the last two validations."""
    return statistics.fmean(value for _, value in branch["scores"][-LAST:])


def area(branch: Branch) -> float:
    """Mean score of all validations."""
    return statistics.fmean(value for _, value in branch["scores"])


class Lost(NamedTuple):
    """Updates lost, and whether it is only known that they are more."""

    updates: int
    more: bool


def updates_lost(branch: Branch, clean: Branch, survived: bool) -> Lost:
    """How many updates later than the clean branch a branch has gone most of the way that that one goes.

    Most is three quarters: all of it is reached by the clean branch at the end, so that one that is late by anything
    never gets there. What is never reached counts as reached at the end, and is marked as more; so does a branch that
    has not survived, whose signal may have leapt anywhere.
    """
    way, clean_way = _ways(branch["signals"], clean["signals"])
    goal = MOST * _known(clean_way[-1])
    times = [update for update, _ in clean["signals"]]
    needed = next(time for time, at in zip(times, clean_way, strict=True) if at is not None and at >= goal)
    reached = (time for (time, _), at in zip(branch["signals"], way, strict=True) if at is not None and at >= goal)
    first = next(reached, None) if survived else None
    return Lost(times[-1] - needed, True) if first is None else Lost(first - needed, False)


def _ways(branch: Curve, clean: Curve) -> tuple[list[float | None], list[float | None]]:
    """How far both signals have gone since the snapshot, in the direction of the clean branch's end."""
    start = _known(clean[0][1])
    direction = 1.0 if _known(clean[-1][1]) >= start else -1.0

    def ways(curve: Curve) -> list[float | None]:
        return [None if value is None else direction * (value - start) for _, value in curve]

    return ways(branch), ways(clean)


def _known(value: float | None) -> float:
    """A number of a clean branch, which has lost none."""
    assert value is not None, "the clean branch's signal is not finite"
    return value
