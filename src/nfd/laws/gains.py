"""What one more seed buys against one more size, by the variance that was fitted.

The cost of tuning small is a mean over seeds of the largest network: its half-width falls as the
root of their number, times Student's t of their degrees of freedom; its part that allows for a
divergence that nobody saw falls as their number. With m the cost, s its standard
error after n seeds and h the half-width to expect after n',

    ``m' ~ N(m, s^2 (1 - n / n'))``

is the cost to expect then, and the chance to decide is that of ``m' + h`` below the limit or
``m' - h`` above. Another size says nothing of the cost at the largest one. It lengthens the span
over which the drift of the best rate is fitted, whose variance is the variance of one size's best
rate times the sum of squares of the weights of least squares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from nfd.core.estimates import combined, standard_errors
from nfd.core.names import AXES, Axis
from nfd.core.words import number, plural
from nfd.laws.best_rate import SCATTER_SEEDS, Size
from nfd.laws.bowl import Array
from nfd.laws.regret import Regret
from nfd.laws.rule_transfer import TOLERANCE, RuleTransfer
from nfd.laws.sequential import LEVEL, PRIOR_FREEDOM


@dataclass(frozen=True)
class Gain:
    """What some trainings more buy under a rule.

    Attributes:
        adds: what is trained more. trainings: how many, about.
        cost: half-width to expect of the cost, over the progress.
        chance: to decide; not-a-number where it is decided, or is not a matter of these trainings.
        drift: half-width to expect of the best rate's doublings per doubling of a size;
            not-a-number where nobody says.
    """

    rule: str
    adds: str
    trainings: int
    cost: float
    chance: float
    drift: float

    @property
    def row(self) -> dict[str, str]:
        """A row of a table for people."""
        return {
            "rule": self.rule,
            "adds": self.adds,
            "trainings": f"about {self.trainings}",
            "cost known to": _plus_minus(100 * self.cost, " %"),
            "chance to decide": _percent(self.chance),
            "drift known to": _plus_minus(self.drift, " doublings"),
        }

    @property
    def sentence(self) -> str:
        """The row in words, for a terminal."""
        buys = [f"{name} {text}" for name, text in list(self.row.items())[3:] if text]
        adds = f"{self.adds[0].upper()}{self.adds[1:]}"
        return f"{adds} with {self.rule} ({self.row['trainings']} runs): {', '.join(buys)}."


def gains(rule: RuleTransfer) -> list[Gain]:
    """What one more seed, as many seeds again, and one more size buy under a rule.

    Empty where no cost was measured.
    """
    if rule.regret is None or not math.isfinite(rule.regret.share.high - rule.regret.share.low):
        return []
    name = rule.rule
    axis = next(iter(rule.drifts), None)
    rows = list[Gain]()
    for more in dict.fromkeys((1, _seeds(rule))):
        runs = _runs_of_seeds(rule, more)
        cost = cost_after(rule, more)
        chance = chance_after(rule, more)
        drift = drift_after_seeds(rule, axis, more)
        rows.append(Gain(name, plural(more, "more seed"), runs, cost, chance, drift))
    if axis is not None:
        smallest = next(iter(rule.cells.values()))
        runs = int(smallest.counts.sum())
        cost = cost_after(rule, 0)
        drift = drift_after_size(rule, axis)
        rows.append(Gain(name, f"a size of twice the {axis}", runs, cost, math.nan, drift))
    return rows


def cost_after(rule: RuleTransfer, more: int) -> float:
    """The half-width to expect of the cost after more seeds, over the progress."""
    if rule.regret is None:
        return math.nan
    share = rule.regret.share
    now = len(rule.regret.new.losses)
    then = now + _compared(rule, more)
    # The end that has to move to the other side of the limit, or past which a verdict fails.
    half = share.high - share.value if share.value < TOLERANCE else share.value - share.low
    calm = min(_errors(rule, now) * _calm_error(rule.regret), half)
    of_chance = math.sqrt(half * half - calm * calm)
    calm *= math.sqrt(now / then) * _errors(rule, then) / _errors(rule, now)
    # What may diverge as often as no run did falls as their number, what was seen as its root.
    has_diverged = bool((rule.regret.new.losses >= rule.regret.grid.guess).any())
    of_chance *= math.sqrt(now / then) if has_diverged else now / then
    return math.hypot(calm, of_chance)


def _calm_error(regret: Regret) -> float:
    """The standard error of the cost without the chance to diverge, over the progress."""
    paid = regret.new.scores[:, 0] - regret.at_best
    progress = regret.grid.guess - float(regret.at_best.mean())
    return float(paid.std(ddof=1)) / math.sqrt(len(paid)) / progress


def chance_after(rule: RuleTransfer, more: int) -> float:
    """The chance that more seeds decide; not-a-number where it is decided."""
    if rule.regret is None or rule.verdict != "UNCERTAIN":
        return math.nan
    share = rule.regret.share
    now = len(rule.regret.new.losses)
    then = now + _compared(rule, more)
    half = cost_after(rule, more)
    spread = share.stderr * math.sqrt(1 - now / then)
    below = ndtr((TOLERANCE - half - share.value) / spread)
    above = ndtr((share.value - TOLERANCE - half) / spread)
    return float(below + above)


def _errors(rule: RuleTransfer, seeds: int) -> float:
    """Half of an interval of the cost in standard errors."""
    if rule.decision is None:
        return standard_errors(seeds - 1)
    return standard_errors(seeds - 1 + PRIOR_FREEDOM, LEVEL)


def _compared(rule: RuleTransfer, more: int) -> int:
    """How many more seeds compare the two rates: of a grid twice as many, fresh ones."""
    return 2 * more if rule.decision is None else more


def _seeds(rule: RuleTransfer) -> int:
    """The seeds of the largest network of a search, and of a grid."""
    if rule.regret is None or rule.decision is None:
        return len(rule.cells[rule.largest].losses)
    return len(rule.regret.new.losses)


def _runs_of_seeds(rule: RuleTransfer, more: int) -> int:
    """How many trainings more seeds are: at the rates compared, or at every size of a grid."""
    if rule.decision is not None:
        return more * rule.decision.compared
    rates = sum(len(cell.log2_eta) for cell in rule.cells.values())
    return more * (rates + 4)


# ---- the drift


def drift_after_size(rule: RuleTransfer, axis: Axis) -> float:
    """The half-width to expect of the drift with a size of twice the largest along an axis."""
    sizes = _inside(rule)
    place = AXES.index(axis)
    largest = list(rule.largest)
    largest[place] *= 2
    now = _weights(sizes, axis)
    then = _weights([*sizes, (largest[0], largest[1])], axis)
    return _drift_half(rule, axis) * float(np.linalg.norm(then) / np.linalg.norm(now))


def drift_after_seeds(rule: RuleTransfer, axis: Axis | None, more: int) -> float:
    """The half-width to expect of the drift after more seeds of every size.

    Not-a-number for a search, whose seeds go to the rates that are compared, and where one seed
    leaves the distances to a power law as the only noise.
    """
    if axis is None or rule.decision is not None or _seeds(rule) < 2:
        return math.nan
    drift = rule.drifts[axis]
    now = _seeds(rule)
    then = now + more
    cells = [rule.cells[size] for size in _inside(rule)]
    # The part of the form of a bowl is not noise of seeds: more of them do not lower it.
    weights = _weights(_inside(rule), axis)
    form = sum(
        float(weight) ** 2 * (cell.posterior.variance - cell.posterior.single)
        for weight, cell in zip(weights, cells, strict=True)
    )
    of_seeds = max(drift.stderr**2 - form, 0.0) * now / then
    freedom = then - 1 + SCATTER_SEEDS
    interval = combined(drift.value, [(of_seeds, freedom), (form, math.inf)])
    return (interval.high - interval.low) / 2


def _drift_half(rule: RuleTransfer, axis: Axis) -> float:
    drift = rule.drifts[axis]
    return (drift.high - drift.low) / 2


def _inside(rule: RuleTransfer) -> list[Size]:
    """The sizes whose best rate is known, by which the drift is fitted."""
    return [size for size, cell in rule.cells.items() if cell.has_optimum]


def _weights(sizes: list[Size], axis: Axis) -> Array:
    """The weights by which least squares add up best rates to the drift along an axis."""
    rows = np.array([[1.0, math.log2(width), math.log2(depth)] for width, depth in sizes])
    weights: Array = np.linalg.pinv(rows)[1 + AXES.index(axis)]
    return weights


# ---- in words


def _plus_minus(half: float, unit: str) -> str:
    return f"± {number(half, 2)}{unit}" if math.isfinite(half) else ""


def _percent(chance: float) -> str:
    """A chance to the percent, never 0 or 100 %; empty where nobody says."""
    if math.isnan(chance):
        return ""
    if chance < 0.01:
        return "under 1 %"
    return "over 99 %" if chance > 0.99 else f"{100 * chance:.0f} %"
