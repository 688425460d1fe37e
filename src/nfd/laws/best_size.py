"""The best width and depth for a budget: what networks cost, and where the loss law is lowest.

With a law ``floor + a / n + b / L`` the best size is where ``a / n + b / L`` is least within the
budget. Where all is spent on matrices, ``n^2 L``, and were sizes real numbers, ``a / n = 2 b / L``
there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from nfd.core.answer import Answer
from nfd.core.checks import check_choice, check_real
from nfd.core.errors import InputError
from nfd.core.estimates import Interval
from nfd.core.tables import Row
from nfd.laws.loss_law import Law
from nfd.report.shown import Shown

if TYPE_CHECKING:
    from nfd.laws.scaling_law import ScalingLaw
    from nfd.laws.scaling_law_answer import Growth
    from nfd.report.page import Section

# ---- What a network costs at a size, counted at several sizes.


_PREFIXES = {"": 0, "K": 3, "M": 6, "G": 9, "B": 9, "T": 12, "P": 15, "E": 18, "Z": 21}
_UNITS = {"parameters": r"(?:PARAM(?:ETER)?S?)?", "flops": r"(?:FLOPS?)?"}
_EXAMPLES = {"parameters": "'2M' or 2_000_000", "flops": "'3 TFLOP' or 3e12"}


@dataclass(frozen=True)
class Cost:
    """The cost of a network of width n and depth L in one resource, in whole numbers.

    ``constant + per_width n + per_square n^2 + (per_block + per_layer n + per_matrix n^2) L``;
    widths n are multiples of ``multiple``.
    """

    constant: int
    per_width: int
    per_layer: int
    per_matrix: int
    per_square: int = 0
    per_block: int = 0
    multiple: int = 1

    def at(self, width: int, depth: int) -> int:
        """The cost of a size."""
        n = width
        L = depth
        of_block = self.per_block + self.per_layer * n + self.per_matrix * n * n
        return self.constant + self.per_width * n + self.per_square * n * n + of_block * L

    def widest(self, depth: int, budget: int) -> int:
        """The largest width within the budget, exactly; 0 if there is none."""
        square = self.per_square + self.per_matrix * depth
        linear = self.per_width + self.per_layer * depth
        room = max(0, budget - self.constant - self.per_block * depth)
        n = 0
        if square:
            n = (math.isqrt(linear * linear + 4 * square * room) - linear) // (2 * square)
        elif linear:
            n = room // linear
        return n - n % self.multiple

    def deepest(self, width: int, budget: int) -> int:
        """The largest depth within the budget, exactly; 0 if there is none."""
        return max(0, (budget - self.at(width, 0)) // (self.at(width, 1) - self.at(width, 0)))


def counted(counts: Mapping[tuple[int, int], int], multiple: int = 1) -> Cost | None:
    """Find the cost that has these values at these sizes (width, depth), exactly.

    None where no such cost has them, and where there are too few sizes to know.
    """
    n0 = min(n for n, _ in counts)
    L0 = min(L for _, L in counts)
    units = [1, n0, n0 * L0, n0 * n0 * L0, n0 * n0, L0]
    rows = [[1, n, n * L, n * n * L, n * n, L] for n, L in counts]
    scaled = np.array(rows, dtype=float) / units
    if np.linalg.matrix_rank(scaled) < len(units):
        return None
    counted_values = np.array([*counts.values()], dtype=float)
    values = np.linalg.lstsq(scaled, counted_values, rcond=None)[0] / units
    cost = replace(Cost(*map(round, values.tolist())), multiple=multiple)
    is_exact = all(cost.at(*size) == count for size, count in counts.items())
    return cost if is_exact else None


def amount(resource: str, budget: str | float) -> int:
    """Read a budget as a whole number: ``"2M"`` parameters, ``"3 TFLOP"`` or a number."""
    check_choice("resource", resource, _UNITS)
    if not isinstance(budget, str):
        return int(check_real("budget", budget, least=1.0))
    pattern = r"\s*(\d+\.?\d*(?:E[+-]?\d+)?)\s*([KMGBTPEZ]?)\s*" + _UNITS[resource] + r"\s*"
    match = re.fullmatch(pattern, budget.upper())
    value = 0.0
    if match:
        value = float(match[1]) * 10.0 ** _PREFIXES[match[2]]
    if not 1 <= value < math.inf:
        raise InputError(
            f"budget in {resource} must be like {_EXAMPLES[resource]}, at least 1; got {budget!r}."
        )
    return round(value)


# ---- The best size.


# Widths, and depths, that are tried: all whole numbers up to some hundreds, beyond that 2 % apart
# at most.
_CANDIDATES = 1000


@dataclass(frozen=True, repr=False)
class BestSize(Shown):
    """The best size for a budget.

    Attributes:
        cost: what it costs.
        predicted: the loss there, by the law.
        inside: whether it lies inside of what was fitted.
        note: what else to know; empty where there is nothing.
        doubts: the sentences of the note on axes that do not pay.
        resource, budget: what was asked for.
        law: the law that says so.

    ``table`` and ``to_pandas()`` have the rows and columns of the law's ``growth``: ``network``,
    ``width``, ``depth``, and ``loss`` and ``gain`` with their intervals.
    """

    width: int
    depth: int
    cost: int
    predicted: Interval
    inside: bool
    note: str
    doubts: tuple[str, ...]
    resource: str
    budget: str | float
    law: ScalingLaw = field(compare=False)

    @property
    def growth(self) -> Growth:
        """What the law says of this budget."""
        from nfd.laws.scaling_law_answer import Growth

        law = self.law.law
        largest = dict(zip(law.variables, law.largest, strict=True))
        budgets = {self.resource: (self.budget, self)}
        return Growth(self.law, largest, budgets, asked_budgets=(self.resource,))

    @property
    def answer(self) -> Answer:
        """State, decision, evidence and what to run next."""
        return self.growth.answer

    @property
    def table(self) -> list[Row]:
        """One dict for each network that is compared with the largest one."""
        return self.growth.table

    def first_sections(self) -> list[Section]:
        """The losses with the law and its forecast, and what growing buys."""
        return self.growth.first_sections()


def best_size(fitted: ScalingLaw, resource: str, budget: str | float) -> BestSize:
    """Find the width and depth of least ``a / n + b / L`` that cost no more than a budget.

    Widths are multiples of ``cost.multiple``. The values of a and b decide where networks are
    large: other powers and second order do not enter the choice. An axis whose term is not
    positive, or lost in its noise, stays at the smallest size fitted; a note says so. A law that
    may not be extrapolated is searched only where it was fitted. Tokens are the most of the fit.

    Raises:
        ValueError: for a budget that buys no size, and where the losses show of neither axis
            whether it pays.
    """
    law = fitted.law
    cost = fitted.costs[resource]
    most = amount(resource, budget)
    a = law.terms["a"]
    b = law.terms["b"]
    grows_wide = pays(a)
    grows_deep = pays(b)
    n0, L0 = map(int, law.smallest[:2])
    n1, L1 = map(int, law.largest[:2])
    if not grows_wide and not grows_deep:
        _check_that_neither_helps(law)
    if law.good and grows_wide:
        n0 = cost.multiple
    if law.good and grows_deep:
        L0 = 1
    if cost.at(n0, L0) > most:
        raise InputError(
            f"budget must pay for width {n0} and depth {L0}, which cost {cost.at(n0, L0):,}; got "
            f"{most:,}. Raise it."
        )

    def widest(L: int) -> int:
        n = cost.widest(L, most) if grows_wide else n0
        return n if law.good else min(n, n1)

    def deepest(n: int) -> int:
        L = cost.deepest(n, most) if grows_deep else L0
        return L if law.good else min(L, L1)

    def above_floor(size: tuple[int, int]) -> float:
        return max(a.value, 0.0) / size[0] + max(b.value, 0.0) / size[1]

    k = cost.multiple
    widths = {k * round(n / k) for n in np.geomspace(n0, widest(L0), _CANDIDATES).tolist()}
    depths = {round(L) for L in np.geomspace(L0, deepest(n0), _CANDIDATES).tolist()}
    sizes = [(n, deepest(n)) for n in widths] + [(widest(L), L) for L in depths]
    possible = [size for size in sizes if size[0] >= n0 and size[1] >= L0]
    n, L = min(possible, key=above_floor)
    beyond = _beyond(law, n, L)
    doubts = _about(law)
    return BestSize(
        width=n,
        depth=L,
        cost=cost.at(n, L),
        predicted=law.loss(n, L, *law.largest[2:]),
        inside=not beyond,
        note=" ".join([*(() if law.good else [law.note]), *doubts, *beyond]),
        doubts=tuple(doubts),
        resource=resource,
        budget=budget,
        law=fitted,
    )


def _check_that_neither_helps(law: Law) -> None:
    """Raise ValueError unless more width and more depth both raise the loss."""
    a = law.terms["a"]
    b = law.terms["b"]
    if max(a.high, b.high) > 0:
        n, L = map(int, law.largest[:2])
        raise InputError(
            f"the losses do not tell which size is best: neither more width, a {a.in_words()}, nor "
            f"more depth, b {b.in_words()}, lowers them significantly. Train more seeds, or width "
            f"{2 * n} and depth {2 * L}."
        )


def pays(term: Interval) -> bool:
    """Whether growing along the axis of this term lowers the loss, beyond half a standard error."""
    return term.value > 0.5 * term.stderr


def _about(law: Law) -> list[str]:
    """Say what the law shows of the axes that do not pay."""
    notes = list[str]()
    for name, symbol, start in zip(("width", "depth"), "ab", law.smallest, strict=False):
        term = law.terms[symbol]
        if not pays(term):
            says = "raises the loss" if term.high < 0 else "does not pay significantly"
            notes.append(
                f"More {name} {says}, {symbol} {term.in_words()}: the smallest fitted, {start:g}, "
                "was kept."
            )
        elif not term.low > 0:
            notes.append(
                f"The gain from {name} is not significant, {symbol} {term.in_words()}: take more "
                "seeds to be sure."
            )
    return notes


def _beyond(law: Law, *sizes: float) -> list[str]:
    """Say which of these sizes lie outside of what was fitted."""
    fitted = zip(law.variables, sizes, law.smallest, law.largest, strict=False)
    return [
        f"{name.capitalize()} {size:.6g} lies outside of what was fitted, {least:.6g}..{most:.6g}: "
        "train it to be sure."
        for name, size, least, most in fitted
        if not least <= size <= most
    ]
