"""The synthetic bench: streams are what they say, figures are right by hand, rules do what they promise."""

import math

import numpy as np
import pytest

from benchmarks.synthetic import figures, measure, report, sensitivity, streams, targets
from benchmarks.synthetic.adam import BETA2, MID_TRAINING, train
from benchmarks.synthetic.bulk import Bulk, PerGroup
from benchmarks.synthetic.candidates import CANDIDATES, PRESENT, RESOLUTIONS, bound_alone, library
from benchmarks.synthetic.elements import Bucket, Element
from benchmarks.synthetic.moments import BoundedUpdate, TrackedSquare
from benchmarks.synthetic.on_alarm import BudgetAndElement, Doubling, OnAlarm, ToLevel
from benchmarks.synthetic.rank import Rank, quantile
from benchmarks.synthetic.rules import ControlChart, Mean, Rule
from benchmarks.synthetic.streams import CHANGE, ELEMENTS, LONG, SHORT, WARM, Stream
from benchmarks.synthetic.vote import Vote


def clean(name, seed=0):
    return next(stream.gradients for stream in streams.clean(seed) if stream.name == name)


def rms(gradients):
    return math.sqrt((gradients**2).mean())


def test_streams_are_repeatable_and_differ_between_seeds():
    for make in (streams.clean, streams.faults, streams.changes, streams.tasks):
        first, again, other = make(3), make(3), make(4)
        assert all((a.gradients == b.gradients).all() for a, b in zip(first, again, strict=True))
        assert not any((a.gradients == b.gradients).all() for a, b in zip(first, other, strict=True))
        assert len({stream.name for stream in first if stream.name != streams.LATE}) >= len(first) - 8


CV1_SD = math.sqrt(math.log(2))


@pytest.mark.parametrize("sd", [0.1, 0.3, CV1_SD, 1.0, 2.0])
def test_noise_has_the_spread_it_names(sd):
    name = streams.CV1 if sd == CV1_SD else f"noise {sd:g} nat" + ("" if sd == 1 else "s")
    scale = np.log(np.sqrt((clean(name) ** 2).mean(1)))
    # The mean square of 64 normals has a spread of its own.
    assert scale.std() == pytest.approx(math.hypot(sd, math.sqrt(1 / 128)), rel=0.07)


def test_clean_streams_are_what_they_say():
    trend = clean("trend up x1000")
    assert rms(trend[-200:]) / rms(trend[:200]) == pytest.approx(1e3 ** (1 - 200 / LONG), rel=0.2)
    sync = clean("target sync: x100 in 30 of 250")
    assert rms(sync[500:530]) / rms(sync[530:750]) == pytest.approx(100, rel=0.2)
    quiet = clean("quiet: x0.001 for 500")
    assert rms(quiet[1000:1500]) / rms(quiet[1500:]) == pytest.approx(1e-3, rel=0.2)
    assert not clean("all zero for 500")[1000:1500].any()
    assert (clean("sparse: 1% of the elements") != 0).mean() == pytest.approx(0.01, rel=0.1)
    assert ((clean("one-hot") != 0).sum(1) == 1).all()
    rare = np.abs(clean("rare: x100 in 1% of updates")).mean(1)
    assert (rare > 20).mean() == pytest.approx(0.01, abs=0.005)
    assert clean("1 element").shape == (LONG, 1)
    assert clean("2 elements, x100 of its group").shape == (LONG, 2)
    assert np.quantile(np.abs(clean("tails t1 (Cauchy)")), 0.99) == pytest.approx(63.7, rel=0.1)


@pytest.mark.parametrize(("name", "what"), streams.FAULTS.items(), ids=streams.FAULTS)
def test_a_fault_is_its_factor_for_its_length_and_nothing_else(name, what):
    stream = next(s for s in streams.faults(0) if s.name == name)
    factor, length, kind = what
    changed = stream.gradients != stream.clean
    assert len(changed) == SHORT
    hit = range(WARM, WARM + length, 6 if kind == "sixth" else 1)
    assert np.flatnonzero(changed.any(1)).tolist() == list(hit)
    assert (stream.gradients[changed] == stream.clean[changed] * factor).all()
    assert changed.any(0).sum() == {"element": 1, "one": 1, "one-hot": changed.any(0).sum()}.get(kind, ELEMENTS)


