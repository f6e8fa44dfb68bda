"""What protects a run, by name: nothing, a peer, or this library with settings of its own."""

from __future__ import annotations

from dataclasses import asdict, fields
from inspect import signature
from typing import Any

import yaml
from lightning.pytorch import Callback

from benchmarks.peers import PEERS, PeerCallback
from sp4_lightning import SP4Callback
from sp4_lightning.errors import ConfigurationError
from sp4_lightning.naming import did_you_mean
from sp4_lightning.settings import LearnedBound

REFERENCE, LIBRARY = "none", "sp4"


def make_callbacks(method: str) -> list[Callback]:
    """The callbacks of a method.

    Args:
        method: ``none``, a name of :data:`benchmarks.peers.PEERS`, ``sp4``, or ``sp4`` with settings such as
            ``sp4+learned.headroom=8+warmup_steps=300``.

    Raises:
        ConfigurationError: There is no such method or setting.
    """
    if method == REFERENCE:
        return []
    if method in PEERS:
        return [PeerCallback(method)]
    base, *overrides = method.split("+")
    if base != LIBRARY:
        known = [REFERENCE, *PEERS, LIBRARY]
        raise ConfigurationError(
            f"methods: there is no {method!r}.{did_you_mean(method, known)} Methods are {', '.join(known)}."
        )
    return [_protection(method, overrides)]


def check_method(method: str) -> None:
    """Make sure that a method can be made.

    Raises:
        ConfigurationError: It cannot.
    """
    make_callbacks(method)


def method_settings(method: str) -> dict[str, Any]:
    """What a method's results depend on: this library's settings with its present defaults, or the name."""
    settings = [asdict(c.settings) for c in make_callbacks(method) if isinstance(c, SP4Callback)]
    return {"name": method, "settings": settings[0] if settings else None}


def _protection(method: str, overrides: list[str]) -> SP4Callback:
    learned_keys = {f"learned.{field.name}" for field in fields(LearnedBound)}
    keys = learned_keys | set(signature(SP4Callback).parameters) - {"learned", "tables"}
    plain: dict[str, Any] = {}
    learned: dict[str, Any] = {}
    for override in overrides:
        key, found, value = override.partition("=")
        if key not in keys or not found:
            raise ConfigurationError(f"methods: {method!r} has no setting {key!r}.{did_you_mean(key, keys)}")
        where = learned if key in learned_keys else plain
        where[key.removeprefix("learned.")] = yaml.safe_load(value)
    return SP4Callback(**plain, learned=LearnedBound(**learned), tables=False)
