"""What is protected, group by group; and every trainable parameter in exactly one place."""

import pytest
import torch
from torch import nn, optim

from sp4_lightning import ConfigurationError, Dynamics, Protection, Settings, register_dynamics
from sp4_lightning.coverage import check_groups
from sp4_lightning.groups import groups_of_patterns


def net():
    return nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(2, 2), "c": nn.Linear(2, 1)})


def rows(make, groups=None, optional=(), exclude=(), module=None, **settings):
    module = module or net()
    optimizers = make(module)
    optimizers = optimizers if isinstance(optimizers, list) else [optimizers]
    protection = Protection(optimizers, module, groups, optional, exclude, Settings(**settings))
    return {row.group: row for row in protection.coverage()}


def wiring(row):
    return list(row.quantities.values())


EXPECTED = {
    "Adam": (optim.Adam, "4/4", ["exact", "learned", "exact", "exact"]),
    "AdamW": (optim.AdamW, "4/4", ["exact", "learned", "exact", "exact"]),
    "NAdam": (optim.NAdam, "4/4", ["exact", "learned", "exact", "exact"]),
    "RAdam": (optim.RAdam, "4/4", ["exact", "learned", "exact", "exact"]),
    "SGD": (lambda p: optim.SGD(p, 0.1), "2/4", ["exact", "learned", "none", "none"]),
    "SGD-momentum": (lambda p: optim.SGD(p, 0.1, momentum=0.9), "3/4", ["exact", "learned", "exact", "none"]),
    "RMSprop": (optim.RMSprop, "3/4", ["exact", "learned", "none", "exact"]),
    "RMSprop-momentum": (
        lambda p: optim.RMSprop(p, momentum=0.9),
        "3/4",
        ["exact", "learned", "observed only", "exact"],
    ),
    "RMSprop-centered": (
        lambda p: optim.RMSprop(p, centered=True),
        "2/4",
        ["observed only", "learned", "none", "exact"],
    ),
    "Adagrad": (optim.Adagrad, "3/4", ["exact", "learned", "none", "exact"]),
    "Adamax": (optim.Adamax, "1/4", ["observed only", "learned", "observed only", "observed only"]),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_each_optimizer_is_wired_as_far_as_its_dynamics_are_known(name):
    make, status, how = EXPECTED[name]
    (row,) = rows(lambda m: make(m.parameters())).values()
    assert (row.status, wiring(row)) == (status, how)
    assert (row.tensors, row.parameters) == (6, 17)
    assert row.optimizer == name.split("-")[0]


def test_a_subclass_may_do_anything_and_is_observed_only():
    class MyAdam(optim.Adam):
        pass

    (row,) = rows(lambda m: MyAdam(m.parameters())).values()
    assert (row.group, row.status) == ("MyAdam", "1/4")


def test_a_class_that_has_been_registered_is_wired():
    class Sign(optim.Optimizer):
        def __init__(self, params, lr=0.1):
            super().__init__(params, {"lr": lr, "extra": 0})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for param in group["params"]:
                    param.sub_(param.grad.sign(), alpha=group["lr"])

    register_dynamics(Sign)(lambda group: Dynamics(bounded_step=True, step_const=1.0))
    (row,) = rows(lambda m: Sign(m.parameters())).values()
    assert (row.status, wiring(row)) == ("2/4", ["exact", "learned", "none", "none"])


def test_an_absent_optional_group_is_reported_as_absent():
    groups = {"all": ["a", "b", "c"], "curiosity": "curiosity"}
    found = rows(lambda m: optim.Adam(m.parameters()), groups, ["curiosity"])
    row = found["curiosity"]
    assert (row.status, row.optimizer, row.tensors, row.parameters, row.wired) == ("absent", None, 0, 0, 0)
    assert found["all"].status == "4/4"


def test_rows_are_in_the_order_of_the_groups_and_name_their_optimizer():
    make = lambda m: [optim.Adam(m["a"].parameters()), optim.Adam([*m["b"].parameters(), *m["c"].parameters()])]  # noqa: E731
    found = rows(make, {"c": "c", "a": "a", "b": "b"})
    assert list(found) == ["c", "a", "b"]
    assert [row.optimizer for row in found.values()] == ["Adam-1", "Adam", "Adam-1"]
    assert [row.parameters for row in found.values()] == [3, 8, 6]


def test_what_is_switched_off_is_reported_as_off():
    groups = {"ab": ["a", "b"], "c": "c"}
    off = {"c": ["param", "exp_avg", "exp_avg_sq"], "a*": ["grad"]}
    found = rows(lambda m: optim.Adam(m.parameters()), groups, disable=off)
    assert wiring(found["ab"]) == ["exact", "off", "exact", "exact"]
    assert wiring(found["c"]) == ["off", "learned", "off", "off"]
    assert (found["ab"].status, found["c"].status) == ("3/4", "1/4")


@pytest.mark.parametrize(
    ("make", "dtype"), [(optim.Adam, torch.float16), (lambda p: optim.Adam(p, betas=(0.9, 0.5)), torch.float32)]
)
def test_a_rule_that_these_options_switch_off_is_not_reported_as_exact(make, dtype):
    # Without the ratio of exp_avg to exp_avg_sq an Adam step has no bound, so the parameter has none.
    (row,) = rows(lambda m: make(m.parameters()), module=net().to(dtype)).values()
    assert row.quantities["param"] == "observed only"


def errors(make, groups, exclude=()):
    module = net()
    with pytest.raises(ConfigurationError) as caught:
        check_groups(groups_of_patterns(module, groups), make(module), module, exclude)
    return str(caught.value)


def test_trainable_parameters_in_no_group_are_named():
    assert errors(lambda m: [optim.Adam(m.parameters())], {"a": "a"}) == (
        "4 trainable parameters are in no group: b.weight, b.bias, c.weight, c.bias. Add them to a group, list them in "
        "`exclude`, or set requires_grad=False."
    )


def test_a_parameter_in_two_optimizers_is_named():
    make = lambda m: [optim.Adam(m.parameters()), optim.Adam(m["c"].parameters())]  # noqa: E731
    assert errors(make, {"all": "*"}) == (
        "Parameter 'c.weight' is in two optimizers, number 0 and number 1. Give it to one of them."
    )


def test_a_grouped_parameter_in_no_optimizer_is_named():
    assert errors(lambda m: [optim.Adam(m["a"].parameters())], {"a": "a", "rest": ["b", "c"]}) == (
        "Group 'rest': parameter 'b.weight' is in no optimizer. Give it to one, set requires_grad=False, or exclude it."
    )


def test_a_group_over_two_optimizers_is_refused():
    make = lambda m: [optim.Adam(m["a"].parameters()), optim.Adam([*m["b"].parameters(), *m["c"].parameters()])]  # noqa: E731
    assert errors(make, {"all": "*"}) == (
        "Group 'all' is spread over the optimizers number 0, 1. Make it one group per optimizer: a step is skipped for "
        "all groups of an optimizer together."
    )


def test_what_is_excluded_needs_no_group_and_no_optimizer():
    module = net()
    groups = groups_of_patterns(module, {"a": "a", "b": "b"})
    optimizer = optim.Adam([*module["a"].parameters(), *module["b"].parameters()])
    kept = check_groups(groups, [optimizer], module, ["c", "*.bias"])
    assert [list(group.params) for group in kept] == [["a.weight"], ["b.weight"]]
