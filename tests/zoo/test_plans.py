"""Plans of models that other people wrote, against the published tables and what was read of their
classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.zoo.published import Exhibit, Rule, published

import nfd
from nfd.scaling.model import matches
from nfd.scaling.samples import call_with

pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

# of the model over its base
M = 4
L = 3
MULTIPLIERS = {"1/m": 1 / M, "m^-1/2": M**-0.5, "1/l": 1 / L}

HALLS = (
    import_module(f"tests.zoo.{path.stem}")
    for path in sorted(Path(__file__).parent.glob("[!t_]*.py"))
)
EXHIBITS: list[Exhibit] = [exhibit for hall in HALLS for exhibit in getattr(hall, "EXHIBITS", ())]
CASES = [(exhibit, rule) for exhibit in EXHIBITS for rule in exhibit.rules]


def of(table: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """What the first pattern that a name fits says of it."""
    return next((value for pattern, value in table.items() if matches(name, pattern)), default)


def sample_of(exhibit: Exhibit) -> Any:
    batch = exhibit.batch(0)
    return batch if isinstance(batch, dict) else batch[0]


def planned(exhibit: Exhibit, rule: str) -> tuple[Any, nfd.Plan]:
    width, depth = exhibit.base
    model = exhibit.make(M * width, L * depth)
    before = {name: p.clone() for name, p in model.named_parameters()}
    sizes: Any = {"base": exhibit.base, "make_model": exhibit.make, "sample": sample_of(exhibit)}
    plan = nfd.plan(model, rule=rule, optimizer="adamw", **sizes, **exhibit.options)
    assert all(p.equal(before[name]) for name, p in model.named_parameters())
    return model, plan


@pytest.mark.parametrize(
    ("exhibit", "rule"), CASES, ids=[f"{exhibit.name}, {rule}" for exhibit, rule in CASES]
)
def test_every_tensor_is_planned_as_published(exhibit: Exhibit, rule: Rule) -> None:
    model, plan = planned(exhibit, rule)
    assert plan.width == M
    # the way up of a U-Net has one block more per stage
    assert plan.depth == L or "complete-p" not in exhibit.rules
    wrong = {}
    for name, entry in plan.entries.items():
        kind = of(exhibit.kinds, name)
        assert kind is not None, f"{name} of {exhibit.name} has no kind"
        start, rate = published(kind, rule, M, L)
        own = M ** of(exhibit.own, name, 0.0) * (
            M if any(matches(name, pattern) for pattern in exhibit.tied) else 1
        )
        begins = entry.start.std if entry.start.constant is None else entry.start.constant
        planned_start = plan.std(name) if entry.start.constant is None else plan.constant(name)
        found = {
            "rate": (plan.rate(name), rate / own),
            "start": (planned_start, begins * start / own),
        }
        differs = {what: pair for what, pair in found.items() if pair[0] != pytest.approx(pair[1])}
        if differs:
            wrong[name] = (kind, entry.role, entry.why, differs)
    assert not wrong, "\n".join(f"{name}: {what}" for name, what in wrong.items())
    modules = [name for name, _ in model.named_modules()]
    expected = {
        n: MULTIPLIERS[of(exhibit.multipliers, n)] for n in modules if of(exhibit.multipliers, n)
    }
    expected = {
        n: factor
        for n, factor in expected.items()
        if rule == "complete-p" or factor != MULTIPLIERS["1/l"]
    }
    assert plan.multipliers == pytest.approx(expected)
    call_with(plan.apply_(model), sample_of(exhibit))


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=[exhibit.name for exhibit in EXHIBITS])
def test_the_standard_rule_leaves_all_as_it_is(exhibit: Exhibit) -> None:
    _, plan = planned(exhibit, "standard")
    assert {plan.rate(name) for name in plan.entries} == {1.0}


@pytest.mark.parametrize(
    "exhibit", [exhibit for exhibit in EXHIBITS if "complete-p" not in exhibit.rules]
)
def test_a_rule_of_depth_refuses_with_a_remedy(exhibit: Exhibit) -> None:
    with pytest.raises(ValueError, match="rule='mup'"):
        planned(exhibit, "complete-p")
