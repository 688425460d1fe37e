"""What a ladder of runs says of one larger run: whether its forecast can be used, and what else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from nfd.core.answer import NOT_DECIDED, Answer, Next
from nfd.core.estimates import Interval
from nfd.core.tables import Row
from nfd.core.words import alike, number, plural, power_of_ten
from nfd.laws.ladder import WIDEST, BestSplit, Doubt, LadderLaw, exact, is_narrower, percent
from nfd.laws.ladder_outlook import REFUSED
from nfd.laws.ladder_posterior import UNTUNED
from nfd.laws.log_columns import ERROR_RATE, kind_of_loss
from nfd.laws.logged_runs import FLOPS
from nfd.laws.loss_law import Sizes, interval_of
from nfd.laws.loss_runs import sizes_in_words
from nfd.report.shown import Shown

if TYPE_CHECKING:
    from nfd.laws.ladder_design import LadderPlan
    from nfd.laws.rate_law import RateLaw
    from nfd.report.page import Section

USABLE = "Forecast usable"
CONTRADICTED = "Law contradicted"
# The multiplication sign.
TIMES = "\u00d7"
# How many times the operations of the largest run the rows of the table have.
_TIMES = (1.0, 3.0, 10.0, 30.0)
# Sizes that miss the law and are named.
_MISSES = 3


@dataclass(frozen=True, repr=False)
class LadderForecast(Shown):
    """What a ladder says of one larger run, or of a budget.

    Attributes:
        law: the law of the ladder.
        size: of the run, by variable.
        split: the best split of the budget, where one was asked for.
        rates, batch: the law of the learning rate, and the batch in tokens, for the runs of a plan.
        behind: its distinct tokens, and all its parameters, where they were said.

    ``table`` and ``to_pandas()`` have a row for 1, 3, 10 and 30 times the compute of the largest
    run, and for the budget: ``flops``, ``times``, then ``parameters``, ``tokens`` and ``loss``,
    each with ``_low`` and ``_high`` for its 95 % interval. Runs of one ratio of tokens to
    parameters give no intervals of these two; a law in one variable has only that variable, which
    ``times`` counts.
    """

    law: LadderLaw
    size: dict[str, float]
    split: BestSplit | None = field(default=None)
    rates: RateLaw | None = field(default=None, compare=False)
    batch: float | None = None
    behind: dict[str, float] = field(default_factory=dict)

    @property
    def place(self) -> Sizes:
        """The size in the order of the law's variables."""
        return tuple(self.size[name] for name in self.law.variables)

    @property
    def cost(self) -> float:
        """Operations of the run; for a law in one variable, that variable."""
        if len(self.law.variables) < 2:
            return self.place[0]
        return FLOPS * self.place[0] * self.place[1]

    @property
    def times(self) -> float:
        """How many times the largest run."""
        return self.cost / self.law.largest_cost

    @cached_property
    def loss(self) -> Interval:
        """The forecast with its 95 % interval."""
        return self.law.forecasts(np.array([self.place]), self.behind)[0]

    @cached_property
    def doubt(self) -> Doubt:
        """Why not to trust it, in a word."""
        return self.law.doubt(**self.size, **self.behind)

    @property
    def is_budget(self) -> bool:
        """Whether the size follows from operations, as the law spends them."""
        if len(self.law.variables) < 2 or self.behind:
            return False
        return np.allclose(self.place, self.law.size_for(self.cost), rtol=1e-6)

    @property
    def is_contradicted(self) -> bool:
        """Whether the largest run ended far above what the others forecast."""
        held = self.law.held_out
        return held is not None and held.contradicts == "above"

    @property
    def is_perplexity(self) -> bool:
        """Whether the losses seem to be perplexities."""
        return self.doubt == "perplexity"

    @property
    def limits(self) -> Row:
        """The best split with its intervals, as ``result.json`` holds it."""
        if self.split is None:
            return {}
        return {
            "parameters": self.split.parameters.limits,
            "tokens": self.split.tokens.limits,
            "predicted": self.split.predicted.limits,
        }

    # ---- the answer

    @property
    def answer(self) -> Answer:
        """State, decision, evidence and what to run next."""
        if self.is_contradicted:
            return self._contradicted()
        if self.split is not None and self.law.ratio is not None:
            return self._not_split()
        doubt = self.doubt
        if doubt == "line":
            return self._off_the_line()
        if doubt == "repeats" or (doubt == "wide" and self.repeats > 1):
            return self._repeated()
        if doubt == "wide":
            return self._wide()
        if doubt == "scatter":
            return self._scattered()
        if doubt == "uncalibrated":
            return self._uncalibrated()
        if doubt == "perplexity":
            return self._no_loss()
        return self._usable()

    def _answer(self, title: str, because: str, to_run: Next, **more: Any) -> Answer:
        """An answer with the table and the details that all have."""
        details = [*self.law.sentences[:1], self.law.about, *self.law.notes]
        if self.split is not None and self.split.note:
            details.insert(0, self.split.note)
        return Answer(
            tone=more.pop("tone", "open"),
            state=more.pop("state", NOT_DECIDED),
            title=title,
            because=f"{because} {self.law.left_out}".rstrip(),
            next=to_run,
            about=self.about,
            table=more.pop("table", self._texts()),
            details=details,
            **more,
        )

    def _usable(self) -> Answer:
        """The forecast can be used."""
        law = self.law
        loss, _, _ = alike(self.loss.value, self.loss.low, self.loss.high)
        title = f"{self.subject} reach {_score(law.score, loss)}"
        best = ""
        if self.split is not None:
            title += f": train {self.run}"
            of_size = self.split.parameters
            best = (
                f" Best size {number(of_size.value)} (95 %: {number(of_size.low)} to "
                f"{number(of_size.high)})"
            )
            best += "." if self.split.inside else ", outside of the sizes that were run."
        what = "The budget" if self.is_budget else "That"
        because = (
            f"Expect {self.loss.in_words()}.{best} {what} is {_times(self.times)} your largest "
            f"run; {self._of_runs}."
        )
        but = self._but()
        more: dict[str, Any] = {"tone": "good", "state": USABLE, "but": but}
        if but:
            # A terminal has room for one of the two; pages have both.
            more["table"] = ()
        return self._answer(title, because, self._after_usable(), **more)

    @property
    def _of_runs(self) -> str:
        """How many sizes lie outside of their own intervals."""
        law = self.law
        count = len(law.outside)
        if not count:
            # Of runs without noise, which only examples have, digits would run out.
            miss = max(abs(next(iter(law.misses.values()))), 1e-4)
            return (
                f"it misses none of your {sizes_in_words(law.losses)} by more than {percent(miss)}"
            )
        verb = "lies outside of its" if count == 1 else "lie outside of their"
        intervals = "interval" if count == 1 else "intervals"
        return f"{count} of your {sizes_in_words(law.losses)} {verb} 95 % {intervals}"

    @property
    def is_ready(self) -> bool:
        """Whether only the learning rate of the run is missing, where a forecast can be used."""
        is_scattered = self.law.residual > UNTUNED and self.law.shared is None
        return not (is_scattered or self.is_narrower_without)

    def _after_usable(self) -> Next:
        """What to do with a forecast that can be used."""
        if self.is_ready:
            return self._rate()
        return self._leave_out() if self.is_narrower_without else self._tune_again()

    def _but(self) -> str:
        """What speaks against a forecast that can be used."""
        held = self.law.held_out
        if held is not None and held.contradicts == "below":
            return (
                f"your largest run, {self.law.label(held.size)}, ended lower than the others say: "
                f"{number(held.measured.value, 3)}, where they forecast "
                f"{held.predicted.in_words()}."
            )
        if self.law.shared is not None:
            return f"{self.law.odd_ones}. {self._without_them}"
        if self.law.residual > UNTUNED:
            return (
                f"your runs scatter by {percent(self.law.residual)} about the law, well tuned ones "
                f"by less than {percent(UNTUNED)}. That makes the interval {percent(self.width)} "
                f"wide; of well tuned runs it would be {percent(self._tuned_width)}."
            )
        return ""

    @property
    def width(self) -> float:
        """The width of the interval over the forecast."""
        return (self.loss.high - self.loss.low) / self.loss.value

    @cached_property
    def _tuned_width(self) -> float:
        """The width that the interval would have if the runs were tuned alike."""
        return self.law.tuned_width(self.place, self.behind)

    @cached_property
    def _without(self) -> Interval:
        """The forecast of this size without the runs that share something and miss the law."""
        assert self.law.shared is not None
        others = self.law.without(self.law.shared.misses)
        return others.forecasts(np.array([self.place]), self.behind)[0]

    @property
    def _without_them(self) -> str:
        """What the forecast would be without the runs that miss the law."""
        loss = self._without
        width = (loss.high - loss.low) / loss.value
        return (
            f"Without them expect {loss.in_words()}, an interval {percent(width)} wide in place of "
            f"{percent(self.width)}."
        )

    @property
    def is_narrower_without(self) -> bool:
        """Whether runs share something and miss the law, and the interval is narrower without."""
        if self.law.shared is None:
            return False
        loss = self._without
        return is_narrower((loss.high - loss.low) / loss.value, self.width)

    def _leave_out(self) -> Next:
        """Leave out the runs that share something and miss the law, or tune them."""
        again = ", or tune their rate and batch again" if self.law.runs.rates_differ else ""
        rate = ', rate="best"' if self.law.has_rates else ""
        label = (
            f"Next: leave these out, unless the large run is to be like them{again}. Then, with "
            "the other rows"
        )
        return Next(label, f"nfd.fit_ladder(rows{rate})")

    def _contradicted(self) -> Answer:
        """The largest run ended far above what the others forecast."""
        held = self.law.held_out
        assert held is not None
        miss = held.measured.value / held.predicted.value - 1
        others = plural(len(self.law.losses) - 1, "other size", "other sizes")
        because = (
            f"From the {others} the law forecasts {held.predicted.in_words()} for "
            f"{self.law.label(held.size)}; trained, that size reached "
            f"{number(held.measured.value, 3)}."
        )
        again = self._train(
            "tune the rate and batch of this size again", [self.law.label(held.size)]
        )
        return self._answer(
            f"The law misses your largest run by {percent(miss)}: do not size by it",
            because,
            again,
            tone="bad",
            state=CONTRADICTED,
        )

    def _not_split(self) -> Answer:
        """All runs have one ratio of tokens to parameters, and the best split was asked for."""
        ratio = self.law.ratio
        assert ratio is not None
        because = (
            f"All your {sizes_in_words(self.law.losses)} have about {number(ratio)} tokens "
            f"per parameter. At that ratio, {self.run}, expect {self.loss.in_words()}. "
            f"Runs at {number(ratio / 4)} and {number(4 * ratio)} tokens per parameter would tell."
        )
        return self._answer(
            f"These runs do not tell how to split {power_of_ten(self.cost, 3)} FLOPs",
            because,
            self._other_ratios(ratio),
        )

    def _other_ratios(self, ratio: float) -> Next:
        """The runs at other ratios that would show the split, as dear as the middle run."""
        middle = float(np.median([FLOPS * N * D for N, D, *_ in self.law.losses]))
        lines = []
        for other in (ratio / 4, 4 * ratio):
            N = (middle / FLOPS / other) ** 0.5
            size = {"parameters": N, "tokens": other * N}
            lines.append(f"{_rounded(size)} ({number(other)} tokens per parameter)")
        return self._train("two other ratios, at the compute of your middle run", lines)

    def _off_the_line(self) -> Answer:
        """The runs lie on one line, and the size far off it."""
        helps = self.law.next_run(budget=self.law.largest_cost, target=self.size)
        because = (
            f"Your runs lie on one line of parameters and tokens, and {self.run} far off it: "
            "which of the two helps is not known."
        )
        add = self._train("a size off that line", [_rounded(helps.size)])
        return self._answer(self._open_title, because, add)

    @property
    def repeats(self) -> float:
        """How often it goes through its distinct tokens."""
        return self.law.repeats(self.place, self.behind)

    def _repeated(self) -> Answer:
        """Its tokens repeat more often than runs show what repeats are worth."""
        because = (
            f"Expect {self.loss.in_words()}, an interval {percent(self.width)} wide; "
            f"{percent(REFUSED)} is the limit. Its tokens repeat {number(self.repeats)} times, "
            f"yours {number(self.law.most_repeats)} times at most."
        )
        smaller = {name: value / 8 for name, value in self.size.items()}
        smaller |= {name: value / 8 for name, value in self.behind.items()}
        run = self._train("a smaller run that repeats as often", [_rounded(smaller)])
        return self._answer(self._open_title, because, run)

    def _wide(self) -> Answer:
        """The interval of the forecast is too wide."""
        because = (
            f"Expect {self.loss.in_words()}, an interval {percent(self.width)} wide; "
            f"{percent(REFUSED)} is the limit."
        )
        if self.law.shared is not None:
            because += f" {_capital(self.law.odd_ones)}. {self._without_them}"
        if self.is_narrower_without:
            return self._answer(self._open_title, because, self._leave_out(), table=())
        if self.law.residual > UNTUNED and self.law.shared is None:
            because += (
                f" {self._scatter}: tuned like these, your runs would still leave it "
                f"{percent(self._tuned_width)} wide. A larger run, tuned, narrows it more."
            )
            return self._answer(self._open_title, because, self._tune_again(), table=())
        return self._planned(because)

    def _uncalibrated(self) -> Answer:
        """There are too few runs for intervals, or the target lies too far beyond them."""
        because = (
            f"Expect {self.loss.in_words()}, an interval {percent(self.width)} wide. "
            f"{self.law.beyond_calibration(self.place)}"
        )
        return self._planned(because)

    def _planned(self, because: str) -> Answer:
        """The plan of the runs that should decide."""
        plan = self.plan
        assert plan is not None
        dearest = max(run.cost for run in plan.runs) / self.law.largest_cost
        count = plural(len(plan.runs), "training", "trainings")
        each = "" if len(plan.runs) == 1 else "at most "
        because += f" {count}, {each}{_times(dearest)} your dearest so far, "
        because += "should decide." if plan.decides else "narrow it most, and do not decide."
        first = self._train("the first of these", [_rounded(plan.runs[0].size)])
        return replace(self._answer(self._open_title, because, first), table=plan.texts)

    @cached_property
    def plan(self) -> LadderPlan | None:
        """The runs that should decide.

        None where the interval is narrow enough, and where other runs are to be tuned first.
        """
        if self.behind or self.doubt not in ("wide", "uncalibrated"):
            return None
        if self.doubt == "wide" and not self.is_ready:
            return None
        return self.law.next_runs(target=self.size, rates=self.rates, batch=self.batch)

    def _scattered(self) -> Answer:
        """Only the scatter of the runs makes the interval too wide."""
        because = (
            f"Expect {self.loss.in_words()}, an interval {percent(self.width)} wide; "
            f"{percent(WIDEST)} is the limit where runs scatter. "
        )
        if self.is_narrower_without:
            because += f"{_capital(self.law.odd_ones)}. {self._without_them}"
            return self._answer(self._open_title, because, self._leave_out(), table=())
        because += (
            f"{self._scatter}: tuned as well, they would make it {percent(self._tuned_width)} wide."
        )
        return self._answer(self._open_title, because, self._tune_again(), table=())

    @property
    def _scatter(self) -> str:
        """How far the runs scatter, without a full stop."""
        return (
            f"Well tuned runs scatter by less than {percent(UNTUNED)} about a law, yours by "
            f"{percent(self.law.residual)}"
        )

    def _tune_again(self) -> Next:
        """The sizes that miss the law most."""
        lines = []
        for size, above in list(self.law.misses.items())[:_MISSES]:
            lines.append(f"{self.law.label(size)}: {signed(above)}")
        return self._train("tune rate and batch again at the sizes that miss the law most", lines)

    def _train(self, what: str, runs: Sequence[str]) -> Next:
        """Trainings to run, and the call that then takes their rows."""
        rate = ', rate="best"' if self.law.has_rates else ""
        label = f"Run next: {what}: {'; '.join(runs)}. Add the runs, then"
        return Next(label, f"nfd.fit_ladder(rows{rate})")

    def _no_loss(self) -> Answer:
        """The losses seem to be perplexities."""
        least = min(min(of_seeds) for of_seeds in self.law.losses.values())
        because = (
            f"The {self.law.score} is {number(least, 3)} at least, and a loss in nats or bits "
            "stays below 15."
        )
        code = f'rows = [row | {{"loss": math.log(row["{self.law.score}"])}} for row in rows]'
        return self._answer(
            "These numbers look like perplexities, not losses",
            because,
            Next("Do this first: take the logarithm", code),
        )

    def _rate(self) -> Next:
        """How to find the learning rate of the run."""
        if not self.law.has_rates:
            code = "nfd.transfer(make_model, batches, widths=[32, 64, 128], depths=[2, 4, 8])"
            return Next("Next: its learning rate, tuned on your small networks", code)
        size = ", ".join(f"{name}={value:.3g}" for name, value in self.size.items())
        code = f"nfd.fit_rate_law(rows).at({size})"
        return Next("Next: the learning rate for this run", code)

    # ---- words

    @property
    def about(self) -> str:
        """How many sizes there are, and from where to where."""
        sizes = np.array([*self.law.losses])
        count = sizes_in_words(self.law.losses)
        parts = [f"{count}, the best rate of each" if self.law.has_rates else count]
        spans = zip(self.law.columns, sizes.min(0).tolist(), sizes.max(0).tolist(), strict=True)
        for name, low, high in spans:
            parts.append(f"{exact(low)} to {exact(high)} {_spoken(name)}")
        return " · ".join(parts)

    @property
    def run(self) -> str:
        """The run with rounded numbers: ``2.1B parameters on 78B tokens``."""
        run = " on ".join(f"{number(value)} {name}" for name, value in self.size.items())
        for name, value in self.behind.items():
            run += f", {number(value)} {_spoken(name)}"
        return run

    @property
    def subject(self) -> str:
        """What the forecast is of."""
        if not self.is_budget:
            return self.run
        flops = f"{power_of_ten(self.cost, 3)} FLOPs"
        if self.law.ratio is None:
            return flops
        return f"{flops} at {number(self.law.ratio)} tokens per parameter"

    @property
    def _open_title(self) -> str:
        return f"These runs do not tell what {self.subject} reach"

    # ---- the table

    @cached_property
    def table(self) -> list[Row]:
        """One dict for each of several budgets."""
        costs = [times * self.law.largest_cost for times in _TIMES]
        if self.is_budget or len(self.law.variables) < 2:
            # A budget takes the place of one that rounds to it.
            costs = [cost for cost in costs if not math.isclose(cost, self.cost, rel_tol=0.02)]
            costs.append(self.cost)
        return [self._row(cost) for cost in sorted(costs)]

    def _row(self, cost: float) -> Row:
        """What a budget buys."""
        law = self.law
        size = law.size_for(cost)
        if len(size) < 2:
            row: Row = {law.variables[0]: cost, "times": cost / law.largest_cost}
        else:
            row = {"flops": cost, "times": cost / law.largest_cost}
            N, D = size
            if law.ratio is not None:
                row |= {"parameters": N, "tokens": D}
            else:
                draws = law.best_parameters(cost)
                row |= columns("parameters", interval_of(N, draws))
                row |= columns("tokens", interval_of(D, cost / FLOPS / draws))
        return row | columns("loss", law.forecasts(np.array([size]))[0])

    def _texts(self) -> list[dict[str, str]]:
        """The table in words, for a terminal."""
        texts = []
        for row in self._shortest():
            value, low, high = alike(row["loss"], row["loss_low"], row["loss_high"])
            name = f"{budget_name(row)}, {TIMES} largest run"
            text = {name: f"{budget(row)} {TIMES} {number(row['times'])}"}
            for name in ("parameters", "tokens"):
                if name in row and "flops" in row:
                    text[name] = number(row[name])
            texts.append(text | {"loss": value, "95 %": f"{low} to {high}"})
        return texts

    def _shortest(self) -> list[Row]:
        """The table with as many rows as a terminal has room for: without one near the budget."""
        rows = list(self.table)
        if len(rows) > len(_TIMES):
            others = [row for row in rows if not math.isclose(row["times"], self.times)]
            rows.remove(min(others, key=lambda row: abs(math.log(row["times"] / self.times))))
        return rows

    def first_sections(self) -> list[Section]:
        """The losses with the law and its forecast, and what more compute buys."""
        from nfd.laws.ladder_page import first_sections

        return first_sections(self)


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def signed(share: float) -> str:
    """Write a share with its sign: ``+7.5 %``."""
    text = percent(share)
    return text if share < 0 else f"+{text}"


def _rounded(size: Mapping[str, float]) -> str:
    return ", ".join(f"{number(value)} {_spoken(name)}" for name, value in size.items())


def _spoken(name: str) -> str:
    """The name of a number of a size in words: ``unique tokens``."""
    return name.replace("_", " ")


def _score(name: str, loss: str) -> str:
    """Say what a number of a column of losses is: ``a loss of 2.1`` or ``0.92 bits per byte``."""
    kind = kind_of_loss(name)
    if kind == "loss":
        return f"a loss of {loss}"
    return f"an error rate of {loss}" if kind == ERROR_RATE else f"{loss} {kind}"


def _times(times: float) -> str:
    return "as dear as" if round(times, 2) == 1 else f"{number(times)} times"


def columns(name: str, interval: Interval) -> Row:
    """The columns of a number and the ends of its interval."""
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def budget_name(row: Row) -> str:
    """The name of a budget's column: ``FLOPs``, or the variable of a law in one."""
    return "FLOPs" if "flops" in row else next(iter(row))


def budget(row: Row) -> str:
    """Write the budget of a row."""
    return power_of_ten(row["flops"], 3) if "flops" in row else number(row[budget_name(row)])
