"""A step with a non-finite gradient is, to the bit, a step that was never taken."""

import copy
import math

import pytest
import torch
from torch import optim

from sp4_lightning.quantities import GRAD, PARAM
from tests.core.making import (
    FUSED,
    OPTIMIZERS,
    QUICK,
    SHAPES,
    bits,
    bound,
    bowl,
    gradients,
    learned_state,
    parameters,
    protect,
    same,
    snapshot,
    train,
)

EVERY_CLASS = {**OPTIMIZERS, **FUSED}
BAD = [math.nan, math.inf, -math.inf]


def step_badly(params, wrapper, value, closure=False, where=0):
    """One step with one bad element; with a closure the gradients come into being inside the step."""

    def evaluate():
        gradients(params, 999)
        params[where].grad.view(-1)[-1] = value
        return 0.0

    if closure:
        return wrapper.step(evaluate)
    evaluate()
    return wrapper.step()


@pytest.mark.parametrize("closure", [False, True], ids=["plain", "closure"])
@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("name", EVERY_CLASS)
def test_the_very_first_step_is_not_taken(name, value, closure):
    params = parameters(*SHAPES)
    wrapper = protect(EVERY_CLASS[name](params))
    before = snapshot(wrapper.base)
    step_badly(params, wrapper, value, closure)
    assert same(snapshot(wrapper.base), before)
    assert not torch.as_tensor(wrapper.engine.state.seen).any()
    assert bound(wrapper, GRAD).isinf().all()
    assert bound(wrapper, PARAM).isinf().all()
    assert (int(wrapper.engine.steps), int(wrapper.engine.skipped)) == (0, 1)


@pytest.mark.parametrize("closure", [False, True], ids=["plain", "closure"])
@pytest.mark.parametrize("name", EVERY_CLASS)
def test_a_run_with_bad_batches_is_the_run_without_them(name, closure):
    params, others = parameters(*SHAPES), parameters(*SHAPES)
    # Armed after 8 updates and in force after 10: some bad batches come before, some after.
    wrapper, without = (protect(EVERY_CLASS[name](p), learned=QUICK, warmup_steps=10) for p in (params, others))
    for start in range(0, 24, 6):
        train(wrapper, 6, start)
        train(without, 6, start)
        step_badly(params, wrapper, BAD[start % 3], closure, where=start // 6)
    assert same(snapshot(wrapper.base), snapshot(without.base))
    assert same(learned_state(wrapper), learned_state(without))
    assert wrapper.engine.observed.equal(without.engine.observed)
    assert (int(wrapper.engine.steps), int(wrapper.engine.skipped)) == (24, 4)


@pytest.mark.parametrize("name", ["Adam", "Adam-fused", "SGD"])
def test_the_gradients_of_a_skipped_step_are_as_they_were(name):
    params = parameters(*SHAPES)
    wrapper = protect(EVERY_CLASS[name](params), learned=QUICK, warmup_steps=0)
    train(wrapper, 20)
    gradients(params, 999, scale=1e9)  # far beyond the learned bound, but no update is to see them
    params[1].grad[2] = math.nan
    before = [(param.grad, bits(param.grad).clone()) for param in params]
    wrapper.step()
    for param, (grad, content) in zip(params, before, strict=True):
        assert param.grad is grad
        assert bits(grad).equal(content)


def test_one_bad_element_skips_all_groups_of_its_optimizer():
    params = parameters((3,), (3,))
    wrapper = protect(optim.Adam([{"params": params[:1], "name": "a"}, {"params": params[1:], "name": "b"}]))
    before = snapshot(wrapper.base)
    step_badly(params, wrapper, math.nan, where=1)
    assert same(snapshot(wrapper.base), before)


def test_a_bad_gradient_of_a_group_whose_grad_is_switched_off_does_not_skip():
    params = parameters((3,), (3,))
    base = optim.SGD([{"params": params[:1], "name": "a"}, {"params": params[1:], "name": "b"}], lr=0.1)
    wrapper = protect(base, disable={"b": ["grad"]})
    step_badly(params, wrapper, math.inf, where=1)
    assert int(wrapper.engine.steps) == 1
    step_badly(params, wrapper, math.inf, where=0)
    assert int(wrapper.engine.skipped) == 1


@pytest.mark.parametrize("value", BAD)
def test_the_streak_counts_skips_in_a_row(value):
    params = parameters((3,))
    wrapper = protect(optim.Adam(params))
    for expected in (1, 2, 3):
        step_badly(params, wrapper, value)
        assert int(wrapper.engine.streak) == expected
    train(wrapper, 1)
    assert int(wrapper.engine.streak) == 0
    step_badly(params, wrapper, value)
    assert (int(wrapper.engine.streak), int(wrapper.engine.skipped)) == (1, 4)


def test_a_step_that_an_exception_ends_leaves_no_stale_gradient_to_the_next():
    params = parameters((3,))
    wrapper = protect(optim.Adam(params))

    def interrupt(*_):
        raise KeyboardInterrupt

    handle = wrapper.base.register_step_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        step_badly(params, wrapper, math.nan)
    handle.remove()
    wrapper.zero_grad()
    gradients(params, 0)
    fresh = params[0].grad.clone()
    wrapper.step()
    assert params[0].grad.equal(fresh)
    assert int(wrapper.engine.steps) == 1


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
@pytest.mark.parametrize("bad", [1, 2, 3, 4, 6])
def test_lbfgs_is_not_moved_by_a_step_with_a_bad_evaluation(bad, line_search):
    params = [torch.nn.Parameter(torch.tensor([1.0, 2.0]))]
    wrapper = protect(optim.LBFGS(params, lr=0.5, max_iter=6, line_search_fn=line_search))
    before = copy.deepcopy(snapshot(wrapper.base))
    wrapper.step(bowl(params, wrapper, [], bad=bad))
    assert int(wrapper.engine.skipped) == 1
    assert same(snapshot(wrapper.base), before)
