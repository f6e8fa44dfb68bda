"""The fault suite: real tiny runs end to end, and its rules on results made by hand."""

import json
import logging
import re

import pytest
import torch
import yaml

from benchmarks.faults.__main__ import main
from benchmarks.faults.forecast import MARGIN, Forecast
from benchmarks.faults.jobs import make_rows
from benchmarks.faults.play import digest, play
from benchmarks.faults.reading import read_suite
from benchmarks.faults.trainer import make_trainer
from benchmarks.faults.verdict import judge, score, updates_lost

PLAIN = {
    "kind": "agent",
    "configs": ["cartpole", "ablation/no_auxiliaries"],
    "overrides": {"total_steps": 1000, "learning_starts": 280, "epoch_updates": 40, "eval_episodes": 2},
    "faults": ["F4n", "F9"],
}
FAULTS = {
    "F4n": {
        "says": "a NaN",
        "groups": ["dqn_value"],
        "entries": [{"kind": "gradient_nan", "step": 10}],
    },
    "F9": {
        "says": "other rewards",
        "apart": "Must not hurt",
        "entries": [{"kind": "batch_scale", "step": 10, "key": "reward", "factor": 100, "updates": None}],
    },
}
SUITE = {"seeds": [3], "methods": ["none", "sp4"], "tasks": {"plain": PLAIN}, "faults": FAULTS}


def write(directory, suite):
    path = directory / "tiny.yaml"
    path.write_text(yaml.safe_dump(suite))
    return path


def results(directory):
    return {str(path.relative_to(directory)): path for path in sorted(directory.rglob("*.json"))}


