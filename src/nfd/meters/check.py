"""``nfd.check`` trains networks of several sizes for a few steps, and says what scales wrongly."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.table import Column
from torch import Tensor, nn

from nfd.core.checks import check_ascending, check_count, check_flag, check_real
from nfd.core.errors import InputError, in_brief
from nfd.core.estimates import interval
from nfd.core.files import expanded, write_json
from nfd.core.findings import Axes, Finding, columns
from nfd.core.modes import gradients
from nfd.core.names import AXES, MOST, SEEDS, WIDEST, Axis, RuleName
from nfd.core.random import global_state
from nfd.core.tables import Lead, Row, as_text, rows_as_text, said, table_of
from nfd.core.words import quoted
from nfd.families.family import Family, as_family
from nfd.families.member import Member
from nfd.families.streams import StreamEnds
from nfd.meters.beside import beside_of, norms_of
from nfd.meters.events import Event, Failure, failures_of, first_bad, gradient_events
from nfd.meters.experts import Routing, routing_events
from nfd.meters.meter import METERS, in_words
from nfd.meters.noise import noise_of, samples_of_a_part
from nfd.meters.reading import WatchRow
from nfd.meters.suspects import Sizes, Suspect, suspects_of
from nfd.meters.updates import DEFINITION, HIDDEN, NO_BLOCKS, Baseline, meter_of, quiet, readings
from nfd.meters.verdict import (
    LIMITS,
    THRESHOLDS,
    causes,
    cure_of_all,
    growth,
    is_fault,
    networks,
    row_name,
    rows,
    stacks_of,
)
from nfd.runs.seeds import check_seeds_differ
from nfd.runs.sweep import Sweep, as_sweep
from nfd.runs.task import COPIES, Batch, Task, as_task
from nfd.runs.trial import Observation, Observer, Step, Trial, optimizer_of
from nfd.scaling.base import MakeModel
from nfd.scaling.find_law import check_optimizer
from nfd.scaling.model import tensors
from nfd.scaling.optimizers import OptimizerLaw, law_by_class
from nfd.scaling.rules import MAX_RATE, rule_named
from nfd.scaling.samples import as_written, outputs_of
from nfd.store import Record


@gradients()
def check(
    family: Family | MakeModel,
    task: Task | Iterable[Batch],
    widths: Sequence[int],
    depths: Sequence[int],
    lr: float | None = None,
    *,
    rule: str | None = None,
    optimizer: str | OptimizerLaw | None = None,
    seeds: int = SEEDS,
    at: Sequence[int] | None = None,
    noise: bool = False,
    blocks: str | Sequence[str] | None = None,
    roles: Mapping[str, str] | None = None,
    sweep: Sweep | None = None,
) -> Check:
    """Check whether the training of a model depends on its width and depth.

    Small networks of every width and depth are trained for a few steps. Meters of their updates are
    then fitted by a power of the width and of the depth. A meter is ``STABLE`` if its exponent is
    near 0. It ``GROWS`` if larger networks need a lower rate, and ``COLLAPSES`` if a part of them
    stops learning. Every verdict comes with a 95 % interval, a cause and a remedy. Take sizes over
    a factor of 8 (docs/verdicts.md).

    Example::

        check = nfd.check(make_model, batches, [16, 32], [2, 4], lr=3e-3)
        print(check)  # per meter: exponent, verdict, cause and remedy
        if not check.ok:
            print(check.suspects, check.faults, check.failures)

    Meters are read on the first batch, after the last step, or with ``at`` after each of these
    steps:

    - the updates of ``nfd.meters.updates``, such as ``inner_update`` and ``function_update``;
    - ``gradient``: the RMS of dLoss/dh before the first block over that after the last, before
      training;
    - ``loss``: of the last batch, before its update.

    Each of several stacks of blocks, such as encoder and decoder, is judged by itself.

    Args:
        family: ``make_model(width, depth)``, whose base is the smallest network, or an
            ``nfd.Family``.
        task: batches, one per step, or an ``nfd.Task``.
        widths, depths: every pair is trained. One value leaves an axis out.
        lr: learning rate of the base; by default 0.1 for SGD, 0.001 for others.
        rule, optimizer, blocks, roles: in place of the family's; as in ``nfd.plan``.
        seeds: initialisations of each network, at least 2.
        at: steps after which to read the meters, ascending; training ends with the last of them.
        noise: also estimate the noise scale of gradients after the last step (``Check.noise``).
        sweep: where networks are trained and kept.

    Returns:
        A ``Check``. Slopes are pooled over seeds and the sizes of the other axis.

    Raises:
        ValueError, TypeError: naming the argument; also if two seeds give the same network.
        RuntimeError: naming the line of your code at which a network cannot be trained.

    Source: Eqs. 7, 8, 27, 33, 34; Yang et al., Tensor Programs V (coordinate checks).
    """
    sizes = _sizes(widths, depths)
    task = as_task(task)
    base = (sizes["width"][0], sizes["depth"][0])
    family = as_family(family, base, rule, optimizer, task.sample, blocks=blocks, roles=roles)
    check_optimizer(family.optimizer, rule=family.rule, weight_decay=task.weight_decay or 0.0)
    if lr is None:
        lr = family.law.default_lr
    rate = check_real("lr", lr, above=0.0, below=MAX_RATE)
    looks: tuple[int, ...] = (task.steps,)
    if at is not None:
        at, task = _up_to_the_last(at, task)
        looks = tuple(at)
    if check_flag("noise", noise):
        samples_of_a_part(task.batches)
    seeds = check_count("seeds", seeds, minimum=2, maximum=MOST)
    family.check_sizes(sizes["width"], sizes["depth"])
    judge = _judge(family, task, rate, is_told=optimizer is not None)
    meters = Meters(None if at is None else looks, noise)
    observe = (meters, Routing())
    trials = []
    for width, depth, seed in product(sizes["width"], sizes["depth"], range(seeds)):
        trials.append(Trial(family, task, width, depth, seed, rate, observe=observe))
    with as_sweep(sweep) as opened:
        records = opened.run_all({"checking": trials}, "checking")["checking"]
        runs = [_row(record) for record in records]
    _check_seeds(runs)
    for run, event in list(routing_events(runs)):
        run["events"].append(event)
    table = _table(runs, looks, sizes, family.rule)
    updates_are_judged = not judge.unjudged
    suspects, why_none = suspects_of(
        runs, sizes, judge.family, _axes_of_suspects(table), updates=updates_are_judged
    )
    largest = (sizes["width"][-1], sizes["depth"][-1])
    return Check(
        table,
        runs,
        failures_of(runs),
        family.rule,
        family.optimizer,
        rate,
        looks,
        seeds,
        task.about,
        family.base,
        growth(runs, looks),
        any(run["draws"] for run in runs),
        task.copies,
        judge.optimizer_class,
        suspects,
        judge.unjudged or why_none,
        tuple(opened.notes(family)),
        _self_test(family, base, largest),
    )


def _sizes(widths: Sequence[int], depths: Sequence[int]) -> dict[str, list[int]]:
    """Check the sizes, of which one axis needs two or more."""
    sizes = {
        "width": check_ascending("widths", widths, WIDEST),
        "depth": check_ascending("depths", depths, MOST),
    }
    if all(len(along) < 2 for along in sizes.values()):
        raise InputError(
            f"widths or depths must hold two sizes or more; got {list(widths)} and {list(depths)}."
        )
    return sizes


def _up_to_the_last(at: Sequence[int], task: Task) -> tuple[Sequence[int], Task]:
    """Check steps to look after, and end the task with the last of them."""
    at = check_ascending("at", at, MOST)
    if at[-1] > task.steps:
        raise InputError(
            f"at must be within the steps of training, one per batch; got at={at} and "
            f"{task.steps} batches. Give a batch for every step; they may repeat."
        )
    return at, task.first(at[-1])


@dataclass(frozen=True)
class _Judge:
    """What judges tensors: a family with the law of the optimizer that trains.

    ``optimizer_class`` is the name of what ``make_optimizer`` makes, and ``unjudged`` says why
    updates are not judged; both are empty where there is nothing to say.
    """

    family: Family
    optimizer_class: str = ""
    unjudged: str = ""


def _judge(family: Family, task: Task, rate: float, *, is_told: bool) -> _Judge:
    """Make the optimizer once before anything is trained, for its name and its errors."""
    if task.make_optimizer is None:
        return _Judge(family)
    stepping = optimizer_of(task, family.member(*family.base, device=task.device), rate)
    name = type(stepping).__name__
    if is_told or rule_named(family.rule).scales_width:
        return _Judge(family, name)
    # Nobody said which optimizer this is, but its class may show it.
    law = law_by_class(stepping)
    if law is not None:
        return _Judge(family.under(optimizer=law.name), name)
    unjudged = (
        f"What updates of a {name} should be is not known: pass optimizer=, the law that it has."
    )
    return _Judge(family, name, unjudged)


def _table(
    runs: Sequence[Row], looks: Sequence[int], sizes: Mapping[str, list[int]], rule: RuleName
) -> list[Row]:
    """Judge every meter of every stack along every axis after every look, sorted by meter."""
    stacks = stacks_of(runs)
    beside = beside_of(runs)
    table = []
    for axis in AXES:
        for step in looks:
            for stack in stacks:
                place: Row = {}
                if stack:
                    place["stack"] = stack
                place["step"] = step
                for row in rows(networks(runs, step, stack), sizes, axis, rule, beside):
                    if step == looks[-1] or not METERS[row["meter"]].is_of_one_step:
                        table.append(row | place)
    meters = list(METERS)

    def order(row: Row) -> tuple[int, int, int]:
        return (
            AXES.index(row["axis"]),
            meters.index(row["meter"]),
            stacks.index(row.get("stack", "")),
        )

    return sorted(table, key=order)


def _axes_of_suspects(table: Sequence[Row]) -> list[Axis]:
    """The axes along which tensors are suspected.

    In depth a suspect explains a fault of the meters: what a rule that scales only width leaves as
    it is may be meant.
    """
    has_fault_in_depth = any(is_fault(row) and row["axis"] == "depth" for row in table)
    return ["width", "depth"] if has_fault_in_depth else ["width"]


def _self_test(
    family: Family, smallest: tuple[int, int], largest: tuple[int, int]
) -> tuple[str, ...]:
    """What the plan's own test finds at the smallest sizes, or why it could not run.

    It finds nothing where the rule promises nothing.
    """
    if not rule_named(family.rule).scales_width or smallest == largest:
        return ()
    from nfd.scaling.self_test import tests_itself

    if not tests_itself(family.make_model, smallest):
        return ()
    try:
        test = family.plan(*largest).self_test(family.make_model, family.sample, base=smallest)
    # It must not stop the check: some models cannot be built 4 times as large.
    except Exception as error:
        return (f"The plan could not test itself: {in_brief(error)}",)
    return tuple(f"Self-test of the plan: {cause}" for cause in test.causes)


def _row(record: Record) -> Row:
    """What the observers returned of one network, with its size."""
    size = {name: record.config[name] for name in ("width", "depth", "seed")}
    row: Row = size | record.observed[0] | {"routing": record.observed[1]}
    row["events"] = [Event(**event) for event in row["events"]]
    for name in ("rows", "noise"):
        row[name] = [size | numbers for numbers in row[name]]
    return row


def _check_seeds(runs: Sequence[Row]) -> None:
    """Refuse networks that several seeds initialise alike."""
    prints: dict[tuple[int, int], dict[int, int]] = {}
    for run in runs:
        prints.setdefault((run["width"], run["depth"]), {})[run["seed"]] = run["print"]
    for size, by_seed in prints.items():
        check_seeds_differ(size, "network", by_seed)


# ---- The result

_NOISE = (
    "Noise scale of the gradients after the last step, in samples: a batch at which noise is as "
    "large as signal"
)
_DRAWS = (
    "Note: the model draws random numbers in training, as dropout does: noise in every meter. "
    "Switch it off."
)
_STILL = (
    "Do they require gradients, does the loss depend on them, has the optimizer them? Exponents do "
    "not show it."
)


@dataclass(frozen=True)
class Check:
    """The result of ``nfd.check``. Print it to see the table.

    Attributes:
        table: one dict per meter and axis, and of a model with several stacks of blocks, such as an
            encoder and a decoder, one for every ``stack``. ``slope``, ``low`` and ``high`` are the
            exponent and its 95 % interval; ``verdict``, ``reason`` and ``cause`` judge it;
            ``since`` is the size at which a fault begins. Also ``meter`` and ``axis``.
        runs: one dict per network: width, depth, seed, its meters after the last step, and why
            others could not be read (``unread``). The same of every stack of several: ``stacks``.
        failures: what went wrong, once per kind, with the first step, layer and network.
        rule, optimizer, lr, at, seeds, base: the settings, and the steps after which meters were
            read.
        growth: with several steps, one dict per meter: its exponent in the step, ``meter ~
            step^p``, as value, low and high, over networks of every size.
        draws: whether a network drew random numbers in training, as dropout does.
        optimizer_class: name of what ``make_optimizer`` makes; empty without one.
        about: how the batches were read: their number, samples and shape, in words.
        copies: whether the targets of the library's cross-entropy are the inputs themselves.
        suspects: kinds of tensors that scale otherwise than they should, and why
            (``nfd.meters.suspects``).
        unjudged: why tensors, or their updates, were not judged by themselves; empty where they
            were.
        of_runs: notes on stored runs that were not used.
        tested: what the plan's self-test found off (``Plan.self_test``), or why it could not run,
            in sentences.

    Example::

        check = nfd.check(make_model, batches, [16, 32], [2], lr=3e-3)
        for row in check.table:
            print(row["meter"], row["axis"], row["slope"], row["verdict"])
        check.ok  # False where a meter collapses or grows, or a training broke
    """

    table: list[dict[str, Any]]
    runs: list[Row] = field(repr=False)
    failures: list[Failure]
    rule: str
    optimizer: str
    lr: float
    at: tuple[int, ...]
    seeds: int
    about: str
    base: tuple[int, int]
    growth: list[dict[str, Any]] = field(default_factory=list)
    draws: bool = False
    copies: bool = False
    optimizer_class: str = ""
    suspects: list[Suspect] = field(default_factory=list)
    unjudged: str = ""
    of_runs: tuple[str, ...] = ()
    tested: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """The number of updates that every network took."""
        return self.at[-1]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All readings: one dict for each network and step, and one for each of its matrices.

        In the dict of a network ``matrix`` is empty. The dict of a matrix has its ``role`` and the
        numbers of a matrix (``nfd.meters.updates.Baseline.look``). ``inner_bound`` is what
        ``inner_update`` would be at perfect alignment.
        """
        rows = []
        for run in self.runs:
            rows += run["rows"]
        return rows

    @property
    def noise(self) -> list[dict[str, Any]]:
        """Noise scales of gradients in samples, with ``noise=True``: a dict per network.

        They are read after the last step.
        ``value`` with ``low`` and ``high`` is ``variance / signal``, ``tr Sigma / |G|^2``
        (``nfd.meters.noise``). A batch much larger than this gains little. Pass it to
        ``Plan.for_run`` as ``critical_batch``, in the unit of ``batch`` there.
        """
        scales = []
        for run in self.runs:
            scales += run["noise"]
        return scales

    @property
    def ladder(self) -> dict[str, Any]:
        """The data of ``nfd.Watch`` for its bands, as plain numbers and strings.

        ``rule``, ``optimizer`` and ``lr``, whether the check found no fault (``ok``), the width and
        depth of the base (``base``), the ``definition`` of the meters, and the ``networks``: width,
        depth, the ``shapes`` of their tensors, ``readings``, each a ``nfd.watch.WatchRow``, and
        ``losses``, the step and loss of every look.
        """
        parts = ("width", "depth", "shapes", "readings")
        networks = []
        for run in self.runs:
            network = {name: run[name] for name in parts if name in run}
            networks.append(network | {"losses": _losses_of(run)})
        return {
            "rule": self.rule,
            "optimizer": self.optimizer,
            "lr": self.lr,
            "definition": DEFINITION,
            "ok": self.ok,
            "base": list(self.base),
            "networks": networks,
        }

    def save(self, path: str | Path) -> None:
        """Write ``ladder`` as JSON, for ``nfd.Watch(..., expected=path)``."""
        write_json(expanded(path), {"ladder": self.ladder})

    @property
    def faults(self) -> list[dict[str, Any]]:
        """The rows of the table that say that something scales wrongly."""
        return [row for row in self.table if is_fault(row)]

    @property
    def ok(self) -> bool:
        """Whether nothing collapses, grows or breaks at any step, and no tensor is a suspect.

        A loss that falls with size and an uncertain verdict are not faults.
        """
        return not self.failures and not self.suspects and not self.faults

    @property
    def lead(self) -> Lead:
        """The number of faults, the rule that removes all of them, and the steepest meter."""
        count = len(self.faults) + len(self.failures) or len(self.suspects)
        undecided = sum(row["verdict"] == "UNCERTAIN" for row in self.table)
        readings = f"{len(self.faults)} of {len(self.table)} readings, {undecided} undecided"
        numbers = {"faults": readings}
        fitted = [row for row in self.table if math.isfinite(row["slope"])]
        # A loss that falls is what training is for.
        fitted = [row for row in fitted if row["verdict"] != "FALLS"]
        if fitted:
            row = max(fitted, key=lambda row: (is_fault(row), abs(row["slope"])))
            numbers[f"steepest: {row_name(row)}"] = f"{row['axis']}^{slope_of(row)}"
        tensors_at_fault = {suspect.tensor for suspect in self.suspects}
        numbers["tensors that scale wrongly"] = str(len(tensors_at_fault))
        if not count:
            return Lead("No fault found.", "good", numbers)
        noun = "faults" if count > 1 else "fault"
        faults = f"{count} {noun} under rule {self.rule!r}."
        cure = cure_of_all(self.faults, self.rule)
        if cure and not self.failures:
            faults += f" Rule {cure!r} has the remedies built in: train by its plan."
        return Lead(faults, "bad", numbers)

    @property
    def wrong(self) -> list[str]:
        """What went wrong, in sentences: broken training, tensors, and the causes of faults."""
        return [
            *map(str, self.failures),
            *self.suspicions,
            *causes(self.faults, self.rule, self.runs),
        ]

    @property
    def notes(self) -> list[str]:
        """Warnings in words, such as about random numbers in training or unmoved matrices."""
        notes = list(self.of_runs)
        if self.copies:
            notes.append(COPIES)
        if self.draws:
            notes.append(_DRAWS)
        if self.unmoved:
            notes.append(f"Note: no training moved {quoted(self.unmoved)}. {_STILL}")
        if self.unjudged:
            notes.append(f"Note: {self.unjudged}")
        return [*notes, *(f"Note: {sentence}" for sentence in self.tested)]

    @property
    def suspicions(self) -> list[str]:
        """The suspects in words: one for each way to deviate, and the names of the others."""
        ways: dict[tuple[str, str, bool], list[Suspect]] = {}
        for suspect in self.suspects:
            way = (suspect.axis, suspect.what, suspect.excess.value > 0)
            ways.setdefault(way, []).append(suspect)
        # Sentences that read the same are written once.
        sentences: dict[str, str] = {}
        for first, *similar in ways.values():
            sentence = f"{first}."
            if similar:
                sentence += f" Likewise {quoted([suspect.tensor for suspect in similar])}."
            sentences[str(first)] = sentence
        return list(sentences.values())

    @property
    def unmoved(self) -> list[str]:
        """Names of the matrices that changed in no network.

        They are frozen, without a gradient, or not in the optimizer.
        """
        moved: dict[str, bool] = {}
        for row in self.rows:
            if "change" in row:
                moved[row["matrix"]] = moved.get(row["matrix"], False) or row["change"] != 0
        return [name for name, moves in moved.items() if not moves]

    def __str__(self) -> str:
        sizes = self._sizes
        name = self.optimizer_class or self.optimizer
        ranges = "; ".join(f"{axis}s {', '.join(map(str, sizes[axis]))}" for axis in AXES)
        head = (
            f"Rule {self.rule!r}, {name}, lr = {self.lr:g}, {self.about}, {self.seeds} seeds; "
            f"{ranges}"
        )
        # Earlier looks show only their faults.
        shown = [row for row in self.table if row["step"] == self.steps or is_fault(row)]
        parts = [str(self.lead), head]
        parts += [f"! {text}" for text in self.wrong]
        parts += self.notes
        parts.append(self._table_as_text(shown))
        parts += _reasons(shown)
        undecided = sum(row["reason"] == "edge" for row in shown)
        if undecided:
            parts.append(f"{undecided} UNCERTAIN: more seeds or larger sizes would settle them.")
        parts.append(THRESHOLDS)
        if self.noise:
            parts += ["", _NOISE, rows_as_text([_of_noise(row) for row in self.noise])]
        return said(*parts)

    @property
    def _sizes(self) -> dict[str, Sequence[int]]:
        """The values along every axis, and the steps that were looked at."""
        sizes: dict[str, Sequence[int]] = {"step": self.at}
        for axis in AXES:
            sizes[axis] = sorted({run[axis] for run in self.runs})
        return sizes

    def _table_as_text(self, shown: Sequence[Row]) -> str:
        """The table of these rows, faults first, and of how meters grow with steps."""
        sizes = self._sizes
        several = len(self.at) > 1
        names = ["with", "exponent [95 %]", "change", "verdict"]
        if several:
            names.insert(1, "after step")
        columns = [Column(name, no_wrap=True) for name in names]
        table = table_of(Column("meter", overflow="fold"), *columns)
        faults_first = sorted(shown, key=lambda row: not is_fault(row))
        for row in [*faults_first, *self.growth]:
            along = sizes[row["axis"]]
            change = math.expm1(row["slope"] * math.log(along[-1] / along[0]))
            percent = f"{100 * change:+.0f} %" if math.isfinite(change) else "-"
            cells = [row["axis"], slope_of(row), percent, row.get("verdict", "")]
            if several:
                cells.insert(1, str(row.get("step", "")))
            table.add_row(row_name(row), *cells)
        return as_text(table, 150)


