"""The law of the best learning rate over parameters, tokens and batch, from losses.

A *cell* is a set of runs that differ in the rate alone. Over log2 of the rate its losses rise from
the best one as

    ``loss / lowest - 1 = level + h (x - mu)^2``,
    with ``asymmetry`` times that to the right of ``mu``,

with any level, a lognormal curvature ``h``, noise, and an error of the form in proportion to the
rise (``nfd.laws.bowl``). A run that lost far more, or diverged, is a wall: the
best rate lies on the near side of it. The cells have the law

    ``log2 lr* = c + a_N n + d t - (g / s) log2(1 + (Bc / B)^s)``,
    ``log2(Bc / B0) = c_B + delta t``,

with n, t the doublings of parameters and tokens over a reference, and a Gaussian process of what
the law misses: a power g of the batch below the critical batch Bc, none above it, and a corner of
sharpness s between them: 1 where noise of gradients alone limits the rate, large where divergence
does. Where two sweeps disagree on powers of batch and tokens, they look at different sides of Bc.
Exponents have priors from other people's sweeps (``priors/rates.json``).

Source: universal kriging (Cressie 1993, section 3.4); McCandlish et al. 2018, the critical batch.
"""

from __future__ import annotations

import json
import math
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.optimize import least_squares, minimize
from scipy.special import expit, ndtri

from nfd.core.answer import Answer
from nfd.core.checks import check_real
from nfd.core.errors import InputError
from nfd.core.estimates import Interval, student
from nfd.core.notices import OldName
from nfd.core.tables import Row
from nfd.laws.bowl import (
    LAW_CAP,
    NOISE_GROWTH,
    Array,
    Losses,
    Shape,
    cell_likelihood,
    log_sum,
)
from nfd.laws.priors import file_of, read_prior
from nfd.laws.rate_advice import (
    BestRate,
    Bowl,
    Cliff,
    Measured,
    cliff_of,
    measured_training,
    new_training,
)
from nfd.laws.rate_answer import grid_end, of_law
from nfd.report.shown import Shown

if TYPE_CHECKING:
    from nfd.report.page import Section

# of doublings; the middle of published sweeps
REFERENCE = {"parameters": 3e8, "tokens": 1e10, "batch": 2.5e5}
_TERMS = ("level", "parameters", "tokens", "batch", "critical_level", "critical_batch", "sharpness")
_POWERS = ("parameters", "tokens", "batch", "critical_batch")
_ONE_WIDTH = (-0.2, 0.2)  # power of parameters: 0 under rules for depth to -1/2
_BOWL = ("curvature", "spread", "noise", "form", "asymmetry")
_DEPARTURE = ("near", "cell", "length")
# The numbers of a prior, by group.
_NUMBERS = {"terms": _TERMS, "bowl": _BOWL, "departure": _DEPARTURE, "curvature": tuple(REFERENCE)}

_STEP = 0.05  # doublings, of the grid of best rates
_REACH = 3.0  # doublings: how far beyond the rates of a cell its best rate may lie
_SAME_PLACE = 1e-3  # doublings: nearer places are one
_FLAT = 1.2  # doublings: a cell that shows nothing has its best rate so near to its best run
_MOST = 50  # cells that the bowl is fitted to
_FAR = 0.35  # doublings: slow departures from the law,
_FAR_LENGTH = 5.0  # and the doublings over which they change
_SIZE = 0.2  # doublings: departures that all cells of one size share,
_SIZE_LENGTH = 0.5  # and the doublings of parameters over which they change
# Doublings: departures that all cells of one batch share, and the doublings of batch over which
# they change. Without them 9 % of cells with larger batches than the table's cost more than "at
# most", with them 2 %, and answers promise .057 % where .107 % is lost, in place of .041 %.
_BATCH = 0.25
_BATCH_LENGTH = 2.0
# deviations: as noise of all cells, those of a few jagged ones would widen every interval
_SPOILT = 3.0
_ROUNDS = 12  # of terms and departures in turn
_SETTLED = 0.02  # a smaller change of every term ends the rounds

# Of the largest step of a measured cell's grid: how far all cells of a table may err alike, as
# their bowls do and their grids are coarse. With 0, four bowls 12 times as steep to the right, with
# rates by factors of 4, held the truth .62 of the time.
_GRID_ERROR = 0.3
# Doublings: the same however fine the grid is, as a law has one asymmetry for all its bowls. With
# 0, four symmetric bowls with rates by factors of 1.4 held the truth .83 of the time.
_FORM_ERROR = 0.15

