"""The tensors one engine protects, and where to find them at every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from sp4_lightning.errors import UnsupportedError
from sp4_lightning.groups import ParamGroup

Found = list["Tensor | None"]


@dataclass
class Held:
    """Parallel lists with one entry per protected tensor of one optimizer."""

    names: list[str]
    params: list[Tensor]
    group: list[str]
    """The name of its group."""
    torch_group: list[int]
    """The index in ``optimizer.param_groups``."""
    _entries: list[Any] = field(default_factory=list, repr=False)
    _own: list[tuple[Any, int]] = field(default_factory=list, repr=False)

    @classmethod
    def by(cls, optimizer: Optimizer, groups: Sequence[ParamGroup]) -> Held:
        """The non-empty parameters of ``groups`` that ``optimizer`` holds."""
        where = {id(p): i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
        rows = [
            (name, param, group.name, where[id(param)])
            for group in groups
            for name, param in group.params.items()
            if id(param) in where and param.numel() > 0
        ]
        return cls([r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows], [r[3] for r in rows])

    @property
    def keys(self) -> list[str]:
        """Names that are unique, also where two groups call a parameter the same."""
        return [f"{group}/{name}" for group, name in zip(self.group, self.names, strict=True)]

    @property
    def found(self) -> Found:
        """The parameters, as a list like those of the other quantities."""
        return self.params  # type: ignore[return-value]

    def __len__(self) -> int:
        return len(self.params)

    def grads(self) -> Found:
        """This step's gradients."""
        return [param.grad for param in self.params]

    def refuse_sparse(self, grads: Found) -> None:
        """Name the gradient that cannot be read.

        Raises:
            UnsupportedError: One is sparse.
        """
        for name, grad in zip(self.names, grads, strict=True):
            if grad is not None and grad.layout is not torch.strided:
                raise UnsupportedError(
                    f"{name!r} has a gradient of layout {grad.layout}; only dense gradients can be protected. "
                    f"Construct its layer with sparse=False, or exclude the parameter."
                )

    def moments(self, optimizer: Optimizer, keys: Sequence[tuple[str | None, str | None]]) -> tuple[Found, Found]:
        """This step's exp_avg and exp_avg_sq.

        Args:
            optimizer: Whose state to look into. Nothing is written there, not even an empty entry: Adam takes an
                entry's presence for initialised state.
            keys: Per torch param group, the state's names of the two.
        """
        entries = list(optimizer.state.values())
        # Looking up by parameter costs several times this comparison.
        same = len(entries) == len(self._entries) and all(map(is_, entries, self._entries))
        if not same or not self._own:
            self._entries = entries
            self._own = [
                (optimizer.state.get(param, {}), group)
                for param, group in zip(self.params, self.torch_group, strict=True)
            ]
        return [entry.get(keys[group][0]) for entry, group in self._own], [
            entry.get(keys[group][1]) for entry, group in self._own
        ]

    def fitting(self, moments: Found) -> Found:
        """Those that have the shape of their parameter: somebody else's class may keep anything under these names."""
        return [
            moment
            if isinstance(moment, Tensor) and moment.shape == param.shape and moment.is_floating_point()
            else None
            for moment, param in zip(moments, self.params, strict=True)
        ]

    def moment_dtypes(self, exp_avg: Found) -> list[torch.dtype]:
        """What each tensor's moments are stored in: the parameter's type until they exist."""
        return [p.dtype if m is None else m.dtype for p, m in zip(self.params, exp_avg, strict=True)]

    def versions(self) -> list[int]:
        """Torch's counters of in-place writes to the parameters."""
        return [param._version for param in self.params]
