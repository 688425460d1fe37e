"""Ask a self-test of every case of a bank, and count what it misses and where it is wrong to alarm.

A case is a model under a plan: as ``nfd.plan`` makes it, or with numbers of some kinds of tensors multiplied by a power
of width or depth.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from torch import nn

import nfd
from nfd.scaling.model import in_any_block, matches
from nfd.scaling.plan import Entry, Plan

WIDER, DEEPER = 5, 3  # of the planned model over its base: no power of them is 2, as are constant factors of cases


class Edit(NamedTuple):
    """Initial weights, rate, both, or the factor of the forward pass, of tensors times ``axis^power``."""

    pattern: str
    what: Literal["start", "rate", "both", "factor"]
    axis: Literal["width", "depth"]
    power: float


@dataclass(frozen=True)
class Case:
    """A model, an input of it, and a plan that is sound or not.

    Attributes:
        name: of the case. wrong: whether its plan is.
        make: ``make_model(width, depth)``. planned: another that the plan is made of, if not the same.
        edits: of the plan. options: of ``nfd.plan``. grows: whether width and depth may grow.
        disputed: whether which plan is sound is a matter of convention.
    """

    name: str
    wrong: bool
    make: Callable[[int, int], nn.Module]
    sample: Any
    rule: str = "complete-p"
    optimizer: str = "adamw"
    edits: Sequence[Edit] | Callable[[Plan], Plan] = ()
    base: tuple[int, int] = (32, 2)
    options: Mapping[str, Any] = field(default_factory=dict)
    planned: Callable[[int, int], nn.Module] | None = None
    disputed: bool = False
    grows: tuple[bool, bool] = (True, True)


class Outcome(NamedTuple):
    """What a self-test said of a case, and its processor time over that of one plan."""

    case: Case
    test: nfd.SelfTest | None
    plans: float
    error: str = ""

    @property
    def is_right(self) -> bool:
        """Whether it alarmed where it should, and not where not."""
        return self.test is not None and self.test.ok != self.case.wrong


def edited(plan: Plan, edits: Iterable[Edit]) -> Plan:
    """A plan with some of its numbers multiplied; ValueError for an edit that changes nothing."""
    for edit in edits:
        names = [name for name in plan.entries if matches(name, edit.pattern) or edit.pattern in _kinds(name, plan)]
        entries = {name: _edited(plan, name, edit) for name in names}
        if all(entry == plan.entries[name] for name, entry in entries.items()):
            raise ValueError(f"{edit} changes nothing of {list(plan.entries)}")
        plan = replace(plan, entries=plan.entries | entries)
    return plan


def _kinds(name: str, plan: Plan) -> tuple[str, str]:
    return name, in_any_block(name, plan.blocks)


def _edited(plan: Plan, name: str, edit: Edit) -> Entry:
    entry = plan.entries[name]
    ratio = plan.width if edit.axis == "width" else entry.ratios.depth
    factor = math.pow(ratio, edit.power)
    start = factor if edit.what in ("start", "both", "factor") else 1.0
    # The plan divides start and rate by its own factor, and by one power more for optimizers that are linear.
    degree = 1 + plan.law_for(name).degree
    rate = {"start": 1.0, "rate": factor, "both": factor, "factor": factor**degree}[edit.what]
    own = rate ** (-1 / degree)
    constant = entry.start.constant
    begins = replace(
        entry.start, std=entry.start.std * start * own, constant=None if constant is None else constant * start * own
    )
    return replace(entry, start=begins, own_factor=entry.own_factor * own)


def asked(case: Case) -> Outcome:
    """The self-test of one case."""
    n, depth = case.base
    wider = WIDER if case.grows[0] else 1
    deeper = DEEPER if case.grows[1] and case.rule != "mup" else 1
    rules = {"rule": case.rule, "optimizer": case.optimizer, "base": case.base, "sample": case.sample}
    make = case.planned or case.make
    started = time.process_time()
    plan = nfd.plan(make(wider * n, depth), make_model=make, **rules, **case.options)
    one = time.process_time() - started
    if deeper > 1:
        plan = nfd.plan(make(wider * n, deeper * depth), make_model=make, **rules, **case.options)
    plan = case.edits(plan) if callable(case.edits) else edited(plan, case.edits)
    started = time.process_time()
    try:
        test = plan.self_test(case.make, case.sample)
    except (ValueError, TypeError, RuntimeError) as error:
        return Outcome(case, None, 0.0, f"{type(error).__name__}: {error}")
    return Outcome(case, test, (time.process_time() - started) / one)


def report(outcomes: Sequence[Outcome]) -> str:
    """Hits, false alarms and times, and every case that went wrong."""
    lines = []
    counted = [outcome for outcome in outcomes if not outcome.case.disputed]
    for wrong, name in ((True, "wrong plans found"), (False, "sound plans alarmed")):
        those = [outcome for outcome in counted if outcome.case.wrong == wrong]
        alarms = sum(outcome.test is not None and not outcome.test.ok for outcome in those)
        ratios = sorted(outcome.plans for outcome in those if outcome.test is not None)
        median, most = (ratios[len(ratios) // 2], ratios[-1]) if ratios else (math.nan, math.nan)
        lines.append(f"{name}: {alarms} of {len(those)}; plans of time: median {median:.1f}, largest {most:.1f}")
    for outcome in outcomes:
        if not outcome.is_right or outcome.case.disputed:
            said = outcome.error or "; ".join(str(row) for row in (outcome.test.off if outcome.test else ())[:4])
            kind = "disputed" if outcome.case.disputed else "wrong" if outcome.case.wrong else "sound"
            lines.append(f"  {outcome.case.name} ({kind}): {said or 'ok'}")
    return "\n".join(lines)
