"""Each form of a law fits its own losses."""

from __future__ import annotations

import numpy as np
import pytest

from calibration.forms import FORMS, fitted, read_rows, texts
from makers.real_ladders_page import PAGE

SIZES = np.array([(N, D) for N in (1e8, 3e8, 1e9) for D in (2e9, 1e10, 5e10)])
TRUE = {
    "usual": lambda N, D: 1.7 + 110 / N**0.27 + 370 / D**0.28,
    "one exponent": lambda N, D: 1.7 + np.hypot(110 / N**0.27, 370 / D**0.28),
    "Kaplan's": lambda N, D: 1.7 + (3000 / N**0.8 + 1e8 / D) ** 0.4,
}


def test_every_ladder_is_forecast() -> None:
    assert len({row["ladder"] for row in read_rows()}) == 24


def test_the_page_has_what_the_rows_say() -> None:
    rows = read_rows()
    page = PAGE.read_text(encoding="utf-8").replace("\n", " ")
    halved = [row | {"error": row["error"] / 2} for row in rows]
    for name, text in texts(rows).items():
        assert text.replace("\n", " ") in page
        assert texts(halved)[name].replace("\n", " ") not in page


@pytest.mark.parametrize("name", FORMS)
def test_a_form_forecasts_losses_of_its_own(name: str) -> None:
    law = fitted(name, SIZES, TRUE[name](*SIZES.T))
    far = np.array([(7e9, 2e11)])
    assert law.loss(far) == pytest.approx(TRUE[name](*far.T), rel=3e-3)


def test_the_usual_form_misses_losses_that_are_coupled() -> None:
    law = fitted("usual", SIZES, TRUE["one exponent"](*SIZES.T))
    far = np.array([(7e9, 2e11)])
    assert abs(law.loss(far) / TRUE["one exponent"](*far.T) - 1) > 3e-3
