"""Fitting an engine to an existing optimizer through torch's own step hooks.

The optimizer keeps its identity, so schedulers, GradScaler's table, LearningRateMonitor and the checkpoint layout
stay as they are. With a closure (Lightning's automatic optimization, LBFGS) the gradients come into being inside
``step()``, so the closure is wrapped; without one they are there already.
"""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from sp4_lightning.engine import Engine
from sp4_lightning.errors import ConfigurationError


class Attachment:
    """Keeps an engine in its optimizer's step until :meth:`detach`.

    Args:
        engine: The engine; its ``optimizer`` gets the hooks.

    Raises:
        ConfigurationError: The optimizer has an engine already.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        optimizer = engine.optimizer
        others = [getattr(hook, "__self__", None) for hook in optimizer._optimizer_step_pre_hooks.values()]
        if any(isinstance(other, Attachment) for other in others):
            raise ConfigurationError(f"{engine.name} is protected already: two engines would clamp it twice. Keep one.")
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
            optimizer.register_load_state_dict_post_hook(self._loaded),
        ]
        # Ahead of the user's hooks, which may edit parameters: the bounds are of what the update has left.
        optimizer._optimizer_step_post_hooks.move_to_end(self._handles[1].id, last=False)  # type: ignore[attr-defined]

    def detach(self) -> None:
        """Remove the hooks, and what a step that an exception has ended has left on the optimizer."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.engine.drop()

    def _before(self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        self.engine.start()
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self.engine.before()
            return None

        def guarded() -> Any:
            loss = closure()
            if not self.engine.settled:
                self.engine.before()
            return loss

        if len(args) > 1:
            return (args[0], guarded, *args[2:]), kwargs
        return args, {**kwargs, "closure": guarded}

    def _after(self, *_: Any) -> None:
        self.engine.after()

    def _loaded(self, _: Optimizer) -> None:
        self.engine.on_optimizer_loaded()
