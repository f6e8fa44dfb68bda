"""No exact rule fires while a healthy state decays through hundreds of updates without a gradient."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn, optim

from sp4_lightning.consistency import constant_sq
from sp4_lightning.derived import error
from sp4_lightning.quantities import PARAM
from tests.core.histories import LARGEST
from tests.core.making import bound, examples, parameters, protect, repaired, train

DTYPES = [torch.float32, torch.float64, torch.bfloat16]


@st.composite
def betas(draw):
    """Any, and those for which exp_avg decays about as fast as the root of exp_avg_sq."""
    beta1 = draw(st.one_of(st.sampled_from([0.0, 0.5, 0.8, 0.9, 0.95]), st.floats(0.0, 0.98)))
    if draw(st.booleans()):
        return beta1, draw(st.sampled_from([0.5, 0.7, 0.82, 0.9, 0.99, 0.999, 0.9999]))
    return beta1, min(max(beta1**2 * draw(st.floats(1.0, 1.2)), 0.01), 0.9999)


@st.composite
def loud_and_silent(draw):
    """Seed; whether gradients are noise or the growth that attains Cauchy-Schwarz; the updates that are silent."""
    return draw(st.integers(0, 2**32)), draw(st.booleans()), draw(st.integers(150, 300))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cls", [optim.Adam, optim.NAdam, optim.RAdam])
@examples(4)
@given(betas(), loud_and_silent())
def test_adam_and_its_kin(cls, dtype, pair, phases):
    seed, growth, silence = phases
    gen = torch.Generator().manual_seed(seed)
    # Many elements, each of a scale of its own, so that rounding is tried at many places.
    size = (300,)
    params = [nn.Parameter(torch.randn(size, generator=gen).to(dtype))]
    scale = 10 ** (2 * torch.randn(size, generator=gen, dtype=torch.float64))
    wrapper = protect(cls(params, lr=1e-3, betas=pair), warmup_steps=10**9)
    for step in range(2 * (20 + silence)):
        since = step % (20 + silence)
        shape = (pair[1] / max(pair[0], 0.1)) ** since if growth else torch.randn(size, generator=gen)
        gradient = scale * shape if since < 20 else torch.zeros(size)
        params[0].grad = gradient.clamp(-LARGEST, LARGEST).to(dtype)
        wrapper.step()
        assert repaired(wrapper) == 0, step


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
@pytest.mark.parametrize("momentum", [0.5, 0.9, 0.99])
def test_momentum(momentum, dtype):
    params = parameters((600,), dtype=dtype)
    wrapper = protect(optim.SGD(params, lr=1e-4, momentum=momentum), warmup_steps=10**9)
    for _ in range(2):
        train(wrapper, 20)
        for _ in range(400):
            params[0].grad.zero_()
            wrapper.step()
    assert repaired(wrapper) == 0


@pytest.mark.parametrize("beta2", [0.66, 0.75, 0.8, 0.9, 0.99, 0.999])
def test_where_rounding_dominates_the_ratio_there_is_no_rule_and_the_step_has_no_bound(beta2):
    # 3 e is 0.047 in bfloat16: more than 1 - .64 / .66, and less than 1 - .64 / .75.
    rules = {}
    for dtype in (torch.bfloat16, torch.float32):
        wrapper = protect(optim.Adam(parameters((4,), dtype=dtype), betas=(0.8, beta2)))
        train(wrapper, 3)
        rules[dtype] = float(wrapper.engine.state.ratio_sq[0])
        assert math.isfinite(rules[dtype]) == bound(wrapper, PARAM).isfinite().all()
    assert math.isfinite(rules[torch.bfloat16]) == (beta2 > 0.7)
    assert rules[torch.float32] == pytest.approx(constant_sq(0.8, beta2), rel=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_ratio_that_rounding_against_the_rule_attains_is_its_constant(dtype):
    beta1, beta2, e = 0.9, 0.999, error(dtype)
    # exp_avg rounded up and exp_avg_sq down at every update of the history that attains Cauchy-Schwarz.
    exp_avg = exp_avg_sq = 0.0
    up, down = 1 + e, 1 - e
    growth = beta2 * down / (beta1 * up)
    for step in range(2900, 3000):
        gradient = growth ** (step - 3000)
        exp_avg = up * (beta1 * exp_avg + (1 - beta1) * gradient)
        exp_avg_sq = down * (beta2 * exp_avg_sq + (1 - beta2) * gradient**2)
    ratio = exp_avg**2 / exp_avg_sq
    assert ratio <= constant_sq(beta1, beta2, e) * (1 + 1e-9)
    assert ratio == pytest.approx(constant_sq(beta1, beta2, e), rel=1e-3)
