"""The learned bound at work: who is clamped, when, and what is learned from it."""

import math

import pytest
import torch
from torch import nn, optim

from sp4_lightning import LearnedBound, Phase
from sp4_lightning.quantities import EXP_AVG, EXP_AVG_SQ, GRAD
from tests.core.making import QUICK, bound, gradients, learned_state, parameters, protect, repaired, same, train


def spiky(params, step, at, size=1e6):
    gradients(params, step)
    if step == at:
        params[0].grad.view(-1)[1] = size


def test_nothing_is_clamped_before_the_bound_is_armed():
    params = parameters((4, 5))
    wrapper = protect(optim.SGD(params, lr=0.0), warmup_steps=0)
    for step in range(LearnedBound().arm_after):
        gradients(params, step, scale=10.0 ** (step % 13))
        before = params[0].grad.clone()
        wrapper.step()
        assert params[0].grad.equal(before)
    assert int(wrapper.engine.state.clamped.sum()) == 0
    assert bound(wrapper, GRAD).isfinite().all()


def test_a_spike_is_clamped_to_the_bound_that_was_in_force_before_it():
    params = parameters((4, 5))
    wrapper = protect(optim.SGD(params, lr=0.0), learned=QUICK, warmup_steps=0)
    for step in range(30):
        in_force = bound(wrapper, GRAD)[0].item()
        spiky(params, step, at=20)
        others = params[0].grad.clone()
        others.view(-1)[1] = 0
        wrapper.step()
        if step == 20:
            assert params[0].grad.view(-1)[1].item() == pytest.approx(in_force, rel=1e-6)
        params[0].grad.view(-1)[1] = 0
        assert params[0].grad.equal(others)
    assert wrapper.engine.state.clamped.tolist() == [1]


def test_both_signs_are_clamped():
    params = parameters((4, 5))
    wrapper = protect(optim.SGD(params, lr=0.0), learned=QUICK, warmup_steps=0)
    train(wrapper, 20)
    for sign in (1, -1):
        spiky(params, 0, at=0, size=sign * 1e6)
        wrapper.step()
        assert 1 < sign * params[0].grad.view(-1)[1].item() < 100


def test_what_is_learned_is_the_raw_gradient_so_clamping_changes_no_bound():
    # A bound learned from what it has clamped itself would sink, and clamp the more.
    runs = []
    for mode in ("enforce", "observe"):
        params = parameters((4, 5), (30,))
        wrapper = protect(optim.SGD(params, lr=0.0), learned=QUICK, warmup_steps=0, mode=mode)
        for step in range(300):
            gradients(params, step)
            for param in params:
                param.grad.pow_(9)  # tails far beyond any bound
            wrapper.step()
        runs.append((learned_state(wrapper), wrapper.engine.state.clamped.tolist()))
    (enforced, clamped), (observed, would_be) = runs
    assert clamped == would_be
    assert min(clamped) > 0
    for key in ("level", "seen", "recent"):
        assert enforced[key].equal(observed[key])
    assert enforced["bound"][GRAD].equal(observed["bound"][GRAD])


def test_the_moments_bounds_follow_what_the_update_has_seen_not_the_spike():
    params = parameters((4, 5))
    wrapper = protect(optim.Adam(params, betas=(0.9, 0.99)), learned=QUICK, warmup_steps=0)
    train(wrapper, 20)
    grad, exp_avg, exp_avg_sq = (bound(wrapper, row)[0].item() for row in (GRAD, EXP_AVG, EXP_AVG_SQ))
    spiky(params, 20, at=20)
    wrapper.step()
    seen = params[0].grad.abs().max().item()
    assert seen <= grad * (1 + 1e-6)
    assert bound(wrapper, EXP_AVG)[0].item() == pytest.approx(0.9 * exp_avg + 0.1 * seen)
    assert bound(wrapper, EXP_AVG_SQ)[0].item() == pytest.approx(0.99 * exp_avg_sq + 0.01 * seen**2)
    assert repaired(wrapper) == 0


