"""Claims of Figs. 5 and 6: two-layer blocks, transfer of the learning rate, and covariances of
steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

from nfd.core import UNKNOWN, Interval, RuleName, interval, log_slope, mean
from nfd.laws import Scores, drift
from nfd.paper.claims.claim import (
    EVEN,
    Claim,
    ClaimVerdict,
    Evidence,
    Judged,
    above,
    below,
    between,
    conditional,
    inside,
    known,
    no_number,
    power_said,
    together,
    undecided,
)
from nfd.paper.figures import figure5, figure6
from nfd.paper.figures.figure import Runs
from nfd.paper.figures.panels import apart_said

_UNIFORM, _EQ8 = figure5.RULES
_TRANSFERS = 0.25  # doublings of the best rate per doubling of the size: a drift within is none


def _slope(evidence: Evidence, rule: str, meter: str, low: float, high: float) -> Judged:
    collapse = evidence.part("5", "collapse", "stream" if rule == _EQ8 else "")
    power, measured = _exponent_of(collapse, rule, meter)
    if not known(power):
        return no_number(collapse.where(rule=rule), "depth", "depth")
    function, _ = _exponent_of(collapse, rule, "function_update_inner")
    first, _ = _exponent_of(collapse, rule, meter, look=0)
    looks = collapse.curve("measured_after")[0].tolist()
    early = f"{power_said('L', first)} after {looks[0]:.0f}"
    reading = f"{measured} after {looks[-1]:.0f} steps; {early}. What inner layers do to the "
    return between(
        power,
        low,
        high,
        f"{reading}function goes as {power_said('L', function)}.",
        f"{early} steps",
        "digits and Adam: docs/checks.md",
    )


def _exponent_of(collapse: Runs, rule: str, meter: str, look: int = -1) -> tuple[Interval, str]:
    depths, samples = figure5.updates(collapse, rule, meter, look)
    if len(depths) < 2:
        return UNKNOWN, "no known power of L"
    power = interval(lambda s: log_slope(depths, s.mean(0)), samples)
    return power, f"{power_said('L', power)} over depths {depths[0]:.0f} to {depths[-1]:.0f}"


def cells(runs: Runs, rule: str, classes: int) -> dict[tuple[int, int], Scores]:
    """Scores by (width, depth)."""
    some = runs.where(rule=rule)
    return {(n, L): figure5.scores(some, rule, n, L, classes) for n, L in some.by("width", "depth")}


def _drift(
    evidence: Evidence,
    of: Callable[[Evidence], Runs],
    rule: str,
    axis: Literal["depth", "width"],
    *,
    low: float,
    high: float,
    tried: str,
) -> Judged:
    """Whether the doublings of the best rate per doubling of a size lie in a range."""
    scores = cells(of(evidence), rule, evidence.classes)
    if blind := [
        f"width {n}, depth {L}" for (n, L), cell in scores.items() if not cell.has_optimum
    ]:
        return undecided(f"The best rate is not within the grid at {'; '.join(blind)}.")
    best_rates = ", ".join(
        f"{math.pow(2, cell.optimum().value):.2g} at width {n}, depth {L}"
        for (n, L), cell in scores.items()
    )
    return between(drift(scores, axis) or UNKNOWN, low, high, f"Best eta_c: {best_rates}.", tried)


def _of_row_2(evidence: Evidence, rule: str) -> Runs:
    """The widest of row 2, with uniform rates of those that are trained longest: the caption names
    no epochs.
    """
    runs = evidence.part("5", "transfer", "longer" if rule == _UNIFORM else "")
    return runs.where(width=max(runs.values("width")))


def _of_mup(evidence: Evidence) -> Runs:
    parts = evidence.runs["claims"]
    return Runs([run for name in ("one-layer", "mup-deep") if name in parts for run in parts[name]])


def _better(evidence: Evidence, metric: str) -> Judged:
    """Eq. 8 minus uniform, each at its best rate, at every size; the value is the worst of them."""
    sizes = evidence.runs["5"]["transfer"].by("width", "depth") | evidence.part(
        "5", "transfer", "tuned"
    ).by("width", "depth")
    gains = {}
    ends = []
    for (width, depth), some in sorted(sizes.items()):
        gains[f"width {width}, depth {depth}"] = figure5.tuned_advantage(some, metric)
        ends += [rule for rule in figure5.RULES if figure5.best_rate(some, rule)[1]]
    gained = "; ".join(f"{apart_said(apart)} at {size}" for size, apart in gains.items())
    if ends:
        return undecided(f"A best rate lies at an end of the grid. Eq. 8 minus uniform: {gained}.")
    verdict = together(inside(apart, -math.inf, 0.0) for apart in gains.values())
    worst = max(
        gains.values(), key=lambda apart: apart.low if verdict == ClaimVerdict.FAILS else apart.high
    )
    better = sum(apart.high < 0 for apart in gains.values())
    reading = (
        f"Eq. 8 minus uniform in nats, each at its best rate: {gained}. Better at {better} of "
        f"{len(gains)} sizes."
    )
    tried = (
        ()
        if verdict == ClaimVerdict.HOLDS
        else ("every size of the figure", "more seeds and steps: docs/sweeps.md")
    )
    return Judged(worst, verdict, reading, tried)


def _deep(evidence: Evidence, metric: str) -> Judged:
    """At the paper's rate; what is left of it when each rule is tuned makes the condition."""
    deep = evidence.runs["5"]["deep"]
    slow = deep.where(eta_c=min(deep.values("eta_c")))
    if any(r.status == "diverged" for r in slow):
        return no_number(slow, "rule", "")
    at_one_rate = figure5.advantage(slow, metric)
    each_tuned = figure5.tuned_advantage(deep, metric)
    rates = {name: figure5.best_rate(deep, rule) for rule, name in figure5.RULES.items()}
    best_rates = ", ".join(
        f"{eta:g}{' (an end of the grid)' * end} with {name}" for name, (eta, end) in rates.items()
    )
    reading = (
        f"Eq. 8 minus uniform: {at_one_rate} at eta_c = {min(deep.values('eta_c')):g}; "
        f"{each_tuned} each at its best, {best_rates}."
    )
    judge = above if metric == "test_accuracy" else below
    grid = (
        "each rule at its best of the rates "
        f"{', '.join(f'{eta:g}' for eta in sorted(deep.values('eta_c')))}"
    )
    judged, tuned = (judge(gain, 0.0, reading, grid) for gain in (at_one_rate, each_tuned))
    is_tuned = not any(end for _, end in rates.values())
    if is_tuned and tuned.verdict == ClaimVerdict.HOLDS:
        return judged
    lost = {
        ClaimVerdict.HOLDS: "not known when each is tuned, as a best rate lies at an end of the "
        "grid",
        ClaimVerdict.UNDECIDED: "not resolved when each is tuned",
    }.get(tuned.verdict, "and not when each is tuned")
    return conditional(judged, f"At one rate for both, {lost}:")


