"""Handwritten digits and a small transformer: supervised learning, automatic optimization, one optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from inspect import signature
from typing import Any

import torch
from lightning.pytorch import LightningModule
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset

from benchmarks.faults.tasks.task import Task
from sp4_lightning.agents.data import batch_loader
from sp4_lightning.errors import ConfigurationError
from sp4_lightning.naming import did_you_mean

CLASSES, SIDE, HELD_OUT = 10, 8, 500
Batch = dict[str, Tensor]


@cache
def digits() -> tuple[Tensor, Tensor]:
    """All 1,797 images of UCI's optical digits, float ``[N, 8, 8]`` in [0, 1], and their labels, int64 ``[N]``."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return (torch.from_numpy(images).float().reshape(-1, SIDE, SIDE) / 16)[order], torch.from_numpy(labels)[order]


class Reader(LightningModule):
    """Reads an image row by row: one token a row, one pre-norm transformer block, the mean of the tokens.

    Args:
        width: Of a token.
        learning_rate: Adam's.
        batch_size: Images an update.
        total_updates: After which the fit ends.
        epoch_updates: After which it is validated.
        seed: Of weights and batches.
    """

    def __init__(
        self,
        width: int = 32,
        learning_rate: float = 3e-4,
        batch_size: int = 64,
        total_updates: int = 2000,
        epoch_updates: int = 200,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.updates, self.total_updates = 0, total_updates
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.embedding = nn.Linear(SIDE, width)
            self.place = nn.Parameter(torch.randn(SIDE, width) / math.sqrt(width))
            self.before = nn.LayerNorm(width)
            self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
            self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
            self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Log-probabilities: float ``[B, 8, 8]`` to float ``[B, 10]``."""
        tokens = self.embedding(images) + self.place
        normed = self.before(tokens)
        tokens = tokens + self.attention(normed, normed, normed, need_weights=False)[0]
        tokens = tokens + self.mlp(tokens)
        return functional.log_softmax(self.head(tokens.mean(1)), dim=-1)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        self.updates += 1
        self.trainer.should_stop |= self.updates >= self.total_updates
        # Targets are weights of the classes: a fault may change them as it likes.
        return -(batch["target"] * self(batch["image"])).sum(-1).mean()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        right = (self(batch["image"]).argmax(-1) == batch["target"].argmax(-1)).float().mean()
        self.log("eval/accuracy", right, on_epoch=True, batch_size=len(batch["image"]))

    def configure_optimizers(self) -> torch.optim.Adam:
        parts = {
            "embedding": [*self.embedding.parameters(), self.place],
            "attention": [*self.before.parameters(), *self.attention.parameters()],
            "mlp": list(self.mlp.parameters()),
            "head": list(self.head.parameters()),
        }
        groups = [{"name": name, "params": params} for name, params in parts.items()]
        return torch.optim.Adam(groups, lr=self.hparams["learning_rate"])

    def train_dataloader(self) -> DataLoader[Any]:
        return batch_loader(Batches(self))

    def val_dataloader(self) -> DataLoader[Any]:
        return batch_loader([as_batch(torch.arange(HELD_OUT))])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["updates"] = self.updates

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.updates = checkpoint["updates"]

    def batch(self, update: int) -> Batch:
        """The batch of an update, the same whenever it is asked for."""
        generator = torch.Generator().manual_seed(1_000_003 * self.hparams["seed"] + update)
        return as_batch(torch.randint(HELD_OUT, len(digits()[1]), (self.hparams["batch_size"],), generator=generator))


class Batches(IterableDataset[Batch]):
    """One epoch's batches, from the module's present update on, so that a resumed run goes on with the next."""

    def __init__(self, module: Reader) -> None:
        self.module = module

    def __len__(self) -> int:
        length: int = self.module.hparams["epoch_updates"]
        return length

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(len(self)):
            yield self.module.batch(self.module.updates)


def as_batch(index: Tensor) -> Batch:
    """Images, float ``[B, 8, 8]``, and targets, float ``[B, 10]``, by index, int64 ``[B]``."""
    images, labels = digits()
    return {"image": images[index], "target": functional.one_hot(labels[index], CLASSES).float()}


class DigitsTask(Task):
    """The score is the accuracy on 500 images held out, the signal the mean log-likelihood of images trained on.

    Args:
        configs: There are no overlays.
        overrides: Arguments of :class:`Reader`.

    Raises:
        ConfigurationError: An overlay, or an argument that does not exist.
    """

    score = "eval/accuracy"

    def __init__(self, configs: Sequence[str], overrides: dict[str, Any]) -> None:
        known = set(signature(Reader).parameters) - {"seed"}
        for key in overrides:
            if key not in known:
                raise ConfigurationError(f"digits has no argument {key!r}.{did_you_mean(key, known)}")
        if configs:
            raise ConfigurationError("digits has no overlays. Remove configs.")
        self.arguments = overrides

    def settings(self) -> dict[str, Any]:
        return {key: value for key, value in self.module(0).hparams.items() if key != "seed"}

    def module(self, seed: int) -> Reader:
        return Reader(**self.arguments, seed=seed)

    def probe(self, checkpoint: dict[str, Any], count: int) -> Tensor:
        return torch.arange(HELD_OUT, HELD_OUT + count)

    @torch.no_grad()
    def signal(self, module: Reader, inputs: Tensor) -> float:
        batch = as_batch(inputs)
        return float((batch["target"] * module(batch["image"])).sum(-1).mean())

    def batches(self, checkpoint: dict[str, Any], count: int) -> list[Batch]:
        arguments = checkpoint["hyper_parameters"]
        module = Reader(**arguments)
        return [module.batch(arguments["total_updates"] + k) for k in range(count)]
