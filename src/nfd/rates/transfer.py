"""What the best learning rate does as networks grow, and what tuning a small one costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from nfd.core.checks import check_choice, check_real
from nfd.core.errors import InputError
from nfd.core.estimates import UNKNOWN, Interval, mean
from nfd.core.names import AXES, Axis
from nfd.core.tables import Lead, Row, Tone, rows_as_text, said
from nfd.logs import Field, Log, LoggedRun, read_log
from nfd.rates.optimum import Array, Regret, Scores, Size, fitted_exponent, in_words, rate_in_words
from nfd.scaling.rate_law import REFERENCE, BestRate, Cell, Prior, RateLaw, fit_rate_law

# ---- The answer of a sweep or of a log, for all rules


@dataclass(frozen=True)
class Transfer:
    """Best rates, their drift with size, and the regret of tuning on a small network. Print it to see the table.

    Attributes:
        rules: the answer for each rule. about: a description of the runs. score: the loss that best rates minimise.
        notes: which runs were left out, what a small regret does not show, and last what to do.
        law: the law of the best rate over parameters, tokens and batch, in place of ``rules``, where a table has them.
    """

    rules: tuple[RuleTransfer, ...]
    about: str
    score: str
    notes: tuple[str, ...] = ()
    law: RateLaw | None = None

    def __iter__(self) -> Iterator[RuleTransfer]:
        return iter(self.rules)

    def of(self, rule: str) -> RuleTransfer:
        """The answer for one rule."""
        if self.law is not None:
            raise InputError("this table has a law of the rate in place of rules: use at(...), exponents or law.")
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
            return answer.cells[width, depth].rate()
        against = answer.against
        ((name, value),) = [*setting.items()][:1]
        if len(setting) > 1 or name not in against or value not in against[name].values:
            known = [f"{name} {', '.join(f'{v:g}' for v in own.values)}" for name, own in against.items()]
            raise InputError(f"there are runs of {'; '.join(known) or 'no further setting: use axes='}; got {setting}.")
        return against[name].cells[(width, depth), value].rate()

    def at(self, parameters: float | None = None, tokens: float | None = None, batch: float | None = None) -> BestRate:
        """The rate of one new training by ``law``, with a 95 % interval and what missing the best one costs.

        Args:
            parameters, tokens, batch: of the training, the batch in tokens. What did not vary may be left out.

        Raises:
            ValueError: where the table has none of them, or one that varied is left out.
        """
        return self._law.at(parameters, tokens, batch)

    @property
    def exponents(self) -> dict[str, Interval]:
        """Powers of the best rate by ``law`` (``RateLaw.exponents``); ValueError where the table has none."""
        return self._law.exponents

    def critical_batch(self, tokens: float) -> Interval:
        """The batch, in tokens, beyond which the best rate hardly grows, in a training of so many tokens."""
        return self._law.critical_batch(tokens)

    @property
    def _law(self) -> RateLaw:
        if self.law is None:
            raise InputError(
                "a law over parameters, tokens and batch needs a table in which tokens or batch vary, or in which "
                f"parameters stand in place of width and depth. {self.about}"
            )
        return self.law

    def loss(self, rule: str, width: int, depth: int) -> Interval:
        """The loss at the best rate of a size.

        For the largest size it is that of starts which chose no rate, for others that of the grid, each seed at the
        rate that the others choose.

        Raises:
            ValueError: for a rule or a size of which there are no runs.
        """
        return self._trained(rule, width, depth).loss((width, depth))

    def drift(self, rule: str, axis: str) -> Interval:
        """Doublings of the best rate per doubling of an axis, with a 95 % interval: 0 if the rate transfers.

        Args:
            rule: one of the rules that were trained; ``"logged"`` for logs without a rule.
            axis: ``"width"``, ``"depth"`` or a further axis, such as ``"batch_size"``. If it did not vary, the result
                is not-a-number.
        """
        answer = self.of(rule)
        if check_choice("axis", axis, [*AXES, *answer.against]) in answer.against:
            return answer.against[axis].exponent
        return answer.drifts.get(cast(Axis, axis), UNKNOWN)

    def regret(self, rule: str) -> Interval:
        """The loss that the largest network loses at the smallest one's best rate, in nats; not-a-number if unknown."""
        regret = self.of(rule).regret
        return UNKNOWN if regret is None else regret.loss

    def verdict(self, rule: str) -> TransferVerdict:
        """Whether the best rate of the smallest network serves the largest: TRANSFERS, COSTS or UNCERTAIN."""
        return self.of(rule).verdict

    @property
    def table(self) -> list[Row]:
        """One dict per rule and quantity (best rates, drifts, regret), followed by those of further axes."""
        if self.law is not None:
            return self.law.table
        sizes = [row for answer in self.rules for row in answer.table]
        return [*sizes, *(row for answer in self.rules for own in answer.against.values() for row in own.table)]

    @property
    def levels(self) -> list[Row]:
        """The best rates and losses of all rules at all sizes, in words; of a law the exponents."""
        if self.law is not None:
            return [{"exponent of": name, "power": power.unsigned} for name, power in self.law.exponents.items()]
        return [
            {"width": size[0], "depth": size[1], "rule": answer.rule}
            | {"best lr": rate_in_words(answer.cells[size].rate()), "loss": answer.loss(size).unsigned}
            for size in dict.fromkeys(size for answer in self.rules for size in answer.cells)
            for answer in self.rules
            if size in answer.cells
        ]

    @property
    def sentences(self) -> list[str]:
        """The answer of every rule along sizes and further axes, and the notes."""
        against = [own.sentence for answer in self.rules for own in answer.against.values()]
        law = [] if self.law is None else [self.law.sentence, self.law.priors]
        along = [str(answer) for answer in self.rules if len(answer.cells) > 1]  # of one size there is nothing to say
        return [*law, *along, *against, *self.notes]

    @property
    def lead(self) -> Lead:
        """What to do, and what tuning small costs under each rule."""
        if self.law is not None:
            powers = list(self.law.exponents.items())[:3]
            numbers = {f"exponent of {name}": power.unsigned for name, power in powers}
            return Lead(self.law.sentence, "open", numbers)
        costs = {f"{own.rule}: tuning small costs (nats)": f"{own.regret.loss}" for own in self.rules if own.regret}
        (size, cell), rule = next(iter(self.rules[-1].cells.items())), self.rules[-1].rule
        numbers = costs | {f"{rule}: best lr at {in_words(size)}": rate_in_words(cell.rate())}
        if not self.notes or len(costs) < len(self.rules):
            return Lead((*self.sentences, self.about)[0], "open", numbers)
        transfers = any(answer.verdict == "TRANSFERS" for answer in self.rules)
        tone: Tone = "good" if self.notes[-1].startswith("Use ") else "partly" if transfers else "bad"
        return Lead(self.notes[-1], tone, numbers)

    def __str__(self) -> str:
        return said(str(self.lead), *self.told(self.lead))

    def told(self, lead: Lead) -> list[str]:
        """The table of levels, and the sentences that a lead does not say."""
        return [rows_as_text(self.levels), *(text for text in self.sentences if text != lead.verdict)]

    def _trained(self, rule: str, width: int, depth: int) -> RuleTransfer:
        """The answer for a rule, of which there are runs of this size."""
        answer = self.of(rule)
        if (width, depth) not in answer.cells:
            sizes = "; ".join(map(in_words, answer.cells))
            raise InputError(f"there are no runs of {in_words((width, depth))}. There are some of {sizes}.")
        return answer


