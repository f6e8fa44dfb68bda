"""All networks of the agent, their losses on one batch, and the groups their parameters form."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from sp4_lightning.agents.branches import pick
from sp4_lightning.agents.curiosity import Curiosity
from sp4_lightning.agents.iql import EXPECTILES, ExpectileValue, bracket, expectile_loss
from sp4_lightning.agents.iqn import ImplicitQuantiles, quantile_huber_loss, risk_averse_tau, sample_tau
from sp4_lightning.agents.network import FEATURES, QNetwork
from sp4_lightning.agents.replay import Transitions
from sp4_lightning.errors import ConfigurationError
from sp4_lightning.naming import did_you_mean

AUXILIARIES = ("iqn", "iql_high", "iql_low", "attention", "curiosity")
"""The trainers beside the DQN; each may be absent."""

GROUPS = ("dqn_trunk", "dqn_value", "dqn_branches", *AUXILIARIES)
"""All parameter groups, in their traditional order."""

ACTING_TAUS = 32
"""Quantiles that an action of the IQN averages (Dabney et al. 2018, section 4)."""

Network = TypeVar("Network", bound=nn.Module)


class Target(NamedTuple):
    """What one batch says the networks should answer.

    Attributes:
        value: float ``[B]``, y of the DQN's loss.
        samples: float ``[B, N]``, samples of the return's distribution, or None without IQN.
        taken: float ``[B]``, the lagged network's Q of the action taken, or None without IQL.
    """

    value: Tensor
    samples: Tensor | None
    taken: Tensor | None


class Learner(nn.Module):
    """The DQN and its auxiliary trainers.

    The auxiliary heads read the trunk's features detached. Their graphs and the DQN's are therefore disjoint,
    and one backward pass of the summed losses gives every parameter exactly the gradient of its own loss.
    Only the attention belongs to the DQN's loss; it is trained end to end.

    Args:
        observation_size: Numbers in one observation, d.
        history: Observations in the history, K.
        branches: Number of choices of each action branch.
        auxiliaries: Which of :data:`AUXILIARIES` there are. Without IQN there is no risk aversion, without
            one of the IQL values no bracket around the bootstrap, without attention only the newest
            observation counts, without curiosity there is no bonus.
        td_loss: Error measure of the Q values.
        iql_clip: Whether the IQL values bracket the bootstrap; both are trained in any case.
        quantiles: Taus per update on either side of the IQN's loss, N.
        cvar: Share of worst outcomes whose mean, in the IQN's eyes, decides actions; None lets Q decide.

    Raises:
        ConfigurationError: An unknown auxiliary, or acting by the IQN without IQN.
    """

    def __init__(
        self,
        observation_size: int,
        history: int,
        branches: Sequence[int],
        *,
        auxiliaries: Iterable[str] = AUXILIARIES,
        td_loss: Literal["huber", "mse"] = "huber",
        iql_clip: bool = True,
        quantiles: int = 8,
        cvar: float | None = None,
    ) -> None:
        super().__init__()
        present = tuple(auxiliaries)
        for name in present:
            if name not in AUXILIARIES:
                raise ConfigurationError(
                    f"There is no auxiliary trainer {name!r}.{did_you_mean(name, AUXILIARIES)} "
                    f"Trainers are {', '.join(AUXILIARIES)}."
                )
        if cvar is not None and not 0.0 < cvar <= 1.0:
            raise ConfigurationError(f"cvar must lie in (0, 1], got {cvar}.")
        if cvar is not None and "iqn" not in present:
            raise ConfigurationError(f"cvar={cvar} needs the quantiles of 'iqn', which is not among auxiliaries.")
        self.td_loss = td_loss
        self.iql_clip = iql_clip
        self.quantiles = quantiles
        self.cvar = cvar
        self.online = QNetwork(observation_size, history, branches, attention="attention" in present)
        self.target = lagged_copy(self.online)
        self.iqn = ImplicitQuantiles(FEATURES, branches) if "iqn" in present else None
        self.iqn_target = lagged_copy(self.iqn) if self.iqn is not None else None
        self.iql_high = ExpectileValue(FEATURES) if "iql_high" in present else None
        self.iql_low = ExpectileValue(FEATURES) if "iql_low" in present else None
        self.curiosity = Curiosity(observation_size, branches) if "curiosity" in present else None

    def groups(self) -> dict[str, nn.Module]:
        """The groups that are present, by name, in the order of :data:`GROUPS`."""
        parts = {
            "dqn_trunk": self.online.trunk,
            "dqn_value": self.online.value,
            "dqn_branches": self.online.advantages,
            "iqn": self.iqn,
            "iql_high": self.iql_high,
            "iql_low": self.iql_low,
            "attention": self.online.attention,
            "curiosity": self.curiosity,
        }
        return {name: part for name, part in parts.items() if part is not None}

    @torch.no_grad()
    def act(self, history: Tensor) -> Tensor:
        """Greedy actions: float ``[E, K, d]`` to int64 ``[E, D]``."""
        features = self.online.features(history)
        if self.cvar is not None and self.iqn is not None:
            tau = risk_averse_tau(self.cvar, ACTING_TAUS, history.device)
            worst: Tensor = self.iqn(features, tau).mean(1)
            return worst.argmax(-1)
        return self.online.q_values(features).argmax(-1)

    def losses(self, batch: Transitions, bonus: float = 0.0) -> dict[str, Tensor]:
        """Every trainer's loss on a batch.

        Depends on the batch, the networks and torch's random generator (the taus), on nothing else.

        Args:
            batch: B transitions.
            bonus: Weight of the curiosity bonus, in reward per running standard deviation of surprise.

        Returns:
            Scalars by trainer: ``dqn``, and the auxiliaries but for attention, whose loss is the DQN's.
        """
        losses: dict[str, Tensor] = {}
        reward = batch.reward
        if self.curiosity is not None:
            error = self.curiosity.error(batch.history[:, -1], batch.action, batch.next_observation)
            losses["curiosity"] = error.mean()
            if bonus > 0.0:
                # Of an n-step return's rewards only the first gets the bonus: the batch has its observations.
                reward = reward + bonus * self.curiosity.bonus(error)
        # One pass over both ends of the transitions costs less than two, though only the first end is trained.
        both = self.online.features(torch.cat((batch.history, batch.next_history)))
        features, next_features = both.chunk(2)
        q_values, next_q_values = self.online.q_values(both).chunk(2)
        target = self._target(batch, reward, next_features, next_q_values)
        chosen = pick(q_values, batch.action)
        measure = functional.huber_loss if self.td_loss == "huber" else functional.mse_loss
        losses["dqn"] = measure(chosen, target.value.unsqueeze(-1).expand_as(chosen))
        detached = features.detach()
        if self.iqn is not None and target.samples is not None:
            tau = sample_tau(self.quantiles, features.device)
            quantiles = pick(self.iqn(detached, tau), _per_tau(batch.action, tau))
            losses["iqn"] = quantile_huber_loss(quantiles.transpose(1, 2), target.samples.unsqueeze(1), tau)
        for name, expectile in EXPECTILES.items():
            head: ExpectileValue | None = getattr(self, name)
            if head is not None and target.taken is not None:
                losses[name] = expectile_loss(head(detached), target.taken, expectile)
        return losses

    @torch.no_grad()
    def _target(self, batch: Transitions, reward: Tensor, next_features: Tensor, next_q_values: Tensor) -> Target:
        """Double-DQN targets (van Hasselt et al. 2016), averaged over branches (Tavakoli et al. 2018, eq. 5).

        The online network chooses the next action, the lagged one values it; the lagged IQN values the same
        action.
        """
        best = next_q_values.argmax(-1)
        has_iql = self.iql_high is not None or self.iql_low is not None
        # One pass of the lagged network values both ends of the transition where IQL asks for the first.
        seen = torch.cat((batch.next_history, batch.history)) if has_iql else batch.next_history
        lagged = self.target.features(seen)
        actions = torch.cat((best, batch.action)) if has_iql else best
        values = pick(self.target.q_values(lagged), actions).mean(-1)
        size = reward.shape[0]
        bootstrap = values[:size]
        if self.iql_clip and self.iql_high is not None and self.iql_low is not None:
            bootstrap = bracket(bootstrap, self.iql_high(next_features), self.iql_low(next_features))
        samples = None
        if self.iqn_target is not None:
            tau = sample_tau(self.quantiles, reward.device)
            ahead = pick(self.iqn_target(lagged[:size], tau), _per_tau(best, tau)).mean(-1)
            samples = reward.unsqueeze(-1) + batch.discount.unsqueeze(-1) * ahead
        return Target(reward + batch.discount * bootstrap, samples, values[size:] if has_iql else None)

    @torch.no_grad()
    def sync_targets(self) -> None:
        """Copy the trained networks into the lagged ones (Mnih et al. 2015)."""
        for lagged, trained in ((self.target, self.online), (self.iqn_target, self.iqn)):
            if lagged is not None and trained is not None:
                torch._foreach_copy_(list(lagged.parameters()), list(trained.parameters()))


def lagged_copy(network: Network) -> Network:
    """A copy that no optimizer trains."""
    return copy.deepcopy(network).requires_grad_(False)


def _per_tau(action: Tensor, tau: Tensor) -> Tensor:
    """The same action at every tau: int64 ``[B, D]`` to ``[B, N, D]``."""
    return action.unsqueeze(1).expand(-1, tau.shape[0], -1)
