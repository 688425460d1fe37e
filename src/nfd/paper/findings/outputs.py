"""What has been measured, as the findings need it: only runs that did not diverge, infinite depth extrapolated."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nfd.core import INFINITE, Feedback, Interval, interval, mean
from nfd.limits import extrapolated
from nfd.paper.study import NARROW, Study


def wide(study: Study, feedback: Feedback) -> dict[float, Tensor]:
    """Depth to outputs [R, steps, b, C] of the infinitely wide network, infinite depth last."""
    done = study.measured.limits
    outputs: dict[float, Tensor] = {}
    for depth in study.config.depths:
        if (feedback, depth) in done and whole(done[feedback, depth]):
            outputs[depth] = done[feedback, depth]
    *_, half, deepest = study.config.depths
    if half in outputs and deepest in outputs:
        outputs[INFINITE] = extrapolated(outputs[half], outputs[deepest])
    return outputs


def real(study: Study, depth: int) -> dict[int, Tensor]:
    """Width to outputs [seeds, steps, b, C] of real networks of one depth."""
    done = study.measured.real
    return {n: done[depth, n] for n in study.config.widths if (depth, n) in done and whole(done[depth, n])}


def whole(outputs: Tensor) -> bool:
    """Whether no run diverged."""
    return bool(torch.isfinite(outputs).all())


def mean_loss(study: Study, outputs: Tensor) -> Tensor:
    """Loss of the mean outputs of replicates [R, steps, b, C], averaged over steps."""
    return study.mean_loss(outputs.mean(0)).mean()


def progress(study: Study, outputs: Tensor) -> Tensor:
    """How far, on average over the steps, the loss lies below log C, where outputs of zero start; in nats."""
    return math.log(outputs.shape[-1]) - mean_loss(study, outputs)


def width_bias(study: Study, feedback: Feedback) -> Interval | None:
    """What a finite width adds to the mean loss, ``a / n`` from ``f_m - f_n = a (1/m - 1/n)``."""
    depth = study.config.depths[-2]
    broad, narrow = study.measured.limits.get((feedback, depth)), study.measured.narrow.get(feedback)
    if broad is None or narrow is None or not whole(broad) or not whole(narrow):
        return None
    return interval(lambda m, n: (mean_loss(study, m) - mean_loss(study, n)) / (NARROW - 1), narrow, broad)


def structured_less_exact(study: Study, feedback: Feedback) -> Interval | None:
    """The mean loss of single structured networks minus that of Gaussian ones of their seeds, at the narrow width."""
    structured, exact = study.measured.narrow.get(feedback), study.measured.exact.get(feedback)
    if structured is None or exact is None or not whole(structured) or not whole(exact):
        return None
    pairs = min(len(structured), len(exact))
    apart = study.mean_loss(structured[:pairs]) - study.mean_loss(exact[:pairs])
    return mean(apart.mean(-1))


def divergence(study: Study, feedback: Feedback | None = None) -> list[str]:
    """A sentence that names the networks that left the range of numbers; none when none did."""
    m = study.measured
    runs = {f"infinitely wide ones of depth {L}": y for (name, L), y in m.limits.items() if name == feedback}
    if feedback != "independent":
        runs |= {f"width {n} and depth {L}": y for (L, n), y in m.real.items()}
    ended_runs: list[str] = []
    firsts: list[int] = []
    for where, outputs in runs.items():
        ended = (~torch.isfinite(outputs)).any(-1).any(-1)
        if bool(ended.any()):
            first = int(ended.any(0).nonzero()[0])
            firsts.append(first)
            ended_runs.append(f"{int(ended.any(1).sum())} of {len(ended)} of {where} (first at step {first})")
    if not ended_runs:
        return []
    remedy = "lower the horizon or the scale of the inputs" if min(firsts) == 0 else "lower eta_c"
    return [f"Training diverged: {'; '.join(ended_runs)}. These sizes are left out; {remedy}."]
