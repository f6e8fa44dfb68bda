"""Whatever goes in, a bound is finite or +inf: never NaN, never negative; and the parameters stay finite."""

import math
import random
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import optim

from tests.core.making import QUICK, examples, parameters, protect

MAKERS = {
    "Adam": lambda p: optim.Adam(p, lr=1e-2),
    "Adam-l2": lambda p: optim.Adam(p, lr=1e-2, weight_decay=0.1),
    "Adam-rule-off": lambda p: optim.Adam(p, lr=0.0, betas=(0.9, 0.5)),
    "AdamW": lambda p: optim.AdamW(p, lr=1e-2, betas=(0.0, 0.999)),
    "NAdam": lambda p: optim.NAdam(p, lr=1e-2),
    "RAdam": lambda p: optim.RAdam(p, lr=1e-2),
    "SGD": lambda p: optim.SGD(p, lr=1e-2),
    "SGD-momentum": lambda p: optim.SGD(p, lr=1e-2, momentum=0.9, weight_decay=0.1),
    "RMSprop": lambda p: optim.RMSprop(p, lr=1e-2, momentum=0.9),
    "Adagrad": lambda p: optim.Adagrad(p, lr=1e-2),
    "Adamax": lambda p: optim.Adamax(p, lr=1e-2),
}
BEARABLE = [math.nan, math.inf, -math.inf, 0.0, 1e6]
"""Gradients after which an optimizer that takes the finite ones as they are still has finite parameters."""
POISON = [math.nan, math.inf, -math.inf, 0.0, -0.0, 3e38, -3e38, 1e-45, -1.0, 1e6]


def poison(params, state, rnd, gen, gradients):
    """Random gradients with random faults in everything an optimizer holds."""
    for param in params:
        scale = 10 ** rnd.uniform(-30, 10)
        param.grad = None if rnd.random() < 0.1 else torch.randn(param.shape, generator=gen) * scale
        moments = [t for t in state.get(param, {}).values() if torch.is_tensor(t) and t.shape == param.shape]
        for tensor in (param.grad, param, *moments):
            if tensor is not None and rnd.random() < 0.05:
                values = gradients if tensor is param.grad else POISON
                tensor.data.view(-1)[rnd.randrange(tensor.numel())] = rnd.choice(values)


def live(make, seed, steps=30, gradients=POISON, **options):
    rnd, gen = random.Random(seed), torch.Generator().manual_seed(seed)
    params = parameters((3, 2), (4,))
    wrapper = protect(make(params), learned=QUICK, **options)
    for _ in range(steps):
        poison(params, wrapper.base.state, rnd, gen, gradients)
        wrapper.step()
        yield wrapper, params


@pytest.mark.parametrize("mode", ["enforce", "observe"])
@pytest.mark.parametrize("name", MAKERS)
@examples(4)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0, 10**6]))
def test_bounds_are_numbers(name, mode, seed, warmup):
    for wrapper, _ in live(MAKERS[name], seed, mode=mode, warmup_steps=warmup):
        for values in (torch.as_tensor(wrapper.engine.state.bound), wrapper.engine.table.values):
            assert not values.isnan().any()
            assert (values >= 0).all()


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "Adamax"])
@examples(4)
@given(st.integers(0, 2**32 - 1))
def test_enforcing_keeps_parameters_finite(name, seed):
    # What strikes between two steps is mended by the next one before it computes anything from it.
    for wrapper, params in live(MAKERS[name], seed, gradients=BEARABLE, warmup_steps=0):
        assert all(param.isfinite().all() for param in params)
        for entry in wrapper.base.state.values():
            for key, value in entry.items():
                # torch itself overflows the square of a gradient of 1e20.
                assert not torch.is_tensor(value) or not value.isnan().any(), key


@pytest.mark.parametrize("name", ["Adam", "SGD-momentum"])
@examples(6)
@given(st.integers(0, 2**32 - 1))
def test_counters_only_grow_and_shares_stay_shares(name, seed):
    before = None
    for wrapper, _ in live(MAKERS[name], seed, warmup_steps=0):
        now = [getattr(wrapper.engine.state, key).copy() for key in ("clamped", "counted", "repaired")]
        assert all((a >= 0).all() for a in now)
        if before:
            assert all((b >= a).all() for a, b in zip(before, now, strict=True))
        assert (now[0] <= now[1]).all()
        before = now
    assert int(wrapper.engine.steps) + int(wrapper.engine.skipped) == 30


@pytest.mark.parametrize("mode", ["enforce", "observe"])
@pytest.mark.parametrize("key", ["exp_avg", "exp_avg_sq"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1e9])
def test_bounds_that_start_from_a_damaged_state_are_numbers(mode, key, value):
    params = parameters((3, 2))
    base = optim.Adam(params)
    for _ in range(3):
        params[0].grad = torch.ones(3, 2)
        base.step()
    base.state[params[0]][key].fill_(value)
    wrapper = protect(base, mode=mode)
    for _ in range(3):
        params[0].grad = torch.ones(3, 2)
        wrapper.step()
        bounds = torch.as_tensor(wrapper.engine.state.bound)
        assert not bounds.isnan().any()
        assert (bounds >= 0).all()


def test_the_whole_step_is_silent():
    # NumPy warns of inf * 0 where torch does not; a user should not see the insides of a skip.
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for make in MAKERS.values():
            for _ in live(make, seed=3, warmup_steps=0):
                pass
