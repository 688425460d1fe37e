"""What powers of width and depth a self-test expects, and which of those that it measured are off.

``nfd.scaling.one_pass`` defines the quantities. Between two sizes they are to follow

========  ====================================================================================
update    0. Of what is the same at every size, such as a router, ``move`` is to be 0
fit       what the rule gives the rate over what it gives the initial weights: it names a
          wrong rate by its tensor
start     0 where the result grows with width, -1/2 where it does not: sums that training
          aligns start as small
added     -1 of depth under ``complete-p``, -1/2 under ``depth-mup``; at most 0 of width
stream    0 of depth, at most 0 of width
output    at most 0, beside something else that is off
logits    0, where the plan knows by how much logits of attention grow once queries fit keys
========  ====================================================================================

**Sums of random terms.** What reaches a tensor through random weights is a sum of random terms at
the start, as the gradient of queries is, or that of tokens of which only a class token is read: it
falls as the root of their number, and no longer does so once training has aligned the terms. So an
update that is too small by the root, or by two of them, counts only if the tensor's own rate does
not fit its own initial weights, or if nothing random stands between the tensor and the output.
Training for a few steps until the terms align was tried in its place. It took five times as long,
and at small sizes the terms did not align in every sound model: 4 more of 141 were alarmed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch

from nfd.scaling.carried import Axis
from nfd.scaling.entries import Entry
from nfd.scaling.model import block_of, in_any_block
from nfd.scaling.one_pass import ELEMENTWISE, FACTOR, LOOKUPS, PRODUCTS, Pass
from nfd.scaling.rules import rule_named

if TYPE_CHECKING:
    from nfd.scaling.plan import Plan

Quantity = Literal["update", "start", "added", "stream", "output", "logits"]

# On powers; wrong ones are 1/2 or more.
LIMIT = 0.33
_FIT_OF_SGD = 0.45
# The effect of an update of SGD has the square of a gradient, and of the chance in it.
_LIMIT_OF_SGD = 0.6
# Standard errors, of two to four seeds.
_ERRORS = 3.0
# Standard errors within which more seeds may well change the answer.
_OPEN = 2.0
# The power of a sum of random terms, which aligns once trained.
_RANDOM = -0.5
_NORMS = ("layer_norm", "rms_norm", "group_norm", "batch_norm")
_KNOWN = (*PRODUCTS, *_NORMS, *ELEMENTWISE, *LOOKUPS)

Pairs = list[tuple[Pass, Pass]]  # of every seed, in the small and in the large network


@dataclass(frozen=True)
class Power:
    """A power of the size between two sizes, with its standard error over seeds."""

    value: float
    error: float
    limit: float = LIMIT

    @classmethod
    def of(cls, pairs: Pairs, quantity: str, kind: str, limit: float = LIMIT) -> Power | None:
        """The power of size in a quantity; None where it is zero or not seen."""
        logs = list[float]()
        for small, large in pairs:
            before = small.values.get((quantity, kind), 0.0)
            after = large.values.get((quantity, kind), 0.0)
            if before <= 0 or after <= 0 or not math.isfinite(before * after):
                return None
            logs.append(math.log(after / before) / math.log(FACTOR))
        powers = torch.tensor(logs, dtype=torch.float64)
        return cls(float(powers.mean()), float(powers.std()) / math.sqrt(len(logs)), limit)

    def exceeds(self, promised: float) -> bool:
        """Whether it is off by more than the limit and chance."""
        return abs(self.value - promised) > max(self.limit, _ERRORS * self.error)

    def is_far_from(self, promised: float, usual: float) -> bool:
        """Whether it is beyond the limit by more than chance.

        Chance is at least ``usual``, the error of other powers.
        """
        return abs(self.value - promised) - self.limit > _ERRORS * max(self.error, usual)

    def is_open(self, promised: float) -> bool:
        """Whether more seeds could change the answer."""
        distance = abs(self.value - promised)
        return distance > self.limit / 2 and _OPEN * self.error > abs(distance - self.limit)


@dataclass(frozen=True)
class Judged:
    """A power that was measured, and what was promised; ``kind`` is empty for the network.

    ``off`` and ``is_open``: whether it is off, and whether more seeds could change that.
    """

    kind: str
    quantity: Quantity
    power: Power
    promised: float
    off: bool
    is_open: bool

    @classmethod
    def by_power(cls, kind: str, quantity: Quantity, power: Power, promised: float) -> Judged:
        """What the power says by itself."""
        return cls(
            kind, quantity, power, promised, power.exceeds(promised), power.is_open(promised)
        )

    @property
    def deviation(self) -> float:
        """By which power it is too large."""
        return self.power.value - self.promised

    @property
    def is_beyond(self) -> bool:
        """Whether it is off, or would be were it not for chance."""
        return abs(self.deviation) > self.power.limit


@dataclass(frozen=True)
class Judge:
    """A judge of networks along one axis.

    Attributes:
        pairs: a pass in the small and in the large network, for each seed.
    """

    plan: Plan
    axis: Axis
    pairs: Pairs

    def judged(self) -> list[Judged]:
        """Every kind and quantity of which something is promised."""
        every = list[Judged]()
        for quantity, kind in self._small.values:
            one = self._of(quantity, kind)
            if one is not None:
                every.append(one)
        if any(one.off for one in every if one.quantity != "output"):
            return every
        # Outputs are few, and so are noisy. What makes them grow shows in something else, too.
        return [replace(one, off=False) for one in every]

    @cached_property
    def names(self) -> dict[str, str]:
        """A tensor of every kind."""
        blocks = frozenset(self.plan.blocks)
        return {in_any_block(name, blocks): name for name in self.plan.entries}

    def _of(self, quantity: str, kind: str) -> Judged | None:
        if quantity == "update":
            return self._update(kind)
        if quantity == "start":
            return self._start(kind)
        if quantity in ("added", "stream", "output"):
            return self._network(quantity)  # type: ignore[arg-type]
        return None

    def _network(self, quantity: Quantity) -> Judged | None:
        power = Power.of(self.pairs, quantity, "")
        if power is None:
            return None
        exponent = rule_named(self.plan.rule).exponent or 0.0
        promised = -exponent if quantity == "added" and self.axis == "depth" else 0.0
        if quantity == "output" or self.axis == "width":
            # Sums that training aligns start as small.
            promised = min(power.value, 0.0)
        judged = Judged.by_power("", quantity, power, promised)
        return replace(judged, is_open=judged.is_open and quantity != "output")

    # ---- the effect of updates

    def _update(self, kind: str) -> Judged | None:
        fit = self._fit(kind)
        if fit is not None and fit.off:
            return fit
        limit = _LIMIT_OF_SGD if self.plan.law_for(self.names[kind]).is_linear else LIMIT
        quantity = self._quantity(kind)
        power = Power.of(self.pairs, quantity, kind, limit)
        if power is None:
            return None
        judged = Judged.by_power(kind, "update", power, 0.0)
        if quantity != "update":
            return judged
        if self._is_of_random_sums(power, kind, fit):
            return replace(judged, off=False, is_open=False)
        return replace(judged, off=judged.off and self._off_in_all(power, kind))

    def _quantity(self, kind: str) -> str:
        """In what the effect of an update is to be the same at all sizes."""
        if self._is_same(kind):
            return "coherent"
        if (
            self._grows(kind)
            or self._makes_output(kind)
            or Power.of(self.pairs, "move", kind) is None
        ):
            return "update"
        return "move"

    def _fit(self, kind: str) -> Judged | None:
        """Judge whether the rate of a tensor fits its initial weights.

        What comes before and after the tensor has no influence.
        """
        start = self._start(kind)
        power = Power.of(
            self.pairs,
            "coherent fit" if self._is_same(kind) else "fit",
            kind,
            self._limit_of_fit(kind),
        )
        is_judged = self._small.operations.get(kind) in _KNOWN
        if (
            power is None
            or not is_judged
            or self._entry(kind).start.kept
            or (start is not None and start.off)
        ):
            return None
        return Judged.by_power(kind, "update", power, self._promised_fit(kind))

    def _limit_of_fit(self, kind: str) -> float:
        return _FIT_OF_SGD if self.plan.law_for(self.names[kind]).is_linear else LIMIT

    def _promised_fit(self, kind: str) -> float:
        entry = self._entry(kind)
        degree = self.plan.law_for(self.names[kind]).degree
        if self.axis == "depth":
            return (
                self._depth_of_rate(kind)
                - (1 + degree) * rule_named(self.plan.rule).std(entry.role).depth
            )
        if not self._grows(kind) and not self._is_fixed(kind) and not entry.is_vector:
            return -_RANDOM * (1 + degree)
        return 0.0

    def _depth_of_rate(self, kind: str) -> float:
        role = self._entry(kind).role
        return rule_named(self.plan.rule).rate(role, self.plan.law_for(self.names[kind])).depth

    def _is_of_random_sums(self, power: Power, kind: str, fit: Judged | None) -> bool:
        """Whether an update is too small only as a sum of random terms is.

        Then the rate is right by itself.
        """
        lowest = 2 * _RANDOM * (1 + self.plan.law_for(self.names[kind]).degree)
        if not lowest < power.value < 0 or self._is_next_to_the_end(power, kind):
            return False
        if fit is not None:
            return not fit.off
        return self._moves_as_planned(kind)

    def _moves_as_planned(self, kind: str) -> bool:
        """Whether a tensor moves its result by its rate.

        This is asked of tensors without initial weights to compare with, such as biases.
        """
        if kind not in self._small.results:
            # It was not seen to meet data, as a temperature that is the exponential of a number.
            return True
        moved = Power.of(self.pairs, "move", kind, self._limit_of_fit(kind))
        if moved is None:
            return False
        if self.axis == "width":
            return not moved.exceeds(0.0)
        promised = self._depth_of_rate(kind)
        if not moved.exceeds(promised):
            return True
        # PyTorch's attention is one operation, which writes the stream as well.
        is_of_parts = self._small.operations.get(kind) not in _KNOWN
        return is_of_parts and not moved.exceeds(
            promised - (rule_named(self.plan.rule).exponent or 0.0)
        )

    def _is_next_to_the_end(self, power: Power, kind: str) -> bool:
        """Whether nothing random comes after a tensor.

        Then it makes the output, or writes a stream that ends there. A stream may be read through
        random weights in many blocks of another, as the stream of an encoder is. Then what comes
        before or after its blocks falls with depth as well.
        """
        if self._makes_output(kind):
            return True
        entry = self._entry(kind)
        if entry.role != "outer":
            return False
        if self.axis == "depth":
            return not self._falls_outside(power)
        # What has a fixed number of inputs reads sums over the width, as the second matrix of an
        # adapter does.
        return entry.ratios.fan_in != 1

    def _falls_outside(self, power: Power) -> bool:
        """Whether the update of a tensor outside of blocks falls by the same power."""
        for kind, name in self.names.items():
            other = (
                Power.of(self.pairs, "update", kind)
                if block_of(name, self.plan.blocks) is None
                else None
            )
            if (
                other is not None
                and other.value < -power.limit
                and abs(other.value - power.value) < power.limit
            ):
                return True
        return False

    def _off_in_all(self, power: Power, kind: str) -> bool:
        """Whether a kind that is in some blocks only is off for its share of the blocks, too."""
        rest = Power.of(self.pairs, "update in all", kind) if self.axis == "depth" else None
        return rest is None or (rest.value * power.value > 0 and rest.exceeds(0.0))

    # ---- initial activations

    def _start(self, kind: str) -> Judged | None:
        power = Power.of(self.pairs, "gain", kind)
        response = Power.of(self.pairs, "response", kind)
        operation = self._small.operations.get(kind)
        if self.axis == "depth" or power is None or response is None or operation in ELEMENTWISE:
            return None
        promised = 0.0
        if not self._grows(kind):
            start = self._entry(kind).start
            is_drawn = start.constant is None and not start.kept
            if self._is_fixed(kind) or not is_drawn or operation not in PRODUCTS:
                return None
            promised = _RANDOM
            if not self._makes_output(kind):
                if self._entry(kind).own_factor != 1:
                    return None
                return Judged.by_power(kind, "start", power, promised)
        judged = Judged.by_power(kind, "start", power, promised)
        is_one_way = judged.deviation * (response.value - promised) > 0
        is_open = (
            judged.is_open
            and is_one_way
            and (response.exceeds(promised) or response.is_open(promised))
        )
        return replace(
            judged, off=judged.off and is_one_way and response.exceeds(promised), is_open=is_open
        )

    # ---- what a kind is

    @property
    def _small(self) -> Pass:
        return self.pairs[0][0]

    @property
    def _large(self) -> Pass:
        return self.pairs[0][1]

    def _entry(self, kind: str) -> Entry:
        return self.plan.entries[self.names[kind]]

    def _grows(self, kind: str) -> bool:
        """Whether the first result of a kind has more entries in the larger network.

        It is taken to have where it was not seen.
        """
        if (
            self.axis == "depth"
            or kind not in self._small.results
            or kind not in self._large.results
        ):
            return True
        return self._small.results[kind] != self._large.results[kind]

    def _makes_output(self, kind: str) -> bool:
        """Whether the first result of a kind has the shape of an output."""
        if kind not in self._small.results:
            return False
        shape = self._small.results[kind][1:]
        return any(shape == output[1:] for output in self._small.outputs)

    def _is_fixed(self, kind: str) -> bool:
        """Whether a tensor has one shape at all widths."""
        return self._small.shapes.get(kind) == self._large.shapes.get(kind)

    def _is_same(self, kind: str) -> bool:
        """Whether a tensor has one shape at all widths, and its first result has not.

        Examples are a gain of all heads, and a scalar.
        """
        is_seen = kind in self._small.shapes and kind in self._large.shapes
        return self.axis == "width" and is_seen and self._is_fixed(kind) and self._grows(kind)
