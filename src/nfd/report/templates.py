"""The templates of pages: every string from outside is escaped."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from nfd.core.tables import visible
from nfd.report.section import Label


@cache
def templates() -> Environment:
    """The environment of all pages."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests |= {
        "label": lambda value: isinstance(value, Label),
        "paragraphs": lambda value: isinstance(value, list),
    }
    environment.policies["json.dumps_kwargs"] = {}  # keys in their own order
    return environment


def _shown(value: object) -> object:
    """A value before it is escaped: four digits, nothing unseen, and a question mark for what has no UTF-8."""
    if isinstance(value, Markup):
        return value
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return visible(text).encode("utf-8", "replace").decode()
