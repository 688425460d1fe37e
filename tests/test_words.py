"""The words of the project: pages, docstrings and messages use the field's, and none of the phrases of words.toml."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.words import ROOT, Text, modules, texts_of

PHRASES = tomllib.loads((ROOT / "tests/words.toml").read_text())["phrase"]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def found(text: str) -> list[str]:
    """What to write instead of each phrase in ``text`` that is not to be used."""
    return [
        f"{match[0]!r}: {phrase['instead']}"
        for phrase in PHRASES
        for match in re.finditer(phrase["pattern"], " ".join(text.split()))
    ]


@pytest.mark.parametrize("phrase", PHRASES, ids=lambda phrase: phrase["example"])
def test_every_pattern_finds_its_example(phrase: dict[str, str]) -> None:
    assert re.search(phrase["pattern"], phrase["example"])
    assert found(phrase["instead"]) == []


def test_pages_use_the_words_of_the_field() -> None:
    wrong = [f"{page.relative_to(ROOT)}: {words}" for page in PAGES for words in found(page.read_text())]
    assert not wrong, "\n".join(wrong)


def test_docstrings_and_messages_use_the_words_of_the_field() -> None:
    texts = [text for path in modules(ROOT / "src" / "nfd") for text in texts_of(path)]
    assert len(texts) > 3000
    wrong = [f"{text}\n    {words}" for text in texts for words in found(text.words)]
    assert not wrong, "\n".join(wrong)


def test_the_texts_of_a_module_are_its_docstrings_and_its_literals_of_several_words(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""What it does."""\nkey = "a name"\nraise ValueError(f"{key} must be " f"at least {1 + 1}.")\n')
    assert list(texts_of(module)) == [
        Text(module, 1, True, "What it does."),
        Text(module, 3, False, "{...} must be at least {...}."),
    ]


@pytest.mark.slow
def test_the_list_of_messages_is_printed() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.words"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "nfd/cli/commands.py" in done.stdout
