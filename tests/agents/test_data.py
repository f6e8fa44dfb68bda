"""Replay, history, exploration and the dataset that yields batches."""

import pytest
import torch

from sp4_lightning.agents.exploration import explore
from sp4_lightning.agents.history import ObservationHistory
from sp4_lightning.agents.replay import Replay, Transitions
from sp4_lightning.agents.schedules import Linear


def numbered(*numbers):
    n = torch.tensor(numbers, dtype=torch.float32)
    return Transitions(n.view(-1, 1, 1), n.long().view(-1, 1), n, n, n.view(-1, 1, 1), n.view(-1, 1))


def test_replay_keeps_the_newest_and_samples_them_uniformly():
    replay, rng = Replay(5), torch.Generator().manual_seed(0)
    replay.add(numbered())
    assert len(replay) == 0
    for first in range(0, 12, 3):
        replay.add(numbered(first, first + 1, first + 2))
    assert len(replay) == 5
    batch = replay.sample(5000, rng)
    counts = batch.reward.long().bincount()
    assert counts[:7].sum() == 0
    assert (counts[7:] - 1000).abs().max() < 150
    assert all(torch.equal(batch.reward, field.reshape(-1).float()) for field in batch)


@pytest.mark.parametrize("filled", [0, 3, 5, 8])
def test_replay_state_round_trip(tmp_path, filled):
    replay = Replay(5)
    for k in range(filled):
        replay.add(numbered(k))
    torch.save(replay.state_dict(), tmp_path / "replay.pt")
    other = Replay(5)
    other.load_state_dict(torch.load(tmp_path / "replay.pt", weights_only=True))
    for k in range(8, 11):
        replay.add(numbered(k))
        other.add(numbered(k))
        a, b = (r.sample(50, torch.Generator().manual_seed(k)) for r in (replay, other))
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_history_starts_anew_with_each_episode():
    history = ObservationHistory(torch.tensor([[1.0], [10.0]]), 3)
    history.push(torch.tensor([[2.0], [20.0]]))
    kept = history.window
    history.push(torch.tensor([[3.0], [30.0]]))
    history.begin(torch.tensor([[0.0], [99.0]]), torch.tensor([False, True]))
    assert history.window.squeeze(-1).tolist() == [[1, 2, 3], [99, 99, 99]]
    assert kept.squeeze(-1).tolist() == [[1, 1, 2], [10, 10, 20]]  # a stored window never changes


def test_exploration_rate_and_range():
    rng = torch.Generator().manual_seed(0)
    greedy = torch.full((200_000, 2), 7)
    action = explore(greedy, (2, 3), 0.3, rng)
    random = (action != 7).all(-1)
    assert torch.equal(random, (action != 7).any(-1))  # all branches or none
    assert random.float().mean().item() == pytest.approx(0.3, abs=0.005)
    assert set(action[random][:, 0].tolist()) == {0, 1}
    assert set(action[random][:, 1].tolist()) == {0, 1, 2}
    assert torch.equal(explore(greedy, (2, 3), 0.0, rng), greedy)


def test_linear_schedule():
    line = Linear(1.0, 0.2, 8)
    assert [line.at(t) for t in (0, 4, 8, 100)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    assert Linear(1.0, 0.5, 0).at(0) == 0.5


def test_updates_keep_pace_with_environment_steps(make_agent):
    experience = make_agent(update_ratio=0.25, learning_starts=100, epoch_updates=10).experience
    assert len(experience) == 10
    seen = []
    for _ in range(2):  # a second pass goes on where the first one stopped
        seen += [experience.steps for _ in experience]
    assert seen == [
        104,
        104,
        112,
        112,
        120,
        120,
        128,
        128,
        136,
        136,
        144,
        144,
        152,
        152,
        160,
        160,
        168,
        168,
        176,
        176,
    ]


def test_batches_are_what_the_networks_expect(make_agent):
    experience = make_agent(environment="LunarLander-v3", environment_options={"continuous": True}).experience
    batch = next(iter(experience))
    assert [tuple(field.shape) for field in batch] == [(32, 4, 8), (32, 2), (32,), (32,), (32, 4, 8), (32, 8)]
    assert [field.dtype for field in batch] == [torch.float32, torch.int64, *[torch.float32] * 4]
    assert batch.action.min() >= 0
    assert batch.action.max() == 2