# ---- Transfer from a log: best rates of the user's runs, of any framework, and their drift


_NEAREST = (5, 4, 3)  # rates of a fit: the most that lie
_REACH = 3.5  # doublings apart, or the fewest
_SHARE = 0.2  # of the progress that a rate of a fit may have lost, where no guess says how much there is
_SAME_RATE = 0.25  # doublings within which a rate that was trained counts as the best one


def fit_transfer(
    rows: Any,
    *,
    columns: Mapping[str, str | None] | None = None,
    guess: float | None = None,
    prior: str | Path | None = "sweeps",
) -> Transfer:
    """Find the best learning rate of every size, and its drift, in your logged runs.

    Where tokens or batch vary, or parameters stand in place of width and depth, the answer is a law (``nfd.RateLaw``).

    Best rates are fitted as by ``nfd.transfer``. One at an end of the rates is left out of the
    drift. With several seeds the intervals include their noise. With one seed a best rate has no interval, and that of
    a drift comes from the distances of sizes to a power law.

    The regret needs a ``guess``, and runs of the largest network at both best rates (or within a quarter of a
    doubling), from two seeds or more that were not trained at the other rates.

    Example::

        rows = [
            {"width": n, "lr": 2.0**k, "seed": seed, "loss": 2 + 0.1 * (k + 9 + seed / 9) ** 2}
            for n in (64, 128)
            for seed in (0, 1)
            for k in range(-12, -6)
        ]
        print(nfd.fit_transfer(rows).best("logged", 128, 1))

    Args:
        rows: dicts, a DataFrame, or the path of a CSV; one row per run, or per step, of which the last
            counts. A loss that is no number diverged.
        columns: the names of your columns, if they are not recognised: ``{"lr": "config/learning_rate"}``. Keys: loss,
            lr, width, depth, parameters, tokens, batch (in tokens), steps, sequences and their length, decay, rule,
            seed, run, step and state. None ignores a column.
        guess: the loss that a diverged run counts as, and from which progress is measured, such as the logarithm of
            the vocabulary. By default it lies five times as far above the best rate's loss as that of the fifth best
            rate, or of the third on a coarse grid.
        prior: of the law's exponents: ``"sweeps"``, those of public sweeps; None; or the path of a file.

    Returns:
        A ``Transfer``: ``.best(rule, width, depth)``, ``.drift(rule, "width")``, ``.regret(rule)`` and ``.table``.
        Runs without a rule have the rule ``"logged"``.

    Raises:
        ValueError, TypeError, OSError: naming the columns, if the rows cannot be read; if runs of one size, rate and
            seed differ in another column.
    """
    given = None if guess is None else check_real("guess", guess, above=0.0)
    if (fitted := _fitted_law(rows, columns, prior)) is not None:
        return fitted
    log = read_log(rows, columns, ("lr", "loss"), ("width", "depth", "rule", "seed"))
    if "width" not in log.columns and "depth" not in log.columns:
        raise InputError(f"the log must say the width or the depth of its runs: name it by columns=. {log.recognised}")
    places, notes = dict[tuple[str, Size], list[LoggedRun]](), list(log.notes)
    present: list[Field] = [name for name in ("width", "depth", "rule") if name in log.columns]
    for run in log.runs:
        if all(getattr(run, name) is not None for name in present):
            places.setdefault((run.rule or "logged", (run.width or 1, run.depth or 1)), []).append(run)
    if lacking := len(log.runs) - sum(map(len, places.values())):
        notes.append(f"{lacking} rows that lack {' or '.join(present)} were left out.")
    cells = {place: _cell(*place, runs, given) for place, runs in places.items()}
    rules = []
    for rule in dict.fromkeys(rule for rule, _ in cells):
        own = {size: cell for (of, size), cell in sorted(cells.items()) if of == rule}
        large = [*own][-1]
        regret = None if given is None or len(own) < 2 else _regret(own, places[rule, large])
        rules.append(RuleTransfer(rule, own, regret))
        for size, cell in own.items():
            new = len({*regret.new.log2_eta}) * len(regret.own) if regret and size == large else 0
            if lost := len(places[rule, size]) - cell.losses.size - new:
                notes.append(f"{lost} runs of {rule} at {in_words(size)} were left out: their seeds lack some rates.")
    if given is None:
        notes.append("A regret and a verdict need guess= (in the shell --guess), such as log C of C classes.")
    return Transfer(tuple(rules), f"A log of {log.recognised}", log.columns["loss"], (*notes, *compared(rules)))