# Of log2 of the best learning rate of a measured cell, where others say nothing of it: a
# deviation of four doublings around its best run.
_LEAST_PRECISION = 1 / 16

_DRAWS = 200  # of the terms, and as many opposite ones
# doublings: how far a batch or a number of tokens that nobody says is from the reference
_UNKNOWN_SIZE = 2.0
# doublings: assumed distance of a measured noise scale from the critical batch of the rate
_AGREED = 1.0

# ---- What other sweeps say


@dataclass(frozen=True)
class Prior:
    """Normal priors of a law: ``(mean, standard deviation)`` by name.

    Attributes:
        terms: of the law. bowl: of the logarithms of the bowl's shape. departure: of the logarithms
            of the Gaussian process: deviation of near departures, that of single cells, and the
            length of the former.
        curvature: of the powers of N, D and B by which the bowl's curvature changes.
        sources: where the numbers come from.
    """

    terms: Mapping[str, tuple[float, float]]
    bowl: Mapping[str, tuple[float, float]]
    departure: Mapping[str, tuple[float, float]]
    curvature: Mapping[str, tuple[float, float]]
    sources: tuple[str, ...]

    @staticmethod
    def read(prior: str | os.PathLike[str] | None) -> Prior:
        """Read the package's prior, another file, or None: exponents of any usual value."""
        if prior is None:
            return replace(read_prior("rates", "sweeps", Prior.parsed), terms=_ANY, sources=())
        return read_prior("rates", prior, Prior.parsed)

    @staticmethod
    def parsed(stored: Mapping[str, Any]) -> Prior:
        """Make a prior of the content of its file."""
        groups = dict[str, dict[str, tuple[float, float]]]()
        for group, names in _NUMBERS.items():
            groups[group] = {
                name: (float(stored[group][name][0]), float(stored[group][name][1]))
                for name in names
            }
        return Prior(**groups, sources=tuple(stored["sources"]))

    @property
    def of_one_width(self) -> Prior:
        """For networks of one width: the rate follows depth and experts less, or not at all."""
        return replace(self, terms={**self.terms, "parameters": _ONE_WIDTH})

    def arrays(self, group: str, names: Sequence[str]) -> tuple[Array, Array]:
        """Means and standard deviations in the order of these names."""
        table = np.array([getattr(self, group)[name] for name in names])
        return table[:, 0], table[:, 1]


def evidence() -> dict[str, dict[str, dict[str, float]]]:
    """What the rates of plans cost on public sweeps, by kind of optimizer and case.

    It is the mean excess loss in percent: by the prior of other sources (``law``), by fixed powers,
    by Complete(d)P, and at the same rate.
    """
    costs: dict[str, dict[str, dict[str, float]]] = json.loads(file_of("rates").read_text("utf-8"))[
        "evidence"
    ]
    return costs


_ANY = {  # without a prior: what no sweep contradicts
    "level": (-9.0, 10.0),
    "parameters": (0.0, 1.0),
    "tokens": (0.0, 1.0),
    "batch": (0.5, 0.5),
    "critical_level": (0.0, 4.0),
    "critical_batch": (0.5, 0.5),
    "sharpness": (0.7, 0.7),
}


# ---- One cell


