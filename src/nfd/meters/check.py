"""``nfd.check``: train a family's networks for a few steps over widths and depths, and say what
scales wrongly.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.table import Column
from torch import Tensor

from nfd.core.checks import check_ascending, check_count, check_flag, check_real
from nfd.core.errors import InputError, in_brief
from nfd.core.estimates import interval
from nfd.core.files import expanded, write_json
from nfd.core.findings import Axes, Finding, columns
from nfd.core.modes import gradients
from nfd.core.names import AXES, MOST, SEEDS, WIDEST
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
from nfd.scaling.model import tensors
from nfd.scaling.optimizers import OptimizerLaw, check_optimizer, law_by_class
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
    - ``gradient``: the RMS of dLoss/dh before the first block over that behind the last, before
      training;
    - ``loss``: of the last batch, before its update.

    Each of several stacks of blocks, such as encoder and decoder, is judged by itself.

    Args:
        family: ``make_model(width, depth)``, whose base is the smallest network, or an
            ``nfd.Family``.
        task: batches, one per step, or an ``nfd.Task``.
        widths, depths: every pair is trained. One value leaves an axis out.
        lr: rate of the base; by default 0.1 for SGD, 0.001 for others.
        rule, optimizer, blocks, roles: in place of those of the family; as in ``nfd.plan``.
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
    sizes = {
        "width": check_ascending("widths", widths, WIDEST),
        "depth": check_ascending("depths", depths, MOST),
    }
    if all(len(s) < 2 for s in sizes.values()):
        raise InputError(
            f"widths or depths must hold two sizes or more; got {list(widths)} and {list(depths)}."
        )
    task = as_task(task)
    base = (sizes["width"][0], sizes["depth"][0])
    family = as_family(family, base, rule, optimizer, task.sample, blocks=blocks, roles=roles)
    check_optimizer(family.optimizer, rule=family.rule, weight_decay=task.weight_decay or 0.0)
    rate = check_real("lr", family.law.default_lr if lr is None else lr, above=0.0, below=MAX_RATE)
    if at is not None:
        at = check_ascending("at", at, MOST)
        if at[-1] > task.steps:
            raise InputError(
                f"at must be within the steps of training, one per batch; got at={at} and "
                f"{task.steps} batches. Give a batch for every step; they may repeat."
            )
        task = task.first(at[-1])
    if check_flag("noise", noise):
        samples_of_a_part(task.batches)
    seeds = check_count("seeds", seeds, minimum=2, maximum=MOST)
    family.check_sizes(sizes["width"], sizes["depth"])
    made = ""
    judge = family
    unjudged = ""
    # made once before anything is trained, for its name and its errors
    if task.make_optimizer is not None:
        stepping = optimizer_of(task, family.member(*family.base, device=task.device), rate)
        made = type(stepping).__name__
        # nobody said which: its class may
        if optimizer is None and not rule_named(family.rule).scales_width:
            law = law_by_class(stepping)
            if law is not None:
                judge = family.under(optimizer=law.name)
            else:
                unjudged = (
                    f"What updates of a {made} should be is not known: pass optimizer=, the law "
                    "that it has."
                )
    meters = Meters(None if at is None else tuple(at), noise)
    looks = tuple(at) if at else (task.steps,)
    trials = [
        Trial(family, task, width, depth, seed, rate, observe=(meters, Routing()))
        for width in sizes["width"]
        for depth in sizes["depth"]
        for seed in range(seeds)
    ]
    with as_sweep(sweep) as opened:
        runs = [
            _row(record) for record in opened.run_all({"checking": trials}, "checking")["checking"]
        ]
    _check_seeds(runs)
    for run, event in [*routing_events(runs)]:
        run["events"].append(event)
    stacks = stacks_of(runs)
    beside = beside_of(runs)
    table = [
        row | ({"stack": stack} if stack else {}) | {"step": step}
        for axis in AXES
        for step in looks
        for stack in stacks
        for row in rows(networks(runs, step, stack), sizes, axis, family.rule, beside)
        if step == looks[-1] or not METERS[row["meter"]].is_of_one_step
    ]
    table.sort(
        key=lambda row: (
            AXES.index(row["axis"]),
            [*METERS].index(row["meter"]),
            stacks.index(row.get("stack", "")),
        )
    )
    # in depth a suspect explains a fault of the meters: what a rule of width alone leaves as it is
    # may be meant
    deep = [
        axis
        for axis in AXES
        if axis == "width" or any(is_fault(row) and row["axis"] == axis for row in table)
    ]
    suspects, untold = suspects_of(runs, sizes, judge, deep, updates=not unjudged)
    tested = _self_test(
        family, (sizes["width"][0], sizes["depth"][0]), (sizes["width"][-1], sizes["depth"][-1])
    )
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
        made,
        suspects,
        unjudged or untold,
        tuple(opened.notes(family)),
        tested,
    )


def _self_test(
    family: Family, smallest: tuple[int, int], largest: tuple[int, int]
) -> tuple[str, ...]:
    """What the plan's own test finds at the smallest sizes, or why it could not run; nothing where
    no rule promises.
    """
    if not rule_named(family.rule).scales_width or smallest == largest:
        return ()
    from nfd.scaling.self_test import tests_itself

    if not tests_itself(family.make_model, smallest):
        return ()
    try:
        test = family.plan(*largest).self_test(family.make_model, family.sample, base=smallest)
    # beside the check, which it must not stop: a model may not be built 4 times as large
    except Exception as error:
        return (f"The plan could not test itself: {in_brief(error)}",)
    return tuple(f"Self-test of the plan: {cause}" for cause in test.causes)


def _row(record: Record) -> Row:
    """What the meters returned of one network, with its size."""
    size = {name: record.config[name] for name in ("width", "depth", "seed")}
    row: Row = size | record.observed[0] | {"routing": record.observed[1]}
    row["events"] = [Event(**event) for event in row["events"]]
    return row | {name: [size | own for own in row[name]] for name in ("rows", "noise")}


def _check_seeds(runs: Sequence[Row]) -> None:
    """Refuse networks that begin alike from several seeds."""
    prints: dict[tuple[int, int], dict[int, int]] = {}
    for run in runs:
        prints.setdefault((run["width"], run["depth"]), {})[run["seed"]] = run["print"]
    for size, by_seed in prints.items():
        check_seeds_differ(size, "network", by_seed)


# ---- the result

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
        """How many updates every network took."""
        return self.at[-1]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All readings: one dict for each network and step (``matrix`` is empty), and one for each
        of its matrices, with its ``role`` and the meters of a matrix
        (``nfd.meters.updates.Baseline.look``). ``inner_bound`` is what ``inner_update`` would be at
        perfect alignment."""
        return [row for run in self.runs for row in run["rows"]]

    @property
    def noise(self) -> list[dict[str, Any]]:
        """Noise scales of gradients after the last step, in samples, with ``noise=True``: a dict
        per network.

        ``value`` with ``low`` and ``high`` is ``variance / signal``, ``tr Sigma / |G|^2``
        (``nfd.meters.noise``). A batch much larger than this gains little. Pass it to
        ``Plan.for_run`` as ``critical_batch``, in the unit of ``batch`` there.
        """
        return [row for run in self.runs for row in run["noise"]]

    @property
    def ladder(self) -> dict[str, Any]:
        """The data of ``nfd.Watch`` for its bands, as plain numbers and strings.

        ``rule``, ``optimizer`` and ``lr``, whether the check found no fault (``ok``), the width and
        depth of the base (``base``), the ``definition`` of the meters, and the ``networks``: width,
        depth, the ``shapes`` of their tensors, and ``readings``, each a ``nfd.watch.WatchRow``.
        """
        parts = ("width", "depth", "shapes", "readings")
        networks = [{name: run[name] for name in parts if name in run} for run in self.runs]
        names = {
            "rule": self.rule,
            "optimizer": self.optimizer,
            "lr": self.lr,
            "definition": DEFINITION,
        }
        return {**names, "ok": self.ok, "base": list(self.base), "networks": networks}

    def save(self, path: str | Path) -> None:
        """Write ``ladder`` as JSON, for ``nfd.Watch(..., expected=path)``."""
        write_json(expanded(path), {"ladder": self.ladder})

    @property
    def faults(self) -> list[dict[str, Any]]:
        """The rows of the table that say that something scales wrongly."""
        return [row for row in self.table if is_fault(row)]

    @property
    def ok(self) -> bool:
        """Whether no meter collapses or grows, no tensor is a suspect and no training broke, at any
        step.

        A loss that falls with size and an uncertain verdict are not faults.
        """
        return not self.failures and not self.suspects and not self.faults

    @property
    def lead(self) -> Lead:
        """The number of faults, and the rule that removes all of them, if there is one; the
        steepest meter.
        """
        count = len(self.faults) + len(self.failures) or len(self.suspects)
        judged = self.table
        cure = None if self.failures else cure_of_all(self.faults, self.rule)
        remedy = f" Rule {cure!r} has the remedies built in: train by its plan." if cure else ""
        faults = f"{count} fault{'s' if count > 1 else ''} under rule {self.rule!r}.{remedy}"
        open_ = sum(row["verdict"] == "UNCERTAIN" for row in judged)
        known = [row for row in judged if math.isfinite(row["slope"]) and row["verdict"] != "FALLS"]
        numbers = {"faults": f"{len(self.faults)} of {len(judged)} readings, {open_} undecided"}
        if known:
            row = max(known, key=lambda row: (is_fault(row), abs(row["slope"])))
            numbers[f"steepest: {row_name(row)}"] = f"{row['axis']}^{slope_of(row)}"
        numbers["tensors that scale wrongly"] = str(
            len({suspect.tensor for suspect in self.suspects})
        )
        return Lead(faults if count else "No fault found.", "bad" if count else "good", numbers)

    @property
    def wrong(self) -> list[str]:
        """What went wrong, in sentences: broken trainings, tensors that scale wrongly, and the
        causes of the faults.
        """
        return [
            *map(str, self.failures),
            *self.suspicions,
            *causes(self.faults, self.rule, self.runs),
        ]

    @property
    def notes(self) -> list[str]:
        """Warnings in words: random numbers in training, targets that repeat the inputs, matrices
        that never moved.
        """
        still = self.unmoved
        stands = f"Note: no training moved {quoted(still)}. {_STILL}"
        told = (
            (COPIES, self.copies),
            (_DRAWS, self.draws),
            (stands, still),
            (f"Note: {self.unjudged}", self.unjudged),
        )
        of_plan = [f"Note: {sentence}" for sentence in self.tested]
        return [*self.of_runs, *(note for note, holds in told if holds), *of_plan]

    @property
    def suspicions(self) -> list[str]:
        """The suspects in words: the first that deviates in one way, and the names of the
        others.
        """
        ways: dict[tuple[str, str, bool], list[Suspect]] = {}
        for suspect in self.suspects:
            ways.setdefault((suspect.axis, suspect.what, suspect.excess.value > 0), []).append(
                suspect
            )
        alike = {str(first): quoted([s.tensor for s in others]) for first, *others in ways.values()}
        return [
            f"{first}{f'. Likewise {others}' if others else ''}." for first, others in alike.items()
        ]

    @property
    def unmoved(self) -> list[str]:
        """Names of the matrices that changed in no network: frozen, without a gradient, or not in
        the optimizer.
        """
        moved: dict[str, bool] = {}
        for row in self.rows:
            if "change" in row:
                moved[row["matrix"]] = moved.get(row["matrix"], False) or row["change"] != 0
        return [name for name, moves in moved.items() if not moves]

    def __str__(self) -> str:
        several = len(self.at) > 1
        parts = ("with", *(("after step",) if several else ()))
        numbers = (
            Column(name, no_wrap=True) for name in (*parts, "exponent [95 %]", "change", "verdict")
        )
        table = table_of(Column("meter", overflow="fold"), *numbers)
        sizes = {axis: sorted({run[axis] for run in self.runs}) for axis in AXES} | {
            "step": self.at
        }
        # of earlier looks the faults
        shown = [row for row in self.table if row["step"] == self.steps or is_fault(row)]
        for row in [*sorted(shown, key=lambda row: not is_fault(row)), *self.growth]:
            step = (str(row.get("step", "")),) if several else ()
            change = math.expm1(
                row["slope"] * math.log(sizes[row["axis"]][-1] / sizes[row["axis"]][0])
            )
            percent = f"{100 * change:+.0f} %" if math.isfinite(change) else "-"
            table.add_row(
                row_name(row), row["axis"], *step, slope_of(row), percent, row.get("verdict", "")
            )
        rate = f"{self.optimizer_class or self.optimizer}, lr = {self.lr:g}"
        ranges = "; ".join(f"{axis}s {', '.join(map(str, sizes[axis]))}" for axis in AXES)
        head = f"Rule {self.rule!r}, {rate}, {self.about}, {self.seeds} seeds; {ranges}"
        whys = dict[str, list[str]]()
        for row in shown:
            if row["verdict"] in ("LIMIT", "NOT MEASURED") or row["reason"] in (
                "missing",
                "broken",
            ):
                whys.setdefault(row["cause"], []).append(f"{row_name(row)} with {row['axis']}")
        edge = sum(row["reason"] == "edge" for row in shown)
        undecided = (
            [f"{edge} UNCERTAIN: more seeds or larger sizes would settle them."] if edge else []
        )
        noise = (
            ["", _NOISE, rows_as_text([_of_noise(row) for row in self.noise])] if self.noise else []
        )
        return said(
            str(self.lead),
            head,
            *(f"! {text}" for text in self.wrong),
            *self.notes,
            as_text(table, 150),
            *(f"{', '.join(dict.fromkeys(names))}: {why}" for why, names in whys.items()),
            *undecided,
            THRESHOLDS,
            *noise,
        )


