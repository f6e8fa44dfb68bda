"""A step that an exception ends leaves nothing to the next one: no gradient, no parameter, no flag, no bound."""

import copy
import math

import pytest
import torch
from torch import optim

from sp4_lightning import Attachment, UnsupportedError
from sp4_lightning.quantities import EXP_AVG
from sp4_lightning.skip import FoundInf
from tests.core.making import (
    FUSED,
    OPTIMIZERS,
    QUICK,
    StopError,
    bound,
    bowl,
    gradients,
    parameters,
    protect,
    repaired,
    same,
    snapshot,
    train,
)

SHAPES = ((4, 3), (5,))
CLASSES = {name: OPTIMIZERS[name] for name in ("Adam", "AdamW", "SGD-momentum")} | {
    name: FUSED[name] for name in ("Adam-fused", "SGD-fused")
}


def interrupt(*_):
    raise StopError


def until_removed(handle, step):
    try:
        step()
    finally:
        handle.remove()


def in_another_pre_hook(wrapper, step):
    """After the engine's own hook, before the update."""
    until_removed(wrapper.base.register_step_pre_hook(interrupt), step)


def in_a_post_hook(wrapper, step):
    until_removed(wrapper.base.register_step_post_hook(interrupt), step)


def in_the_update(wrapper, step):
    """The optimizer itself fails, with a TypeError or AttributeError, over the last tensor's state."""
    entry = wrapper.state[wrapper.param_groups[0]["params"][-1]]
    kept = dict(entry)

    def damage(*_):
        entry.update({key: "damaged" for key, value in kept.items() if value.dim()})

    handle = wrapper.base.register_step_pre_hook(damage)
    try:
        step()
    finally:
        handle.remove()
        entry.update(kept)


PLACES = [in_another_pre_hook, in_a_post_hook, in_the_update]


def step_badly(params, wrapper, step, value=math.nan):
    gradients(params, step)
    params[0].grad.view(-1)[0] = value
    wrapper.step()


def pair(name, found_inf=False):
    """A wrapper that trains, and one to compare it with."""
    made = []
    for _ in range(2):
        params = parameters(*SHAPES)
        wrapper = protect(CLASSES[name](params), learned=QUICK, warmup_steps=10)
        if found_inf:
            wrapper.engine._skipper = FoundInf()
        train(wrapper, 15)
        made.append((params, wrapper))
    return made


# Only fused optimizers obey found_inf.
@pytest.mark.parametrize(
    ("name", "found_inf"), [(name, flag) for name in CLASSES for flag in {False, name.endswith("fused")}]
)
@pytest.mark.parametrize("place", PLACES)
def test_a_bad_step_that_is_interrupted_is_forgotten(name, place, found_inf):
    (params, wrapper), (others, without) = pair(name, found_inf)
    try:
        place(wrapper, lambda: step_badly(params, wrapper, 50))
        assert place is in_the_update  # with its gradients hidden it has nothing to fail over
    except (StopError, TypeError, AttributeError):
        pass
    # Not all tensors get a gradient this time, as with a head that is not trained on every batch.
    for some, each in ((params, wrapper), (others, without)):
        each.zero_grad()
        some[1].grad = torch.ones(5)
        each.step()
        assert some[0].grad is None
    assert same(snapshot(wrapper.base), snapshot(without.base))
    assert not hasattr(wrapper.base, "found_inf")
    for each in (wrapper, without):
        train(each, 10, start=60)
    assert same(snapshot(wrapper.base), snapshot(without.base))
    assert repaired(wrapper) == 0


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", CLASSES)
def test_a_good_step_that_is_interrupted_leaves_no_bound_behind_the_moments(name, place):
    (params, wrapper), _ = pair(name)
    gradients(params, 50, scale=12.0)  # within the learned bound, and far more than the moments' recursions knew
    with pytest.raises((StopError, TypeError, AttributeError)):
        place(wrapper, wrapper.step)
    train(wrapper, 10, start=60)
    assert repaired(wrapper) == 0
    assert torch.as_tensor(wrapper.engine.state.bound)[0].isfinite().all()


@pytest.mark.parametrize("name", CLASSES)
def test_an_exception_in_the_closure_is_as_if_the_step_had_not_been_called(name):
    (_, wrapper), (_, without) = pair(name)
    with pytest.raises(StopError):
        wrapper.step(interrupt)
    for each in (wrapper, without):
        train(each, 10, start=60)
    assert same(snapshot(wrapper.base), snapshot(without.base))
    assert same(wrapper.state_dict(), without.state_dict())


@pytest.mark.parametrize("name", CLASSES)
def test_a_step_whose_closure_is_not_called_learns_nothing_of_an_interrupted_one(name):
    (params, wrapper), _ = pair(name)
    gradients(params, 50, scale=12.0)
    with pytest.raises(StopError):
        in_another_pre_hook(wrapper, wrapper.step)
    seen, steps = wrapper.engine.state.seen.tolist(), int(wrapper.engine.steps)
    wrapper.engine.start()
    wrapper.engine.after()
    assert (wrapper.engine.state.seen.tolist(), int(wrapper.engine.steps)) == (seen, steps)