def _update_claim(
    id_: str, source: str, statement: str, rule: RuleName, meter: str, low: float, high: float
) -> Claim:
    measured = f"Exponent in L of {meter} (nfd.meters.updates) at the end, {figure5.RULES[rule]}"
    measurement = f"{measured}: holds within [{low:g}, {high:g}]."
    return Claim(
        id_,
        source,
        statement,
        measurement,
        partial(_slope, rule=rule, meter=meter, low=low, high=high),
    )


BLOCKS = (
    _update_claim(
        "eq7-inner",
        "Eqs. 7 and 27; Section H.1; Fig. 5 row 1",
        "With uniform rates inner updates fall as 1/sqrt(L).",
        "depth-mup",
        "inner_update",
        -0.5 - EVEN,
        -0.5 + EVEN,
    ),
    _update_claim(
        "eq7-stream",
        "Eqs. 7, 33 and 34; Section H.2; Fig. 5 row 1",
        "With uniform rates updates of the stream's dynamics stay.",
        "depth-mup",
        "stream_update",
        -EVEN,
        EVEN,
    ),
    _update_claim(
        "eq8-inner",
        "Eq. 8; Fig. 5 row 1",
        "With the rates of Eq. 8 inner updates stay.",
        "depth-mup-inner",
        "inner_update",
        -EVEN,
        EVEN,
    ),
    _update_claim(
        "eq8-stream",
        "Eqs. 8 and 32; Section H.2",
        "With the rates of Eq. 8 updates of the stream's dynamics stay.",
        "depth-mup-inner",
        "stream_update",
        -EVEN,
        EVEN,
    ),
    Claim(
        "fig5-moves",
        "Section 5; Fig. 5 row 2, d",
        "With uniform rates the best eta_c moves with depth.",
        "Doublings of the best eta_c (training loss) per doubling of depth: holds above "
        f"{_TRANSFERS}.",
        partial(
            _drift,
            of=partial(_of_row_2, rule=_UNIFORM),
            rule=_UNIFORM,
            axis="depth",
            low=_TRANSFERS,
            high=math.inf,
            tried="both widths of the figure (Fig. 5 d)",
        ),
    ),
    Claim(
        "fig5-stays",
        "Section 5; Fig. 5 row 2, e",
        "With the rates of Eq. 8 the best eta_c stays over depths.",
        "Doublings of the best eta_c (training loss) per doubling of depth: holds within "
        f"{_TRANSFERS} of 0.",
        partial(
            _drift,
            of=partial(_of_row_2, rule=_EQ8),
            rule=_EQ8,
            axis="depth",
            low=-_TRANSFERS,
            high=_TRANSFERS,
            tried="both widths; depths to 256: docs/sweeps.md",
        ),
    ),
    Claim(
        "fig5-better-train",
        "Fig. 5 row 2",
        "Eq. 8 improves the training loss uniformly.",
        "Training loss, Eq. 8 minus uniform, each at the rate of its lowest training loss, paired "
        "by seed, at every size: holds where all lie below 0.",
        partial(_better, metric="train_loss"),
    ),
    Claim(
        "fig5-better-test",
        "Fig. 5 row 2",
        "Eq. 8 improves the test loss uniformly.",
        "Test loss, Eq. 8 minus uniform, each at the rate of its lowest training loss, paired by "
        "seed, at every size: holds where all lie below 0.",
        partial(_better, metric="test_loss"),
    ),
    Claim(
        "fig5-deep-train",
        "Fig. 5 row 3",
        "At depth 64 Eq. 8 reaches a lower training loss.",
        "Training loss at the end, Eq. 8 minus uniform at the smallest eta_c, paired by seed: "
        "holds below 0, with a condition where not when each is at its best rate.",
        partial(_deep, metric="train_loss"),
    ),
    Claim(
        "fig5-deep-test",
        "Fig. 5 row 3",
        "At depth 64 Eq. 8 reaches a lower test loss.",
        "Test loss at the end, Eq. 8 minus uniform at the smallest eta_c, paired by seed: holds "
        "below 0, with a condition where not when each is at its best rate.",
        partial(_deep, metric="test_loss"),
    ),
    Claim(
        "fig5-deep-accuracy",
        "Fig. 5 row 3",
        "At depth 64 Eq. 8 reaches a higher test accuracy.",
        "Test accuracy at the end, Eq. 8 minus uniform at the smallest eta_c, paired by seed: "
        "holds above 0, with a condition where not when each is at its best rate.",
        partial(_deep, metric="test_accuracy"),
    ),
    Claim(
        "transfer-one-layer",
        "Sections 1, 2 and 5",
        "Under depth-muP one-layer blocks keep their best rate.",
        f"Doublings of the best eta_c per doubling of depth: holds within {_TRANSFERS} of 0.",
        partial(
            _drift,
            of=lambda e: e.runs["claims"]["one-layer"],
            rule="depth-mup",
            axis="depth",
            low=-_TRANSFERS,
            high=_TRANSFERS,
            tried="the depths of Fig. 5",
        ),
    ),
    Claim(
        "transfer-mup-depth",
        "Section 1",
        "Under muP the best rate does not carry over to deeper networks.",
        "Doublings of the best eta_c per doubling of depth, one-layer blocks: holds below "
        f"-{_TRANSFERS}.",
        partial(
            _drift,
            of=_of_mup,
            rule="mup",
            axis="depth",
            low=-math.inf,
            high=-_TRANSFERS,
            tried="two-layer blocks: nfd transfer",
        ),
    ),
    Claim(
        "transfer-width",
        "Sections 1 and 2",
        "The best rate carries over to wider networks.",
        "Doublings of the best eta_c per doubling of width, depth-muP, one-layer: holds within "
        f"{_TRANSFERS} of 0.",
        partial(
            _drift,
            of=lambda e: e.runs["claims"]["width"],
            rule="depth-mup",
            axis="width",
            low=-_TRANSFERS,
            high=_TRANSFERS,
            tried="four widths",
        ),
    ),
)


