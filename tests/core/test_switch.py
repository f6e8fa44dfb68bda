"""The flip: once, for all groups together, when every group that trains has been observed long enough."""

import math

import pytest
import torch
from torch import nn, optim

from sp4_lightning import Phase, Protection, Settings, Switch
from sp4_lightning.quantities import GRAD
from tests.core.making import QUICK, bound, gradients, parameters, protect, repaired, train


def phase(thing):
    return Phase(int((thing.engine if hasattr(thing, "engine") else thing).switch.phase))


def counts(*numbers):
    return [torch.tensor(numbers)]


def test_the_flip_waits_for_the_slowest_group_that_trains():
    switch = Switch("enforce", 5)
    for observed in ((0, 0), (5, 4), (100, 1)):
        switch.advance(counts(*observed))
        assert int(switch.phase) == Phase.EXACT
    switch.advance(counts(100, 5))
    assert int(switch.phase) == Phase.LEARNED


def test_the_flip_is_for_ever():
    switch = Switch("enforce", 5)
    switch.advance(counts(5))
    switch.advance(counts(5, 1))  # a group that starts training after it
    assert int(switch.phase) == Phase.LEARNED


def test_a_group_that_never_trains_does_not_block_and_none_at_all_does_not_flip():
    switch = Switch("enforce", 5)
    switch.advance(counts(0, 0, 0))
    assert int(switch.phase) == Phase.EXACT
    switch.advance([*counts(0, 0), *counts(7)])
    assert int(switch.phase) == Phase.LEARNED


def test_no_warm_up_flips_with_the_first_update():
    switch = Switch("enforce", 0)
    switch.advance(counts(0))
    assert int(switch.phase) == Phase.EXACT
    switch.advance(counts(1))
    assert int(switch.phase) == Phase.LEARNED


def test_observing_never_flips():
    switch = Switch("observe", 0)
    switch.advance(counts(10**6))
    assert int(switch.phase) == Phase.OBSERVE
    wrapper = protect(optim.Adam(parameters((4,))), mode="observe", learned=QUICK, warmup_steps=0)
    train(wrapper, 20)
    assert phase(wrapper) is Phase.OBSERVE


def test_a_wrapper_flips_itself_after_the_warm_up_of_executed_updates():
    params = parameters((4,))
    wrapper = protect(optim.Adam(params), warmup_steps=10)
    train(wrapper, 9)
    params[0].grad = torch.full((4,), math.nan)
    wrapper.step()
    assert phase(wrapper) is Phase.EXACT
    train(wrapper, 1)
    assert phase(wrapper) is Phase.LEARNED


def test_all_optimizers_of_a_protection_flip_together():
    net = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(2, 2), "idle": nn.Linear(2, 1)})
    optimizers = [optim.Adam(net[key].parameters()) for key in net]
    protection = Protection(optimizers, net, settings=Settings(warmup_steps=6, update_every=1))
    flipped = []
    for step in range(20):
        gradients(list(net.parameters()), step)
        optimizers[0].step()
        if step % 2:
            optimizers[1].step()  # half as often
        protection.advance()
        flipped.append(phase(protection))
    assert flipped.index(Phase.LEARNED) == 11
    assert flipped == [Phase.EXACT] * 11 + [Phase.LEARNED] * 9
    assert all(engine.switch is protection.switch for engine in protection.engines)


def test_before_the_flip_the_learned_bound_clamps_nothing_and_after_it_it_does():
    params = parameters((4, 5))
    wrapper = protect(optim.SGD(params, lr=0.0), learned=QUICK, warmup_steps=30)
    for step in range(40):
        gradients(params, step)
        params[0].grad[0, 0] = 1e6 if step in (25, 29, 30) else 1.0
        wrapper.step()
        clamped = params[0].grad[0, 0].item() < 1e6
        assert clamped == (step not in (25, 29))
    assert wrapper.engine.state.clamped.tolist() == [1]


def test_exact_rules_and_skips_act_from_the_very_first_step():
    params = parameters((4, 5))
    wrapper = protect(optim.Adam(params), warmup_steps=10**6)
    params[0].grad = torch.full((4, 5), math.nan)
    params[0].data[0, 0] = math.inf
    wrapper.step()
    assert (int(wrapper.engine.skipped), repaired(wrapper)) == (1, 1)


def test_a_head_that_first_trains_after_the_flip_is_enforced_when_its_own_bound_is_ready():
    params = parameters((4, 5), (3,))
    base = optim.Adam([{"params": params[:1], "name": "body"}, {"params": params[1:], "name": "head"}])
    wrapper = protect(base, warmup_steps=100)
    for step in range(300):
        gradients(params[:1], step)
        wrapper.step()
    assert phase(wrapper) is Phase.LEARNED
    assert math.isinf(wrapper.engine.table["grad", "head"])
    for step in range(300, 370):
        gradients(params, step)
        params[1].grad.mul_(10.0 ** (step - 300) if step < 310 else 1e3)  # early on anything goes
        expected = params[1].grad.clone()
        armed = math.isfinite(bound(wrapper, GRAD)[1])
        assert armed == (step - 300 >= 64)
        wrapper.step()
        assert armed or params[1].grad.equal(expected)
    assert int(wrapper.engine.state.clamped[1]) == 0


@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_a_head_initialised_to_zero_is_never_clamped_to_zero(name):
    head = nn.Parameter(torch.zeros(6))
    wrapper = protect(getattr(optim, name)([head], lr=0.1), learned=QUICK, warmup_steps=0)
    for step in range(40):
        gradients([head], step, scale=0.0 if step < 15 else 1.0)
        wrapper.step()
        assert head.any() == (step >= 15)
    assert repaired(wrapper) == 0
    assert int(wrapper.engine.state.clamped.sum()) == 0