def _of_noise(row: Row) -> Row:
    bounded = (
        "{value:.3g} [{low:.3g}, {high:.3g}]"
        if math.isfinite(row["high"])
        else "at least {low:.3g}"
    )
    words = bounded if row["low"] > 0 else "unknown: more or larger batches are needed"
    return {name: row[name] for name in ("width", "depth", "seed")} | {
        "noise scale [95 % interval]": words.format(**row)
    }


def slope_of(row: Mapping[str, Any]) -> str:
    """``-0.47 [-0.53, -0.42]``, or a dash where none could be fitted."""
    return (
        f"{row['slope']:+.2f} [{row['low']:+.2f}, {row['high']:+.2f}]"
        if math.isfinite(row["slope"])
        else "-"
    )


def meaning_of(row: Mapping[str, Any]) -> str:
    """What a row means, with the size since which its quantity changes."""
    start = f"since {row['axis']} {row['since']}: " if row["since"] is not None else ""
    return start + str(row["cause"])


# ---- its charts


def check_findings(check: Check, data: str) -> list[Finding]:
    """One chart per axis: geometric means of every meter after the last step, over networks of a
    size, relative to the smallest."""
    findings = []
    settings = (
        f"Rule {check.rule!r}, {check.optimizer}, lr = {check.lr:g}, {check.seeds} seeds, {data}"
    )
    caption = " ".join(
        [
            f"After {check.steps} steps. {settings}; bars: 95 % intervals.",
            THRESHOLDS,
            LIMITS,
            *check.notes,
        ]
    )
    for axis in reversed(AXES):
        sizes = sorted({run[axis] for run in check.runs})
        rows = list[Row]()
        table = list[Row]()
        trends = [row for row in check.table if row["axis"] == axis and row["step"] == check.steps]
        for trend in trends:
            stack = trend.get("stack", "")
            name = meter_of(in_words(trend["meter"]), stack)
            seen = networks(check.runs, check.steps, stack)
            values = [
                [run.get(trend["meter"], math.nan) for run in seen if run[axis] == size]
                for size in sizes
            ]
            logs = [
                log[log.isfinite()]
                for log in (torch.tensor(own, dtype=torch.float64).log() for own in values)
            ]
            for size, log in zip(sizes, logs, strict=True):
                if min(len(log), len(logs[0])) > 1:
                    ratio = interval(lambda a, b: b.mean(0) - a.mean(0), logs[0], log).exp()
                    about = {"series": name, "meter": trend["meter"], "stack": stack, axis: size}
                    rows.append(about | columns("ratio", ratio))
            slope = {"exponent [95 % interval]": slope_of(trend), "verdict": trend["verdict"]}
            table.append({"meter": name} | slope | {"what it means": meaning_of(trend)})
        faults = [trend for trend in trends if is_fault(trend)]
        title = f"{len(faults)} of {len(trends)} meters scale wrongly with {axis}"
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
        why = list(causes(faults, check.rule, check.runs))
        if rows:
            findings.append(Finding(axis, title, "", rows, shown, caption, why, table=table))
    return sorted(findings, key=lambda found: -len(found.details))