def test_changes_and_tasks_come_when_they_say():
    for stream in streams.changes(0):
        factor = streams.CHANGES.get(stream.name, 100.0)
        assert (stream.gradients[:CHANGE] == stream.clean[:CHANGE]).all()
        assert (stream.gradients[CHANGE:] == stream.clean[CHANGE:] * factor).all()
    jump, *rare = streams.tasks(0)
    assert jump.gradients[CHANGE:].mean() == pytest.approx(100 * jump.gradients[:CHANGE].mean(), rel=0.05)
    assert {stream.name for stream in rare[3:]} == {streams.LATE}
    assert len({stream.gradients[-1, 0] for stream in rare[3:]}) == 8
    for stream, p in zip(rare, (0.01, 0.03, 0.1), strict=False):
        assert (stream.gradients < -0.5).all(1).mean() == pytest.approx(p, abs=0.01)
        assert (stream.goal == p).all()
    assert not (rare[-1].gradients[:CHANGE] < -0.5).any()


def test_figures_by_hand():
    beyond = np.zeros(WARM + 100)
    beyond[[3, WARM + 7, WARM + 9]] = [9, 1, 3]
    assert figures.triggered(beyond) == 0.02
    assert figures.clamped(beyond, elements=2) == 0.02
    # 1 + 6 * .999^k = 4 at k = ln 2 / -ln .999 = 692.8; below four times the usual nothing is stalled.
    assert figures.stalled(np.array([7.0, 3.9]), np.array([1.0, 1.0])) == pytest.approx([692.8, 0], abs=0.1)
    assert figures.stall(np.array([7.0, 1e9]), np.ones(2), np.array([True, False])) == pytest.approx(692.8, abs=0.1)
    # Half the rate at first: 2,000 ln 1.5.
    assert figures.lost(np.array([4.0, 9.0]), np.ones(2), np.array([True, False])) == pytest.approx(810.9, abs=1)
    assert figures.displacement(np.array([3e-3, 0.0]), np.array([0.0, 1e-3])) == pytest.approx(2)
    assert figures.inflation(np.array([9.0, 2.0, 3.0, 1.0]), 1) == 1.5
    assert math.isnan(figures.inflation(np.array([math.inf, math.inf]), 0))
    assert figures.until_admitted(np.array([1] * 5 + [0] * 3 + [1] + [0] * 20), 2) == 7
    assert figures.until_admitted(np.array([0] * 19), 0) == math.inf
    bound = np.array([8.0] * (WARM + 10) + [1.7, 1.6, 9.0])
    assert figures.until_tight(bound, WARM + 10, 0.1) == 1
    assert figures.until_tight(bound, WARM + 10, 0.001) == math.inf
    assert figures.blocked(np.array([False, False, True, False])) == 2
    assert figures.blocked(np.array([False, False])) == 2
    assert figures.until_learned(np.array([0.0, 0.0, 80.0, 91.0]), 1, 100.0) == 2
    assert figures.learned(np.array([5.0] * 10 + [0.5] * 200), 1.0) == 0.5


def test_stalled_updates_are_those_of_an_adam_that_is_left_to_run():
    square, updates = 40.0, 0
    while square > 4:
        square, updates = 0.999 * square + 0.001, updates + 1
    assert figures.stalled(np.array([40.0]), np.ones(1))[0] == pytest.approx(updates, abs=1)


def test_lost_updates_are_those_of_an_adam_that_is_left_to_run():
    excess = 39 * 0.999 ** np.arange(100_000)
    missing = (1 - 1 / np.sqrt(1 + excess)).sum()
    assert figures.lost(np.array([40.0]), np.ones(1), np.array([True])) == pytest.approx(missing, abs=1)


