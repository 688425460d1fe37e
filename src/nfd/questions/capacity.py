"""The law of size of some runs, its floor, the best size for a budget, and what holds the law to account.

The runs are trained (``nfd.questions.capacity_model``) or come from a log (``nfd.questions.capacity_logs``). A size
outside the fit is predicted, then compared with the runs there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from nfd.core.errors import InputError, check_real
from nfd.core.intervals import UNKNOWN, Interval, mean
from nfd.core.tables import rows_as_text
from nfd.questions.budget import BestSize, BestSplit, best_size, best_split
from nfd.questions.costs import Costs, Resource
from nfd.questions.law import Law, Losses
from nfd.questions.power_law import PowerLaw, Sizes


@dataclass(frozen=True)
class HeldOut:
    """A size outside the fit: what the law said of the mean of so many runs, and what they did."""

    size: Sizes
    networks: int
    predicted: Interval
    measured: Interval

    @property
    def inside(self) -> bool:
        """Whether the measured mean lies in the prediction's 95 % interval."""
        return self.predicted.low <= self.measured.value <= self.predicted.high


@dataclass(frozen=True)
class Capacity:
    """The result of ``nfd.scaling_law`` and ``nfd.fit_scaling_law``. Print it to see the table.

    A law of size, fitted to the losses of runs, and the best size for a budget.

    Attributes:
        law: ``floor + a/n + b/L`` (``Law``), or a law of other variables (``PowerLaw``).
        losses: of the fitted runs, by size, in the order of ``law.variables``.
        about: a description of the runs. score: the kind of their loss, in words.
        costs: parameters and operations of networks of any size, if known.
        held_out: the largest size, predicted by a fit without it.
        shorter: the law without the smallest sizes, if enough are left. A floor that moves without them is not yet the
            limit, even if the law fits well.
        lr: the rate of the runs, if they share one.
        speed: operations per second at which the largest network was trained; not-a-number if not known.
        notes: which runs were left out, and why; why small networks were trained one after another.

    Example::

        from random import Random

        noise = Random(0)
        rows = [
            {"width": n, "depth": L, "seed": seed, "loss": 1 + 4 / n + 1 / L + noise.gauss(0, 0.01)}
            for n in (64, 128, 256)
            for L in (4, 8, 16)
            for seed in (0, 1)
        ]
        capacity = nfd.fit_scaling_law(rows)
        capacity.floor.value, capacity.floor.low, capacity.floor.high
        capacity.at(width=512, depth=32)  # the loss of a larger network, with its interval
    """

    law: Law | PowerLaw
    losses: Losses = field(repr=False)
    about: str
    score: str = "test loss"
    costs: Costs | None = None
    held_out: HeldOut | None = None
    shorter: Law | PowerLaw | None = None
    lr: float = math.nan
    speed: float = math.nan
    notes: tuple[str, ...] = ()

    @property
    def trusted(self) -> dict[str, float]:
        """The smallest value of each variable that was fitted; smaller ones bend the law or were not trained."""
        return dict(zip(self.law.variables, self.law.smallest, strict=True))

    @property
    def floor(self) -> Interval:
        """The loss of the infinitely large network, with its 95 % interval: every variable of the law is infinite.

        Not-a-number where the law may not be extrapolated (``law.good``); ``law.note`` says what would settle it.
        """
        return self.law.floor if self.law.good else UNKNOWN

    def at(
        self,
        width: float | None = None,
        depth: float | None = None,
        *,
        parameters: float | None = None,
        tokens: float | None = None,
    ) -> Interval:
        """The mean loss of runs of a size by the law, with its 95 % interval.

        Args:
            width, depth, parameters, tokens: the variables of the law; each may be ``math.inf``. ``tokens`` is by
                default the largest number that was fitted.

        Raises:
            ValueError: if a variable of the law is missing or does not belong to it, and outside of the fitted sizes
                if the law may not be extrapolated.
        """
        named = {"width": width, "depth": depth, "parameters": parameters, "tokens": tokens}
        given = {name: size for name, size in named.items() if size is not None}
        if others := [name for name in given if name not in self.law.variables]:
            raise InputError(f"the law is in {' and '.join(self.law.variables)}; got {', '.join(others)}. Drop it.")
        longest = dict(zip(self.law.variables, self.law.largest, strict=True))
        sizes = ({"tokens": longest["tokens"]} if "tokens" in longest else {}) | given
        if missing := [name for name in self.law.variables if name not in sizes]:
            raise InputError(f"the law is in {' and '.join(self.law.variables)}; give {' and '.join(missing)} as well.")
        return self.law.loss(*(sizes[name] for name in self.law.variables))

    def best(
        self,
        *,
        parameters: float | str | None = None,
        flops: float | str | None = None,
        memory: float | str | None = None,
        seconds: float | None = None,
    ) -> BestSize | BestSplit:
        """The size of the lowest loss within one budget, such as ``parameters="2M"`` or ``flops=1e18``.

        Args:
            parameters: numbers that the network stores.
            flops: floating-point operations of one whole training.
            memory: bytes of one training, such as ``"4 GiB"``.
            seconds: of one training, at the speed at which the largest network was trained.

        Returns:
            The best width and depth, or the best numbers of parameters and tokens for a law in these, with the cost
            and the predicted loss; ``inside`` says whether that was fitted.

        Raises:
            ValueError: without exactly one budget, if it cannot be read or is too small for any size, if the costs are
                not known, and if the losses do not tell which size is best.
        """
        if seconds is not None and flops is None:
            if math.isnan(self.speed):
                raise InputError("how fast these networks train is not known. Give the budget as flops.")
            flops = self.speed * check_real("seconds", seconds, above=0.0)
        elif seconds is not None:
            raise InputError("best needs one budget; got flops and seconds. Drop one.")
        budgets: dict[Resource, float | str | None] = {"parameters": parameters, "flops": flops, "memory": memory}
        given = [(resource, budget) for resource, budget in budgets.items() if budget is not None]
        if len(given) != 1:
            raise InputError(f"best needs one budget: parameters, flops or memory; got {len(given)}.")
        resource, budget = given[0]
        if isinstance(self.law, PowerLaw) and self.law.variables == ("parameters", "tokens"):
            return best_split(self.law, resource, budget)
        if self.law.variables[:2] != ("width", "depth") or self.costs is None:
            raise InputError(
                f"the best size for {resource} needs a law in width and depth, and what sizes cost; this law is in "
                f"{' and '.join(self.law.variables)}{'' if self.costs else ', and nothing is known of the costs'}."
            )
        return best_size(self.law, self.costs, resource, budget)

    def named(self, size: Sizes) -> str:
        """A size in words: ``width 64 and depth 4``."""
        return " and ".join(f"{name} {x:,.10g}" for name, x in zip(self.law.variables, size, strict=True))

    @property
    def table(self) -> list[dict[str, Any]]:
        """One dict per quantity: the numbers of the law, and the mean loss of each size.

        ``value``, ``stderr``, ``low`` and ``high`` are a number, its standard error and its 95 % interval.
        """
        terms = self.law.terms | {"floor": self.floor}
        about: dict[str, Any] = dict.fromkeys(self.law.variables)
        rows = [{"quantity": name, **about, **term.limits} for name, term in terms.items()]
        for size, losses in sorted(self.losses.items()):
            sizes = dict(zip(self.law.variables, size, strict=True))
            rows.append({"quantity": self.score, **sizes, **mean_of(losses).limits})
        return rows

    def __str__(self) -> str:
        notes = " ".join(filter(None, (self.law.note, *self.notes)))
        return f"{self.law.equation}: {self.law.test}\n{rows_as_text(self.table)}\n{notes}".strip()


def mean_of(losses: Sequence[float]) -> Interval:
    """The mean loss of the runs of a size."""
    return mean(losses)


def largest_held_out(fit: Callable[[Any], Any], losses: Losses) -> HeldOut | None:
    """The largest size, by a law without it; None where that law may not be extrapolated."""
    trained = {size: runs for size, runs in losses.items() if all(map(math.isfinite, runs))}
    largest = max(trained, key=math.prod)
    with suppress(InputError):
        law = fit({size: runs for size, runs in trained.items() if size != largest})
        runs = trained[largest]
        return HeldOut(largest, len(runs), law.network(*largest, networks=len(runs)), mean_of(runs))
    return None


def shorter(fit: Callable[[Any], Law | PowerLaw], losses: Losses) -> Law | PowerLaw | None:
    """The law without the smallest size of each variable; None where three of each are not left."""
    axes = [{*sizes} for sizes in zip(*losses, strict=True)]
    if min(map(len, axes)) < 4:
        return None
    least = [min(sizes) for sizes in axes]
    with suppress(InputError):
        return fit(
            {size: runs for size, runs in losses.items() if all(x > x0 for x, x0 in zip(size, least, strict=True))}
        )
    return None
