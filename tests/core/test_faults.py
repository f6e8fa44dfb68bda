"""Faults that strike between steps, written through ``.data`` so that torch's version counter tells nothing of them."""

import copy
import math

import pytest
import torch
from torch import optim

from sp4_lightning.quantities import EXP_AVG, EXP_AVG_SQ, PARAM
from tests.core.making import bound, gradients, parameters, protect, repaired, train

LR = 1e-3
HIT = (1, 2)
"""The element that a fault hits."""

FAULTS = {
    "exp_avg_sq lost": ("exp_avg_sq", lambda t: t.zero_()),
    "exp_avg 1e8": ("exp_avg", lambda t: t.__setitem__(HIT, 1e8)),
    "exp_avg -1e30": ("exp_avg", lambda t: t.__setitem__(HIT, -1e30)),
    "exp_avg NaN": ("exp_avg", lambda t: t.__setitem__(HIT, math.nan)),
    "exp_avg Inf": ("exp_avg", lambda t: t.__setitem__(HIT, -math.inf)),
    "exp_avg_sq x1e6": ("exp_avg_sq", lambda t: t[HIT].mul_(1e6)),
    "exp_avg_sq negative": ("exp_avg_sq", lambda t: t[HIT].neg_()),
    "exp_avg_sq all negative": ("exp_avg_sq", lambda t: t.neg_()),
    "exp_avg_sq NaN": ("exp_avg_sq", lambda t: t.__setitem__(HIT, math.nan)),
    "exp_avg_sq Inf": ("exp_avg_sq", lambda t: t.__setitem__(HIT, math.inf)),
    "param 1e6": ("param", lambda t: t.__setitem__(HIT, 1e6)),
    "param NaN": ("param", lambda t: t.__setitem__(HIT, math.nan)),
    "param -Inf": ("param", lambda t: t.__setitem__(HIT, -math.inf)),
}
ADAM_FAMILY = {
    # class -> its largest step in learning rates, from the papers' formulas with betas .9/.999 (c = 7.27)
    "Adam": (optim.Adam, 7.28),
    "AdamW": (optim.AdamW, 7.28),
    "NAdam": (optim.NAdam, 0.9 * 7.28 + 0.55 / math.sqrt(0.001)),
    "RAdam": (optim.RAdam, 7.28),
}


def trained(cls, steps=30, **settings):
    params = parameters((5, 4), (6,))
    wrapper = protect(cls(params, lr=LR), **settings)
    train(wrapper, steps)
    return params, wrapper


def strike(params, wrapper, where, how):
    tensor = params[0] if where == "param" else wrapper.state[params[0]][where]
    how(tensor.data)


def step_and_measure(params, wrapper):
    """One more step; the largest distance that a parameter goes from where the repair has left it."""
    wrapper.base.register_step_pre_hook(lambda *_: start.append([p.detach().clone() for p in params]))
    start = []
    gradients(params, 500)
    wrapper.step()
    return max((p - before).abs().max().item() for p, before in zip(params, start[-1], strict=True))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ADAM_FAMILY)
def test_a_fault_is_mended_before_the_update_uses_it(name, fault):
    cls, largest_step = ADAM_FAMILY[name]
    params, wrapper = trained(cls)
    allowed = bound(wrapper, PARAM)[0].item()
    strike(params, wrapper, *FAULTS[fault])
    moved = step_and_measure(params, wrapper)
    assert repaired(wrapper) > 0
    assert moved <= largest_step * LR * (1 + 1e-3)
    for tensor in (params[0], *(wrapper.state[params[0]][key] for key in ("exp_avg", "exp_avg_sq"))):
        assert tensor.isfinite().all()
    assert (wrapper.state[params[0]]["exp_avg_sq"] >= 0).all()
    assert params[0].abs().max().item() <= allowed + largest_step * LR * (1 + 1e-3)


@pytest.mark.parametrize("fault", [name for name in FAULTS if "lost" not in name and "all" not in name])
def test_only_the_element_that_was_hit_is_touched(fault):
    params, wrapper = trained(optim.Adam)
    twins, twin = copy.deepcopy((params, wrapper))
    strike(params, wrapper, *FAULTS[fault])
    gradients(params, 500)
    gradients(twins, 500)
    wrapper.step()
    twin.step()
    others = torch.ones_like(params[0], dtype=torch.bool)
    others[HIT] = False
    assert params[0][others].equal(twins[0][others])
    assert params[1].equal(twins[1])
    for key in ("exp_avg", "exp_avg_sq"):
        assert wrapper.state[params[0]][key][others].equal(twin.state[twins[0]][key][others])
    assert wrapper.engine.state.repaired[1] == 0