@pytest.mark.parametrize("found_inf", [False, True])
def test_detaching_after_an_exception_leaves_the_optimizer_as_it_was_found(found_inf):
    params = parameters(*SHAPES)
    wrapper = protect(FUSED["Adam-fused"](params))
    train(wrapper, 3)
    if found_inf:
        wrapper.engine._skipper = FoundInf()
    with pytest.raises(StopError):
        in_another_pre_hook(wrapper, lambda: step_badly(params, wrapper, 50))
    wrapper._attachment.detach()
    assert not hasattr(wrapper.base, "found_inf")
    before = snapshot(wrapper.base)
    gradients(params, 60)
    wrapper.base.step()
    assert not same(snapshot(wrapper.base), before)
    Attachment(wrapper.engine)
    train(wrapper, 3, start=61)
    assert repaired(wrapper) == 0


def scaled_step(scaler, wrapper, params, step, bad=False, unscale=False, scale_by=None):
    wrapper.zero_grad()
    weights = [torch.randn(p.shape, generator=torch.Generator().manual_seed(step)) for p in params]
    loss = sum((w * p).sum() for w, p in zip(weights, params, strict=True))
    (scaler.scale(loss) if scale_by is None else loss * scale_by).backward()
    if bad:
        params[0].grad[0, 0] = math.nan
    if unscale:
        scaler.unscale_(wrapper)
    scaler.step(wrapper)
    scaler.update()


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("found_inf", [False, True])
@pytest.mark.parametrize("bad", [False, True])
def test_under_a_grad_scaler_the_next_steps_are_those_of_a_run_without_the_interrupted_one(bad, found_inf, unscale):
    (params, wrapper), (others, without) = pair("Adam-fused", found_inf)
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**10) for _ in range(2)]
    for step in range(60, 64):
        scaled_step(scalers[0], wrapper, params, step)
        scaled_step(scalers[1], without, others, step)
    with pytest.raises(StopError):
        in_another_pre_hook(wrapper, lambda: scaled_step(scalers[0], wrapper, params, 64, bad))
    scalers[0] = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    scalers[1] = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(65, 70):
        scaled_step(scalers[0], wrapper, params, step, unscale=unscale)
        scaled_step(scalers[1], without, others, step, unscale=unscale)
    assert same(snapshot(wrapper.base), snapshot(without.base))
    assert not hasattr(wrapper.base, "found_inf")
    assert not hasattr(wrapper.base, "grad_scale")


@pytest.mark.parametrize("found_inf", [False, True])
def test_a_scale_that_an_interrupted_step_has_left_divides_no_gradient_of_a_run_that_goes_on_without_a_scaler(
    found_inf,
):
    (params, wrapper), (_, without) = pair("Adam-fused", found_inf)
    with pytest.raises(StopError):
        in_another_pre_hook(
            wrapper, lambda: scaled_step(torch.amp.GradScaler("cpu", init_scale=2.0**10), wrapper, params, 64)
        )
    for each in (wrapper, without):
        train(each, 3, start=70)
    assert same(snapshot(wrapper.base), snapshot(without.base))


def search(line_search, lr=0.5):
    params = [torch.nn.Parameter(torch.tensor([1.0, 2.0]))]
    return params, protect(optim.LBFGS(params, lr=lr, max_iter=6, line_search_fn=line_search))


# Without a line search a bad evaluation is the last, so that a later one cannot fail.
@pytest.mark.parametrize(
    ("line_search", "place"), [(None, "hook"), ("strong_wolfe", "hook"), ("strong_wolfe", "closure")]
)
@pytest.mark.parametrize("bad", [2, 3, 4])
def test_a_search_that_is_interrupted_does_not_bring_old_parameters_back(bad, line_search, place):
    params, wrapper = search(line_search, lr=50.0)
    evaluations = []
    if place == "hook":
        handle = wrapper.base.register_step_post_hook(interrupt)
        wrapper.base._optimizer_step_post_hooks.move_to_end(handle.id, last=False)  # ahead of the engine's
    with pytest.raises(StopError):
        wrapper.step(bowl(params, wrapper, evaluations, bad, fails=bad + 1 if place == "closure" else None))
    if place == "hook":
        handle.remove()
    with torch.no_grad():
        params[0].copy_(torch.tensor([2.0, 4.0]))  # a checkpoint is loaded
    wrapper.state.clear()
    other_params, other = search(line_search, lr=50.0)
    other_params[0].data.copy_(torch.tensor([2.0, 4.0]))
    wrapper.step(bowl(params, wrapper, []))
    other.step(bowl(other_params, other, []))
    assert params[0].equal(other_params[0])


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
@pytest.mark.parametrize("lr", [0.5, 8.0, 50.0])
@pytest.mark.parametrize("bad", range(1, 8))
def test_a_search_with_a_bad_evaluation_is_a_skip_also_if_it_goes_on_to_good_ones(bad, lr, line_search):
    params, wrapper = search(line_search, lr)
    before, evaluations = copy.deepcopy(snapshot(wrapper.base)), []
    wrapper.step(bowl(params, wrapper, evaluations, bad))
    if len(evaluations) < bad:
        pytest.skip("the search was over before")
    assert same(snapshot(wrapper.base), before)
    assert (int(wrapper.engine.steps), int(wrapper.engine.skipped)) == (0, 1)
    assert wrapper.engine.state.seen.tolist() == [0]


@pytest.mark.parametrize("name", CLASSES)
def test_a_first_step_that_is_refused_does_not_keep_the_moments_from_being_bounded(name):
    params = parameters(*SHAPES)
    wrapper = protect(CLASSES[name](params))
    gradients(params, 0)
    dense, params[1].grad = params[1].grad, torch.ones(5).to_sparse()
    with pytest.raises(UnsupportedError):
        wrapper.step()
    params[1].grad = dense
    train(wrapper, 3)
    assert bound(wrapper, EXP_AVG).isfinite().all()
