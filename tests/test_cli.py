"""The sp4 command as a user types it, from a fresh directory."""

import csv
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sp4_lightning.__main__ import main
from sp4_lightning.agents import GROUPS, DQNAgent
from sp4_lightning.cli import SP4CLI

ROOT = Path(__file__).parent.parent
CONFIGS = ROOT / "configs"
SMOKE = ["--config", CONFIGS / "base.yaml", "--config", CONFIGS / "smoke.yaml"]


def sp4(directory, *arguments):
    command = [sys.executable, "-c", "from sp4_lightning.__main__ import main; main()", *map(str, arguments)]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    directory = tmp_path_factory.mktemp("smoke")
    return directory, sp4(directory, "fit", *SMOKE)


def test_a_smoke_run_covers_flips_and_reports(smoke):
    directory, run = smoke
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("4/4") == 8
    assert "the learned bounds are in force" in run.stdout + run.stderr
    # The progress bar knows where it ends, and shows the last evaluation; the result table has no colon.
    assert "Epoch 1/1" in run.stdout
    assert "eval/return:" in run.stdout
    for noise in ("Warning", "IterableDataset", "LeafSpec", "litlogger", "site-packages"):
        assert noise not in run.stdout + run.stderr
    assert sorted(path.name for path in (directory / "runs").iterdir()) == ["version_0"]
    kept = {path.name.split(".")[0] for path in (directory / "runs" / "version_0").iterdir()}
    assert {"events", "metrics", "config", "checkpoints"} <= kept


def test_the_saved_configuration_runs_again_and_its_checkpoint_validates(smoke):
    directory, _ = smoke
    saved = directory / "runs" / "version_0" / "config.yaml"
    assert yaml.safe_load(saved.read_text())["sp4"]["mode"] == "enforce"
    again = sp4(directory, "fit", "--config", saved)
    assert again.returncode == 0, again.stderr
    first, second = (directory / "runs" / f"version_{k}" / "metrics.csv" for k in (0, 1))
    assert first.read_text() == second.read_text()  # the same run: every loss, bound and return
    (checkpoint,) = (directory / "runs" / "version_0" / "checkpoints").iterdir()
    for command in ("validate", "test"):
        run = sp4(directory, command, *SMOKE, "--ckpt_path", checkpoint, "--model.gamma", 0.5)
        assert run.returncode == 0, run.stderr
        assert "return" in run.stdout
        assert "The checkpoint's settings of the model are used: gamma=0.99 instead of 0.5." in run.stderr


def test_overlays_and_overrides_compose(tmp_path):
    shown = sp4(
        tmp_path, "fit", *SMOKE, "--config", CONFIGS / "observe.yaml", "--sp4.warmup_steps", 7, "--print_config"
    )
    config = yaml.safe_load(shown.stdout)
    assert config["sp4"]["mode"] == "observe"
    assert config["sp4"]["warmup_steps"] == 7
    assert (
        config["model"]["total_steps"] == yaml.safe_load((CONFIGS / "smoke.yaml").read_text())["model"]["total_steps"]
    )


@pytest.mark.parametrize(("mode", "survives"), [("enforce", True), ("observe", False)])
def test_faults_on_purpose_are_survived_only_under_protection(mode, survives, tmp_path):
    run = sp4(tmp_path, "fit", *SMOKE, "--config", CONFIGS / "faults.yaml", "--config", CONFIGS / f"{mode}.yaml")
    assert run.returncode == 0, run.stderr
    directory = tmp_path / "runs" / "version_0"
    struck = [json.loads(line) for line in (directory / "faults.jsonl").read_text().splitlines()]
    listed = yaml.safe_load((directory / "config.yaml").read_text())["trainer"]["callbacks"][0]["init_args"]["faults"]
    assert {event["kind"] for event in struck} == {fault["kind"] for fault in listed}
    assert all(event["elements"] for event in struck)
    assert "Fault at step 145: gradient_inf in curiosity" in run.stdout + run.stderr
    rows = list(csv.DictReader((directory / "metrics.csv").read_text().splitlines()))
    losses = {key: [row[key] for row in rows if row[key]][-1] for key in rows[0] if key.startswith("loss/")}
    assert len(losses) == 5
    assert all(math.isfinite(float(loss)) == survives for loss in losses.values())


def test_faults_join_the_callbacks_that_are_there(tmp_path):
    shown = sp4(
        tmp_path,
        "fit",
        *SMOKE,
        *("--config", CONFIGS / "resumable.yaml", "--config", CONFIGS / "faults.yaml", "--print_config"),
    )
    callbacks = [entry["class_path"] for entry in yaml.safe_load(shown.stdout)["trainer"]["callbacks"]]
    assert [path.rpartition(".")[2] for path in callbacks] == ["ModelCheckpoint", "FaultInjector"]