class _Setting(NamedTuple):
    """What the runs of a cell have in common."""

    place: tuple[float, float, float]  # parameters, tokens, batch
    width: int | None
    depth: int | None
    decay: str | None


def _fitted_law(rows: Any, columns: Mapping[str, str | None] | None, prior: str | Path | None) -> Transfer | None:
    """The answer by the law over parameters, tokens and batch; None where the table is about width and depth alone."""
    more: tuple[Field, ...] = ("parameters", "tokens", "batch", "decay", "width", "depth", "seed")
    log = read_log(rows, columns, ("lr", "loss"), more)
    settings = _settings(log)
    parameters, *others = (len({*along}) > 1 for along in zip(*(own.place for own in settings), strict=True))
    shapes = {(own.width, own.depth) for own in settings}
    counted, sized = "parameters" in log.columns, "width" in log.columns or "depth" in log.columns
    by_parameters = counted and (not sized or (parameters and len(shapes) == 1))
    if not by_parameters and not any(others):
        return None
    cells = [cell for own, runs in settings.items() if (cell := _told(own.place, runs)) is not None]
    if not cells:
        raise InputError("a law needs runs that differ in the rate alone; no two rows agree in all but lr and seed.")
    notes = [*log.notes, *_about_cells(cells, settings)]
    if "batch" not in log.columns:
        taken = f"{REFERENCE['batch']:,.0f} tokens"
        notes.append(f"The table has no batch: {taken} are assumed, and what another batch changes is not in the runs.")
    if sized and not counted:
        notes.append("Parameters are counted as 12 width^2 depth.")
    elif len(shapes) > 1:
        notes.append(
            f"The law's size is parameters{'' if parameters else ', which are the same in all runs'}: width and depth "
            "only keep cells apart."
        )
    known, widths = Prior.read(prior), {own.width for own in settings}
    if prior == "sweeps" and parameters and len(widths) == 1 and None not in widths:
        known = known.of_one_width
        notes.append(f"All runs have width {widths.pop()}: the best rate is expected to follow parameters less.")
    law = fit_rate_law(cells, known)
    return Transfer((), f"A log of {log.recognised}", log.columns["loss"], tuple(notes), law=law)


