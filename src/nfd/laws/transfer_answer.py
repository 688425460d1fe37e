"""What a transfer decides: the rule to use, why, and what to run next.

Under each rule the smallest network's best rate transfers, costs too much, or nobody can tell yet.
Together they decide: one rule that transfers is enough, and only if every rule costs must each size
be tuned for itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from nfd.core.answer import NOT_DECIDED, Answer, Next, Tone
from nfd.core.estimates import UNKNOWN, Interval, mean
from nfd.core.names import RULE
from nfd.core.words import alike, listed, number, plural
from nfd.laws.best_rate import Scores, Size
from nfd.laws.rate_against import RateAgainst
from nfd.laws.regret import Regret
from nfd.laws.rule_transfer import (
    FEWEST_SEEDS,
    TOLERANCE,
    RuleTransfer,
    SearchSpent,
    TransferVerdict,
    moves_in_words,
    rule_in_words,
    size_in_words,
    sizes_of,
)
from nfd.laws.sequential import BUDGET_SPENT, Decision

STATES: dict[TransferVerdict, tuple[Tone, str]] = {
    "TRANSFERS": ("good", "Transfers"),
    "COSTS": ("bad", "Costs"),
    "UNCERTAIN": ("open", NOT_DECIDED),
}
LIMIT = 100 * TOLERANCE
# More than so many times the seeds is not asked for at once.
_MOST_TIMES = 10
# The share of the way to the limit that the end of the interval may take up when it decides. In a
# made-up world 18 of 35 undecided answers were decided by as many seeds as this asks for, all of
# them rightly; with .5 it was 9 of 11, and four answers in five asked for too many seeds.
_ROOM = 0.8
# More seeds than this are not named, and a cost of more than this is no offer.
_MOST_SEEDS = 200
_WIDE = 2 * TOLERANCE
# Fewer seeds are not asked for: three often leave the interval across the limit.
_FEW_SEEDS = 4
# Columns of the terminal for an interval.
_STRIP = 18
# An exponent is known to be about zero if its interval stays within this.
_FLAT = 0.25
# Settings whose losses are losses of other trainings, so that the lowest says nothing.
_OTHER_TRAININGS = ("batch_size", "steps")


@dataclass(frozen=True)
class Advice:
    """What to do next, which Python and a shell write each in their own words.

    Attributes:
        label: what it is.
        python: the code.
        options: of the shell's command, with their values.
        verb: the shell's command; empty for the user's own with other ``options``.
        continues: whether it uses the runs of the same directory.
    """

    label: str
    python: str
    options: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    verb: Literal["", "plan", "check"] = ""
    continues: bool = False

    @property
    def next(self) -> Next:
        """The advice in Python."""
        return Next(self.label, self.python)


class TrainedBy(NamedTuple):
    """How code names the data of the runs, and makes a plan and an optimizer as they had them."""

    data: str = "batches"
    plan: str = ""
    optimizer: str = ""

    @property
    def sample(self) -> str:
        """What a plan is traced with."""
        return "task.sample" if self.data == "task" else "nfd.Task(batches).sample"


AS_BY_DEFAULT = TrainedBy()


class Decided(NamedTuple):
    """An answer without its table, and the advice in it."""

    answer: Answer
    advice: Advice | None


@dataclass(frozen=True)
class Question:
    """What is known when a transfer is decided.

    Attributes:
        rules: the answer for each rule.
        is_log: whether the runs are from a log, so that nothing can be trained again.
        has_guess: whether progress counts from a loss that is known.
        seconds: of one training on average; not-a-number where nobody says.
        spent: what a search took; None for a grid or a log.
        trained_by: the optimizer of the runs.
    """

    rules: Sequence[RuleTransfer]
    is_log: bool
    has_guess: bool
    seconds: float
    spent: SearchSpent | None = None
    trained_by: TrainedBy = AS_BY_DEFAULT

    @property
    def sizes(self) -> list[Size]:
        """The sizes of networks, ascending."""
        return sizes_of(self.rules)

    @property
    def seeds(self) -> int:
        """The seeds of every network."""
        return len(self.rules[0].cells[self.sizes[0]].losses)

    def size(self, size: Size) -> str:
        """A size in words."""
        return size_in_words(size, self.sizes)

    def decided(self) -> Decided:
        """Decide, by the first of these that holds."""
        small, *_, large = [*self.sizes, self.sizes[-1]]
        if self.spent is None and len(self.sizes) < 2:
            return self._one_size()
        if self.spent is not None and not any(one.learns(small) for one in self.rules):
            return self._nothing_learnt(small)
        if len(self.sizes) > 1 and not any(answer.learns(large) for answer in self.rules):
            return self._nothing_learnt(large)
        rule = rule_to_decide(self.rules)
        if rule.verdict == "TRANSFERS":
            return self._transfers(rule, small, large)
        if rule.verdict == "COSTS":
            return self._costs(rule, small, large)
        if rule.unlearnt is not None:
            return self._hardly(rule, rule.unlearnt)
        if rule.decision is not None and self.spent is not None:
            return self._searched(rule, rule.decision, self.spent)
        return self._open(rule, small, large)

    # ---- decided

    def _transfers(self, best: RuleTransfer, small: Size, large: Size) -> Decided:
        rate = best.rate(small)
        advice = self._plan(best, small, large)
        evidence = [
            f"{self._at_small_rate(best, small, large)} {self._paid(best)}; the limit is "
            f"{LIMIT:g} %. Larger networks were not tried."
        ]
        evidence += [moves_in_words(best.drifts), *self._failing(best)]
        evidence += [one.transferred for one in best.against.values() if one.decision is not None]
        answer = Answer(
            "good",
            "Transfers",
            f"Train at learning rate {number(rate.value)}{_with(best.rule)}",
            " ".join(filter(None, evidence)),
            self._but(best, small, large),
            advice.next,
        )
        return Decided(answer, advice)

    def _failing(self, best: RuleTransfer) -> list[str]:
        """Say from which rate on training fails, at the size where that is lowest."""
        size, rate = min(
            ((size, cell.fails_from) for size, cell in best.cells.items()), key=lambda at: at[1]
        )
        if math.isinf(rate):
            return []
        return [
            f"At rates from {number(rate)} on, the network of {self.size(size)} learns nothing."
        ]

    def _plan(self, best: RuleTransfer, small: Size, large: Size) -> Advice:
        """Plan twice the largest size by the smallest network's best rate."""
        rate = number(best.rate(small).value)
        asks_for_rule = best.rule not in (RULE, "logged")
        rule = f', rule="{best.rule}"' if asks_for_rule else ""
        options: dict[str, tuple[object, ...]] = {}
        for place, name in enumerate(("width", "depth")):
            grows = large[place] > small[place]
            options[f"--{name}"] = (2 * large[place] if grows else large[place],)
        options |= {"--base": small, "--lr": (rate,)}
        if asks_for_rule:
            options["--rule"] = (best.rule,)
        return Advice(
            "Next: plan the size that you train, such as",
            f"plan = nfd.plan(model, {small}, make_model=make_model{rule}{self.trained_by.plan}, "
            f"sample={self.trained_by.sample})\n"
            "plan.apply_(model, seed=0); optimizer = "
            f"plan.make_optimizer(model, lr={rate}{self.trained_by.optimizer})",
            options,
            "plan",
        )

    def _costs(self, best: RuleTransfer, small: Size, large: Size) -> Decided:
        rate = best.rate(large)
        rules = [one.rule for one in self.rules]
        lowest = "" if len(rules) == 1 else f" The loss is lowest{_with(best.rule)}."
        answer = Answer(
            "bad",
            "Costs",
            f"A small network's rate costs too much{_with_all(rules)}: tune at full size",
            f"{self._at_small_rate(best, small, large)} {self._paid(best)}; the limit is "
            f"{LIMIT:g} %. There the best rate is {rate.in_words()}.{lowest}",
        )
        if RULE in rules or self.is_log:
            options: dict[str, tuple[object, ...]] = {"--lr": (number(rate.value),)}
            for place, name in enumerate(("widths", "depths")):
                options[f"--{name}"] = tuple(sorted({size[place] for size in self.sizes}))
            rule = best.rule if best.rule != "logged" else "standard"
            options["--rule"] = (rule,)
            widths = list(options["--widths"])
            depths = list(options["--depths"])
            advice = Advice(
                "Next: see what does not scale",
                f"nfd.check(make_model, {self.trained_by.data}, {widths}, {depths}, "
                f"lr={number(rate.value)}, "
                f'rule="{rule}")',
                options,
                "check",
            )
        else:
            names = (*rules, RULE)
            advice = Advice(
                f"Run next: compare with the plan {RULE}",
                self._call(f"rules={names}"),
                {"--rules": names},
            )
        return Decided(_with_next(answer, advice), advice)

    def _but(self, best: RuleTransfer, small: Size, large: Size) -> str:
        """Say where another rule is better at full size, or growing makes the network worse."""
        rivals = [one for one in self.rules if one is not best and one.learns(large)]
        if rivals:
            rival = min(rivals, key=lambda one: float(one.cells[large].reached.mean()))
            lower = _lower(best, rival, large)
            # A smaller difference is not learning anything at all.
            if lower.low > 0 and lower.value > best.cells[large].least:
                name, count = rule_in_words(rival.rule)
                verb, pronoun = ("end", "they are") if count == 2 else ("ends", "it is")
                return (
                    f"{name} {verb} {lower.in_words(' nats', 0.0)} lower once {pronoun} tuned at "
                    f"{self.size(large)} itself. {_saves(best.rule)}"
                )
        change = growth(best)
        if change.low > 0 and change.value > best.cells[large].least:
            return (
                f"the network of {self.size(large)} ends {change.in_words(' nats')} higher than "
                f"that of {self.size(small)}: growing does not help here."
            )
        return ""

    # ---- not decided

    def _nothing_learnt(self, large: Size) -> Decided:
        trained = [one for one in self.rules if large in one.cells]
        rates = [float(rate) for rate in trained[0].cells[large].log2_eta]
        span = f"{number(2 ** rates[0])} to {number(2 ** rates[-1])}"
        return Decided(
            Answer(
                "open",
                NOT_DECIDED,
                f"Nothing is learnt at {self.size(large)}: take more steps",
                f"At no learning rate from {span} does training lower the loss below that of a "
                "uniform guess. Other initial weights may help, too.",
            ),
            None,
        )

    def _open(self, rule: RuleTransfer, small: Size, large: Size) -> Decided:
        ended = [size for size, cell in rule.cells.items() if not cell.has_optimum]
        if ended:
            return self._ended(rule, ended)
        if rule.regret is None:
            return self._unmeasured(rule, small, large)
        share = rule.regret.share
        if self.has_guess and not _surely_learns(rule.regret):
            return self._hardly(rule, large)
        wanted = seeds_needed(share, self.seeds)
        is_near = wanted > _MOST_TIMES * self.seeds
        if self.seeds < FEWEST_SEEDS or math.isnan(share.value):
            at_once = wanted if math.isfinite(share.low + share.high) and not is_near else 0
            wanted = max(_FEW_SEEDS, self.seeds + 1, at_once)
            answer = Answer(
                "open",
                NOT_DECIDED,
                f"{plural(self.seeds, 'seed')} cannot tell: train {wanted} or more",
                f"{self._at_small_rate(rule, small, large)} {self._paid(rule)}; a verdict needs "
                f"{FEWEST_SEEDS} seeds or more, each of which learns something.",
            )
            return self._with_seeds(answer, rule, wanted)
        if is_near:
            answer = self._far(rule, small, large, wanted)
            if wanted > _MOST_SEEDS:
                return Decided(answer, None)
            return self._with_seeds(answer, rule, wanted)
        return self._with_seeds(self._undecided(rule, small, large, wanted), rule, wanted)

    def _undecided(self, rule: RuleTransfer, small: Size, large: Size, seeds: int) -> Answer:
        """Say that the interval reaches across the limit, and how many seeds may tell."""
        share = UNKNOWN if rule.regret is None else rule.regret.share
        if share.value > TOLERANCE:
            likely = _probably(rule.rule, "cost too much", "costs too much")
        else:
            likely = _probably(rule.rule, "transfer", "transfers")
        return Answer(
            "open",
            NOT_DECIDED,
            f"{likely}; about {seeds} seeds may tell",
            self._across(rule, small, large),
        )

    def _searched(self, rule: RuleTransfer, decision: Decision, spent: SearchSpent) -> Decided:
        """Say why a search did not decide, and what lets it go on."""
        small, *_, large = [*self.sizes, self.sizes[-1]]
        if decision.regret is None or math.isnan(decision.regret.share.value):
            answer = Answer(
                "open",
                NOT_DECIDED,
                f"{plural(spent.trainings, 'training')} did not decide: {decision.reason}",
                "The search ended before it could compare two rates of the largest network"
                f"{_with(rule.rule)}.",
            )
            if decision.reason != BUDGET_SPENT:
                return Decided(answer, None)
            return self._with_budget(answer, spent, 0)
        if self.has_guess and not _surely_learns(decision.regret):
            return self._hardly(rule, large)
        seeds = len(decision.regret.new.losses)
        wanted = decision.seeds_needed or 2**31
        if wanted > _MOST_TIMES * seeds:
            answer = self._far(rule, small, large, wanted)
        else:
            answer = self._undecided(rule, small, large, wanted)
        if decision.reason == BUDGET_SPENT:
            return self._with_budget(answer, spent, wanted)
        if wanted > _MOST_SEEDS:
            return Decided(answer, None)
        undecided = [one for one in self.rules if one.verdict == "UNCERTAIN"]
        more = len(undecided) * decision.compared * (wanted - seeds)
        advice = self._continued({"seeds": wanted}, f"about {number(more)} more runs", more)
        return Decided(_with_next(answer, advice), advice)

    def _with_budget(self, answer: Answer, spent: SearchSpent, seeds: int) -> Decided:
        """Advise twice the budget, and more seeds where the search would end before."""
        budget = 2 * round(spent.budget)
        more = budget - spent.trainings
        arguments = {"budget": budget}
        if spent.seeds < seeds <= _MOST_SEEDS:
            arguments["seeds"] = seeds
        advice = self._continued(arguments, f"up to {number(more)} more runs", more)
        return Decided(_with_next(answer, advice), advice)

    def _continued(self, arguments: dict[str, int], runs: str, more: int) -> Advice:
        """Advise to ask again with other arguments; the runs there are count."""
        call = ", ".join(f"{name}={value}" for name, value in arguments.items())
        return Advice(
            f"Run next: {runs}{self._time(more)}",
            self._call(call),
            {f"--{name}": (value,) for name, value in arguments.items()},
            continues=True,
        )

    def _time(self, runs: int) -> str:
        """How long so many trainings take."""
        if not math.isfinite(self.seconds):
            return ""
        return f", {duration(runs * self.seconds)} one after another"

    def _across(self, rule: RuleTransfer, small: Size, large: Size) -> str:
        return (
            f"{self._at_small_rate(rule, small, large)} {self._paid(rule)}: the interval reaches "
            f"across the limit of {LIMIT:g} %."
        )

    def _far(self, rule: RuleTransfer, small: Size, large: Size, seeds: int) -> Answer:
        """Name what there is besides many more seeds: to accept the cost, or to train longer."""
        share = UNKNOWN if rule.regret is None else rule.regret.share
        title = "The interval is too wide to decide: train longer"
        if share.high < _WIDE:
            most = number(100 * share.high)
            title = f"Tuning small costs at most {most} %: accept that, or train longer"
        answer = Answer("open", NOT_DECIDED, title, self._across(rule, small, large))
        if seeds > _MOST_SEEDS:
            return answer
        because = f"{answer.because} Or train {seeds} seeds in all, which may tell."
        return replace(answer, because=because)

    def _hardly(self, rule: RuleTransfer, size: Size) -> Decided:
        """Say that networks learn too little for any share of it to be known."""
        guess = rule.cells[size].guess
        learnt = mean(guess - rule.reached(size))
        answer = Answer(
            "open",
            NOT_DECIDED,
            "These networks hardly learn: train longer",
            f"At its best rate{_with(rule.rule)} the network of {self.size(size)} ends "
            f"{learnt.in_words(' nats')} below a guess, whose loss is {number(guess, 3)}. "
            "More seeds do not help.",
        )
        return Decided(answer, None)

    def _with_seeds(self, answer: Answer, rule: RuleTransfer, seeds: int) -> Decided:
        """Advise to train more seeds."""
        if self.is_log and rule.regret is not None:
            rates = [number(2.0**rate, 3) for rate in rule.regret.new.log2_eta]
            more = max(2 * seeds - len(rule.regret.at_best), 1)
            what = f"{self.size(rule.largest)} at {listed(rates)}, {plural(more, 'new seed')} each"
            return self._train_then_fit(answer, what)
        count = more_trainings(self.rules, self.seeds, seeds)
        advice = self._continued({"seeds": seeds}, f"about {number(count)} more runs", count)
        return Decided(_with_next(answer, advice), advice)

    def _ended(self, rule: RuleTransfer, sizes: Sequence[Size]) -> Decided:
        """Say at which end of the grid the best rate lies, and which rates to give."""
        size = sizes[-1]
        cell = rule.cells[size]
        if not cell.learns and not cell.edge:
            answer = Answer(
                "open",
                NOT_DECIDED,
                f"Nothing is learnt at {self.size(size)}: take more steps",
                "Without a best rate nothing can be compared.",
            )
            return Decided(answer, None)
        rates = [2.0**rate for rate in cell.log2_eta]
        end = rates[0] if cell.edge < 0 else rates[-1]
        factor = (rates[-1] / rates[0]) ** (1 / max(len(rates) - 1, 1)) or 2.0
        beyond = [float(number(end * factor ** (cell.edge * step), 3)) for step in (1, 2)]
        direction = "down" if cell.edge < 0 else "up"
        whole = sorted([*(float(f"{rate:.4g}") for rate in rates), *beyond])
        answer = Answer(
            "open",
            NOT_DECIDED,
            f"The best rate lies at the end of your grid, {number(end)}",
            f"At {listed([self.size(one) for one in sizes])} the loss is lowest at the last rate "
            f"that was trained{_with(rule.rule)}: give --lr {direction} to "
            f"{number(beyond[1])}.".replace("--lr", "rates" if self.is_log else "lr"),
        )
        if self.is_log:
            new_rates = listed([number(rate, 3) for rate in sorted(beyond)])
            return self._train_then_fit(answer, f"{self.size(size)} at {new_rates}, every seed")
        advice = Advice(
            "Run next: more learning rates",
            self._call(f"lr={whole}"),
            {"--lr": tuple(whole)},
            continues=True,
        )
        return Decided(_with_next(answer, advice), advice)

    def _unmeasured(self, rule: RuleTransfer, small: Size, large: Size) -> Decided:
        """Say how the best rate moves, and what is missing for its cost."""
        rates = [rule.cells[size].rate() for size in (small, large)]
        times = rates[1].value / rates[0].value
        moves = f"The best rate of {self.size(large)} is {number(times)} times that of "
        title = f"{moves}{self.size(small)}; its cost is not known"
        if 0.8 < times < 1.25:
            title = (
                f"The best rate hardly moves from {self.size(small)} to {self.size(large)}; what "
                "that costs is not known"
            )
        because = (
            f"It is {rates[0].in_words()} at {self.size(small)}, and "
            f"{rates[1].in_words()} at {self.size(large)}."
        )
        answer = Answer("open", NOT_DECIDED, title, because)
        if not self.has_guess:
            advice = Advice(
                "Run next: say the loss before training, such as log C of C classes",
                "nfd.fit_transfer(rows, guess=math.log(10))",
                {"--guess": (2.3,)},
            )
            return Decided(_with_next(answer, advice), advice)
        asked = listed(dict.fromkeys(number(rate.value, 3) for rate in rates))
        return self._train_then_fit(answer, f"{self.size(large)} at {asked}, 6 new seeds each")

    def _train_then_fit(self, answer: Answer, what: str) -> Decided:
        """Advise runs to add to a log."""
        advice = Advice(f"Train {what}; add the runs, then", "nfd.fit_transfer(rows, guess=guess)")
        return Decided(_with_next(answer, advice), advice)

    # ---- one size

    def _one_size(self) -> Decided:
        rule = self.rules[-1]
        size = self.sizes[0]
        against = next(iter(rule.against.values()), None)
        if against is not None:
            return self._along(against, size)
        rate = rule.cells[size].rate()
        if math.isnan(rate.value):
            return self._ended(rule, [size])
        title = f"Train {self.size(size)} at learning rate {number(rate.value)}"
        because = f"The best rate is {rate.in_words()}. Other sizes would say whether it transfers."
        return Decided(Answer("good", "Measured", f"{title}{_with(rule.rule)}", because), None)

    def _along(self, against: RateAgainst, size: Size) -> Decided:
        """Say how the best rate follows a setting, or where the loss is lowest."""
        exponent = against.exponent
        setting = against.setting
        followed = (
            f"When {setting} doubles, the best rate is multiplied by "
            f"{_factor(exponent).in_words()}."
        )
        if setting not in _OTHER_TRAININGS:
            best = against.lowest_at(size)
            rate = against.cells[size, best].rate()
            title = f"Train at {setting} {best:g} and learning rate {number(rate.value)}"
            if math.isfinite(rate.value):
                return Decided(
                    Answer("good", "Measured", title, f"There the loss is lowest. {followed}"), None
                )
        if math.isnan(exponent.value):
            return self._ended_along(against)
        if exponent.resolved:
            title = f"Multiply the learning rate by {number(2**exponent.value)} per doubling of "
            return Decided(Answer("good", "Measured", title + setting, followed), None)
        if max(-exponent.low, exponent.high) < _FLAT:
            title = f"Keep the learning rate at every {setting}"
            return Decided(Answer("good", "Measured", title, followed), None)
        answer = Answer(
            "open",
            NOT_DECIDED,
            f"These runs do not tell how the best rate follows {setting}",
            f"{followed} That may be less or more than 1: train longer, or more seeds.",
        )
        seeds = 4 * self.seeds
        return self._with_seeds(answer, self.rules[-1], seeds)

    def _ended_along(self, against: RateAgainst) -> Decided:
        """Name a value of the setting at which the best rate lies at an end of its grid."""
        ended = {place: cell for place, cell in against.cells.items() if not cell.has_optimum}
        if not ended:
            title = f"One value of {against.setting} above 0 says nothing of the rate"
            return Decided(Answer("open", NOT_DECIDED, title, "Give two values or more."), None)
        (size, value), cell = next(iter(ended.items()))
        of_cell = RuleTransfer(against.rule, {size: cell})
        answer, advice = self._ended(of_cell, [size])
        because = (
            f"At {against.setting} {value:g}: {answer.because[:1].lower()}{answer.because[1:]}"
        )
        return Decided(Answer("open", NOT_DECIDED, answer.title, because, next=answer.next), advice)

    # ---- parts of sentences

    def _at_small_rate(self, rule: RuleTransfer, small: Size, large: Size) -> str:
        rate = rule.rate(small)
        return (
            f"At the smallest network's fitted best rate, {rate.in_words()}, the network of "
            f"{self.size(large)}"
        )

    def _paid(self, rule: RuleTransfer) -> str:
        """``gives up 16 % (95 %: 9 to 31 %) of its loss reduction``."""
        if rule.regret is None:
            return "gives up an unknown part of its loss reduction"
        share = rule.regret.share.scaled(100)
        if math.isnan(share.value):
            return "gives up an unknown part of its loss reduction"
        return f"gives up {share.in_words(' %', LIMIT)} of its loss reduction"

    def _call(self, argument: str) -> str:
        """The user's call with another argument, of which only the sizes are known."""
        return (
            f"nfd.transfer(..., {argument})  # the same call; "
            'sweep=nfd.Sweep("out") keeps these runs'
        )


