"""The published bounds and their slot numbers."""

import math

import pytest
import torch
from torch import optim

from sp4_lightning import BoundsTable, CheckpointError, ConfigurationError
from sp4_lightning.quantities import EXP_AVG, GRAD, QUANTITIES
from tests.core.making import QUICK, gradients, parameters, protect, train

EIGHT = ("dqn_trunk", "dqn_value", "dqn_branches", "iqn", "iql_high", "iql_low", "attention", "curiosity")


def test_slots_of_the_eight_group_layout():
    table = BoundsTable(EIGHT)
    assert [table.slot("curiosity", q) for q in QUANTITIES] == [143, 151, 159, 167]
    assert [table.slot("dqn_trunk", q) for q in QUANTITIES] == [136, 144, 152, 160]
    assert sorted(table.slot(g, q) for g in EIGHT for q in QUANTITIES) == list(range(136, 168))


def test_every_bound_starts_at_infinity_and_never_at_zero():
    table = BoundsTable(EIGHT)
    assert table.values.shape == (4, 8)
    assert table.values.isinf().all()


def test_a_bound_is_read_by_name_as_a_view_of_the_table():
    table = BoundsTable(["a", "b"])
    table.values[QUANTITIES.index("exp_avg"), 1] = 3.0
    assert table["exp_avg", "b"].item() == 3.0
    table["grad", "a"].fill_(5.0)
    assert table.values[GRAD, 0] == 5.0


def test_an_unknown_group_says_so_and_guesses():
    table = BoundsTable(["trunk", "head"])
    for call in (lambda: table["grad", "trunc"], lambda: table.slot("trunc", "grad")):
        with pytest.raises(ConfigurationError) as caught:
            call()
        assert str(caught.value) == "The table has no group 'trunc'. Did you mean 'trunk'? Groups are trunk, head."


@pytest.mark.parametrize(("wrong", "guess"), [("exp_av", " Did you mean 'exp_avg'?"), ("weights", ""), (1, "")])
def test_an_unknown_quantity_says_so_and_guesses(wrong, guess):
    table = BoundsTable(["trunk", "head"])
    for call in (lambda: table[wrong, "trunk"], lambda: table.slot("trunk", wrong)):
        with pytest.raises(ConfigurationError) as caught:
            call()
        assert str(caught.value) == (
            f"There is no quantity {wrong!r}.{guess} Quantities are param, grad, exp_avg, exp_avg_sq."
        )


def test_state_is_matched_by_name():
    one, two = BoundsTable(["a", "b"]), BoundsTable(["b", "a"])
    one.values.copy_(torch.arange(8.0).view(4, 2))
    two.load_state_dict(one.state_dict())
    for quantity in QUANTITIES:
        for group in "ab":
            assert two[quantity, group] == one[quantity, group]


def test_state_of_other_groups_is_refused_and_nothing_is_written():
    table = BoundsTable(["a", "b"])
    with pytest.raises(CheckpointError) as caught:
        table.load_state_dict(BoundsTable(["a", "c"]).state_dict())
    assert str(caught.value) == (
        "The saved table's groups for param are [a, c], but the groups now are [a, b]. Resume with the same groups."
    )
    assert table.values.isinf().all()


@pytest.mark.parametrize("wrong", [None, 1.0, torch.ones(2)])
def test_state_that_is_no_bounds_is_refused_and_nothing_is_written(wrong):
    table = BoundsTable(["a", "b"])
    saved = table.state_dict()
    saved["exp_avg"]["b"] = wrong
    with pytest.raises(CheckpointError, match="bounds for exp_avg are not numbers in tensors"):
        table.load_state_dict(saved)
    assert table.values.isinf().all()


def test_state_is_a_copy():
    table = BoundsTable(["a"])
    saved = table.state_dict()
    table.values.fill_(1.0)
    assert math.isinf(saved["grad"]["a"])


def test_a_groups_bound_is_the_largest_of_its_tensors():
    params = parameters((4,), (5,), (3,))
    base = optim.Adam([{"params": params[:2], "name": "a"}, {"params": params[2:], "name": "b"}])
    wrapper = protect(base, learned=QUICK)
    for step in range(20):
        gradients(params, step)
        params[1].grad.mul_(50)
        wrapper.step()
    state, table = torch.as_tensor(wrapper.engine.state.bound), wrapper.engine.table
    expected = torch.stack([state[:, :2].amax(1), state[:, 2]], 1).float()
    assert table.values.equal(expected)
    assert table["grad", "a"] > 10 * table["grad", "b"]


def test_a_tensor_that_never_trains_does_not_hold_its_groups_bound_at_infinity():
    params = parameters((4,), (5,))
    wrapper = protect(optim.Adam([{"params": params, "name": "a"}]), learned=QUICK)
    for step in range(20):
        gradients(params[:1], step)
        wrapper.step()
    assert wrapper.engine.table["grad", "a"].isfinite()


def test_one_tensor_that_is_not_armed_does():
    params = parameters((4,), (5,))
    wrapper = protect(optim.Adam([{"params": params, "name": "a"}]), learned=QUICK)
    for step in range(20):
        gradients(params[: 2 if step > 15 else 1], step)
        wrapper.step()
    assert wrapper.engine.table["grad", "a"].isinf()


def test_a_group_without_a_quantity_has_no_bound_for_it():
    wrapper = protect(optim.SGD([{"params": parameters((4,)), "name": "a"}], lr=0.1), learned=QUICK)
    train(wrapper, 20)
    assert wrapper.engine.table.values[:2].isfinite().all()
    assert wrapper.engine.table.values[EXP_AVG:].isinf().all()
