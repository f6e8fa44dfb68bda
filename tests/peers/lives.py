"""Parameters, and lives of gradients for them: spikes, zeros and gaps."""

import numpy as np
import torch

SHAPES = [(3, 4), (3,), (1, 3), (2, 2, 3, 3)]


def parameters(seed=0, dtype=torch.float64):
    random = np.random.default_rng(seed)
    return [torch.nn.Parameter(torch.from_numpy(random.normal(size=shape)).to(dtype)) for shape in SHAPES]


def life(steps, seed=0, scale=0.05, odd=0.15, calm=0):
    """``[steps][tensors]``; after ``calm`` steps a share ``odd`` is missing, all zeros or a spike, a third each."""
    random = np.random.default_rng(seed)

    def gradient(shape, odd):
        chance = random.random()
        size = scale * np.exp(random.normal()) * (10 ** random.uniform(1, 6) if chance < odd / 3 else 1)
        drawn = size * random.normal(size=shape)
        return None if odd / 3 <= chance < 2 * odd / 3 else drawn * (not 2 * odd / 3 <= chance < odd)

    return [[gradient(shape, odd if i >= calm else 0) for shape in SHAPES] for i in range(steps)]


def give(optimizer, gradients):
    """Hand over gradients, make a step, and return what the step has seen."""
    tensors = [p for group in optimizer.param_groups for p in group["params"]]
    for p, g in zip(tensors, gradients, strict=True):
        p.grad = None if g is None else torch.as_tensor(g, dtype=p.dtype).clone()
    optimizer.step()
    return [None if p.grad is None else p.grad.numpy() for p in tensors]


def attached(peer, tensors, make=torch.optim.Adam, **options):
    """An optimizer of two groups with the peer around its steps."""
    options = {"lr": 1e-3, "foreach": False, **options}
    optimizer = make([{"params": tensors[:2]}, {"params": tensors[2:]}] if len(tensors) > 2 else tensors, **options)
    peer.attach(optimizer)
    return optimizer