def _with_next(answer: Answer, advice: Advice) -> Answer:
    return answer.with_next(advice.label, advice.python)


def _surely_learns(regret: Regret) -> bool:
    """Whether what the largest network learns is significant."""
    return len(regret.at_best) <= 2 or mean(regret.grid.guess - regret.at_best).low > 0


def _loss_at_small_rate(answer: RuleTransfer) -> float:
    """The largest network's loss at the smallest one's best rate."""
    return math.inf if answer.regret is None else float(answer.regret.new.scores[:, 0].mean())


def _likely_cost(answer: RuleTransfer) -> float:
    """The likely share of progress that a rule costs; infinite where it is not known."""
    share = UNKNOWN if answer.regret is None else answer.regret.share
    return math.inf if answer.doubt or math.isnan(share.value) else share.value


def _lower(best: RuleTransfer, rival: RuleTransfer, large: Size) -> Interval:
    """By how much a rival ends lower at full size, each at its own best rate.

    The rival is chosen by the grid and judged by new starts, so that chance counts once. Rules
    share their seeds, so the test is one of pairs where both have as many.
    """
    of_best = best.reached(large)
    of_rival = rival.reached(large)
    if len(of_best) == len(of_rival):
        return mean(of_best - of_rival)
    return mean(of_best).minus(mean(of_rival))


