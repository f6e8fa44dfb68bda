"""Running one job in a Trainer: the way to a snapshot, or a branch from it."""

from __future__ import annotations

import hashlib
import math
import os
import platform
import time
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer

from benchmarks.faults.isolation import moved_along
from benchmarks.faults.jobs import SNAPSHOT, Job
from benchmarks.faults.methods import make_callbacks
from benchmarks.faults.trainer import load, make_trainer, quieten
from benchmarks.faults.watch import SaveAt, Watch
from sp4_lightning import FaultInjector

SHARE = 0.25
"""Of all updates, those before the snapshot."""

STATES = 512
"""Fixed inputs of the probe."""


def play(job: Job) -> str:
    """Run a job, write its result, and say in a line how long it took."""
    quieten()
    began, cpu = time.monotonic(), time.process_time()
    job.directory.mkdir(parents=True, exist_ok=True)
    result = make_snapshot(job) if job.branch == SNAPSHOT else make_branch(job)
    result |= {
        "settings": job.settings,
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "wall_seconds": round(time.monotonic() - began, 2),
        "machine": machine(),
    }
    job.write(result)
    return f"{job}: {result['wall_seconds']:.0f} s"


def make_snapshot(job: Job) -> dict[str, Any]:
    """Train clean to a quarter of the updates and save everything."""
    module = job.trains.module(job.seed)
    at = round(SHARE * module.total_updates)
    part = job.checkpoint.with_suffix(".part.ckpt")
    make_trainer([*make_callbacks(job.method), SaveAt(at, part)]).fit(module)
    os.replace(part, job.checkpoint)
    return {"updates": module.updates, "snapshot": digest(load(job.checkpoint)["state_dict"])}


def make_branch(job: Job) -> dict[str, Any]:
    """Go on from the snapshot to the end, and measure."""
    checkpoint = load(job.checkpoint)
    watch = Watch(job.trains, job.trains.probe(checkpoint, STATES))
    injector = FaultInjector(job.faults, seed=job.seed)
    module = job.trains.module(job.seed)
    # The injector comes first: what it strikes is there when the others look.
    trainer = make_trainer([injector, *make_callbacks(job.method), watch])
    trainer.fit(module, ckpt_path=job.checkpoint)
    if job.faults and not any(event.elements for event in injector.events):
        raise RuntimeError(f"{job}: the fault has struck nothing.")
    return {
        "snapshot": digest(checkpoint["state_dict"]),
        "updates": module.updates,
        "weights": digest(module.state_dict()),
        "finite": all_finite(module, trainer),
        "largest": largest(module),
        "scores": watch.scores,
        "signals": watch.signals,
        "training_seconds": round(watch.seconds, 2),
        "strikes": len(injector.events),
        "protection": watch.protection(),
        "moved_along": moved_along(job, checkpoint),
    }


def digest(weights: dict[str, torch.Tensor]) -> str:
    """A short name of weights: snapshots made on another machine may differ in the last bits."""
    whole = hashlib.sha256()
    for tensor in weights.values():
        whole.update(tensor.contiguous().numpy().tobytes())
    return whole.hexdigest()[:16]


def all_finite(module: LightningModule, trainer: Trainer) -> bool:
    """Whether every parameter and every number of the optimizers' state is finite."""
    state = [
        value for optimizer in trainer.optimizers for entry in optimizer.state.values() for value in entry.values()
    ]
    tensors = [*module.parameters(), *(value for value in state if isinstance(value, torch.Tensor))]
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def largest(module: LightningModule) -> float | None:
    """The largest absolute value of a trained parameter; None where it is not finite."""
    value = max(float(np.abs(p.detach().numpy()).max()) for p in module.parameters() if p.requires_grad)
    return value if math.isfinite(value) else None


def machine() -> dict[str, Any]:
    """What the result was made with."""
    return {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{package: version(package) for package in ("torch", "lightning", "numpy")},
    }