def _settings(log: Log) -> dict[_Setting, dict[float, list[float]]]:
    """The losses at every rate, by what runs have in common; infinite: diverged."""
    settings = dict[_Setting, dict[float, list[float]]]()
    for run in log.runs:
        parameters = run.parameters or 12.0 * (run.width or 1) ** 2 * (run.depth or 1)
        tokens = None if log.in_steps else run.tokens
        place = (parameters, tokens or REFERENCE["tokens"], run.batch or REFERENCE["batch"])
        loss = math.inf if run.loss is None else run.loss
        if loss <= 0:
            raise InputError(f"losses must be above 0, as rises are shares of the lowest; got {loss:g}.")
        setting = _Setting(place, run.width, run.depth, run.decay)
        settings.setdefault(setting, {}).setdefault(run.lr or 0.0, []).append(loss)
    return settings


def _told(place: Sequence[float], runs: Mapping[float, Sequence[float]]) -> Cell | None:
    """The cell of some runs, losses of seeds averaged; None where it has one rate, or diverged at all."""
    rates = sorted(runs)
    losses = np.array([float(np.mean(runs[rate])) for rate in rates])
    if len(rates) < 2 or not np.isfinite(losses).any():
        return None
    return Cell(np.log2(np.array(place) / [*REFERENCE.values()]), np.log2(rates), losses)


def _about_cells(cells: Sequence[Cell], settings: Collection[_Setting]) -> Iterator[str]:
    """Which cells were left out, which say of the best rate only on which side it lies, and their decays."""
    if len(cells) < len(settings):
        yield f"{len(settings) - len(cells)} of {len(settings)} cells have one rate, or diverged at all: left out."
    for side, end in (("lower", 0), ("higher", -1)):
        if ends := sum(cell.best == cell.log2_rates[end] for cell in cells):
            yield f"In {ends} of {len(cells)} cells the best run is at an end of its rates: add {side} rates."
    decays = {own.decay for own in settings}
    if len(decays) > 1:
        listed = ", ".join(sorted("none said" if decay is None else decay for decay in decays))
        yield f"Runs of weight decays {listed} are kept apart, in cells of their own; the law has one rate for all."


def _regret(cells: Mapping[Size, Scores], runs: Sequence[LoggedRun]) -> Regret | None:
    """What the largest network loses at the smallest one's best rate, by its runs from seeds that chose neither rate;
    None where fewer than two seeds were trained at both."""
    small, large = cells[min(cells)], cells[max(cells)]
    losses = dict[float, dict[str, float]]()
    for run in runs:
        if run.seed is not None and run.seed not in large.seeds:
            losses.setdefault(run.lr or 0.0, {})[run.seed] = run.loss or math.inf
    pair = []
    for cell in (small, large):
        apart = {rate: abs(math.log2(rate) - cell.best()) for rate in losses}
        pair.append(min(apart, key=lambda rate: apart[rate], default=0.0))
        if apart.get(pair[-1], math.inf) > _SAME_RATE:
            return None
    seeds = sorted(losses[pair[0]].keys() & losses[pair[1]].keys())
    if len(seeds) < 2:
        return None
    at = np.array([[losses[rate][seed] for rate in pair] for seed in seeds])
    return Regret(Scores(np.log2(pair), at, ~np.isfinite(at), large.guess), large)


