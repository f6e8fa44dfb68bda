"""Every peer does what its formula says: against plain NumPy over random lives, and by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.peers import PEERS
from benchmarks.peers.adagc import AdaGC
from benchmarks.peers.agc import AGC
from benchmarks.peers.autoclip import AutoClip
from benchmarks.peers.clip import ClipGradNorm, NanToNumClip
from benchmarks.peers.spam import SPAM
from benchmarks.peers.weight_clipping import WeightClipping
from benchmarks.peers.zclip import ZClip
from tests.peers import rules
from tests.peers.lives import attached, give, life, parameters

OF_GRADIENTS = {
    "clip": rules.clip,
    "nan_to_num+clip": rules.nan_to_num_clip,
    "autoclip": rules.autoclip,
    "zclip": rules.zclip,
    "adagc": rules.adagc,
    "agc": rules.agc,
}


def same(got, expected):
    for a, b in zip(got, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("name", OF_GRADIENTS)
@pytest.mark.parametrize(("seed", "scale"), [(0, 1e-3), (1, 0.05), (2, 5.0)])
def test_gradients_become_what_the_formula_says(name, seed, scale):
    tensors = parameters(seed)
    optimizer = attached(PEERS[name](), tensors, torch.optim.SGD)
    reference, changed = OF_GRADIENTS[name](), 0
    # Spikes in ZClip's warm-up would make everything after it look small.
    for gradients in life(130 if name == "adagc" else 50, seed, scale, calm=25 if name == "zclip" else 0):
        expected = reference([p.detach().numpy().copy() for p in tensors], gradients)
        got = give(optimizer, gradients)
        same(got, expected)
        changed += any((a != b).any() for a, b in zip(got, gradients, strict=True) if a is not None)
    assert changed  # spikes are many: a comparison in which nothing was clipped would show nothing


def test_spam_is_its_own_adam():
    tensors = parameters()
    optimizer = attached(SPAM(), tensors)
    reference = rules.Spam([p.detach().numpy() for p in tensors])
    cut = 0
    for i, gradients in enumerate(life(660, odd=0.06)):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 / (1 + i / 1_000)
        reference.step(gradients, group["lr"])
        got = give(optimizer, gradients)
        cut += sum((a != b).sum() for a, b in zip(got, gradients, strict=True) if a is not None)
        assert group["lr"] == 1e-3 / (1 + i / 1_000)
        for p, expected in zip(tensors, reference.parameters, strict=True):
            np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-7, atol=1e-12)
    assert cut > 50


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000))
def test_weights_are_cut_to_their_range_after_each_step(seed):
    tensors, limits = parameters(seed), [2 / 4**0.5] * 2 + [2 / 3**0.5, 2 / 18**0.5]
    optimizer = attached(WeightClipping(), tensors, torch.optim.SGD, lr=0.3)
    for gradients in life(5, seed, scale=1):
        before = [p.detach().numpy().copy() for p in tensors]
        give(optimizer, gradients)
        for p, w, g, limit in zip(tensors, before, gradients, limits, strict=True):
            moved = w if g is None else w - 0.3 * g
            np.testing.assert_allclose(p.detach().numpy(), np.clip(moved, -limit, limit), rtol=1e-12)


# By hand, from here on.


def through(peer, *lives, weights=None):
    """What the steps see of these steps' gradients, all of them one after another."""
    optimizer = attached(peer, [torch.nn.Parameter(torch.tensor(w, dtype=torch.float64)) for w in weights or lives[0]])
    return np.concatenate([g.ravel() for gradients in lives for g in give(optimizer, gradients)])


def test_a_norm_of_50_becomes_10():
    assert through(ClipGradNorm(), [[30.0], [40.0]]) == pytest.approx([6, 8])


def test_what_is_not_finite_becomes_0_before_the_norm_is_taken():
    seen = through(NanToNumClip(), [[math.nan, math.inf, -math.inf, 30.0, 40.0]])
    assert seen == pytest.approx([0, 0, 0, 6, 8])


def test_autoclip_is_a_percentile_of_all_norms():
    # The 10th percentile of 1 and 2 is 1.1; of 0.5, 1 and 2 it is 0.6, the norm of 0.5 below it.
    assert through(AutoClip(), [[1.0]], [[2.0]], [[0.5]]) == pytest.approx([1, 1.1, 0.5])


