"""Charts as pictures: PDF and PNG, of one chart or of several side by side."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from typing import Any

import altair as alt
import vl_convert

from nfd.core.tables import visible

_WIDTH, _PANEL = 640, 270  # pixels of one chart, and of each of several
_CHARACTER = 6.5  # pixels of a title, on average
_LABEL = "#1a1a1a"  # of names at the ends of lines
_SAMPLE, _GAP = 26, 6  # pixels of the stroke before a name, and of the gaps on both sides of it

Pictures = tuple[bytes, bytes]  # PDF and PNG


def still(chart: alt.LayerChart, title: str = "") -> Pictures:
    """The chart as PDF and PNG, under its title.

    Lines are named at their ends where they are few, and by a legend elsewhere.
    """
    return _drawn(_spec(chart, title, _WIDTH))


def beside(charts: Mapping[str, alt.LayerChart]) -> Pictures:
    """Charts side by side, each under its title and with colours and axes of its own, as PDF and PNG."""
    panels = [_spec(chart, title, _PANEL) for title, chart in charts.items()]
    shared = {name: panels[0].pop(name) for name in ("$schema", "config", "params")}
    rows = {name: values for panel in panels for name, values in panel.pop("datasets").items()}
    kept = [{name: value for name, value in panel.items() if name not in shared} for panel in panels]
    own = dict.fromkeys(("color", "strokeDash"), "independent")
    return _drawn(shared | {"datasets": rows, "hconcat": kept, "spacing": 30, "resolve": {"scale": own, "legend": own}})


def _drawn(spec: dict[str, Any]) -> Pictures:
    text = json.dumps(spec, ensure_ascii=False).encode("utf-8", "replace").decode()  # what has no UTF-8 is drawn as ?
    drawn = vl_convert.vegalite_to_svg(text)
    return vl_convert.svg_to_pdf(drawn), vl_convert.svg_to_png(drawn, scale=2)


def _spec(chart: alt.LayerChart, title: str, width: int) -> dict[str, Any]:
    """What Vega-Lite draws: clips and unseen points, slow to draw, only where they show."""
    plain = chart.properties(width=width).to_dict(validate=False)  # the tests check every kind
    spec: dict[str, Any] = plain | {"layer": [layer for layer in plain["layer"] if layer["mark"].get("opacity") != 0]}
    for layer in spec["layer"]:
        layer["mark"]["clip"] = plain["usermeta"]["cut"]
    if plain["usermeta"]["ends"]:
        _name_ends(spec)
    if title:
        spec["title"] = {
            "text": textwrap.wrap(visible(title), int(width / _CHARACTER)),
            "anchor": "start",
            "fontWeight": "normal",
        }
    return spec


def _name_ends(spec: dict[str, Any]) -> None:
    """Put a stroke and the name of each series beside its last point, in place of the legend."""
    at = spec["layer"][-1]["encoding"]
    strokes = {one["name"]: one for one in spec["usermeta"]["series"]}
    spec["config"] = {**spec.get("config", {}), "view": {"stroke": None}}  # names stand across the frame
    for layer in spec["layer"]:
        for channel in ("color", "strokeDash"):
            if "field" in layer["encoding"].get(channel, {}):
                layer["encoding"][channel]["legend"] = None
    for end in spec["usermeta"]["ends"]:
        stroke, up = strokes[end["series"]], -end["shift"]
        sample = {"type": "rule", "xOffset": _GAP, "x2Offset": _GAP + _SAMPLE, "yOffset": up, "strokeWidth": 2}
        name = {"type": "text", "align": "left", "baseline": "middle", "dx": 2 * _GAP + _SAMPLE, "dy": up}
        encoding = {"x": at["x"], "y": {**at["y"], "field": "y"}}
        spec["layer"] += [
            {"data": {"values": [{"x": end["x"], "y": end["y"]}]}, "mark": mark, "encoding": encoding | more}
            for mark, more in (
                (sample | {"color": stroke["colour"], "strokeDash": stroke["dash"]}, {"x2": {"field": "x"}}),
                (name | {"text": end["series"], "color": _LABEL, "fontSize": 12}, {}),
            )
        ]