def _cell(rule: str, size: Size, runs: Sequence[LoggedRun], guess: float | None) -> Scores:
    """The scores of a size, of the seeds that were trained at every rate: those of the seed that has the most.

    Where no seed is named, the first run of each rate counts as one, the second, and so on.
    """
    where, counts = f"{rule} at {in_words(size)}", Counter[float]()
    by_seed = dict[str, dict[float, float]]()
    for run in sorted(runs, key=lambda run: run.lr or 0.0):
        rate, loss = run.lr or 0.0, run.loss or 0.0
        own = by_seed.setdefault(run.seed or f"{where} {counts[rate]}", {})
        if rate in own:
            raise InputError(
                f"{where} has several runs of lr {rate:g} and seed {run.seed}: they differ in something else, maybe "
                "several lengths of training. Give the rows of one setting, or name the column of seeds."
            )
        if loss <= 0:
            raise InputError(f"losses must be above 0, as their geometric mean is taken; {where} has {loss:g}.")
        own[rate], counts[rate] = loss, counts[rate] + 1
    listed = [*max(by_seed.values(), key=len)]
    seeds = tuple(sorted(seed for seed, own in by_seed.items() if own.keys() >= {*listed}))
    rates, losses = np.log2(listed), np.array([[by_seed[seed][rate] for rate in listed] for seed in seeds])
    return Scores(rates, losses, ~np.isfinite(losses), guess or _scale(rates, losses), seeds, 0.0)


def _scale(rates: Array, losses: Array) -> float:
    """The loss from which the progress of a size counts, where none is given, by log2 of its rates ``[E]``."""
    typical = np.exp(np.log(losses).mean(0))
    if not np.isfinite(typical).any():
        typical = losses.min(0)
    if not np.isfinite(typical).any():
        return 1.0  # below every loss: nothing is learnt
    order = typical.argsort(kind="stable")[: int(np.isfinite(typical).sum())]
    several = [order[:count] for count in _NEAREST]
    best = typical[next((few for few in several if np.ptp(rates[few]) <= _REACH), several[-1])]
    return float(best[0] + (best[-1] - best[0]) / _SHARE)


# ---- Under one rule: whether the best learning rate of a small network is that of a large one


TransferVerdict = Literal["TRANSFERS", "COSTS", "UNCERTAIN"]

TOLERANCE = 0.1  # of the largest network's progress: a regret below is none, above is one
_FEWEST_SEEDS = 3  # for a verdict


