"""What the callback does to a run, against the run without it and against explicit loops."""

import pytest
import torch
from lightning.pytorch import Callback, seed_everything

from sp4_lightning import ClippingOptimizer, Phase, Settings, SP4Callback
from tests.trainer.faults import differing, snapshot
from tests.trainer.models import Automatic, Manual, data, fit, trainer

QUICK = {"warmup_steps": 66, "update_every": 1, "tables": False}


@pytest.mark.parametrize("factory", [Automatic, Manual, lambda: Automatic(torch.optim.SGD, momentum=0.9, lr=1e-2)])
@pytest.mark.parametrize("options", [{}, {"precision": "bf16-mixed"}, {"accumulate_grad_batches": 1}])
def test_observing_changes_no_bit(factory, options):
    bare, bare_run = fit(factory, **options)
    seen, seen_run = fit(factory, SP4Callback("observe", tables=False), **options)
    assert differing(snapshot(bare, bare_run.optimizers), snapshot(seen, seen_run.optimizers)) == []


def test_a_clean_enforced_run_is_the_bare_run():
    bare, bare_run = fit(Automatic)
    guarded, run = fit(Automatic, SP4Callback(**QUICK))
    assert run.callbacks[0].protection.switch.phase == Phase.LEARNED
    assert differing(snapshot(bare, bare_run.optimizers), snapshot(guarded, run.optimizers)) == []


class Spike(Callback):
    def on_after_backward(self, trainer, module):
        if trainer.global_step % 7 == 3:
            for param in module.parameters():
                param.grad.mul_(1e5)


def test_enforcing_equals_an_explicit_loop():
    module, run = fit(Automatic, SP4Callback(**QUICK), Spike(), max_epochs=3)

    seed_everything(0, verbose=False)
    twin = Automatic()
    optimizer = ClippingOptimizer(
        twin.configure_optimizers(), settings=Settings(warmup_steps=66, update_every=1), module=twin
    )
    for step, batch in enumerate(batch for _ in range(3) for batch in data()):
        x, y = batch
        optimizer.zero_grad()
        (twin.head(twin.body(x)) - y).square().mean().backward()
        if step % 7 == 3:
            for param in twin.parameters():
                param.grad.mul_(1e5)
        optimizer.step()

    assert int(optimizer.engine.state.clamped.sum()) > 0
    assert differing(snapshot(module, run.optimizers), snapshot(twin, [optimizer.base])) == []


def test_a_step_without_a_loss_and_frozen_parameters_are_tolerated():
    class Patchy(Automatic):
        def training_step(self, batch, batch_idx):
            return None if batch_idx % 5 == 0 else super().training_step(batch, batch_idx)

    def frozen():
        module = Patchy()
        module.body[0].weight.requires_grad_(False)
        return module

    module, run = fit(frozen, SP4Callback(**QUICK))
    assert all(param.isfinite().all() for param in module.parameters())
    assert run.callbacks[0].protection.report().optimizers[0].observed == {"body": 64, "head": 64}


@pytest.mark.parametrize("every", [1, 3])
def test_a_step_is_counted_per_optimizer(every):
    _, run = fit(lambda: Manual(every), SP4Callback(**QUICK))
    steps = {o.name: o.steps for o in run.callbacks[0].protection.report().optimizers}
    assert steps == {"Adam": 80, "AdamW": 2 * -(-40 // every)}


class PhasePerBatch(Callback):
    def __init__(self):
        self.phases = []

    def on_train_batch_start(self, trainer, *_):
        self.phases.append(Phase(int(trainer.callbacks[0].protection.switch.phase)))


def test_all_groups_flip_in_the_same_step_when_the_slowest_is_warm():
    phases = PhasePerBatch()
    fit(lambda: Manual(2), SP4Callback(warmup_steps=30, update_every=1, tables=False), phases)
    # The second optimizer's 30th update is in batch 58 (0-based: 29 * 2), so batch 59 is the first with all bounds.
    assert phases.phases.index(Phase.LEARNED) == 59
    assert set(phases.phases[59:]) == {Phase.LEARNED}


def test_a_head_that_never_trains_does_not_block_the_flip_and_one_trained_late_is_armed_late():
    class Late(Manual):
        def __init__(self):
            super().__init__()
            self.never = torch.nn.Linear(4, 1)

        def training_step(self, batch, batch_idx):
            self.every = 1 if self.current_epoch >= 3 else 10_000
            super().training_step(batch, max(batch_idx, 1))

        def configure_optimizers(self):
            never = torch.optim.Adam([{"params": list(self.never.parameters()), "name": "never"}])
            return [*super().configure_optimizers(), never]

        def optimizers(self):
            return super().optimizers()[:2]

    _, run = fit(Late, SP4Callback(**QUICK), max_epochs=6)
    protection = run.callbacks[0].protection
    report = protection.report()
    observed = {group: count for o in report.optimizers for group, count in o.observed.items()}
    assert observed == {"a": 240, "b": 120, "never": 0}
    assert report.phase is Phase.LEARNED
    assert report.bounds["b"][1] < float("inf")
    assert report.bounds["never"] == [float("inf")] * 4
    rows = {row.group: row.status for row in protection.coverage()}
    assert rows == {"a": "4/4", "b": "4/4", "never": "4/4"}


def test_nan_gradients_skip_one_optimizer_of_two():
    class Nan(Callback):
        def on_before_optimizer_step(self, trainer, module, optimizer):
            if trainer.global_step >= 20 and optimizer is trainer.optimizers[0]:
                module.a[0].weight.grad[0, 0] = float("nan")

    with pytest.warns(UserWarning, match="Adam has skipped 20 updates in a row: its gradients are not finite"):
        module, run = fit(Manual, SP4Callback(**QUICK), Nan())
    first, second = run.callbacks[0].protection.report().optimizers
    assert (first.steps, first.skipped, first.streak) == (10, 70, 70)
    assert (second.steps, second.skipped) == (80, 0)
    assert all(param.isfinite().all() for param in module.parameters())


def test_a_long_streak_raises_where_the_user_asked_for_it():
    from sp4_lightning import SkipStreakError

    class Nan(Callback):
        def on_after_backward(self, trainer, module):
            module.head.bias.grad.fill_(float("nan"))

    with pytest.raises(SkipStreakError, match=r"Adam has skipped 5 updates in a row.*raise_after_skips \(now 5\)"):
        fit(Automatic, SP4Callback(raise_after_skips=5, tables=False), Nan())


def test_hooks_are_gone_after_the_fit_and_after_an_exception():
    _, run = fit(Automatic, SP4Callback(**QUICK))
    assert not run.optimizers[0]._optimizer_step_pre_hooks

    class Boom(Callback):
        def on_train_batch_end(self, *_):
            raise RuntimeError("boom")

    run = trainer(SP4Callback(**QUICK), Boom())
    with pytest.raises(RuntimeError, match="boom"):
        run.fit(Automatic(), data())
    assert not run.optimizers[0]._optimizer_step_pre_hooks
