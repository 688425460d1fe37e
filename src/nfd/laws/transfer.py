"""What the best learning rate does as networks grow, and what tuning a small one costs.

This is the answer of ``nfd.transfer``, and of ``nfd.fit_transfer``, which reads logs.
"""

from __future__ import annotations

import math
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from nfd.core.answer import Answer
from nfd.core.checks import check_choice, check_real
from nfd.core.errors import InputError
from nfd.core.estimates import UNKNOWN, Interval
from nfd.core.names import AXES, Axis
from nfd.core.notices import OldName
from nfd.core.tables import Row
from nfd.core.words import listed, plural
from nfd.laws.best_rate import LEAST_LOSS, Scores, Size, in_words
from nfd.laws.bowl import progress_from
from nfd.laws.gains import Gain, gains
from nfd.laws.log_columns import Field
from nfd.laws.logged_runs import LoggedRun
from nfd.laws.logs import RATE_FIELDS, Log, needs_rate_law, read_log
from nfd.laws.nested_rows import kept_rows
from nfd.laws.regret import Regret
from nfd.laws.rule_transfer import (
    RuleTransfer,
    SearchSpent,
    TransferVerdict,
    size_in_words,
    sizes_of,
)
from nfd.laws.transfer_answer import (
    AS_BY_DEFAULT,
    Decided,
    Question,
    TrainedBy,
    cost_rows,
    growth_note,
)
from nfd.report.shown import Shown

if TYPE_CHECKING:
    from nfd.laws.rate_against import RateAgainst
    from nfd.laws.rate_law import RateLaw
    from nfd.report.page import Section


def _without_law(transfer: Transfer) -> NoReturn:
    """Refuse what only a law over parameters, tokens and batch has."""
    raise InputError(
        f"nfd.fit_rate_law fits the law over parameters, tokens and batch. {transfer.about}"
    )


# ---- The answer of a sweep or of a log, for all rules.


