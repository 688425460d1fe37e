"""What a prediction says first, and its picture: the loss of every step with its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nfd.core.answer import Answer, Tone
from nfd.core.estimates import Interval
from nfd.core.tables import Row
from nfd.core.words import MINUS, listed, number, plural
from nfd.limits.kernels_page import moved_in_words

if TYPE_CHECKING:
    from nfd.limits.predict import Prediction
    from nfd.report.page import Section

# A point that shows its numbers on hover, at most for so many steps.
_MOST_POINTS = 200

_UNKNOWN = (
    "The interval is wider than the loss was before training: networks of this width are about to "
    "diverge, or too few. Lower lr, or raise width or replicates."
)


def prediction_answer(prediction: Prediction) -> Answer:
    """Say where the loss ends, with its interval, and what speaks against the number."""
    name, row = _ends(prediction)[-1]
    tone, state = _state(prediction, row)
    network = f"The infinitely wide network of depth {prediction.depths[-1]}"
    if prediction.extrapolated:
        network = "The infinitely wide and deep network"
    title = f"{network} diverges"
    if _is_unknown(prediction, row):
        title = f"{network} ends at a loss that these networks do not show"
    elif tone != "bad":
        # As many digits as the sentence below it has.
        title = f"{network} ends at loss {_loss(row).partition(' ')[0]}"
    networks = (
        f"{plural(prediction.replicates, 'network')} of width {prediction.width:,} "
        f"({prediction.weights} weights) and {prediction.replicates} of width "
        f"{prediction.narrow_width:,}"
    )
    because = f"The loss of {name} is {_loss(row)}, from {networks}."
    if tone == "bad":
        because = f"The loss of {name} is not finite, in {networks}."
    if prediction.kernels is not None:
        moved = moved_in_words(prediction.kernels)
        because = f"{because} {moved}." if moved else because
    notes = [prediction.note]
    if _is_unknown(prediction, row):
        notes.insert(0, _UNKNOWN)
    note = " ".join(filter(None, notes))
    return Answer(
        tone,
        state,
        title,
        because=because,
        but=note[:1].lower() + note[1:],
        about=f"{_depth(prediction)} · {prediction.about}",
        table=[_shown(name, row) for name, row in _ends(prediction)],
        details=_details(prediction),
    )


def prediction_sections(prediction: Prediction) -> list[Section]:
    """Return the picture of the losses, and the table of their ends."""
    from nfd.report.page import Section

    pictures = []
    rows = [row for row in prediction.table if math.isfinite(row["value"])]
    if rows:
        pictures = [_picture(rows)]
    return [
        Section("", [], pictures=pictures),
        Section("Losses", [], table=prediction.answer.table),
    ]


def _ends(prediction: Prediction) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the first and the last step, and the evaluation, by name."""
    table = prediction.table
    ends: dict[str, Mapping[str, Any]] = {}
    for row in (table[0], table[-1]):
        ends[f"step {row['step']}"] = row
    if prediction.eval_row is not None:
        ends["evaluation after the last step"] = prediction.eval_row
    return list(ends.items())


def _state(prediction: Prediction, end: Mapping[str, Any]) -> tuple[Tone, str]:
    if not math.isfinite(end["value"]):
        return "bad", "Diverges"
    if _is_unknown(prediction, end):
        return "open", "Not known"
    if not prediction.converged:
        return "open", "Not converged"
    return "good", "Predicted"


def _is_unknown(prediction: Prediction, end: Mapping[str, Any]) -> bool:
    """Whether the interval holds 0, and is wider than the loss was before training."""
    low = float(end["low"])
    high = float(end["high"])
    first = float(prediction.table[0]["value"])
    return low <= 0 <= high and high - low > abs(first)


def _depth(prediction: Prediction) -> str:
    if prediction.extrapolated:
        return f"infinite depth, from depths {listed(prediction.depths)}"
    return f"depth {prediction.depths[-1]}"


def _is_exact(row: Mapping[str, Any]) -> bool:
    """Whether the loss is known, as before training where outputs are zero."""
    return bool(row["low"] == row["high"])


def _loss(row: Mapping[str, Any]) -> str:
    if not math.isfinite(row["value"]):
        return "diverged"
    if _is_exact(row):
        return f"{row['value']:.4g} (exact)"
    return Interval(row["value"], row["stderr"], row["low"], row["high"]).in_words()


def _shown(name: str, row: Mapping[str, Any]) -> dict[str, str]:
    bias = "unknown"
    if _is_exact(row):
        bias = "none"
    elif math.isfinite(row["bias"]):
        bias = f"{row['bias']:+.4f} ± {row['bias_stderr']:.4f}".replace("-", MINUS)
    return {"": name, "loss": _loss(row), "bias of the width, subtracted": bias}


def _details(prediction: Prediction) -> list[str]:
    """Say which parts the error has, and how long it took."""
    from nfd.core.estimates import rms

    parts = {
        "sampling": rms(prediction.loss_sampling_error),
        "width": rms(prediction.loss_bias_stderr),
        "resolution": rms(prediction.loss_resolution_bias),
        "depth": rms(prediction.loss_depth_error),
    }
    sizes = listed(f"{name} {number(size)}" for name, size in parts.items() if size)
    return [
        f"Parts of the error of the losses (RMS over steps): {sizes}.",
        f"{_depth(prediction)}; {prediction.about}; {prediction.seconds:.1f} s.".capitalize(),
    ]


def _picture(rows: list[Row]) -> Any:
    import altair as alt

    from nfd.report.look import BAND, BLUE, hover, points, with_margin, y_linear
    from nfd.report.picture import picture

    shown = []
    for row in rows:
        text = f"step {row['step']}: loss {_loss(row)}"
        shown.append({name: row[name] for name in ("step", "value", "low", "high")})
        shown[-1]["text"] = hover(text)
    losses = []
    for row in rows:
        losses += [row["value"], row["low"], row["high"]]
    span = with_margin(losses)
    step = alt.X(
        "step:Q",
        title="step",
        axis=alt.Axis(grid=False, tickMinStep=1),
        scale=alt.Scale(nice=False),
    )
    base = points(shown, x=step)
    y = y_linear("value", "training loss", span)
    band = base.mark_area(color=BAND).encode(y=y_linear("low", "training loss", span), y2="high")
    layers = [band, base.mark_line(color=BLUE, strokeWidth=2).encode(y=y)]
    if len(shown) <= _MOST_POINTS:
        marks = base.mark_circle(color=BLUE, size=30, opacity=1)
        layers.append(marks.encode(y=y, description="text:N"))
    chart = alt.layer(*layers).properties(height=300)
    return picture(
        "loss",
        chart,
        label="Predicted training loss against the step, with its 95 % interval",
        key={"predicted loss": "blue", "95 % interval": "band"},
    )
