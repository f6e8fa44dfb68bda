"""What devices other than a CPU run, run on a CPU: torch tensors for the vectors, and select in place of looking."""

import sys

import pytest
import torch
from torch import nn, optim

from sp4_lightning import Protection, Settings, arrays
from sp4_lightning import engine as engine_module
from sp4_lightning.backends import flats
from sp4_lightning.step import Step
from tests.core.lives import assert_equal_lives, eventful
from tests.core.making import OPTIMIZERS, QUICK, gradients, parameters, protect, same


@pytest.fixture
def as_on_a_device(monkeypatch):
    """From its call on, engines work as on a device: NumPy is not used, and the phase is a tensor."""

    def force():
        for name, module in list(sys.modules.items()):
            if name.startswith("sp4_lightning"):
                for attribute, (original, replacement) in replacements.items():
                    if getattr(module, attribute, None) is original:
                        monkeypatch.setattr(module, attribute, replacement)
        as_tensor = lambda **fields: Step(**{**fields, "phase": torch.as_tensor(fields["phase"])})  # noqa: E731
        monkeypatch.setattr(engine_module, "Step", as_tensor)

    replacements = {
        "view": (arrays.view, lambda tensor: tensor.detach()),
        "namespace_on": (arrays.namespace_on, lambda device: torch),
        "flatten": (flats.flatten, lambda tensor: tensor.detach().reshape(-1)),
    }
    return force


@pytest.mark.parametrize("mode", ["enforce", "observe"])
@pytest.mark.parametrize("name", ["Adam-l2", "NAdam", "RAdam", "RMSprop", "SGD", "SGD-momentum", "Adagrad", "Adamax"])
def test_a_whole_life_is_the_same(as_on_a_device, name, mode):
    looked = eventful(OPTIMIZERS[name], mode=mode, backend="torch")
    as_on_a_device()
    selected = eventful(OPTIMIZERS[name], mode=mode, backend="torch")
    assert isinstance(selected.engine.state.bound, torch.Tensor)
    assert_equal_lives(looked, selected)


@pytest.mark.parametrize("off", [["grad"], ["param"], ["exp_avg", "exp_avg_sq"], ["param", "exp_avg", "exp_avg_sq"]])
def test_what_is_switched_off_stays_off(as_on_a_device, off):
    options = {"disable": {"*": off}, "backend": "torch"}
    looked = eventful(OPTIMIZERS["Adam"], **options)
    as_on_a_device()
    assert_equal_lives(looked, eventful(OPTIMIZERS["Adam"], **options))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(as_on_a_device, dtype):
    def life():
        params = parameters((5, 3), (40,), dtype=dtype)
        wrapper = protect(optim.Adam(params), learned=QUICK, warmup_steps=10, backend="torch")
        for step in range(30):
            gradients(params, step)
            if step == 25:
                params[0].data[0, 0], params[1].grad[3] = 1e6, 1e6
            wrapper.step()
        return wrapper

    looked = life()
    as_on_a_device()
    assert_equal_lives(looked, life())


def test_a_protection_and_its_report(as_on_a_device):
    def life():
        net = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(2, 2)})
        for i, param in enumerate(net.parameters()):
            param.data.fill_(0.1 * i)
        optimizers = [optim.Adam(net["a"].parameters()), optim.SGD(net["b"].parameters(), 0.1)]
        protection = Protection(
            optimizers, net, settings=Settings(learned=QUICK, warmup_steps=10, update_every=1, backend="torch")
        )
        for step in range(30):
            gradients(list(net.parameters()), step, scale=1e5 if step == 25 else 1.0)
            for optimizer in optimizers:
                optimizer.step()
            protection.advance()
        protection.notify_scale_change(2.0)
        protection.reset(["SGD"])
        return protection

    looked = life()
    report, saved = looked.report(), looked.state_dict()
    as_on_a_device()
    selected = life()
    assert selected.report() == report
    assert same(selected.state_dict(), saved)
    selected.load_state_dict(saved)
    assert same(selected.state_dict(), saved)
