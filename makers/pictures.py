"""Pictures of pages: SVG whose text has 11 pixels on a phone, for light and dark pages."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import vl_convert

from nfd.report import look
from nfd.report.charts import COLOURS, DARK, INK

# Pixels.
FONT = 11
_USED = (INK, COLOURS[0], COLOURS[1])
_DARK = "".join(
    f"[stroke='{one}']{{stroke:{DARK[one]}}}[fill='{one}']{{fill:{DARK[one]}}}" for one in _USED
)
_STYLE = (
    "<style>svg{background:#fff}text{fill:#1a1a1a;font-family:Helvetica,Arial,sans-serif}"
    f"@media(prefers-color-scheme:dark){{svg{{background:#16181c}}text{{fill:#e8e6e3}}[stroke='#ddd']{{stroke:#3a3d42}}{_DARK}}}</style>"
)
# Colours of answers (``nfd.report.look``) on a dark page.
_LOOK_DARK = {
    look.INK: "#e9eaec",
    look.SOFT: "#a3abb5",
    look.LINE: "#32373e",
    look.BAND: "#3b434d",
    look.BLUE: "#62b1ec",
    look.ORANGE: "#ff9350",
    look.PAPER: "#16181c",
    look.RAMP[1]: "#6296bd",
    look.RAMP[3]: "#e4f2ff",
}
# Attributes that no reader sees: half of all characters.
_WORDY = (
    r' (?:aria-[a-z]+="[^"]*"|(?:class|role|pointer-events|font-family)="[a-z -]*"|opacity="1")'
)


def svg(chart: alt.TopLevelMixin, scale: float = 1.0) -> str:
    """The picture, ``scale`` times as large where there is room.

    Vega's descriptions are off and coordinates cut to a tenth of a pixel: these would be other
    people's data.
    """
    title = {
        "anchor": "start",
        "frame": "bounds",
        "fontSize": FONT + 1,
        "subtitleFontSize": FONT,
        "offset": 4,
    }
    spec = chart.to_dict(validate=False) | {
        "config": {
            "background": None,
            "aria": False,
            "axis": {
                "labelFontSize": FONT,
                "titleFontSize": FONT,
                "titleFontWeight": "normal",
                "grid": False,
                "labelOverlap": "greedy",
                "labelSeparation": 9,
            },
            "legend": {"labelFontSize": FONT, "columns": 2, "columnPadding": 16, "symbolSize": 200},
            "title": title | {"fontWeight": "normal"},
        }
    }
    head, _, body = vl_convert.vegalite_to_svg(json.dumps(spec)).partition(">")
    head = re.sub(
        r'(?<= )(width|height)="([\d.]+)"', lambda m: f'{m[1]}="{scale * float(m[2]):.0f}"', head
    )
    body = re.sub(r"(\d+\.\d)\d+(?=[^<>]*>)", r"\1", re.sub(_WORDY, "", body))
    return f"{head}>{_STYLE}{_look_style(body)}{body}\n"


def _look_style(body: str) -> str:
    """The colours of answers that a picture has: text keeps them, and a dark page changes them."""
    text = ""
    dark = ""
    for light_colour, dark_colour in _LOOK_DARK.items():
        if light_colour in body:
            text += f"text[fill='{light_colour}']{{fill:{light_colour}}}"
            dark += f"[stroke='{light_colour}']{{stroke:{dark_colour}}}"
            dark += f"[fill='{light_colour}'],text[fill='{light_colour}']{{fill:{dark_colour}}}"
    if not text:
        return ""
    return f"<style>{text}@media(prefers-color-scheme:dark){{{dark}}}</style>"


def chart(rows: Sequence[Mapping[str, Any]]) -> alt.Chart:
    """A chart whose data is in the picture."""
    return alt.Chart(alt.InlineData(values=[dict(row) for row in rows]))


def title(text: str) -> alt.Title:
    """A title in lines that a phone shows whole."""
    return alt.Title(textwrap.wrap(text, 46))
