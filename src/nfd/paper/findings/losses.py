"""The loss while training: infinitely wide at every depth and infinitely deep, and real networks beside it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from nfd.core import (
    INFINITE,
    Axes,
    Feedback,
    Finding,
    Row,
    SeriesRole,
    depth_name,
    interval,
    jackknife,
    standard_errors,
    stderr,
    student,
)
from nfd.limits import extrapolated
from nfd.paper.findings.outputs import (
    divergence,
    mean_loss,
    progress,
    real,
    structured_less_exact,
    wide,
    width_bias,
)
from nfd.paper.study import Study

_AXES = Axes(
    "step", "loss", "step", "training loss before the step (nats)", "curves",
    interval="95 % interval; real: standard deviation",
)  # fmt: skip
_TITLES = {
    "shared": "How does it train when infinitely wide and deep?",
    "independent": "And with independent feedback, the paper's limit?",
}
_WHO = {"shared": "the infinitely wide network", "independent": "the infinitely wide decoupled network"}


def losses(study: Study, feedback: Feedback) -> Finding | None:
    """Loss against step for one kind of feedback."""
    limits = wide(study, feedback)
    if not limits:
        return _all_diverged(study, feedback)
    rows = [row for depth, outputs in limits.items() for row in _wide_rows(study, depth, outputs)]
    rows += [row for width, outputs in _all_real(study).items() for row in _real_rows(study, width, outputs)]
    deepest = max(limits)
    loss, error = jackknife(lambda r: study.mean_loss(r.mean(0)), limits[deepest])
    first, last = (student(float(loss[k]), float(error[k]), len(limits[deepest]) - 1).unsigned for k in (0, -1))
    headline = (
        f"At {depth_name(deepest)}, {_WHO[feedback]} goes from loss {first} to {last} nats with {len(loss) - 1} "
        f"updates of {study.config.batch} samples."
    )
    details = [*_depth_pays(study, limits), *_extrapolation(study, limits), *_width(study, feedback)]
    details += _certificate(study, feedback)
    if feedback == "shared":
        details += _above(study, limits)
    return Finding(
        f"loss-{feedback}",
        _TITLES[feedback],
        headline,
        rows,
        _AXES,
        f"Solid: predictions in their 95 % intervals. Dashed: mean ± standard deviation of {study.config.seeds} real "
        f"networks of depth {study.config.depths[-1]}, the standard ones in both charts.",
        details + divergence(study, feedback),
        table=_table(rows),
    )


def _all_diverged(study: Study, feedback: Feedback) -> Finding | None:
    """What to say when no prediction stayed finite; None when none was made yet."""
    diverged = divergence(study, feedback)
    if not any(name == feedback for name, _ in study.measured.limits):
        return None
    rows = [row for width, outputs in _all_real(study).items() for row in _real_rows(study, width, outputs)]
    return Finding(f"loss-{feedback}", _TITLES[feedback], " ".join(diverged), rows, _AXES, "Mean of real networks.")


def _all_real(study: Study) -> dict[int, Tensor]:
    """Real networks of the deepest depth, diverged ones too: their curves end."""
    deepest = study.config.depths[-1]
    return {n: study.measured.real[deepest, n] for n in study.config.widths if (deepest, n) in study.measured.real}


def _wide_rows(study: Study, depth: float, outputs: Tensor) -> Iterator[Row]:
    loss, error = jackknife(lambda r: study.mean_loss(r.mean(0)), outputs)
    half = standard_errors(len(outputs) - 1) * error
    series = "infinitely wide and deep" if depth == INFINITE else f"infinitely wide, depth {depth:g}"
    for step, numbers in enumerate(zip(loss.tolist(), error.tolist(), half.tolist(), strict=True)):
        yield _row(series, SeriesRole.PREDICTION, depth, INFINITE, step, *numbers)


def _real_rows(study: Study, width: int, outputs: Tensor) -> Iterator[Row]:
    loss = study.mean_loss(outputs)
    values = zip(loss.mean(0).tolist(), stderr(loss).tolist(), loss.std(0).tolist(), strict=True)
    for step, (mean, se, sd) in enumerate(values):
        yield _row(f"real, width {width}", SeriesRole.REAL, study.config.depths[-1], width, step, mean, se, sd)


def _row(
    series: str, role: SeriesRole, depth: float, width: float, step: int, mean: float, se: float, half: float
) -> Row:
    place: Row = {"series": series, "role": role, "depth": depth, "width": width, "step": step}
    return place | {"loss": mean, "stderr": se, "low": mean - half, "high": mean + half}


def _depth_pays(study: Study, limits: dict[float, Tensor]) -> list[str]:
    """What share of the deepest network's progress the shallowest one makes."""
    shallow, deep = min(limits), max(limits)
    if shallow == deep:
        return []
    made = interval(lambda r: progress(study, r), limits[deep])
    if not made.low > 0:
        return ["No progress is made that depth could add to."]
    pair = torch.stack([limits[shallow], limits[deep]], 1)
    share = interval(lambda r: 100 * progress(study, r[:, 0]) / progress(study, r[:, 1]), pair)
    return [
        f"On average over the steps, {depth_name(shallow)} makes {share.value:.0f} % [{share.low:.0f}, "
        f"{share.high:.0f}] of its progress below log {limits[deep].shape[-1]}."
    ]


