"""``nfd``: the entry point and its error handling."""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Union, cast, get_args

import tyro

from nfd import __version__
from nfd.cli.capacity import CapacityCommand
from nfd.cli.check import CheckCommand
from nfd.cli.claims import ClaimsCommand
from nfd.cli.data import DataCommand
from nfd.cli.figure import FigureCommand
from nfd.cli.kernel import KernelCommand
from nfd.cli.options import Options, UsageError
from nfd.cli.predict import PredictCommand
from nfd.cli.report import ReportCommand
from nfd.cli.runs import RunsCommand
from nfd.cli.study import StudyCommand
from nfd.cli.sweep import SweepCommand
from nfd.cli.transfer import TransferCommand
from nfd.core.errors import nearest
from nfd.core.names import RuleName

_COMMANDS: dict[str, type[Options]] = {
    "study": StudyCommand,
    "predict": PredictCommand,
    "check": CheckCommand,
    "transfer": TransferCommand,
    "capacity": CapacityCommand,
    "sweep": SweepCommand,
    "runs": RunsCommand,
    "figure": FigureCommand,
    "claims": ClaimsCommand,
    "kernel": KernelCommand,
    "report": ReportCommand,
    "data": DataCommand,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; exit code 2 and one message for bad input, 130 when interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["--version"]:
        print(f"nfd {__version__}")
        return 0
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        code = int(_parsed(given or ["--help"]).run(shlex.join(["nfd", *given])))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output left; the results are written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (UsageError, ValueError, TypeError, ArithmeticError, OSError, MemoryError, RuntimeError) as error:
        lines = str(error).splitlines() if isinstance(error, RuntimeError) else [str(error)]
        print(f"nfd: {lines[0] if lines else type(error).__name__}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("nfd: interrupted; nothing was written.", file=sys.stderr)
        return 130


def _parsed(given: list[str]) -> Any:
    """The command that ``given`` asks for; its ``--config`` file stands for options that are not given."""
    if given[0] not in (*_COMMANDS, "-h", "--help"):
        raise UsageError(f"there is no command {given[0]!r}.{nearest(given[0], _COMMANDS)} See nfd --help.")
    commands = [
        Annotated[kind, tyro.conf.subcommand(name, default=kind.defaults(given[1:] if given[0] == name else ()))]
        for name, kind in _COMMANDS.items()
    ]
    return tyro.cli(
        cast(Any, Union[*commands]),
        prog="nfd",
        description="Neural Feature Dynamics: deep networks at any width and depth, and their limits.",
        args=[part for argument in given for part in _split(argument)],
    )


def _split(argument: str) -> list[str]:
    """``64,128,256`` as three numbers, ``mup,depth-mup`` as two rules; everything else as it is."""
    parts = argument.split(",")
    listed = re.fullmatch(r"[\d.e-]+(,[\d.e-]+)+", argument) or set(parts) <= set(get_args(RuleName))
    return parts if listed else [argument]


if __name__ == "__main__":
    sys.exit(main())
