"""A training of a deferred model that can be stopped and taken up in another process."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tests.models import Transformer
from torch import nn

import nfd

STEPS, HALF = 8, 4
CASES: dict[str, tuple[Any, str, float | None]] = {  # weights, optimizer, resolution
    "structured-sgd": ("structured", "sgd", 0.1),
    "structured-muon": ("structured", "muon", None),
    "deferred-sgd": ("deferred", "sgd", 0.3),
    "deferred-muon": ("deferred", "muon", None),
    "deferred-shampoo": ("deferred", "shampoo", None),
}


class Training:
    """Model, optimizer and scheduler; ``seed`` is of everything that is drawn when they are made."""

    def __init__(self, case: str, seed: int) -> None:
        weights, optimizer, resolution = CASES[case]
        torch.manual_seed(seed)
        with torch.device("meta"):
            model: nn.Module = Transformer(48, 2)
        base: dict[str, Any] = {"make_model": Transformer, "base_width": 16, "base_depth": 2}
        sample = torch.zeros(1, 4, dtype=torch.long)
        plan = nfd.plan(model, rule="depth-mup", optimizer=optimizer, sample=sample, **base)
        self.model = nfd.defer(model, plan, weights=weights, resolution=resolution, seed=seed)
        rates = {"lr": 0.3} if optimizer == "sgd" else {"lr": 0.02, "adamw_lr": 0.01}
        momentum = {} if optimizer == "shampoo" else {"momentum": 0.9}
        self.optimizer = plan.make_optimizer(self.model, weight_decay=0.1, **rates, **momentum)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)

    def losses(self, steps: range) -> list[str]:
        """Exact losses of these steps, and of an evaluation after each, whose answers are drawn."""
        exact = []
        for step in steps:
            ids = torch.randint(0, 11, (2, 6), generator=torch.Generator().manual_seed(step))
            loss = self.loss(ids)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.scheduler.step()
            self.model.eval()
            exact += [value.item().hex() for value in (loss, self.loss(ids.flip(0)))]
            self.model.train()
        return exact

    def loss(self, ids: torch.Tensor) -> torch.Tensor:
        """Of predicting the tokens themselves."""
        return nn.functional.cross_entropy(self.model(ids).flatten(0, 1), ids.flatten())

    def save(self, folder: Path) -> None:
        """Write what goes on, the numbers of the model as safetensors."""
        folder.mkdir()
        save_file(self.model.state_dict(), folder / "model.safetensors")
        torch.save(self.model.state_dict(), folder / "model.pt")
        rest = {"optimizer": self.optimizer.state_dict(), "scheduler": self.scheduler.state_dict()}
        torch.save(rest, folder / "rest.pt")

    def load(self, folder: Path, file: str) -> None:
        """Go on from what ``save`` wrote."""
        path = folder / file
        self.model.load_state_dict(load_file(path) if path.suffix == ".safetensors" else torch.load(path))
        rest = torch.load(folder / "rest.pt")
        self.optimizer.load_state_dict(rest["optimizer"])
        self.scheduler.load_state_dict(rest["scheduler"])


def main(folder: Path) -> None:
    """Finish every training that was saved here, and print the losses."""
    warnings.simplefilter("ignore")
    for case in CASES:
        for file in ("model.pt", "model.safetensors"):
            training = Training(case, seed=1)
            training.load(folder / case, file)
            print(case, *training.losses(range(HALF, STEPS)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
