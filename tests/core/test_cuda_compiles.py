"""Without a GPU: NVRTC compiles the kernels for every architecture, nothing spills, and what is missing is said."""

import re

import pytest
import torch
from torch import nn

from sp4_lightning import BackendError
from sp4_lightning.backends import choose_backend
from sp4_lightning.backends.cuda import compiling
from tests.core.making import parameters


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_every_kernel_compiles_and_none_spills(architecture):
    compiled = compiling.compile_kernels(architecture)
    assert compiled.cubin[:4] == b"\x7fELF"
    for kernel in compiling.KERNELS:
        assert f"entry function '{kernel}'" in compiled.log
    assert re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", compiled.log) == [("0", "0")] * 3


def test_code_that_does_not_compile_is_one_error_with_a_way_out(monkeypatch, tmp_path):
    for header in compiling.kernel_directory().glob("*.cu*"):
        (tmp_path / header.name).write_text(header.read_text())
    (tmp_path / "engine.cu").write_text("__global__ void k() { no_such_thing(); }")
    monkeypatch.setattr(compiling, "kernel_directory", lambda: tmp_path)
    with pytest.raises(BackendError, match=r"cannot be compiled for sm_90: .*no_such_thing.*set backend='torch'"):
        compiling.compile_kernels("sm_90")


def test_without_cupy(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    with pytest.raises(BackendError, match=r"needs CuPy.*Install cupy-cuda\d+x, or set backend='torch'"):
        compiling.import_cupy()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_parameters_elsewhere(device):
    params = [nn.Parameter(torch.ones(3, device=device))] if device == "meta" else parameters((3,))
    with pytest.raises(BackendError, match=rf"the parameters are on {device}, which is no NVIDIA GPU\. Set backend="):
        choose_backend("cuda", params)
