"""Compiling ``kernels/cpu.cpp`` with the machine's own C++ compiler, once per machine and version."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

from sp4_lightning.backends.cache import cached
from sp4_lightning.errors import BackendError
from sp4_lightning.sources import kernel_directory

FLAGS = (
    *("-O3", "-std=c++17", "-shared", "-fPIC", "-fno-math-errno"),
    # No fused multiply-add: the result is what the definition gives.
    "-ffp-contract=off",
    # Six times as fast as the oldest x86-64. Other architectures have their vector unit in the baseline.
    *(["-march=native"] if platform.machine() in ("x86_64", "AMD64") else []),
)


@functools.lru_cache(maxsize=1)
def cpu_library() -> ctypes.CDLL:
    """The compiled library, from the cache where it is there.

    Raises:
        BackendError: There is no compiler (``$CXX``, c++, g++ or clang++), or it fails.
    """
    compiler = _compiler()
    sources = sorted(kernel_directory().glob("*.c*"))
    # The predefined macros tell the compiler's version and the processor's features: a home directory may be shared.
    macros = subprocess.run([compiler, *FLAGS, "-dM", "-E", "-xc++", "/dev/null"], capture_output=True, check=False)
    key = hashlib.sha256(b"\0".join([macros.stdout, repr(FLAGS).encode(), *(path.read_bytes() for path in sources)]))
    library = cached(f"cpu-{key.hexdigest()[:24]}.so", lambda path: _compile(compiler, path))
    return ctypes.CDLL(str(library))


def _compiler() -> str:
    wanted = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    for name in wanted:
        found = shutil.which(name)
        if found:
            return found
    raise BackendError(
        f"backend='cpp' needs a C++ compiler, and {', '.join(wanted)} cannot be run. Install one (on Debian and "
        f"Ubuntu: apt install g++), set CXX, or set backend='torch'."
    )


def _compile(compiler: str, library: Path) -> None:
    command = [compiler, *FLAGS, str(kernel_directory() / "cpu.cpp"), "-o", str(library)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        first = next((line for line in result.stderr.splitlines() if "error" in line), result.stderr.strip())
        raise BackendError(
            f"backend='cpp' cannot be compiled: {first!r} from `{' '.join(command)}`. Set CXX to another "
            f"compiler, or set backend='torch'."
        )
