"""Claims of section 5: two-layer blocks, Eqs. 7 and 8, and transfer of the learning rate (Fig. 5)."""

from __future__ import annotations

import math
from functools import partial

from nfd.claims.claim import Claim, Judged
from nfd.claims.evidence import Evidence
from nfd.claims.rules import EVEN, above, below, between, conditional, undecided
from nfd.core.names import RuleName
from nfd.core.statistics import Interval, interval, log_slope
from nfd.figures import figure5
from nfd.figures.runs import Runs
from nfd.sweep.optimum import Scores
from nfd.sweep.transfer import Size, drift

_UNIFORM, _EQ8 = figure5.RULES
_TRANSFERS = 0.25  # doublings of the best rate per doubling of the size: a drift within is none


def _slope(evidence: Evidence, rule: str, meter: str, low: float, high: float) -> Judged:
    collapse = evidence.runs["5"]["collapse"]
    depths, samples = figure5.updates(collapse, rule, meter)
    found = interval(lambda s: log_slope(depths, s.mean(0)), samples)
    steps = collapse.values("steps")[0]
    return between(found, low, high, f"L^{found} over depths {depths[0]:.0f} to {depths[-1]:.0f} after {steps} steps.")


def _price(evidence: Evidence) -> Judged:
    """Eq. 8 keeps every layer's own update; what the inner layers do together grows."""
    collapse = evidence.runs["5"]["collapse"]
    found = {}
    for rule in figure5.RULES:
        depths, samples = figure5.updates(collapse, rule, "function_update_inner")
        found[rule] = interval(lambda s, d=depths: log_slope(d, s.mean(0)), samples)
    first = figure5.updates(collapse, _EQ8, "function_update_inner", 0)
    early = interval(lambda s: log_slope(first[0], s.mean(0)), first[1])
    return between(
        found[_EQ8], -EVEN, EVEN,
        f"What inner layers do to the function goes as L^{found[_EQ8]} with Eq. 8 and L^{found[_UNIFORM]} with uniform "
        "rates: inner updates of size one add up over the blocks.",
        f"earlier in training: L^{early}",
    )  # fmt: skip


def cells(runs: Runs, rule: str, classes: int, metric: str = "train_loss") -> dict[Size, Scores]:
    """Scores by (width, depth)."""
    some = runs.where(rule=rule)
    return {(n, L): figure5.scores(some, rule, n, L, classes, metric) for n, L in some.by("width", "depth")}


def drifted(found: dict[Size, Scores], axis: str) -> tuple[Interval | None, str]:
    """The drift of the best rate, None where it cannot be told, and the best rates in words."""
    blind = [f"width {n}, depth {L}" for (n, L), cell in found.items() if not cell.learns or cell.edge]
    if blind:
        return None, f"The best rate is not within the grid at {'; '.join(blind)}."
    said = ", ".join(
        f"{math.pow(2, cell.optimum().value):.2g} at width {n}, depth {L}" for (n, L), cell in found.items()
    )
    return drift(found, "depth" if axis == "depth" else "width"), f"Best eta_c: {said}."


def _moves(evidence: Evidence) -> Judged:
    """Whether the best uniform rate moves with depth, at the largest width."""
    found, said = drifted(_largest(evidence, _UNIFORM), "depth")
    return undecided(said) if found is None else above(found, _TRANSFERS, _with_cost(evidence, _UNIFORM, said))


def _stays(evidence: Evidence) -> Judged:
    found, said = drifted(_largest(evidence, _EQ8), "depth")
    if found is None:
        return undecided(said)
    judged = between(found, -_TRANSFERS, _TRANSFERS, _with_cost(evidence, _EQ8, said))
    return conditional(
        judged, "At the paper's depths, 3 to 9; over depths 8 to 256 it falls as L^-0.33 (docs/sweeps.md)."
    )


