"""n-step returns against their definition, on episodes played one environment at a time."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from sp4_lightning.agents.environment import Environments, Step, episode_seed
from sp4_lightning.agents.history import ObservationHistory
from sp4_lightning.agents.nstep import NStepReturns

NUM_ENVS, STEPS, SEED, GAMMA = 3, 60, 11, 0.9


def play_alone(environment, options, index, actions):
    """One environment's episodes without vectorisation: observations, actions, rewards, terminated, done."""
    env = gym.make(environment, **options)
    episodes, taken = [], 0
    while taken < len(actions):
        first, _ = env.reset(seed=episode_seed(SEED, index, len(episodes)))
        episode = ([first], [], [], False)
        done = False
        while not done and taken < len(actions):
            observation, reward, terminated, truncated, _ = env.step(int(actions[taken]))
            taken += 1
            episode[0].append(observation)
            episode[1].append(int(actions[taken - 1]))
            episode[2].append(float(reward))
            done = terminated or truncated
            episode = (*episode[:3], terminated)
        episodes.append((*episode, done))
    env.close()
    return episodes


def window(observations, t, length):
    """The last ``length`` observations at time t; before the episode's beginning its first one."""
    return np.stack([observations[max(k, 0)] for k in range(t - length + 1, t + 1)])


def by_definition(episodes, steps, length):
    """Every complete transition, in the order of completion."""
    for observations, actions, rewards, terminated, done in episodes:
        end = len(actions)
        for t in range(end):
            m = min(steps, end - t)
            if not done and t + steps > end:
                continue  # still waiting for its steps
            value = sum(GAMMA**k * rewards[t + k] for k in range(m))
            discount = 0.0 if terminated and t + m == end else GAMMA**m
            yield (
                window(observations, t, length),
                actions[t],
                value,
                discount,
                window(observations, t + m, length),
                observations[t + 1],
            )


@pytest.mark.parametrize("steps", [1, 3, 5])
@pytest.mark.parametrize(
    ("environment", "options"),
    [
        ("CartPole-v1", {"max_episode_steps": 14}),  # some episodes terminate, some are truncated
        ("CartPole-v1", {"max_episode_steps": 2}),  # episodes shorter than n
        ("Acrobot-v1", {"max_episode_steps": 10}),  # truncated only
    ],
)
def test_vectorised_returns_equal_the_definition(environment, options, steps):
    length = 4
    envs = Environments(environment, NUM_ENVS, SEED, options=options)
    rng = torch.Generator().manual_seed(0)
    actions = torch.randint(2, (STEPS, NUM_ENVS, 1), generator=rng)
    history = ObservationHistory(envs.reset(), length)
    returns = NStepReturns(NUM_ENVS, steps, GAMMA)
    found = [[] for _ in range(NUM_ENVS)]
    endings = [0, 0]
    for action in actions:
        before = history.window
        step = envs.step(action)
        after = history.push(step.successor)
        # One environment at a time shows whose transitions they are: the outputs come ordered by environment.
        out = returns.push(before, action, step, after)
        done = step.terminated | step.truncated
        endings[0] += int(step.terminated.sum())
        endings[1] += int(step.truncated.sum())
        row = 0
        for i in range(NUM_ENVS):
            while row < len(out.reward) and torch.equal(out.next_history[row], after[i]):
                found[i].append([t[row] for t in out])
                row += 1
        assert row == len(out.reward)
        history.begin(step.observation, done)
    envs.close()
    assert sum(endings) > 0
    for i in range(NUM_ENVS):
        expected = list(by_definition(play_alone(environment, options, i, actions[:, i, 0]), steps, length))
        assert len(found[i]) == len(expected) > 0
        for got, want in zip(found[i], expected, strict=True):
            for name, g, w in zip(("history", "action", "reward", "discount", "next", "one"), got, want, strict=True):
                np.testing.assert_allclose(g.squeeze().numpy(), np.float32(w), rtol=1e-5, err_msg=name)


def test_mixed_endings_really_occur():
    envs = Environments("CartPole-v1", NUM_ENVS, SEED, options={"max_episode_steps": 14})
    envs.reset()
    actions = torch.randint(2, (STEPS, NUM_ENVS, 1), generator=torch.Generator().manual_seed(0))
    steps = [envs.step(action) for action in actions]
    assert sum(int(s.terminated.sum()) for s in steps) > 0
    assert sum(int((s.truncated & ~s.terminated).sum()) for s in steps) > 0
    envs.close()


def test_a_terminated_step_at_the_time_limit_does_not_bootstrap():
    returns = NStepReturns(1, 3, 0.5)
    observation = torch.zeros(1, 1, 2)
    both = Step(torch.zeros(1, 2), torch.ones(1), torch.tensor([True]), torch.tensor([True]), torch.zeros(1, 2))
    out = returns.push(observation, torch.zeros(1, 1, dtype=torch.int64), both, observation)
    assert out.discount.tolist() == [0.0]
    assert out.reward.tolist() == [1.0]


def test_state_continues_in_the_middle_of_an_episode():
    def step(k):
        ends = torch.tensor([k == 6, False])
        return Step(torch.full((2, 1), float(k)), torch.tensor([1.0, k]), ends, ends & False, torch.zeros(2, 1))

    def push(returns, k):
        x = torch.full((2, 1, 1), float(k))
        return returns.push(x, torch.zeros(2, 1, dtype=torch.int64), step(k), x + 1)

    straight = NStepReturns(2, 3, 0.9)
    for k in range(5):
        push(straight, k)
    resumed = NStepReturns(2, 3, 0.9)
    resumed.load_state_dict(straight.state_dict())
    for k in range(5, 9):
        for a, b in zip(push(straight, k), push(resumed, k), strict=True):
            assert torch.equal(a, b)