def _reasons(shown: Sequence[Row]) -> list[str]:
    """Why meters have a limit or no verdict, once for all that share a reason."""
    meters_by_cause = dict[str, list[str]]()
    for row in shown:
        is_open = row["reason"] in ("missing", "broken")
        if is_open or row["verdict"] in ("LIMIT", "NOT MEASURED"):
            name = f"{row_name(row)} with {row['axis']}"
            meters_by_cause.setdefault(row["cause"], []).append(name)
    return [
        f"{', '.join(dict.fromkeys(names))}: {cause}" for cause, names in meters_by_cause.items()
    ]


def _of_noise(row: Row) -> Row:
    """The noise scale of one network in words."""
    if row["low"] <= 0:
        words = "unknown: more or larger batches are needed"
    elif math.isfinite(row["high"]):
        words = "{value:.3g} [{low:.3g}, {high:.3g}]".format(**row)
    else:
        words = "at least {low:.3g}".format(**row)
    size = {name: row[name] for name in ("width", "depth", "seed")}
    return size | {"noise scale [95 % interval]": words}


def slope_of(row: Mapping[str, Any]) -> str:
    """Write a slope as ``-0.47 [-0.53, -0.42]``, or a dash where none could be fitted."""
    if not math.isfinite(row["slope"]):
        return "-"
    return f"{row['slope']:+.2f} [{row['low']:+.2f}, {row['high']:+.2f}]"


