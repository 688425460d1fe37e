"""Losses at best rates: a rule whose regret is small and whose loss is high is not advised without saying so."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.contract.common import ResidualMLP, batches, run
from torch import Tensor, nn

import nfd

ONES = [(torch.ones(1), torch.ones(1))] * 3
ROLES = {"hidden.weight": "hidden", "readout.weight": "readout"}
RATES = (0.5, 0.7071, 1.0, 1.4142)


class Planted(nn.Module):
    """A place in a valley whose curvature grows with width, above a floor that is lowest where hidden weights have a
    root mean square of ``best``.

    Descent of the readout is best at rate 1 under mup, at 4 / width under standard scaling; mup makes hidden weights
    smaller with width. So mup transfers, standard scaling does not, and the floor of mup rises with width by ``rise``.
    """

    rise, gain, best = 0.0, 0.0, 1.0

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.hidden, self.readout = nn.Linear(width, width, bias=False), nn.Linear(width, 8, bias=False)
        self.hidden.weight.data = torch.randn(width, width).sign()  # a root mean square of exactly 1
        nn.init.normal_(self.readout.weight, std=0.1)
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        place = self.readout.weight.sum() / math.sqrt(self.readout.weight.numel())
        rms = self.hidden.weight.square().mean().sqrt()
        floor = self.rise * (rms / self.best - 1).square().detach() + self.gain / self.width + 0 * rms
        return x * (self.width / 4 * (place - 1).square() / 2 + floor)


class Worse(Planted):
    rise = 0.5


class Growing(Planted):
    gain = 2.0


class WorseGrowing(Planted):
    rise, gain = 0.5, 2.0


def height(out: Tensor, y: Tensor) -> Tensor:
    return out.mean() + 0.1


def asked(make_model: Any, widths: tuple[int, ...] = (4, 16), **options: Any) -> nfd.Transfer:
    family = nfd.Family(make_model, (4, 2), "standard", "sgd", roles=ROLES)
    return nfd.transfer(family, nfd.Task(ONES, height), widths, (2,), RATES, **options)


@pytest.mark.parametrize(
    ("make_model", "is_worse", "grows"),
    [(Planted, False, False), (Worse, True, False), (Growing, False, True), (WorseGrowing, True, True)],
)
def test_a_rule_that_transfers_is_beside_one_whose_loss_is_lower(make_model: Any, is_worse: bool, grows: bool) -> None:
    """The regret is none in all cases: what differs is the loss of another rule, and of the smallest network."""
    answer = asked(make_model, rules=("standard", "mup"))
    assert (answer.verdict("mup"), answer.verdict("standard")) == ("TRANSFERS", "COSTS")
    better = [warning for warning in answer.warnings if "standard is better than mup" in warning]
    no_gain = [warning for warning in answer.warnings if "the larger network is" in warning]
    assert (bool(better), not no_gain) == (is_worse, grows)
    assert len(answer.warnings) == len(better) + len(no_gain)
    assert all(warning in str(answer) for warning in answer.warnings)
    last = str(answer).splitlines()[-1]
    if is_worse:
        gap = answer.loss("mup", 16, 2).value - answer.loss("standard", 16, 2).value
        assert gap == pytest.approx(0.5 * 0.25, abs=0.05)  # hidden weights are half as large
        assert f"{gap:.2f}" in better[0]
        assert "standard" in last
    assert last.startswith("Use mup") is not is_worse


def test_the_losses_of_every_rule_and_size_are_told() -> None:
    answer = asked(Growing, rules=("standard", "mup"))
    rows = {(row["rule"], row["width"]): row for row in answer.table if row["quantity"] == "best loss"}
    assert rows.keys() == {(rule, width) for rule in ("standard", "mup") for width in (4, 16)}
    for (rule, width), row in rows.items():
        loss = answer.loss(rule, width, 2)
        assert (row["value"], row["low"], row["high"]) == (loss.value, loss.low, loss.high)
        assert loss.value == pytest.approx(0.1 + 2 / width, abs=0.02)
        assert f"{loss.value:.2f}" in str(answer)
    with pytest.raises(ValueError, match="width 5"):
        answer.loss("mup", 5, 2)


def test_chance_does_not_lower_the_loss_at_the_best_rate() -> None:
    """Losses that no rate moves: the best of twelve rates is lower by chance, the answer is not."""
    random, found, lowest = np.random.default_rng(0), [], []
    for _ in range(40):
        losses = 1 + 0.1 * random.normal(size=(3, 12))
        rows = [
            {"width": width, "lr": 2.0**rate, "seed": seed, "loss": float(losses[seed, rate])}
            for width in (16, 32)
            for seed in range(3)
            for rate in range(12)
        ]
        found.append(nfd.fit_transfer(rows, guess=3.0).loss("logged", 32, 1).value)
        lowest.append(float(losses.mean(0).min()))
    error = 0.1 / math.sqrt(3 * 40)
    assert abs(np.mean(found) - 1) < 3 * error
    assert np.mean(lowest) < 1 - 5 * error


class SmallStart(ResidualMLP):
    """Begins as GPT-2 does, at a width that is too small for it."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)


