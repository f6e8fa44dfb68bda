"""What the tests of the core make again and again: parameters, optimizers, gradients, comparisons to the bit."""

import copy
import math

import hypothesis
import torch
from torch import nn, optim

from sp4_lightning import ClippingOptimizer, LearnedBound, Settings

SHAPES = ((5, 3), (7,), (2, 3, 2), ())

# Armed soon, for tests in which how the bound is learned does not matter.
QUICK = LearnedBound(arm_after=8, rank=3)

# Every optimizer class of torch with real dense gradients, as called in practice. LBFGS works only with a closure.
OPTIMIZERS = {
    "Adadelta": lambda p: optim.Adadelta(p, lr=0.1),
    "Adafactor": lambda p: optim.Adafactor(p, lr=1e-2),
    "Adagrad": lambda p: optim.Adagrad(p, lr=1e-2),
    "Adam": lambda p: optim.Adam(p, lr=1e-2),
    "Adam-l2": lambda p: optim.Adam(p, lr=1e-2, weight_decay=0.1),
    "AdamW": lambda p: optim.AdamW(p, lr=1e-2),
    "Adamax": lambda p: optim.Adamax(p, lr=1e-2),
    "ASGD": lambda p: optim.ASGD(p, lr=1e-2),
    "NAdam": lambda p: optim.NAdam(p, lr=1e-2),
    "RAdam": lambda p: optim.RAdam(p, lr=1e-2),
    "RMSprop": lambda p: optim.RMSprop(p, lr=1e-3),
    "RMSprop-centered": lambda p: optim.RMSprop(p, lr=1e-3, centered=True, momentum=0.9),
    "Rprop": lambda p: optim.Rprop(p, lr=1e-3),
    "SGD": lambda p: optim.SGD(p, lr=1e-2),
    "SGD-momentum": lambda p: optim.SGD(p, lr=1e-2, momentum=0.9, weight_decay=1e-2),
    "SGD-nesterov": lambda p: optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
}
FUSED = {
    "Adagrad-fused": lambda p: optim.Adagrad(p, lr=1e-2, fused=True),
    "Adam-fused": lambda p: optim.Adam(p, lr=1e-2, fused=True),
    "AdamW-fused": lambda p: optim.AdamW(p, lr=1e-2, fused=True),
    "SGD-fused": lambda p: optim.SGD(p, lr=1e-2, momentum=0.9, fused=True),
}


def examples(count):
    """So many Hypothesis examples, and proportionally more under ``--hypothesis-profile=explore``."""
    return hypothesis.settings(max_examples=count * hypothesis.settings.default.max_examples // 20)


def parameters(*shapes, dtype=torch.float32, seed=0, device="cpu"):
    gen = torch.Generator().manual_seed(seed)
    values = [torch.randn(shape, generator=gen, dtype=torch.float64) for shape in shapes]
    return [nn.Parameter(value.to(device, dtype)) for value in values]


def protect(base, groups=None, **settings):
    """A wrapper that learns on every update unless told otherwise."""
    return ClippingOptimizer(base, groups, Settings(**{"update_every": 1, **settings}))


def gradients(params, step, scale=1.0):
    """The gradients of one step: a function of the step alone, so that two runs can be compared."""
    gen = torch.Generator().manual_seed(1000 + step)
    for param in params:
        grad = torch.randn(param.shape, generator=gen, dtype=torch.float64) * scale
        param.grad = grad.to(param.device, param.dtype)


def train(wrapper, steps, start=0, scale=1.0):
    """Steps with standard normal gradients."""
    params = [param for group in wrapper.param_groups for param in group["params"]]
    for step in range(start, start + steps):
        gradients(params, step, scale)
        wrapper.step()


def repaired(wrapper):
    return int(torch.as_tensor(getattr(wrapper, "engine", wrapper).state.repaired).sum())


def bound(wrapper, row):
    """A copy of one quantity's bounds (rows as in QUANTITIES)."""
    return torch.as_tensor(wrapper.engine.state.bound)[row].clone()


def bits(tensor):
    """A tensor as bytes: NaN equals NaN, and 0.0 differs from -0.0."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def same(a, b):
    """Whether two nested structures of tensors and plain values are equal to the bit."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and (a.dtype, a.shape) == (b.dtype, b.shape) and bits(a).equal(bits(b))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


def snapshot(optimizer):
    """A deep copy of everything an optimizer works on."""
    params = [param.detach().clone() for group in optimizer.param_groups for param in group["params"]]
    return params, copy.deepcopy({key: value for key, value in optimizer.state_dict().items() if key != "sp4"})


def learned_state(wrapper):
    """What the engine has learned about each tensor, without its counters of events."""
    engine = getattr(wrapper, "engine", wrapper)
    tensors = engine.state.state_dict(engine.held.names)
    return {k: v for k, v in tensors.items() if k not in ("clamped", "counted", "repaired", "peak")}


class StopError(Exception):
    pass


def bowl(params, wrapper, evaluations, bad=None, fails=None):
    """A closure for LBFGS: a quartic bowl whose n-th evaluation has a NaN gradient, or raises."""

    def closure():
        wrapper.zero_grad()
        loss = (params[0] - 3).pow(4).sum()
        loss.backward()
        evaluations.append(1)
        if len(evaluations) == bad:
            params[0].grad[0] = math.nan
        if len(evaluations) == fails:
            raise StopError
        return loss

    return closure
