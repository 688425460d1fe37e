"""Intervals hold the truth as often as they say, and the harness that counts notices when they do
not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from scipy import stats

from calibration import coverage_cases, coverage_laws
from calibration.coverage import Draw, Outcome, repeated, row, verdict
from nfd.core import estimates
from nfd.core.estimates import pooled_slope

CHEAP = (
    partial(coverage_cases.means, 3, 0.2),
    partial(coverage_cases.differences, 3, 5),
    partial(coverage_cases.pairs, 3),
    partial(coverage_cases.shares, 50, 0.05),
    partial(coverage_cases.slopes, 4, 3, 1, -1.0),
    partial(coverage_cases.slopes, 3, 3, 4, -1.0),
)


def fewest(count: int) -> int:
    """So many of ``count`` intervals hold the truth that coverage of 0.93 is not refuted at 1 in
    1,000.
    """
    return int(stats.binom.ppf(1e-3, count, 0.93))


@pytest.mark.parametrize(
    ("draws", "repetitions"),
    [
        (CHEAP, 200),
        pytest.param(
            (partial(coverage_laws.sizes, "3 x 3", 3, "shared seeds, correlation 0.7"),),
            40,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            (partial(coverage_laws.rates, "steep to the left", 8),), 40, marks=pytest.mark.slow
        ),
    ],
)
def test_intervals_cover_what_they_say(draws: tuple[Draw, ...], repetitions: int) -> None:
    """Seeded, so that it does not depend on luck."""
    rows = [found for draw in draws for found in repeated(draw, repetitions, 0)]
    assert [
        found for found in rows if found["measured"] * found["count"] < fewest(found["count"])
    ] == []
    assert all(found["count"] >= repetitions / 2 for found in rows)


def test_intervals_that_are_half_as_wide_fall_short(monkeypatch: pytest.MonkeyPatch) -> None:
    right = estimates.standard_errors
    monkeypatch.setattr(estimates, "standard_errors", lambda *given: right(*given) / 2)
    draws = (
        partial(coverage_cases.means, 8, 0.0),
        partial(coverage_cases.differences, 8, 5),
        partial(coverage_cases.shares, 500, 0.9),
        partial(coverage_cases.slopes, 4, 3, 4, 0.0),
    )
    rows = [found for draw in draws for found in repeated(draw, 200, 0)]
    assert [found["kind"] for found in rows if verdict(found) != "falls short"] == []


def constant(case: str, low: float, high: float) -> Callable[[torch.Generator], Iterator[Outcome]]:
    def draw(g: torch.Generator) -> Iterator[Outcome]:
        truth = float(torch.rand(1, generator=g))
        yield Outcome("made up", case, low, high, truth)

    return draw


def test_the_harness_counts() -> None:
    """Uniform truths: an interval of length 0.9 holds nine in ten, and an unknown one is not
    counted.
    """
    draws = (
        constant("wide", 0.0, 1.0),
        constant("narrow", 0.0, 0.9),
        constant("unknown", math.nan, math.nan),
    )
    wide, narrow, unknown = (found for draw in draws for found in repeated(draw, 2000, 0))
    assert (wide["measured"], wide["error"], wide["count"]) == (1.0, 0.0, 2000)
    assert narrow["measured"] == pytest.approx(0.9, abs=4 * 0.0067)  # four standard errors
    assert narrow["error"] == pytest.approx(0.0067, abs=0.0005)
    assert [verdict(found) for found in (wide, narrow, unknown)] == [
        "reaches it",
        "falls short",
        "not measured",
    ]
    assert verdict(row("made up", "few", 9, 10)) == "undecided"


# ---- slopes with errors by size


def drawn(sizes: int, seeds: int, groups: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(sizes)
    x = torch.arange(sizes, dtype=torch.float64).repeat(groups).repeat_interleave(seeds)
    group = torch.arange(groups).repeat_interleave(sizes * seeds)
    return x, torch.randn(len(x), generator=g, dtype=torch.float64), group


def test_the_error_of_a_slope_is_that_of_the_definition() -> None:
    """Against least squares with all columns, leverages from the hat matrix."""
    x, y, group = drawn(3, 2, 2)
    columns = torch.cat([torch.nn.functional.one_hot(group).double(), x[:, None]], 1)
    hat = columns @ torch.linalg.pinv(columns)
    pull = torch.linalg.pinv(columns)[-1]
    left = y - hat @ y
    found = pooled_slope(x, y, group)
    assert found.value == pytest.approx(float(pull @ y))
    squares = (pull * left).square() / (1 - hat.diagonal())
    assert found.stderr == pytest.approx(math.sqrt(float(squares.sum())))
    parts = [
        (float(squares[x == place].sum()), float((1 - hat.diagonal())[x == place].sum()))
        for place in (0, 2)
    ]
    half = estimates.standard_errors(estimates.satterthwaite(parts)[1]) * found.stderr
    assert found.high - found.value == pytest.approx(half)
