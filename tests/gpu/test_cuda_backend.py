"""The CUDA backend against the torch backend on the same device: state and counts to the bit, bounds to rounding."""

import math

import pytest
import torch
from torch import nn, optim

from sp4_lightning import Phase, UnsupportedError, histogram
from tests.core.lives import SHAPES, assert_equal_lives, eventful
from tests.core.making import QUICK, gradients, parameters, protect, train

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

OPTIMIZERS = {
    "Adam": lambda p: optim.Adam(p, lr=1e-2, fused=True),
    "Adam-l2": lambda p: optim.Adam(p, lr=1e-2, weight_decay=0.1, fused=True),
    "AdamW": lambda p: optim.AdamW(p, lr=1e-2, fused=True),
    "SGD-momentum": lambda p: optim.SGD(p, lr=1e-2, momentum=0.9, fused=True),
    "SGD-unfused": lambda p: optim.SGD(p, lr=1e-2, momentum=0.9),
    "Adam-capturable": lambda p: optim.Adam(p, lr=1e-2, capturable=True),
    "NAdam": lambda p: optim.NAdam(p, lr=1e-2, capturable=True),
    "RAdam": lambda p: optim.RAdam(p, lr=1e-2, capturable=True),
    "Adamax": lambda p: optim.Adamax(p, lr=1e-2, capturable=True),
    "Adadelta": lambda p: optim.Adadelta(p, lr=1e-2, capturable=True),
    "RMSprop": lambda p: optim.RMSprop(p, lr=1e-3, capturable=True),
    "RMSprop-centered": lambda p: optim.RMSprop(p, lr=1e-3, centered=True, momentum=0.9, capturable=True),
}


def in_two_lives(live):
    assert_equal_lives(live("cuda"), live("torch"))


def test_an_optimizer_that_cannot_skip_observes_all_the_same():
    make = lambda p: optim.Adagrad(p, lr=1e-2)  # noqa: E731
    in_two_lives(lambda backend: eventful(make, parameters(*SHAPES, device="cuda"), mode="observe", backend=backend))


