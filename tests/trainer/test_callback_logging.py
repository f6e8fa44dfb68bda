"""The logged scalars, read back from real files."""

import csv

import pytest
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sp4_lightning import Phase, SP4Callback
from sp4_lightning.report import OptimizerReport, Report, TensorReport, metrics, take_report
from tests.trainer.agent import fit as fit_agent
from tests.trainer.models import Manual, fit

OVERALL = ["phase", "skipped_steps", "skip_streak", "clip_fraction", "clip_fraction_worst_tensor"]
PER_GROUP = ["clip_fraction", "bound_grad", "max_grad", "repairs"]


def keys(*groups):
    return {f"sp4/{key}" for key in OVERALL} | {f"sp4-{key}/{group}" for key in PER_GROUP for group in groups}


def test_csv_and_tensorboard_get_the_same_rows_on_lightnings_own_steps(tmp_path):
    loggers = [CSVLogger(tmp_path, name="csv"), TensorBoardLogger(tmp_path, name="tb")]
    fit(Manual, SP4Callback(tables=False), logger=loggers, log_every_n_steps=10)

    with open(f"{loggers[0].log_dir}/metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["sp4/phase"]]
    assert [int(row["step"]) for row in rows] == list(range(9, 80, 10))
    assert {key for key in rows[0] if key.startswith("sp4")} == keys("a", "b")

    events = EventAccumulator(loggers[1].log_dir).Reload()
    assert {tag for tag in events.Tags()["scalars"] if tag.startswith("sp4")} == keys("a", "b")
    for tag in keys("a", "b"):
        for event, row in zip(events.Scalars(tag), rows, strict=True):
            assert event.step == int(row["step"])
            assert event.value == pytest.approx(float(row[tag]), rel=1e-6)


def test_the_agents_eight_groups_take_at_most_forty_scalars():
    _, trainer, _ = fit_agent(60, protection={"mode": "observe"})
    logged = [key for key in trainer.callback_metrics if key.startswith("sp4")]
    assert len(logged) == 4 * 8 + 5 <= 40


def test_the_docstring_lists_every_key():
    for key in PER_GROUP:
        assert f"``sp4-{key}/{{group}}``" in SP4Callback.__doc__
    for key in OVERALL:
        assert f"``sp4/{key}``" in SP4Callback.__doc__


def test_early_stopping_and_checkpoints_can_monitor_a_key(tmp_path):
    stop = EarlyStopping("sp4/phase", stopping_threshold=0.5, mode="max", check_on_train_epoch_end=True)
    best = ModelCheckpoint(tmp_path, monitor="sp4/skipped_steps", save_on_train_epoch_end=True)
    _, run = fit(
        Manual, SP4Callback(tables=False), stop, best, log_every_n_steps=5, enable_checkpointing=True, max_epochs=9
    )
    assert run.current_epoch == 1
    assert best.best_model_path


def test_nothing_is_copied_on_unlogged_steps(monkeypatch):
    reports = []

    def counting(*args):
        reports.append(args)
        return take_report(*args)

    monkeypatch.setattr("sp4_lightning.protection.take_report", counting)
    fit(Manual, SP4Callback(tables=False), log_every_n_steps=40)
    assert len(reports) == 2


def test_shares_are_of_the_updates_since_the_row_before():
    def report(clamped, counted):
        tensor = TensorReport("w", "g", clamped, counted, 0, 1.0)
        return Report(Phase.LEARNED, [OptimizerReport("Adam", 9, 0, 0, {"g": 9})], [tensor], {"g": [1.0] * 4})

    assert metrics(report(10, 100), None)["sp4-clip_fraction/g"] == 0.1
    assert metrics(report(15, 300), report(10, 100))["sp4-clip_fraction/g"] == 5 / 200
    assert metrics(report(10, 100), report(10, 100))["sp4/clip_fraction"] == 0.0