@dataclass(frozen=True)
class Cell:
    """Losses ``[E]`` of runs that differ only in the rate, by log2 of it, ascending.

    A loss is infinite where training diverged.

    Attributes:
        place: ``[3]``, doublings of parameters, tokens and batch over ``REFERENCE``.
    """

    place: Array
    log2_rates: Array
    losses: Array

    @property
    def best(self) -> float:
        """log2 of the rate of the best run."""
        return float(self.log2_rates[self.losses.argmin()])

    @property
    def rises(self) -> Array:
        """Losses above the lowest, as shares of it ``[E]``."""
        return np.asarray(self.losses / self.losses.min() - 1)

    @property
    def widening(self) -> float:
        """Factor on the variance of the best learning rate.

        A coarse grid counts whatever comes next. Where it counted only before walls, intervals of
        bowls 12 times as steep to the right in a table of four sizes, with rates by factors of 4,
        held the truth .80 of the time where no wall came next, and .92 where one did.
        """
        losses = Losses(self.log2_rates, self.rises, np.zeros(len(self.losses)), LAW_CAP)
        return max(losses.widening, losses.coarseness)

    def likelihood(self, bowl: Array, places: Array, alone: bool = False) -> tuple[Array, Array]:
        """Log-likelihood of the best learning rate.

        Args:
            bowl: of all cells (``fitted_bowl``).
            places: log2 of best learning rates ``[V]``.
            alone: whether the cell has an asymmetry of its own, noise that grows to the right, and
                walls that are read.

        Returns:
            The log-likelihood ``[V, C]``, and the log curvatures ``[C]``.
        """
        # Without its powers, sharp bowls of short runs were taken for the far sides of flat ones.
        log_curvature = float(bowl[0] + bowl[5:] @ self.place)
        shape = Shape(log_curvature, *np.exp(bowl[1:5]).tolist())
        if alone:
            shapes = shape.tried_alone()
            growth = NOISE_GROWTH
        else:
            shapes = shape.tried()
            growth = 0.0
        return cell_likelihood(
            self.log2_rates, self.losses, places, shapes, shape.noise, growth, reads_walls=alone
        )

    def grid(self, step: float = _STEP) -> Array:
        """Best rates that are tried."""
        return np.arange(self.log2_rates[0] - _REACH, self.log2_rates[-1] + _REACH, step)

    def moments(self, bowl: Array) -> tuple[float, float, float, float]:
        """Mean and variance of log2 of the best rate, and of the log curvature."""
        places = self.grid()
        log, log_h = self.likelihood(bowl, places)
        log = log - 0.5 * ((places - self.best) / _FLAT)[:, None] ** 2
        density = np.exp(log - log.max())
        place_chances = density.sum(1) / density.sum()
        curvature_chances = density.sum(0) / density.sum()
        mean = float(place_chances @ places)
        variance = float(place_chances @ places**2) - mean**2 + _STEP**2 / 12
        mean_log_h = float(curvature_chances @ log_h)
        return mean, variance, mean_log_h, float(curvature_chances @ log_h**2) - mean_log_h**2


def scaled_by(scaled: Mapping[str, float], place: Array) -> float:
    """log2 of the factor that powers of batch and tokens give at a place ``[3]``."""
    return float(sum(scaled.get(name, 0.0) * place[k] for k, name in enumerate(REFERENCE)))


def fitted_bowl(cells: Sequence[Cell], prior: Prior) -> Array:
    """Fit the shape ``[5]`` of the bowl that cells share.

    The powers ``[3]`` of its curvature, which follow in the result, are the prior's.

    The shape has the largest posterior density where any best rate is as likely.
    """
    mean, deviation = prior.arrays("bowl", _BOWL)
    powers, _ = prior.arrays("curvature", [*REFERENCE])
    telling = [cell for cell in cells if len(cell.losses) > 3]  # three losses fit any bowl
    if len(telling) > _MOST:
        places = np.random.default_rng(0).choice(len(telling), _MOST, replace=False)
        telling = [telling[place] for place in places]

    def cost(shape: Array) -> float:
        bowl = np.append(shape, powers)
        logs = [log_sum(cell.likelihood(bowl, cell.grid(0.2))[0], (0, 1)) for cell in telling]
        return float(0.5 * np.sum(((shape - mean) / deviation) ** 2) - np.sum(logs))

    fit = minimize(
        cost, mean, method="Nelder-Mead", options={"maxiter": 200, "xatol": 0.02, "fatol": 0.05}
    )
    return np.append(fit.x, powers)


# ---- The law


def mean_of(terms: Array, places: Array) -> Array:
    """log2 of the best rate ``[cells]`` by the law alone, at places ``[cells, 3]``."""
    level, parameters, tokens, batch, critical_level, critical_batch, log_sharpness = terms
    n, t, b = places.T
    sharpness = math.exp(log_sharpness)
    above = sharpness * (critical_level + critical_batch * t - b)  # log2 of (Bc / B)^s
    return np.asarray(
        level + parameters * n + tokens * t - batch / sharpness * np.logaddexp2(0, above)
    )


def slopes_of(terms: Array, places: Array) -> Array:
    """Derivatives ``[cells, terms]`` of ``mean_of`` by the terms."""
    n, t, b = places.T
    sharpness = math.exp(terms[6])
    above = terms[4] + terms[5] * t - b
    rounded = np.logaddexp2(0, sharpness * above) / sharpness
    share = -terms[3] * expit(sharpness * above * math.log(2))
    return np.stack(
        [np.ones_like(n), n, t, -rounded, share, share * t, terms[3] * rounded + share * above], 1
    )


