"""The gap between the two kinds of feedback: does it close with depth?"""

from __future__ import annotations

import torch
from torch import Tensor

from nfd.core import Axes, Finding, Interval, Row, columns, depth_name, interval
from nfd.paper.findings.outputs import mean_loss, progress, whole, wide
from nfd.paper.study import NARROW, Study

_AXES = Axes("depth", "gap", "depth", "loss of independent minus shared feedback (nats)", "named")


def gap(study: Study) -> Finding | None:
    """Loss of independent feedback minus shared, mean over steps, against depth; replicates are paired."""
    shared, independent = wide(study, "shared"), wide(study, "independent")
    pairs = {L: torch.stack([shared[L], independent[L]], 1) for L in shared if L in independent}
    if not pairs:
        return None
    gaps = {L: interval(lambda r: _gap(study, r), pair) for L, pair in pairs.items()}
    shares = {L: interval(lambda r: 100 * _share(study, r), pair) for L, pair in pairs.items()}
    progressing = {L: interval(lambda r: progress(study, r[:, 0]), pair).low > 0 for L, pair in pairs.items()}
    rows = [_row(L, gaps[L], shares[L] if progressing[L] else None) for L in pairs]
    last = max(pairs)
    side = "above" if gaps[last].value > 0 else "below"
    headline = (
        f"At {depth_name(last)} the two do not differ significantly: {gaps[last]} nats on average over the steps."
    )
    if gaps[last].resolved:
        headline = (
            f"No: at {depth_name(last)} the decoupled network's loss lies {side} the standard one's by {gaps[last]} "
            "nats on average over the steps"
        )
        headline += f", {_percent(shares[last])} of the progress made." if progressing[last] else "."
    return Finding(
        "gap",
        "Are the two limits the same?",
        headline,
        rows,
        _AXES,
        "Bars: 95 % intervals, replicates paired on the same Brownian paths. Progress: how far the loss of the "
        "standard network lies below its start, log of the number of classes, on average over the steps.",
        [*_trend(study, pairs), *_width(study)],
        table=_table(rows),
    )


def _gap(study: Study, pair: Tensor) -> Tensor:
    return mean_loss(study, pair[:, 1]) - mean_loss(study, pair[:, 0])


def _share(study: Study, pair: Tensor) -> Tensor:
    return _gap(study, pair) / progress(study, pair[:, 0])


def _row(depth: float, difference: Interval, share: Interval | None) -> Row:
    row = {"series": "gap", "depth": depth} | columns("gap", difference)
    return row | {"share_of_progress": share and share.value / 100}


def _trend(study: Study, pairs: dict[float, Tensor]) -> list[str]:
    """Whether more depth brings the two together, from the paired difference of the gaps at both ends."""
    first, last = min(pairs), max(pairs)
    if first == last:
        return []
    both = torch.stack([pairs[first], pairs[last]], 1)
    change = interval(lambda r: _gap(study, r[:, 1]).abs() - _gap(study, r[:, 0]).abs(), both)
    verb = "does not change significantly"
    if change.resolved:
        verb = "widens" if change.value > 0 else "narrows"
    return [f"From {depth_name(first)} to {depth_name(last)} the gap {verb}: {change}."]


def _width(study: Study) -> list[str]:
    """What a finite width adds to the gap, as for the loss (``width_bias``), from paired replicates."""
    wide_ones = {f: outputs for (f, L), outputs in study.measured.limits.items() if study.config.depths[-2] == L}
    both = [some for some in (study.measured.narrow, wide_ones) if len(some) == 2 and all(map(whole, some.values()))]
    if len(both) < 2:
        return []
    pairs = [torch.stack([some["shared"], some["independent"]], 1) for some in both]
    shift = interval(lambda m, n: (_gap(study, m) - _gap(study, n)) / (NARROW - 1), *pairs)
    width = f"{study.config.limit_width:,}"
    return [f"Width {width} in place of infinity shifts it by {shift}; the intervals are of width {width}."]


def _percent(share: Interval) -> str:
    return f"{share.value:.0f} % [{share.low:.0f}, {share.high:.0f}]"


def _table(rows: list[Row]) -> list[dict[str, str]]:
    return [
        {
            "": depth_name(row["depth"]),
            "gap [95 % interval] ± standard error": f"{row['gap']:.4f} [{row['low']:.4f}, {row['high']:.4f}] "
            f"± {row['stderr']:.4f}",
            "share of the progress": "no progress"
            if row["share_of_progress"] is None
            else f"{row['share_of_progress']:.1%}",
        }
        for row in rows
    ]
