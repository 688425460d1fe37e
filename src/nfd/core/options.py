"""Options of a command, read by argparse from what a dataclass says of its fields."""

from __future__ import annotations

import argparse
import inspect
import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import field, fields
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from nfd.core.errors import InputError
from nfd.core.words import closest, nearest

_KINDS = {int: ("whole number", "N"), float: ("number", "X"), str: ("text", "TEXT")}
_NUMBERS = re.compile(r"[-+.\d][^=]*,[^=]*")  # 32,64,128 in place of 32 64 128


def option(default: Any, about: str, **more: str) -> Any:
    """A field of a dataclass that is an option.

    Args:
        default: its value where it is not given. about: what it is, for ``--help``. more: ``name`` if the option is
            called otherwise than the field; ``place`` of one that stands on the line without ``--``: ``"SETUP.py"``.
    """
    return field(default=default, metadata={"about": about, **more})


def read_dataclass(kind: Any, command: str, given: Sequence[str]) -> Any:
    """The dataclass of a command such as ``"nfd check"``, from the words after it.

    Its fields are int, float, str, bool (False by default), a Literal, a tuple of these, or one of them or None.

    Raises:
        InputError: naming the option and what it takes.
    """
    hints, options = get_type_hints(kind), {f.metadata.get("name", f.name): f for f in fields(kind)}
    places = [f.metadata["place"] for f in options.values() if "place" in f.metadata]
    width = shutil.get_terminal_size().columns - 2
    about = (textwrap.fill(" ".join(text.split()), width) for text in (inspect.getdoc(kind) or "").split("\n\n"))
    parser = _Parser(
        command,
        usage=" ".join([command, *places, "[options]"]),
        description="\n\n".join(about),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    names = {name: name if "place" in f.metadata else f"--{name.replace('_', '-')}" for name, f in options.items()}
    for name, f in options.items():
        placed = {"nargs": "?", "default": None, "metavar": f.metadata["place"]} if "place" in f.metadata else {}
        parser.add_argument(names[name], **_argument(hints[f.name], f.default, f.metadata["about"]) | placed)
    known, others = parser.parse_known_intermixed_args(_words(given))
    if others:
        wrong = next((word for word in others if word.startswith("--")), others[0])
        near = _nearest_option(wrong, names.values()) if wrong.startswith("--") else " Options begin with --."
        parser.error(f"there is no option {wrong!r}.{near}")
    values = {options[name].name: value for name, value in vars(known).items() if value is not None}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def _nearest_option(wrong: str, names: Iterable[str]) -> str:
    """A hint at the option that was meant; the dashes, which all have, are no likeness."""
    by_word = {name.removeprefix("--"): name for name in names if name.startswith("--")}
    close = closest(wrong.removeprefix("--"), by_word)
    return f" Did you mean {by_word[close]!r}?" if close else ""


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are errors of ours."""

    def error(self, message: str) -> NoReturn:
        said = message.removeprefix("argument ")
        raise InputError(f"{said}{'' if said.endswith(('.', '?')) else '.'} See {self.prog} --help.")


def _words(given: Sequence[str]) -> list[str]:
    """Split ``--widths=32,64`` into three words, and put a Python file first, wherever it stands on the line."""
    files = list[str]()
    words = list[str]()
    previous = ""
    for word in given:
        follows_an_option = previous.startswith("--") and "=" not in previous
        if word.endswith(".py") and not word.startswith("--") and not follows_an_option:
            # After --widths 32 64, or --rules mup, argparse would take the file for one more value.
            files.append(word)
        else:
            parts = word.split("=", 1) if word.startswith("--") else [word]
            for part in parts:
                words += part.split(",") if _NUMBERS.fullmatch(part) else [part]
        previous = word
    return [*files, *words]


def _argument(hint: Any, default: Any, about: str) -> dict[str, Any]:
    """What argparse is told of an option."""
    shown = " ".join(map(str, default)) if isinstance(default, tuple) else "" if default is None else str(default)
    help_ = (about if shown in ("", "False") else f"{about} (default: {shown})").replace("%", "%%")
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    (kind,) = (kind for kind in kinds if kind is not NoneType)
    if kind is bool:
        return {"action": "store_true", "help": help_}
    count: int | str | None = None
    if get_origin(kind) is tuple:
        kind, *others = get_args(kind)
        count = "*" if Ellipsis in others else 1 + len(others)
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    noun, metavar = ("", f"{{{','.join(choices)}}}") if choices else _KINDS[kind]
    expected = f"one of {', '.join(choices)}" if choices else f"{noun}s" if count else f"a {noun}"
    expected += f", such as {shown}" if shown and not choices else ""

    def read(text: str) -> Any:
        try:
            if not choices or text in choices:
                return text if choices else kind(text)
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"expected {expected}; got {text!r}.{nearest(text, choices)}")

    return {"type": read, "nargs": count, "metavar": metavar, "help": help_}