def covariance(departure: Array, one: Array, other: Array) -> Array:
    """Covariance of the departures that places ``[cells, 3]`` share, without single cells'."""
    near, length = np.exp(departure[[0, 2]])
    squares = (one[:, None] - other[None]) ** 2
    distance = squares.sum(2)
    of_near = near**2 * np.exp(-0.5 * distance / length**2)
    of_far = _FAR**2 * np.exp(-0.5 * distance / _FAR_LENGTH**2)
    of_size = _SIZE**2 * np.exp(-0.5 * squares[..., 0] / _SIZE_LENGTH**2)
    of_batch = _BATCH**2 * np.exp(-0.5 * squares[..., 2] / _BATCH_LENGTH**2)
    return np.asarray(of_near + of_far + of_size + of_batch)


@dataclass(frozen=True, repr=False)
class RateLaw(Shown):
    """The law of the best rate over parameters, tokens and batch; print it for exponents.

    ``plot()`` draws it, ``to_pandas()`` has the columns ``exponent of``, ``value``, ``low``,
    ``high``.

    ``log2 lr* = c + a_N n + d t - (g / s) log2(1 + (Bc / B)^s)``, ``Bc ~ tokens^delta``, and a
    Gaussian process. ``nfd.fit_rate_law`` fits it to the losses of runs that differ in the rate;
    ``nfd.RateLaw.of_sweeps`` is what public sweeps have in common. Intervals are those of one new
    training, and were measured on held-out parts of those sweeps.

    Example::

        rows = [
            {"parameters": N, "tokens": 1e9, "batch": 2.5e5, "lr": 2.0**k}
            | {"loss": 3 * (1 + 0.003 * (k + 9 + 0.5 * math.log2(N / 1e8)) ** 2)}
            for N in (1e8, 2e8, 4e8)
            for k in range(-13, -6)
        ]
        law = nfd.fit_rate_law(rows)
        print(law.at(parameters=1e9, tokens=1e9, batch=2.5e5))
        print(law.exponents["parameters"])

    Attributes:
        terms, spread: means ``[7]`` and covariance of the terms (``mean_of``). departure:
            logarithms ``[3]`` of the Gaussian process. bowl: of the cells (``Cell``). curvature:
            level and powers ``[4]`` of the log curvature, and its standard deviation over cells.
        places, found, noise: of the cells ``[cells, 3]``, ``[cells]``: their log2 best rates and
            variances.
        sources: of the prior; empty without one. varied: names of ``REFERENCE`` that differ between
            cells.
        cells: of the table. curvature_spread: covariance ``[4, 4]`` of level and powers of the log
            curvature.
        rule, about_rule: that scaled the learning rates of the runs, empty where nobody says; and
            what it was taken to mean.
        unsaid: names of ``REFERENCE`` that the table does not have.
        scaled: powers of batch and tokens that the user's own code multiplies learning rates with.
        about: a description of the runs. score: the kind of their loss. notes: what was left out or
            assumed, and why. left_out: the notes on rows that do not count.
    """

    terms: Array
    spread: Array
    departure: Array
    bowl: Array
    curvature: Array
    places: Array
    found: Array
    noise: Array
    sources: tuple[str, ...]
    varied: tuple[str, ...]
    about: str = ""
    score: str = "loss"
    notes: tuple[str, ...] = ()
    cells: tuple[Cell, ...] = ()
    rule: str = ""
    about_rule: str = ""
    unsaid: tuple[str, ...] = ()
    scaled: Mapping[str, float] = field(default_factory=dict)
    curvature_spread: Array = field(default_factory=lambda: np.zeros((4, 4)))
    left_out: str = ""

    @staticmethod
    def of_sweeps(prior: str | os.PathLike[str] = "sweeps") -> RateLaw:
        """The law that public sweeps have in common, for factors: its level is nobody's.

        Example::

            law = nfd.RateLaw.of_sweeps()
            print(law.factor(tokens=(1e9, 1e11), batch=(2.5e5, 2e6)))
        """
        return law_of_cells([], Prior.read(prior))

    @cached_property
    def _factor(self) -> Any:
        """The factor of the cells' covariance."""
        return cho_factor(_covariance_of(self.departure, self.places) + np.diag(self.noise))

    def predicted(self, places: Array) -> tuple[Array, Array]:
        """Mean and deviation of log2 of the best rate of new cells at places ``[cells, 3]``."""
        single = math.exp(2 * self.departure[1])
        own_variance = float(covariance(self.departure, places[:1], places[:1])[0, 0]) + single
        if not len(self.places):
            mean, variance = self._spread_of(lambda terms: mean_of(terms, places))
            return mean, np.sqrt(variance + own_variance)

        shared = covariance(self.departure, places, self.places)
        weights = cho_solve(self._factor, shared.T).T
        mean, variance = self._spread_of(
            lambda terms: (
                mean_of(terms, places) + weights @ (self.found - mean_of(terms, self.places))
            )
        )
        explained = (weights * shared).sum(1)
        return mean, np.sqrt(np.maximum(variance + own_variance - explained, 1e-6))

    def _spread_of(self, value: Callable[[Array], Array]) -> tuple[Array, Array]:
        """A function at the terms, and its variance by points that match their covariance.

        By its derivatives alone a corner that lies a little below the batch would have no error.
        """
        here = value(self.terms)
        steps = math.sqrt(len(self.terms)) * np.linalg.cholesky(self.spread).T
        changes = np.array([value(self.terms + step) - here for step in (*steps, *-steps)])
        return here, np.square(changes).mean(0)

    def at(
        self,
        parameters: float | None = None,
        tokens: float | None = None,
        batch: float | None = None,
    ) -> BestRate:
        """Advise a learning rate for one training, with what missing the best one costs.

        At a size that the table has, the advice lies within the learning rates that were tried
        there, near the lowest losses (``nfd.laws.rate_advice``). Elsewhere it is the law's.

        Args:
            parameters, tokens, batch: of the training, the batch in tokens. What did not vary may
                be left out, and is then the table's own. What the table does not say is taken for
                its own too (``unsaid``).

        Raises:
            ValueError: where one that varied is missing, or is not above 0.
        """
        given = {"parameters": parameters, "tokens": tokens, "batch": batch}
        missing = [name for name in self.varied if given[name] is None]
        if missing:
            raise InputError(
                f"the law follows {', '.join(self.varied)}: say {'=, '.join(missing)}= of the "
                "training."
            )
        place = self.doublings(self._completed(given))
        at_place = self.cells_at(given)
        at_end = None
        if at_place:
            # Cells of one place differ in what the law does not follow: take the best.
            k = min(at_place, key=lambda k: float(self.cells[k].losses.min()))
            effective = self.measured(k)
            at_end = grid_end(self.cells[k], math.pow(2, -scaled_by(self.scaled, place)))
        else:
            means, deviations = self.predicted(place[None])
            effective = self.missed(float(means[0]), float(deviations[0]), place)
        advice = effective.times(math.pow(2, -scaled_by(self.scaled, place)))
        sizes = {name: value for name, value in given.items() if value is not None}
        return replace(advice, sizes=sizes, law=self, at_end=at_end)

    def cells_at(self, given: Mapping[str, float | None]) -> list[int]:
        """The cells of a training, which the table has then."""
        place = self.doublings(self._completed(given))
        return [
            k for k, cell in enumerate(self.cells) if np.abs(cell.place - place).max() < _SAME_PLACE
        ]

    @property
    def usual(self) -> dict[str, float]:
        """The middle of the table's sizes, in doublings; without a table that of public sweeps."""
        if not len(self.places):
            return dict(REFERENCE)
        middle = np.exp2(self.places.mean(0)) * [*REFERENCE.values()]
        return dict(zip(REFERENCE, middle.tolist(), strict=True))

    def _completed(self, given: Mapping[str, float | None]) -> dict[str, float]:
        """Sizes of a training, with the table's own where they are left out or it does not say."""
        sizes = self.usual
        for name, value in given.items():
            if value is None:
                continue
            check_real(name, value, above=0.0)
            if name not in self.unsaid:
                sizes[name] = value
        return sizes

    def missed(self, mean: float, deviation: float, place: Array) -> BestRate:
        """Advise where log2 of the best learning rate of a place ``[3]`` has this mean."""
        return new_training(mean, deviation, self.bowl_at(place))

    def bowl_at(self, place: Array) -> Bowl:
        """Describe the bowl of a training at a place ``[3]``, by those of the cells."""
        row = np.append(1.0, place)
        level_and_powers = self.curvature[:4]
        scatter = float(self.curvature[4])
        return Bowl(
            log_curvature=float(row @ level_and_powers),
            curvature_deviation=math.sqrt(scatter**2 + float(row @ self.curvature_spread @ row)),
            log_asymmetry=float(self.bowl[4]),
            noise=math.exp(self.bowl[2]),
            cliff=self.cliff,
        )

    @cached_property
    def cliff(self) -> Cliff:
        """Where divergence begins, by the runs of the table."""
        return cliff_of(
            [cell.log2_rates for cell in self.cells],
            [cell.rises for cell in self.cells],
            self.found.tolist(),
        )

    def measured(self, k: int) -> BestRate:
        """Advise at the place of cell ``k``: by its own losses, and by what all others say of it.

        The law read the cell by the asymmetry of all. Here its losses are read again, with one of
        their own: what the first reading said is divided out, and the second multiplied in.
        """
        cell = self.cells[k]
        mean, variance = self._known_at(k)
        precision_of_others = 1 / variance - 1 / float(self.noise[k])
        pull = mean / variance - float(self.found[k]) / float(self.noise[k])
        places = cell.grid()
        log_density, _ = cell.likelihood(self.bowl, places, alone=True)
        log_density = log_sum(log_density, (1,))
        if precision_of_others > _LEAST_PRECISION:
            centre = pull / precision_of_others
            of_grid = (_GRID_ERROR * float(np.diff(cell.log2_rates).max())) ** 2
            precision = 1 / (1 / precision_of_others + of_grid + _FORM_ERROR**2)
            log_density = log_density - 0.5 * precision * (places - centre) ** 2
        else:
            log_density = log_density - 0.5 * _LEAST_PRECISION * (places - cell.best) ** 2
        chances = np.exp(log_density - log_density.max())
        chances = chances / chances.sum()
        centre = float(chances @ places)
        places = centre + math.sqrt(cell.widening) * (places - centre)
        return measured_training(
            places,
            chances,
            self.bowl_at(cell.place),
            Measured(cell.log2_rates, cell.rises),
        )

    def _known_at(self, k: int) -> tuple[float, float]:
        """Mean and variance of log2 of the best learning rate of cell ``k``, with its departure."""
        place = self.cells[k].place[None]
        single = math.exp(2 * self.departure[1])
        shared = covariance(self.departure, place, self.places)
        shared[0, k] += single
        weights = cho_solve(self._factor, shared.T).T
        mean, variance = self._spread_of(
            lambda terms: (
                mean_of(terms, place) + weights @ (self.found - mean_of(terms, self.places))
            )
        )
        prior = covariance(self.departure, place, place)[0, 0] + single
        explained = float((weights * shared).sum())
        return float(mean[0]), max(float(variance[0] + prior) - explained, 1e-4)

    def factor(self, **sizes: tuple[float, float] | None) -> BestRate:
        """The best rate of a large training over the best rate of a small one that was tuned.

        Args:
            sizes: ``parameters``, ``tokens`` or ``batch``, ``(small, large)``; what is left out is
                equal in both, and widens the interval where the factor depends on it.
        """
        given = {name: pair for name, pair in sizes.items() if pair is not None}
        usual = self.usual
        small = self.doublings(usual | {name: pair[0] for name, pair in given.items()})
        large = self.doublings(usual | {name: pair[1] for name, pair in given.items()})
        places = np.stack([small, large])
        # Draws of the terms, as slopes at their means miss that a batch may lie on either side of
        # the critical one.
        z = np.random.default_rng(0).standard_normal((_DRAWS, len(self.terms) + 3))
        z = np.concatenate([z, -z])
        draws = self.terms + z[:, 3:] @ np.linalg.cholesky(self.spread).T
        shifts = _UNKNOWN_SIZE * z[:, None, :3] * [name not in given for name in REFERENCE]
        factors = [
            np.diff(mean_of(terms, places + shift))[0]
            for terms, shift in zip(draws, shifts, strict=True)
        ]

        departures = covariance(self.departure, places, places)
        variance = (
            float(np.var(factors)) + departures[0, 0] + departures[1, 1] - 2 * departures[0, 1]
        )
        if np.any(small != large):
            variance += 2 * math.exp(2 * self.departure[1])
        return self.missed(float(np.mean(factors)), math.sqrt(variance), large)

    def with_critical_batch(self, measured: Interval, tokens: float | None) -> RateLaw:
        """The law once a training's critical batch was measured, in the unit of its tokens."""
        t = 0.0 if tokens is None else math.log2(tokens / REFERENCE["tokens"])
        slope = self._critical(t)
        ratio = measured.high / measured.low if measured.low > 0 else math.inf
        error = math.log2(ratio) / (2 * -float(ndtri(0.025)))
        covariances = self.spread @ slope  # of the terms with log2 of the critical batch
        gain = covariances / (slope @ covariances + _AGREED**2 + error**2)
        misfit = math.log2(measured.value / REFERENCE["batch"]) - slope @ self.terms
        return replace(
            self, terms=self.terms + gain * misfit, spread=self.spread - np.outer(gain, covariances)
        )

    @property
    def exponents(self) -> dict[str, Interval]:
        """Powers of the best rate, with 95 % intervals.

        Of parameters; of tokens at batches far above the critical one, and far below it
        (``small-batch tokens``); of the batch far below it; and the power of tokens by which the
        critical batch grows (``critical_batch``).
        """
        exponents = {name: self._term(np.eye(7)[_TERMS.index(name)]) for name in _POWERS}
        slope = np.array([0, 0, 1, -self.terms[5], 0, -self.terms[3], 0])
        value = float(self.terms[2] - self.terms[3] * self.terms[5])
        exponents["small-batch tokens"] = student(
            value, math.sqrt(slope @ self.spread @ slope), math.inf
        )
        return exponents

    def critical_batch(self, tokens: float) -> Interval:
        """The batch in tokens beyond which the best rate hardly grows, by tokens of training."""
        t = math.log2(check_real("tokens", tokens, above=0.0) / REFERENCE["tokens"])
        doublings = self._term(self._critical(t))
        return doublings.scaled(math.log(2)).exp().scaled(REFERENCE["batch"])

    @property
    def table(self) -> list[Row]:
        """A row per exponent."""
        return [{"exponent of": name} | power.limits for name, power in self.exponents.items()]

    @property
    def sentence(self) -> str:
        """What the exponents were found from."""
        prior = (
            f"and {len(self.sources)} published sweeps"
            if self.sources
            else "without priors of other sweeps"
        )
        return (
            f"The law of the best rate, from {len(self.found)} cells (runs that differ in the rate "
            f"alone) {prior}."
        )

    @property
    def priors(self) -> str:
        """The published sweeps."""
        return f"Priors: {'; '.join(self.sources) or 'none'}."

    @property
    def sentences(self) -> list[str]:
        """What the law was found from, its priors, and the notes."""
        return [
            self.sentence,
            self.priors,
            *([self.about_rule] if self.about_rule else []),
            *self.notes,
        ]

    @property
    def answer(self) -> Answer:
        """How the best rate follows what varied, and what to ask the law for."""
        return of_law(self)

    def first_sections(self) -> list[Section]:
        """The best rate over what varied."""
        from nfd.laws.rate_law_page import first_sections

        return first_sections(self)

    # Names of 0.3, where nfd.fit_transfer returned a law inside of an nfd.Transfer.
    law = OldName("the answer is the law", lambda law: law)
    rules = OldName("a law of the rate has none", lambda law: ())
    lead = OldName("write answer", attrgetter("answer"))

    def _term(self, slope: Array) -> Interval:
        return student(float(slope @ self.terms), math.sqrt(slope @ self.spread @ slope), math.inf)

    def _critical(self, t: float) -> Array:
        """Derivatives of log2 of the critical batch by the terms, at doublings of tokens."""
        slopes = {"critical_level": 1.0, "critical_batch": t}
        return np.array([slopes.get(name, 0.0) for name in _TERMS])

    def doublings(self, given: Mapping[str, float]) -> Array:
        """Doublings over the reference, 0 of what is not given."""
        values = [
            check_real(name, given.get(name, usual), above=0.0) for name, usual in REFERENCE.items()
        ]
        return np.asarray(np.log2(np.array(values) / np.array([*REFERENCE.values()])))


