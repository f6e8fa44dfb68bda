"""Attached to an optimizer whose beta1 a scheduler has moved: the pair it finds is healthy and is left alone."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn, optim
from torch.optim import lr_scheduler as lrs

from sp4_lightning import ClippingOptimizer, Protection, Settings
from sp4_lightning.consistency import constant_sq
from tests.core.making import examples, parameters, protect, repaired

TOTAL = 60


def one_cycle(base, low, high):
    return lrs.OneCycleLR(base, max_lr=1e-2, total_steps=TOTAL + 1, base_momentum=low, max_momentum=high)


def cyclic(base, low, high):
    options = {"step_size_up": 17, "base_momentum": low, "max_momentum": high}
    return lrs.CyclicLR(base, 1e-4, 1e-2, cycle_momentum=True, **options)


def loudest(param, base, step):
    """The gradients that drive |exp_avg| / sqrt(exp_avg_sq) to what the lowest beta1 allows, and silence in between."""
    beta1, beta2 = base.param_groups[0]["betas"]
    growth = (beta2 / max(beta1, 0.1)) ** (step % 30)
    param.grad = torch.full_like(param, min(growth, 1e15)) if step % 30 < 25 else torch.zeros_like(param)


def attach(param, base, how):
    if how == "wrapper":
        return ClippingOptimizer(base, settings=Settings(update_every=1)).engine
    module = nn.ParameterList([param])
    return Protection([base], module, settings=Settings(update_every=1)).engines[0]


@pytest.mark.parametrize("how", ["wrapper", "protection", "loaded"])
@pytest.mark.parametrize("make", [one_cycle, cyclic])
@pytest.mark.parametrize("cls", [optim.Adam, optim.NAdam])
@examples(8)
@given(
    st.sampled_from([0.0, 0.3, 0.6, 0.85]),
    st.sampled_from([0.9, 0.95, 0.99]),
    st.sampled_from([0.97, 0.99, 0.999]),
    st.integers(0, TOTAL - 1),
)
def test_a_pair_that_a_lower_beta1_has_made_is_no_fault(cls, make, how, low, high, beta2, start):
    (param,) = parameters((4,))
    base = cls([param], betas=(0.9, beta2))
    scheduler = make(base, low, high)
    engine = None
    if how == "loaded":  # the plain state is loaded into an optimizer that has an engine already
        (other,) = parameters((4,))
        late = protect(cls([other], betas=(0.9, beta2)))
    for step in range(TOTAL):
        if step == start and how == "loaded":
            late.load_state_dict(base.state_dict())
            scheduler_of_late = make(late, low, high)
            scheduler_of_late.load_state_dict(scheduler.state_dict())
            late.load_state_dict(base.state_dict())
            param, base, scheduler, engine = other, late, scheduler_of_late, late.engine
        elif step == start:
            engine = attach(param, base, how)
        loudest(param, base, step)
        base.step()
        scheduler.step()
        assert engine is None or repaired(engine) == 0, step
    assert engine is not None


@pytest.mark.parametrize("beta1", [0.85, 0.95])
def test_the_constant_comes_back_when_the_schedule_is_over(beta1):
    (param,) = parameters((4,))
    base = optim.Adam([param], betas=(beta1, 0.999))
    base.param_groups[0].update(base_momentum=0.85, max_momentum=0.95)
    wrapper = protect(base)
    assert float(wrapper.engine.state.ratio_sq[0]) == pytest.approx(constant_sq(0.85, 0.999), rel=1e-4)
    for _ in range(200):
        param.grad = torch.randn(4)
        wrapper.step()
    assert float(wrapper.engine.state.ratio_sq[0]) == pytest.approx(constant_sq(beta1, 0.999), rel=1e-4)


NO_RULE = [(0.95, 0.9), (0.9, 0.5), (0.9, 0.81), (0.5, 0.0)]


@pytest.mark.parametrize("how", ["attached", "reset", "loaded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("without", NO_RULE)
def test_a_ratio_without_a_limit_gets_one_when_the_betas_allow_it(without, dtype, how):
    (param,) = parameters((4,), dtype=dtype)
    wrapper = protect(optim.Adam([param], lr=1e-4, betas=without if how == "attached" else (0.9, 0.999)))

    def run(steps):
        for step in range(steps):
            param.grad = torch.full_like(param, 1.3 ** (step % 40))
            wrapper.step()

    run(5)
    wrapper.param_groups[0]["betas"] = without
    if how == "reset":
        wrapper.engine.reset()
    elif how == "loaded":
        wrapper.load_state_dict(wrapper.base.state_dict())
    assert math.isinf(wrapper.engine.state.ratio_sq[0])
    run(20)
    wrapper.param_groups[0]["betas"] = (0.5, 0.9)
    run(300)
    assert repaired(wrapper) == 0
    assert float(wrapper.engine.state.ratio_sq[0]) == pytest.approx(constant_sq(0.5, 0.9), rel=0.1)
    wrapper.state[param]["exp_avg_sq"].data.zero_()
    run(1)
    assert repaired(wrapper) == 4


@examples(8)
@given(st.lists(st.sampled_from([*NO_RULE, (0.9, 0.999), (0.5, 0.9), (0.0, 0.99)]), min_size=1, max_size=6))
def test_betas_that_come_and_go_never_break_the_ratio(sequence):
    (param,) = parameters((4,))
    wrapper = protect(optim.Adam([param], lr=1e-4, betas=sequence[0]))
    for betas in sequence:
        wrapper.param_groups[0]["betas"] = betas
        for step in range(150):
            param.grad = torch.full_like(param, 1.3 ** (step % 40))
            wrapper.step()
        assert not math.isnan(wrapper.engine.state.ratio_sq[0])
    assert repaired(wrapper) == 0
