"""How often two rules for the learned bound would clamp the agent's gradients on clean runs.

Trains the agent without protection, keeps the quantile and the maximum of every tensor's ``|grad|`` at every update,
and replays both rules on them: the rank over a window that the library uses, and a rate-limited mean of log q with
headroom from its mean absolute deviation. Target networks are copied every 250 updates, which makes some gradients
periodically a hundredfold larger.

    python benchmarks/clean_share.py --out benchmarks/results/clean_share.json
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import platform
import warnings
from pathlib import Path

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer

from sp4_lightning import LearnedBound, tracker
from sp4_lightning.agents import DQNAgent
from sp4_lightning.state import TensorState

WARM_UP = 500
"""Updates before the flip; they are observed but not judged."""


class Record(Callback):
    """q0.999 and maximum of every tensor's gradient magnitudes, update by update."""

    def __init__(self) -> None:
        self.rows: list[list[tuple[float, float]]] = []
        self.names: list[str] = []

    def on_train_batch_end(self, trainer: Trainer, module: DQNAgent, *_: object) -> None:
        named = [(name, param.grad) for name, param in module.named_parameters() if param.grad is not None]
        self.names = [name for name, _ in named]
        self.rows.append([_quantile_and_maximum(grad) for _, grad in named])


def _quantile_and_maximum(grad: torch.Tensor) -> tuple[float, float]:
    values = grad.abs().flatten()
    values = values[values > 0]
    if not len(values):
        return 0.0, 0.0
    maximum = values.max().item()
    rank = math.ceil(0.999 * len(values))
    return (values.kthvalue(rank).values.item() if len(values) >= 32 else maximum), maximum


def record(seed: int, updates: int) -> tuple[np.ndarray, list[str]]:
    agent = DQNAgent("CartPole-v1", seed=seed, total_steps=1000 + 4 * updates, target_sync=250, epoch_updates=10**6)
    recorder = Record()
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    Trainer(max_epochs=-1, accelerator="cpu", limit_val_batches=0, callbacks=[recorder], **quiet).fit(agent)
    return np.array(recorder.rows), recorder.names


def ranked(q: np.ndarray, learned: LearnedBound) -> np.ndarray:
    """The library's bound in force at every update, ``[updates, tensors]``."""
    state = TensorState.fresh(q.shape[1], learned.window, torch.device("cpu"))
    bounds = []
    for row in q:
        bounds.append(tracker.bound(state, learned, every=1))
        tracker.observe(state, row, row > 0, learned, every=1)
    return np.array(bounds)


def averaged(q: np.ndarray) -> np.ndarray:
    """A mean of log q that moves by at most 3% up and 1% down, times exp(5 s) within 4 and 16."""
    bounds, level, spread, seen = [], np.zeros(q.shape[1]), np.zeros(q.shape[1]), np.zeros(q.shape[1], int)
    first: list[np.ndarray] = []
    for row in q:
        armed = seen >= 64
        bounds.append(np.where(armed, np.exp(level) * np.clip(np.exp(5 * spread), 4, 16), np.inf))
        valid = row > 0
        log_q = np.log(np.where(valid, row, 1.0))
        first.append(np.where(valid, log_q, np.nan))
        distance = log_q - level
        level += np.where(valid & armed, np.clip(distance / 100, -math.log(1.01), math.log(1.03)), 0.0)
        spread += np.where(valid & armed, (np.minimum(abs(distance), 2) - spread) / 100, 0.0)
        seen += valid
        arms = valid & (seen == 64)
        if arms.any():
            start = np.nanmedian(first, 0)
            level = np.where(arms, start, level)
            spread = np.where(arms, np.nanmean(np.minimum(abs(np.array(first) - start), 2), 0), spread)
    return np.array(bounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=4000)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    rows = []
    for seed in options.seeds:
        series, names = record(seed, options.updates)
        q, maximum = series[..., 0], series[..., 1]
        for rule, bounds in (("rank", ranked(q, LearnedBound())), ("mean", averaged(q))):
            share = (maximum > bounds)[WARM_UP:].mean(0)
            worst = np.argsort(-share)[:3]
            rows.append({"rule": rule, "seed": seed, "worst": {names[i]: round(float(share[i]), 5) for i in worst}})
            print(json.dumps(rows[-1]), flush=True)
    if options.out:
        note = "share of updates after the warm-up in which any element of the tensor is beyond the bound"
        result = {"machine": platform.machine(), "updates": options.updates, "what": note, "rows": rows}
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
