"""A plan as a table that a person reads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.table import Column

from nfd.core.tables import as_text, table_of
from nfd.scaling.blocks import block_of, in_any_block, stacks_of
from nfd.scaling.explain_run import explained_run
from nfd.scaling.rules import Power

if TYPE_CHECKING:
    from nfd.scaling.plan import Plan

_COLUMNS = ("tensor", "shape", "role", "why", "fan-in", "std", "rate", "decay", "epsilon")


def explained(plan: Plan) -> str:
    """One line per tensor, those of several blocks that agree taken together, and what the reader should know."""
    table = table_of(*(Column(name, no_wrap=name in ("tensor", "role")) for name in _COLUMNS))
    for name, count, row in _rows(plan):
        table.add_row(name if count == 1 else f"{name} x{count}", *row)
    run = [] if plan.run is None else explained_run(plan.run)
    return "\n".join([_title(plan), _legend(plan), as_text(table, 200), *_ends(plan), *run])


def _title(plan: Plan) -> str:
    return f"Plan {plan.rule!r} for {plan.optimizer}: width x{plan.width:g}, depth x{plan.depth:g} of the base"


def _legend(plan: Plan) -> str:
    blocks = f"{len(plan.blocks)} blocks" if plan.blocks else "no blocks"
    return (
        f"{blocks}; in, out: a tensor's fan-in and fan-out over the base's; {_depths(plan)}; std is absolute, rate, "
        f"decay ({plan.decay}) and epsilon are over the base's"
    )


def _depths(plan: Plan) -> str:
    """``l = 4``, or what it is in every stack where they differ."""
    own = {
        stack: plan.entries[n].depth
        for stack, blocks in stacks_of(plan.blocks).items()
        for n in plan.entries
        if block_of(n, blocks) is not None
    }
    parts = [f"l = {depth:g} in {stack}" for stack, depth in own.items() if depth is not None]
    return ", ".join(parts) or f"l = {plan.depth:g}"


def _rows(plan: Plan) -> list[tuple[str, int, tuple[str, ...]]]:
    """Tensors of different blocks with the same row become one."""
    merged: dict[tuple[str, tuple[str, ...]], int] = {}
    for name in plan.entries:
        key = (_generic(name, plan.blocks), _row(plan, name))
        merged[key] = merged.get(key, 0) + 1
    return [(name, count, row) for (name, row), count in merged.items()]


def _row(plan: Plan, name: str) -> tuple[str, ...]:
    entry = plan.entries[name]
    std, rate, epsilon = plan.powers(name)
    start = entry.start
    own = plan.own_factor(name)
    begins = _formula(start.std, std, plan.std(name), 1 / own)
    if start.kept:
        begins = "kept" if plan.start_factor(name) == 1 or not start.std else f"kept, RMS {plan.std(name):.4g}"
    if (constant := plan.constant(name)) is not None:
        begins = f"{constant:g} (kept)"
        if constant != start.constant:
            begins = _formula(start.constant, std, constant, 1 / own)
    decay, more = "1", plan.shape_factor(name) / own ** (1 + plan.law_for(name).degree)
    if plan.decay != "raw":
        per_rate = " /lr" if plan.decay == "independent" else ""
        decay = _formula(None, rate**-1, plan.weight_decay(name), 1 / more) + per_rate
    return (
        "x".join(map(str, entry.shape)) or "scalar",
        entry.role,
        entry.why,
        "-" if entry.fan_in is None or entry.is_vector else str(entry.fan_in),
        begins,
        _formula(None, rate, plan.rate(name), more),
        decay,
        _formula(None, epsilon, plan.epsilon(name), own) if plan.law_for(name).epsilon else "-",
    )


def _formula(base: float | None, power: Power, value: float, more: float = 1.0) -> str:
    """The base's number times a power, and times what makes up for factors of the optimizer and of the model."""
    start = [] if base is None else [f"{base:.4g}"]
    powers = [] if str(power) == "1" and (start or more == 1) else [str(power)]
    terms = [" ".join([*start, *powers]), *([f"{more:.3g}"] if more != 1 else [])]
    formula = " x ".join(term for term in terms if term)
    return f"{formula} = {value:.4g}" if powers or more != 1 else formula or "1"


def _ends(plan: Plan) -> list[str]:
    alike: dict[tuple[str, float], int] = {}
    for name, factor in plan.multipliers.items():
        key = (_generic(f"{name}.", plan.blocks).rstrip("."), factor)
        alike[key] = alike.get(key, 0) + 1
    times = {count: f" x{count}" if count > 1 else "" for count in alike.values()}
    lines = [f"multiplier  {name}{times[count]}: {factor:.6g}" for (name, factor), count in alike.items()]
    return ["", *lines, *(f"note  {note}" for note in plan.notes)] if lines or plan.notes else []


def _generic(name: str, blocks: tuple[str, ...]) -> str:
    return re.sub(r"^(inner|outer)\.\d+\.", r"\1.*.", in_any_block(name, blocks))
