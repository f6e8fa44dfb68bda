"""Several optimizers under one protection, wrappers among them; attaching and taking away again."""

import pytest
from torch import nn, optim

from sp4_lightning import ClippingOptimizer, ConfigurationError, ParamGroup, Phase, Protection, Settings
from tests.core.making import QUICK, gradients, protect, repaired


def net():
    return nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(2, 2)})


def hooks(optimizer):
    return sum(len(value) for key, value in vars(optimizer).items() if key.endswith("_hooks"))


def step_all(module, optimizers, steps, start=0):
    for step in range(start, start + steps):
        gradients(list(module.parameters()), step)
        for optimizer in optimizers:
            optimizer.step()


LIVE = Settings(learned=QUICK, warmup_steps=10, update_every=1)


def test_engines_share_one_switch_and_one_table():
    module = net()
    protection = Protection([optim.Adam(module["a"].parameters()), optim.SGD(module["b"].parameters(), 0.1)], module)
    assert [engine.name for engine in protection.engines] == ["Adam", "SGD"]
    assert protection.table.groups == ("Adam", "SGD")
    assert all(e.switch is protection.switch and e.table is protection.table for e in protection.engines)


def test_detaching_leaves_the_optimizers_as_they_were_found():
    module = net()
    optimizers = [optim.Adam(module["a"].parameters()), optim.SGD(module["b"].parameters(), 0.1)]
    protection = Protection(optimizers, module, settings=LIVE)
    step_all(module, optimizers, 3)
    protection.detach()
    protection.detach()
    assert [hooks(o) for o in optimizers] == [0, 0]
    step_all(module, optimizers, 3, start=3)
    assert [int(engine.steps) for engine in protection.engines] == [3, 3]


def test_an_optimizer_outside_all_groups_is_left_alone():
    module = net()
    optimizers = [optim.Adam(module["a"].parameters()), optim.SGD(module["b"].parameters(), 0.1)]
    protection = Protection(optimizers, module, {"a": "a"}, exclude=["b"])
    assert [engine.name for engine in protection.engines] == ["Adam"]
    assert hooks(optimizers[1]) == 0


def test_a_wrapper_is_adopted_and_not_attached_twice():
    module = net()
    wrapper = protect(optim.Adam(module["a"].parameters()), learned=QUICK)
    plain = optim.SGD(module["b"].parameters(), 0.1)
    protection = Protection([wrapper, plain], module, settings=LIVE)
    assert protection.engines[0] is wrapper.engine
    assert len(wrapper.base._optimizer_step_pre_hooks) == 1
    assert wrapper.engine.switch is protection.switch
    step_all(module, [wrapper, plain], 20)
    assert int(protection.switch.phase) == Phase.EXACT  # a wrapper that is adopted does not flip the others
    protection.advance()
    assert int(protection.switch.phase) == Phase.LEARNED
    assert protection.table["grad", "Adam"].isfinite()
    protection.detach()
    assert len(wrapper.base._optimizer_step_pre_hooks) == 1
    assert wrapper.flips_itself


def test_two_wrappers_whose_groups_have_one_name_are_refused():
    module = net()
    wrappers = [ClippingOptimizer(optim.Adam(module[key].parameters())) for key in "ab"]
    names = [wrapper.engine.name for wrapper in wrappers]
    with pytest.raises(ConfigurationError, match="'Adam'"):
        Protection(wrappers, module)
    assert all(wrapper.flips_itself for wrapper in wrappers)
    assert [wrapper.engine.name for wrapper in wrappers] == names


def test_wrappers_with_groups_of_their_own_names_are_told_apart():
    module = net()
    wrappers = [
        ClippingOptimizer(optim.Adam(module[key].parameters()), [ParamGroup(key, dict(module[key].named_parameters()))])
        for key in "ab"
    ]
    protection = Protection(wrappers, module)
    rows = [(row.group, row.optimizer, row.parameters) for row in protection.coverage()]
    assert rows == [("a", "Adam", 8), ("b", "Adam-1", 6)]


def test_a_wrapper_whose_groups_the_run_lacks_is_refused_and_nothing_is_changed():
    module = net()
    plain, wrapper = optim.Adam(module["a"].parameters()), protect(optim.SGD(module["b"].parameters(), 0.1))
    switch, table = wrapper.engine.switch, wrapper.engine.table
    with pytest.raises(ConfigurationError, match="group 'SGD'"):
        Protection([plain, wrapper], module, {"a": "a", "b": "b"})
    assert hooks(plain) == 0
    assert wrapper.flips_itself
    assert (wrapper.engine.switch, wrapper.engine.table) == (switch, table)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"optional": ["a"]}, "optional is given without groups; only declared groups can be absent."),
        ({"exclude": ["nothing.*"]}, "'nothing.*' matches no module or parameter of ModuleDict."),
        ({"groups": {"a": "a"}}, "2 trainable parameters are in no group: b.weight, b.bias."),
        ({"settings": Settings(disable={"c": ["grad"]})}, "disable names the group 'c', which does not exist."),
    ],
)
def test_a_bad_argument_is_refused_and_nothing_is_changed(arguments, text):
    module = net()
    optimizers = [optim.Adam(module["a"].parameters()), optim.SGD(module["b"].parameters(), 0.1)]
    with pytest.raises(ConfigurationError) as caught:
        Protection(optimizers, module, **arguments)
    assert text in str(caught.value)
    assert [hooks(o) for o in optimizers] == [0, 0]


def test_no_optimizer_is_an_error():
    with pytest.raises(ConfigurationError, match="There is no optimizer to protect"):
        Protection([], net())


def test_an_optimizer_is_not_protected_twice():
    module = net()
    optimizer = optim.Adam(module.parameters())
    first = Protection([optimizer], module)
    with pytest.raises(ConfigurationError, match="already"):
        Protection([optimizer], module)
    first.detach()
    Protection([optimizer], module)
    assert len(optimizer._optimizer_step_pre_hooks) == 1


def test_one_of_several_that_is_protected_already_leaves_the_others_untouched():
    module = net()
    fresh, taken = optim.Adam(module["a"].parameters()), optim.SGD(module["b"].parameters(), 0.1)
    ClippingOptimizer(taken)
    with pytest.raises(ConfigurationError, match="SGD is protected already"):
        Protection([fresh, taken], module)
    assert hooks(fresh) == 0


def test_the_plain_state_of_an_attached_optimizer_can_be_loaded():
    module = net()
    optimizer = optim.Adam(module.parameters())
    protection = Protection([optimizer], module, settings=LIVE)
    step_all(module, [optimizer], 5)
    saved = optimizer.state_dict()
    step_all(module, [optimizer], 5, start=5)
    optimizer.load_state_dict(saved)
    for entry in optimizer.state.values():
        entry["exp_avg"].mul_(100)
        entry["exp_avg_sq"].mul_(1e4)
    step_all(module, [optimizer], 5, start=10)
    assert repaired(protection.engines[0]) == 0


@pytest.mark.parametrize("arguments", [{"exclude": ["*"]}, {"groups": {"c": "c"}, "optional": ["c"], "exclude": ["*"]}])
def test_a_run_in_which_nothing_is_left_to_protect_is_refused(arguments):
    module = net()
    optimizer = optim.Adam(module.parameters())
    with pytest.raises(ConfigurationError, match="No optimizer holds a parameter of any group: there is nothing"):
        Protection([optimizer], module, **arguments)
    assert hooks(optimizer) == 0
