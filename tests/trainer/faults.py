"""Six faults for each of the agent's groups, and what a run leaves behind."""

import random

import torch

from sp4_lightning.faults.fault import Fault
from sp4_lightning.faults.strike import strike
from sp4_lightning.faults.target import find_targets

GROUPS = ("dqn_trunk", "dqn_value", "dqn_branches", "iqn", "iql_high", "iql_low", "attention", "curiosity")
FAULTS = {
    "nan": {"kind": "gradient_nan"},
    "inf": {"kind": "gradient_inf"},
    "spike": {"kind": "gradient_scale", "factor": 1e6},
    "exp_avg": {"kind": "exp_avg_spike", "value": 1e8},
    "lost_exp_avg_sq": {"kind": "exp_avg_sq_zero"},
    "weight": {"kind": "param_spike", "value": 1e6},
}
STATE_FAULTS = ("exp_avg", "lost_exp_avg_sq", "weight")


def find_group(optimizers, group):
    """The optimizer and the parameters of a named group."""
    for optimizer in optimizers:
        for torch_group in optimizer.param_groups:
            if torch_group.get("name") == group:
                return optimizer, torch_group["params"]
    raise LookupError(group)


def strike_now(fault, group, module, optimizers):
    """Damage one group at once."""
    (target,) = find_targets([Fault(**FAULTS[fault], step=1, group=group)], optimizers, module, None)
    strike(target.fault, list(target.tensors().values()), random.Random(0))


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
