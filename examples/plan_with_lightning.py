"""A plan in Lightning: the optimizer of ``configure_optimizers`` is made from its groups.

python examples/plan_with_lightning.py
"""

from __future__ import annotations

import argparse
from typing import Any

import lightning
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import nfd


class Block(nn.Module):
    """``h + W_2 gelu(W_1 norm(h))``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        """The stream with this block's branch added."""
        out: Tensor = h + self.down(nn.functional.gelu(self.up(self.norm(h))))
        return out


def network(width: int, depth: int) -> nn.Sequential:
    """Digits to logits through ``depth`` residual blocks."""
    blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
    return nn.Sequential(nn.Linear(64, width), blocks, nn.LayerNorm(width), nn.Linear(width, 10))


class Planned(lightning.LightningModule):
    """A network with the rates of its plan."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.net = network(width, depth)
        sample = torch.zeros(2, 64)
        self.plan = nfd.plan(self.net, make_model=network, base=(32, 2), sample=sample)
        self.plan.apply_(self.net, seed=0)

    def training_step(self, batch: Any, _: int) -> Tensor:
        """Cross-entropy."""
        inputs, targets = batch
        return nn.functional.cross_entropy(self.net(inputs), targets)

    def configure_optimizers(self) -> Any:
        """AdamW with a schedule: it scales every group alike."""
        optimizer = self.plan.make_optimizer(self.net, lr=1e-2, weight_decay=0.01)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def main(width: int = 128, depth: int = 8, steps: int = 50) -> float:
    """Train; returns the loss on all digits."""
    digits = load_digits()
    inputs, targets = torch.tensor(digits.data / 8 - 1, dtype=torch.float32), torch.tensor(digits.target)
    lightning.seed_everything(0, verbose=False)
    model = Planned(width, depth)
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[nfd.integrations.LightningCallback(model.plan)],  # refuses an optimizer without the plan's groups
    )
    trainer.fit(model, DataLoader(TensorDataset(inputs, targets), batch_size=64, shuffle=True))
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model.net(inputs), targets))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for option, value in (("width", 128), ("depth", 8), ("steps", 50)):
        parser.add_argument(f"--{option}", type=int, default=value)
    print(f"loss: {main(**vars(parser.parse_args())):.3f}")
