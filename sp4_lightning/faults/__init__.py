"""Faults on purpose: :class:`FaultInjector` and what it is made of."""

from sp4_lightning.faults.injector import FaultEvent, FaultInjector

__all__ = ["FaultEvent", "FaultInjector"]
