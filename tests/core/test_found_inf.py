"""The skip of the fused optimizers, through ``found_inf``: what CUDA runs, forced here on a CPU."""

import math

import pytest
import torch

from sp4_lightning.skip import FoundInf
from tests.core.making import FUSED, QUICK, SHAPES, gradients, learned_state, parameters, protect, same, snapshot, train


def fused(name, **settings):
    params = parameters(*SHAPES)
    wrapper = protect(FUSED[name](params), **settings)
    wrapper.engine._skipper = FoundInf()
    return params, wrapper


def bad_step(params, wrapper, value=math.nan):
    gradients(params, 999)
    params[1].grad[3] = value
    wrapper.step()


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", FUSED)
def test_a_run_with_bad_batches_is_the_run_without_them(name, value):
    quick = {"learned": QUICK, "warmup_steps": 10}
    (params, wrapper), (_, without) = fused(name, **quick), fused(name, **quick)
    for start, steps in ((0, 2), (2, 20), (22, 4)):
        bad_step(params, wrapper, value)
        train(wrapper, steps, start)
        train(without, steps, start)
    assert same(snapshot(wrapper.base), snapshot(without.base))
    assert same(learned_state(wrapper), learned_state(without))
    assert (int(wrapper.engine.steps), int(wrapper.engine.skipped)) == (26, 3)


@pytest.mark.parametrize("name", FUSED)
def test_hiding_gradients_and_found_inf_skip_alike(name):
    (params, wrapper), (hidden_params, hidden) = fused(name), fused(name)
    hidden.engine._skipper = protect(FUSED[name](parameters(*SHAPES))).engine._skipper
    for some, each in ((params, wrapper), (hidden_params, hidden)):
        train(each, 5)
        bad_step(some, each)
        train(each, 5, start=5)
    assert same(snapshot(wrapper.base), snapshot(hidden.base))


@pytest.mark.parametrize("name", FUSED)
def test_no_flag_is_left_on_the_optimizer(name):
    params, wrapper = fused(name)
    for step in range(3):
        gradients(params, step)
        wrapper.step()
        assert not hasattr(wrapper.base, "found_inf")
    bad_step(params, wrapper)
    assert not hasattr(wrapper.base, "found_inf")


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("name", FUSED)
def test_a_scalers_flag_is_kept_and_obeyed(name, bad):
    params, wrapper = fused(name)
    train(wrapper, 3)
    for flag in (0.0, 1.0):
        wrapper.base.found_inf = scalers = torch.tensor(flag)
        before, learned = snapshot(wrapper.base), learned_state(wrapper)
        if bad:
            bad_step(params, wrapper)
        else:
            train(wrapper, 1, start=50)
        assert wrapper.base.found_inf is scalers
        assert scalers.item() == flag
        assert same(snapshot(wrapper.base), before) == bool(bad or flag)
        assert same(learned_state(wrapper), learned) == bool(bad or flag)
        del wrapper.base.found_inf


def test_a_veto_is_not_counted_as_a_skip_of_ours():
    _, wrapper = fused("Adam-fused")
    wrapper.base.found_inf = torch.ones(())
    train(wrapper, 2)
    assert (int(wrapper.engine.steps), int(wrapper.engine.skipped), wrapper.engine.observed.tolist()) == (0, 0, [0])


def test_an_exception_inside_the_step_leaves_no_flag_to_the_next():
    params, wrapper = fused("Adam-fused")

    def interrupt(*_):
        raise KeyboardInterrupt

    handle = wrapper.base.register_step_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        bad_step(params, wrapper)
    handle.remove()
    train(wrapper, 1)
    assert int(wrapper.engine.steps) == 1
    assert not hasattr(wrapper.base, "found_inf")


@pytest.mark.parametrize(("stale", "new"), [(None, 0.0), (None, 1.0), (1.0, 0.0), (0.0, 1.0), (1.0, None)])
def test_after_such_an_exception_a_scalers_newer_flag_is_the_one_that_counts(stale, new):
    # GradScaler.step() puts its flag on before the step and, when the step raises, leaves it there.
    params, wrapper = fused("Adam-fused")
    train(wrapper, 2)

    def interrupt(*_):
        raise KeyboardInterrupt

    handle = wrapper.base.register_step_pre_hook(interrupt)
    if stale is not None:
        wrapper.base.found_inf = torch.tensor(stale)
    with pytest.raises(KeyboardInterrupt):
        bad_step(params, wrapper)
    handle.remove()
    if new is not None:
        wrapper.base.found_inf = torch.tensor(new)
    elif hasattr(wrapper.base, "found_inf"):
        del wrapper.base.found_inf
    before = snapshot(wrapper.base)
    train(wrapper, 1, start=2)
    assert same(snapshot(wrapper.base), before) == bool(new)
    assert int(wrapper.engine.steps) == (2 if new else 3)
    assert getattr(wrapper.base, "found_inf", None) == new


def test_observing_never_sets_the_flag():
    params, wrapper = fused("Adam-fused", mode="observe")
    bad_step(params, wrapper)
    assert params[0].isfinite().all()  # the bad element is in another tensor
    assert params[1].isnan().any()
