"""The law of size of a ladder of any kind: ``loss = floor + sum_k A_k / x_k^p_k``.

Width and depth have the power 1 of their limits' first correction; parameters and tokens have powers that are fitted
(``nfd.questions.power_fit``). This law stands in where ``nfd.questions.law`` cannot be fitted: with one seed a rung,
one axis, several lengths of training, or parameters alone.

Source: Hoffmann et al. 2022, "Training compute-optimal large language models" (the form in parameters and tokens).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nfd.core.errors import InputError, check_count
from nfd.core.intervals import Interval

Array = NDArray[np.float64]
Sizes = tuple[float, ...]

KNOWN = ("width", "depth")  # variables whose power is 1; that of others is fitted
_LETTERS = {"width": ("a", ""), "depth": ("b", ""), "parameters": ("a", "alpha"), "tokens": ("c", "beta")}


@dataclass(frozen=True)
class Form:
    """The variables of a law and the smallest size of each, ``x0``.

    A law is a row of numbers: the floor; the term of every variable at its smallest size, ``A / x0^p``; the powers that
    are fitted; and for every other variable a term of second order at the smallest size, of ``(x0 / x)^2``.
    """

    variables: tuple[str, ...]
    smallest: Sizes

    @property
    def free(self) -> list[int]:
        """Which variables have a power that is fitted."""
        return [k for k, name in enumerate(self.variables) if name not in KNOWN]

    @property
    def bent(self) -> list[int]:
        """Which variables have a term of second order."""
        return [k for k, name in enumerate(self.variables) if name in KNOWN]

    @property
    def first(self) -> slice:
        """Where the terms of first order stand in a law."""
        return slice(1, 1 + len(self.variables))

    @property
    def fitted_powers(self) -> slice:
        """Where the powers that are fitted stand."""
        return slice(self.first.stop, self.terms)

    @property
    def second(self) -> slice:
        """Where the terms of second order stand."""
        return slice(self.terms, self.terms + len(self.bent))

    @property
    def terms(self) -> int:
        """How many numbers a law has without its terms of second order."""
        return 1 + len(self.variables) + len(self.free)

    def powers(self, laws: Array) -> Array:
        """Of laws ``[B, numbers]`` the powers ``[B, variables]``."""
        powers = np.ones((len(laws), len(self.variables)))
        powers[:, self.free] = laws[:, self.fitted_powers]
        return powers

    def shrunk(self, laws: Array, sizes: Array) -> Array:
        """``(x0 / x)^p`` for sizes ``[K, variables]``: ``[B, K, variables]``."""
        return np.asarray((np.array(self.smallest) / sizes) ** self.powers(laws)[:, None])

    def losses(self, laws: Array, sizes: Array) -> Array:
        """What laws ``[B, numbers]`` say of sizes ``[K, variables]``: ``[B, K]``."""
        shrunk = self.shrunk(laws, sizes)
        straight = (laws[:, None, self.first] * shrunk).sum(-1)
        return np.asarray(laws[:, :1] + straight + (laws[:, None, self.second] * shrunk[..., self.bent] ** 2).sum(-1))

    def slopes(self, laws: Array, sizes: Array) -> Array:
        """Derivatives of ``losses`` by the numbers of each law, ``[B, K, numbers]``; sizes are finite."""
        shrunk = self.shrunk(laws, sizes)
        by_power = (laws[:, None, self.first] * shrunk * np.log(np.array(self.smallest) / sizes))[..., self.free]
        return np.concatenate([np.ones((*shrunk.shape[:2], 1)), shrunk, by_power, shrunk[..., self.bent] ** 2], -1)


@dataclass(frozen=True)
class PowerLaw:
    """A fitted law of size, ``loss = floor + sum_k A_k / x_k^p_k``, with 95 % intervals.

    Attributes:
        form: its variables (width, depth, parameters, tokens) and the smallest size of each.
        largest: the largest size of each that was fitted.
        floor: the loss where every variable is infinite.
        coefficients, powers: ``A`` and ``p`` of every variable; p is 1 for width and depth.
        scatter: standard deviation of a run about the law.
        p_value: the probability of a larger misfit if the law holds; not-a-number if it cannot be tested.
        seeds: the smallest number of seeds of a size.
        good: whether the law may be extrapolated.
        note: the reason if not, and the runs that were left out; otherwise empty.
        fit: the law, ``[numbers]``. draws: laws fitted to drawn losses, ``[B, numbers]``. noise: of a run, ``[B]``.
    """

    form: Form
    largest: Sizes
    floor: Interval
    coefficients: tuple[Interval, ...]
    powers: tuple[Interval, ...]
    scatter: float
    p_value: float
    seeds: int
    good: bool
    note: str
    fit: Array = field(repr=False)
    draws: Array = field(repr=False)
    noise: Array = field(repr=False)

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables of the law, in the order of the arguments of ``loss``."""
        return self.form.variables

    @property
    def smallest(self) -> Sizes:
        """The smallest size of each variable that was fitted."""
        return self.form.smallest

    @property
    def terms(self) -> dict[str, Interval]:
        """The numbers of the law by their letters in ``equation``."""
        named = {"floor": self.floor}
        for k, (variable, A, p) in enumerate(zip(self.variables, self.coefficients, self.powers, strict=True)):
            letter, power = _LETTERS[variable]
            named |= {letter: A, power: p} if k in self.form.free else {letter: A}
        return named

    @property
    def equation(self) -> str:
        """The law in letters, such as ``loss = floor + a / width + c / tokens^beta``."""
        letters = [(variable, *_LETTERS[variable]) for variable in self.variables]
        return " + ".join(["loss = floor", *(f"{A} / {v}{'^' + p if p else ''}" for v, A, p in letters)])

    @property
    def formula(self) -> str:
        """The law with its numbers."""
        formula = f"loss = {self.floor.unsigned}"
        for variable in self.variables:
            A, p = (self.terms.get(letter) for letter in _LETTERS[variable])
            formula += f" + ({A}) / {variable}{'' if p is None else f'^({p.unsigned})'}"
        return formula

    @property
    def content(self) -> dict[str, Any]:
        """The law and its test as ``result.json`` holds them."""
        terms: dict[str, Any] = {name: term.limits for name, term in self.terms.items()}
        return terms | {name: getattr(self, name) for name in ("scatter", "p_value", "good", "note")}

    @property
    def test(self) -> str:
        """The test of the law in words."""
        if math.isnan(self.p_value):
            return "its misfit cannot be tested: no rung has two seeds"
        return f"p = {self.p_value:.2g}"

    def loss(self, *sizes: float) -> Interval:
        """The mean loss of runs of a size, in the order of ``variables``; each may be ``math.inf``.

        Raises:
            ValueError: outside the sizes that were fitted, when the law is not good.
        """
        return interval_of(*self._losses(sizes))

    def network(self, *sizes: float, networks: int = 1) -> Interval:
        """The mean loss of this many new runs of a size, with a 95 % prediction interval."""
        value, draws = self._losses(sizes)
        return interval_of(value, draws + self.noise / math.sqrt(check_count("networks", networks)))

    def excess(self, *sizes: float) -> Interval:
        """The loss above the floor: the most that larger networks can gain. Raises as ``loss`` does."""
        return self.bought(*sizes, *(math.inf for _ in self.variables))

    def bought(self, *sizes: float) -> Interval:
        """The fall of the loss from one size to a second one, given after it. Raises as ``loss`` does."""
        small, large = sizes[: len(self.variables)], sizes[len(self.variables) :]
        value, draws = self._losses(small)
        later, others = self._losses(large)
        return interval_of(value - later, draws - others)

    def __str__(self) -> str:
        numbers = ", ".join(f"{name} {term}" for name, term in self.terms.items())
        return f"{self.equation}: {numbers}; {self.test}. {self.note}".strip()

    def _losses(self, sizes: Sizes) -> tuple[float, Array]:
        """The loss of a size, and that of every draw."""
        self._allow(sizes)
        place = np.array([sizes], dtype=float)
        return float(self.form.losses(self.fit[None], place)[0, 0]), self.form.losses(self.draws, place)[:, 0]

    def _allow(self, sizes: Sizes) -> None:
        if len(sizes) != len(self.variables):
            raise InputError(f"this law needs {', '.join(self.variables)}; got {len(sizes)} numbers.")
        for name, size, least, most in zip(self.variables, sizes, self.smallest, self.largest, strict=True):
            if not size > 0:
                raise InputError(f"{name} must be above 0; got {size}.")
            if not self.good and not least <= size <= most:
                raise InputError(
                    f"{name} must be within {least:g}..{most:g}, what was fitted; got {size:g}. This law may not be "
                    f"extrapolated: {self.note}"
                )


def interval_of(value: float, draws: Array) -> Interval:
    """A number with the interval that its draws make."""
    low, high = np.quantile(draws, (0.025, 0.975))
    return Interval(value, float(draws.std(ddof=1)), float(low), float(high))
