"""What the commands of the paper share: where results go, settings from a file, where networks are trained."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import tyro
from pydantic import Field

from nfd.core import INTERRUPTED, InputError, UsageError, prepare_directory
from nfd.paper.settings import Config

if TYPE_CHECKING:
    from nfd import Sweep

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
    executor: str = "processes"
    """where networks are trained: processes of this machine, inline (this process), or ray (a cluster)"""
    workers: Annotated[int, Field(ge=1)] | None = None
    """number of processes; by default as many as the cores allow"""
    device: str = "cpu"
    """where it computes: cpu, cuda"""

    def run(self, command: str) -> int:
        """Check the settings, prepare OUT, answer; ``command`` is the line that asked. Returns the exit code."""
        config = self.settings()
        self.check_used(config)
        directory = prepare_directory(self.out, self.files())
        try:
            return self.answer(config, directory, command)
        except KeyboardInterrupt:
            print(f"nfd: interrupted. The same command continues from what {directory} holds.", file=sys.stderr)
            return INTERRUPTED

    def files(self) -> list[str]:
        """The files that are written to OUT; ``*`` stands for any text."""
        return [*PAGE]

    def check_used(self, config: Any) -> None:
        """UsageError for options that have no part in what is asked."""

    def answer(self, config: Any, directory: Path, command: str) -> int:
        """Compute, write to ``directory``, print; returns the exit code."""
        raise NotImplementedError

    def sweep(self, directory: Path) -> Sweep:
        """The sweep in ``directory``."""
        from nfd import Sweep

        return Sweep(directory, self.workers, self.executor, self.device)

    @classmethod
    def settings_type(cls) -> type[Config]:
        """The configuration that this command adds its options to."""
        return next(base for base in cls.__mro__ if issubclass(base, Config) and not issubclass(base, Options))

    @classmethod
    def parsed(cls, name: str, arguments: Sequence[str]) -> Self:
        """The command for these arguments: what the file of ``--config`` holds stands for options not given."""
        parser = argparse.ArgumentParser("nfd", add_help=False, allow_abbrev=False)
        parser.add_argument("--config")
        path = parser.parse_known_args(arguments)[0].config
        default = cls() if path is None else cls._from_file(path)
        return tyro.cli(cls, prog=f"nfd paper {name}", default=default, args=list(arguments))

    @classmethod
    def _from_file(cls, path: str) -> Self:
        try:
            settings = cls.settings_type().load(path, partial=True)
        except InputError as error:
            raise UsageError(str(error)) from None
        # nothing is checked here: options to come may complete what the file says
        return cls.model_construct(**(dict(cls()) | dict(settings) | {"config": path}))

    def settings(self) -> Any:
        """The settings alone, checked again; ``data_dir`` is made absolute, so that they hold in any directory."""
        kind = self.settings_type()
        values = {name: getattr(self, name) for name in kind.model_fields}
        if values.get("data_dir"):
            values["data_dir"] = os.path.abspath(os.path.expanduser(values["data_dir"]))
        return kind(**values)


def charts(*names: str) -> list[str]:
    """The files of charts of these names."""
    return [f"{name}.{kind}" for name in names for kind in ("csv", "pdf", "png")]
