"""A checkpoint that does not fit is refused before anything is written, and the error says what and the way out."""

import copy

import pytest
import torch
from torch import nn, optim

from sp4_lightning import CheckpointError, LearnedBound, ParamGroup, Protection, Settings
from tests.core.making import QUICK, gradients, learned_state, parameters, protect, same, train

REALS = ("bound", "ratio_sq", "level", "recent", "budget", "filled", "peak")
MEND = "or drop the callback's state to learn the bounds anew."


@pytest.fixture
def wrapper():
    made = protect(optim.Adam(parameters((4, 3), (5,))), learned=QUICK, warmup_steps=10)
    train(made, 20)
    return made


def refused(wrapper, damage):
    """Load a damaged copy of the wrapper's own state; return the error's text."""
    saved = copy.deepcopy(wrapper.state_dict())
    for state in saved["state"].values():
        state["exp_avg"] += 1.0  # to be seen if anything were loaded
    saved = damage(saved) or saved
    before = copy.deepcopy(wrapper.state_dict())
    with pytest.raises(CheckpointError) as caught:
        wrapper.load_state_dict(saved)
    assert same(wrapper.state_dict(), before)
    return str(caught.value)


def test_another_version(wrapper):
    text = refused(wrapper, lambda saved: saved["sp4"].update(version=99))
    assert "bounds for Adam have state version 99; this release reads version" in text
    assert text.endswith(f"Resume with the release that wrote it, {MEND}")


def test_other_groups(wrapper):
    text = refused(wrapper, lambda saved: saved["sp4"].update(groups=["trunk"]))
    assert text == (
        "The checkpoint's bounds for Adam are of the groups ['trunk'], but it now trains ['Adam']. Resume with the "
        f"same groups, {MEND}"
    )


def test_other_tensors(wrapper):
    lost = wrapper.state_dict()["sp4"]["tensors"]["names"][1]
    assert "Adam[1]" in lost

    def rename(saved):
        saved["sp4"]["tensors"]["names"][1] = "other"

    assert refused(wrapper, rename) == (
        f"The checkpoint's bounds for Adam belong to other tensors: it lacks [{lost}] and has [other], which are not "
        f"trained now. Resume with the same groups, {MEND}"
    )


def test_another_shape(wrapper):
    def widen(saved):
        saved["sp4"]["tensors"]["bound"] = torch.ones(4, 3)

    assert refused(wrapper, widen) == (
        "The checkpoint's 'bound' for Adam should have shape (4, 2), got (4, 3). Resume with the same settings, " + MEND
    )


@pytest.mark.parametrize("vector", [*REALS, "seen", "clamped", "repaired"])
def test_a_missing_vector(wrapper, vector):
    text = refused(wrapper, lambda saved: saved["sp4"]["tensors"].__delitem__(vector))
    assert f"'{vector}' for Adam should have shape" in text


@pytest.mark.parametrize("key", ["groups", "calls", "tally", "tensors", "phase"])
def test_a_missing_entry(wrapper, key):
    assert "Adam" in refused(wrapper, lambda saved: saved["sp4"].__delitem__(key))


def test_a_tally_of_another_length(wrapper):
    assert "tally" in refused(wrapper, lambda saved: saved["sp4"].update(tally=torch.zeros(9, dtype=torch.int64)))


@pytest.mark.parametrize("vector", REALS)
def test_nan_is_damage(wrapper, vector):
    def poison(saved):
        saved["sp4"]["tensors"][vector].view(-1)[0] = torch.nan

    text = refused(wrapper, poison)
    assert f"'{vector}' for Adam holds NaN" in text
    assert text.endswith(f"it is damaged. Repair it, {MEND}")


@pytest.mark.parametrize("vector", ["bound", "ratio_sq", "seen", "counted"])
def test_a_negative_bound_or_count_is_damage(wrapper, vector):
    # clamp(-b, b) with a negative b would set every element to b.
    def poison(saved):
        saved["sp4"]["tensors"][vector].view(-1)[0] = -1

    assert f"'{vector}' for Adam holds" in refused(wrapper, poison)