@pytest.fixture(autouse=True)
def _loud():
    """The suite silences Lightning for its whole process; other tests listen to it."""
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The tiny suite, run once by the command; its file and the directory of its results."""
    directory = tmp_path_factory.mktemp("suite")
    path = write(directory, SUITE)
    main([str(path), "--runs", str(directory)])
    return path, directory


def branch(finished, method, name):
    return json.loads(results(finished[1])[f"tiny/plain/{method}/3/{name}.json"].read_text())


def test_a_suite_leaves_a_result_for_every_branch(finished):
    names = {name.split("/", 2)[2] for name in results(finished[1])}
    per_method = ("snapshot", "F0", "F4n.dqn_value", "F9")
    assert names == {f"{method}/3/{name}.json" for method in ("none", "sp4") for name in per_method}
    assert not list(finished[1].rglob("*.part*"))


def test_a_second_call_runs_nothing_and_a_changed_fault_reruns_its_branches_alone(finished, tmp_path, capsys):
    path, directory = finished
    before = {name: file.stat().st_mtime_ns for name, file in results(directory).items()}
    main([str(path), "--runs", str(directory)])
    assert capsys.readouterr().out == "6 of 6 done\n"
    changed = {**FAULTS, "F9": {**FAULTS["F9"], "entries": [{**FAULTS["F9"]["entries"][0], "factor": 10}]}}
    main([str(write(tmp_path, {**SUITE, "faults": changed})), "--runs", str(directory), "--minutes", "0"])
    assert capsys.readouterr().out.endswith("4 of 6 done\n")
    assert {name: file.stat().st_mtime_ns for name, file in results(directory).items()} == before
    rows = make_rows(read_suite(write(tmp_path, {**SUITE, "seeds": [3, 4]})), directory)
    assert [len(row.due()) for row in rows] == [0, 0, 1, 1]


def test_branches_of_a_lost_snapshot_are_due_again_only_if_it_comes_back_another(finished, tmp_path):
    rows = make_rows(read_suite(finished[0]), finished[1])
    row = rows[0]
    result = row.snapshot.result()
    row.snapshot.write({**result, "snapshot": "another"})
    assert row.due() == row.branches
    row.snapshot.write(result)
    assert row.due() == []


def test_the_clean_branch_is_the_uninterrupted_run_bit_for_bit(finished):
    task = read_suite(finished[0]).tasks["plain"]
    module = task.module(3)
    make_trainer([]).fit(module)
    clean = branch(finished, "none", "F0")
    assert clean["weights"] == digest(module.state_dict())
    assert clean["updates"] == module.updates == 180
    # A clean run is not touched.
    assert branch(finished, "sp4", "F0")["weights"] == clean["weights"]
    assert [update for update, _ in clean["scores"]] == [80, 120, 160, 180]
    assert [update for update, _ in clean["signals"]] == [45, 70, 95, 120, 145, 170, 180]


def test_a_nan_kills_the_bare_run_and_not_the_protected_one(finished):
    bare, protected = (branch(finished, method, "F4n.dqn_value") for method in ("none", "sp4"))
    assert not bare["finite"]
    assert bare["largest"] is None
    assert bare["signals"][-1][1] is None
    assert protected["finite"]
    assert protected["protection"]["skips"] == 1
    assert bare["protection"] is None
    # One NaN spreads to every group at the next update; a skipped update leaves the others behind by one.
    assert bare["moved_along"] == ["dqn_trunk", "dqn_branches"]


def test_collecting_writes_what_the_results_say(finished, tmp_path):
    main([str(finished[0]), "--runs", str(finished[1]), "--root", str(tmp_path), "--collect"])
    kept = json.loads((tmp_path / "benchmarks" / "results" / "faults_tiny.json").read_text())
    assert len(kept["branches"]) == 6
    (bare,) = (row for row in kept["branches"] if (row["method"], row["fault"]) == ("none", "F4n.dqn_value"))
    last = [value for _, value in branch(finished, "none", "F4n.dqn_value")["scores"][-2:]]
    assert bare["score"] == sum(last) / 2
    assert not bare["held"][0]
    assert not bare["held"][1]
    text = (tmp_path / "benchmarks" / "results" / "faults_tiny.md").read_text()
    row = re.search(r"\| F4n.dqn_value \| (\d)/1 (\d+) \| (\d)/1 (\d+) \|", text)
    assert row[1] == "0"
    assert float(row[2]) == pytest.approx(bare["score"], abs=0.5)
    assert re.match(r"\n\n\| fault .*\n.*\n\| F9 \|", text.split("### Must not hurt")[1])
    assert "1, 0, 0.0e+00" in text
    assert "F9" in (tmp_path / "docs" / "faults_tiny.svg").read_text()


def test_time_that_is_over_starts_nothing_and_is_no_failure(tmp_path, capsys):
    main([str(write(tmp_path, SUITE)), "--runs", str(tmp_path), "--minutes", "0"])
    assert capsys.readouterr().out == "0 of 6 done\n"
    assert results(tmp_path) == {}


def test_the_forecast_takes_the_longest_of_the_kind(finished):
    (row, other) = make_rows(read_suite(finished[0]), finished[1])
    longest = max(job.result()["wall_seconds"] for r in (row, other) for job in r.branches)
    assert Forecast([*row.branches, *other.branches]).seconds(row.branches[0]) == MARGIN * longest
    # What is known of branches says something about snapshots: a third as many updates.
    assert Forecast([*row.branches, *other.branches]).seconds(row.snapshot) == pytest.approx(MARGIN * longest / 3)
    assert Forecast([]).seconds(row.snapshot) == 0


def made(scores=(100, 100), signals=(0.0, 5.0, 10.0), finite=True, largest=1.0):
    """A branch by hand: validations, and signals at updates 100, 125, 150 and so on."""
    return {
        "scores": [[k, value] for k, value in enumerate(scores)],
        "signals": [[100 + 25 * k, value] for k, value in enumerate(signals)],
        "finite": finite,
        "largest": largest,
    }


@pytest.mark.parametrize(
    ("struck", "held"),
    [
        (made(), (True, True, True, True)),
        (made(finite=False), (False, True, True, True)),
        (made(largest=10.1), (True, False, True, True)),
        (made(largest=None), (True, False, True, True)),
        (made(scores=(100, 100, 79, 80)), (True, True, False, True)),
        (made(scores=(0, 0, 80, 80)), (True, True, True, True)),
        (made(signals=(0.0, 5.0, 4.9)), (True, True, True, False)),
        (made(signals=(0.0, 5.0, -10.0)), (True, True, True, False)),
        (made(signals=(0.0, 5.0, None)), (True, True, True, False)),
        (made(signals=(0.0, 50.0, 50.0)), (True, True, True, True)),
    ],
)
def test_each_rule_can_fail_alone(struck, held):
    assert judge(struck, made(), floor=0, share=0.8) == held


def test_negative_scores_are_held_against_what_has_been_learned():
    clean = made(scores=(-100, -100))
    # From -200 the clean branch has come 100 far: 80 of them must be left.
    assert judge(made(scores=(-120, -120)), clean, floor=-200, share=0.8).scores
    assert not judge(made(scores=(-121, -121)), clean, floor=-200, share=0.8).scores
    assert score(made(scores=(5, 1, 2))) == 1.5


def test_a_signal_may_fall():
    clean = made(signals=(0.0, -5.0, -10.0))
    assert judge(made(signals=(0.0, -1.0, -6.0)), clean, 0, 0.8).learns
    assert not judge(made(signals=(0.0, 5.0, 10.0)), clean, 0, 0.8).learns


def test_updates_lost_count_to_three_quarters_of_the_clean_way():
    clean = made(signals=(0.0, 4.0, 8.0, 9.0, 10.0))
    assert updates_lost(clean, clean, True) == (0, False)
    assert updates_lost(made(signals=(0.0, 1.0, 2.0, 7.5, 9.0)), clean, True) == (25, False)
    assert updates_lost(made(signals=(0.0, 8.0, 8.0, 8.0, 8.0)), clean, True) == (-25, False)
    assert updates_lost(made(signals=(0.0, 1.0, None, None, None)), clean, True) == (50, True)
    assert updates_lost(made(signals=(0.0, 900.0, 900.0, 900.0, 900.0)), clean, False) == (50, True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sedes": [1]}, "there is no key 'sedes'. Did you mean 'seeds'?"),
        ({"methods": ["sp5"]}, "there is no 'sp5'. Did you mean 'sp4'?"),
        ({"methods": ["sp4+learned.headrom=8"]}, "no setting 'learned.headrom'. Did you mean 'learned.headroom'?"),
        ({"methods": ["sp4+learned.headroom=0.5"]}, "learned.headroom must be"),
        ({"seeds": "all"}, "seeds must be a list of int, got 'all'."),
        ({"tasks": {"plain": {**PLAIN, "flor": 1}}}, "tasks.plain: there is no key 'flor'. Did you mean 'floor'?"),
        ({"tasks": {"plain": {**PLAIN, "kind": "agnt"}}}, "tasks.plain: there is no kind 'agnt'."),
        ({"tasks": {"plain": {**PLAIN, "faults": ["F4"]}}}, "tasks.plain.faults: there is no 'F4'."),
        ({"tasks": {"plain": {**PLAIN, "configs": ["cartpol"]}}}, "there is no overlay 'cartpol'."),
        ({"tasks": {"plain": {**PLAIN, "overrides": {"gama": 1}}}}, "no argument 'gama'. Did you mean 'gamma'?"),
        ({"tasks": {"plain": {"kind": "agent"}}}, "tasks.plain: faults is missing."),
        ({"faults": {"F4n": {**FAULTS["F4n"], "entries": [{"kind": "gradient_nan"}]}}}, "faults.F4n: faults[0]: step"),
        ({"faults": {**FAULTS, "F4n": {**FAULTS["F4n"], "groups": ["iqn"]}}}, "F4n is for ['iqn'], but the groups are"),
    ],
)
def test_a_wrong_key_is_named(tmp_path, change, message):
    with pytest.raises(SystemExit, match=re.escape(message)):
        main([str(write(tmp_path, {**SUITE, **change}))])


def test_some_tasks_can_be_taken(tmp_path):
    tasks = {"plain": PLAIN, "other": {**PLAIN, "kind": "none of these"}}
    assert list(read_suite(write(tmp_path, {**SUITE, "tasks": tasks}), ["plain"]).tasks) == ["plain"]
    with pytest.raises(SystemExit, match=re.escape("--tasks: there is no 'plane'. Did you mean 'plain'?")):
        main([str(write(tmp_path, SUITE)), "--tasks", "plane"])


def test_numbers_with_an_exponent_are_numbers(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(SUITE).replace("factor: 100", "factor: 1e4"))
    assert read_suite(path).faults["F9"].entries[0]["factor"] == 1e4


def test_digits_resume_bit_for_bit_and_survive_wrong_labels(tmp_path):
    pytest.importorskip("sklearn")
    entries = [
        {"kind": "batch_zero", "step": 5, "key": "target"},
        {"kind": "batch_spike", "step": 5, "key": "target", "value": 1.0, "samples": 64},
    ]
    suite = {
        "seeds": [1],
        "methods": ["none"],
        "tasks": {
            "digits": {
                "kind": "digits",
                "overrides": {"total_updates": 80, "epoch_updates": 30},
                "faults": ["L1"],
            }
        },
        "faults": {"L1": {"says": "wrong labels", "entries": entries}},
    }
    (row,) = make_rows(read_suite(write(tmp_path, suite)), tmp_path)
    for job in (row.snapshot, *row.branches):
        play(job)
    clean, struck = (job.result() for job in row.branches)
    module = row.snapshot.trains.module(1)
    make_trainer([]).fit(module)
    assert clean["weights"] == digest(module.state_dict()) != struck["weights"]
    assert struck["strikes"] == 2
    assert clean["scores"][-1][1] > 0.15
    assert torch.isfinite(module.place).all()
