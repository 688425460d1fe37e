"""The page of repeats and experts shows what is stored."""

from __future__ import annotations

import json

from studies.behind_sizes import PAGE, RESULT, tables


def test_the_page_has_the_table_of_the_stored_numbers() -> None:
    page = PAGE.read_text(encoding="utf-8")
    stored = json.loads(RESULT.read_text(encoding="utf-8"))
    assert tables(stored)["cases"] in page
    stored[0]["error"] += 1
    assert tables(stored)["cases"] not in page