def test_an_exp_avg_whose_exp_avg_sq_underflows_is_allowed_beside_a_fault():
    # exp_avg_sq of a gradient of 1e-24 is 0 in float32; eps keeps that update tiny, so nothing is wrong with it.
    params = parameters((5, 4))
    wrapper = protect(optim.Adam(params, lr=LR))
    for step in range(5):
        gradients(params, step)
        params[0].grad[0] = 1e-24
        wrapper.step()
    state = wrapper.state[params[0]]
    assert (state["exp_avg"][0] > 0).all()
    assert not state["exp_avg_sq"][0].any()
    before = state["exp_avg"][0].clone()
    state["exp_avg"].data[HIT] = 1e8
    gradients(params, 5)
    params[0].grad[0] = 0
    wrapper.step()
    assert repaired(wrapper) == 1
    torch.testing.assert_close(state["exp_avg"][0], 0.9 * before, rtol=1e-6, atol=0)


def test_a_dead_pair_starts_from_zero():
    params, wrapper = trained(optim.Adam)
    strike(params, wrapper, *FAULTS["exp_avg NaN"])
    gradients(params, 500)
    wrapper.step()
    grad, state = params[0].grad[HIT], wrapper.state[params[0]]
    assert state["exp_avg"][HIT].item() == pytest.approx(0.1 * grad.item(), rel=1e-5)
    assert state["exp_avg_sq"][HIT].item() == pytest.approx(0.001 * grad.item() ** 2, rel=1e-5)


def test_an_exp_avg_sq_that_is_clamped_takes_its_exp_avg_with_it():
    params, wrapper = trained(optim.Adam)
    state = wrapper.state[params[0]]
    ratio = (state["exp_avg"][HIT] / state["exp_avg_sq"][HIT].sqrt()).item()
    # Both grow, as they do when a huge gradient has slipped in: their ratio is healthy, their size is not.
    state["exp_avg"].data[HIT] *= 1e4
    state["exp_avg_sq"].data[HIT] *= 1e8
    limit = bound(wrapper, EXP_AVG_SQ)[0].item()
    for param in params:
        param.grad = torch.zeros_like(param)
    wrapper.step()
    assert state["exp_avg_sq"][HIT].item() <= limit
    assert state["exp_avg_sq"][HIT].item() > 0.9 * limit
    assert (state["exp_avg"][HIT] / state["exp_avg_sq"][HIT].sqrt()).abs() <= abs(ratio) * (0.9 / 0.999**0.5) * 1.01


@pytest.mark.parametrize("fault", FAULTS)
def test_observing_counts_what_it_would_mend_and_touches_nothing(fault):
    params, wrapper = trained(optim.Adam, mode="observe")
    strike(params, wrapper, *FAULTS[fault])
    twins, twin = copy.deepcopy((params, wrapper.base))
    gradients(params, 500)
    gradients(twins, 500)
    wrapper.step()
    twin.step()
    assert repaired(wrapper) > 0
    assert params[0].nan_to_num(7.0).equal(twins[0].nan_to_num(7.0))


@pytest.mark.parametrize("fault", ["param 1e6", "param NaN", "exp_avg 1e8", "exp_avg_sq lost"])
def test_repair_runs_on_skipped_steps_too(fault):
    params, wrapper = trained(optim.Adam)
    steps = wrapper.state[params[0]]["step"].clone()
    strike(params, wrapper, *FAULTS[fault])
    for param in params:
        param.grad = torch.full_like(param, math.nan)
    wrapper.step()
    assert int(wrapper.engine.skipped) == 1
    assert repaired(wrapper) > 0
    assert params[0].isfinite().all()
    assert params[0].abs().max() < 10
    assert wrapper.state[params[0]]["step"].equal(steps)
    assert wrapper.state[params[0]]["exp_avg"].abs().max() <= bound(wrapper, EXP_AVG)[0] * 1.001


@pytest.mark.parametrize("quantity", ["exp_avg", "exp_avg_sq", "param"])
def test_a_quantity_that_is_switched_off_is_left_alone(quantity):
    off = ["param"] if quantity == "param" else ["exp_avg", "exp_avg_sq"]
    params, wrapper = trained(optim.Adam, disable={"*": off})
    strike(params, wrapper, quantity, lambda t: t.__setitem__(HIT, 1e6))
    gradients(params, 500)
    wrapper.step()
    assert repaired(wrapper) == 0
