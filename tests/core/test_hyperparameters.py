"""Hyperparameters that differ between groups, change between steps, or live in tensors."""

import copy

import numpy as np
import pytest
import torch
from torch import nn, optim

from sp4_lightning import Dynamics, Settings, register_dynamics
from sp4_lightning.dynamics import _TABLE
from sp4_lightning.quantities import EXP_AVG, EXP_AVG_SQ, PARAM
from tests.core.making import bound, gradients, learned_state, parameters, protect, repaired, same, snapshot, train


def test_every_group_has_the_bounds_of_its_own_hyperparameters():
    options = [
        {"lr": 1e-1, "betas": (0.5, 0.9)},
        {"lr": 1e-4, "betas": (0.95, 0.9999)},
        {"lr": 1e-2, "weight_decay": 0.1},
    ]
    params = parameters((4, 3), (4, 3), (4, 3))
    together = protect(optim.Adam([{"params": [p], **o} for p, o in zip(params, options, strict=True)]))
    alone = [protect(optim.Adam(parameters((4, 3)), **o)) for o in options]
    for param, each in zip(params, alone, strict=True):
        each.param_groups[0]["params"][0].data.copy_(param.detach())
    for step in range(30):
        gradients(params, step)
        together.step()
        for param, each in zip(params, alone, strict=True):
            each.param_groups[0]["params"][0].grad = param.grad.clone()
            each.step()
    state = torch.as_tensor(together.engine.state.bound)
    for i, each in enumerate(alone):
        assert state[:, i].tolist() == torch.as_tensor(each.engine.state.bound)[:, 0].tolist()
    assert repaired(together) == 0


@pytest.mark.parametrize("make", [optim.Adam, optim.AdamW])
def test_a_learning_rate_in_a_tensor_is_a_learning_rate(make):
    (a,), (b,) = parameters((4, 3)), parameters((4, 3))
    plain = protect(make([a], lr=0.125, weight_decay=0.1))
    in_tensor = protect(make([b], lr=torch.tensor(0.125), weight_decay=0.1))
    for step in range(20):
        for wrapper in (plain, in_tensor):
            if step == 10:
                group = wrapper.param_groups[0]
                group["lr"] = group["lr"].fill_(0.5) if isinstance(group["lr"], torch.Tensor) else 0.5
            train(wrapper, 1, start=step)
    torch.testing.assert_close(a, b)
    torch.testing.assert_close(bound(plain, PARAM), bound(in_tensor, PARAM), rtol=1e-6, atol=0)


@pytest.mark.parametrize("lr", [[1e-3, 1e-1], [torch.tensor(1e-3), torch.tensor(1e-1)], [1e-3, torch.tensor(1e-1)]])
def test_each_tensor_is_bounded_by_its_own_learning_rate(lr):
    params = parameters((50,), (50,))
    groups = [{"params": [p], "lr": r} for p, r in zip(params, lr, strict=True)]
    wrapper = protect(optim.Adam(groups, foreach=False))
    train(wrapper, 5)
    largest = torch.stack([p.detach().abs().max() for p in params])
    train(wrapper, 1, start=5)
    reach = bound(wrapper, PARAM) - largest
    assert reach.tolist() == pytest.approx([7.27e-3, 7.27e-1], rel=1e-2)


def test_a_learning_rate_that_falls_is_obeyed_at_once():
    params = parameters((50,))
    wrapper = protect(optim.Adam(params, lr=1.0))
    train(wrapper, 5)
    wrapper.param_groups[0]["lr"] = 1e-6
    train(wrapper, 1, start=5)
    params[0].data[0] = params[0].abs().max().item() * 1.1
    train(wrapper, 1, start=6)
    assert repaired(wrapper) == 1


@pytest.mark.parametrize("make", [optim.Adam, optim.RAdam, optim.SGD, optim.RMSprop, optim.Adagrad, optim.Adamax])
def test_a_learning_rate_of_zero_moves_nothing_and_breaks_nothing(make):
    params = parameters((4, 3))
    wrapper = protect(make(params, lr=0.0))
    before = params[0].detach().clone()
    train(wrapper, 20)
    assert params[0].equal(before)
    assert not torch.as_tensor(wrapper.engine.state.bound).isnan().any()
    wrapper.param_groups[0]["lr"] = 0.1
    train(wrapper, 20, start=20)
    assert repaired(wrapper) == 0
    assert not params[0].equal(before)


