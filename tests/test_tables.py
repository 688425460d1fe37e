"""What is chosen by a name: every name has its row, and whatever else is said of it.

Who adds a rule, a meter or an optimizer and forgets a part reads here which.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from tests.test_measured import BUILT, KNOWN
from torch import nn

import nfd
from nfd.cli.plan import PlanCommand
from nfd.core.names import PLANNED_RULES, RuleName
from nfd.meters.meter import METERS, METERS_OF_LAYERS, quantity_in_words
from nfd.meters.updates import NUMBERS
from nfd.scaling import rules
from nfd.scaling.optimizers import OF_THE_LIBRARY
from nfd.scaling.rules import RULES, Power, Rule, Updates, check_limit

ROOT = Path(__file__).parent.parent
# Meters that are read where training is seen: loss, gradients and the first of all steps.
OF_TRAINING = {"first_update", "gradient", "loss"}


def page(path: str) -> str:
    return (ROOT / path).read_text("utf-8")


# ---- rules


def test_every_rule_has_a_row() -> None:
    assert RULES.keys() == {*get_args(RuleName)}


@pytest.mark.parametrize("rule", PLANNED_RULES)
def test_every_rule_of_plans_is_named_by_help_docstring_and_page(rule: str) -> None:
    (field,) = [f for f in PlanCommand.__dataclass_fields__.values() if f.name == "rule"]
    names = re.split("[,:; ]+", field.metadata["about"])
    assert rule in names
    assert f'``"{rule}"``' in str(nfd.plan.__doc__)
    assert f"``{rule}``" in str(rules.__doc__)
    for path in ("docs/glossary.md", "docs/howto/which-rule.md"):
        assert f"`{rule}`" in page(path), path


@dataclass(frozen=True)
class HalfRates(Rule):
    """Rates of hidden matrices that fall as the root of the width only."""

    def rate(self, role: Any, law: Updates) -> Power:
        return super().rate(role, law) * Power(fan_in=0.5 if role == "hidden" else 0.0)


@dataclass(frozen=True)
class LargeStart(Rule):
    """Hidden matrices whose entries do not shrink with width at the start."""

    def std(self, role: Any) -> Power:
        return super().std(role) * Power(fan_in=0.5 if role == "hidden" else 0.0)


def test_a_rule_says_itself_whether_it_has_a_limit_of_large_width(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_limit = {name for name, rule in RULES.items() if rule.has_width_limit}
    assert with_limit == {"mup", "depth-mup", "depth-mup-inner", "complete-p"}
    for rule in (HalfRates(exponent=1.0), LargeStart(exponent=1.0)):
        assert rule.scales_width
        assert not rule.has_width_limit
        monkeypatch.setitem(RULES, "half-p", rule)
        with pytest.raises(ValueError, match=r"'half-p' has no limit of large width.*'complete-p'"):
            check_limit("half-p", 4)
    # Another residual exponent changes nothing in width.
    monkeypatch.setitem(RULES, "gentle", Rule(exponent=0.75))
    check_limit("gentle", math.inf)


# ---- meters


def test_every_meter_has_a_number_and_a_place_in_the_pages() -> None:
    assert {*NUMBERS, *OF_TRAINING} == METERS.keys()
    watch = page("docs/api/watch.md")
    for meter in {*NUMBERS, *METERS_OF_LAYERS}:
        assert f"`{meter}`" in watch, meter
        assert quantity_in_words(meter)
    assert quantity_in_words("activation of decoder") == "RMS of the stream, decoder"
    assert quantity_in_words("inner_update") == "inner update"


class Net(nn.Module):
    """Blocks between two linear maps."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(torch.relu(h))
        return self.head(h)


def watched(steps: int = 1) -> nfd.Watch:
    """Watch a sound network."""
    torch.manual_seed(0)
    model = Net(8, 2)
    x = torch.randn(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    watch = nfd.Watch(model, None, x, every=1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        watch.step(loss.item())
    return watch


@pytest.mark.parametrize(
    ("number", "kind"), [(torch.tensor(1.0), "Tensor"), ("1", "str"), (True, "bool")]
)
def test_what_a_meter_returns_beside_a_number_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, number: object, kind: str
) -> None:
    monkeypatch.setitem(NUMBERS, "activation", lambda look: number)
    with pytest.warns(RuntimeWarning, match=rf"The meter 'activation' must be a float.* a {kind}"):
        assert "'activation'" in str(watched().failed)


def test_a_meter_that_alone_is_not_finite_is_named_beside_the_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not watched().alerts
    monkeypatch.setitem(NUMBERS, "activation", lambda look: math.nan)
    with pytest.warns(RuntimeWarning, match="no tensor and no loss, but RMS of the stream"):
        watch = watched()
    (alert,) = watch.alerts
    assert alert.meter == "activation"
    assert alert.remedy.startswith("Look at what this meter computes")
    shown = watch.answer.next
    assert shown is not None
    assert shown.label == "Look for the cause"
    assert "row.meter == 'activation'" in shown.code


# ---- optimizers


def test_the_law_of_every_optimizer_is_stepped_by_a_test() -> None:
    """``test_measured`` steps them; schedule-free ones are of a library that has its own test."""
    names = [law.name for law in OF_THE_LIBRARY]
    assert len(names) == len({*names})
    assert {*names} - {*KNOWN} == {"schedule-free-adamw"}
    assert BUILT.keys() <= {*names}
