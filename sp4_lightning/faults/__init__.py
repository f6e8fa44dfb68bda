"""Faults on purpose: :class:`FaultInjector` and what it is made of."""

from sp4_lightning.faults.injector import FaultInjector
from sp4_lightning.faults.journal import FaultEvent

__all__ = ["FaultEvent", "FaultInjector"]
