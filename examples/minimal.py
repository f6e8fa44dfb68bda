"""A plain torch loop that survives a NaN, a spike and a damaged optimizer state. One line is new."""

import torch
from torch import nn

from sp4_lightning import ClippingOptimizer


def train(protected: bool, steps: int = 1500) -> float:
    """Fit a sine while faults strike; returns the last loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    if protected:
        optimizer = ClippingOptimizer(optimizer)  # the one line

    for step in range(steps):
        x = torch.rand(128, 1) * 6 - 3
        loss = nn.functional.mse_loss(model(x), x.sin())
        optimizer.zero_grad()
        loss.backward()
        strike(step, model, optimizer)
        optimizer.step()

    if protected:
        print(f"  skipped updates: {int(optimizer.engine.skipped)}")
        print(f"  repaired elements: {int(optimizer.engine.state.repaired.sum())}")
        print(f"  clamped elements: {int(optimizer.engine.state.clamped.sum())}")
    return loss.item()


def strike(step: int, model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    """What cosmic rays, corrupt batches and half-restored checkpoints do."""
    weight = model[2].weight
    if step == 700:
        weight.grad[0, 0] = float("nan")
    if step == 800:
        weight.grad.mul_(1e6)
    if step == 900:
        optimizer.state[weight]["exp_avg_sq"].data.zero_()
    if step == 1000:
        weight.data[0, 0] = 1e6


if __name__ == "__main__":
    for protected in (False, True):
        print("with ClippingOptimizer" if protected else "bare Adam")
        print(f"  loss after the faults: {train(protected):.4f}")
