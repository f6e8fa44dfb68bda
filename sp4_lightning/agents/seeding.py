"""Seeds for independent purposes, and the state of torch's global generators."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch

Purpose = Literal["training", "validation", "test"]

_STREAM: dict[Purpose, int] = {"training": 0, "validation": 1, "test": 2}


def derive_seed(seed: int, purpose: Purpose, *numbers: int) -> int:
    """A seed that is unrelated to those of other purposes and numbers.

    Args:
        seed: The run's seed.
        purpose: What the randomness is for.
        numbers: What else to tell apart, such as a process's rank.

    Returns:
        A number below 2^32.
    """
    return int(np.random.SeedSequence((seed, _STREAM[purpose], *numbers)).generate_state(1)[0])


def episode_seeds(seed: int, purpose: Purpose, count: int) -> torch.Tensor:
    """Seeds of ``count`` evaluation episodes, int64 ``[count]``; the same at every call."""
    generator = torch.Generator().manual_seed(derive_seed(seed, purpose))
    return torch.randint(2**31, (count,), generator=generator)


def random_state(device: torch.device) -> dict[str, Any]:
    """State of the generators that updates on ``device`` draw from."""
    on_cuda = device.type == "cuda"
    return {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state(device) if on_cuda else None}


def restore_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Put the generators back; a state from another kind of device restores the CPU's only."""
    torch.set_rng_state(state["cpu"].cpu())
    if state["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)
