"""How the series of a chart differ: colours and dashes by their roles and by columns of their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

from nfd.core.tables import Row
from nfd.questions.finding import Axes, SeriesRole
from nfd.report.tidy import drawable, series_of

_SOLID = (1, 0)
_BROKEN = ((6, 4), (2, 3), (12, 3))
_DASHES = (_SOLID, *_BROKEN[:2])

# Okabe & Ito's colours, told apart by colour-blind readers too; then purple and brown, and dashes from there on.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7b5cc4", "#8c6239")
# Ordered families: viridis without its ends, from its dark side to its light one.
ORDERED = (
    "#482475", "#414487", "#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70", "#6cc04a", "#95b92c", "#bba818",
)  # fmt: skip
SHADES = ("#bebebe", "#a8a8a8", "#929292", "#7e7e7e", "#666666", "#4f4f4f")
INK = "#000000"
REFERENCE = "#858585"

# What is hard to see on a dark page, and what stands for it there.
DARK = {
    INK: "#ffffff",
    **dict(zip(SHADES, ("#5e5e5e", "#717171", "#868686", "#9b9b9b", "#b4b4b4", "#cbcbcb"), strict=True)),
    **dict(
        zip(
            ORDERED,
            ("#8f7cf0", "#6f8ff5", "#4ba3ef", "#34b5df", "#2cc4c4", "#38d1a3", "#5fdb80", "#8fe35f", "#c3e645",
             "#f2e442"),
            strict=True,
        )
    ),
    "#0072B2": "#3d8fe6", "#56B4E9": "#a3dcff", "#D55E00": "#f07c28", "#009E73": "#22b88c", "#7b5cc4": "#a58bf0",
    "#8c6239": "#c08a55",
}  # fmt: skip


@dataclass(frozen=True)
class Series:
    """How the rows of one series are drawn: as a line of this colour and dash; a reference thin and without points."""

    name: str
    colour: str
    dash: tuple[int, int] = _SOLID
    reference: bool = False


def styled(rows: Sequence[Row], axes: Axes) -> list[Series]:
    """How the series of these rows are drawn: by their role; those without one by the columns that ``axes`` names."""
    firsts: dict[str, Row] = {}
    for row in rows:
        firsts.setdefault(series_of(row), row)
    names: dict[Any, list[str]] = {
        role: [name for name, row in firsts.items() if row.get("role") == role] for role in SeriesRole
    }
    equals = {name: row for name, row in firsts.items() if not any(name in own for own in names.values())}
    predictions = names[SeriesRole.PREDICTION]
    return [
        *_greys(names[SeriesRole.LEVEL]),
        *_greys(predictions[:-1]),
        *(Series(name, INK) for name in predictions[-1:]),
        *map(Series, names[SeriesRole.REAL], cycle(COLOURS), cycle(_BROKEN)),
        *_equals(equals, axes),
    ]


def references(names: Sequence[str]) -> list[Series]:
    """Lines to compare with: grey, their dashes shorter from one to the next."""
    dashes = ((4, 3), (2, 2), (8, 3))
    return [Series(name, REFERENCE, dashes[k % len(dashes)], reference=True) for k, name in enumerate(names)]


def _greys(names: Sequence[str]) -> list[Series]:
    return [Series(name, SHADES[k * len(SHADES) // len(names)]) for k, name in enumerate(names)]


def _equals(rows: Mapping[str, Row], axes: Axes) -> list[Series]:
    """Series by name and first row, in the colour and the dash of what their columns hold."""
    if len(rows) == 1:
        return [Series(name, INK) for name in rows]
    hues = {name: _hue(row.get(axes.colour, name)) for name, row in rows.items()}
    drawn = _coloured(list(dict.fromkeys(hues.values())))
    series = [Series(name, *drawn[hues[name]]) for name in rows]
    if axes.dash is None:
        return series
    groups = [str(row.get(axes.dash)) for row in rows.values()]
    places = {group: k for k, group in enumerate(dict.fromkeys(groups))}
    return [replace(s, dash=_DASHES[places[g] % len(_DASHES)]) for s, g in zip(series, groups, strict=True)]


def _hue(value: object) -> float | str:
    return float(value) if drawable(value) else str(value)


def _coloured(hues: Sequence[float | str]) -> dict[float | str, tuple[str, tuple[int, int]]]:
    """A colour and a dash for every hue: growing colours for numbers, black for the few that are none.

    Names differ in their dashes too, as their colours are alike in grey.
    """
    numbers = sorted(hue for hue in hues if isinstance(hue, float))
    others = [hue for hue in hues if isinstance(hue, str)]
    if len(numbers) > 1 and len(others) <= len(_DASHES):
        steps = (len(ORDERED) - 1) / (len(numbers) - 1)
        growing = {hue: (ORDERED[round(k * steps)], _SOLID) for k, hue in enumerate(numbers)}
        return growing | {hue: (INK, _DASHES[k]) for k, hue in enumerate(others)}
    return {hue: (COLOURS[k % len(COLOURS)], _DASHES[k % len(_DASHES)]) for k, hue in enumerate(hues)}
