"""Claims on rates of convergence to the limit, before and while training (Theorem 1, Fig. 3)."""

from __future__ import annotations

from nfd.claims.claim import Claim, Judged
from nfd.claims.evidence import Evidence
from nfd.claims.rules import as_fast_as, between, conditional
from nfd.core.statistics import Interval, interval, log_slope
from nfd.figures import figure3
from nfd.figures.panels import by_seed

_LETTER = {"width": "n", "depth": "L"}


def _exponent(evidence: Evidence, activation: str, stream: str, axis: str) -> Interval:
    places, squares = by_seed(figure3.start_errors(evidence.runs["3"]["start"], activation, stream, axis))
    return interval(lambda s: log_slope(places, s.mean(0)), squares)


def _relu_backward(evidence: Evidence) -> Judged:
    found = _exponent(evidence, "relu", "g", "depth")
    return as_fast_as(
        found, -1.0,
        f"With ReLU, as in the paper's figures, phi' is not Lipschitz and the mean square goes as L^{found}; "
        f"with tanh, which the proposition covers, as L^{_exponent(evidence, 'tanh', 'g', 'depth')}.",
        "tanh in place of ReLU: the rate claimed",
    )  # fmt: skip


def _trained_width(evidence: Evidence) -> Judged:
    real, limit = (evidence.runs["3"][part] for part in ("real", "limit"))
    found = figure3.width_slope(real, limit, max(real.values("depth")))
    reading = f"The mean square goes as n^{found} at depth {max(real.values('depth'))}."
    return conditional(as_fast_as(found, -1.0, reading), "To the limit of the standard network, not to Definition 1:")


def _trained_depth(evidence: Evidence) -> Judged:
    found = figure3.depth_slope(evidence.runs["3"]["limit"])
    reading = f"The mean square of very wide networks goes as L^{found}."
    return conditional(as_fast_as(found, -1.0, reading), "To the limit of the standard network, not to Definition 1:")


def _uniform(evidence: Evidence) -> Judged:
    """Whether the rate in width is the same at every depth."""
    real, limit = (evidence.runs["3"][part] for part in ("real", "limit"))
    depths = sorted(real.values("depth"))
    slopes = [figure3.width_slope(real, limit, L) for L in (depths[0], depths[-1])]
    error = (slopes[0].stderr ** 2 + slopes[1].stderr ** 2) ** 0.5
    value = slopes[1].value - slopes[0].value
    found = Interval(value, error, value - 2 * error, value + 2 * error)
    return between(
        found, -0.5, 0.5, f"The exponent in n is {slopes[0]} at depth {depths[0]}, {slopes[1]} at depth {depths[-1]}."
    )  # fmt: skip


CLAIMS = (
    Claim(
        "fig3-relu", "Fig. 3; Prop. 6", "The same rate in depth holds for the gradients of the ReLU networks used.",
        "Exponent in L of the mean square of g_0 minus that of twice the depth along one path, ReLU: holds where its "
        "interval reaches -1 or less.", _relu_backward,
    ),
    Claim(
        "fig3-width", "Fig. 3; Theorem 1", "While training the error falls as O(1/n).",
        "Exponent in n of the mean square of outputs of one trained network minus the mean of very wide ones: holds "
        "where its interval reaches -1 or less.", _trained_width,
    ),
    Claim(
        "fig3-depth", "Fig. 3; Theorem 1", "While training the error falls as O(1/L).",
        "Exponent in L of the mean square of outputs of very wide trained networks minus infinite depth: holds where "
        "its interval reaches -1 or less.", _trained_depth,
    ),
    Claim(
        "fig3-uniform", "Fig. 3, caption", "The rate in width is the same at every depth: the limits commute.",
        "Exponent in n at the largest depth minus at the smallest: holds within 0.5 of 0.", _uniform,
    ),
)  # fmt: skip
