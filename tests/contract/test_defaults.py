"""One default of rule and optimizer, whatever is asked and in which language; the paper's networks have their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract import common
from tests.contract.common import ResidualMLP, batches, run

import nfd

BATCHES = batches(3, 8)
LONGER = batches(8, 32)
OWN, PAPERS = ("complete-p", "adamw"), ("depth-mup", "sgd")
FEW: dict[str, Any] = {"batches": BATCHES, "seeds": 2}


def resnet(width: int, depth: int) -> nfd.ResNet:
    return nfd.ResNet(64, 10, width, depth, seed=int(torch.randint(1000, ())))


KINDS = [pytest.param(ResidualMLP, OWN, id="a model"), pytest.param(resnet, PAPERS, id="nfd.ResNet")]


@pytest.mark.parametrize(("make_model", "default"), KINDS)
def test_every_question_has_the_default_of_the_model(make_model: Any, default: tuple[str, str]) -> None:
    rule, optimizer = default
    sample = BATCHES[0][0]
    base = {"make_model": make_model, "base_width": 8, "base_depth": 2, "sample": sample}
    sizes: dict[str, Any] = {} if default == PAPERS else base
    plan = nfd.plan(make_model(16, 2), **sizes)
    assert (plan.rule, plan.optimizer) == default
    check = nfd.check(make_model, [8, 16], [2], **FEW)
    assert (check.rule, check.optimizer) == default
    assert check.lr == (1e-3 if optimizer == "adamw" else 0.1)
    capacity = nfd.capacity(make_model, [8, 16, 24], [2, 3, 4], **FEW)
    assert f"rule {rule}, {optimizer}" in capacity.about
    transfer = nfd.transfer(make_model, [8, 16], [2], **FEW, lr=(1e-3, 1e-2, 1e-1))
    assert optimizer in transfer.about
    assert [answer.rule for answer in transfer] == (["standard", rule] if default == OWN else [rule])


@pytest.mark.parametrize(("make_model", "default"), KINDS)
def test_a_family_has_the_default_of_its_model_unless_it_has_another(make_model: Any, default: tuple[str, str]) -> None:
    family = nfd.ConstructedFamily(make_model, (8, 2), sample=BATCHES[0][0])
    assert (family.rule, family.optimizer) == default
    other = nfd.ConstructedFamily(make_model, (8, 2), optimizer="muon", sample=BATCHES[0][0])
    assert (other.rule, other.optimizer) == (default[0], "muon")
    check = nfd.check(other, [8, 16], [2], **FEW)
    assert (check.rule, check.optimizer) == (default[0], "muon")


def test_a_prediction_has_the_default_too_and_holds_what_wide_networks_do() -> None:
    about: dict[str, Any] = {"batches": LONGER, "make_model": ResidualMLP, "depth": 2, "base_width": 16, "width": 64}
    predicted = nfd.predict(**about, lr=0.01, replicates=24, seed=1)
    assert "'complete-p', adamw, lr = 0.01" in str(predicted)
    assert predicted.weights == "dense"
    family = nfd.ConstructedFamily(ResidualMLP, (16, 2), *OWN, sample=BATCHES[0][0])
    wide = [trained(family, 256, seed) for seed in range(8)]
    losses = torch.tensor(wide, dtype=torch.float64)
    half = (torch.as_tensor(predicted.loss_high) - torch.as_tensor(predicted.loss_low)) / 2
    apart = torch.as_tensor(predicted.loss) - losses.mean(0)
    errors = torch.hypot(half / 2, losses.std(0) / len(losses) ** 0.5)
    assert bool((apart.abs() < 3 * errors).all())  # at each of eight steps
    assert float(losses[:, 0].mean() - losses[:, -1].mean()) > 5 * float(half[-1])  # an interval that says something
    with pytest.raises(ValueError, match="adamw"):
        nfd.predict(**about, weights="structured")


def trained(family: nfd.ConstructedFamily, width: int, seed: int) -> list[float]:
    """Losses of a wide network by a loop of one's own."""
    member, losses = family.build(width, 2, 100 + seed), []
    optimizer = member.plan.make_optimizer(member.module, lr=0.01)
    for x, y in LONGER:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(member(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


MODULE = """
import torch
import nfd
from common import ResidualMLP, batches

def resnet(width, depth):
    return nfd.ResNet(64, 10, width, depth, seed=int(torch.randint(1000, ())))

few = batches(3, 8)
"""
TRAINED = ["--batches", "mine:few", "--seeds", "2", "--executor", "inline"]
WORDS = {
    "plan": ["--width", "16", "--base-width", "8"],
    "check": ["--batches", "mine:few", "--widths", "8", "16", "--depths", "2", "--seeds", "2"],
    "transfer": [*TRAINED, "--widths", "8", "16", "--depths", "2", "--lr", "0.001", "0.01", "0.1"],
    "capacity": [*TRAINED, "--widths", "8", "16", "24", "--depths", "2", "3", "4"],
}


@pytest.mark.parametrize("command", [pytest.param(name, marks=[pytest.mark.slow] * (name != "plan")) for name in WORDS])
@pytest.mark.parametrize(("model", "default"), [("ResidualMLP", OWN), ("resnet", PAPERS)])
def test_the_shell_has_them_as_well(command: str, model: str, default: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "common.py").write_text(Path(common.__file__).read_text())
    ended = run(command, f"mine:{model}", *WORDS[command], "--out", "out", folder=tmp_path)
    assert ended.returncode in (0, 1), ended.stderr
    result = (tmp_path / "out" / "result.json").read_text()
    if command in ("plan", "check"):
        asked = json.loads(result)
        asked = asked.get("plan", asked)
        assert (asked["rule"], asked["optimizer"]) == default
    else:
        page = (tmp_path / "out" / "report.html").read_text()
        assert all(name in page for name in default)
        assert ("complete-p" in page) is (default == OWN)
