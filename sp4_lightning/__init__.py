"""Learned clamp bounds for every tensor an optimizer holds.

The core needs torch alone; :class:`SP4Callback` and :class:`FaultInjector` are imported with Lightning on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sp4_lightning.attach import Attachment
from sp4_lightning.dynamics import Dynamics, register_dynamics
from sp4_lightning.engine import Engine
from sp4_lightning.errors import (
    BackendError,
    CheckpointError,
    ConfigurationError,
    SkipStreakError,
    SP4Error,
    UnsupportedError,
)
from sp4_lightning.groups import ParamGroup
from sp4_lightning.optimizer import ClippingOptimizer
from sp4_lightning.protection import Protection
from sp4_lightning.quantities import QUANTITIES, Quantity
from sp4_lightning.settings import LearnedBound, Settings
from sp4_lightning.switch import Phase, Switch
from sp4_lightning.table import BoundsTable

if TYPE_CHECKING:
    from sp4_lightning.callback import SP4Callback
    from sp4_lightning.faults import FaultEvent, FaultInjector

__version__ = "0.1.0"

__all__ = [
    "QUANTITIES",
    "Attachment",
    "BackendError",
    "BoundsTable",
    "CheckpointError",
    "ClippingOptimizer",
    "ConfigurationError",
    "Dynamics",
    "Engine",
    "FaultEvent",
    "FaultInjector",
    "LearnedBound",
    "ParamGroup",
    "Phase",
    "Protection",
    "Quantity",
    "SP4Callback",
    "SP4Error",
    "Settings",
    "SkipStreakError",
    "Switch",
    "UnsupportedError",
    "register_dynamics",
]


def __getattr__(name: str) -> Any:
    if name == "SP4Callback":
        from sp4_lightning.callback import SP4Callback  # noqa: PLC0415 - the core must not import Lightning

        return SP4Callback
    if name in ("FaultEvent", "FaultInjector"):
        from sp4_lightning import faults  # noqa: PLC0415 - likewise

        return getattr(faults, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