def meaning_of(row: Mapping[str, Any]) -> str:
    """What a row means, with the size since which its meter changes."""
    cause = str(row["cause"])
    if row["since"] is None:
        return cause
    return f"since {row['axis']} {row['since']}: {cause}"


# ---- Its charts


def check_findings(check: Check, data: str) -> list[Finding]:
    """Chart every meter after the last step, one chart per axis.

    The values are geometric means over networks of a size, relative to the smallest.
    """
    settings = (
        f"Rule {check.rule!r}, {check.optimizer}, lr = {check.lr:g}, {check.seeds} seeds, {data}"
    )
    after = f"After {check.steps} steps. {settings}; bars: 95 % intervals."
    caption = " ".join([after, THRESHOLDS, LIMITS, *check.notes])
    findings = []
    for axis in reversed(AXES):
        finding = _finding(check, axis, caption)
        if finding.rows:
            findings.append(finding)
    return sorted(findings, key=lambda finding: -len(finding.details))


def _finding(check: Check, axis: Axis, caption: str) -> Finding:
    """Chart every meter along one axis."""
    sizes = sorted({run[axis] for run in check.runs})
    last_rows = [row for row in check.table if row["step"] == check.steps]
    trends = [row for row in last_rows if row["axis"] == axis]
    points = list[Row]()
    table = list[Row]()
    for trend in trends:
        points += _ratios(check, trend, sizes)
        verdict = {"exponent [95 % interval]": slope_of(trend), "verdict": trend["verdict"]}
        meaning = {"what it means": meaning_of(trend)}
        table.append({"meter": _title(trend)} | verdict | meaning)
    faults = [trend for trend in trends if is_fault(trend)]
    shown = Axes(
        axis,
        "ratio",
        axis,
        f"over the network of {axis} {sizes[0]}",
        "logarithmic",
        colour="meter",
        dash="stack" if trends and "stack" in trends[-1] else None,
        order=(*METERS,),
    )
    title = f"{len(faults)} of {len(trends)} meters scale wrongly with {axis}"
    why = list(causes(faults, check.rule, check.runs))
    return Finding(axis, title, "", points, shown, caption, why, table=table)


