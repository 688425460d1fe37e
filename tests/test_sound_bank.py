"""The bank of networks that set no limit: each builds, trains and is broken as it says."""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatchcase

import pytest
import torch

import nfd
from calibration.sound_bank.__main__ import WATCHES, breaks_of, in_order, questions
from calibration.sound_bank.by_hand import ByHand
from calibration.sound_bank.cases import BASE, BROKEN, BY_NAME, CASES, Case
from calibration.sound_bank.judges import call, fits, mistaken, plan_of, sizes_of_trials
from calibration.sound_bank.page import (
    SOUND,
    exact,
    is_false_alarm,
    is_missed,
    read,
    read_numbers,
)


def name_of(case: Case) -> str:
    return case.name


def test_the_bank_is_large_and_no_name_is_twice() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 60
    assert len(BROKEN) >= 30
    optimizers = Counter(case.optimizer for case in CASES)
    assert {"adamw", "sgd", "muon"} <= optimizers.keys()


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_network_is_built_and_takes_a_step_at_two_sizes(case: Case) -> None:
    task = nfd.Task(case.batches(2, 0), loss=case.loss)
    (x, y), (x2, y2) = task.batches
    for size in sizes_of_trials(case):
        torch.manual_seed(0)
        model = case.make_model(*size)
        trained = [p for p in model.parameters() if p.requires_grad]
        loss = task.value(call(model, x), y)
        gradients = torch.autograd.grad(loss, trained)
        with torch.no_grad():
            for p, gradient in zip(trained, gradients, strict=True):
                p -= 1e-3 * gradient
        assert torch.isfinite(task.value(call(model, x2), y2))
        assert all(gradient.any() for gradient in gradients if gradient.ndim > 1)


@pytest.mark.parametrize("case", BROKEN, ids=name_of)
def test_a_mistake_changes_what_it_says_and_only_away_from_the_base(case: Case) -> None:
    mistake = case.mistake
    assert mistake is not None
    width, depth = BASE
    for size in (BASE, (2 * width, depth) if mistake.axis == "width" else (width, 2 * depth)):
        made = []
        for is_broken in (False, True):
            torch.manual_seed(0)
            by_hand = ByHand(case, is_broken=is_broken)
            model = by_hand(*size)
            groups = [{"params": list(model.parameters()), "lr": 1.0}]
            optimizer = by_hand.make_optimizer(groups)
            rates = [
                (group["lr"], group.get("eps"), group["weight_decay"])
                for group in optimizer.param_groups
            ]
            x, _ = case.batches(1, 0)[0]
            outputs = call(model, x)
            made.append((rates, str(outputs)))
        is_same = made[0] == made[1]
        assert is_same == (size == BASE and not (mistake.eps != 1e-8 or mistake.decay))


@pytest.mark.parametrize("case", BROKEN[::6], ids=name_of)
def test_a_mistaken_plan_differs_from_the_plan(case: Case) -> None:
    assert case.mistake is not None
    plan = plan_of(case, 64, 4 if case.axes == "both" else 2)
    changed = mistaken(plan, case.mistake, 2.0, 2.0)
    has_edits = bool(case.mistake.std or case.mistake.rate or case.mistake.of_plan)
    assert (changed != plan) == has_edits


@pytest.mark.parametrize("case", BROKEN, ids=name_of)
def test_every_pattern_of_a_mistake_names_a_tensor(case: Case) -> None:
    assert case.mistake is not None
    names = [name for name, _ in case.make_model(*BASE).named_parameters()]
    for pattern in (*case.mistake.std, *case.mistake.rate, *case.mistake.of_plan):
        assert any(fnmatchcase(name, pattern) for name in names), pattern


def test_every_question_has_a_stored_answer() -> None:
    stored = read_numbers()
    for judge in ("check", "self-test", "transfer", "watch"):
        for case, variant in questions(judge):
            assert variant in stored[judge][case.name], (judge, case.name)
    for case in in_order(CASES)[:WATCHES]:
        assert stored["watch"][case.name].keys() == {"sound", *breaks_of(case)}
        assert all(fits(case, broken) for broken in breaks_of(case))


def test_answers_are_counted() -> None:
    stored = read_numbers()
    table = read()
    for judge, by_case in stored.items():
        row = table[judge]
        sound = [
            answer["said"]
            for name, variants in by_case.items()
            for variant, answer in variants.items()
            if variant in SOUND and variant not in BY_NAME[name].unsound
        ]
        assert row["refused"] == sound.count("refused")
        assert row["sound"] == len(sound) - row["refused"]
        assert row["alarmed"] == len(row["names of alarmed"]) <= sound.count("wrong")
        assert row["missed"] == len(row["names of missed"]) <= row["broken"]


def test_an_interval_is_exact() -> None:
    low, high = exact(0, 30)
    assert low == 0
    assert (1 - high) ** 30 == pytest.approx(0.025)
    low, high = exact(30, 30)
    assert (low**30, high) == (pytest.approx(0.025), 1)


@pytest.mark.parametrize(
    ("judge", "row", "expected"),
    [
        ("check", {"said": "wrong"}, True),
        ("check", {"said": "open"}, False),
        ("transfer", {"said": "wrong", "true_high": 0.05}, True),
        ("transfer", {"said": "wrong", "true_high": 0.3}, False),
    ],
)
def test_an_alarm_is_false_by_what_is_true(judge: str, row: dict, expected: bool) -> None:
    assert is_false_alarm(judge, row) == expected
    assert not is_missed(row)
