"""What the README says the protection does not do."""

import pytest
from torch import optim

from tests.core.making import gradients, parameters, protect, repaired, train


@pytest.mark.parametrize("cls", [optim.Adam, optim.SGD])
def test_a_write_through_data_beyond_the_bound_is_a_fault_unless_reset_is_called_after_it(cls):
    for resets in (False, True):
        (param,) = parameters((4, 3))
        wrapper = protect(cls([param], lr=1e-3))
        train(wrapper, 10)
        param.data.fill_(1e4)
        if resets:
            wrapper.engine.reset()
        train(wrapper, 10, start=10)
        assert repaired(wrapper) == (0 if resets else 12)
        assert (param.abs().max() > 9e3) == resets


def test_adams_step_count_is_outside_the_protection():
    (param,) = parameters((4, 3))
    wrapper = protect(optim.Adam([param]))
    train(wrapper, 10)
    wrapper.state[param]["step"].fill_(1e6)
    train(wrapper, 1, start=10)
    assert wrapper.state[param]["step"] == 1e6 + 1
    assert repaired(wrapper) == 0


@pytest.mark.parametrize(("size", "overflows"), [(1e20, False), (1e22, True), (1e38, True)])
def test_a_gradient_whose_square_overflows_costs_the_pair(size, overflows):
    (param,) = parameters((3,))
    wrapper = protect(optim.Adam([param]))
    train(wrapper, 5)
    gradients([param], 5)
    param.grad[1] = size
    wrapper.step()
    state = wrapper.state[param]
    assert bool(state["exp_avg_sq"][1].isinf()) == overflows
    param.grad.zero_()
    wrapper.step()
    assert repaired(wrapper) == (2 if overflows else 0)
    assert (state["exp_avg_sq"][1] == 0) == (state["exp_avg"][1] == 0) == overflows
    assert state["exp_avg_sq"][[0, 2]].min() > 0
    assert param.isfinite().all()
