"""What the user announces: gradients that change their scale, and a reset."""

import math

import pytest
import torch
from torch import nn, optim

from sp4_lightning import ConfigurationError, ParamGroup, Protection, Settings
from sp4_lightning.quantities import EXP_AVG, EXP_AVG_SQ, GRAD, PARAM
from tests.core.making import (
    OPTIMIZERS,
    QUICK,
    bound,
    gradients,
    learned_state,
    parameters,
    protect,
    repaired,
    same,
    train,
)

LIVE = {"learned": QUICK, "warmup_steps": 10}


@pytest.mark.parametrize("factor", [0.01, 100.0, 1e6, 1e-6])
@pytest.mark.parametrize("name", ["Adam", "SGD-momentum", "RMSprop", "Adagrad"])
def test_an_announced_change_of_scale_clamps_nothing_and_repairs_nothing(name, factor):
    wrapper = protect(OPTIMIZERS[name](parameters((4, 5), (6,))), **LIVE)
    train(wrapper, 40)
    wrapper.engine.notify_scale_change(factor)
    train(wrapper, 40, start=40, scale=factor)
    assert repaired(wrapper) == 0
    assert int(wrapper.engine.state.clamped.sum()) == 0


def test_without_the_announcement_the_same_change_is_clamped():
    wrapper = protect(optim.Adam(parameters((4, 5))), **LIVE)
    train(wrapper, 40)
    train(wrapper, 1, start=40, scale=100.0)
    assert int(wrapper.engine.state.clamped.sum()) > 0


@pytest.mark.parametrize("factor", [0.01, 3.0, 100.0])
def test_the_learned_bound_is_multiplied_exactly_and_stays_so(factor):
    one, two = (protect(optim.SGD(parameters((4, 5)), lr=0.0), **LIVE) for _ in range(2))
    train(one, 40)
    train(two, 40)
    before = bound(one, GRAD)
    one.engine.notify_scale_change(factor)
    assert bound(one, GRAD).equal(before * factor)
    assert one.engine.table["grad", "SGD"].item() == pytest.approx(before.item() * factor, rel=1e-6)
    # The tracker goes on from there, as one whose gradients were always of the new scale.
    train(one, 20, start=40, scale=factor)
    train(two, 20, start=40)
    torch.testing.assert_close(bound(one, GRAD), bound(two, GRAD) * factor, rtol=1e-5, atol=0)


def test_an_announcement_while_a_tracker_is_still_collecting_counts_too():
    one, two = (protect(optim.SGD(parameters((4, 5)), lr=0.0), **LIVE) for _ in range(2))
    train(one, 5)
    train(two, 5, scale=100.0)
    one.engine.notify_scale_change(100.0)
    for wrapper in (one, two):
        train(wrapper, 10, start=5, scale=100.0)
    torch.testing.assert_close(bound(one, GRAD), bound(two, GRAD), rtol=1e-6, atol=0)


def test_only_the_named_groups_are_changed():
    a, b = parameters((4,), (5,))
    wrapper = protect(optim.Adam([a, b]), [ParamGroup.of("a", [a]), ParamGroup.of("b", [b])], **LIVE)
    train(wrapper, 20)
    before = learned_state(wrapper)
    wrapper.engine.notify_scale_change(10.0, ["b"])
    after = learned_state(wrapper)
    assert after["bound"][GRAD].tolist() == pytest.approx((before["bound"][GRAD] * torch.tensor([1.0, 10.0])).tolist())
    wrapper.engine.reset(["a"])
    reset = learned_state(wrapper)
    for key in ("bound", "level", "seen", "recent"):
        assert reset[key][..., 1].equal(after[key][..., 1])
    assert reset["bound"][:, 0].isinf().all()
    assert reset["seen"].tolist() == [0, 20]


@pytest.mark.parametrize("factor", [0.0, -1.0, math.inf, math.nan])
def test_a_factor_that_is_no_factor_is_refused_and_changes_nothing(factor):
    wrapper = protect(optim.Adam(parameters((4,))), **LIVE)
    train(wrapper, 20)
    before = learned_state(wrapper)
    with pytest.raises(ConfigurationError, match=f"factor must be positive and finite, got {factor!r}"):
        wrapper.engine.notify_scale_change(factor)
    assert same(learned_state(wrapper), before)


def test_after_a_reset_a_group_is_as_if_it_had_never_been_observed():
    params = parameters((4, 5))
    wrapper = protect(optim.Adam(params), **LIVE)
    train(wrapper, 40)
    # What a reset is for: the layer is initialised anew and the optimizer's state with it.
    params[0].data.mul_(1e3)
    wrapper.state.clear()
    wrapper.engine.reset()
    assert bound(wrapper, GRAD).isinf().all()
    for step in range(40):
        gradients(params, step, scale=1e3)
        wrapper.step()
        assert math.isfinite(bound(wrapper, GRAD)[0]) == (step >= QUICK.arm_after - 1)
    assert repaired(wrapper) == 0
    assert int(wrapper.engine.state.clamped.sum()) == 0


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_after_a_reset_nothing_of_the_old_history_is_left(scale):
    old, new = (protect(optim.SGD(parameters((4, 5)), lr=0.0), **LIVE) for _ in range(2))
    train(old, 40)
    old.engine.reset()
    for step in range(30):
        for wrapper in (old, new):
            train(wrapper, 1, start=step, scale=scale)
        assert bound(old, GRAD).equal(bound(new, GRAD))


def test_after_a_reset_the_moments_bounds_start_from_the_state_that_is_there():
    wrapper = protect(optim.Adam(parameters((4, 5))), **LIVE)
    train(wrapper, 40)
    for entry in wrapper.state.values():
        entry["exp_avg"].mul_(1e4)
        entry["exp_avg_sq"].mul_(1e8)
    wrapper.engine.reset()
    train(wrapper, 10, start=40)
    assert repaired(wrapper) == 0
    rows = learned_state(wrapper)["bound"]
    assert rows[[PARAM, EXP_AVG, EXP_AVG_SQ]].isfinite().all()
    wrapper.state[wrapper.param_groups[0]["params"][0]]["exp_avg_sq"].data[0, 0] = 1e30
    train(wrapper, 1, start=50)
    assert repaired(wrapper) > 0


def test_a_protection_takes_names_and_globs_and_refuses_unknown_ones():
    net = nn.ModuleDict({"actor": nn.Linear(3, 2), "critic": nn.Linear(3, 1)})
    optimizers = [optim.Adam(net[key].parameters()) for key in net]
    groups = {"actor": "actor", "critic": "critic"}
    protection = Protection(optimizers, net, groups, settings=Settings(update_every=1, **LIVE))
    for step in range(20):
        gradients(list(net.parameters()), step)
        for optimizer in optimizers:
            optimizer.step()
    before = [learned_state(e) for e in protection.engines]
    for call in (protection.reset, lambda names: protection.notify_scale_change(2.0, names)):
        text = r"names the group 'critik'.*Did you mean 'critic'\?.*actor, critic"
        with pytest.raises(ConfigurationError, match=text):
            call(["actor", "critik"])
    assert same([learned_state(e) for e in protection.engines], before)
    protection.reset(["cri*"])
    assert [engine.state.seen.any().item() for engine in protection.engines] == [True, False]
    protection.reset()
    assert not any(engine.state.seen.any() for engine in protection.engines)
