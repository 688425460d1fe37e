"""``nfd``: the entry point and its error handling."""

from __future__ import annotations

import importlib
import io
import os
import re
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Union, cast, get_args

from nfd import __version__
from nfd.core.errors import UsageError, nearest
from nfd.core.names import RuleName
from nfd.core.text import visible

if TYPE_CHECKING:  # each command is loaded when it is asked for, so that the answer to --help is quick
    from nfd.cli.options import Options

_COMMANDS = {
    "study": "StudyCommand",
    "predict": "PredictCommand",
    "check": "CheckCommand",
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
        print(f"nfd: {visible(lines[0] if lines else type(error).__name__)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("nfd: interrupted; nothing was written.", file=sys.stderr)
        return 130


def _parsed(given: list[str]) -> Options:
    """The command that ``given`` asks for; its ``--config`` file stands for options that are not given."""
    import tyro

    name, *rest = given
    if name in _COMMANDS:
        kind = _command(name)
        arguments = [part for argument in rest for part in _split(argument)]
        return tyro.cli(kind, prog=f"nfd {name}", default=kind.defaults(rest), args=arguments)
    if name not in ("-h", "--help"):
        raise UsageError(f"there is no command {name!r}.{nearest(name, _COMMANDS)} See nfd --help.")
    commands = [
        Annotated[kind, tyro.conf.subcommand(name, default=kind.defaults(()))]
        for name, kind in zip(_COMMANDS, map(_command, _COMMANDS), strict=True)
    ]
    description = "Neural Feature Dynamics: deep networks at any width and depth, and their limits."
    return cast("Options", tyro.cli(cast(Any, Union[*commands]), prog="nfd", description=description, args=given))


def _command(name: str) -> type[Options]:
    return cast("type[Options]", getattr(importlib.import_module(f"nfd.cli.{name}"), _COMMANDS[name]))


def _split(argument: str) -> list[str]:
    """``64,128,256`` as three numbers, ``mup,depth-mup`` as two rules; everything else as it is."""
    parts = argument.split(",")
    listed = re.fullmatch(r"[\d.e-]+(,[\d.e-]+)+", argument) or set(parts) <= set(get_args(RuleName))
    return parts if listed else [argument]
