"""The CUDA backend: the kernels of ``kernels/engine.cu``, compiled with CuPy, on torch's memory and streams."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from sp4_lightning.arrays import Array
from sp4_lightning.backends.base import Backend
from sp4_lightning.backends.cuda.call import FOUND, Call
from sp4_lightning.backends.cuda.compiling import import_cupy, kernels_of
from sp4_lightning.backends.cuda.places import Places
from sp4_lightning.backends.structs import LearnedNumbers, address
from sp4_lightning.errors import BackendError, UnsupportedError
from sp4_lightning.histogram import BINS
from sp4_lightning.hyper import Hyper
from sp4_lightning.publication import Publication
from sp4_lightning.quantities import QUANTITIES
from sp4_lightning.settings import BackendName
from sp4_lightning.step import Step

Launch = tuple[int, int, int, "ctypes.Array[ctypes.c_void_p]"]
"""Kernel, blocks, threads of each, arguments."""


class CudaBackend(Backend):
    """Three launches a step, on torch's current stream; nothing is allocated after the first step.

    Args:
        params: The protected parameters of one optimizer, on a CUDA device.

    Raises:
        BackendError: The parameters are elsewhere, or the kernels cannot be had here.
    """

    name: ClassVar[BackendName] = "cuda"
    update_every: ClassVar[int] = 1

    def __init__(self, params: Sequence[Tensor]) -> None:
        device = params[0].device
        if device.type != "cuda" or torch.version.hip is not None:
            raise BackendError(
                f"backend='cuda' was asked for, but the parameters are on {device}, which is no NVIDIA GPU. "
                f"Set backend=None."
            )
        super().__init__(params)
        self._device = device.index if device.index is not None else torch.cuda.current_device()
        self._kernels = kernels_of(self._device)
        self._launch_kernel = import_cupy().cuda.driver.launchKernel
        count = len(params)

        def scratch(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        rows = len(QUANTITIES)
        self._scratch = {
            "largest": scratch(rows, count, dtype=torch.float64),
            "limit": scratch(rows, count, dtype=torch.float64),
            "most": scratch(rows, count, dtype=torch.int64),
            "mended": scratch(rows, count, dtype=torch.int64),
            "over": scratch(count, dtype=torch.int32),
            "broken": scratch(count, dtype=torch.int32),
            "present": scratch(count, dtype=torch.int32),
            "bins": scratch(count, BINS, dtype=torch.int32),
            "found": scratch(len(FOUND), dtype=torch.int32),
        }
        self._found_inf = self._scratch["found"].view(torch.float32)[FOUND.index("found_inf")]
        self._call = Call(tensors=count)
        self._protecting: list[Launch] = []
        self._learning: Launch = (self._kernels.learn, count, BINS // 4, _arguments(self._call))
        self._places: Places | None = None
        self._publication: Publication | None = None
        self._hyper: Hyper | None = None
        # What the call points to, kept alive.
        self._alive: dict[str, Array] = {}
        self._unlearned = False

    def protect(self, step: Step) -> None:
        """Read, decide and mend, in two launches."""
        call = self._call
        if step.every > 1 and torch.cuda.is_current_stream_capturing():
            # Whether a step learns is decided on the host, once for all replays.
            raise UnsupportedError(
                f"A CUDA graph is being captured with update_every={step.every}. Capture with update_every=1."
            )
        if step.publication is not self._publication:
            self._bind(step)
        if step.hyper is not self._hyper:
            self._follow(step.hyper)
        assert self._places is not None
        self._places.refresh(step.tensors, step.edited)
        call.learns = step.learns
        call.moments_known = step.moments_known
        call.vetoed = 0 if step.vetoed is None else self._keep("vetoed", step.vetoed)
        call.phase = address(step.phase)
        if self._unlearned:
            # An exception has ended the last step, or its closure is evaluated again: what was counted is void.
            self._scratch["bins"].zero_()
            self._scratch["mended"].zero_()
        self._unlearned = True
        self._launch(*self._protecting)
        increment_version([tensor for row in step.tensors for tensor in row if tensor is not None])
        step.skip = self._found_inf

    def learn(self, step: Step, tally: Array) -> None:
        """Advance every bound, publish and count, in one launch."""
        call = self._call
        call.tally = address(tally)
        call.ratio_moves = step.ratio_moves
        if isinstance(step.lr, float):
            call.lr, call.lr_each = step.lr, 0
        else:
            call.lr_each = self._keep("lr_each", step.lr)
        self._launch(self._learning)
        self._unlearned = False

    def _bind(self, step: Step) -> None:
        """Point to what lives as long as the engine, or until it joins another table."""
        call, publication = self._call, step.publication
        group = publication.members.to(torch.int64).argmax(0).cpu().numpy()
        self._places = Places(self._params, group)
        self._publication = publication
        self._protecting = [
            (kernel, blocks, threads, _arguments(call, grads))
            for kernel, threads in ((self._kernels.look, 512), (self._kernels.mend, 256))
            for blocks, grads in self._places.launches()
        ]
        device, groups = self._params[0].device, len(publication.groups)
        scratch = self._scratch
        scratch["largest_bound"] = torch.zeros(len(QUANTITIES), groups, dtype=torch.int32, device=device)
        scratch["observed"] = torch.zeros(groups, dtype=torch.int32, device=device)
        for name, tensor in scratch.items():
            setattr(call.scratch, name, address(tensor))
        call.chunks, call.groups, call.columns = len(self._places.chunks), groups, publication.table.values.shape[1]
        call.rows, call.layouts = address(self._places.rows), address(self._places.layouts)
        call.chunk = address(self._places.chunks)
        call.state.point_to(step.state)
        call.learned = LearnedNumbers.of(step.learned, step.every)
        call.protects = self._keep("protects", step.protects)
        call.table = address(publication.table.values)
        call.column = self._keep("column", torch.tensor(publication.columns, device=device))

    def _follow(self, hyper: Hyper) -> None:
        self._hyper = hyper
        self._call.hyper.point_to(hyper)
        self._call.started = address(hyper.started)
        eps = torch.tensor(hyper.eps, dtype=torch.float64, device=self._params[0].device)
        self._call.eps = self._keep("eps", eps)

    def _keep(self, name: str, tensor: Tensor) -> int:
        self._alive[name] = tensor.contiguous()
        return address(self._alive[name])

    def _launch(self, *launches: Launch) -> None:
        if torch.cuda.current_device() != self._device:
            with torch.cuda.device(self._device):
                return self._launch(*launches)
        # Read anew every time: a stream that was kept would record an empty CUDA graph.
        stream = torch._C._cuda_getCurrentRawStream(self._device)
        for kernel, blocks, threads, arguments in launches:
            self._launch_kernel(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, ctypes.addressof(arguments), 0)


def _arguments(*structs: ctypes.Structure) -> ctypes.Array[ctypes.c_void_p]:
    """The addresses of a kernel's arguments; the caller keeps the structs alive."""
    return (ctypes.c_void_p * len(structs))(*map(ctypes.addressof, structs))
