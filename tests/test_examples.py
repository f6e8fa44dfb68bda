"""The examples run and show what they say."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


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
