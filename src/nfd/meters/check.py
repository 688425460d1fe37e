"""``nfd.check`` trains networks of several sizes for a few steps, and says what scales wrongly."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nfd.core.answer import Answer
from nfd.core.checks import check_ascending, check_count, check_flag, check_real
from nfd.core.errors import InputError, in_brief
from nfd.core.estimates import Interval
from nfd.core.files import expanded, write_json
from nfd.core.modes import gradients
from nfd.core.names import AXES, MOST, RULE, SEEDS, WIDEST, Axis, RuleName
from nfd.core.notices import OldName
from nfd.core.random import global_state
from nfd.core.tables import Row
from nfd.core.words import listed, number, plural, quoted
from nfd.families.family import Family, as_family
from nfd.families.member import Member
from nfd.families.streams import StreamEnds
from nfd.meters.beside import beside_of, norms_of
from nfd.meters.changes import Change, Planned, Two, changes_of_suspects
from nfd.meters.check_answer import answer_of
from nfd.meters.designs import Asked, Design, designs_of, undecided
from nfd.meters.events import Event, Failure, failures_of, first_bad, gradient_events
from nfd.meters.experts import Routing, routing_events
from nfd.meters.meter import METERS
from nfd.meters.noise import noise_of, samples_of_a_part
from nfd.meters.reading import WatchRow
from nfd.meters.suspects import Sizes, Suspect, suspects_of
from nfd.meters.updates import (
    DEFINITION,
    HIDDEN,
    NO_BLOCKS,
    Baseline,
    Calls,
    Pass,
    quiet,
    readings,
)
from nfd.meters.verdict import (
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
from nfd.report.shown import Shown
from nfd.runs.seeds import check_seeds_differ
from nfd.runs.sweep import Sweep, as_sweep
from nfd.runs.task import COPIES, Batch, Task, as_task
from nfd.runs.trial import Observation, Observer, Step, Trial, optimizer_of
from nfd.scaling.base import MakeModel
from nfd.scaling.find_law import check_optimizer
from nfd.scaling.model import tensors
from nfd.scaling.optimizers import BETAS, OptimizerLaw, law_by_class
from nfd.scaling.rules import MAX_RATE, rule_named
from nfd.scaling.samples import as_written
from nfd.scaling.self_test import tests_itself
from nfd.store import Record

if TYPE_CHECKING:
    from nfd.report.page import Section
    from nfd.scaling.plan import Plan


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
    seeds: int | None = None,
    at: Sequence[int] | None = None,
    noise: bool = False,
    blocks: str | Sequence[str] | None = None,
    roles: Mapping[str, str] | None = None,
    remedy: bool = True,
    sweep: Sweep | None = None,
) -> Check:
    """Check whether the training of a model depends on its width and depth.

    Small networks of every width and depth are trained for a few steps. Meters of their updates are
    then fitted by a power of the width and of the depth. A meter is ``STABLE`` if its exponent is
    near 0; it ``GROWS`` if larger networks need a lower rate, and ``COLLAPSES`` if a part of them
    stops learning. Verdicts have 95 % intervals. Take sizes over a factor of 8.

    Example::

        check = nfd.check(make_model, batches, [16, 32], [2, 4], lr=3e-3)
        print(check)  # what to change, and what to do next

    Meters are read on the first batch, after the last step or those of ``at``:

    - the updates of ``nfd.meters.updates``, such as ``inner_update`` and ``function_update``;
    - ``gradient``: the RMS of dLoss/dh before the first block over that after the last, before
      training;
    - ``loss``: of the last batch, before its update.

    Several stacks of blocks, such as encoder and decoder, are judged apart.

    Args:
        family: ``make_model(width, depth)``, whose base is the smallest network, or an
            ``nfd.Family``.
        task: batches, one per step, or an ``nfd.Task``.
        widths, depths: every pair is trained. One value leaves an axis out.
        lr: learning rate of the base; by default 0.1 for SGD, 0.001 for others.
        rule, optimizer, blocks, roles: in place of the family's; as in ``nfd.plan``.
        seeds: initialisations of each network, at least 2. By default the ends of the sizes from
            2 seeds, then 3, then all sizes, while a quantity is undecided.
        at: steps after which to read the meters, ascending; the last ends training.
        noise: also estimate the noise scale of gradients after the last step (``Check.noise``).
        remedy: also train by the plan that should mend a fault.
        sweep: where networks are trained and kept.

    Returns:
        A ``Check``. Slopes are pooled over seeds and the sizes of the other axis.

    Raises:
        ValueError, TypeError: naming the argument; if two seeds give the same network.
        RuntimeError: naming the line of yours at which training fails.

    Source: Eqs. 7, 8, 27, 33, 34; Yang et al., Tensor Programs V (coordinate checks).
    """
    sizes = _sizes(widths, depths)
    data = "task" if isinstance(task, Task) else "batches"
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
    if seeds is not None:
        seeds = check_count("seeds", seeds, minimum=2, maximum=MOST)
    family.check_sizes(sizes["width"], sizes["depth"])
    check_flag("remedy", remedy)
    judge = _judge(family, task, rate, is_told=optimizer is not None)
    factors = task.factors(rate)
    observe = (Meters(None if at is None else looks, noise, factors), Routing())
    asked = Asked(sizes, seeds)
    # The bands of a watch need all networks.
    designs = designs_of(asked) if len(looks) == 1 else [Design(sizes, seeds or SEEDS)]
    training = _Training(task, designs, rate, looks, observe, judge)
    remedied = None
    why_no_remedy = ""
    with as_sweep(sweep) as opened:
        seen = training.run(family, opened, "checking")
        cure = _cure(family, seen.table, seen.suspects, sizes)
        if remedy and cure is not None and _is_sound_when_small(seen.runs):
            remedied, why_no_remedy = training.remedy(family.under(cure), opened)
        if remedied is not None and not remedied.helps(seen.table, seen.failures):
            cure = None
    largest = (sizes["width"][-1], sizes["depth"][-1])
    return Check(
        seen.table,
        seen.runs,
        seen.failures,
        family.rule,
        family.optimizer,
        rate,
        looks,
        seen.design.seeds,
        task.about,
        family.base,
        asked,
        growth(seen.runs, looks),
        any(run["draws"] for run in seen.runs),
        task.copies,
        judge.optimizer_class,
        seen.suspects,
        judge.unjudged or seen.why_no_suspects or why_no_remedy,
        tuple(opened.notes(family)),
        _self_test(family, base, largest),
        family.name,
        cure,
        remedied,
        _changes(family, cure, seen.suspects, sizes, rate),
        seen.seconds,
        not tests_itself(family.make_model, family.base),
        factors or (1.0,) * task.steps,
        _assumed(family.law, task),
        data,
        task.optimizer_code,
    )


def _assumed(law: OptimizerLaw, task: Task) -> str:
    """Say which optimizer stands for the one that nobody gave; empty where a task makes one."""
    if task.make_optimizer is not None:
        return ""
    settings = [law.name]
    betas = law.setting(BETAS.name)
    if betas is not None and betas.default is not None:
        settings.append(f"betas {listed(betas.default)}")
    settings.append(f"decay {task.weight_decay:g}" if task.weight_decay else "no decay")
    settings.append("constant rate" if task.schedule is None else "your schedule")
    return f"Assumed: {', '.join(settings)} (nfd.Task takes yours)."


@dataclass(frozen=True)
class _Seen:
    """What the networks of a look show, by the plan of one rule."""

    rule: RuleName
    design: Design
    runs: list[Row]
    table: list[Row]
    suspects: list[Suspect]
    why_no_suspects: str
    seconds: float

    @property
    def failures(self) -> list[Failure]:
        """What broke."""
        return failures_of(self.runs)


@dataclass(frozen=True)
class _Training:
    """How the networks of a check are trained and judged, whatever their rule."""

    task: Task
    designs: Sequence[Design]
    rate: float
    looks: tuple[int, ...]
    observe: tuple[Observer, ...]
    judge: _Judge

    def run(self, family: Family, sweep: Sweep, label: str) -> _Seen:
        """Train the networks of one design after another, until what they show is decided."""
        first, *more = self.designs
        seen = self._look(family, sweep, label, first)
        for design in more:
            open_count = undecided(seen.table)
            if seen.failures or not open_count:
                break
            count = plural(open_count, "quantity", "quantities")
            seen = self._look(family, sweep, f"{label}, {count} not decided yet", design)
        return seen

    def _look(self, family: Family, sweep: Sweep, label: str, design: Design) -> _Seen:
        """Train the networks of a design that are missing, and judge all of them."""
        trials = []
        for width, depth, seed in design.networks:
            trials.append(
                Trial(family, self.task, width, depth, seed, self.rate, observe=self.observe)
            )
        records = sweep.run_all({label: trials}, label)[label]
        runs = [_row(record) for record in records]
        _check_seeds(runs)
        for run, event in list(routing_events(runs)):
            run["events"].append(event)
        table = _table(runs, self.looks, design, family.rule)
        suspects, why_none = suspects_of(
            runs,
            design.sizes,
            self.judge.family.under(family.rule),
            _axes_of_suspects(table),
            updates=not self.judge.unjudged,
            level=design.level,
        )
        seconds = math.fsum(record.seconds for record in records)
        return _Seen(family.rule, design, runs, table, suspects, why_none, seconds)

    def remedy(self, family: Family, sweep: Sweep) -> tuple[Remedy | None, str]:
        """Train networks by the plan of another rule, or say why that is not possible."""
        try:
            seen = self.run(family, sweep, f"with the plan {family.rule}")
        # It must not stop the check: the plan may not know a tensor.
        except (ValueError, TypeError, RuntimeError) as error:
            return None, f"The plan {family.rule} could not be tried: {in_brief(error)}"
        return Remedy(seen.rule, seen.table, seen.runs, seen.failures, seen.suspects), ""


def _cure(
    family: Family,
    table: Sequence[Row],
    suspects: Sequence[Suspect],
    sizes: Mapping[str, list[int]],
) -> RuleName | None:
    """The rule whose plan is to prevent what is wrong; None where nothing is, or no rule does."""
    faults = [row for row in table if is_fault(row)]
    if not faults and not suspects:
        return None
    candidates = [cure_of_all(faults, family.rule)]
    if not rule_named(family.rule).scales_width:
        # Something else may be wrong as well, which the networks show. Without blocks only the rule
        # for width has a plan.
        candidates = [candidates[0] or RULE, "mup"]
    for rule in candidates:
        if rule is None:
            continue
        try:
            family.under(rule).plan(sizes["width"][-1], sizes["depth"][-1])
        except InputError:
            continue
        return rule
    return None


def _is_sound_when_small(runs: Sequence[Row]) -> bool:
    """Whether nothing breaks in the smallest networks, which the plan leaves as they are."""
    smallest = min((run["width"], run["depth"]) for run in runs)
    return not any(run["events"] for run in runs if (run["width"], run["depth"]) == smallest)


def _changes(
    family: Family,
    cure: RuleName | None,
    suspects: Sequence[Suspect],
    sizes: Mapping[str, list[int]],
    rate: float,
) -> list[Change]:
    """What to change of every kind of tensors; by the plans where no tensor is a suspect."""
    spans = _spans(sizes)
    if suspects or cure is None:
        return changes_of_suspects(suspects, spans)
    # Networks of the paper also have factors in the forward pass, which no tensor shows.
    if not tests_itself(family.make_model, family.base):
        return []
    two = Two(
        _planned(family, sizes),
        _planned(family.under(cure), sizes),
        rate,
        {axis: sizes[axis][0] for axis in spans},
        spans,
    )
    return two.changes()


def _spans(sizes: Mapping[str, list[int]]) -> dict[Axis, float]:
    """The largest size over the smallest, along the axes that have several."""
    spans = dict[Axis, float]()
    for axis in AXES:
        if len(sizes[axis]) > 1:
            spans[axis] = sizes[axis][-1] / sizes[axis][0]
    return spans


def _planned(family: Family, sizes: Mapping[str, list[int]]) -> Planned:
    """The plans of a family at its largest sizes."""
    widths = sizes["width"]
    depths = sizes["depth"]
    along: dict[Axis, Plan] = {
        "width": family.plan(widths[-1], depths[0]),
        "depth": family.plan(widths[0], depths[-1]),
    }
    return Planned(family.plan(widths[-1], depths[-1]), along)


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


def _table(runs: Sequence[Row], looks: Sequence[int], design: Design, rule: RuleName) -> list[Row]:
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
                seen = networks(runs, step, stack)
                for row in rows(seen, design.sizes, axis, rule, beside, design.level):
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
class Remedy:
    """The same networks by the plan of another rule.

    Attributes:
        rule: of the plan.
        table, runs, failures, suspects: as of a ``Check``.
    """

    rule: RuleName
    table: list[dict[str, Any]]
    runs: list[Row] = field(repr=False)
    failures: list[Failure]
    suspects: list[Suspect] = field(default_factory=list)

    @property
    def faults(self) -> list[dict[str, Any]]:
        """The rows of the table that say that something scales wrongly."""
        return [row for row in self.table if is_fault(row)]

    @property
    def broken(self) -> bool:
        """Whether a training broke."""
        return bool(self.failures)

    def helps(self, table: Sequence[Row], failures: Sequence[Failure]) -> bool:
        """Whether it leaves less wrong than there was; or nothing, where only tensors were."""
        faults_before = sum(map(is_fault, table))
        if self.broken or failures:
            return len(self.failures) < len(failures)
        return not self.faults or len(self.faults) < faults_before


@dataclass(frozen=True, repr=False)
class Check(Shown):
    """The result of ``nfd.check``. Print it for the answer: what to change, and what to run next.

    A notebook shows it with charts. ``to_pandas()`` has the columns of ``table``.

    Attributes:
        judged: the rows of ``table``.
        runs: one dict per network: width, depth, seed, its meters after the last step, and why
            others could not be read (``unread``). The same of every stack of several: ``stacks``.
        failures: what went wrong, once per kind, with the first step, layer and network.
        rule, optimizer, lr, at, seeds, base: the settings, and the steps after which meters were
            read.
        asked: the sizes and seeds of the call, of which fewer may have decided.
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
        model: its name.
        cure: the rule whose plan is to prevent what is wrong; None where nothing is wrong, or no
            rule does.
        remedy: the same networks by that plan; None where that was not asked or not possible.
        changes: what to change, for every kind of tensors: now, what it should be, and why.
        seconds: how long all trainings took, on one core each.
        plans_itself: whether its networks are of the paper, which know their own plan.
        factors: the schedule, as a factor on ``lr`` for each step.
        assumed: the optimizer in place of one that nobody gave, in a sentence.
        data, recipe: how code names what it trained on, and what its optimizer was made with.

    Example::

        check = nfd.check(make_model, batches, [16, 32], [2], lr=3e-3)
        for row in check.table:
            print(row["meter"], row["axis"], row["slope"], row["verdict"])
        check.ok  # False where a meter collapses or grows, or a training broke
    """

    judged: list[dict[str, Any]]
    runs: list[Row]
    failures: list[Failure]
    rule: str
    optimizer: str
    lr: float
    at: tuple[int, ...]
    seeds: int
    about: str
    base: tuple[int, int]
    asked: Asked
    growth: list[dict[str, Any]] = field(default_factory=list)
    draws: bool = False
    copies: bool = False
    optimizer_class: str = ""
    suspects: list[Suspect] = field(default_factory=list)
    unjudged: str = ""
    of_runs: tuple[str, ...] = ()
    tested: tuple[str, ...] = ()
    model: str = ""
    cure: RuleName | None = None
    remedy: Remedy | None = None
    changes: list[Change] = field(default_factory=list)
    seconds: float = 0.0
    plans_itself: bool = False
    factors: Sequence[float] = ()
    assumed: str = ""
    data: str = "batches"
    recipe: str = ""

    @property
    def table(self) -> list[dict[str, Any]]:
        """One dict per meter and axis, and after every step that was looked at.

        Of a model with several stacks of blocks, such as an encoder and a decoder, there is one for
        every ``stack``. ``slope``, ``low`` and ``high`` are the exponent and its 95 % interval;
        ``verdict``, ``reason`` and ``cause`` judge it; ``since`` is the size at which a fault
        begins. Also ``meter``, ``axis``, ``step``, and ``value``, which is ``slope``.
        """
        return self.judged

    @property
    def answer(self) -> Answer:
        """State, decision, evidence, what to change, and what to run next."""
        return answer_of(self)

    lead = OldName("write answer", attrgetter("answer"))

    def first_sections(self) -> list[Section]:
        """What to change, and the quantities that show it."""
        from nfd.meters.check_page import first_sections

        return first_sections(self)

    def plot(self) -> Any:
        """Draw the quantities that show the answer against width and depth, by Altair.

        Raises:
            ValueError: where nothing could be measured.
        """
        from nfd.meters.check_page import plot

        return plot(self)

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

        ``rule``, ``optimizer`` and ``lr``, its ``schedule`` as a factor for each step, whether the
        check found no fault (``ok``), the width and depth of the base (``base``), the
        ``definition`` of the meters, and the ``networks``: width,
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
            "schedule": list(self.factors),
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

    @property
    def sentences(self) -> list[str]:
        """The settings, what is wrong, notes, and how to read the verdicts."""
        name = self.optimizer_class or self.optimizer
        ranges = "; ".join(f"{axis}s {', '.join(map(str, self.sizes[axis]))}" for axis in AXES)
        head = (
            f"Rule {self.rule!r}, {name}, lr = {self.lr:g}, {self.about}, {self.seeds} seeds; "
            f"{ranges}."
        )
        shown = [row for row in self.table if row["step"] == self.steps or is_fault(row)]
        sentences = [*self.wrong, *self.notes, head, *_reasons(shown), THRESHOLDS]
        for row in self.growth:
            sentences.append(f"{row_name(row)} after more steps: {row['cause']}")
        if self.noise:
            sentences += [_NOISE, *map(_of_noise, self.noise)]
        return sentences

    @property
    def sizes(self) -> dict[Axis, list[int]]:
        """The widths and the depths that were trained."""
        sizes = dict[Axis, list[int]]()
        for axis in AXES:
            sizes[axis] = sorted({run[axis] for run in self.runs})
        return sizes


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


def _of_noise(row: Row) -> str:
    """The noise scale of one network in words."""
    scale = "{width} wide, {depth} deep, seed {seed}: ".format(**row)
    if row["low"] <= 0:
        return f"{scale}unknown, more or larger batches are needed"
    if math.isfinite(row["high"]):
        interval_of_scale = Interval(row["value"], math.nan, row["low"], row["high"])
        return f"{scale}{interval_of_scale.in_words()}"
    return f"{scale}at least {number(row['low'])}"


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

    ``factors`` are the schedule on the learning rate, one for each step; None where it is constant.
    """

    at: tuple[int, ...] | None = None
    noise: bool = False
    factors: tuple[float, ...] | None = None

    @property
    def settings(self) -> Mapping[str, Any]:
        at = None if self.at is None else list(self.at)
        settings: dict[str, Any] = {"at": at, "noise": self.noise, "definition": DEFINITION}
        # Earlier versions stored the last step's rates, which differ under a schedule.
        if self.factors is not None:
            settings["rates"] = "before the schedule"
        return settings

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
        factors = self.asked.factors
        self.sizes.after(row.optimizer, 1.0 if factors is None else factors[row.step])
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
        seen = self._seen_at_the_end()
        is_finite = seen is not None
        if seen is not None:
            meters = self._measure(len(self.losses), seen)
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

    def _seen_at_the_end(self) -> tuple[Pass, Calls] | None:
        """Pass the sample through the trained network.

        None where the last loss or the outputs are not finite; events say what went wrong.
        """
        losses = self.losses
        if not math.isfinite(losses[-1]):
            return None
        if losses[-1] > _ROSE * losses[0] > 0:
            self.events.append(Event("loss-rose", len(losses) - 1, size=losses[-1] / losses[0]))
        calls = Calls()
        now = self.start.seen(calls)
        if bool(now.outputs.isfinite().all()):
            return now, calls
        self._note_break(len(losses), self.task.sample)
        return None

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

    def _measure(self, step: int, seen: tuple[Pass, Calls] | None = None) -> _Meters:
        """Read the network and every matrix of it after so many updates.

        Args:
            seen: as of ``Baseline.look``.

        Returns:
            The meters by stack.
        """
        look = self.start.look(self.previous, seen).with_bounds()
        meters = {}
        for stack, earlier in self.meters.items():
            numbers = look.network
            if stack:
                numbers = look.stacks.get(stack, {})
            meters[stack] = earlier | numbers
        self._note(step, meters)
        self.readings += readings(self.member, look, step)
        for name, numbers in look.matrices.items():
            place = {"step": step, "matrix": name, "role": self.member.plan.entries[name].role}
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
