"""The commands by name, and how a line is read as one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from cyclopts import App, Group

from nfd import __version__
from nfd.cli.check import CheckCommand
from nfd.cli.parser import add_command, make_app, read_line
from nfd.cli.plan import PlanCommand
from nfd.cli.predict import PredictCommand
from nfd.cli.report import ReportCommand
from nfd.cli.scaling_law import ScalingLawCommand
from nfd.cli.transfer import TransferCommand
from nfd.core.errors import InputError
from nfd.core.options import option
from nfd.core.words import nearest
from nfd.paper.commands import ClaimsCommand, FigureCommand, StudyCommand

_ABOUT = """Example: nfd check setup.py --widths 32 64 128 --depths 2 4 8 --lr 3e-3

setup.py is a Python file that defines make_model(width, depth) and batches. Of a
table of runs that you have: nfd scaling-law --from runs.csv forecasts a larger run,
and nfd transfer --from runs.csv its learning rate.
nfd COMMAND --help lists the options."""
_CODES = """Exit codes: 0 for an answer with ✓ or ?; 1 for one with ✗, which says that
something is wrong; 2 an error in your input or code; 70 a bug in nfd, with its
traceback; 130 interrupted by Ctrl-C or SIGTERM."""


@dataclass
class CompletionCommand:
    """Print a script that lets the shell complete commands, options and files.

    Example: nfd completion bash > ~/.local/share/bash-completion/completions/nfd

    For zsh, write it to a file _nfd in a folder of $fpath; for fish, to
    ~/.config/fish/completions/nfd.fish.
    """

    shell: Literal["bash", "zsh", "fish"] | None = option(
        None, "bash, zsh or fish", place="SHELL", group="Options"
    )

    def run(self, command: str) -> int:
        """Print the script; returns the exit code."""
        if self.shell is None:
            raise InputError(
                "completion needs the name of a shell: bash, zsh or fish, such as nfd completion "
                "bash."
            )
        print(make_parser().generate_completion(shell=self.shell))
        return 0


GROUPS: dict[str, dict[str, Any]] = {
    "Your model": {
        "check": CheckCommand,
        "transfer": TransferCommand,
        "scaling-law": ScalingLawCommand,
        "plan": PlanCommand,
        "report": ReportCommand,
    },
    "The limit": {"predict": PredictCommand},
    "The paper": {
        "paper study": StudyCommand,
        "paper figure": FigureCommand,
        "paper claims": ClaimsCommand,
    },
    "The shell": {"completion": CompletionCommand},
}
COMMANDS: dict[str, Any] = {}
for _commands in GROUPS.values():
    COMMANDS |= _commands
# Old names of commands, and what they are called now.
RENAMED = {
    "capacity": "scaling-law",
    **{name: f"paper {name}" for name in ("study", "figure", "claims")},
}


def read_command(words: Sequence[str]) -> Any:
    """Return the command that a line asks for, or the text of ``--help`` or ``--version``."""
    _check_name(words)
    return read_line(make_parser(), words)


@cache
def make_parser() -> App:
    """Return the parser of all commands."""
    app = make_app(
        "nfd",
        help=_ABOUT,
        help_epilogue=_CODES,
        version=f"nfd {__version__}",
        usage="nfd COMMAND [SETUP.py] [options]",
    )
    about = "Reproduce the paper: nfd paper study, nfd paper figure and nfd paper claims."
    paper = make_app("paper", help=about, group=_group("The paper"), help_epilogue="")
    app.command(paper)
    for flag in ("--help", "--version"):
        app[flag].show = False
    for title, commands in GROUPS.items():
        for place, (name, command_class) in enumerate(commands.items()):
            parent = paper if name.startswith("paper ") else app
            add_command(parent, f"nfd {name}", command_class, group=_group(title), sort_key=place)
    return app


@cache
def _group(title: str) -> Group:
    """Return the group of this title; cyclopts wants one object for all its commands."""
    return Group(title, sort_key=[*GROUPS].index(title))


def _check_name(words: Sequence[str]) -> None:
    """Raise InputError where there is no such command, with the name that was meant."""
    name = words[0] if words else "--help"
    top = {name.partition(" ")[0] for name in COMMANDS}
    if name not in top and not name.startswith("-"):
        hint = nearest(name, sorted(top))
        if name in RENAMED:
            hint = f" Did you mean {RENAMED[name]!r}?"
        raise InputError(f"there is no command {name!r}.{hint} See nfd --help.")
    if name == "paper" and len(words) > 1:
        parts = [name.removeprefix("paper ") for name in COMMANDS if name.startswith("paper ")]
        if words[1] not in parts and not words[1].startswith("-"):
            hint = nearest(words[1], parts)
            raise InputError(
                f"nfd paper has the commands {', '.join(parts)}; got {words[1]!r}.{hint}"
            )
