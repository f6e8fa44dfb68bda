"""How a tensor lies in memory changes nothing: strided, transposed and sliced ones have the bounds of their copies."""

import copy
import math

import pytest
import torch
from torch import nn, optim

from tests.core.making import QUICK, gradients, learned_state, protect, repaired, same, snapshot

SHAPE = (6, 4)


def base(shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


LAYOUTS = {
    "slice": lambda: base((6, 8))[:, ::2],
    "transposed": lambda: base((4, 6)).t(),
    "rows": lambda: base((12, 4))[::2],
    "permuted": lambda: base((4, 1, 6)).permute(2, 1, 0).squeeze(1),
    "window": lambda: base((10, 10))[2:8, 3:7],
    "with an offset": lambda: base((25,))[1:].view(6, 4),
}


def pair(layout, dtype=torch.float32, make=lambda p: optim.Adam(p, lr=1e-2)):
    """Two protected optimizers of equal values: one of the layout, one of contiguous copies."""
    odd = nn.Parameter(LAYOUTS[layout]().to(dtype))
    assert layout == "with an offset" or dtype != torch.float32 or not odd.is_contiguous()
    plain = nn.Parameter(odd.detach().clone().contiguous())
    other = nn.Parameter(torch.ones(5, dtype=dtype))
    sides = [([odd, other], None), ([plain, copy.deepcopy(other)], None)]
    return [(params, protect(make(params), learned=QUICK, warmup_steps=10)) for params, _ in sides]


def same_values(a, b):
    (params_a, wrapper_a), (params_b, wrapper_b) = a, b
    assert same([p.detach() for p in params_a], [p.detach() for p in params_b])
    assert same(snapshot(wrapper_a.base)[1]["state"], snapshot(wrapper_b.base)[1]["state"])
    assert same(learned_state(wrapper_a), learned_state(wrapper_b))
    for counter in ("clamped", "counted", "repaired"):
        assert (getattr(wrapper_a.engine.state, counter) == getattr(wrapper_b.engine.state, counter)).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_whole_life_is_the_same(layout):
    odd, plain = pair(layout)
    for step in range(30):
        for params, wrapper in (odd, plain):
            gradients(params, step)
            if step == 15:
                params[0].grad[2, 3] = math.nan
            if step == 20:
                params[0].grad[1, 2] = 1e6  # clamped
            if step == 25:
                params[0].data[3, 1] = 1e6
                wrapper.state[params[0]]["exp_avg"].data[4, 2] = 1e8
                wrapper.state[params[0]]["exp_avg_sq"].data[0, 0] = -1.0
            wrapper.step()
        same_values(odd, plain)
    assert repaired(odd[1]) == 4  # the negative exp_avg_sq takes its exp_avg with it
    assert int(odd[1].engine.state.clamped.sum()) == 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_between_the_elements_is_not_touched(layout):
    view = LAYOUTS[layout]()
    storage = view.new_empty(0).set_(view.untyped_storage())
    outside = torch.ones_like(storage, dtype=torch.bool)
    view_of_flags = outside.as_strided(view.shape, view.stride(), view.storage_offset())
    view_of_flags.fill_(False)
    before = storage.clone()
    params = [nn.Parameter(view)]
    wrapper = protect(optim.Adam(params, lr=1e-2))
    for step in range(3):
        gradients(params, step)
        params[0].data[0, 0] = math.nan
        wrapper.step()
    assert repaired(wrapper) == 3
    assert storage[outside].equal(before[outside])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_any_layout_are_clamped_in_place(layout, dtype):
    odd, plain = pair("with an offset", dtype)
    for step in range(30):
        for params, wrapper in (odd, plain):
            gradients(params, step)
            if step == 20:
                params[0].grad[1, 2] = 1e6
            if params is odd[0]:
                grad = params[0].grad
                params[0].grad = LAYOUTS[layout]().to(dtype).copy_(grad)
                there = params[0].grad
            wrapper.step()
        assert odd[0][0].grad is there
        assert odd[0][0].grad.equal(plain[0][0].grad)
        same_values(odd, plain)
    assert int(odd[1].engine.state.clamped.sum()) == 1


def test_a_fused_optimizer_takes_dense_layouts():
    params = [nn.Parameter(LAYOUTS["transposed"]()), nn.Parameter(LAYOUTS["permuted"]())]
    wrapper = protect(optim.Adam(params, fused=True))
    bare_params = [nn.Parameter(p.detach().clone(memory_format=torch.preserve_format)) for p in params]
    bare = optim.Adam(bare_params, fused=True)
    for step in range(5):
        gradients(params, step)
        gradients(bare_params, step)
        wrapper.step()
        bare.step()
    assert same([p.detach() for p in params], [p.detach() for p in bare_params])