def growth(answer: RuleTransfer) -> Interval:
    """By how much the best loss changes from the smallest network to the largest, in nats."""
    small, *_, large = answer.cells
    return answer.loss(large).minus(answer.loss(small))


def growth_note(rules: Sequence[RuleTransfer]) -> list[str]:
    """Note where the larger network is not known to be better, under the decided rule."""
    if len(rules[0].cells) < 2 or any(one.regret is None for one in rules):
        return []
    answer = rule_to_decide(rules)
    change = growth(answer)
    if change.high < 0:
        return []
    sizes = [*answer.cells]
    name, _ = rule_in_words(answer.rule)
    word = "worse" if change.low > 0 else "not known to be better"
    changed = change.in_words(" nats", 0.0)
    return [
        f"With {name} the larger network is {word}: from {size_in_words(sizes[0], sizes)} to "
        f"{size_in_words(sizes[-1], sizes)} the best loss changes by {changed}."
    ]


def rule_to_decide(rules: Sequence[RuleTransfer]) -> RuleTransfer:
    """The rule that an answer is about.

    Of rules that transfer it is the one of the lowest loss at the smallest network's best rate; of
    those that may transfer the one that probably costs least; where every rule costs, the one of
    the lowest loss at full size.
    """
    transferring = [one for one in rules if one.verdict == "TRANSFERS"]
    if transferring:
        return min(transferring, key=_loss_at_small_rate)
    undecided = [one for one in rules if one.verdict == "UNCERTAIN"]
    if undecided:
        return min(undecided, key=_likely_cost)
    return min(rules, key=lambda one: float(one.reached(one.largest).mean()))


