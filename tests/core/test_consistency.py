"""The ratio of exp_avg to exp_avg_sq: its constant, its recursion, and how closely it is enforced."""

import math

import pytest
import torch
from torch import optim

from sp4_lightning.consistency import constant_sq, rates, repair
from sp4_lightning.derived import error, slowed
from tests.core.making import gradients, parameters, protect, repaired, train


@pytest.mark.parametrize(
    ("betas", "c"), [((0.9, 0.999), 7.27), ((0.85, 0.999), 9.02), ((0.95, 0.999), 5.09), ((0.0, 0.99), 10.0)]
)
def test_the_constant_for_known_betas(betas, c):
    assert math.sqrt(constant_sq(*betas)) == pytest.approx(c, abs=5e-3)


@pytest.mark.parametrize("betas", [(0.9, 0.81), (0.9, 0.5), (0.5, 0.25), (0.5, 0.0)])
def test_there_is_none_where_exp_avg_outlives_the_root_of_exp_avg_sq(betas):
    assert constant_sq(*betas) == math.inf


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9), (0.3, 0.1), (0.99, 0.9999)])
def test_the_constant_is_what_the_best_history_attains(betas):
    # Cauchy-Schwarz is attained by gradients proportional to (b1 / b2)^k, the newest first.
    beta1, beta2 = betas
    k = torch.arange(300 if beta1 > beta2 else 20_000, dtype=torch.float64)
    g = (beta1 / beta2) ** k
    m = ((1 - beta1) * beta1**k * g).sum()
    v = ((1 - beta2) * beta2**k * g * g).sum()
    assert (m * m / v).item() == pytest.approx(constant_sq(*betas), rel=1e-3)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.9), (0.3, 0.1)])
def test_the_constant_is_the_fixed_point_of_the_recursion(betas):
    decay, gain = rates(*betas)
    assert decay * constant_sq(*betas) + gain == pytest.approx(constant_sq(*betas))


def test_repair_is_exact_within_and_clamps_beyond():
    m = torch.tensor([6.9, -6.9, 7.1, -7.1, 0.0])
    v = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0])
    got = repair(m, v, torch.tensor(7.0, dtype=torch.float64), eps=0.0)
    assert got[:2].equal(m[:2])
    assert got[2:].tolist() == [7.0, -7.0, 0.0]
    assert repair(m, v, torch.tensor(math.inf), eps=0.0).equal(m)


@pytest.mark.parametrize(("factor", "hits"), [(0.99, 0), (1.05, 1)])
@pytest.mark.parametrize("cls", [optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam])
def test_an_element_beyond_the_ratio_is_mended_even_when_both_moments_are_small(cls, factor, hits):
    params = parameters((5, 4))
    wrapper = protect(cls(params))
    train(wrapper, 50)
    state = wrapper.state[params[0]]
    # Far below the derived bounds of either: only their ratio gives the fault away.
    state["exp_avg_sq"].data[1, 2] = 1e-8
    state["exp_avg"].data[1, 2] = factor * math.sqrt(constant_sq(0.9, 0.999)) * 1e-4
    gradients(params, 50)
    wrapper.step()
    assert repaired(wrapper) == hits


def test_the_ratio_follows_betas_that_change_and_comes_back_to_its_constant():
    params = parameters((5, 4))
    wrapper = protect(optim.Adam(params, betas=(0.9, 0.99)))
    expected = constant_sq(slowed(0.9, torch.float32), 0.99, error(torch.float32))
    for step in range(400):
        betas = (0.5, 0.95) if 50 <= step < 60 else (0.9, 0.99)
        wrapper.param_groups[0]["betas"] = betas
        decay, gain = rates(slowed(betas[0], torch.float32), betas[1], error(torch.float32))
        expected = decay * expected + gain
        train(wrapper, 1, start=step)
        assert float(wrapper.engine.state.ratio_sq[0]) == pytest.approx(expected, rel=1e-9)
    assert expected == pytest.approx(constant_sq(slowed(0.9, torch.float32), 0.99, error(torch.float32)), rel=1e-6)
