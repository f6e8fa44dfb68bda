"""The examples run and show what they say."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def run(name, tmp_path):
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_minimal_survives_what_kills_bare_adam(tmp_path):
    bare, guarded = re.findall(r"loss after the faults: (\S+)", run("minimal.py", tmp_path))
    assert bare == "nan"
    assert float(guarded) < 0.01


def test_minimal_is_short():
    assert len((EXAMPLES / "minimal.py").read_text().splitlines()) <= 60


def test_callback_covers_two_optimizers(tmp_path):
    shown = run("callback.py", tmp_path)
    assert shown.count("4/4") == 2
    assert shown.count("3/4") == 1
    assert "phase: learned" in shown


def test_the_script_that_proves_protection_does(tmp_path):
    (script,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "faults.md").read_text(), re.DOTALL)
    (tmp_path / "prove.py").write_text(script)
    command = [sys.executable, "-W", "ignore", "prove.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    errors = dict(re.findall(r"^(.*faults.*): (\S+)$", done.stdout, re.MULTILINE))
    assert errors["faults"] == "nan"
    assert float(errors["faults, protected"]) < 2 * float(errors["no faults"])
