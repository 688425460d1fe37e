"""Every text of the program that a person may read. ``python -m tests.words`` lists them with their places.

Texts are read from the code: docstrings, and all other literals of several words, with ``{...}`` in place of a value.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FEWEST_WORDS = 3  # shorter literals are keys and names
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Text:
    """A text, where it stands, and whether it is a docstring; if not, it is a message."""

    path: Path
    line: int
    is_docstring: bool
    words: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.words}"


def texts_of(path: Path) -> Iterator[Text]:
    """The texts of a module, in their order."""
    tree = ast.parse(path.read_bytes())
    docstrings = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, DOCUMENTED) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for literal in literals(tree):
        words = " ".join(content(literal).split())
        if literal in docstrings or len(words.split()) >= FEWEST_WORDS:
            yield Text(path, literal.lineno, literal in docstrings, words)


def literals(node: ast.AST) -> Iterator[ast.Constant | ast.JoinedStr]:
    """Strings and f-strings below ``node``; the parts of an f-string belong to it."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        yield node
        children = [part.value for part in getattr(node, "values", ()) if isinstance(part, ast.FormattedValue)]
    else:
        children = list(ast.iter_child_nodes(node))
    for child in children:
        yield from literals(child)


def content(literal: ast.Constant | ast.JoinedStr) -> str:
    """The text of a literal."""
    if isinstance(literal, ast.Constant):
        return str(literal.value)
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "{...}" for part in literal.values)


def modules(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docstrings", action="store_true", help="list docstrings in place of messages")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "src" / "nfd")
    given = parser.parse_args()
    for path in modules(given.folder.resolve()):
        for text in texts_of(path):
            if text.is_docstring == given.docstrings:
                print(text)


if __name__ == "__main__":
    main()
