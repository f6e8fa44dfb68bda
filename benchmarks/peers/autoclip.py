"""AutoClip: the limit is a percentile of all norms so far."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from benchmarks.peers.peer import Peer, parameters, total_norm


class AutoClip(Peer):
    """The norm of the optimizer's gradients is clipped to a percentile of all its norms, this one included.

    Source: Seetharaman, Wichern, Pardo, Le Roux 2020, arXiv 2007.14469; pseeth/autoclip, ``autoclip.py``. Norms are
    remembered unclipped, and for ever.

    Args:
        percentile: 0 to 100. 10 is the paper's choice; the code has no default.
    """

    def __init__(self, percentile: float = 10.0) -> None:
        self.percentile = percentile
        self.norms: list[float] = []

    def before(self, optimizer: Optimizer) -> None:
        self.norms.append(total_norm(optimizer))
        clip_grad_norm_(parameters(optimizer), float(np.percentile(self.norms, self.percentile)))

    def state_dict(self) -> dict[str, Any]:
        return {"norms": list(self.norms)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.norms = list(state["norms"])
