"""What a transfer sweep found, in charts, tables and sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from nfd.core.statistics import Interval, mean
from nfd.experiment.findings.finding import Axes, Finding, Row, columns, numbers
from nfd.experiment.sweep_settings import TransferConfig
from nfd.sweep.optimum import rate_of
from nfd.sweep.recommendation import Recommendation
from nfd.sweep.transfer import TOLERANCE, Size, Transfer

_SCORES = {"train_loss": "training loss, mean of the last tenth of the steps", "test_loss": "test loss"}
_MEANS = {
    "TRANSFERS": "it transfers",
    "COSTS": "it does not transfer",
    "UNCERTAIN": "the seeds leave open whether it transfers",
}


def transfer_findings(config: TransferConfig, found: Sequence[Transfer], data: str) -> list[Finding]:
    """The best rate against depth and width, and for every rule the loss against the rate."""
    caption = _caption(config, data)
    drifts = [_drift(config, found, axis, caption) for axis in ("depth", "width") if len(_along(config, axis)) > 1]
    return [*drifts, *(_losses(config, one, caption) for one in found)]


def sentence(one: Transfer) -> str:
    """The verdict on a rule, with its numbers."""
    sizes = list(one.cells.items())
    (small, first), (large, last) = sizes[0], sizes[-1]
    moved = [
        f"{_signed(drift)} doublings per doubling of {axis}"
        for axis in ("depth", "width")
        if (drift := one.drift(axis)) is not None
    ]
    loss, share = one.regret.loss, one.regret.share
    return (
        f"{one.rule}: the best eta_c is {_rate(first.optimum())} at {_size(small)} and {_rate(last.optimum())} at "
        f"{_size(large)}, a drift of {' and '.join(moved)}; the smallest network's best rate costs the largest "
        f"{loss} nats, {100 * share.value:.1f} % [{100 * share.low:.1f}, {100 * share.high:.1f}] of its progress: "
        f"{one.doubt or _MEANS[one.verdict]}."
    )


def table(found: Sequence[Transfer]) -> list[dict[str, str]]:
    """One line per rule."""
    lines = []
    for one in found:
        cells = list(one.cells.values())
        line = {"rule": one.rule, "best eta_c, smallest": _rate(cells[0].optimum())}
        line["largest"] = _rate(cells[-1].optimum())
        for axis in ("depth", "width"):
            drift = one.drift(axis)
            if drift is not None:
                line[f"drift per doubling of {axis}"] = _signed(drift)
        line |= {"regret (nats)": str(one.regret.loss), "verdict": one.verdict}
        lines.append(line)
    return lines


def result(found: Sequence[Transfer]) -> list[dict[str, Any]]:
    """The same as numbers."""
    return [
        {
            "rule": one.rule,
            "verdict": one.verdict,
            "sentence": sentence(one),
            "drift": {axis: numbers(one.drift(axis)) for axis in ("depth", "width")},
            "regret": numbers(one.regret.loss),
            "regret_share": numbers(one.regret.share),
            "doubt": one.doubt,
            "optima": [
                {"width": n, "depth": L, "log2_eta_c": numbers(cell.optimum())} for (n, L), cell in one.cells.items()
            ],
        }
        for one in found
    ]


def advice(found: Recommendation) -> dict[str, Any]:
    """The recommendation as numbers."""
    return {
        "kind": found.kind,
        "rule": found.rule,
        "eta_c": numbers(found.eta_c),
        "small": {"width": found.small[0], "depth": found.small[1]},
        "large": {"width": found.large[0], "depth": found.large[1]},
        "regret_share": numbers(found.share),
        "sentence": str(found),
    }


def _drift(config: TransferConfig, found: Sequence[Transfer], axis: Literal["width", "depth"], caption: str) -> Finding:
    """The best rate along one axis, the other at its largest."""
    held, at = ("width", config.widths[-1]) if axis == "depth" else ("depth", config.depths[-1])
    rows = [
        {"series": one.rule, axis: size} | columns("eta_c", rate_of(one.cells[_at(axis, size, at)].optimum()))
        for one in found
        for size in _along(config, axis)
    ]
    moved = [f"{one.rule} {_signed(d)}" for one in found if (d := one.drift(axis)) is not None]
    headline = f"Doublings of the best eta_c per doubling of {axis}: {'; '.join(moved)}."
    title = f"Does the best learning rate move with {axis}?"
    shown = Axes(axis, "eta_c", axis, "best eta_c", "logarithmic")
    return Finding(axis, title, headline, rows, shown, f"At {held} {at}. Bars: 95 % intervals over seeds. {caption}")


def _losses(config: TransferConfig, one: Transfer, caption: str) -> Finding:
    """Loss against rate, a line per depth (or width, where depth does not vary)."""
    axis: Literal["width", "depth"] = "depth" if len(config.depths) > 1 else "width"
    held, at = ("width", config.widths[-1]) if axis == "depth" else ("depth", config.depths[-1])
    rows = list[Row]()
    for size in _along(config, axis):
        cell = one.cells[_at(axis, size, at)]
        for k, log2_eta in enumerate(cell.log2_eta.tolist()):
            loss = mean(cell.scores[:, k])
            rows.append({"series": f"{axis} {size}", "eta_c": math.pow(2, log2_eta)} | columns("loss", loss))
    shown = Axes("eta_c", "loss", "eta_c", _SCORES[config.score], "semilogarithmic", zero=False)
    title = f"{one.rule}: loss against the learning rate"
    note = f"At {held} {at}. Bars: 95 % intervals over seeds; a network that diverged counts as log C. {caption}"
    return Finding(f"loss-{one.rule}", title, sentence(one), rows, shown, note)


def _along(config: TransferConfig, axis: str) -> tuple[int, ...]:
    return config.depths if axis == "depth" else config.widths


def _at(axis: str, size: int, other: int) -> Size:
    return (other, size) if axis == "depth" else (size, other)


def _caption(config: TransferConfig, data: str) -> str:
    trained = f"{config.epochs:g} epochs" if config.epochs is not None else f"{config.steps} steps"
    return (
        f"{data}; {config.block} blocks, {config.activation}, T = {config.horizon:g}, {config.optimizer}, {trained} of "
        f"{config.batch} samples, {config.seeds} seeds; best by {_SCORES[config.score]}. A regret under "
        f"{100 * TOLERANCE:.0f} % of the progress counts as none."
    )


def _rate(log2: Interval) -> str:
    found = rate_of(log2)
    return f"{found.value:.2g} [{found.low:.2g}, {found.high:.2g}]"


def _signed(found: Interval) -> str:
    value, low, high = (round(v, 2) + 0.0 for v in (found.value, found.low, found.high))  # no -0.00
    return f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"


def _size(size: Size) -> str:
    return f"width {size[0]} and depth {size[1]}"
