"""The derived rules of the other optimizers never fire on a state that the optimizer has made."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import optim

from sp4_lightning.derived import rounding
from tests.core.histories import histories
from tests.core.making import examples, parameters, protect, repaired

SHAPES = ((4, 5), (7,), ())
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])
WARMUPS = st.sampled_from([0, 30, 10**6])
DECAY = st.sampled_from([0.0, 0.1])
# SGD's parameters grow with the gradients: keep the products in range.
TAME = histories(kinds=("normal", "sparse", "constant", "burst then silence", "bursts", "sawtooth"))

SGD = st.fixed_dictionaries(
    {
        "lr": st.sampled_from([1e-4, 1e-2]),
        "momentum": st.sampled_from([0.0, 0.5, 0.9, 0.99]),
        "dampening": st.sampled_from([0.0, 0.1, 0.9]),
        "weight_decay": DECAY,
        "nesterov": st.booleans(),
        "maximize": st.booleans(),
    }
).map(lambda o: {**o, "dampening": 0.0} if o["nesterov"] and o["momentum"] else {**o, "nesterov": False})
RMSPROP = st.fixed_dictionaries(
    {
        "lr": st.sampled_from([1e-4, 1e-2]),
        "alpha": st.sampled_from([0.5, 0.9, 0.99]),
        "momentum": st.sampled_from([0.0, 0.5, 0.9]),
        "weight_decay": DECAY,
        "maximize": st.booleans(),
    }
)
ADAGRAD = st.fixed_dictionaries(
    {
        "lr": st.sampled_from([1e-4, 1e-2, 1.0]),
        "lr_decay": st.sampled_from([0.0, 0.1]),
        "initial_accumulator_value": st.sampled_from([0.0, 0.5]),
        "weight_decay": DECAY,
        "maximize": st.booleans(),
    }
)


def assert_never_fires(make, params, history, warmup, before_step=lambda base, step: None):
    set_gradients, steps = history
    wrapper = protect(make(params), warmup_steps=warmup)
    for step in range(steps):
        before_step(wrapper.base, step)
        set_gradients(params, step)
        wrapper.step()
        assert repaired(wrapper) == 0, f"step {step}: {wrapper.engine.state.repaired.tolist()}"


@given(TAME, SGD, DTYPES, WARMUPS)
def test_sgd(history, options, dtype, warmup):
    assert_never_fires(lambda p: optim.SGD(p, **options), parameters(*SHAPES, dtype=dtype), history, warmup)


@given(histories(), RMSPROP, DTYPES, WARMUPS)
def test_rmsprop(history, options, dtype, warmup):
    assert_never_fires(lambda p: optim.RMSprop(p, **options), parameters(*SHAPES, dtype=dtype), history, warmup)


@examples(8)
@given(histories(kinds=("normal", "bursts")), RMSPROP, WARMUPS)
def test_centered_rmsprop(history, options, warmup):
    # Under constant gradients torch itself takes the root of a rounding error below zero: not a history to ask for.
    options = {**options, "centered": True, "weight_decay": 0.0}
    assert_never_fires(lambda p: optim.RMSprop(p, **options), parameters(*SHAPES), history, warmup)


@given(histories(), ADAGRAD, DTYPES, WARMUPS)
def test_adagrad(history, options, dtype, warmup):
    assert_never_fires(lambda p: optim.Adagrad(p, **options), parameters(*SHAPES, dtype=dtype), history, warmup)


@pytest.mark.parametrize("cls", [optim.Adadelta, optim.Adafactor, optim.Adamax, optim.ASGD, optim.Rprop])
@examples(5)
@given(TAME, WARMUPS)
def test_optimizers_without_an_entry_have_no_exact_rule_to_fire(cls, history, warmup):
    assert_never_fires(lambda p: cls(p, lr=1e-3), parameters(*SHAPES), history, warmup)


@examples(10)
@given(TAME, st.lists(st.sampled_from([0.5, 0.85, 0.95]), min_size=2, max_size=4))
def test_momentum_that_changes_from_step_to_step(history, momenta):
    def cycle(base, step):
        base.param_groups[0]["momentum"] = momenta[step % len(momenta)]

    make = lambda p: optim.SGD(p, lr=1e-2, momentum=momenta[0])  # noqa: E731
    assert_never_fires(make, parameters(*SHAPES), history, 10**6, cycle)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("decay", [0.5, 0.9, 0.99, 0.998, 0.999, 0.9999])
def test_a_bound_decays_no_faster_than_what_is_stored(decay, dtype):
    # In bfloat16 a number times .999 is that number again: no bound may go on falling below it.
    stored = torch.linspace(1, 2, 257).to(dtype)
    start, (bound_decay, slack) = stored.double(), rounding(decay, dtype)
    for step in range(1, 3001):
        stored = stored * decay
        if step % 100 == 0:
            limit = start * bound_decay**step * (1 + slack) + torch.finfo(dtype).tiny
            assert (stored.double() <= limit).all()


def test_the_constant_gradient_that_attains_every_sgd_bound_is_allowed():
    params = parameters((5,))
    params[0].data.zero_()
    wrapper = protect(optim.SGD(params, lr=0.1, momentum=0.99))
    for _ in range(500):
        params[0].grad = torch.ones(5)
        wrapper.step()
    assert wrapper.state[params[0]]["momentum_buffer"].min() > 99
    assert repaired(wrapper) == 0
