"""Saving an engine and taking it up again: all of it or, after an error, nothing."""

from __future__ import annotations

from typing import Any

from sp4_lightning.engine import Engine
from sp4_lightning.errors import CheckpointError
from sp4_lightning.resampling import resample

VERSION = 2
"""Of the saved layout; raised whenever it changes."""


_ENTRIES = ("groups", "calls", "phase", "tally", "update_every", "tensors")


def save_engine(engine: Engine) -> dict[str, Any]:
    """An engine's state as tensors and plain types, keyed by names."""
    return {
        "version": VERSION,
        "groups": engine.groups,
        "calls": engine.calls,
        "phase": int(engine.switch.phase),
        "tally": engine.tally.cpu().clone(),
        "update_every": engine.update_every,
        "tensors": engine.state.state_dict(engine.held.keys),
    }


def check_engine(engine: Engine, saved: dict[str, Any]) -> None:
    """Refuse saved state that does not fit, before anything is written.

    Raises:
        CheckpointError: Another version, other groups, other tensors, or damaged values.
    """
    mend = "or drop the callback's state to learn the bounds anew"
    if saved.get("version") != VERSION:
        raise CheckpointError(
            f"The checkpoint's bounds for {engine.name} have state version {saved.get('version')!r}; this release "
            f"reads version {VERSION}. Resume with the release that wrote it, {mend}."
        )
    missing = [entry for entry in _ENTRIES if entry not in saved]
    if missing:
        raise CheckpointError(
            f"The checkpoint's bounds for {engine.name} lack {', '.join(missing)}: they are damaged. Repair them, "
            f"{mend}."
        )
    if saved["groups"] != engine.groups:
        raise CheckpointError(
            f"The checkpoint's bounds for {engine.name} are of the groups {saved['groups']}, but it now trains "
            f"{engine.groups}. Resume with the same groups, {mend}."
        )
    if saved["tally"].shape != engine.tally.shape or (saved["tally"] < 0).any():
        raise CheckpointError(
            f"The checkpoint's tally for {engine.name} should be {len(engine.tally)} counts, got "
            f"{saved['tally'].tolist()}: it is damaged. Repair it, {mend}."
        )
    every = saved["update_every"]
    if not isinstance(every, int) or every < 1:
        raise CheckpointError(
            f"The checkpoint's update_every for {engine.name} should be 1 or more, got {every!r}: it is damaged. "
            f"Repair it, {mend}."
        )
    window = engine.settings.learned.observations(engine.settings.learned.window, every)
    engine.state.check(saved["tensors"], engine.held.keys, engine.name, window)


def load_engine(engine: Engine, saved: dict[str, Any]) -> None:
    """Take over saved state, and its phase as far as the mode allows.

    State that was learned at another ``update_every`` is resampled, see :mod:`sp4_lightning.resampling`.

    Raises:
        CheckpointError: It does not fit; nothing has been written.
    """
    check_engine(engine, saved)
    tensors = resample(saved["tensors"], engine.settings.learned, saved["update_every"], engine.update_every)
    engine.state.load_state_dict(tensors, engine.held.keys)
    engine.tally.copy_(saved["tally"])
    engine.calls = saved["calls"]
    engine.switch.restore(saved["phase"])
    # The parameters that were restored with this state are the ones its bounds are about.
    engine.accept_state(parameters=True)
