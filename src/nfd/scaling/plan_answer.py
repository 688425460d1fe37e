"""What a plan decides, in a few lines: the learning rate to train by, and what it changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nfd.core.answer import Answer, Next
from nfd.core.tables import Row
from nfd.core.words import number, plural
from nfd.scaling.optimizers import WEIGHT_DECAY
from nfd.scaling.plan_table import absolute_rates, kind_of

if TYPE_CHECKING:
    from nfd.scaling.plan import Plan

# Characters of a tensor's name in a table of 80 columns.
_LONGEST_NAME = 32
# Roles of a block's tensors, which a row may join
_OF_BLOCKS = ("outer", "inner", "hidden", "skip")


@dataclass(frozen=True)
class PlannedTraining:
    """What is known about a training besides its plan.

    Attributes:
        lr: learning rate of the base, None where it is not known yet.
        adamw_lr: under Muon, the rate of the tensors that AdamW trains.
        file: where the plan is stored; empty where it is an object of Python.
        evidence: where the rate comes from, in a sentence without a full stop.
        optimizer: further arguments of ``make_optimizer``, as code: what the small network was
            trained with.
    """

    lr: float | None = None
    adamw_lr: float | None = None
    file: str = ""
    evidence: str = ""
    optimizer: str = ""


def plan_answer(plan: Plan, training: PlannedTraining) -> Answer:
    """Say by which learning rate to train, and what the plan does to it."""
    size = _size(plan, plan.width, plan.depth)
    base = _size(plan, 1.0, 1.0)
    by = training.file.rpartition("/")[2] or "this plan"
    rate = "at your tuned rate"
    if training.lr is not None:
        rate = f"at learning rate {number(training.lr, 3)}"
    sentences = [training.evidence, _carried(plan), _clipping(plan)]
    return Answer(
        "good",
        "Planned",
        f"Train {size} by {by} {rate}",
        because=" ".join(f"{one[:1].upper()}{one[1:]}." for one in sentences if one),
        next=_next(plan, training, base),
        about=f"{size} · {plan.rule} · {plan.optimizer} · base of {base}",
        table=_factors(plan, training),
        details=plan.notes,
    )


def table_of_plan(plan: Plan) -> list[Row]:
    """Return a row for each tensor: what the plan sets, over the base's but for ``std``."""
    rows = []
    for name, entry in plan.entries.items():
        row = {
            "tensor": name,
            "role": entry.role,
            "std": plan.std(name),
            "rate": plan.rate(name),
            "epsilon": plan.epsilon(name),
            "weight_decay": plan.weight_decay(name),
        }
        rows.append(row)
    return rows


def _size(plan: Plan, width: float, depth: float) -> str:
    """Write a size, given as multiples of the base: ``width 64, depth 4``."""
    if plan.base is None:
        if width == depth == 1:
            return "the base"
        return f"{number(width)} times the base's width, {number(depth)} times its depth"
    return f"width {plan.base[0] * width:g}, depth {plan.base[1] * depth:g}"


def _carried(plan: Plan) -> str:
    """Say how many tensors get another rate or other initial weights."""
    changed = len([name for name in plan.entries if _is_changed(plan, name)])
    tensors = plural(len(plan.entries), "tensor")
    if not changed:
        return f"Rule {plan.rule} leaves all {tensors} as they are"
    return f"Rule {plan.rule} changes {changed} of {tensors}"


def _is_changed(plan: Plan, name: str) -> bool:
    return plan.rate(name) != 1 or plan.start_factor(name) != 1


def _clipping(plan: Plan) -> str:
    """Say in short what the plan's note on clipping says, where rates change."""
    if all(plan.rate(name) == 1 for name in plan.entries):
        return ""
    return "If you clip gradients, do so by tensor: one norm for all acts on other tensors here"


