"""Learning-rate schedulers on a wrapper do what they do on the bare optimizer, and the rules follow."""

import copy
import warnings

import pytest
import torch
from torch import optim
from torch.optim import lr_scheduler as lrs

from tests.core.making import gradients, parameters, protect, repaired, same, snapshot

SCHEDULERS = {
    "StepLR": lambda o: lrs.StepLR(o, 5, gamma=0.3),
    "LambdaLR": lambda o: lrs.LambdaLR(o, lambda step: 1 / (1 + step)),
    "OneCycleLR": lambda o: lrs.OneCycleLR(o, max_lr=0.1, total_steps=60),
    "OneCycleLR-wide": lambda o: lrs.OneCycleLR(o, max_lr=0.1, total_steps=60, base_momentum=0.3, max_momentum=0.97),
    "CyclicLR": lambda o: lrs.CyclicLR(o, 1e-4, 0.1, step_size_up=7, cycle_momentum=True),
    "CosineAnnealingWarmRestarts": lambda o: lrs.CosineAnnealingWarmRestarts(o, 9),
    "SequentialLR": lambda o: lrs.SequentialLR(o, [lrs.LinearLR(o, 0.1), lrs.ExponentialLR(o, 0.9)], [8]),
}
OPTIMIZERS = {
    "Adam": lambda p: optim.Adam(p, lr=1e-2),
    "NAdam": lambda p: optim.NAdam(p, lr=1e-2),
    "SGD": lambda p: optim.SGD(p, lr=1e-2, momentum=0.9),
}


@pytest.mark.parametrize("scheduled", ["wrapper", "base"])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_the_run_is_the_bare_optimizers_and_no_rule_fires(scheduler, name, scheduled):
    params, bare_params = parameters((4, 3), (5,)), parameters((4, 3), (5,))
    wrapper, bare = protect(OPTIMIZERS[name](params), warmup_steps=10**9), OPTIMIZERS[name](bare_params)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # above all, "lr_scheduler.step() before optimizer.step()"
        mine = SCHEDULERS[scheduler](wrapper if scheduled == "wrapper" else wrapper.base)
        theirs = SCHEDULERS[scheduler](bare)
        for step in range(59):
            # Gradients that grow and stop, so that a falling beta1 meets the ratio it allows.
            scale = 1.5 ** (step % 30)
            gradients(params, step, scale)
            gradients(bare_params, step, scale)
            wrapper.step()
            bare.step()
            mine.step()
            theirs.step()
            assert mine.get_last_lr() == theirs.get_last_lr()
    assert same(snapshot(wrapper.base), snapshot(bare))
    assert repaired(wrapper) == 0


def test_a_schedulers_own_state_resumes_with_the_wrappers():
    wrapper = protect(optim.Adam(parameters((4, 3)), lr=0.1))
    scheduler = lrs.OneCycleLR(wrapper, max_lr=0.1, total_steps=60)
    other = protect(optim.Adam(parameters((4, 3)), lr=0.1))
    other_scheduler = lrs.OneCycleLR(other, max_lr=0.1, total_steps=60)

    def run(optimizer, sched, start, stop):
        for step in range(start, stop):
            gradients(optimizer.param_groups[0]["params"], step)
            optimizer.step()
            sched.step()

    run(wrapper, scheduler, 0, 25)
    other.load_state_dict(copy.deepcopy(wrapper.state_dict()))
    other_scheduler.load_state_dict(scheduler.state_dict())
    with torch.no_grad():
        other.param_groups[0]["params"][0].copy_(wrapper.param_groups[0]["params"][0])
    run(wrapper, scheduler, 25, 50)
    run(other, other_scheduler, 25, 50)
    assert same(snapshot(wrapper.base), snapshot(other.base))
    assert torch.as_tensor(wrapper.engine.state.ratio_sq).equal(torch.as_tensor(other.engine.state.ratio_sq))
