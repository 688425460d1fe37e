"""A check from the command line: a constructor and batches by name, and the findings of what was measured."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from typing import Any

import torch

from nfd.core.errors import InputError, check_device, check_several, check_takes, first_line
from nfd.core.origin import import_users, is_ours
from nfd.core.statistics import interval
from nfd.data.load import load
from nfd.experiment.findings.finding import Axes, Finding, Row, columns
from nfd.experiment.settings import CheckConfig
from nfd.meters.check import check
from nfd.meters.outcome import Check, meaning_of, slope_of
from nfd.meters.verdict import LIMITS, THRESHOLDS, Axis

_CAPTION = (
    "Geometric means over networks, over that of the smallest; bars: 95 % intervals. Rule {rule!r}, {optimizer}, "
    "eta_c = {eta_c:g}, after {steps} steps, {seeds} seeds, {data}. {thresholds}"
)


def named(path: str, what: str) -> Any:
    """The object called ``package.module:name``; ValueError that says what is missing."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise InputError(f"{what} must be like package.module:name; got {path!r}.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = import_users(module_name)
    except ModuleNotFoundError as error:
        here, plain = os.getcwd(), module_name.removesuffix(".py").replace(os.sep, ".")
        hint = "" if plain == module_name else f" Name the module, not its file: {plain}:{name}."
        raise InputError(
            f"{what}: there is no module {error.name!r} (looked for {path!r} from {here}).{hint}"
        ) from error
    except (Exception, SystemExit) as error:
        if isinstance(error, Exception) and not isinstance(error, SyntaxError) and is_ours(error):
            raise
        said = f"{type(error).__name__}: {first_line(error)}"
        raise InputError(f"{what}: module {module_name!r} cannot be imported ({said}).") from error
    try:
        return getattr(module, name)
    except AttributeError:
        raise InputError(f"{what}: module {module_name!r} has no {name!r}.") from None


def batches_of(config: CheckConfig) -> tuple[list[tuple[Any, Any]], str]:
    """The training batches and what they are: named ones, or flattened images of the data set."""
    if config.batches is not None:
        found = named(config.batches, "batches")
        if callable(found):
            check_takes("batches", found)
            found = found()
        return check_several("batches", found, "(inputs, targets), one per step"), f"batches of {config.batches}"
    dataset = load(config.data, config.data_dir, image_size=config.image_size, seed=config.seed, progress=True)
    x, y = dataset.batches(config.batch, config.steps, config.seed)
    return list(zip(x.flatten(2), y, strict=True)), f"{dataset.title}, batches of {config.batch}"


def checked(config: CheckConfig, model: str, device: str | None = None) -> tuple[Check, str]:
    """Run the check that the settings describe, on a device (by default where
    ``make_model`` puts its networks); and what the data were."""
    place = None if device is None else check_device(device)  # before the data are read
    batches, data = batches_of(config)
    found = check(
        named(model, "model"),
        config.widths,
        config.depths,
        batches,
        rule=config.rule,
        optimizer=config.optimizer,
        eta_c=config.eta_c,
        seeds=config.seeds,
        blocks=config.blocks,
        weight_decay=config.weight_decay,
        gia=config.gia,
        device=place,
        progress=True,
    )
    return found, data


def check_findings(config: CheckConfig, check: Check, data: str) -> list[Finding]:
    """One chart per axis: every meter against size, relative to the smallest network."""
    about = {name: getattr(check, name) for name in ("rule", "optimizer", "eta_c", "seeds", "steps")}
    caption = _CAPTION.format(**about, data=data, thresholds=f"{THRESHOLDS} {LIMITS}")
    axes: tuple[tuple[Axis, Sequence[int]], ...] = (("depth", config.depths), ("width", config.widths))
    findings = []
    for axis, sizes in axes:
        trends = [row for row in check.table if row["axis"] == axis]
        rows = [row for trend in trends for row in _points(check, axis, sizes, trend["meter"])]
        if rows:
            title = f"What changes with {axis}?"
            shown = Axes(axis, "ratio", axis, f"over the network of {axis} {sizes[0]}", "logarithmic")
            findings.append(Finding(axis, title, _headline(trends, axis), rows, shown, caption, table=_table(trends)))
    return findings


def _points(check: Check, axis: Axis, sizes: Sequence[int], meter: str) -> list[Row]:
    """Ratios to the smallest size, over all seeds and sizes of the other axis."""
    logs = {}
    for size in sizes:
        values = [run.get(meter, math.nan) for run in check.runs if run[axis] == size]
        log_values = torch.tensor(values, dtype=torch.float64).log()
        logs[size] = log_values[log_values.isfinite()]
    rows = []
    for size in sizes:
        if min(len(logs[size]), len(logs[sizes[0]])) > 1:
            ratio = interval(lambda a, b: b.mean(0) - a.mean(0), logs[sizes[0]], logs[size]).exp()
            rows.append({"series": meter.replace("_", " "), axis: size} | columns("ratio", ratio))
    return rows


def _headline(trends: Sequence[Row], axis: Axis) -> str:
    """What collapses, grows, is uncertain or was not measured, in one sentence."""
    by_verdict: dict[str, list[Row]] = {}
    for trend in trends:
        by_verdict.setdefault(trend["verdict"], []).append(trend)
    meters = {word: [_name(trend) for trend in own] for word, own in by_verdict.items()}
    clauses = []
    for word, singular, plural in (("COLLAPSES", "collapses", "collapse"), ("GROWS", "grows", "grow")):
        if own := by_verdict.get(word):
            slopes = ", ".join(f"{_name(trend)} ({axis}^{trend['slope']:+.2f})" for trend in own)
            clauses.append(f"{slopes} {singular if len(own) == 1 else plural} with {axis}")
    if "UNCERTAIN" in meters:
        clauses.append(f"of {', '.join(meters['UNCERTAIN'])} the trend is uncertain")
    if not clauses:
        clauses.append(f"nothing that was measured collapses or grows with {axis}")
    if unread := meters.get("NOT MEASURED"):
        clauses.append(f"{', '.join(unread)} {'was' if len(unread) == 1 else 'were'} not measured")
    sentence = "; ".join(clauses)
    return f"{sentence[:1].upper()}{sentence[1:]}."


def _name(trend: Row) -> str:
    return str(trend["meter"]).replace("_", " ")


def _table(trends: Sequence[Row]) -> list[dict[str, str]]:
    return [
        {
            "meter": _name(trend),
            "exponent [95 % interval]": slope_of(trend),
            "verdict": trend["verdict"],
            "what it means": meaning_of(trend),
        }
        for trend in trends
    ]
