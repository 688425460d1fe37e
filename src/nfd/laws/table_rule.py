"""The rule that the runs of a table followed, and what it says of their best learning rates.

Under muP, depth-muP and CompleteP the learning rate that a person sets is the base's: the rule
divides it by width and depth, and the best one hardly moves with size. In standard parametrisation
it falls with size. A table that mixes both has no one law.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nfd.core.checks import check_choice, check_real
from nfd.core.errors import InputError, InputTypeError
from nfd.laws.logged_runs import LoggedRun
from nfd.laws.rate_law import Cell, Prior

# Power of parameters that the best learning rate has under a rule that scales: its mean and
# deviation. Published ladders under muP and CompleteP move by up to .15 per doubling.
POWER_UNDER_RULE = (0.0, 0.15)
# Names of rules that scale learning rates with size, in small letters and digits only.
_SCALES = ("mup", "umup", "depthmup", "depthmupinner", "completep", "completedp")
_STANDARD = ("standard", "sp", "default", "pytorch")
# Powers of batch and tokens that Complete(d)P multiplies learning rates with. Source: Mlodozeniec
# et al. 2025 (2512.22382), Table 1, as public implementations of it have it.
_COMPLETE_D_P = {"tokens": -0.5, "batch": 0.5}
# Learning rates tried that fall by more than this power of parameters, at equal tokens and batch,
# are those after the rule's factors.
_FALLS = -0.25


@dataclass(frozen=True)
class TableRule:
    """The rule of a table's runs.

    Attributes:
        name: as the table or the caller writes it; empty where nobody says.
    """

    name: str

    @property
    def key(self) -> str:
        """The name in small letters and digits, with mu for the Greek letter."""
        latin = self.name.lower().replace("μ", "mu").replace("µ", "mu")
        return re.sub(r"[^a-z0-9]", "", latin)

    @property
    def scales(self) -> bool:
        """Whether the rule divides learning rates by size."""
        return self.key in _SCALES

    @property
    def is_standard(self) -> bool:
        """Whether learning rates are PyTorch's, which no rule divides."""
        return self.key in _STANDARD


def choose_rule(
    runs: Sequence[LoggedRun], rule: str | None
) -> tuple[TableRule, tuple[LoggedRun, ...]]:
    """Choose the rule of a law, and the runs that followed it.

    Args:
        runs: of the table.
        rule: what the caller says; chooses among the rules of the table.

    Raises:
        ValueError: where the table has several rules and the caller says none, or another one.
    """
    counts = Counter(run.rule for run in runs)
    in_table = [name for name in counts if name is not None]
    if not in_table:
        return TableRule(rule or ""), tuple(runs)

    if rule is None:
        if len(counts) > 1:
            described = ", ".join(
                f"{name or 'none'!r} ({count} runs)" for name, count in counts.items()
            )
            raise InputError(
                f"a law is of one rule; the table has {described}. Choose one by rule=."
            )
        return TableRule(in_table[0]), tuple(runs)

    wanted = TableRule(rule)
    chosen = tuple(run for run in runs if run.rule and TableRule(run.rule).key == wanted.key)
    if not chosen:
        raise InputError(
            f"rule must be one of the table's, {', '.join(map(repr, in_table))}; got {rule!r}."
        )
    return TableRule(chosen[0].rule or rule), chosen


def prior_under(rule: TableRule, prior: Prior, cells: Sequence[Cell]) -> tuple[Prior, str]:
    """Return the prior of a law whose runs followed a rule, and a note on what was assumed."""
    if not rule.scales:
        return prior, _note_without_rule(rule)
    power = _power_of_tried_rates(cells)
    if power < _FALLS:
        note = (
            f"Under {rule.name} the learning rates of the table fall as parameters^{power:.2g}: "
            "they are read as those after the rule's factors, which follow size. Give the base's "
            "to learn whether they transfer."
        )
        return prior, note
    note = (
        f"Under {rule.name} size moves the best learning rate of the base by a power of 0 +- "
        f"{POWER_UNDER_RULE[1]:g}, unless the table says otherwise. lr is read as with any factors "
        "of batch and tokens in it; if your code applies them after it, pass scaled=."
    )
    terms = {**prior.terms, "parameters": POWER_UNDER_RULE}
    return replace(prior, terms=terms), note


def powers_of(rule: TableRule, scaled: Mapping[str, float] | None) -> dict[str, float]:
    """Powers of batch and tokens by which the learning rates of a table are still multiplied."""
    if scaled is None:
        return dict(_COMPLETE_D_P) if rule.key == "completedp" else {}
    if not isinstance(scaled, Mapping):
        raise InputTypeError(
            f"scaled must be a dict such as {{'batch': 0.5, 'tokens': -0.5}}; got {scaled!r}."
        )
    for name in scaled:
        check_choice("a name in scaled", name, ("batch", "tokens"))
    return {name: check_real(f"scaled[{name!r}]", power) for name, power in scaled.items()}


def about_powers(powers: Mapping[str, float]) -> str:
    """Say which factor is taken into account; empty without one."""
    if not any(powers.values()):
        return ""
    factor = " ".join(f"{name}^{power:g}" for name, power in powers.items() if power)
    return (
        f"Learning rates are lr times {factor}, which your own code does: advice is for lr, and "
        "factors of plans for their product."
    )


def _note_without_rule(rule: TableRule) -> str:
    expected = "the best learning rate is expected to fall with size, as in standard"
    if not rule.name:
        return f"No rule is said: {expected} parametrisation. For muP and its kind pass rule='mup'."
    if rule.is_standard:
        return ""
    return f"The rule {rule.name!r} is not known here: {expected} parametrisation."


def _power_of_tried_rates(cells: Sequence[Cell]) -> float:
    """Power of parameters by which the middle of the rates tried moves, at equal tokens and batch.

    0 where no two sizes have equal tokens and batch.
    """
    groups = dict[tuple[float, ...], list[tuple[float, float]]]()
    for cell in cells:
        key = tuple(np.round(cell.place[1:], 1).tolist())
        middle = float(cell.log2_rates[[0, -1]].mean())
        groups.setdefault(key, []).append((float(cell.place[0]), middle))
    powers = list[float]()
    for group in groups.values():
        smallest = min(group)
        largest = max(group)
        doublings = largest[0] - smallest[0]
        if doublings >= 1:
            powers.append((largest[1] - smallest[1]) / doublings)
    return float(np.mean(powers)) if powers else 0.0
