"""The statements that the figures' own runs left undecided: what decided them, and what the rest would cost.

Run: python examples/undecided_page.py
Writes docs/undecided.md from docs/undecided.json (what stood before, of what, and what ran since) and docs/claims.json.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from nfd.core import standard_errors

DOCS = Path(__file__).parents[1] / "docs"
MOST = 100_000
OPENING = """# Statements that the figures left undecided

Look up what the first runs left open, what decided it since, and what it costs you to decide the rest.

*Made by `python examples/undecided_page.py` from the table of [claims](claims.md). Costs are seconds of one core.*

For example, `fig2-depth` says that depth improves the test loss. Three seeds gave a change of -0.006 nats with the
95 % interval [-0.019, 0.007]. The bound, 0, lies inside, so the statement was undecided; 12 seeds decided it. An
interval over R seeds reaches t(R - 1) s / sqrt(R) to either side. So the distance to the bound says how many seeds
settle a statement, if the measured number is the true one.

Seeds came in rounds: where a first round left a statement open, more were trained. Each look at an interval can err
with a chance of 2.5 %, so a verdict after k looks errs with up to k times that. The rules of the verdicts stayed as
they were during these rounds. Before them, three rules were changed after their first runs were seen
([limits](limits-of-the-tool.md)).

"""
_LEFT = """## What stays open, and what it costs

Names in code are parts of `nfd.paper.claims.extra_runs`; `nfd paper claims` trains those that are not stored."""


def seeds_to_settle(value: float, stderr: float, seeds: int, bound: float) -> float:
    """The fewest seeds whose interval would leave the bound out; infinite where it takes more than ``MOST``.

    ``t(R - 1) s / sqrt(R) < |value - bound|`` with ``s = stderr sqrt(seeds)``.
    """
    spread, distance = stderr * math.sqrt(seeds), abs(value - bound)
    sizes = range(2, MOST)
    return next((R for R in sizes if standard_errors(R - 1) * spread / math.sqrt(R) < distance), math.inf)


def page(before: list[dict[str, Any]], rows: dict[str, dict[str, Any]]) -> str:
    """The page."""
    head = "| statement | before | what made the interval wide | seeds needed | what ran since | now | verdict |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    lines += [_line(old, rows[old["id"]]) for old in before]
    left = [old for old in before if rows[old["id"]]["verdict"] == "undecided"]
    open_ = [f"- **{old['id']}**: {old['left']}" for old in left]
    count = f"{len(before) - len(left)} of {len(before)} are decided, {len(left)} open."
    return OPENING + "\n".join([count, "", *lines, "", _LEFT, "", *open_]) + "\n"


def _line(old: dict[str, Any], row: dict[str, Any]) -> str:
    needed = "no number" if old["value"] is None else _needed(old)
    cells = (old["id"], _interval(old), old["of"], needed, old["ran"], _interval(row), row["verdict"])
    return f"| {' | '.join(cells)} |"


def _needed(old: dict[str, Any]) -> str:
    seeds = seeds_to_settle(old["value"], old["stderr"], old["seeds"], old["bound"])
    return f"{seeds:g}, had {old['seeds']}" if math.isfinite(seeds) else f"over {MOST:,}"


def _interval(row: dict[str, Any]) -> str:
    if row["value"] is None:
        return "none"
    return "{value:.3g} [{low:.3g}, {high:.3g}]".format(**row)


def main() -> None:
    """Write the page."""
    before = json.loads((DOCS / "undecided.json").read_text(encoding="utf-8"))
    rows = {row["id"]: row for row in json.loads((DOCS / "claims.json").read_text(encoding="utf-8"))["rows"]}
    (DOCS / "undecided.md").write_text(page(before, rows), encoding="utf-8")


if __name__ == "__main__":
    main()
