"""How series are told apart: colours and dashes by what their names say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_SOLID, _DASHED = (1, 0), (6, 4)
_DASHES = (_SOLID, _DASHED, (2, 3))

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


def styled(names: Sequence[str]) -> list[Series]:
    """Predictions in shades of grey to black and real networks dashed in colours; ``family, member`` in the colour of
    one and the dash of the other; numbers that grow in colours that grow; all else in colours."""
    if any(name.startswith(("real", "infinitely")) for name in names):
        return _beside_predictions(names)
    if len(names) == 1:
        return [Series(names[0], INK)]
    if all(", " in name for name in names):
        return _paired(names)
    return [Series(name, colour, dash) for name, (colour, dash) in _coloured(names).items()]


def mapped(names: Sequence[str]) -> list[Series]:
    """The lines of a map in shades, light to dark, what is drawn on it in colours."""
    levels = [name for name in names if name.endswith("above the floor")]
    drawn = [name for name in names if name not in levels]
    shades = [Series(name, _spread(SHADES, k, len(levels))) for k, name in enumerate(levels)]
    return shades + [Series(name, COLOURS[k % len(COLOURS)]) for k, name in enumerate(drawn)]


def references(names: Sequence[str]) -> list[Series]:
    """Lines to compare with: grey, their dashes shorter from one to the next."""
    dashes = ((4, 3), (2, 2), (8, 3))
    return [Series(name, REFERENCE, dashes[k % len(dashes)], reference=True) for k, name in enumerate(names)]


def _beside_predictions(names: Sequence[str]) -> list[Series]:
    real = [name for name in names if name.startswith("real")]
    *rest, last = [name for name in names if name not in real] or [""]
    shades = [Series(name, SHADES[k * len(SHADES) // len(rest)]) for k, name in enumerate(rest)]
    own = [Series(name, COLOURS[k % len(COLOURS)], _DASHED) for k, name in enumerate(real)]
    return [*shades, *([Series(last, INK)] if last else []), *own]


def _paired(names: Sequence[str]) -> list[Series]:
    """The part with more values makes the colour, the other the dash."""
    pairs = {name: name.rsplit(", ", 1) for name in names}
    families, members = (_distinct(pair[k] for pair in pairs.values()) for k in (0, 1))
    hue = 0 if len(families) >= len(members) else 1
    colours = _coloured(families if hue == 0 else members)
    dashes = members if hue == 0 else families
    return [
        Series(name, colours[pair[hue]][0], _DASHES[dashes.index(pair[1 - hue]) % len(_DASHES)])
        for name, pair in pairs.items()
    ]


def _coloured(names: Sequence[str]) -> dict[str, tuple[str, tuple[int, int]]]:
    """A colour and a dash for every name: growing colours for an ordered family, black for the few outside of it."""
    family = _ordered(names)
    others = [name for name in names if name not in family]
    if len(family) > 1 and len(others) <= len(_DASHES):
        inside = {name: (_spread(ORDERED, k, len(family)), _SOLID) for k, name in enumerate(family)}
        return inside | {name: (INK, _DASHES[k]) for k, name in enumerate(others)}
    turns = ((name, *divmod(k, len(COLOURS))) for k, name in enumerate(names))
    return {name: (COLOURS[place], _DASHES[turn % len(_DASHES)]) for name, turn, place in turns}


def _ordered(names: Sequence[str]) -> list[str]:
    """The most names that differ by one number alone, as the number grows."""
    families: dict[tuple[str, str], dict[str, float]] = {}
    for name in names:
        for found in _NUMBER.finditer(name):
            frame = (name[: found.start()], name[found.end() :])
            families.setdefault(frame, {})[name] = float(found[0])
    largest = max(families.values(), key=len, default={})
    return sorted(largest, key=lambda name: largest[name]) if len(largest) > 1 else []


def _spread(colours: Sequence[str], k: int, count: int) -> str:
    return colours[round(k * (len(colours) - 1) / max(count - 1, 1))]


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))
