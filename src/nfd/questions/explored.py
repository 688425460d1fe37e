"""Trained networks as numbers with intervals: what the page of ``nfd explore`` shows.

Nothing is interpolated. The loss is ``train_loss`` of the records, the mean over the last tenth of the steps: with
fewer than twenty steps that of the last batch, before its update.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, get_args

import torch

from nfd import __version__
from nfd.core.errors import InputError
from nfd.core.names import RuleName
from nfd.core.statistics import Interval
from nfd.questions.law import Law
from nfd.questions.law_fit import fit_law
from nfd.questions.optimum import Scores, rate_of
from nfd.runs.means import UPDATES, means
from nfd.runs.records import dataset_of
from nfd.runs.settings import RunConfig
from nfd.runs.sweep import upset_in
from nfd.scaling.rules import rule_named
from nfd.store.rows import Record
from nfd.store.store import Store

_DIGITS = 4  # of a stored number
_FEWEST_RATES = 3  # among which a best one can lie inside
_TOLD = ("block", "steps", "batch")  # settings that are given whether or not they are the defaults
AXES = ("horizon", "rule", "eta_c", "depth", "width")
Number = list[float] | None  # value, low and high; None where one of them is not known
Table = dict[str, Any]


class Place(NamedTuple):
    """What networks have in common that differ in their seeds alone."""

    horizon: float
    rule: RuleName
    rate: float
    depth: int
    width: int


def explored(records: Sequence[Record], store: Store) -> Table:
    """The numbers of runs of the paper's networks, as plain data for JSON.

    Runs that failed, and places with one seed, are left out. Where a place was trained with and without measuring its
    updates, the measured runs count.

    Returns:
        ``version``; ``data``, its title; ``settings`` that all runs share, by name: block, steps, batch and those that
        are not the defaults; ``axes``, the values of horizon, rule, depth and width, and of the rate by rule. Rows
        begin with the places of their values in these lists: ``cells``, by horizon, rule, rate, depth and width, the
        number of seeds, how many diverged, and the numbers ``loss``, ``inner_update`` (null for one-layer blocks) and
        ``function_update``, where they were measured; ``best``, by horizon, rule, depth and width, the best rate, or
        ``"lower"`` or ``"higher"`` where it lies beyond the rates; ``laws``, by horizon, rule and rate, the floor of
        the law of size and its values ``[depth, width, number]``, where it holds. Numbers are ``[value, low, high]``
        with 95 % intervals, or null.

    Raises:
        ValueError: for runs that differ in other settings, of other networks, or with one seed everywhere.
    """
    return _Explored(_by_place(records), store).table


def rounded(interval: Interval) -> Number:
    """A number with its interval, in few digits."""
    values = (interval.value, interval.low, interval.high)
    return [float(f"{v:.{_DIGITS}g}") for v in values] if all(map(math.isfinite, values)) else None


def _by_place(records: Sequence[Record]) -> dict[Place, list[Record]]:
    _check_alike(records)
    places = defaultdict[Place, dict[bool, dict[int, Record]]](lambda: {True: {}, False: {}})
    for record in records:
        if record.status != "failed":
            own = places[Place(*(record.config[name] for name in AXES))]
            own[record.config["meter"] == "updates"][record.config["seed"]] = record
    by_seed = {place: own[True] or own[False] for place, own in places.items()}
    several = {place: [own[seed] for seed in sorted(own)] for place, own in sorted(by_seed.items()) if len(own) > 1}
    if not several:
        raise InputError("intervals need two seeds at one place; every network has one. Train from other seeds too.")
    return several


def _check_alike(records: Sequence[Record]) -> None:
    if not records:
        raise InputError("there are no runs to explore. Name a directory with a sweep, or loosen --where.")
    others = {name for record in records for name in record.config if name not in RunConfig.model_fields}
    if others:
        raise InputError(
            "a page of sliders is made from runs of nfd sweep, or of nfd transfer and nfd capacity without a "
            f"constructor; these runs have other settings: {', '.join(sorted(others))}."
        )
    values = {
        name: {repr(record.config.get(name)) for record in records}
        for name in RunConfig.model_fields
        if name not in (*AXES, "seed", "meter")
    }
    if differ := {name: sorted(own) for name, own in values.items() if len(own) > 1}:
        listed = "; ".join(f"{name} in {', '.join(own[:5])}" for name, own in differ.items())
        raise InputError(
            f"the runs must differ in width, depth, horizon, eta_c, rule and seed alone; they have {listed}. Choose "
            "with --where."
        )


@dataclass(frozen=True)
class _Explored:
    trained: Mapping[Place, list[Record]]
    store: Store

    @property
    def table(self) -> Table:
        return {
            "version": __version__,
            "data": dataset_of(self._config).title,
            "settings": self._settings,
            "axes": self.axes,
            "cells": [[*self.at(place), *self._cell(records)] for place, records in self.trained.items()],
            "best": self._best_rates(),
            "laws": self._laws(),
        }

    @cached_property
    def _config(self) -> RunConfig:
        return RunConfig(**next(iter(self.trained.values()))[0].config)

    @property
    def _settings(self) -> dict[str, Any]:
        own = self._config.model_dump(exclude={*AXES, "seed", "meter"})
        fields = RunConfig.model_fields
        return {name: value for name, value in own.items() if name in _TOLD or value != fields[name].default}

    @cached_property
    def axes(self) -> dict[str, Any]:
        """The values of every axis, ascending; rules in the order of ``RuleName``, rates by rule."""
        rules = [rule for rule in get_args(RuleName) if any(place.rule == rule for place in self.trained)]
        rates = {rule: sorted({place.rate for place in self.trained if place.rule == rule}) for rule in rules}
        sizes = {name: sorted({getattr(p, name) for p in self.trained}) for name in ("horizon", "depth", "width")}
        return {"rule": rules, "rate": rates, **sizes}

    def at(self, place: Place) -> list[int]:
        """The places of its values in the lists of the axes."""
        lists = self.axes | {"rate": self.axes["rate"][place.rule]}
        return [lists[name].index(value) for name, value in zip(Place._fields, place, strict=True)]

    def _cell(self, records: Sequence[Record]) -> list[Any]:
        diverged = sum(record.status == "diverged" for record in records)
        measured = means(records, self.store)
        known = ("train_loss", *UPDATES) if UPDATES[-1] in measured else ("train_loss",) if measured else ()
        return [len(records), diverged, *(rounded(measured[name]) if name in measured else None for name in known)]

    def _best_rates(self) -> list[list[Any]]:
        curves = defaultdict[Place, dict[float, list[Record]]](dict)
        for place, records in self.trained.items():
            curves[place._replace(rate=0.0)][place.rate] = records
        rows = []
        for place, by_rate in curves.items():
            horizon, rule, _, depth, width = self.at(place._replace(rate=min(by_rate)))
            if (rate := self._best_rate(by_rate)) is not None:
                rows.append([horizon, rule, depth, width, rate])
        return rows

    def _best_rate(self, by_rate: Mapping[float, Sequence[Record]]) -> Number | str:
        """The best rate of a size, or on which side of all rates it lies; None where nothing is learnt."""
        seeds = Counter(map(_seeds, by_rate.values())).most_common(1)[0][0]
        same = {rate: records for rate, records in by_rate.items() if _seeds(records) == seeds}
        if len(same) < _FEWEST_RATES:
            return None
        losses = torch.tensor([_losses(records) for records in same.values()], dtype=torch.float64).T
        upset = torch.tensor([[upset_in(record) for record in records] for records in same.values()]).T
        guess = math.log(len(dataset_of(self._config).classes))
        scores = Scores(torch.tensor(list(same), dtype=torch.float64).log2(), losses, upset, guess)
        if scores.has_optimum:
            return rounded(rate_of(scores.optimum()))
        return {-1: "lower", 1: "higher"}.get(scores.edge)

    def _laws(self) -> list[list[Any]]:
        sizes = defaultdict[Place, dict[tuple[int, int], list[Record]]](dict)
        for place, records in self.trained.items():
            if rule_named(place.rule).has_depth_limit:
                sizes[place._replace(depth=0, width=0)][place.width, place.depth] = records
        rows = []
        for place, by_size in sizes.items():
            with suppress(InputError):  # too few sizes
                law = fit_law(
                    {size: _losses(records) for size, records in by_size.items()},
                    paired=len(set(map(_seeds, by_size.values()))) == 1,
                    trim=True,
                )
                if law.good:
                    width, depth = next(iter(by_size))
                    horizon, rule, rate, *_ = self.at(place._replace(depth=depth, width=width))
                    rows.append([horizon, rule, rate, rounded(law.floor), self._values(law)])
        return rows

    def _values(self, law: Law) -> list[list[Any]]:
        depths, widths = self.axes["depth"], self.axes["width"]
        return [
            [depths.index(cell.depth), widths.index(cell.width), rounded(law.loss(cell.width, cell.depth))]
            for cell in law.cells
        ]


def _losses(records: Sequence[Record]) -> list[float]:
    return [record.metrics["train_loss"] for record in records]


def _seeds(records: Sequence[Record]) -> tuple[int, ...]:
    return tuple(record.config["seed"] for record in records)