def _with(rule: str) -> str:
    """``" with the plan complete-p"``; empty for logs without a rule."""
    return "" if rule == "logged" else f" with {rule_in_words(rule)[0]}"


def _with_all(rules: Sequence[str]) -> str:
    if rules == ["logged"]:
        return ""
    return _with(rules[0]) if len(rules) == 1 else " under every rule"


def _probably(rule: str, many: str, one: str) -> str:
    """``PyTorch's defaults probably cost too much``."""
    if rule == "logged":
        return f"A small network's rate probably {one}"
    name, count = rule_in_words(rule)
    return f"{name[0].upper()}{name[1:]} probably {many if count == 2 else one}"


def _saves(rule: str) -> str:
    if rule == "standard":
        return "Keeping the rate saves you that sweep; it does not lower the best loss."
    return "The plan saves you that sweep; it does not lower the best loss."


def _factor(exponent: Interval) -> Interval:
    """What the best rate is multiplied by when a setting doubles."""
    return exponent.scaled(math.log(2)).exp()


# ---- how many more runs


def seeds_needed(share: Interval, seeds: int) -> int:
    """About how many seeds would move the whole interval to one side of the limit.

    A heuristic: intervals narrow as the root of the seeds, and the end that crosses the limit may
    keep ``_ROOM`` of the way from the value to it.
    """
    edge = share.high if share.value < TOLERANCE else share.low
    room = _ROOM * (TOLERANCE - share.value)
    if room == 0 or not math.isfinite(edge):
        return 2**31
    wanted = seeds * ((edge - share.value) / room) ** 2
    return max(seeds + 1, FEWEST_SEEDS, math.ceil(min(wanted, 2.0**31)))


