"""The words of a command line, read before the parser sees them: options of the command, with values of their kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro

from nfd.core.errors import InputError, nearest

_NOUNS = {int: "whole number", float: "number", str: "text"}


@dataclass(frozen=True)
class Setting:
    """What an option takes.

    Attributes:
        kinds: of a value: int, float, str, or bool for an option that takes none.
        choices: names to choose from, where there are some.
        count: how many values; None for any number.
        example: its default, as it is typed; empty where there is none. optional: whether None stands for that.
    """

    kinds: frozenset[type]
    choices: tuple[str, ...]
    count: int | None
    example: str
    optional: bool

    @classmethod
    def of(cls, annotation: Any, default: Any) -> Setting:
        """That of a field of this type."""
        count: int | None = 1
        leaves = list(_leaves(annotation))
        optional = NoneType in leaves
        for part in leaves:
            if get_origin(part) is tuple:
                entries = get_args(part)
                count = None if Ellipsis in entries else len(entries)
                leaves = list(_leaves(entries[0]))
        choices = [str(choice) for part in leaves if get_origin(part) is Literal for choice in get_args(part)]
        kinds = frozenset(part for part in leaves if isinstance(part, type) and part is not NoneType)
        example = " ".join(map(str, default)) if isinstance(default, tuple) else "" if default is None else str(default)
        return cls(kinds, tuple(choices), 0 if kinds == {bool} else count, example, optional)

    @property
    def is_list(self) -> bool:
        """Whether it takes several numbers or names, which commas may separate; commas in other texts are text."""
        return self.count != 1 and str not in self.kinds

    @property
    def expected(self) -> str:
        """In words."""
        if self.choices:
            return f"one {'or more ' if self.count is None else ''}of {', '.join(self.choices)}"
        noun = next((_NOUNS[kind] for kind in (str, float, int) if kind in self.kinds), "")
        words = f"{noun}s" if self.count is None else f"a {noun}" if self.count == 1 else f"{self.count} {noun}s"
        return f"{words}, such as {self.example}" if self.example else words

    def reads(self, text: str) -> bool:
        """Whether a text is a value of it."""
        if str in self.kinds or text in self.choices or (self.optional and text == "None"):
            return True
        for kind in self.kinds & {int, float}:
            try:
                kind(text)
            except ValueError:
                continue
            return True
        return False


def _leaves(annotation: Any) -> Iterator[Any]:
    """The types that a union stands for, without what is annotated."""
    if get_origin(annotation) is Annotated:
        yield from _leaves(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for part in get_args(annotation):
            yield from _leaves(part)
    else:
        yield annotation


def settings_of(kind: type[Any]) -> dict[str, Setting]:
    """What a command can be told, by option; what has a place on the line instead is called by its name alone."""
    hints, default, settings = get_type_hints(kind, include_extras=True), kind(), {}
    names: Iterable[str] = getattr(kind, "model_fields", None) or [field.name for field in fields(kind)]
    for name in names:
        said = get_args(hints[name])[1:] if get_origin(hints[name]) is Annotated else ()
        given = next((part.name for part in said if getattr(part, "name", None)), name)
        is_placed = tyro.conf.Positional in said or tyro.conf.Positional[str] == hints[name]
        option = name if is_placed else f"--{given.replace('_', '-')}"
        settings[option] = Setting.of(hints[name], getattr(default, name))
    return settings


def read(kind: type[Any], called: str, arguments: Sequence[str]) -> list[str]:
    """The arguments with ``--widths 64,128`` as two values; all are options of the command, with values that they take.

    Args:
        kind: the command. called: its name.

    Raises:
        InputError: naming the first that is not.
    """
    if any(argument in ("-h", "--help") or argument.startswith("--tyro-") for argument in arguments):
        return list(arguments)
    line = _Line(settings_of(kind), called)
    for argument in arguments:
        line.take(argument)
    line.end()
    return line.words


class _Line:
    """A command line, word by word."""

    def __init__(self, settings: dict[str, Setting], called: str) -> None:
        self.settings, self.called = settings, called
        self.words: list[str] = []
        self.option, self.values = "", list[str]()
        self.places = [name for name in settings if not name.startswith("--")]

    def take(self, argument: str) -> None:
        """Read one more word."""
        if argument.startswith("--"):
            self.end()
            typed, sign, values = argument.partition("=")
            self.option, self.values = self._known(typed), []
            self.words.append(typed)
            if sign:
                self._add(values)
        elif self.option and (self.settings[self.option].count is None or not self._is_full):
            self._add(argument)
        else:
            self._place(argument)

    def end(self) -> None:
        """Nothing more is said of the option."""
        setting = self.settings.get(self.option)
        if setting is not None and setting.count is not None and len(self.values) < setting.count:
            got = " ".join(self.values) or "none"
            raise self._refusal(f"{self.option} takes {setting.expected}; got {got}.")

    @property
    def _is_full(self) -> bool:
        count = self.settings[self.option].count
        return count is not None and len(self.values) >= count

    def _known(self, typed: str) -> str:
        """The option that a word names."""
        option = typed.replace("_", "-")
        off = f"--{option.removeprefix('--no-')}"
        if option in self.settings:
            return option
        if off in self.settings and self.settings[off].kinds == {bool}:
            return off
        raise self._refusal(f"there is no option {typed}.{nearest(typed, [*self.settings])}")

    def _add(self, argument: str) -> None:
        setting = self.settings[self.option]
        if setting.count == 0:
            raise self._refusal(f"{self.option} takes no value; got {argument!r}. Write {self.option} alone.")
        for value in argument.split(",") if setting.is_list and argument.strip(",") else [argument]:
            if not setting.reads(value):
                near = nearest(value, setting.choices)
                raise self._refusal(f"{self.option} takes {setting.expected}; got {value!r}.{near}")
            self.values.append(value)
            self.words.append(value)

    def _place(self, argument: str) -> None:
        """A word that is no option's value."""
        if self.places:
            setting = self.settings[self.places[0]]
            if not setting.reads(argument):
                said = f"{self.called} takes {setting.expected}; got {argument!r}.{nearest(argument, setting.choices)}"
                raise self._refusal(said)
            self.places = self.places if setting.count is None else self.places[1:]
            self.words.append(argument)
        elif not self.option:
            raise self._refusal(f"{self.called} takes no {argument!r}; options begin with --.")
        elif self.settings[self.option].count == 0:
            raise self._refusal(f"{self.option} takes no value; got {argument!r}. Write {self.option} alone.")
        else:
            got = " ".join([*self.values, argument])
            raise self._refusal(f"{self.option} takes {self.settings[self.option].expected}; got {got}.")

    def _refusal(self, said: str) -> InputError:
        return InputError(f"{said} See {self.called} --help.")
