"""What a wheel carries, and what the package promises."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sp4_lightning.sources import kernel_directory

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    (path,) = out.glob("*.whl")
    return path


def test_a_wheel_holds_the_kernels_the_types_and_the_licence(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("sp4_lightning/kernels/README.md", "sp4_lightning/py.typed", "sp4_lightning/agents/dqn.py"):
        assert name in names
    assert any(name.endswith("LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "benchmarks/", "kernels/")) for name in names)


def test_kernels_are_found_in_a_wheel_and_in_a_checkout(wheel, tmp_path):
    assert kernel_directory() == ROOT / "kernels"
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from sp4_lightning.sources import kernel_directory; print(kernel_directory())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert Path(run.stdout.strip()) == tmp_path / "sp4_lightning" / "kernels"
