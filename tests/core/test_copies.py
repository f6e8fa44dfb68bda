"""Pickle, deepcopy, and state dicts that go between a wrapper and a bare optimizer."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn, optim

from sp4_lightning import ClippingOptimizer, ParamGroup, Protection, UnsupportedError
from tests.core.making import (
    FUSED,
    OPTIMIZERS,
    QUICK,
    gradients,
    learned_state,
    parameters,
    protect,
    repaired,
    same,
    snapshot,
    train,
)

SHAPES = ((4, 3), (5,))
OPTIONS = {"learned": QUICK, "warmup_steps": 10}


def pickled(thing):
    return pickle.loads(pickle.dumps(thing))


def saved_whole(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {"deepcopy": copy.deepcopy, "pickle": pickled, "torch.save": saved_whole}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("name", ["Adam", "SGD-momentum", "Adagrad", "Adam-fused", "Adafactor"])
@pytest.mark.parametrize("steps", [0, 5, 30])
def test_a_copy_lives_on_as_the_original_does(name, how, steps):
    make = OPTIMIZERS.get(name) or FUSED[name]
    wrapper = protect(make(parameters(*SHAPES)), **OPTIONS)
    train(wrapper, steps)
    twin = COPIES[how](wrapper)
    assert type(twin) is ClippingOptimizer
    assert int(twin.engine.switch.phase) == int(wrapper.engine.switch.phase)
    for step in range(steps, steps + 15):
        for each in (wrapper, twin):
            train(each, 1, start=step)
        assert same(snapshot(twin), snapshot(wrapper))
        assert same(learned_state(twin), learned_state(wrapper))
    assert same(twin.state_dict(), wrapper.state_dict())


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_is_independent(how):
    wrapper = protect(optim.Adam(parameters(*SHAPES)), **OPTIONS)
    train(wrapper, 20)
    twin, before = COPIES[how](wrapper), wrapper.state_dict()
    before = copy.deepcopy(before)
    train(twin, 10)
    assert same(wrapper.state_dict(), before)
    assert twin.base is not wrapper.base
    assert len(wrapper.base._optimizer_step_pre_hooks) == 1


def test_a_model_and_its_optimizer_stay_together():
    net = nn.Linear(3, 2)
    wrapper = ClippingOptimizer(optim.Adam(net.parameters()), module=net)
    other, twin = copy.deepcopy((net, wrapper))
    assert twin.engine.held.params == list(other.parameters())
    assert all(a is b for a, b in zip(twin.engine.held.params, other.parameters(), strict=True))
    assert twin.groups[0].params["weight"] is other.weight


@pytest.mark.parametrize("name", ["Adam", "SGD-momentum", "RMSprop"])
def test_the_base_loads_what_the_wrapper_has_saved(name):
    wrapper = protect(OPTIMIZERS[name](parameters(*SHAPES)))
    train(wrapper, 10)
    bare = OPTIMIZERS[name](parameters(*SHAPES))
    bare.load_state_dict(wrapper.state_dict())
    assert same(bare.state_dict(), wrapper.base.state_dict())


@pytest.mark.parametrize("name", ["Adam", "SGD-momentum", "RMSprop"])
def test_the_wrapper_loads_what_a_bare_optimizer_has_saved_and_learns_anew(name):
    params = parameters(*SHAPES)
    bare = OPTIMIZERS[name](params)
    for step in range(10):
        gradients(params, step, scale=1e3)
        bare.step()
    wrapper = protect(OPTIMIZERS[name](parameters(*SHAPES)))
    train(wrapper, 5)
    wrapper.load_state_dict(bare.state_dict())
    assert same(wrapper.base.state_dict(), bare.state_dict())
    train(wrapper, 20, start=5)
    assert repaired(wrapper) == 0


def test_a_plain_state_made_under_other_betas_is_no_fault():
    # Its |exp_avg| / sqrt(exp_avg_sq) may be up to 9.0; the constant of the betas before loading is 5.1.
    params = parameters((5, 3))
    bare = optim.Adam(params, betas=(0.85, 0.999))
    for step in range(220):
        gradients(params, step)
        if step > 200:
            params[0].grad = torch.full((5, 3), 1e3)
        bare.step()
    wrapper = protect(optim.Adam(parameters((5, 3)), betas=(0.95, 0.999)))
    wrapper.load_state_dict(bare.state_dict())
    train(wrapper, 5, start=220)
    assert repaired(wrapper) == 0


def test_names_that_occur_in_two_groups_keep_their_columns_apart():
    a, b = parameters((4,), (4,))
    wrapper = protect(optim.Adam([a, b]), [ParamGroup("a", {"weight": a}), ParamGroup("b", {"weight": b})])
    for step in range(10):
        gradients([a], step, scale=1e3)
        gradients([b], step, scale=1e-3)
        wrapper.step()
    before = learned_state(wrapper)
    wrapper.load_state_dict(copy.deepcopy(wrapper.state_dict()))
    assert same(learned_state(wrapper), before)


def test_columns_are_matched_by_name_not_by_position():
    a, b = parameters((4,), (3,))
    groups = [ParamGroup("x", {"a": a}), ParamGroup("y", {"b": b})]
    first = protect(optim.Adam([a, b]), groups, learned=QUICK)
    for step in range(20):
        gradients([a], step, scale=100.0)
        gradients([b], step)
        first.step()
    saved = copy.deepcopy(first.state_dict()["sp4"]["tensors"])
    order = [1, 0]
    shuffled = {k: [v[i] for i in order] if k == "names" else v[..., order] for k, v in saved.items()}
    second = protect(optim.Adam([a, b]), groups, learned=QUICK)
    second.load_state_dict({**first.state_dict(), "sp4": {**first.state_dict()["sp4"], "tensors": shuffled}})
    assert same(learned_state(second), learned_state(first))


def test_a_state_dict_shares_nothing_with_the_wrapper():
    wrapper = protect(optim.Adam(parameters(*SHAPES)), **OPTIONS)
    train(wrapper, 20)
    saved, before = wrapper.state_dict()["sp4"], copy.deepcopy(wrapper.state_dict()["sp4"])
    saved["groups"].append("other")
    saved["tally"].fill_(99)
    for value in saved["tensors"].values():
        value.clear() if isinstance(value, list) else value.fill_(99)
    assert same(wrapper.state_dict()["sp4"], before)


@pytest.mark.parametrize("how", COPIES)
def test_a_protection_says_how_to_get_another(how):
    net = nn.Linear(3, 2)
    protection = Protection([optim.Adam(net.parameters())], net)
    with pytest.raises(UnsupportedError, match=r"Make another one around the copied optimizers .* state_dict\(\)"):
        COPIES[how](protection)
