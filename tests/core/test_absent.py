"""Tensors that are not there: no gradient, no elements, no training."""

import math

import pytest
import torch
from torch import nn, optim

from sp4_lightning import ParamGroup
from sp4_lightning.quantities import EXP_AVG, EXP_AVG_SQ, GRAD
from tests.core.making import (
    OPTIMIZERS,
    QUICK,
    bound,
    gradients,
    learned_state,
    parameters,
    protect,
    repaired,
    same,
    snapshot,
)

SHAPES = ((3, 2), (4,), (2,))


PATTERNS = {
    "never": lambda step: [],
    "one, always": lambda step: [1],
    "in turn": lambda step: [step % 3],
    "all, sometimes": lambda step: [0, 1, 2] if step % 4 == 1 else [],
    "all but one": lambda step: [0, 2],
    "from some step on": lambda step: [] if step < 12 else [0],
    "until some step": lambda step: [0] if step < 12 else [],
}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD-momentum", "RMSprop", "Adagrad", "NAdam"])
def test_missing_gradients_leave_the_run_the_bare_optimizers(name, pattern):
    params, bare_params = parameters(*SHAPES), parameters(*SHAPES)
    wrapper, bare = protect(OPTIMIZERS[name](params), warmup_steps=10**9), OPTIMIZERS[name](bare_params)
    for step in range(25):
        for some in (params, bare_params):
            gradients(some, step)
            for i in PATTERNS[pattern](step):
                some[i].grad = None
        wrapper.step()
        bare.step()
    assert same(snapshot(wrapper.base), snapshot(bare))
    assert repaired(wrapper) == 0


def test_a_tensor_without_a_gradient_keeps_its_bounds_and_its_observations():
    params = parameters(*SHAPES)
    wrapper = protect(optim.Adam(params), learned=QUICK, warmup_steps=0)
    for step in range(20):
        gradients(params, step)
        wrapper.step()
    before = learned_state(wrapper)
    gradients(params, 20, scale=100.0)
    params[1].grad = None
    wrapper.step()
    after = learned_state(wrapper)
    for key in ("bound", "level", "seen", "recent", "ratio_sq", "budget", "filled"):
        assert after[key][..., 1].equal(before[key][..., 1])
    assert (after["seen"] - before["seen"]).tolist() == [1, 0, 1]
    assert not after["bound"][EXP_AVG, 0].equal(before["bound"][EXP_AVG, 0])


def test_a_step_without_any_gradient_observes_no_group():
    params = parameters(*SHAPES)
    wrapper = protect(optim.Adam([{"params": params[:1], "name": "a"}, {"params": params[1:], "name": "b"}]))
    before = snapshot(wrapper.base)
    wrapper.step()
    assert same(snapshot(wrapper.base), before)
    assert wrapper.engine.observed.tolist() == [0, 0]
    gradients(params[1:], 0)
    wrapper.step()
    assert wrapper.engine.observed.tolist() == [0, 1]


def test_a_gradient_of_zeros_is_no_observation_but_an_update():
    params = parameters((3,), (3,))
    wrapper = protect(optim.Adam(params), learned=QUICK, warmup_steps=0)
    for step in range(30):
        gradients(params, step)
        params[1].grad.zero_()
        wrapper.step()
    assert wrapper.engine.state.seen[1] == 0
    assert math.isfinite(bound(wrapper, GRAD)[0])
    assert math.isinf(bound(wrapper, GRAD)[1])
    assert bound(wrapper, EXP_AVG_SQ)[1] == 0
    gradients(params, 30, scale=1e6)  # the first gradient that is not zero is taken as it is
    expected = params[1].grad.clone()
    wrapper.step()
    assert params[1].grad.equal(expected)
    assert repaired(wrapper) == 0


@pytest.mark.parametrize("name", [*OPTIMIZERS, "LBFGS"])
def test_tensors_without_elements_are_passed_over(name):
    make = OPTIMIZERS.get(name) or (lambda p: optim.LBFGS(p, lr=0.1))
    if name == "Adafactor":
        pytest.skip("torch's own Adafactor divides by the number of elements")
    params, bare_params = parameters((0,), (3, 2), (4, 0, 2)), parameters((0,), (3, 2), (4, 0, 2))
    wrapper, bare = protect(make(params)), make(bare_params)
    for step in range(5):
        for some, optimizer in ((params, wrapper), (bare_params, bare)):

            def evaluate(some=some, step=step):
                gradients(some, step)
                return some[1].detach().sum()

            optimizer.step(evaluate)
    assert same(snapshot(wrapper.base), snapshot(bare))
    assert len(wrapper.engine.held) == 1


def test_frozen_parameters_are_in_no_group_by_default_and_harmless_in_a_declared_one():
    params = parameters((3,), (3,))
    params[0].requires_grad_(False)
    assert protect(optim.Adam(params)).engine.held.params == [params[1]]
    frozen = params[0].clone()
    wrapper = protect(optim.Adam(params, weight_decay=0.1), [ParamGroup.of("all", params)])
    for step in range(5):
        gradients(params[1:], step)
        wrapper.step()
    assert params[0].equal(frozen)
    assert wrapper.engine.state.seen.tolist() == [0, 5]


def test_a_parameter_that_is_thawed_later_is_armed_by_its_own_observations():
    params = parameters((3,), (3,))
    wrapper = protect(optim.Adam(params), [ParamGroup.of("all", params)], learned=QUICK, warmup_steps=0)
    for step in range(30):
        gradients(params[: 1 if step < 20 else 2], step)
        wrapper.step()
        assert math.isinf(bound(wrapper, GRAD)[1]) == (step < 20 + 7)


def test_an_optimizer_whose_first_param_group_is_empty_can_be_wrapped():
    param = nn.Parameter(torch.ones(3))
    wrapper = protect(optim.Adam([{"params": []}, {"params": [param]}]))
    gradients([param], 0)
    wrapper.step()
    assert not param.equal(torch.ones(3))
