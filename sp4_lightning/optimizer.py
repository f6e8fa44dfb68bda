"""ClippingOptimizer: the engine behind a real ``torch.optim.Optimizer``, for loops without the callback."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from sp4_lightning.attach import Attachment
from sp4_lightning.checkpoint import check_engine, load_engine, save_engine
from sp4_lightning.engine import Engine
from sp4_lightning.errors import ConfigurationError
from sp4_lightning.groups import (
    ParamGroup,
    check_disjoint,
    groups_of_optimizers,
    select_groups,
    warn_of_uncovered,
)
from sp4_lightning.settings import Settings
from sp4_lightning.switch import Switch
from sp4_lightning.table import BoundsTable


class ClippingOptimizer(Optimizer):
    """Wraps an optimizer so that its step is protected.

    It is an ``Optimizer`` in every respect: its ``param_groups``, ``state`` and ``defaults`` are the base's own,
    schedulers and GradScaler take it, and :class:`~sp4_lightning.SP4Callback` adopts its engine. Its
    ``state_dict`` is the base's with one more key, ``"sp4"``; the base can load it, and it can load the base's
    (the learned bounds then start anew).

    Args:
        base: The optimizer.
        groups: What to protect under which name; a warning names the base's other trainable parameters. None takes
            the param groups by their ``"name"``.
        settings: What to do; None means the defaults.
        module: Where parameter names come from when ``groups`` is None, and for the warning.

    Raises:
        ConfigurationError: The base is wrapped already, or holds no parameter of the groups.
        UnsupportedError: It holds a tensor, or has an option, that cannot be protected.

    Example::

        optimizer = ClippingOptimizer(torch.optim.Adam(model.parameters()))
        loss.backward()
        optimizer.step()
    """

    def __init__(
        self,
        base: Optimizer,
        groups: Sequence[ParamGroup] | None = None,
        settings: Settings | None = None,
        module: nn.Module | None = None,
    ) -> None:
        # Optimizer.__init__ would build param groups of its own; everything it sets is set or forwarded here.
        if isinstance(base, ClippingOptimizer):
            raise ConfigurationError("The optimizer is a ClippingOptimizer already; wrap its base, or use it as it is.")
        if groups:
            warn_of_uncovered(base, groups, module)
        self._start(base, groups or groups_of_optimizers([base], module), settings or Settings())

    def _start(self, base: Optimizer, groups: Sequence[ParamGroup], settings: Settings) -> None:
        self.base = base
        self.groups = list(groups)
        self.settings = settings
        self._optimizer_step_pre_hooks = OrderedDict()
        self._optimizer_step_post_hooks = OrderedDict()
        self._optimizer_state_dict_pre_hooks = OrderedDict()
        self._optimizer_state_dict_post_hooks = OrderedDict()
        self._optimizer_load_state_dict_pre_hooks = OrderedDict()
        self._optimizer_load_state_dict_post_hooks = OrderedDict()
        self._patch_step_function()

        check_disjoint(self.groups)
        for pattern in settings.disable:
            select_groups(pattern, [group.name for group in self.groups], "disable")
        device = next((p.device for group in self.groups for p in group.params.values()), torch.device("cpu"))
        table = BoundsTable([group.name for group in self.groups], device)
        switch = Switch(settings.mode, settings.warmup_steps, device)
        self.engine = Engine(base, self.groups, settings, switch, table)
        self._attachment = Attachment(self.engine)
        self.flips_itself = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform one protected step of the base optimizer.

        Args:
            closure: Re-evaluates the model and returns the loss.

        Returns:
            What the base's ``step`` returns.
        """
        result = self.base.step() if closure is None else self.base.step(closure)
        if self.flips_itself:
            self.engine.switch.advance([self.engine.observed])
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of the base optimizer."""
        self.base.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: the engine's groups are fixed when it is attached.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            "A ClippingOptimizer's groups are fixed. Add the param group to its base first and wrap the base again."
        )

    def state_dict(self) -> dict[str, Any]:
        """The base's state with the engine's under ``"sp4"``."""
        for pre_hook in self._optimizer_state_dict_pre_hooks.values():
            pre_hook(self)
        saved: dict[str, Any] = {**self.base.state_dict(), "sp4": save_engine(self.engine)}
        for post_hook in self._optimizer_state_dict_post_hooks.values():
            saved = post_hook(self, saved) or saved
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the base's state and, where there is one, the engine's.

        Raises:
            CheckpointError: The engine's state does not fit; nothing has been loaded.
        """
        for pre_hook in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = pre_hook(self, state_dict) or state_dict
        saved = state_dict.get("sp4")
        if saved is not None:
            check_engine(self.engine, saved)
        self.base.load_state_dict({key: value for key, value in state_dict.items() if key != "sp4"})
        if saved is not None:
            load_engine(self.engine, saved)
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():
            post_hook(self)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The base's."""
        return self.base.param_groups

    @param_groups.setter
    def param_groups(self, value: list[dict[str, Any]]) -> None:
        self.base.param_groups = value

    @property
    def state(self) -> defaultdict[torch.Tensor, Any]:
        """The base's."""
        return self.base.state

    @state.setter
    def state(self, value: defaultdict[torch.Tensor, Any]) -> None:
        self.base.state = value

    @property
    def defaults(self) -> dict[str, Any]:
        """The base's."""
        return self.base.defaults

    @defaults.setter
    def defaults(self, value: dict[str, Any]) -> None:
        self.base.defaults = value

    # GradScaler hands a fused optimizer its scale and overflow flag as attributes; the base must see them.

    @property
    def grad_scale(self) -> Any:
        """The base's."""
        return self.base.grad_scale  # type: ignore[attr-defined]

    @grad_scale.setter
    def grad_scale(self, value: Any) -> None:
        self.base.grad_scale = value  # type: ignore[attr-defined]

    @grad_scale.deleter
    def grad_scale(self) -> None:
        del self.base.grad_scale  # type: ignore[attr-defined]

    @property
    def found_inf(self) -> Any:
        """The base's."""
        return self.base.found_inf  # type: ignore[attr-defined]

    @found_inf.setter
    def found_inf(self, value: Any) -> None:
        self.base.found_inf = value  # type: ignore[attr-defined]

    @found_inf.deleter
    def found_inf(self) -> None:
        del self.base.found_inf  # type: ignore[attr-defined]

    @property
    def _step_supports_amp_scaling(self) -> bool:
        return getattr(self.base, "_step_supports_amp_scaling", False)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "base": self.base,
            "groups": self.groups,
            "settings": self.settings,
            "sp4": save_engine(self.engine),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._start(state["base"], state["groups"], state["settings"])
        load_engine(self.engine, state["sp4"])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base!r})"
