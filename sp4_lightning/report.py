"""Figures for logs and tables: packed on the device, copied to the host once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sp4_lightning.engine import Engine
from sp4_lightning.quantities import GRAD
from sp4_lightning.switch import Phase, Switch
from sp4_lightning.table import BoundsTable


@dataclass(frozen=True)
class TensorReport:
    """Counters of one tensor since the run began, and its largest gradient since the last report."""

    name: str
    group: str
    clamped: int
    counted: int
    repaired: int
    peak: float

    @property
    def share(self) -> float:
        """The share of its gradient elements that was beyond the bound."""
        return self.clamped / self.counted if self.counted else 0.0


@dataclass(frozen=True)
class OptimizerReport:
    """Counters of one optimizer since the run began."""

    name: str
    steps: int
    skipped: int
    streak: int
    observed: dict[str, int]
    """Per group, the executed updates in which it had a gradient."""


@dataclass(frozen=True)
class Report:
    """Everything that is known at one moment, on the host."""

    phase: Phase
    optimizers: list[OptimizerReport]
    tensors: list[TensorReport]
    bounds: dict[str, list[float]]
    """Group -> published bounds of param, grad, exp_avg, exp_avg_sq."""

    def of(self, group: str) -> list[TensorReport]:
        """One group's tensors."""
        return [tensor for tensor in self.tensors if tensor.group == group]


def take_report(engines: Sequence[Engine], switch: Switch, table: BoundsTable) -> Report:
    """Pack, copy once, unpack; the peaks start anew."""
    for engine in engines:
        engine.publish()
    parts: list[Tensor] = [switch.phase.reshape(1), table.values.flatten()]
    for engine in engines:
        state = engine.state
        counters = [torch.as_tensor(c) for c in (state.clamped, state.counted, state.repaired, state.peak)]
        parts += [engine.tally, *counters]
    host = torch.cat([part.to(torch.float64) for part in parts]).cpu().tolist()
    for engine in engines:
        engine.state.peak[...] = 0.0

    values = iter(host)

    def take(count: int) -> list[float]:
        return [next(values) for _ in range(count)]

    phase = Phase(int(take(1)[0]))
    rows = [take(len(table.groups)) for _ in table.values]
    bounds = {group: [row[column] for row in rows] for column, group in enumerate(table.groups)}
    optimizers, tensors = [], []
    for engine in engines:
        steps, skipped, streak, *observed = map(int, take(len(engine.tally)))
        optimizers.append(
            OptimizerReport(engine.name, steps, skipped, streak, dict(zip(engine.groups, observed, strict=True)))
        )
        clamped, counted, repaired, peak = (take(len(engine.held)) for _ in range(4))
        tensors += [
            TensorReport(name, group, int(c), int(n), int(r), p)
            for name, group, c, n, r, p in zip(
                engine.held.names, engine.held.group, clamped, counted, repaired, peak, strict=True
            )
        ]
    return Report(phase, optimizers, tensors, bounds)


def metrics(now: Report, before: Report | None) -> dict[str, float]:
    """The logged scalars: four per group and five overall.

    Args:
        now: The newest report.
        before: The one logged last; shares are of the updates in between.
    """
    earlier = {(tensor.group, tensor.name): tensor for tensor in before.tensors} if before else {}

    def share(tensors: Sequence[TensorReport]) -> float:
        old = [earlier[t.group, t.name] for t in tensors if (t.group, t.name) in earlier]
        counted = sum(t.counted for t in tensors) - sum(t.counted for t in old)
        clamped = sum(t.clamped for t in tensors) - sum(t.clamped for t in old)
        return clamped / counted if counted else 0.0

    row = {
        "sp4/phase": float(now.phase),
        "sp4/skipped_steps": float(sum(o.skipped for o in now.optimizers)),
        "sp4/skip_streak": float(max(o.streak for o in now.optimizers)),
        "sp4/clip_fraction": share(now.tensors),
        "sp4/clip_fraction_worst_tensor": max(share([tensor]) for tensor in now.tensors),
    }
    for group, bounds in now.bounds.items():
        tensors = now.of(group)
        row[f"sp4-clip_fraction/{group}"] = share(tensors)
        row[f"sp4-bound_grad/{group}"] = bounds[GRAD]
        row[f"sp4-max_grad/{group}"] = max((tensor.peak for tensor in tensors), default=0.0)
        row[f"sp4-repairs/{group}"] = float(sum(tensor.repaired for tensor in tensors))
    return row
