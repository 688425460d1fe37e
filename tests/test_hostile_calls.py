"""Every public call with odd arguments: a right answer or words that name the argument, never anything else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.hostile import CALLS, ODD, Call, odd_values

import nfd

pytestmark = pytest.mark.filterwarnings("ignore:A DeferredLinear of size", "ignore:The mean of inputs")

_HOW: dict[str, Any] = {
    "derandomize": True,
    "database": None,
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
}


@st.composite
def mixed(draw: st.DrawFn) -> tuple[Call, dict[str, Any]]:
    """A call with one to three odd arguments."""
    call = draw(st.sampled_from([call for call in CALLS if call.good]))
    names = draw(st.lists(st.sampled_from(list(call.good)), min_size=1, max_size=3, unique=True))
    return call, {name: draw(odd_values) for name in names}


def test_every_public_name_is_called() -> None:
    called = {call.name.partition(".")[0] for call in CALLS}
    results = {
        "Capacity",
        "Check",
        "Deferral",
        "LossPrediction",
        "Member",
        "Prediction",
        "RunScaling",
        "Solution",
        "Transfer",
    }
    assert called == set(nfd.__all__) - results - {
        "Family",
        "Sweep",
        "__version__",
        "integrations",
        "run_page",
    }  # Sweep: tests/test_hostile_files.py; integrations: tests/test_integrations.py; run_page: tests/test_run_page.py


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_good_arguments_are_answered(call: Call) -> None:
    found = call.answer({})
    assert isinstance(found, FileNotFoundError) == (call.name == "Plan.load")


@given(mixed())
@settings(max_examples=300, **_HOW)
def test_odd_arguments_are_answered_or_refused_by_name(case: tuple[Call, dict[str, Any]]) -> None:
    call, arguments = case
    call.answer(arguments)


@pytest.mark.slow
@given(mixed())
@settings(max_examples=20_000, **_HOW)
def test_many_odd_arguments_are_answered_or_refused_by_name(case: tuple[Call, dict[str, Any]]) -> None:
    call, arguments = case
    call.answer(arguments)


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_each_odd_value_of_each_argument_is_answered_or_refused(call: Call) -> None:
    for name in call.good:
        for value in ODD:
            call.answer({name: value})
