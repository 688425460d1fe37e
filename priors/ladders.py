"""How well ``nfd.fit_ladder`` forecasts other people's larger runs, and the prior that it learns
from them.

``python -m priors.ladders --data FOLDER`` leaves one group of ladders out after another: prior,
calibration and the choice of the form come from the others. ``--prior`` writes the prior of the
package from all. The folder has a CSV for each ladder with the columns ladder, group, N, D, loss, C
(operations) and kind (fit or target); it is not ours to copy.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nfd.laws.ladder import WIDEST
from nfd.laws.ladder_outlook import REFUSED
from nfd.laws.ladder_posterior import (
    FREEDOM,
    UNTUNED,
    VARIABLES,
    WIDE,
    Calibration,
    Posterior,
    Prior,
    fit_additive,
)
from nfd.laws.priors import file_of

Array = NDArray[np.float64]
FACTORS = (10, 30, 100, 300)
# Of a factor as it is.
BINS = {10: (8, 18), 30: (18, 45), 100: (45, 150), 300: (150, 500)}
REFERENCE = 3e8, 6e9
# The fewest runs of a ladder that are fitted.
FEWEST = 6
# Of a ladder without targets: the share of its largest compute from which runs are targets.
TOP = 0.5
# Times less compute than OLMo's 13B-5T: all runs, those of its authors (to 1.3B), and fewer.
SHOWN = (33, 202, 1000)
SOURCES = {
    "chinchilla": "Open-Athena/scaling-law-analysis, from arXiv 2203.15556 and 2404.10102",
    "epfl": "fabian-sp/lr-scheduling, arXiv 2501.18965 and 2405.18392",
    "fantastic": "marin-community/marin, arXiv 2509.02046",
    "gadre": "mlfoundations/scaling, arXiv 2403.08540",
    "gemstones": "mcleish7/gemstone-scaling-laws, arXiv 2502.06857",
    "llama3": "Open-Athena/scaling-law-analysis, from arXiv 2407.21783",
    "marin_moe": "marin-community/marin, tables in threads",
    "marin": "Open-Athena/scaling-law-analysis",
    "olmo": "allenai/OLMo-ladder, arXiv 2412.04403",
    "porian": "formll/resolving-scaling-law-discrepancies, arXiv 2406.19146",
    "steplaw": "step-law/steplaw, arXiv 2503.04715",
    "xlstm": "NX-AI/xlstm_scaling_laws, arXiv 2510.02228",
}


# ---- ladders and cases


@dataclass(frozen=True)
class Ladder:
    """The runs of a ladder: sizes N, D ``[K, 2]``, losses and operations ``[K]``, and which of them
    are targets.
    """

    name: str
    group: str
    sizes: Array
    losses: Array
    flops: Array
    target: NDArray[np.bool_]


@dataclass(frozen=True)
class Case:
    """The runs of a ladder that are fitted, ``[K]``; its targets are forecast from them."""

    ladder: Ladder
    fitted: NDArray[np.bool_]

    @property
    def factor(self) -> float:
        """How much more compute the targets have than the largest run that is fitted, in the
        median.
        """
        flops = self.ladder.flops
        return float(np.median(flops[self.ladder.target]) / flops[self.fitted].max())


def read(folder: Path) -> list[Ladder]:
    """The ladders of a folder."""
    ladders = []
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        if "kind" not in rows[0]:
            # A sweep of rates.
            continue
        flops = np.array([float(row["C"]) for row in rows])
        target = np.array([row["kind"] == "target" for row in rows])
        if not target.any():
            target = flops >= TOP * flops.max()
        sizes = np.array([[float(row["N"] or 1), float(row["D"] or 1)] for row in rows])
        losses = np.array([float(row["loss"]) for row in rows])
        ladders.append(Ladder(rows[0]["ladder"], rows[0]["group"], sizes, losses, flops, target))
    return ladders


def cases_of(ladders: Iterable[Ladder]) -> list[Case]:
    """Every ladder as it is, and cut off at the least compute of its targets over each factor."""
    cases = list[Case]()
    for ladder in ladders:
        least = ladder.flops[ladder.target].min()
        seen = set[int]()
        for factor in (1, *FACTORS):
            below = ladder.flops <= least / factor * (1 + 1e-6) if factor > 1 else True
            fitted = ~ladder.target & below
            # a cut that changes nothing is no new case.
            if fitted.sum() >= FEWEST and fitted.sum() not in seen:
                seen.add(int(fitted.sum()))
                cases.append(Case(ladder, fitted))
    return cases


# ---- the prior: the numbers of other ladders


# Whether the combining power is free.
FORMS = {"p = 1": False, "p free": True}
# Of the covariance of few estimates; an error that no number is better known than.
_INFLATED = 1.25
_FLOOR = 0.12


@dataclass(frozen=True)
class Estimate:
    """What a whole ladder says of the numbers of a prior, without one: precision, and that times
    the numbers.
    """

    precision: Array
    pull: Array


def estimate(ladder: Ladder, form: str) -> Estimate:
    """Likely numbers of a whole ladder: its posterior under wide priors, taken to be normal, over
    these priors.
    """
    prior = pinned(replace(WIDE, reference=REFERENCE), form)
    posterior = Posterior(VARIABLES, ladder.sizes, ladder.losses, prior)
    numbers = posterior.draws[:, 1:]
    precision = np.linalg.inv(np.cov(numbers.T))
    wide = np.linalg.inv(prior.covariance)
    values, directions = np.linalg.eigh(precision - wide)
    # Along others the ladder says nothing, but for the noise of the draws.
    informed = directions[:, values > 0]
    return Estimate(
        (informed * values[values > 0]) @ informed.T,
        informed @ (informed.T @ (precision @ numbers.mean(0) - wide @ prior.mean)),
    )


def pinned(prior: Prior, form: str) -> Prior:
    """The prior with p = 1 where the form says so."""
    if FORMS[form]:
        return prior
    mean = prior.mean.copy()
    covariance = prior.covariance.copy()
    mean[4] = 0.0
    covariance[4] = 0.0
    covariance[:, 4] = 0.0
    covariance[4, 4] = 1e-6
    return replace(prior, mean=mean, covariance=covariance)


# Of expectation and maximisation.
_TURNS = 200


def learned(estimates: Mapping[str, Estimate], groups: Mapping[str, str], form: str) -> Prior:
    """The prior of a new ladder, from the estimates of others; a group counts once.

    The likeliest mean and covariance of the numbers over ladders, whose own numbers are known as
    far as their estimates say.
    """
    names = list(estimates)
    counts = {group: sum(groups[name] == group for name in names) for group in groups.values()}
    weights = np.array([1 / counts[groups[name]] for name in names])
    G = weights.sum()
    weights = weights / weights.sum()
    mean = WIDE.mean.copy()
    covariance = WIDE.covariance.copy() / 4
    for _ in range(_TURNS):
        sure = np.linalg.inv(covariance)
        covariances = np.array([np.linalg.inv(estimates[name].precision + sure) for name in names])
        numbers = np.array(
            [
                S @ (estimates[name].pull + sure @ mean)
                for name, S in zip(names, covariances, strict=True)
            ]
        )
        mean = weights @ numbers
        apart = numbers - mean
        covariance = np.einsum(
            "k,kij->ij", weights, covariances + apart[:, :, None] * apart[:, None]
        ) + 1e-6 * np.eye(len(mean))
    covariance = covariance * G / (G - 1) * _INFLATED * (1 + 1 / G) + _FLOOR**2 * np.eye(len(mean))
    return pinned(
        Prior("ladders", mean, covariance, REFERENCE, WIDE.discrepancy, freedom=FREEDOM), form
    )


# ---- calibration: how wide intervals must be


@dataclass(frozen=True)
class Forecast:
    """What a law said of the targets of a case, ``[K]`` each, in log loss, and the truth."""

    case: Case
    middle: Array
    sd: Array
    gain: Array
    truth: Array
    # The error of a run.
    scatter: float

    @property
    def error(self) -> Array:
        """How far the forecasts are off."""
        return np.abs(self.middle - self.truth)


def weights_of(forecasts: Sequence[Forecast]) -> Array:
    """Weights of all targets: groups count alike, in a group its cases, in a case its targets."""
    groups = [one.case.ladder.group for one in forecasts]
    weights = []
    for one, group in zip(forecasts, groups, strict=True):
        count = len(one.truth)
        weights.append(np.full(count, 1 / groups.count(group) / count))
    return np.concatenate(weights)


# The shape of intervals was chosen by looking at all held-out errors, of which eleven groups tell
# too little: likeliest values jumped by a factor of 7 from one fold to the next. With this one, q
# is near that of a normal distribution. The power of the scatter is the largest with which 93 % of
# the targets of cases that scatter stay inside; without it they were 97 %, 0.7 of a normal's width.
SHAPE = Calibration(tau=0.005, kappa=0.02, scatter=0.2)
# The share of all targets that intervals hold, and the share of a ladder's targets in as many of
# the ladders.
COVERED = 0.95
MOST = 0.9


def calibrated(forecasts: Sequence[Forecast]) -> Calibration:
    """The least q that covers 95 % of the targets, and 9 of 10 targets in 9 of 10 ladders; groups
    count alike.
    """
    ladders = {one.case.ladder.name: one.case.ladder.group for one in forecasts}
    needed = list[float]()
    for name in ladders:
        of_ladder = [one for one in forecasts if one.case.ladder.name == name]
        needed.append(
            _quantile(
                np.concatenate([_ratios(one) for one in of_ladder]), weights_of(of_ladder), MOST
            )
        )
    groups = [*ladders.values()]
    alike = np.array([1 / groups.count(group) for group in groups])
    over_targets = _quantile(
        np.concatenate([_ratios(one) for one in forecasts]), weights_of(forecasts), COVERED
    )
    return replace(
        SHAPE, q=float(f"{max(over_targets, _quantile(np.array(needed), alike, MOST)):.3g}")
    )


def _ratios(one: Forecast) -> Array:
    """Errors over the spreads of intervals."""
    return one.error / SHAPE.spread(one.sd, one.gain, one.scatter)


def _quantile(values: Array, weights: Array, share: float) -> float:
    """The least value that as much of the weight does not exceed."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(reached, share - 1e-9)])


