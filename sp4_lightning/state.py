"""What an engine remembers about every tensor: a handful of vectors on the tensors' device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from sp4_lightning.arrays import Array, view
from sp4_lightning.errors import CheckpointError
from sp4_lightning.naming import shorten
from sp4_lightning.quantities import QUANTITIES

COUNTERS = ("clamped", "counted", "repaired", "peak")


@dataclass
class TensorState:
    """One column per protected tensor of one optimizer, T tensors in all."""

    bound: Array
    """float64 ``[4, T]``, rows as in ``QUANTITIES``: the bounds; +inf where there is none (yet)."""
    ratio_sq: Array
    """float64 ``[T]``: the square of the largest possible ``|exp_avg| / sqrt(exp_avg_sq)``."""
    level: Array
    """float64 ``[T]``: the tracker's level of the log quantile of ``|grad|``."""
    seen: Array
    """int64 ``[T]``: valid observations."""
    recent: Array
    """float64 ``[window, T]``: the last log quantiles; -inf where there is none yet."""
    budget: Array
    """float64 ``[T]``: squared sigmas that an element may have if the tensor is beyond its bound now."""
    filled: Array
    """float64 ``[T]``: what exp_avg_sq would be had every gradient been 1."""
    clamped: Array
    """int64 ``[T]``: gradient elements that were clamped or, when observing, would have been."""
    counted: Array
    """int64 ``[T]``: gradient elements that met a finite bound, which before the flip is none."""
    repaired: Array
    """int64 ``[T]``: elements of param, exp_avg and exp_avg_sq beyond an exact bound."""
    peak: Array
    """float64 ``[T]``: largest ``|grad|`` of an executed update since the last report."""

    @classmethod
    def fresh(cls, tensors: int, window: int, device: torch.device) -> TensorState:
        """State in which nothing has been observed."""

        def reals(*shape: int, value: float = 0.0) -> Array:
            return view(torch.full(shape, value, dtype=torch.float64, device=device))

        def integers() -> Array:
            return view(torch.zeros(tensors, dtype=torch.int64, device=device))

        return cls(
            bound=reals(len(QUANTITIES), tensors, value=math.inf),
            ratio_sq=reals(tensors),
            level=reals(tensors),
            seen=integers(),
            recent=reals(window, tensors, value=-math.inf),
            budget=reals(tensors),
            filled=reals(tensors),
            clamped=integers(),
            counted=integers(),
            repaired=integers(),
            peak=reals(tensors),
        )

    def forget(self, columns: Sequence[int]) -> None:
        """Make some tensors unobserved again; what has been counted stays."""
        nothing = {"bound": math.inf, "recent": -math.inf}
        for item in fields(self):
            if item.name not in COUNTERS:
                getattr(self, item.name)[..., list(columns)] = nothing.get(item.name, 0)

    def state_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """Tensors and plain types only; ``names`` say which column belongs to which tensor."""
        vectors = {item.name: torch.as_tensor(getattr(self, item.name)).cpu().clone() for item in fields(self)}
        return {"names": list(names), **vectors}

    def check(self, saved: dict[str, Any], names: Sequence[str], where: str, window: int) -> None:
        """Refuse saved state that does not fit, before anything is written.

        Args:
            saved: From :meth:`state_dict`.
            names: Of the tensors that are trained.
            where: What errors call the optimizer.
            window: How many observations it must remember; saved at another ``update_every`` it is not this state's.

        Raises:
            CheckpointError: Other tensors, a missing vector, another shape, or an impossible value.
        """
        mend = "or drop the callback's state to learn the bounds anew"
        missing = sorted(set(names) - set(saved["names"]))
        unexpected = sorted(set(saved["names"]) - set(names))
        if missing or unexpected:
            raise CheckpointError(
                f"The checkpoint's bounds for {where} belong to other tensors: it lacks [{shorten(missing)}] and has "
                f"[{shorten(unexpected)}], which are not trained now. Resume with the same groups, {mend}."
            )
        for item in fields(self):
            expected = (window, len(names)) if item.name == "recent" else tuple(getattr(self, item.name).shape)
            value = saved.get(item.name)
            got = tuple(value.shape) if isinstance(value, Tensor) else value
            if got != expected:
                raise CheckpointError(
                    f"The checkpoint's {item.name!r} for {where} should have shape {expected}, got {got!r}. Resume "
                    f"with the same settings, {mend}."
                )
            # Logarithms may be negative, nothing else.
            values = torch.as_tensor(value)
            wrong = values.isnan() if item.name in ("level", "recent") else ~(values >= 0)
            if wrong.any():
                held = "NaN" if values.isnan().any() else "a negative value"
                raise CheckpointError(
                    f"The checkpoint's {item.name!r} for {where} holds {held}: it is damaged. Repair it, {mend}."
                )

    def load_state_dict(self, saved: dict[str, Any], names: Sequence[str]) -> None:
        """Take over saved state that :meth:`check` has accepted; columns are matched by name."""
        position = {name: column for column, name in enumerate(saved["names"])}
        columns = [position[name] for name in names]
        for item in fields(self):
            torch.as_tensor(getattr(self, item.name)).copy_(saved[item.name][..., columns])