@pytest.fixture
def stopped(tmp_path, monkeypatch, capsys):
    """Runs the command in this process, which saves its start, and returns exit status and error lines."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main(["fit", *map(str, arguments)])
        return stop.value.code, [line for line in capsys.readouterr().err.splitlines() if "sp4: error" in line]

    return run


@pytest.mark.parametrize("overlay", sorted(str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*.yaml")))
def test_every_configuration_is_valid(overlay, stopped):
    code, errors = stopped("--config", CONFIGS / "base.yaml", "--config", CONFIGS / overlay, "--print_config")
    assert (code, errors) == (0, [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sp4.mod", "observe"], "unrecognized arguments: --sp4.mod observe Did you mean 'sp4.mode'?"),
        (
            ["--sp4.mode", "obsere"],
            "Parser key \"sp4.mode\": Expected a typing.Literal['observe', 'enforce']. Got value: obsere "
            "Did you mean 'observe'?",
        ),
        (["--sp4.warmup_steps", "-3"], "warmup_steps must be 0 or more, got -3."),
        (["--sp4.learned.headroom", ".nan"], "learned.headroom must be finite and at least 1, got nan."),
        (["--model.environment", "CartPol-v1"], "There is no environment 'CartPol-v1'. Did you mean 'CartPole-v1'?"),
        (["--model.optimizers", "sx"], "Got value: sx Did you mean 'six'?"),
        (["--model.auxiliaries", "[iqn, iql_hihg]"], "'iql_hihg'. Did you mean 'iql_high'?"),
        (["--sp4.learned.headrom", 3], "Option 'headrom' is not accepted Did you mean 'headroom'?"),
        (
            ["--sp4.disable", "{dqn_trnk: [grad]}"],
            "the group 'dqn_trnk', which does not exist. Did you mean 'dqn_trunk'?",
        ),
        (["--sp4.disable", "{dqn_trunk: [grd]}"], "Did you mean 'grad'?"),
        (["--trainer.accelerator", "cpuu"], "The Trainer cannot be made: You selected an invalid accelerator name"),
        (["--trainer.logger", "TensorBordLogger"], "Did you mean 'TensorBoardLogger'?"),
        (["--config", "nothere.yaml"], 'Parser key "config": File does not exist:'),
        (["--config", CONFIGS / "observ.yaml"], "Did you mean 'observe.yaml'?"),
        (
            ["--sp4.groups.dqn_trunk", "nothing.here"],
            "Group 'dqn_trunk': 'nothing.here' matches no module or parameter",
        ),
        (["--sp4.backend", "cuda"], "backend='cuda' was asked for, but the parameters are on cpu, which is no NVIDIA"),
        (
            ["--trainer.callbacks+=sp4_lightning.SP4Callback"],
            "SP4Callback is in trainer.callbacks and in the sp4 section.",
        ),
        (["--ckpt_path", "nothere.ckpt"], "nothere.ckpt"),
    ],
)
def test_what_is_wrong_is_one_line(arguments, message, stopped):
    code, (line,) = stopped(*SMOKE, *arguments)
    assert code == 2
    assert message in line


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("sp4: {warmup: 3}", ["sp4.warmup", "Did you mean 'sp4.warmup_steps'?"]),
        ("modl: {total_steps: 3}", ["'modl.total_steps'", "Did you mean 'model.total_steps'?"]),
        ("sp4: {disable: {dqn_trnk: [grad]}}", ["'dqn_trnk', which does not exist. Did you mean 'dqn_trunk'?"]),
        (
            "trainer: {callbacks: [{class_path: ModelCheckpoint, init_args: {dirpth: x}}]}",
            ["Option 'dirpth' is not accepted Did you mean 'dirpath'?"],
        ),
        (
            "trainer: {callbacks: [{class_path: sp4_lightning.FaultInjector, init_args: "
            "{faults: [{kind: gradient_nan}]}}]}",
            ["faults[0]: step is missing"],
        ),
        (
            "trainer: {callbacks: [{class_path: sp4_lightning.FaultInjector, init_args: "
            "{faults: [{kind: gradient_nan, step: 1, group: iqnn}]}}]}",
            ["faults[0]: gradient_nan names the group 'iqnn', which does not exist. Did you mean 'iqn'?"],
        ),
        ("trainer: {logger: [{class_path: CSVLoger}]}", ["trainer.logger", "Did you mean 'CSVLogger'?"]),
    ],
)
def test_what_is_wrong_in_a_file_is_one_line(text, messages, stopped, tmp_path):
    (tmp_path / "bad.yaml").write_text(text)
    code, (line,) = stopped(*SMOKE, "--config", "bad.yaml")
    assert code == 2
    for message in messages:
        assert message in line


def test_a_wrong_command_is_one_line(capsys):
    with pytest.raises(SystemExit):
        main(["ft"])
    assert "Did you mean 'fit'?" in capsys.readouterr().err


ENVIRONMENTS = ("acrobot", "cartpole", "cartpole_hidden", "lunarlander", "lunarlander_continuous")


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_every_environment_is_made_and_takes_every_overlay(environment):
    overlays = [name for path in CONFIGS.glob("*.yaml") if (name := path.stem) not in (*ENVIRONMENTS, "base")]
    arguments = [word for name in ("base", environment, *overlays) for word in ("--config", f"{CONFIGS / name}.yaml")]
    quiet = {"run": False, "save_config_callback": None, "seed_everything_default": 0}
    agent = SP4CLI(DQNAgent, args=[*arguments, "--model.optimizers", "one"], **quiet).model
    groups = [group["name"] for optimizer in agent.configure_optimizers() for group in optimizer.param_groups]
    assert groups == list(GROUPS)
    assert len(agent.experience.environments.actions.branches) == (2 if environment.endswith("continuous") else 1)
    assert agent.experience.environments.observation_size == {"cartpole": 4, "cartpole_hidden": 2, "acrobot": 6}.get(
        environment, 8
    )


def test_an_unwritable_directory_is_one_line(stopped, tmp_path):
    (tmp_path / "runs").write_text("a file where the directory should be")
    code, (line,) = stopped(*SMOKE)
    assert code == 2
    assert "File exists" in line
    assert "runs" in line


@pytest.mark.parametrize("package", ["gymnasium", "jsonargparse", "tensorboard"])
def test_a_missing_extra_is_one_line(package, tmp_path):
    code = f"import sys; sys.modules[{package!r}] = None; from sp4_lightning.__main__ import main; main()"
    command = [sys.executable, "-c", code, "fit", *map(str, SMOKE)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 2
    assert "Traceback" not in run.stderr
    assert "pip install 'sp4-lightning[rl]'" in run.stderr
