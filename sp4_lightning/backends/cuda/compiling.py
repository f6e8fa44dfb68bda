"""Compiling ``kernels/engine.cu`` for a GPU with NVRTC, once per architecture and version."""

from __future__ import annotations

import functools
import hashlib
from typing import Any, NamedTuple

import torch

from sp4_lightning.backends.cache import cached
from sp4_lightning.errors import BackendError
from sp4_lightning.sources import kernel_directory

KERNELS = ("sp4_look", "sp4_mend", "sp4_learn")
OPTIONS = (
    "-std=c++17",
    # No fused multiply-add and no flushing of denormals: the result is what the definition gives.
    *("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"),
    "--ptxas-options=-v",  # registers and spills, in the log
)


class Compiled(NamedTuple):
    """One architecture's machine code."""

    cubin: bytes
    log: str


class Kernels(NamedTuple):
    """Addresses of the loaded kernels, of one device."""

    look: int
    mend: int
    learn: int


def compile_kernels(architecture: str) -> Compiled:
    """Compile for one architecture; needs no GPU.

    Args:
        architecture: Such as ``sm_90``.

    Raises:
        BackendError: CuPy or NVRTC is missing, or the code does not compile.
    """
    nvrtc = import_cupy().cuda.nvrtc
    directory = kernel_directory()
    headers = sorted(directory.glob("*.cuh"))
    program = nvrtc.createProgram(
        (directory / "engine.cu").read_text(),
        "engine.cu",
        [header.read_bytes() for header in headers],
        [header.name.encode() for header in headers],
    )
    try:
        nvrtc.compileProgram(program, [f"--gpu-architecture={architecture}", *OPTIONS])
        return Compiled(nvrtc.getCUBIN(program), nvrtc.getProgramLog(program))
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program).strip()
        first = next((line for line in log.splitlines() if "error" in line), str(error))
        raise BackendError(
            f"backend='cuda' cannot be compiled for {architecture}: {first!r} from NVRTC "
            f"{'.'.join(map(str, nvrtc.getVersion()))}. Install a CuPy for this driver's CUDA version, or set "
            f"backend='torch'."
        ) from None
    finally:
        nvrtc.destroyProgram(program)


@functools.cache
def kernels_of(device: int) -> Kernels:
    """The kernels, compiled for a device or taken from the cache, and loaded there.

    Args:
        device: Its index.

    Raises:
        BackendError: They cannot be had.
    """
    cupy = import_cupy()
    major, minor = torch.cuda.get_device_capability(device)
    cubin = _cached(f"sm_{major}{minor}", cupy)
    with torch.cuda.device(device):
        torch.cuda.current_stream().synchronize()  # makes the context, if this process has not used the device yet
        try:
            module = cupy.cuda.driver.moduleLoadData(cubin)
            return Kernels(*(cupy.cuda.driver.moduleGetFunction(module, name) for name in KERNELS))
        except cupy.cuda.driver.CUDADriverError as error:
            raise BackendError(
                f"backend='cuda' cannot be loaded on {torch.cuda.get_device_name(device)}: {error}. Install a CuPy "
                f"for this driver's CUDA version, or set backend='torch'."
            ) from None


def import_cupy() -> Any:
    """CuPy.

    Raises:
        BackendError: It is missing, or broken.
    """
    try:
        import cupy  # noqa: PLC0415  # optional

        cupy.cuda.nvrtc.getVersion()
        return cupy
    except Exception as error:
        version = (torch.version.cuda or "13").split(".")[0]
        raise BackendError(
            f"backend='cuda' needs CuPy, and it cannot be used: {error}. Install cupy-cuda{version}x, or set "
            f"backend='torch'."
        ) from None


def _cached(architecture: str, cupy: Any) -> bytes:
    sources = sorted(kernel_directory().glob("*.cu*"))
    version = repr((architecture, OPTIONS, cupy.cuda.nvrtc.getVersion())).encode()
    key = hashlib.sha256(b"\0".join([version, *(path.read_bytes() for path in sources)])).hexdigest()[:24]
    name = f"{architecture}-{key}.cubin"
    return cached(name, lambda path: path.write_bytes(compile_kernels(architecture).cubin)).read_bytes()
