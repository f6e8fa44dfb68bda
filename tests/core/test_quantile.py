"""The quantile of a histogram against the sorted values it was counted from."""

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from sp4_lightning.histogram import BINS, count, quantile

VALUES = st.lists(st.floats(min_value=2.0**-100, max_value=2.0**100, width=32), min_size=32, max_size=200)
QUANTILES = st.sampled_from([0.5, 0.9, 0.99, 0.999, 1.0])


def estimate(values, q, library=np):
    """One row's estimate, through NumPy (what a CPU runs) or torch (what other devices run)."""
    magnitudes = torch.tensor(values, dtype=torch.float32)
    counts = count(magnitudes, torch.zeros(len(values), dtype=torch.int32), 1)
    maximum = magnitudes.double().max().reshape(1) if values else torch.zeros(1, dtype=torch.float64)
    if library is np:
        return float(quantile(counts.numpy(), q, maximum.numpy())[0])
    return float(quantile(counts, q, maximum)[0])


def neighbours(x):
    """The edges of the bin that holds x."""
    bits = torch.tensor(x, dtype=torch.float32).view(torch.int32) >> 21 << 21
    return bits.view(torch.float32).item(), (bits + (1 << 21)).view(torch.float32).item()


@given(VALUES, QUANTILES)
def test_estimate_is_in_the_bin_of_the_exact_quantile(values, q):
    exact = sorted(values)[max(math.ceil(len(values) * q), 1) - 1]
    low, high = neighbours(exact)
    assert low <= estimate(values, q) <= high


@given(st.integers(0, 2**32 - 1), QUANTILES)
def test_estimate_is_within_a_bins_width_of_numpys(seed, q):
    values = np.random.default_rng(seed).lognormal(0, 2, 5000).astype(np.float32)
    got, exact = estimate(values.tolist(), q), np.quantile(values, q, method="inverted_cdf")
    assert abs(got - exact) <= 0.25 * exact


def test_interpolation_is_better_than_a_bins_width_on_smooth_data():
    values = np.linspace(1, 2, 4001, dtype=np.float32)[:-1]
    for q in (0.5, 0.9, 0.99):
        assert abs(estimate(values.tolist(), q) - (1 + q)) < 2e-3


@given(st.lists(st.floats(min_value=0, max_value=2.0**100, width=32), max_size=100), QUANTILES)
def test_estimate_never_exceeds_the_exact_maximum_and_is_never_negative(values, q):
    assert 0 <= estimate(values, q) <= max(values, default=0.0)


@given(st.lists(st.floats(min_value=2.0**-100, max_value=2.0**100, width=32), min_size=1, max_size=31), QUANTILES)
def test_a_handful_of_values_gives_its_maximum(values, q):
    assert estimate(values, q) == max(np.float32(values))


def test_few_counts_the_non_zero_values_only():
    values = [0.0] * 1000 + [float(i) for i in range(1, 32)]
    assert estimate(values, 0.5) == 31.0
    assert estimate([*values, 32.0], 0.5) < 20.0


def test_zeros_do_not_pull_a_quantile_down():
    values = [1.0 + i / 100 for i in range(100)]
    assert estimate(values + [0.0] * 100_000, 0.9) == estimate(values, 0.9)


def test_an_empty_row_gives_zero():
    assert estimate([], 0.999) == 0.0
    assert estimate([0.0] * 50, 0.999) == 0.0


@given(VALUES, QUANTILES, st.integers(-20, 20))
def test_estimate_is_scale_equivariant_under_powers_of_two(values, q, k):
    values = [float(np.float32(v)) for v in values]
    assert estimate([v * 2.0**k for v in values], q) == estimate(values, q) * 2.0**k


@given(VALUES, QUANTILES)
def test_numpy_and_torch_agree_to_the_bit(values, q):
    assert estimate(values, q) == estimate(values, q, torch)


def test_rows_are_independent():
    counts = torch.zeros(3, BINS, dtype=torch.int64)
    counts[0, 508], counts[2, 512] = 100, 100  # [1, 1.25) and [2, 2.5)
    maximum = np.array([1.2, 0.0, 2.4])
    got = quantile(counts.numpy(), 0.5, maximum)
    assert got.tolist() == [1.125, 0.0, 2.25]


def test_denormals_have_quantiles_too():
    values = [2.0**-149 * i for i in range(1, 101)]
    assert 0 < estimate(values, 0.5) <= values[-1]
