"""The page of LoRA's ranks shows what is stored."""

from __future__ import annotations

import json

from studies.lora_ranks import NUMBERS, PAGE, later_cells, tables


def between_marks(page: str, name: str) -> str:
    """What a page has between the marks of a table."""
    return page.split(f"<!-- made: {name} -->\n\n")[1].split("\n\n<!-- end -->")[0]


def test_the_page_has_the_tables_of_the_stored_numbers() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, table in tables(json.loads(NUMBERS.read_text())).items():
        assert between_marks(page, name) == table


def test_one_other_loss_would_be_noticed() -> None:
    numbers = json.loads(NUMBERS.read_text())
    page = PAGE.read_text(encoding="utf-8")
    (cell,) = [
        row["losses"]
        for row in numbers["first"]
        if (row["cell"]["factor"], row["cell"]["rank"]) == ("alpha/r", 4)
        and row["cell"]["optimizer"] == "adamw"
    ]
    cell["-8.0"] = [loss - 0.02 for loss in cell["-8.0"]]
    assert tables(numbers)["rank"] != between_marks(page, "rank")


def test_the_later_look_holds_its_seeds() -> None:
    stored = json.loads(NUMBERS.read_text())["later"]
    fewest = min(len(losses) for row in stored for losses in row["losses"].values())
    assert fewest >= min(later_cells().values())
