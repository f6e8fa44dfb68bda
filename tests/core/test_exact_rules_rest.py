"""The exact rules never fire on a state that Adam and its kin have made, whatever the gradients and the betas."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import optim

from tests.core.histories import histories
from tests.core.making import examples, parameters, protect, repaired

ADAM_FAMILY = [optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam]
SHAPES = ((4, 5), (7,), ())
BETA1 = st.sampled_from([0.0, 0.3, 0.5, 0.8, 0.9, 0.95, 0.99])
BETA2 = st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999, 0.9999])
OPTIONS = st.fixed_dictionaries(
    {"lr": st.sampled_from([1e-4, 1e-2, 1.0]), "weight_decay": st.sampled_from([0.0, 0.1]), "maximize": st.booleans()}
)
# The learned bounds in force from the start, from the middle, or never.
WARMUPS = st.sampled_from([0, 30, 10**6])


def assert_never_fires(make, params, history, warmup, before_step=lambda base, step: None):
    set_gradients, steps = history
    wrapper = protect(make(params), warmup_steps=warmup)
    for step in range(steps):
        before_step(wrapper.base, step)
        set_gradients(params, step)
        wrapper.step()
        assert repaired(wrapper) == 0, f"step {step}: {wrapper.engine.state.repaired.tolist()}"
    assert int(wrapper.engine.steps) + int(wrapper.engine.skipped) == steps


@examples(14)
@pytest.mark.parametrize("cls", ADAM_FAMILY)
@given(histories(), BETA1, BETA2, OPTIONS, WARMUPS)
def test_adam_and_its_kin_in_float32(cls, history, beta1, beta2, options, warmup):
    assert_never_fires(lambda p: cls(p, betas=(beta1, beta2), **options), parameters(*SHAPES), history, warmup)


@examples(6)
@pytest.mark.parametrize("cls", ADAM_FAMILY)
@given(histories(), BETA1, BETA2, OPTIONS, WARMUPS)
def test_adam_and_its_kin_in_float64(cls, history, beta1, beta2, options, warmup):
    params = parameters(*SHAPES, dtype=torch.float64)
    assert_never_fires(lambda p: cls(p, betas=(beta1, beta2), **options), params, history, warmup)


@examples(6)
@pytest.mark.parametrize("cls", ADAM_FAMILY)
@given(histories(), BETA1, BETA2, OPTIONS, WARMUPS)
def test_adam_and_its_kin_in_bfloat16(cls, history, beta1, beta2, options, warmup):
    params = parameters(*SHAPES, dtype=torch.bfloat16)
    assert_never_fires(lambda p: cls(p, betas=(beta1, beta2), **options), params, history, warmup)


@examples(8)
@pytest.mark.parametrize("cls", ADAM_FAMILY)
@given(histories(), st.lists(BETA1, min_size=2, max_size=4), st.lists(BETA2, min_size=1, max_size=3), OPTIONS)
def test_betas_that_change_from_step_to_step(cls, history, beta1s, beta2s, options):
    rnd = random.Random(0)

    def change(base, step):
        for group in base.param_groups:
            group["betas"] = (rnd.choice(beta1s), rnd.choice(beta2s))

    make = lambda p: cls(p, betas=(beta1s[0], beta2s[0]), **options)  # noqa: E731
    assert_never_fires(make, parameters(*SHAPES), history, 10**6, change)


@pytest.mark.parametrize("cls", ADAM_FAMILY)
def test_one_step_after_beta1_falls_the_step_bound_allows_for_the_larger_ratio(cls):
    # With beta1 = 0 one gradient after silence moves a parameter 1/sqrt(1-beta2) lr: far more than c(.5, .8) allows.
    params = parameters((3,))
    params[0].data.zero_()
    wrapper = protect(cls(params, lr=0.1, betas=(0.5, 0.8)))
    for step in range(60):
        for group in wrapper.param_groups:
            group["betas"] = (0.0, 0.8) if step == 40 else (0.5, 0.8)
        params[0].grad = torch.ones(3) if step == 40 else torch.full((3,), 1e-6)
        wrapper.step()
        assert repaired(wrapper) == 0


@examples(6)
@pytest.mark.parametrize("cls", [optim.Adam, optim.AdamW])
@given(histories(), OPTIONS)
def test_learning_rates_that_change_from_step_to_step(cls, history, options):
    def change(base, step):
        for group in base.param_groups:
            group["lr"] = [1.0, 1e-4, 0.0, 0.3][step % 4]

    assert_never_fires(lambda p: cls(p, **options), parameters(*SHAPES), history, 10**6, change)


@pytest.mark.parametrize("cls", ADAM_FAMILY)
def test_the_history_that_reaches_the_ratio_is_allowed(cls):
    # Gradients proportional to (b1/b2)^k, newest first, attain |m| = c sqrt(v).
    params = parameters((50,))
    wrapper = protect(cls(params, lr=1e-3))
    for step in range(300):
        params[0].grad = torch.linspace(0.5, 2, 50) * (0.999 / 0.9) ** (step - 150)
        wrapper.step()
    m, v = (wrapper.state[params[0]][key] for key in ("exp_avg", "exp_avg_sq"))
    c = (0.1**2 / (0.001 * (1 - 0.81 / 0.999))) ** 0.5
    assert (m / v.sqrt()).max() > 0.999 * c
    assert repaired(wrapper) == 0


@pytest.mark.parametrize("betas", [(0.3, 0.5), (0.1, 0.02)])
def test_moments_that_end_in_denormals_are_allowed(betas):
    # There they stop decaying (0.3 times the smallest float is the smallest float), while their bounds go on.
    params = parameters((50,))
    wrapper = protect(optim.Adam(params, betas=betas))
    for step in range(200):
        params[0].grad = torch.linspace(1, 2, 50) * (step == 0)
        wrapper.step()
    assert repaired(wrapper) == 0
