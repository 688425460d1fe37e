"""Read lines of the shell as commands, by what the fields of a command's class say.

The parser is cyclopts.
"""

from __future__ import annotations

import inspect
import io
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from cyclopts import App, CycloptsError, Group, Parameter, Token
from cyclopts.exceptions import (
    CoercionError,
    MissingArgumentError,
    UnknownOptionError,
    UnusedCliTokensError,
)
from rich.console import Console

from nfd.cli.help_page import HelpPage
from nfd.core.errors import InputError
from nfd.core.words import closest, nearest

_KINDS = {int: ("a whole number", "N"), float: ("a number", "X"), str: ("a text", "TEXT")}
# Numbers such as 32,64,128 in place of 32 64 128.
_NUMBERS = re.compile(r"[-+.\d][^=]*,[^=]*")
_GROUPS = (
    "Question",
    "Model",
    "Data",
    "Sizes",
    "Training",
    "Run",
    "Table of runs",
    "Computing",
    "Results",
    "Options",
)


def make_app(name: str, **more: Any) -> App:
    """Return a parser without commands.

    What it prints is laid out by ``HelpPage``, and its complaints are raised.
    """
    return App(
        name=name,
        help_format="plaintext",
        help_formatter=HelpPage(),
        print_error=False,
        exit_on_error=False,
        verbose=False,
        result_action="return_value",
        **more,
    )


def add_command(app: App, line: str, command_class: Any, **more: Any) -> None:
    """Let a parser read a command, such as ``nfd check``.

    Its class is a dataclass whose fields are made by ``option``.
    """
    hints = get_type_hints(command_class)
    parameters = [_parameter(setting, hints[setting.name]) for setting in fields(command_class)]
    paths = {parameter.name for parameter in parameters if _is_path(parameter)}

    def make(*places: Any, **values: Any) -> Any:
        settings = inspect.signature(make).bind(*places, **values).arguments
        for name in paths & settings.keys():
            settings[name] = str(settings[name])
        return command_class(**settings)

    placed_first = sorted(parameters, key=lambda parameter: parameter.kind)
    make.__signature__ = inspect.Signature(placed_first)  # type: ignore[attr-defined]
    make.__doc__ = inspect.getdoc(command_class)
    usage = [line]
    for setting in fields(command_class):
        if "place" in setting.metadata:
            usage.append(setting.metadata["place"])
    if len(usage) - 1 < len(parameters):
        usage.append("[options]")
    app.command(make, name=line.split()[-1], usage=" ".join(usage), help_epilogue="", **more)


def read_line(app: App, words: Sequence[str]) -> Any:
    """Return the command of a line, or the text that it asks for: ``--help`` or ``--version``.

    Raises:
        InputError: naming the option and what it takes.
    """
    printed = io.StringIO()
    console = Console(file=printed, width=shutil.get_terminal_size().columns, color_system=None)
    try:
        command = app(_split(words), console=console)
    except CycloptsError as error:
        chain = " ".join([*app.name, *(error.command_chain or ())])
        raise InputError(f"{_complaint(error)} See {chain} --help.") from None
    if command is None:
        return printed.getvalue().rstrip()
    return command


# ---- From a field to a parameter of cyclopts


def _parameter(setting: Field[Any], hint: Any) -> inspect.Parameter:
    """Describe an option to cyclopts."""
    about = setting.metadata
    name = f"--{about.get('name', setting.name).replace('_', '-')}"
    parameter_kind: Any = inspect.Parameter.KEYWORD_ONLY
    if "place" in about:
        name = about["place"]
        parameter_kind = inspect.Parameter.POSITIONAL_ONLY
    kind = _kind_without_none(hint)
    described = Parameter(
        name=name,
        help=_help(about["about"], setting.default),
        group=_group(about.get("group", "Options")),
        metavar=about.get("place") or _metavar(kind),
        show_default=False,
        show_choices=False,
        negative="",
        allow_leading_hyphen=False,
        allow_repeating=True,
        consume_multiple=True if _is_list(kind) else None,
        converter=None if kind is bool else _converter(kind, setting.default),
    )
    return inspect.Parameter(
        setting.name,
        parameter_kind,
        default=setting.default,
        # Where pydantic is loaded, cyclopts checks defaults against this, None among them.
        annotation=Annotated[Path | None if about.get("is_path") else hint, described],
    )


@cache
def _group(title: str) -> Group:
    """Return the group of this title; cyclopts wants one object for all its options."""
    return Group(title, sort_key=_GROUPS.index(title))


def _is_path(parameter: inspect.Parameter) -> bool:
    return Path in get_args(get_args(parameter.annotation)[0])


