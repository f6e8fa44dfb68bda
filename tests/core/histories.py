"""Gradient histories to torture the exact rules with: wild scales, sparsity, constants, bursts, faulty batches."""

import math
import random

import torch
from hypothesis import strategies as st

# Where an exp_avg_sq overflows Adam itself breaks: 1e15 squared is far from the end of float32.
LARGEST = 1e15

KINDS = ("normal", "wild steps", "wild elements", "sparse", "constant", "burst then silence", "sawtooth", "bursts")


def draw_gradient(kind, step, param, rnd, gen):
    noise = torch.randn(param.shape, generator=gen, dtype=torch.float64)
    if kind == "wild steps":
        noise *= 10 ** rnd.uniform(-12, 12)
    elif kind == "wild elements":
        noise *= 10 ** (4 * torch.randn(param.shape, generator=gen, dtype=torch.float64))
    elif kind == "sparse":
        noise *= torch.rand(param.shape, generator=gen) < 0.05
    elif kind == "constant":
        noise = torch.ones(param.shape, dtype=torch.float64)
    elif kind == "burst then silence":
        noise *= float(step < 3)
    elif kind == "sawtooth":  # the gradients that maximise |exp_avg| / sqrt(exp_avg_sq) grow geometrically
        noise = noise.abs() * 1.3 ** (step % 40)
    elif kind == "bursts":
        noise *= 1e6 if rnd.random() < 0.05 else 1e-6
    return noise.clamp(-LARGEST, LARGEST)


@st.composite
def histories(draw, kinds=KINDS):
    """A function that sets the gradients of a step, and how many steps there are."""
    seed, kind = draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from(kinds))
    faulty, absent = draw(st.sampled_from([0.0, 0.1])), draw(st.sampled_from([0.0, 0.2]))
    rnd, gen = random.Random(seed), torch.Generator().manual_seed(seed)

    def set_gradients(params, step):
        for param in params:
            param.grad = draw_gradient(kind, step, param, rnd, gen).to(param.dtype)
            if rnd.random() < absent:
                param.grad = None
            elif rnd.random() < faulty:
                param.grad.view(-1)[rnd.randrange(param.numel())] = rnd.choice([math.nan, math.inf, -math.inf])

    return Named(set_gradients, f"{kind!r}, faulty {faulty}, absent {absent}, seed {seed}"), draw(
        st.sampled_from([50, 100])
    )


class Named:
    """A function that says in Hypothesis's report what it is."""

    def __init__(self, function, name):
        self.function, self.name = function, name

    def __call__(self, *args):
        return self.function(*args)

    def __repr__(self):
        return self.name
