"""Curiosity: a forward model whose surprise is a reward bonus.

The model predicts frozen random features of the next observation, which cannot collapse because nothing
trains them (Burda et al. 2018, "Large-Scale Study of Curiosity-Driven Learning").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

BONUS_CAP = 5.0
"""Largest surprise that is paid, in running standard deviations."""


def strided_copy(weight: Tensor) -> Tensor:
    """Copy a matrix into every second column of a wider one: same values, not contiguous, not dense."""
    rows, columns = weight.shape
    view = weight.new_empty(rows, 2 * columns)[:, ::2]
    return view.copy_(weight)


class Curiosity(nn.Module):
    """Forward model ``relu([phi(o), a] @ w1 + b1) @ w2 + b2`` of the next observation's features.

    Its weights are deliberately awkward: ``w1`` is a strided slice of a larger buffer and ``w2`` a
    transposed view. Code that walks a parameter's memory as if it were one block gets both wrong, which
    makes this module a standing test for everything that touches parameters.

    Args:
        observation_size: numbers in one observation, d.
        branches: number of choices of each action branch.
        code: size of the frozen features.
        hidden: size of the hidden layer.
        memory: share of the running moments that one update replaces.
    """

    projection: Tensor
    offset: Tensor
    first_choice: Tensor
    moments: Tensor

    def __init__(
        self,
        observation_size: int,
        branches: Sequence[int],
        code: int = 32,
        hidden: int = 64,
        memory: float = 0.01,
    ) -> None:
        super().__init__()
        self.branches = tuple(branches)
        self.memory = memory
        inputs = code + sum(branches)
        self.w1 = nn.Parameter(strided_copy(torch.empty(inputs, hidden).uniform_(-1, 1) / inputs**0.5))
        self.b1 = nn.Parameter(torch.zeros(hidden))
        self.w2 = nn.Parameter((torch.empty(code, hidden).uniform_(-1, 1) / hidden**0.5).t())
        self.b2 = nn.Parameter(torch.zeros(code))
        # phi is a buffer, not a parameter: the forward loss's gradient would let it collapse to a constant.
        self.register_buffer("projection", torch.randn(observation_size, code) / observation_size**0.5)
        self.register_buffer("offset", torch.randn(code))
        starts = [sum(self.branches[:d]) for d in range(len(self.branches))]
        self.register_buffer("first_choice", torch.tensor(starts), persistent=False)
        # Decayed sums of 1, error and squared error; their ratios are unbiased from the first update on.
        self.register_buffer("moments", torch.zeros(3))

    def phi(self, observation: Tensor) -> Tensor:
        """Frozen random features: float ``[B, d]`` to float ``[B, code]``."""
        return functional.leaky_relu(observation @ self.projection + self.offset)

    def one_hot(self, action: Tensor) -> Tensor:
        """Actions of all branches side by side: int64 ``[B, D]`` to float ``[B, sum(branches)]``."""
        blank = self.projection.new_zeros(action.shape[0], sum(self.branches))
        return blank.scatter_(-1, action + self.first_choice, 1.0)

    def error(self, observation: Tensor, action: Tensor, next_observation: Tensor) -> Tensor:
        """Squared error of the prediction, averaged over the code.

        Args:
            observation: float ``[B, d]``.
            action: int64 ``[B, D]``, what was done there.
            next_observation: float ``[B, d]``, what came of it.

        Returns:
            float ``[B]``, differentiable in the forward model's weights only.
        """
        inputs = torch.cat((self.phi(observation), self.one_hot(action)), dim=-1)
        predicted = torch.addmm(self.b2, torch.addmm(self.b1, inputs, self.w1).relu(), self.w2)
        return (predicted - self.phi(next_observation)).square().mean(-1)

    @torch.no_grad()
    def bonus(self, error: Tensor) -> Tensor:
        """Turn errors into a bonus in running standard deviations, and remember them.

        Args:
            error: float ``[B]``.

        Returns:
            float ``[B]`` in [0, 5].
        """
        error = error.detach()
        batch = torch.stack((torch.ones_like(error[0]), error.mean(), error.square().mean()))
        # One unreadable batch must not spoil the running moments for ever.
        self.moments.lerp_(torch.where(batch.isfinite().all(), batch, self.moments), self.memory)
        weight, mean, square = self.moments.unbind()
        deviation = (square / weight - (mean / weight).square()).clamp_min(1e-12).sqrt()
        return (error / deviation).clamp_max(BONUS_CAP)

    def _apply(self, fn: Any, recurse: bool = True) -> Curiosity:
        # Moving to another device or dtype copies a tensor that is not dense into a contiguous one.
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._keep_layout()
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        # So does a deep copy.
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._keep_layout()

    def _keep_layout(self) -> None:
        if self.w1.is_contiguous():
            self.w1.data = strided_copy(self.w1.data)
