"""The sp4 command as a user types it, from a fresh directory."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sp4_lightning.__main__ import main

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
    assert "eval/return" in run.stdout
    assert sorted(path.name for path in (directory / "runs").iterdir()) == ["version_0"]
    kept = {path.name.split(".")[0] for path in (directory / "runs" / "version_0").iterdir()}
    assert {"events", "metrics", "config", "checkpoints"} <= kept


def test_the_saved_configuration_runs_again_and_its_checkpoint_validates(smoke):
    directory, _ = smoke
    saved = directory / "runs" / "version_0" / "config.yaml"
    assert yaml.safe_load(saved.read_text())["sp4"]["mode"] == "enforce"
    again = sp4(directory, "fit", "--config", saved, "--model.total_steps", 400)
    assert again.returncode == 0, again.stderr
    (checkpoint,) = (directory / "runs" / "version_0" / "checkpoints").iterdir()
    for command in ("validate", "test"):
        run = sp4(directory, command, *SMOKE, "--ckpt_path", checkpoint)
        assert run.returncode == 0, run.stderr
        assert "return" in run.stdout


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
            "Parser key \"sp4.mode\": Expected a typing.Literal['observe', 'enforce']. Got value: obsere",
        ),
        (["--sp4.warmup_steps", "-3"], "warmup_steps must be 0 or more, got -3."),
        (["--sp4.learned.headroom", ".nan"], "learned.headroom must be finite and at least 1, got nan."),
        (["--model.environment", "CartPol-v1"], "There is no environment 'CartPol-v1'. Did you mean 'CartPole-v1'?"),
        (["--config", "nothere.yaml"], 'Parser key "config": File does not exist:'),
        (
            ["--sp4.groups.dqn_trunk", "nothing.here"],
            "Group 'dqn_trunk': 'nothing.here' matches no module or parameter",
        ),
        (["--sp4.backend", "cuda"], "backend='cuda' was asked for, but this version has no CUDA kernels yet"),
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


def test_a_misspelled_key_in_a_file_is_one_line(stopped, tmp_path):
    (tmp_path / "bad.yaml").write_text("sp4: {warmup: 3}\n")
    code, (line,) = stopped(*SMOKE, "--config", "bad.yaml")
    assert code == 2
    assert "sp4.warmup" in line
    assert "Did you mean 'sp4.warmup_steps'?" in line


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