def half_widths(one: Forecast, calibration: Calibration) -> Array:
    """Half widths of the 95 % intervals of a case's targets, in log loss."""
    return calibration.q * calibration.spread(one.sd, one.gain, one.scatter)


def width(forecasts: Sequence[Forecast], calibration: Calibration) -> float:
    """The mean of the logarithms of half widths: forms whose intervals hold as much are compared by
    it.
    """
    return float(
        np.average(
            np.log(np.concatenate([half_widths(one, calibration) for one in forecasts])),
            weights=weights_of(forecasts),
        )
    )


# ---- leave one group out


def forecast(case: Case, prior: Prior) -> Forecast:
    """What the law of a case says of its targets."""
    ladder = case.ladder
    posterior = Posterior(VARIABLES, ladder.sizes[case.fitted], ladder.losses[case.fitted], prior)
    middle, sd, gain = posterior.forecasts(ladder.sizes[ladder.target])
    return Forecast(
        case, middle, sd, gain, np.log(ladder.losses[ladder.target]), math.exp(posterior.middle[-1])
    )


@dataclass(frozen=True)
class Fold:
    """A group left out: the form and the calibration that the others chose, and their prior."""

    group: str
    form: str
    calibration: Calibration
    prior: Prior


def folds(ladders: Sequence[Ladder]) -> tuple[list[Fold], list[tuple[Forecast, Calibration]]]:
    """Every group left out, and what was said of its cases, each with the calibration of the
    others.
    """
    groups = {ladder.name: ladder.group for ladder in ladders}
    cases = cases_of(ladders)
    forecasts = dict[str, list[Forecast]]()
    priors = dict[tuple[str, str], Prior]()
    for form in FORMS:
        estimates = {ladder.name: estimate(ladder, form) for ladder in ladders}
        for group in set(groups.values()):
            others = {name: one for name, one in estimates.items() if groups[name] != group}
            priors[form, group] = learned(others, groups, form)
        forecasts[form] = [forecast(case, priors[form, case.ladder.group]) for case in cases]
    every_fold = list[Fold]()
    with_calibration = list[tuple[Forecast, Calibration]]()
    for group in sorted({*groups.values()}):
        other_forecasts = {
            form: [one for one in of_form if one.case.ladder.group != group]
            for form, of_form in forecasts.items()
        }
        calibrations = {form: calibrated(of_form) for form, of_form in other_forecasts.items()}
        form = min(FORMS, key=lambda form: width(other_forecasts[form], calibrations[form]))
        every_fold.append(Fold(group, form, calibrations[form], priors[form, group]))
        with_calibration += [
            (one, calibrations[form]) for one in forecasts[form] if one.case.ladder.group == group
        ]
    return every_fold, with_calibration


