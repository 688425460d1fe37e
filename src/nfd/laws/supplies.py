"""What stands behind a size: the distinct tokens that repeat, and all parameters of experts.

Tokens that repeat are worth fewer new ones. Of D tokens, U of them distinct,

    ``D' = U + U R (1 - exp(-(D/U - 1) / R))``

count, where R is the number of repeats whose worth is nearly that of new tokens. Of a mixture of
experts a token uses N parameters of T in all, and

    ``N' = N (T / N)^g``

count: g = 0 says that idle experts are worth nothing, g = 1 that they are worth as much as those in
use. The loss law is one in N' and D'; its compute stays 6 N D.

Sources: Muennighoff et al. 2023, "Scaling data-constrained language models" (D', whose R is 15.4).
The prior of g has its middle near the rule of thumb that a mixture is worth a dense network of
``sqrt(N T)`` parameters; published fits say less at few experts and more at many (Clark et al.
2022, "Unified scaling laws for routed language models").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nfd.core.words import plural
from nfd.laws.logged_runs import LoggedRun

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Supply:
    """What a variable of a size is drawn from, and the prior of how much it is worth.

    Attributes:
        name: its field, and how it is asked for.
        variable: of the size.
        letter: its number in the law.
        mean, error: the prior of that number, of R in its logarithm.
        is_larger: whether the supply is at least the variable (T), not at most (U).
        formula: what counts of the variable, in words.
    """

    name: str
    variable: str
    letter: str
    mean: float
    error: float
    is_larger: bool
    formula: str

    def ratio(self, used: Array, supply: Array) -> Array:
        """How often tokens repeat, D / U, or T / N; at least 1."""
        ratio = supply / used if self.is_larger else used / supply
        return np.maximum(ratio, 1.0)

    def log_worth(self, ratio: Array, numbers: Array) -> Array:
        """The logarithm of N' / N or D' / D, ``[B, K]``.

        Args:
            ratio: of runs, ``[K]``.
            numbers: of draws, as the prior has them, ``[B]``.
        """
        if self.is_larger:
            return np.asarray(numbers[:, None] * np.log(ratio))
        R = np.exp(numbers)[:, None]
        return np.asarray(np.log((1 - R * np.expm1(-(ratio - 1) / R)) / ratio))

    def shown(self, numbers: Array) -> Array:
        """The numbers as the law's terms are written: R itself, not its logarithm."""
        return numbers if self.is_larger else np.asarray(np.exp(numbers))


# Tokens that repeat more often teach a network of many parameters its data by heart, and its loss
# rises, which the law does not have: of 231 published sizes, forecasts from those that repeat up to
# 16 times were off by 8 % at most, and by 15 to 21 % from those up to 60 times.
MOST_REPEATS = 16.0
# All parameters show what idle ones are worth where they vary by so much about a power of the
# active ones, as a standard deviation of their logarithm.
_FREE = 0.1

SUPPLIES = {
    # Its authors fit R to parts of their runs: 4 to 30 (utils/parametric_fit.ipynb).
    "unique_tokens": Supply(
        "unique_tokens",
        "tokens",
        "R",
        math.log(15.4),
        0.7,
        False,
        "D' = U + U R (1 - exp(-(D/U - 1) / R)) of U unique tokens",
    ),
    "total_parameters": Supply(
        "total_parameters",
        "parameters",
        "g",
        0.4,
        0.25,
        True,
        "N' = N (T / N)^g of T total parameters",
    ),
}


def supplies_of(
    runs: Sequence[LoggedRun], variables: Sequence[str], notes: list[str]
) -> tuple[str, ...]:
    """Name what runs differ in behind their sizes; a note says what is not used, and why."""
    supplies = list[str]()
    if "tokens" in variables and _repeat(runs):
        supplies.append("unique_tokens")
    if "parameters" in variables and "tokens" in variables:
        totals = [run for run in runs if run.total_parameters]
        if totals and _are_free(totals):
            supplies.append("total_parameters")
        elif any((run.total_parameters or 0) > (run.parameters or 0) for run in totals):
            notes.append(
                "The law is in the parameters that a token uses: in these runs all parameters "
                "follow them, so what idle experts are worth is not shown. Forecasts are of "
                "networks as sparse as these."
            )
    return tuple(supplies)


def _repeat(runs: Sequence[LoggedRun]) -> bool:
    """Whether tokens of any run repeat."""
    for run in runs:
        if run.tokens and run.unique_tokens and run.tokens > 1.001 * run.unique_tokens:
            return True
    return False


def _are_free(runs: Sequence[LoggedRun]) -> bool:
    """Whether all parameters vary beside a power of the active ones."""
    active = np.log([run.parameters or 1.0 for run in runs])
    totals = np.log([run.total_parameters or 1.0 for run in runs])
    columns = np.stack([np.ones(len(runs)), active], 1)
    explained = columns @ np.linalg.lstsq(columns, totals)[0]
    return float((totals - explained).std()) > _FREE


def with_supplies(runs: Sequence[LoggedRun], supplies: Sequence[str]) -> list[LoggedRun]:
    """Complete runs: without a number their tokens are new, and all parameters in use."""
    complete = list(runs)
    if "unique_tokens" in supplies:
        complete = [replace(run, unique_tokens=run.unique_tokens or run.tokens) for run in complete]
    if "total_parameters" in supplies:
        complete = [
            replace(run, total_parameters=run.total_parameters or run.parameters)
            for run in complete
        ]
    return complete


def few_repeats(
    losses: dict[tuple[float, ...], list[float]],
    variables: Sequence[str],
    supplies: Sequence[str],
    notes: list[str],
) -> dict[tuple[float, ...], list[float]]:
    """Leave out sizes whose tokens repeat too often for the law, with a note."""
    if "unique_tokens" not in supplies:
        return losses
    tokens = variables.index("tokens")
    unique = len(variables) + supplies.index("unique_tokens")
    kept = {}
    for size, of_seeds in losses.items():
        if size[tokens] <= MOST_REPEATS * size[unique]:
            kept[size] = of_seeds
    if len(kept) < len(losses):
        notes.append(
            f"Left out: {plural(len(losses) - len(kept), 'size')} whose tokens repeat more than "
            f"{MOST_REPEATS:g} times, where networks learn them by heart."
        )
    return kept
