"""Stopped at any step and resumed from a file, every later bound and parameter is the same to the bit."""

import io
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn, optim

from sp4_lightning import Protection, Settings
from tests.core.making import (
    OPTIMIZERS,
    QUICK,
    examples,
    gradients,
    learned_state,
    parameters,
    protect,
    same,
    snapshot,
    train,
)

SHAPES = ((4, 3), (5,), ())


def through_a_file(saved):
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def eventful(wrapper, start, stop):
    """Steps with a skip, a spike, missing gradients, a fault, and hyperparameters that move."""
    params = [param for group in wrapper.param_groups for param in group["params"]]
    for step in range(start, stop):
        gradients(params, step)
        if step % 11 == 5:
            params[0].grad[0, 0] = math.nan
        if step % 7 == 3:
            params[1].grad[0] = 1e5
        if step % 5 == 2:
            params[2].grad = None
        if step % 13 == 6:
            params[0].data[1, 1] = 1e6
        for group in wrapper.param_groups:
            group["lr"] = 1e-3 * (1 + step % 3)
            if "betas" in group:
                group["betas"] = ([0.9, 0.8][step % 2], group["betas"][1])
        wrapper.step()
        yield same_view(wrapper)


def same_view(wrapper):
    wrapper.engine.publish()  # between two observations the published table lags behind the bounds
    params = [p.detach().clone() for group in wrapper.param_groups for p in group["params"]]
    counters = {key: getattr(wrapper.engine.state, key).tolist() for key in ("clamped", "counted", "repaired")}
    engine = wrapper.engine
    return params, learned_state(wrapper), counters, int(engine.switch.phase), engine.table.values.clone()


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("name", ["Adam", "AdamW", "NAdam", "SGD-momentum", "RMSprop", "Adagrad", "Adamax"])
@examples(3)
@given(st.integers(0, 45))
def test_a_wrapper_resumes_to_the_bit(name, every, stop):
    options = {"learned": QUICK, "warmup_steps": 20, "update_every": every}
    params = parameters(*SHAPES)
    original = protect(OPTIMIZERS[name](params), **options)
    list(eventful(original, 0, stop))
    saved = through_a_file({"optimizer": original.state_dict(), "params": [p.detach() for p in params]})

    fresh_params = parameters(*SHAPES, seed=1)
    resumed = protect(OPTIMIZERS[name](fresh_params), **options)
    for param, value in zip(fresh_params, saved["params"], strict=True):
        param.data.copy_(value)
    resumed.load_state_dict(saved["optimizer"])
    assert same(same_view(resumed), same_view(original))
    for a, b in zip(eventful(original, stop, stop + 25), eventful(resumed, stop, stop + 25), strict=True):
        assert same(a, b)
    assert same(snapshot(original), snapshot(resumed))
    assert same(original.state_dict(), resumed.state_dict())


def network(seed):
    torch.manual_seed(seed)
    net = nn.ModuleDict({"body": nn.Linear(4, 3), "head": nn.Linear(3, 2)})
    body, head = (net[key].parameters() for key in net)
    optimizers = [optim.AdamW(body, lr=1e-2), optim.SGD(head, lr=0.1, momentum=0.9)]
    settings = Settings(learned=QUICK, warmup_steps=15, update_every=1)
    return net, optimizers, Protection(optimizers, net, settings=settings)


def run(net, optimizers, protection, start, stop):
    for step in range(start, stop):
        gradients(list(net.parameters()), step, scale=1e4 if step % 9 == 0 else 1.0)
        for i, optimizer in enumerate(optimizers):
            if step >= 5 * i:  # the head starts later
                optimizer.step()
        protection.advance()


@pytest.mark.parametrize("stop", [0, 1, 9, 15, 21, 40])
def test_a_protection_resumes_to_the_bit(stop):
    net, optimizers, protection = network(0)
    run(net, optimizers, protection, 0, stop)
    saved = through_a_file(
        {"sp4": protection.state_dict(), "net": net.state_dict(), "opts": [o.state_dict() for o in optimizers]}
    )
    other, others, resumed = network(1)
    other.load_state_dict(saved["net"])
    for optimizer, state in zip(others, saved["opts"], strict=True):
        optimizer.load_state_dict(state)
    resumed.load_state_dict(saved["sp4"])
    for step in range(stop, stop + 30):
        run(net, optimizers, protection, step, step + 1)
        run(other, others, resumed, step, step + 1)
        assert same(net.state_dict(), other.state_dict())
        assert same(protection.state_dict(), resumed.state_dict())
        assert protection.table.values.equal(resumed.table.values)
    assert int(resumed.switch.phase) == 2


def test_state_saved_right_after_a_reset_starts_the_moments_bounds_as_the_original_does():
    wrappers = [protect(optim.Adam(parameters((4, 3)))) for _ in range(2)]
    train(wrappers[0], 10)
    wrappers[0].engine.reset()
    wrappers[1].load_state_dict(through_a_file(wrappers[0].state_dict()))
    wrappers[1].param_groups[0]["params"][0].data.copy_(wrappers[0].param_groups[0]["params"][0].detach())
    for wrapper in wrappers:
        train(wrapper, 3, start=10)
    assert same(learned_state(wrappers[0]), learned_state(wrappers[1]))
    assert learned_state(wrappers[1])["bound"][2:].isfinite().all()


def test_state_saved_right_after_loading_a_plain_one_too():
    plain = optim.Adam(parameters((4, 3)))
    for step in range(10):
        gradients(plain.param_groups[0]["params"], step)
        plain.step()
    wrapper, resumed = (protect(optim.Adam(parameters((4, 3)))) for _ in range(2))
    train(wrapper, 3)
    wrapper.load_state_dict(plain.state_dict())
    resumed.load_state_dict(through_a_file(wrapper.state_dict()))
    train(resumed, 1, start=10)
    assert learned_state(resumed)["bound"][2:].isfinite().all()


def test_going_back_to_a_checkpoint_from_before_the_flip_goes_back_before_the_flip():
    wrapper = protect(optim.Adam(parameters((4, 3))), warmup_steps=10)
    train(wrapper, 5)
    early = through_a_file(wrapper.state_dict())
    train(wrapper, 20, start=5)
    assert int(wrapper.engine.switch.phase) == 2
    wrapper.load_state_dict(early)
    assert int(wrapper.engine.switch.phase) == 1


@pytest.mark.parametrize(("before", "after", "phase"), [("observe", "enforce", 1), ("enforce", "observe", 0)])
def test_the_mode_is_the_new_runs_and_the_bounds_are_the_old_ones(before, after, phase):
    old = protect(optim.Adam(parameters((4, 3))), mode=before, warmup_steps=10)
    train(old, 80)
    new = protect(optim.Adam(parameters((4, 3))), mode=after, warmup_steps=10)
    new.load_state_dict(through_a_file(old.state_dict()))
    assert int(new.engine.switch.phase) == phase
    assert same(learned_state(new), learned_state(old))
