"""Saving and resuming through a Trainer's checkpoints."""

import pytest
import torch
from lightning.pytorch import Callback

from sp4_lightning import CheckpointError, ClippingOptimizer, SP4Callback
from tests.trainer.faults import differing, snapshot
from tests.trainer.models import Automatic, Manual, data, fit, trainer

QUICK = {"warmup_steps": 66, "update_every": 3, "tables": False}


class Spikes(Callback):
    """Deterministic in the step, so that a resumed run sees the same ones."""

    def on_after_backward(self, trainer, module):
        if trainer.global_step % 5 == 2:
            for param in module.parameters():
                if param.grad is not None:
                    param.grad.mul_(1e4)


def bounds(run):
    return {engine.name: engine.state.state_dict(engine.held.names) for engine in run.callbacks[0].protection.engines}


@pytest.mark.parametrize("factory", [Automatic, Manual, lambda: Automatic(wrap=ClippingOptimizer)])
@pytest.mark.parametrize("cut", [1, 3])  # before and after the flip
def test_a_resumed_run_ends_bit_identical(factory, cut, tmp_path):
    whole, whole_run = fit(factory, SP4Callback(**QUICK), Spikes(), max_epochs=5)

    _, first = fit(factory, SP4Callback(**QUICK), Spikes(), max_epochs=cut)
    first.save_checkpoint(tmp_path / "cut.ckpt")
    second, run = fit(factory, SP4Callback(**QUICK), Spikes(), max_epochs=5, ckpt_path=tmp_path / "cut.ckpt", seed=9)

    assert differing(snapshot(whole, whole_run.optimizers), snapshot(second, run.optimizers)) == []
    for name, state in bounds(whole_run).items():
        for key, value in bounds(run)[name].items():
            assert torch.equal(value, state[key]) if isinstance(value, torch.Tensor) else value == state[key], key
    assert whole_run.callbacks[0].protection.report() == run.callbacks[0].protection.report()


def test_a_checkpoint_loads_with_weights_only(tmp_path):
    _, run = fit(Manual, SP4Callback(**QUICK))
    run.save_checkpoint(tmp_path / "run.ckpt")
    saved = torch.load(tmp_path / "run.ckpt", weights_only=True)
    assert list(saved["callbacks"]["SP4Callback"]["engines"]) == ["Adam", "AdamW"]


def test_state_can_be_asked_for_at_any_time():
    callback = SP4Callback(**QUICK)
    assert callback.state_dict() == {}
    fit(Automatic, callback)
    state = callback.state_dict()
    fresh = SP4Callback(**QUICK)
    fresh.load_state_dict(state)
    assert fresh.state_dict() is state


def test_a_checkpoint_without_bounds_is_said(tmp_path):
    _, run = fit(Automatic)
    run.save_checkpoint(tmp_path / "bare.ckpt")
    with pytest.warns(UserWarning, match="holds no SP4 state: the bounds are learned anew"):
        fit(Automatic, SP4Callback(**QUICK), ckpt_path=tmp_path / "bare.ckpt", max_epochs=3)


def test_a_checkpoint_with_bounds_loads_without_the_callback(tmp_path):
    _, run = fit(Automatic, SP4Callback(**QUICK))
    run.save_checkpoint(tmp_path / "guarded.ckpt")
    module, _ = fit(Automatic, ckpt_path=tmp_path / "guarded.ckpt", max_epochs=3)
    assert all(param.isfinite().all() for param in module.parameters())


class OtherNames(Automatic):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        optimizer.param_groups[1]["name"] = "tail"
        return optimizer


def test_a_checkpoint_of_other_groups_is_one_clear_error_and_changes_nothing(tmp_path):
    _, run = fit(Automatic, SP4Callback(**QUICK))
    run.save_checkpoint(tmp_path / "run.ckpt")
    groups = {"body": "body", "tail": "head"}
    other = SP4Callback(groups=groups, **QUICK)
    with pytest.raises(CheckpointError, match=r"groups \['body', 'head'\], but it now trains \['body', 'tail'\]"):
        fit(Automatic, other, ckpt_path=tmp_path / "run.ckpt", max_epochs=3)
    assert int(other.protection.engines[0].steps) == 0


def test_a_checkpoint_of_other_optimizers_is_one_clear_error(tmp_path):
    _, run = fit(Manual, SP4Callback(**QUICK))
    state = run.callbacks[0].state_dict()
    callback = SP4Callback(**QUICK)
    callback.load_state_dict(state)
    with pytest.raises(CheckpointError, match=r"optimizers \[Adam, AdamW\], but the run has \[Adam\]"):
        fit(Automatic, callback)


@pytest.mark.parametrize("damage", ["bound", "recent", "level"])
def test_damaged_bounds_are_named_and_not_loaded(damage):
    _, run = fit(Automatic, SP4Callback(**QUICK))
    state = run.callbacks[0].state_dict()
    state["engines"]["Adam"]["tensors"][damage][..., 0] = float("nan")
    callback = SP4Callback(**QUICK)
    callback.load_state_dict(state)
    with pytest.raises(CheckpointError, match=f"{damage!r} for Adam holds NaN: it is damaged"):
        fit(Automatic, callback)
    assert not bounds_are_nan(callback)


def bounds_are_nan(callback):
    return any(torch.as_tensor(engine.state.bound).isnan().any() for engine in callback.protection.engines)


def test_two_fits_with_one_callback_start_anew():
    callback = SP4Callback(**QUICK)
    module, run = fit(Automatic, callback)
    again = trainer(callback)
    again.fit(module, data())
    assert callback.protection.report().optimizers[0].steps == 80
    assert not run.optimizers[0]._optimizer_step_pre_hooks
