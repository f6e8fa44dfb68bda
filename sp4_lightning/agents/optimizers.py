"""Adam over the agent's parameter groups, every group under its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import nn
from torch.optim import Adam

from sp4_lightning.admission import is_dense
from sp4_lightning.errors import ConfigurationError

Layout = Literal["six", "one"]


def make_optimizers(
    groups: Mapping[str, nn.Module], layout: Layout, lr: float, eps: float = 1e-8, fused: bool | None = None
) -> list[Adam]:
    """One Adam per trainer, or one for all.

    Args:
        groups: The modules to train, by group name.
        layout: ``"six"``: one optimizer for the DQN's three groups and one per auxiliary trainer, so six when
            none is absent. ``"one"``: a single optimizer with a param group for each.
        lr: Learning rate of all groups.
        eps: Adam's eps.
        fused: Whether to use torch's fused kernel; None chooses it for each group that it can serve.

    Returns:
        Optimizers whose param groups carry a ``"name"``; the DQN's comes first.

    Raises:
        ConfigurationError: ``fused=True`` for parameters that the fused kernel would update wrongly.
    """
    named: list[dict[str, Any]] = []
    for name, module in groups.items():
        params, kernel = list(module.parameters()), _fused(name, module, fused)
        # On a GPU an update can be skipped only where Adam counts its steps there, as the fused kernel does.
        capturable = params[0].is_cuda and not kernel
        named.append({"params": params, "name": name, "fused": kernel, "capturable": capturable})
    if layout == "one":
        shares = [named]
    else:
        dqn = [group for group in named if group["name"].startswith("dqn_")]
        shares = [dqn, *([group] for group in named if not group["name"].startswith("dqn_"))]
    return [Adam(share, lr=lr, eps=eps) for share in shares]


def _fused(name: str, module: nn.Module, wish: bool | None) -> bool:
    """Whether a group gets the fused kernel.

    The kernel walks a parameter's memory as one block: for a strided slice it silently updates the
    neighbours.
    """
    dense = all(is_dense(p) for p in module.parameters())
    if wish and not dense:
        raise ConfigurationError(
            f"Fused Adam cannot update the strided parameters of {name}. Leave fused at None, or set it to False."
        )
    return dense if wish is None else wish
