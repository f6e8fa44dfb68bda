"""How the learned bound moves: never by much at once, never for a few, never so slowly that a change is a trap."""

import math
import random

import pytest

from sp4_lightning import LearnedBound, tracker
from tests.core.tracker_reference import fresh, observe

LEARNED = LearnedBound()


class Tracked:
    """One tensor, observed with lognormal noise around a scale."""

    def __init__(self, noise=0.3, every=1, seed=0):
        self.noise, self.every, self.rnd = noise, every, random.Random(seed)
        self.state = fresh(1, every=every)
        self.bounds = []
        self.newest = None

    def see(self, scale, times=1, noise=None):
        for _ in range(times):
            self.newest = scale * math.exp(self.rnd.gauss(0, self.noise if noise is None else noise))
            observe(self.state, [self.newest], every=self.every)
            self.bounds.append(float(tracker.bound(self.state, LEARNED, self.every)[0]))
        return self.bounds[-1]


@pytest.mark.parametrize("value", [1e-30, 1e-6, 1e-2, 1e2, 1e6, 1e30])
@pytest.mark.parametrize("noise", [0.0, 0.3, 1.0])
def test_one_observation_moves_the_bound_by_a_bounded_factor(value, noise):
    one = Tracked(noise)
    before = one.see(1.0, 200)
    for _ in range(100):
        after = one.see(value, noise=0)
        assert before / LEARNED.fall * 0.999999 <= after <= before * LEARNED.rise * 1.000001
        before = after


@pytest.mark.parametrize("burst", [1, 10, LEARNED.rank - 1])
@pytest.mark.parametrize("size", [1e3, 1e6, 1e30])
def test_a_burst_shorter_than_the_rank_inflates_the_bound_by_less_than_the_noise(burst, size):
    one = Tracked()
    before = one.see(1.0, 1024)
    after = one.see(size, burst)
    # At the most it leaves the level at the largest ordinary value of the window.
    assert after <= before * math.exp(4 * 0.3)
    assert after < size * 0.1


def test_without_noise_a_burst_does_not_move_the_bound_at_all():
    one = Tracked(noise=0.0)
    before = one.see(1.0, 400)
    assert one.see(1e6, LEARNED.rank - 1) == before


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("factor", "within"), [(5.0, 100), (30.0, 100), (100.0, 100), (1e4, 300)])
def test_a_genuine_rise_is_followed(seed, factor, within):
    one = Tracked(seed=seed)
    one.see(1.0, 1100)
    admitted = []
    for _ in range(within + 20):
        before = one.bounds[-1]
        one.see(factor)
        admitted.append(one.newest <= before)
    assert all(admitted[-20:])


def test_a_rise_of_any_size_is_followed():
    one = Tracked()
    one.see(1e-8, 100)
    needed = LEARNED.rank + math.ceil(math.log(1e16) / math.log(LEARNED.rise))
    assert one.see(1e8, needed) > 1e8


def test_a_fall_is_followed_when_the_window_has_forgotten():
    one = Tracked()
    one.see(1.0, 1100)
    one.see(1e-2, 1024 - LEARNED.rank)
    assert one.see(1e-2, math.ceil(math.log(100) / math.log(LEARNED.fall)) + 50) < 1e-2 * LEARNED.headroom * math.e


def test_what_comes_back_again_and_again_is_believed():
    # Thirty of every 250 updates are a hundredfold, as after each copy into a target network.
    one, beyond = Tracked(), 0
    for cycle in range(8):
        for k in range(250):
            before = one.bounds[-1] if one.bounds else math.inf
            one.see(100.0 if k < 30 else 1.0)
            beyond += cycle >= 2 and one.newest > before
    assert beyond == 0


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(2))
def test_on_stationary_data_the_bound_neither_shrinks_nor_grows(noise, seed):
    one = Tracked(noise, seed=seed)
    one.see(1.0, 6000)
    early, late = one.bounds[1100:1600], one.bounds[-500:]
    assert 0.7 < (sum(late) / 500) / (sum(early) / 500) < 1.4


@pytest.mark.parametrize("every", [1, 4, 8])
def test_one_observation_for_many_updates_moves_as_far_as_they_would(every):
    one = Tracked(noise=0.0, every=every)
    one.see(1.0, LEARNED.observations(LEARNED.arm_after, every))
    one.see(1e6, math.ceil(LEARNED.rank / every) - 1)
    level = float(one.state.level[0])
    assert level == 0.0
    one.see(1e6)
    assert float(one.state.level[0]) == pytest.approx(math.log(LEARNED.rise) * every)