# ---- Claims on the covariances of training steps (Assumption 1, section I.1, Fig. 6)

_CLOSE = 1e-3  # of the mean diagonal: close to zero
_ZERO = -30.0  # log10 of what stands for an eigenvalue of zero
_ROUNDING = 1e-11  # of the mean diagonal: what single precision leaves of a zero eigenvalue


def _positive(evidence: Evidence, name: str) -> Judged:
    """The smallest relative eigenvalue over layers, in log10, at the largest width after the last
    step.
    """
    runs = evidence.part("6", "online")
    widest = runs.where(width=max(runs.values("width")))
    relative = figure6.smallest(widest, f"{name}_relative")
    raw = figure6.smallest(widest, name)
    decades = interval(lambda s: s.clamp_min(1e-30).log10().mean(0), relative)
    if not known(decades):
        return no_number(widest, "width", "width")
    steps = figure6.eigenvalues(widest, name)[0][-1]
    smallest = f"{float(raw.min()):.1e}, {float(relative.min()):.1e} of the diagonal"
    reading = (
        f"After {steps:.0f} steps the least of seeds and layers at width "
        f"{max(runs.values('width'))} is {smallest}."
    )
    return above(
        decades,
        math.log10(_ROUNDING),
        f"{reading}{_weighted(widest, name)}",
        "every width of the figure",
    )


