"""The agent's losses: eight groups that all learn, disjoint graphs, absent parts, targets by definition."""

import pytest
import torch
from lightning.pytorch import Callback

from sp4_lightning.agents import AUXILIARIES, GROUPS
from sp4_lightning.agents.branches import pick
from sp4_lightning.agents.learner import Learner
from sp4_lightning.agents.replay import Transitions
from sp4_lightning.errors import ConfigurationError


def make_batch(size=32, branches=(3, 2), history=4, observation=5, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return Transitions(
        torch.randn(size, history, observation, generator=rng),
        torch.stack([torch.randint(n, (size,), generator=rng) for n in branches], -1),
        torch.randn(size, generator=rng),
        0.97 * torch.randint(2, (size,), generator=rng),
        torch.randn(size, history, observation, generator=rng),
        torch.randn(size, observation, generator=rng),
    )


@pytest.fixture
def learner():
    torch.manual_seed(0)
    learner = Learner(5, 4, (3, 2))
    for parameter in learner.target.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)  # so that lagged and trained networks differ
    return learner


class EveryGroupLearns(Callback):
    """Looks at the gradients where an optimizer is about to use them."""

    def __init__(self):
        self.seen = dict.fromkeys(GROUPS, 0)

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        for group in optimizer.param_groups:
            assert all(p.grad is not None and p.grad.isfinite().all() for p in group["params"])
            assert any(p.grad.count_nonzero() > 0 for p in group["params"]), (
                group["name"],
                pl_module.updates,
            )
            self.seen[group["name"]] += 1


@pytest.mark.parametrize("optimizers", ["six", "one"])
def test_every_group_has_a_gradient_in_each_of_the_first_100_updates(make_agent, make_trainer, optimizers):
    watch = EveryGroupLearns()
    agent = make_agent(optimizers=optimizers, epoch_updates=100)
    before = {name: [p.clone() for p in part.parameters()] for name, part in agent.learner.groups().items()}
    make_trainer(callbacks=[watch]).fit(agent)
    assert watch.seen == dict.fromkeys(GROUPS, 100)
    for name, part in agent.learner.groups().items():
        moved = [not torch.equal(p, old) for p, old in zip(part.parameters(), before[name], strict=True)]
        assert all(moved), name


def test_groups_hold_every_trainable_parameter_once(learner):
    assert tuple(learner.groups()) == GROUPS
    grouped = [id(p) for part in learner.groups().values() for p in part.parameters()]
    assert sorted(grouped) == sorted(id(p) for p in learner.parameters() if p.requires_grad)
    assert len(set(grouped)) == len(grouped)
    assert not any(p.requires_grad for net in (learner.target, learner.iqn_target) for p in net.parameters())


def test_one_backward_of_the_sum_equals_one_for_each_loss(learner):
    batch = make_batch()

    def gradients(select):
        learner.zero_grad()
        torch.manual_seed(1)
        learner.curiosity.moments.zero_()
        losses = learner.losses(batch, bonus=0.05)
        torch.stack([losses[name] for name in select or losses]).sum().backward()
        return {name: p.grad for name, p in learner.named_parameters() if p.grad is not None}

    together = gradients(None)
    owner = {
        "dqn": "online.",
        "iqn": "iqn.",
        "iql_high": "iql_high.",
        "iql_low": "iql_low.",
        "curiosity": "curiosity.",
    }
    seen = set()
    for loss, prefix in owner.items():
        alone = gradients([loss])
        assert all(name.startswith(prefix) for name in alone), loss
        assert all(torch.equal(grad, together[name]) for name, grad in alone.items())
        seen |= set(alone)
    assert seen == set(together) == {name for name, p in learner.named_parameters() if p.requires_grad}


def target_of(learner, batch):
    next_features = learner.online.features(batch.next_history)
    return learner._target(batch, batch.reward, next_features, learner.online.q_values(next_features))


def test_target_is_the_branching_double_dqn_value_within_the_bracket(learner):
    batch = make_batch()
    online, lagged = learner.online(batch.next_history), learner.target(batch.next_history)
    features = learner.online.features(batch.next_history)
    high, low = learner.iql_high(features), learner.iql_low(features)
    width = (high - low).abs() + 1
    for b in range(len(batch.reward)):
        values = []
        for d, n in enumerate((3, 2)):
            best = max(range(n), key=lambda a, b=b, d=d: online[b, d, a].item())
            values.append(lagged[b, d, best])
        bootstrap = torch.stack(values).mean().clamp(low[b] - width[b], high[b] + width[b])
        expected = batch.reward[b] + batch.discount[b] * bootstrap
        torch.testing.assert_close(target_of(learner, batch).value[b], expected)
    taken = pick(learner.target(batch.history), batch.action).mean(-1)
    torch.testing.assert_close(target_of(learner, batch).taken, taken)


