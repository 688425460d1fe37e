"""What a loss law over width and depth says: whether growing pays, in which direction, how far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nfd.core.answer import NOT_DECIDED, Answer, Next
from nfd.core.errors import InputError
from nfd.core.estimates import Interval, mean
from nfd.core.tables import Row
from nfd.core.words import alike, in_letters, listed, number, plural
from nfd.laws.best_size import BestSize
from nfd.laws.ladder import percent
from nfd.laws.ladder_answer import CONTRADICTED, USABLE, columns
from nfd.laws.loss_law import FEWEST, FEWEST_FREE, HeldOut, Sizes
from nfd.laws.scaling_law import ScalingLaw
from nfd.report.shown import Shown

if TYPE_CHECKING:
    from nfd.report.page import Section

# A network is not to grow where a larger one gains at most this share of its loss; where it may
# gain more, or nothing, that is not decided. A convention.
_SMALL = 0.05
_ONE_ORDER = (
    "all runs saw the data in one order. Of other orders the intervals say too little: simulated "
    "ones held 74 of 100."
)
_ANY_ORDER = (
    "The log does not say whether all runs saw the data in one order. If so, its noise is in no "
    "interval: train seeds on orders of their own."
)
# By resource, the budget as it was given, and its best size or why there is none.
Budgets = Mapping[str, tuple[str | float, BestSize | InputError]]


@dataclass(frozen=True, repr=False)
class Growth(Shown):
    """What a loss law says of a network, of twice its width or depth, and of budgets.

    Attributes:
        law: the fitted law.
        size: of the network, by variable.
        budgets: by resource, the budget as it was given, and its best size or why there is none.
        is_asked: whether the network was asked for, and is not just the largest.
        asked_budgets: the resources whose best size was asked for.

    ``table`` and ``to_pandas()`` have a row for the network, for twice each of its sizes, for the
    infinitely large one and for best sizes: ``network`` in words, the variables of the law,
    ``loss`` and ``gain``, by which the loss is lower than the network's, each with ``_low`` and
    ``_high`` for its 95 % interval.
    """

    law: ScalingLaw
    size: dict[str, float]
    budgets: Budgets = field(default_factory=dict)
    is_asked: bool = False
    asked_budgets: tuple[str, ...] = ()

    @property
    def place(self) -> Sizes:
        """The size in the order of the law's variables."""
        return tuple(self.size[name] for name in self.law.law.variables)

    @property
    def best(self) -> BestSize | None:
        """The best size for the first budget that was asked for."""
        for resource in self.asked_budgets[:1]:
            _, size = self.budgets[resource]
            return None if isinstance(size, InputError) else size
        return None

    @cached_property
    def doubled(self) -> dict[str, Interval]:
        """By how much the loss falls with twice the network's size, by variable."""
        gains = {}
        for name in self.law.law.variables:
            larger = tuple((self.size | {name: 2 * self.size[name]}).values())
            gains[name] = self.law.law.bought(*self.place, *larger)
        return gains

    @property
    def forecast(self) -> tuple[str, dict[str, float], Interval]:
        """The network that a chart marks: what it is, its size, and its loss.

        It is the best size or the one that was asked for, else the doubling that gains most.
        """
        law = self.law.law
        if self.best is not None:
            size = self.size | {"width": self.best.width, "depth": self.best.depth}
            return "best size", size, self.best.predicted
        if self.is_asked or not law.good:
            return self.named(self.size), self.size, law.loss(*self.place)
        name = max(self.doubled, key=lambda name: self.doubled[name].value)
        larger = self.size | {name: 2 * self.size[name]}
        return f"twice the {name}", larger, law.loss(*larger.values())

    # ---- the answer

    @property
    def answer(self) -> Answer:
        """State, decision, evidence and what to run next."""
        held = self.law.held_out
        if held is not None and held.contradicts == "above":
            return self._contradicted(held)
        if not self.law.law.good:
            return self._not_known()
        for resource in self.asked_budgets[:1]:
            budget, size = self.budgets[resource]
            if isinstance(size, InputError):
                return self._not_spent(resource, budget, str(size))
            if len(size.doubts) > 1:
                # Neither width nor depth is known to pay.
                return self._not_spent(resource, budget, " ".join(size.doubts))
            return self._spent(resource, budget, size)
        if self.is_asked:
            return self._reached()
        return self._grown()

    def _answer(self, title: str, because: str, **more: Any) -> Answer:
        """An answer with the table and the details that all have."""
        law = self.law
        details = [f"The law: {law.law.in_words()}; {law.law.test}.", law.law.note]
        if law.held_out is not None:
            details.append(self._held_out(law.held_out))
        if law.one_order is None:
            details.append(_ANY_ORDER)
        return Answer(
            title=title,
            because=f"{because} {law.left_out}".rstrip(),
            about=self.about,
            table=self._texts(),
            details=[text for text in (*details, law.about, *law.notes) if text],
            **more,
        )

    def _usable(self, title: str, because: str, **more: Any) -> Answer:
        if self.law.one_order and not more.get("but"):
            more["but"] = _ONE_ORDER
        return self._answer(title, because, tone="good", state=USABLE, **more)

    def _grown(self) -> Answer:
        """Whether a larger network than the largest pays."""
        law = self.law.law
        excess = law.excess(*self.place)
        gains = [_doubling(name, gain) for name, gain in self.doubled.items()]
        because = f"{_above_the_floor(self.named(self.size), excess)} Doubling {listed(gains)}."
        name = max(self.doubled, key=lambda name: self.doubled[name].value)
        gain = self.doubled[name]
        if gain.low > 0:
            value, _, _ = alike(gain.value, gain.low, gain.high)
            title = f"Grow in {name}: doubling it lowers the loss by {value}"
        elif excess.low > 0:
            title = f"Grow: the floor lies {number(excess.value)} below your largest network"
        elif excess.high > _SMALL * law.loss(*self.place).value:
            return self._growth_unknown(because, excess)
        elif excess.high > 0:
            title = f"Do not grow: a larger network gains {number(excess.high)} at most"
        else:
            title = "Do not grow: your largest network has reached the floor"
        return self._usable(
            title, because, next=self._next_budget() if self.grows else self._longer()
        )

    def _growth_unknown(self, because: str, excess: Interval) -> Answer:
        """A larger network may gain much or nothing."""
        return self._answer(
            "These runs do not tell whether growing pays",
            f"{because} That is anything from nothing to {number(excess.high)}.",
            tone="open",
            state=NOT_DECIDED,
            next=Next(
                f"Run next: each size from {2 * self.law.law.seeds} seeds", self._sizes_in_code()
            ),
        )

    def _sizes_in_code(self) -> str:
        """The sizes of the law, as they are given to the function that trains them."""
        axes = zip(self.law.law.variables, zip(*self.law.losses, strict=True), strict=True)
        sizes = []
        for name, values in axes:
            listed_values = ", ".join(f"{value:.10g}" for value in sorted({*values}))
            sizes.append(f"{name}s=[{listed_values}]")
        return f"{', '.join(sizes)}, seeds={2 * self.law.law.seeds}"

    @property
    def grows(self) -> bool:
        """Whether a larger network has a lower loss, beyond chance."""
        gains = [gain.low for gain in self.doubled.values()]
        return max(*gains, self.law.law.excess(*self.place).low) > 0

    def _longer(self) -> Next:
        """Train longer, where a larger network gains nothing."""
        return Next("Next: train longer before you build larger", self.named(self.size))

    def _next_budget(self) -> Next:
        """The best size for another budget, where costs are known."""
        if not self.budget:
            return Next("Next: the loss of the size that you can train", self._code_at())
        resource, amount = next(iter(self.budget.items()))
        return Next(
            f"Next: the best size for twice the {resource}", f"law.best({resource}={amount:.3g})"
        )

    def _code_at(self) -> str:
        sizes = ", ".join(f"{name}={2 * value:.10g}" for name, value in self.size.items())
        return f"law.at({sizes})"

    @property
    def budget(self) -> dict[str, float]:
        """Twice what the network costs, by resource; empty where costs are not known."""
        if self.law.law.variables[:2] != ("width", "depth"):
            return {}
        width, depth = map(round, self.place[:2])
        return {name: 2 * cost.at(width, depth) for name, cost in self.law.costs.items()}

    def _spent(self, resource: str, budget: str | float, best: BestSize) -> Answer:
        """The best size for a budget."""
        largest = self.law.costs[resource].at(*map(int, self.law.law.largest[:2]))
        because = (
            f"Expect {best.predicted.in_words()}. That is {number(best.cost / largest)} times your "
            f"largest network in {resource}."
        )
        code = f"nfd.plan(make_model({best.width}, {best.depth}), make_model=make_model)"
        but = best.doubts[0] if best.doubts else ""
        return self._usable(
            f"{in_budget(budget)} {resource} are best spent on width {best.width:,} and depth "
            f"{best.depth:,}",
            because,
            but=but[:1].lower() + but[1:],
            next=Next("Next: the plan of this network", code),
        )

    def _not_spent(self, resource: str, budget: str | float, reason: str) -> Answer:
        """The losses do not show the best size for a budget."""
        return self._answer(
            f"These runs do not tell how to spend {in_budget(budget)} {resource}",
            reason[:1].upper() + reason[1:],
            tone="open",
            state=NOT_DECIDED,
            next=self._more_sizes(),
        )

    def _reached(self) -> Answer:
        """The loss of the network that was asked for."""
        law = self.law.law
        loss = law.loss(*self.place)
        value, _, _ = alike(loss.value, loss.low, loss.high)
        excess = law.excess(*self.place)
        because = (
            f"Expect {loss.in_words()}, which is {excess.in_words()} above the floor, the loss of "
            "an infinitely large network."
        )
        named = self.named(self.size)
        return self._usable(
            f"{named[:1].upper()}{named[1:]} reach a loss of {value}",
            because,
            next=self._next_budget(),
        )

    def _not_known(self) -> Answer:
        """The law may not be used beyond the sizes that were run."""
        return self._answer(
            "These runs do not tell what larger networks reach",
            self.law.law.note,
            tone="open",
            state=NOT_DECIDED,
            next=self._more_sizes(),
        )

    def _contradicted(self, held: HeldOut) -> Answer:
        """The largest network ended far above what the others forecast."""
        miss = held.measured.value / held.predicted.value - 1
        return self._answer(
            f"The law misses your largest network by {percent(miss)}: do not size by it",
            self._held_out(held),
            tone="bad",
            state=CONTRADICTED,
            next=Next("Run next: tune the learning rate of this size", self.law.named(held.size)),
        )

    def _held_out(self, held: HeldOut) -> str:
        """What the other sizes forecast of the largest, and what it reached."""
        networks = plural(held.networks, "run")
        return (
            f"From the other sizes the law forecasts {held.predicted.in_words()} for {networks} of "
            f"{self.law.named(held.size)}; trained, they reached {number(held.measured.value, 3)}."
        )

    # ---- what to run

    @cached_property
    def larger(self) -> dict[str, list[int]]:
        """The widths and depths to run, with a larger one, by what the law lacks."""
        law = self.law.law
        axes = dict(zip(law.variables, zip(*self.law.losses, strict=True), strict=True))
        lacking = []
        for name, sizes in axes.items():
            least = FEWEST_FREE if name == "tokens" else FEWEST
            if len({*sizes}) < least:
                lacking.append(name)
        larger = {}
        for name in lacking or law.variables[:1]:
            ascending = sorted({*axes[name]})
            larger[name] = [round(size) for size in (*ascending, 2 * ascending[-1])]
        return larger

    def _more_sizes(self) -> Next:
        lines = [f"{name} {size_text(sizes[-1])}" for name, sizes in self.larger.items()]
        return Next("Run next: larger sizes, beside each of the others", "\n".join(lines))

    # ---- words

    @property
    def about(self) -> str:
        """How many sizes and runs there are, and from where to where."""
        law = self.law
        runs = sum(len(of_seeds) for of_seeds in law.losses.values())
        parts = [f"{plural(len(law.losses), 'size')}, {plural(runs, 'run')}"]
        for name, sizes in zip(law.law.variables, zip(*law.losses, strict=True), strict=True):
            parts.append(f"{name} {size_text(min(sizes))} to {size_text(max(sizes))}")
        return " · ".join(parts)

    def named(self, size: Mapping[str, float]) -> str:
        """Write a size: ``width 128 and depth 8``."""
        return listed(f"{name} {size_text(value)}" for name, value in size.items())

    # ---- the table

    @cached_property
    def table(self) -> list[Row]:
        """One dict for each network that is compared with this one."""
        law = self.law.law
        if not law.good:
            return self._measured()
        rows = [self._row(self.named(self.size), self.size)]
        for name in self.doubled:
            rows.append(self._row(f"twice the {name}", self.size | {name: 2 * self.size[name]}))
        rows.append(self._row("infinitely large", dict.fromkeys(self.size, math.inf)))
        for budget, best in self.budgets.values():
            if not isinstance(best, InputError):
                size = self.size | {"width": best.width, "depth": best.depth}
                name = f"best for {in_budget(budget)}: width {best.width:,}, depth {best.depth:,}"
                rows.append(self._row(name, size))
        return rows

    def _row(self, network: str, size: Mapping[str, float]) -> Row:
        """A network with its loss, and by how much it is lower."""
        law = self.law.law
        place = tuple(size.values())
        row = {"network": network} | dict(size) | columns("loss", law.loss(*place))
        if place == self.place:
            return row
        return row | columns("gain", law.bought(*self.place, *place))

    def _measured(self) -> list[Row]:
        """The sizes that were run, the largest first."""
        rows = []
        for size, of_seeds in sorted(self.law.losses.items(), reverse=True):
            named = dict(zip(self.law.law.variables, size, strict=True))
            row = {"network": self.named(named)} | named | columns("loss", mean(of_seeds))
            rows.append(row)
        return rows

    def _texts(self) -> list[dict[str, str]]:
        """The table in words, for a terminal."""
        texts = []
        for row in self.table:
            loss, _, _ = alike(row["loss"], row["loss_low"], row["loss_high"])
            text = {"network": row["network"], "loss": loss}
            if "gain" in row:
                gain, low, high = alike(row["gain"], row["gain_low"], row["gain_high"])
                text["lower by (95 %)"] = f"{gain} ({low} to {high})"
            texts.append(text)
        return texts

    def first_sections(self) -> list[Section]:
        """The losses with the law and its forecast, and what growing buys."""
        from nfd.laws.scaling_law_page import first_sections

        return first_sections(self)


