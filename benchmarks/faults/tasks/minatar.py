"""The agent in MinAtar's games (Young and Tian 2019), whose 10x10 planes it reads as one vector."""

from __future__ import annotations

import gymnasium as gym
from minatar.gym import register_envs

from benchmarks.faults.tasks.agent import AgentTask

GAME = "MinAtar/Breakout-v1"


class MinAtarTask(AgentTask):
    """As :class:`AgentTask`, with ``environment: MinAtar/Breakout-v1`` and the like registered."""


if GAME not in gym.registry:  # Gymnasium may have done it by itself, through the package's entry point
    register_envs()
