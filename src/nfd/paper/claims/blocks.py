"""Claims of Figs. 5 and 6.

They are about two-layer blocks, transfer of the learning rate, and covariances of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

from torch import Tensor

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
    power_in_words,
    some_of,
    together,
    undecided,
)
from nfd.paper.figures import figure5, figure6
from nfd.paper.figures.figure import Runs
from nfd.paper.figures.panels import difference_in_words

_UNIFORM, _EQ8 = figure5.RULES
# A drift within so many doublings of the best learning rate per doubling of the size counts as
# none.
_TRANSFERS = 0.25
# The part of the claims with networks deeper than those of row 2.
_DEEPER = "5-deeper"


def _slope(evidence: Evidence, rule: str, meter: str, low: float, high: float) -> Judged:
    collapse = evidence.part("5", "collapse", "stream" if rule == _EQ8 else "")
    power, measured = _exponent_of(collapse, rule, meter)
    if not known(power):
        return no_number(collapse.where(rule=rule), "depth", "depth")
    function, _ = _exponent_of(collapse, rule, "function_update_inner")
    first, _ = _exponent_of(collapse, rule, meter, look=0)
    looks = collapse.curve("measured_after")[0].tolist()
    early = f"{power_in_words('L', first)} after {looks[0]:.0f}"
    reading = (
        f"{measured} after {looks[-1]:.0f} steps; {early}. What inner layers do to the function "
        f"goes as {power_in_words('L', function)}."
    )
    tried = (f"{early} steps", "digits and Adam: docs/checks.md")
    return between(power, low, high, reading, *tried)


def _exponent_of(collapse: Runs, rule: str, meter: str, look: int = -1) -> tuple[Interval, str]:
    """Return the exponent of an update in depth at one look, and what it is over, in words."""
    depths, samples = figure5.updates(collapse, rule, meter, look)
    if len(depths) < 2:
        return UNKNOWN, "no known power of L"
    power = interval(lambda s: log_slope(depths, s.mean(0)), samples)
    return power, f"{power_in_words('L', power)} over depths {depths[0]:.0f} to {depths[-1]:.0f}"


def cells(runs: Runs, rule: str, classes: int) -> dict[tuple[int, int], Scores]:
    """Return the losses by learning rate under one rule, by (width, depth)."""
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
    """Judge whether the doublings of the best learning rate per doubling of a size are in range."""
    scores = cells(of(evidence), rule, evidence.classes)
    at_the_end: list[str] = []
    best_rates: list[str] = []
    for (n, L), cell in scores.items():
        if cell.has_optimum:
            eta_c = math.pow(2, cell.optimum().value)
            best_rates.append(f"{eta_c:.2g} at width {n}, depth {L}")
        else:
            at_the_end.append(f"width {n}, depth {L}")
    if at_the_end:
        return undecided(f"The best rate is not within the grid at {'; '.join(at_the_end)}.")
    reading = f"Best eta_c: {', '.join(best_rates)}."
    return between(drift(scores, axis) or UNKNOWN, low, high, reading, tried)


def _drift_of_row_2(evidence: Evidence, rule: str, low: float, high: float, tried: str) -> Judged:
    """Judge the drift with depth in networks of the figure, and in deeper ones that train shortly.

    The value is that of the figure. Where the deeper ones say the opposite, the statement has a
    condition. A rate stays if it moves by no more in all: the bounds on the doublings of the rate
    are the figure's over all its depths, so that those per doubling of depth are closer where the
    depths span more doublings.
    """
    of = partial(_of_row_2, rule=rule)
    of_figure = _drift(evidence, of, rule, "depth", low=low, high=high, tried=tried)
    of_claims = evidence.runs.get("claims", {})
    if _DEEPER not in of_claims:
        return of_figure
    deeper = of_claims[_DEEPER]
    share = _doublings_of_depth(of(evidence)) / _doublings_of_depth(deeper)
    of_deeper = _drift(
        evidence,
        lambda _: deeper,
        rule,
        "depth",
        low=low * share,
        high=high * share,
        tried=tried,
    )
    drift_of_deeper = f"{of_deeper.value}, and {_TRANSFERS * share:.2g} counts as none"
    verdict = some_of({of_figure.verdict, of_deeper.verdict})
    if verdict != ClaimVerdict.CONDITIONAL:
        said = (
            f"In deeper networks after {_steps(deeper)} steps ({of_deeper.verdict}) doublings per "
            f"doubling of depth are {drift_of_deeper}."
        )
        return replace(of_figure, reading=f"{of_figure.reading} {said}")
    condition = (
        f"It is {'so' if of_figure.verdict == ClaimVerdict.HOLDS else 'not so'} after "
        f"{_steps(of(evidence))} steps, and the reverse after {_steps(deeper)} steps in deeper "
        f"networks, where doublings per doubling of depth are {drift_of_deeper}."
    )
    reading = f"{condition} {of_figure.reading} Deeper: {of_deeper.reading}"
    return Judged(of_figure.value, verdict, reading)


def _doublings_of_depth(runs: Runs) -> float:
    """Return how many doublings lie between the shallowest networks and the deepest."""
    depths = runs.values("depth")
    return math.log2(max(depths) / min(depths))


def _steps(runs: Runs) -> str:
    """Return after how many steps runs ended."""
    return " or ".join(f"{steps}" for steps in sorted(runs.values("steps")))


def _of_row_2(evidence: Evidence, rule: str) -> Runs:
    """Return the widest networks of row 2.

    With uniform learning rates they are the networks that train longest: the caption does not name
    the epochs.
    """
    runs = evidence.part("5", "transfer", "longer" if rule == _UNIFORM else "")
    return runs.where(width=max(runs.values("width")))


def _of_mup(evidence: Evidence) -> Runs:
    parts = evidence.runs["claims"]
    records = [*parts["one-layer"]]
    if "mup-deep" in parts:
        records += parts["mup-deep"]
    return Runs(records)


def _better(evidence: Evidence, metric: str) -> Judged:
    """Judge Eq. 8 minus uniform at every size, each at its best learning rate.

    The value is the worst over the sizes.
    """
    sizes = evidence.runs["5"]["transfer"].by("width", "depth")
    sizes |= evidence.part("5", "transfer", "tuned").by("width", "depth")
    gains: dict[str, Interval] = {}
    is_inside = True
    for (width, depth), some in sorted(sizes.items()):
        gains[f"width {width}, depth {depth}"] = figure5.tuned_advantage(some, metric)
        for rule in figure5.RULES:
            _, is_end = figure5.best_rate(some, rule)
            is_inside = is_inside and not is_end
    gained = "; ".join(f"{difference_in_words(apart)} at {size}" for size, apart in gains.items())
    if not is_inside:
        return undecided(f"A best rate lies at an end of the grid. Eq. 8 minus uniform: {gained}.")
    verdict = together(inside(apart, -math.inf, 0.0) for apart in gains.values())
    better = sum(apart.high < 0 for apart in gains.values())
    reading = (
        f"Eq. 8 minus uniform in nats, each at its best rate: {gained}. Better at {better} of "
        f"{len(gains)} sizes."
    )
    if verdict == ClaimVerdict.HOLDS:
        return Judged(max(gains.values(), key=lambda apart: apart.high), verdict, reading)
    # A size at which the statement fails lies above 0 as a whole: it has the highest lower limit.
    fails = verdict == ClaimVerdict.FAILS
    worst = max(gains.values(), key=lambda apart: apart.low if fails else apart.high)
    tried = ("every size of the figure", "more seeds and steps: docs/sweeps.md")
    return Judged(worst, verdict, reading, tried)


def _deep(evidence: Evidence, metric: str) -> Judged:
    """Judge Eq. 8 minus uniform at the paper's learning rate.

    The condition says what remains of it when each rule is tuned.
    """
    deep = evidence.runs["5"]["deep"]
    grid = sorted(deep.values("eta_c"))
    slow = deep.where(eta_c=grid[0])
    if any(r.status == "diverged" for r in slow):
        return no_number(slow, "rule", "")
    at_one_rate = figure5.advantage(slow, metric)
    each_tuned = figure5.tuned_advantage(deep, metric)
    is_tuned = True
    best_rates: list[str] = []
    for rule, name in figure5.RULES.items():
        eta_c, is_end = figure5.best_rate(deep, rule)
        is_tuned = is_tuned and not is_end
        best_rates.append(f"{eta_c:g}{' (an end of the grid)' if is_end else ''} with {name}")
    reading = (
        f"Eq. 8 minus uniform: {at_one_rate} at eta_c = {grid[0]:g}; "
        f"{each_tuned} each at its best, {', '.join(best_rates)}."
    )
    judge = above if metric == "test_accuracy" else below
    tried = f"each rule at its best of the rates {', '.join(f'{eta_c:g}' for eta_c in grid)}"
    judged = judge(at_one_rate, 0.0, reading, tried)
    tuned = judge(each_tuned, 0.0, reading, tried).verdict
    if tuned == ClaimVerdict.HOLDS and is_tuned:
        return judged
    remains = "and not when each is tuned"
    if tuned == ClaimVerdict.HOLDS:
        remains = "not known when each is tuned, as a best rate lies at an end of the grid"
    elif tuned == ClaimVerdict.UNDECIDED:
        remains = "not resolved when each is tuned"
    return conditional(judged, f"At one rate for both, {remains}:")


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
        f"{_TRANSFERS}, with a condition where deeper networks that train shortly disagree: there "
        "the same doublings in all count as none.",
        partial(
            _drift_of_row_2,
            rule=_UNIFORM,
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
        f"{_TRANSFERS} of 0, with a condition where deeper networks that train shortly disagree: "
        "there the same doublings in all count as none.",
        partial(
            _drift_of_row_2,
            rule=_EQ8,
            low=-_TRANSFERS,
            high=_TRANSFERS,
            tried="both widths of the figure (Fig. 5 e)",
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

# An eigenvalue below this share of the mean diagonal is close to zero.
_CLOSE = 1e-3
# What stands for an eigenvalue of zero, and its log10.
_TINY = 1e-30
_ZERO = -30.0
# What single precision leaves of a zero eigenvalue, over the mean diagonal.
_ROUNDING = 1e-11


def _log10(eigenvalues: Tensor) -> Tensor:
    """Return log10 of eigenvalues, with ``_ZERO`` for those that are zero."""
    return eigenvalues.clamp_min(_TINY).log10()


def _positive(evidence: Evidence, name: str) -> Judged:
    """Judge the smallest relative eigenvalue over layers, in log10.

    It is that at the largest width after the last step.
    """
    runs = evidence.part("6", "online")
    width = max(runs.values("width"))
    widest = runs.where(width=width)
    relative = figure6.smallest(widest, f"{name}_relative")
    raw = figure6.smallest(widest, name)
    decades = interval(lambda s: _log10(s).mean(0), relative)
    if not known(decades):
        return no_number(widest, "width", "width")
    steps, _ = figure6.eigenvalues(widest, name)
    smallest = f"{float(raw.min()):.1e}, {float(relative.min()):.1e} of the diagonal"
    reading = (
        f"After {steps[-1]:.0f} steps the least of seeds and layers at width {width} is "
        f"{smallest}.{_weighted(widest, name)}"
    )
    return above(decades, math.log10(_ROUNDING), reading, "every width of the figure")


def _weighted(runs: Runs, name: str) -> str:
    """Say what the loss-weighted Theta does, beside Theta."""
    if name != "theta":
        return ""
    delta = _log10(figure6.smallest(runs, "delta_relative"))
    return f" Of gradients weighted by dLoss/df it is 10^{mean(delta)} of the diagonal."


def _decreases(evidence: Evidence, name: str) -> Judged:
    runs = evidence.part("6", "online")
    widest = runs.where(width=max(runs.values("width")))
    first = _log10(figure6.smallest(widest, name, look=0))
    last = _log10(figure6.smallest(widest, name, look=-1))
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
    last = len(steps) - 1
    powers: dict[int, Interval] = {}
    for look in (0, len(steps) // 2, last):
        widths, samples = figure6.by_width(runs, name, look)
        if len(widths) > 1:
            powers[look] = _power_of_width(widths, samples)
    if last not in powers:
        return undecided("Less than two widths have no network that diverged.")
    _, samples = figure6.by_width(runs, name)
    if not bool(samples.any()):
        return undecided(f"At every width it is zero within rounding after {steps[-1]:.0f} steps.")
    numbers = ", ".join(
        f"{power_in_words('n', power)} at step {steps[look]:.0f}" for look, power in powers.items()
    )
    reading = f"The smallest over layers goes as {numbers}."
    return above(powers[last], 0.0, reading, f"steps {numbers}")


def _power_of_width(widths: list[float], samples: Tensor) -> Interval:
    """Return the exponent in n of the mean over seeds of eigenvalues [seeds, widths]."""
    return interval(lambda s: log_slope(widths, s.mean(0).clamp_min(_TINY)), samples)


def _narrow(evidence: Evidence) -> Judged:
    """Judge how close to zero the narrowest network's Sigma comes, over its diagonal."""
    runs = evidence.part("6", "online")
    width = min(runs.values("width"))
    narrow = runs.where(width=width)
    steps, _ = figure6.eigenvalues(narrow, "sigma")
    early = mean(_log10(figure6.smallest(narrow, "sigma_relative", look=0)))
    late = mean(_log10(figure6.smallest(narrow, "sigma_relative", look=-1)))
    if not known(late):
        return no_number(narrow, "width", "width")
    reading = (
        f"At width {width} it is 10^{late} of the diagonal after {steps[-1]:.0f} steps and "
        f"10^{early} after {steps[0]:.0f}."
    )
    tried = f"after {steps[0]:.0f} steps: 10^{early}"
    judged = below(late, math.log10(_CLOSE), reading, tried)
    return conditional(
        judged, f"Where steps come near the width, here {steps[-1] / width:.2f} of it:"
    )


def _eigenvalue_claims(name: str) -> tuple[Claim, ...]:
    matrix = figure6.MATRICES[name]
    return (
        Claim(
            f"assumption1-{name}",
            "Assumption 1; Fig. 6; Section I.1",
            f"The smallest eigenvalue of {matrix} stays positive in every layer while training.",
            "log10 of the smallest eigenvalue over layers, over the diagonal, at the largest width "
            f"after the last step: holds above the rounding of single precision, {_ROUNDING:g}.",
            partial(_positive, name=name),
        ),
        Claim(
            f"fig6-{name}-falls",
            "Fig. 6; Section I.1",
            f"The smallest eigenvalue of {matrix} falls while training.",
            "Decades from the first look to the last at the largest width: holds above 0.",
            partial(_decreases, name=name),
        ),
        Claim(
            f"fig6-{name}-width",
            "Fig. 6; Section I.1",
            f"The smallest eigenvalue of {matrix} grows with width.",
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
