"""The command ``nfd completion``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nfd.core.errors import InputError
from nfd.core.options import option


@dataclass
class CompletionCommand:
    """Print a script that lets the shell complete commands, options and files.

    Example: nfd completion bash > ~/.local/share/bash-completion/completions/nfd

    For zsh, write it to a file _nfd in a folder of $fpath; for fish, to
    ~/.config/fish/completions/nfd.fish.
    """

    shell: Literal["bash", "zsh", "fish"] | None = option(
        None, "bash, zsh or fish", place="SHELL", group="Options"
    )

    def run(self, command: str) -> int:
        """Print the script; returns the exit code."""
        from nfd.cli.commands import make_parser

        if self.shell is None:
            raise InputError(
                "completion needs the name of a shell: bash, zsh or fish, such as nfd completion "
                "bash."
            )
        print(make_parser().generate_completion(shell=self.shell))
        return 0
