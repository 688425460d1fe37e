"""``nfd``: the entry point. What it needs is imported when it is needed, so that Ctrl-C is answered from the start."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from nfd.core.interruptions import answering

TRACEBACK = "--traceback"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code, in every case: 0, 1 (a verdict), 2 (input), 70 (ours), 130."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    show, given = TRACEBACK in given, [argument for argument in given if argument != TRACEBACK]
    try:
        with answering({signal.SIGTERM: signal.default_int_handler}):  # SIGTERM is Ctrl-C
            return _main(given, show)
    except KeyboardInterrupt:  # before anything was imported that could say it better
        print("nfd: interrupted; nothing was written.", file=sys.stderr)
        return 130


def _main(given: list[str], show: bool) -> int:
    from nfd.cli.ending import ended
    from nfd.cli.streams import surviving
    from nfd.core.exits import INPUT

    with surviving() as output:
        try:
            code = _run(given)
        except BaseException as error:  # every error ends here, by its type
            code = ended(error, given, show=show)
        output.flush()
        if output.fault is not None and not isinstance(output.fault, BrokenPipeError):  # a reader may leave: nfd | head
            print(f"nfd: the output could not be written ({output.fault.strerror}).", file=sys.stderr)
            code = code or INPUT
        return code


def _run(given: list[str]) -> int:
    if given[:1] == ["--version"]:
        from nfd import __version__

        print(f"nfd {__version__}")
        return 0
    import shlex

    from nfd.cli.commands import overview, parsed
    from nfd.core.errors import StateError

    if not given or given[0] in ("-h", "--help"):
        print(overview())
        return 0
    try:
        command = parsed(given)
    except SystemExit as asked:  # the parser has said what there is to say
        return asked.code if isinstance(asked.code, int) else 0
    try:
        return int(command.run(shlex.join(["nfd", *given])))
    except SystemExit as error:
        raise StateError(f"code that the command ran called sys.exit({error.code!r}). Remove the call.") from error