@pytest.mark.parametrize("mode", ["enforce", "observe"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_whole_life_is_the_same(name, mode):
    make = OPTIMIZERS[name]
    in_two_lives(lambda backend: eventful(make, parameters(*SHAPES, device="cuda"), mode=mode, backend=backend))


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD-momentum"])
def test_a_cpu_lives_the_same_life(name):
    here = eventful(OPTIMIZERS[name], parameters(*SHAPES), backend="cpp")
    there = eventful(OPTIMIZERS[name], parameters(*SHAPES, device="cuda"), backend="cuda")
    for key in ("clamped", "counted", "repaired", "seen"):
        a, b = (torch.as_tensor(getattr(w.engine.state, key)).tolist() for w in (here, there))
        assert a == b, key
    assert here.engine.tally.tolist() == there.engine.tally.tolist()


@pytest.mark.parametrize("options", [{"disable": {"*": ["grad"]}}, {"disable": {"*": ["param"]}}, {"update_every": 3}])
def test_with_other_settings(options):
    make = OPTIMIZERS["Adam-l2"]
    in_two_lives(lambda backend: eventful(make, parameters(*SHAPES, device="cuda"), backend=backend, **options))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_in_every_precision(dtype):
    make = OPTIMIZERS["AdamW"]
    in_two_lives(lambda backend: eventful(make, parameters(*SHAPES, dtype=dtype, device="cuda"), backend=backend))


SIZES = [1, 3, 63, 4097, 65535, 65536, 65537, 200_003]


@pytest.mark.parametrize("offset", [0, 1, 2])
def test_odd_sizes_and_unaligned_memory(offset):
    def live(backend):
        memory = [torch.randn(n + offset, generator=torch.Generator().manual_seed(n)).cuda() for n in SIZES]
        params = [nn.Parameter(m[offset:]) for m in memory]
        wrapper = protect(optim.AdamW(params, fused=True), learned=QUICK, warmup_steps=10, backend=backend)
        for step in range(25):
            gradients(params, step, scale=1e5 if step == 20 else 1.0)
            if offset == 1:
                for param in params:
                    moved = torch.empty(param.numel() + 1, device="cuda")[1:].copy_(param.grad)
                    param.grad = moved
            wrapper.step()
        return wrapper

    in_two_lives(live)


def arranged():
    """Parameters in every arrangement of memory: plain, transposed, channels last, every other column, a column."""
    gen = torch.Generator().manual_seed(0)

    def plain(*shape):
        return torch.randn(*shape, generator=gen).cuda()

    return [
        nn.Parameter(p)
        for p in (
            plain(6, 4),
            plain(4, 6).t(),
            plain(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
            plain(6, 8)[:, ::2],
            plain(6, 3)[:, 1],
            plain(3, 1, 7).transpose(0, 2),
        )
    ]


@pytest.mark.parametrize("grads", ["like the parameter", "row-major"])
def test_memory_may_be_arranged_in_any_way(grads):
    def live(backend):
        params = arranged()
        wrapper = protect(optim.Adam(params, capturable=True), learned=QUICK, warmup_steps=8, backend=backend)
        for step in range(30):
            gradients(params, step, scale=1e4 if step == 20 else 1.0)
            if grads == "row-major":
                for param in params:
                    param.grad = param.grad.contiguous()
            if step == 24:
                for param in params:
                    param.data.view(-1 if param.is_contiguous() else param.shape)[..., 0] = 1e6
            if step == 27:
                for entry in wrapper.state.values():
                    entry["exp_avg"][0] = 1e8
            wrapper.step()
        return wrapper

    in_two_lives(live)


def test_five_thousand_tensors_as_on_a_cpu():
    def live(device, backend):
        params = parameters(*((1 + k % 7,) for k in range(5000)), device=device)
        wrapper = protect(optim.AdamW(params, fused=True), learned=QUICK, warmup_steps=5, backend=backend)
        for step in range(14):
            gradients(params, step)
            if step == 9:
                params[700].grad[0] = math.nan
            if step == 10:
                params[4400].grad[0] = 1e9
            if step == 11:
                params[3].grad = None
                params[900].data[0] = 1e6
                params[4999].data[0] = math.nan
            wrapper.step()
        return wrapper

    here, there = live("cpu", "cpp"), live("cuda", "cuda")
    for key in ("clamped", "counted", "repaired", "seen"):
        a, b = (torch.as_tensor(getattr(w.engine.state, key)).cpu() for w in (here, there))
        assert a.equal(b), key
    assert here.engine.tally.equal(there.engine.tally.cpu())
    torch.testing.assert_close(
        *(torch.as_tensor(w.engine.state.level).cpu() for w in (here, there)), rtol=1e-12, atol=0
    )


@pytest.mark.parametrize(("size", "dtype"), [(2**24 + 3, torch.float32), (2**31 + 8, torch.bfloat16)])
def test_elements_beyond_what_32_bits_count(size, dtype):
    param = nn.Parameter(torch.zeros(size, dtype=dtype, device="cuda"))
    param.grad = torch.zeros_like(param)
    param.grad[-40:] = 1.0
    wrapper = protect(optim.SGD([param], lr=0.0, fused=True), learned=QUICK, warmup_steps=2, backend="cuda")
    for _ in range(12):
        wrapper.step()
    param.grad[-1], param.grad[size // 2] = 1e6, -1e6
    wrapper.step()
    assert wrapper.engine.state.clamped.tolist() == [2]
    assert param.grad[-1] == -param.grad[size // 2] == 16.0
    param.grad[-1] = math.nan
    wrapper.step()
    assert wrapper.engine.tally.tolist()[:3] == [13, 1, 1]
    assert wrapper.engine.state.counted.tolist()[0] % size == 0


def test_what_lies_around_the_tensors_is_neither_read_nor_written():
    def live(poisoned):
        params, around = [], []
        for k, size in enumerate(SIZES):
            memory = torch.full((2, size + 64), math.nan if poisoned else 0.0, device="cuda")
            memory[0, 32:-32] = torch.randn(size, generator=torch.Generator().manual_seed(k)).cuda()
            params.append(nn.Parameter(memory[0, 32:-32]))
            around.append(memory)
        wrapper = protect(optim.AdamW(params, fused=True), learned=QUICK, warmup_steps=8, backend="cuda")
        for step in range(20):
            gradients(params, step, scale=1e5 if step == 15 else 1.0)
            for param, memory in zip(params, around, strict=True):
                memory[1, 32:-32] = param.grad
                param.grad = memory[1, 32:-32]
                if step == 17:
                    param.data[-1] = 1e6
            wrapper.step()
        edges = [memory[:, [*range(32), *range(-32, 0)]] for memory in around]
        assert all(edge.isnan().all() if poisoned else (edge == 0).all() for edge in edges)
        return wrapper

    assert_equal_lives(live(False), live(True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_histograms_of_any_values(dtype):
    gen = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31 - 1, (300_000,), generator=gen, dtype=torch.int64).to(torch.int32)
    grad = torch.cat([bits.view(torch.float32), torch.tensor([0.0, -0.0, 1e-45, -1e-38, 3e38])])
    if dtype == torch.float64:
        grad = torch.cat([grad.double(), torch.tensor([1e-300, -1e-50, 1e39, -1e300], dtype=dtype)])
    param = nn.Parameter(torch.zeros(len(grad), dtype=dtype, device="cuda"))
    wrapper = protect(optim.SGD([param], lr=0.0, fused=True), backend="cuda", mode="observe")
    param.grad = grad.cuda()
    engine = wrapper.engine
    engine.start()
    step = engine._look()
    engine.backend.protect(step)
    counted = engine.backend._scratch["bins"].cpu().long()
    expected = histogram.count(grad.abs(), torch.zeros(len(grad), dtype=torch.int32), 1)
    assert counted.equal(expected)
    assert math.isnan(float(engine.backend._scratch["largest"][1, 0]))


@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
def test_a_bad_gradient_skips_exactly(bad):
    params = parameters((70_000,), (5,), device="cuda")
    wrapper = protect(optim.AdamW(params, fused=True), backend="cuda")
    train(wrapper, 3)
    before = [p.detach().clone() for p in params], [e["exp_avg"].clone() for e in wrapper.state.values()]
    gradients(params, 3)
    params[0].grad[69_999] = bad
    wrapper.step()
    after = [p.detach() for p in params], [e["exp_avg"] for e in wrapper.state.values()]
    assert all(a.equal(b) for x, y in zip(before, after, strict=True) for a, b in zip(x, y, strict=True))
    assert wrapper.engine.tally.tolist()[:3] == [3, 1, 1]


def captured(learning_rate):
    """A wrapper whose step is replayed from a CUDA graph, on gradients that are copied in."""
    params = parameters((300, 7), (70_001,), (3,), device="cuda")
    lr = torch.tensor(1e-2, device="cuda")
    make = optim.Adam(params, lr=lr, fused=True, capturable=True)
    wrapper = protect(make, learned=QUICK, warmup_steps=20, backend="cuda")
    gradients(params, 0)
    static = [param.grad for param in params]

    def load(step):
        gradients(params, step, scale=1e5 if step in (30, 31) else 1.0)
        if step == 35:
            params[0].grad[0, 0] = math.nan
        for param, grad in zip(params, static, strict=True):
            grad.copy_(param.grad)
            param.grad = grad
        if step == 40:
            learning_rate(lr)

    return params, wrapper, load


def lived(replays):
    _, wrapper, load = captured(lambda lr: lr.fill_(1e-3))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for step in range(5):
            load(step)
            wrapper.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    if replays:
        with torch.cuda.graph(graph):
            wrapper.step()
    for step in range(5, 60):
        load(step)
        graph.replay() if replays else wrapper.step()
    torch.cuda.synchronize()
    return wrapper


def test_a_captured_step_replays_through_the_flip_and_a_change_of_the_learning_rate():
    eager, replayed = lived(False), lived(True)
    assert eager.engine.state.clamped.sum() > 0
    assert int(eager.engine.switch.phase) == 2
    assert_equal_lives(replayed, eager)


@pytest.mark.parametrize(
    ("every", "steps", "says"), [(1, 0, "at least two steps before capturing"), (2, 4, "Capture with update_every=1")]
)
def test_what_a_graph_could_not_repeat_is_refused(every, steps, says):
    params = parameters((30,), device="cuda")
    wrapper = protect(optim.AdamW(params, fused=True, capturable=True), backend="cuda", update_every=every)
    gradients(params, 0)
    for _ in range(steps):
        wrapper.step()
    torch.cuda.synchronize()
    with pytest.raises(UnsupportedError, match=says), torch.cuda.graph(torch.cuda.CUDAGraph()):
        wrapper.step()


def test_the_host_stops_asking_for_the_flip_when_it_has_come():
    params = parameters((30,), device="cuda")
    wrapper = protect(optim.AdamW(params, fused=True), backend="cuda", warmup_steps=3)
    train(wrapper, 4)
    torch.cuda.synchronize()
    switch = wrapper.engine.switch
    assert int(switch.phase) == Phase.LEARNED
    assert int(switch._known) == Phase.LEARNED
    switch.restore(Phase.EXACT)
    assert int(switch._known) == Phase.EXACT
    train(wrapper, 1, start=4)
    torch.cuda.synchronize()
    assert int(switch._known) == Phase.LEARNED


def test_nothing_waits_and_nothing_is_allocated_after_the_first_steps():
    params = parameters((300, 7), (70_001,), (3,), device="cuda")
    wrapper = protect(optim.AdamW(params, fused=True), backend="cuda", warmup_steps=2)
    wrapper.flips_itself = False
    gradients(params, 0)
    for _ in range(3):
        wrapper.step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            wrapper.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_a_step_that_an_exception_has_ended_leaves_nothing():
    def live(backend):
        params = parameters((300, 7), (3,), device="cuda")
        base = optim.AdamW(params, fused=True)
        wrapper = protect(base, backend=backend, learned=QUICK, warmup_steps=5)
        for step in range(30):
            gradients(params, step, scale=1e5 if step in (12, 20) else 1.0)
            if step in (12, 13):
                failing = base.register_step_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("stop")))
                with pytest.raises(RuntimeError, match="stop"):
                    wrapper.step()
                failing.remove()
            else:
                wrapper.step()
        return wrapper

    in_two_lives(live)


def test_two_streams():
    def live(stream):
        params = parameters((300, 7), (3,), device="cuda")
        wrapper = protect(optim.AdamW(params, fused=True), backend="cuda", learned=QUICK, warmup_steps=5)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            train(wrapper, 20)
        return wrapper

    one, two = (live(torch.cuda.Stream()) for _ in range(2))
    torch.cuda.synchronize()
    assert_equal_lives(one, two)
