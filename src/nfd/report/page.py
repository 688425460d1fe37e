"""One HTML file that opens by double click and loads nothing from outside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from nfd.report.section import Label, Panel, Section, escaped, section_html
from nfd.report.series import DARK

__all__ = ["Label", "Panel", "Section", "page"]

# Nothing is loaded and nothing is sent, whatever a page shows; Vega makes functions of its own expressions.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
_LISTED = 4  # sections from which on a page has a table of contents


def page(title: str, sections: Sequence[Section]) -> str:
    """The page as HTML; every string from outside is escaped."""
    anchors = [f"part{k}" for k in range(len(sections))]
    body = "\n".join(map(section_html, sections, anchors))
    charts = {
        f"{anchor}-{k}": _placed(chart)
        for section, anchor in zip(sections, anchors, strict=True)
        for k, chart in enumerate(section.charts)
    }
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escaped(title)}</title><style>{_style()}</style></head>
<body><button type="button" id="scheme">light or dark</button><h1>{escaped(title)}</h1>
{_contents(sections, anchors)}
<main>
{body}
</main>
<script>{_vega() if charts else ""}</script>
<script>const charts = {_script_safe(charts)};
{_file("page.js")}</script></body></html>
"""


def _contents(sections: Sequence[Section], anchors: Sequence[str]) -> str:
    """Links to the headings of a long page."""
    links = [(s, f'<a href="#{a}">{escaped(s.title)}</a>') for s, a in zip(sections, anchors, strict=True)]
    open_ones = [f'<li class="level{s.level}">{link}</li>' for s, link in links if not s.folded]
    if len(open_ones) < _LISTED:
        return ""
    return f'<nav aria-label="contents"><ul>{"".join(open_ones)}</ul></nav>'


def _placed(chart: alt.LayerChart) -> dict[str, Any]:
    """The chart without its own legend, in place of which the page has buttons."""
    spec: dict[str, Any] = chart.to_dict(validate=False)  # the tests check every kind
    for layer in spec.get("layer", []):
        for channel in ("color", "strokeDash"):
            if "field" in layer["encoding"].get(channel, {}):
                layer["encoding"][channel]["legend"] = None
    return spec


def _style() -> str:
    """The style sheet, and what stands for colours that are hard to see on a dark page."""
    dark = "\n".join(
        f'.plot [stroke="{light}"] {{ stroke: light-dark({light}, {shown}); }} '
        f'.plot [fill="{light}"] {{ fill: light-dark({light}, {shown}); }}'
        for light, shown in DARK.items()
    )
    return f"{_file('page.css')}{dark}\n"


def _script_safe(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(value).replace("<", "\\u003c")


@cache
def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


@cache
def _vega() -> str:
    major_minor = ".".join(alt.SCHEMA_VERSION.split(".")[:2])
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", major_minor)).replace(
        "</script", "<\\/script"
    )