def test_momentum_that_is_switched_on_later_is_bounded_from_then_on():
    params = parameters((4, 3))
    wrapper = protect(optim.SGD(params, lr=1e-3))
    train(wrapper, 5)
    wrapper.param_groups[0]["momentum"] = 0.9
    train(wrapper, 5, start=5)
    assert repaired(wrapper) == 0
    assert bound(wrapper, EXP_AVG).isfinite().all()
    assert bound(wrapper, PARAM).isfinite().all()
    wrapper.state[params[0]]["momentum_buffer"].data[0, 0] = 1e8
    train(wrapper, 1, start=10)
    assert repaired(wrapper) == 1


def test_decay_enters_exp_avg_with_l2_and_not_when_decoupled():
    limits = []
    for make in (optim.Adam, optim.AdamW):
        params = parameters((4, 3))
        wrapper = protect(make(params, lr=1e-3, weight_decay=10.0))
        params[0].grad = torch.zeros(4, 3)
        largest = params[0].detach().abs().max().item()
        wrapper.step()
        limits.append(bound(wrapper, EXP_AVG)[0].item() / (0.1 * 10 * largest))
    assert limits == pytest.approx([1.0, 0.0])


@pytest.mark.parametrize(
    ("make", "dtype"),
    # Not Adam in float16: there its eps is zero and its exp_avg_sq underflows, so it divides by zero itself.
    [
        (optim.Adam, torch.float64),
        (optim.Adam, torch.bfloat16),
        (optim.SGD, torch.float64),
        (optim.SGD, torch.bfloat16),
        (optim.SGD, torch.float16),
    ],
)
def test_other_precisions_run_as_the_bare_optimizer(make, dtype):
    params, bare_params = parameters((4, 3), (5,), dtype=dtype), parameters((4, 3), (5,), dtype=dtype)
    wrapper, bare = protect(make(params, lr=1e-2), warmup_steps=10**9), make(bare_params, lr=1e-2)
    for step in range(40):
        gradients(params, step)
        gradients(bare_params, step)
        wrapper.step()
        bare.step()
    assert same(snapshot(wrapper.base), snapshot(bare))
    assert repaired(wrapper) == 0


