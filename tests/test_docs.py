"""docs/equations.md names only what exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = [line for line in (ROOT / "docs/equations.md").read_text().splitlines() if line.startswith("| ") and "`" in line]
MAPPED = [row for row in ROWS if "tests/" in row]


@pytest.mark.parametrize("row", MAPPED, ids=lambda row: row.split("|")[1].strip()[:30])
def test_every_object_and_test_exists(row: str) -> None:
    _, _, objects, tests, *_ = row.split("|")
    for name in re.findall(r"`([\w.]+)`", objects):
        module, attribute = name.rsplit(".", 1)
        assert hasattr(importlib.import_module(module), attribute), name
    for path, test in re.findall(r"`(tests/\w+\.py)::(\w+)`", tests):
        assert f"def {test}(" in (ROOT / path).read_text(), test


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        *(
            f"docs/{name}.md"
            for name in (
                "equations",
                "paper-notes",
                "benchmarks",
                "two-limits",
                "checks",
                "sweeps",
                "figures",
                "claims",
            )
        ),
    ],
)
def test_relative_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for link in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        assert link.startswith("http") or (path.parent / link).exists(), link


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/sweeps.md"])
def test_the_code_of_a_page_runs(page: str) -> None:
    for block in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL):
        exec(compile(block, page, "exec"), {})


def test_the_table_is_not_empty() -> None:
    assert len(MAPPED) >= 10


def test_every_random_stream_is_listed() -> None:
    listed = (ROOT / "docs/equations.md").read_text()
    calls = r"(?:generator|derive)\([\w.]*seed, \"(\w+)\"|normal_\([^\n]*?\"(\w+)\"(?: if record else \"(\w+)\")?"
    used: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        used |= {name for names in re.findall(calls, path.read_text()) for name in names if name}
    assert {"reveal", "evaluate", "halving"} <= used
    assert all(f"`{name}`" in listed for name in used), used
