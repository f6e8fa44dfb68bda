"""Curiosity: awkward weights, updated exactly; a bonus in running standard deviations."""

import copy
import pickle

import pytest
import torch
from torch import nn

from sp4_lightning.admission import is_dense
from sp4_lightning.agents.curiosity import BONUS_CAP, Curiosity


def batch(size=16, seed=0):
    rng = torch.Generator().manual_seed(seed)
    action = torch.randint(2, (size, 2), generator=rng)
    return torch.randn(size, 3, generator=rng), action, torch.randn(size, 3, generator=rng)


def is_awkward(module):
    return (
        not module.w1.is_contiguous()
        and not is_dense(module.w1)
        and module.w1.stride(1) == 2
        and not module.w2.is_contiguous()
        and module.w2.t().is_contiguous()
    )


def test_weights_are_strided_and_stay_so(tmp_path):
    module = Curiosity(3, (2, 2))
    assert is_awkward(module)
    before = copy.deepcopy(module.state_dict())
    for other in (
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        copy.deepcopy(module).double().float(),
        copy.deepcopy(module).to("meta").to_empty(device="cpu"),
    ):
        assert is_awkward(other)
    torch.save(module.state_dict(), tmp_path / "state.pt")
    fresh = Curiosity(3, (2, 2))
    fresh.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert is_awkward(fresh)
    assert all(torch.equal(value, before[name]) for name, value in fresh.state_dict().items())


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_an_optimizer_updates_them_like_contiguous_twins(make):
    module = Curiosity(3, (2, 2))
    gaps = torch.as_strided(module.w1.data, module.w1.shape, module.w1.stride(), 1)
    gaps[:, :-1].fill_(float("nan"))  # whoever reads or writes between the weights shows
    twins = [nn.Parameter(p.detach().clone().contiguous()) for p in module.parameters()]
    mine, theirs = make(module.parameters(), lr=1e-2), make(twins, lr=1e-2)
    for seed in range(50):
        mine.zero_grad()
        module.error(*batch(seed=seed)).mean().backward()
        for p, twin in zip(module.parameters(), twins, strict=True):
            twin.grad = p.grad.clone().contiguous()
        mine.step()
        theirs.step()
        for p, twin in zip(module.parameters(), twins, strict=True):
            assert torch.equal(p, twin)
    assert is_awkward(module)
    assert gaps[:, :-1].isnan().all()


def test_forward_equals_the_formula_on_contiguous_weights():
    module = Curiosity(3, (2, 2))
    observation, action, successor = batch()
    one_hot = torch.cat([nn.functional.one_hot(action[:, d], 2) for d in range(2)], -1).float()
    inputs = torch.cat((module.phi(observation), one_hot), -1)
    hidden = torch.relu(inputs @ module.w1.contiguous() + module.b1)
    predicted = hidden @ module.w2.contiguous() + module.b2
    expected = (predicted - module.phi(successor)).square().mean(-1)
    torch.testing.assert_close(module.error(observation, action, successor), expected)


def test_frozen_features_are_no_parameters():
    assert [name for name, _ in Curiosity(3, (2,)).named_parameters()] == ["w1", "b1", "w2", "b2"]


def test_bonus_is_error_over_running_deviation():
    module = Curiosity(3, (2, 2), memory=0.25)
    first, second = torch.tensor([1.0, 3.0]), torch.tensor([10.0, 0.0])
    torch.testing.assert_close(module.bonus(first), first.clamp_max(BONUS_CAP))  # deviation of 1 and 3 is 1
    weights = torch.tensor([0.25 * 0.75, 0.25])
    mean = (weights * torch.tensor([2.0, 5.0])).sum() / weights.sum()
    square = (weights * torch.tensor([5.0, 50.0])).sum() / weights.sum()
    expected = (second / (square - mean**2).sqrt()).clamp_max(BONUS_CAP)
    torch.testing.assert_close(module.bonus(second), expected)


def test_an_unreadable_batch_leaves_the_running_moments_alone():
    module = Curiosity(3, (2, 2))
    module.bonus(torch.tensor([1.0, 3.0]))
    before = module.moments.clone()
    module.bonus(torch.tensor([float("nan"), 1.0]))
    module.bonus(torch.tensor([float("inf"), 1.0]))
    assert torch.equal(module.moments, before)
    assert module.bonus(torch.tensor([1.0, 3.0])).isfinite().all()


def test_training_reduces_the_error():
    torch.manual_seed(0)
    module = Curiosity(3, (2, 2))
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
    observation, action, _ = batch(256)
    successor = observation + 0.1 * action.float().sum(-1, keepdim=True)
    start = module.error(observation, action, successor).mean().item()
    for _ in range(300):
        optimizer.zero_grad()
        module.error(observation, action, successor).mean().backward()
        optimizer.step()
    assert module.error(observation, action, successor).mean().item() < 0.1 * start
