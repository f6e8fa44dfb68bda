"""Linear schedules."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Linear:
    """A straight line from ``start`` to ``end`` over ``duration``, flat afterwards.

    Attributes:
        start: Value at 0.
        end: Value from ``duration`` on.
        duration: Length, in whatever unit the schedule is asked in; at 0 or below the value is ``end`` at
            once.
    """

    start: float
    end: float
    duration: float

    def at(self, time: float) -> float:
        """The value at ``time``."""
        if time >= self.duration:
            return self.end
        return self.start + (self.end - self.start) * time / self.duration
