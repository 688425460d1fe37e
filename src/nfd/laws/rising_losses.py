"""Losses that do not fall with size: what they look like, and where to go.

They may be an accuracy, runs of one budget (an isoFLOP profile), networks of which the larger ones
were trained at a learning rate that is too high for them, or networks that overfit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nfd.core.words import listed, number

Array = NDArray[np.float64]

# Budgets within this factor are one.
_ONE_BUDGET = 1.3
# The correlation of accuracies with the rank of their size, at least.
_RISES = 0.7
# So many sizes may be a ladder along one line.
_FEW = 8
# Pairs of sizes are counted among so many.
_COMPARED = 500
# Of the sizes that do not fit, so many are named.
_MOST_NAMED = 4


def about_rising(
    variables: Sequence[str], sizes: Array, costs: Array, losses: Array, score: str
) -> str:
    """Say why losses are not those of a law of size; empty where they fall.

    Args:
        variables, sizes: of the runs, ``[K, variables]``.
        costs: operations of each size, or its only variable, ``[K]``.
        losses: the mean loss of each size, ``[K]``.
        score: the name of their column.
    """
    if costs.max() <= _ONE_BUDGET * costs.min():
        # Runs of one budget show nothing of another, and the law's interval says so.
        return ""
    if np.corrcoef(np.log(costs), losses)[0, 1] <= 0:
        return ""
    order = np.argsort(costs)
    if len(variables) > 1 and not _rises_in_all(sizes[order], losses[order]):
        return ""
    ordered = losses[order]
    if _is_accuracy(ordered, score):
        return (
            f"the {score} rises with size: it looks like an accuracy. The law is of a loss, in "
            "nats or bits; or give the error rate, 1 less the accuracy."
        )
    lowest = int(np.argmin(ordered))
    size = sizes[order[lowest], 0]
    least = f"{number(float(size))} {variables[0]}"
    if lowest == 0:
        return (
            f"the {score} rises from the smallest size, {least}: larger networks train worse. "
            f"{_TOO_HIGH} {_OTHERWISE}"
        )
    above = _named(variables, sizes[order[lowest + 1 :]])
    larger = f"the {score} falls up to {least} and rises for larger networks ({above})"
    if len(variables) == 1 and _is_valley(ordered, lowest):
        return (
            f"{larger}. If all runs had the same compute, this is an isoFLOP profile: add a "
            "column of flops, or of tokens, and runs of other budgets. Otherwise: "
            f"{_TOO_HIGH}"
        )
    return f"{larger}. {_TOO_HIGH} {_OTHERWISE}"


_TOO_HIGH = (
    "It looks as where one learning rate is too high for larger networks: sweep it at two sizes "
    "(nfd.fit_transfer, nfd transfer --from), or ask nfd.check(make_model, batches), in the shell "
    "nfd check setup.py, whether it transfers."
)
_OTHERWISE = (
    "If it is a loss of validation whose loss of training falls, the networks overfit: give more "
    "data, or the runs before they do."
)


def _rises_in_all(sizes: Array, losses: Array) -> bool:
    """Whether most losses rise from a size to one that is as large or larger in every variable.

    Runs of a few budgets trade parameters for tokens. About the best split their losses rise on
    both sides, by more than they fall from one budget to the next.
    """
    step = -(-len(sizes) // _COMPARED)
    sizes, losses = sizes[::step], losses[::step]
    # [K, K]: whether the second size is larger.
    is_larger = (sizes[None] >= sizes[:, None]).all(2) & (sizes[None] > sizes[:, None]).any(2)
    rises = losses[None] > losses[:, None]
    return bool(is_larger.any() and rises[is_larger].mean() > 0.5)


def _named(variables: Sequence[str], sizes: Array) -> str:
    """The first sizes in words, and how many more there are: ``12M and 34M parameters``."""
    if len(variables) == 1:
        names = [number(size) for size in sizes[:, 0].tolist()]
        unit = f" {variables[0]}"
    else:
        names = [_in_words(variables, size) for size in sizes.tolist()]
        unit = ""
    more = len(names) - _MOST_NAMED
    if more > 0:
        return f"{', '.join(names[:_MOST_NAMED])} and {more} more{unit}"
    return f"{listed(names)}{unit}"


def _in_words(variables: Sequence[str], size: Sequence[float]) -> str:
    """``12M parameters on 1B tokens``."""
    parts = [f"{number(value)} {name}" for name, value in zip(variables, size, strict=True)]
    return " on ".join(parts)


def _is_accuracy(losses: Array, score: str) -> bool:
    """Whether losses, in the order of size, look like accuracies, by their name or their course."""
    if re.search("acc(uracy)?([^a-z]|$)|score|f1|exact", score, re.IGNORECASE):
        return True
    if re.search("loss|bpb|bpc|nll|ppl|perplexity", score, re.IGNORECASE) and losses[0] > 1:
        return False
    is_share = losses.max() <= 1 or (1 < losses.max() <= 100 and losses.min() > 10)
    rising = np.corrcoef(np.arange(len(losses)), losses)[0, 1]
    # On a grid of parameters and tokens, several sizes cost about as much as the smallest.
    first = (len(losses) - 1) // 4 if len(losses) > _FEW else 0
    return bool(is_share and rising >= _RISES and np.argmin(losses) <= first)


def _is_valley(losses: Array, lowest: int) -> bool:
    """Whether losses fall to their lowest and rise after it without a step, as a profile's do."""
    falls = np.diff(losses[: lowest + 1])
    rises = np.diff(losses[lowest:])
    is_smooth = bool((falls < 0).all() and (rises > 0).all())
    left = float(losses[0] / losses[lowest])
    right = float(losses[-1] / losses[lowest])
    # Of a profile both sides rise alike; where training fails only the right one does, by far.
    return is_smooth and len(falls) > 1 and len(rises) > 1 and (right - 1) < 4 * (left - 1)
