"""What a network costs at a size, counted at several sizes, and the best size for a budget."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np

from nfd.core.errors import InputError, check_choice, check_real
from nfd.core.estimates import Interval
from nfd.forecasts.law import Law, interval_of

Resource = Literal["parameters", "flops"]

RESOURCES: tuple[Resource, ...] = get_args(Resource)
_PREFIXES = {"": 0, "K": 3, "M": 6, "G": 9, "B": 9, "T": 12, "P": 15, "E": 18, "Z": 21}
_UNITS = {"parameters": r"(?:PARAM(?:ETER)?S?)?", "flops": r"(?:FLOPS?)?"}
_EXAMPLES = {"parameters": "'2M' or 2_000_000", "flops": "'3 TFLOP' or 3e12"}


@dataclass(frozen=True)
class Cost:
    """``constant + per_width n + per_square n^2 + (per_block + per_layer n + per_matrix n^2) L``, whole numbers, of one
    resource."""

    constant: int
    per_width: int
    per_layer: int
    per_matrix: int
    per_square: int = 0
    per_block: int = 0

    def at(self, width: int, depth: int) -> int:
        """The cost of a size."""
        n, L = width, depth
        of_block = self.per_block + self.per_layer * n + self.per_matrix * n * n
        return self.constant + self.per_width * n + self.per_square * n * n + of_block * L

    def widest(self, depth: int, budget: int) -> int:
        """The largest width within the budget, exactly; 0 if there is none."""
        A, B = self.per_square + self.per_matrix * depth, self.per_width + self.per_layer * depth
        room = budget - self.constant - self.per_block * depth
        if room <= 0 or not A:
            return max(0, room // B) if B else 0
        return (math.isqrt(B * B + 4 * A * room) - B) // (2 * A)

    def deepest(self, width: int, budget: int) -> int:
        """The largest depth within the budget, exactly; 0 if there is none."""
        return max(0, (budget - self.at(width, 0)) // (self.at(width, 1) - self.at(width, 0)))


def counted(counts: Mapping[tuple[int, int], int]) -> Cost | None:
    """The cost that has these values at these sizes (width, depth), exactly; None where no such cost has them, and
    where there are too few sizes to know."""
    n0, L0 = min(n for n, _ in counts), min(L for _, L in counts)
    units = [1, n0, n0 * L0, n0 * n0 * L0, n0 * n0, L0]
    rows = [[1, n, n * L, n * n * L, n * n, L] for n, L in counts]
    scaled = np.array(rows, dtype=float) / units
    if np.linalg.matrix_rank(scaled) < len(units):
        return None
    values = np.linalg.lstsq(scaled, np.array([*counts.values()], dtype=float), rcond=None)[0] / units
    cost = Cost(*(round(value) for value in values.tolist()))
    return cost if all(cost.at(*size) == count for size, count in counts.items()) else None


@dataclass(frozen=True)
class Costs:
    """What networks of any size cost, by resource; their widths are multiples of ``multiple``."""

    by_resource: Mapping[Resource, Cost]
    multiple: int = 1

    def cost(self, resource: Resource) -> Cost:
        """The cost in one resource at every size; ValueError where it is not known."""
        if check_choice("resource", resource, RESOURCES) not in self.by_resource:
            known = f"only {' and '.join(self.by_resource)} are" if self.by_resource else "nothing is"
            raise InputError(f"what these networks cost in {resource} is not known: {known}.")
        return self.by_resource[resource]


def check_resource(name: str) -> Resource:
    """The resource of this name; ValueError where there is none."""
    return cast("Resource", check_choice("resource", name, RESOURCES))


def amount(resource: Resource, budget: str | float) -> int:
    """A budget as a whole number: ``"2M"`` parameters, ``"3 TFLOP"`` or a number."""
    check_choice("resource", resource, RESOURCES)
    if not isinstance(budget, str):
        return int(check_real("budget", budget, least=1.0))
    match = re.fullmatch(r"\s*(\d+\.?\d*(?:E[+-]?\d+)?)\s*([KMGBTPEZ]?)\s*" + _UNITS[resource] + r"\s*", budget.upper())
    value = float(match[1]) * 10.0 ** _PREFIXES[match[2]] if match else 0.0
    if not 1 <= value < math.inf:
        raise InputError(f"budget in {resource} must be like {_EXAMPLES[resource]}, at least 1; got {budget!r}.")
    return round(value)


# ---- The best size for a budget.
#
# The best size is where ``a / n + b / L`` is least within the budget. Where all is spent on matrices, ``n^2 L``, and
# were sizes real numbers, ``a / n = 2 b / L`` there.


_UNBOUNDED = 2**62


@dataclass(frozen=True)
class BestSize:
    """The best size for a budget, what it costs, the loss the law predicts there, whether it lies inside of what was
    fitted, and what else to know."""

    width: int
    depth: int
    cost: int
    predicted: Interval
    inside: bool
    note: str

    def __str__(self) -> str:
        return f"width {self.width:,} and depth {self.depth:,}: loss {self.predicted.unsigned}. {self.note}".strip()

    @property
    def content(self) -> dict[str, Any]:
        """The size as ``result.json`` holds it."""
        names = ("width", "depth", "cost", "inside", "note")
        return {name: getattr(self, name) for name in names} | {"loss": self.predicted.limits}


@dataclass(frozen=True)
class BestSplit:
    """The best numbers of parameters and tokens for a budget of operations, the loss the law predicts there, whether
    both lie inside of what was fitted, and what else to know."""

    parameters: Interval
    tokens: Interval
    cost: int
    predicted: Interval
    inside: bool
    note: str

    def __str__(self) -> str:
        both = " and ".join(
            f"{number.value:.3g} [{number.low:.3g}, {number.high:.3g}] {name}"
            for name, number in (("parameters", self.parameters), ("tokens", self.tokens))
        )
        return f"{both}: loss {self.predicted.unsigned}. {self.note}".strip()

    @property
    def content(self) -> dict[str, Any]:
        """The numbers as ``result.json`` holds them."""
        about = {name: getattr(self, name) for name in ("cost", "inside", "note")} | {"loss": self.predicted.limits}
        return {"parameters": self.parameters.limits, "tokens": self.tokens.limits} | about


def best_size(law: Law, costs: Costs, resource: Resource, budget: str | float) -> BestSize:
    """The width and depth of least ``a / n + b / L`` within a budget, exactly, over all whole numbers, of which widths
    are multiples of ``costs.multiple``.

    By the values of a and b, which decide where networks are large: other powers and second order are left out of the
    choice. An axis whose term is not positive, or lost in its noise, stays at the smallest size fitted; a note says so.
    A law that may not be extrapolated is searched only where it was fitted. Tokens are the most of the fit.

    Raises:
        ValueError: for a budget that buys no size, and where the losses tell of neither axis whether it pays.
    """
    k, whole, most = costs.multiple, costs.cost(resource), amount(resource, budget)
    cost = Cost(  # of widths counted in multiples
        whole.constant, k * whole.per_width, k * whole.per_layer, k * k * whole.per_matrix, k * k * whole.per_square,
        whole.per_block,
    )  # fmt: skip
    lowest, highest = _bounds(law, k)
    a, b = law.terms["a"], law.terms["b"]
    wide, deep = pays(a), pays(b)
    if not wide and not deep and max(a.high, b.high) > 0:
        raise InputError(
            f"the losses do not tell which size is best: neither more width (a = {a}) nor more depth (b = {b}) lowers "
            f"them significantly. Train more seeds, or width {2 * law.largest[0]:g} and depth {2 * law.largest[1]:g}."
        )
    if cost.at(*lowest) > most:
        raise InputError(
            f"budget must pay for width {k * lowest[0]} and depth {lowest[1]}, {cost.at(*lowest):,} in {resource}; "
            f"got {most:,}. Raise it."
        )
    if wide and deep:
        m, L = _both(a.value / k, b.value, cost, most, lowest, highest)
    else:
        m = min(cost.widest(lowest[1], most), highest[0]) if wide else lowest[0]
        L = min(cost.deepest(lowest[0], most), highest[1]) if deep else lowest[1]
    n, beyond = k * m, _beyond(law, k * m, L)
    note = " ".join([*_about(law), *beyond])
    return BestSize(n, L, cost.at(m, L), law.loss(n, L, *law.largest[2:]), not beyond, note)


def best_split(law: Law, resource: Resource, budget: str | float) -> BestSplit:
    """The parameters N and tokens D of least ``a / N^alpha + c / D^beta`` within a budget of floating-point operations.

    Training costs ``6 N D``, the usual count for dense Transformers. The best N is where both terms fall alike:
    ``alpha a / N^alpha = beta c / D^beta``. Intervals hold the doubt of the law.
    """
    if resource != "flops":
        raise InputError(f"a law in parameters and tokens splits a budget of flops; got {resource}. Give flops.")
    most = amount(resource, budget)
    both = np.vstack([law.fit, law.draws])
    powers = np.exp(both[:, law.form.powers])
    (A, c), (alpha, beta) = (both[:, law.form.first] * np.array(law.smallest) ** powers).T, powers.T
    with np.errstate(invalid="ignore"):  # of draws in which a term is negative, and no size is best
        N = (alpha * A / (beta * c)) ** (1 / (alpha + beta)) * (most / 6) ** (beta / (alpha + beta))
    if not N[0] > 0:
        raise InputError(
            f"more parameters or more tokens raise the loss in this law, so that no size is best: {law.formula}"
        )
    parameters, tokens = (interval_of(float(x[0]), x[1:][np.isfinite(x[1:])]) for x in (N, most / 6 / N))
    beyond = _beyond(law, parameters.value, tokens.value)
    note = " ".join([*([] if law.good else [law.note]), *beyond])
    return BestSplit(parameters, tokens, most, law.loss(parameters.value, tokens.value), not beyond, note)


def pays(term: Interval) -> bool:
    """Whether growing along the axis of this term lowers the loss: by its value, beyond half a standard error."""
    return term.value > 0.5 * term.stderr


def _bounds(law: Law, step: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The smallest and the largest size that may be chosen, of widths in multiples of ``step``."""
    (n, L), (wide, deep) = map(int, law.smallest[:2]), map(int, law.largest[:2])
    n, wide = -(-n // step), wide // step
    if not law.good:
        return (n, L), (wide, deep)
    free = (1 if pays(law.terms["a"]) else n, 1 if pays(law.terms["b"]) else L)
    return free, (_UNBOUNDED, _UNBOUNDED)


def _both(
    a: float, b: float, cost: Cost, most: int, lowest: tuple[int, int], highest: tuple[int, int]
) -> tuple[int, int]:
    """Walk up both axes at once, each size with the largest partner it can pay.

    Ends where neither a greater width nor a greater depth pays any more, after the cube root of the budget at most.
    """
    best, size = math.inf, lowest
    n, L = lowest
    while highest[0] >= n and highest[1] >= L:
        wide, deep = min(cost.widest(L, most), highest[0]), min(cost.deepest(n, most), highest[1])
        for pair in ((wide, L), (n, deep)):
            if pair[0] >= lowest[0] and pair[1] >= lowest[1] and a / pair[0] + b / pair[1] < best:
                best, size = a / pair[0] + b / pair[1], pair
        if wide < lowest[0] or deep < lowest[1] or a / wide >= best or b / deep >= best:
            break
        n, L = n + 1, L + 1
    return size


def _about(law: Law) -> list[str]:
    notes = [law.note] if not law.good else []
    for name, symbol, start in zip(("width", "depth"), "ab", law.smallest, strict=False):
        term = law.terms[symbol]
        if not pays(term):
            says = "raises the loss" if term.high < 0 else "does not pay significantly"
            notes.append(f"More {name} {says} ({symbol} = {term}): the smallest fitted, {start:g}, was kept.")
        elif not term.low > 0:
            notes.append(f"The gain from {name} is not significant ({symbol} = {term}): take more seeds to be sure.")
    return notes


def _beyond(law: Law, *sizes: float) -> list[str]:
    """Which of these sizes lie outside of what was fitted."""
    fitted = zip(law.variables, sizes, law.smallest, law.largest, strict=False)
    return [
        f"{name.capitalize()} {size:.6g} lies outside of what was fitted, {least:.6g}..{most:.6g}: train it to be sure."
        for name, size, least, most in fitted
        if not least <= size <= most
    ]
