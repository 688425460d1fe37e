"""A self-test finds plans that are wrong, and stays quiet of those that are sound, in a bank of
both.
"""

from __future__ import annotations

import pytest
from tests.self_test_bank import CASES
from tests.self_test_bank.cases import Case
from tests.self_test_bank.runner import asked, judged, report

QUICK = (  # a fifth of a second each
    "mlp-hidden-rate-by-root",
    "mlp-readout-start-of-pytorch",
    "mlp-biases-too-fast",
    "mlp-sgd-readout-rate-of-base",
    "res-mlp-knows-no-depth",
    "mlp-tanh-no-bias",
    "mlp-glu",
    "mlp-relu-muon",
    "bag-of-words-sgd",
    "one-layer-blocks",
)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name in QUICK], ids=lambda case: case.name
)
def test_a_case_is_judged_rightly(case: Case) -> None:
    outcome = asked(case)
    assert outcome.is_right, report([outcome])


def test_the_quick_cases_are_there_and_of_both_kinds() -> None:
    names = {case.name: case.is_wrong for case in CASES}
    assert len(names) == len(CASES)
    assert {names[name] for name in QUICK} == {True, False}


@pytest.mark.slow
def test_nearly_all_wrong_plans_are_found() -> None:
    outcomes = [asked(case) for case in judged(CASES, wrong=True)]
    assert len(outcomes) >= 40
    # 114 of 114, as docs/howto/plan.md says
    assert sum(outcome.has_alarmed for outcome in outcomes) >= 0.98 * len(outcomes), report(
        outcomes
    )


@pytest.mark.slow
def test_few_sound_plans_are_alarmed() -> None:
    outcomes = [asked(case) for case in judged(CASES, wrong=False)]
    assert len(outcomes) >= 60
    # 1 of 141, as docs/howto/plan.md says
    assert sum(outcome.has_alarmed for outcome in outcomes) <= 0.02 * len(outcomes), report(
        outcomes
    )
