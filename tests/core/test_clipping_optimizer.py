"""ClippingOptimizer is an Optimizer in every respect."""

import copy
import math
import warnings

import pytest
import torch
from torch import nn, optim

from sp4_lightning import ClippingOptimizer, ConfigurationError, ParamGroup, Settings, SkipStreakError
from tests.core.making import gradients, parameters, protect, same, train


@pytest.fixture
def params():
    return parameters((4, 3), (5,))


def test_it_is_an_optimizer(params):
    assert isinstance(ClippingOptimizer(optim.Adam(params)), optim.Optimizer)


def test_groups_state_and_defaults_are_the_bases_own(params):
    wrapper = protect(optim.Adam(params))
    assert wrapper.param_groups is wrapper.base.param_groups
    assert wrapper.state is wrapper.base.state
    assert wrapper.defaults is wrapper.base.defaults


def test_they_can_be_set(params):
    wrapper = protect(optim.Adam(params))
    groups, state, defaults = list(wrapper.param_groups), dict(wrapper.state), dict(wrapper.defaults)
    wrapper.param_groups, wrapper.state, wrapper.defaults = groups, state, defaults
    assert wrapper.base.param_groups is groups
    assert wrapper.base.state is state
    assert wrapper.base.defaults is defaults


def test_zero_grad_is_the_bases(params):
    wrapper = protect(optim.Adam(params))
    gradients(params, 0)
    grads = [p.grad for p in params]
    wrapper.zero_grad(set_to_none=False)
    assert all(p.grad is g and not g.any() for p, g in zip(params, grads, strict=True))
    wrapper.zero_grad()
    assert all(p.grad is None for p in params)


def test_step_returns_what_the_closure_returns(params):
    wrapper = protect(optim.Adam(params))
    gradients(params, 0)
    assert wrapper.step() is None
    assert wrapper.step(lambda: 7.5) == 7.5


def test_the_closure_runs_with_gradients_enabled(params):
    wrapper = protect(optim.Adam(params))

    def closure():
        wrapper.zero_grad()
        loss = params[0].square().sum() + params[1].sum()
        loss.backward()
        return loss

    with torch.no_grad():
        assert wrapper.step(closure=closure).item() > 0
    assert params[0].grad is not None


@pytest.mark.parametrize("kind", ["step_pre", "step_post"])
def test_step_hooks_on_the_wrapper_run_once_with_the_wrapper(params, kind):
    wrapper, seen = protect(optim.Adam(params)), []
    handle = getattr(wrapper, f"register_{kind}_hook")(lambda optimizer, args, kwargs: seen.append(optimizer))
    train(wrapper, 2)
    handle.remove()
    train(wrapper, 1)
    assert len(seen) == 2
    assert seen[0] is wrapper


def test_state_dict_hooks_on_the_wrapper_run(params):
    wrapper, seen = protect(optim.Adam(params)), []
    wrapper.register_state_dict_pre_hook(lambda o: seen.append("save pre"))
    wrapper.register_state_dict_post_hook(lambda o, saved: {**saved, "mine": 1})
    wrapper.register_load_state_dict_pre_hook(lambda o, saved: seen.append(saved["mine"]))
    wrapper.register_load_state_dict_post_hook(lambda o: seen.append("load post"))
    wrapper.load_state_dict(wrapper.state_dict())
    assert seen == ["save pre", 1, "load post"]


def test_adding_a_param_group_is_refused_and_says_the_way(params):
    wrapper = protect(optim.Adam(params))
    with pytest.raises(ConfigurationError, match=r"groups are fixed\. Add the param group to its base first and wrap"):
        wrapper.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    assert len(wrapper.param_groups) == 1


def test_a_param_group_added_to_the_base_is_noticed_at_the_next_step(params):
    wrapper = protect(optim.Adam(params))
    wrapper.base.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    gradients(params, 0)
    with pytest.raises(ConfigurationError, match=r"Adam has been given other parameters.*Attach a new one"):
        wrapper.step()


def test_a_parameter_that_is_exchanged_is_noticed_at_the_next_step(params):
    wrapper = protect(optim.Adam(params))
    wrapper.param_groups[0]["params"][0] = nn.Parameter(torch.ones(4, 3))
    gradients(params, 0)
    with pytest.raises(ConfigurationError, match=r"Adam has been given other parameters.*Attach a new one"):
        wrapper.step()


def test_wrapping_twice_is_refused(params):
    wrapper = protect(optim.Adam(params))
    with pytest.raises(ConfigurationError, match="is a ClippingOptimizer already; wrap its base, or use it as it is"):
        ClippingOptimizer(wrapper)
    assert len(wrapper.base._optimizer_step_pre_hooks) == 1


