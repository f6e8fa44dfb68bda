"""Small LightningModules and a quiet real Trainer."""

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def data(batches=40, batch_size=16, seed=0):
    x = torch.randn(batches * batch_size, 4, generator=torch.Generator().manual_seed(seed))
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True).sin()), batch_size=batch_size)


def mlp(out=1):
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, out))


class Automatic(LightningModule):
    """One optimizer, automatic optimization."""

    def __init__(self, optimizer=torch.optim.Adam, wrap=None, **options):
        super().__init__()
        self.body, self.head = mlp(8), nn.Linear(8, 1)
        self.make, self.wrap, self.options = optimizer, wrap, {"lr": 1e-3, **options}

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = (self.head(self.body(x)) - y).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        groups = [
            {"params": list(self.body.parameters()), "name": "body"},
            {"params": list(self.head.parameters()), "name": "head"},
        ]
        optimizer = self.make(groups, **self.options)
        return self.wrap(optimizer) if self.wrap else optimizer


class Manual(LightningModule):
    """Two optimizers, manual optimization; the second steps on every `every`-th batch."""

    def __init__(self, every=1):
        super().__init__()
        self.automatic_optimization = False
        self.a, self.b, self.every = mlp(), mlp(), every

    def training_step(self, batch, batch_idx):
        x, y = batch
        first, second = self.optimizers()
        for optimizer, net in ((first, self.a), (second, self.b)):
            if optimizer is second and batch_idx % self.every:
                continue
            optimizer.zero_grad()
            self.manual_backward((net(x) - y).square().mean())
            optimizer.step()

    def configure_optimizers(self):
        return [
            torch.optim.Adam([{"params": list(self.a.parameters()), "name": "a"}], lr=1e-3),
            torch.optim.AdamW([{"params": list(self.b.parameters()), "name": "b"}], lr=1e-3),
        ]


def trainer(*callbacks, **options):
    torch.set_num_threads(1)
    quiet = {
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "max_epochs": 2,
    }
    if options.get("barebones"):
        quiet = {"accelerator": "cpu", "max_epochs": 2}
    return Trainer(callbacks=list(callbacks), **{**quiet, **options})


def fit(module_factory, *callbacks, loader=None, ckpt_path=None, seed=0, **options):
    """Fit a fresh module; returns it and its Trainer."""
    seed_everything(seed, verbose=False)
    module = module_factory()
    run = trainer(*callbacks, **options)
    run.fit(module, loader or data(), ckpt_path=ckpt_path)
    return module, run