@dataclass(frozen=True)
class RuleTransfer:
    """The scores of one rule by (width, depth), and the regret between the smallest and the largest.

    Attributes:
        regret: None where no new networks were trained at both rates, as in most logs, or there is one size.
        against: the best rate against further settings, by their names.
    """

    rule: str
    cells: dict[Size, Scores]
    regret: Regret | None = None
    against: Mapping[str, RateAgainst] = field(default_factory=dict)

    def reached(self, size: Size) -> Array:
        """Scores ``[S]`` at the best rate of a size: of new starts, else of the grid at the rate of the other seeds."""
        return self.regret.own if self.regret and size == [*self.cells][-1] else self.cells[size].reached

    def loss(self, size: Size) -> Interval:
        """The loss at the best rate of a size."""
        return mean(self.reached(size))

    @cached_property
    def drifts(self) -> dict[Axis, Interval]:
        """Doublings of the best rate per doubling of every axis that varies, the other held."""
        inside = {size: cell for size, cell in self.cells.items() if cell.has_optimum}
        return {axis: moved for axis in reversed(AXES) if (moved := drift(inside, axis)) is not None}

    def along(self, axis: Axis) -> dict[int, Scores]:
        """The scores along one axis, the other at its largest."""
        place = AXES.index(axis)
        largest = max(size[1 - place] for size in self.cells)
        return {size[place]: cell for size, cell in self.cells.items() if size[1 - place] == largest}

    @property
    def table(self) -> list[Row]:
        """A row per quantity: best rates and losses by size, drifts, and the regret in nats and over the progress."""
        found: list[tuple[str, tuple[int | None, int | None], Interval]] = [
            *(("best lr", size, cell.rate()) for size, cell in self.cells.items()),
            *(("best loss", size, self.loss(size)) for size in self.cells),
            *((f"drift per doubling of {axis}", (None, None), moved) for axis, moved in self.drifts.items()),
        ]
        if self.regret is not None:
            found.append(("regret (nats)", (None, None), self.regret.loss))
            found.append(("regret over progress", (None, None), self.regret.share))
        return [
            {"rule": self.rule, "width": n, "depth": L, "quantity": name} | estimate.limits
            for name, (n, L), estimate in found
        ]

    def __str__(self) -> str:
        moved = "The best lr moves by {} doublings per doubling of {}."
        drifts = [moved.format(drift, axis) for axis, drift in self.drifts.items()]
        if (regret := self.regret) is not None:
            small, *_, large = map(in_words, self.cells)
            cost = "" if regret.loss.resolved else "nothing measurable: "
            cost += f"{regret.loss} nats at {large}, {regret.in_percent} of its progress"
            if math.isnan(regret.loss.value):
                cost = "an unknown amount"
            drifts = [f"{self.verdict}. Tuning at {small} costs {cost}.", *drifts]
        return f"{self.rule}: {' '.join([*drifts, *([f'{self.doubt}.'] if self.doubt else [])])}"

    @property
    def doubt(self) -> str:
        """Why best rates cannot be compared, or what a verdict needs whatever the regret is; else empty."""
        words = {-1: "lower rates may be better", 1: "higher rates may be better", 0: "nothing is learnt"}
        why = {size: words[cell.edge * cell.learns] for size, cell in self.cells.items() if not cell.has_optimum}
        if unknown := [f"{in_words(size)} ({word})" for size, word in why.items()]:
            return f"The best rate is not known at {', '.join(unknown)}: give other rates or more steps"
        if self.regret is None:
            return ""
        is_known = len(self.regret.grid.losses) >= _FEWEST_SEEDS and not math.isnan(self.regret.share.value)
        return "" if is_known else f"A verdict needs {_FEWEST_SEEDS} seeds or more that learn at their best rate"

    @property
    def verdict(self) -> TransferVerdict:
        """By the 95 % interval of the regret as a share of progress: below ``TOLERANCE``, above it, or neither.

        A negative regret is a gain, and no reason for doubt: the rate tuned at the small size costs nothing.
        """
        if self.doubt or self.regret is None:
            return "UNCERTAIN"
        share = self.regret.share
        if share.high < TOLERANCE:
            return "TRANSFERS"
        return "COSTS" if share.low > TOLERANCE else "UNCERTAIN"


def drift(cells: Mapping[Size, Scores], axis: Axis) -> Interval | None:
    """Doublings of the best rate per doubling of one axis, over scores by (width, depth); None where it is one size.

    The exponent of least squares is a weighted sum of the best rates (``nfd.rates.optimum.fitted_exponent``).
    """
    k = AXES.index(axis)
    if len({size[k] for size in cells}) < 2:
        return None
    return fitted_exponent(list(cells.values()), [[math.log2(n), math.log2(L)] for n, L in cells], k)


