"""One HTML file that opens by double click and loads nothing from outside."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import altair as alt
import vl_convert

_STYLE = """
:root { color-scheme: light; --ink: #1a1a1a; --soft: #5c5c5c; --line: #ddd; }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: #fff; max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.chart { width: 100%; } .wide { overflow-x: auto; } p.note { color: var(--soft); font-size: .9rem; }
table { border-collapse: collapse; font-size: .92rem; } th, td { text-align: left; padding: .3rem 1rem .3rem 0;
  border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums; }
code { background: #f3f3f3; padding: .1rem .3rem; border-radius: 3px; overflow-wrap: anywhere; }
@media print { details { display: none; } }
"""


@dataclass(frozen=True)
class Section:
    """A heading, its reading in words, and optionally points, a chart with its caption and a table; folded or not."""

    title: str
    paragraphs: Sequence[str]
    chart: alt.LayerChart | None = None
    table: Sequence[Mapping[str, Any]] = ()
    caption: str = ""
    points: Sequence[str] = ()
    folded: bool = False


def page(title: str, sections: Sequence[Section]) -> str:
    """The page as HTML; every string from outside is escaped."""
    body = "\n".join(_section(index, section) for index, section in enumerate(sections))
    charts = {f"chart{i}": s.chart.to_dict() for i, s in enumerate(sections) if s.chart is not None}
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title><style>{_STYLE}</style></head>
<body><h1>{html.escape(title)}</h1>
{body}
<script>{_vega()}</script>
<script>
for (const [id, spec] of Object.entries({_script_safe(charts)}))
  vegaEmbed("#" + id, spec, {{actions: false, renderer: "svg"}});
</script></body></html>
"""


def _section(index: int, section: Section) -> str:
    parts = [f"<section><h2>{html.escape(section.title)}</h2>"]
    if section.folded:
        parts = [f"<section><details><summary>{html.escape(section.title)}</summary>"]
    parts += [f"<p>{html.escape(text)}</p>" for text in section.paragraphs]
    if section.points:
        parts.append("<ul>" + "".join(f"<li>{html.escape(text)}</li>" for text in section.points) + "</ul>")
    if section.chart is not None:
        parts.append(f'<div class="chart" id="chart{index}"></div>')
    if section.caption:
        parts.append(f'<p class="note">{html.escape(section.caption)}</p>')
    if section.table:
        parts.append(_table(section.table))
    return "\n".join([*parts, "</details></section>" if section.folded else "</section>"])


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(f"<th>{html.escape(str(key))}</th>" for key in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_shown(v))}</td>" for v in row.values()) + "</tr>" for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _script_safe(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(value).replace("<", "\\u003c")


@cache
def _vega() -> str:
    major_minor = ".".join(alt.SCHEMA_VERSION.split(".")[:2])
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", major_minor)).replace(
        "</script", "<\\/script"
    )
