"""The agent inside Lightning: environments, optimizers, schedules, validation, checkpoints."""

import copy
import csv
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from sp4_lightning.agents import GROUPS, DQNAgent
from sp4_lightning.errors import CheckpointError, ConfigurationError


def weights(agent):
    return {name: value.clone() for name, value in agent.learner.state_dict().items()}


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert torch.equal(value, b[name]), name


@pytest.mark.parametrize(
    ("kwargs", "branches"),
    [
        ({"environment": "CartPole-v1"}, 1),
        ({"environment": "CartPole-v1", "observation_indices": [0, 2]}, 1),
        ({"environment": "Acrobot-v1"}, 1),
        ({"environment": "LunarLander-v3"}, 1),
        ({"environment": "LunarLander-v3", "environment_options": {"continuous": True}}, 2),
        ({"environment": "Pendulum-v1", "action_bins": 7, "td_loss": "mse"}, 1),
    ],
)
def test_every_environment_trains_and_is_evaluated(make_agent, make_trainer, kwargs, branches):
    agent = make_agent(**kwargs)
    before = weights(agent)
    trainer = make_trainer(limit_val_batches=1)
    trainer.fit(agent)
    assert agent.updates == 20
    assert all(value.isfinite().all() for value in weights(agent).values())
    moved = {name for name, value in weights(agent).items() if not torch.equal(value, before[name])}
    trainable = {name for name, p in agent.learner.named_parameters() if p.requires_grad}
    assert trainable <= moved
    assert "eval/return" in trainer.callback_metrics
    window = agent.experience.history.window
    assert agent(window).shape[:2] == (8, branches)
    assert agent.policy(window).shape == (8, branches)


def test_optimizers_carry_the_groups_names(make_agent):
    six = make_agent().configure_optimizers()
    assert [[g["name"] for g in opt.param_groups] for opt in six] == [
        ["dqn_trunk", "dqn_value", "dqn_branches"],
        ["iqn"],
        ["iql_high"],
        ["iql_low"],
        ["attention"],
        ["curiosity"],
    ]
    (one,) = make_agent(optimizers="one").configure_optimizers()
    assert tuple(group["name"] for group in one.param_groups) == GROUPS
    # The fused kernel would corrupt curiosity's strided weights.
    for optimizers in (six, [one]):
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        assert {group["name"] for group in groups if not group["fused"]} == {"curiosity"}
    with pytest.raises(ConfigurationError, match="cannot update the strided parameters of curiosity"):
        make_agent(fused=True).configure_optimizers()
    assert len(make_agent(fused=True, auxiliaries=["iqn"]).configure_optimizers()) == 2


def test_six_optimizers_and_one_learn_the_same(make_agent, make_trainer):
    agents = [make_agent(optimizers=layout) for layout in ("six", "one")]
    for agent in agents:
        make_trainer().fit(agent)
    assert_same(weights(agents[0]), weights(agents[1]))


class Rates(Callback):
    def __init__(self):
        self.rates = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.rates.append({group["lr"] for group in optimizer.param_groups})


@pytest.mark.parametrize(("schedule", "last"), [("linear", 1e-3 / 20), ("constant", 1e-3)])
def test_training_ends_after_its_steps_with_the_scheduled_rate(make_agent, make_trainer, schedule, last):
    agent = make_agent(total_steps=144, learning_rate_schedule=schedule, epoch_updates=8)
    rates = Rates()
    make_trainer(max_epochs=-1, callbacks=[rates]).fit(agent)
    assert agent.updates == agent.total_updates == 20
    assert agent.experience.steps == 144
    assert rates.rates[0] == {1e-3}
    assert [next(iter(r)) for r in rates.rates[-6:]] == pytest.approx([last] * 6)


def test_lagged_networks_follow_on_their_own_counter(make_agent, make_trainer):
    agent = make_agent(target_sync=10, epoch_updates=19)
    make_trainer().fit(agent)
    agent.updates = 10
    copied = dict(agent.learner.target.named_parameters())
    assert all(not torch.equal(p, copied[name]) for name, p in agent.learner.online.named_parameters())
    agent = make_agent(target_sync=10)
    make_trainer().fit(agent)
    assert_same(agent.learner.online.state_dict(), agent.learner.target.state_dict())


def test_a_run_is_reproduced_by_its_seed_alone(make_agent, make_trainer):
    runs = []
    for seed, noise in ((3, 0), (3, 1), (4, 0)):
        torch.manual_seed(noise)
        agent = make_agent(seed=seed)
        make_trainer().fit(agent)
        runs.append(weights(agent))
    assert_same(runs[0], runs[1])
    assert any(not torch.equal(value, runs[2][name]) for name, value in runs[0].items())


