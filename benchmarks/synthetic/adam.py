"""Adam under a rule, on many streams at once: one column a tensor.

A rule of :mod:`benchmarks.synthetic.rules` bounds an Adam written here; the library's own rule runs as users run it,
in a :class:`~sp4_lightning.ClippingOptimizer` around ``torch.optim.Adam``. Streams without a task start in the middle
of a training: at step 10,000, with ``exp_avg_sq`` at the mean square of the first updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.synthetic.rules import Rule
from benchmarks.synthetic.streams import WARM, Stream
from sp4_lightning import ClippingOptimizer, Settings
from sp4_lightning.quantities import GRAD

Array = np.ndarray[Any, Any]
LR, BETA1, BETA2, EPS = 1e-3, 0.9, 0.999, 1e-8
TASK_LR = {"target x100": 0.5}
"""Adam covers a distance of 99 in some 200 updates at this rate."""
MID_TRAINING = 10_000


@dataclass(frozen=True)
class Run:
    """What a rule did to a batch of streams."""

    bound: Array
    """``[updates, tensors]``, of the first element, in force at each update."""
    beyond: Array
    """``[updates, tensors]``: how many elements are clamped."""
    weights: Array
    """``[updates, tensors]``: their mean after each update."""
    final: list[Array]
    """The weights after the last update, per tensor."""
    exp_avg_sq: list[Array]
    """As the last update of the fault or change left it, per tensor."""
    power: Array
    """``[updates, tensors]``: the mean of ``exp_avg_sq`` after each update."""


def _rate(stream: Stream) -> float:
    return TASK_LR.get(stream.name, LR)


def _begun(streams: Sequence[Stream]) -> tuple[Array, Array, Array]:
    width = max(stream.gradients.shape[1] for stream in streams)
    gradients = np.zeros((len(streams[0].gradients), len(streams), width))
    exp_avg_sq = np.zeros((len(streams), width))
    for k, stream in enumerate(streams):
        gradients[:, k, : stream.gradients.shape[1]] = stream.gradients
        if not stream.pull:
            exp_avg_sq[k, : stream.gradients.shape[1]] = (stream.clean[:WARM] ** 2).mean(0)
    steps = np.array([0 if stream.pull else MID_TRAINING for stream in streams])
    return gradients, exp_avg_sq, steps


class _Bounded:
    """NumPy's Adam under a rule."""

    def __init__(self, rule: Rule, streams: Sequence[Stream], exp_avg_sq: Array, steps: Array) -> None:
        self.rule, self.exp_avg_sq, self.steps = rule, exp_avg_sq, steps[:, None]
        self.weights, self.exp_avg = np.zeros_like(exp_avg_sq), np.zeros_like(exp_avg_sq)
        self.rate = np.array([[_rate(stream)] for stream in streams])
        rule.start(len(streams))

    def update(self, grad: Array) -> tuple[Array, Array]:
        rms = np.sqrt(self.exp_avg_sq / np.maximum(1 - BETA2**self.steps, 1 - BETA2))
        bound = self.rule.bound(rms)
        used = self.rule.clamp(grad, bound, rms)
        self.rule.observe(abs(grad))
        self.steps = self.steps + 1
        filled = 1 - BETA2**self.steps
        exp_avg = BETA1 * self.exp_avg + (1 - BETA1) * used
        exp_avg_sq = BETA2 * self.exp_avg_sq + (1 - BETA2) * used * used
        self.exp_avg, self.exp_avg_sq = self.rule.moments(exp_avg, exp_avg_sq, filled)
        update = self.exp_avg / (1 - BETA1**self.steps) / (np.sqrt(self.exp_avg_sq / filled) + EPS)
        self.weights = self.weights - self.rate * self.rule.step(update)
        return bound, used != grad


class _Library:
    """The library's optimizer around torch's fused Adam."""

    def __init__(self, settings: Settings, streams: Sequence[Stream], exp_avg_sq: Array, steps: Array) -> None:
        sizes = [stream.gradients.shape[1] for stream in streams]
        self._weights, self._grad = (torch.zeros(exp_avg_sq.shape) for _ in range(2))
        params = [torch.nn.Parameter(self._weights[k, :size]) for k, size in enumerate(sizes)]
        for param, grad, size in zip(params, self._grad, sizes, strict=True):
            param.grad = grad[:size]
        grouped: dict[float, list[torch.nn.Parameter]] = {}
        for param, stream in zip(params, streams, strict=True):
            grouped.setdefault(_rate(stream), []).append(param)
        groups = [{"params": members, "lr": rate, "name": f"lr {rate:g}"} for rate, members in grouped.items()]
        base = torch.optim.Adam(groups, betas=(BETA1, BETA2), eps=EPS, fused=True)
        self._moments = torch.tensor(exp_avg_sq, dtype=torch.float32)
        for k, param in enumerate(params):
            base.state[param] = {
                "step": torch.tensor(float(steps[k])),
                "exp_avg": torch.zeros_like(param),
                "exp_avg_sq": self._moments[k, : sizes[k]],
            }
        self.optimizer = ClippingOptimizer(base, settings=settings)
        # The engine's columns are in the order of the param groups.
        column = {id(param): k for k, param in enumerate(self.optimizer.engine.held.params)}
        self._column = [column[id(param)] for param in params]
        # As if it had been attached when the training began; attached to a trained Adam its budget is larger at first.
        self.optimizer.engine.state.filled[self._column] = 1 - BETA2**steps

    @property
    def weights(self) -> Array:
        return self._weights.numpy()

    @property
    def exp_avg_sq(self) -> Array:
        return self._moments.numpy()

    def update(self, grad: Array) -> tuple[Array, Array]:
        raw = torch.from_numpy(grad).float()
        self._grad.copy_(raw)
        bound = np.array(self.optimizer.engine.state.bound[GRAD])[self._column, None]
        self.optimizer.step()
        return bound, (self._grad != raw).numpy()


def train(rule: Rule | Settings, streams: Sequence[Stream]) -> Run:
    """Run Adam under a rule.

    Args:
        rule: One of the bench's, or the settings of the library's.
        streams: Of one length.
    """
    gradients, exp_avg_sq, steps = _begun(streams)
    make = _Library if isinstance(rule, Settings) else _Bounded
    learner: Any = make(rule, streams, exp_avg_sq, steps)
    pull = np.array([[stream.pull] for stream in streams])
    sizes = [stream.gradients.shape[1] for stream in streams]
    ends = [stream.start + stream.length - 1 for stream in streams]
    inside = np.arange(gradients.shape[2]) < np.array(sizes)[:, None]
    mean = inside / inside.sum(1, keepdims=True)
    bounds, beyond, weights, power = (np.zeros(gradients.shape[:2]) for _ in range(4))
    left: list[Array] = [np.zeros(0)] * len(streams)
    for t, noise in enumerate(gradients):
        grad = noise + pull * learner.weights * inside
        bound, clamped = learner.update(grad)
        beyond[t], bounds[t] = clamped.sum(1), bound[:, 0]
        weights[t], power[t] = (learner.weights * mean).sum(1), (learner.exp_avg_sq * mean).sum(1)
        for k in (k for k, end in enumerate(ends) if end == t):
            left[k] = learner.exp_avg_sq[k, : sizes[k]].astype(float)
    final = [learner.weights[k, :size].astype(float) for k, size in enumerate(sizes)]
    return Run(bounds, beyond, weights, final, left, power)
