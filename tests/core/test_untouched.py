"""Observing, or with bounds that never bind, a run is the bare optimizer's to the bit, state included."""

import copy
import math

import pytest
import torch
from torch import nn, optim

from sp4_lightning import Protection, Settings
from tests.core.making import FUSED, OPTIMIZERS, SHAPES, gradients, parameters, protect, repaired, same, snapshot

HARMLESS = {
    "observe": {"mode": "observe", "warmup_steps": 0},
    "infinite bounds": {"mode": "enforce", "warmup_steps": 10**9},
}
WITH_LBFGS = {
    **OPTIMIZERS,
    **FUSED,
    "LBFGS": lambda p: optim.LBFGS(p, lr=0.1, max_iter=4),
    "LBFGS-wolfe": lambda p: optim.LBFGS(p, lr=0.5, max_iter=4, line_search_fn="strong_wolfe"),
}


@pytest.mark.parametrize("harmless", HARMLESS)
@pytest.mark.parametrize("name", [*OPTIMIZERS, *FUSED])
def test_without_a_closure(name, harmless):
    make = OPTIMIZERS.get(name) or FUSED[name]
    params, bare_params = parameters(*SHAPES), parameters(*SHAPES)
    wrapper, bare = protect(make(params), **HARMLESS[harmless]), make(bare_params)
    for step in range(100):
        scale = 1e3 if step % 17 == 0 else 1.0
        gradients(params, step, scale)
        gradients(bare_params, step, scale)
        wrapper.step()
        bare.step()
    assert same(snapshot(wrapper.base), snapshot(bare))
    assert same([p.grad for p in params], [p.grad for p in bare_params])


def net_and_closure(optimizer_of):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    optimizer, batch = optimizer_of(net), {}

    def closure():
        optimizer.zero_grad()
        loss = (net(batch["x"]) - batch["x"].prod(1, keepdim=True)).square().mean() * batch["scale"]
        loss.backward()
        return loss

    def step(k):
        gen = torch.Generator().manual_seed(k)
        batch.update(x=torch.randn(16, 3, generator=gen), scale=30.0 if k % 17 == 0 else 1.0)
        return optimizer.step(closure)

    return net, optimizer, step


@pytest.mark.parametrize("harmless", HARMLESS)
@pytest.mark.parametrize("name", WITH_LBFGS)
def test_with_a_closure(name, harmless):
    make, settings = WITH_LBFGS[name], HARMLESS[harmless]
    _, wrapper, step = net_and_closure(lambda net: protect(make(net.parameters()), **settings))
    _, bare, bare_step = net_and_closure(lambda net: make(net.parameters()))
    steps = 20 if "LBFGS" in name else 100 if harmless == "observe" else 40  # LBFGS's evaluate several times
    losses = [step(k) for k in range(steps)]
    assert same(losses, [bare_step(k) for k in range(steps)])
    assert same(snapshot(wrapper.base), snapshot(bare))


@pytest.mark.parametrize("name", ["Adam", "SGD-momentum", "RMSprop"])
def test_several_optimizers_under_one_protection(name):
    make = OPTIMIZERS[name]
    torch.manual_seed(0)
    net = nn.ModuleDict({"a": nn.Linear(4, 3), "b": nn.Linear(3, 2)})
    bare_net = copy.deepcopy(net)
    optimizers, bare = ([make(n[key].parameters()) for key in "ab"] for n in (net, bare_net))
    protection = Protection(optimizers, net, settings=Settings(mode="observe"))
    for step in range(100):
        for n, opts in ((net, optimizers), (bare_net, bare)):
            gradients(list(n.parameters()), step)
            for optimizer in opts:
                optimizer.step()
        protection.advance()
    protection.report()
    for protected, other in zip(optimizers, bare, strict=True):
        assert same(snapshot(protected), snapshot(other))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", [*OPTIMIZERS, *FUSED])
def test_observing_lets_even_non_finite_gradients_through(name, value):
    make = OPTIMIZERS.get(name) or FUSED[name]
    params, bare_params = parameters((4, 3), (5,)), parameters((4, 3), (5,))
    wrapper, bare = protect(make(params), mode="observe"), make(bare_params)
    for step in range(12):
        for some, optimizer in ((params, wrapper), (bare_params, bare)):
            gradients(some, step)
            if step in (0, 6):
                some[0].grad[1, 1] = value
            optimizer.step()
    assert same(snapshot(wrapper.base), snapshot(bare))
    assert int(wrapper.engine.skipped) == 0


def test_observing_counts_what_would_be_clamped():
    params = parameters((20, 20))
    wrapper = protect(optim.Adam(params), mode="observe")
    for step in range(80):
        gradients(params, step)
        params[0].grad[0, 0] = 1e6 if step == 75 else 1.0
        wrapper.step()
    assert wrapper.engine.state.clamped.tolist() == [1]
    assert repaired(wrapper) == 0