def more_trainings(rules: Sequence[RuleTransfer], now: int, then: int) -> int:
    """How many networks are trained if there are ``then`` seeds in place of ``now``.

    Those of the grid are kept. The regret is measured by twice as many fresh seeds, at the two best
    rates, which move a little with every seed.
    """
    count = 0
    for answer in rules:
        cells: list[Scores] = list(answer.cells.values())
        for against in answer.against.values():
            cells += against.cells.values()
        count += sum(len(cell.log2_eta) for cell in cells) * (then - now)
        if answer.regret is not None:
            count += 2 * 2 * then
    return count


def duration(seconds: float) -> str:
    """``40 seconds``, ``5 minutes``, ``3 hours`` or ``2 days``."""
    for length, unit in ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute")):
        if seconds >= 1.5 * length:
            return plural(round(seconds / length), unit)
    return plural(max(1, round(seconds)), "second")


# ---- the table of a terminal


def cost_rows(rules: Sequence[RuleTransfer]) -> list[dict[str, str]]:
    """What tuning small costs under every rule, with its interval drawn in letters."""
    shares = {one.rule: one.regret.share.scaled(100) for one in rules if one.regret is not None}
    known = [share for share in shares.values() if math.isfinite(share.low + share.high)]
    if not known:
        return []
    low = min(0.0, *(share.low for share in known))
    high = max(2 * LIMIT, *(share.high for share in known))
    strip = _Strip(low, high)
    rows = []
    for answer in rules:
        share = shares.get(answer.rule, UNKNOWN)
        name, _ = rule_in_words(answer.rule)
        rows.append(
            {
                "tuning small with": name,
                "": STATES[answer.verdict][1],
                strip.head: strip.drawn(share),
                "gives up (95 %)": _percent(share),
            }
        )
    return rows