def test_each_tensor_has_a_bound_of_its_own_scale():
    params = parameters((10,), (10,), (10,))
    wrapper = protect(optim.Adam(params), learned=QUICK, warmup_steps=0)
    scales = torch.tensor([1e-6, 1.0, 1e6], dtype=torch.float64)
    for step in range(30):
        gradients(params, step)
        for param, scale in zip(params, scales, strict=True):
            param.grad.mul_(scale)
        wrapper.step()
    relative = bound(wrapper, GRAD) / scales
    assert (relative > 1).all()
    assert (relative < 100).all()
    assert wrapper.engine.table["grad", "Adam"].item() == pytest.approx(bound(wrapper, GRAD).max().item())


@pytest.mark.parametrize("every", [1, 8])
def test_a_genuine_change_of_scale_is_no_trap(every):
    params = parameters((40,))
    wrapper = protect(optim.Adam(params), update_every=every, warmup_steps=0)
    train(wrapper, 600)
    train(wrapper, 120, start=600, scale=100.0)
    before = wrapper.engine.state.clamped.copy()
    train(wrapper, 200, start=720, scale=100.0)
    assert (wrapper.engine.state.clamped == before).all()


def test_counting_and_learning_every_nth_update_leaves_skip_and_clamp_to_all():
    params = parameters((4, 5))
    wrapper = protect(optim.SGD(params, lr=0.0), learned=QUICK, warmup_steps=0, update_every=10)
    train(wrapper, 20)
    for step in range(20):
        spiky(params, step, at=step)
        wrapper.step()
        assert params[0].grad.abs().max() < 1e4
        params[0].grad[0, 0] = math.nan
        wrapper.step()
    assert int(wrapper.engine.skipped) == 20


def test_arming_takes_as_many_updates_however_few_of_them_are_observed():
    params = parameters((4, 5))
    wrapper = protect(optim.SGD(params, lr=0.0), update_every=8)
    train(wrapper, 56)
    assert wrapper.engine.state.seen.tolist() == [7]
    assert bound(wrapper, GRAD).isinf().all()
    train(wrapper, 1, start=56)
    assert wrapper.engine.state.seen.tolist() == [8]
    assert bound(wrapper, GRAD).isfinite().all()


@pytest.mark.parametrize("every", [1, 4, 8])
def test_a_burst_shorter_than_the_rank_is_not_believed_among_the_first_updates_either(every):
    wrapper, clean = (protect(optim.SGD(parameters((40,)), lr=0.0), update_every=every) for _ in range(2))
    for step in range(200):
        burst = 20 <= step < 20 + LearnedBound().rank - 5
        train(wrapper, 1, start=step, scale=1e6 if burst else 1.0)
        train(clean, 1, start=step)
    assert bound(wrapper, GRAD)[0] < 4 * bound(clean, GRAD)[0]


@pytest.mark.parametrize("seed", range(2))
def test_a_clean_run_is_hardly_touched(seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))
    wrapper = protect(optim.Adam(net.parameters(), lr=1e-3), warmup_steps=100)
    for _ in range(700):
        x = torch.randn(32, 6)
        wrapper.zero_grad()
        (net(x) - torch.stack([x.sum(1).sin(), x.prod(1)], 1) - 0.3 * torch.randn(32, 2)).square().mean().backward()
        wrapper.step()
    state = wrapper.engine.state
    assert int(wrapper.engine.switch.phase) == Phase.LEARNED
    assert repaired(wrapper) == 0
    assert (state.clamped / state.counted).max() < 1e-3
    assert state.clamped.sum() / state.counted.sum() < 1e-4


def test_two_runs_of_the_same_gradients_learn_the_same_to_the_bit():
    states = []
    for _ in range(2):
        wrapper = protect(optim.Adam(parameters((4, 5), (6,))), warmup_steps=0)
        train(wrapper, 80)
        states.append(learned_state(wrapper))
    assert same(*states)
