"""AGC: a unit's gradient may be a small share of the unit's weights."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from benchmarks.peers.peer import Peer, with_gradient


class AGC(Peer):
    """``norm(g_unit) <= clipping * max(norm(w_unit), eps)``, by scaling the unit's gradient.

    Source: Brock, De, Smith, Simonyan 2021, arXiv 2102.06171; deepmind/deepmind-research, ``nfnets/optim.py``, class
    ``SGD_AGC``. A unit is an output; torch has outputs in the first dimension of a weight. Biases and other vectors
    are one unit. Theirs leaves out the last linear layer; which one that is an optimizer does not know: none is left
    out.

    Args:
        clipping: The share; 0.01 is the code's default.
        eps: Least norm of a unit's weights, so that one that starts with zeros can learn.
    """

    def __init__(self, clipping: float = 0.01, eps: float = 1e-3) -> None:
        self.clipping, self.eps = clipping, eps

    def before(self, optimizer: Optimizer) -> None:
        for parameter, gradient in with_gradient(optimizer):
            norm = unit_norm(gradient)
            limit = self.clipping * unit_norm(parameter).clamp(min=self.eps)
            # 1e-6 only avoids 0 / 0 where nothing is clipped.
            gradient.copy_(torch.where(norm > limit, gradient * (limit / norm.clamp(min=1e-6)), gradient))


def unit_norm(tensor: Tensor) -> Tensor:
    """2-norm of each unit, ``[units, 1, ...]``; of everything, where no two dimensions are longer than 1."""
    units = tensor.squeeze().ndim > 1
    norm: Tensor = torch.linalg.vector_norm(tensor, dim=tuple(range(1, tensor.ndim)) if units else None, keepdim=units)
    return norm
