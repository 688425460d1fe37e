"""Rows of charts, fitted exponents, and captions, from runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nfd.core import (
    UNKNOWN,
    Finding,
    Interval,
    Row,
    columns,
    interval,
    listed,
    log_slope,
    margin,
    mean,
)
from nfd.meters import verdict_of
from nfd.paper.figures.figure import DataSummary, Runs

BANDS = "Bands: 95 % intervals of the mean over seeds."
BARS = "Bars: 95 % intervals of the mean over seeds."


def panel(figure: str, letter: str, title: str, **rest: Any) -> Finding:
    """A panel of a figure, ``figure-1`` and ``a``."""
    return Finding(f"{figure}{letter}", f"({letter}) {title}", **rest)


def difference(first: Tensor, second: Tensor) -> Interval:
    """Mean of ``second - first`` with its interval: paired where the runs are as many."""
    if len(first) == len(second):
        return mean(second - first)
    return interval(lambda a, b: b.mean(0) - a.mean(0), first, second)


def curve_rows(
    series: str, steps: Sequence[float], y: str, values: Tensor, **settings: Any
) -> list[Row]:
    """Rows of a curve ``values`` [runs, steps], in its 95 % band, with its settings; it ends where
    a run ended.
    """
    middle = values.mean(0)
    half = margin(values)
    return [
        {"series": series, **settings, "step": step, y: m, "low": m - h, "high": m + h}
        for step, m, h in zip(steps, middle.tolist(), half.tolist(), strict=True)
        if math.isfinite(m)
    ]


def point_rows(
    series: str, x: str, y: str, samples: Mapping[float, Tensor], **settings: Any
) -> list[Row]:
    """Rows of points, with the interval and settings of each; places where a run diverged are left
    out.
    """
    finite = {place: s for place, s in samples.items() if bool(s.isfinite().all())}
    return [
        {"series": series, **settings, x: place} | columns(y, mean(s))
        for place, s in finite.items()
    ]


def line(
    series: str, x: str, y: str, places: Sequence[float], exponent: float, at: float
) -> list[Row]:
    """A line of reference: ``at`` at the first place, and with this exponent from there; none
    without places.
    """
    if not places:
        return []
    ends = (min(places), max(places))
    return [{"series": series, x: p, y: at * math.pow(p / ends[0], exponent)} for p in ends]


def slope(series: str, places: Sequence[float], samples: Tensor) -> Row:
    """The exponent of the mean over runs, ``samples`` [runs, places]; not-a-number for one run or
    one place.
    """
    if len(samples) < 2 or len(places) < 2:
        return slope_row(series, UNKNOWN)
    return fitted(series, lambda s: log_slope(places, s.mean(0)), samples)


def apart_said(apart: Interval) -> str:
    """A difference in words, where there is one."""
    return str(apart) if math.isfinite(apart.value) else "unknown (networks diverged)"


def slopes_said(letter: str, slopes: Iterable[Row]) -> str:
    """``h: n^-1.02 [-1.10, -0.94]; ...``."""
    return "; ".join(f"{row['series']}: {power(letter, row)}" for row in slopes)


def sizes(runs: Runs, axis: str, read: Callable[[Runs], Tensor]) -> dict[float, Tensor]:
    """What ``read`` gives of the runs of every size."""
    return {float(size): read(some) for size, some in sorted(runs.by(axis).items())}


def by_seed(samples: Mapping[float, Tensor]) -> tuple[list[float], Tensor]:
    """Places and ``[seeds, places]`` of those where no run diverged."""
    finite = {place: s for place, s in samples.items() if bool(s.isfinite().all())}
    return list(finite), torch.stack(list(finite.values()), 1) if finite else torch.empty(0, 0)


def epoch_losses(runs: Runs) -> tuple[list[float], Tensor]:
    """Training losses, the first and then means over the steps between looks, ``[runs, looks]``,
    and the updates made by then."""
    moments = [int(m) for m in runs.curve("tested_after")[0].tolist()]
    losses = runs.curve("loss")
    parts = [losses[:, a:b].mean(1) for a, b in itertools.pairwise(moments)]
    return [float(m) for m in moments], torch.stack([losses[:, 0], *parts], 1)


def tested(runs: Runs, name: str) -> tuple[list[float], Tensor]:
    """``test_loss`` or ``test_accuracy`` at every look, ``[runs, looks]``, and the updates made by
    then.
    """
    return runs.curve("tested_after")[0].tolist(), runs.curve(name)


def diverged(runs: Runs, axis: str, name: str) -> list[str]:
    """A sentence on the runs that diverged, by a setting; none where none did."""
    counts = {
        value: (sum(r.status == "diverged" for r in some), len(some))
        for value, some in sorted(runs.by(axis).items())
    }
    shares = [
        f"{name} {shown(value)} ({bad} of {all_})".lstrip()
        for value, (bad, all_) in counts.items()
        if bad
    ]
    return [f"Diverged: {listed(shares)}."] if shares else []


def shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


# ---- Fitted exponents as rows of charts and of tables


def slope_row(series: str, exponent: Interval) -> Row:
    """The row of an exponent, with its verdict."""
    return {"series": series} | columns("slope", exponent) | {"verdict": verdict_of(exponent)}


def fitted(series: str, f: Callable[..., Tensor], *samples: Tensor) -> Row:
    """The row of a fitted exponent, ``f`` of the replicates, with its verdict; not-a-number if it
    cannot be fitted.
    """
    return slope_row(series, interval(f, *samples))


def power(letter: str, row: Row) -> str:
    """``L^-0.46 [-0.51, -0.41]``."""
    if not math.isfinite(row["stderr"]):
        return "no exponent"
    return f"{letter}^{row['slope']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"


def slope_table(slopes: Iterable[Row], *, verdicts: bool) -> list[dict[str, str]]:
    """Exponents for people; those that noise hides are said to be."""
    table = []
    for row in slopes:
        known = math.isfinite(row["stderr"])
        limits = f"[{row['low']:.2f}, {row['high']:.2f}]"
        shown = f"{row['slope']:.2f} {limits} ± {row['stderr']:.3f}" if known else "not resolved"
        line = {"": row["series"], "exponent [95 % interval] ± standard error": shown}
        table.append(line | {"verdict": row["verdict"] if known else ""} if verdicts else line)
    return table


# ---- Captions, made from the settings of the runs that they are of

_FORMS = {
    "activation": "{}",
    "network": "",
    "block": "{} blocks",
    "order": "{}-activation",
    "rule": "{}",
    "feedback": "{} feedback",
    "width": "width {}",
    "depth": "depth {}",
    "horizon": "T = {}",
}
_TRAINING = {"eta_c": "eta_c = {}", "batch": "batch {}", "steps": "{} steps"}
_USUAL = {"block": "one-layer", "order": "pre", "feedback": "shared"}


def caption(runs: Runs, data: DataSummary, *sentences: str) -> str:
    """What is shown, and what ran, in words."""
    is_start = runs.values("meter") == ["start"]
    forms = _FORMS if is_start else _FORMS | _TRAINING
    parts = [part for name, form in forms.items() if (part := _setting(runs, name, form))]
    seeds = f"{len(runs.values('seed'))} seeds of the initial weights"
    how = "inputs normalised per channel"
    if not is_start:
        how = f"{_training(runs)}, {how}"
        seeds = f"{seeds}, the same batches for all"
    return " ".join([*sentences, f"{data.title}; {', '.join(parts)}; {how}; {seeds}."])


def _setting(runs: Runs, name: str, form: str) -> str:
    """The values of a setting; nothing where it is the usual one."""
    values = runs.values(name)
    if name == "network":
        return "vanilla networks without skip connections" if "mlp" in values else ""
    return (
        ""
        if values == [_USUAL.get(name)]
        else form.format(listed([shown(value) for value in values]))
    )


def _training(runs: Runs) -> str:
    optimizers = runs.values("optimizer")
    momenta = runs.values("momentum")
    momentum = (
        "without momentum"
        if momenta == [0.0]
        else f"with momentum {listed([shown(m) for m in momenta])}"
    )
    scale = "1/sqrt(n)" if runs.values("rule") == ["ntk"] else "1/n"
    named = listed([name.upper() for name in optimizers])
    return f"{named} {momentum}, LR = eta_c, cross-entropy in nats, outputs scaled by {scale}"
