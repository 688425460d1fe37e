"""A picture of an answer: a chart with its title, key and caption, drawn for pages and files."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

import altair as alt
import vl_convert

from nfd.core.answer import Tone
from nfd.core.errors import InputError
from nfd.core.tables import visible
from nfd.report.look import CONFIG, HOVER, VARIABLES

Kind = Literal["page", "half", "small"]
Spec = dict[str, Any]

# Pixels of the plotting area: on a page and on a phone, beside another one, and among many. Text is
# never scaled down, so that every place has its own drawing.
WIDTHS: dict[Kind, tuple[int, ...]] = {"page": (780, 280), "half": (350,), "small": (140,)}
# Parts of a Vega-Lite chart that load something, or link to it.
_OUTWARD = ("url", "href")
_CHARTS: dict[str, Any] = {
    "layer": alt.LayerChart,
    "vconcat": alt.VConcatChart,
    "hconcat": alt.HConcatChart,
    "mark": alt.Chart,
}


@dataclass(frozen=True)
class Picture:
    """A chart of an answer.

    Attributes:
        name: of its files.
        spec: the chart in Vega-Lite, with its data.
        title: above it; may be empty.
        label: what it shows, for readers who do not see it.
        caption: below it.
        note: a line between title and chart.
        state: a state in front of the note, with its tone.
        key: what the colours mean, by their CSS variables (``look.VARIABLES``).
        kind: how wide it is: as the ``page``, ``half`` of it, or ``small``.
    """

    name: str
    spec: Spec
    title: str = ""
    label: str = ""
    caption: str = ""
    note: str = ""
    state: tuple[Tone, str] | None = None
    key: Mapping[str, str] = field(default_factory=dict)
    kind: Kind = "page"

    @property
    def chart(self) -> Any:
        """The chart as Altair's object, which a notebook shows."""
        spec = _configured(self.spec)
        # Altair checks what a notebook shows, and does not take None for no background.
        spec["config"] = spec["config"] | {"background": "transparent"}
        for part, chart_class in _CHARTS.items():
            if part in self.spec:
                return chart_class.from_dict(spec)
        raise InputError(f"a chart needs one of {', '.join(_CHARTS)}; got {', '.join(self.spec)}.")

    def svgs(self) -> list[str]:
        """Draw it in every width of its kind, in the colours of the page around it."""
        return [_for_page(_svg(_sized(self.spec, width)), self) for width in WIDTHS[self.kind]]

    def files(self) -> tuple[bytes, bytes, bytes]:
        """Draw it as PDF, PNG and SVG, on white, for papers and slides."""
        width, *_ = WIDTHS[self.kind]
        svg = _svg(_sized(self.spec, width) | {"background": "white"})
        # Outside of a page nothing shows texts on hover.
        return files_of(svg.replace(HOVER, ""))

    def plain(self) -> dict[str, Any]:
        """Return it as JSON holds it; ``of`` reads it back."""
        return asdict(self)

    @staticmethod
    def of(plain: Any) -> Picture:
        """The picture that ``plain`` returned; ValueError with the reason if it is not one."""
        from pydantic import TypeAdapter, ValidationError

        try:
            picture = TypeAdapter(Picture).validate_python(plain)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "it"
            raise InputError(
                f"is not a picture that can be drawn: {where}: {first['msg'].lower()}."
            ) from None
        # The library that draws ends the process at a character of zero.
        picture = replace(picture, spec=_visible(picture.spec))
        outward = _outward(picture.spec)
        if outward:
            raise InputError(f"cannot be drawn: it would load or link something ({outward!r}).")
        unknown = sorted(set(picture.key.values()) - set(VARIABLES.values()))
        if unknown:
            raise InputError(f"cannot be drawn: key names no colour of a page: {unknown[0]!r}.")
        if not _CHARTS.keys() & picture.spec.keys():
            raise InputError(f"cannot be drawn: spec needs one of {', '.join(_CHARTS)}.")
        return picture