def _weighted(runs: Runs, name: str) -> str:
    """What the loss-weighted Theta says beside Theta."""
    if name != "theta":
        return ""
    delta = figure6.smallest(runs, "delta_relative").clamp_min(1e-30).log10()
    return f" Of gradients weighted by dLoss/df it is 10^{mean(delta)} of the diagonal."


def _decreases(evidence: Evidence, name: str) -> Judged:
    runs = evidence.part("6", "online")
    widest = runs.where(width=max(runs.values("width")))
    first, last = (
        figure6.smallest(widest, name, look).clamp_min(1e-30).log10() for look in (0, -1)
    )
    decades = mean(first - last)
    if not known(decades):
        return no_number(widest, "width", "width")
    steps, _ = figure6.eigenvalues(widest, name)
    if bool((first <= _ZERO).any()):
        return undecided(f"At step {steps[0]:.0f} it is already zero within rounding.")
    fall = f"by {decades} decades" if bool((last > _ZERO).all()) else "to zero within rounding"
    return above(
        decades,
        0.0,
        f"From step {steps[0]:.0f} to step {steps[-1]:.0f} it falls {fall}. It cannot rise: "
        "the matrix of fewer steps is a part of that of more (Cauchy).",
        f"{steps[-1]:.0f} steps alone",
    )


def _grows(evidence: Evidence, name: str) -> Judged:
    runs = evidence.part("6", "online")
    steps, _ = figure6.eigenvalues(runs, name)
    powers = {}
    for look in (0, len(steps) // 2, len(steps) - 1):
        widths, samples = figure6.by_width(runs, name, look)
        if len(widths) > 1:
            powers[look] = interval(
                lambda s, w=widths: log_slope(w, s.mean(0).clamp_min(1e-30)), samples
            )
    if len(steps) - 1 not in powers:
        return undecided("Less than two widths have no network that diverged.")
    if not bool(figure6.by_width(runs, name)[1].any()):
        return undecided(f"At every width it is zero within rounding after {steps[-1]:.0f} steps.")
    numbers = ", ".join(
        f"{power_said('n', power)} at step {steps[look]:.0f}" for look, power in powers.items()
    )
    return above(
        powers[len(steps) - 1],
        0.0,
        f"The smallest over layers goes as {numbers}.",
        f"steps {numbers}",
    )


def _narrow(evidence: Evidence) -> Judged:
    """How close to zero the narrowest network's Sigma comes, over its diagonal, in decades."""
    runs = evidence.part("6", "online")
    width = min(runs.values("width"))
    narrow = runs.where(width=width)
    steps, _ = figure6.eigenvalues(narrow, "sigma")
    by_look = {
        look: figure6.smallest(narrow, "sigma_relative", look).clamp_min(1e-30).log10()
        for look in (0, -1)
    }
    late = mean(by_look[-1])
    early = mean(by_look[0])
    if not known(late):
        return no_number(narrow, "width", "width")
    reading = (
        f"At width {width} it is 10^{late} of the diagonal after {steps[-1]:.0f} steps and "
        f"10^{early} after "
    )
    judged = below(
        late,
        math.log10(_CLOSE),
        f"{reading}{steps[0]:.0f}.",
        f"after {steps[0]:.0f} steps: 10^{early}",
    )
    return conditional(
        judged, f"Where steps come near the width, here {steps[-1] / width:.2f} of it:"
    )


_OF = {"sigma": "Sigma", "theta": "Theta"}


def _eigenvalue_claims(name: str) -> tuple[Claim, ...]:
    of = _OF[name]
    return (
        Claim(
            f"assumption1-{name}",
            "Assumption 1; Fig. 6; Section I.1",
            f"The smallest eigenvalue of {of} stays positive in every layer while training.",
            "log10 of the smallest eigenvalue over layers, over the diagonal, at the largest width "
            f"after the last step: holds above the rounding of single precision, {_ROUNDING:g}.",
            partial(_positive, name=name),
        ),
        Claim(
            f"fig6-{name}-falls",
            "Fig. 6; Section I.1",
            f"The smallest eigenvalue of {of} falls while training.",
            "Decades from the first look to the last at the largest width: holds above 0.",
            partial(_decreases, name=name),
        ),
        Claim(
            f"fig6-{name}-width",
            "Fig. 6; Section I.1",
            f"The smallest eigenvalue of {of} grows with width.",
            "Exponent in n of the smallest over layers after the last step: holds above 0.",
            partial(_grows, name=name),
        ),
    )


SPECTRA = (
    *_eigenvalue_claims("sigma"),
    *_eigenvalue_claims("theta"),
    Claim(
        "fig6-narrow",
        "Fig. 6, caption",
        "Networks that are not wide enough, such as width 512, come close to zero.",
        "log10 of the smallest eigenvalue of Sigma over its diagonal, of the narrowest after the "
        f"last step: holds below {math.log10(_CLOSE):g}.",
        _narrow,
    ),
)
