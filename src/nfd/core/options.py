"""Options of a command, read by argparse from what a class says of them."""

from __future__ import annotations

import argparse
import inspect
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from nfd.core.errors import InputError, nearest

_NOUNS = {int: "whole number", float: "number", str: "text"}
_NUMBERS = re.compile(r"[-+.\d][^=]*,[^=]*")  # 32,64,128 in place of 32 64 128


@dataclass(frozen=True)
class Option:
    """An option of a command.

    Attributes:
        name: of the setting; the option is ``--name`` with hyphens, or stands on the line if it has a ``place``.
        kind: its type: int, float, str, bool, a Literal, a tuple of these, or one of them or None.
        default: its value where it is not given.
        about: what it is, for ``--help``.
        place: what stands for it on the line, such as ``"SETUP.py"``.
    """

    name: str
    kind: Any
    default: Any
    about: str
    place: str = ""


def option(default: Any, about: str, **more: str) -> Any:
    """A field of a dataclass that is an option; ``name`` if it is called otherwise, ``place`` of one without ``--``."""
    return field(default=default, metadata={"about": about, **more})


def read_dataclass(kind: Any, command: str, given: Sequence[str]) -> Any:
    """The dataclass of a command, with what a line gives to its options (``read_options``)."""
    hints = get_type_hints(kind)
    names = {f.metadata.get("name", f.name): f for f in fields(kind)}
    options = [
        Option(name, hints[f.name], f.default, f.metadata["about"], f.metadata.get("place", ""))
        for name, f in names.items()
    ]
    values = read_options(command, inspect.getdoc(kind) or "", options, given)
    return kind(**{names[name].name: value for name, value in values.items()})


def read_options(command: str, about: str, options: Sequence[Option], given: Sequence[str]) -> dict[str, Any]:
    """The values that a command line gives, by name; those of other options are not in it.

    Args:
        command: as it is typed, such as ``"nfd check"``. about: its help. given: the words after it.

    Raises:
        InputError: naming the option and what it takes.
    """
    places = [option for option in options if option.place]
    parser = _Parser(
        command,
        usage=" ".join([command, *(option.place for option in places), "[options]"]),
        description="\n\n".join(_paragraphs([*about.split("\n\n"), *(f"{o.place}: {o.about}." for o in places)])),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    for option in options:
        if not option.place:
            parser.add_argument(f"--{option.name.replace('_', '-')}", **_arguments(option))
    known, others = parser.parse_known_args(_words(given))
    values = vars(known)
    for option in places:  # not argparse's: its optional places take nothing after an option
        if others and not others[0].startswith("-"):
            values[option.name] = _reader(option)(others.pop(0))
    if others:
        wrong = next((word for word in others if word.startswith("--")), others[0])
        names = [f"--{option.name.replace('_', '-')}" for option in options if not option.place]
        near = nearest(wrong, names) if wrong.startswith("--") else " Options begin with --."
        parser.error(f"there is no option {wrong!r}.{near}")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are errors of ours."""

    def error(self, message: str) -> NoReturn:
        said = message.removeprefix("argument ")
        raise InputError(f"{said}{'' if said.endswith(('.', '?')) else '.'} See {self.prog} --help.")


def _paragraphs(texts: Sequence[str]) -> Iterator[str]:
    """Texts in lines of the terminal's width."""
    width = shutil.get_terminal_size().columns - 2
    return (textwrap.fill(" ".join(text.split()), width) for text in texts)


def _words(given: Sequence[str]) -> Iterator[str]:
    """The words with ``--widths=32,64`` as three of them."""
    for word in given:
        for part in word.split("=", 1) if word.startswith("--") else [word]:
            yield from part.split(",") if _NUMBERS.fullmatch(part) else [part]


def _arguments(option: Option) -> dict[str, Any]:
    """What argparse is told of an option."""
    shown = " ".join(map(str, option.default)) if isinstance(option.default, tuple) else option.default
    about = option.about if shown in (None, "", False, ()) else f"{option.about} (default: {shown})"
    about = about.replace("%", "%%")
    kinds, choices, count = _parts(option.kind)
    if kinds == {bool}:
        return {"action": argparse.BooleanOptionalAction if option.default else "store_true", "help": about}
    metavar = "N" if kinds <= {int} and kinds else "X" if kinds <= {int, float} and kinds else "TEXT"
    metavar = f"{{{','.join(choices)}}}" if choices else metavar
    return {"type": _reader(option), "nargs": count, "metavar": metavar, "help": about}


def _reader(option: Option) -> Callable[[str], Any]:
    """The function that reads one value."""
    kinds, choices, count = _parts(option.kind)
    noun = next((_NOUNS[kind] for kind in (str, float, int) if kind in kinds), "")
    expected = f"one of {', '.join(choices)}" if choices else f"a {noun}" if count is None else f"{noun}s"
    if option.default not in (None, "", ()) and not choices:
        default = option.default if isinstance(option.default, tuple) else (option.default,)
        expected += f", such as {' '.join(map(str, default))}"

    def read(text: str) -> Any:
        if text in choices or (str in kinds and not choices):
            return text
        for kind in sorted(kinds - {str}, key=(int, float).index):
            try:
                return kind(text)
            except ValueError:
                continue
        raise argparse.ArgumentTypeError(f"expected {expected}; got {text!r}.{nearest(text, choices)}")

    return read


def _parts(kind: Any) -> tuple[set[type], list[str], int | str | None]:
    """The types of one value, the names to choose from, and how many values: None of one, ``"*"`` of any number."""
    count: int | str | None = None
    leaves = [*_leaves(kind)]
    for leaf in leaves:
        if get_origin(leaf) is tuple:
            entries = get_args(leaf)
            count = "*" if Ellipsis in entries else len(entries)
            leaves = [*_leaves(entries[0])]
    choices = [str(choice) for leaf in leaves if get_origin(leaf) is Literal for choice in get_args(leaf)]
    return {leaf for leaf in leaves if isinstance(leaf, type) and leaf is not NoneType}, choices, count


def _leaves(kind: Any) -> Iterator[Any]:
    """The types that a union stands for, without what is annotated."""
    if get_origin(kind) is Annotated:
        yield from _leaves(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType):
        for part in get_args(kind):
            yield from _leaves(part)
    else:
        yield kind
