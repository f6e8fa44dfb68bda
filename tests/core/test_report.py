"""The figures for logs: one report, and the scalars made of two."""

import math

import pytest
import torch
from torch import nn, optim

from sp4_lightning import ClippingOptimizer, ParamGroup, Protection, Settings
from sp4_lightning.report import metrics
from tests.core.making import QUICK, gradients


@pytest.fixture
def run():
    net = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(2, 2)})
    optimizers = [optim.Adam(net["a"].parameters(), lr=1e-3), optim.SGD(net["b"].parameters(), 1e-3)]
    settings = Settings(learned=QUICK, warmup_steps=10, update_every=1)
    protection = Protection(optimizers, net, {"a": "a", "b": "b"}, settings=settings)

    def steps(start, stop, spike=None, bad=None):
        for step in range(start, stop):
            gradients(list(net.parameters()), step)
            if step == spike:
                net["a"].weight.grad[0, 0] = 1e6
            if step == bad:
                net["b"].bias.grad[0] = math.nan
            for optimizer in optimizers:
                optimizer.step()
            protection.advance()

    return net, protection, steps


def test_a_report_says_what_has_happened(run):
    net, protection, steps = run
    steps(0, 20, spike=15, bad=17)
    net["a"].weight.data[0, 0] = 1e6
    steps(20, 21)
    report = protection.report()
    assert report.phase == 2
    counters = [(o.name, o.steps, o.skipped, o.streak) for o in report.optimizers]
    assert counters == [("Adam", 21, 0, 0), ("SGD", 20, 1, 0)]
    assert [o.observed for o in report.optimizers] == [{"a": 21}, {"b": 20}]
    by_name = {tensor.name: tensor for tensor in report.tensors}
    assert list(by_name) == ["a.weight", "a.bias", "b.weight", "b.bias"]
    assert by_name["a.weight"].clamped == 1
    assert by_name["a.weight"].repaired == 1
    assert by_name["a.weight"].peak == 1e6
    assert by_name["a.weight"].share == 1 / by_name["a.weight"].counted
    assert by_name["b.bias"].clamped == by_name["b.bias"].repaired == 0
    assert [tensor.group for tensor in report.of("b")] == ["b", "b"]
    assert set(report.bounds) == {"a", "b"}
    expected = [row[0].item() for row in protection.table.values]
    assert report.bounds["a"] == pytest.approx(expected)


def test_peaks_start_anew_with_every_report_and_counters_go_on(run):
    _, protection, steps = run
    steps(0, 20, spike=15)
    first = protection.report()
    assert all(tensor.peak == 0 for tensor in protection.report().tensors)
    steps(20, 22)
    second = protection.report()
    assert 0 < second.tensors[0].peak < 10
    assert second.tensors[0].clamped == first.tensors[0].clamped
    assert second.tensors[0].counted > first.tensors[0].counted


def test_metrics_have_the_same_keys_from_the_first_row_on(run):
    _, protection, steps = run
    rows = [metrics(protection.report(), None)]
    for start in range(0, 30, 10):
        steps(start, start + 10, spike=15)
        rows.append(metrics(protection.report(), None))
    assert all(row.keys() == rows[0].keys() for row in rows)
    assert all(isinstance(value, float) for row in rows for value in row.values())
    assert {"sp4/phase", "sp4/skipped_steps", "sp4/clip_fraction", "sp4-bound_grad/a"} <= rows[0].keys()


def test_shares_are_of_the_updates_since_the_row_before(run):
    _, protection, steps = run
    steps(0, 20, spike=15)
    first = protection.report()
    steps(20, 30)
    second = protection.report()
    steps(30, 40, spike=33)
    third = protection.report()
    assert metrics(second, first)["sp4/clip_fraction"] == 0
    assert metrics(second, None)["sp4/clip_fraction"] > 0
    row = metrics(third, second)
    elements = 6 * 10
    assert row["sp4/clip_fraction_worst_tensor"] == pytest.approx(1 / elements)
    assert row["sp4-clip_fraction/a"] == pytest.approx(1 / (8 * 10))
    assert row["sp4-clip_fraction/b"] == 0
    assert row["sp4/clip_fraction"] == pytest.approx(1 / (14 * 10))
    assert row["sp4-max_grad/a"] == 1e6
    assert row["sp4/phase"] == 2


def test_an_unobserved_bound_is_reported_as_infinite_and_never_as_zero(run):
    _, protection, _ = run
    report = protection.report()
    assert all(math.isinf(bound) for bounds in report.bounds.values() for bound in bounds)
    assert torch.isinf(protection.table.values).all()


def test_tensors_of_one_name_in_two_groups_have_shares_of_their_own():
    net = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(2, 2)})
    settings = Settings(learned=QUICK, warmup_steps=10, update_every=1)
    wrappers = [
        ClippingOptimizer(
            optim.SGD(net[key].parameters(), 1e-3), [ParamGroup(key, dict(net[key].named_parameters()))], settings
        )
        for key in net
    ]
    protection = Protection(wrappers, net, settings=settings)
    reports = []
    for step in range(40):
        gradients(list(net.parameters()), step)
        if step == 30:
            net["a"].weight.grad.fill_(1e6)
        for wrapper in wrappers:
            wrapper.step()
        protection.advance()
        if step in (25, 35):
            reports.append(protection.report())
    row = metrics(reports[1], reports[0])
    assert row["sp4-clip_fraction/b"] == 0
    assert row["sp4-clip_fraction/a"] == pytest.approx(6 / 80)
    assert row["sp4/clip_fraction_worst_tensor"] == pytest.approx(6 / 60)


def test_a_group_of_empty_tensors_has_a_row_too():
    net = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.ParameterList([torch.empty(0, 2)])})
    optimizer = optim.Adam(net.parameters())
    protection = Protection([optimizer], net, {"a": "a", "b": "b"})
    gradients(list(net.parameters()), 0)
    optimizer.step()
    row = metrics(protection.report(), None)
    assert (row["sp4-max_grad/b"], row["sp4-clip_fraction/b"], row["sp4-bound_grad/b"]) == (0.0, 0.0, math.inf)
