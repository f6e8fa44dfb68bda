"""Implicit quantile networks: the whole distribution of the return, one quantile per number tau.

Dabney et al. 2018, "Implicit Quantile Networks for Distributional Reinforcement Learning".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from sp4_lightning.agents.branches import split_branches

COSINES = 64
"""Size of tau's cosine embedding (Dabney et al. 2018, section 4)."""


class ImplicitQuantiles(nn.Module):
    """Quantiles of the return of every choice of every branch.

    One set of taus serves a whole batch, so the embedding of tau costs N rows instead of B x N.

    Args:
        features: size of the features that describe a state.
        branches: number of choices of each action branch.
        hidden: size of the hidden layer.
    """

    frequencies: Tensor

    def __init__(self, features: int, branches: Sequence[int], hidden: int = 64) -> None:
        super().__init__()
        self.branches = tuple(branches)
        self.embed = nn.Linear(COSINES, features)
        self.layers = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, sum(branches)))
        self.register_buffer("frequencies", math.pi * torch.arange(1, COSINES + 1), persistent=False)

    def forward(self, features: Tensor, tau: Tensor) -> Tensor:
        """Read the return's quantile function at tau.

        Args:
            features: float ``[B, F]``.
            tau: float ``[N]`` in (0, 1).

        Returns:
            float ``[B, N, D, n_max]``.
        """
        cosines = torch.cos(tau.unsqueeze(-1) * self.frequencies).to(features.dtype)
        phi = functional.relu(self.embed(cosines))
        return split_branches(self.layers(features.unsqueeze(1) * phi), self.branches)


def sample_tau(count: int, device: torch.device) -> Tensor:
    """Draw taus for one update, one in each of ``count`` equal slices of (0, 1).

    Each tau is uniform within its slice, so their union is distributed like independent uniform draws while
    a batch that shares them is spared most of the sampling noise.

    Args:
        count: number of taus, N.
        device: where they are needed; torch's generator of this device is used.

    Returns:
        float32 ``[N]``, increasing.
    """
    return (torch.arange(count, device=device) + torch.rand(count, device=device)) / count


def risk_averse_tau(cvar: float, count: int, device: torch.device) -> Tensor:
    """Taus whose mean quantile is the conditional value at risk (Dabney et al. 2018, section 3.1).

    Args:
        cvar: share of the worst outcomes that count; 1 is the plain mean.
        count: number of taus, N.
        device: where they are needed.

    Returns:
        float32 ``[N]``: midpoints of N slices of (0, cvar), so that acting draws no random number.
    """
    return cvar * (torch.arange(count, device=device) + 0.5) / count


def quantile_huber_loss(quantiles: Tensor, target: Tensor, tau: Tensor, kappa: float = 1.0) -> Tensor:
    """Quantile Huber loss (Dabney et al. 2018, eq. 3).

    Summed over tau, averaged over the target's samples and over all leading dimensions.

    Args:
        quantiles: float ``[..., N]``, the prediction at ``tau``.
        target: float ``[..., M]``, samples of the target distribution; broadcast against ``quantiles``.
        tau: float ``[N]``.
        kappa: where the loss turns from squared to absolute error.

    Returns:
        float scalar.
    """
    predicted = quantiles.unsqueeze(-1).expand(*quantiles.shape, target.shape[-1])
    wanted = target.unsqueeze(-2).expand_as(predicted)
    with torch.no_grad():
        weight = (tau.unsqueeze(-1) - (wanted < predicted).to(tau.dtype)).abs()
    pairwise = weight * functional.huber_loss(predicted, wanted, reduction="none", delta=kappa) / kappa
    return pairwise.mean(-1).sum(-1).mean()
