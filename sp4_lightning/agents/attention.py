"""Attention over the last observations: what a single observation hides (a velocity, say) becomes visible."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class HistoryAttention(nn.Module):
    """The newest observation asks the last K observations one question.

    Pre-layer-norm attention (Vaswani et al. 2017; Xiong et al. 2020, "On Layer Normalization in the
    Transformer Architecture") with a single query, so the cost grows with K, not with K squared. The
    residual path carries the newest observation's embedding.

    Args:
        observation_size: numbers in one observation, d.
        history: number of observations, K.
        width: size of an embedding and of the output; a multiple of ``heads``.
        heads: attention heads.
    """

    def __init__(self, observation_size: int, history: int, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.width = width
        self.embed = nn.Linear(observation_size, width)
        self.position = nn.Parameter(0.02 * torch.randn(history, width))
        self.norm = nn.LayerNorm(width)
        # No bias: a bias of the keys moves all scores alike, which the softmax removes. Its gradient would be
        # rounding noise, and Adam would turn that noise into steps of full size.
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * width, bias=False)
        self.output = nn.Linear(width, width)

    def forward(self, history: Tensor) -> Tensor:
        """Summarise the history from the newest observation's point of view.

        Args:
            history: float ``[B, K, d]``, oldest first.

        Returns:
            float ``[B, width]``.
        """
        tokens = self.embed(history) + self.position
        normed = self.norm(tokens)
        per_head = self.width // self.heads
        query = self.query(normed[:, -1]).view(-1, 1, self.heads, per_head)
        key, value = self.key_value(normed).unflatten(-1, (2, self.heads, per_head)).unbind(2)
        weights = torch.softmax((query * key).sum(-1) / math.sqrt(per_head), dim=1)
        pooled = (weights.unsqueeze(-1) * value).sum(1).flatten(1)
        summary: Tensor = tokens[:, -1] + self.output(pooled)
        return summary
