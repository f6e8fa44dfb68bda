"""Learning runs of the agent, from the YAML files in configs/: suites of experiments over several seeds.

An experiment is named by what is composed: ``cartpole+observe`` is base.yaml, cartpole.yaml and observe.yaml, and
``cartpole+n_step=3`` overrides one value of the model. Every run writes its own JSON when it ends, and a run that has
one, made from the same settings, is not run again. The longest start first.

    python benchmarks/agent.py all --workers 16                # runs/agent/<experiment>/<seed>.json
    python benchmarks/agent.py cartpole modes --workers 4      # some suites
    python benchmarks/agent.py cartpole+n_step=7 --seeds 20 21 # an experiment of your own
    python benchmarks/agent.py --collect                       # benchmarks/results/agent.{json,md}, docs/learning.svg
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import sys
import time
import warnings
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import torch
from agent_report import collect
from lightning.pytorch import Callback, LightningModule, Trainer

from sp4_lightning import SP4Callback
from sp4_lightning.agents import DQNAgent
from sp4_lightning.cli import SP4CLI

ROOT = Path(__file__).parent.parent
ABLATIONS = ("iqn_acting", "no_iql_clip", "no_bonus", "no_attention", "no_auxiliaries")
ABLATED = ("cartpole", "cartpole_hidden", "acrobot")
SUITES = {
    "cartpole": (["cartpole"], 5),
    "modes": (["cartpole", "cartpole+observe"], 5),
    "lunarlander": (["lunarlander"], 3),
    "lunarlander_continuous": (["lunarlander_continuous"], 3),
    "acrobot": (["acrobot"], 3),
    "hidden": (["cartpole_hidden", "cartpole_hidden+no_attention"], 5),
    "ablation": ([e for task in ABLATED for e in (task, *(f"{task}+{part}" for part in ABLATIONS))], 3),
}
"""Experiments and number of seeds, from 0, of every suite."""


class Run(NamedTuple):
    """One training: an experiment with a seed."""

    experiment: str
    seed: int

    def arguments(self) -> list[str]:
        """The command line that composes it."""
        arguments = ["--config", str(ROOT / "configs" / "base.yaml")]
        for part in self.experiment.split("+"):
            if "=" in part:
                key, value = part.split("=", 1)
                arguments += [f"--model.{key}", value]
            else:
                arguments += ["--config", str(next((ROOT / "configs").rglob(f"{part}.yaml"), f"{part}.yaml"))]
        quiet = ["logger", "enable_checkpointing", "enable_progress_bar"]
        arguments += [word for name in quiet for word in (f"--trainer.{name}", "false")]
        arguments += ["--trainer.num_sanity_val_steps", "0"]
        return [*arguments, "--sp4.tables", "false", "--model.seed", str(self.seed)]

    def compose(self) -> SP4CLI:
        """Agent, Trainer and callback, made but not started."""
        warnings.filterwarnings("ignore")
        logging.disable(logging.WARNING)
        return SP4CLI(DQNAgent, args=self.arguments(), run=False, save_config_callback=None, seed_everything_default=0)


class Watch(Callback):
    """The learning curve, and the CPU time of training without its evaluations."""

    def __init__(self) -> None:
        self.curve: list[tuple[int, float]] = []
        self.seconds = 0.0

    def on_train_start(self, *_: object) -> None:
        self.since = time.process_time()

    def on_validation_start(self, *_: object) -> None:
        self.seconds += time.process_time() - self.since

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        self.curve.append((module.experience.steps, float(trainer.callback_metrics["eval/return"])))
        self.since = time.process_time()

    def on_train_end(self, *_: object) -> None:
        self.seconds += time.process_time() - self.since


def play(run: Run, path: Path) -> str:
    """Train, test on episodes that validation has not seen, and write what came out."""
    cli = run.compose()
    agent, trainer = cli.model, cli.trainer
    (sp4,) = (callback for callback in trainer.callbacks if isinstance(callback, SP4Callback))
    watch = Watch()
    trainer.callbacks.append(watch)
    trainer.fit(agent)
    (tested,) = trainer.test(agent, verbose=False)
    report = sp4.protection.report()
    groups = {
        group: {
            "clamped": sum(tensor.clamped for tensor in report.of(group)),
            "counted": sum(tensor.counted for tensor in report.of(group)),
            "worst_tensor": max(tensor.share for tensor in report.of(group)),
            "repairs": sum(tensor.repaired for tensor in report.of(group)),
        }
        for group in report.bounds
    }
    result = {
        "experiment": run.experiment,
        "seed": run.seed,
        "settings": settings(agent),
        "mode": sp4.settings.mode,
        "return": tested["test/return"],
        "episodes": agent.hparams["eval_episodes"],
        "env_steps": agent.experience.steps,
        "updates": agent.updates,
        "cpu_seconds": watch.seconds,
        "skips": sum(optimizer.skipped for optimizer in report.optimizers),
        "groups": groups,
        "curve": watch.curve,
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_suffix(".part")  # renamed when complete: a run that is cut off leaves no half result
    whole.write_text(json.dumps(result) + "\n")
    whole.rename(path)
    rate = agent.experience.steps / watch.seconds
    return f"{run.experiment} seed {run.seed}: return {tested['test/return']:.1f}, {rate:.0f} steps per CPU-second"


def settings(agent: DQNAgent) -> dict:
    """The agent's arguments, as JSON keeps them."""
    return json.loads(json.dumps(dict(agent.hparams)))


def due(names: Iterable[str], seeds: list[int] | None, directory: Path) -> list[tuple[Run, Path]]:
    """The runs that have no result yet, the longest first."""
    runs = {
        Run(experiment, seed)
        for name in names
        for experiments, count in [SUITES.get(name, ([name], 3))]
        for experiment in experiments
        for seed in (range(count) if seeds is None else seeds)
    }
    waiting = []
    for run in sorted(runs):
        path = directory / run.experiment / f"{run.seed}.json"
        agent = run.compose().model
        if not path.exists() or json.loads(path.read_text())["settings"] != settings(agent):
            waiting.append((-agent.total_updates * agent.hparams["batch_size"], run, path))
    return [(run, path) for _, run, path in sorted(waiting)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="suite", help=f"all, {', '.join(SUITES)}, or an experiment")
    parser.add_argument("--seeds", type=int, nargs="+", help="instead of the suite's own")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "agent", help="where the runs' results are kept")
    parser.add_argument("--collect", action="store_true", help="make tables and curves of all results there")
    options = parser.parse_args()
    names = SUITES if "all" in options.names else options.names
    waiting = due(names, options.seeds, options.runs)
    print(f"{len(waiting)} runs", flush=True)
    os.environ["OMP_NUM_THREADS"] = "1"  # read by the workers when they import torch
    with ProcessPoolExecutor(options.workers, get_context("spawn"), max_tasks_per_child=1) as pool:
        futures = {pool.submit(play, run, path): run for run, path in waiting}
        for done in as_completed(futures):
            failure = done.exception()
            print(f"{futures[done]} failed: {failure!r}" if failure else done.result(), flush=True)
    if options.collect:
        collect(options.runs)
    if any(done.exception() for done in futures):
        sys.exit("Some runs failed; the same command tries them again.")


if __name__ == "__main__":
    main()