def _title(trend: Row) -> str:
    """The meter of a row of the table, and its stack, as a chart names it."""
    return meter_of(in_words(trend["meter"]), trend.get("stack", ""))


def _ratios(check: Check, trend: Row, sizes: Sequence[int]) -> list[Row]:
    """The points of a meter: its mean at every size over its mean at the smallest."""
    axis = trend["axis"]
    meter = trend["meter"]
    stack = trend.get("stack", "")
    seen = networks(check.runs, check.steps, stack)
    logs = []
    for size in sizes:
        values = [run.get(meter, math.nan) for run in seen if run[axis] == size]
        log = torch.tensor(values, dtype=torch.float64).log()
        logs.append(log[log.isfinite()])
    points = []
    for size, log in zip(sizes, logs, strict=True):
        if min(len(log), len(logs[0])) > 1:
            ratio = interval(_difference_of_means, logs[0], log).exp()
            place = {"series": _title(trend), "meter": meter, "stack": stack, axis: size}
            points.append(place | columns("ratio", ratio))
    return points


def _difference_of_means(first: Tensor, second: Tensor) -> Tensor:
    return second.mean(0) - first.mean(0)


# ---- What is read of one network

# By stack
_Meters = dict[str, dict[str, float]]
# Times the first loss: no learning rate that is meant does this
_ROSE = 2.0


