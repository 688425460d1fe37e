"""Ask a self-test of the cases of a bank, and count what it misses and where it is wrong to
alarm.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from tests.self_test_bank.cases import Case, planned

import nfd

# Of the planned model over its base. No simple power of them is 2, by which some sound plans are
# off at every size.
WIDER = 5
DEEPER = 3


class Outcome(NamedTuple):
    """What a self-test said of a case, and its processor time over that of one plan; or why there
    is none.
    """

    case: Case
    test: nfd.SelfTest | None
    plans: float
    error: str = ""

    @property
    def has_alarmed(self) -> bool:
        """Whether it says that something is off."""
        return self.test is not None and not self.test.ok

    @property
    def is_right(self) -> bool:
        """Whether it alarmed where it should, and not where not."""
        return self.test is not None and self.has_alarmed == bool(self.case.is_wrong)


def asked(case: Case) -> Outcome:
    """The self-test of one case."""
    torch.manual_seed(0)
    width, depth = case.base
    wider = 1 if case.axes == "depth" else WIDER
    # Under muP depth may stay as it is.
    deeper = 1 if case.axes == "width" or case.rule == "mup" else DEEPER
    try:
        started = time.process_time()
        _, plan = planned(case, wider * width, depth)
        one = time.process_time() - started
        if deeper > 1:
            _, plan = planned(case, wider * width, deeper * depth)
        started = time.process_time()
        test = plan.self_test(case.make_model, case.sample)
    except (ValueError, TypeError, RuntimeError) as error:
        return Outcome(case, None, 0.0, f"{type(error).__name__}: {error}")
    return Outcome(case, test, (time.process_time() - started) / one)


def judged(cases: Iterable[Case], *, wrong: bool) -> list[Case]:
    """The cases that count: those of which mathematics says whether they are wrong."""
    return [case for case in cases if case.is_wrong is wrong and not case.disputed]


def report(outcomes: Sequence[Outcome]) -> str:
    """Alarms and times, and what was said of every case that went wrong."""
    by_time = sorted(
        (outcome for outcome in outcomes if outcome.test is not None),
        key=lambda outcome: outcome.plans,
    )
    lines = [f"{sum(outcome.has_alarmed for outcome in outcomes)} of {len(outcomes)} alarmed"]
    if by_time:
        median = by_time[len(by_time) // 2].plans
        slowest = ", ".join(
            f"{outcome.plans:.1f} of {outcome.case.name}" for outcome in by_time[:-4:-1]
        )
        lines.append(f"time over that of a plan: median {median:.1f}, largest {slowest}")
    for outcome in outcomes:
        if not outcome.is_right:
            readings = outcome.test.off if outcome.test else ()
            said = outcome.error or "; ".join(str(reading) for reading in readings[:3]) or "nothing"
            lines.append(f"  {outcome.case.name}: {said}")
    return "\n".join(lines)
