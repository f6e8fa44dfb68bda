"""Scale equivariance: gradients times 2^k give bounds times 2^k (4^k for exp_avg_sq), whatever the history."""

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import optim

from sp4_lightning.quantities import EXP_AVG, EXP_AVG_SQ, GRAD
from tests.core.histories import draw_gradient
from tests.core.making import bound, examples, parameters, protect

MAKERS = {
    "Adam": lambda p: optim.Adam(p, lr=1e-3),
    "NAdam": lambda p: optim.NAdam(p, lr=1e-3),
    "SGD-momentum": lambda p: optim.SGD(p, lr=0.0, momentum=0.9),
    "RMSprop": lambda p: optim.RMSprop(p, lr=1e-4),
    "Adagrad": lambda p: optim.Adagrad(p, lr=1e-3),
}


def history(kind, seed):
    rnd, gen = random.Random(seed), torch.Generator().manual_seed(seed)

    def set_gradients(params, step):
        for param in params:
            param.grad = draw_gradient(kind, step, param, rnd, gen).to(param.dtype)
            if rnd.random() < 0.05:
                param.grad.view(-1)[0] = math.nan

    return set_gradients, 90


def bounds(make, history, factor, warmup=70):
    params, (set_gradients, steps) = parameters((4, 5), (50,)), history
    wrapper, rows = protect(make(params), warmup_steps=warmup), []
    for step in range(steps):
        set_gradients(params, step)
        for param in params:
            if param.grad is not None:
                param.grad.mul_(factor)
        wrapper.step()
        rows.append(torch.stack([bound(wrapper, row) for row in (GRAD, EXP_AVG, EXP_AVG_SQ)]))
    return torch.stack(rows)


def scaled(rows, factor):
    return rows * torch.tensor([factor, factor, factor**2], dtype=torch.float64)[:, None]


@pytest.mark.parametrize("name", MAKERS)
@examples(3)
@given(st.sampled_from(("normal", "sparse", "bursts", "constant")), st.integers(0, 2**32 - 1), st.integers(-12, 12))
def test_powers_of_two_are_exact(name, kind, seed, k):
    for warmup in (70, 10**6):
        rows = scaled(bounds(MAKERS[name], history(kind, seed), 1.0, warmup), 2.0**k)
        got = bounds(MAKERS[name], history(kind, seed), 2.0**k, warmup)
        # The learned bound goes through a logarithm; without it those of the moments are equal to the bit.
        torch.testing.assert_close(got, rows, rtol=1e-9, atol=0)
    assert got[:, 1:].equal(rows[:, 1:])


@pytest.mark.parametrize("factor", [3.0, 1 / 7, 100.0])
def test_other_factors_are_exact_to_a_bins_width(factor):
    rows = bounds(MAKERS["Adam"], history("normal", 5), 1.0)
    got = bounds(MAKERS["Adam"], history("normal", 5), factor)
    torch.testing.assert_close(got[:, 0], scaled(rows, factor)[:, 0], rtol=0.25, atol=0)
    torch.testing.assert_close(got[:, 1:], scaled(rows, factor)[:, 1:], rtol=1e-5, atol=0)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12])
def test_the_learned_bound_works_at_any_scale(scale):
    rows = bounds(MAKERS["Adam"], history("normal", 5), scale)
    assert rows[-1, 0].isfinite().all()
    assert (rows[-1, 0] > scale).all()
    assert (rows[-1, 0] < 100 * scale).all()