def growth(
    law: ScalingLaw, size: Mapping[str, float], budgets: Mapping[str, str | float]
) -> Growth:
    """Ask a law about a network, by default the largest of the fit, and about budgets.

    Without budgets the best size is that for the network's own cost.
    """
    network = dict(zip(law.law.variables, law.law.largest, strict=True))
    for name in size:
        if name not in network:
            raise InputError(f"the law is in {' and '.join(network)}; got {name}. Drop it.")
    network |= size
    asked: dict[str, str | float] = dict(budgets)
    costs = Growth(law, network).budget
    if not asked and "parameters" in costs:
        asked["parameters"] = costs["parameters"] / 2
    best = dict[str, tuple[str | float, BestSize | InputError]]()
    for resource, budget in asked.items():
        try:
            given: dict[str, Any] = {resource: budget}
            best[resource] = (budget, law.best(**given))
        except InputError as error:
            best[resource] = (budget, error)
    return Growth(law, network, best, bool(size), tuple(budgets))


def in_budget(budget: str | float) -> str:
    """Write a budget as it was given, or as a number."""
    return budget if isinstance(budget, str) else number(budget, 3)


def size_text(value: float) -> str:
    """Write a size: ``512`` or ``6.4M``."""
    return f"{value:,.10g}" if value < 999_500 else in_letters(value)


def _above_the_floor(network: str, excess: Interval) -> str:
    """A sentence on how far a network is from an infinitely large one."""
    floor = "its floor, that of an infinitely large network"
    if excess.low > 0:
        return f"At {network} the loss is {excess.in_words()} above {floor}."
    return f"At {network} the loss cannot be told from {floor}: it is {excess.in_words()} above."


def _doubling(name: str, gain: Interval) -> str:
    """What doubling a size does to the loss, in words."""
    if gain.low > 0:
        return f"the {name} lowers it by {gain.in_words()}"
    if gain.high < 0:
        raised = Interval(-gain.value, gain.stderr, -gain.high, -gain.low)
        return f"the {name} raises it by {raised.in_words()}"
    return f"the {name} is not known to help: by {gain.in_words()}"
