"""One default of rule and optimizer, whatever is asked and in which language; the paper's networks
have their own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.common import ResidualMLP, batches, run, write_setup
from tests.models import train

import nfd

BATCHES = batches(3, 8)
LONGER = batches(8, 32)
OWN = ("complete-p", "adamw")
PAPERS = ("depth-mup", "sgd")


def resnet(width: int, depth: int) -> nfd.ResNet:
    return nfd.ResNet(64, 10, width, depth, seed=int(torch.randint(1000, ())))


KINDS = [
    pytest.param(ResidualMLP, OWN, id="a model"),
    pytest.param(resnet, PAPERS, id="nfd.ResNet"),
]


@pytest.mark.parametrize(("make_model", "default"), KINDS)
def test_every_question_has_the_default_of_the_model(
    make_model: Any, default: tuple[str, str]
) -> None:
    rule, optimizer = default
    sample = BATCHES[0][0]
    base = {"make_model": make_model, "base": (8, 2), "sample": sample}
    sizes: dict[str, Any] = {} if default == PAPERS else base
    plan = nfd.plan(make_model(16, 2), **sizes)
    assert (plan.rule, plan.optimizer) == default
    check = nfd.check(make_model, BATCHES, [8, 16], [2], seeds=2, remedy=False)
    assert (check.rule, check.optimizer) == default
    assert check.lr == (1e-3 if optimizer == "adamw" else 0.1)
    law = nfd.scaling_law(make_model, BATCHES, [8, 16, 24], [2, 3, 4], seeds=2)
    assert f"rule {rule}, {optimizer}" in law.about
    transfer = nfd.transfer(make_model, BATCHES, [8, 16], [2], lr=(1e-3, 1e-2, 1e-1), seeds=2)
    assert optimizer in transfer.about
    assert [answer.rule for answer in transfer] == (
        ["standard", rule] if default == OWN else [rule]
    )


@pytest.mark.parametrize(("make_model", "default"), KINDS)
def test_a_family_has_the_default_of_its_model_unless_it_has_another(
    make_model: Any, default: tuple[str, str]
) -> None:
    family = nfd.Family(make_model, (8, 2), sample=BATCHES[0][0])
    assert (family.rule, family.optimizer) == default
    other = nfd.Family(make_model, (8, 2), optimizer="muon", sample=BATCHES[0][0])
    assert (other.rule, other.optimizer) == (default[0], "muon")
    check = nfd.check(other, BATCHES, [8, 16], [2], seeds=2, remedy=False)
    assert (check.rule, check.optimizer) == (default[0], "muon")


def test_a_prediction_has_the_default_too_and_holds_what_wide_networks_do() -> None:
    family = nfd.Family(ResidualMLP, (16, 2))
    about: dict[str, Any] = {"family": family, "task": LONGER, "depth": 2, "width": 64}
    predicted = nfd.predict(**about, lr=0.01, replicates=24)
    assert predicted.weights == "dense"
    wide = [trained(family, 256, seed) for seed in range(8)]
    losses = torch.tensor(wide, dtype=torch.float64)
    half = (torch.as_tensor(predicted.loss_high) - torch.as_tensor(predicted.loss_low)) / 2
    apart = torch.as_tensor(predicted.loss) - losses.mean(0)
    errors = torch.hypot(half / 2, losses.std(0) / len(losses) ** 0.5)
    assert bool((apart.abs() < 3 * errors).all())  # at each of eight steps
    # an interval that says something
    assert float(losses[:, 0].mean() - losses[:, -1].mean()) > 5 * float(half[-1])
    with pytest.raises(ValueError, match="adamw"):
        nfd.predict(**about, weights="structured")


def trained(family: nfd.Family, width: int, seed: int) -> list[float]:
    """Losses of a wide network by a loop of one's own."""
    own = family.under(sample=BATCHES[0][0])
    net = own.build(width, 2, 100 + seed)
    return train(net, own.plan(width, 2).make_optimizer(net, lr=0.01), LONGER)


SETUP = """
import torch
import nfd
from common import ResidualMLP, batches as drawn

def resnet(width, depth):
    return nfd.ResNet(64, 10, width, depth, seed=int(torch.randint(1000, ())))

make_model = {model}
batches = drawn(3, 8)
"""
TRAINED = ["--seeds", "2", "--executor", "inline"]
WORDS = {
    "plan": ["--width", "16", "--base", "8", "2"],
    "check": [*TRAINED, "--widths", "8", "16", "--depths", "2"],
    "transfer": [*TRAINED, "--widths", "8", "16", "--depths", "2", "--lr", "0.001", "0.01", "0.1"],
    "scaling-law": [*TRAINED, "--widths", "8", "16", "24", "--depths", "2", "3", "4"],
}


@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=[pytest.mark.slow] * (name != "plan")) for name in WORDS]
)
@pytest.mark.parametrize(("model", "default"), [("ResidualMLP", OWN), ("resnet", PAPERS)])
def test_the_shell_has_them_as_well(
    command: str, model: str, default: tuple[str, str], tmp_path: Path
) -> None:
    write_setup(tmp_path, SETUP.format(model=model))
    ended = run(command, "setup.py", *WORDS[command], "--out", "out", folder=tmp_path)
    assert ended.returncode in (0, 1), ended.stderr
    if command == "plan":
        asked = json.loads((tmp_path / "out" / "plan.json").read_text())
        assert (asked["rule"], asked["optimizer"]) == default
    else:
        page = (tmp_path / "out" / "report.html").read_text()
        assert all(name in page for name in default)
        assert ("complete-p" in page) is (default == OWN)
