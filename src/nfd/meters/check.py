"""``nfd.check``: train a constructor's networks for a few steps over widths and depths, and say what scales wrongly."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from rich.table import Column
from torch import Tensor

from nfd.core.ambient import gradients
from nfd.core.defaults import SEEDS
from nfd.core.errors import (
    MOST,
    WIDEST,
    InputError,
    check_callable,
    check_count,
    check_device,
    check_flag,
    check_real,
    check_several,
)
from nfd.core.names import RuleName
from nfd.core.progress import bar
from nfd.core.tables import as_text, table_of
from nfd.meters.event import Event, EventKind, Failure
from nfd.meters.running import all_runs
from nfd.meters.runs import Groups, Job, Run, loss_of, moved
from nfd.meters.table import rows
from nfd.meters.verdict import LIMITS, THRESHOLDS, Axis
from nfd.scaling.calls import check_sample
from nfd.scaling.laws import check_optimizer, law_of, rate_for
from nfd.scaling.rules import MAX_RATE, rule_named
from nfd.scaling.sizes import MakeModel, check_constructor

AXES: tuple[Axis, ...] = ("width", "depth")
MEANINGS = {
    "activation": "RMS of what the last block holds",
    "activation_update": "RMS of how much training changed that",
    "inner_update": "RMS of what training the inner matrices changed in what they make, Eq. 27",
    "stream_update": "RMS of what training the outer matrices adds to the stream, times the depth, Eqs. 33 and 34",
    "function_update": "RMS of how much training changed the outputs",
    "function_update_inner": "RMS of how much resetting the inner matrices to their start changes the outputs",
    "update_to_weight": "largest singular value of the change of inner matrices over that of their start",
    "gradient": "RMS of the gradient entering the first block over that leaving the last, at the start",
    "loss": "loss of the last batch before its update",
    "gia_gap": "how far apart standard and decoupled training end, over the progress of the standard one",
}


@dataclass(frozen=True)
class Check:
    """What ``nfd.check`` found; printing it shows the table.

    Attributes:
        table: one dict per meter and axis: meter, axis, slope, low, high, limit, limit_low, limit_high (what it comes
            to, over what it is at the largest size), verdict, reason, cause, since, seeds_needed.
        runs: one dict per network: width, depth, seed, its meters after the last step, those of updates after the first
            (``first``), and why others could not be read (``unread``).
        failures: what went wrong, once per kind, with the first step, layer and network.
        rule, optimizer, eta_c, steps, seeds: what ran.
    """

    table: list[dict[str, Any]]
    runs: list[Run] = field(repr=False)
    failures: list[Failure]
    rule: str
    optimizer: str
    eta_c: float
    steps: int
    seeds: int

    @property
    def ok(self) -> bool:
        """Whether nothing collapses, grows or breaks; a loss that falls with size is no fault, doubt is none either."""
        return not self.failures and not any(_is_fault(row) for row in self.table)

    @property
    def events(self) -> list[str]:
        """The failures in words."""
        return [str(failure) for failure in self.failures]

    def __str__(self) -> str:
        names = ("meter", "against", "exponent [95 % interval]", "verdict")
        table = table_of(*(Column(name, no_wrap=True) for name in names), "what it means")
        for row in self.table:
            table.add_row(row["meter"], row["axis"], slope_of(row), row["verdict"], meaning_of(row))
        head = f"Rule {self.rule!r}, {self.optimizer}, eta_c = {self.eta_c:g}, {self.steps} steps, {self.seeds} seeds"
        return "\n".join([head, *(f"! {event}" for event in self.events), as_text(table, 150), THRESHOLDS, LIMITS])


@gradients()
def check(
    make_model: MakeModel,
    widths: Sequence[int],
    depths: Sequence[int],
    batches: Sequence[tuple[Any, Any]],
    rule: str = "depth-mup",
    optimizer: str = "sgd",
    eta_c: float | None = None,
    loss: str | Callable[[Any, Any], Tensor] = "cross-entropy",
    seeds: int = SEEDS,
    *,
    blocks: str | Sequence[str] | None = None,
    roles: Mapping[str, str] | None = None,
    weight_decay: float = 0.0,
    make_optimizer: Callable[[Groups], torch.optim.Optimizer] | None = None,
    gia: bool = False,
    device: torch.device | str | None = None,
    progress: bool = False,
) -> Check:
    """Train networks of every width and depth on the same batches, measure them, and fit log-log slopes.

    The base of every plan is the smallest width and depth; networks of ``nfd.nets`` have their own, width 1 and depth
    1, so that ``eta_c`` is the paper's. Meters, after the last step and on the inputs of the first batch: those of
    ``nfd.meters.updates``; ``gradient``, rms of dLoss/dh entering the first block over that leaving the last, at the
    start; ``loss``, of the last batch before its update; ``gia_gap`` if ``gia``, the absolute
    difference of the losses of the standard and the decoupled network, over the progress of the standard one since the
    start, all on the first batch.

    An ambient ``torch.autocast`` does not reach the networks, which would be trained inside of one context and so be
    evaluated with the casts of their first weights; put yours into the model's ``forward``.

    Args:
        make_model: ``make_model(width, depth)``.
        widths, depths: of the networks, every pair; one value where that axis is not of interest.
        batches: (inputs, targets), one per step. Inputs: a tensor, a tuple of arguments or a dict of keyword arguments.
        rule, optimizer, blocks, roles: as in ``nfd.plan``; ``"sgd"``, ``"adam"`` and ``"adamw"`` are built here.
        eta_c: the base's learning rate; by default 0.1 for sgd, 0.001 for others.
        loss: ``"cross-entropy"`` (class ids; any leading dimensions), ``"mse"``, or a function of what the model
            returns and the targets.
        seeds: initialisations of each network, at least 2.
        weight_decay: the base's.
        make_optimizer: from parameter groups to an optimizer, for ones that PyTorch does not have.
        gia: train the decoupled twin too (networks of ``nfd.nets`` with feedback="shared").
        device: where models and batches are moved to; None leaves them where ``make_model`` and you put them.
        progress: show a bar on a terminal.

    Returns:
        verdicts: ``STABLE``, ``COLLAPSES``, ``GROWS``, ``UNCERTAIN`` or ``NOT MEASURED`` per meter and axis
        (``nfd.meters.verdict``), from slopes pooled over seeds and sizes of the other axis, with 95 % intervals.

    Raises:
        ValueError, TypeError: naming the argument; also where two seeds give the same network, as intervals come from
            how seeds differ.

    Source: Eqs. 7, 8, 27, 33, 34; Yang et al., Tensor Programs V (coordinate checks).
    """
    check_callable("make_model", make_model, "a function of (width, depth)")
    sizes = {"width": _sizes("widths", widths, WIDEST), "depth": _sizes("depths", depths, MOST)}
    if all(len(s) < 2 for s in sizes.values()):
        raise InputError(f"widths or depths must hold two sizes or more; got {list(widths)} and {list(depths)}.")
    place = None if device is None else check_device(device)
    pairs = _pairs(batches, place)
    rule_named(rule)
    law = law_of(optimizer)
    optimizer = law.name
    if make_optimizer is None:
        law.check_made()
    weight_decay = check_real("weight_decay", weight_decay, least=0.0, below=MAX_RATE)
    check_optimizer(optimizer, rule=rule, weight_decay=weight_decay)
    job = Job(
        make_model,
        min(sizes["width"]),
        min(sizes["depth"]),
        pairs,
        rule,
        optimizer,
        check_real("eta_c", rate_for(optimizer, eta_c), above=0.0, below=MAX_RATE),
        loss_of(loss),
        blocks,
        roles,
        weight_decay,
        make_optimizer,
        check_flag("gia", gia),
        place,
    )
    seeds = check_count("seeds", seeds, minimum=2, maximum=MOST)
    check_constructor(make_model, sizes["width"], sizes["depth"])
    wanted = [(w, d, s) for w in sizes["width"] for d in sizes["depth"] for s in range(seeds)]
    with bar("checking", enabled=progress) as shown:
        runs = all_runs(job, wanted, shown)
    table = [row for axis in AXES for row in rows(runs, sizes, axis, seeds, cast(RuleName, rule))]
    return Check(table, runs, _failures(runs), rule, optimizer, job.eta_c, len(pairs), seeds)


def _pairs(batches: Iterable[tuple[Any, Any]], place: torch.device | None) -> list[tuple[Any, Any]]:
    """The batches as a list of tensors, on ``place`` if there is one; ValueError that names what is not."""
    found = check_several("batches", batches, "(inputs, targets), one per step")
    if not found or any(not isinstance(b, tuple | list) or len(b) != 2 for b in found):
        raise InputError("batches must be a list of (inputs, targets), one per step.")
    pairs = [(_tensors(x), _tensors(y)) for x, y in found]
    for step, (x, y) in enumerate(pairs):
        check_sample(f"inputs of batches[{step}]", x)
        check_sample(f"targets of batches[{step}]", y)
    return [(moved(x, place), moved(y, place)) for x, y in pairs]


def _tensors(value: Any) -> Any:
    """Arrays of NumPy as tensors, in dictionaries, tuples and lists too."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    if isinstance(value, Mapping) and any(isinstance(v, np.ndarray) for v in value.values()):
        return {name: _tensors(v) for name, v in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_tensors(v) for v in value)
    return value