def test_another_window_of_the_learned_bound(wrapper):
    other = protect(optim.Adam(parameters((4, 3), (5,))), learned=LearnedBound(window=77))
    with pytest.raises(CheckpointError, match=r"'recent' for Adam should have shape.*Resume with the same settings"):
        other.load_state_dict(wrapper.state_dict())


def test_a_base_state_that_does_not_fit_loads_no_bounds_either(wrapper):
    saved = copy.deepcopy(wrapper.state_dict())
    saved["param_groups"][0]["params"] = [0]
    before = learned_state(wrapper)
    with pytest.raises(ValueError, match="parameter group"):
        wrapper.load_state_dict(saved)
    assert same(learned_state(wrapper), before)


def protection_of(keys="ab", seed=0):
    torch.manual_seed(seed)
    net = nn.ModuleDict({key: nn.Linear(3, 2) for key in keys})
    optimizers = [optim.Adam(net[key].parameters()) for key in keys]
    protection = Protection(optimizers, net, settings=Settings(learned=QUICK, update_every=1))
    for step in range(20):
        gradients(list(net.parameters()), step)
        for optimizer in optimizers:
            optimizer.step()
    return protection


def test_a_protection_of_other_optimizers():
    saved, protection = protection_of("abc").state_dict(), protection_of("ab")
    before = copy.deepcopy(protection.state_dict())
    with pytest.raises(CheckpointError) as caught:
        protection.load_state_dict(saved)
    assert str(caught.value) == (
        "The checkpoint's bounds are of the optimizers [Adam, Adam-1, Adam-2], but the run has [Adam, Adam-1]. Resume "
        f"with the same optimizers, {MEND}"
    )
    assert same(protection.state_dict(), before)


def test_damage_to_the_last_of_several_engines_loads_none_of_them():
    protection, other = protection_of(), protection_of(seed=1)
    saved = copy.deepcopy(other.state_dict())
    saved["engines"]["Adam-1"]["tensors"]["bound"][0, 0] = torch.nan
    before = copy.deepcopy(protection.state_dict())
    with pytest.raises(CheckpointError, match="for Adam-1 holds NaN"):
        protection.load_state_dict(saved)
    assert same(protection.state_dict(), before)


def test_many_names_are_shortened():
    params = parameters(*[(2,)] * 9)
    one = protect(optim.Adam(params), [ParamGroup("g", {f"a{i}": p for i, p in enumerate(params)})])
    two = protect(optim.Adam(params), [ParamGroup("g", {f"b{i}": p for i, p in enumerate(params)})])
    with pytest.raises(CheckpointError, match=r"it lacks \[[^,]*b0, .*b3 and 5 more\] and has"):
        two.load_state_dict(one.state_dict())


@pytest.mark.parametrize("saved", [{}, {"engines": None}, {"engines": [1]}, {"other": 1}])
def test_what_no_protection_has_saved(saved):
    protection = protection_of()
    before = copy.deepcopy(protection.state_dict())
    with pytest.raises(CheckpointError, match=r"under 'engines', got .*Drop the callback's state to learn"):
        protection.load_state_dict(saved)
    assert same(protection.state_dict(), before)


WRONG = [None, {}, [], "text", -1, 1.5, torch.tensor([-1])]


@pytest.mark.parametrize("wrong", WRONG, ids=map(repr, WRONG))
@pytest.mark.parametrize("entry", ["version", "groups", "calls", "phase", "tally", "update_every", "tensors"])
def test_an_entry_that_is_something_else(wrapper, entry, wrong):
    text = refused(wrapper, lambda saved: saved["sp4"].update({entry: wrong}))
    assert "for Adam" in text
    assert text.endswith(MEND)


@pytest.mark.parametrize("vector", ["names", *REALS, "seen", "clamped"])
@pytest.mark.parametrize("wrong", WRONG, ids=map(repr, WRONG))
def test_a_vector_that_is_something_else(wrapper, vector, wrong):
    assert "for Adam" in refused(wrapper, lambda saved: saved["sp4"]["tensors"].update({vector: wrong}))


@pytest.mark.parametrize("wrong", [{}, [], "text", 3])
def test_an_engine_that_is_something_else(wrapper, wrong):
    assert "for Adam" in refused(wrapper, lambda saved: saved.update(sp4=wrong))
