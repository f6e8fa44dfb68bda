"""What a wheel carries, and what the package promises."""

import ctypes
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sp4_lightning.backends.cpp import _Call
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
    kernels = [f"sp4_lightning/kernels/{path.name}" for path in (ROOT / "kernels").iterdir()]
    assert {"README.md", "cpu.cpp"} <= {Path(name).name for name in kernels}
    for name in (*kernels, "sp4_lightning/py.typed", "sp4_lightning/agents/dqn.py"):
        assert name in names
    assert any(name.endswith("LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "benchmarks/", "kernels/")) for name in names)


def test_kernels_are_found_in_a_wheel_and_in_a_checkout(wheel, tmp_path):
    assert kernel_directory() == ROOT / "kernels"
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from sp4_lightning.sources import kernel_directory; print(kernel_directory())\n"
        "from sp4_lightning.backends.compiling import cpu_library; print(cpu_library().sp4_call_size())"
    )
    environment = {**os.environ, "SP4_CACHE": str(tmp_path / "cache")}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path, env=environment
    )
    directory, size = run.stdout.split()
    assert Path(directory) == tmp_path / "sp4_lightning" / "kernels"
    assert int(size) == ctypes.sizeof(_Call)