def law_of_cells(cells: Sequence[Cell], prior: Prior) -> RateLaw:
    """Fit the law to cells: its terms and departures in turn, of largest posterior density.

    A cell that lies far from what the others say of it was spoilt by a bad run, and counts as
    little as that.
    """
    return _law_of_cells(pickle.dumps((tuple(cells), prior)))


# A fit takes seconds, and a notebook asks again of the runs that it has.
@lru_cache(maxsize=32)
def _law_of_cells(pickled: bytes) -> RateLaw:
    cells, prior = pickle.loads(pickled)
    bowl = fitted_bowl(cells, prior)
    moments = np.array([cell.moments(bowl) for cell in cells]).reshape(-1, 4)
    places = np.array([cell.place for cell in cells]).reshape(-1, 3)
    terms, departure, noise = _fitted(places, moments[:, 0], moments[:, 1], prior)
    _, deviation = prior.arrays("terms", _TERMS)
    information = np.diag(deviation**-2)
    if len(cells):
        slopes = slopes_of(terms, places)
        information += slopes.T @ np.linalg.solve(
            _covariance_of(departure, places) + np.diag(noise), slopes
        )
    spread: Array = np.asarray(np.linalg.inv(information), np.float64)
    varied = tuple(
        name for name, sizes in zip(REFERENCE, places.T, strict=True) if len({*sizes}) > 1
    )
    curvature = _curvature(moments[:, 2], moments[:, 3], places, bowl, prior)
    return RateLaw(
        terms,
        spread,
        departure,
        bowl,
        curvature,
        places,
        moments[:, 0],
        noise,
        prior.sources,
        varied,
        cells=tuple(cells),
        curvature_spread=_curvature_spread(moments[:, 3], places, bowl, prior),
    )


