"""Options of a command: fields of a dataclass that say what they are.

``nfd.cli.parser`` reads them from a line.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(default: Any, about: str, **more: Any) -> Any:
    """Return a field of a dataclass that is an option.

    Args:
        default: its value where it is not given. about: what it is, for ``--help``. more: ``name``
            if the option is called otherwise than the field; ``place`` of one that stands on the
            line without ``--``: ``"SETUP.py"``; ``group``, the title under which ``--help`` lists
            it; ``is_path=True`` where shells complete it by files.
    """
    return field(default=default, metadata={"about": about, **more})
