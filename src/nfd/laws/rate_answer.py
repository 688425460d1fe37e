"""What a law of the best learning rate says, and the advice for one training, as answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nfd.core.answer import NOT_DECIDED, Answer, Next
from nfd.core.estimates import Interval
from nfd.core.words import alike, listed, number, plural, power_of_ten

if TYPE_CHECKING:
    from nfd.laws.rate_advice import BestRate
    from nfd.laws.rate_law import Cell, RateLaw

# Share of the loss: advice that costs more on average does not decide.
_DEAR = 0.01
# A smaller chance of divergence is not said, and at a larger one "at most" says nothing.
_LEAST_CHANCE = 0.005
_MOST_CHANCE = 0.025
# Exponents in words, in the order in which they are written.
_POWERS = {
    "parameters": "parameters",
    "tokens": "tokens, at large batches",
    "small-batch tokens": "tokens, at small batches",
    "batch": "batch, below the critical one",
    "critical_batch": "critical batch, with tokens",
}
# How much larger than the table's the training is that a law is asked for as an example.
_FURTHER = 10.0


class GridEnd(NamedTuple):
    """The end of a measured size's rates at which its lowest loss lies, and rates beyond it."""

    rate: float
    beyond: tuple[float, float]


def grid_end(cell: Cell, factor: float) -> GridEnd | None:
    """The end at which the best run of a cell lies; None where it lies inside.

    Args:
        factor: from the cell's rates to the user's.
    """
    best = int(cell.losses.argmin())
    last = len(cell.losses) - 1
    if 0 < best < last or last < 1:
        return None
    step = (cell.log2_rates[-1] - cell.log2_rates[0]) / last
    direction = -1 if best == 0 else 1
    end = cell.log2_rates[best]
    beyond = [factor * 2.0 ** float(end + direction * k * step) for k in (1, 2)]
    return GridEnd(factor * 2.0 ** float(end), (beyond[0], beyond[1]))


def training_in_words(best: BestRate) -> str:
    """``7B parameters on 4T tokens``; what was not said of the training is left out."""
    sizes = best.sizes
    parts = [
        f"{number(sizes[name], 3)} {name}" for name in ("parameters", "tokens") if name in sizes
    ]
    return " on ".join(parts) or f"batches of {number(sizes['batch'], 3)} tokens"


def of_training(best: BestRate) -> Answer:
    """The answer of an advice for one training."""
    if not best.sizes:
        rate = number(best.advised)
        return Answer("good", "Advised", f"Multiply the learning rate by {rate}", _cost(best))
    about = best.law.about if best.law is not None else ""
    training = training_in_words(best)
    end = best.at_end
    if end is not None:
        beyond = listed([number(rate) for rate in sorted(end.beyond)])
        return Answer(
            "open",
            NOT_DECIDED,
            f"The best rate of {training} lies at the end of your grid, {number(end.rate)}",
            f"There the lowest loss is that of the last rate that was tried. {_cost(best)}",
            next=Next(f"Train there at {beyond} too; add the runs, then", "nfd.fit_rate_law(rows)"),
            about=about,
        )
    is_decided = best.excess.value <= _DEAR
    rate = number(best.advised)
    title = f"Train {training} at learning rate {rate}"
    following = Next("Next: forecast its loss", _forecast(best))
    if not is_decided:
        several = listed([number(best.advised * factor) for factor in (0.5, 1.0, 2.0)])
        title = f"Probably train {training} at learning rate {rate}"
        following = Next(
            f"Train a tenth as long at {several}; add the runs, then", "nfd.fit_rate_law(rows)"
        )
    chance = ""
    if best.diverges >= _LEAST_CHANCE:
        chance = f"training diverges with a chance of {100 * best.diverges:.2g} % at this rate."
    return Answer(
        "good" if is_decided else "open",
        "Advised" if is_decided else NOT_DECIDED,
        title,
        _cost(best),
        chance,
        following,
        about,
    )