def _fitted(
    places: Array, best: Array, variances: Array, prior: Prior
) -> tuple[Array, Array, Array]:
    """Fit terms and departures to best rates, and the variances with which cells count."""
    mean, deviation = prior.arrays("terms", _TERMS)
    departure, _ = prior.arrays("departure", _DEPARTURE)
    terms = mean.copy()
    weighed = variances
    if not len(places):
        return terms, departure, weighed

    terms[0] += np.average(best - mean_of(mean, places), weights=1 / variances)
    for _ in range(_ROUNDS):
        before = terms
        terms = _fitted_terms(terms, departure, places, best, weighed, prior)
        slopes = slopes_of(terms, places)
        explained = (slopes * deviation**2) @ slopes.T
        misfit = best - mean_of(terms, places) + slopes @ (terms - mean)
        departure = _fitted_departure(
            departure, places, misfit, explained + np.diag(weighed), prior
        )
        precision = np.linalg.inv(
            _covariance_of(departure, places) + explained + np.diag(variances)
        )
        # How far a cell lies from what the others say of it.
        distance = (precision @ misfit) / np.diag(precision)
        is_spoilt = distance**2 * np.diag(precision) > _SPOILT**2
        weighed = np.where(is_spoilt, variances + distance**2, variances)
        if np.abs(terms - before).max() < _SETTLED:
            break
    return terms, departure, weighed