@dataclass(frozen=True, repr=False)
class Transfer(Shown):
    """Best learning rates, their drift with size, and the regret of tuning on a small network.

    Print it, or let a notebook show it, for the rate to train with, or what to run to find it.
    ``plot()`` draws losses over the learning rate, ``to_pandas()`` has the rows of ``table`` with
    the columns ``rule``, ``width``, ``depth``, ``quantity``, ``value``, ``low`` and ``high``.

    Attributes:
        rules: the answer for each rule.
        about: a description of the runs.
        score: the loss that best rates minimise.
        notes: which runs were left out, and what a small regret does not show.
        seconds: of one training on average; not-a-number for a log.
        spent: what a search took; None for a grid or a log.
        is_log: whether the runs are from a log.
        has_guess: whether the loss of a diverged run was given.
        trained_by: the optimizer of the runs, as code of the plan that is advised.
        left_out: sentences on the rows of a log that do not count, which the notes have too.
    """

    rules: tuple[RuleTransfer, ...]
    about: str
    score: str
    notes: tuple[str, ...] = ()
    seconds: float = math.nan
    is_log: bool = False
    has_guess: bool = True
    spent: SearchSpent | None = None
    trained_by: TrainedBy = AS_BY_DEFAULT
    left_out: str = ""

    # Names of 0.3.
    law = OldName("nfd.fit_rate_law returns laws", lambda transfer: None)
    lead = OldName("write answer", attrgetter("answer"))
    sentences = OldName("write answer.details", attrgetter("answer.details"))
    at = OldName("nfd.fit_rate_law(rows).at", _without_law)
    exponents = OldName("nfd.fit_rate_law(rows).exponents", _without_law)
    critical_batch = OldName("nfd.fit_rate_law(rows).critical_batch", _without_law)

    def __iter__(self) -> Iterator[RuleTransfer]:
        return iter(self.rules)

    def of(self, rule: str) -> RuleTransfer:
        """The answer for one rule."""
        named = {answer.rule: answer for answer in self.rules}
        return named[check_choice("rule", rule, named)]

    def best(self, rule: str, width: int, depth: int, **setting: float) -> Interval:
        """The best rate at a size; not-a-number where it lies at an end of the grid.

        Args:
            setting: a value of one further axis, such as ``batch_size=32``.

        Raises:
            ValueError: for a rule, a size or a value of which there are no runs.
        """
        answer = self._trained(rule, width, depth)
        if not setting:
            return answer.rate((width, depth))
        name, value = next(iter(setting.items()))
        against = answer.against
        place = ((width, depth), value)
        if len(setting) > 1 or name not in against or place not in against[name].cells:
            runs = list[str]()
            for trained, along in against.items():
                values = ", ".join(f"{value:g}" for value in along.values)
                sizes = "; ".join(map(in_words, along.sizes))
                runs.append(f"{trained} {values} at {sizes}")
            raise InputError(
                f"there are runs of {'; '.join(runs) or 'no further setting: use axes='}; got "
                f"{setting}."
            )
        return against[name].cells[place].rate()

    def loss(self, rule: str, width: int, depth: int) -> Interval:
        """The loss at the best rate of a size.

        For the largest size it is the loss of starts that compared both best rates; for other
        sizes it is from the grid, each seed at the rate that the other seeds choose.

        Raises:
            ValueError: for a rule or a size of which there are no runs.
        """
        return self._trained(rule, width, depth).loss((width, depth))

    def drift(self, rule: str, axis: str) -> Interval:
        """Doublings of the best rate per doubling of an axis: 0 if the rate transfers.

        Args:
            rule: one of the rules that were trained; ``"logged"`` for logs without a rule.
            axis: ``"width"``, ``"depth"`` or a further axis, such as ``"batch_size"``. If it did
                not vary, the result is not-a-number.

        Returns:
            The drift, with a 95 % interval.
        """
        answer = self.of(rule)
        if check_choice("axis", axis, [*AXES, *answer.against]) in answer.against:
            return answer.against[axis].exponent
        return answer.drifts.get(cast(Axis, axis), UNKNOWN)

    def regret(self, rule: str) -> Interval:
        """The loss, in nats, that the largest network loses at the smallest one's best rate.

        Not-a-number where it is not known.
        """
        regret = self.of(rule).regret
        return UNKNOWN if regret is None else regret.loss

    def verdict(self, rule: str, setting: str = "") -> TransferVerdict:
        """Whether the smallest network's best rate serves the largest one.

        One of TRANSFERS, COSTS and UNCERTAIN. With a ``setting`` that was searched, such as
        ``"weight_decay"``, whether the smallest network's best value of it does.
        """
        answer = self.of(rule)
        if not setting:
            return answer.verdict
        return answer.against[check_choice("setting", setting, answer.against)].verdict

    @property
    def table(self) -> list[Row]:
        """One dict per rule and quantity (best rates, drifts, regret), further axes last."""
        rows = list[Row]()
        for answer in self.rules:
            rows += answer.table
        for against in self._against():
            rows += against.table
        return rows

    @property
    def levels(self) -> list[dict[str, str]]:
        """The best rates and losses of all rules at all sizes, in words."""
        sizes = sizes_of(self.rules)
        rows = list[dict[str, str]]()
        for size in sizes:
            for answer in self.rules:
                if size not in answer.cells:
                    continue
                row = {"network": size_in_words(size, sizes)}
                if len(self.rules) > 1:
                    row["rule"] = answer.rule
                row["best learning rate (95 %)"] = _in_brackets(answer.rate(size))
                row["loss (95 %)"] = _in_brackets(answer.loss(size))
                rows.append(row)
        return rows

    @property
    def gains(self) -> list[Gain]:
        """What more seeds and another size would buy under every rule, to be expected."""
        rows = list[Gain]()
        for answer in self.rules:
            rows += gains(answer)
        return rows

    @property
    def answer(self) -> Answer:
        """State, decision, evidence and what to run next."""
        decided = self.decided.answer
        details = [str(answer) for answer in self.rules if len(answer.cells) > 1]
        details += [against.sentence for against in self._against()]
        details += [*self.notes, self.about]
        details += [gain.sentence for gain in self.gains]
        table = cost_rows(self.rules) or self.levels
        because = f"{decided.because} {self.left_out}".rstrip()
        return replace(decided, because=because, about=self._runs, table=table, details=details)

    @cached_property
    def decided(self) -> Decided:
        """The decision, and what to run next."""
        question = Question(
            self.rules, self.is_log, self.has_guess, self.seconds, self.spent, self.trained_by
        )
        return question.decided()

    @property
    def _runs(self) -> str:
        """Sizes, rates and seeds, for the line above the answer."""
        parts = list[str]()
        sizes = sizes_of(self.rules)
        for place, axis in enumerate(AXES):
            values = sorted({size[place] for size in sizes})
            if values != [1]:
                noun = axis if len(values) == 1 else f"{axis}s"
                parts.append(f"{noun} {', '.join(map(str, values))}")
        if self.spent is not None:
            return " · ".join([*parts, plural(self.spent.trainings, "training")])
        cell = self.rules[0].cells[sizes[0]]
        rates, seeds = cell.losses.shape[::-1]
        parts += [plural(rates, "learning rate"), plural(seeds, "seed")]
        return " · ".join(parts)

    def first_sections(self) -> list[Section]:
        """Losses over the learning rate, a chart for every rule."""
        from nfd.laws.transfer_page import first_sections

        return first_sections(self)

    def _against(self) -> Iterator[RateAgainst]:
        """The best rate of every rule against every further setting."""
        for answer in self.rules:
            yield from answer.against.values()

    def _trained(self, rule: str, width: int, depth: int) -> RuleTransfer:
        """The answer for a rule; ValueError where there are no runs of this size."""
        answer = self.of(rule)
        if (width, depth) not in answer.cells:
            sizes = "; ".join(map(in_words, answer.cells))
            raise InputError(
                f"there are no runs of {in_words((width, depth))}. There are some of {sizes}."
            )
        return answer


