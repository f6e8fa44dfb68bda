"""Groups are called what LearningRateMonitor calls them: compared with its own names in a real Trainer."""

import logging

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.optim import SGD, Adam

from sp4_lightning import ClippingOptimizer
from sp4_lightning.groups import groups_of_optimizers, optimizer_names

LAYOUTS = {
    "one": lambda m: Adam(m.a.parameters()),
    "one group with a name": lambda m: Adam([{"params": m.a.parameters(), "name": "x"}]),
    "two of a class": lambda m: [Adam(m.a.parameters()), Adam(m.b.parameters())],
    "three, two of a class": lambda m: [Adam(m.a.parameters()), SGD(m.b.parameters(), 0.1), Adam(m.c.parameters())],
    "param groups": lambda m: Adam([{"params": m.a.parameters()}, {"params": m.b.parameters()}]),
    "named param groups": lambda m: Adam(
        [{"params": m.a.parameters(), "name": "x"}, {"params": m.b.parameters(), "name": "y"}]
    ),
    "half named": lambda m: Adam([{"params": m.a.parameters(), "name": "x"}, {"params": m.b.parameters()}]),
    "one name in two optimizers": lambda m: [
        Adam([{"params": m.a.parameters(), "name": "x"}]),
        Adam([{"params": m.b.parameters(), "name": "x"}]),
    ],
    "param groups in two optimizers": lambda m: [
        SGD([{"params": m.a.parameters()}, {"params": m.b.parameters()}], 0.1),
        SGD(m.c.parameters(), 0.1),
    ],
}


class Nothing(LightningModule):
    def __init__(self, layout):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(2, 2) for _ in range(3))
        self.layout, self.automatic_optimization = layout, False

    def training_step(self, batch, index):
        pass

    def configure_optimizers(self):
        return self.layout(self)

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.zeros(1, 2))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_names_are_those_of_the_learning_rate_monitor(layout, tmp_path):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    monitor = LearningRateMonitor()
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=CSVLogger(tmp_path),
        callbacks=[monitor],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Nothing(LAYOUTS[layout]))
    groups = groups_of_optimizers(trainer.optimizers)
    theirs = [name.removeprefix("lr-") for name in monitor.lrs]
    assert len(groups) == len(theirs)
    declared = [group.get("name") for optimizer in trainer.optimizers for group in optimizer.param_groups]
    for group, monitored, own in zip(groups, theirs, declared, strict=True):
        # A name of the user's own, where it is unique, needs no optimizer's class before it.
        assert group.name == (own if own is not None and declared.count(own) == 1 else monitored)


def test_a_wrapper_is_named_after_its_base():
    net = Nothing(None)
    optimizers = [Adam(net.a.parameters()), ClippingOptimizer(Adam(net.b.parameters())), SGD(net.c.parameters(), 0.1)]
    assert optimizer_names(optimizers) == ["Adam", "Adam-1", "SGD"]
