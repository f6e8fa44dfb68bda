"""Tensors and optimizers that cannot be protected are refused by name, and left exactly as they were."""

import pytest
import torch
from torch import nn, optim

from sp4_lightning import (
    ClippingOptimizer,
    ConfigurationError,
    ParamGroup,
    Protection,
    Settings,
    SP4Error,
    UnsupportedError,
)
from sp4_lightning.admission import is_dense
from sp4_lightning.skip import FoundInf, HideGradients, skipper_for
from tests.core.making import gradients, parameters, protect


def hooks(optimizer):
    return sum(len(value) for key, value in vars(optimizer).items() if key.endswith("_hooks"))


def refused(kind, base, **kwargs):
    before = hooks(base)
    with pytest.raises(kind) as caught:
        ClippingOptimizer(base, **kwargs)
    assert hooks(base) == before == 0
    return str(caught.value)


def named(param):
    return {"groups": [ParamGroup("net", {"weight": param})]}


def test_a_complex_parameter():
    param = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    assert refused(UnsupportedError, optim.Adam([param]), **named(param)) == (
        "'weight' in Adam is torch.complex64; only real floating-point tensors can be protected. Exclude it."
    )


def test_a_sparse_parameter():
    param = nn.Parameter(torch.eye(3).to_sparse())
    assert refused(UnsupportedError, optim.SGD([param], 0.1), **named(param)) == (
        "'weight' in SGD has layout torch.sparse_coo; only dense tensors can be protected. Exclude it."
    )


def test_a_parameter_that_overlaps_itself():
    param = nn.Parameter(torch.ones(1, 3).expand(4, 3))
    assert refused(UnsupportedError, optim.SGD([param], 0.1), **named(param)) == (
        "'weight' in SGD overlaps itself (shape (4, 3), strides (0, 1)), as expand() leaves it. Make it a tensor of "
        "its own with clone(), or exclude it."
    )


def test_a_fused_optimizer_with_gaps_in_its_memory():
    param = nn.Parameter(torch.ones(4, 6)[:, ::2])
    assert refused(UnsupportedError, optim.Adam([param], fused=True), **named(param)) == (
        "'weight' in Adam is not dense (shape (4, 3), strides (6, 2)) and fused=True: torch's fused kernels write "
        "beside such a tensor. Use fused=False."
    )


def test_amsgrad_is_refused_when_enforcing_and_tolerated_when_observing():
    params = parameters((3,))
    assert refused(UnsupportedError, optim.Adam(params, amsgrad=True)) == (
        "Adam, param group 0, has amsgrad=True: max_exp_avg_sq never decays, so a spike that reaches it cannot be "
        "mended. Use amsgrad=False, or mode='observe'."
    )
    ClippingOptimizer(optim.Adam(params, amsgrad=True), settings=Settings(mode="observe"))


def test_an_optimizer_without_a_parameter_of_any_group():
    mine, other = parameters((3,), (3,))
    assert refused(ConfigurationError, optim.Adam([mine]), **named(other)) == (
        "Adam holds no parameter of any group. Name one in `groups`, or leave it unprotected."
    )
    assert refused(ConfigurationError, optim.Adam(parameters((0,)))).startswith("Adam holds no parameter of any group")


def test_parameters_on_several_devices():
    a, b = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, device="meta"))
    assert refused(UnsupportedError, optim.SGD([a, b], 0.1)) == (
        "SGD holds parameters on cpu, meta. Give each device an optimizer of its own."
    )


def test_an_unfused_optimizer_away_from_the_cpu():
    params = parameters((3,))
    with pytest.raises(UnsupportedError) as caught:
        skipper_for(optim.RMSprop(params), torch.device("cuda", 0), "enforce")
    assert str(caught.value) == (
        "RMSprop on cuda:0 cannot skip an update without waiting for the device. Construct it with fused=True (Adam, "
        "AdamW, SGD) or capturable=True (Adam, AdamW, NAdam, RAdam, Adamax, Adadelta, RMSprop), or set "
        "mode='observe'."
    )
    assert isinstance(skipper_for(optim.Adam(params, fused=True), torch.device("cuda", 0), "enforce"), FoundInf)
    assert isinstance(skipper_for(optim.Adam(params), torch.device("cpu"), "enforce"), HideGradients)


def test_a_sparse_gradient_is_named_in_the_step_that_brings_it():
    embedding = nn.Embedding(5, 3, sparse=True)
    wrapper = ClippingOptimizer(optim.SGD(embedding.parameters(), 0.1), module=embedding)
    before = embedding.weight.detach().clone()
    embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(UnsupportedError) as caught:
        wrapper.step()
    assert str(caught.value) == (
        "'weight' has a gradient of layout torch.sparse_coo; only dense gradients can be protected. Construct its "
        "layer with sparse=False, or exclude the parameter."
    )
    assert embedding.weight.equal(before)
    wrapper.zero_grad()
    gradients([embedding.weight], 0)
    wrapper.step()  # a dense one is welcome afterwards
    assert int(wrapper.engine.steps) == 1


@pytest.mark.parametrize(
    ("make", "dense"),
    [
        (lambda: torch.ones(3, 4), True),
        (lambda: torch.ones(3, 4).t(), True),
        (lambda: torch.ones(2, 3, 4).permute(1, 2, 0), True),
        (lambda: torch.ones(3, 1, 4).expand(3, 1, 4), True),
        (lambda: torch.ones(()), True),
        (lambda: torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last), True),
        (lambda: torch.ones(3, 4)[:, ::2], False),
        (lambda: torch.ones(4, 4)[:, 1:], False),
        (lambda: torch.ones(6)[::2], False),
    ],
)
def test_dense_means_without_gaps_in_whatever_order(make, dense):
    assert is_dense(make()) is dense


def test_one_refused_optimizer_leaves_the_others_untouched():
    net = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2), "c": nn.Linear(2, 1)})
    bare = optim.Adam(net["a"].parameters())
    wrapper = protect(optim.Adam(net["b"].parameters()), [ParamGroup("b", dict(net["b"].named_parameters()))])
    refused_one = optim.Adam(net["c"].parameters(), amsgrad=True)
    name, switch, table = wrapper.engine.name, wrapper.engine.switch, wrapper.engine.table
    with pytest.raises(SP4Error, match="Adam-2, param group 0, has amsgrad"):
        Protection([bare, wrapper, refused_one], net, {"a": "a", "b": "b", "c": "c"})
    assert hooks(bare) == 0
    assert (wrapper.engine.name, wrapper.engine.switch, wrapper.engine.table) == (name, switch, table)
    assert wrapper.flips_itself