def test_without_the_clip_the_bootstrap_goes_beyond_the_bracket(learner):
    batch = make_batch()
    for head in (learner.iql_high, learner.iql_low):  # far below Q, so that the bracket always binds
        head.layers[2].bias.data.fill_(-50.0)
    clipped = target_of(learner, batch).value
    learner.iql_clip = False
    free = target_of(learner, batch).value
    best = learner.online(batch.next_history).argmax(-1)
    bootstrap = pick(learner.target(batch.next_history), best).mean(-1)
    torch.testing.assert_close(free, batch.reward + batch.discount * bootstrap)
    assert torch.equal(free > clipped, batch.discount > 0)


def test_losses_depend_on_the_batch_the_networks_and_torchs_generator_only(learner):
    state = {name: value.clone() for name, value in learner.state_dict().items()}

    def run():
        learner.load_state_dict(state)
        torch.manual_seed(3)
        return [loss.item() for loss in learner.losses(make_batch(), bonus=0.05).values()]

    first = run()
    learner.losses(make_batch(seed=5), bonus=0.05)
    assert run() == first


def test_bonus_is_added_to_the_reward_and_nothing_else(learner):
    batch = make_batch()
    kept = batch.reward.clone()
    error = learner.curiosity.error(batch.history[:, -1], batch.action, batch.next_observation)
    learner.curiosity.moments.zero_()
    torch.manual_seed(1)
    with_bonus = learner.losses(batch, bonus=0.5)
    learner.curiosity.moments.zero_()
    bonus = learner.curiosity.bonus(error)
    assert (bonus > 0).all()
    torch.manual_seed(1)
    paid = learner.losses(batch._replace(reward=batch.reward + 0.5 * bonus), bonus=0.0)
    assert {name: loss.item() for name, loss in with_bonus.items()} == {n: loss.item() for n, loss in paid.items()}
    assert torch.equal(batch.reward, kept)


def test_lagged_networks_move_only_when_synchronised(learner):
    lagged = [*learner.target.parameters(), *learner.iqn_target.parameters()]
    trained = [*learner.online.parameters(), *learner.iqn.parameters()]
    before = [p.clone() for p in lagged]
    with torch.no_grad():
        torch._foreach_add_(trained, 1.0)
    assert all(torch.equal(p, b) for p, b in zip(lagged, before, strict=True))
    learner.sync_targets()
    assert all(torch.equal(a, b) for a, b in zip(lagged, trained, strict=True))


@pytest.mark.parametrize("absent", [*AUXILIARIES, "all"])
def test_the_agent_trains_without_any_auxiliary(make_agent, make_trainer, absent):
    present = [name for name in AUXILIARIES if absent not in (name, "all")]
    agent = make_agent(auxiliaries=present)
    before = {name: p.clone() for name, p in agent.learner.named_parameters() if p.requires_grad}
    trainer = make_trainer()
    trainer.fit(agent)
    assert tuple(agent.learner.groups()) == tuple(n for n in GROUPS if n.startswith("dqn") or n in present)
    assert len(trainer.optimizers) == 1 + len(present)
    assert all(p.isfinite().all() for p in agent.parameters())
    assert all(not torch.equal(p, before[n]) for n, p in agent.learner.named_parameters() if n in before)


def test_risk_aversion_acts_on_the_worst_quantiles():
    torch.manual_seed(0)
    neutral, averse = Learner(5, 4, (4,)), Learner(5, 4, (4,), cvar=0.25)
    history = torch.randn(64, 4, 5)
    features = neutral.online.features(history)
    everywhere = (torch.arange(32) + 0.5) / 32
    # All actions alike on average, so that other quantiles mean other actions.
    neutral.iqn.layers[2].bias.data -= neutral.iqn(features, everywhere).mean((0, 1, 2)).detach()
    averse.load_state_dict(neutral.state_dict())
    tau = 0.25 * (torch.arange(32) + 0.5) / 32
    assert torch.equal(averse.act(history), averse.iqn(features, tau).mean(1).argmax(-1))
    assert torch.equal(neutral.act(history), neutral.online(history).argmax(-1))
    mean = Learner(5, 4, (4,), cvar=1.0)
    mean.load_state_dict(neutral.state_dict())
    assert torch.equal(mean.act(history), mean.iqn(features, everywhere).mean(1).argmax(-1))
    assert not torch.equal(mean.act(history), averse.act(history))


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        (
            {"auxiliaries": ["iqn", "iql_hihg"]},
            "There is no auxiliary trainer 'iql_hihg'. Did you mean 'iql_high'? "
            "Trainers are iqn, iql_high, iql_low, attention, curiosity.",
        ),
        ({"auxiliaries": ["iql_low"], "cvar": 0.5}, "cvar=0.5 needs the quantiles of 'iqn'"),
        ({"cvar": 0.0}, "cvar must lie in (0, 1], got 0.0."),
    ],
)
def test_errors_say_what_is_wrong(kwargs, text):
    with pytest.raises(ConfigurationError) as caught:
        Learner(4, 4, (2,), **kwargs)
    assert str(caught.value).startswith(text)
