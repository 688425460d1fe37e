"""What every command shares: where results go, and settings from a file."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import tyro

from nfd.core.errors import InputError, UsageError, nearest
from nfd.runs.config import Config

if TYPE_CHECKING:
    from nfd.questions.next_steps import NextStep

PAGE = ("report.html", "result.json", "config.toml")  # what most commands write beside their charts


class Options(Config):
    """Options of a command beside the settings that decide its numbers."""

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except InputError as error:
            raise UsageError(str(error)) from None

    out: str
    """directory for the results"""
    config: str | None = None
    """TOML file of settings, such as an earlier result's config.toml; options on the command line take precedence"""
    traceback: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """print the traceback of any error"""

    of_models: ClassVar[type[Options] | None] = None  # the form of the command that takes a constructor first
    ready: ClassVar[str] = "-"  # folder of the ready-made configurations that --config takes by name

    def run(self, command: str) -> int:
        """Check the settings, prepare OUT, answer; ``command`` is the line that asked. Returns the exit code."""
        config = self.settings()
        self.check_used(config)
        from nfd.core.files import prepare_directory

        directory = prepare_directory(self.out, self.files())
        return self.guarded(directory, lambda: self.answer(config, directory, command))

    def files(self) -> list[str]:
        """The files that are written to OUT; ``*`` stands for any text."""
        return [*PAGE]

    @property
    def trains(self) -> bool:
        """Whether what is asked needs networks that are trained for it."""
        return True

    def check_used(self, config: Any) -> None:
        """UsageError for options that have no part in what is asked."""

    def guarded(self, directory: Path, work: Callable[[], int]) -> int:
        """Do the work; commands that can be continued say so when they are interrupted."""
        return work()

    def answer(self, config: Any, directory: Path, command: str) -> int:
        """Compute, write to ``directory``, print; returns the exit code."""
        raise NotImplementedError

    @classmethod
    def form(cls, arguments: Sequence[str]) -> type[Options]:
        """The form of the command for these arguments: a constructor as package.module:name, put first, decides."""
        first = arguments[0] if arguments else ""
        is_model = ":" in first and not first.startswith("-") and not os.path.exists(first)
        return cls.of_models if is_model and cls.of_models is not None else cls

    @classmethod
    def settings_type(cls) -> type[Config]:
        """The configuration that this command adds its options to."""
        return next(base for base in cls.__mro__ if issubclass(base, Config) and not issubclass(base, Options))

    @classmethod
    def defaults(cls, arguments: Sequence[str]) -> Self:
        """What the command starts from: the file that ``--config`` names in ``arguments``, or nothing."""
        parser = argparse.ArgumentParser("nfd", add_help=False, allow_abbrev=False)
        parser.add_argument("--config")
        path = parser.parse_known_args(arguments)[0].config
        if path is None:
            return cls()
        if cls.settings_type() is Config:
            raise UsageError(f"--config is a file of settings, and this command has none; got {path!r}. Drop it.")
        presets = {file.stem: file for file in (Path(__file__).parent / "presets").glob(f"{cls.ready}/*.toml")}
        try:
            file = path if os.path.exists(path) else presets.get(path, path)
            settings = cls.settings_type().load(file, partial=True)
        except InputError as error:
            raise UsageError(f"{error}{nearest(path, presets)}") from None
        # nothing is checked here: options to come may complete what the file says
        return cls.model_construct(**(dict(cls()) | dict(settings) | {"config": path}))

    def settings(self) -> Any:
        """The settings alone, checked again; ``data_dir`` is made absolute, so that they hold in any directory."""
        kind = self.settings_type()
        values = {name: getattr(self, name) for name in kind.model_fields}
        if values.get("data_dir"):
            values["data_dir"] = os.path.abspath(os.path.expanduser(values["data_dir"]))
        return kind(**values)


class DeviceOptions(Options):
    """Options of the commands that compute."""

    device: str = "cpu"
    """where it computes: cpu, cuda"""


class ModelOptions(DeviceOptions):
    """Options of the commands, or of their forms, that train a constructor's networks."""

    model: tyro.conf.Positional[str] = ""
    """package.module:make_model, a function of (width, depth) that returns a torch.nn.Module"""
    device: str | None = None  # type: ignore[assignment]  # data sets lie on the CPU, batches of others anywhere
    """where it computes: cpu, cuda; by default where the batches lie"""


def printed(steps: Sequence[NextStep]) -> list[str]:
    """What to do next, in lines; none where there is nothing."""
    return ["Next:", *map(str, steps)] if steps else []


def charts(*names: str) -> list[str]:
    """The files of charts of these names."""
    return [f"{name}.{kind}" for name in names for kind in ("csv", "pdf", "png")]
