"""The results in a directory: every ``result.json`` there and below, read, and what could not be."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nfd.core.errors import InputError
from nfd.questions.finding import Finding

FILE = "result.json"
REPORT = "report_of"  # the key by which the result of a report is known: a report shows no other


@dataclass(frozen=True)
class Result:
    """The result of one command: its folder, relative to the directory of the search, and its ``result.json``.

    ``findings`` can be drawn; ``problems`` are messages about those that cannot.
    """

    folder: str
    content: dict[str, Any]
    findings: list[Finding] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def command(self) -> str:
        """The command that made it."""
        return str(self.content["command"])

    @property
    def title(self) -> str:
        """Its title, or its command's name where it has none, as those without findings."""
        title = self.content.get("title")
        return title if isinstance(title, str) and title.strip() else " ".join(self.command.split()[:2]) or self.folder


def read_results(directory: Path) -> tuple[list[Result], list[str]]:
    """The results in and below ``directory``, and a sentence on each file that is none."""
    results, problems = list[Result](), list[str]()
    for path in _files(directory):
        folder = str(path.parent.relative_to(directory))
        try:
            content = _content(path)
        except InputError as error:
            problems.append(f"{path}: {error}")
            continue
        if REPORT not in content:
            results.append(_result(folder, content))
    return results, problems


def replaceable(out: Path) -> bool:
    """Whether a report may be written to ``out``: no ``result.json`` is there, or that of an earlier report."""
    path = out / FILE
    try:
        return not path.exists() or REPORT in _content(path)
    except InputError:
        return False


def _files(directory: Path) -> Iterator[Path]:
    """Those of a directory before those of its folders; hidden folders, such as unfinished ones, are left out."""
    if not directory.is_dir():
        raise InputError(f"report needs a directory that exists; got {str(directory)!r}. Give one that holds results.")
    for folder, below, names in os.walk(directory):
        below[:] = sorted(name for name in below if not name.startswith("."))
        if FILE in names:
            yield Path(folder) / FILE


def _content(path: Path) -> dict[str, Any]:
    try:
        regular = stat.S_ISREG(path.stat().st_mode)  # reading a pipe would wait for ever
        content = json.loads(path.read_bytes().decode()) if regular else None
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"is damaged: not JSON ({str(error).splitlines()[0]}). Run its command again.") from None
    if not regular:
        raise InputError("is not a regular file.")
    if not isinstance(content, dict) or not isinstance(content.get("command"), str):
        raise InputError("was not written by nfd: it names no command.")
    return content


def _result(folder: str, content: dict[str, Any]) -> Result:
    stored = content.get("findings") or {}
    if not isinstance(stored, dict):
        return Result(folder, content, [], ["its findings are not an object with a finding under each name."])
    findings, problems = list[Finding](), list[str]()
    for name, plain in stored.items():
        try:
            findings.append(Finding.of(plain))
        except InputError as error:
            problems.append(f"{name} {error}")
    return Result(folder, content, findings, problems)
