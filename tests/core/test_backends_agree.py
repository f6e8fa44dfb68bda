"""The C++ backend against the torch backend, which is the definition: counts to the bit, bounds to rounding."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn, optim

from sp4_lightning import BackendError, LearnedBound, UnsupportedError, histogram
from sp4_lightning.backends import compiling
from sp4_lightning.backends.cpp import CppBackend
from sp4_lightning.backends.pointers import Pointers
from tests.core.lives import SHAPES, assert_equal_lives, eventful
from tests.core.making import OPTIMIZERS, QUICK, examples, gradients, parameters, protect
from tests.core.test_reading import FLOATS, SIZES, brute_force, random_tensors


def in_two_lives(live):
    assert_equal_lives(live("cpp"), live("torch"))


@pytest.mark.parametrize("mode", ["enforce", "observe"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_whole_life_is_the_same(name, mode):
    in_two_lives(lambda backend: eventful(OPTIMIZERS[name], mode=mode, backend=backend))


@pytest.mark.parametrize("options", [{"disable": {"*": ["grad"]}}, {"disable": {"*": ["param"]}}, {"update_every": 3}])
def test_with_other_settings(options):
    in_two_lives(lambda backend: eventful(OPTIMIZERS["Adam-l2"], backend=backend, **options))


@pytest.mark.parametrize("dtype", FLOATS)
def test_in_every_precision(dtype):
    make = OPTIMIZERS["AdamW"]
    in_two_lives(lambda backend: eventful(make, parameters(*SHAPES, dtype=dtype), backend=backend))


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=4),
    st.sampled_from(["Adam", "AdamW", "RAdam", "SGD-momentum", "Adagrad"]),
    st.integers(0, 2**32 - 1),
    st.integers(1, 5),
)
@examples(20)
def test_random_lives(sizes, name, seed, every):
    learned = LearnedBound(arm_after=6, rank=2, window=20, quantile=0.9)

    def live(backend):
        rnd = np.random.default_rng(seed)
        params = parameters(*((n,) for n in sizes), seed=seed % 1000)
        wrapper = protect(
            OPTIMIZERS[name](params), warmup_steps=9, learned=learned, update_every=every, backend=backend
        )
        for step in range(40):
            gradients(params, step, scale=10.0 ** rnd.normal(0, 1))
            for param in params:
                if rnd.random() < 0.1:
                    param.grad = None
                elif rnd.random() < 0.05:
                    param.grad[rnd.integers(len(param))] = rnd.choice([math.nan, math.inf, 0.0, 1e30, -1e12])
                for tensor in (param, *wrapper.state.get(param, {}).values()):
                    if rnd.random() < 0.01 and torch.is_tensor(tensor) and tensor.shape == param.shape:
                        tensor.data[rnd.integers(len(param))] = rnd.choice([math.nan, math.inf, -1.0, 1e30, 1e8])
            if rnd.random() < 0.1:
                wrapper.param_groups[0]["lr"] = 10.0 ** rnd.uniform(-4, -1)
            if "betas" in wrapper.param_groups[0] and rnd.random() < 0.1:
                wrapper.param_groups[0]["betas"] = (rnd.uniform(0.5, 0.95), rnd.uniform(0.9, 0.999))
            wrapper.step()
        return wrapper

    in_two_lives(live)


def screened(rows, limits):
    """What C++ reads: largest magnitudes, whether pairs are consistent, counts."""
    params = [nn.Parameter(p) for p in rows[0]]
    engine = protect(optim.Adam(params), backend="cpp").engine
    step = engine._look()
    step.tensors = rows
    engine.state.ratio_sq[...] = limits / step.hyper.ratio_slack_sq
    step.hyper.ratio_gain[...] = np.isfinite(limits)
    engine.backend.screen(step, count=True)
    return step, torch.as_tensor(engine.backend._bins)


@given(SIZES, st.integers(0, 2**32 - 1), st.sampled_from(FLOATS))
def test_it_reads_what_is_there(sizes, seed, dtype):
    rows = random_tensors(sizes, [dtype] * len(sizes), seed)
    limits = np.array([[math.inf, 52.9][i % 2] for i in range(len(sizes))])
    step, bins = screened(rows, limits)
    largest, excess, counts = brute_force(rows, limits)
    assert bins.equal(counts)
    np.testing.assert_array_equal(step.largest[:3], largest[:3])
    # A negative exp_avg_sq is found by its sign, not by its size.
    np.testing.assert_array_equal(np.maximum(step.largest[3], 0), np.maximum(largest[3], 0))
    has_sq = np.array([v is not None for v in rows[3]])
    np.testing.assert_array_equal(step.consistent[has_sq], (excess <= 0)[has_sq])


def test_float64_magnitudes_that_float32_lacks_are_counted_alike():
    grad = torch.tensor([1e-300, -1e-50, 1e39, -1e300, 1e-46, -1e-45, 3e38, 0.0, -2.0], dtype=torch.float64)
    grad = torch.cat([grad, torch.tensor([math.inf, -math.inf, math.nan], dtype=torch.float64)])
    rows = [[torch.zeros_like(grad)], [grad], [None], [None]]
    _, bins = screened(rows, np.array([math.inf]))
    assert bins.equal(histogram.count(grad.abs(), torch.zeros(len(grad), dtype=torch.int32), 1))


def arranged(seed):
    """The same matrix in every arrangement of memory a tensor can have."""
    gen = torch.Generator().manual_seed(seed)
    plain = torch.randn(6, 4, generator=gen)
    return {
        "plain": plain,
        "transposed": plain.t().contiguous().t(),
        "every other column": torch.randn(6, 8, generator=gen)[:, ::2].copy_(plain),
        "offset": torch.randn(25, generator=gen)[1:].view(6, 4).copy_(plain),
        "expanded": plain[:1, :1].expand(6, 4),
    }


@pytest.mark.parametrize("grad", arranged(0))
@pytest.mark.parametrize("first", ["plain", "transposed", "every other column"])
@pytest.mark.parametrize("second", ["plain", "transposed", "every other column"])
def test_memory_may_be_arranged_in_any_way(grad, first, second):
    def rows(*names):
        found = [arranged(k)[name] for k, name in enumerate(names)]
        found[3].square_()
        return [[tensor] for tensor in found]

    there = rows("plain", grad, first, second)
    got, bins = screened(there, np.array([2.0]))
    largest, excess, counts = brute_force([[tensor.reshape(-1)] for (tensor,) in there], [2.0])
    np.testing.assert_array_equal(got.largest, largest)
    np.testing.assert_array_equal(got.consistent, excess <= 0)
    assert bins.equal(counts)


def test_moments_of_different_types_are_compared_all_the_same():
    rows = [[torch.ones(3)], [torch.ones(3)], [torch.full((3,), 1.0, dtype=torch.bfloat16)], [torch.full((3,), 1.0)]]
    assert screened(rows, np.array([1.01]))[0].consistent.all()
    rows[3][0][1] = 0.9
    assert not screened(rows, np.array([1.01]))[0].consistent.any()


def test_what_moves_in_memory_is_followed():
    def live(backend):
        params = parameters((5, 3), (7,))
        wrapper = protect(optim.Adam(params), backend=backend, learned=QUICK, warmup_steps=5)
        for step in range(12):
            gradients(params, step)
            if step == 6:
                params[0].data = params[0].data.t().contiguous().t()
            if step == 8:
                state = wrapper.state[params[1]]
                state["exp_avg"] = state["exp_avg"].clone()
                state["exp_avg"][2] = 1e8
            if step == 10:
                wrapper.load_state_dict(wrapper.state_dict())
            wrapper.step()
        assert int(torch.as_tensor(wrapper.engine.state.repaired).sum()) == 1
        return wrapper

    in_two_lives(live)


def test_pointers_notice_every_change_and_copy_only_what_they_must():
    pointers = Pointers([8])
    plain, strided = torch.randn(4, 2), torch.randn(4, 4)[:, ::2]
    for tensor in (plain, strided, plain.clone(), strided, plain):
        for _ in range(2):
            tensor.add_(1)
            pointers.refresh([[tensor], [tensor], [None], [tensor]])
            dense = tensor.is_contiguous()
            assert (pointers.table[0, 0, 0] == tensor.data_ptr()) == dense
            assert pointers.table[2].tolist() == [[0, 0]]
            assert len(pointers._copies) == (0 if dense else 2)
            assert all(copied.equal(tensor) for copied in pointers._copies)


def test_a_parameter_that_has_been_resized_is_refused_before_anything_is_read():
    params = parameters((5, 3))
    wrapper = protect(optim.Adam(params), backend="cpp")
    gradients(params, 0)
    wrapper.step()
    params[0].data = torch.zeros(2, 3)
    with pytest.raises(UnsupportedError, match="of 15 elements has 6 now"):
        wrapper.step()


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=80), st.floats(0.5, 1.0))
def test_quantiles_of_any_floats(bit_patterns, quantile):
    values = torch.tensor(bit_patterns, dtype=torch.int32).view(torch.float32)
    values = torch.where(values.isfinite(), values, 1.0)
    learned = LearnedBound(arm_after=2, rank=1, window=2, quantile=quantile)

    def level(backend):
        param = nn.Parameter(torch.zeros(len(values)))
        wrapper = protect(optim.SGD([param], lr=0.0), learned=learned, backend=backend)
        for _ in range(2):
            param.grad = values.clone()
            wrapper.step()
        return wrapper.engine.state.level

    np.testing.assert_allclose(level("cpp"), level("torch"), rtol=1e-12)


def test_the_table_is_published_alike():
    net = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(2, 2), "never": nn.Linear(1, 1)})

    def live(backend):
        torch.manual_seed(0)
        params = [p.detach().clone().requires_grad_() for p in net.parameters()]
        wrapper = protect(
            optim.Adam([{"params": params[i : i + 2], "name": f"g{i}"} for i in (0, 2, 4)]),
            learned=QUICK,
            warmup_steps=5,
            backend=backend,
        )
        for step in range(12):
            gradients(params[:4], step)
            wrapper.step()
        return wrapper

    in_two_lives(live)


@pytest.fixture
def fresh_library(monkeypatch, tmp_path):
    monkeypatch.setenv("SP4_CACHE", str(tmp_path / "cache"))
    compiling.cpu_library.cache_clear()
    yield tmp_path / "cache"
    compiling.cpu_library.cache_clear()


def test_it_is_compiled_once(fresh_library, monkeypatch):
    CppBackend(parameters((3,)))
    (made,) = fresh_library.iterdir()
    before = made.stat().st_mtime_ns
    compiling.cpu_library.cache_clear()
    CppBackend(parameters((3,)))
    assert [path.stat().st_mtime_ns for path in fresh_library.iterdir()] == [before]


@pytest.mark.parametrize(("compiler", "says"), [("no-such-c++", "cannot be run"), ("false", "cannot be compiled")])
def test_without_a_compiler_the_torch_backend_runs_and_says_so(fresh_library, monkeypatch, caplog, compiler, says):
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(BackendError, match=f"backend='cpp'.*{says}.*set backend='torch'"):
        protect(optim.Adam(parameters((3,))), backend="cpp")
    assert protect(optim.Adam(parameters((3,)))).engine.backend.name == "torch"
    assert "Using the slower backend 'torch'" in caplog.text
    assert says in caplog.text


def test_where_the_cache_cannot_be_written_it_is_compiled_elsewhere(fresh_library, monkeypatch):
    fresh_library.write_text("a file where the directory should be")
    assert protect(optim.Adam(parameters((3,)))).engine.backend.name == "cpp"


def test_processes_that_start_together_all_find_it(fresh_library):
    code = (
        "import torch; from torch import optim; from sp4_lightning import ClippingOptimizer as C, Settings; "
        "p = torch.nn.Parameter(torch.ones(3)); p.grad = torch.ones(3); "
        "C(optim.Adam([p]), settings=Settings(backend='cpp')).step()"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    assert len(list(fresh_library.iterdir())) == 1


def test_constants_are_those_of_the_definition():
    text = (compiling.kernel_directory() / "histogram.cuh").read_text()
    assert f"BINS = {histogram.BINS};" in text
    assert f"FINITE_BINS = {histogram.FINITE_BINS};" in text
