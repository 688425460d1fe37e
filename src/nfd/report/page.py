"""One HTML file that opens by double click and loads nothing from outside."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from typing import Any

import altair as alt
import vl_convert
from markupsafe import Markup

from nfd.core.files import cached_path, replace_file
from nfd.report.section import Label, Panel, Section
from nfd.report.series import DARK
from nfd.report.templates import templates

__all__ = ["Label", "Panel", "Section", "page"]


def page(title: str, sections: Sequence[Section]) -> str:
    """The page as HTML; every string from outside is escaped."""
    parts = [(section, f"part{k}") for k, section in enumerate(sections)]
    charts = {f"{anchor}-{k}": _placed(chart) for section, anchor in parts for k, chart in enumerate(section.charts)}
    contents = [part for part in parts if not part[0].folded]
    vega = _vega() if charts else ""
    template = templates().get_template("page.html")
    return template.render(title=title, parts=parts, contents=contents, charts=charts, dark=DARK, vega=vega)


def _placed(chart: alt.LayerChart) -> dict[str, Any]:
    """The chart without its own legend, in place of which the page has buttons."""
    spec: dict[str, Any] = chart.to_dict(validate=False)  # the tests check every kind
    for layer in spec.get("layer", []):
        for channel in ("color", "strokeDash"):
            if "field" in layer["encoding"].get(channel, {}):
                layer["encoding"][channel]["legend"] = None
    return spec


@cache
def _vega() -> Markup:
    """The scripts that draw charts; vl-convert takes a second to bundle them."""
    snippet, version = "window.vegaEmbed = vegaEmbed;", ".".join(alt.SCHEMA_VERSION.split(".")[:2])
    path = cached_path("vega", [metadata.version("vl-convert-python"), version, snippet], ".js")
    try:
        bundle = path.read_text(encoding="utf-8")
    except OSError:
        bundle = str(vl_convert.javascript_bundle(snippet, version))
        with suppress(OSError):  # the next process bundles them again
            replace_file(path, bundle.encode())
    return Markup(bundle.replace("</script", "<\\/script"))