@pytest.mark.parametrize("first", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_precisions_may_be_mixed_whichever_comes_first(first):
    others = [d for d in (torch.float32, torch.bfloat16, torch.float16, torch.float64) if d != first]
    params = [p for dtype in (first, *others) for p in parameters((4, 3), dtype=dtype)]
    wrapper = protect(optim.SGD(params, lr=1e-2, momentum=0.9, foreach=False))
    train(wrapper, 20)
    assert repaired(wrapper) == 0
    params[1].data[0, 0] = 1e4
    train(wrapper, 1, start=20)
    assert wrapper.engine.state.repaired.tolist() == [0, 1, 0, 0]


IN_PLACE = {
    "betas in tensors": (
        (torch.tensor(0.9), torch.tensor(0.999)),
        lambda old, new: [o.fill_(n) for o, n in zip(old, new, strict=True)],
    ),
    "a list": ([0.9, 0.999], lambda old, new: old.__setitem__(slice(None), new)),
    "a list of tensors": (
        [torch.tensor(0.9), torch.tensor(0.999)],
        lambda old, new: old.__setitem__(slice(None), [torch.tensor(x) for x in new]),
    ),
}


@pytest.mark.parametrize("how", IN_PLACE)
def test_betas_that_are_changed_in_place_are_those_that_count(how):
    betas, change = copy.deepcopy(IN_PLACE[how][0]), IN_PLACE[how][1]
    # Torch takes betas in tensors only without foreach; being float32 they are .999 to 1e-5.
    wrapper = protect(optim.Adam(parameters((4, 3)), foreach=False))
    plain = protect(optim.Adam(parameters((4, 3)), foreach=False))
    wrapper.param_groups[0]["betas"] = betas
    for step in range(30):
        if step % 10 == 5:
            new = ((0.5, 0.9), (0.8, 0.99), (0.9, 0.999))[step // 10]
            change(betas, new)
            plain.param_groups[0]["betas"] = new
        for each in (wrapper, plain):
            train(each, 1, start=step)
        assert repaired(wrapper) == 0
        for row in (EXP_AVG, EXP_AVG_SQ):
            torch.testing.assert_close(bound(wrapper, row), bound(plain, row), rtol=1e-3, atol=0)
        torch.testing.assert_close(
            torch.as_tensor(wrapper.engine.state.ratio_sq),
            torch.as_tensor(plain.engine.state.ratio_sq),
            rtol=1e-3,
            atol=0,
        )


def test_any_option_in_a_tensor_that_is_changed_in_place_is_seen_once():
    params = parameters((4, 3))
    seen = []
    register_dynamics(Minimal)(lambda group: seen.append(float(group["scale"])) or Dynamics())
    try:
        wrapper = protect(Minimal(params, lr=0.1, scale=torch.tensor(1.0)))
        train(wrapper, 2)
        wrapper.param_groups[0]["scale"].mul_(3)
        train(wrapper, 2)
    finally:
        del _TABLE[Minimal]
    assert seen == [1.0, 3.0]


class Minimal(optim.Optimizer):
    """As somebody writes it to try an idea: a learning rate, or not even that."""

    def __init__(self, params, **defaults):
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    param.sub_(param.grad, alpha=group.get("lr") or 0.1)


@pytest.mark.parametrize("defaults", [{}, {"lr": 0.1}, {"lr": None, "scale": True}, {"lr": 0.1, "momentum": 0.9}])
def test_an_optimizer_of_ones_own_needs_no_particular_option(defaults):
    params = parameters((3,))
    wrapper = protect(Minimal(params, **defaults))
    train(wrapper, 70)
    before = snapshot(wrapper.base)
    params[0].grad = torch.full((3,), torch.nan)
    wrapper.step()
    assert same(snapshot(wrapper.base), before)
    assert bound(wrapper, PARAM).isinf().all()


def test_settings_of_a_wrapper_are_not_shared():
    one, two = (protect(optim.Adam([nn.Parameter(torch.ones(2))])) for _ in range(2))
    train(one, 70)
    assert learned_state(two)["seen"].tolist() == [0]
    assert Settings().learned == Settings().learned


class Peculiar(Minimal):
    """What somebody else's class keeps under Adam's names, and among its options, may be anything."""

    def __init__(self, params, make):
        super().__init__(params, lr=0.1, mask=torch.ones(3), table=np.ones(3))
        self._make = make

    def step(self, closure=None):
        for group in self.param_groups:
            group.update(mask=torch.ones(3), table=np.ones(3))
            for param in group["params"]:
                self.state[param].update(exp_avg=self._make(param), exp_avg_sq=self._make(param))
        return super().step(closure)


KEPT = {
    "of low rank": lambda p: torch.ones(2, 2),
    "one number": lambda p: torch.ones(()),
    "quantised": lambda p: torch.ones_like(p, dtype=torch.uint8),
    "a list": lambda p: [1, 2],
    "nothing": lambda p: None,
    "complex": lambda p: torch.ones_like(p, dtype=torch.complex64),
}


@pytest.mark.parametrize("kept", KEPT)
def test_state_of_an_unknown_class_that_is_no_moment_is_left_alone(kept):
    params, others = parameters((4, 3), (5,)), parameters((4, 3), (5,))
    wrapper, bare = protect(Peculiar(params, KEPT[kept])), Peculiar(others, KEPT[kept])
    for step in range(5):
        for some, optimizer in ((params, wrapper), (others, bare)):
            gradients(some, step)
            optimizer.step()
    assert same([p.detach() for p in params], [p.detach() for p in others])
    assert repaired(wrapper) == 0
    assert wrapper.engine.state.seen.tolist() == [5, 5]
