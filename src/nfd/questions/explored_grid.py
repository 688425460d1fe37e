"""The networks behind the page of ``nfd explore`` that comes with the package, and their limits of infinite width.

Every network is trained, and every limit predicted, on the same batches. The largest networks are trained at one
horizon alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nfd.core.ambient import undisturbed
from nfd.core.names import RuleName
from nfd.core.progress import bar
from nfd.core.statistics import Interval
from nfd.questions.explored import Place, Table, explored, rounded
from nfd.questions.predict import predict
from nfd.runs.grid import grid
from nfd.runs.records import dataset_of
from nfd.runs.settings import RunConfig
from nfd.runs.sweep import Sweep
from nfd.scaling.rules import rule_named


def _rates() -> dict[RuleName, Sequence[float]]:
    """Of rules that scale with width, and of ``standard``, whose best rate grows with it and lies far above."""
    scaled: tuple[RuleName, ...] = ("mup", "depth-mup", "depth-mup-inner", "complete-p")
    of_scaled = tuple(2.0**k for k in range(-5, 2))
    return {"standard": tuple(2.0**k for k in range(4, 11)), **dict.fromkeys(scaled, of_scaled)}


@dataclass(frozen=True)
class Grid:
    """What is trained: every combination of the lists up to the largest sizes, from every seed.

    Attributes:
        widest: the largest width at every horizon.
        largest: the most hidden weights n^2 L of a network.
        rates: by rule.
        measured: the most hidden weights at which the updates of features and of the function are measured too.
        limit_width, replicates: of the networks by which ``nfd.predict`` finds a limit.
    """

    horizons: Sequence[float] = (0.25, 1.0, 4.0)
    widest: Sequence[int] = (256, 1024, 256)
    largest: int = 2**22
    rates: Mapping[RuleName, Sequence[float]] = field(default_factory=_rates)
    depths: Sequence[int] = (2, 4, 8, 16, 32)
    widths: Sequence[int] = (64, 128, 256, 512, 1024)
    measured: int = 2**18
    seeds: int = 4
    steps: int = 12
    batch: int = 16
    limit_width: int = 256
    replicates: int = 8

    def places(self, *widths: int) -> Iterator[Place]:
        """Where networks of these widths are trained, by default of all."""
        for horizon, widest in zip(self.horizons, self.widest, strict=True):
            sizes = itertools.product(self.depths, widths or self.widths)
            trained = [(L, n) for L, n in sizes if n <= widest and n**2 * L <= self.largest]
            for rule, rates in self.rates.items():
                yield from (Place(horizon, rule, rate, *size) for rate, size in itertools.product(rates, trained))

    def runs(self, place: Place) -> list[RunConfig]:
        """The networks of one place, one from each seed."""
        return grid(
            horizon=place.horizon,
            rule=place.rule,
            eta_c=place.rate,
            depth=place.depth,
            width=place.width,
            block="two-layer",
            steps=self.steps,
            batch=self.batch,
            seed=list(range(self.seeds)),
            meter="updates" if place.width**2 * place.depth <= self.measured else "none",
        )


@undisturbed()
def explored_grid(of: Grid, sweep: Sweep) -> Table:
    """Train what is missing of the grid, and give its numbers (``nfd.questions.explored``).

    Returns:
        The table of ``explored``, with ``limits``: ``width`` and ``replicates`` of the networks that found them, and
        ``rows``, by horizon, rule, rate and depth, the last loss of the infinitely wide network, null where it
        diverged. Rules that do not scale with width have none.
    """
    trained = sweep.run_all({place: of.runs(place) for place in of.places()}, "networks")
    table = explored([record for records in trained.values() for record in records], sweep.store)
    limits = {"width": of.limit_width, "replicates": of.replicates, "rows": _limits(of, sweep, table["axes"])}
    return table | {"limits": limits}


def _limits(of: Grid, sweep: Sweep, axes: Mapping[str, Any]) -> list[list[Any]]:
    places = [place for place in of.places(of.limit_width) if rule_named(place.rule).scales_width]
    rows = []
    with bar("limits", enabled=sweep.progress) as shown:
        shown.plan(float(len(places)), "")
        for place in places:
            lists = axes["horizon"], axes["rule"], axes["rate"][place.rule], axes["depth"]
            at = [values.index(value) for values, value in zip(lists, place, strict=False)]
            rows.append([*at, rounded(_limit(of, sweep, place))])
            shown.advance(1.0)
    return rows


def _limit(of: Grid, sweep: Sweep, place: Place) -> Interval:
    """The last loss of the infinitely wide network."""
    dataset = dataset_of(of.runs(place)[0])
    inputs, targets = dataset.batches(of.batch, of.steps, 0)
    limit = predict(
        inputs,
        targets,
        classes=len(dataset.classes),
        block="two-layer",
        horizon=place.horizon,
        rule=place.rule,
        eta_c=place.rate,
        depth=place.depth,
        width=of.limit_width,
        replicates=of.replicates,
        out=None if sweep.directory is None else sweep.directory / "limits",
        executor=sweep.executor,
    )
    last = limit.table[-1]
    return Interval(last["loss"], math.nan, last["low"], last["high"])
