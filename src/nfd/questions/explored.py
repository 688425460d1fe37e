"""A grid of networks and of their limits as numbers with intervals: what the page of ``nfd explore`` shows.

Every network of the grid is trained, and its limit predicted, on the same batches. Nothing is interpolated. The loss is
that of the last batch, before its update: a run's ``train_loss``, as no training here has more than 19 steps, and the
last loss of ``nfd.predict``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from nfd import __version__
from nfd.core.ambient import undisturbed
from nfd.core.errors import InputError
from nfd.core.names import RuleName
from nfd.core.progress import bar
from nfd.core.statistics import Interval
from nfd.questions.law_fit import fit_law
from nfd.questions.optimum import Scores, rate_of
from nfd.questions.predict import predict
from nfd.runs.grid import grid
from nfd.runs.means import UPDATES, means
from nfd.runs.records import dataset_of
from nfd.runs.settings import RunConfig
from nfd.runs.sweep import Sweep, upset_in
from nfd.scaling.rules import rule_named
from nfd.store.rows import Record

_DIGITS = 4  # of a stored number
Number = list[float] | None  # value, low and high
Place = tuple[float, RuleName, float, int, int]  # horizon, rule, rate, depth, width


@dataclass(frozen=True)
class Grid:
    """What is trained: every combination of the lists, from every seed.

    Attributes:
        measured: the widths at which the updates of features and of the function are measured too.
        limit_width, replicates: of the networks by which ``nfd.predict`` finds a limit.
    """

    horizons: Sequence[float] = (0.25, 1.0, 4.0)
    rules: Sequence[RuleName] = ("mup", "depth-mup", "depth-mup-inner")
    rates: Sequence[float] = (0.03125, 0.0625, 0.125, 0.25, 0.5, 1.0, 2.0)
    depths: Sequence[int] = (2, 4, 8, 16)
    widths: Sequence[int] = (64, 128, 256)
    measured: Sequence[int] = (64, 128)
    seeds: int = 4
    steps: int = 12
    batch: int = 16
    limit_width: int = 256
    replicates: int = 8

    @property
    def laws(self) -> Iterator[tuple[float, RuleName, float]]:
        """Horizon, rule and rate of every law of size."""
        return itertools.product(self.horizons, self.rules, self.rates)

    def runs(self, horizon: float, rule: str, rate: float, depth: int, width: int) -> list[RunConfig]:
        """The networks of one place, one from each seed."""
        return grid(
            horizon=horizon,
            rule=rule,
            eta_c=rate,
            depth=depth,
            width=width,
            block="two-layer",
            steps=self.steps,
            batch=self.batch,
            seed=list(range(self.seeds)),
            meter="updates" if width in self.measured else "none",
        )


@undisturbed()
def explored(of: Grid, sweep: Sweep) -> dict[str, Any]:
    """Train what is missing of the grid, and say what all of it gave, as plain data for JSON.

    Returns:
        ``version``, ``grid``, ``data``; ``cells``, by horizon, rule, rate, depth and width, each ``[diverged, loss,
        inner_update, function_update]``; ``limits``, by horizon, rule, rate and depth; ``best``, the best rate by
        horizon, rule, depth and width, or ``"lower"`` or ``"higher"`` where it lies beyond the rates; ``laws``, by
        horizon, rule and rate. Numbers are ``[value, low, high]`` with 95 % intervals, or null.
    """
    places = list(itertools.product(of.horizons, of.rules, of.rates, of.depths, of.widths))
    trained = sweep.run_all({place: of.runs(*place) for place in places}, "networks")
    cells = {place: _cell(records, sweep) for place, records in trained.items()}
    return {
        "version": __version__,
        "grid": asdict(of),
        "data": dataset_of(of.runs(*places[0])[0]).title,
        "cells": [cells[place] for place in places],
        "limits": _limits(of, sweep),
        "best": [_best(of, trained, *at) for at in itertools.product(of.horizons, of.rules, of.depths, of.widths)],
        "laws": [_law(of, trained, *at) for at in of.laws],
    }


def _cell(records: Sequence[Record], sweep: Sweep) -> list[Any]:
    diverged = sum(record.status == "diverged" for record in records)
    measured = means(records, sweep.store)
    return [diverged, *(_number(measured[name]) if name in measured else None for name in ("train_loss", *UPDATES))]


def _limits(of: Grid, sweep: Sweep) -> list[Number]:
    """The last loss of the infinitely wide network at every horizon, rule, rate and depth."""
    out = None if sweep.directory is None else sweep.directory / "limits"
    dataset = dataset_of(of.runs(*next(of.laws), of.depths[0], of.widths[0])[0])
    inputs, targets = dataset.batches(of.batch, of.steps, 0)
    limits = list[Number]()
    with bar("limits", enabled=sweep.progress) as shown:
        shown.plan(float(len(list(of.laws)) * len(of.depths)), "")
        for (horizon, rule, rate), depth in itertools.product(of.laws, of.depths):
            limit = predict(
                inputs,
                targets,
                classes=len(dataset.classes),
                block="two-layer",
                horizon=horizon,
                rule=rule,
                eta_c=rate,
                depth=depth,
                width=of.limit_width,
                replicates=of.replicates,
                out=out,
                executor=sweep.executor,
            )
            last = limit.table[-1]
            limits.append(_number(Interval(last["loss"], math.nan, last["low"], last["high"])))
            shown.advance(1.0)
    return limits


def _best(
    of: Grid, trained: Mapping[Place, Sequence[Record]], horizon: float, rule: RuleName, depth: int, width: int
) -> Number | str:
    """The best rate of a size, or on which side of all rates it lies."""
    columns = [trained[horizon, rule, rate, depth, width] for rate in of.rates]
    losses = torch.tensor([[r.metrics["train_loss"] for r in column] for column in columns], dtype=torch.float64).T
    upset = torch.tensor([[upset_in(r) for r in column] for column in columns]).T
    guess = math.log(len(dataset_of(of.runs(horizon, rule, of.rates[0], depth, width)[0]).classes))
    scores = Scores(torch.tensor(of.rates, dtype=torch.float64).log2(), losses, upset, guess)
    if scores.has_optimum:
        return _number(rate_of(scores.optimum()))
    return {-1: "lower", 1: "higher"}.get(scores.edge)


def _law(
    of: Grid, trained: Mapping[Place, Sequence[Record]], horizon: float, rule: RuleName, rate: float
) -> dict[str, Any] | None:
    """The law of size of the losses, its floor and its values at every depth and width, where it holds."""
    sizes = list(itertools.product(of.depths, of.widths))
    losses = {
        (width, depth): [r.metrics["train_loss"] for r in trained[horizon, rule, rate, depth, width]]
        for depth, width in sizes
    }
    if not rule_named(rule).has_depth_limit:
        return None
    try:
        law = fit_law(losses)
    except InputError:
        return None
    if not law.good:
        return None
    return {"floor": _number(law.floor), "lines": [_number(law.loss(width, depth)) for depth, width in sizes]}


def _number(interval: Interval) -> Number:
    """A number with its interval, in few digits; None where it is not known."""
    values = (interval.value, interval.low, interval.high)
    return [float(f"{v:.{_DIGITS}g}") for v in values] if all(map(math.isfinite, values)) else None
