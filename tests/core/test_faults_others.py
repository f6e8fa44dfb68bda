"""Faults in what SGD, RMSprop and Adagrad hold, mended by the derived rules."""

import math

import pytest
from torch import optim

from sp4_lightning.quantities import PARAM
from tests.core.making import bound, gradients, parameters, protect, repaired, train

LR = 1e-3
HIT = (1, 2)
# The largest step in learning rates. The gradients are standard normal: none of these few reaches 4.
OPTIMIZERS = {
    "SGD": (lambda p: optim.SGD(p, lr=LR), 4.0),
    "SGD-l2": (lambda p: optim.SGD(p, lr=LR, weight_decay=0.1), 5.0),
    "SGD-momentum": (lambda p: optim.SGD(p, lr=LR, momentum=0.9), 40.0),
    "SGD-nesterov": (lambda p: optim.SGD(p, lr=LR, momentum=0.9, nesterov=True), 40.0),
    "RMSprop": (lambda p: optim.RMSprop(p, lr=LR), 10.01),
    "RMSprop-momentum": (lambda p: optim.RMSprop(p, lr=LR, momentum=0.9), 100.1),
    "Adagrad": (lambda p: optim.Adagrad(p, lr=LR), 1.001),
}
IN_STATE = [
    ("SGD-momentum", "momentum_buffer"),
    ("SGD-nesterov", "momentum_buffer"),
    ("RMSprop", "square_avg"),
    ("RMSprop-momentum", "square_avg"),
    ("Adagrad", "sum"),
]


def trained(name, **settings):
    params = parameters((5, 4), (6,))
    wrapper = protect(OPTIMIZERS[name][0](params), **settings)
    train(wrapper, 30)
    return params, wrapper


def step_and_measure(params, wrapper):
    start = []
    wrapper.base.register_step_pre_hook(lambda *_: start.append([p.detach().clone() for p in params]))
    gradients(params, 500)
    wrapper.step()
    return max((p - before).abs().max().item() for p, before in zip(params, start[-1], strict=True))


@pytest.mark.parametrize("value", [1e6, -1e6, math.nan, math.inf])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_faulty_parameter_is_mended(name, value):
    params, wrapper = trained(name)
    allowed = bound(wrapper, PARAM)[0].item()
    params[0].data[HIT] = value
    moved = step_and_measure(params, wrapper)
    assert repaired(wrapper) == 1
    assert params[0].isfinite().all()
    assert moved <= OPTIMIZERS[name][1] * LR
    assert params[0].abs().max() <= allowed + OPTIMIZERS[name][1] * LR


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_parameters_bound_is_close_above_the_largest_parameter(name):
    params, wrapper = trained(name)
    for param, limit in zip(params, bound(wrapper, PARAM).tolist(), strict=True):
        largest = param.detach().abs().max().item()
        assert largest * 0.999 <= limit <= largest + 2 * OPTIMIZERS[name][1] * LR


@pytest.mark.parametrize("value", [1e8, math.nan, math.inf])
@pytest.mark.parametrize(("name", "key"), IN_STATE)
def test_faulty_state_is_mended(name, key, value):
    params, wrapper = trained(name)
    wrapper.state[params[0]][key].data[HIT] = value
    moved = step_and_measure(params, wrapper)
    assert repaired(wrapper) > 0
    assert wrapper.state[params[0]][key].abs().max() < 1e5
    assert wrapper.state[params[0]][key].isfinite().all()
    assert moved <= OPTIMIZERS[name][1] * LR


@pytest.mark.parametrize(("name", "key"), [pair for pair in IN_STATE if pair[1] != "momentum_buffer"])
def test_a_negative_second_moment_is_mended(name, key):
    params, wrapper = trained(name)
    wrapper.state[params[0]][key].data[HIT] *= -1
    moved = step_and_measure(params, wrapper)
    assert repaired(wrapper) > 0
    assert (wrapper.state[params[0]][key] >= 0).all()
    assert moved <= OPTIMIZERS[name][1] * LR


@pytest.mark.parametrize("make", [optim.Adamax, optim.Adadelta, lambda p: optim.RMSprop(p, centered=True)])
def test_where_no_step_bound_is_known_large_parameters_are_left_alone_and_dead_ones_mended(make):
    params = parameters((5, 4))
    wrapper = protect(make(params))
    train(wrapper, 10)
    params[0].data[0, 0], params[0].data[HIT] = 1e6, math.nan
    train(wrapper, 1, start=10)
    assert repaired(wrapper) == 1
    assert params[0].isfinite().all()
    assert params[0][0, 0] > 9e5