def _forecast(best: BestRate) -> str:
    """The call that forecasts the loss of a training."""
    sizes = {name: size for name, size in best.sizes.items() if name != "batch"}
    return f'nfd.fit_ladder(rows, rate="best").at({_arguments(sizes)})'


def _cost(best: BestRate) -> str:
    """The best rate, and what missing it costs."""
    cost = best.excess.scaled(100)
    place = "The best rate is"
    if "batch" in best.sizes and len(best.sizes) > 1:
        place = f"In batches of {number(best.sizes['batch'], 3)} tokens the best rate is"
    text = (
        f"{place} {best.rate.in_words()}; missing it costs {number(cost.value)} % of the loss on "
        "average"
    )
    # Where a diverged run is within the interval, its chance says more than a whole loss.
    if best.diverges < _MOST_CHANCE:
        text += f", at most {number(cost.high)} %"
    return f"{text}."


def of_law(law: RateLaw) -> Answer:
    """The answer of a law: how the best rate follows what varied."""
    asked = further(law)
    first, *others = asked
    parts = [f"Doubling {first} multiplies the best rate by {number(_times(law, first))}"]
    parts += [f"{name} by {number(_times(law, name))}" for name in others]
    title = listed(parts)
    power = law.exponents[first].in_words()
    sweeps = plural(len(law.sources), "published sweep")
    if not len(law.found):
        because = f"Its power of {first} is {power}, by {sweeps}."
    else:
        prior = f"and {sweeps}" if law.sources else "without published sweeps"
        because = (
            f"Its power of {first} is {power}, by {plural(len(law.found), 'size')} of your table "
            f"{prior}."
        )
    return Answer(
        "good",
        "Law fitted",
        title,
        because,
        next=Next("Next: ask for the training that you plan", f"law.at({_arguments(asked)})"),
        about=law.about,
        table=power_rows(law),
        details=law.sentences,
    )


def power_rows(law: RateLaw) -> list[dict[str, str]]:
    """The exponents in words."""
    rows = list[dict[str, str]]()
    for name, words in _POWERS.items():
        power = law.exponents[name]
        value, low, high = alike(power.value, power.low, power.high)
        rows.append({"the best rate follows": words, "power": value, "95 %": f"{low} to {high}"})
    return rows


def further(law: RateLaw) -> dict[str, float]:
    """A training ten times as large as the largest of the table, by what varied."""
    sizes = dict[str, float]()
    usual = law.usual
    for place, name in enumerate(usual):
        # What public sweeps have in common may be asked for any training.
        if law.varied and name not in law.varied:
            continue
        largest = usual[name]
        if len(law.places):
            largest *= 2.0 ** float(law.places[:, place].max() - law.places[:, place].mean())
        grown = largest if name == "batch" else _FURTHER * largest
        sizes[name] = float(f"{grown:.1g}")
    return sizes


def _times(law: RateLaw, name: str) -> float:
    """What the best rate is multiplied by when one size doubles, at the middle of the table."""
    usual = law.usual
    place = list(usual).index(name)
    here = law.doublings(usual)
    there = here + np.eye(len(usual))[place]
    means, _ = law.predicted(np.stack([here, there]))
    step = float(means[1] - means[0])
    return math.pow(2, step - law.scaled.get(name, 0.0))


def _arguments(sizes: Mapping[str, float]) -> str:
    """Sizes as arguments of Python: ``parameters=7e9, tokens=4e12``."""
    return ", ".join(f"{name}={power_of_ten(size, 3)}" for name, size in sizes.items())


def interval_of(mean: float, deviation: float) -> Interval:
    """A rate from log2 of it, with its 95 % interval."""
    half = 1.96 * deviation
    value = math.pow(2, mean)
    error = value * deviation * math.log(2)
    return Interval(value, error, math.pow(2, mean - half), math.pow(2, mean + half))