def test_making_an_agent_leaves_the_global_generator_alone(make_agent):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    make_agent()
    assert torch.equal(torch.get_rng_state(), before)


def test_validation_does_not_disturb_training(make_agent, make_trainer):
    watched, alone = make_agent(), make_agent()
    make_trainer(max_epochs=2, limit_val_batches=1, val_check_interval=5, num_sanity_val_steps=1).fit(watched)
    make_trainer(max_epochs=2).fit(alone)
    assert_same(weights(watched), weights(alone))


@pytest.mark.parametrize("cvar", [None, 0.25])
def test_validate_and_test_play_reproducible_episodes(make_agent, make_trainer, cvar):
    agent, trainer = make_agent(cvar=cvar), make_trainer(limit_val_batches=1)
    first = trainer.validate(agent, verbose=False)
    assert first == trainer.validate(agent, verbose=False)
    assert first[0]["eval/return"] >= 8.0  # no episode of CartPole ends sooner
    assert trainer.test(agent, verbose=False)[0]["test/return"] >= 8.0
    assert not torch.equal(next(iter(agent.val_dataloader())), next(iter(agent.test_dataloader())))


@pytest.mark.parametrize(
    "kwargs",
    [
        {"environment": "CartPole-v1"},
        {"environment": "LunarLander-v3", "environment_options": {"continuous": True}, "optimizers": "one"},
    ],
)
def test_a_resumed_run_is_bit_identical(make_agent, make_trainer, tmp_path, kwargs):
    straight = make_agent(**kwargs)
    make_trainer(max_epochs=3, limit_val_batches=1).fit(straight)
    first = make_agent(**kwargs)
    trainer = make_trainer(max_epochs=1)
    trainer.fit(first)
    trainer.save_checkpoint(tmp_path / "agent.ckpt")
    torch.manual_seed(99)
    resumed = make_agent(**kwargs)
    make_trainer(max_epochs=3, limit_val_batches=1).fit(resumed, ckpt_path=tmp_path / "agent.ckpt")
    assert resumed.updates == straight.updates == 60
    assert_same(weights(resumed), weights(straight))
    a, b = resumed.experience, straight.experience
    assert (a.steps, a.batches) == (b.steps, b.batches)
    assert_same(a.replay.state_dict(), b.replay.state_dict())
    assert_same(a.environments.state_dict(), b.environments.state_dict())


def test_a_checkpoint_holds_plain_values_and_rebuilds_the_agent(make_agent, make_trainer, tmp_path):
    agent = make_agent(auxiliaries=["iqn", "attention"], observation_indices=[0, 2])
    trainer = make_trainer()
    trainer.fit(agent)
    trainer.save_checkpoint(tmp_path / "agent.ckpt")
    state = torch.load(tmp_path / "agent.ckpt", weights_only=True)
    assert state["dqn_agent"]["updates"] == 20
    assert state["hyper_parameters"]["observation_indices"] == [0, 2]
    rebuilt = DQNAgent.load_from_checkpoint(tmp_path / "agent.ckpt", weights_only=True)
    assert_same(weights(rebuilt), weights(agent))
    window = agent.experience.history.window
    assert torch.equal(rebuilt.policy(window), agent.policy(window))


def test_one_update_depends_on_batch_networks_optimizers_and_generator_only(make_agent, make_trainer):
    agent = make_agent()
    trainer = make_trainer()
    trainer.fit(agent)
    batch = next(iter(agent.experience))
    agent.trainer = trainer
    saved = copy.deepcopy((agent.learner.state_dict(), [opt.state_dict() for opt in trainer.optimizers]))

    def update():
        agent.learner.load_state_dict(saved[0])
        for opt, state in zip(trainer.optimizers, saved[1], strict=True):
            opt.load_state_dict(copy.deepcopy(state))
        agent.updates = 20
        torch.manual_seed(7)
        agent.update(batch)
        return weights(agent)

    first = update()
    for _ in range(5):
        agent.experience.step()
    assert_same(first, update())


