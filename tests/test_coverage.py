"""Intervals hold the truth as often as they say, and the harness that counts notices when they do not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from benchmarks import coverage, coverage_case, coverage_claims, coverage_means, coverage_slopes, coverage_study
from benchmarks.coverage_case import Outcome, repeated, row, verdict
from benchmarks.coverage_page import PAGE, page
from scipy import stats

from nfd.core import estimates
from nfd.core.estimates import pooled_slope

REPETITIONS = 200
CHEAP = (
    partial(coverage_means.means, 3, 0.2),
    partial(coverage_means.bands, 3),
    partial(coverage_means.differences, 3, 5),
    partial(coverage_means.pairs, 3),
    partial(coverage_means.ratios, 3, 0.1),
    partial(coverage_means.timings, 3),
    partial(coverage_means.exponents, 3, -1.0),
    partial(coverage_means.variances, 5),
    partial(coverage_means.tuned, 3),
    partial(coverage_means.shares, 50, 0.05),
    partial(coverage_slopes.simulated, 4, 3, 1, -1.0),
    partial(coverage_slopes.simulated, 3, 3, 4, -1.0),
    partial(coverage_slopes.charted, 2),
    partial(coverage_claims.distances, 4, 1.0, 32),
    partial(coverage_claims.correlations, 4, 0.5),
)


def fewest(count: int) -> int:
    """So many of ``count`` intervals hold the truth that coverage of 0.93 is not refuted at 1 in 1,000."""
    return int(stats.binom.ppf(1e-3, count, 0.93))


def test_every_kind_of_interval_covers_what_it_says() -> None:
    """Seeded, so that it does not depend on luck."""
    rows = repeated(CHEAP, REPETITIONS, 0) + repeated([partial(coverage_study.bands, 3)], 60, 0)
    assert len({found["kind"] for found in rows}) >= 18
    short = [found for found in rows if found["measured"] * found["count"] < fewest(found["count"])]
    assert not short
    assert all(found["count"] >= 60 for found in rows)


def test_intervals_that_are_half_as_wide_fall_short(monkeypatch: pytest.MonkeyPatch) -> None:
    right = estimates.standard_errors
    for module in (estimates, coverage_case):
        monkeypatch.setattr(module, "standard_errors", lambda *given: right(*given) / 2)
    draws = (
        partial(coverage_means.means, 8, 0.0),
        partial(coverage_means.bands, 8),
        partial(coverage_means.differences, 8, 5),
        partial(coverage_means.shares, 500, 0.9),
        partial(coverage_slopes.simulated, 4, 3, 4, 0.0),
    )
    rows = repeated(draws, REPETITIONS, 0) + repeated([partial(coverage_study.bands, 6)], 60, 0)
    assert [found["kind"] for found in rows if verdict(found) != "falls short"] == []


def constant(case: str, low: float, high: float) -> Callable[[torch.Generator], Iterator[Outcome]]:
    def draw(g: torch.Generator) -> Iterator[Outcome]:
        truth = float(torch.rand(1, generator=g))
        yield Outcome("made up", case, low, high, truth)

    return draw


def test_the_harness_counts() -> None:
    """Uniform truths: an interval of length 0.9 holds nine in ten, and an unknown one is not counted."""
    draws = (constant("wide", 0.0, 1.0), constant("narrow", 0.0, 0.9), constant("unknown", math.nan, math.nan))
    wide, narrow, unknown = repeated(draws, 2000, 0)
    assert (wide["measured"], wide["error"], wide["count"]) == (1.0, 0.0, 2000)
    assert narrow["measured"] == pytest.approx(0.9, abs=4 * 0.0067)  # four standard errors
    assert narrow["error"] == pytest.approx(0.0067, abs=0.0005)
    assert [verdict(found) for found in (wide, narrow, unknown)] == ["reaches it", "falls short", "not measured"]
    assert verdict(row("made up", "few", 9, 10)) == "undecided"


def test_the_page_is_that_of_its_result() -> None:
    assert PAGE.read_text() == page(json.loads(coverage.RESULT.read_text()))


# ---- slopes with errors by size --------------------------------------------------------------------------------


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
    pull, left = torch.linalg.pinv(columns)[-1], y - hat @ y
    found = pooled_slope(x, y, group)
    assert found.value == pytest.approx(float(pull @ y))
    squares = (pull * left).square() / (1 - hat.diagonal())
    assert found.stderr == pytest.approx(math.sqrt(float(squares.sum())))
    parts = [(float(squares[x == place].sum()), float((1 - hat.diagonal())[x == place].sum())) for place in (0, 2)]
    half = estimates.standard_errors(estimates.satterthwaite(parts)[1]) * found.stderr
    assert found.high - found.value == pytest.approx(half)
