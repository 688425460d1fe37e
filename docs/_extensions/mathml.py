"""Formulas as MathML, which browsers draw themselves: no script, no font, nothing to fetch.

docutils translates LaTeX; a command that it does not know is a warning, and so fails ``make docs``.
"""

from __future__ import annotations

import re
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
    app.connect("doctree-resolved", _joined)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _joined(_app: Sphinx, page: nodes.document, _name: str) -> None:
    """No line begins with what stands behind a formula."""
    for node in page.findall(nodes.math):
        after = node.next_node(nodes.Text, descend=False, siblings=True)
        if after is not None and (marks := re.match(r"[.,;:)?!\]]+", after)):
            node["after"] = marks[0]
            after.parent.replace(after, nodes.Text(after[marks.end() :]))


def _inline(writer: Any, node: nodes.math) -> None:
    shown = _translated(node, block=False)
    writer.body.append(
        f'<span class="joined">{shown}{node["after"]}</span>'
        if "after" in node
        else shown
    )
    raise nodes.SkipNode


def _block(writer: Any, node: nodes.math_block) -> None:
    number = (
        f'<span class="eqno">({node["number"]})</span>' if node.get("number") else ""
    )
    names = "".join(f' id="{escape(name)}"' for name in node.get("ids", ())[:1])
    writer.body.append(
        f'<div class="math"{names}>{number}{_translated(node, block=True)}</div>\n'
    )
    raise nodes.SkipNode


def _translated(node: nodes.Element, *, block: bool) -> str:
    text = node.astext()
    try:
        shown = str(tex2mathml(text, as_block=block)).replace(
            'false">|', 'false" lspace="0" rspace="0">|'
        )
        # log p
        return re.sub(
            r"<mo>&ApplyFunction;</mo>(?=\s*<(?!mo))", '<mspace width="0.17em"/>', shown
        )
    except ValueError as error:
        _LOG.warning("formula %r: %s", text, error, location=node)
        return f"<code>{escape(text)}</code>"
