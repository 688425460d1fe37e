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
    """Return a panel of a figure such as ``figure-1``, by its letter."""
    return Finding(f"{figure}{letter}", f"({letter}) {title}", **rest)


def difference(first: Tensor, second: Tensor) -> Interval:
    """Return the mean of ``second - first`` with its interval.

    Runs are paired where there are as many in both.
    """
    if len(first) == len(second):
        return mean(second - first)
    return interval(lambda a, b: b.mean(0) - a.mean(0), first, second)


def curve_rows(
    series: str, steps: Sequence[float], y: str, values: Tensor, **settings: Any
) -> list[Row]:
    """Return rows of a curve ``values`` [runs, steps] in its 95 % band, with its settings.

    The curve ends where the first run ended.
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
    """Return rows of points, with the interval and settings of each.

    Places where a run diverged are left out.
    """
    return [
        {"series": series, **settings, x: place} | columns(y, mean(s))
        for place, s in _finite(samples).items()
    ]


def _finite(samples: Mapping[float, Tensor]) -> dict[float, Tensor]:
    """Return the places where no run diverged."""
    return {place: s for place, s in samples.items() if bool(s.isfinite().all())}


def line(
    series: str, x: str, y: str, places: Sequence[float], exponent: float, at: float
) -> list[Row]:
    """Return a line of reference with an exponent, which is ``at`` at the first place.

    Without places there is none.
    """
    if not places:
        return []
    first = min(places)
    last = max(places)
    return [
        {"series": series, x: first, y: at},
        {"series": series, x: last, y: at * math.pow(last / first, exponent)},
    ]


def slope(series: str, places: Sequence[float], samples: Tensor) -> Row:
    """Return the exponent of the mean over runs, ``samples`` [runs, places].

    It is not-a-number for one run or one place.
    """
    if len(samples) < 2 or len(places) < 2:
        return slope_row(series, UNKNOWN)
    return fitted(series, lambda s: log_slope(places, s.mean(0)), samples)


def difference_in_words(apart: Interval) -> str:
    """Show a difference, where there is one."""
    return str(apart) if math.isfinite(apart.value) else "unknown (networks diverged)"


def slopes_in_words(letter: str, slopes: Iterable[Row]) -> str:
    """Show exponents as ``h: n^-1.02 [-1.10, -0.94]; ...``."""
    return "; ".join(f"{row['series']}: {power(letter, row)}" for row in slopes)


def sizes(runs: Runs, axis: str, read: Callable[[Runs], Tensor]) -> dict[float, Tensor]:
    """Return what ``read`` gives of the runs of every size."""
    return {float(size): read(some) for size, some in sorted(runs.by(axis).items())}


def by_seed(samples: Mapping[float, Tensor]) -> tuple[list[float], Tensor]:
    """Return the places where no run diverged, and their numbers ``[seeds, places]``."""
    finite = _finite(samples)
    if not finite:
        return [], torch.empty(0, 0)
    return list(finite), torch.stack(list(finite.values()), 1)


def epoch_losses(runs: Runs) -> tuple[list[float], Tensor]:
    """Return the updates made by every look, and training losses ``[runs, looks]``.

    The first loss is of the first step, the others are means over the steps between looks.
    """
    moments = [int(m) for m in runs.curve("tested_after")[0].tolist()]
    losses = runs.curve("loss")
    parts = [losses[:, a:b].mean(1) for a, b in itertools.pairwise(moments)]
    return [float(m) for m in moments], torch.stack([losses[:, 0], *parts], 1)


def tested(runs: Runs, name: str) -> tuple[list[float], Tensor]:
    """Return the updates made by every look, and what was tested ``[runs, looks]``.

    ``name`` is ``test_loss`` or ``test_accuracy``.
    """
    return runs.curve("tested_after")[0].tolist(), runs.curve(name)


def diverged(runs: Runs, axis: str, name: str) -> list[str]:
    """Return a sentence on the runs that diverged, by a setting; none where none did."""
    shares: list[str] = []
    for value, some in sorted(runs.by(axis).items()):
        count = sum(record.status == "diverged" for record in some)
        if count:
            shares.append(f"{name} {shown(value)} ({count} of {len(some)})".lstrip())
    return [f"Diverged: {listed(shares)}."] if shares else []


def shown(value: Any) -> str:
    """Show the value of a setting, without zeros after the point."""
    return f"{value:g}" if isinstance(value, float) else str(value)


# ---- Fitted exponents as rows of charts and of tables


def slope_row(series: str, exponent: Interval) -> Row:
    """Return the row of an exponent, with its verdict."""
    return {"series": series} | columns("slope", exponent) | {"verdict": verdict_of(exponent)}


def fitted(series: str, f: Callable[..., Tensor], *samples: Tensor) -> Row:
    """Return the row of an exponent that ``f`` fits to replicates, with its verdict.

    It is not-a-number where it cannot be fitted.
    """
    return slope_row(series, interval(f, *samples))


def power(letter: str, row: Row) -> str:
    """Show the exponent of a row as ``L^-0.46 [-0.51, -0.41]``."""
    if not math.isfinite(row["stderr"]):
        return "no exponent"
    return f"{letter}^{row['slope']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"


def slope_table(slopes: Iterable[Row], *, verdicts: bool) -> list[dict[str, str]]:
    """Return exponents as a table for a page; those that noise hides are called not resolved."""
    table = []
    for row in slopes:
        exponent = "not resolved"
        verdict = ""
        if math.isfinite(row["stderr"]):
            limits = f"[{row['low']:.2f}, {row['high']:.2f}]"
            exponent = f"{row['slope']:.2f} {limits} ± {row['stderr']:.3f}"
            verdict = row["verdict"]
        line = {"": row["series"], "exponent [95 % interval] ± standard error": exponent}
        if verdicts:
            line["verdict"] = verdict
        table.append(line)
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
    """Return a caption: sentences on what is shown, and one on what ran."""
    is_start = runs.values("meter") == ["start"]
    forms = _FORMS if is_start else _FORMS | _TRAINING
    settings = [_setting(runs, name, form) for name, form in forms.items()]
    network = ", ".join(setting for setting in settings if setting)
    seeds = f"{len(runs.values('seed'))} seeds of the initial weights"
    how = "inputs normalised per channel"
    if not is_start:
        how = f"{_training(runs)}, {how}"
        seeds = f"{seeds}, the same batches for all"
    return " ".join([*sentences, f"{data.title}; {network}; {how}; {seeds}."])


def _setting(runs: Runs, name: str, form: str) -> str:
    """Show the values of a setting; nothing where it is the usual one."""
    values = runs.values(name)
    if name == "network":
        return "vanilla networks without skip connections" if "mlp" in values else ""
    if values == [_USUAL.get(name)]:
        return ""
    return form.format(listed([shown(value) for value in values]))


def _training(runs: Runs) -> str:
    optimizers = listed([name.upper() for name in runs.values("optimizer")])
    momenta = runs.values("momentum")
    momentum = f"with momentum {listed([shown(m) for m in momenta])}"
    if momenta == [0.0]:
        momentum = "without momentum"
    scale = "1/sqrt(n)" if runs.values("rule") == ["ntk"] else "1/n"
    return f"{optimizers} {momentum}, LR = eta_c, cross-entropy in nats, outputs scaled by {scale}"