def _sizes(argument: str, sizes: Sequence[int], most: int) -> list[int]:
    found = [check_count(argument, size, maximum=most) for size in check_several(argument, sizes, "sizes")]
    if not found or found != sorted(set(found)):
        raise InputError(f"{argument} must be ascending; got {list(sizes)}.")
    return found


def _failures(runs: Sequence[Run]) -> list[Failure]:
    """What went wrong, once per kind of event: its earliest case, and in how many networks."""
    cases: dict[EventKind, list[tuple[Event, Run]]] = {}
    for run in runs:
        for event in run["events"]:
            cases.setdefault(event.kind, []).append((event, run))
    failures = []
    for own in cases.values():
        event, run = min(own, key=lambda case: case[0].step)
        networks = len({(r["width"], r["depth"], r["seed"]) for _, r in own})
        failures.append(Failure(event, run["width"], run["depth"], run["seed"], networks, len(runs)))
    return failures


def _is_fault(row: Mapping[str, Any]) -> bool:
    if row["meter"] == "gia_gap" or (row["meter"], row["verdict"]) == ("loss", "COLLAPSES"):
        return False
    return row["verdict"] in ("COLLAPSES", "GROWS")


def slope_of(row: Mapping[str, Any]) -> str:
    """``-0.47 [-0.53, -0.42]``, or a dash where none could be fitted."""
    return f"{row['slope']:+.2f} [{row['low']:+.2f}, {row['high']:+.2f}]" if math.isfinite(row["slope"]) else "-"


def meaning_of(row: Mapping[str, Any]) -> str:
    """What a row means, with the size since which its quantity changes."""
    start = f"since {row['axis']} {row['since']}: " if row["since"] is not None else ""
    return start + str(row["cause"])
