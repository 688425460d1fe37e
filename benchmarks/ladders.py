"""How well ``nfd.fit_ladder`` forecasts other people's larger runs, and the prior that it learns from them.

``python -m benchmarks.ladders --data FOLDER`` leaves one group of ladders out after another: prior, calibration and the
choice of the form come from the others. ``--prior`` writes the prior of the package from all. The folder has a CSV for
each ladder with the columns ladder, group, N, D, loss, C (operations) and kind (fit or target); it is not ours to copy.
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

from nfd.laws.ladder import REFUSED, UNTUNED
from nfd.laws.ladder_posterior import FREEDOM, VARIABLES, WIDE, Calibration, Posterior, Prior, fit_additive
from nfd.laws.priors import file_of

Array = NDArray[np.float64]
FACTORS = (10, 30, 100, 300)
BINS = {10: (8, 18), 30: (18, 45), 100: (45, 150), 300: (150, 500)}  # of a factor as it is
REFERENCE = 3e8, 6e9
FEWEST = 6  # runs of a ladder
TOP = 0.5  # of a ladder without targets: the share of its largest compute from which runs are targets
SHOWN = (33, 202, 1000)  # times less compute than OLMo's 13B-5T: all runs, those of its authors (to 1.3B), and fewer
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
    """The runs of a ladder: sizes N, D ``[K, 2]``, losses and operations ``[K]``, and which of them are targets."""

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
        """How much more compute the targets have than the largest run that is fitted, in the median."""
        flops = self.ladder.flops
        return float(np.median(flops[self.ladder.target]) / flops[self.fitted].max())


def read(folder: Path) -> list[Ladder]:
    """The ladders of a folder."""
    ladders = []
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        if "kind" not in rows[0]:
            continue  # sweeps of rates
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
        least, seen = ladder.flops[ladder.target].min(), set[int]()
        for factor in (1, *FACTORS):
            below = ladder.flops <= least / factor * (1 + 1e-6) if factor > 1 else True
            fitted = ~ladder.target & below
            if fitted.sum() >= FEWEST and fitted.sum() not in seen:  # a cut that changes nothing is no new case
                seen.add(int(fitted.sum()))
                cases.append(Case(ladder, fitted))
    return cases


# ---- the prior: the numbers of other ladders


FORMS = {"p = 1": False, "p free": True}  # whether the combining power is free
_INFLATED, _FLOOR = 1.25, 0.12  # of the covariance of few estimates; an error that no number is better known than


@dataclass(frozen=True)
class Estimate:
    """What a whole ladder says of the numbers of a prior, without one: precision, and that times the numbers."""

    precision: Array
    pull: Array


def estimate(ladder: Ladder, form: str) -> Estimate:
    """Likely numbers of a whole ladder: its posterior under wide priors, taken to be normal, over these priors."""
    prior = pinned(replace(WIDE, reference=REFERENCE), form)
    posterior = Posterior(VARIABLES, ladder.sizes, ladder.losses, prior)
    numbers = posterior.draws[:, 1:]
    precision, wide = np.linalg.inv(np.cov(numbers.T)), np.linalg.inv(prior.covariance)
    values, directions = np.linalg.eigh(precision - wide)
    told = directions[:, values > 0]  # along others the ladder says nothing, but for the noise of the draws
    return Estimate(
        (told * values[values > 0]) @ told.T,
        told @ (told.T @ (precision @ numbers.mean(0) - wide @ prior.mean)),
    )


def pinned(prior: Prior, form: str) -> Prior:
    """The prior with p = 1 where the form says so."""
    if FORMS[form]:
        return prior
    mean, covariance = prior.mean.copy(), prior.covariance.copy()
    mean[4], covariance[4], covariance[:, 4], covariance[4, 4] = 0.0, 0.0, 0.0, 1e-6
    return replace(prior, mean=mean, covariance=covariance)


_TURNS = 200  # of expectation and maximisation


def learned(estimates: Mapping[str, Estimate], groups: Mapping[str, str], form: str) -> Prior:
    """The prior of a new ladder, from the estimates of others; a group counts once.

    The likeliest mean and covariance of the numbers over ladders, whose own numbers are known as far as their estimates
    say.
    """
    names = list(estimates)
    counts = {group: sum(groups[name] == group for name in names) for group in groups.values()}
    weights = np.array([1 / counts[groups[name]] for name in names])
    G, weights = weights.sum(), weights / weights.sum()
    mean, covariance = WIDE.mean.copy(), WIDE.covariance.copy() / 4
    for _ in range(_TURNS):
        sure = np.linalg.inv(covariance)
        own = np.array([np.linalg.inv(estimates[name].precision + sure) for name in names])
        numbers = np.array([S @ (estimates[name].pull + sure @ mean) for name, S in zip(names, own, strict=True)])
        mean = weights @ numbers
        apart = numbers - mean
        covariance = np.einsum("k,kij->ij", weights, own + apart[:, :, None] * apart[:, None]) + 1e-6 * np.eye(
            len(mean)
        )
    covariance = covariance * G / (G - 1) * _INFLATED * (1 + 1 / G) + _FLOOR**2 * np.eye(len(mean))
    return pinned(Prior("ladders", mean, covariance, REFERENCE, WIDE.discrepancy, freedom=FREEDOM), form)


# ---- calibration: how wide intervals must be


@dataclass(frozen=True)
class Said:
    """What a law said of the targets of a case, ``[K]`` each, in log loss, and the truth."""

    case: Case
    middle: Array
    sd: Array
    gain: Array
    truth: Array
    scatter: float  # the error of a run

    @property
    def error(self) -> Array:
        """How far the forecasts are off."""
        return np.abs(self.middle - self.truth)


def weights_of(said: Sequence[Said]) -> Array:
    """Weights of all targets: groups count alike, in a group its cases, in a case its targets."""
    groups = [one.case.ladder.group for one in said]
    return np.concatenate(
        [
            np.full(len(one.truth), 1 / groups.count(group) / len(one.truth))
            for one, group in zip(said, groups, strict=True)
        ]
    )


# The shape of intervals was chosen by looking at all held-out errors, of which eleven groups tell too little: likeliest
# values jumped by a factor of 7 from one fold to the next. With this one, q is near that of a normal distribution.
SHAPE = Calibration(tau=0.005, kappa=0.02)
COVERED, MOST = 0.95, 0.9  # of targets; of the targets of a ladder, in as many of the ladders


def calibrated(said: Sequence[Said]) -> Calibration:
    """The least q that covers 95 % of the targets, and 9 of 10 targets in 9 of 10 ladders; groups count alike."""
    ladders, needed = {one.case.ladder.name: one.case.ladder.group for one in said}, list[float]()
    for name in ladders:
        own = [one for one in said if one.case.ladder.name == name]
        needed.append(_quantile(np.concatenate([_ratios(one) for one in own]), weights_of(own), MOST))
    groups = [*ladders.values()]
    alike = np.array([1 / groups.count(group) for group in groups])
    over_targets = _quantile(np.concatenate([_ratios(one) for one in said]), weights_of(said), COVERED)
    return replace(SHAPE, q=float(f"{max(over_targets, _quantile(np.array(needed), alike, MOST)):.3g}"))


def _ratios(one: Said) -> Array:
    """Errors over the spreads of intervals."""
    return one.error / SHAPE.spread(one.sd, one.gain)


def _quantile(values: Array, weights: Array, share: float) -> float:
    """The least value that as much of the weight does not exceed."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(reached, share - 1e-9)])


