"""Transfer: whether the best learning rate of a small network is that of a large one, and what it costs if not.

For each rule the best ``eta_c`` is found at every width and depth. Its *drift* is the exponent of
``best eta_c ~ L**p n**q``, in doublings per doubling. Its *regret* is what the largest network loses when it is trained
at the smallest one's best rate instead of its own: both are trained, on the same batches from the same starts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from nfd.core.names import RuleName
from nfd.core.statistics import Interval, interval
from nfd.experiment.runs import dataset_of
from nfd.experiment.settings import RunConfig, TransferConfig
from nfd.store.rows import Record
from nfd.sweep.grid import grid
from nfd.sweep.optimum import Scores, at, vertex
from nfd.sweep.sweep import Sweep

Verdict = Literal["TRANSFERS", "DRIFTS", "UNCERTAIN"]

TOLERANCE = 0.05  # of the largest network's progress: a regret below is none, above is one
_ROUNDS = 12  # of extending a grid by two rates

Size = tuple[int, int]


@dataclass(frozen=True)
class Regret:
    """Scores of the largest network at the smallest one's best rate and at its own, ``[S]`` each.

    ``guess`` is log C, the loss of equal guesses, from which progress counts.
    """

    foreign_eta: float
    own_eta: float
    foreign: Tensor
    own: Tensor
    guess: float

    @property
    def loss(self) -> Interval:
        """The loss paid, in nats, paired by seed."""
        return interval(lambda d: d.mean(0), self.foreign - self.own)

    @property
    def share(self) -> Interval:
        """The loss paid over the progress that the largest network makes at its own best rate."""
        pairs = torch.stack([self.foreign, self.own], dim=1)
        return interval(lambda p: (p[:, 0] - p[:, 1]).mean() / (self.guess - p[:, 1].mean()), pairs)


@dataclass(frozen=True)
class Transfer:
    """What was found of one rule: scores by (width, depth), and the regret between the smallest and the largest."""

    rule: RuleName
    cells: dict[Size, Scores]
    regret: Regret

    def drift(self, axis: Literal["width", "depth"]) -> Interval | None:
        """Doublings of the best rate per doubling of width or depth, the other held; None where it does not vary."""
        sizes = list(self.cells)
        if len({size[0 if axis == "width" else 1] for size in sizes}) < 2:
            return None
        rows = torch.tensor([[1.0, math.log2(n), math.log2(L)] for n, L in sizes], dtype=torch.float64)
        column = 1 if axis == "width" else 2

        def exponent(seeds: Tensor) -> Tensor:
            best = torch.stack([vertex(self.cells[s].log2_eta, self.cells[s].scores[seeds.long()]) for s in sizes])
            exponents: Tensor = torch.linalg.pinv(rows) @ best
            return exponents[column]

        return interval(exponent, torch.arange(len(self.regret.own), dtype=torch.float64))

    @property
    def bracketed(self) -> bool:
        """Whether no best rate lies at an end of its grid."""
        return all(cell.edge == 0 for cell in self.cells.values())

    @property
    def verdict(self) -> Verdict:
        """By the regret as a share of progress: its 95 % interval below ``TOLERANCE``, above it, or neither."""
        share = self.regret.share
        if share.high < TOLERANCE:
            return "TRANSFERS"
        return "DRIFTS" if share.low > TOLERANCE else "UNCERTAIN"


def data_title(config: TransferConfig) -> str:
    """What the data are."""
    return dataset_of(RunConfig(**_data(config))).title


def transfer(config: TransferConfig, sweep: Sweep) -> list[Transfer]:
    """Train what the question needs, rule by rule."""
    return [_Rule(config, rule, sweep).found() for rule in config.rules]


class _Rule:
    """The runs of one rule."""

    def __init__(self, config: TransferConfig, rule: RuleName, sweep: Sweep) -> None:
        self.config, self.rule, self.sweep = config, rule, sweep
        dataset = dataset_of(RunConfig(**_data(config)), progress=sweep.progress)
        self.guess = math.log(len(dataset.classes))
        self.settings = config.run_settings(len(dataset.train)) | {"rule": rule, "optimizer": config.optimizer}
        self.sizes = [(n, L) for n in config.widths for L in config.depths]

    def found(self) -> Transfer:
        rates = {size: list(self.config.eta_c) for size in self.sizes}
        cells = self._cells(rates)
        for _ in range(_ROUNDS):
            edges = {size: cell.edge for size, cell in cells.items() if cell.edge}
            if not edges:
                break
            for size, edge in edges.items():
                rates[size] = _extended(rates[size], edge)
            cells = self._cells(rates)
        return Transfer(self.rule, cells, self._regret(cells))

    def _cells(self, rates: dict[Size, list[float]]) -> dict[Size, Scores]:
        """One sweep over all sizes, so that every core has work to the end."""
        plan = {size: self._grid(size, rates[size]) for size in self.sizes}
        records = iter(self.sweep.run([c for configs in plan.values() for c in configs], self.rule))
        found = {}
        for size, configs in plan.items():
            scores = self._scores([next(records) for _ in configs]).view(self.config.seeds, -1)
            found[size] = Scores(torch.tensor(rates[size], dtype=torch.float64).log2(), scores)
        return found

    def _regret(self, cells: dict[Size, Scores]) -> Regret:
        small, large = self.sizes[0], self.sizes[-1]
        foreign, own = (at(float(cells[size].optimum().value)) for size in (small, large))
        records = self.sweep.run([*self._grid(large, [foreign]), *self._grid(large, [own])], self.rule)
        scores = self._scores(records).view(2, -1)
        return Regret(foreign, own, scores[0], scores[1], self.guess)

    def _grid(self, size: Size, rates: Sequence[float]) -> list[RunConfig]:
        """Seeds times rates, the rates varying fastest."""
        settings = {k: v for k, v in self.settings.items() if k != "seed"}
        return grid(**settings, width=size[0], depth=size[1], seed=self.settings["seed"], eta_c=list(rates))

    def _scores(self, records: Sequence[Record]) -> Tensor:
        broken = [record for record in records if record.status == "failed"]
        if broken:
            raise RuntimeError(f"{len(broken)} of {len(records)} runs could not be trained: {broken[0].error}")
        values = [min(r.metrics[self.config.score], self.guess) for r in records]
        return torch.tensor(values, dtype=torch.float64)


def _extended(rates: list[float], edge: int) -> list[float]:
    """Two more rates beyond the end where the best one lies."""
    factor = (rates[-1] / rates[0]) ** (1 / (len(rates) - 1))
    more = [rates[0 if edge < 0 else -1] * factor ** (edge * k) for k in (1, 2)]
    return sorted([*rates, *(float(f"{eta:.4g}") for eta in more)])


def _data(config: TransferConfig) -> dict[str, Any]:
    return {"data": config.data, "data_dir": config.data_dir, "image_size": config.image_size, "data_seed": config.seed}
