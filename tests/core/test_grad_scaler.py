"""GradScaler around a wrapper, fused (it unscales inside the update) and not (it unscales before)."""

import pytest
import torch
from torch import optim

from sp4_lightning.quantities import EXP_AVG, EXP_AVG_SQ, GRAD, PARAM
from tests.core.making import QUICK, bound, gradients, parameters, protect, repaired, same, snapshot, train

MAKERS = {
    "Adam": lambda p, fused: optim.Adam(p, lr=1e-2, fused=fused),
    "AdamW": lambda p, fused: optim.AdamW(p, lr=1e-2, fused=fused),
    "SGD": lambda p, fused: optim.SGD(p, lr=1e-2, momentum=0.9, fused=fused),
}
OVERFLOWS = (3, 4, 20)


def losses(step, params):
    gen = torch.Generator().manual_seed(step)
    weights = [torch.randn(p.shape, generator=gen) for p in params]
    loss = sum((w * p + 0.1 * p * p).sum() for w, p in zip(weights, params, strict=True))
    return loss * float("inf") if step in OVERFLOWS else loss


def run(optimizer, params, steps=40, unscale=False, init_scale=2.0**16):
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=7)
    scales = []
    for step in range(steps):
        optimizer.zero_grad()
        scaler.scale(losses(step, params)).backward()
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


def wrapped(name, fused, **settings):
    params = parameters((4, 3), (5,))
    return params, protect(MAKERS[name](params, fused), learned=QUICK, **settings)


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("mode", ["observe", "enforce"])
@pytest.mark.parametrize("name", MAKERS)
def test_the_run_is_the_bare_optimizers(name, mode, fused, unscale):
    params, wrapper = wrapped(name, fused, mode=mode, warmup_steps=10**9)
    bare_params = parameters((4, 3), (5,))
    bare = MAKERS[name](bare_params, fused)
    assert run(wrapper, params, unscale=unscale) == run(bare, bare_params, unscale=unscale)
    assert same(snapshot(wrapper.base), snapshot(bare))
    assert repaired(wrapper) == 0
    assert int(wrapper.engine.steps) == 40 - len(OVERFLOWS)


@pytest.mark.parametrize("name", MAKERS)
def test_a_fused_optimizer_under_a_scaler_has_the_bounds_of_the_gradients_themselves(name):
    rows = []
    for fused in (False, True):
        params, wrapper = wrapped(name, fused, warmup_steps=10)
        run(wrapper, params)
        rows.append(torch.stack([bound(wrapper, row) for row in (PARAM, GRAD, EXP_AVG, EXP_AVG_SQ)]))
    torch.testing.assert_close(*rows, rtol=1e-5, atol=0)


def test_a_spike_is_clamped_under_a_scaler_whose_scale_has_grown():
    params, wrapper = wrapped("Adam", True, warmup_steps=10)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=2)
    for step in range(50):
        wrapper.zero_grad()
        loss = losses(step + 100, params)
        scaler.scale(loss * 1e5 if step == 49 else loss).backward()
        scaler.step(wrapper)
        scaler.update()
    assert int(wrapper.engine.state.clamped.sum()) > 0
    assert wrapper.state[params[0]]["exp_avg_sq"].max() < 1e4


@pytest.mark.parametrize("fused", [False, True])
def test_an_overflow_leaves_the_wrapper_as_it_was(fused):
    params, wrapper = wrapped("Adam", fused)
    run(wrapper, params, steps=3)
    before = snapshot(wrapper.base)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(losses(OVERFLOWS[0], params)).backward()
    scaler.step(wrapper)
    scaler.update()
    assert same(snapshot(wrapper.base), before)
    assert int(wrapper.engine.steps) == 3
    assert not hasattr(wrapper, "found_inf")
    assert not hasattr(wrapper.base, "grad_scale")


def test_the_scalers_attributes_reach_the_base():
    _, wrapper = wrapped("Adam", True)
    assert wrapper._step_supports_amp_scaling
    assert not hasattr(wrapper, "grad_scale")
    wrapper.grad_scale, wrapper.found_inf = torch.tensor(2.0), torch.tensor(0.0)
    assert wrapper.base.grad_scale is wrapper.grad_scale
    assert wrapper.base.found_inf is wrapper.found_inf
    del wrapper.grad_scale, wrapper.found_inf
    assert not hasattr(wrapper.base, "grad_scale")
    assert not hasattr(wrapper.base, "found_inf")
    assert not wrapped("Adam", False)[1]._step_supports_amp_scaling


def test_the_scalers_scale_is_put_back_after_the_step():
    params, wrapper = wrapped("Adam", True)
    scale = torch.tensor(4.0)
    for step in range(2):
        gradients(params, step, scale=4.0)
        wrapper.grad_scale, wrapper.found_inf = scale, torch.tensor(0.0)
        wrapper.step()
        assert wrapper.base.grad_scale is scale
    _, other = wrapped("Adam", True)
    train(other, 2)
    assert same(snapshot(wrapper.base), snapshot(other.base))