def _largest(evidence: Evidence, rule: str) -> dict[Size, Scores]:
    runs = evidence.runs["5"]["transfer"]
    return cells(runs.where(width=max(runs.values("width"))), rule, evidence.classes)


def _with_cost(evidence: Evidence, rule: str, said: str) -> str:
    """What the shallowest network's best rate costs the deepest, read off its curve."""
    found = list(_largest(evidence, rule).values())
    first, last = found[0], found[-1]
    lost = float(last.at(first.best()) - last.at(last.best()))
    made = last.guess - float(last.at(last.best()))
    return f"{said} The shallowest one's costs the deepest {lost:.3f} nats, {lost / made:.1%} of its progress."


def _better(evidence: Evidence, metric: str) -> Judged:
    """Eq. 8 minus uniform, each at its best rate, the deepest network."""
    best = [list(_largest_by(evidence, rule, metric).values())[-1] for rule in (_UNIFORM, _EQ8)]
    columns = [cell.losses[:, int(cell.typical.argmin())] for cell in best]
    found = interval(lambda a, b: b.mean(0) - a.mean(0), *columns)
    values = " and ".join(
        f"{float(c.mean()):.3f} ({name})" for c, name in zip(columns, figure5.RULES.values(), strict=True)
    )
    return below(
        found, 0.0, f"Each at its best rate the deepest networks reach {values}: a difference of {found} nats."
    )


def _largest_by(evidence: Evidence, rule: str, metric: str) -> dict[Size, Scores]:
    runs = evidence.runs["5"]["transfer"]
    return cells(runs.where(width=max(runs.values("width"))), rule, evidence.classes, metric)


def _deep(evidence: Evidence, metric: str) -> Judged:
    """At the paper's rate, and whether it lasts when both rules are tuned."""
    deep = evidence.runs["5"]["deep"]
    shown = deep.where(eta_c=min(deep.values("eta_c")))
    found, fair = figure5.advantage(shown, metric), figure5.tuned_advantage(deep, metric)
    rates = ", ".join(f"{figure5.tuned(deep, rule, metric)[0]:g} ({name})" for rule, name in figure5.RULES.items())
    reading = (
        f"Eq. 8 minus uniform: {found} at eta_c = {min(deep.values('eta_c')):g}; {fair} each at its best, {rates}."
    )
    judge = above if metric == "test_accuracy" else below
    judged = judge(found, 0.0, reading)
    lasting = fair.low > 0 if metric == "test_accuracy" else fair.high < 0
    return judged if lasting else conditional(judged, "At one rate for both, not when each is tuned:")


def _one_layer(evidence: Evidence) -> Judged:
    found, said = drifted(cells(evidence.runs["claims"]["one-layer"], "depth-mup", evidence.classes), "depth")
    return undecided(said) if found is None else between(found, -_TRANSFERS, _TRANSFERS, said)


def _mup_depth(evidence: Evidence) -> Judged:
    found, said = drifted(cells(evidence.runs["claims"]["one-layer"], "mup", evidence.classes), "depth")
    return undecided(said) if found is None else below(found, -_TRANSFERS, said)


def _width(evidence: Evidence) -> Judged:
    found, said = drifted(cells(evidence.runs["claims"]["width"], "depth-mup", evidence.classes), "width")
    return undecided(said) if found is None else between(found, -_TRANSFERS, _TRANSFERS, said)


def _exponent(id_: str, source: str, statement: str, rule: RuleName, meter: str, low: float, high: float) -> Claim:
    what = f"Exponent in L of {meter} (nfd.meters.updates) at the end, {figure5.RULES[rule]}"
    measurement = f"{what}: holds within [{low:g}, {high:g}]."
    return Claim(id_, source, statement, measurement, partial(_slope, rule=rule, meter=meter, low=low, high=high))