def _in_brackets(number: Interval) -> str:
    """``0.003 (0.002 to 0.004)``, in a column whose name says what the brackets are."""
    return number.in_words().replace("95 %: ", "")


# ---- Transfer from a log: best rates of the user's runs, of any framework, and their drift.


# Doublings within which a rate that was trained counts as the best one.
_SAME_RATE = 0.25


def fit_transfer(
    rows: Any,
    *,
    columns: Mapping[str, str | None] | None = None,
    guess: float | None = None,
    prior: str | os.PathLike[str] | None = "sweeps",
) -> Transfer:
    """Find the best learning rate of every size, and its drift, in your logged runs.

    Where tokens or batch vary, or parameters stand in place of width and depth, use
    ``nfd.fit_rate_law``.

    Best rates are fitted as by ``nfd.transfer``. One at an end of the rates is left out of the
    drift. With several seeds the intervals include their noise. With one seed a best rate has no
    interval, and the interval of a drift comes from the distances of sizes to a power law.

    The regret needs a ``guess``, and runs of the largest network at both best rates (or within a
    quarter of a doubling), from two seeds or more that were not trained at the other rates.

    Example::

        rows = [
            {"width": n, "lr": 2.0**k, "seed": seed, "loss": 2 + 0.1 * (k + 9 + seed / 9) ** 2}
            for n in (64, 128)
            for seed in (0, 1)
            for k in range(-12, -6)
        ]
        print(nfd.fit_transfer(rows).best("logged", 128, 1))

    Args:
        rows: dicts, a DataFrame, or the path of a CSV, JSON or parquet file; one row per run, or
            per step, of which the last counts. A loss that is not a number diverged.
        columns: the names of your columns, if they are not recognised: ``{"lr":
            "config/learning_rate"}``. Keys: loss, lr, width, depth, parameters, tokens, samples,
            batch (in tokens), steps, sequences and their length, decay, rule, seed, run, step and
            state. None ignores a column.
        guess: the loss that a diverged run counts as, and from which progress is measured, such as
            the logarithm of the vocabulary. By default it lies five times as far above the best
            rate's loss as the loss of the fifth best rate, or of the third on a coarse grid.
        prior: as for ``nfd.fit_rate_law``; goes in 0.5.

    Returns:
        A ``Transfer``: ``.best(rule, width, depth)``, ``.drift(rule, "width")``, ``.regret(rule)``
        and ``.table``. Runs without a rule have the rule ``"logged"``.

    Raises:
        ValueError, TypeError, OSError: naming the columns, if the rows cannot be read; if runs of
            one size, rate and seed differ in another column.
    """
    answer = rates_of(rows, columns, guess, prior)
    if not isinstance(answer, Transfer):
        warnings.warn(
            "This table has parameters, tokens or batch: fit it by nfd.fit_rate_law. "
            "nfd.fit_transfer refuses it from 0.5.",
            FutureWarning,
            stacklevel=2,
        )
    elif prior != "sweeps":
        text = "prior goes in 0.5: only nfd.fit_rate_law reads it."
        warnings.warn(text, FutureWarning, stacklevel=2)
    return cast(Transfer, answer)