def _covariance_of(departure: Array, places: Array) -> Array:
    """Covariance of departures of cells at these places, each with one of its own."""
    return covariance(departure, places, places) + math.exp(2 * departure[1]) * np.eye(len(places))


def _fitted_terms(
    start: Array, departure: Array, places: Array, found: Array, noise: Array, prior: Prior
) -> Array:
    """The terms of largest posterior density at given departures."""
    mean, deviation = prior.arrays("terms", _TERMS)
    root = np.linalg.cholesky(_covariance_of(departure, places) + np.diag(noise))

    def misfit(terms: Array) -> Array:
        return np.append(
            solve_triangular(root, found - mean_of(terms, places), lower=True),
            (terms - mean) / deviation,
        )

    def derivatives(terms: Array) -> Array:
        return np.vstack(
            [-solve_triangular(root, slopes_of(terms, places), lower=True), np.diag(1 / deviation)]
        )

    return np.asarray(least_squares(misfit, start, derivatives, x_scale=deviation).x)


def _fitted_departure(
    start: Array, places: Array, left: Array, fixed: Array, prior: Prior
) -> Array:
    """Fit the departures to what the law leaves, given its other covariance."""
    usual, width = prior.arrays("departure", _DEPARTURE)

    def cost(departure: Array) -> float:
        factor = cho_factor(_covariance_of(departure, places) + fixed, lower=True)
        fit = 0.5 * left @ cho_solve(factor, left) + np.log(np.diag(factor[0])).sum()
        return float(fit + 0.5 * np.sum(((departure - usual) / width) ** 2))

    options = {"maxiter": 60, "xatol": 0.05, "fatol": 0.05}
    return np.asarray(minimize(cost, start, method="Nelder-Mead", options=options).x)


def _curvature(logs: Array, noise: Array, places: Array, bowl: Array, prior: Prior) -> Array:
    """Level, powers and scatter of the log curvature, by ridge regression over cells."""
    mean, deviation = prior.arrays("curvature", [*REFERENCE])
    scatter = math.exp(bowl[1])
    rows = np.column_stack([np.ones(len(places)), places])
    weights = 1 / (noise + scatter**2)
    middle = np.array([bowl[0], *mean])
    precision = np.diag([0.25, *deviation**-2])
    weighed = rows.T * weights
    numbers = np.linalg.solve(weighed @ rows + precision, weighed @ logs + precision @ middle)
    return np.array([*numbers, scatter])


def _curvature_spread(noise: Array, places: Array, bowl: Array, prior: Prior) -> Array:
    """Covariance ``[4, 4]`` of level and powers of the log curvature."""
    _, power_deviations = prior.arrays("curvature", [*REFERENCE])
    _, level_deviation = prior.bowl["curvature"]
    precision = np.diag([level_deviation**-2, *power_deviations**-2])
    rows = np.column_stack([np.ones(len(places)), places])
    weights = 1 / (noise + math.exp(2 * bowl[1]))
    return np.asarray(np.linalg.inv((rows.T * weights) @ rows + precision))
