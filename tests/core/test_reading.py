"""Reading in blocks: how tensors are cut does not show, and what is read is what is there."""

import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn, optim

from sp4_lightning import histogram
from sp4_lightning.backends import reading
from tests.core.making import gradients, learned_state, parameters, protect, same, snapshot

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=7)
BLOCKS = st.integers(1, 60)
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def random_tensors(sizes, dtypes, seed):
    """param, grad, exp_avg, exp_avg_sq per tensor: wild scales, some missing, some with zeros or NaN."""
    rnd = np.random.default_rng(seed)

    def tensor(size, dtype):
        values = rnd.normal(size=size) * 10.0 ** rnd.uniform(-3, 3)
        values[rnd.random(size) < 0.2] = 0
        if rnd.random() < 0.1:
            values[rnd.integers(size)] = rnd.choice([math.nan, math.inf, -math.inf])
        return torch.tensor(values).to(dtype)

    rows = [[tensor(n, d) for n, d in zip(sizes, dtypes, strict=True)] for _ in range(4)]
    for row in rows[1:]:
        for i in range(len(row)):
            if rnd.random() < 0.2:
                row[i] = None
    return rows


def read(rows, limits, block=2**16):
    before, reading.BLOCK = reading.BLOCK, block
    try:
        return reading.Reader(rows[0]).read(rows, np.array(limits), True)
    finally:
        reading.BLOCK = before


def brute_force(rows, limits):
    """The definition, tensor by tensor, in the precision that the reader works in."""
    dtype = torch.float64 if any(p.dtype == torch.float64 for p in rows[0]) else torch.float32
    largest, excess, counts = np.zeros((4, len(limits))), np.zeros(len(limits)), []
    for i, limit in enumerate(limits):
        param, grad, exp_avg, exp_avg_sq = (
            torch.zeros(rows[0][i].numel(), dtype=dtype) if row[i] is None else row[i].to(dtype) for row in rows
        )
        largest[:, i] = [t.max() for t in (param.abs(), grad.abs(), exp_avg.abs(), exp_avg_sq)]
        excess[i] = (exp_avg.abs() * exp_avg.abs() * (1 / limit) - exp_avg_sq).max()
        counts.append(histogram.count(grad.abs(), torch.zeros(len(grad), dtype=torch.int32), 1)[0])
    return largest, excess, torch.stack(counts)


def assert_same_reading(a, b):
    np.testing.assert_array_equal(a[0], b[0])
    np.testing.assert_array_equal(a[1], b[1])
    assert a[2].equal(b[2])


@given(SIZES, BLOCKS, st.integers(0, 2**32 - 1), st.sampled_from(FLOATS))
def test_blocks_of_any_size_read_alike_and_read_what_is_there(sizes, block, seed, dtype):
    rows = random_tensors(sizes, [dtype] * len(sizes), seed)
    limits = [[math.inf, 52.9][i % 2] for i in range(len(sizes))]
    whole = read(rows, limits)
    assert_same_reading(read(rows, limits, block), whole)
    assert_same_reading(whole, brute_force(rows, limits))


@given(SIZES, BLOCKS, st.integers(0, 2**32 - 1))
def test_types_may_be_mixed(sizes, block, seed):
    rows = random_tensors(sizes, [FLOATS[(i + seed) % 4] for i in range(len(sizes))], seed)
    limits = [50.0] * len(sizes)
    assert_same_reading(read(rows, limits, block), brute_force(rows, limits))


@given(SIZES, BLOCKS)
def test_blocks_cover_every_element_once_and_in_order(sizes, block):
    before, reading.BLOCK = reading.BLOCK, block
    try:
        blocks = reading.cut(sizes)
    finally:
        reading.BLOCK = before
    assert all(0 < sum(s.stop - s.start for s in segments) <= block for segments in blocks)
    at = dict.fromkeys(range(len(sizes)), 0)
    for segment in (s for segments in blocks for s in segments):
        assert segment.start == at[segment.tensor]
        assert segment.whole == (segment.stop - segment.start == sizes[segment.tensor])
        at[segment.tensor] = segment.stop
    assert at == dict(enumerate(sizes))


@pytest.mark.parametrize("block", [1, 7, 12, 64])
def test_a_whole_life_does_not_depend_on_the_blocks(monkeypatch, block):
    def live():
        params = [*parameters((5, 3), (7,), (), (4, 4)), nn.Parameter(torch.randn(6, 4).t().mul(0).add(1.0))]
        wrapper = protect(optim.Adam(params, lr=1e-2), warmup_steps=70)
        for step in range(80):
            gradients(params, step, scale=1e6 if step == 75 else 1.0)
            if step == 30:
                params[0].grad[1, 1] = math.nan
            if step == 40:
                params[3].data[2, 2] = 1e6
                wrapper.state[params[0]]["exp_avg"].data[0, 0] = 1e8
            wrapper.step()
        return snapshot(wrapper.base), learned_state(wrapper), wrapper.engine.state.repaired.tolist()

    whole = live()
    monkeypatch.setattr(reading, "BLOCK", block)
    assert same(live(), whole)


def test_a_large_transposed_tensor_costs_a_few_times_a_plain_one(monkeypatch):
    # It has no flat view; making a copy for every block would be quadratic in its size (100 times as slow here).
    monkeypatch.setattr(reading, "BLOCK", 2**13)

    def seconds(weights):
        reader = reading.Reader([weights])

        def once():
            start = time.perf_counter()
            reader.read([[weights]] * 4, np.array([math.inf]), False)
            return time.perf_counter() - start

        return min(once() for _ in range(4))

    plain = torch.randn(1024, 1024)
    assert seconds(plain.t()) < 15 * seconds(plain)
