"""Beyond the bound: each element is clamped to what it is used to, within a budget that repeated spikes exhaust."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn, optim

from sp4_lightning import LearnedBound
from sp4_lightning.quantities import GRAD
from tests.core.making import OPTIMIZERS, QUICK, bound, examples, gradients, parameters, protect, same, snapshot, train

BACKENDS = ("torch", "cpp")
UNLIMITED = {"budget": math.inf, "refill": math.inf}


def noisy(scales, make=optim.Adam, steps=800, seed=0, **settings):
    """A protected parameter whose elements have seen noise of these scales, and what makes more of it."""
    param = nn.Parameter(torch.zeros(len(scales)))
    wrapper = protect(make([param]), warmup_steps=0, **settings)
    gen = torch.Generator().manual_seed(seed)

    def step(scale=1.0):
        param.grad = torch.randn(len(scales), generator=gen) * torch.tensor(scales, dtype=torch.float32) * scale
        wrapper.step()

    for _ in range(steps):
        step()
    return param, wrapper, step


def stalled(wrapper, param, before):
    """How much larger Adam's denominator has become, element by element."""
    return (wrapper.state[param]["exp_avg_sq"] / before).sqrt()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [1e3, 1e6, 1e12])
@pytest.mark.parametrize("updates", [1, 2, 20, 24])
def test_neither_a_spike_nor_a_burst_halves_any_elements_learning_rate(size, updates, backend):
    # Scales over seven orders of magnitude: one bound for all is hundreds of sigmas for most of them.
    scales = np.exp(np.random.default_rng(0).normal(0, 2, 200)).astype(np.float32)
    param, wrapper, step = noisy(scales, backend=backend)
    before = wrapper.state[param]["exp_avg_sq"].clone()
    for _ in range(updates):
        step(size)
    assert stalled(wrapper, param, before).max() < 2


def test_at_the_bound_alone_small_elements_would_stall():
    scales = np.exp(np.random.default_rng(0).normal(0, 2, 200)).astype(np.float32)
    param, wrapper, step = noisy(scales, learned=LearnedBound(**UNLIMITED))
    before = wrapper.state[param]["exp_avg_sq"].clone()
    step(1e6)
    assert stalled(wrapper, param, before).max() > 50


@given(st.integers(0, 2**32 - 1), st.lists(st.sampled_from([1.0, 1.0, 1e3, 1e8]), min_size=1, max_size=40))
@examples(20)
def test_it_is_the_formula(seed, scales):
    """Against a plain loop over squared sigmas, for any sequence of spikes."""
    learned = LearnedBound(budget=90.0, refill=7.0)
    param, wrapper, _ = noisy(np.ones(5), steps=90, seed=seed, learned=learned)
    rnd, saved = torch.Generator().manual_seed(seed), 90.0
    for scale in scales:
        grad = torch.randn(5, generator=rnd) * scale
        state, in_force = wrapper.state[param], bound(wrapper, GRAD)[0].item()
        v_hat = state["exp_avg_sq"].double() / (1 - 0.999 ** int(state["step"]))
        param.grad = grad.clone()
        wrapper.step()
        if grad.abs().max() >= in_force:
            limit = (saved * v_hat).sqrt().clamp(max=in_force)
            torch.testing.assert_close(param.grad.double(), grad.double().clamp(-limit, limit), rtol=1e-5, atol=0)
            saved = 0.0
        else:
            assert param.grad.equal(grad)
        saved = min(saved + 7.0, 90.0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_has_never_had_a_gradient_is_not_clamped_to_zero(backend):
    param, wrapper, _ = noisy([1.0, 1.0, 0.0], backend=backend)
    in_force = bound(wrapper, GRAD)[0].item()
    assert wrapper.state[param]["exp_avg_sq"][2] == 0
    param.grad = torch.tensor([1e6, 0.5, -1e6])
    wrapper.step()
    assert param.grad[2].item() == pytest.approx(-in_force)
    assert param.grad[1].item() == 0.5
    assert 0 < param.grad[0].item() < in_force


@pytest.mark.parametrize("name", ["SGD", "SGD-momentum", "ASGD", "Adafactor", "Rprop", "Adamax"])
def test_without_exp_avg_sq_the_bound_alone_holds(name):
    params = [parameters((4, 5)) for _ in range(2)]
    wrappers = [
        protect(OPTIMIZERS[name](p), warmup_steps=0, learned=LearnedBound(arm_after=8, rank=3, **more))
        for p, more in zip(params, ({}, UNLIMITED), strict=True)
    ]
    for start, scale in ((0, 1.0), (20, 1e6), (21, 1.0)):
        for wrapper in wrappers:
            train(wrapper, 20 if start == 0 else 1, start=start, scale=scale)
    assert wrappers[0].engine.state.clamped.sum() > 0
    assert same(*(snapshot(wrapper.base) for wrapper in wrappers))


@pytest.mark.parametrize("name", ["Adam", "AdamW", "NAdam", "RAdam", "RMSprop", "Adagrad"])
def test_sigmas_are_right_whatever_the_recursion(name):
    # One sigma of standard normal gradients is 1.
    param, wrapper, _ = noisy(np.ones(4000), OPTIMIZERS[name], steps=70)
    squared = [value for value in wrapper.state[param].values() if torch.is_tensor(value) and value.shape == (4000,)]
    filled = wrapper.engine.state.filled[0]
    assert any(abs((v / filled).mean().item() - 1) < 0.1 for v in squared)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_every_precision_is_clamped_to_its_own_history(dtype):
    param = parameters((64,), dtype=dtype)[0]
    wrapper = protect(optim.Adam([param], eps=1e-4), learned=QUICK, warmup_steps=0)
    train(wrapper, 40)
    gradients([param], 40, scale=1e3)
    wrapper.step()
    assert param.grad.dtype == dtype
    assert 1 < param.grad.abs().max() < bound(wrapper, GRAD)[0]


def test_a_skipped_update_spends_nothing():
    param, wrapper, step = noisy(np.ones(5))
    before = wrapper.engine.state.budget.copy(), wrapper.engine.state.filled.copy()
    param.grad = torch.tensor([math.nan, 1e9, 1.0, 1.0, 1.0])
    wrapper.step()
    assert (wrapper.engine.state.budget, wrapper.engine.state.filled) == before
    step(1e6)
    assert wrapper.engine.state.budget[0] == LearnedBound().refill


def test_a_loaded_optimizer_state_is_never_clamped_too_tightly():
    # Two updates of Adam leave exp_avg_sq at 0.2% of the squared gradients.
    young = parameters((5,))
    other = protect(optim.Adam(young), warmup_steps=0)
    train(other, 2)
    param, wrapper, step = noisy(np.ones(5))
    wrapper.load_state_dict(other.base.state_dict())
    step()
    step(1e6)
    assert param.grad.abs().min() > 3


def test_a_rare_large_gradient_that_comes_back_is_let_in():
    _, wrapper, step = noisy(np.ones(5))
    for k in range(1200):
        step(100.0 if k % 20 == 0 else 1.0)
    clamped = wrapper.engine.state.clamped.copy()
    for k in range(200):
        step(100.0 if k % 20 == 0 else 1.0)
    assert wrapper.engine.state.clamped == clamped
