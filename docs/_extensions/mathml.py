"""Formulas as MathML, which browsers draw themselves: no script, no font, nothing to fetch.

docutils translates LaTeX; a command that it does not know is a warning, and so fails ``make docs``.
"""

from __future__ import annotations

from html import escape
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

_LOG = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(_translated(node, block=False))
    raise nodes.SkipNode


def _block(writer: Any, node: nodes.math_block) -> None:
    number = f'<span class="eqno">({node["number"]})</span>' if node.get("number") else ""
    names = "".join(f' id="{escape(name)}"' for name in node.get("ids", ())[:1])
    writer.body.append(f'<div class="math"{names}>{number}{_translated(node, block=True)}</div>\n')
    raise nodes.SkipNode


def _translated(node: nodes.Element, *, block: bool) -> str:
    text = node.astext()
    try:
        return str(tex2mathml(text, as_block=block))
    except ValueError as error:
        _LOG.warning("formula %r: %s", text, error, location=node)
        return f"<code>{escape(text)}</code>"
