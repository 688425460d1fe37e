"""``nfd.deferral``: what ``nfd.defer`` replaces in a model, what it leaves and why, and what both take."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from rich.table import Column
from torch import nn

from nfd.core.errors import InputError, InputTypeError, UsageError, check_choice, check_count, check_patterns
from nfd.core.machine import gradients
from nfd.core.tables import as_text, in_bytes, table_of
from nfd.nets.asked import rows_asked
from nfd.nets.frame import LEAST_ROOM, predicted_bytes
from nfd.nets.hadamard import padded_size
from nfd.nets.linear_map import LinearMap
from nfd.nets.wide import Candidate, Reason, candidates
from nfd.scaling.model import call_with, check_input, evaluating, numberless, on_device
from nfd.scaling.plan import Plan

UnstoredWeights = Literal["structured", "deferred"]
_WIDTH = 150  # of the printed table, at most
_MOMENTUM = 1  # numbers that an optimizer keeps for each weight, where no plan names it


@dataclass(frozen=True)
class Replacement:
    """One matrix of a model, and what ``nfd.defer`` does with it.

    Attributes:
        name: of the tensor. kind: of its module. shape: as it is stored.
        reason: why it stays; None if it is replaced.
        rows: rows of a batch that pass through it; None without a ``sample``, and if it stays.
        rank: the largest possible number of directions of its update after the training.
        bytes: memory after the training, with gradient and optimizer states. stored_bytes: with stored weights.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    reason: Reason | None
    rows: int | None
    rank: int | None
    bytes: int
    stored_bytes: int


@dataclass(frozen=True, repr=False)
class Deferral:
    """The result of ``nfd.deferral``: what ``nfd.defer`` does with each matrix of a model. Print it to see the table.

    Bytes count matrices only, not vectors and not the activations stored for gradients. For structured weights they are
    an upper bound, usually far too high: it assumes one direction per row in training.

    Attributes:
        weights: ``"structured"`` or ``"deferred"``. replacements: one for every tensor of two or more dimensions.

    Example::

        deferral = nfd.deferral(make_model(64, 2), sample=x, steps=100)
        print(deferral.bytes, deferral.stored_bytes)  # with and without the replacement
        [row for row in deferral.table if row["reason"]]  # the matrices that stay, and why
    """

    weights: str
    replacements: tuple[Replacement, ...]

    @property
    def replaced(self) -> tuple[Replacement, ...]:
        """The matrices that layers without stored weights replace."""
        return tuple(own for own in self.replacements if own.reason is None)

    @property
    def bytes(self) -> int:
        """Memory of all matrices after the replacement, those that stay included."""
        return sum(own.bytes for own in self.replacements)

    @property
    def stored_bytes(self) -> int:
        """Memory of all matrices with stored weights."""
        return sum(own.stored_bytes for own in self.replacements)

    @property
    def table(self) -> list[dict[str, Any]]:
        """One dict per matrix; ``reason`` is the name of the ``Reason`` why it stays, or None if it is replaced."""
        return [
            {**vars(own), "shape": list(own.shape), "reason": None if own.reason is None else own.reason.name}
            for own in self.replacements
        ]

    def __str__(self) -> str:
        names = ("module", "shape", "replaced", "rows", "rank", "memory", "stored")
        table = table_of(Column("matrix", no_wrap=True, overflow="fold"), *names)
        alike = Counter(map(_generic, self.replacements))
        for own, count in alike.items():
            times = f"{count} x " if count > 1 else ""
            size = " x ".join(map(str, own.shape))
            done = "yes" if own.reason is None else own.reason.value
            rank = "" if own.rank is None else f"at most {own.rank:,}"
            rows = "" if own.rows is None else f"{own.rows:,}"
            held = [in_bytes(count * size) for size in (own.bytes, own.stored_bytes)]
            table.add_row(f"{times}{own.name}", own.kind, size, done, rows, rank, *held)
        total = (
            f"{len(self.replaced)} of {len(self.replacements)} matrices replaced by {self.weights} weights: "
            f"{in_bytes(self.bytes)} for {in_bytes(self.stored_bytes)} with stored ones, gradients and states of the "
            "optimizer included."
        )
        return f"{as_text(table, _WIDTH)}\n{total}"

    __repr__ = __str__


@gradients()
def deferral(
    model: nn.Module,
    plan: Plan | None = None,
    *,
    weights: UnstoredWeights = "structured",
    where: str | Sequence[str] = "**",
    sample: Any = None,
    steps: int = 1,
    samples: int | None = None,
) -> Deferral:
    """List the matrices that ``nfd.defer`` would replace in a model, and why not the others, with their memory.

    The model does not change, and no large memory is used: only shapes are followed through a forward pass.

    Args:
        model, plan, weights, where: as in ``nfd.defer``; the model may be on the meta device.
        sample: a batch of the training, to count the rows that pass through every layer: inputs, tokens or patches.
        steps: how many such batches there are.
        samples: rows in training, of every layer, where there is no sample; as in ``nfd.defer``.

    Raises:
        TypeError, ValueError: naming the argument; if the path of the sample through the model depends on its values.

    Source: docs/howto/wide.md.

    Example::

        print(nfd.deferral(make_model(64, 2), sample=x, steps=100))
    """
    check_choice("weights", weights, get_args(UnstoredWeights))
    check_model_and_plan(model, plan)
    patterns = patterns_of(where)
    if sample is not None:
        check_input(sample)
    steps = check_count("steps", steps)
    chosen = candidates(model, plan, patterns)
    if sample is not None and any(own.reason is Reason.UNSTORED for own in chosen):
        raise InputError(
            "model already has layers without stored weights, which cannot compute with shapes alone; got sample=. "
            "Leave it out, or call nfd.deferral before nfd.defer."
        )
    rows = {} if sample is None else _rows(model, chosen, plan, patterns, sample)
    return forecast(chosen, plan, weights, rows, steps, samples)


