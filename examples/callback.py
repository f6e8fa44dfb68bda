"""Your own LightningModule with two optimizers: add one callback to the Trainer."""

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sp4_lightning import SP4Callback


class Regressor(LightningModule):
    """A body with a mean head and, with an optimizer of its own, an uncertainty head."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
        self.mean = nn.Linear(32, 1)
        self.log_error = nn.Linear(32, 1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        x, y = batch
        features = self.body(x)
        error = (self.mean(features) - y).square()
        guess = self.log_error(features.detach())
        loss = error.mean() + (guess - (error.detach() + 1e-6).log()).square().mean()
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        main = [
            {"params": self.body.parameters(), "name": "body"},
            {"params": self.mean.parameters(), "name": "mean"},
        ]
        side = [{"params": self.log_error.parameters(), "name": "log_error"}]
        return [torch.optim.AdamW(main, lr=1e-3), torch.optim.SGD(side, lr=1e-2, momentum=0.9)]


def main() -> None:
    seed_everything(0)
    x = torch.randn(4096, 8)
    data = DataLoader(TensorDataset(x, x[:, :1].sin() + 0.1 * torch.randn(4096, 1)), batch_size=64, shuffle=True)
    trainer = Trainer(
        max_epochs=12,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        # callbacks=[],
        callbacks=[SP4Callback()],
    )
    trainer.fit(Regressor(), data)


if __name__ == "__main__":
    main()