def row_of(one: Forecast, calibration: Calibration) -> dict[str, Any]:
    """The row of a case: width and errors in percent, in the median of its targets."""
    case = one.case
    half = half_widths(one, calibration)
    sizes = case.ladder.sizes
    losses = case.ladder.losses
    plain = np.log(
        fit_additive(sizes[case.fitted], losses[case.fitted]).loss(sizes[case.ladder.target])
    )
    why = refusal(one, calibration)
    return {
        "ladder": case.ladder.name,
        "group": case.ladder.group,
        "factor": round(case.factor, 1),
        "runs": int(case.fitted.sum()),
        "width": 200 * float(np.median(half)),
        "error": 100 * float(np.median(one.error)),
        "bias": 100 * float(np.median(one.middle - one.truth)),
        "plain": 100 * float(np.median(np.abs(plain - one.truth))),
        "covered": float(np.mean(one.error <= half)),
        "scatter": 100 * one.scatter,
        "accepted": why is None,
        "why": why,
        "fit": np.stack([case.ladder.flops, losses], -1)[case.fitted].tolist(),
        "targets": targets_of(one, half, plain),
    }


def refusal(one: Forecast, calibration: Calibration) -> str | None:
    """Why the forecast of a case is refused, as by ``LadderLaw.doubt``; None where it is not."""
    tuned = min(1.0, UNTUNED / one.scatter)
    half = calibration.q * calibration.spread(tuned * one.sd, one.gain)
    if 2 * np.median(half) > REFUSED:
        return f"even runs that are tuned alike would leave an interval wider than {REFUSED:.0%}"
    if 2 * np.median(half_widths(one, calibration)) > WIDEST:
        return f"the scatter of the runs makes it wider than {WIDEST:.0%}"
    return None


