"""``nfd.fit_rate_law``: the law of the best learning rate, from a table of runs."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from nfd.core.errors import InputError
from nfd.laws.logged_runs import LoggedRun
from nfd.laws.logs import RATE_FIELDS, Log, needs_rate_law, read_log
from nfd.laws.nested_rows import kept_rows
from nfd.laws.rate_law import REFERENCE, Cell, Prior, RateLaw, law_of_cells, scaled_by
from nfd.laws.table_rule import TableRule, about_powers, choose_rule, powers_of, prior_under


def fit_rate_law(
    rows: Any,
    *,
    columns: Mapping[str, str | None] | None = None,
    prior: str | os.PathLike[str] | None = "sweeps",
    rule: str | None = None,
    scaled: Mapping[str, float] | None = None,
) -> RateLaw:
    """Fit the law of the best learning rate over parameters, tokens and batch to your logged runs.

    Runs that differ in the rate alone make a cell; losses of seeds are averaged. Cells in which the
    best run is at an end of its rates count with what they say: on which side the best rate lies.
    ``notes`` name them.

    Example::

        rows = [
            {"parameters": N, "tokens": 1e9, "batch": 2.5e5, "lr": 2.0**k}
            | {"loss": 3 * (1 + 0.003 * (k + 9 + 0.5 * math.log2(N / 1e8)) ** 2)}
            for N in (1e8, 2e8, 4e8)
            for k in range(-13, -6)
        ]
        law = nfd.fit_rate_law(rows)
        print(law.at(parameters=1e9, tokens=1e9, batch=2.5e5))

    Args:
        rows, columns: as for ``nfd.fit_transfer``. The batch is in tokens. Parameters that the
            table does not have are counted as 12 width^2 depth; a table of width and depth alone is
            for ``nfd.fit_transfer``.
        prior: of the exponents: ``"sweeps"``, what public sweeps say; None; or the path of a file.
        rule: that scaled the learning rates of the runs: under ``"mup"``, ``"depth-mup"`` and
            ``"complete-p"`` lr is the base's, and size hardly moves it; under ``"standard"`` it
            falls with size. By default the table's column; with several rules in it, which one.

        scaled: powers of batch and tokens by which your code multiplies lr before the optimizer
            has it, such as ``{"batch": 0.5, "tokens": -0.5}``; under ``"complete-d-p"`` these. Then
            advice is for lr, too.

    Returns:
        A ``RateLaw``: ``.at(...)``, ``.exponents``, ``.critical_batch(tokens)``, ``.table`` and
        ``.notes``. A plan takes it as ``law=``.

    Raises:
        ValueError, TypeError, OSError: naming the columns, if the rows cannot be read, or have no
            parameters and one number of tokens and batch; naming the rules, if there are several.
    """
    log = read_log(rows, columns, ("lr", "loss"), RATE_FIELDS)
    if "parameters" not in log.columns and not needs_rate_law(log):
        raise InputError(
            "a law of the rate needs parameters, or runs in which tokens or batch vary. For best "
            f"rates over width and depth use nfd.fit_transfer. {log.recognised}"
        )
    return law_of_log(log, prior, rule, scaled)


def law_for_plan(rows: Any, rule: str) -> RateLaw:
    """Fit the law by which a plan follows batch and tokens.

    A table of one rule is read as it is: a plan takes only batch and tokens from it, as its own
    rule divides by size. Of a table of several it reads the plan's, or else the first that scales
    with size as the plan's does.
    """
    rows = kept_rows(rows)
    log = read_log(rows, None, ("lr", "loss"), RATE_FIELDS)
    names = list(dict.fromkeys(run.rule for run in log.runs if run.rule is not None))
    wanted = TableRule(rule)
    alike = [name for name in names if TableRule(name).key == wanted.key]
    alike += [name for name in names if TableRule(name).scales == wanted.scales]
    chosen = alike[0] if len(names) > 1 and alike else None
    return fit_rate_law(rows, rule=chosen)


def law_of_log(
    log: Log,
    prior: str | os.PathLike[str] | None,
    rule: str | None = None,
    scaled: Mapping[str, float] | None = None,
) -> RateLaw:
    """Fit the law to the runs of a log, with notes on how it was read."""
    table_rule, runs = choose_rule(log.runs, rule)
    powers = powers_of(table_rule, scaled)
    settings = _settings(runs, log)
    cells = list[Cell]()
    for setting, losses in settings.items():
        cell = _cell(setting.place, losses, powers)
        if cell is not None:
            cells.append(cell)
    if not cells:
        raise InputError(
            "a law needs runs that differ in the rate alone; no two rows agree in all but lr and "
            "seed."
        )

    notes = [*log.notes, *_about_cells(cells, settings), *_about_columns(log, settings)]
    trusted = Prior.read(prior)
    widths = {setting.width for setting in settings}
    is_of_one_width = len(widths) == 1 and None not in widths
    if (
        prior == "sweeps"
        and not table_rule.scales
        and _parameters_vary(settings)
        and is_of_one_width
    ):
        trusted = trusted.of_one_width
        notes.append(
            f"All runs have width {widths.pop()}: the best rate is expected to follow parameters "
            "less."
        )
    trusted, note = prior_under(table_rule, trusted, cells)
    law = law_of_cells(cells, trusted)
    return replace(
        law,
        about=f"A log of {log.recognised}",
        score=log.columns["loss"],
        notes=tuple(notes),
        rule=table_rule.name,
        about_rule=" ".join(text for text in (note, about_powers(powers)) if text),
        unsaid=_unsaid(log),
        scaled=powers,
        left_out=log.left_out,
    )


# ---- cells


class _Setting(NamedTuple):
    """What the runs of a cell have in common; ``place`` is parameters, tokens and batch."""

    place: tuple[float, float, float]
    width: int | None
    depth: int | None
    decay: str | None


Losses = dict[float, list[float]]  # by rate

_USUAL_WIDTH = 1024  # of runs whose depth alone is said


def _settings(runs: Sequence[LoggedRun], log: Log) -> dict[_Setting, Losses]:
    """Collect the losses at every rate, by what runs have in common; infinite: diverged."""
    settings = dict[_Setting, Losses]()
    for run in runs:
        tokens = None if log.in_steps else run.tokens
        place = (
            _parameters_of(run),
            tokens or REFERENCE["tokens"],
            run.batch or REFERENCE["batch"],
        )
        loss = math.inf if run.loss is None else run.loss
        if loss <= 0:
            raise InputError(
                f"losses must be above 0, as rises are shares of the lowest; got {loss:g}."
            )
        setting = _Setting(place, run.width, run.depth, run.decay)
        settings.setdefault(setting, {}).setdefault(run.lr or 0.0, []).append(loss)
    return settings


def _parameters_of(run: LoggedRun) -> float:
    """Parameters of a run, counted by width and depth where the table has none."""
    if run.parameters:
        return run.parameters
    if run.width is None and run.depth is None:
        return REFERENCE["parameters"]
    width = run.width or _USUAL_WIDTH
    return 12.0 * width * width * (run.depth or 1)


def _unsaid(log: Log) -> tuple[str, ...]:
    """Name the sizes of ``REFERENCE`` that no column of the table says."""
    unsaid = list[str]()
    if not log.columns.keys() & {"parameters", "width", "depth"}:
        unsaid.append("parameters")
    if "tokens" not in log.columns or log.in_steps:
        unsaid.append("tokens")
    if "batch" not in log.columns:
        unsaid.append("batch")
    return tuple(unsaid)


def _cell(
    sizes: Sequence[float], runs: Mapping[float, Sequence[float]], powers: Mapping[str, float]
) -> Cell | None:
    """Average the losses of seeds; None where there is one rate, or every run diverged."""
    rates = sorted(runs)
    losses = np.array([float(np.mean(runs[rate])) for rate in rates])
    if len(rates) < 2 or not np.isfinite(losses).any():
        return None
    place = np.log2(np.array(sizes) / [*REFERENCE.values()])
    return Cell(place, np.log2(rates) + scaled_by(powers, place), losses)


def _parameters_vary(settings: Collection[_Setting]) -> bool:
    return len({setting.place[0] for setting in settings}) > 1


# ---- notes

_UNSAID = {"parameters": "size", "tokens": "tokens", "batch": "batch"}


def _about_cells(cells: Sequence[Cell], settings: Collection[_Setting]) -> Iterator[str]:
    """Say which cells were left out, or show one side of the best rate, and their decays."""
    if len(cells) < len(settings):
        yield (
            f"{len(settings) - len(cells)} of {len(settings)} cells have one rate, or diverged at "
            "all: left out."
        )
    for side, end in (("lower", 0), ("higher", -1)):
        at_end = sum(cell.best == cell.log2_rates[end] for cell in cells)
        if at_end:
            yield (
                f"In {at_end} of {len(cells)} cells the best run is at an end of its rates: add "
                f"{side} rates."
            )
    decays = {setting.decay for setting in settings}
    if len(decays) > 1:
        named = ", ".join(sorted("none said" if decay is None else decay for decay in decays))
        yield (
            f"Runs of weight decays {named} are kept apart, in cells of their own; the law has one "
            "rate for all."
        )


def _about_columns(log: Log, settings: Collection[_Setting]) -> Iterator[str]:
    """Say what was assumed of what the table lacks, and what stands for the size."""
    unsaid = _unsaid(log)
    if unsaid:
        named = " and ".join(_UNSAID[name] for name in unsaid)
        yield (
            f"The table has no {named}: its runs are taken for those that are asked, and what "
            "others change is not in the runs."
        )
    if "parameters" not in log.columns:
        if "width" in log.columns:
            yield "Parameters are counted as 12 width^2 depth."
        elif "depth" in log.columns:
            yield f"Parameters are counted as 12 width^2 depth, at width {_USUAL_WIDTH}."
        return
    shapes = {(setting.width, setting.depth) for setting in settings}
    if len(shapes) > 1:
        alike = "" if _parameters_vary(settings) else ", which are the same in all runs"
        yield f"The law's size is parameters{alike}: width and depth only keep cells apart."
