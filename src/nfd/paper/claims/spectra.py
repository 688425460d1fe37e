"""Claims on the covariances of training steps (Assumption 1, section I.1, Fig. 6)."""

from __future__ import annotations

import math
from functools import partial

from nfd.core import interval, log_slope
from nfd.paper.claims.claim import Claim, Judged
from nfd.paper.claims.evidence import Evidence
from nfd.paper.claims.rules import above, below, conditional, known, no_number, power_said, undecided
from nfd.paper.figures import figure6
from nfd.paper.figures.panels import mean_of
from nfd.paper.figures.selection import Runs

_CLOSE = 1e-3  # of the mean diagonal: close to zero
_ZERO = -30.0  # log10 of what stands for an eigenvalue of zero
_ROUNDING = 1e-11  # of the mean diagonal: what single precision leaves of a zero eigenvalue


def _positive(evidence: Evidence, name: str) -> Judged:
    """The smallest relative eigenvalue over layers, in log10, at the largest width after the last step."""
    runs = evidence.part("6", "online")
    widest = runs.where(width=max(runs.values("width")))
    relative, raw = figure6.smallest(widest, f"{name}_relative"), figure6.smallest(widest, name)
    decades = interval(lambda s: s.clamp_min(1e-30).log10().mean(0), relative)
    if not known(decades):
        return no_number(widest, "width", "width")
    steps = figure6.eigenvalues(widest, name)[0][-1]
    smallest = f"{float(raw.min()):.1e}, {float(relative.min()):.1e} of the diagonal"
    reading = (
        f"After {steps:.0f} steps the least of seeds and layers at width {max(runs.values('width'))} is {smallest}."
    )
    return above(decades, math.log10(_ROUNDING), f"{reading}{_weighted(widest, name)}", "every width of the figure")


def _weighted(runs: Runs, name: str) -> str:
    """What the loss-weighted Theta says beside Theta."""
    if name != "theta":
        return ""
    delta = figure6.smallest(runs, "delta_relative").clamp_min(1e-30).log10()
    return f" Of gradients weighted by dLoss/df it is 10^{mean_of(delta)} of the diagonal."


def _decreases(evidence: Evidence, name: str) -> Judged:
    runs = evidence.part("6", "online")
    widest = runs.where(width=max(runs.values("width")))
    first, last = (figure6.smallest(widest, name, look).clamp_min(1e-30).log10() for look in (0, -1))
    decades = mean_of(first - last)
    if not known(decades):
        return no_number(widest, "width", "width")
    steps, _ = figure6.eigenvalues(widest, name)
    if bool((first <= _ZERO).any()):
        return undecided(f"At step {steps[0]:.0f} it is already zero within rounding.")
    fall = f"by {decades} decades" if bool((last > _ZERO).all()) else "to zero within rounding"
    return above(
        decades, 0.0, f"From step {steps[0]:.0f} to step {steps[-1]:.0f} it falls {fall}. It cannot rise: "
        "the matrix of fewer steps is a part of that of more (Cauchy).", f"{steps[-1]:.0f} steps alone",
    )  # fmt: skip


def _grows(evidence: Evidence, name: str) -> Judged:
    runs = evidence.part("6", "online")
    steps, _ = figure6.eigenvalues(runs, name)
    powers = {}
    for look in (0, len(steps) // 2, len(steps) - 1):
        widths, samples = figure6.by_width(runs, name, look)
        if len(widths) > 1:
            powers[look] = interval(lambda s, w=widths: log_slope(w, s.mean(0).clamp_min(1e-30)), samples)
    if len(steps) - 1 not in powers:
        return undecided("Less than two widths have no network that diverged.")
    if not bool(figure6.by_width(runs, name)[1].any()):
        return undecided(f"At every width it is zero within rounding after {steps[-1]:.0f} steps.")
    numbers = ", ".join(f"{power_said('n', power)} at step {steps[look]:.0f}" for look, power in powers.items())
    return above(powers[len(steps) - 1], 0.0, f"The smallest over layers goes as {numbers}.", f"steps {numbers}")


def _narrow(evidence: Evidence) -> Judged:
    """How close to zero the narrowest network's Sigma comes, over its diagonal, in decades."""
    runs = evidence.part("6", "online")
    width = min(runs.values("width"))
    narrow = runs.where(width=width)
    steps, _ = figure6.eigenvalues(narrow, "sigma")
    by_look = {look: figure6.smallest(narrow, "sigma_relative", look).clamp_min(1e-30).log10() for look in (0, -1)}
    late, early = mean_of(by_look[-1]), mean_of(by_look[0])
    if not known(late):
        return no_number(narrow, "width", "width")
    reading = f"At width {width} it is 10^{late} of the diagonal after {steps[-1]:.0f} steps and 10^{early} after "
    judged = below(late, math.log10(_CLOSE), f"{reading}{steps[0]:.0f}.", f"after {steps[0]:.0f} steps: 10^{early}")
    return conditional(judged, f"Where steps come near the width, here {steps[-1] / width:.2f} of it:")


_OF = {"sigma": "Sigma", "theta": "Theta"}


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
        "log10 of the smallest eigenvalue of Sigma over its diagonal, of the narrowest after the last step: holds "
        f"below {math.log10(_CLOSE):g}.", _narrow,
    ),
)  # fmt: skip
