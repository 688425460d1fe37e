"""``Check``: what ``nfd.check`` measured, and what went wrong on the way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Column

from nfd.core.files import expanded, write_json
from nfd.core.tables import Row, as_text, table_of
from nfd.meters.advice import cure_of_all
from nfd.meters.batch_noise import noise_as_text
from nfd.meters.event import Event, EventKind, Failure
from nfd.meters.verdict import LIMITS, THRESHOLDS
from nfd.scaling.model import listed
from nfd.training.task import COPIES

MEANINGS = {
    "first_activation": "RMS of the stream that enters the first block",
    "activation": "RMS of the stream after the last block",
    "activation_update": "RMS of its change by training",
    "inner_update": "RMS of the change that training made to the outputs of the inner matrices, Eq. 27",
    "stream_update": "RMS of what training the outer matrices adds to the stream, times the depth, Eqs. 33 and 34",
    "function_update": "RMS of the change of the outputs by training",
    "function_update_inner": "RMS of the change of the outputs when the inner matrices are reset to their start",
    "update_to_weight": "largest singular value of the change of inner matrices over that of their start",
    "alignment": "how well the last update of a matrix is aligned with its inputs, relative to perfect alignment: "
    "1 where sums over n coordinates add as n, n^-1/2 where they add as sqrt(n)",
    "gradient": "RMS of the gradient entering the first block over that leaving the last, where the stream is not zero "
    "(padding): at the start, or where the check looks at several steps before each update",
    "loss": "loss of the last batch before its update",
}

_NOISE = "Noise scale of the gradients after the last step, in samples: a batch at which noise is as large as signal"
_DRAWS = (
    "Note: the model draws random numbers in training, as dropout does. That is noise in every meter: switch it off "
    "for a check."
)
_STILL = (
    "If they are not meant to be frozen, check that they require gradients, that the loss depends on them and that the "
    "optimizer has them. Exponents do not show it, as it is the same at every size."
)


@dataclass(frozen=True)
class Check:
    """The result of ``nfd.check``. Print it to see the table.

    Attributes:
        table: one dict per meter and axis, and of a model with several stacks of blocks, such as an encoder and a
            decoder, one for every ``stack``. ``slope``, ``low`` and ``high`` are the exponent and its 95 % interval;
            ``verdict``, ``reason`` and ``cause`` judge it; ``since`` is the size at which a fault begins. Also
            ``meter``, ``axis`` and ``seeds_needed``.
        runs: one dict per network: width, depth, seed, its meters after the last step, and why others could not be read
            (``unread``). The same of every stack of several: ``stacks``.
        failures: what went wrong, once per kind, with the first step, layer and network.
        rule, optimizer, lr, at, seeds, base: the settings, and the steps after which meters were read.
        growth: with several steps, one dict per meter: its exponent in the step, ``meter ~ step^p``, as value, low and
            high, over networks of every size.
        draws: whether a network drew random numbers in training, as dropout does.
        optimizer_class: that of ``make_optimizer``; empty without one.
        about: how the batches were read: their number, samples and shape, in words.
        copies: whether the targets of the library's cross-entropy are the inputs themselves.

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

    @property
    def steps(self) -> int:
        """How many updates every network took."""
        return self.at[-1]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All readings: one dict for each network and step (``matrix`` is empty), and one for each of its matrices,
        with its ``role`` and the meters of a matrix (``nfd.meters.updates.Baseline.look``)."""
        return [row for run in self.runs for row in run["rows"]]

    @property
    def noise(self) -> list[dict[str, Any]]:
        """Noise scales of gradients after the last step, in samples, with ``noise=True``: a dict per network and kind.

        ``simple`` is ``tr Sigma / |G|^2``, ``curved`` is ``tr(H Sigma) / G' H G`` (``nfd.meters.noise``). A batch much
        larger than this gains little. Pass it to ``nfd.plan`` as ``critical_batch``, in the unit of ``batch`` there.
        """
        return [row for run in self.runs for row in run["noise"]]

    @property
    def ladder(self) -> dict[str, Any]:
        """The data of ``nfd.Watch`` for its bands, as plain numbers and strings.

        ``rule`` and ``optimizer``, whether the check found no fault (``ok``), the width and depth of the base
        (``base``), and the ``networks``: width, depth and ``readings``, each (step, meter, layer, depth of the layer,
        value).
        """
        networks = [{name: run[name] for name in ("width", "depth", "readings")} for run in self.runs]
        names = {"rule": self.rule, "optimizer": self.optimizer}
        return {**names, "ok": self.ok, "base": list(self.base), "networks": networks}

    def save(self, path: str | Path) -> None:
        """Write ``ladder`` as JSON, for ``nfd.Watch(..., expected=path)``."""
        write_json(expanded(path), {"ladder": self.ladder})

    @property
    def ok(self) -> bool:
        """Whether no meter collapses or grows and no training broke, at any step.

        A loss that falls with size and an uncertain verdict are not faults.
        """
        return not self.failures and not any(is_fault(row) for row in self.table)

    @property
    def conclusion(self) -> str:
        """The number of faults, and the rule that removes all of them, if there is one, in words."""
        faults = [row for row in self.table if is_fault(row)]
        count = len(faults) + len(self.failures)
        if not count:
            return "No fault found."
        cure = None if self.failures else cure_of_all(faults, self.rule)
        remedy = f" Rule {cure!r} has the remedies built in: train by its plan." if cure else ""
        return f"{count} fault{'s' if count > 1 else ''}.{remedy}"

    @property
    def notes(self) -> list[str]:
        """Warnings in words: random numbers in training, targets that repeat the inputs, matrices that never moved."""
        still = self.unmoved
        stands = f"Note: no training moved {listed(still)}. {_STILL}"
        return [note for note, holds in ((COPIES, self.copies), (_DRAWS, self.draws), (stands, still)) if holds]

    @property
    def unmoved(self) -> list[str]:
        """Names of the matrices that changed in no network: frozen, without a gradient, or not in the optimizer."""
        moved: dict[str, bool] = {}
        for row in self.rows:
            if "change" in row:
                moved[row["matrix"]] = moved.get(row["matrix"], False) or row["change"] != 0
        return [name for name, moves in moved.items() if not moves]

    @property
    def events(self) -> list[str]:
        """The failures in words."""
        return [str(failure) for failure in self.failures]

    def __str__(self) -> str:
        several, stacked = len(self.at) > 1, any("stack" in row for row in self.table)
        parts = (*(("of",) if stacked else ()), "against", *(("after step",) if several else ()))
        names = ("meter", *parts, "exponent [95 % interval]", "verdict")
        table = table_of(*(Column(name, no_wrap=True) for name in names), "what it means")
        for row in [*sorted(self.table, key=lambda row: not is_fault(row)), *self.growth]:
            stack = (row.get("stack", ""),) if stacked else ()
            step = (str(row.get("step", "")),) if several else ()
            word, text = (row["verdict"], meaning_of(row)) if "verdict" in row else ("", row["cause"])
            table.add_row(row["meter"], *stack, row["axis"], *step, slope_of(row), word, text)
        rate = f"{self.optimizer_class or self.optimizer}, lr = {self.lr:g}"
        head = f"{self.conclusion}\nRule {self.rule!r}, {rate}, {self.about}, {self.seeds} seeds"
        remarks = [*(f"! {event}" for event in self.events), *self.notes]
        noise = ["", _NOISE, noise_as_text(self.noise)] if self.noise else []
        return "\n".join([head, *remarks, as_text(table, 150), THRESHOLDS, LIMITS, *noise])


def failures_of(runs: Sequence[Row]) -> list[Failure]:
    """What went wrong, once per kind of event: its earliest case, and in how many networks."""
    cases: dict[EventKind, list[tuple[Event, Row]]] = {}
    for run in runs:
        for event in run["events"]:
            cases.setdefault(event.kind, []).append((event, run))
    failures = []
    for own in cases.values():
        event, run = min(own, key=lambda case: case[0].step)
        networks = len({(r["width"], r["depth"], r["seed"]) for _, r in own})
        failures.append(Failure(event, run["width"], run["depth"], run["seed"], networks, len(runs)))
    return failures


def is_fault(row: Mapping[str, Any]) -> bool:
    """Whether a row of the table says that something scales wrongly; a loss that falls with size does not."""
    if (row["meter"], row["verdict"]) == ("loss", "COLLAPSES"):
        return False
    return row["verdict"] in ("COLLAPSES", "GROWS")


def slope_of(row: Mapping[str, Any]) -> str:
    """``-0.47 [-0.53, -0.42]``, or a dash where none could be fitted."""
    return f"{row['slope']:+.2f} [{row['low']:+.2f}, {row['high']:+.2f}]" if math.isfinite(row["slope"]) else "-"


def meaning_of(row: Mapping[str, Any]) -> str:
    """What a row means, with the size since which its quantity changes."""
    start = f"since {row['axis']} {row['since']}: " if row["since"] is not None else ""
    return start + str(row["cause"])