# A command that runs again writes most pictures as they were.
@lru_cache(maxsize=64)
def files_of(svg: str) -> tuple[bytes, bytes, bytes]:
    """Return an SVG as the contents of a PDF, a PNG and an SVG file."""
    return vl_convert.svg_to_pdf(svg), vl_convert.svg_to_png(svg, scale=2), svg.encode()


def row_of(pictures: Sequence[Picture]) -> Picture:
    """Draw pictures side by side as one, each under its title."""
    # Vega-Lite takes these only around the whole row.
    datasets: dict[str, Any] = {}
    parts = []
    for one in pictures:
        part: dict[str, Any] = {"title": one.title, **one.spec}
        datasets |= part.pop("datasets", {})
        part.pop("$schema", None)
        part.pop("config", None)
        parts.append(part)
    return Picture("row", {"hconcat": parts, "datasets": datasets})


def picture(name: str, chart: Any, **more: Any) -> Picture:
    """Make a picture of a chart of Altair's; ``more`` are the fields of ``Picture``."""
    # Not validated here, which is slow: the tests draw every kind.
    return Picture(name, chart.to_dict(validate=False), **more)


def _outward(part: Any) -> str:
    """The first key in a specification that loads or links something; empty without one."""
    values: Any = ()
    if isinstance(part, dict):
        for key in _OUTWARD:
            if key in part:
                return key
        values = part.values()
    elif isinstance(part, list):
        values = part
    for value in values:
        outward = _outward(value)
        if outward:
            return outward
    return ""


def _visible(part: Any) -> Any:
    """Write unseen characters by their code points, but for the mark of texts on hover."""
    if isinstance(part, str):
        mark = HOVER if part.startswith(HOVER) else ""
        return mark + visible(part.removeprefix(mark))
    if isinstance(part, dict):
        return {visible(name): _visible(value) for name, value in part.items()}
    if isinstance(part, list):
        return [_visible(value) for value in part]
    return part


def _configured(spec: Spec) -> Spec:
    return spec | {"config": {**spec.get("config", {}), **CONFIG}}


def _sized(spec: Spec, width: int) -> Spec:
    """The specification at a width of the plotting area."""
    if "vconcat" in spec:
        spec = spec | {"vconcat": [part | {"width": width} for part in spec["vconcat"]]}
    elif "hconcat" in spec:
        each = width // len(spec["hconcat"])
        spec = spec | {"hconcat": [part | {"width": each} for part in spec["hconcat"]]}
    else:
        spec = spec | {"width": width}
    return _configured(spec)


def _svg(spec: Spec) -> str:
    # What has no UTF-8 is drawn as a question mark.
    return _drawn(json.dumps(spec, ensure_ascii=False).encode("utf-8", "replace").decode())


# What is read from a file is drawn once to see that it can be, and once more for a page.
@lru_cache(maxsize=128)
def _drawn(text: str) -> str:
    return str(vl_convert.vegalite_to_svg(text, allowed_base_urls=[]))


def _for_page(svg: str, picture: Picture) -> str:
    """Put CSS variables in place of colours, texts on hover into titles, and a label in front."""
    for colour, variable in VARIABLES.items():
        svg = re.sub(re.escape(f'"{colour}"'), f'"var(--{variable})"', svg, flags=re.IGNORECASE)
    svg = re.sub(r'<(path|text|rect) aria-label="([^"]+)"([^>]*?)(/?)>', _hovered, svg)
    box = re.search(r'viewBox="0 0 ([\d.]+) [\d.]+"', svg)
    if box is None:
        raise RuntimeError("the drawing has no size")
    label = html.escape(visible(picture.label or picture.title), quote=True)
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {box[0]} role="img" aria-label="{label}" '
        f'style="max-width:{float(box[1]):.0f}px">'
    )
    return re.sub(r"<svg [^>]*>", lambda _: opening, svg, count=1)


def _hovered(mark: re.Match[str]) -> str:
    """A mark with its text on hover, where it was given one."""
    tag, text, rest, end = mark.groups()
    title = f"<title>{text.removeprefix(HOVER)}</title>" if text.startswith(HOVER) else ""
    if end:
        return f"<{tag}{rest}>{title}</{tag}>"
    return f"<{tag}{rest}>{title}"
