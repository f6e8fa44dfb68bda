"""Which tensors and optimizers can be protected; the others are refused by name before anything is attached."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.optim import Optimizer

from sp4_lightning.errors import ConfigurationError, UnsupportedError
from sp4_lightning.held import Held
from sp4_lightning.settings import Mode


def admit(optimizer: Optimizer, held: Held, name: str, mode: Mode) -> torch.device:
    """Check an optimizer and its tensors.

    Args:
        optimizer: The optimizer.
        held: Its protected tensors.
        name: What to call it in an error.
        mode: Observing tolerates options whose rules cannot be enforced.

    Returns:
        The one device of the tensors.

    Raises:
        ConfigurationError: The optimizer holds none of the groups' parameters.
        UnsupportedError: A sparse, complex, integer or overlapping tensor, several devices, a fused optimizer
            with a non-dense tensor, or amsgrad in enforce mode.
    """
    if not len(held):
        raise ConfigurationError(
            f"{name} holds no parameter of any group. Name one in `groups`, or leave it unprotected."
        )
    for tensor_name, param in zip(held.names, held.params, strict=True):
        _admit_tensor(param, f"{tensor_name!r} in {name}")
    devices = {param.device for param in held.params}
    if len(devices) > 1:
        raise UnsupportedError(
            f"{name} holds parameters on {', '.join(sorted(map(str, devices)))}. "
            f"Give each device an optimizer of its own."
        )
    for i, group in enumerate(optimizer.param_groups):
        if group.get("fused"):
            for tensor_name, param in zip(held.names, held.params, strict=True):
                if any(param is p for p in group["params"]) and not is_dense(param):
                    raise UnsupportedError(
                        f"{tensor_name!r} in {name} is not dense (shape {tuple(param.shape)}, strides "
                        f"{param.stride()}) and fused=True: torch's fused kernels write beside such a "
                        f"tensor. Use fused=False."
                    )
        if group.get("amsgrad") and mode == "enforce":
            raise UnsupportedError(
                f"{name}, param group {i}, has amsgrad=True: max_exp_avg_sq never decays, so a spike that reaches it "
                f"cannot be mended. Use amsgrad=False, or mode='observe'."
            )
    return devices.pop()


def _admit_tensor(param: Tensor, what: str) -> None:
    if param.layout is not torch.strided:
        raise UnsupportedError(f"{what} has layout {param.layout}; only dense tensors can be protected. Exclude it.")
    if not param.is_floating_point():
        raise UnsupportedError(
            f"{what} is {param.dtype}; only real floating-point tensors can be protected. Exclude it."
        )
    if any(stride == 0 and size > 1 for size, stride in zip(param.shape, param.stride(), strict=True)):
        raise UnsupportedError(
            f"{what} overlaps itself (shape {tuple(param.shape)}, strides {param.stride()}), as expand() leaves it. "
            f"Make it a tensor of its own with clone(), or exclude it."
        )


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill their memory without gaps, in whatever order of dimensions."""
    return fills(tensor.shape, tensor.stride())


@functools.lru_cache(maxsize=4096)
def fills(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether elements of this shape and these strides fill their memory without gaps."""
    expected = 1
    for size, stride in sorted(zip(shape, strides, strict=True), key=lambda pair: pair[1]):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True
