"""What a case of the bank is, how its plan is made, and the edits by which plans are made wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

import nfd
from nfd.scaling.entries import Entry
from nfd.scaling.plan import Plan
from nfd.scaling.rules import Power

MakeModel = Callable[[int, int], nn.Module]
Edit = Callable[[Plan, float, float], Plan]


@dataclass(frozen=True)
class Case:
    """A model at every size, a plan for it, and whether this plan scales as its rule promises.

    Attributes:
        name: a unique name.
        is_wrong: whether the plan is wrong at large width or depth; None where that depends on how
            ``nfd.plan`` reads an unusual spelling.
        make_model: a function of width and depth. Widths are multiples of 16.
        sample: an input of the model: a tensor, a tuple of arguments, or a dict.
        base: width and depth of the smallest sensible model, at which the rate is tuned.
        rule, optimizer, roles, blocks: as ``nfd.plan`` takes them.
        edit: a function of the plan of a size, and of the ratios of its width and depth to those of
            the base, that returns the wrong plan; None for the plan as ``nfd.plan`` makes it.
        plan_of: the sibling that is planned in place of the model; None for the model itself.
        axes: the sizes that may grow: ``"width"``, ``"depth"`` or ``"both"``.
        wrong_in: the sizes along which a wrong plan shows.
        why: what is wrong, or why it is sound, by mathematics.
        disputed: whether people disagree about the convention; such cases do not count.
    """

    name: str
    is_wrong: bool | None
    make_model: MakeModel
    sample: Any
    base: tuple[int, int] = (32, 2)
    rule: str = "complete-p"
    optimizer: str = "adamw"
    edit: Edit | None = None
    roles: Mapping[str, str] | None = None
    blocks: Any = None
    plan_of: MakeModel | None = None
    axes: str = "both"
    wrong_in: str | None = None
    why: str = ""
    disputed: bool = False


def planned(case: Case, width: int, depth: int) -> tuple[nn.Module, Plan]:
    """The model of a case at a size, and the plan that the case has for it."""
    model = case.make_model(width, depth)
    plan = unedited(case, width, depth)
    if case.edit is not None:
        plan = case.edit(plan, width / case.base[0], depth / case.base[1])
    return model, plan


def unedited(case: Case, width: int, depth: int) -> Plan:
    """The plan of a case before its edit."""
    make_model = case.plan_of or case.make_model
    return nfd.plan(
        make_model(width, depth),
        base=case.base,
        make_model=make_model,
        rule=case.rule,
        optimizer=case.optimizer,
        roles=case.roles,
        blocks=case.blocks,
        sample=case.sample,
    )


# ---- edits of single tensors


def with_start(entry: Entry, factor: float) -> Entry:
    """The entry of a tensor that starts so many times as large, at the same rate."""
    begins = entry.start
    constant = None if begins.constant is None else begins.constant * factor
    constant = constant if factor else 0.0
    return replace(entry, start=replace(begins, std=begins.std * factor, constant=constant))


def with_rate(plan: Plan, name: str, factor: float) -> Entry:
    """The entry of a tensor that trains at so many times its rate, from the same start.

    An entry has no number for its rate. A factor of the forward pass that the plan believes to make
    up for divides starts and, by the degree of the optimizer, rates. The start is put back. Adam's
    epsilon is left with this factor, which matters only where gradients are as small as it.
    """
    entry = plan.entries[name]
    own = factor ** (-1 / (1 + plan.law_for(name).degree))
    return with_start(replace(entry, own_factor=entry.own_factor * own), own)


def fitting(plan: Plan, patterns: str | tuple[str, ...]) -> list[str]:
    """The names of tensors that fit one of the patterns, in which ``*`` stands for any text.

    Raises:
        LookupError: if a pattern fits none, as an edit that changes nothing is a mistake.
    """
    wanted = (patterns,) if isinstance(patterns, str) else patterns
    found = [n for n in plan.entries if any(fnmatchcase(n, p) for p in wanted)]
    for pattern in wanted:
        if not any(fnmatchcase(n, pattern) for n in found):
            raise LookupError(f"no tensor fits {pattern!r}: {list(plan.entries)}")
    return found


def start_times(
    patterns: str | tuple[str, ...], *, width: float = 0.0, depth: float = 0.0, by: float = 1.0
) -> Edit:
    """An edit that multiplies starts by powers of the ratios of width and depth, and a constant."""

    def edit(plan: Plan, wider: float, deeper: float) -> Plan:
        factor = by * wider**width * deeper**depth
        new = {n: with_start(plan.entries[n], factor) for n in fitting(plan, patterns)}
        return replace(plan, entries=plan.entries | new)

    return edit


def rate_times(
    patterns: str | tuple[str, ...], *, width: float = 0.0, depth: float = 0.0, by: float = 1.0
) -> Edit:
    """An edit that multiplies rates by powers of the ratios of width and depth, and a constant."""

    def edit(plan: Plan, wider: float, deeper: float) -> Plan:
        factor = by * wider**width * deeper**depth
        new = {n: with_rate(plan, n, factor) for n in fitting(plan, patterns)}
        return replace(plan, entries=plan.entries | new)

    return edit


def both(*edits: Edit) -> Edit:
    """One edit after the other."""

    def edit(plan: Plan, wider: float, deeper: float) -> Plan:
        for one in edits:
            plan = one(plan, wider, deeper)
        return plan

    return edit


# ---- edits of whole plans


def equal_rates(plan: Plan, wider: float, deeper: float) -> Plan:
    """All tensors train at the rate of the base, from the right starts."""
    new = {name: with_rate(plan, name, 1 / plan.rate(name)) for name in plan.entries}
    return replace(plan, entries=new)


def starts_of_base(plan: Plan, wider: float, deeper: float) -> Plan:
    """All tensors start with the standard deviations of the base, at the right rates."""
    new = {n: with_start(e, 1 / plan.start_factor(n)) for n, e in plan.entries.items()}
    return replace(plan, entries=new)


def without_depth(plan: Plan, wider: float, deeper: float) -> Plan:
    """The plan that knows nothing of depth: that of muP under the name of a rule with depth."""
    new = {n: replace(e, ratios=replace(e.ratios, depth=1.0)) for n, e in plan.entries.items()}
    multipliers = dict.fromkeys(plan.multipliers, 1.0)
    return replace(plan, entries=new, multipliers=multipliers)


def without_width(plan: Plan, wider: float, deeper: float) -> Plan:
    """The plan that knows nothing of width: rates and starts follow depth alone."""
    new = {
        n: replace(e, ratios=replace(e.ratios, fan_in=1.0, fan_out=1.0))
        for n, e in plan.entries.items()
    }
    return replace(plan, entries=new)


def without_multipliers(plan: Plan, wider: float, deeper: float) -> Plan:
    """The plan that inserts no factor, and leaves the gain before a tied head as it is."""
    new = {name: replace(entry, multiplier=Power()) for name, entry in plan.entries.items()}
    return replace(plan, entries=new, multipliers={})


def fans_exchanged(patterns: str | tuple[str, ...]) -> Edit:
    """An edit that takes fan-in for fan-out, as of a transposed matrix."""

    def edit(plan: Plan, wider: float, deeper: float) -> Plan:
        new = dict[str, Entry]()
        for name in fitting(plan, patterns):
            ratios = plan.entries[name].ratios
            exchanged = replace(ratios, fan_in=ratios.fan_out, fan_out=ratios.fan_in)
            new[name] = replace(plan.entries[name], ratios=exchanged)
        return replace(plan, entries=plan.entries | new)

    return edit


def entries_of_sibling(make_model: MakeModel, base: tuple[int, int], sample: Any) -> Edit:
    """An edit that takes what a sibling's plan says of the tensors that both models have."""

    def edit(plan: Plan, wider: float, deeper: float) -> Plan:
        size = round(base[0] * wider), round(base[1] * deeper)
        other = nfd.plan(
            make_model(*size),
            base=base,
            make_model=make_model,
            rule=plan.rule,
            optimizer=plan.optimizer,
            sample=sample,
        )
        new = {n: other.entries[n] for n in plan.entries if n in other.entries}
        return replace(plan, entries=plan.entries | new, multipliers=other.multipliers)

    return edit
