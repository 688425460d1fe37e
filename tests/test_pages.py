"""Pages of evidence have the numbers that are stored, and none that is typed."""

from __future__ import annotations

import json
import random
import re
from functools import cache
from importlib import import_module
from typing import Any

import pytest
import tests.bestiary.__main__ as bestiary

from makers.pages.catalogue import SOURCES, Source
from makers.pages.words import DOCS

MADE = re.compile(r"<!-- made: ([\w-]+) -->\n\n(.*?)\n\n<!-- end -->", re.DOTALL)
CODE = re.compile(r"```.*?```", re.DOTALL)
INTERVAL = re.compile(r"95 %: |\(\W?[\d.]+ to \W?[\d.]+|\[\W?[\d.]+, \W?[\d.]+\]")
# A text that is a number, with or without an interval, a unit or a total.
NUMBER = re.compile(r"[\d.]+( \[\d+, \d+\]| %| of \d+)?")
# The key of what was trained, not measured.
TRAINED = "cell"
PAGES = sorted({source.page for source in SOURCES})


def name_of(source: Source) -> str:
    return f"{source.page}, {source.read.__module__.rpartition('.')[2]}"


@cache
def made(source: Source) -> dict[str, str]:
    """The texts of a source, which some take a second to make."""
    return source.texts(source.read())


def changed(stored: Any, stream: random.Random) -> Any:
    """Stored numbers, each a little smaller; names, counts and truths stay."""
    if isinstance(stored, dict):
        return {
            key: value if key == TRAINED else changed(value, stream)
            for key, value in stored.items()
        }
    if isinstance(stored, list):
        return [changed(value, stream) for value in stored]
    if isinstance(stored, float):
        return stored * stream.uniform(0.8, 0.95)
    if isinstance(stored, str) and NUMBER.fullmatch(stored):
        return re.sub(r"\d+", lambda digits: str(int(digits[0]) + 1), stored)
    return stored


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_what_its_makers_make(page: str) -> None:
    texts = dict[str, str]()
    for source in SOURCES:
        if source.page == page:
            texts |= made(source)
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    assert dict(MADE.findall(text)) == texts
    assert text.count("<!-- made: ") == len(texts)


@pytest.mark.parametrize("source", SOURCES, ids=name_of)
def test_other_numbers_would_be_noticed(source: Source) -> None:
    """In every text of a page, and none of them is the same by chance."""
    texts = source.texts(changed(source.read(), random.Random(0)))
    for name, text in made(source).items():
        assert texts[name] != text, name


@pytest.mark.parametrize("page", PAGES)
def test_no_interval_is_typed(page: str) -> None:
    """But where a paragraph says that it was measured once, and how."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    for paragraph in CODE.sub("", MADE.sub("", text)).split("\n\n"):
        assert not INTERVAL.search(paragraph) or "easured once, with" in paragraph


@pytest.mark.parametrize("typed", ["0.5 (0.3 to 0.7)", "0.5 (95 %: 0.3 to 0.7)", "| 1 [-0.2, 2] |"])
def test_a_typed_interval_would_be_noticed(typed: str) -> None:
    assert INTERVAL.search(typed)


def test_the_page_of_the_bestiary_is_made_from_its_answers() -> None:
    answers = json.loads(bestiary.ANSWERS.read_text(encoding="utf-8"))
    assert bestiary.page(answers) == bestiary.PAGE.read_text(encoding="utf-8")


def test_the_page_of_the_zoo_is_made_from_its_answers() -> None:
    pytest.importorskip("transformers")
    zoo = import_module("tests.zoo.__main__")
    answers = json.loads(zoo.ANSWERS.read_text(encoding="utf-8"))
    assert zoo.page(answers) == zoo.PAGE.read_text(encoding="utf-8")


def test_another_answer_of_the_bestiary_would_be_noticed() -> None:
    answers = json.loads(bestiary.ANSWERS.read_text(encoding="utf-8"))
    text = bestiary.page(answers)
    first = next(iter(answers["bugs"]))
    answers["bugs"][first]["named"] = ""
    changed_text = bestiary.page(answers)
    assert "**20 of 20 bugs" in text
    assert "**19 of 20 bugs" in changed_text