def half_widths(one: Said, calibration: Calibration) -> Array:
    """Half widths of the 95 % intervals of a case's targets, in log loss."""
    return calibration.q * calibration.spread(one.sd, one.gain)


def width(said: Sequence[Said], calibration: Calibration) -> float:
    """The mean of the logarithms of half widths: forms whose intervals hold as much are compared by it."""
    return float(
        np.average(np.log(np.concatenate([half_widths(one, calibration) for one in said])), weights=weights_of(said))
    )


# ---- leave one group out


def forecast(case: Case, prior: Prior) -> Said:
    """What the law of a case says of its targets."""
    ladder = case.ladder
    posterior = Posterior(VARIABLES, ladder.sizes[case.fitted], ladder.losses[case.fitted], prior)
    middle, sd, gain = posterior.forecasts(ladder.sizes[ladder.target])
    return Said(case, middle, sd, gain, np.log(ladder.losses[ladder.target]), math.exp(posterior.middle[-1]))


@dataclass(frozen=True)
class Fold:
    """A group left out: the form and the calibration that the others chose, and their prior."""

    group: str
    form: str
    calibration: Calibration
    prior: Prior


def folds(ladders: Sequence[Ladder]) -> tuple[list[Fold], list[tuple[Said, Calibration]]]:
    """Every group left out, and what was said of its cases, each with the calibration of the others."""
    groups, cases = {ladder.name: ladder.group for ladder in ladders}, cases_of(ladders)
    said, priors = dict[str, list[Said]](), dict[tuple[str, str], Prior]()
    for form in FORMS:
        estimates = {ladder.name: estimate(ladder, form) for ladder in ladders}
        for group in set(groups.values()):
            others = {name: one for name, one in estimates.items() if groups[name] != group}
            priors[form, group] = learned(others, groups, form)
        said[form] = [forecast(case, priors[form, case.ladder.group]) for case in cases]
    found, judged = list[Fold](), list[tuple[Said, Calibration]]()
    for group in sorted({*groups.values()}):
        others_said = {form: [one for one in own if one.case.ladder.group != group] for form, own in said.items()}
        calibrations = {form: calibrated(own) for form, own in others_said.items()}
        form = min(FORMS, key=lambda form: width(others_said[form], calibrations[form]))
        found.append(Fold(group, form, calibrations[form], priors[form, group]))
        judged += [(one, calibrations[form]) for one in said[form] if one.case.ladder.group == group]
    return found, judged