CLAIMS = (
    _exponent(
        "eq7-inner", "Eqs. 7 and 27; Section H.1; Fig. 5 row 1", "With uniform rates inner updates fall as 1/sqrt(L).",
        "depth-mup", "inner_update", -0.5 - EVEN, -0.5 + EVEN,
    ),
    _exponent(
        "eq7-stream", "Eqs. 7, 33 and 34; Section H.2; Fig. 5 row 1",
        "With uniform rates updates of the stream's dynamics stay.", "depth-mup", "stream_update", -EVEN, EVEN,
    ),
    _exponent(
        "eq8-inner", "Eq. 8; Fig. 5 row 1", "With the rates of Eq. 8 inner updates stay.",
        "depth-mup-inner", "inner_update", -EVEN, EVEN,
    ),
    _exponent(
        "eq8-stream", "Eqs. 8 and 32; Section H.2", "With the rates of Eq. 8 updates of the stream's dynamics stay.",
        "depth-mup-inner", "stream_update", -EVEN, EVEN,
    ),
    Claim(
        "eq8-function", "Eq. 8; Section 5", "The correction revives inner layers and leaves the rest well scaled.",
        f"Exponent in L of the change of outputs by inner layers with Eq. 8: holds within {EVEN} of 0.", _price,
    ),
    Claim(
        "fig5-moves", "Section 5; Fig. 5 row 2, d", "With uniform rates the best eta_c moves with depth.",
        f"Doublings of the best eta_c (training loss) per doubling of depth: holds above {_TRANSFERS}.", _moves,
    ),
    Claim(
        "fig5-stays", "Section 5; Fig. 5 row 2, e", "With the rates of Eq. 8 the best eta_c stays over depths.",
        f"Doublings of the best eta_c (training loss) per doubling of depth: holds within {_TRANSFERS} of 0.", _stays,
    ),
    Claim(
        "fig5-better-train", "Fig. 5 row 2", "Eq. 8 improves the training loss uniformly.",
        "Training loss of the deepest network, Eq. 8 minus uniform, each at its best rate: holds below 0.",
        partial(_better, metric="train_loss"),
    ),
    Claim(
        "fig5-better-test", "Fig. 5 row 2", "Eq. 8 improves the test loss uniformly.",
        "Test loss of the deepest network, Eq. 8 minus uniform, each at its best rate: holds below 0.",
        partial(_better, metric="test_loss"),
    ),
    Claim(
        "fig5-deep-train", "Fig. 5 row 3", "At depth 64 Eq. 8 reaches a lower training loss.",
        "Training loss at the end, Eq. 8 minus uniform at eta_c = 0.1, paired by seed: holds below 0.",
        partial(_deep, metric="train_loss"),
    ),
    Claim(
        "fig5-deep-test", "Fig. 5 row 3", "At depth 64 Eq. 8 reaches a lower test loss.",
        "Test loss at the end, Eq. 8 minus uniform at eta_c = 0.1, paired by seed: holds below 0.",
        partial(_deep, metric="test_loss"),
    ),
    Claim(
        "fig5-deep-accuracy", "Fig. 5 row 3", "At depth 64 Eq. 8 reaches a higher test accuracy.",
        "Test accuracy at the end, Eq. 8 minus uniform at eta_c = 0.1, paired by seed: holds above 0.",
        partial(_deep, metric="test_accuracy"),
    ),
    Claim(
        "transfer-one-layer", "Sections 1, 2 and 5", "Under depth-muP one-layer blocks keep their best rate.",
        f"Doublings of the best eta_c per doubling of depth: holds within {_TRANSFERS} of 0.", _one_layer,
    ),
    Claim(
        "transfer-mup-depth", "Section 1", "Under muP the best rate does not carry over to deeper networks.",
        f"Doublings of the best eta_c per doubling of depth, one-layer blocks: holds below -{_TRANSFERS}.", _mup_depth,
    ),
    Claim(
        "transfer-width", "Sections 1 and 2", "The best rate carries over to wider networks.",
        f"Doublings of the best eta_c per doubling of width, depth-muP, one-layer: holds within {_TRANSFERS} of 0.",
        _width,
    ),
)  # fmt: skip
