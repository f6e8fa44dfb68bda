"""Groups by pattern and by torch param group, and the errors of either."""

import re

import pytest
from torch import nn, optim

from sp4_lightning import ConfigurationError, ParamGroup
from sp4_lightning.groups import exclude_params, groups_of_optimizers, groups_of_patterns, select_groups


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4))
        self.value = nn.Linear(4, 1)
        self.value_target = nn.Linear(4, 1)
        self.log_alpha = nn.Parameter(nn.init.zeros_(nn.Linear(1, 1).bias.data))
        for param in self.value_target.parameters():
            param.requires_grad_(False)


@pytest.fixture
def agent():
    return Agent()


def names(groups):
    return {group.name: list(group.params) for group in groups}


def error(call, *args, **kwargs):
    with pytest.raises(ConfigurationError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def test_a_pattern_is_a_module_path_a_parameter_or_a_glob(agent):
    groups = groups_of_patterns(agent, {"trunk": "trunk", "bias": "value.bia*", "rest": ["value.weight", "log_alpha"]})
    assert names(groups) == {
        "trunk": ["trunk.0.weight", "trunk.0.bias", "trunk.1.weight", "trunk.1.bias"],
        "bias": ["value.bias"],
        "rest": ["value.weight", "log_alpha"],
    }
    assert groups[1].params["value.bias"] is agent.value.bias


def test_a_module_path_is_not_a_prefix(agent):
    assert names(groups_of_patterns(agent, {"v": "value"})) == {"v": ["value.weight", "value.bias"]}


def test_frozen_parameters_are_left_out(agent):
    assert names(groups_of_patterns(agent, {"all": "value*"})) == {"all": ["value.weight", "value.bias"]}
    assert names(groups_of_patterns(agent, {"target": "value_target"})) == {"target": []}


def test_an_optional_group_may_match_nothing(agent):
    assert names(groups_of_patterns(agent, {"v": "value", "c": "curiosity"}, ["c"]))["c"] == []


def test_a_pattern_that_matches_nothing_says_so_and_guesses(agent):
    assert error(groups_of_patterns, agent, {"t": "trunc"}) == (
        "Group 't': 'trunc' matches no module or parameter of Agent. Did you mean 'trunk'? "
        "Add the group to `optional` if it may be absent."
    )


def test_an_optional_name_that_is_no_group_says_so_and_guesses(agent):
    assert error(groups_of_patterns, agent, {"trunk": "trunk", "value": "value"}, ["valeu"]) == (
        "optional names 'valeu', which is not one of the groups. Did you mean 'value'? Groups are trunk, value."
    )


def test_a_parameter_in_two_groups_is_named_with_both(agent):
    assert error(groups_of_patterns, agent, {"t": "trunk", "biases": "*.bias"}) == (
        "Parameter 'trunk.0.bias' is in two groups, 't' (as 'trunk.0.bias') and 'biases'. Narrow one of their patterns."
    )


def test_excluding_takes_parameters_out_of_every_group(agent):
    groups = groups_of_patterns(agent, {"t": "trunk", "v": "value"})
    assert names(exclude_params(groups, ["*.bias"], agent)) == {
        "t": ["trunk.0.weight", "trunk.1.weight"],
        "v": ["value.weight"],
    }


def test_excluding_nothing_is_an_error_with_a_way_out_that_fits(agent):
    text = error(exclude_params, [], ["*.biass"], agent)
    assert "'*.biass' matches no module or parameter of Agent." in text
    assert "exclude" in text
    assert "optional" not in text  # nothing to put there
    assert "Did you mean 'trunk'?" in error(exclude_params, [], ["trunks"], agent)


def test_selecting_a_group_by_a_name_that_is_none_says_so_and_guesses():
    assert select_groups("a*", ["ab", "b", "ac"], "disable") == ["ab", "ac"]
    assert error(select_groups, "trnk", ["trunk", "head"], "disable") == (
        "disable names the group 'trnk', which does not exist. Did you mean 'trunk'? Groups are trunk, head."
    )
    many = [f"g{i}" for i in range(20)]
    assert re.search(r"Groups are g0, .*g11 and 8 more\.$", error(select_groups, "x", many, "disable"))


def test_parameters_without_a_module_are_numbered(agent):
    params = list(agent.value.parameters())
    assert names([ParamGroup.of("head", params)]) == {"head": ["head[0]", "head[1]"]}
    assert names(groups_of_optimizers([optim.Adam(params)])) == {"Adam": ["Adam[0]", "Adam[1]"]}
    assert names(groups_of_optimizers([optim.Adam(params)], agent)) == {"Adam": ["value.weight", "value.bias"]}


def test_groups_by_optimizer_leave_frozen_parameters_out(agent):
    optimizer = optim.Adam(agent.parameters())
    (group,) = groups_of_optimizers([optimizer], agent)
    assert not any(name.startswith("value_target") for name in group.params)
    assert len(group.params) == 7
