"""Names of 0.3 that go in 0.5 warn, and answer as the new ones; what warned in 0.3 is gone."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.common import run
from tests.contract.test_one_answer import BY_PARAMETERS, BY_WIDTH, LADDER

import nfd

TRANSFER = nfd.fit_transfer(BY_WIDTH)
LAW = nfd.fit_rate_law(BY_PARAMETERS, prior=None)


def old(owner: Any, name: str) -> Any:
    """The value of an old name, which warns at the line that reads it."""
    said = rf"^{type(owner).__name__}\.{name} goes in 0\.5: "
    with pytest.warns(FutureWarning, match=said) as warned:
        value = getattr(owner, name)
    assert [Path(one.filename).name for one in warned] == [Path(__file__).name]
    return value


@pytest.fixture(scope="module")
def check() -> nfd.Check:
    inputs = torch.arange(32.0).view(8, 4) / 32
    task = [(inputs, torch.arange(8) % 3)] * 2
    sweep = nfd.Sweep(executor="inline", progress=False)
    return nfd.check(nfd.resnets(4, 3), task, [4, 8], [1], seeds=2, remedy=False, sweep=sweep)


def test_old_names_of_answers_are_the_answer(check: nfd.Check) -> None:
    for answered in (TRANSFER, LAW, check):
        lead = old(answered, "lead")
        assert lead == answered.answer
        assert old(lead, "verdict") == answered.answer.title
    assert old(TRANSFER, "sentences") == TRANSFER.answer.details


@pytest.mark.parametrize("name", ["at", "exponents", "critical_batch"])
def test_a_transfer_over_width_has_no_law_and_says_what_fits_one(name: str) -> None:
    said = r"nfd\.fit_rate_law fits the law over parameters, tokens and batch\. A log of 14 runs"
    with pytest.warns(FutureWarning, match=rf"nfd\.fit_rate_law\(rows\)\.{name}"):  # noqa: SIM117
        with pytest.raises(ValueError, match=said):
            getattr(TRANSFER, name)
    assert callable(LAW.at)
    assert LAW.exponents


def test_names_that_never_were_are_refused_as_ever(check: nfd.Check) -> None:
    for answered in (TRANSFER, LAW, check):
        with pytest.raises(AttributeError, match="leads"):
            answered.leads  # noqa: B018
        with pytest.raises(AttributeError):
            answered.lead = 1
    with pytest.raises(TypeError, match="no_such_argument"):
        nfd.fit_transfer(BY_WIDTH, no_such_argument=1)


@pytest.mark.parametrize("name", ["capacity", "fit_capacity", "no_such_name"])
def test_names_that_warned_in_0_3_are_gone(name: str) -> None:
    assert name not in dir(nfd)
    with pytest.raises(AttributeError, match=name):
        getattr(nfd, name)


def test_results_keep_the_old_key_of_the_verdict(tmp_path: Path) -> None:
    (tmp_path / "ladder.json").write_text(json.dumps(LADDER))
    assert run("scaling-law", "--from", "ladder.json", folder=tmp_path).returncode == 0
    stored = json.loads((tmp_path / "out/scaling-law/result.json").read_text())
    answer = stored["answer"]
    assert stored["lead"] == {"verdict": answer["title"], "tone": answer["tone"]}


def test_defaults_that_became_none_still_take_their_old_values() -> None:
    model = torch.nn.Linear(4, 4)
    plan = nfd.plan(model, model, sample=torch.ones(2, 4), rule="standard")
    for options in ({}, {"weight_decay": 0.0, "eps": 1e-8}):
        group = plan.make_optimizer(model, lr=0.1, **options).param_groups[0]
        assert group["weight_decay"] == 0.0
        assert group["eps"] == 1e-8


def test_names_that_moved_are_the_same_objects() -> None:
    with pytest.warns(FutureWarning, match=r"nfd\.scaling\.rate_law\.BestRate is called"):
        moved = importlib.import_module("nfd.scaling.rate_law").BestRate
    assert isinstance(LAW.at(parameters=1e9), moved)
