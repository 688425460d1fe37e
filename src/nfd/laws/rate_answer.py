"""What a law of the best learning rate says, and the advice for one training, as answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nfd.core.answer import NOT_DECIDED, Answer, Next
from nfd.core.estimates import Interval
from nfd.core.words import alike, listed, number, plural, power_of_ten
from nfd.laws.loss_runs import FEWEST_SIZES, sizes_in_words

if TYPE_CHECKING:
    from nfd.laws.rate_advice import BestRate
    from nfd.laws.rate_law import Cell, RateLaw

# Share of the loss: advice that costs more on average does not decide.
_DEAR = 0.01
# Share of the loss that the advice may cost at most: halving the compute costs about as much.
_DEAREST = 0.05
# Of the asked parameters over those of a table of one size, or the other way round: further away
# the power of public sweeps, known to a quarter, leaves half a doubling of the rate open.
_FAR = 4.0
# A smaller chance of divergence is left to the details, and at a larger one "at most" says nothing.
_LEAST_CHANCE = 0.01
_MOST_CHANCE = 0.025
# Exponents in words, in the order in which they are written.
_POWERS = {
    "parameters": "parameters",
    "tokens": "tokens, at large batches",
    "small-batch tokens": "tokens, at small batches",
    "batch": "batch, below the critical one",
    "critical_batch": "critical batch, with tokens",
}
# What must vary in a table for it to say a power, where that is not the power's own name.
_FOLLOWS = {"small-batch tokens": ("tokens",), "critical_batch": ("tokens", "batch")}
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
    title = f"Train {training} at learning rate {number(best.advised)}"
    size_to_add = _second_size(best)
    is_dear = best.excess.value > _DEAR or best.excess.high > _DEAREST
    is_open = is_dear or size_to_add is not None
    because = _cost(best)
    chance = f"training diverges with a chance of {100 * best.diverges:.2g} % at this rate."
    # Before a rate is advised, what it risks is a detail.
    is_told = best.diverges >= _LEAST_CHANCE and size_to_add is None
    following = _after_training(best)
    open_title = title.replace("Train", "Probably train", 1)
    if size_to_add is not None:
        open_title = f"Sweep a second size before you train {training}"
        because = (
            "One size cannot say how the rate follows size. By public sweeps the best guess is "
            f"{number(best.advised)}. {because}"
        )
        following = _sweep(best.law, size_to_add)
    elif is_dear:
        several = listed([number(best.advised * factor) for factor in (0.5, 1.0, 2.0)])
        following = _again(f"Train a tenth as long at {several}")
    return Answer(
        "open" if is_open else "good",
        NOT_DECIDED if is_open else "Advised",
        open_title if is_open else title,
        because,
        chance if is_told else "",
        following,
        about,
        details=[] if is_told or not best.diverges else [chance.capitalize()],
    )


def _sweep(law: RateLaw | None, parameters: float) -> Next:
    """Three learning rates at another size, about the one that public sweeps would advise there."""
    if law is None:
        return _again(f"Sweep a second size, for example {number(parameters)} parameters")
    sizes = law.usual | {"parameters": parameters}
    middle = law.at(sizes["parameters"], sizes["tokens"], sizes["batch"]).advised
    rates = listed([number(middle * factor) for factor in (0.5, 1.0, 2.0)])
    tokens = "" if "tokens" in law.unsaid else f" on {number(sizes['tokens'])} tokens"
    return _again(f"Train {number(parameters)} parameters{tokens} at {rates}")


def _second_size(best: BestRate) -> float | None:
    """The parameters to sweep next, where one size is asked for a rate far from it; else None."""
    from nfd.laws.table_rule import TableRule

    law = best.law
    asked = best.sizes.get("parameters")
    if law is None or asked is None or not len(law.places):
        return None
    # Under a rule that scales, the rate hardly follows size.
    if {"parameters"} & {*law.varied, *law.unsaid} or TableRule(law.rule).scales:
        return None
    size = law.usual["parameters"]
    if max(asked / size, size / asked) < _FAR:
        return None
    return size * _FAR if asked > size else size / _FAR


def _again(runs: str) -> Next:
    """More runs for the law."""
    return Next(f"{runs}; add the runs, then", "nfd.fit_rate_law(rows)")


def _after_training(best: BestRate) -> Next:
    """What to do with the advice: train, and let the run show whether the losses follow a law."""
    if best.law is None or not can_forecast(best.law):
        return Next("Next: train it", f"{training_in_words(best)}, lr {number(best.advised)}")
    return Next("Next: train it, add its row, then", 'nfd.fit_ladder(rows, rate="best")')


def can_forecast(law: RateLaw) -> bool:
    """Whether a table has sizes enough for a law of the loss."""
    return len(pairs_of(law)) >= FEWEST_SIZES


def pairs_of(law: RateLaw) -> list[tuple[float, float]]:
    """The pairs of parameters and tokens that a law was fitted to."""
    pairs = {(parameters, tokens) for parameters, tokens, _ in law.places.tolist()}
    return sorted(pairs)


def _cost(best: BestRate) -> str:
    """What the advice costs, and where the best rate lies."""
    cost = best.excess.scaled(100)
    text = f"This rate costs {number(cost.value)} %"
    # Where a diverged run is within the interval, its chance says more than a whole loss.
    if best.diverges < _MOST_CHANCE:
        text += f" (95 %: at most {number(cost.high)} %)"
    text += " of the loss on average"
    batch = _batch(best)
    place = "The best rate lies between"
    if batch is not None:
        place = f"In batches of {number(batch, 3)} tokens the best rate lies between"
    _, low, high = alike(best.rate.value, best.rate.low, best.rate.high)
    text += f". {place} {low} and {high} (95 %)"
    left_out = "" if best.law is None else best.law.left_out
    return f"{text}. {left_out}".rstrip()


def _batch(best: BestRate) -> float | None:
    """The batch that the advice holds for; None where the title says it, or nobody does."""
    law = best.law
    if {*best.sizes} == {"batch"} or law is None:
        return None
    if "batch" in best.sizes:
        return best.sizes["batch"]
    return None if "batch" in law.unsaid or not len(law.places) else law.usual["batch"]


def of_law(law: RateLaw) -> Answer:
    """The answer of a law: how the best rate follows what varied."""
    asked = further(law)
    first, *others = asked
    parts = [f"Doubling {first} multiplies the best rate by {number(_times(law, first))}"]
    parts += [f"{name} by {number(_times(law, name))}" for name in others]
    title = listed(parts)
    power = law.exponents[first].in_words()
    sweeps = plural(len(law.sources), "published sweep")
    sizes = f"{sizes_in_words(pairs_of(law))} of your table"
    prior = f"and {sweeps}" if law.sources else "without published sweeps"
    source = f"by {sizes} {prior}"
    if not len(law.found):
        source = f"by {sweeps}"
    elif first not in law.varied:
        source = f"by {sweeps}: your table has one number of {first}"
    because = f"Its power of {first} is {power}, {source}. {law.left_out}".rstrip()
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
        row = {"the best rate follows": words, "power": value, "95 %": f"{low} to {high}"}
        rows.append(row | {"from": _source(law, name)})
    return rows


def _source(law: RateLaw, name: str) -> str:
    """Where a power comes from: of what does not vary in the table, only public sweeps say it."""
    follows = _FOLLOWS.get(name, (name,))
    if not {*follows} <= {*law.varied}:
        return "public sweeps" if law.sources else "no run"
    return "table and sweeps" if law.sources else "your table"


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
