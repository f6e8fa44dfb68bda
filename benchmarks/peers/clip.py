"""A fixed limit for the norm of an optimizer's gradients, with and without mending what is not finite."""

from __future__ import annotations

import torch
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from benchmarks.peers.peer import Peer, parameters, with_gradient


class ClipGradNorm(Peer):
    """``g *= min(1, max_norm / (norm + 1e-6))`` with the 2-norm of all gradients of the optimizer.

    Source: Pascanu, Mikolov, Bengio 2013, arXiv 1211.5063, as ``torch.nn.utils.clip_grad_norm_``.

    Args:
        max_norm: Limit of the norm. 10 is that of the dueling DQN (Wang et al. 2016, arXiv 1511.06581, section 4.2).
    """

    def __init__(self, max_norm: float = 10.0) -> None:
        self.max_norm = max_norm

    def before(self, optimizer: Optimizer) -> None:
        clip_grad_norm_(parameters(optimizer), self.max_norm)


class NanToNumClip(ClipGradNorm):
    """Elements that are not finite become 0; then the norm is clipped.

    Source: facebookresearch/habitat-lab pull request 2229 for issue 2226 (NaN gradients in PPO's ``before_step``),
    which takes 0 for NaN, +inf and -inf and does it ahead of the clipping. It is open; the main branch of 2026-05 has
    ``clip_grad_norm_`` alone. Pull request 2230 for the same issue mends after the clipping, too late: by then one NaN
    has made all gradients NaN.

    Args:
        max_norm: As for :class:`ClipGradNorm`; habitat's own 0.2 is for PPO.
    """

    def before(self, optimizer: Optimizer) -> None:
        for _, gradient in with_gradient(optimizer):
            torch.nan_to_num_(gradient, nan=0.0, posinf=0.0, neginf=0.0)
        super().before(optimizer)