def targets_of(one: Forecast, half: Array, plain: Array) -> list[dict[str, float]]:
    """The targets of a case: what they are, their losses, the forecasts with their limits, and the
    usual fit's.
    """
    ladder = one.case.ladder
    sizes = ladder.sizes[ladder.target]
    flops = ladder.flops[ladder.target]
    log_losses = np.column_stack(
        [one.truth, one.middle, one.middle - half, one.middle + half, plain]
    )
    names = ("parameters", "tokens", "flops", "loss", "forecast", "low", "high", "plain")
    rows = np.column_stack([sizes, flops, np.exp(log_losses)]).tolist()
    return [dict(zip(names, row, strict=True)) for row in rows]


def over_groups(rows: Sequence[Mapping[str, Any]], name: str = "covered") -> float:
    """The mean over rows, groups counting alike."""
    by_group = dict[str, list[float]]()
    for row in rows:
        by_group.setdefault(row["group"], []).append(row[name])
    return (
        float(np.mean([np.mean(values) for values in by_group.values()])) if by_group else math.nan
    )


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row per factor, and one over all cases: the goals of the law."""
    table = []
    for factor, (least, most) in (BINS | {"all": (0, math.inf)}).items():
        in_bin = [row for row in rows if least <= row["factor"] < most]
        accepted = [row for row in in_bin if row["accepted"]]
        total = {"factor": factor, "cases": len(in_bin), "accepted": len(accepted) / len(in_bin)}
        total |= {name: median_of(name, accepted) for name in ("width", "error", "plain")}
        total["worst"] = max((row["error"] for row in accepted), default=math.nan)
        total |= {f"{name} of all": median_of(name, in_bin) for name in ("width", "error", "plain")}
        table.append(
            total | {"coverage": over_groups(in_bin), "coverage of accepted": over_groups(accepted)}
        )
    return table


def median_of(name: str, rows: Sequence[Mapping[str, Any]]) -> float:
    """The median of a column; not a number where there is no row."""
    return float(np.median([row[name] for row in rows])) if rows else math.nan


def over_ladders(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The mean coverage of ladders, and the share of them that are covered to 90 %; ladders count
    alike.
    """
    by_ladder = dict[str, list[float]]()
    for row in rows:
        by_ladder.setdefault(row["ladder"], []).append(row["covered"])
    means = np.array([np.mean(covered) for covered in by_ladder.values()])
    return {"coverage": float(means.mean()), "at least .9": float(np.mean(means >= MOST))}