def forecast(
    chosen: Sequence[Candidate],
    plan: Plan | None,
    weights: UnstoredWeights,
    rows: Mapping[str, int],
    steps: int = 1,
    samples: int | None = None,
) -> Deferral:
    """What becomes of these candidates, with rows of a batch by their names, or so many samples in all."""
    if samples is not None:
        samples = check_count("samples", samples, minimum=0)
    made = []
    for own in chosen:
        asked = rows.get(own.name)
        seen = samples if samples is not None else None if asked is None else asked * steps
        made.append(_replacement(own, plan, weights, asked, seen))
    return Deferral(weights, tuple(made))


def check_model_and_plan(model: object, plan: object) -> None:
    """TypeError where these are none."""
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    if plan is not None and not isinstance(plan, Plan):
        raise InputTypeError(f"plan must be an nfd.Plan; got {type(plan).__name__}.")


def patterns_of(where: str | Sequence[str]) -> list[str]:
    """The patterns of ``where``, checked."""
    patterns = check_patterns("where", where)
    return [patterns] if isinstance(patterns, str) else patterns or []


def _replacement(
    own: Candidate, plan: Plan | None, weights: UnstoredWeights, asked: int | None, seen: int | None
) -> Replacement:
    kind = "" if own.owner is None else type(own.owner).__name__
    law = None if plan is None or own.name not in plan.entries else plan.law_for(own.name)
    states = _MOMENTUM if law is None else law.states
    n_in, n_out = (1, torch.Size(own.shape).numel()) if own.linear is None else own.linear.features
    itemsize = torch.float32.itemsize if own.linear is None else own.linear.weight.element_size()
    stored = itemsize * (2 + states) * n_in * n_out  # weights, gradients and what the optimizer keeps
    if own.reason is not None:
        return Replacement(own.name, kind, own.shape, own.reason, None, None, stored, stored)
    rank = None if seen is None else min(seen, n_in, n_out)
    held = _structured_bytes if weights == "structured" else predicted_bytes
    taken = held(n_in, n_out, seen or 0, itemsize)
    return Replacement(own.name, kind, own.shape, None, asked, rank, taken, stored)


def _structured_bytes(n_in: int, n_out: int, samples: int, itemsize: int) -> int:
    """What a structured layer holds after so many samples, with momentum, where each adds a direction; at most.

    Vectors of samples or of the basis, of the update and of its momentum, with an eighth of room; a Gram matrix; and
    signs, orders and singular values of a transform.
    """
    rank, longest = min(samples, n_in, n_out), max(n_in, n_out)
    room = min(max(rank + rank // 8, LEAST_ROOM), longest) if rank else 0
    return itemsize * (4 * room * longest + 6 * padded_size(longest) + rank**2)


def _rows(
    model: nn.Module, chosen: Sequence[Candidate], plan: Plan | None, patterns: Sequence[str], sample: Any
) -> dict[str, int]:
    """Rows that a sample asks every matrix for that is replaced, by a copy of the model without numbers."""

    def maps_of(twin: nn.Module) -> dict[str, LinearMap]:
        return {c.name: c.linear for c in candidates(twin, plan, patterns) if c.reason is None and c.linear is not None}

    def run(twin: nn.Module) -> None:
        with torch.device("meta"), evaluating(twin):
            call_with(twin, on_device(sample, torch.device("meta")))

    try:
        return rows_asked(_without_numbers(model), maps_of, run)
    except UsageError:
        raise
    except Exception as error:
        message = (str(error).splitlines() or [""])[0][:200]
        raise InputError(
            f"sample must be an input that the model takes, which is followed by shapes alone; got "
            f"{type(sample).__name__}, and the model raised {type(error).__name__}: {message} If the sample is right, "
            "leave it out and pass samples=, the rows of the training."
        ) from error


def _without_numbers(model: nn.Module) -> nn.Module:
    """A copy of a model on the meta device."""
    held = [*model.parameters(), *model.buffers()]
    memo = {
        id(t): nn.Parameter(t.to("meta"), t.requires_grad) if isinstance(t, nn.Parameter) else t.to("meta")
        for t in held
    }
    return copy.deepcopy(model, memo)


def _generic(own: Replacement) -> Replacement:
    return Replacement(**{**vars(own), "name": numberless(own.name)})
