"""``nfd.check``: train a constructor's networks for a few steps over widths and depths, and say what scales wrongly."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from nfd.core.errors import check_choice, check_count, check_real
from nfd.core.progress import Bar, bar
from nfd.core.random import derive
from nfd.core.statistics import Interval, pooled_slope
from nfd.meters.health import dead_units, first_bad, gradient_event, stream_gradients
from nfd.meters.updates import UPDATES, Baseline, outputs_of
from nfd.meters.verdict import Axis, Verdict, cause, seeds_needed, since, verdict
from nfd.nets.network import Network
from nfd.scaling.plan import Plan
from nfd.scaling.planning import plan
from nfd.scaling.probe import call_with
from nfd.scaling.rules import OPTIMIZERS, rule_named
from nfd.scaling.scaled import Scaled
from nfd.scaling.sizes import MakeModel, instance
from nfd.training.losses import LOSSES

AXES: tuple[Axis, ...] = ("width", "depth")
METERS = (*UPDATES, "gradient", "loss", "gia_gap")
_OF_DEPTH_ONLY = ("gradient", "gia_gap")
_BUILDING = Lock()
_MOST_AT_A_TIME = 8  # networks; each is in memory three times
_NOTHING = Interval(math.nan, math.nan, math.nan, math.nan)
Run = dict[str, Any]
Groups = list[dict[str, Any]]


@dataclass(frozen=True)
class Check:
    """What ``nfd.check`` found; printing it shows the table.

    Attributes:
        table: one dict per meter and axis: meter, axis, slope, low, high, verdict, cause, since, seeds_needed.
        runs: one dict per network: width, depth, seed, and its meters after the last step.
        events: what went wrong, with the first step and layer.
        rule, optimizer, steps, seeds: what ran.
    """

    table: list[dict[str, Any]]
    runs: list[Run] = field(repr=False)
    events: list[str]
    rule: str
    optimizer: str
    steps: int
    seeds: int

    @property
    def ok(self) -> bool:
        """Whether nothing collapses, grows or breaks; a loss that falls with size is no fault, doubt is none either."""
        return not self.events and not any(_is_fault(row) for row in self.table)

    def __str__(self) -> str:
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for column in ("meter", "against", "exponent [95 % interval]", "verdict", "what it means"):
            table.add_column(column, no_wrap=column != "what it means")
        for row in self.table:
            table.add_row(row["meter"], row["axis"], _slope(row), row["verdict"], _meaning(row))
        text = io.StringIO()
        Console(file=text, width=150, color_system=None, highlight=False, emoji=False, markup=False).print(table)
        head = f"Rule {self.rule!r}, {self.optimizer}, {self.steps} steps, {self.seeds} seeds"
        return "\n".join([head, text.getvalue().rstrip(), *(f"! {event}" for event in self.events)])


def check(
    make_model: MakeModel,
    widths: Sequence[int],
    depths: Sequence[int],
    batches: Sequence[tuple[Any, Any]],
    rule: str = "depth-mup",
    optimizer: str = "sgd",
    eta_c: float = 0.1,
    loss: str | Callable[[Any, Any], Tensor] = "cross-entropy",
    seeds: int = 3,
    *,
    blocks: str | Sequence[str] | None = None,
    roles: Mapping[str, str] | None = None,
    weight_decay: float = 0.0,
    make_optimizer: Callable[[Groups], torch.optim.Optimizer] | None = None,
    gia: bool = False,
    progress: bool = False,
) -> Check:
    """Train networks of every width and depth on the same batches, measure them, and fit log-log slopes.

    The base of every plan is the smallest width and depth; networks of ``nfd.nets`` have their own, width 1 and depth
    1, so that ``eta_c`` is the paper's. Meters, after the last step and on the inputs of the first batch: those of
    ``nfd.meters.updates``; ``gradient``, rms of dLoss/dh entering the first block over that leaving the last, at the
    start; ``loss``, of the last batch before its update; ``gia_gap`` if ``gia``, |loss of the standard network - loss
    of the decoupled one| over the progress of the standard one since the start, all on the first batch.

    Args:
        make_model: ``make_model(width, depth)``.
        widths, depths: of the networks, every pair; one value where that axis is not of interest.
        batches: (inputs, targets), one per step. Inputs: a tensor, a tuple of arguments or a dict of keyword arguments.
        rule, optimizer, blocks, roles: as in ``nfd.plan``; ``"sgd"``, ``"adam"`` and ``"adamw"`` are built here.
        eta_c: the base's learning rate.
        loss: ``"cross-entropy"`` (class ids; any leading dimensions), ``"mse"``, or a function of what the model
            returns and the targets.
        seeds: initialisations of each network, at least 2.
        weight_decay: the base's.
        make_optimizer: from parameter groups to an optimizer, for ones that PyTorch does not have.
        gia: train the decoupled twin too (networks of ``nfd.nets`` with feedback="shared").
        progress: show a bar on a terminal.

    Returns:
        verdicts: ``STABLE``, ``COLLAPSES``, ``GROWS`` or ``UNCERTAIN`` per meter and axis (``nfd.meters.verdict``),
        from slopes pooled over seeds and sizes of the other axis, with 95 % intervals.

    Raises:
        ValueError, TypeError: naming the argument.

    Source: Eqs. 7, 8, 27, 33, 34; Yang et al., Tensor Programs V (coordinate checks).
    """
    sizes = {"width": _sizes("widths", widths), "depth": _sizes("depths", depths)}
    if all(len(s) < 2 for s in sizes.values()):
        raise ValueError(f"widths or depths must hold two sizes or more; got {list(widths)} and {list(depths)}.")
    if not batches or any(not isinstance(b, tuple | list) or len(b) != 2 for b in batches):
        raise ValueError("batches must be a list of (inputs, targets), one per step.")
    rule_named(rule)
    job = _Job(
        make_model,
        min(sizes["width"]),
        min(sizes["depth"]),
        [(x, y) for x, y in batches],
        rule,
        check_choice("optimizer", optimizer, OPTIMIZERS),
        check_real("eta_c", eta_c, above=0.0),
        _loss(loss),
        blocks,
        roles,
        check_real("weight_decay", weight_decay, least=0.0),
        make_optimizer,
        gia,
    )
    seeds = check_count("seeds", seeds, minimum=2)
    wanted = [(w, d, s) for w in sizes["width"] for d in sizes["depth"] for s in range(seeds)]
    with bar("checking", enabled=progress) as shown:
        runs = _all_runs(job, wanted, shown)
    rows = [row for axis in AXES for row in _rows(runs, sizes, axis, seeds)]
    return Check(rows, runs, _events(runs), rule, optimizer, len(batches), seeds)


def _all_runs(job: _Job, wanted: Sequence[tuple[int, int, int]], shown: Bar) -> list[Run]:
    """Every network, the largest first; several at a time, one thread each, where training draws no random numbers."""
    shown.plan(sum(width * depth for width, depth, _ in wanted), "checking")
    order = sorted(wanted, key=lambda w: w[0] * w[1], reverse=True)

    def one(which: tuple[int, int, int]) -> Run:
        torch.manual_seed(derive(which[2], "training", *which[:2]))
        run = job.run(*which)
        shown.advance(which[0] * which[1])
        return run

    threads = torch.get_num_threads()
    *rest, smallest = order
    with torch.random.fork_rng(devices=[]):
        found = {smallest: one(smallest)}
        drawn = torch.get_rng_state()
        torch.manual_seed(derive(smallest[2], "training", *smallest[:2]))
        alone = not torch.equal(drawn, torch.get_rng_state())
        try:
            torch.set_num_threads(threads if alone else 1)
            with ThreadPoolExecutor(1 if alone else min(threads, _MOST_AT_A_TIME)) as pool:
                try:
                    found |= dict(zip(rest, pool.map(one, rest), strict=True))
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
        finally:
            torch.set_num_threads(threads)
    return [found[which] for which in wanted]


@dataclass(frozen=True)
class _Job:
    """One network after another."""

    make_model: MakeModel
    base_width: int
    base_depth: int
    batches: list[tuple[Any, Any]]
    rule: str
    optimizer: str
    eta_c: float
    loss: Callable[[Any, Any], Tensor]
    blocks: str | Sequence[str] | None
    roles: Mapping[str, str] | None
    weight_decay: float
    make_optimizer: Callable[[Groups], torch.optim.Optimizer] | None
    gia: bool

    def run(self, width: int, depth: int, seed: int) -> Run:
        with _BUILDING:  # building sets the random state of the process
            model, planned = self._planned(width, depth, seed)
        found: Run = {"width": width, "depth": depth, "seed": seed, "events": []}
        twin = _decoupled(model) if self.gia else None
        baseline = Baseline(model, planned, self.batches[0][0])
        losses = self._train(model, planned, found)
        found["loss"] = losses[-1]
        if math.isfinite(losses[-1]):
            found |= baseline.updates(model)
            if twin is not None:
                found["gia_gap"] = self._gap(model, twin, losses[0])
        return found

    def _gap(self, model: nn.Module, twin: nn.Module, start: float) -> float:
        """How far apart standard and decoupled training end on the first batch, over the standard one's progress."""
        with _BUILDING:
            planned = self._plan(twin)
        self._train(twin, planned, {"events": []})
        with torch.no_grad():
            standard, decoupled = (
                float(self.loss(net(self.batches[0][0]), self.batches[0][1])) for net in (model, twin)
            )
        return abs(standard - decoupled) / (start - standard) if start > standard else math.nan

    def _planned(self, width: int, depth: int, seed: int) -> tuple[nn.Module, Plan]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(seed, "check", width, depth))
            model = instance(self.make_model, width, depth)
        planned = self._plan(model)
        if self.rule != "standard" or isinstance(model, Network):  # elsewhere the model's own start is the standard one
            planned.initialize_(model, seed)
        for name, factor in planned.multipliers.items():
            _insert(model, name, factor)
        return model.train(), planned

    def _plan(self, model: nn.Module) -> Plan:
        own = isinstance(model, Network)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return plan(
                model,
                rule=self.rule,
                make_model=None if own else self.make_model,
                base_width=None if own else self.base_width,
                base_depth=None if own else self.base_depth,
                optimizer=self.optimizer,
                blocks=self.blocks,
                roles=self.roles,
                sample=self.batches[0][0],
            )

    def _train(self, model: nn.Module, planned: Plan, found: Run) -> list[float]:
        optimizer = self._optimizer(planned.param_groups(model, lr=self.eta_c, weight_decay=self.weight_decay))
        losses: list[float] = []
        for step, (x, y) in enumerate(self.batches):
            optimizer.zero_grad()
            if step == 0:
                with stream_gradients(model, planned) as ends:
                    value = self._value(model, x, y, found)
                    value.backward()  # type: ignore[no-untyped-call]
                _note_gradient(found, ends)
            else:
                value = self._value(model, x, y, found)
                value.backward()  # type: ignore[no-untyped-call]
            losses.append(float(value.detach()))
            if not math.isfinite(losses[-1]):
                bad = first_bad(model, partial(call_with, model, x))
                found["events"].append((step, f"not finite at step {step}, first in {bad}"))
                return losses
            optimizer.step()
            if step.bit_count() <= 1 or step == len(self.batches) - 1:  # after steps 1, 2, 3, 5, 9, ... and the last
                dead = dead_units(model, partial(call_with, model, x))
                if dead is not None and not any("dead" in said for _, said in found["events"]):
                    found["events"].append((step, f"after step {step + 1}, {dead}"))
        return losses

    def _value(self, model: nn.Module, x: Any, y: Any, found: Run) -> Tensor:
        if isinstance(model, Network) and "gradient" not in found and "seed" in found:
            streams = model.streams(x)
            value = self.loss(streams.outputs, y)
            ends = torch.autograd.grad(value, [streams.layers[0], streams.layers[-1]], retain_graph=True)
            _note_gradient(found, [float(g.square().mean().sqrt()) for g in ends])
            return value
        return self.loss(call_with(model, x), y)

    def _optimizer(self, groups: Groups) -> torch.optim.Optimizer:
        if self.make_optimizer is not None:
            return self.make_optimizer(groups)
        kinds: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
            "sgd": lambda g: torch.optim.SGD(g, lr=self.eta_c),
            "adam": torch.optim.Adam,
            "adamw": torch.optim.AdamW,
        }
        if self.optimizer not in kinds:
            raise ValueError(
                f"optimizer={self.optimizer!r} is not built here; pass make_optimizer=, a function of parameter groups."
            )
        return kinds[self.optimizer](groups)