def test_without_a_rule_and_within_the_bounds_the_library_is_this_adam():
    made = [*streams.faults(0)[:1], *streams.faults(1)[-1:]]
    calm = [Stream(s.name, s.clean, s.clean, length=1) for s in made]
    plain, protected = train(Rule(), calm), train(library(), calm)
    assert not protected.beyond.any()
    for k in range(2):
        np.testing.assert_allclose(plain.final[k], protected.final[k], rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(plain.exp_avg_sq[k], protected.exp_avg_sq[k], rtol=1e-4)


def test_the_tracker_of_combined_rules_is_the_librarys():
    made = [s for s in streams.faults(0) if s.name in ("x1e3, 30 updates", "one-hot: x1e3, 20 updates")]
    alone, inside = train(Rank(), made), train(bound_alone(), made)
    np.testing.assert_allclose(alone.bound, inside.bound, rtol=1e-5)
    assert (alone.beyond == inside.beyond).all()
    assert alone.beyond.any()
    for k in range(2):
        np.testing.assert_allclose(alone.exp_avg_sq[k], inside.exp_avg_sq[k], rtol=1e-4)


def test_the_library_has_its_whole_budget_in_the_middle_of_a_training_and_no_more():
    made = [s for s in streams.faults(0) if s.name in ("x1e6 once", "element scales: x1e6 once")]
    run = train(library(), made)
    calm = train(Rule(), [Stream(s.name, s.clean, s.clean, length=1) for s in made])
    for k in range(2):
        grown = run.exp_avg_sq[k] / calm.exp_avg_sq[k]
        np.testing.assert_allclose(grown, 1 + (1 - BETA2) * PRESENT.budget, rtol=0.03)
        assert run.beyond[WARM, k] == ELEMENTS


def test_the_rules_promises_about_bursts_and_changes():
    alone, whole = measure.trade_off(bound_alone()), measure.trade_off(library())
    assert min(alone.held) >= PRESENT.rank - 1
    assert max(alone.unharmed) == 0
    assert min(whole.unharmed) >= PRESENT.rank - 1
    assert max(whole.admitted) < 100


def armed(rule, raw=None, updates=64):
    """A rule that has seen ones."""
    ones = np.ones((1, 2))
    rule.start(1)
    for _ in range(updates):
        assert rule.bound(ones).min() == math.inf
        rule.observe(ones if raw is None else raw)
    return rule


def test_bounds_by_hand():
    ones, spike = np.ones((1, 2)), np.array([[1.0, -50.0]])
    # No deviation: the least headroom of each. The level is log 1.
    for rule, bound in ((Mean(), 4), (ControlChart(), 2), (Vote(), 4), (Element(3.0), 3), (Bucket(900.0, 28.0), 30)):
        assert armed(rule).bound(ones) == pytest.approx(bound)
        assert rule.clamp(spike, rule.bound(ones), ones)[0] == pytest.approx([1, -bound])
    assert rule.bound(ones)[0] == pytest.approx([30, math.sqrt(28)])
    assert armed(Element(3.0)).bound(np.array([[2.0, 0.0]]))[0] == pytest.approx([6, math.inf])


def test_alarms_by_hand():
    small, spike, ones = np.array([[0.5, -15.0]]), np.array([[5.0, -50.0]]), np.ones((1, 2))
    for rule, limit in ((Rank(), 16), (ToLevel(), 1), (OnAlarm(3.0), 3), (Doubling(), 16)):
        bound = armed(rule).bound(ones)
        assert bound == pytest.approx(16)
        assert (rule.clamp(small, bound, ones) == small).all()
        assert rule.clamp(spike, bound, ones)[0] == pytest.approx([min(5, limit), -limit])
    # Spent by the alarm; an update without one doubles what is left.
    bound = rule.bound(ones)
    assert rule.clamp(spike, bound, ones)[0, 1] == pytest.approx(-math.sqrt(15))
    rule.clamp(small, bound, ones)
    assert rule.clamp(spike, bound, ones)[0] == pytest.approx([5, -math.sqrt(30)])
    both = armed(BudgetAndElement(600.0, 20.0))
    bound = both.bound(0.1 * ones)
    assert bound == pytest.approx(3)
    assert both.clamp(small, bound, 0.1 * ones)[0] == pytest.approx([0.5, -3])
    assert both.clamp(spike, bound, 0.1 * ones)[0] == pytest.approx([math.sqrt(6), -math.sqrt(6)])
    both.bound(0.1 * ones)
    assert both.clamp(spike, bound, 0.1 * ones)[0] == pytest.approx([math.sqrt(0.2), -math.sqrt(0.2)])


def test_a_vote_of_48_moves_the_level_at_once_and_fewer_hardly():
    rule = armed(Vote())
    for _ in range(47):
        rule.observe(np.full((1, 2), 1000.0))
    assert rule.bound(np.ones((1, 2))) < 8
    rule.observe(np.full((1, 2), 1000.0))
    assert math.exp(rule.level[0]) == pytest.approx(1000)
    for _ in range(56):
        rule.observe(np.ones((1, 2)))
    assert math.exp(rule.level[0]) == pytest.approx(1)


def test_the_quantile_leaves_zeros_out():
    raw = np.concatenate([np.zeros(900), np.arange(1.0, 101.0)])[None]
    assert quantile(raw, 0.9) == quantile(raw[:, ::-1], 0.9) == 90
    assert quantile(raw, 0.999) == 100
    assert quantile(raw[:, :910], 0.5) == 10  # too few
    assert quantile(np.zeros((1, 5)), 0.5) == 0


def test_bulk_rescaling_keeps_the_direction_and_ignores_single_elements():
    rule, ones = Bulk(), np.ones((1, 64))
    rule.start(1)
    for _ in range(65):
        bound = rule.bound(ones)
        used = rule.clamp(ones, bound, ones)
        rule.observe(ones)
    assert (used == ones).all()
    single = ones.copy()
    single[0, 0] = 1000.0
    assert (rule.clamp(single, bound, ones) == np.where(single > 1, 16.0, 1.0)).all()
    whole = np.linspace(-100, 100, 64)[None]
    used = rule.clamp(whole, bound, ones)
    assert abs(used).max() < 20
    inside = abs(used) < 16
    np.testing.assert_allclose((used / whole)[inside], (used / whole)[inside][0])


def test_an_exp_avg_sq_that_grows_is_held_and_its_exp_avg_with_it():
    rule, ones = TrackedSquare(), np.ones((1, 2))
    rule.start(1)
    for _ in range(65):
        same = rule.moments(ones, ones * 0.25, ones * 0.25)
    assert (np.stack(same) == np.stack([ones, ones * 0.25])).all()
    exp_avg, exp_avg_sq = rule.moments(ones, ones * 25.0, ones * 0.25)
    assert exp_avg_sq == pytest.approx(1)
    assert exp_avg == pytest.approx(0.2)


def test_an_update_is_bounded_by_what_updates_have_been():
    rule, ones = BoundedUpdate(), np.ones((1, 2))
    rule.start(1)
    for _ in range(65):
        assert (rule.step(-0.1 * ones) == -0.1 * ones).all()
    assert rule.step(-3.2 * ones) == pytest.approx(-0.2)


def test_one_bound_for_a_group_is_that_of_its_large_tensor():
    rule = PerGroup(2)
    rule.start(4)
    raw = np.ones((4, 2000))
    raw[[1, 3], 2:] = 0
    raw[1, :2], raw[2:] = 100, raw[2:] * 7
    for _ in range(64):
        rule.observe(raw)
    assert rule.bound(raw)[:, 0] == pytest.approx([16, 16, 112, 112])


def test_a_small_tensor_needs_a_bound_of_its_own():
    values = {
        name: {(v.figure, v.stream): v.value for v in measure.of_groups(make(), range(1))}
        for name, make in RESOLUTIONS.items()
    }
    body, large, small = (("clamped", streams.GROUP[0]), ("clamped", streams.GROUP[1]), ("stalled", streams.GROUP[2]))
    assert values["library"] == {body: 0, large: 0, small: 0}
    grouped = values["one bound a group"]
    assert grouped[body] == 0
    assert grouped[large] > 0.1
    assert grouped[small] > values["bound alone"][small] > 1000


def test_sensitivity_halves_and_doubles_every_constant_of_the_rule():
    changes = sensitivity.changes()
    named = {next(iter(change)) for change in changes.values()}
    assert named == set(PRESENT.__dataclass_fields__)
    assert len(changes) == 2 * len(named)
    assert changes["rank 12"] == {"rank": 12}
    assert changes["quantile 0.9995"]["quantile"] == pytest.approx(0.9995)
    for change in changes.values():
        library(**change)


def test_targets_are_measured_on_the_streams_they_name():
    results = everything(lambda figure, stream, rule: {"none": 2.0}.get(rule, 1.0))
    results["learned after"][streams.LATE]["library"] = [2.5] * 5
    results["triggered"][streams.CV1]["library"] = [0.0, 0.0, 0.0, 0.0, 0.005]
    lines = targets.write(results).splitlines()
    k = ["", *targets.RULES].index("library") + 1
    measured = [line.split(" | ")[k - 1].strip("| ") for line in lines[2:]]
    assert measured == ["1", "1", "1", "*0.1%*", "1", "*25%*"]


def everything(value):
    """Results of all figures, streams and rules."""
    names = [s.name for make in (streams.clean, streams.faults, streams.changes, streams.tasks) for s in make(0)]
    return {f: {s: {r: [value(f, s, r)] * 5 for r in CANDIDATES} for s in names} for f in report.TITLES}


def test_the_report_quotes_what_was_measured():
    order = list(CANDIDATES)
    results = everything(lambda figure, stream, rule: order.index(rule) + 1.0)
    points = {rule: measure.TradeOff([7.0], [8.0], [9.0]) for rule in CANDIDATES}
    groups = {f: {s: {r: [3.0] for r in RESOLUTIONS} for s in streams.GROUP} for f in ("stalled", "clamped")}
    rows = {row: dict.fromkeys(sensitivity.COLUMNS, 5.0) for row in (sensitivity.PRESENT_ROW, *sensitivity.changes())}
    text = report.write(results, points, groups, rows, 5, "x")
    numbers = " | ".join(str(order.index(rule) + 1) for rule in ("none", "bound alone", "library", "budget 900/28"))
    assert f"| stalled: x1e3 once | {numbers} |" in text
    assert "leaves Adam unharmed is 8" in " ".join(text.split())


def test_a_task_starts_from_nothing_and_is_learned():
    task = streams.tasks(0)[0]
    run = train(Rule(), [task])
    assert run.weights[-1, 0] == pytest.approx(100, rel=0.01)
    assert MID_TRAINING > 1 / (1 - 0.999)
