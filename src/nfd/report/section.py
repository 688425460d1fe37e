"""Sections of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import altair as alt


@dataclass(frozen=True)
class Label:
    """A coloured word in a cell of a table."""

    text: str
    tone: Literal["good", "partly", "bad", "open"]


@dataclass(frozen=True)
class Panel:
    """One of several charts that stand side by side, with its own title and caption."""

    chart: alt.LayerChart
    caption: str = ""
    title: str = ""


@dataclass(frozen=True)
class Section:
    """A section of a page: a heading, paragraphs, and optionally points, a chart or panels, a caption and a table.

    A cell of the table is a text, a ``Label`` or a list of paragraphs. ``folded`` hides the section behind its heading.
    A section of ``level`` 3 belongs to the last of level 2. ``cards`` turns the rows of a wide table into cards on a
    narrow page.
    """

    title: str
    paragraphs: Sequence[str]
    chart: alt.LayerChart | None = None
    table: Sequence[Mapping[str, Any]] = ()
    caption: str = ""
    points: Sequence[str] = ()
    folded: bool = False
    panels: Sequence[Panel] = ()
    level: Literal[2, 3] = 2
    cards: bool = False

    @property
    def charts(self) -> list[alt.LayerChart]:
        """Its charts, in the order of the page."""
        return [*([self.chart] if self.chart is not None else []), *(panel.chart for panel in self.panels)]
