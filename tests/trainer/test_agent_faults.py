"""Six faults in each of the agent's eight groups."""

import functools
import itertools

import pytest
import torch
from lightning.pytorch import Callback

from sp4_lightning import FaultInjector
from sp4_lightning.switch import Phase
from tests.trainer.agent import fit
from tests.trainer.faults import FAULTS, GROUPS, STATE_FAULTS, differing, find_group, snapshot, strike_now

ENFORCE = {"mode": "enforce", "warmup_steps": 70}


@functools.cache
def clean_maximum(accelerator):
    agent, _, _ = fit(200, protection=ENFORCE, accelerator=accelerator)
    return max(param.abs().max() for param in agent.parameters())


def survives(fault, group, accelerator="cpu"):
    injector = FaultInjector([{**FAULTS[fault], "step": 120, "group": group}])
    agent, trainer, sp4 = fit(200, injector, protection=ENFORCE, accelerator=accelerator)
    values = snapshot(agent, trainer.optimizers)
    assert all(value.isfinite().all() for value in values.values())
    assert max(param.abs().max() for param in agent.parameters()) <= 10 * clean_maximum(accelerator)
    report = sp4.protection.report()
    hit = [o for o in report.optimizers if group in o.observed]
    # Training goes on: at most the struck update and, for a weight, those until it is mended are skipped.
    assert hit[0].skipped <= 2
    assert hit[0].observed[group] >= 198
    return report


@pytest.mark.parametrize(("fault", "group"), list(zip(FAULTS, GROUPS[1:], strict=False)))
def test_a_fault_is_survived(fault, group):
    report = survives(fault, group)
    if fault in ("nan", "inf"):
        assert sum(o.skipped for o in report.optimizers) == 1
    elif fault == "spike":
        assert sum(t.clamped for t in report.of(group)) > 0
    else:
        assert sum(t.repaired for t in report.of(group)) > 0


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "group"), list(itertools.product(FAULTS, GROUPS)))
def test_every_fault_in_every_group_is_survived(fault, group):
    survives(fault, group)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("fault", "group"), list(itertools.product(FAULTS, GROUPS)))
def test_every_fault_in_every_group_is_survived_on_a_gpu(fault, group):
    survives(fault, group, accelerator="gpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("layout", ["six", "one"])
def test_observing_changes_no_bit_on_a_gpu(layout):
    torch.use_deterministic_algorithms(True, warn_only=True)
    bare, bare_trainer, _ = fit(150, optimizers=layout, accelerator="gpu")
    seen, seen_trainer, sp4 = fit(150, protection={"mode": "observe"}, optimizers=layout, accelerator="gpu")
    torch.use_deterministic_algorithms(False)
    assert {engine.backend.name for engine in sp4.protection.engines} == {"cuda"}
    assert differing(snapshot(bare, bare_trainer.optimizers), snapshot(seen, seen_trainer.optimizers)) == []


class SingleUpdates(Callback):
    """At one update: repeats it from the same state for every fault and keeps what each repetition left behind."""

    def __init__(self, at):
        self.at, self.update, self.clean, self.faulted, self.gradients = at, -1, {}, {}, {}
        self.struck = None

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.update += 1
        if self.update != self.at:
            return
        sp4 = trainer.callbacks[0]
        assert sp4.protection.switch.phase == Phase.LEARNED
        start = self._save(trainer, module, sp4)
        for case in (None, *itertools.product(FAULTS, GROUPS)):
            self.struck = case
            if case and case[0] in STATE_FAULTS:
                strike_now(*case, module, trainer.optimizers)
            module.training_step(batch, batch_idx)
            self.faulted[case] = snapshot(module, trainer.optimizers)
            self._restore(trainer, module, sp4, start)
        self.struck = None

    def on_before_optimizer_step(self, trainer, module, optimizer):
        if self.update != self.at:
            return
        raw = self.gradients.setdefault(self.struck, {})
        raw |= {g["name"]: [p.grad.clone() for p in g["params"]] for g in optimizer.param_groups}
        if self.struck is None or self.struck[0] in STATE_FAULTS:
            return
        if find_group(trainer.optimizers, self.struck[1])[0] is optimizer:
            strike_now(*self.struck, module, trainer.optimizers)

    def _save(self, trainer, module, sp4):
        states = [o.state_dict() for o in trainer.optimizers]
        saved = (module.state_dict(), states, sp4.protection.state_dict(), torch.get_rng_state(), module.updates)
        return torch.utils._pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, saved)

    def _restore(self, trainer, module, sp4, saved):
        weights, states, protection, random, module.updates = torch.utils._pytree.tree_map(
            lambda x: x.clone() if isinstance(x, torch.Tensor) else x, saved
        )
        module.load_state_dict(weights)
        for optimizer, state in zip(trainer.optimizers, states, strict=True):
            optimizer.load_state_dict(state)
        sp4.protection.load_state_dict(protection)
        torch.set_rng_state(random)


