"""The meters of a check: what each is, how it may change with size, and what to do if it does.

``METERS`` is the only place that knows a meter by its name. To add one, write a row here and a
function of its number in ``NUMBERS`` of ``nfd.meters.updates`` (or in the observer of
``nfd.meters.check``, where training must be seen). Verdicts, tables, charts, advice, pages and
``nfd.Watch`` follow from the row.

A meter that changes with size in a sound network says so by a ``Natural`` trend. Without one,
growth beyond the thresholds of ``nfd.meters.verdict`` is a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from nfd.core.estimates import Interval
from nfd.core.names import AXES, Axis, RuleName
from nfd.scaling.rules import RULES

Verdict = Literal["STABLE", "LIMIT", "COLLAPSES", "FALLS", "GROWS", "UNCERTAIN", "NOT MEASURED"]

# Exponents, chosen by both errors of a check (docs/verdicts.md): within the clear one a meter is
# stable, and a trend is certain only where its whole interval lies beyond the sure one.
SURE_EXPONENT = 0.15
CLEAR_EXPONENT = 0.25
# The exponent of a mean of independent parts
INDEPENDENT_EXPONENT = -0.5


# ---- What a row consists of


@dataclass(frozen=True)
class Natural:
    """A trend that sound networks show, and that is not a fault as far as this explains it.

    Attributes:
        axis: along which it is seen.
        verdict: the verdict that takes the place of ``"COLLAPSES"``.
        reason: a key of ``EXPLANATIONS``; ``"trend"`` to give the advice of the row.
        explains: ``explains(slope, direction)``, whether it explains an exponent with this
            interval. ``direction`` is the part of the exponent that belongs to how updates are
            directed, and not to their size (``nfd.meters.verdict.rows``).
    """

    axis: Axis
    verdict: Verdict
    reason: str
    explains: Callable[[Interval, float], bool]


@dataclass(frozen=True)
class Advice:
    """What was seen of a meter that grows or collapses, and what prevents it.

    Attributes:
        seen: the likely cause, in words.
        rules: the rules that prevent it; empty where none does.
        price: what the remedy costs, appended to it.
        rounds_away: whether rounding to 16 bits has this effect too, and is named where it is seen.
    """

    seen: str
    rules: tuple[RuleName, ...] = ()
    price: str = ""
    rounds_away: bool = False


@dataclass(frozen=True)
class Bound:
    """What a meter would be at perfect alignment. It judges the meter, and is not one of the table.

    Where the bound is stable and the meter falls, directions fall and not sizes.

    Attributes:
        name: the name under which it is read.
        least_fall: how much faster than the bound the meter must fall for this to count.
    """

    name: str
    least_fall: float = SURE_EXPONENT


@dataclass(frozen=True)
class Meter:
    """One number that a check reads of every network.

    Attributes:
        title: its name above charts; a change by training has a delta in front.
        meaning: what it is, in words and by its equation.
        quantity: what it is the size of, as a watch says it; empty where its name says it.
        axes: along which it is judged.
        bound: what it would be at perfect alignment, where that is read.
        natural: trends of sound networks; the first that explains an exponent counts.
        advice: by axis and verdict.
        is_of_one_step: whether it stays as it is after every later step.
        definition: the first ``DEFINITION`` of ``nfd.meters.updates`` whose stored numbers mean the
            same as numbers that are read now.
    """

    title: str
    meaning: str
    quantity: str = ""
    axes: tuple[Axis, ...] = AXES
    bound: Bound | None = None
    natural: tuple[Natural, ...] = ()
    advice: Mapping[tuple[Axis, Verdict], Advice] = field(default_factory=dict)
    is_of_one_step: bool = False
    definition: int = 1


# ---- Trends of sound networks

EXPLANATIONS = {
    "limit": "no fault: {change}, as in small sound networks, whose independent parts add up as "
    "width^-1/2. It would be one if inner_update collapsed too.",
    "direction": "no fault of the rates: {change}. Matrices change as much, but fit the inputs "
    "less, as when a batch has more independent inputs than a layer has coordinates.",
    "independent": "no fault: {change}. Every block changes as it should, but blocks change the "
    "stream in more independent directions, which add up as depth^-1/2.",
    "embedding": "no fault: {change}, as independent branches of 1/depth do beside a small "
    "embedding. Begin the embedding larger.",
}


def _always(slope: Interval, direction: float) -> bool:
    return True


def _independent_parts(slope: Interval, direction: float) -> bool:
    """Explain the update of the function, ``v^2 = a^2 + b^2 / width``.

    Here a is from what moves it alike and b from independent parts. Small networks have the larger
    b, so that sound ones show exponents down to -1/2, and lower by what directions lose. A collapse
    of only this update would look alike over the sizes of a check; where features stop moving,
    ``inner_update`` shows it.
    """
    return slope.high >= INDEPENDENT_EXPONENT + direction


def _scattered_inputs(slope: Interval, direction: float) -> bool:
    """Explain updates that fit the inputs less, while their sizes stay put.

    A batch may have more independent inputs than a layer has coordinates. Random tokens give
    exponents of -0.3 at widths 32 to 128 under AdamW, SGD and the sign of a momentum. Sizes fall
    with the learning rates where features stop moving.
    """
    size = slope.value - direction
    return slope.high >= INDEPENDENT_EXPONENT and size >= -CLEAR_EXPONENT


def _independent_branches(slope: Interval, direction: float) -> bool:
    """Explain a stream of independent branches.

    Branches of 1/L that are initialised independently add up as L^-1/2. So does the stream beside
    an embedding that is initialised smaller, and with it the gradient that norms let through.
    """
    return slope.high >= INDEPENDENT_EXPONENT


def _independent_updates(slope: Interval, direction: float) -> bool:
    """Explain changes of the stream that add up as L^-1/2 because their directions differ.

    Norms turn every branch: Gemma 3 shows L^-0.28 at depths 2 to 8. It is not a fault where the sum
    of the sizes of these changes, ``activation_bound``, stands. The sum falls where multipliers or
    learning rates do.
    """
    return _scattered_inputs(slope, direction)


_LOSS_FALLS = tuple(Natural(axis, "FALLS", "trend", _always) for axis in AXES)
_FUNCTION_LIMIT = (Natural("width", "LIMIT", "limit", _independent_parts),)
_LAYER_LIMIT = (Natural("width", "LIMIT", "direction", _scattered_inputs),)
_STREAM_LIMIT = (Natural("depth", "LIMIT", "embedding", _independent_branches),)
_STREAM_UPDATE_LIMIT = (Natural("depth", "LIMIT", "independent", _independent_updates),)


# ---- Advice that rows share

_WIDE = tuple(name for name, rule in RULES.items() if rule.has_width_limit)
_DEEP = tuple(name for name in _WIDE if RULES[name].scales_depth)
_COMPLETE_P: tuple[RuleName, ...] = ("complete-p",)
_EQUATION_8: tuple[RuleName, ...] = ("complete-p", "depth-mup-inner")

_UPDATES_IN_WIDTH: dict[tuple[Axis, Verdict], Advice] = {
    ("width", "COLLAPSES"): Advice(
        "Features stop moving as the network widens (lazy training)", _WIDE, rounds_away=True
    ),
    ("width", "GROWS"): Advice(
        "Updates grow with width because learning rates do not follow it", _WIDE
    ),
}
_OUTER_GROW = Advice(
    "Outer layers add more than 1/depth each because rates do not fall with depth", _DEEP
)


# ---- The table; tables and charts have this order

METERS = {
    "first_activation": Meter(
        "Stream at the first block",
        "RMS of the stream that enters the first block",
        quantity="RMS of the first stream",
        axes=("width",),
        advice={
            ("width", "GROWS"): Advice(
                "The embedding, or a factor behind it, grows with width", _WIDE
            ),
            ("width", "COLLAPSES"): Advice(
                "The embedding, or a factor behind it, shrinks with width", _WIDE
            ),
        },
    ),
    "activation": Meter(
        "Residual stream",
        "RMS of the stream after the last block",
        quantity="RMS of the stream",
        natural=_STREAM_LIMIT,
        advice={
            ("width", "GROWS"): Advice("The residual stream grows with width", _WIDE),
            ("depth", "GROWS"): Advice(
                "The residual stream grows with depth because branches are not scaled by "
                "1/sqrt(depth), or rates do not fall with depth",
                _DEEP,
            ),
        },
    ),
    "activation_update": Meter(
        "Δ stream",
        "RMS of its change by training",
        quantity="RMS change of the stream",
        # Its bound is the sum of what every block changes: whatever it falls by less than that is
        # a matter of directions.
        bound=Bound("activation_bound", least_fall=0.0),
        natural=_STREAM_UPDATE_LIMIT,
        advice={
            **_UPDATES_IN_WIDTH,
            ("depth", "GROWS"): Advice(
                "Training moves the stream further with depth because the updates of blocks add up",
                _COMPLETE_P,
            ),
        },
    ),
    "inner_update": Meter(
        "Δ hidden output",
        "RMS of the change that training made to the outputs of the inner matrices, Eq. 27",
        bound=Bound("inner_bound"),
        natural=_LAYER_LIMIT,
        advice={
            **_UPDATES_IN_WIDTH,
            ("depth", "COLLAPSES"): Advice(
                "Inner layers learn less with depth because their gradients carry the residual "
                "multiplier",
                _EQUATION_8,
                price=", or 'depth-mup-inner' (Eq. 8) at the price that function_update_inner "
                "shows",
            ),
            ("depth", "GROWS"): Advice(
                "Inner layers learn faster with depth because their rates grow", _COMPLETE_P
            ),
        },
    ),
    "stream_update": Meter(
        "Δ block output",
        "RMS of what training the outer matrices adds to the stream, times the depth, Eqs. 33 and "
        "34",
        bound=Bound("stream_bound"),
        natural=_LAYER_LIMIT,
        advice={**_UPDATES_IN_WIDTH, ("depth", "GROWS"): _OUTER_GROW},
        definition=2,
    ),
    "first_update": Meter(
        "Δ block output, first step",
        "stream_update after the first update that changes it, before later updates cancel it",
        axes=("depth",),
        advice={("depth", "GROWS"): _OUTER_GROW},
        is_of_one_step=True,
    ),
    "function_update": Meter(
        "Δ outputs",
        "RMS of the change of the outputs by training",
        quantity="RMS change of the network's output",
        natural=_FUNCTION_LIMIT,
        advice={
            **_UPDATES_IN_WIDTH,
            ("depth", "GROWS"): Advice("A step moves the outputs further with depth", _COMPLETE_P),
        },
    ),
    "function_update_inner": Meter(
        "Δ outputs by blocks",
        "RMS of the change of the outputs when the inner matrices are reset to their start",
        natural=_FUNCTION_LIMIT,
        advice={
            **_UPDATES_IN_WIDTH,
            ("depth", "GROWS"): Advice(
                "Updates of inner layers add up with depth, under Eq. 8 as sqrt(depth)", _COMPLETE_P
            ),
        },
    ),
    "update_to_weight": Meter(
        "Δ weight ÷ weight",
        "largest singular value of the change of inner matrices over that of their start",
        quantity="largest change of the weights",
        natural=_LAYER_LIMIT,
        advice=_UPDATES_IN_WIDTH,
    ),
    "alignment": Meter(
        "Alignment of updates",
        "how well the last update of a matrix is aligned with its inputs, relative to perfect "
        "alignment: 1 where sums over n coordinates add as n, n^-1/2 where they add as sqrt(n)",
        quantity="alignment of the last update",
        axes=("width",),
        advice={
            ("width", "COLLAPSES"): Advice(
                "Rates become too small with width. Find the best at several widths"
            ),
        },
    ),
    "gradient": Meter(
        "Gradient, first ÷ last block",
        "RMS of the gradient entering the first block over that leaving the last, where the stream "
        "is not zero (padding): at the start, or where the check looks at several steps before "
        "each update",
        axes=("depth",),
        natural=_STREAM_LIMIT,
        advice={
            ("depth", "COLLAPSES"): Advice(
                "Gradients vanish with depth. Check norms and multipliers"
            ),
            ("depth", "GROWS"): Advice(
                "Gradients grow with depth because residual branches are not scaled by "
                "1/sqrt(depth)",
                _DEEP,
            ),
        },
    ),
    "loss": Meter(
        "Loss",
        "loss of the last batch before its update",
        natural=_LOSS_FALLS,
        advice={
            ("width", "FALLS"): Advice("The loss falls with width, as it should"),
            ("depth", "FALLS"): Advice("The loss falls with depth, as it should"),
            ("width", "GROWS"): Advice("The same rate does worse with more width"),
            ("depth", "GROWS"): Advice("The same rate does worse with more depth"),
        },
    ),
}

# What the numbers of one matrix or block are, where that is not a meter of the table. ``nfd.Watch``
# reads them, and its page shows them in this order after the meters.
METERS_OF_LAYERS = {
    "update": "RMS of what training a matrix changed in its output",
    "change": "size of the change of a matrix over the size of its start",
    "weight": "size of a matrix over the size of its start",
    "alignment": METERS["alignment"].meaning,
    "added": "RMS of what a block adds to the stream, times the number of blocks",
}


# What these are the size of, as ``Meter.quantity`` says it of meters of the table; and the learning
# rate, which a watch reads beside them.
_QUANTITIES_OF_LAYERS = {
    "update": "RMS change of the output",
    "change": "relative weight change",
    "weight": "relative weight size",
    "added": "RMS added to the stream",
    "rate": "learning rate",
}


def quantity_in_words(meter: str) -> str:
    """What a meter of a watched run is the size of, and of which stack if of several."""
    name, _, stack = meter.partition(" of ")
    text = _QUANTITIES_OF_LAYERS.get(name, "")
    if name in METERS:
        text = METERS[name].quantity
    text = text or in_words(name)
    return f"{text}, {stack}" if stack else text


def in_words(meter: str) -> str:
    """The name of a meter as charts and pages write it."""
    return meter.replace("_", " ")