def forecast_olmo(ladders: Sequence[Ladder], every_fold: Sequence[Fold]) -> list[dict[str, Any]]:
    """The rows of OLMo's ladder cut off at ``SHOWN`` times less compute, printed; empty without
    that ladder.
    """
    rows = []
    for olmo in [ladder for ladder in ladders if ladder.name == "olmo"]:
        fold = next(fold for fold in every_fold if fold.group == olmo.group)
        for factor in SHOWN:
            case = Case(olmo, ~olmo.target & (olmo.flops <= olmo.flops.max() / factor * 1.01))
            one = forecast(case, fold.prior)
            half = 100 * half_widths(one, fold.calibration)
            error = 100 * (one.middle - one.truth)
            print(
                f"OLMo from {factor} times less: {error.round(2)} +- {half.round(2)} %, "
                f"{case.fitted.sum()} runs"
            )
            rows.append(row_of(one, fold.calibration))
    return rows


def main() -> None:
    """Print the forecasts of every case, or write the prior of the package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of ladders")
    parser.add_argument("--prior", action="store_true", help="write the prior of all ladders")
    parser.add_argument("--out", type=Path, help="a file for the numbers, as JSON")
    options = parser.parse_args()
    ladders = read(options.data)
    every_fold, forecasts = folds(ladders)
    rows = [row_of(*one) for one in forecasts]
    for row in sorted(rows, key=lambda row: (row["factor"], row["ladder"])):
        print(
            "{ladder:28} {factor:7.1f} times  {runs:4d} runs  +-{half:5.2f} %  error {bias:+6.2f} "
            "%  plain {plain:6.2f} %  covered {covered:.2f}".format(**row, half=row["width"] / 2)
        )
    totals = summary(rows)
    for total in totals:
        cells = (
            f"{name} {value if isinstance(value, str) else round(value, 3)}"
            for name, value in total.items()
        )
        print(", ".join(cells))
    covered = over_ladders(rows)
    print(f"over ladders: {covered}")
    for fold in every_fold:
        print(fold.group, fold.form, vars(fold.calibration))
    olmo = forecast_olmo(ladders, every_fold)
    if options.prior:
        write_prior(ladders, every_fold, [one for one, _ in forecasts])
    if options.out:
        content = {"cases": rows, "summary": totals, "olmo": olmo, "over ladders": covered}
        options.out.write_text(json.dumps(content, indent=1) + "\n")


def write_prior(
    ladders: Sequence[Ladder], every_fold: Sequence[Fold], forecasts: Sequence[Forecast]
) -> None:
    """Write the prior and calibration of all ladders, with the form that most folds chose, for the
    package.
    """
    forms = [fold.form for fold in every_fold]
    form = max(FORMS, key=forms.count)
    chosen = {fold.group for fold in every_fold if fold.form == form}
    prior = learned(
        {ladder.name: estimate(ladder, form) for ladder in ladders},
        {one.name: one.group for one in ladders},
        form,
    )
    content = {
        "name": f"{len(ladders)} ladders of others",
        "numbers": ["ln (A/N^a) / E", "ln (B/D^b) / E", "ln a", "ln b", "ln p", "ln error"],
        "mean": prior.mean.round(4).tolist(),
        "covariance": prior.covariance.round(4).tolist(),
        "reference": REFERENCE,
        "discrepancy": prior.discrepancy,
        "freedom": prior.freedom,
        "calibration": vars(
            calibrated([one for one in forecasts if one.case.ladder.group in chosen])
        ),
        "reach": [
            [float(f"{x.min():.3g}"), float(f"{x.max():.3g}")]
            for x in np.vstack([one.sizes for one in ladders]).T
        ],
        "ladders": {ladder.name: _source(ladder.name) for ladder in ladders},
    }
    lines = ",\n".join(
        f" {json.dumps(name)}: {json.dumps(value)}" for name, value in content.items()
    )
    file_of("losses").write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def _source(name: str) -> str:
    return next(source for prefix, source in SOURCES.items() if name.startswith(prefix))


if __name__ == "__main__":
    main()
