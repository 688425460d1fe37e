"""The commands by name, and the one that a line asks for."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, cast

from nfd.core.errors import UsageError, nearest

if TYPE_CHECKING:  # each command is loaded when it is asked for, so that the answer to --help is quick
    from nfd.cli.options import Options

COMMANDS = {
    "study": "StudyCommand",
    "predict": "PredictCommand",
    "check": "CheckCommand",
    "plan": "PlanCommand",
    "transfer": "TransferCommand",
    "capacity": "CapacityCommand",
    "sweep": "SweepCommand",
    "runs": "RunsCommand",
    "figure": "FigureCommand",
    "claims": "ClaimsCommand",
    "kernel": "KernelCommand",
    "report": "ReportCommand",
    "data": "DataCommand",
}

_ABOUT = """usage: nfd COMMAND [options]; nfd COMMAND --help lists them

Neural Feature Dynamics: deep networks at any width and depth, and their limits.
"""

_CODES = """
Exit codes: 0 done; 1 a check failed, a law does not hold, or runs failed; 2 an error
in your input; 70 a bug in nfd, whose traceback is kept in a file that the message names
(--traceback prints it); 130 interrupted by Ctrl-C or SIGTERM."""


def overview() -> str:
    """What ``nfd --help`` prints: the commands and the first sentence on each, read from their files unloaded."""
    lines = [_ABOUT]
    for name, kind in COMMANDS.items():
        tree = ast.parse((Path(__file__).parent / f"{name}.py").read_bytes())
        (node,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind)
        summary = (ast.get_docstring(node) or "").partition("\n")[0]
        lines.append(fill(summary, 84, initial_indent=f"  {name:10}", subsequent_indent=" " * 12))
    return "\n".join([*lines, _CODES])


def parsed(given: list[str]) -> Options:
    """The command that ``given`` asks for; its ``--config`` file stands for options that are not given."""
    name, *rest = given
    if name not in COMMANDS:
        raise UsageError(f"there is no command {name!r}.{nearest(name, COMMANDS)} See nfd --help.")
    import tyro

    from nfd.cli.words import read

    whole = command(name)
    kind = whole.form(rest)
    words = read(kind, whole, f"nfd {name}", rest)
    return tyro.cli(kind, prog=f"nfd {name}", default=kind.defaults(rest), args=words)


def command(name: str) -> type[Options]:
    """The class of a command."""
    return cast("type[Options]", getattr(importlib.import_module(f"nfd.cli.{name}"), COMMANDS[name]))