@dataclass(frozen=True)
class Meters(Observer):
    """The meters of a check, read after the last step, or after each of ``at``.

    It returns one row of plain data: the meters after the last step, ``events``, ``unread``,
    ``rows``, the meters of the network and of its matrices after every step that is looked at,
    ``readings``, the same with the meters of its blocks, as rows of ``nfd.watch.WatchRow``,
    ``noise``, the noise scale of its gradients if asked for, ``draws``, whether it drew random
    numbers, and ``print``, a hash of its initial weights.
    """

    at: tuple[int, ...] | None = None
    noise: bool = False

    @property
    def settings(self) -> Mapping[str, Any]:
        at = None if self.at is None else list(self.at)
        return {"at": at, "noise": self.noise, "definition": DEFINITION}

    def begin(self, member: Member, task: Task) -> Observation:
        return _Measurement(self, member, task)


class _Measurement(Observation):
    """The training of one member, and what was read of it so far."""

    def __init__(self, asked: Meters, member: Member, task: Task) -> None:
        self.asked = asked
        self.member = member
        self.task = task
        self.looks = asked.at or (task.steps,)
        self.print = _print_of(member.module)
        self.start = Baseline(member, task.sample)
        self.sizes = Sizes(member, self.start.start)
        self.events: list[Event] = []
        self.meters: _Meters = {stack: {} for stack in self.start.unread}
        self.previous: dict[str, Tensor] | None = None
        self.rows: list[dict[str, Any]] = []
        self.readings: list[WatchRow] = []
        self.losses: list[float] = []
        # Stacks whose first update is to come
        self.awaited = {*self.start.unread}
        self.weak_norms = dict[str, float]()
        self.streams = global_state()

    def after(self, row: Step) -> None:
        """Read the network after a step, or name the layer that broke it."""
        self.sizes.after(row.optimizer)
        self.losses.append(row.loss)
        self.meters[""]["loss"] = row.loss
        done = row.step + 1
        if not math.isfinite(row.loss):
            self._note_break(row.step, self.task.batches[row.step][0])
            return
        self._read_first_update()
        if done in self.looks and done < self.task.steps:
            self._measure(done)

    def end(self) -> tuple[dict[str, float], dict[str, Any], Any]:
        """Measure what the last step left, if it still answers."""
        module = self.member.module
        noise = []
        tensor_rows = []
        is_finite = self._is_finite_at_the_end()
        if is_finite:
            meters = self._measure(len(self.losses))
            if self.asked.noise:
                noise.append(self._noise())
        else:
            meters = self._note(self.looks[-1], self.meters)
        draws = global_state() != self.streams
        if is_finite:
            with quiet(module), as_written():
                self.sizes.find_rounding(self._last_loss)
            tensor_rows = self.sizes.read()
        stacks = {}
        for stack, numbers in meters.items():
            stacks[stack] = {"unread": self.start.unread[stack]} | numbers
        network = stacks.pop("")
        result: dict[str, Any] = {
            "events": [asdict(event) for event in self.events],
            "weak_norms": self.weak_norms,
            "draws": draws,
            "print": self.print,
            "tensors": tensor_rows,
            "shapes": {name: list(t.shape) for name, t in tensors(module).items()},
            "rows": self.rows,
            "readings": [astuple(reading) for reading in self.readings],
            "noise": noise,
            **network,
        }
        if stacks:
            result["stacks"] = stacks
        return {}, {}, result

    def _is_finite_at_the_end(self) -> bool:
        """Whether the last loss and the outputs are finite; events say what went wrong."""
        losses = self.losses
        if not math.isfinite(losses[-1]):
            return False
        if losses[-1] > _ROSE * losses[0] > 0:
            self.events.append(Event("loss-rose", len(losses) - 1, size=losses[-1] / losses[0]))
        inputs = self.task.batches[-1][0]
        with torch.no_grad():
            is_finite = bool(outputs_of(self.member(inputs)).isfinite().all())
        if not is_finite:
            self._note_break(len(losses), inputs)
        return is_finite

    def _note_break(self, step: int, inputs: Any) -> None:
        """Note that a number is not finite, and the layer that shows it first."""
        layer = first_bad(self.member.module, partial(self.member, inputs))
        self.events.append(Event("not-finite", step, layer))

    def _noise(self) -> dict[str, float]:
        """The noise scale of gradients, and the means of what it is the ratio of."""
        noise = noise_of(self.member.module, self.member, self.task.value, self.task.batches)
        # Both are empty where no gradient was finite.
        means = {"signal": _mean(noise.signals), "variance": _mean(noise.variances)}
        return noise.estimate().limits | means

    def _read_first_update(self) -> None:
        """Read what the first update adds to the stream.

        It is the second one where the readout is initialised to zero.
        """
        if not self.awaited:
            return
        moved = self.start.stream_updates()
        for stack in self.awaited & moved.keys():
            self.meters[stack]["first_update"] = moved[stack]
        self.awaited = {stack for stack in self.awaited if moved.get(stack) == 0}

    def _last_loss(self) -> Tensor:
        inputs, targets = self.task.batches[-1]
        return self.task.value(self.member(inputs), targets)

    def _measure(self, step: int) -> _Meters:
        """Read the network and every matrix of it after so many updates.

        Returns:
            The meters by stack.
        """
        look = self.start.look(self.previous).with_bounds()
        meters = {}
        for stack, earlier in self.meters.items():
            numbers = look.network
            if stack:
                numbers = look.stacks.get(stack, {})
            meters[stack] = earlier | numbers
        self._note(step, meters)
        self.readings += readings(self.member, look, step)
        for name, numbers in look.matrices.items():
            place = {"step": step, "matrix": name, "role": self.member.plan.roles[name]}
            self.rows.append(place | numbers)
        return meters

    def _note(self, step: int, meters: _Meters) -> _Meters:
        """Add a row for every stack."""
        for stack, numbers in meters.items():
            place: dict[str, Any] = {"step": step, "matrix": "", "role": ""}
            if stack:
                place["stack"] = stack
            self.rows.append(place | numbers)
        return meters

    @contextmanager
    def around(self, step: int) -> Iterator[None]:
        """Read norms, and the gradient of the stream, at the start.

        With steps that were asked for the gradient is read before each of them, and the matrices
        that the update will change are kept.
        """
        if step == 0:
            with norms_of(self.member.module) as self.weak_norms, self._around(step):
                yield
            return
        with self._around(step):
            yield

    @contextmanager
    def _around(self, step: int) -> Iterator[None]:
        has_steps = self.asked.at is not None
        is_read = step == 0
        if has_steps:
            is_read = step + 1 in self.looks
        if not is_read:
            yield
            return
        with self.member.stream() as ends:
            yield
        self._read_gradient(ends, step)
        self.previous = self.start.weights() if has_steps else None

    def _read_gradient(self, ends: StreamEnds, step: int) -> None:
        for stack in self.member.stacks:
            sizes = ends.gradients(stack)
            unread = self.start.unread[stack]
            if sizes is not None and sizes.last != 0:
                self.meters[stack]["gradient"] = sizes.first / sizes.last
                self.events += gradient_events(sizes, stack, step)
                unread.pop("gradient", None)
            elif sizes is None:
                unread["gradient"] = HIDDEN if self.member.plan.blocks else NO_BLOCKS
            else:
                unread["gradient"] = "the readout starts at zero, so that no gradient flows back."


def _losses_of(run: Mapping[str, Any]) -> list[tuple[int, float]]:
    """The step and the loss of every look at a network."""
    losses = []
    for row in run["rows"]:
        is_network = not row["matrix"] and not row.get("stack")
        if is_network and "loss" in row:
            losses.append((row["step"], row["loss"]))
    return losses


def _print_of(module: nn.Module) -> int:
    """A hash of all weights, which shows seeds that give the same network."""
    print_ = 0
    for p in module.parameters():
        numbers = p.detach().cpu().flatten().view(torch.uint8).numpy()
        print_ = zlib.crc32(numbers.tobytes(), print_)
    return print_


def _mean(numbers: Sequence[float]) -> float:
    return float(torch.tensor(numbers, dtype=torch.float64).mean())
