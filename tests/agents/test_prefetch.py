"""Between environments and updates nothing is lost, made twice or made too early, with and without interruption."""

import torch
from lightning.pytorch import Callback

from sp4_lightning.agents.seeding import derive_seed


class Ledger(Callback):
    """What every update was given, and how far the environments had come by then."""

    def __init__(self):
        self.rows = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.rows.append(entry(pl_module.experience, batch))


def entry(experience, batch):
    taken = experience.environments.state_dict()
    return experience.steps, len(experience.replay), taken["episodes"].tolist(), taken["lengths"].tolist(), batch


def assert_same_books(a, b):
    assert len(a) == len(b)
    for update, (x, y) in enumerate(zip(a, b, strict=True)):
        assert x[:-1] == y[:-1], update
        assert all(torch.equal(p, q) for p, q in zip(x[-1], y[-1], strict=True)), update


def assert_same_experience(a, b):
    assert (a.steps, a.batches) == (b.steps, b.batches)
    for x, y in ((a.replay, b.replay), (a.returns, b.returns), (a.environments, b.environments)):
        left, right = x.state_dict(), y.state_dict()
        assert left.keys() == right.keys()
        assert all(torch.equal(value, right[name]) for name, value in left.items())


def by_hand(agent, updates):
    """Train without Lightning: act, update, act."""
    torch.manual_seed(derive_seed(agent.hparams["seed"], "training", 0))
    optimizers, books = agent.configure_optimizers(), []
    while len(books) < updates:
        for batch in agent.experience:
            books.append(entry(agent.experience, batch))
            losses = agent.learner.losses(batch, agent.bonus.at(agent.updates))
            for optimizer in optimizers:
                optimizer.zero_grad()
                for group in optimizer.param_groups:
                    group["lr"] = agent.learning_rate.at(agent.updates)
            torch.stack(list(losses.values())).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
            agent.updates += 1
            if agent.updates % agent.hparams["target_sync"] == 0:
                agent.learner.sync_targets()
    return books


def test_a_trainer_acts_and_draws_as_a_plain_loop_does(make_agent, make_trainer):
    alone, trained, ledger = make_agent(), make_agent(), Ledger()
    books = by_hand(alone, 60)
    make_trainer(max_epochs=3, limit_val_batches=1, val_check_interval=7, callbacks=[ledger]).fit(trained)
    assert_same_books(books, ledger.rows)
    assert_same_experience(alone.experience, trained.experience)
    for name, value in alone.learner.state_dict().items():
        assert torch.equal(value, trained.learner.state_dict()[name]), name


class SaveAt(Callback):
    """Saves at one update; what the run does after it is lost, as after a kill."""

    def __init__(self, updates, path):
        self.updates, self.path = updates, path

    def on_train_batch_end(self, trainer, pl_module, *_):
        if pl_module.updates == self.updates:
            trainer.save_checkpoint(self.path)


def test_interrupted_runs_keep_the_books_of_one_run(make_agent, make_trainer, tmp_path):
    options = {"total_steps": 304}  # 60 updates, three epochs
    whole, straight = make_agent(**options), Ledger()
    make_trainer(max_epochs=-1, callbacks=[straight]).fit(whole)
    assert len(straight.rows) == 60

    rows, checkpoint = [], None
    for updates in (7, 20, 33, 60):  # in the middle of an epoch, at its end, in the middle of the next, at the end
        agent, ledger = make_agent(**options), Ledger()
        save = SaveAt(updates, tmp_path / f"{updates}.ckpt")
        make_trainer(max_epochs=-1, callbacks=[ledger, save]).fit(agent, ckpt_path=checkpoint)
        assert len(ledger.rows) == 60 - len(rows)
        rows += ledger.rows[: updates - len(rows)]
        checkpoint = save.path
    assert_same_books(straight.rows, rows)
    assert_same_experience(whole.experience, agent.experience)