def test_zclip_of_an_outlier_and_what_it_remembers():
    peer = ZClip(warmup_steps=2)
    # Mean 0.2, std 0.1: z is 5, twice the threshold, so 0.25 above the mean becomes half of it.
    assert through(peer, [[0.1]], [[0.3]], [[0.7]]) == pytest.approx([0.1, 0.3, 0.325], rel=1e-4)
    assert peer.mean == pytest.approx(0.97 * 0.2 + 0.03 * 0.325, rel=1e-4)
    assert peer.variance == pytest.approx(0.97 * 0.01 + 0.03 * (0.325 - peer.mean) ** 2, rel=1e-4)


def test_zclip_has_a_limit_of_1_on_top_that_it_does_not_remember():
    peer = ZClip(warmup_steps=2)
    assert through(peer, [[1.0]], [[3.0]], [[2.0]]) == pytest.approx([1, 1, 1], rel=1e-5)
    assert peer.mean == pytest.approx(2)


def test_adagc_by_tensor():
    peer = AdaGC(warmup_steps=2)
    seen = through(peer, [[3.0], [4.0]], [[0.3], [0.4]], [[1.0], [0.41]])
    assert seen == pytest.approx([0.6, 0.8, 0.3, 0.4, 1.05 * 0.3, 0.41], rel=1e-5)
    assert peer.references == pytest.approx({0: 0.98 * 0.3 + 0.02 * 0.315, 1: 0.98 * 0.4 + 0.02 * 0.41}, rel=1e-5)


def test_agc_by_unit():
    weights = [[[3.0, 4.0], [0.0, 0.0]], [0.0, 5.0], [[4.0], [3.0]]]
    seen = through(AGC(), [[[0.3, 0.4], [0.3, 0.4]], [0.03, 0.04], [[0.3], [0.4]]], weights=weights)
    # Of 5 a share of 0.01; of zeros that of 0.001. A vector, and a column, are one unit.
    assert seen == pytest.approx([0.03, 0.04, 0.6e-5, 0.8e-5, 0.03, 0.04, 0.03, 0.04])


def test_spam_cuts_resets_and_warms_up_when_its_code_does():
    tensor = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = attached(SPAM(), [tensor])
    rates, cut = [math.nan], []
    optimizer.register_step_pre_hook(lambda o, *_: rates.append(o.param_groups[0]["lr"] / 1e-3))
    for i in range(1, 661):
        if i > 1:
            optimizer.state[tensor]["exp_avg"].fill_(1)
            optimizer.state[tensor]["exp_avg_sq"].fill_(1e-4)
        ((seen,),) = give(optimizer, [[-1.0]])
        if seen != -1:
            assert seen == pytest.approx(-math.sqrt(0.5))
            cut.append(i)
        if i == 500:
            assert optimizer.state[tensor]["exp_avg"].item() == pytest.approx(-0.1)
            assert optimizer.state[tensor]["exp_avg_sq"].item() == pytest.approx(0.001)
            assert optimizer.state[tensor]["step"].item() == 500
    assert cut == [*range(20, 500), *range(520, 661)]
    assert [i for i, rate in enumerate(rates) if i and rate != 1] == [*range(500, 650)]
    assert rates[500] == pytest.approx(1 - 0.99 * (1 + math.cos(math.pi / 151)) / 2)
    assert rates[649] == pytest.approx(1 - 0.99 * (1 + math.cos(math.pi * 150 / 151)) / 2)


def test_a_vector_ahead_of_all_weights_is_left_alone():
    tensors = [torch.nn.Parameter(torch.full(shape, 9.0)) for shape in ((2,), (3, 16), (3,), (2, 4, 2, 2), ())]
    optimizer = attached(WeightClipping(), tensors)
    give(optimizer, [None] * 5)
    assert [p.max().item() for p in tensors] == [9, 0.5, 0.5, 0.5, 0.5]


def test_spam_refuses_what_is_no_adam():
    with pytest.raises(TypeError, match="SPAM is a kind of Adam; it cannot work on SGD"):
        SPAM().attach(torch.optim.SGD(parameters(), lr=1))