def test_wrapping_one_base_in_two_is_refused(params):
    # Two engines would clamp, count and learn in one step.
    base = optim.Adam(params)
    first = ClippingOptimizer(base)
    with pytest.raises(ConfigurationError, match="already"):
        ClippingOptimizer(base)
    assert len(base._optimizer_step_pre_hooks) == 1
    train(first, 1)
    assert int(first.engine.steps) == 1


def test_its_repr_shows_the_base(params):
    base = optim.Adam(params, lr=0.125)
    text = repr(ClippingOptimizer(base))
    assert text == f"ClippingOptimizer({base!r})"
    assert "lr: 0.125" in text


@pytest.mark.parametrize(
    "make_groups",
    [
        lambda p: [ParamGroup.of("a", p), ParamGroup.of("b", p[1:])],
        lambda p: [ParamGroup.of("a", p[:1]), ParamGroup.of("a", p[1:])],
    ],
    ids=["a parameter in two groups", "two groups of one name"],
)
def test_ambiguous_groups_are_refused(params, make_groups):
    base = optim.Adam(params)
    with pytest.raises(ConfigurationError, match="'a'"):
        ClippingOptimizer(base, make_groups(params))
    assert not base._optimizer_step_pre_hooks


def test_unknown_groups_in_off_are_refused_before_anything_is_attached(params):
    base = optim.Adam([{"params": params, "name": "body"}])
    with pytest.raises(ConfigurationError, match=r"disable names the group 'bodi'.*Did you mean 'body'\?"):
        ClippingOptimizer(base, settings=Settings(disable={"bodi": ["grad"]}))
    assert not base._optimizer_step_pre_hooks
    assert not base._optimizer_step_post_hooks
    assert not base._optimizer_load_state_dict_post_hooks


def test_names_come_from_the_module():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    wrapper = ClippingOptimizer(optim.Adam(net.parameters()), module=net)
    assert wrapper.engine.held.names == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_a_step_under_inference_settings_leaves_no_graph(params):
    wrapper = protect(optim.Adam(params), warmup_steps=0)
    train(wrapper, 70)
    gradients(params, 70, scale=1e6)
    wrapper.step()
    assert all(p.is_leaf and p.requires_grad and not p.grad.requires_grad for p in params)


def test_a_backward_through_weights_that_a_step_has_changed_is_still_an_error(params):
    weight = params[0]
    wrapper = protect(optim.Adam(params))
    loss = (weight * weight).sum()
    train(wrapper, 1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_streaks_of_skips_warn_once_and_raise_if_asked(params):
    wrapper = protect(optim.Adam(params), max_skip_streak=3, raise_after_skips=5)

    def bad():
        gradients(params, 0)
        params[0].grad[0, 0] = math.nan
        wrapper.step()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bad()
        bad()
    with pytest.warns(UserWarning, match="Adam has skipped 3 updates in a row: its gradients are not finite"):
        bad()
    bad()
    with pytest.raises(SkipStreakError, match=r"Adam has skipped 5 updates in a row.*raise_after_skips \(now 5\)"):
        bad()
    before = [p.detach().clone() for p in params]
    train(wrapper, 1)
    assert int(wrapper.engine.streak) == 0
    assert not same([p.detach() for p in params], before)


def test_parameters_that_explicit_groups_leave_out_are_named(params):
    with pytest.warns(UserWarning, match="in no group") as caught:
        ClippingOptimizer(optim.Adam(params), [ParamGroup.of("a", params[:1])])
    assert [str(warning.message) for warning in caught] == [
        "1 trainable parameters of Adam are in no group and not protected: Adam[1]. Add them to a group, or set "
        "requires_grad=False."
    ]
    assert caught[0].filename == __file__


def test_their_names_come_from_the_module_where_there_is_one():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    net[1].bias.requires_grad_(False)
    with pytest.warns(UserWarning, match=r"2 trainable parameters.*not protected: 0\.bias, 1\.weight\."):
        ClippingOptimizer(optim.SGD(net.parameters(), 0.1), [ParamGroup.of("a", [net[0].weight])], module=net)


@pytest.mark.parametrize("explicit", [False, True])
def test_where_all_are_covered_nothing_is_said_also_when_it_is_copied(params, explicit):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrapper = ClippingOptimizer(optim.Adam(params), [ParamGroup.of("a", params)] if explicit else None)
        copy.deepcopy(wrapper)
