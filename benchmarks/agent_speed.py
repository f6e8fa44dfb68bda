"""Where the CPU time of the agent's update goes, in real Trainer runs on CartPole at one update per four steps.

Functions are timed where they are called; what is left of a run is Lightning's. Both layouts of the optimizers take
turns, and the median of the rounds is reported.

    python benchmarks/agent_speed.py --out benchmarks/results/agent_speed.json
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer

from sp4_lightning import SP4Callback
from sp4_lightning.agents import DQNAgent

WARM_UP = 600
"""Updates that do not count; the flip is among them."""


class Clock(Callback):
    """Exclusive CPU seconds by part: while a part calls another one, only the inner one's time runs."""

    def __init__(self, sp4: SP4Callback) -> None:
        self.sp4 = sp4
        self.seconds: Counter[str] = Counter()
        self.running = ["Lightning"]

    def switch(self) -> None:
        now = time.process_time()
        self.seconds[self.running[-1]] += now - self.since
        self.since = now

    def part(self, name: str, owner: Any, method: str) -> None:
        """Time a method of one object."""
        call: Callable[..., Any] = getattr(owner, method)

        @wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.switch()
            self.running.append(name)
            try:
                return call(*args, **kwargs)
            finally:
                self.switch()
                self.running.pop()

        setattr(owner, method, timed)

    def on_train_start(self, trainer: Trainer, module: DQNAgent) -> None:
        experience, learner = module.experience, module.learner
        self.part("environments, returns, replay", experience, "step")
        self.part("environments, returns, replay", experience.replay, "sample")
        self.part("acting", experience, "policy")
        self.part("forward and losses", learner, "losses")
        self.part("target networks", learner, "sync_targets")
        self.part("backward", torch.autograd, "backward")
        for optimizer in trainer.optimizers:
            self.part("optimizers", optimizer, "step")
            self.part("optimizers", optimizer, "zero_grad")
        for engine in self.sp4.protection.engines:
            for method in ("start", "before", "after"):
                self.part("protection", engine, method)
        self.part("protection", self.sp4, "on_train_batch_end")
        self.since = time.process_time()

    def on_train_batch_end(self, trainer: Trainer, module: DQNAgent, *_: object) -> None:
        if module.updates == WARM_UP:
            self.switch()
            self.seconds.clear()

    def on_train_end(self, *_: object) -> None:
        self.switch()


def measure(layout: str, updates: int) -> dict[str, float]:
    """Milliseconds per update by part."""
    agent = DQNAgent("CartPole-v1", total_steps=1000 + 4 * (WARM_UP + updates), epoch_updates=10**6, optimizers=layout)
    sp4 = SP4Callback(tables=False)
    clock = Clock(sp4)
    backward = torch.autograd.backward
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    try:
        Trainer(
            max_epochs=-1,
            accelerator="cpu",
            limit_val_batches=0,
            callbacks=[sp4, clock],
            **dict.fromkeys(quiet, False),
        ).fit(agent)
    finally:
        torch.autograd.backward = backward
    return {part: 1e3 * seconds / updates for part, seconds in clock.seconds.most_common()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--optimizers", nargs="*", default=["six", "one"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    rounds = [
        {layout: measure(layout, options.updates) for layout in options.optimizers} for _ in range(options.rounds)
    ]
    rows = {}
    for layout in options.optimizers:
        parts = {part: statistics.median(r[layout][part] for r in rounds) for part in rounds[0][layout]}
        total = statistics.median(sum(r[layout].values()) for r in rounds)
        rows[layout] = {"ms": parts, "total_ms": total, "env_steps_per_cpu_second": 4e3 / total}
        print(f"\n{layout}: {4e3 / total:.0f} environment steps per CPU-second\n\n| part | ms an update | share |")
        print("|---|---|---|")
        for part, ms in sorted(parts.items(), key=lambda item: -item[1]):
            print(f"| {part} | {ms:.2f} | {ms / total:.0%} |")
        print(f"| all | {total:.2f} | |")
    machine = {"processor": platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__}
    if options.out:
        options.out.write_text(
            json.dumps({"machine": machine, "updates": options.updates, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
