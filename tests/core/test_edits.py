"""Parameters that somebody edits are taken as they are: torch's version counter tells an edit from a fault."""

import math

import pytest
import torch
from torch import nn, optim

from sp4_lightning import ParamGroup
from tests.core.making import gradients, parameters, protect, repaired, train


def in_place(param, value):
    with torch.no_grad():
        param.copy_(value)


EDITS = {
    "copy_": in_place,
    "mul_": lambda p, v: p.detach().mul_(0).add_(v),
    "init": lambda p, v: nn.init.constant_(p, v.flatten()[0].item()),
    "load_state_dict": lambda p, v: nn.ParameterList([p]).load_state_dict({"0": v}),
    "element": lambda p, v: p.detach().__setitem__((0, 0), v[0, 0]),
}


@pytest.fixture
def pair():
    params = parameters((5, 3), (4,))
    wrapper = protect(optim.Adam(params, lr=1e-3))
    train(wrapper, 10)
    return params, wrapper


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_kept_and_training_goes_on_from_it(pair, edit):
    params, wrapper = pair
    EDITS[edit](params[0], torch.full((5, 3), 1e4))
    edited = params[0].detach().clone()
    gradients(params, 10)
    wrapper.step()
    assert repaired(wrapper) == 0
    assert (params[0] - edited).abs().max() < 7.3e-3
    train(wrapper, 10, start=11)
    assert repaired(wrapper) == 0


def test_an_edit_of_one_tensor_does_not_hide_a_fault_in_another(pair):
    params, wrapper = pair
    in_place(params[0], torch.full((5, 3), 1e4))
    params[1].data[0] = 1e6
    gradients(params, 10)
    wrapper.step()
    assert wrapper.engine.state.repaired.tolist() == [0, 1]
    assert params[1].abs().max() < 10


def test_a_fault_after_the_step_that_saw_the_edit_is_mended(pair):
    params, wrapper = pair
    in_place(params[0], torch.full((5, 3), 1e4))
    train(wrapper, 1, start=10)
    params[0].data[0, 0] = 1e7
    train(wrapper, 1, start=11)
    assert repaired(wrapper) == 1
    assert params[0].abs().max() < 1.01e4


def test_a_non_finite_edit_is_mended_all_the_same(pair):
    params, wrapper = pair
    EDITS["element"](params[0], torch.full((5, 3), math.nan))
    train(wrapper, 1, start=10)
    assert repaired(wrapper) == 1
    assert params[0].isfinite().all()


def test_an_edit_before_a_skipped_step_is_kept(pair):
    params, wrapper = pair
    in_place(params[0], torch.full((5, 3), 1e4))
    gradients(params, 10)
    params[1].grad[0] = math.nan
    wrapper.step()
    assert int(wrapper.engine.skipped) == 1
    train(wrapper, 1, start=11)
    assert repaired(wrapper) == 0


def test_an_edit_of_a_tensor_without_a_gradient_is_kept(pair):
    params, wrapper = pair
    in_place(params[0], torch.full((5, 3), 1e4))
    gradients(params, 10)
    params[0].grad = None
    wrapper.step()
    train(wrapper, 1, start=11)
    assert repaired(wrapper) == 0


def test_a_reset_of_one_group_does_not_forget_an_edit_in_another():
    params = parameters((5, 3), (4,))
    groups = [ParamGroup.of("a", params[:1]), ParamGroup.of("b", params[1:])]
    wrapper = protect(optim.Adam(params, lr=1e-3), groups)
    train(wrapper, 10)
    in_place(params[0], torch.full((5, 3), 1e4))
    wrapper.engine.reset(["b"])
    train(wrapper, 1, start=10)
    assert repaired(wrapper) == 0


@pytest.mark.parametrize("registered", ["before", "after"])
def test_an_edit_in_a_step_hook_of_the_user_is_kept_whenever_the_hook_was_registered(registered):
    # As weight normalisation does; a hook from configure_optimizers is always there before the engine.
    params = parameters((5, 3))
    base = optim.Adam(params, lr=1e-3)
    if registered == "before":
        base.register_step_post_hook(lambda *_: params[0].detach().mul_(2))
    wrapper = protect(base)
    if registered == "after":
        base.register_step_post_hook(lambda *_: params[0].detach().mul_(2))
    train(wrapper, 8)
    assert repaired(wrapper) == 0
    assert params[0].abs().max() > 100


def test_an_edit_of_a_tensor_whose_weights_shrink_is_followed_down(pair):
    # A bound is of the last step, not of the largest weight there ever was.
    params, wrapper = pair
    in_place(params[0], torch.full((5, 3), 1e-3))
    train(wrapper, 1, start=10)
    params[0].data[0, 0] = 1.0
    train(wrapper, 1, start=11)
    assert repaired(wrapper) == 1
    assert params[0].abs().max() < 0.02
