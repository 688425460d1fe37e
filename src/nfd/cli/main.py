"""``nfd``: the entry point and its error handling."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import Annotated

import tyro

from nfd import __version__
from nfd.cli.predict import Predict
from nfd.cli.study import StudyCommand

_Command = Annotated[StudyCommand, tyro.conf.subcommand("study")] | Annotated[Predict, tyro.conf.subcommand("predict")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; exit code 2 and one message for bad input, 130 when interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["--version"]:
        print(f"nfd {__version__}")
        return 0
    command = tyro.cli(
        _Command,
        prog="nfd",
        description="Neural Feature Dynamics: deep networks at any width and depth, and their limits.",
        args=given or ["--help"],
    )
    try:
        command.run(shlex.join(["nfd", *given]))
    except BrokenPipeError:  # the reader of our output left; the results are written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, TypeError, OverflowError, OSError, MemoryError) as error:
        print(f"nfd: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("nfd: interrupted; files written so far are whole, the rest is missing.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