def test_logged_values_reach_the_logger_on_its_own_steps(make_agent, make_trainer, tmp_path):
    logger = CSVLogger(tmp_path)
    make_trainer(logger=logger, log_every_n_steps=10, limit_val_batches=1).fit(make_agent(learning_starts=400))
    with open(Path(logger.log_dir) / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    trained = [row for row in rows if row["loss/dqn"]]
    assert [row["step"] for row in trained] == ["9", "19"]
    expected = {f"loss/{name}" for name in ("dqn", "iqn", "iql_high", "iql_low", "curiosity")}
    assert expected | {"train/epsilon", "train/env_steps", "train/return"} <= {k for k, v in trained[-1].items() if v}
    assert sum(bool(row["eval/return"]) for row in rows) == 1


@pytest.mark.parametrize("mode", [{"fast_dev_run": True}, {"barebones": True}, {"limit_train_batches": 3}])
def test_trainer_modes(make_agent, tmp_path, mode):
    agent = make_agent()
    Trainer(accelerator="cpu", max_epochs=1, default_root_dir=tmp_path, enable_progress_bar=False, **mode).fit(agent)
    assert agent.updates == {"fast_dev_run": 1, "barebones": 20, "limit_train_batches": 3}[next(iter(mode))]


def test_a_finished_agent_does_not_train_on(make_agent, make_trainer):
    agent = make_agent(total_steps=104)
    make_trainer(max_epochs=-1).fit(agent)
    before = weights(agent)
    make_trainer(max_epochs=-1).fit(agent)
    assert agent.updates == agent.total_updates
    assert_same(weights(agent), before)


def test_settings_that_leave_nothing_to_learn_are_refused():
    with pytest.raises(ConfigurationError, match="total_steps=500 must exceed learning_starts=1000"):
        DQNAgent(total_steps=500)


@pytest.mark.parametrize("name", ["optimizers", "learning_rate_schedule", "td_loss"])
def test_a_choice_that_there_is_not_is_refused(name):
    with pytest.raises(ConfigurationError, match=rf"^{name} must be one of \w+, \w+, got 'several'\.$"):
        DQNAgent(**{name: "several"})


def test_from_yaml(make_trainer, tmp_path):
    pytest.importorskip("jsonargparse")
    from lightning.pytorch.cli import LightningCLI

    config = tmp_path / "agent.yaml"
    config.write_text(
        "model:\n  environment: LunarLander-v3\n  environment_options: {continuous: true}\n"
        "  auxiliaries: [iqn, curiosity]\n  optimizers: one\n  observation_indices: null\n  fused: false\n"
    )
    cli = LightningCLI(
        DQNAgent,
        args=["--config", str(config), "--model.learning_rate", "3e-4", "--trainer.logger", "false"],
        run=False,
        save_config_callback=None,
    )
    assert cli.model.hparams["learning_rate"] == 3e-4
    assert list(cli.model.learner.groups()) == ["dqn_trunk", "dqn_value", "dqn_branches", "iqn", "curiosity"]


class ActsOnNewestNetworks(Callback):
    """Checks that the batch at hand was drawn after the previous update, not before it."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        assert pl_module.experience.batches == pl_module.updates + 1


def test_batches_are_not_fetched_ahead(make_agent, make_trainer):
    agent = make_agent()
    make_trainer(max_epochs=2, limit_train_batches=15, callbacks=[ActsOnNewestNetworks()]).fit(agent)
    assert agent.experience.batches == agent.updates == 30  # none was drawn in vain


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_precisions(make_agent, make_trainer, precision):
    agent = make_agent(cvar=0.5)
    trainer = make_trainer(precision=precision, limit_val_batches=1)
    trainer.fit(agent)
    assert agent.updates == 20
    assert all(value.isfinite().all() for value in weights(agent).values())
    assert agent.learner.curiosity.w1.stride() == (128, 2)


@pytest.mark.parametrize(
    ("changed", "text"),
    [({"num_envs": 4}, "of 8 environments, this agent has num_envs=4"), ({"buffer_size": 9}, "buffer_size=9")],
)
def test_a_run_that_does_not_fit_its_checkpoint_is_refused(make_agent, make_trainer, tmp_path, changed, text):
    trainer = make_trainer()
    trainer.fit(make_agent())
    trainer.save_checkpoint(tmp_path / "agent.ckpt")
    with pytest.raises(CheckpointError, match=text):
        make_trainer(max_epochs=2).fit(make_agent(**changed), ckpt_path=tmp_path / "agent.ckpt")


def test_a_run_resumed_in_the_middle_of_an_epoch_is_bit_identical(make_agent, make_trainer, tmp_path):
    straight = make_agent()
    make_trainer(max_epochs=2).fit(straight)
    # Lightning counts the steps of all six optimizers: 72 are 12 updates.
    saver = ModelCheckpoint(tmp_path, filename="middle", every_n_train_steps=72, save_top_k=-1)
    make_trainer(max_epochs=1, enable_checkpointing=True, callbacks=[saver]).fit(make_agent())
    resumed = make_agent()
    make_trainer(max_epochs=2).fit(resumed, ckpt_path=tmp_path / "middle.ckpt")
    assert resumed.updates == straight.updates == 40
    assert_same(weights(resumed), weights(straight))
