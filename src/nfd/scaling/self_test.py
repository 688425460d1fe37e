"""The self-test of a plan: what its networks do at three small sizes, held against its rule.

Of every kind of tensors, those of one name in all blocks, and of the network,
``nfd.scaling.one_pass`` measures a few quantities in the smallest model, in one that is wider and
in one that is deeper. ``nfd.scaling.self_judge`` says which powers of width and depth are promised.
This is blind to how a model is written: no name of a module and no graph decides what is measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from nfd.core.checks import check_count, check_flag
from nfd.core.errors import InputError
from nfd.core.modes import gradients
from nfd.core.random import global_streams
from nfd.scaling.base import MakeModel, instance
from nfd.scaling.carried import Axis, Carrier
from nfd.scaling.model import in_any_block
from nfd.scaling.one_pass import FACTOR, SMALLEST, Bench, Pass, Place
from nfd.scaling.plans_itself import told_by
from nfd.scaling.rules import rule_named
from nfd.scaling.self_judge import LIMIT, Judge, Judged
from nfd.scaling.self_repair import proposals
from nfd.scaling.self_test_result import Reading, SelfTest

if TYPE_CHECKING:
    from nfd.scaling.plan import Plan

_SEEDS = 2
_MORE_SEEDS = 2  # at most, where two do not settle it
_SEVERAL_KINDS = 3


@gradients()
def self_test(
    plan: Plan,
    make_model: MakeModel,
    sample: Any,
    *,
    base: tuple[int, int] | None = None,
    repair: bool = False,
    seeds: int = _SEEDS,
) -> SelfTest:
    """Do what ``Plan.self_test`` says."""
    carrier = _carrier(plan, make_model, base)
    seeds = check_count("seeds", seeds, minimum=2)
    check_flag("repair", repair)
    grown = _grown(plan, carrier)
    with global_streams():
        bench = Bench(carrier, sample)
        test = _Test(bench, seeds)
        rows = [_reading(axis, one) for axis in grown for one in test.along(axis)]
        rows += _logits(plan)
        result = SelfTest(
            tuple(rows), plan.rule, carrier.size, tuple(grown), notes=tuple(_notes(plan, grown))
        )
        if repair and not result.ok:
            result = replace(result, proposals=tuple(proposals(bench, result.off, seeds)))
    return result


def _reading(axis: Axis, judged: Judged) -> Reading:
    return Reading(
        judged.kind, judged.quantity, axis, judged.deviation, judged.power.error, judged.off
    )


def _logits(plan: Plan) -> list[Reading]:
    """Read the logits of attention from the plan.

    They grow only once queries fit keys, so that no first pass shows them.
    """
    readings = dict[str, Reading]()
    for name, larger in plan.logits.items():
        kind = in_any_block(name, plan.blocks)
        if plan.width != 1 and larger > 0:
            power = math.log(larger) / math.log(plan.width)
            readings[kind] = Reading(kind, "logits", "width", power, 0.0, abs(power) > LIMIT)
    return [*readings.values()]


def _carrier(plan: Plan, make_model: MakeModel, base: tuple[int, int] | None) -> Carrier:
    """The plan with its constructor; ValueError where there is nothing that it promises."""
    if not rule_named(plan.rule).scales_width:
        raise InputError(
            f"rule={plan.rule!r} promises nothing of other sizes, so that there is nothing to test."
        )
    size = plan.base if base is None else base
    if size is None:
        raise InputError(
            "the plan does not know the size of its base. Pass base=(width, depth), the arguments "
            "of make_model."
        )
    width, depth = (check_count("base", int(number)) for number in size)
    carrier = Carrier(plan, make_model, (width, depth))
    if not tests_itself(make_model, (width, depth)):
        raise InputError("a network of the paper plans itself, and needs no test.")
    return carrier


def tests_itself(make_model: MakeModel, size: tuple[int, int]) -> bool:
    """Whether a plan reads such models; networks of the paper know their own."""
    return told_by(instance(make_model, *size)) is None


def _grown(plan: Plan, carrier: Carrier) -> list[Axis]:
    """List the axes along which the plan is larger and its rule promises something."""
    axes = list[Axis]()
    if plan.width != 1:
        axes.append("width")
    if not rule_named(plan.rule).scales_depth:
        return axes
    is_deeper = plan.depth != 1 or any(entry.ratios.depth != 1 for entry in plan.entries.values())
    if is_deeper or carrier.is_shared:
        axes.append("depth")
    return axes


def _notes(plan: Plan, grown: Sequence[Axis]) -> list[str]:
    """What was not tested, and why."""
    possible: list[Axis] = ["width", "depth"] if rule_named(plan.rule).scales_depth else ["width"]
    return [
        f"Not tested with {axis}: the plan is of the {axis} of its base. Plan a model of another "
        f"{axis}."
        for axis in possible
        if axis not in grown
    ]


@dataclass
class _Test:
    """Measures the networks that are needed, each once."""

    bench: Bench
    seeds: int
    passes: dict[tuple[Place, int], Pass] = field(default_factory=dict)

    def along(self, axis: Axis) -> list[Judged]:
        """What is read along one axis, adding one seed after another until they settle it."""
        judged = self._judged(axis, self.seeds)
        for more in range(1, _MORE_SEEDS + 1):
            # What is within the limit gets one look more, and what is beyond it two.
            is_beyond = any(one.off or (one.is_open and one.is_beyond) for one in judged)
            if _is_settled(judged) or (more > 1 and not is_beyond):
                break
            judged = self._judged(axis, self.seeds + more)
        return judged

    def _judged(self, axis: Axis, seeds: int) -> list[Judged]:
        larger: Place = (axis, FACTOR)
        pairs = [
            (self._measured(SMALLEST, seed), self._measured(larger, seed)) for seed in range(seeds)
        ]
        return Judge(self.bench.plans[larger], axis, pairs).judged()

    def _measured(self, place: Place, seed: int) -> Pass:
        if (place, seed) not in self.passes:
            self.passes[place, seed] = self.bench.measure(place, seed)
        return self.passes[place, seed]


def _is_settled(judged: Sequence[Judged]) -> bool:
    """Whether more seeds would hardly change what is off."""
    off = [one for one in judged if one.off]
    if not off:
        return not any(one.is_open for one in judged)
    # Two seeds may agree by luck on one kind, such as a head with one output, but hardly on
    # several.
    if len({one.kind for one in off}) >= _SEVERAL_KINDS:
        return True
    usual = median([one.power.error for one in judged if one.quantity == "update"] or [0.0])
    return all(one.power.is_far_from(one.promised, usual) for one in off)