def _extrapolation(study: Study, limits: dict[float, Tensor]) -> list[str]:
    """How far the extrapolated loss moved with the last doubling: its remaining error is a fraction of that."""
    depths = study.config.depths
    if INFINITE not in limits or len(depths) < 3 or 2 * depths[-3] != depths[-2] or depths[-3] not in limits:
        return ["Infinite depth is extrapolated from two depths alone, unchecked."] if INFINITE in limits else []
    three = torch.stack([limits[L] for L in depths[-3:]], 1)

    def moved(r: Tensor) -> Tensor:
        before, after = extrapolated(r[:, 0], r[:, 1]), extrapolated(r[:, 1], r[:, 2])
        return mean_loss(study, after) - mean_loss(study, before)

    return [
        f"Infinite depth is 2 f(2L) - f(L) with L = {depths[-2]}; from L = {depths[-3]} it would have given a "
        f"loss that differs, on average over the steps, by {interval(moved, three)}: its intervals count noise alone."
    ]


def _width(study: Study, feedback: Feedback) -> list[str]:
    bias = width_bias(study, feedback)
    if bias is None:
        return []
    width = f"{study.config.limit_width:,}"
    return [f"Width {width} in place of infinity shifts the loss by {bias}; curves and intervals are of width {width}."]


def _certificate(study: Study, feedback: Feedback) -> list[str]:
    """How far structured networks are from those with the law of a Gaussian matrix; nothing where none are."""
    apart = structured_less_exact(study, feedback)
    if apart is None:
        return []
    pairs, width, weights = len(study.measured.exact[feedback]), study.narrow_width, "dense"
    return [
        f"These networks have structured weights. {pairs} of width {width:,} and depth {study.config.depths[-2]} were "
        f"trained with {weights} weights too, which have the exact law of a Gaussian matrix, from the same U and V: "
        f"the loss of a structured network minus that of its {weights} twin is, on average over the steps, {apart} "
        f"({'significant' if apart.resolved else 'not significant'}). Laws that share a limit differ less at larger "
        "widths."
    ]


def _above(study: Study, limits: dict[float, Tensor]) -> list[str]:
    """Loss of real networks minus the prediction for their own depth, on average over steps."""
    depth = study.config.depths[-1]
    if depth not in limits or not real(study, depth):
        return []
    apart = {
        n: interval(lambda o, r: study.mean_loss(o).mean() - mean_loss(study, r), outputs, limits[depth])
        for n, outputs in real(study, depth).items()
    }
    resolved = [str(n) for n, difference in apart.items() if difference.resolved]
    which = f"significant: width {', '.join(resolved)}" if resolved else "none is significant"
    shown = "; ".join(f"{n}: {difference}" for n, difference in apart.items())
    return [f"The loss of real networks of depth {depth} minus the prediction for it, by width: {shown} ({which})."]


def _table(rows: list[Row]) -> list[dict[str, str]]:
    if not rows:
        return []
    steps = sorted({row["step"] for row in rows})[:: max(1, len({row["step"] for row in rows}) - 1)]
    table: dict[str, dict[str, str]] = {}
    for row in rows:
        if row["step"] in steps:
            line = table.setdefault(row["series"], {"": row["series"]})
            line[f"loss before step {row['step']} ± standard error"] = f"{row['loss']:.4f} ± {row['stderr']:.4f}"
    return list(table.values())
