"""Counts against the definition: the exponent and the two top mantissa bits of |x|."""

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from sp4_lightning.histogram import BINS, FINITE_BINS, count

MAGNITUDES = st.floats(min_value=0, width=32, allow_nan=False, allow_infinity=True)
LISTS = st.lists(MAGNITUDES, max_size=60)


def bin_of(x):
    """The definition in plain arithmetic, without looking at bits."""
    if math.isinf(x):
        return FINITE_BINS
    if x < 2.0**-126:  # denormals: steps of a quarter of the smallest normal number
        return int(x / 2.0**-126 * 4)
    mantissa, exponent = math.frexp(x)  # mantissa in [0.5, 1)
    return (exponent - 1 + 127) * 4 + int((2 * mantissa - 1) * 4)


def brute_force(values):
    counts = np.zeros(BINS, dtype=np.int64)
    for x in values:
        if x > 0:
            counts[bin_of(x)] += 1
    return counts


def count_one(values, dtype=torch.float32):
    magnitudes = torch.tensor(values, dtype=dtype)
    return count(magnitudes, torch.zeros(len(values), dtype=torch.int32), 1)[0]


@given(LISTS)
def test_counts_are_the_definition(values):
    assert count_one(values).tolist() == brute_force(values).tolist()


def test_every_bin_edge_opens_its_bin_and_the_number_below_closes_the_previous_one():
    edges = (torch.arange(1, FINITE_BINS, dtype=torch.int32) << 21).view(torch.float32)
    for values, bins in ((edges, range(1, FINITE_BINS)), (edges.nextafter(edges * 0), range(FINITE_BINS - 1))):
        counts = count(values, torch.zeros(len(values), dtype=torch.int32), 1)[0]
        assert counts.nonzero().flatten().tolist() == list(bins)
        assert counts.max() == 1


def test_zeros_are_in_no_bin_and_denormals_are_not_zeros():
    assert count_one([0.0, -0.0, 0.0]).sum() == 0
    assert count_one([2.0**-149, 2.0**-127, 0.0])[[0, 2]].tolist() == [1, 1]


def test_infinities_and_nan_are_beyond_the_finite_bins():
    counts = count_one([math.inf, math.nan, 1.0])
    assert counts[:FINITE_BINS].sum() == 1
    assert counts[FINITE_BINS:].sum() == 2
    assert counts[FINITE_BINS] == 1


def test_the_largest_float_is_in_the_last_finite_bin():
    assert count_one([torch.finfo(torch.float32).max])[FINITE_BINS - 1] == 1


@given(st.lists(st.floats(min_value=0, allow_nan=False), max_size=40))
def test_float64_counts_as_its_float32_and_saturates(values):
    largest = float(np.finfo(np.float32).max)
    with np.errstate(under="ignore"):
        rounded = [float(np.float32(min(x, largest))) if math.isfinite(x) else x for x in values]
    assert count_one(values, torch.float64).tolist() == brute_force(rounded).tolist()


def test_float64_nan_and_infinity_stay_what_they_are():
    counts = count_one([math.inf, math.nan, 1e300], torch.float64)
    assert counts[FINITE_BINS - 1] == 1
    assert counts[FINITE_BINS:].sum() == 2


@given(LISTS, st.sampled_from([torch.bfloat16, torch.float16]))
def test_low_precision_values_count_exactly_as_the_float32_they_are(values, dtype):
    narrow = torch.tensor(values, dtype=torch.float32).to(dtype).float()
    counts = count(narrow, torch.zeros(len(values), dtype=torch.int32), 1)[0]
    assert counts.tolist() == brute_force(narrow.tolist()).tolist()


@given(st.lists(st.tuples(MAGNITUDES, st.integers(0, 4)), max_size=60), st.randoms(use_true_random=False))
def test_counts_are_free_of_order_and_partition(pairs, rnd):
    def counted(some):
        values, rows = [v for v, _ in some], [r for _, r in some]
        return count(torch.tensor(values), torch.tensor(rows, dtype=torch.int32), 5)

    whole = counted(pairs)
    shuffled = rnd.sample(pairs, len(pairs))
    cut = rnd.randint(0, len(pairs))
    assert counted(shuffled).equal(whole)
    assert (counted(shuffled[:cut]) + counted(shuffled[cut:])).equal(whole)
    for row in range(5):
        assert whole[row].tolist() == brute_force([v for v, r in pairs if r == row]).tolist()


def test_rows_without_values_are_there_and_empty():
    counts = count(torch.ones(3), torch.full((3,), 1, dtype=torch.int32), 4)
    assert counts.shape == (4, BINS)
    assert counts.sum(1).tolist() == [0, 3, 0, 0]
