"""Options of a command: fields of a dataclass that say what they are.

``nfd.cli.parser`` reads them from a line.
"""

from __future__ import annotations

import shlex
from dataclasses import field
from typing import Any


def option(default: Any, about: str, **more: Any) -> Any:
    """Return a field of a dataclass that is an option.

    Args:
        default: its value where it is not given. about: what it is, for ``--help``. more: ``name``
            if the option is called otherwise than the field; ``place`` of one that stands on the
            line without ``--``: ``"SETUP.py"``; ``group``, the title under which ``--help`` lists
            it; ``is_path=True`` where shells complete it by files.
    """
    return field(default=default, metadata={"about": about, **more})


def verbose_option() -> Any:
    """``--verbose`` of a command that answers."""
    return option(False, "print every sentence and row of the answer", group="Results")


def quiet_option() -> Any:
    """``--quiet`` of a command that answers."""
    return option(False, "print nothing: the exit code is the answer", group="Results")


def json_option() -> Any:
    """``--json`` of a command that answers."""
    about = "print result.json to standard output in place of the answer"
    return option(False, about, group="Results")


def again(command: str, option_name: str, *values: object) -> str:
    """Write a command of the shell again, with other values of an option.

    Args:
        command: what the user typed, such as ``nfd transfer setup.py --seeds 3``.
        option_name: such as ``--seeds``; added where the command does not have it.
        values: the new values.
    """
    # What it prints is read this time.
    words = [word for word in shlex.split(command) if word not in ("--json", "--quiet")]
    new = [option_name, *map(str, values)]
    kept = list[str]()
    place = len(words)
    is_value = False
    for word in words:
        # A Python file may stand anywhere, and is a value of no option.
        if word.startswith("--") or word.endswith(".py"):
            is_value = word.partition("=")[0] == option_name
            # Given twice, an option has its last value: none but the new one may stay.
            if is_value:
                place = min(place, len(kept))
        if not is_value:
            kept.append(word)
    return shlex.join([*kept[:place], *new, *kept[place:]])