# ---- what is read of one network

_Meters = dict[str, dict[str, float]]  # by stack
_ROSE = 2.0  # times the first loss: no rate that is meant does this


@dataclass(frozen=True)
class Meters(Observer):
    """The meters of a check, read after the last step, or after each of ``at``.

    It returns one row of plain data: the meters after the last step, ``events``, ``unread``,
    ``rows``, the meters of the network and of its matrices after every step that is looked at,
    ``readings``, the same with those of its blocks, as rows of ``nfd.watch.WatchRow``, ``noise``,
    that of its gradients, if asked for, ``draws``, whether it drew random numbers, and ``print``, a
    hash of its initial weights.
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
        self.print = 0  # a hash of all weights, to tell seeds that give the same network
        for p in member.module.parameters():
            self.print = zlib.crc32(
                p.detach().cpu().flatten().view(torch.uint8).numpy().tobytes(), self.print
            )
        self.start = Baseline(member, task.sample)
        self.sizes = Sizes(member, self.start.start)
        self.events: list[Event] = []
        self.meters: _Meters = {stack: {} for stack in self.start.unread}
        self.previous: dict[str, Tensor] | None = None
        self.rows: list[dict[str, Any]] = []
        self.readings: list[WatchRow] = []
        self.losses: list[float] = []
        self.awaited = {*self.start.unread}  # stacks whose first update is to come
        self.weak_norms = dict[str, float]()
        self.streams = global_state()

    def after(self, row: Step) -> None:
        """Read the network after a step, or name the layer that broke it."""
        self.sizes.after(row.optimizer)
        self.losses.append(row.loss)
        self.meters[""]["loss"] = row.loss
        done = row.step + 1
        steps = self.task.steps
        run = partial(self.member, self.task.batches[row.step][0])
        if not math.isfinite(row.loss):
            self.events.append(Event("not-finite", row.step, first_bad(self.member.module, run)))
            return
        self._read_first_update()
        if done in self.looks and done < steps:
            self._measure(done)

    def end(self) -> tuple[dict[str, float], dict[str, Any], Any]:
        """Measure what the last step left, if it still answers."""
        losses = self.losses
        module = self.member.module
        run = partial(self.member, self.task.batches[-1][0])
        noise = []
        finite = math.isfinite(losses[-1])
        if finite:
            if losses[-1] > _ROSE * losses[0] > 0:
                self.events.append(Event("loss-rose", len(losses) - 1, size=losses[-1] / losses[0]))
            with torch.no_grad():
                finite = bool(outputs_of(run()).isfinite().all())
            if not finite:
                self.events.append(Event("not-finite", len(losses), first_bad(module, run)))
        meters = self._measure(len(losses)) if finite else self._note(self.looks[-1], self.meters)
        if finite and self.asked.noise:
            found = noise_of(module, self.member, self.task.value, self.task.batches)
            # none where no gradient was finite
            parts = {"signal": found.signals, "variance": found.variances}
            means = {
                name: float(torch.tensor(own, dtype=torch.float64).mean())
                for name, own in parts.items()
            }
            noise = [found.estimate().limits | means]
        read = {
            "rows": self.rows,
            "readings": [astuple(reading) for reading in self.readings],
            "noise": noise,
        }
        stacks = {
            stack: {"unread": self.start.unread[stack]} | own for stack, own in meters.items()
        }
        network = stacks.pop("")
        told: dict[str, Any] = {"events": [asdict(event) for event in self.events]}
        told["weak_norms"] = self.weak_norms
        told |= {"draws": global_state() != self.streams, "print": self.print}
        if finite:
            with quiet(module), as_written():
                self.sizes.find_rounding(self._last_loss)
        told["tensors"] = self.sizes.read() if finite else []
        told["shapes"] = {name: list(t.shape) for name, t in tensors(module).items()}
        return {}, {}, told | read | network | ({"stacks": stacks} if stacks else {})

    def _read_first_update(self) -> None:
        """Read what the first update adds to the stream; it is the second one where the readout
        starts at zero.
        """
        moved = self.start.stream_updates() if self.awaited else {}
        for stack in self.awaited & moved.keys():
            self.meters[stack]["first_update"] = moved[stack]
        self.awaited = {stack for stack in self.awaited if moved.get(stack) == 0}

    def _last_loss(self) -> Tensor:
        inputs, targets = self.task.batches[-1]
        return self.task.value(self.member(inputs), targets)

    def _measure(self, step: int) -> _Meters:
        """Read the network and every matrix of it, after so many updates; returns the meters by
        stack.
        """
        look = self.start.look(self.previous)
        seen = {"": look.network, **look.stacks}
        for stack, bounds in look.bounds.items():
            seen[stack] |= bounds
        meters = self._note(
            step, {stack: known | seen.get(stack, {}) for stack, known in self.meters.items()}
        )
        self.readings += readings(self.member, look, step)
        for name, of_matrix in look.matrices.items():
            self.rows.append(
                {"step": step, "matrix": name, "role": self.member.plan.roles[name]} | of_matrix
            )
        return meters

    def _note(self, step: int, meters: _Meters) -> _Meters:
        for stack, own in meters.items():
            self.rows.append(
                {"step": step, "matrix": "", "role": ""} | ({"stack": stack} if stack else {}) | own
            )
        return meters

    @contextmanager
    def around(self, step: int) -> Iterator[None]:
        """Reads norms and the gradient of the stream at the start, or the latter before every look
        that was asked for, and then keeps the matrices that the update will change."""
        if step == 0:
            with norms_of(self.member.module) as self.weak_norms, self._around(step):
                yield
            return
        with self._around(step):
            yield

    @contextmanager
    def _around(self, step: int) -> Iterator[None]:
        asked = self.asked.at is not None
        if step + 1 not in self.looks if asked else step > 0:
            yield
            return
        with self.member.stream() as ends:
            yield
        self._read_gradient(ends, step)
        self.previous = self.start.weights() if asked else None

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
