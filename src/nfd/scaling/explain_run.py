"""The factors of a run as a table that a person reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Column

from nfd.core.tables import as_text, table_of

if TYPE_CHECKING:
    from nfd.scaling.run_scaling import Factor, RunScaling

_COLUMNS = ("quantity", "factor", "law", "label", "formula", "source")


def explained_run(run: RunScaling) -> list[str]:
    """One line per factor: what it is of, its value, its law with label and source; then what stays, and the range and
    error of every law."""
    table = table_of(*(Column(name, no_wrap=name != "source") for name in _COLUMNS))
    for factor in run.factors:
        table.add_row(*_row(factor))
    ranges = dict.fromkeys(f"law  {factor.law}: {factor.scope}; {factor.error}" for factor in run.factors)
    return ["", _title(run), as_text(table, 200), "", f"not scaled  {'; '.join(run.unscaled)}", *ranges]


def _title(run: RunScaling) -> str:
    pairs = {"batch": run.batch, "tokens": run.tokens}
    known = [f"{name} {pair[0]:g} to {pair[1]:g}" for name, pair in pairs.items() if pair is not None]
    steps = [] if run.steps is None else [f"{run.steps} steps"]
    warmup = [] if run.schedule is None else [f"{run.schedule.warmup} of warm-up"]
    return f"Run: {', '.join([*known, *steps, *warmup, *_limit(run)])}; b, d: batch and tokens over the small run's"


def _limit(run: RunScaling) -> list[str]:
    if run.critical_batch is None or run.batch is None:
        return []
    beyond = " (exceeded: larger batches gain little)" if run.batch[1] > run.critical_batch else ""
    return [f"critical batch about {run.critical_batch:.3g}{beyond}"]


def _row(factor: Factor) -> tuple[str, ...]:
    ends = "" if factor.low is None or factor.high is None else f" [{factor.low:.3g}, {factor.high:.3g}]"
    value = f"{factor.value:.4g}{ends}" if factor.applied else f"off ({factor.value:.4g}{ends})"
    quantity = f"{factor.quantity} ({factor.optimizer})" if factor.optimizer else str(factor.quantity)
    return quantity, value, factor.law, factor.label, factor.formula, factor.source
