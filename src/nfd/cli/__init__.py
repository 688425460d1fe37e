"""The ``nfd`` command.

Sizes, seeds, learning rates and rules are on the line, the model and its batches in a Python file.
What a command needs is imported when it runs: ``nfd --help`` loads no PyTorch, and Ctrl-C is
answered from the start.
"""

from __future__ import annotations

from nfd.cli.commands import COMMANDS, read_command
from nfd.cli.entry import main

__all__ = ["COMMANDS", "main", "read_command"]
