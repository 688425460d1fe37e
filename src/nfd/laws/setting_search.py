"""Whether a small network's best value of a setting serves a large one.

A setting is the batch size, weight decay or another number that has a few values to choose from.
Every value has the learning rate that is best for it at the small network, so that a value is not
judged at another one's rate. The small network's best value is compared with all others at the
large network by the looks of ``nfd.laws.sequential``, paired by seed, with the same level:

- TRANSFERS, if its regret against *every* other value is below the tolerance.
- COSTS, if it is above the tolerance against one, at a level that is divided by their number.

A network that diverges counts as knowing nothing. Rare divergence counts only as far as it was
seen: there is no edge of stability over a setting that the rates of two sizes would share.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Literal

from nfd.core.estimates import Interval, student
from nfd.laws.best_rate import Scores
from nfd.laws.sequential import (
    BUDGET_SPENT,
    LEVEL,
    PRIOR_FREEDOM,
    BudgetError,
    Decision,
    Search,
    SequentialRegret,
    Wanted,
    is_futile,
    near_variance,
    pair_variance,
    seeds_needed,
)


def decide_setting(search: Search, at: float, setting: str) -> Generator[Wanted, None, Decision]:
    """Ask for trainings of the large network, look after look, and return the decision.

    In ``search`` the indices of values stand in place of log2 of the rate; its small network has
    the losses of every value at its best rate. ``at`` is the index of the small network's best.
    """
    rivals = [value for value in search.small.rates if value != at]
    why = f"whether the small network's best {setting} costs the large one"
    search.bounds["large"] = search.looks[-1] * (1 + len(rivals))
    decision = Decision(at, "UNCERTAIN", None, reason="these seeds do not tell")
    for count in search.looks:
        values = [at, *rivals]
        next_count = min((look for look in search.looks if look > count), default=0)
        later = [(value, seed) for seed in range(count, next_count) for value in values]
        try:
            yield from search.ask("large", values, range(count), why, later)
        except BudgetError:
            return replace(decision, reason=BUDGET_SPENT)
        decision = _look(search, at, rivals)
        if decision.verdict != "UNCERTAIN" or decision.regret is None:
            return decision
        share = decision.regret.share
        decision = replace(decision, seeds_needed=seeds_needed(share, count, search.tolerance))
        if count > search.looks[0] and is_futile(share, count, search):
            return replace(decision, reason="the cost is about the limit")
        rivals = _open_rivals(search, at, rivals)
    return decision


def _look(search: Search, at: float, rivals: Sequence[float]) -> Decision:
    """Compare the small network's best value with the others that are not ruled out."""
    seen = search.large.scores([at, *rivals])
    if not seen.learns:
        return Decision(at, "UNCERTAIN", None, reason="the large network learns nothing")
    shares = {value: _regret(search, at, value, seen) for value in rivals}
    best = max(rivals, key=lambda value: shares[value].value)
    # Another value than the likely best one may be better by more.
    share = replace(shares[best], high=max(one.high for one in shares.values()))
    if share.value <= 0:
        # Against itself the best value has no regret.
        share = Interval(0.0, share.stderr, 0.0, max(0.0, share.high))
    against_one = _regret(search, at, best, seen, LEVEL / len(search.small.rates))
    verdict: Literal["TRANSFERS", "COSTS", "UNCERTAIN"] = "UNCERTAIN"
    if share.high < search.tolerance:
        verdict = "TRANSFERS"
    elif against_one.low > search.tolerance:
        verdict = "COSTS"
    reason = "these seeds do not tell" if verdict == "UNCERTAIN" else ""
    regret = SequentialRegret(search.large.scores([at, best]), seen, share, _progress(seen))
    return Decision(at, verdict, regret, reason=reason, compared=1 + len(rivals))


def _open_rivals(search: Search, at: float, rivals: Sequence[float]) -> list[float]:
    """The values against which the regret may still be above the tolerance."""
    seen = search.large.scores([at, *rivals])
    return [one for one in rivals if _regret(search, at, one, seen).high >= search.tolerance]


def _regret(
    search: Search, at: float, rival: float, seen: Scores, level: float = LEVEL
) -> Interval:
    """What one value loses against another, over the progress at the best of those compared."""
    new = search.large.scores([at, rival])
    paid = new.scores[:, 0] - new.scores[:, 1]
    # Two values of the large network would count the pair itself twice: with both sizes' variance
    # 6 % of regrets at the tolerance were taken for smaller ones, of 1,000. A small network has few
    # values and seeds, too: they count as what they are.
    of_near, freedom_of_near = near_variance(search, [search.small])
    variance, freedom = pair_variance(paid, of_near, min(PRIOR_FREEDOM, freedom_of_near))
    error = math.sqrt(variance / len(paid))
    return student(float(paid.mean()), error, freedom, level).scaled(1 / _progress(seen))


def _progress(seen: Scores) -> float:
    """What the large network learns at the best value, in nats."""
    return seen.guess - float(seen.scores.mean(0).min())