def _next(plan: Plan, training: PlannedTraining, base: str) -> Next:
    """Return the code that trains by the plan."""
    load = ""
    if training.file:
        load = f'plan = nfd.Plan.load("{training.file}"); '
    label = "Train it"
    rates = "lr=lr"
    if training.lr is None:
        label = f"Train it; lr is the best learning rate at {base}"
    else:
        rates = f"lr={training.lr:.6g}"
    if training.adamw_lr is not None:
        rates += f", adamw_lr={training.adamw_lr:.6g}"
    rates += training.optimizer
    apply = f"{load}plan.apply_(model, seed=0)"
    return Next(label, f"{apply}\noptimizer = plan.make_optimizer(model, {rates})")


# ---- the table of factors


def _factors(plan: Plan, training: PlannedTraining) -> list[dict[str, str]]:
    """Return a row for all tensors of a group with the same factors.

    Those that change most come first, and in a row matrices before vectors. Weight decay stands
    there where it changes.
    """
    initial = _title_of_initial(plan)
    has_decay = _has_decay(plan)
    groups = dict[tuple[str, float, float], dict[str, None]]()
    # A row names its first tensor only.
    for name in sorted(plan.entries, key=lambda name: plan.entries[name].is_vector):
        group = _group_of(plan.entries[name].role)
        place = (group, _rounded(plan.rate(name)), _rounded(plan.start_factor(name)))
        groups.setdefault(place, {})[kind_of(plan, name)] = None
    by_change = sorted(groups, key=lambda place: _change(place[1:]), reverse=True)
    rates = dict[str, float]()
    if training.lr is not None:
        absolute = absolute_rates(plan, training.lr, training.adamw_lr)
        for name, rate in absolute.items():
            rates.setdefault(kind_of(plan, name), rate)
    rows = []
    for place in by_change:
        _, rate_factor, std_factor = place
        kinds = [*groups[place]]
        row = {"tensors": names_of_kinds(kinds)}
        if rates:
            of_kinds = {number(rates[kind]) for kind in kinds}
            # Under Muon, two optimizers have a rate each.
            row["learning rate"] = " or ".join(sorted(of_kinds))
            row["over the base"] = factor_in_words(rate_factor)
        else:
            row["learning rate"] = factor_in_words(rate_factor)
        row[initial] = factor_in_words(std_factor)
        if has_decay:
            # The factor of the rate divides it.
            row["decay"] = factor_in_words(_rounded(1 / rate_factor))
        rows.append(row)
    return rows


def _has_decay(plan: Plan) -> bool:
    """Whether weight decay changes under the plan, by an optimizer that keeps rate times decay."""
    for name in plan.entries:
        law = plan.law_for(name)
        if law.decoupled and law.setting(WEIGHT_DECAY.name) and plan.weight_decay(name) != 1:
            return True
    return False


def _title_of_initial(plan: Plan) -> str:
    """The title of the factor on initial weights: a constant has a value, and no std."""
    for name in plan.entries:
        if plan.constant(name) and plan.start_factor(name) != 1:
            return "initial scale"
    return "initial std"


def _group_of(role: str) -> str:
    """The group of a role: tensors of the blocks, or a role of its own outside of them."""
    return "blocks" if role in _OF_BLOCKS else role


def _rounded(factor: float) -> float:
    """Round a factor, since products of powers differ in their last digits."""
    return float(f"{factor:.4g}")


def _change(factors: tuple[float, float]) -> float:
    return sum(abs(math.log(factor)) for factor in factors if factor > 0)


def factor_in_words(factor: float) -> str:
    """Write a factor: ``÷ 4``, ``× 2`` or ``same``."""
    if factor == 1:
        return "same"
    if 0 < factor < 1:
        return f"÷ {number(1 / factor)}"
    return f"\u00d7 {number(factor)}"


def names_of_kinds(kinds: Sequence[str]) -> str:
    """Name the first of several kinds of tensors, and count the others."""
    first, *others = kinds
    short = first
    while len(short) > _LONGEST_NAME and "." in short:
        short = short.partition(".")[2].removeprefix("*.")
    if short != first:
        short = f"…{short}"
    if not others:
        return short
    return f"{short} + {len(others)} more"
