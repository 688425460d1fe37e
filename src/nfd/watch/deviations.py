"""Tensors that deviate from their plan, in words, and what follows from them.

A wrong initial scale or rate shows later in other meters. ``change``, ``|W - W(0)| / |W(0)|``, is off by the same
factor, and blocks behind the layer add another amount to the stream. Such alerts name consequences as causes, so they
are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nfd.scaling.laws import law_of
from nfd.scaling.model import block_of, numberless
from nfd.scaling.plan import Plan
from nfd.scaling.rules import INPUT_LIKE
from nfd.watch.alerts import STANDS, Alert, Cause

_SHOWN = 4  # kinds of tensors, by name
_LITTLE = 0.25  # of a planned number: tensors of several blocks differ by less


class Deviation(Protocol):
    """A tensor that deviates from its plan. As text: what it has and what was planned."""

    @property
    def tensor(self) -> str:
        """Its name."""

    @property
    def planned(self) -> float:
        """The number that the plan has for it."""

    @property
    def change(self) -> float:
        """By which factor its ``change`` is off; 0 where it is off by any."""


def counted(deviations: Sequence[Deviation]) -> str:
    """How many tensors these are."""
    return f"{len(deviations)} tensors" if len(deviations) > 1 else "a tensor"


def in_words(deviations: Sequence[Deviation]) -> str:
    """The first tensors with what they have; those that correspond in several blocks together."""
    kinds: list[list[Deviation]] = []
    for deviation in deviations:
        alike = next((kind for kind in kinds if _are_alike(kind[0], deviation)), None)
        if alike is None:
            kinds.append([deviation])
        else:
            alike.append(deviation)
    texts = [_text(kind) for kind in kinds]
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return f"{'; '.join(texts[:_SHOWN])}{more}"


def _are_alike(one: Deviation, other: Deviation) -> bool:
    """Whether two tensors correspond in two blocks, and the plan has about the same number for them."""
    same_name = numberless(one.tensor) == numberless(other.tensor)
    return same_name and math.isclose(one.planned, other.planned, rel_tol=_LITTLE)


def _text(alike: Sequence[Deviation]) -> str:
    first = alike[0]
    several = f"{numberless(first.tensor)} ({len(alike)} tensors)"
    return f"{several if len(alike) > 1 else first.tensor} {first}"


@dataclass(frozen=True)
class Consequences:
    """What follows from tensors that deviate.

    Attributes:
        plan: of the model.
        deviations: those tensors.
        of: how many matrices were compared.
    """

    plan: Plan
    deviations: Sequence[Deviation]
    of: int

    def explain(self, alert: Any) -> bool:
        """Whether an alert follows from these tensors; False for those of somebody else's ``expected``."""
        if not self.deviations or not isinstance(alert, Alert):
            return False
        own = [deviation for deviation in self.deviations if alert.layer and _is_of(deviation.tensor, alert.layer)]
        match alert.cause:
            case Cause.UNKNOWN:
                return True
            case Cause.MULTIPLIER:
                return any(self._is_before(deviation.tensor, alert.layer) for deviation in self.deviations)
            case Cause.FROZEN:
                return any(alert.band and alert.value > STANDS * alert.band.value * of.change for of in own)
            case Cause.RATE | Cause.START | Cause.LATE_RATE:
                return bool(own) or self._changes_all_updates
            case Cause.ALL_RATES | Cause.SCHEDULE:
                return self._is_of_most or self._changes_all_updates
            case Cause.DECAY:
                return self._is_of_most
            case Cause.BROKEN | Cause.OPTIMIZER:
                return False

    @property
    def _is_of_most(self) -> bool:
        matrices = [of.tensor for of in self.deviations if not self.plan.entries[of.tensor].is_vector]
        return 2 * len(matrices) > self.of

    @property
    def _changes_all_updates(self) -> bool:
        """Whether updates follow the size of gradients, which every weight enters."""
        return law_of(self.plan.optimizer).degree > 0

    def _is_before(self, tensor: str, block: str | None) -> bool:
        """Whether the stream has passed a tensor when it leaves a block."""
        blocks, own = self.plan.blocks, block_of(tensor, self.plan.blocks)
        if block not in blocks:
            return False
        return self.plan.roles[tensor] in INPUT_LIKE if own is None else blocks.index(own) <= blocks.index(block)


def _is_of(tensor: str, layer: str) -> bool:
    """Whether ``layer`` is the name of a tensor or of the module that has it."""
    return layer in (tensor, tensor.rpartition(".")[0])