def rates_of(
    rows: Any,
    columns: Mapping[str, str | None] | None,
    guess: float | None,
    prior: str | os.PathLike[str] | None = "sweeps",
    rule: str | None = None,
    scaled: Mapping[str, float] | None = None,
) -> Transfer | RateLaw:
    """Fit best learning rates over width and depth, or the rate law, by the table's columns."""
    rows = kept_rows(rows)
    if needs_rate_law(read_log(rows, columns, ("lr", "loss"), RATE_FIELDS)):
        # Loaded only where a table is for it.
        from nfd.laws.rate_runs import fit_rate_law

        return fit_rate_law(rows, columns=columns, prior=prior, rule=rule, scaled=scaled)

    given_guess = None if guess is None else check_real("guess", guess, above=0.0)
    log = read_log(rows, columns, ("lr", "loss"), ("width", "depth", "rule", "seed"))
    if "width" not in log.columns and "depth" not in log.columns:
        raise InputError(
            "the log must say the width or the depth of its runs: name it by columns=. "
            f"{log.recognised}"
        )
    unused = list[str]()
    runs_at = _runs_by_place(log, unused)
    names = dict.fromkeys(rule for rule, _ in runs_at)
    rules = [_rule(rule, runs_at, given_guess, unused) for rule in names]
    return Transfer(
        tuple(rules),
        f"A log of {log.recognised}",
        log.columns["loss"],
        (*log.notes, *unused, *growth_note(rules)),
        is_log=True,
        has_guess=given_guess is not None,
        left_out=" ".join([log.left_out, *unused]).lstrip(),
    )


# A rule and a size.
Place = tuple[str, Size]


def _runs_by_place(log: Log, unused: list[str]) -> dict[Place, list[LoggedRun]]:
    """Group training runs by rule and size; a sentence says how many lack one of these."""
    runs_at = dict[Place, list[LoggedRun]]()
    about: tuple[Field, ...] = ("width", "depth", "rule")
    needed = [field for field in about if field in log.columns]
    for run in log.runs:
        if run.has(needed):
            size = (run.width or 1, run.depth or 1)
            runs_at.setdefault((run.rule or "logged", size), []).append(run)
    lacking = len(log.runs) - sum(map(len, runs_at.values()))
    if lacking:
        unused.append(f"Left out: {plural(lacking, 'row')} without {' or '.join(needed)}.")
    return runs_at


