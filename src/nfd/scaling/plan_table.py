"""The table of a plan, as ``print(plan)`` shows it."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from rich.table import Column

from nfd.core.checks import check_real
from nfd.core.tables import as_text, table_of
from nfd.scaling.find_law import law_of
from nfd.scaling.model import block_of, in_any_block
from nfd.scaling.rules import MAX_RATE, Power

if TYPE_CHECKING:
    from nfd.scaling.plan import Plan

_COLUMNS = ("tensor", "shape", "role", "why", "std", "rate", "epsilon")
_WIDTH = 200  # of the table, in characters


def explained(plan: Plan, lr: float | None, adamw_lr: float | None) -> str:
    """Write a plan as a table, a row for all tensors that agree: ``Plan.explain``."""
    rest_lr = None
    if lr is not None:
        lr = check_real("lr", lr, above=0.0, below=MAX_RATE)
        rest_lr = law_of(plan.optimizer).check_rest_rate(adamw_lr, above=0.0)

    base = ""
    if plan.base is not None:
        width, depth = plan.base
        base = f" (width {width:g}, depth {depth:g})"
    over = "rate and epsilon are"
    if lr is not None:
        over = f"rates are for {lr:.4g} at the base, epsilon is"
    lines = [
        f"Plan {plan.rule!r} for {plan.optimizer}: width x{plan.width:g}, depth "
        f"{_depths(plan)} times the base's{base}; {len(plan.blocks) or 'no'} blocks",
        f"in, out: a tensor's fan-in and fan-out over the base's; {over} over the base's, too",
        _table(plan, lr, rest_lr),
        *_multipliers(plan),
        *(f"note  {note}" for note in plan.notes),
    ]
    if plan.run is not None:
        lines += ["", plan.run.explain()]
    return "\n".join(lines)


def absolute_rates(plan: Plan, lr: float, adamw_lr: float | None = None) -> dict[str, float]:
    """Return the learning rate of every tensor, as ``make_optimizer`` sets it."""
    rates = {}
    for name in plan.entries:
        rates[name] = plan.rate(name) * _rate_of_the_base(plan, name, lr, adamw_lr)
    return rates


def _rate_of_the_base(plan: Plan, name: str, lr: float, rest_lr: float | None) -> float:
    """Return the tuned rate of a tensor's optimizer, times the factor of the run."""
    law = plan.law_for(name)
    factor_of_run = 1.0 if plan.run is None else plan.run.factor("rate", law.name)
    return _tuned_rate(plan, name, lr, rest_lr) * factor_of_run


def _tuned_rate(plan: Plan, name: str, lr: float, rest_lr: float | None) -> float:
    if rest_lr is None or plan.law_for(name) is law_of(plan.optimizer):
        return lr
    return rest_lr


def _depths(plan: Plan) -> str:
    """The depth over the base's, of every stack if they differ."""
    stack_of = {}
    for stack, blocks in plan.stacks.items():
        stack_of.update(dict.fromkeys(blocks, stack))
    depths = {}
    for name, entry in plan.entries.items():
        block = block_of(name, plan.block_names)
        if block is not None:
            depths[stack_of[block]] = entry.ratios.depth
    if len(set(depths.values())) < 2:
        return f"l = {plan.depth:g}"
    return ", ".join(f"l = {depth:g} in {stack}" for stack, depth in depths.items())


def _table(plan: Plan, lr: float | None, rest_lr: float | None) -> str:
    rows = Counter((kind_of(plan, name), *_row(plan, name, lr, rest_lr)) for name in plan.entries)
    table = table_of(*(Column(name, no_wrap=name in ("tensor", "role")) for name in _COLUMNS))
    for (name, *cells), count in rows.items():
        table.add_row(_counted(name, count), *cells)
    return as_text(table, _WIDTH)


def _multipliers(plan: Plan) -> list[str]:
    """A line for every kind of module that gets a forward factor."""
    factors = Counter(
        (kind_of(plan, f"{name}.").rstrip("."), factor) for name, factor in plan.multipliers.items()
    )
    return [
        f"multiplier  {_counted(name, count)}: {factor:.6g}"
        for (name, factor), count in factors.items()
    ]


def kind_of(plan: Plan, name: str) -> str:
    """The name of a tensor in any block, and in any layer of the paper's networks."""
    return re.sub(r"^(inner|outer)\.\d+\.", r"\1.*.", in_any_block(name, plan.block_names))


def _counted(name: str, count: int) -> str:
    return f"{name} x{count}" if count > 1 else name


def _row(plan: Plan, name: str, lr: float | None, rest_lr: float | None) -> tuple[str, ...]:
    """The cells of a tensor after its name; with ``lr`` its rate is absolute."""
    entry = plan.entries[name]
    law = plan.law_for(name)
    powers = plan.powers(name)
    own_factor = plan.own_factor(name)

    value = plan.rate(name)
    factor = plan.rate_compensation(name)
    tuned = ""
    if lr is not None:
        tuned_rate = _tuned_rate(plan, name, lr, rest_lr)
        rate_of_the_base = _rate_of_the_base(plan, name, lr, rest_lr)
        value *= rate_of_the_base
        factor *= rate_of_the_base / tuned_rate
        tuned = f"{tuned_rate:.4g}"
    shape = "x".join(map(str, entry.shape)) or "scalar"
    if entry.is_frozen:
        return shape, entry.role, "frozen", "kept", "-", "-"
    epsilon = "-"
    if law.epsilon:
        epsilon = _formula(powers.epsilon, plan.epsilon(name), own_factor * entry.uses)
    return (
        shape,
        entry.role,
        entry.why,
        _start(plan, name),
        _formula(powers.rate, value, factor, tuned),
        epsilon,
    )


def _start(plan: Plan, name: str) -> str:
    """The initial weights of a tensor, as formula and number."""
    start = plan.entries[name].start
    base = start.std if start.constant is None else start.constant
    factor = plan.start_factor(name)
    if not start.kept:
        power = plan.powers(name).std
        return _formula(power, base * factor, 1 / plan.own_factor(name), f"{base:.4g}")
    if factor == 1 or not base:
        return "kept"
    return f"kept, RMS {plan.std(name):.4g}"


def _formula(power: Power, value: float, factor: float, base: str = "") -> str:
    """Write a number as that of the base times a power and a factor."""
    parts = [base] if base else []
    if power != Power():
        parts.append(str(power))
    if factor != 1:
        parts.append(f"x {factor:.3g}")
    formula = " ".join(parts) or "1"
    if power == Power() and factor == 1:
        return formula
    return f"{formula} = {value:.4g}"
