"""Cost of the protection on a CPU: the agent's update with and without SP4Callback, in real Trainer runs.

Two processes train the same agent with the same seed, pinned to the same core, and pass a baton every few updates, so
that both sides see the same machine at the same time. Reported is the ratio of the medians and the spread of the
pairwise ratios.

    python benchmarks/cpu_agent.py --updates 1500 --out benchmarks/results/cpu_agent.json
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing as mp
import os
import platform
import statistics
import time
import warnings
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from lightning.pytorch import Callback, Trainer

from sp4_lightning import SP4Callback
from sp4_lightning.agents import DQNAgent

TURN = 10
"""Updates a process makes before it passes the baton."""
WARM_UP = 25
"""Turns that do not count: the flip and the first allocations lie in them."""


class Baton(Callback):
    """Times updates (batch start to batch end) in turns, and waits while the other process has the machine."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.turn: list[float] = []

    def on_train_batch_start(self, *_: object) -> None:
        if not self.turn:
            self.pipe.recv()
        self.start = time.perf_counter()

    def on_train_batch_end(self, *_: object) -> None:
        self.turn.append(time.perf_counter() - self.start)
        if len(self.turn) == TURN:
            self.pipe.send(statistics.mean(self.turn))
            self.turn = []


def train(pipe: Connection, core: int, updates: int, settings: dict | None, agent_options: dict) -> None:
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    # Ten updates more than are timed, so that neither side ends while the other waits.
    steps = 1000 + 4 * (updates + TURN)
    agent = DQNAgent(
        "CartPole-v1", total_steps=steps, learning_starts=1000, epoch_updates=10 * updates, **agent_options
    )
    protection = [] if settings is None else [SP4Callback(tables=False, **settings)]
    trainer = Trainer(
        max_epochs=-1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        # The clock stops after the other callback has done its work.
        callbacks=[*protection, Baton(pipe)],
    )
    trainer.fit(agent)


def compare(core: int, updates: int, settings: dict, agent_options: dict) -> tuple[list[float], list[float]]:
    """Seconds per update without and with the protection, turn by turn."""
    context = mp.get_context("spawn")
    pipes, processes = [], []
    for side in (None, settings):
        here, there = context.Pipe()
        process = context.Process(target=train, args=(there, core, updates, side, agent_options), daemon=True)
        process.start()
        pipes.append(here)
        processes.append(process)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(updates // TURN):
        for pipe, side in zip(pipes, times, strict=True):
            pipe.send("your turn")
            side.append(pipe.recv())
    for process in processes:
        process.kill()
    return times[0][WARM_UP:], times[1][WARM_UP:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=1500)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--update-every", type=int, nargs="*", default=[None])
    parser.add_argument("--optimizers", nargs="*", default=["six", "one"])
    parser.add_argument("--backend", help="the fastest unless given")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for optimizers in options.optimizers:
        for every in options.update_every:
            settings = {"update_every": every, "warmup_steps": 200, "backend": options.backend}
            bare, protected = compare(options.core, options.updates, settings, {"optimizers": optimizers})
            ratios = sorted(p / b for p, b in zip(protected, bare, strict=True))
            rows.append(
                {
                    "optimizers": optimizers,
                    "update_every": every or "default",
                    "backend": options.backend or "default",
                    "bare_ms": 1e3 * statistics.median(bare),
                    "protected_ms": 1e3 * statistics.median(protected),
                    "ratio_median": statistics.median(ratios),
                    "ratio_quartiles": [ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]],
                    "turns": len(ratios),
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
    }
    if options.out:
        options.out.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
