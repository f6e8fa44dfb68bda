"""Saving an engine and taking it up again: all of it or, after an error, nothing."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sp4_lightning.engine import Engine
from sp4_lightning.errors import CheckpointError
from sp4_lightning.resampling import resample
from sp4_lightning.switch import Phase

VERSION = 3
"""Of the saved layout; raised whenever it changes."""


_ENTRIES = ("groups", "calls", "phase", "tally", "update_every", "tensors")


def save_engine(engine: Engine) -> dict[str, Any]:
    """An engine's state as tensors and plain types, keyed by names."""
    return {
        "version": VERSION,
        "groups": list(engine.groups),
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
    if not isinstance(saved, dict):
        raise CheckpointError(
            f"The checkpoint's bounds for {engine.name} should be a dict, got {saved!r}: they are damaged. "
            f"Repair them, {mend}."
        )
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
    tally, tensors = saved["tally"], saved["tensors"]
    names = tensors.get("names") if isinstance(tensors, dict) else None
    shown = tally.tolist() if isinstance(tally, Tensor) else tally
    counts = isinstance(tally, Tensor) and tally.shape == engine.tally.shape and bool((tally >= 0).all())
    # Each with what it should be and whether it is.
    for entry, got, should, holds in (
        ("tally", shown, f"{len(engine.tally)} counts", counts),
        ("calls", saved["calls"], "0 or more", _is_int(saved["calls"], 0)),
        ("phase", saved["phase"], "0, 1 or 2", _is_int(saved["phase"], 0) and saved["phase"] <= max(Phase)),
        ("update_every", saved["update_every"], "1 or more", _is_int(saved["update_every"], 1)),
        ("names", names, "a list of them", isinstance(names, list) and all(isinstance(name, str) for name in names)),
    ):
        if not holds:
            raise CheckpointError(
                f"The checkpoint's {entry} for {engine.name} should be {should}, got {got!r}: it is damaged. "
                f"Repair it, {mend}."
            )
    window = engine.settings.learned.observations(engine.settings.learned.window, saved["update_every"])
    engine.state.check(tensors, engine.held.keys, engine.name, window)


def _is_int(value: object, least: int) -> bool:
    return isinstance(value, int) and value >= least


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