def _percent(share: Interval) -> str:
    if math.isnan(share.value):
        return "unknown"
    value, low, high = alike(share.value, share.low, share.high, LIMIT)
    return f"{value} % ({low} to {high})"


@dataclass(frozen=True)
class _Strip:
    """An axis of letters from ``low`` to ``high``."""

    low: float
    high: float

    def place(self, value: float) -> int:
        """The column of a value."""
        share = (value - self.low) / (self.high - self.low)
        return min(max(round(share * (_STRIP - 1)), 0), _STRIP - 1)

    @property
    def head(self) -> str:
        """The axis: zero where there is room, and the limit."""
        letters = [" "] * (_STRIP + 4)
        limit = self.place(LIMIT)
        letters[limit : limit + 4] = "10 %"
        zero = self.place(0.0)
        # A space keeps the two apart.
        if zero + 1 < limit:
            letters[zero] = "0"
        return "".join(letters).rstrip()

    def drawn(self, share: Interval) -> str:
        """An interval on the axis, with the limit."""
        letters = [" "] * _STRIP
        if math.isfinite(share.low + share.high):
            for place in range(self.place(share.low), self.place(share.high) + 1):
                letters[place] = "─"
        limit = self.place(LIMIT)
        letters[limit] = "┼" if letters[limit] == "─" else "┊"
        if math.isfinite(share.value):
            letters[self.place(share.value)] = "●"
        return "".join(letters).rstrip()
