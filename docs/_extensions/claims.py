"""``{claims}`` shows every statement of ``claims.json`` in a table, with a filter where JavaScript
runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

CLAIMS = Path(__file__).parents[1] / "claims.json"
# by the abstracts of versions 2 and 3
RESTATED = {"theorem-1", "corollary1-first-step", "corollary1-trained"}
HEAD = ("claim", "the paper says", "version", "verdict", "measured, 95 %")

_STYLE = """<style>
.claims table { border-collapse: collapse; width: 100%; font-size: 0.85rem; line-height: 1.4; }
.claims th, .claims td { border-bottom: 1px solid var(--color-background-border); padding: 0.4rem 0.5rem;
  text-align: left; vertical-align: top; }
.claims summary { cursor: pointer; color: var(--color-foreground-secondary); }
.claims input { box-sizing: border-box; width: 100%; max-width: 24rem; padding: 0.4rem; font: inherit;
  color: inherit; background: none; border: 1px solid var(--color-foreground-muted); }
.claims input::placeholder { color: var(--color-foreground-secondary); opacity: 1; }
.claims small { display: block; color: var(--color-foreground-secondary); }
@media (max-width: 46rem) {
  .claims thead { display: none; }
  .claims tr { display: block; border-bottom: 1px solid var(--color-background-border); padding: 0.5rem 0; }
  .claims td { display: block; border: 0; padding: 0.1rem 0; }
  .claims tr[hidden] { display: none; }
  .claims td[data-name]::before { content: attr(data-name) ": "; color: var(--color-foreground-secondary); }
}
</style>"""
_SCRIPT = """<script>
(() => {
  const box = document.currentScript.parentElement, rows = [...box.querySelectorAll("tbody tr")];
  const field = Object.assign(document.createElement("input"), {
    type: "search", placeholder: "Filter: does not hold, fig4, Prop. 6", ariaLabel: "Filter the statements",
  });
  const count = document.createElement("p");
  const show = () => {
    const words = field.value.toLowerCase().trim();
    for (const row of rows) row.hidden = !row.dataset.text.includes(words);
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} statements`;
  };
  count.setAttribute("role", "status");
  field.addEventListener("input", show);
  box.prepend(field, count);
  show();
})();
</script>"""


class Claims(SphinxDirective):
    """The table."""

    def run(self) -> list[nodes.Node]:
        """HTML as it is."""
        self.env.note_dependency(str(CLAIMS))
        rows = json.loads(CLAIMS.read_text(encoding="utf-8"))["rows"]
        return [nodes.raw("", table(rows), format="html")]


def table(rows: list[dict[str, Any]]) -> str:
    """The HTML of these statements."""
    head = "".join(f'<th scope="col">{name}</th>' for name in HEAD)
    body = "\n".join(map(_row, rows))
    return (
        f'<div class="claims">{_STYLE}\n<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n'
        f"{_SCRIPT}</div>"
    )


def _row(row: Mapping[str, Any]) -> str:
    version = "1; abstracts of 2 and 3" if row["id"] in RESTATED else "1"
    tried = "; ".join(row["tried"])
    more = {
        "How": row["measurement"],
        "Reading": row["reading"],
        "Tried": tried and f"{tried}.",
    }
    details = "".join(
        f"<p><b>{name}.</b> {escape(text)}</p>" for name, text in more.items() if text
    )
    cells = [
        f"<td><code>{row['id']}</code><small>{escape(row['source'])}</small></td>",
        f"<td>{escape(row['statement'])}<details><summary>How it was "
        f"measured</summary>{details}</details></td>",
        *(
            f'<td data-name="{name}">{escape(text)}</td>'
            for name, text in zip(
                HEAD[2:], (version, row["verdict"], number(row)), strict=True
            )
        ),
    ]
    text = escape(
        " ".join(
            [
                row["id"],
                row["source"],
                row["statement"],
                f"version {version}",
                row["verdict"],
            ]
        ).lower()
    )
    return f'<tr id="{row["id"]}" data-text="{text}">{"".join(cells)}</tr>'


def number(row: Mapping[str, Any]) -> str:
    """The value and its 95 % interval in three digits."""
    if row["value"] is None:
        return "none"
    value, low, high = (
        f"{row[name]:#.3g}".rstrip(".") for name in ("value", "low", "high")
    )
    return (
        f"{value} (exact)"
        if row["low"] == row["high"] == row["value"]
        else f"{value} [{low}, {high}]"
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_directive("claims", Claims)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
