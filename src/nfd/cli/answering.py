"""How a command ends: what it prints, and its exit code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from nfd.core.answer import Answer, print_answer
from nfd.core.options import json_option, quiet_option, verbose_option


@dataclass
class AnsweringCommand:
    """What the commands share that end with an answer."""

    verbose: bool = verbose_option()
    quiet: bool = quiet_option()
    json: bool = json_option()

    def __post_init__(self) -> None:
        # Where --json prints the answer; None for ``sys.stdout``.
        self.stdout: TextIO | None = None

    def end(self, answer: Answer, page: Path | None, *remarks: str) -> int:
        """Print an answer as the options say; returns the exit code (``print_answer``)."""
        return print_answer(
            answer,
            page,
            *remarks,
            verbose=self.verbose,
            quiet=self.quiet,
            json_only=self.json,
            stdout=self.stdout,
        )
