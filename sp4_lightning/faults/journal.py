"""What was struck: kept, written beside the logs and told in one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from sp4_lightning.faults.fault import Fault
from sp4_lightning.naming import shorten


@dataclass(frozen=True)
class FaultEvent:
    """One strike, as it is kept in ``FaultInjector.events`` and written to ``faults.jsonl``."""

    step: int
    """Updates that the group's optimizer had made before, or batches that came before."""
    kind: str
    group: str
    """``batch`` for a batch."""
    tensors: tuple[str, ...]
    """What was written to: parameters' names, ``lr``, or the batch's key."""
    elements: int
    """How many numbers were written."""


class Journal:
    """The events of one fit.

    Args:
        trainer: With a logger, a global-zero rank appends to ``faults.jsonl`` in its ``log_dir``. None: no file.
    """

    def __init__(self, trainer: Trainer | None = None) -> None:
        self.events: list[FaultEvent] = []
        # log_dir is asked for on every rank: it is a broadcast.
        log_dir = trainer.log_dir if trainer is not None and trainer.loggers else None
        wanted = log_dir is not None and trainer is not None and trainer.is_global_zero
        self._file = Path(str(log_dir)) / "faults.jsonl" if wanted else None

    def record(self, fault: Fault, step: int, group: str, written: Mapping[str, int]) -> None:
        """Keep and tell what was written.

        Args:
            fault: What struck; the first update of a burst is told, all are kept.
            step: When.
            group: The group, or ``batch``.
            written: What was written to, and how many elements of it.
        """
        event = FaultEvent(step, fault.kind, group, tuple(written), sum(written.values()))
        self.events.append(event)
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a") as lines:
                lines.write(json.dumps(asdict(event)) + "\n")
        if not event.elements:
            rank_zero_warn(f"Fault at step {step}: {fault.kind} found nothing to strike in {group}.")
        elif fault.age(step) == 0:
            count = "1 element" if event.elements == 1 else f"{event.elements} elements"
            more = {1: "", None: ", and from now on"}.get(fault.updates, f", {fault.updates} times in a row")
            rank_zero_info(f"Fault at step {step}: {fault.kind} in {group}, {shorten(written)}, {count}{more}.")
