"""Faults that strike the agent, written past torch's version counter like a flipped bit."""

import torch
from lightning.pytorch import Callback

GROUPS = ("dqn_trunk", "dqn_value", "dqn_branches", "iqn", "iql_high", "iql_low", "attention", "curiosity")
GRADIENT_FAULTS = ("nan", "inf", "spike")
STATE_FAULTS = ("exp_avg", "lost_exp_avg_sq", "weight")
FAULTS = GRADIENT_FAULTS + STATE_FAULTS


def find_group(optimizers, group):
    """The optimizer and the parameters of a named group."""
    for optimizer in optimizers:
        for torch_group in optimizer.param_groups:
            if torch_group.get("name") == group:
                return optimizer, torch_group["params"]
    raise LookupError(group)


def strike(fault, optimizer, params):
    """Damage one group."""
    first = (0,) * params[0].dim()
    if fault in ("nan", "inf"):
        params[0].grad[first] = float(fault)
    elif fault == "spike":
        for param in params:
            param.grad.mul_(1e6)
    elif fault == "exp_avg":
        optimizer.state[params[0]]["exp_avg"].data[first] = 1e8
    elif fault == "lost_exp_avg_sq":
        for param in params:
            optimizer.state[param]["exp_avg_sq"].data.zero_()
    elif fault == "weight":
        params[-2].data[(0,) * params[-2].dim()] = 1e6


class Strike(Callback):
    """One fault in one group at one update: between updates, or in the gradients just before the step."""

    def __init__(self, fault, group, at):
        self.fault, self.group, self.at, self.update = fault, group, at, -1

    def on_train_batch_start(self, trainer, *_):
        self.update += 1
        if self.update == self.at and self.fault in STATE_FAULTS:
            strike(self.fault, *find_group(trainer.optimizers, self.group))

    def on_before_optimizer_step(self, trainer, module, optimizer):
        if self.update == self.at and self.fault in GRADIENT_FAULTS:
            hit, params = find_group(trainer.optimizers, self.group)
            if hit is optimizer:
                strike(self.fault, hit, params)


def snapshot(module, optimizers):
    """Copies of everything an update writes, by name."""
    names = {id(param): name for name, param in module.named_parameters()}
    copy = {name: param.detach().clone() for name, param in module.named_parameters()}
    for optimizer in optimizers:
        for param, state in optimizer.state.items():
            copy |= {f"{names[id(param)]}.{key}": torch.as_tensor(value).clone() for key, value in state.items()}
    return copy


def differing(a, b):
    """Names of the tensors whose bits differ (NaN equals NaN)."""
    return sorted(name for name in a if not torch.equal(a[name].nan_to_num(nan=7e7), b[name].nan_to_num(nan=7e7)))
