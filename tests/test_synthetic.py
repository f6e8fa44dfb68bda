"""The synthetic bench: streams are what they say, figures are right by hand, rules do what they promise."""

import math

import numpy as np
import pytest

from benchmarks.synthetic import figures, measure, recommendation, streams
from benchmarks.synthetic.adam import MID_TRAINING, train
from benchmarks.synthetic.candidates import CANDIDATES, CHOSEN, PRESENT, library
from benchmarks.synthetic.elements import Bucket, Element
from benchmarks.synthetic.on_alarm import BudgetOnAlarm, OnAlarm, Rank, ToLevel
from benchmarks.synthetic.rules import ControlChart, Mean, Rule
from benchmarks.synthetic.streams import CHANGE, ELEMENTS, LONG, SHORT, WARM, Stream


def clean(name, seed=0):
    return next(stream.gradients for stream in streams.clean(seed) if stream.name == name)


def rms(gradients):
    return math.sqrt((gradients**2).mean())


def test_streams_are_repeatable_and_differ_between_seeds():
    for make in (streams.clean, streams.faults, streams.changes, streams.tasks):
        first, again, other = make(3), make(3), make(4)
        assert all((a.gradients == b.gradients).all() for a, b in zip(first, again, strict=True))
        assert not any((a.gradients == b.gradients).all() for a, b in zip(first, other, strict=True))
        assert len({stream.name for stream in first}) == len(first)


@pytest.mark.parametrize("sd", [0.1, 0.3, 1.0, 2.0])
def test_noise_has_the_spread_it_names(sd):
    name = f"noise {sd:g} nat" + ("" if sd == 1 else "s")
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
    assert (np.flatnonzero(changed.any(1)) == range(WARM, WARM + length)).all()
    assert (stream.gradients[changed] == stream.clean[changed] * factor).all()
    assert changed.any(0).sum() == {"element": 1, "one": 1, "one-hot": changed.any(0).sum()}.get(kind, ELEMENTS)


def test_changes_and_tasks_come_when_they_say():
    for stream in streams.changes(0):
        factor = streams.CHANGES.get(stream.name, 100.0)
        assert (stream.gradients[:CHANGE] == stream.clean[:CHANGE]).all()
        assert (stream.gradients[CHANGE:] == stream.clean[CHANGE:] * factor).all()
    jump, *rare = streams.tasks(0)
    assert jump.gradients[CHANGE:].mean() == pytest.approx(100 * jump.gradients[:CHANGE].mean(), rel=0.05)
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
    alone, inside = train(Rank(), made), train(library(), made)
    np.testing.assert_allclose(alone.bound, inside.bound, rtol=1e-5)
    assert (alone.beyond == inside.beyond).all()


def test_the_librarys_rule_blocks_a_burst_of_24_and_follows_x100():
    point = measure.trade_off(library())
    assert min(point.held) >= PRESENT.rank - 1
    assert max(point.admitted) < 100


def test_rules_by_hand():
    ones, raw = np.ones((1, 2)), np.array([[1.0, 50.0]])
    arming = {"mean": Mean(), "chart": ControlChart(), "rank": ToLevel(), "k": OnAlarm(3.0)}
    arming |= {"element": Element(3.0), "bucket": Bucket(900.0, 28.0), "budget": BudgetOnAlarm(900.0, 28.0)}
    for rule in arming.values():
        rule.start(1)
        for _ in range(64):
            assert rule.bound(ones).min() == math.inf
            rule.observe(np.ones(1))
    # No deviation: the least headroom of each. The level is log 1.
    assert arming["mean"].bound(ones) == pytest.approx(4)
    assert arming["chart"].bound(ones) == pytest.approx(2)
    for name, limits in {"rank": [1, 1], "k": [3, 3], "budget": [16, 16]}.items():
        rule = arming[name]
        assert rule.bound(ones) == pytest.approx(16)
        assert np.broadcast_to(rule.limit(rule.bound(ones), raw, ones), (1, 2))[0] == pytest.approx(limits)
        assert rule.limit(rule.bound(ones), raw / 10, ones) == pytest.approx(16)
    # Spent by the alarm, 28 saved by the update without one, 28 by the next.
    budget = arming["budget"]
    assert budget.limit(budget.bound(ones), raw, ones)[0] == pytest.approx([math.sqrt(56)] * 2)
    assert arming["element"].bound(np.array([[2.0, 0.0]]))[0] == pytest.approx([6, math.inf])
    bucket = arming["bucket"]
    bucket.limit(bucket.bound(ones), raw, ones)
    assert bucket.bound(ones)[0] == pytest.approx([30, math.sqrt(28)])


def test_the_chosen_rule_leaves_adam_unharmed_by_a_burst_of_24():
    point = measure.trade_off(CANDIDATES[CHOSEN]())
    assert min(point.unharmed) >= PRESENT.rank - 1
    assert max(point.admitted) < 100


def test_the_recommendation_quotes_what_was_measured():
    everything = {"stalled", "lost", "displacement", "inflation", "triggered", "clamped", "followed", "learned after"}
    everything |= {"learned share"}
    names = [s.name for make in (streams.clean, streams.faults, streams.changes, streams.tasks) for s in make(0)]
    results = {f: {s: {r: [float(k)] * 5 for k, r in enumerate(CANDIDATES)} for s in names} for f in everything}
    points = {rule: measure.TradeOff([7.0], [8.0], [9.0]) for rule in CANDIDATES}
    text = recommendation.recommend(results, points)
    assert "| stalled: x1e3 once | 0 | 1 | " in text
    assert "unharmed is 8 (now 8)" in text


def test_a_task_starts_from_nothing_and_is_learned():
    task = streams.tasks(0)[0]
    run = train(Rule(), [task])
    assert run.weights[-1, 0] == pytest.approx(100, rel=0.01)
    assert MID_TRAINING > 1 / (1 - 0.999)
