"""Weight clipping: no parameter leaves a multiple of the range it was initialised in."""

from __future__ import annotations

import math

from torch.optim import Optimizer

from benchmarks.peers.peer import Peer, parameters


class WeightClipping(Peer):
    """After every step ``|w| <= kappa / sqrt(fan_in)``, for every layer, whether or not it had a gradient.

    A vector has the fan-in of the weight ahead of it, as a bias in torch's own initialisation; so has a norm layer's
    gain, which starts at 1 and which their networks do not have. A vector ahead of all weights is left alone; theirs
    fails there. A weight is ``[out, in, ...]``, as in torch.

    Source: Elsayed, Lan, Lyle, Mahmood 2024 (RLC), arXiv 2407.01704; mohmdelsayed/weight-clipping,
    ``core/optim/weight_clipping.py``.

    Args:
        kappa: The multiple. Their optimizers have 1 by default, their PPO (``rl_experiments``) 3, their grids 1 to 5.
    """

    def __init__(self, kappa: float = 2.0) -> None:
        self.kappa = kappa

    def after(self, optimizer: Optimizer) -> None:
        bound = math.inf
        for parameter in parameters(optimizer):
            if parameter.ndim > 1:
                bound = self.kappa / math.sqrt(parameter[0].numel())
            parameter.clamp_(-bound, bound)
