"""FaultInjector: strikes a Trainer's run with chosen faults, to see what survives them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch.optim import Optimizer

from sp4_lightning.faults.batch import BatchStrikes, check_batch
from sp4_lightning.faults.fault import Fault, parse_faults
from sp4_lightning.faults.journal import FaultEvent, Journal
from sp4_lightning.faults.strike import strike
from sp4_lightning.faults.target import Target, find_targets
from sp4_lightning.groups import Patterns, optimizer_names
from sp4_lightning.lightning_internals import real_optimizers


class FaultInjector(Callback):
    """Strikes gradients, parameters, optimizer state, learning rates and batches, and says what it did.

    Gradients and learning rates are struck when the gradients are complete, before the Trainer's own clipping and
    before anything in the optimizer's step looks at them; parameters and state between two steps, past torch's
    version counter; batches before ``training_step``. The callback may stand anywhere in the list, with or without
    :class:`~sp4_lightning.SP4Callback`. Nothing but what a fault names is changed, torch's generators included.

    Args:
        faults: One mapping per fault, with the keys of :class:`~sp4_lightning.faults.fault.Fault`. Combinations are
            several entries; those of one update strike in this order.
        seed: Which elements and samples are struck, where not all are. The same entry strikes the same ones, whatever
            the other entries are.
        groups: Names for module paths or globs, as for SP4Callback; None takes the optimizers' param groups.

    Attributes:
        events: What has been done in this fit. With a logger, ``faults.jsonl`` in the Trainer's ``log_dir`` has the
            same, one JSON object a line; a resumed run appends.

    Raises:
        ConfigurationError: A fault that cannot be used as given: when the callback is made, when the fit starts,
            or, for a key of the batch, at the first batch; always before anything is struck.

    Example::

        faults = [{"kind": "gradient_nan", "step": 600}, {"kind": "exp_avg_spike", "step": 900, "value": 1e8}]
        trainer = Trainer(callbacks=[SP4Callback(), FaultInjector(faults)])
    """

    def __init__(
        self,
        faults: list[dict[str, Any]],
        seed: int = 0,
        groups: dict[str, str | list[str]] | None = None,
    ) -> None:
        self.faults: Sequence[Fault] = parse_faults(faults)
        self.seed = seed
        self.groups: Mapping[str, Patterns] | None = groups
        self._targets: list[Target] = []
        # Steps of each optimizer, and batches. Lightning's own counters are late by one in checkpoints.
        self._updates: Counter[str] = Counter()
        self._batches = 0
        self._struck: dict[str, int] = {}
        self._saved: dict[str, Any] | None = None
        self._batch = BatchStrikes()
        self._batch_checked = False
        self._learning_rates: list[tuple[dict[str, Any], Any]] = []
        self._handles: list[Any] = []
        self._journal = Journal()

    @property
    def events(self) -> list[FaultEvent]:
        """What has been done in this fit."""
        return self._journal.events

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check every fault against the run, and start to count updates."""
        self._release()
        if self._saved is None and trainer.ckpt_path is not None:
            rank_zero_warn("The checkpoint holds no state of FaultInjector: its steps count from here.")
        saved, self._saved = self._saved or {}, None
        self._updates = Counter(saved.get("updates", {}))
        self._batches = saved.get("batches", 0)
        self._struck = dict(saved.get("struck", {}))
        self._batch_checked = False
        self._journal = Journal(trainer)
        optimizers = real_optimizers(trainer)
        self._targets = find_targets(self.faults, optimizers, pl_module, self.groups)
        for optimizer, name in zip(optimizers, optimizer_names(optimizers), strict=True):
            self._handles.append(optimizer.register_step_post_hook(lambda *_, name=name: self._stepped(name)))

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Strike what is struck between steps, and the batch."""
        if not self._batch_checked:
            self._batch_checked = True
            check_batch(self.faults, batch)
        for target in self._targets:
            if target.fault.what in ("param", "exp_avg", "exp_avg_sq"):
                self._strike(target)
        for fault in self.faults:
            if fault.what == "batch" and fault.age(self._batches) is not None:
                elements = self._batch.strike(fault, batch, self._draw(fault, "batch", self._batches))
                self._journal.record(fault, self._batches, "batch", {str(fault.key): elements})
        self._batches += 1

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Strike the gradients; and the state, where an optimizer steps more than once in a batch."""
        for target in self._targets:
            if target.optimizer is optimizer:
                self._strike(target)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Leave the batch as it came."""
        self._put_back()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Name the faults that the run was too short for."""
        for i, fault in enumerate(self.faults):
            names = {target.name for target in self._targets if target.fault is fault}
            seen = self._batches if fault.what == "batch" else max(self._updates[name] for name in names)
            if seen <= fault.step:
                unit = "batches" if fault.what == "batch" else "updates"
                rank_zero_warn(
                    f"faults[{i}] ({fault.kind}) has step {fault.step}, but the run ended after {seen} {unit}."
                )

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the optimizers as they were found."""
        self._release()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the optimizers and the batch as they were found."""
        self._release()

    def state_dict(self) -> dict[str, Any]:
        """What has been counted and struck, so that a resumed run does not strike twice."""
        if self._saved is not None:
            return self._saved
        return {"updates": dict(self._updates), "batches": self._batches, "struck": dict(self._struck)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting from there when the fit starts."""
        self._saved = state_dict

    def _strike(self, target: Target) -> None:
        fault, step = target.fault, self._updates[target.name]
        # A step can come by more than once: accumulated batches, and closures that are evaluated again.
        if fault.age(step) is None or self._struck.get(target.identity) == step:
            return
        self._struck[target.identity] = step
        if fault.what == "lr":
            self._scale_learning_rate(target)
            return
        tensors = target.tensors()
        written = strike(fault, list(tensors.values()), self._draw(fault, target.group, step))
        self._journal.record(fault, step, target.group, {n: k for n, k in zip(tensors, written, strict=True) if k})

    def _scale_learning_rate(self, target: Target) -> None:
        groups = target.torch_groups
        for group in groups:
            self._learning_rates.append((group, group["lr"]))
            group["lr"] = group["lr"] * target.fault.factor
        self._journal.record(target.fault, self._updates[target.name], target.group, {"lr": len(groups)})

    def _draw(self, fault: Fault, group: str, step: int) -> random.Random:
        # Seeding with text hashes it with SHA-512: the same everywhere.
        return random.Random(f"{self.seed}/{fault}/{group}/{step}")

    def _stepped(self, name: str) -> None:
        for target in self._targets:
            step = self._updates[name]
            if target.name == name and target.fault.age(step) == 0 and self._struck.get(target.identity) != step:
                rank_zero_warn(
                    f"Fault at step {step}: {target.fault.kind} did not strike {target.group}, because {name} was "
                    f"stepped behind the Trainer's back. Step what self.optimizers() returns."
                )
        self._updates[name] += 1
        self._restore_learning_rates()

    def _restore_learning_rates(self) -> None:
        while self._learning_rates:
            group, before = self._learning_rates.pop()
            group["lr"] = before

    def _put_back(self) -> None:
        # Here too: a GradScaler may have left the step out, and with it the hook behind it.
        self._restore_learning_rates()
        self._batch.put_back()

    def _release(self) -> None:
        self._put_back()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._targets = []
