"""The agent in an environment, composed from the overlays of configs/."""

from __future__ import annotations

import json
from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from benchmarks.faults.tasks.task import Task
from sp4_lightning.agents import DQNAgent
from sp4_lightning.agents.replay import Replay, Transitions
from sp4_lightning.errors import ConfigurationError
from sp4_lightning.naming import did_you_mean

CONFIGS = Path(__file__).parents[3] / "configs"


class AgentTask(Task):
    """Deep Q-learning; the score is the mean return of greedy episodes, the signal the mean Q of fixed states.

    Args:
        configs: Overlays of ``configs/`` without their suffix, such as ``ablation/no_auxiliaries``.
        overrides: Arguments of :class:`~sp4_lightning.agents.DQNAgent` that win over theirs.

    Raises:
        ConfigurationError: An overlay or argument does not exist.
    """

    score = "eval/return"

    def __init__(self, configs: Sequence[str], overrides: dict[str, Any]) -> None:
        self.arguments: dict[str, Any] = {}
        for name in configs:
            self.arguments |= _model_section(name)
        self.arguments |= overrides
        known = set(signature(DQNAgent).parameters) - {"seed"}
        for key in self.arguments:
            if key not in known:
                raise ConfigurationError(f"the agent has no argument {key!r}.{did_you_mean(key, known)}")

    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = json.loads(json.dumps(dict(self.module(0).hparams)))
        return {key: value for key, value in settings.items() if key != "seed"}

    def module(self, seed: int) -> DQNAgent:
        return DQNAgent(**self.arguments, seed=seed)

    def probe(self, checkpoint: dict[str, Any], count: int) -> Tensor:
        return _saved_replay(checkpoint).sample(count, _generator(0)).history

    @torch.no_grad()
    def signal(self, module: DQNAgent, inputs: Tensor) -> float:
        return float(module(inputs).mean())

    def batches(self, checkpoint: dict[str, Any], count: int) -> list[Transitions]:
        replay, generator = _saved_replay(checkpoint), _generator(1)
        return [replay.sample(checkpoint["hyper_parameters"]["batch_size"], generator) for _ in range(count)]


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _saved_replay(checkpoint: dict[str, Any]) -> Replay:
    saved = checkpoint["dqn_agent"]["experience"]["replay"]
    replay = Replay(int(saved["capacity"]))
    replay.load_state_dict(saved)
    return replay


def _model_section(name: str) -> dict[str, Any]:
    path = CONFIGS / f"{name}.yaml"
    if not path.exists():
        known = [str(other.relative_to(CONFIGS).with_suffix("")) for other in CONFIGS.rglob("*.yaml")]
        raise ConfigurationError(f"there is no overlay {name!r}.{did_you_mean(name, known)}")
    content = yaml.safe_load(path.read_text())
    if set(content) != {"model"}:
        raise ConfigurationError(f"overlay {name!r} has sections beside model, which a task cannot use.")
    section: dict[str, Any] = content["model"]
    return section