@functools.cache
def single_updates():
    probe = SingleUpdates(at=90)
    agent, trainer, _ = fit(92, probe, protection=ENFORCE)
    parts = {name: [f"learner.{n}" for n in ()] for name in GROUPS}
    names = {id(param): name for name, param in agent.named_parameters()}
    for group in GROUPS:
        parts[group] = [names[id(param)] for param in find_group(trainer.optimizers, group)[1]]
    optimizer_of = {group: find_group(trainer.optimizers, group)[0] for group in GROUPS}
    return probe, parts, optimizer_of


def test_repeating_the_clean_update_gives_the_same_bits():
    probe, _, _ = single_updates()
    assert differing(probe.faulted[None], probe.faulted["nan", "iqn"])
    repeated = [case for case in probe.faulted if case and case[0] == "exp_avg"]
    assert len(repeated) == len(GROUPS)


@pytest.mark.parametrize(("fault", "group"), list(itertools.product(FAULTS, GROUPS)))
def test_groups_with_disjoint_graphs_do_not_notice_a_fault(fault, group):
    probe, parts, optimizer_of = single_updates()
    clean, faulted = probe.faulted[None], probe.faulted[fault, group]
    changed = differing(clean, faulted)
    assert all(faulted[name].isfinite().all() for name in faulted)
    for other in GROUPS:
        if other == group:
            continue
        same_gradients = all(
            torch.equal(a, b)
            for a, b in zip(probe.gradients[None][other], probe.gradients[fault, group][other], strict=True)
        )
        # A skip is per optimizer: its groups skip together.
        skipped_along = fault in ("nan", "inf") and optimizer_of[other] is optimizer_of[group]
        if same_gradients and not skipped_along:
            touched = [name for name in changed if any(name.startswith(part) for part in parts[other])]
            assert touched == [], f"{other} noticed {fault} in {group}"


@pytest.mark.parametrize("group", ["iqn", "iql_low", "curiosity", "dqn_value"])
def test_a_gradient_fault_leaves_seven_gradients_alone(group):
    probe, _, _ = single_updates()
    for other in GROUPS:
        if other != group:
            for a, b in zip(probe.gradients[None][other], probe.gradients["spike", group][other], strict=True):
                assert torch.equal(a, b)


def test_a_clean_run_is_not_touched():
    _, _, sp4 = fit(1300, protection={"mode": "enforce"})
    report = sp4.protection.report()
    assert report.phase is Phase.LEARNED
    assert sum(tensor.repaired for tensor in report.tensors) == 0
    assert max(tensor.share for tensor in report.tensors) <= 1e-3
    assert sum(o.skipped for o in report.optimizers) == 0
    assert all(tensor.counted > 0 for tensor in report.tensors)


@pytest.mark.parametrize("layout", ["six", "one"])
def test_observing_changes_no_bit_in_500_updates(layout):
    bare, bare_trainer, _ = fit(500, optimizers=layout)
    seen, seen_trainer, sp4 = fit(500, protection={"mode": "observe"}, optimizers=layout)
    assert differing(snapshot(bare, bare_trainer.optimizers), snapshot(seen, seen_trainer.optimizers)) == []
    assert sp4.protection.report().optimizers[0].steps == 500
