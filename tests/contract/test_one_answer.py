"""One function, one answer: which fit a table is for, and what old calls and names still do."""

from __future__ import annotations

import importlib
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nfd

Rows = list[dict[str, Any]]


def swept(**more: Callable[[int], float]) -> Rows:
    """Runs of two sizes at seven rates, best near 2^-9; ``more`` are columns by size."""
    return [
        {name: column(size) for name, column in more.items()}
        | {"lr": 2.0**k, "loss": 3 * (1 + 0.004 * (k + 9 + 0.5 * size) ** 2)}
        for size in (0, 1)
        for k in range(-13, -6)
    ]


BY_WIDTH = swept(width=lambda size: 64 * 2**size)
BY_PARAMETERS = swept(parameters=lambda size: 1e8 * 4**size)
BY_BOTH = swept(width=lambda size: 64 * 2**size, parameters=lambda size: 1e5 * 4**size)
BY_LENGTH = swept(width=lambda size: 64, tokens=lambda size: 1e9 * 4**size)


def losses(**axes: tuple[float, ...]) -> Rows:
    """Runs of every size, with a loss that falls along every axis, and a little noise."""
    random = np.random.default_rng(0)
    rows = Rows()
    for sizes in itertools.product(*axes.values()):
        loss = 1.7 + sum(
            (size / min(axis)) ** -0.5 for size, axis in zip(sizes, axes.values(), strict=True)
        )
        rows.append(dict(zip(axes, sizes, strict=True)) | {"loss": loss + 1e-3 * random.normal()})
    return rows


SHAPES = losses(width=(32, 64, 128, 256), depth=(2, 4, 8, 16))
LADDER = losses(parameters=(1e8, 2e8, 4e8, 8e8), tokens=(2e9, 8e9, 32e9))
SHAPES_AND_TOKENS = losses(width=(32, 64, 128), depth=(2, 4, 8), tokens=(1e5, 4e5, 16e5, 64e5))
COUNTED_SHAPES = [row | {"parameters": 12 * row["width"] ** 2 * row["depth"]} for row in SHAPES]

FITS: list[tuple[Callable[..., Any], type, Rows]] = [
    (nfd.fit_transfer, nfd.Transfer, BY_WIDTH),
    (nfd.fit_transfer, nfd.Transfer, BY_BOTH),
    (nfd.fit_rate_law, nfd.RateLaw, BY_PARAMETERS),
    (nfd.fit_rate_law, nfd.RateLaw, BY_BOTH),
    (nfd.fit_rate_law, nfd.RateLaw, BY_LENGTH),
    (nfd.fit_scaling_law, nfd.ScalingLaw, SHAPES),
    (nfd.fit_scaling_law, nfd.ScalingLaw, COUNTED_SHAPES),
    (nfd.fit_scaling_law, nfd.ScalingLaw, SHAPES_AND_TOKENS),
    (nfd.fit_ladder, nfd.LadderLaw, LADDER),
    (nfd.fit_ladder, nfd.LadderLaw, COUNTED_SHAPES),
]


@pytest.mark.parametrize(("fit", "kind", "rows"), FITS)
def test_a_function_has_one_kind_of_answer_which_says_what_was_read(
    fit: Callable[..., Any], kind: type, rows: Rows
) -> None:
    answer = fit(rows)
    assert type(answer) is kind
    assert f"{len(rows)} runs" in answer.about
    assert answer.score == "loss"
    assert answer.table


@pytest.mark.parametrize(
    ("fit", "rows", "other"),
    [
        (nfd.fit_rate_law, BY_WIDTH, "fit_transfer"),
        (nfd.fit_ladder, SHAPES, "fit_scaling_law"),
        (nfd.fit_ladder, SHAPES_AND_TOKENS, "fit_scaling_law"),
    ],
)
def test_a_table_of_another_function_is_refused_by_its_name(
    fit: Callable[..., Any], rows: Rows, other: str
) -> None:
    with pytest.raises(ValueError, match=rf"use nfd\.{other}\."):
        fit(rows)
    assert getattr(nfd, other)(rows).about


# ---- until 0.5


def test_fit_transfer_still_fits_the_law_of_the_rate_and_says_what_to_write() -> None:
    with pytest.warns(FutureWarning, match=r"nfd\.fit_rate_law"):
        old = nfd.fit_transfer(BY_PARAMETERS, prior=None)
    new = nfd.fit_rate_law(BY_PARAMETERS, prior=None)
    assert str(old) == str(new)
    with pytest.warns(FutureWarning, match="the answer is the law"):
        assert old.law is old
    with pytest.warns(FutureWarning, match="has none"):
        assert not old.rules
    with warnings.catch_warnings(action="error"):
        transfer = nfd.fit_transfer(BY_WIDTH)
    with pytest.warns(FutureWarning, match=r"nfd\.fit_rate_law returns laws"):
        assert transfer.law is None


def test_fit_scaling_law_still_fits_a_ladder_and_says_what_to_write() -> None:
    with pytest.warns(FutureWarning, match=r"nfd\.fit_ladder"):
        old: Any = nfd.fit_scaling_law(LADDER, prior=None)
    assert type(old) is nfd.LadderLaw
    assert str(old) == str(nfd.fit_ladder(LADDER, prior=None))
    with warnings.catch_warnings(action="error"):
        nfd.fit_scaling_law(SHAPES)


@pytest.mark.parametrize(
    ("fit", "rows"), [(nfd.fit_transfer, BY_WIDTH), (nfd.fit_scaling_law, SHAPES)]
)
def test_a_prior_that_a_function_does_not_read_warns(fit: Callable[..., Any], rows: Rows) -> None:
    with pytest.warns(FutureWarning, match=r"prior goes in 0\.5"):
        with_prior = fit(rows, prior=None)
    assert str(with_prior) == str(fit(rows))


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("nfd.rates", "Scores"),
        ("nfd.rates", "fit_transfer"),
        ("nfd.rates.transfer", "RateAgainst"),
        ("nfd.forecasts", "LadderLaw"),
        ("nfd.forecasts.law", "Law"),
        ("nfd.scaling.rate_law", "BestRate"),
    ],
)
def test_old_places_of_names_lead_to_the_new_ones(place: str, name: str) -> None:
    module = importlib.import_module(place)
    with pytest.warns(FutureWarning, match=rf"{place}\.{name} is called nfd(\.laws)?\.{name} now"):
        old = getattr(module, name)
    laws = importlib.import_module("nfd.laws")
    assert old is getattr(laws, name)
    with pytest.raises(AttributeError, match="no_such_name"):
        module.no_such_name  # noqa: B018