FEW: dict[str, Any] = {"rules": ("complete-p",), "lr": (1e-3, 1e-2, 1e-1), "seeds": 2}


@pytest.mark.parametrize(("make_model", "warned"), [(SmallStart, True), (ResidualMLP, False)])
def test_initial_weights_far_from_fan_in_scaling_are_named_with_the_axis_to_try(make_model: Any, warned: bool) -> None:
    answer = nfd.transfer(make_model, batches(3, 8), (16, 32), (2,), **FEW)
    assert answer.initial_scale == pytest.approx(0.08 if warned else 1 / math.sqrt(3), rel=0.05)
    said = [warning for warning in answer.warnings if "init_scale" in warning]
    assert bool(said) is warned
    assert not warned or f"{answer.initial_scale:.2g}" in said[0]
    tried = nfd.transfer(make_model, batches(3, 8), (16,), (2,), **FEW, axes={"init_scale": (1, 4)})
    assert not any("init_scale" in warning for warning in tried.warnings)


class Larger(Worse):
    best = 2.0


class Doubled(Larger):
    """The same with initial matrices twice as large, in its own code."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.mul_(2)


def test_the_scale_of_initial_weights_is_an_axis() -> None:
    answer = asked(Larger, (16,), rules=("standard",), axes={"init_scale": (0.5, 1, 2, 4)})
    against = answer.rules[0].against["init_scale"]
    assert "lowest at init_scale 2 " in against.sentence
    scaled = {row["init_scale"]: row["value"] for row in against.table if row["quantity"] == "loss"}
    twice = asked(Doubled, (16,), rules=("standard",), axes={"init_scale": (0.5, 1)})
    other = {r["init_scale"]: r["value"] for r in twice.rules[0].against["init_scale"].table if r["quantity"] == "loss"}
    assert (other[0.5], other[1]) == pytest.approx((scaled[1], scaled[2]), rel=1e-6)
    assert scaled[1] > scaled[2] + 0.05
    with pytest.raises(ValueError, match="init_scale must be greater than 0"):
        asked(Larger, (16,), rules=("standard",), axes={"init_scale": (0.0, 1.0)})


@pytest.mark.slow
def test_the_shell_prints_losses_and_warnings(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from tests.contract.common import batches as digits\n"
        "from tests.contract.test_levels import SmallStart as make_model\n"
        "batches = digits(3, 8)\n"
    )
    sizes = ["--widths", "16", "32", "--depths", "2", "--seeds", "2", "--lr", "0.001", "0.01", "0.1"]
    words = ["mine.py", *sizes]
    ended = run("transfer", *words, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "Warning: " in ended.stdout
    assert "--axes init_scale=" in ended.stdout
    assert "loss" in ended.stdout
    (suggested,) = {word for word in ended.stdout.split() if word.startswith("init_scale=")}
    again = run("transfer", *words, "--out", "axes", "--axes", suggested.rstrip(")."), folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "lowest at init_scale" in again.stdout
