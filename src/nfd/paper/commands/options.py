"""What the commands of the paper share: where results go, settings from a file, where networks are trained."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field

from nfd.core import Option, prepare_results, read_options
from nfd.paper.settings import Config

if TYPE_CHECKING:
    from nfd import Sweep


class Options(Config):
    """Options of a command beside the settings that decide its numbers."""

    out: str = "out"
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
        directory = prepare_results(self.out)
        return self.answer(config, directory, command)

    def check_used(self, config: Any) -> None:
        """InputError for options that have no part in what is asked."""

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
        about = inspect.getdoc(cls) or ""
        known = [
            Option(key, field.annotation, field.default, field.description or "", cls.places().get(key, ""))
            for key, field in cls.model_fields.items()
        ]
        given = read_options(f"nfd paper {name}", about, known, arguments)
        path = given.get("config")
        return cls(**given) if path is None else cls._from_file(path, given)

    @classmethod
    def places(cls) -> dict[str, str]:
        """What stands on the line without its name, and what for."""
        return {}

    @classmethod
    def _from_file(cls, path: str, given: Mapping[str, Any]) -> Self:
        settings = cls.settings_type().load(path, partial=True)
        return cls(**{name: getattr(settings, name) for name in settings.model_fields_set} | dict(given))

    def settings(self) -> Any:
        """The settings alone, checked again; ``data_dir`` is made absolute, so that they hold in any directory."""
        kind = self.settings_type()
        values = {name: getattr(self, name) for name in kind.model_fields}
        if values.get("data_dir"):
            values["data_dir"] = os.path.abspath(os.path.expanduser(values["data_dir"]))
        return kind(**values)
