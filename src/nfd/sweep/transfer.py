"""Transfer: whether the best learning rate of a small network is that of a large one, and what it costs if not.

For each rule the best ``eta_c`` is found at every width and depth. Its *drift* is the exponent of
``best eta_c ~ L**p n**q``, in doublings per doubling. Its *regret* is what the largest network loses when it is trained
at the smallest one's best rate instead of its own: both are trained, on the same batches from the same starts. For
each seed both rates are chosen by the other seeds: a rate looks better than it is on the seeds that chose it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from nfd.core.ambient import undisturbed
from nfd.core.names import RuleName
from nfd.core.statistics import UNKNOWN, Interval, mean, student
from nfd.experiment.runs import dataset_of
from nfd.experiment.settings import RunConfig
from nfd.experiment.sweep_settings import TransferConfig, data_settings
from nfd.store.rows import Record
from nfd.sweep.grid import grid
from nfd.sweep.optimum import Scores, at, chosen, resamples, rounded, vertex
from nfd.sweep.sweep import Sweep, succeeded, upset_in

Verdict = Literal["TRANSFERS", "COSTS", "UNCERTAIN"]

TOLERANCE = 0.1  # of the largest network's progress: a regret below is none, above is one
FEWEST_SEEDS = 3  # for a verdict
_ROUNDS = 12  # of extending a grid by two rates

Size = tuple[int, int]
Place = tuple[RuleName, Size]


@dataclass(frozen=True)
class Regret:
    """Scores of the largest network at the smallest one's best rate and at its own, ``[S]`` each, trained for this.

    The rates of each seed, ``foreign_eta`` and ``own_eta``, were chosen by the others (``folds``).
    ``guess`` is log C, from which progress counts. ``spread`` is the error of the whole procedure (``procedure``).
    """

    foreign_eta: tuple[float, ...]
    own_eta: tuple[float, ...]
    foreign: Tensor
    own: Tensor
    guess: float
    spread: float

    @property
    def progress(self) -> float:
        """What the largest network learns at its own best rate, in nats below equal guesses: on seeds that did not
        choose the rate."""
        return self.guess - float(self.own.mean())

    @property
    def loss(self) -> Interval:
        """The loss paid, in nats: paired by seed, with the error of the seeds or of the procedure, the larger."""
        paid = mean(self.foreign - self.own)
        if not self.spread > paid.stderr:
            return paid
        return student(paid.value, self.spread, len(self.own) - 1)

    @property
    def share(self) -> Interval:
        """The loss paid over the progress."""
        return self.loss.scaled(1 / self.progress) if self.progress > 0 else UNKNOWN


@dataclass(frozen=True)
class Transfer:
    """What was found of one rule: scores by (width, depth), and the regret between the smallest and the largest."""

    rule: RuleName
    cells: dict[Size, Scores]
    regret: Regret

    def drift(self, axis: Literal["width", "depth"]) -> Interval | None:
        """Doublings of the best rate per doubling of width or depth, the other held; None where it does not vary."""
        return drift(self.cells, axis)

    @property
    def doubt(self) -> str:
        """Why best rates cannot be compared; empty when they can."""
        blind = [f"width {n} and depth {L}" for (n, L), cell in self.cells.items() if not cell.learns]
        if blind:
            return f"nothing is learnt at {', '.join(blind)}: take more steps or other rates"
        ends = [f"width {n} and depth {L}" for (n, L), cell in self.cells.items() if cell.edge]
        return f"the best rate lies at an end of its grid at {', '.join(ends)}: give other rates" if ends else ""

    @property
    def verdict(self) -> Verdict:
        """By the regret as a share of progress: its 95 % interval within ``TOLERANCE``, above it, or neither."""
        share = self.regret.share
        if self.doubt or not share.low > -math.inf or len(self.regret.own) < FEWEST_SEEDS:
            return "UNCERTAIN"
        if share.low > -TOLERANCE and share.high < TOLERANCE:
            return "TRANSFERS"
        return "COSTS" if share.low > TOLERANCE else "UNCERTAIN"


def drift(cells: Mapping[Size, Scores], axis: Literal["width", "depth"]) -> Interval | None:
    """Doublings of the best rate per doubling of one axis, over scores by (width, depth); None where it is one size.

    The exponent of least squares is a weighted sum of the best rates (``nfd.sweep.optimum.chosen``).
    """
    sizes = list(cells)
    if len({size[0 if axis == "width" else 1] for size in sizes}) < 2:
        return None
    rows = torch.tensor([[1.0, math.log2(n), math.log2(L)] for n, L in sizes], dtype=torch.float64)
    return chosen(list(cells.values()), torch.linalg.pinv(rows)[1 if axis == "width" else 2])


def data_title(config: TransferConfig) -> str:
    """What the data are."""
    return dataset_of(RunConfig(**data_settings(config))).title


@undisturbed()
def transfer(config: TransferConfig, sweep: Sweep) -> list[Transfer]:
    """Train what the question needs: every rule and size together, so that every core has work to the end."""
    return _Question(config, sweep).answered()


class _Question:
    """The runs of a configuration, by (rule, size)."""

    def __init__(self, config: TransferConfig, sweep: Sweep) -> None:
        self.config, self.sweep = config, sweep
        dataset = dataset_of(RunConfig(**data_settings(config)), progress=sweep.progress)
        self.guess = math.log(len(dataset.classes))
        self.settings = config.run_settings(len(dataset.train)) | {"optimizer": config.optimizer}
        self.sizes = [(n, L) for n in config.widths for L in config.depths]

    def answered(self) -> list[Transfer]:
        cells = self._cells()
        regrets = self._regrets(cells)
        return [Transfer(r, {s: cells[r, s] for s in self.sizes}, regrets[r]) for r in self.config.rules]

    def _cells(self) -> dict[Place, Scores]:
        """Scores at every place, on grids that grow until no best rate lies at an end."""
        rates = {(rule, size): list(self.config.eta_c) for rule in self.config.rules for size in self.sizes}
        cells = self._scored(rates)
        for _ in range(_ROUNDS):
            edges = {place: cell.edge for place, cell in cells.items() if cell.edge}
            if not edges:
                break
            for place, edge in edges.items():
                rates[place] = _extended(rates[place], edge)
            cells |= self._scored({place: rates[place] for place in edges})
        return cells

    def _regrets(self, cells: dict[Place, Scores]) -> dict[RuleName, Regret]:
        small, large = self.sizes[0], self.sizes[-1]
        parts = folds(self.config.seeds)
        rates = {r: [rates_of(cells[r, small], cells[r, large], by) for by, _ in parts] for r in self.config.rules}
        plan = [
            config
            for rule, pairs in rates.items()
            for pair, (_, on) in zip(pairs, parts, strict=True)
            for config in self._grid(rule, large, pair, on.tolist())
        ]
        records = iter(succeeded(self.sweep.run(plan, "regrets")))
        found = {}
        for rule, pairs in rates.items():
            scores = torch.empty(self.config.seeds, 2, dtype=torch.float64)
            for pair, (_, on) in zip(pairs, parts, strict=True):
                scores[on] = self._scores(pair, [next(records) for _ in range(2 * len(on))]).scores
            foreign, own = zip(*pairs, strict=True)
            spread = procedure(cells[rule, small], cells[rule, large])
            found[rule] = Regret(foreign, own, scores[:, 0], scores[:, 1], self.guess, spread)
        return found

    def _scored(self, rates: dict[Place, list[float]]) -> dict[Place, Scores]:
        plan = {place: self._grid(*place, etas) for place, etas in rates.items()}
        records = iter(succeeded(self.sweep.run([c for configs in plan.values() for c in configs], "learning rates")))
        found = {}
        for place, configs in plan.items():
            runs = [next(records) for _ in configs]
            found[place] = self._scores(rates[place], runs)
        return found

    def _scores(self, rates: Sequence[float], runs: Sequence[Record]) -> Scores:
        shape = (-1, len(rates))
        losses = torch.tensor([run.metrics[self.config.score] for run in runs], dtype=torch.float64).view(shape)
        upset = torch.tensor([upset_in(run) for run in runs]).view(shape)
        return Scores(torch.tensor(rates, dtype=torch.float64).log2(), losses, upset, self.guess)

    def _grid(
        self, rule: RuleName, size: Size, rates: Sequence[float], seeds: Sequence[int] | None = None
    ) -> list[RunConfig]:
        """Seeds (all, or those of some places) times rates, the rates varying fastest; a rate may be given twice."""
        shared = self.settings | {"rule": rule, "width": size[0], "depth": size[1]}
        some = shared["seed"] if seeds is None else [shared["seed"][place] for place in seeds]
        return [config for seed in some for eta_c in rates for config in grid(**shared | _point(seed, eta_c))]


def folds(seeds: int) -> list[tuple[Tensor, Tensor]]:
    """Places of the seeds that choose rates, and of the one that is scored at them: each in turn, by all others."""
    places = torch.arange(seeds)
    return [(places[places != one], places[one : one + 1]) for one in range(seeds)]


def rates_of(small: Scores, large: Scores, seeds: Tensor) -> list[float]:
    """The best rates of the smallest and of the largest network by some seeds."""
    return [rounded(float(cell.of(seeds).best())) for cell in (small, large)]


def procedure(small: Scores, large: Scores) -> float:
    """Standard error of the regret read off the largest network's grid: both rates chosen anew by a bootstrap of the
    seeds, which also score."""
    seeds = len(small.losses)
    draws = resamples(seeds)
    foreign, own = (vertex(cell.log2_eta, cell.resampled(draws), cell.guess).cubic for cell in (small, large))
    curves = large.resampled(draws)
    regret = at(large.log2_eta, curves, foreign) - at(large.log2_eta, curves, own)
    return float(regret.std(correction=0)) * math.sqrt(seeds / (seeds - 1))


def _point(seed: int, eta_c: float) -> dict[str, Any]:
    return {"seed": seed, "eta_c": eta_c}


def _extended(rates: list[float], edge: int) -> list[float]:
    """Two more rates beyond the end where the best one lies."""
    factor = (rates[-1] / rates[0]) ** (1 / (len(rates) - 1))
    more = [rates[0 if edge < 0 else -1] * factor ** (edge * k) for k in (1, 2)]
    return sorted([*rates, *(float(f"{eta:.4g}") for eta in more)])
