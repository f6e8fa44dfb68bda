"""A real DQN agent with five auxiliary trainers: eight parameter groups, all trained in every update."""

from sp4_lightning.agents.dqn import DQNAgent
from sp4_lightning.agents.learner import AUXILIARIES, GROUPS

__all__ = ["AUXILIARIES", "GROUPS", "DQNAgent"]