def row_of(one: Said, calibration: Calibration) -> dict[str, Any]:
    """The row of a case: width and errors in percent, in the median of its targets."""
    case, half = one.case, half_widths(one, calibration)
    sizes, losses = case.ladder.sizes, case.ladder.losses
    wide, untuned = bool(2 * np.median(half) > REFUSED), one.scatter > UNTUNED
    plain = np.log(fit_additive(sizes[case.fitted], losses[case.fitted]).loss(sizes[case.ladder.target]))
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
        "accepted": not (wide or untuned),
        "why": f"its interval is wider than {REFUSED:.0%}"
        if wide
        else f"its runs scatter by more than {UNTUNED:.1%}"
        if untuned
        else None,
        "fit": np.stack([case.ladder.flops, losses], -1)[case.fitted].tolist(),
        "targets": [
            dict(zip(("parameters", "tokens", "flops", "loss", "forecast", "low", "high", "plain"), row, strict=True))
            for row in np.column_stack(
                [
                    sizes[case.ladder.target],
                    case.ladder.flops[case.ladder.target],
                    np.exp(np.column_stack([one.truth, one.middle, one.middle - half, one.middle + half, plain])),
                ]
            ).tolist()
        ],
    }


def over_groups(rows: Sequence[Mapping[str, Any]], name: str = "covered") -> float:
    """The mean over rows, groups counting alike."""
    own = dict[str, list[float]]()
    for row in rows:
        own.setdefault(row["group"], []).append(row[name])
    return float(np.mean([np.mean(values) for values in own.values()])) if own else math.nan


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row per factor, and one over all cases: the goals of the law."""
    found = []
    for factor, (least, most) in (BINS | {"all": (0, math.inf)}).items():
        own = [row for row in rows if least <= row["factor"] < most]
        accepted = [row for row in own if row["accepted"]]

        def middle(name: str, rows: Sequence[Mapping[str, Any]]) -> float:
            return float(np.median([row[name] for row in rows])) if rows else math.nan

        found.append(
            {"factor": factor, "cases": len(own), "accepted": len(accepted) / len(own)}
            | {name: middle(name, accepted) for name in ("width", "error", "plain")}
            | {"worst": max((row["error"] for row in accepted), default=math.nan)}
            | {f"{name} of all": middle(name, own) for name in ("width", "error", "plain")}
            | {"coverage": over_groups(own), "coverage of accepted": over_groups(accepted)}
        )
    return found


def main() -> None:
    """Print the forecasts of every case, or write the prior of the package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of ladders")
    parser.add_argument("--prior", action="store_true", help="write the prior of all ladders")
    parser.add_argument("--out", type=Path, help="a file for the numbers, as JSON")
    options = parser.parse_args()
    ladders = read(options.data)
    found, judged = folds(ladders)
    rows = [row_of(*one) for one in judged]
    for row in sorted(rows, key=lambda row: (row["factor"], row["ladder"])):
        print(
            "{ladder:28} {factor:7.1f} times  {runs:4d} runs  +-{half:5.2f} %  error {bias:+6.2f} %  "
            "plain {plain:6.2f} %  covered {covered:.2f}".format(**row, half=row["width"] / 2)
        )
    totals = summary(rows)
    for total in totals:
        print(
            ", ".join(f"{name} {value if isinstance(value, str) else round(value, 3)}" for name, value in total.items())
        )
    ladder_means = {
        name: np.mean([row["covered"] for row in rows if row["ladder"] == name])
        for name in {row["ladder"] for row in rows}
    }
    values = [*ladder_means.values()]
    over_ladders = {"coverage": float(np.mean(values)), "at least .9": float(np.mean(np.array(values) >= 0.9))}
    print(f"over ladders: {over_ladders}")
    for fold in found:
        print(fold.group, fold.form, vars(fold.calibration))
    olmo, shown = next((ladder for ladder in ladders if ladder.name == "olmo"), None), []
    if olmo is not None:
        own = next(fold for fold in found if fold.group == olmo.group)
        for factor in SHOWN:
            case = Case(olmo, ~olmo.target & (olmo.flops <= olmo.flops.max() / factor * 1.01))
            one = forecast(case, own.prior)
            half, error = 100 * half_widths(one, own.calibration), 100 * (one.middle - one.truth)
            print(f"OLMo from {factor} times less: {error.round(2)} +- {half.round(2)} %, {case.fitted.sum()} runs")
            shown.append(row_of(one, own.calibration))
    if options.prior:
        write_prior(ladders, found, [one for one, _ in judged])
    if options.out:
        options.out.write_text(
            json.dumps({"cases": rows, "summary": totals, "olmo": shown, "over ladders": over_ladders}, indent=1) + "\n"
        )