def compared(rules: Sequence[RuleTransfer]) -> list[str]:
    """What the rules say together, and last what to do; nothing unless every rule has a regret.

    Advised is the rule with the lowest loss of the largest network: of those that transfer at the smallest one's rate,
    else of all at their own. Another rule may be better there at its own rate. It is chosen by the grid and judged by
    new starts, so that chance counts once. Rules share their seeds, so the test is one of pairs.
    """
    regrets = {answer.rule: answer.regret for answer in rules if answer.regret is not None}
    if len(regrets) < len(rules):
        return []
    transferring = [answer for answer in rules if answer.verdict == "TRANSFERS"]
    place = 0 if transferring else 1
    best = min(transferring or rules, key=lambda own: float(regrets[own.rule].new.scores[:, place].mean()))
    (small, *_, large), notes = best.cells, list[str]()
    grown = best.loss(large).minus(best.loss(small))
    if not grown.high < 0:
        word = "worse" if grown.low > 0 else "not known to be better"
        notes.append(
            f"Under {best.rule} the larger network is {word}: from {in_words(small)} to {in_words(large)} the best "
            f"loss changes by {grown} nats."
        )
    if not any(answer.cells[large].learns for answer in rules):
        return [f"Nothing is learnt at {in_words(large)} at any rate: take more steps, or other initial weights."]
    if not transferring:
        rate = rate_in_words(best.cells[large].rate())
        return [
            *notes,
            f"No rule is known to transfer: tune at the size that you train. At {in_words(large)} the loss is lowest "
            f"under {best.rule} at lr = {rate}.",
        ]
    if others := [answer for answer in rules if answer is not best and answer.cells[large].learns]:
        other = min(others, key=lambda answer: float(answer.cells[large].reached.mean()))
        a, b = best.reached(large), other.reached(large)
        lower = mean(a - b) if len(a) == len(b) else mean(a).minus(mean(b))
        if lower.low > 0 and lower.value > best.cells[large].least:  # less is not learning anything at all
            return [
                *notes,
                f"{best.rule} transfers, but at {in_words(large)} {other.rule} is better: the loss at its own best lr "
                f"is lower by {lower.unsigned} nats. Find out why, or tune {other.rule} at the size that you train.",
            ]
    return [
        *notes,
        f"Use {best.rule} at lr = {rate_in_words(best.cells[small].rate())}: tuned at {in_words(small)} it costs "
        f"{regrets[best.rule].in_percent} of the progress at {in_words(large)}.",
    ]


# ---- The best rate against a setting other than width and depth, under one rule


@dataclass(frozen=True)
class RateAgainst:
    """The best learning rate at several values of one setting, such as the batch size. Print it for the table.

    Attributes:
        rule, setting: their names. cells: scores by size and value of the setting, both ascending.
    """

    rule: str
    setting: str
    cells: Mapping[tuple[Size, float], Scores]

    @property
    def values(self) -> list[float]:
        """From the smallest to the largest."""
        return list(dict.fromkeys(value for _, value in self.cells))

    @property
    def sizes(self) -> list[Size]:
        """From the smallest to the largest."""
        return list(dict.fromkeys(size for size, _ in self.cells))

    @cached_property
    def exponent(self) -> Interval:
        """p of ``best rate ~ value^p`` over all sizes; not-a-number where fewer than two values above 0 can tell it."""
        known = {place: cell for place, cell in self.cells.items() if cell.has_optimum and place[1] > 0}
        if len({value for _, value in known}) < 2:
            return UNKNOWN
        logs = [[math.log2(value), math.log2(n), math.log2(L)] for (n, L), value in known]
        return fitted_exponent(list(known.values()), logs, 0)

    @property
    def table(self) -> list[Row]:
        """A row per quantity: best rates and losses by size and value, and the exponent."""
        rows = list[Row]()
        for ((n, L), value), cell in self.cells.items():
            about = {"rule": self.rule, "width": n, "depth": L, self.setting: value}
            rows.append(about | {"quantity": "best lr"} | cell.rate().limits)
            rows.append(about | {"quantity": "loss"} | mean(cell.scores[:, int(cell.typical.argmin())]).limits)
        nowhere = {"rule": self.rule, "width": None, "depth": None, self.setting: None}
        return [*rows, nowhere | {"quantity": f"exponent of {self.setting}"} | self.exponent.limits]

    @property
    def sentence(self) -> str:
        """How the best rate follows the setting, and where the loss is lowest."""
        name, values = self.setting, self.values
        said = f"{self.rule}: the best lr follows {name}^{self.exponent}."
        if name not in ("batch_size", "steps"):  # other steps or batches are other trainings
            for size in self.sizes:
                value = min(values, key=lambda value: float(self.cells[size, value].typical.min()))
                rate = rate_in_words(self.cells[size, value].rate())
                said += f" At {in_words(size)} the loss is lowest at {name} {value:g} and lr {rate}."
        unknown = [f"{name} {v:g} and {in_words(at)}" for (at, v), cell in self.cells.items() if not cell.has_optimum]
        if unknown:
            said += f" The best rate is not known at {'; '.join(unknown)}: give other rates."
        return said

    def __str__(self) -> str:
        return f"{self.sentence}\n{rows_as_text(self.table)}"