def _rule(
    rule: str, runs_at: Mapping[Place, Sequence[LoggedRun]], guess: float | None, unused: list[str]
) -> RuleTransfer:
    """Answer for one rule; a sentence says how many of its runs do not count."""
    sizes = sorted(size for name, size in runs_at if name == rule)
    cells = {size: _cell(rule, size, runs_at[rule, size], guess) for size in sizes}
    regret = None
    if guess is not None and len(sizes) > 1:
        regret = _regret(cells, runs_at[rule, sizes[-1]])

    count = 0
    places = list[str]()
    for size, cell in cells.items():
        used = cell.losses.size
        if regret is not None and size == sizes[-1]:
            used += len({*regret.new.log2_eta}) * len(regret.at_best)
        more = len(runs_at[rule, size]) - used
        if more:
            count += more
            places.append(size_in_words(size, sizes))
    if count:
        of_rule = "" if rule == "logged" else f" of {rule}"
        unused.append(
            f"Left out: {plural(count, 'run')}{of_rule} whose seeds lack some rates, at "
            f"{listed(places)}."
        )
    return RuleTransfer(rule, cells, regret)


def _regret(cells: Mapping[Size, Scores], runs: Sequence[LoggedRun]) -> Regret | None:
    """Find the regret by runs of the largest network from seeds that chose neither rate.

    None where fewer than two seeds were trained at both rates.
    """
    large = cells[max(cells)]
    # By rate and seed.
    losses = dict[float, dict[str, float]]()
    for run in runs:
        if run.seed is not None and run.seed not in large.seeds:
            losses.setdefault(run.lr or 0.0, {})[run.seed] = run.loss or math.inf
    rates = list[float]()
    for cell in (cells[min(cells)], large):
        distances = {rate: abs(math.log2(rate) - cell.best()) for rate in losses}
        nearest = min(distances, key=distances.__getitem__, default=0.0)
        if distances.get(nearest, math.inf) > _SAME_RATE:
            return None
        rates.append(nearest)
    seeds = sorted(losses[rates[0]].keys() & losses[rates[1]].keys())
    if len(seeds) < 2:
        return None
    at_both = np.array([[losses[rates[0]][seed], losses[rates[1]][seed]] for seed in seeds])
    return Regret(Scores(np.log2(rates), at_both, ~np.isfinite(at_both), large.guess), large)


def _cell(rule: str, size: Size, runs: Sequence[LoggedRun], guess: float | None) -> Scores:
    """Gather the scores of a size, of the seeds that were trained at every rate.

    The rates come from the seed that has the most.
    """
    by_seed = _losses_by_seed(f"{rule} at {in_words(size)}", runs)
    rates = [*max(by_seed.values(), key=len)]
    seeds = tuple(sorted(seed for seed, at in by_seed.items() if at.keys() >= {*rates}))
    log2_rates = np.log2(rates)
    losses = np.array([_at_rates(by_seed[seed], rates) for seed in seeds])
    return Scores(
        log2_rates,
        losses,
        ~np.isfinite(losses),
        guess or progress_from(log2_rates, losses),
        seeds,
        # Above zero only where somebody said what progress counts from.
        0.0 if guess is None else LEAST_LOSS,
    )


def _at_rates(losses: Mapping[float, float], rates: Sequence[float]) -> list[float]:
    return [losses[rate] for rate in rates]


def _losses_by_seed(place: str, runs: Sequence[LoggedRun]) -> dict[str, dict[float, float]]:
    """Gather the loss of every seed at every rate, ascending.

    Where no seed is named, the first run of each rate counts as one, the second, and so on.
    """
    by_seed = dict[str, dict[float, float]]()
    counts = Counter[float]()
    for run in sorted(runs, key=lambda run: run.lr or 0.0):
        rate = run.lr or 0.0
        loss = run.loss or 0.0
        losses = by_seed.setdefault(run.seed or f"{place} {counts[rate]}", {})
        if rate in losses:
            raise InputError(
                f"{place} has several runs of lr {rate:g} and seed {run.seed}: they differ in "
                "something else, maybe several lengths of training. Give the rows of one setting, "
                "or name the column of seeds."
            )
        if loss <= 0:
            raise InputError(
                f"losses must be above 0, as their geometric mean is taken; {place} has {loss:g}."
            )
        losses[rate] = loss
        counts[rate] += 1
    return by_seed
