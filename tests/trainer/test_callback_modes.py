"""The Trainer's other ways of running, and bad combinations."""

import copy
import pickle

import pytest
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, StochasticWeightAveraging
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from sp4_lightning import ClippingOptimizer, ConfigurationError, Phase, Settings, SP4Callback, UnsupportedError
from tests.trainer.models import Automatic, Manual, data, fit, mlp, trainer


@pytest.mark.parametrize(
    "options",
    [
        {"fast_dev_run": True},
        {"barebones": True},
        {"limit_train_batches": 0},
        {"overfit_batches": 2},
        {"accumulate_grad_batches": 3},
        {"gradient_clip_val": 0.1},
        {"precision": "bf16-mixed"},
        {"precision": "64-true"},
        {"max_steps": 7},
    ],
)
def test_the_trainers_modes_are_tolerated(options):
    loader = data()
    if options.get("precision") == "64-true":
        loader = DataLoader([[x.double(), y.double()] for x, y in loader], batch_size=None)
    module, _ = fit(Automatic, SP4Callback(tables=False), loader=loader, **options)
    assert all(param.isfinite().all() for param in module.parameters())


def test_validation_alone_needs_no_optimizer():
    trainer(SP4Callback()).validate(Automatic(), data(), verbose=False)


def test_other_callbacks_keep_working(tmp_path):
    monitor = LearningRateMonitor()
    _, run = fit(
        Automatic,
        SP4Callback(tables=False, warmup_steps=66, update_every=1),
        StochasticWeightAveraging(1e-3, swa_epoch_start=3),
        monitor,
        logger=CSVLogger(tmp_path),
        max_epochs=6,
    )
    assert sorted(monitor.lrs) == ["lr-Adam/body", "lr-Adam/head"]
    report = run.callbacks[0].protection.report()
    assert report.phase is Phase.LEARNED
    assert sum(tensor.repaired for tensor in report.tensors) == 0


def test_a_clipping_optimizer_is_adopted_with_its_own_settings():
    own = Settings(update_every=2)
    callback = SP4Callback(warmup_steps=66, update_every=1, tables=False)
    _, run = fit(lambda: Automatic(wrap=lambda o: ClippingOptimizer(o, settings=own)), callback)
    (engine,) = callback.protection.engines
    wrapper = run.optimizers[0]
    assert engine is wrapper.engine
    assert engine.update_every == 2
    assert int(engine.steps) == 80  # once per step, not twice
    assert wrapper.engine.switch is callback.protection.switch
    assert callback.protection.switch.phase == Phase.LEARNED
    assert [row.status for row in callback.protection.coverage()] == ["4/4", "4/4"]


def test_two_callbacks_are_refused():
    run = trainer(SP4Callback())
    run.callbacks.append(SP4Callback())
    with pytest.raises(ConfigurationError, match=r"two SP4Callbacks\. Keep one"):
        run.fit(Automatic(), data())


class Extra(Automatic):
    def __init__(self, trainable=True):
        super().__init__()
        self.target = mlp()
        self.target.requires_grad_(trainable)


def test_a_trainable_parameter_in_no_optimizer_is_named():
    with pytest.raises(ConfigurationError, match=r"4 trainable parameters are in no group: target.0.weight.*`exclude`"):
        fit(Extra, SP4Callback())
    fit(Extra, SP4Callback(exclude=["target"], tables=False))
    fit(lambda: Extra(trainable=False), SP4Callback(tables=False))


def test_a_parameter_in_two_optimizers_is_named():
    class Twice(Manual):
        def configure_optimizers(self):
            first, second = super().configure_optimizers()
            second.add_param_group({"params": [self.a[0].bias], "name": "again"})
            return [first, second]

    with pytest.raises(ConfigurationError, match=r"'a.0.bias' is in two optimizers, number 0 and number 1"):
        fit(Twice, SP4Callback())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"groups": {"body": "bdoy", "head": "head"}}, r"Group 'body': 'bdoy' matches no .* Did you mean 'body'\?"),
        ({"groups": {"body": "body"}}, r"2 trainable parameters are in no group: head.weight, head.bias"),
        ({"groups": {"body": "body", "all": "*"}}, r"'body.0.weight' is in two groups, 'body' .* and 'all'"),
        ({"groups": {"body": "body", "head": "head"}, "optional": ["hed"]}, r"optional names 'hed'.*'head'"),
        ({"disable": {"boddy": ["grad"]}}, r"disable names the group 'boddy'.* Did you mean 'body'\?"),
        ({"exclude": ["nothing.*"]}, r"exclude: 'nothing.\*' matches no module or parameter of Automatic"),
    ],
)
def test_bad_groups_are_one_clear_error_and_nothing_is_attached(settings, message):
    callback = SP4Callback(**settings)
    run = trainer(callback)
    with pytest.raises(ConfigurationError, match=message):
        run.fit(Automatic(), data())
    assert not run.optimizers[0]._optimizer_step_pre_hooks


def test_amsgrad_is_refused_in_enforce_and_tolerated_in_observe():
    with pytest.raises(UnsupportedError, match=r"amsgrad=True.*Use amsgrad=False, or mode='observe'"):
        fit(lambda: Automatic(amsgrad=True), SP4Callback())
    fit(lambda: Automatic(amsgrad=True), SP4Callback("observe", tables=False))


def test_an_absent_optional_group_is_reported():
    groups = {"body": "body", "head": "head", "curiosity": "curiosity"}
    callback = SP4Callback(groups=groups, optional=["curiosity"], tables=False)
    fit(Automatic, callback)
    assert [(row.group, row.status) for row in callback.protection.coverage()][-1] == ("curiosity", "absent")
    assert callback.protection.table.groups == ("body", "head")


def test_a_run_without_an_optimizer_goes_on_with_a_warning():
    class Bare(Automatic):
        def configure_optimizers(self):
            return None

    with pytest.warns(UserWarning, match="returned no optimizer: SP4Callback has nothing to protect"):
        fit(Bare, SP4Callback())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda callback: pickle.loads(pickle.dumps(callback))])
@pytest.mark.parametrize("fitted", [False, True])
def test_a_copy_of_the_callback_protects_another_fit(copied, fitted):
    callback = SP4Callback(tables=False, warmup_steps=3, update_every=1)
    if fitted:
        fit(Automatic, callback, max_steps=5)
    twin = copied(callback)
    assert twin.settings == callback.settings
    assert twin.protection is None
    fit(Automatic, twin, max_steps=5)
    assert [int(engine.steps) for engine in twin.protection.engines] == [5]
    assert int(twin.protection.switch.phase) == Phase.LEARNED


def test_scale_changes_and_resets_need_a_running_fit():
    with pytest.raises(ConfigurationError, match="notify_scale_change needs a running fit"):
        SP4Callback().notify_scale_change(2.0)
    callback = SP4Callback(tables=False, update_every=1)
    fit(Automatic, callback)
    before = callback.protection.table["grad", "body"].clone()
    callback.notify_scale_change(4.0, ["body"])
    assert torch.allclose(callback.protection.table["grad", "body"], 4 * before)
    callback.reset(["head"])
    assert callback.protection.table["grad", "head"] == float("inf")
    with pytest.raises(ConfigurationError, match=r"groups names the group 'bod'.*Did you mean 'body'\?"):
        callback.reset(["bod"])
