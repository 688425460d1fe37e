"""Claims on the covariances of training steps (Assumption 1, section I.1, Fig. 6)."""

from __future__ import annotations

import math
from functools import partial

import torch

from nfd.claims.claim import Claim, Judged
from nfd.claims.evidence import Evidence
from nfd.claims.rules import above
from nfd.core.statistics import interval, log_slope
from nfd.figures import figure6

_ROUNDING = 1e-11  # of the mean diagonal: what single precision leaves of a zero eigenvalue


def _positive(evidence: Evidence, name: str) -> Judged:
    """The smallest relative eigenvalue over layers, in log10, at the largest width after the last step."""
    runs = evidence.runs["6"]["online"]
    widest = runs.where(width=max(runs.values("width")))
    relative, raw = figure6.smallest(widest, f"{name}_relative"), figure6.smallest(widest, name)
    found = interval(lambda s: s.clamp_min(1e-30).log10().mean(0), relative)
    steps = figure6.eigenvalues(widest, name)[0][-1]
    return above(
        found, math.log10(_ROUNDING),
        f"Positive, but small: after {steps:.0f} steps {float(raw.min()):.1e} or more, "
        f"{float(relative.min()):.1e} of the diagonal, at width {max(runs.values('width'))}.",
    )  # fmt: skip


def _decreases(evidence: Evidence, name: str) -> Judged:
    runs = evidence.runs["6"]["online"]
    widest = runs.where(width=max(runs.values("width")))
    first, last = (figure6.smallest(widest, name, look).clamp_min(1e-30).log10() for look in (0, -1))
    found = interval(lambda s: s.mean(0), first - last)
    return above(found, 0.0, f"From the first look to the last it falls by {found} decades.")


def _grows(evidence: Evidence, name: str) -> Judged:
    runs = evidence.runs["6"]["online"]
    steps, _ = figure6.eigenvalues(runs, name)
    said = []
    for look in range(len(steps)):
        widths, samples = figure6.by_width(runs, name, look)
        found = interval(lambda s, w=widths: log_slope(w, s.clamp_min(1e-30)).mean(0), samples)
        if look in (0, len(steps) // 2, len(steps) - 1):
            said.append(f"n^{found} at step {steps[look]:.0f}")
    return above(found, 0.0, f"The smallest over layers goes as {', '.join(said)}.")


def _narrow(evidence: Evidence) -> Judged:
    """How much further from zero the widest network's Sigma is than the narrowest's, in decades."""
    runs = evidence.runs["6"]["online"]
    widths, samples = figure6.by_width(runs, "sigma")
    found = interval(lambda s: (s[:, -1].clamp_min(1e-30) / s[:, 0].clamp_min(1e-30)).log10().mean(0), samples)
    ends = [float(v) for v in torch.stack([samples[:, 0].mean(), samples[:, -1].mean()])]
    return above(found, 0.0, f"{ends[0]:.1e} at width {widths[0]:.0f}, {ends[1]:.1e} at width {widths[-1]:.0f}.")


_OF = {"sigma": "Sigma", "theta": "Theta (of loss-weighted g)"}


def _claims(name: str) -> tuple[Claim, ...]:
    of = _OF[name]
    return (
        Claim(
            f"assumption1-{name}", "Assumption 1; Fig. 6; Section I.1",
            f"The smallest eigenvalue of {of} stays positive in every layer while training.",
            "log10 of the smallest eigenvalue over layers, over the diagonal, at the largest width after the last "
            f"step: holds above the rounding of single precision, {_ROUNDING:g}.", partial(_positive, name=name),
        ),
        Claim(
            f"fig6-{name}-falls", "Fig. 6; Section I.1", f"The smallest eigenvalue of {of} falls while training.",
            "Decades from the first look to the last at the largest width: holds above 0.",
            partial(_decreases, name=name),
        ),
        Claim(
            f"fig6-{name}-width", "Fig. 6; Section I.1", f"The smallest eigenvalue of {of} grows with width.",
            "Exponent in n of the smallest over layers after the last step: holds above 0.", partial(_grows, name=name),
        ),
    )  # fmt: skip


CLAIMS = (
    *_claims("sigma"),
    *_claims("theta"),
    Claim(
        "fig6-narrow", "Fig. 6, caption", "Networks that are not wide enough, such as width 512, come close to zero.",
        "Decades between the smallest eigenvalue of Sigma of the widest and of the narrowest: holds above 0.", _narrow,
    ),
)  # fmt: skip
