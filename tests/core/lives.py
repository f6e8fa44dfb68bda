"""One eventful life of a protected optimizer, for comparing two ways to run it."""

import math

import torch

from tests.core.making import QUICK, gradients, learned_state, parameters, protect, same, snapshot

SHAPES = ((5, 3), (7,), (), (40,))
COUNTERS = ("clamped", "counted", "repaired")


def eventful(make, params=None, **options):
    """Every kind of fault, before and after the flip."""
    params = parameters(*SHAPES) if params is None else params
    wrapper = protect(make(params), **{"learned": QUICK, "warmup_steps": 10, **options})
    for step in range(45):
        gradients(params, step)
        if step in (5, 18):  # before and after the flip; finite elements of a skipped step beyond their bound
            params[0].grad[0, 0], params[3].grad[1] = math.nan, 1e9
        if step == 20:
            params[3].grad[0] = 1e6
        if step == 25:
            params[0].data[1, 1], params[1].data[2] = 1e6, math.nan
        if step == 28:
            for entry in (wrapper.state.get(p, {}) for p in params[:2]):
                for key, value in (("exp_avg", 1e8), ("exp_avg_sq", -1.0), ("momentum_buffer", math.inf)):
                    if isinstance(entry.get(key), torch.Tensor):
                        entry[key].data[0] = value
        if step in (30, 31):
            params[2].grad = None
        if step == 35:
            params[1].grad[0] = math.inf
        wrapper.step()
    return wrapper


def assert_equal_lives(one, two):
    """Parameters, optimizer state and counts to the bit, what is learned to float64 rounding."""
    assert same(snapshot(one.base), snapshot(two.base))
    a, b = learned_state(one), learned_state(two)
    for key in ("bound", "level", "recent", "ratio_sq", "budget", "filled"):
        torch.testing.assert_close(a[key], b[key], rtol=1e-12, atol=0)
    assert a["seen"].equal(b["seen"])
    for key in COUNTERS:
        counts = [torch.as_tensor(getattr(w.engine.state, key)).tolist() for w in (one, two)]
        assert counts[0] == counts[1], key
    assert one.engine.tally.equal(two.engine.tally)
    torch.testing.assert_close(one.engine.table.values, two.engine.table.values)
