"""kill -9 at random moments: the run that is resumed ends with every bit of the one that was left alone."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

CONFIGS = Path(__file__).parent.parent / "configs"
SAVED = Path("runs") / "resumable" / "last.ckpt"


def start(directory, arguments):
    """The real command, in a process of its own."""
    overlays = [word for name in ("base", "smoke", "resumable") for word in ("--config", CONFIGS / f"{name}.yaml")]
    quiet = ["--trainer.enable_progress_bar", "false", "--trainer.num_sanity_val_steps", "0"]
    resumed = ["--ckpt_path", SAVED] if (directory / SAVED).exists() else []
    command = [sys.executable, "-m", "sp4_lightning", "fit", *overlays, *quiet, *arguments, *resumed]
    with open(directory / "log", "a") as log:
        return subprocess.Popen([str(word) for word in command], cwd=directory, stdout=log, stderr=subprocess.STDOUT)


def finish(process, directory):
    assert process.wait(timeout=500) in (0, -signal.SIGKILL), (directory / "log").read_text()
    return process.returncode == 0


def kill_and_resume(directory, arguments, kills, pause, rng):
    """Kill the run again and again when it has saved and a random pause has passed, then let it finish."""
    last = directory / SAVED
    struck = 0
    while struck < kills:
        before = last.stat().st_mtime_ns if last.exists() else None
        process = start(directory, arguments)
        while process.poll() is None and (not last.exists() or last.stat().st_mtime_ns == before):
            time.sleep(0.01)
        # Some kills fall into an update, some into acting, a validation, or the writing of the next checkpoint.
        time.sleep(rng.uniform(0, pause))
        process.kill()
        if finish(process, directory):
            return struck
        struck += 1
    assert finish(start(directory, arguments), directory)
    return struck


def differences(a, b, where=""):
    """Paths at which two checkpoints are not the same, bit for bit."""
    if isinstance(a, torch.Tensor):
        same = isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
        return [] if same else [where]
    if isinstance(a, dict) and isinstance(b, dict):
        missing = [f"{where}.{key}" for key in a.keys() ^ b.keys()]
        return missing + [path for key in a.keys() & b.keys() for path in differences(a[key], b[key], f"{where}.{key}")]
    if isinstance(a, (list, tuple)) and len(a) == len(b):
        return [path for k in range(len(a)) for path in differences(a[k], b[k], f"{where}.{k}")]
    return [] if a == b else [where]


def end_of(directory):
    """The last checkpoint without ModelCheckpoint's own state, which is paths."""
    saved = torch.load(directory / SAVED, weights_only=True)
    saved["callbacks"] = {"SP4Callback": saved["callbacks"]["SP4Callback"]}
    return saved


def check(tmp_path, arguments, updates, **options):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    undisturbed = start(whole, arguments)
    struck = kill_and_resume(killed, arguments, **options)
    assert finish(undisturbed, whole)
    assert struck >= options["kills"] / 2  # or the runs are too short to say anything
    expected, got = end_of(whole), end_of(killed)
    assert expected["dqn_agent"]["updates"] == updates
    # Weights, lagged weights, moments, bounds and trackers, replay, environments, unfinished returns, generators,
    # counters, Lightning's own progress.
    assert differences(expected, got) == []


def test_a_killed_run_ends_bit_identical(tmp_path):
    # Every 60 updates of six optimizers: in the middle of epochs of 125.
    often = ["--trainer.callbacks.init_args.every_n_train_steps", 360]
    arguments = [*often, "--model.total_steps", 1400]
    check(tmp_path, arguments, updates=300, kills=2, pause=0.8, rng=random.Random(0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "layout", "seed"),
    [("cartpole", "six_optimizers", 1), ("cartpole", "one_optimizer", 2), ("lunarlander", "six_optimizers", 3)],
)
def test_a_run_that_is_killed_six_times_ends_bit_identical(tmp_path, environment, layout, seed):
    config = ["--config", CONFIGS / f"{environment}.yaml", "--config", CONFIGS / f"{layout}.yaml"]
    arguments = [*config, "--model.total_steps", 5000, "--model.eval_episodes", 5, "--model.epoch_updates", 100]
    check(tmp_path, arguments, updates=1200, kills=6, pause=2.0, rng=random.Random(seed))
