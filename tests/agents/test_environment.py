"""Environments: true successors, explicit resets, exact restoration, action encoding, error texts."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from sp4_lightning.agents.actions import ActionCodec
from sp4_lightning.agents.environment import Environments, episode_seed
from sp4_lightning.errors import ConfigurationError

CONTINUOUS = {"continuous": True}


def random_actions(envs, count, seed=0):
    rng = torch.Generator().manual_seed(seed)
    high = torch.tensor(envs.actions.branches)
    return [(torch.rand(envs.num_envs, len(high), generator=rng) * high).long() for _ in range(count)]


@pytest.mark.parametrize(
    ("environment", "options"),
    [("CartPole-v1", {}), ("Acrobot-v1", {"max_episode_steps": 20}), ("LunarLander-v3", {})],
)
def test_a_vector_is_its_environments_played_alone(environment, options):
    envs = Environments(environment, 2, 5, options=options)
    alone = [gym.make(environment, **options) for _ in range(2)]
    episodes = [0, 0]
    current = [env.reset(seed=episode_seed(5, i, 0))[0] for i, env in enumerate(alone)]
    assert torch.equal(envs.reset(), torch.tensor(np.stack(current), dtype=torch.float32))
    ended = 0
    for action in random_actions(envs, 150):
        step = envs.step(action)
        for i, env in enumerate(alone):
            successor, reward, terminated, truncated, _ = env.step(int(action[i, 0]))
            assert np.array_equal(step.successor[i].numpy(), successor.astype(np.float32))
            assert step.reward[i].item() == np.float32(reward)
            assert (step.terminated[i].item(), step.truncated[i].item()) == (terminated, truncated)
            if terminated or truncated:
                ended += 1
                episodes[i] += 1
                successor, _ = env.reset(seed=episode_seed(5, i, episodes[i]))
            assert np.array_equal(step.observation[i].numpy(), successor.astype(np.float32))
    assert ended >= 2
    envs.close()


@pytest.mark.parametrize(
    ("environment", "options"), [("CartPole-v1", {}), ("LunarLander-v3", {}), ("LunarLander-v3", CONTINUOUS)]
)
def test_restored_environments_go_on_exactly(environment, options):
    envs = Environments(environment, 3, 9, options=options)
    envs.reset()
    for action in random_actions(envs, 100):
        envs.step(action)
    state = envs.state_dict()
    assert len(set(state["lengths"].tolist())) > 1  # in the middle of different episodes
    restored = Environments(environment, 3, 9, options=options)
    restored.load_state_dict(state)
    for action in random_actions(envs, 120, seed=1):
        for a, b in zip(envs.step(action), restored.step(action), strict=True):
            assert torch.equal(a, b)
    envs.close()
    restored.close()


def test_environments_restored_right_after_reset():
    envs, restored = (Environments("CartPole-v1", 2, 4) for _ in range(2))
    envs.reset()
    restored.load_state_dict(envs.state_dict())
    action = torch.ones(2, 1, dtype=torch.int64)
    assert torch.equal(envs.step(action).successor, restored.step(action).successor)


def test_only_chosen_entries_are_visible():
    full = Environments("CartPole-v1", 2, 4)
    hidden = Environments("CartPole-v1", 2, 4, observation_indices=[0, 2])
    assert hidden.observation_size == 2
    assert torch.equal(full.reset()[:, [0, 2]], hidden.reset())


def test_actions_of_every_kind_of_space():
    pick = torch.tensor([[2, 0], [1, 1]])
    discrete = ActionCodec(gym.spaces.Discrete(3, start=5))
    assert discrete.branches == (3,)
    assert discrete.decode(pick[:, :1]).tolist() == [7, 6]
    several = ActionCodec(gym.spaces.MultiDiscrete([3, 2]))
    assert several.branches == (3, 2)
    assert several.decode(pick).tolist() == [[2, 0], [1, 1]]
    box = ActionCodec(gym.spaces.Box(np.float32([-1, 0]), np.float32([1, 3])), bins=4)
    assert box.branches == (4, 4)
    decoded = box.decode(torch.tensor([[0, 3], [3, 1]]))
    assert decoded.dtype == np.float32
    np.testing.assert_allclose(decoded, [[-1, 3], [1, 1]], rtol=1e-6)
    assert all(gym.spaces.Box(np.float32([-1, 0]), np.float32([1, 3])).contains(row) for row in decoded)


def test_decoded_actions_belong_to_the_environment():
    for environment, options in [("CartPole-v1", {}), ("LunarLander-v3", CONTINUOUS)]:
        envs = Environments(environment, 2, 0, options=options)
        space = gym.make(environment, **options).action_space
        for action in random_actions(envs, 5):
            assert all(row in space for row in envs.actions.decode(action))


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        (
            {"environment": "CartPol-v1"},
            "There is no environment 'CartPol-v1'. Did you mean 'CartPole-v1'?",
        ),
        ({"environment": "CartPole-v77"}, "There is no environment 'CartPole-v77'. Did you mean 'CartPole-v"),
        (
            {"environment": "no_such_module:Nothing-v0"},
            "The environment 'no_such_module:Nothing-v0' cannot be made: ",
        ),
        ({"environment": "nowhere/Nothing-v0"}, "There is no environment 'nowhere/Nothing-v0'."),
        ({"environment": "not an id"}, "The environment 'not an id' cannot be made: Malformed"),
        (
            {"environment": "CartPole-v1", "options": {"gravitty": 1}},
            "The environment 'CartPole-v1' cannot be made with {'gravitty': 1}: ",
        ),
        (
            {"environment": "CartPole-v1", "observation_indices": [0, 4]},
            "observation_indices must name entries from 0 to 3, got [0, 4].",
        ),
        ({"environment": "CartPole-v1", "observation_indices": []}, "observation_indices must name entries"),
        ({"environment": "FrozenLake-v1"}, "Observations must be a Box of numbers; these are Discrete(16)."),
        (
            {"environment": "Pendulum-v1", "action_bins": 1},
            "action_bins must be at least 2 for the action space Box(-2.0, 2.0, (1,), float32), got 1.",
        ),
    ],
)
def test_errors_say_what_is_wrong(kwargs, text):
    environment = kwargs.pop("environment")
    with pytest.raises(ConfigurationError) as caught:
        Environments(environment, 1, 0, **kwargs)
    assert str(caught.value).startswith(text)


def test_unbounded_actions_are_refused():
    with pytest.raises(ConfigurationError, match="needs bounds"):
        ActionCodec(gym.spaces.Box(-np.inf, np.inf, (2,)))
    with pytest.raises(ConfigurationError, match="can be Discrete, MultiDiscrete or Box"):
        ActionCodec(gym.spaces.MultiBinary(3))
