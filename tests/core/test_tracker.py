"""The vectorised tracker against a plain one, observation by observation."""

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sp4_lightning import LearnedBound, tracker
from tests.core.making import examples
from tests.core.tracker_reference import ReferenceTracker, fresh, observe

ODD = LearnedBound(arm_after=7, window=31, rank=5, rise=1.5, fall=1.2, headroom=3.0)


def draw(rnd, scales):
    return [None if rnd.random() < 0.15 else s * math.exp(rnd.gauss(0, 0.5 * (i + 1))) for i, s in enumerate(scales)]


@pytest.mark.parametrize("library", [np, torch])
@pytest.mark.parametrize("every", [1, 8])
@pytest.mark.parametrize("learned", [LearnedBound(window=200), ODD])
def test_vectorised_and_plain_tracker_agree_over_500_observations(learned, every, library):
    rnd, scales = random.Random(0), [1.0, 1e-20, 1e20, 3.0, 1e-3]
    state = fresh(5, learned, every, library)
    plain = [ReferenceTracker(learned, every) for _ in scales]
    for step in range(500):
        # One tensor joins late, one is hit by a spike, one changes its scale.
        seen = draw(rnd, scales)
        if step < 100:
            seen[3] = None
        if step == 300:
            seen[0], scales[4] = 1e6, 1e-1
        observe(state, seen, learned, every, library)
        for one, x in zip(plain, seen, strict=True):
            one.observe(x)
        np.testing.assert_allclose(tracker.bound(state, learned, every), [one.bound() for one in plain], rtol=1e-11)
    np.testing.assert_allclose(state.level, [one.level for one in plain], rtol=1e-11)


@examples(10)
@given(st.integers(0, 2**32), st.integers(2, 9))
def test_a_tensor_is_tracked_as_if_it_were_alone(seed, tensors):
    rnd, learned = random.Random(seed), LearnedBound(arm_after=5, window=20, rank=3)
    together, alone = fresh(tensors, learned), [fresh(1, learned) for _ in range(tensors)]
    for _ in range(30):
        seen = draw(rnd, [1.0] * tensors)
        observe(together, seen, learned)
        for state, x in zip(alone, seen, strict=True):
            observe(state, [x], learned)
    assert tracker.bound(together, learned, 1).tolist() == [float(tracker.bound(s, learned, 1)[0]) for s in alone]


@examples(10)
@given(st.integers(0, 2**32))
def test_invalid_observations_leave_every_vector_as_it_was(seed):
    rnd, state = random.Random(seed), fresh(3)
    for _ in range(rnd.randint(0, 100)):
        observe(state, draw(rnd, [1.0] * 3))
    before = state.state_dict("abc")
    observe(state, [None] * 3)
    after = state.state_dict("abc")
    assert all(torch.equal(before[key], after[key]) for key in before if key != "names")


def test_the_bound_is_infinite_until_the_last_of_the_first_observations():
    state, learned = fresh(2), LearnedBound()
    for k in range(learned.arm_after):
        assert np.isinf(tracker.bound(state, learned, 1)).all()
        observe(state, [1.0, None])
        assert state.seen.tolist() == [k + 1, 0]
    assert tracker.bound(state, learned, 1).tolist() == [learned.headroom, math.inf]


def test_spikes_among_the_first_observations_do_not_count():
    state, learned = fresh(1), LearnedBound()
    for k in range(learned.arm_after):
        observe(state, [1e9 if k % 3 == 0 else 1.0])
    assert tracker.bound(state, learned, 1)[0] == learned.headroom
