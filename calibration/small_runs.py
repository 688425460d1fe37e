"""Losses of small language models of ours, for forecasts of runs that no prior has learned from.

``python -m calibration.small_runs`` trains Transformers of width 64 and depth 2 on the characters
of Python's own manual, which every Python has: by AdamW at three rates, under four schedules, for
400 steps. The loss is that of held-out text. Every run is stored as soon as it ends; a call that is
stopped goes on where it was (three minutes on one core).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from pydoc_data import topics
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import nfd
from calibration.transformer import Transformer
from priors.curves import Curve

RESULT = Path(__file__).with_suffix(".json")
WIDTH = 64
DEPTH = 2
CHARACTERS = 128
LENGTH = 64
BATCH = 16
HELD_OUT = 64
# Losses of a run.
LOOKS = 80
# Of the steps.
_WARM = 0.05
STEPS = 400
RATES = (1e-3, 4e-3, 2e-3)
FALLS: dict[str, dict[str, Any]] = {
    "constant": {"fall": "constant"},
    "cosine": {"fall": "cosine"},
    "linear": {"fall": "linear"},
    "linear at the end": {"fall": "linear", "share": 0.2},
}

Row = dict[str, Any]


class OfText(Transformer):
    """The Transformer with characters for tokens."""

    def __init__(self) -> None:
        super().__init__(WIDTH, DEPTH)
        self.embed = nn.Embedding(CHARACTERS, WIDTH)
        self.head = nn.Linear(WIDTH, CHARACTERS)


def text() -> Tensor:
    """The manual's characters; those outside of ASCII are left out."""
    characters = "\n".join(topics.topics.values()).encode("ascii", "ignore")
    return torch.tensor(list(characters))


def windows(of: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Parts [count, LENGTH + 1] of a text, from places drawn at random."""
    places = torch.randint(len(of) - LENGTH, (count, 1), generator=generator)
    return of[places + torch.arange(LENGTH + 1)]


def loss_of(model: nn.Module, parts: Tensor) -> Tensor:
    """The mean loss of the next character."""
    logits = model(parts[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), parts[:, 1:].flatten())


def schedule_of(row: Row) -> nfd.RateSchedule:
    """The schedule of a run."""
    return nfd.RateSchedule(warmup=round(_WARM * row["steps"]), **FALLS[row["fall"]])


def losses_of(row: Row) -> dict[int, float]:
    """Train a run; its held-out losses by step."""
    torch.manual_seed(row["seed"])
    all_text = text()
    border = round(0.9 * len(all_text))
    held_out = windows(all_text[border:], HELD_OUT, torch.Generator().manual_seed(0))
    batches = torch.Generator().manual_seed(row["seed"] + 1)
    model = OfText()
    optimizer = torch.optim.AdamW(model.parameters(), lr=row["rate"])
    schedule = schedule_of(row)
    losses = dict[int, float]()
    for step in range(row["steps"]):
        for group in optimizer.param_groups:
            group["lr"] = row["rate"] * schedule(step, row["steps"])
        optimizer.zero_grad()
        loss_of(model, windows(all_text[:border], BATCH, batches)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if (step + 1) % (row["steps"] // LOOKS) == 0:
            with torch.no_grad():
                losses[step + 1] = round(float(loss_of(model, held_out)), 5)
    return losses


def runs() -> Iterator[Row]:
    """What is trained."""
    for rate, fall in product(RATES, FALLS):
        yield {"fall": fall, "steps": STEPS, "rate": rate, "seed": 0}


def read() -> list[Curve]:
    """The stored runs."""
    curves = []
    for row in json.loads(RESULT.read_text(encoding="utf-8")):
        schedule = schedule_of(row)
        shares = np.array([schedule(step, row["steps"]) for step in range(row["steps"])])
        losses = {int(step): loss for step, loss in row["losses"].items()}
        curves.append(
            Curve("ours", f"{row['steps']} steps", row["fall"], losses, shares, row["rate"])
        )
    return curves


def main() -> None:
    """Train what is not stored."""
    stored = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else []
    for row in list(runs())[len(stored) :]:
        stored.append(row | {"losses": losses_of(row)})
        lines = ",\n".join(json.dumps(one) for one in stored)
        RESULT.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
        print(row, min(stored[-1]["losses"].values()), flush=True)


if __name__ == "__main__":
    main()
