"""What became of one branch, as tables and pictures need it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """What became of one branch.

    Attributes:
        fault: The branch's name, ``F0`` or ``F3.dqn_value``.
        held: Which of S1 to S4 hold.
        score: Mean of the last two validations.
        area: Mean of all validations.
        lost: Updates lost.
        lost_more: Whether they are more than that.
        moved_along: Groups beside the struck ones that moved, on frozen replay; None where it is not judged.
        protection: What this library did.
        seconds: CPU time of training.
    """

    task: str
    method: str
    seed: int
    fault: str
    held: tuple[bool, bool, bool, bool]
    score: float
    area: float
    lost: int
    lost_more: bool
    moved_along: list[str] | None
    protection: dict[str, Any] | None
    seconds: float

    @property
    def survived(self) -> bool:
        """All four rules hold."""
        return all(self.held)


Cells = dict[tuple[str, str], list[Outcome]]
"""Outcomes of all seeds by fault and method."""


def cells(outcomes: Iterable[Outcome]) -> Cells:
    """One task's outcomes by fault and method."""
    found: Cells = {}
    for outcome in outcomes:
        found.setdefault((outcome.fault, outcome.method), []).append(outcome)
    return found


def pairs(a: Sequence[Outcome], b: Sequence[Outcome]) -> list[tuple[Outcome, Outcome]]:
    """Outcomes of the same seed."""
    other = {outcome.seed: outcome for outcome in b}
    return [(outcome, other[outcome.seed]) for outcome in a if outcome.seed in other]