def _note_gradient(found: Run, ends: Sequence[float]) -> None:
    if len(ends) == 2 and "gradient" not in found:
        found["gradient"] = ends[0] / ends[1] if ends[1] > 0 else math.nan
        said = gradient_event(found["gradient"])
        if said is not None:
            found["events"].append((0, said))


def _loss(loss: str | Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
    if callable(loss):
        return loss
    chosen = LOSSES[check_choice("loss", loss, LOSSES)]
    if loss == "mse":
        return lambda out, y: chosen(outputs_of(out), y)
    return lambda out, y: chosen(outputs_of(out).flatten(0, -2), y.flatten())


def _decoupled(model: nn.Module) -> nn.Module:
    if not isinstance(model, Network) or model.feedback != "shared":
        raise ValueError("gia=True compares networks of nfd.nets with feedback='shared' with their decoupled twins.")
    return model.decoupled()


def _insert(model: nn.Module, name: str, factor: float) -> None:
    module = model.get_submodule(name)
    if isinstance(module, nn.Linear):
        model.set_submodule(name, Scaled(module, factor))


def _sizes(argument: str, sizes: Sequence[int]) -> list[int]:
    found = [check_count(argument, size) for size in sizes]
    if not found or found != sorted(set(found)):
        raise ValueError(f"{argument} must be ascending; got {list(sizes)}.")
    return found


def _rows(runs: list[Run], sizes: Mapping[str, list[int]], axis: Axis, seeds: int) -> list[dict[str, Any]]:
    """Slopes along one axis, with an intercept for every size of the other: all runs begin independently."""
    if len(sizes[axis]) < 2:
        return []
    other: Axis = "depth" if axis == "width" else "width"
    rows = []
    for meter in METERS:
        measured = [r for r in runs if meter in r]
        if measured and not (axis == "width" and meter in _OF_DEPTH_ONLY):
            points = [(r[axis], r[other], r[meter]) for r in measured if math.isfinite(r[meter]) and r[meter] > 0]
            rows.append(_row(meter, axis, sizes[axis], points, seeds))
    return rows


def _row(meter: str, axis: Axis, sizes: list[int], points: list[tuple[int, int, float]], seeds: int) -> dict[str, Any]:
    size, group, value = torch.tensor(points, dtype=torch.float64).view(-1, 3).T
    whole = {int(s) for s in size} == set(sizes)
    slope = pooled_slope(size.log(), value.log(), group) if len(points) else _NOTHING
    word: Verdict = verdict(slope) if whole else "UNCERTAIN"
    more = seeds_needed(slope, seeds) if whole and word == "UNCERTAIN" else None
    said = cause(meter, axis, word)
    if word == "UNCERTAIN":
        said = f"about {more} seeds would settle it." if more else "near the edge of a verdict: add sizes to settle it."
    if not whole:
        said = "zero or not finite in every network of some size: see what went wrong, below."
    changes = word in ("COLLAPSES", "GROWS")
    typical = [float(value[size == s].log().mean().exp()) for s in sizes] if changes else []
    return {
        "meter": meter,
        "axis": axis,
        "slope": slope.value,
        "low": slope.low,
        "high": slope.high,
        "verdict": word,
        "cause": said,
        "since": since(sizes, torch.tensor(typical)) if changes else None,
        "seeds_needed": more,
    }


def _events(runs: list[Run]) -> list[str]:
    """What went wrong, once per kind: the earliest step, and in how many networks."""
    found: list[str] = []
    kinds: dict[str, list[tuple[int, Run, str]]] = {}
    for run in runs:
        for step, said in run["events"]:
            kind = "dead" if "dead" in said else "finite" if "finite" in said else said.split(":")[0]
            kinds.setdefault(kind, []).append((step, run, said))
    for cases in kinds.values():
        _, run, said = min(cases, key=lambda case: case[0])
        networks = len({(r["width"], r["depth"], r["seed"]) for _, r, _ in cases})
        where = f"width {run['width']}, depth {run['depth']}, seed {run['seed']}"
        found.append(f"{where}: {said} ({networks} of {len(runs)} networks)")
    return found


def _is_fault(row: Mapping[str, Any]) -> bool:
    if row["meter"] == "gia_gap" or (row["meter"], row["verdict"]) == ("loss", "COLLAPSES"):
        return False
    return row["verdict"] in ("COLLAPSES", "GROWS")


def _slope(row: Mapping[str, Any]) -> str:
    return f"{row['slope']:+.2f} [{row['low']:+.2f}, {row['high']:+.2f}]" if math.isfinite(row["slope"]) else "-"


def _meaning(row: Mapping[str, Any]) -> str:
    start = f"since {row['axis']} {row['since']}: " if row["since"] is not None else ""
    return start + str(row["cause"])
