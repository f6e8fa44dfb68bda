"""A checkpoint is taken up at another update_every: the learned bound goes on from where it was."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn, optim

from sp4_lightning import CheckpointError, LearnedBound, Protection, Settings
from sp4_lightning.quantities import GRAD
from sp4_lightning.resampling import resample
from tests.core.making import QUICK, bound, examples, gradients, learned_state, parameters, protect, same, train

EVERY = (1, 2, 3, 8)
PAIRS = [(before, now) for before in EVERY for now in EVERY]
OTHERS = [(before, now) for before, now in PAIRS if before != now]
SHAPES = ((40, 3), (9,))


def resumed(wrapper, every, **settings):
    params = parameters(*SHAPES, seed=1)
    twin = protect(type(wrapper.base)(params), update_every=every, **settings)
    for param, original in zip(params, (p for g in wrapper.param_groups for p in g["params"]), strict=True):
        param.data.copy_(original.detach())
    twin.load_state_dict(wrapper.state_dict())
    return twin


# Not armed, just armed, and well into its window.
@pytest.mark.parametrize("steps", [0, 5, 63, 64, 200])
@pytest.mark.parametrize(("before", "now"), PAIRS)
def test_bounds_stay_and_a_clean_stream_is_never_clamped(before, now, steps):
    wrapper = protect(optim.Adam(parameters(*SHAPES)), update_every=before, warmup_steps=0)
    train(wrapper, steps)
    twin = resumed(wrapper, now, warmup_steps=0)
    assert twin.engine.state.bound.tolist() == wrapper.engine.state.bound.tolist()
    wrapper.engine.publish()  # between two observations the published table lags behind the bounds
    assert twin.engine.table.values.equal(wrapper.engine.table.values)
    armed = math.isfinite(bound(wrapper, GRAD)[0])
    for step in range(steps, steps + 80):
        train(twin, 1, start=step)
        # Once armed, armed for good.
        assert not armed or bound(twin, GRAD).isfinite().all()
    assert twin.engine.state.clamped.tolist() == [0, 0]
    assert twin.engine.state.repaired.tolist() == [0, 0]
    assert bound(twin, GRAD).isfinite().all()


@pytest.mark.parametrize(("before", "now"), PAIRS)
@pytest.mark.parametrize("steps", [24, 63, 200])
def test_a_protection_too(before, now, steps):
    def make(every):
        torch.manual_seed(0)
        net = nn.Linear(30, 4)
        base = optim.SGD(net.parameters(), lr=1e-3)
        return net, base, Protection([base], net, settings=Settings(update_every=every, warmup_steps=0))

    net, base, protection = make(before)
    for step in range(steps):
        gradients(list(net.parameters()), step)
        base.step()
    _, _, other = make(now)
    other.load_state_dict(protection.state_dict())
    assert same(
        torch.as_tensor(other.engines[0].state.bound).clone(), torch.as_tensor(protection.engines[0].state.bound)
    )


@pytest.mark.parametrize("every", EVERY)
def test_at_the_same_cadence_every_vector_keeps_its_bits(every):
    wrapper = protect(optim.Adam(parameters(*SHAPES)), update_every=every)
    train(wrapper, 200)
    assert same(learned_state(resumed(wrapper, every)), learned_state(wrapper))


@pytest.mark.parametrize(("before", "now"), OTHERS)
def test_a_spike_is_still_clamped_and_a_burst_of_them_is_not_believed_sooner(before, now):
    wrapper = protect(optim.Adam(parameters(*SHAPES)), update_every=before, warmup_steps=0)
    train(wrapper, 200)
    # Fewer spikes than make a level, all of them observed.
    for step in range(200, 200 + 2 * before):
        train(wrapper, 1, start=step, scale=1e6 if step % before == 0 else 1.0)
    twin = resumed(wrapper, now, warmup_steps=0)
    for step in range(500, 524):
        train(twin, 1, start=step)
    assert (bound(twin, GRAD) < 100).all()
    train(twin, 1, start=600, scale=1e6)
    assert (twin.engine.state.clamped > 0).all()


@st.composite
def trackers(draw):
    """A state as the tracker leaves it, with its settings and cadence."""
    arm_after = draw(st.integers(2, 40))
    rank, window = draw(st.integers(1, arm_after)), draw(st.integers(arm_after, 120))
    learned = LearnedBound(arm_after=arm_after, window=window, rank=rank)
    every, tensors = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    ring = learned.observations(window, every)
    seen = torch.tensor(draw(st.lists(st.integers(0, 3 * ring), min_size=tensors, max_size=tensors)))
    gen = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    recent = torch.full((ring, tensors), -torch.inf, dtype=torch.float64)
    for tensor, count in enumerate(seen.tolist()):
        for k in range(count):  # values that tell their time apart, and some that are equal
            recent[k % ring, tensor] = round(float(torch.randn((), generator=gen)), draw(st.sampled_from([0, 6])))
    return learned, every, {"seen": seen, "recent": recent, "level": torch.randn(tensors, generator=gen)}


def in_time(state, tensor):
    ring, seen = state["recent"][:, tensor].tolist(), int(state["seen"][tensor])
    return [ring[k % len(ring)] for k in range(max(0, seen - len(ring)), seen)]


@examples(100)
@given(trackers(), st.integers(1, 12))
def test_rank_arming_and_order_of_time_are_kept(tracked, now):
    learned, before, saved = tracked
    got = resample(saved, learned, before, now)
    if before == now:
        assert got is saved
        return
    old, new = (
        {name: learned.observations(getattr(learned, name), every) for name in ("arm_after", "rank", "window")}
        for every in (before, now)
    )
    assert got["recent"].shape == (new["window"], len(got["seen"]))
    assert got["level"] is saved["level"]
    for tensor in range(len(got["seen"])):
        seen, was = int(got["seen"][tensor]), int(saved["seen"][tensor])
        earlier, later = in_time(saved, tensor), in_time(got, tensor)
        assert (seen >= new["arm_after"]) == (was >= old["arm_after"])
        assert seen == math.ceil(was * before / now) or seen == new["arm_after"] - 1
        # Slots that nothing has been written to say so.
        assert got["recent"][:, tensor].isinf().sum() == new["window"] - min(seen, new["window"])
        if was >= old["arm_after"]:
            assert sorted(later)[-new["rank"]] == sorted(earlier)[-old["rank"]]
        # Whatever is kept is in its order of time: a walk through the old observations that never turns back.
        walk = iter(earlier)
        here = None
        for value in later:
            while here != value:
                here = next(walk)


@pytest.mark.parametrize("bad", [0, -1, None, "8", 2.0])
def test_a_damaged_cadence_is_refused(bad):
    wrapper = protect(optim.Adam(parameters(*SHAPES)), learned=QUICK)
    saved = wrapper.state_dict()
    saved["sp4"]["update_every"] = bad
    with pytest.raises(CheckpointError, match=r"update_every for Adam should be 1 or more, got .*it is damaged"):
        wrapper.load_state_dict(saved)


def test_another_window_is_refused_even_where_the_lengths_agree_by_chance():
    wrapper = protect(optim.Adam(parameters(*SHAPES)), update_every=8)  # remembers 1,024 / 8 observations
    other = protect(optim.Adam(parameters(*SHAPES)), learned=LearnedBound(window=128))
    before = learned_state(other)
    with pytest.raises(CheckpointError, match=r"'recent' for Adam should have shape \(16, 2\), got \(128, 2\)"):
        other.load_state_dict(wrapper.state_dict())
    assert same(learned_state(other), before)
