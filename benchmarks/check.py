"""Find what has become slower: ``python -m benchmarks.check [OLD] NEW``.

Ratios are compared, never seconds: on one machine all of them, and across machines shares of bounds
alone, which have the rates of their machine in them. A ratio is worse when the interval of its
change, made of the scatter of the repeats within both runs, lies as a whole below 1 by more than
what is too small to matter. The intervals hold together: the chance that any of them finds
something where nothing changed is 5 %. Exit code 1 and a line for each ratio that is worse.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.measure import AT_LARGE, OF_THE_WORLD, SHARE
from benchmarks.ratio import Ratio, improvement
from benchmarks.result import Identity, Result
from makers.tables import cell
from nfd.core.checks import check_real
from nfd.core.estimates import Interval
from nfd.core.files import write_json

BASELINE = Path(__file__).with_name("baseline.json")
_FALSE_ALARMS = 0.05
# Times: a smaller loss is not worth a failure.
LEAST = 1.05


@dataclass(frozen=True)
class Change:
    """One ratio in two runs: ``change`` is how many times better it became."""

    part: str
    row: Identity
    column: str
    was: Ratio
    now: Ratio
    change: Interval

    def __str__(self) -> str:
        place = ", ".join(f"{name} {value}" for name, value in self.row)
        values = f"was {cell(self.column, self.was)}, is {cell(self.column, self.now)}"
        limits = f"{self.change.value:.2f} [{self.change.low:.2f}, {self.change.high:.2f}]"
        return f"{self.part} ({place}): {self.column} {values}: {limits} times as good"


def changes(old: Result, new: Result) -> list[Change]:
    """Every ratio that both runs hold and that both machines can be compared by."""
    was = old.ratios()
    now = new.ratios()
    are_apart = bool(_apart(old, new))
    both = [key for key in was if key in now and (_holds_anywhere(key[2]) or not are_apart)]
    level = _FALSE_ALARMS / max(1, len(both))
    compared = []
    for key in both:
        change = improvement(was[key], now[key], level)
        compared.append(Change(*key, was[key], now[key], change))
    return compared


def _holds_anywhere(column: str) -> bool:
    """Whether a ratio holds across machines: it is a share of what the machine allows."""
    return column in (SHARE, AT_LARGE)


def worse(compared: Sequence[Change], least: float = LEAST) -> list[Change]:
    """The changes that are worse beyond noise, and by enough to matter."""
    return [change for change in compared if change.change.high < 1 / least]


def accept(path: Path, baseline: Path = BASELINE) -> None:
    """Make a result the baseline.

    A result of some parts replaces only these, where the others were measured on that machine.
    """
    result = Result.read(path)
    if baseline.exists():
        result = _completed(path, result, Result.read(baseline))
    write_json(baseline, result.plain())


def _completed(path: Path, result: Result, before: Result) -> Result:
    """A result with the parts of an earlier one that it lacks."""
    if not before.parts.keys() - result.parts.keys():
        return result
    apart = _apart(before, result)
    if apart:
        raise ValueError(
            f"{path} holds some parts alone, of another machine: {apart}. Measure all parts there."
        )
    parts = {**before.parts, **result.parts}
    seconds = {**before.seconds, **result.seconds}
    kept = before.parts.keys() - result.parts.keys()
    # The date and the rates of the machine are those of most parts.
    machine = before.machine if len(kept) > len(result.parts) else result.machine
    return replace(before, machine=machine, parts=parts, seconds=seconds)


def report(old: Result, new: Result, least: float) -> int:
    """Print what is worse, and what could not be compared; the exit code."""
    compared = changes(old, new)
    if not compared:
        print("The two results have no ratio in common.", file=sys.stderr)
        return 2
    bad = worse(compared, least)
    for change in bad:
        print(change)
    single = sum(math.isnan(change.change.high) for change in compared)
    print(
        f"{len(compared)} ratios compared, {len(bad)} worse; {single} of a single repeat say "
        "nothing."
    )
    lacking = {part for part, *_ in old.ratios().keys() - new.ratios().keys()}
    # A quick run lacks the large sizes, as it should.
    if lacking and not new.quick:
        print(f"Not measured now, but before, in part or as a whole: {', '.join(sorted(lacking))}.")
    apart = _apart(old, new)
    if apart:
        print(f"The machines differ, so that shares of bounds alone were compared: {apart}.")
    return 1 if bad else 0


def _apart(old: Result, new: Result) -> str:
    """In what two machines, or two runs on one, differ; empty if in nothing that matters."""
    names = ("processor", "cores", "threads", "torch")
    facts = [(name, old.machine.get(name), new.machine.get(name)) for name in names]
    # Earlier results do not say it.
    facts.append(("clock", *(run.machine.get("clock", OF_THE_WORLD) for run in (old, new))))
    facts.append(("quick", old.quick, new.quick))
    return "; ".join(f"{name} {was}, now {now}" for name, was, now in facts if was != now)


def main() -> int:
    """Compare, or accept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "results", nargs="+", type=Path, metavar="RESULT", help="OLD and NEW, or NEW alone"
    )
    parser.add_argument(
        "--accept", action="store_true", help="make RESULT the baseline instead of comparing"
    )
    parser.add_argument(
        "--least", type=float, default=LEAST, help="the smallest loss that counts, in times"
    )
    arguments = parser.parse_args()
    if len(arguments.results) > (1 if arguments.accept else 2):
        parser.error("too many results: OLD and NEW, or NEW alone")
    try:
        if arguments.accept:
            accept(arguments.results[-1])
            return 0
        check_real("--least", arguments.least, least=1.0)
        old, new = ([BASELINE, *arguments.results])[-2:]
        return report(Result.read(old), Result.read(new), arguments.least)
    except ValueError as error:
        print(f"benchmarks.check: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
