"""Verdicts of ``nfd.check`` on networks that are sound, and on networks that are broken by construction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.common import ResidualMLP, batches
from torch import Tensor, nn

import nfd

Groups = list[dict[str, Any]]


def rows(found: nfd.Check) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["meter"], row["axis"]): row for row in found.table}


def slowed(groups: Groups, power: float) -> Groups:
    """With every rate of the plan times ``width^power`` over that of width 16."""
    width = max(p.shape[1] for group in groups for p in group["params"] if p.dim() == 2 and p.shape[0] in (10, 128))
    return [group | {"lr": group["lr"] * (width / 16) ** power} for group in groups]


def rates(power: float) -> Any:
    return lambda groups: torch.optim.AdamW(slowed(groups, power))


def forgets(groups: Groups) -> torch.optim.Optimizer:
    """AdamW that trains the square matrices of blocks at the base's rate at every width."""
    parts = []
    for group in groups:
        square = [p for p in group["params"] if p.dim() == 2 and p.shape[0] == p.shape[1]]
        others = [p for p in group["params"] if not any(p is own for own in square)]
        parts += [group | {"params": square, "lr": group["lr"] / group["lr_scale"]}] if square else []
        parts += [group | {"params": others}] if others else []
    return torch.optim.AdamW(parts)


WIDTHS: dict[str, Any] = {"depths": [2], "rule": "complete-p", "optimizer": "adamw", "lr": 3e-3}


def test_one_forgotten_rate_is_found_at_two_widths_and_a_sound_plan_is_not_blamed() -> None:
    """Even where the rule in use should prevent it."""
    near = nfd.check(ResidualMLP, nfd.Task(batches(5), make_optimizer=forgets), [32, 64], **WIDTHS)
    assert rows(near)["inner_update", "width"]["verdict"] == "GROWS"
    assert not near.ok
    assert nfd.check(ResidualMLP, batches(5), [16, 32, 64, 128], **WIDTHS).ok


class Signum(torch.optim.Optimizer):
    """Steps by the sign of a momentum."""

    def __init__(self, groups: Groups) -> None:
        super().__init__(groups, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, *_: Any) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                p.sub_(group["lr"] * momentum.mul_(0.9).add_(p.grad, alpha=0.1).sign())


class Text(ResidualMLP):
    """Bytes to the next ones, each by itself."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.tokens, self.head = nn.Embedding(128, width), nn.Linear(width, 128)
        del self.embed

    def forward(self, ids: Tensor) -> Tensor:
        h = self.tokens(ids)
        for block in self.blocks:
            h = h + block(h)
        return self.head(self.norm(h))


def text(steps: int) -> list[tuple[Tensor, Tensor]]:
    source = torch.tensor(list(Path(json.__file__).read_bytes())) % 128
    windows = source[: steps * 8 * 17].view(steps, 8, 17)
    return [(ids[:, :-1], ids[:, 1:]) for ids in windows]


def test_lazy_training_is_found_and_the_update_of_the_function_that_falls_alone_is_no_fault() -> None:
    widths = [16, 32, 64, 128]
    lazy = nfd.check(ResidualMLP, nfd.Task(batches(5), make_optimizer=rates(-0.5)), widths, **WIDTHS)
    assert rows(lazy)["inner_update", "width"]["verdict"] == "COLLAPSES"
    assert not lazy.ok
    sound = nfd.check(Text, text(3), widths, **WIDTHS)
    row = rows(sound)["function_update_inner", "width"]
    assert 8 ** row["slope"] < 0.5
    assert row["verdict"] == "LIMIT"
    assert f"falls by {100 * (1 - 8 ** row['slope']):.0f} % [" in row["cause"]
    assert sound.ok


@pytest.mark.parametrize("power", [0.0, -0.5])
def test_updates_whose_directions_alone_fall_are_no_collapse_and_rates_that_fall_are(power: float) -> None:
    """Random bytes, 128 in a batch: more directions than the layers have coordinates."""
    law = nfd.OptimizerLaw("signum", lambda groups: Signum(slowed(groups, power)), states=1)
    g = torch.Generator().manual_seed(0)
    noise = [(ids[:, :-1], ids[:, 1:]) for ids in torch.randint(128, (4, 8, 17), generator=g)]
    nfd.register_optimizer(law, replace=True)
    found = nfd.check(Text, noise, [32, 64, 128], [2], 1e-3, rule="mup", optimizer="signum")
    row = rows(found)["inner_update", "width"]
    assert 4 ** row["slope"] < 0.7
    assert row["verdict"] == ("COLLAPSES" if power else "LIMIT")
    assert found.ok == (not power)


def test_an_update_of_the_function_that_falls_faster_than_independent_parts_do_is_a_collapse() -> None:
    found = nfd.check(ResidualMLP, nfd.Task(batches(5), make_optimizer=rates(-1.0)), [16, 32, 64, 128], **WIDTHS)
    assert rows(found)["function_update", "width"]["verdict"] == "COLLAPSES"