def _kind_without_none(hint: Any) -> Any:
    """Return the one type of a hint such as ``int | None``."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    (kind,) = (kind for kind in kinds if kind is not NoneType)
    return kind


def _is_list(kind: Any) -> bool:
    return get_origin(kind) is tuple and Ellipsis in get_args(kind)


def _help(about: str, default: Any) -> str:
    shown = _shown(default)
    if not shown:
        return about
    return f"{about} (default: {shown})"


def _shown(default: Any) -> str:
    """Return a default as one would type it; empty where there is none to type."""
    if default is None or default is False:
        return ""
    if isinstance(default, tuple):
        return " ".join(map(str, default))
    return str(default)


def _metavar(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"{{{','.join(get_args(kind))}}}"
    if get_origin(kind) is not tuple:
        return _KINDS[kind][1] if kind in _KINDS else ""
    items = get_args(kind)
    noun = _KINDS[items[0]][1]
    if Ellipsis in items:
        return f"[{noun} ...]"
    return " ".join([noun] * len(items))


def _converter(kind: Any, default: Any) -> Callable[[Any, Sequence[Token]], Any]:
    """Return the function that reads the words of an option.

    Its complaints say what was expected, and what arrived.
    """
    is_tuple = get_origin(kind) is tuple
    item = get_args(kind)[0] if is_tuple else kind
    choices: tuple[Any, ...] = ()
    if get_origin(item) is Literal:
        choices = get_args(item)
        expected = f"one of {', '.join(choices)}"
    else:
        expected = _KINDS[item][0]
    if is_tuple:
        expected = f"{expected.removeprefix('a ')}s"
    if _shown(default) and not choices:
        expected += f", such as {_shown(default)}"

    def read(word: str) -> Any:
        if choices and word in choices:
            return word
        try:
            if not choices:
                return item(word)
        except ValueError:
            pass
        raise ValueError(f"expected {expected}; got {word!r}.{nearest(word, choices)}")

    def convert(_type: Any, tokens: Sequence[Token]) -> Any:
        # An option that is given twice has its last value. Words after each are numbered from 0.
        last = max(place for place, token in enumerate(tokens) if token.index == 0)
        values = [read(token.value) for token in tokens[last:]]
        if is_tuple:
            return tuple(values)
        return values[0]

    return convert


# ---- Lines, and complaints


def _split(words: Sequence[str]) -> list[str]:
    """Split ``--widths=32,64`` into three words, and put a Python file first.

    The file may stand anywhere on the line.
    """
    files = list[str]()
    rest = list[str]()
    previous = ""
    for word in words:
        follows_an_option = previous.startswith("--") and "=" not in previous
        if word.endswith(".py") and not word.startswith("--") and not follows_an_option:
            # After --widths 32 64, or --rules mup, the file would be taken for one more value.
            files.append(word)
        else:
            rest += _parts(word)
        previous = word
    command = rest[:1]
    return [*command, *files, *rest[1:]]


def _parts(word: str) -> list[str]:
    """Split an option from its value, and numbers at their commas."""
    parts = [word]
    if word.startswith("--"):
        parts = word.split("=", 1)
    words = list[str]()
    for part in parts:
        if _NUMBERS.fullmatch(part):
            words += part.split(",")
        else:
            words.append(part)
    return words


def _complaint(error: CycloptsError) -> str:
    """Say what is wrong with a line: in our words where these say more, else in the parser's."""
    if isinstance(error, UnknownOptionError):
        options = list[str]()
        for argument in error.argument_collection:
            options += argument.names
        # Where a place on the line takes it, the option is the word itself.
        wrong = error.token.keyword or error.token.value
        return f"there is no option {wrong!r}.{_nearest_option(wrong, options)}"
    if isinstance(error, CoercionError) and error.msg is not None and error.argument is not None:
        return f"{error.argument.name}: {error.msg}"
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        needed = error.argument.token_count()[0]
        values = "one value" if needed == 1 else f"{needed} values"
        count = len(error.tokens_so_far)
        return f"{error.argument.name}: expected {values}; got {count or 'none'}."
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"{error.unused_tokens[0]!r} belongs to no option. Options begin with --."
    return str(error)


def _nearest_option(wrong: str, names: Sequence[str]) -> str:
    """Return a hint at the option that was meant; the dashes, which all have, do not count."""
    by_word: Mapping[str, str] = {
        name.removeprefix("--"): name for name in names if name.startswith("--")
    }
    word = wrong.removeprefix("--")
    # What was cut short comes before what is spelt alike.
    longer = sorted(name for name in by_word if word and name.startswith(word))
    close = longer[0] if longer else closest(word, by_word)
    if not close:
        return ""
    return f" Did you mean {by_word[close]!r}?"
