"""Answers from a log of runs, in place of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import tyro

from nfd.cli.options import Options
from nfd.core.errors import UsageError
from nfd.runs.config import Config


class LogConfig(Config):
    """The settings of an answer from a log."""

    log: str
    """CSV of runs"""
    columns: tuple[str, ...] = ()
    """which column holds what"""


class LogOptions(Options):
    """Options of the commands that can answer from runs that others have trained."""

    log: Annotated[str, tyro.conf.arg(name="from")] = ""
    """CSV of runs, of any framework, to answer from; nothing is trained"""
    columns: tuple[str, ...] = ()
    """which column holds what, where its name is not recognised: lr=config/learning_rate; seed= ignores one"""

    @property
    def trains(self) -> bool:
        return not self.log

    def named_columns(self) -> dict[str, str | None]:
        """The columns by field."""
        pairs = [pair.partition("=") for pair in self.columns]
        if wrong := [field for field, sign, _ in pairs if not sign]:
            raise UsageError(f"--columns takes field=column, such as loss=eval/loss; got {', '.join(wrong)}.")
        return {field: column or None for field, _, column in pairs}

    def check_log(self, config: Config, used: Sequence[str] = ()) -> None:
        """UsageError for options of a log without one, and for those of training, but ``used``, with one."""
        if not self.log:
            if own := self.changed(*LogOptions.own()):
                raise UsageError(f"{', '.join(own)} is about a log; none was given. Add --from runs.csv.")
            return
        others = [name for name in type(self).model_fields if name not in (*Options.model_fields, *LogOptions.own())]
        names = [name for name in others if name not in (*used, *type(config).model_fields)]
        if unused := config.changed(*(n for n in type(config).model_fields if n not in used)) + self.changed(*names):
            raise UsageError(
                f"the runs in {self.log!r} are trained already; got {', '.join(unused)}, which would change nothing. "
                "Drop it, or leave out --from to train networks."
            )

    @staticmethod
    def own() -> list[str]:
        """The options that are about a log."""
        return [name for name in LogOptions.model_fields if name not in Options.model_fields]
