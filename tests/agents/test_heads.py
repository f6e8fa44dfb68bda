"""Heads and losses against their definitions."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional

from sp4_lightning.agents.attention import HistoryAttention
from sp4_lightning.agents.branches import pick, split_branches, stack_branches
from sp4_lightning.agents.dueling import dueling_q
from sp4_lightning.agents.iql import bracket, expectile_loss
from sp4_lightning.agents.iqn import ImplicitQuantiles, quantile_huber_loss, risk_averse_tau, sample_tau
from sp4_lightning.agents.network import QNetwork


@pytest.mark.parametrize("branches", [(2,), (3, 3), (4, 2, 3)])
def test_q_is_value_plus_centred_advantage_in_every_branch(branches):
    network = QNetwork(5, 3, branches)
    history = torch.randn(7, 3, 5)
    q = network(history)
    assert q.shape == (7, len(branches), max(branches))
    value = network.value(network.features(history))
    for d, n in enumerate(branches):
        torch.testing.assert_close(q[:, d, :n].mean(-1, keepdim=True), value)
        assert (q[:, d, n:] == float("-inf")).all()
        assert (q[:, d].argmax(-1) < n).all()


def test_dueling_ignores_a_common_shift_of_the_advantages():
    value, advantages = torch.randn(4, 1), [torch.randn(4, 3), torch.randn(4, 2)]
    shifted = [a + 10.0 for a in advantages]
    torch.testing.assert_close(dueling_q(value, advantages), dueling_q(value, shifted), rtol=1e-4, atol=1e-5)


def test_padding_gets_no_gradient():
    parts = [torch.randn(3, 2, requires_grad=True), torch.randn(3, 4, requires_grad=True)]
    stacked = stack_branches(parts)
    pick(stacked, torch.tensor([[1, 3]] * 3)).sum().backward()
    assert parts[0].grad.tolist() == [[0, 1]] * 3
    assert parts[1].grad.tolist() == [[0, 0, 0, 1]] * 3
    flat = torch.arange(12.0).view(2, 6)
    assert torch.equal(split_branches(flat, (2, 4))[:, 0, :2], flat[:, :2])
    assert torch.equal(split_branches(flat, (3, 3)), flat.view(2, 2, 3))


def test_attention_equals_the_textbook_form():
    torch.manual_seed(0)
    attention = HistoryAttention(3, 4)
    history = torch.randn(5, 4, 3)
    tokens = attention.embed(history) + attention.position
    normed = functional.layer_norm(tokens, (32,), attention.norm.weight, attention.norm.bias)
    heads = []
    key, value = attention.key_value.weight.split(32)
    for h in (slice(0, 16), slice(16, 32)):
        q = normed[:, -1:] @ attention.query.weight[h].T
        weights = torch.softmax(q @ (normed @ key[h].T).transpose(1, 2) / 4.0, -1)
        heads.append((weights @ (normed @ value[h].T))[:, 0])
    expected = tokens[:, -1] + attention.output(torch.cat(heads, -1))
    torch.testing.assert_close(attention(history), expected)


def test_attention_sees_the_whole_history():
    attention = HistoryAttention(2, 4)
    history = torch.randn(1, 4, 2, requires_grad=True)
    attention(history).square().sum().backward()
    assert (history.grad.abs().sum(-1) > 0).all()


def test_quantile_huber_equals_a_double_loop():
    rng = np.random.default_rng(0)
    predicted, target = rng.normal(size=(5, 8)) * 3, rng.normal(size=(5, 6)) * 3
    tau = np.sort(rng.uniform(size=8))
    total = 0.0
    for b, i in itertools.product(range(5), range(8)):
        mean = 0.0
        for j in range(6):
            u = target[b, j] - predicted[b, i]
            huber = 0.5 * u * u if abs(u) <= 1 else abs(u) - 0.5
            mean += abs(tau[i] - (u < 0)) * huber / 6
        total += mean / 5
    loss = quantile_huber_loss(torch.tensor(predicted), torch.tensor(target), torch.tensor(tau))
    assert loss.item() == pytest.approx(total, rel=1e-12)


def test_quantile_huber_finds_the_quantiles():
    torch.manual_seed(0)
    tau = torch.tensor([0.1, 0.5, 0.9])
    quantiles = torch.zeros(1, 3, requires_grad=True)
    optimizer = torch.optim.Adam([quantiles], lr=0.05)
    target = 100.0 * torch.rand(1, 4000)  # wide, so that kappa hardly matters
    quantiles.data += 50
    for _ in range(2000):
        optimizer.zero_grad()
        quantile_huber_loss(quantiles, target, tau).backward()
        optimizer.step()
    torch.testing.assert_close(quantiles.detach()[0], torch.tensor([10.0, 50.0, 90.0]), rtol=0, atol=2.0)


def test_expectile_loss_equals_its_formula_and_meets_its_closed_form():
    value, target = torch.tensor([0.0, 0.0, 2.0]), torch.tensor([1.0, -3.0, 2.0])
    assert expectile_loss(value, target, 0.9).item() == pytest.approx((0.9 * 1 + 0.1 * 9 + 0) / 3)
    # Of two equally likely values 0 and 1 the expectile is e itself: e (1 - v) = (1 - e) v.
    for expectile in (0.1, 0.5, 0.9):
        point = torch.tensor([expectile], requires_grad=True)
        expectile_loss(point.expand(2), torch.tensor([0.0, 1.0]), expectile).backward()
        assert point.grad.item() == pytest.approx(0.0, abs=1e-7)


def test_bracket_widens_the_expectiles_by_their_distance_plus_one():
    high, low = torch.tensor([5.0, 5.0, 5.0, 5.0]), torch.tensor([3.0, 3.0, 3.0, 3.0])
    got = bracket(torch.tensor([9.0, -9.0, 4.0, 7.5]), high, low)
    assert got.tolist() == [8.0, 0.0, 4.0, 7.5]


def test_taus():
    tau = sample_tau(8, torch.device("cpu"))
    assert torch.equal((tau * 8).floor(), torch.arange(8.0))
    averse = risk_averse_tau(0.25, 4, torch.device("cpu"))
    torch.testing.assert_close(averse, torch.tensor([1.0, 3.0, 5.0, 7.0]) / 32)


def test_iqn_shape_and_dependence_on_tau():
    iqn = ImplicitQuantiles(16, (2, 3))
    out = iqn(torch.randn(4, 16), torch.tensor([0.1, 0.1, 0.9]))
    assert out.shape == (4, 3, 2, 3)
    finite = out[..., 0, :2]
    torch.testing.assert_close(finite[:, 0], finite[:, 1])
    assert not torch.allclose(finite[:, 0], finite[:, 2])