def write_prior(ladders: Sequence[Ladder], found: Sequence[Fold], said: Sequence[Said]) -> None:
    """Write the prior and calibration of all ladders, with the form that most folds chose, for the package."""
    forms = [fold.form for fold in found]
    form = max(FORMS, key=forms.count)
    chosen = {fold.group for fold in found if fold.form == form}
    prior = learned(
        {ladder.name: estimate(ladder, form) for ladder in ladders}, {one.name: one.group for one in ladders}, form
    )
    content = {
        "name": f"{len(ladders)} ladders of others",
        "numbers": ["ln (A/N^a) / E", "ln (B/D^b) / E", "ln a", "ln b", "ln p", "ln error"],
        "mean": prior.mean.round(4).tolist(),
        "covariance": prior.covariance.round(4).tolist(),
        "reference": REFERENCE,
        "discrepancy": prior.discrepancy,
        "freedom": prior.freedom,
        "calibration": vars(calibrated([one for one in said if one.case.ladder.group in chosen])),
        "reach": [
            [float(f"{x.min():.3g}"), float(f"{x.max():.3g}")] for x in np.vstack([one.sizes for one in ladders]).T
        ],
        "ladders": {ladder.name: _source(ladder.name) for ladder in ladders},
    }
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in content.items())
    file_of("losses").write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def _source(name: str) -> str:
    return next(source for prefix, source in SOURCES.items() if name.startswith(prefix))


if __name__ == "__main__":
    main()
