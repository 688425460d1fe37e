"""The page of ``muon_limit.py``: charts, tables and sentences from the numbers that are kept; nothing is trained.

python examples/muon_limit_page.py                  # docs/muon.md and its charts from docs/muon.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import muon_limit_words as words
from muon_limit_charts import charts
from muon_limit_numbers import METERS, NAMES, POWERS, ROLES, STARTS, Case, Results, Row, interval, plus
from page_parts import bracketed, table

from nfd.core.files import write_bytes, write_text
from nfd.meters.verdict import verdict
from nfd.scaling.laws import law_of
from nfd.scaling.rules import rule_named

NUMBERS, PAGE = Path("docs/muon.json"), Path("docs/muon.md")
RULES = (*STARTS, "depth-mup-inner", "mup")
MOVES = {
    "STABLE": "stays",
    "LIMIT": "falls to a limit",
    "COLLAPSES": "falls",
    "GROWS": "rises",
    "UNCERTAIN": "undecided",
}


# ---- tables ---------------------------------------------------------------------------------------------------


def moved(row: Row) -> str:
    """``+0.01 [-0.05, +0.07] STABLE``."""
    return f"{bracketed(row, '+z.2f')} {verdict(interval(row))}"


def shown(case: Case, meter: str, step: int) -> str:
    """The same in a table, with the verdict of the check."""
    row = case.one(f"{meter} exponent", step)
    return "-" if row is None else f"{bracketed(row, '+z.2f')} {row['verdict']}"


def regret(case: Case) -> str:
    """``+1.1 [-0.4, +3.9] % TRANSFERS``."""
    (row,) = case.every("regret over progress")
    return f"{bracketed(row, '+z.1f', 100)} % {row['verdict']}"


def rule_power(rule: str, role: str) -> float:
    """The power of L that the plan gives Muon's rate of a role, in effective weights."""
    return rule_named(rule).rate(role, law_of("muon")).depth  # type: ignore[arg-type]


def rates_table(cases: Mapping[str, Case | None], axis: str, more: Mapping[str, Callable[[Case], str]]) -> str:
    """Best rates, their drift and the regret, a row for every case, with further columns."""
    known = {name: case for name, case in cases.items() if case is not None}
    sizes = sorted({row["size"] for case in known.values() for row in case.every("best rate")})
    head = ["", *(f"{axis} {n:,}" for n in sizes), "drift", "regret over progress", *more]
    rows = []
    for name, case in known.items():
        best = {row["size"]: bracketed(row, ".2g") for row in case.every("best rate")}
        others = [column(case) for column in more.values()]
        rows.append([name, *(best.get(n, "-") for n in sizes), moved(case.drift), regret(case), *others])
    return table(head, rows) if rows else "Not measured yet."


def width_table(results: Results) -> str:
    """The three optimizers along width."""
    cases = {name: results.of(optimizer, "complete-p", "width") for optimizer, name in NAMES.items()}
    return rates_table(cases, "width", {})


def depth_table(results: Results) -> str:
    """Every optimizer and rule along depth."""
    cases = {
        f"{name}, {rule}": results.of(optimizer, rule, "depth") for optimizer, name in NAMES.items() for rule in RULES
    }
    return rates_table(cases, "depth", {})


def _column(meter: str, step: int) -> Callable[[Case], str]:
    return lambda case: shown(case, meter, step)


def meters_table(results: Results) -> str:
    """Exponents of the updates over depth, after the first and after the last step."""
    first, last = results.setting["at"][0], results.setting["at"][-1]
    head = ["", *(f"`{meter}`, step {step}" for meter in METERS for step in (first, last))]
    rows = [
        [f"{name}, {rule}", *(shown(case, meter, step) for meter in METERS for step in (first, last))]
        for optimizer, name in NAMES.items()
        for rule in RULES
        if (case := results.of(optimizer, rule, "depth"))
    ]
    return table(head, rows)


def alone_table(results: Results) -> str:
    """The power of L of one kind of matrix, where it alone trains."""
    rows = []
    for start in STARTS:
        for role in ROLES:
            if case := results.of("muon", start, "depth", trains=(role,)):
                planned = rule_power(start, role)
                measured = bracketed(plus(case.drift, planned), "+z.2f")
                rows.append([start, role, f"{planned:g}", moved(case.drift), f"**{measured}**"])
    head = ["start", "what trains", "power in the plan", "drift of the best rate", "power that keeps the best rate"]
    return table(head, rows)


def powers_table(results: Results) -> str:
    """Hidden rates with a factor of L^p on top of the plan."""
    first, last = results.setting["at"][0], results.setting["at"][-1]
    rows = []
    for start in STARTS:
        for power in POWERS:
            if case := results.of("muon", start, "depth", power):
                wanted = bracketed(plus(case.drift, power), "+z.2f")
                seen = [shown(case, "function_update", step) for step in (first, last)]
                inner = shown(case, "inner_update", last)
                rows.append(
                    [start, f"{power:+g}" if power else "0", moved(case.drift), wanted, regret(case), *seen, inner]
                )
    head = ["start", "p", "drift", "p + drift", "regret over progress"]
    head += [f"`function_update`, step {first}", f"step {last}", f"`inner_update`, step {last}"]
    return table(head, rows)


def gpt_table(results: Results) -> str:
    """The GPT along depth."""
    last = results.setting["at"][-1]
    cases = {
        f"{start}, {'plan' if not power else f'p = {power:+g}'}": results.of("muon", start, "depth", power, model="gpt")
        for start in STARTS
        for power in (0.0, 0.5)
    }
    columns = {f"`{meter}`, step {last}": _column(meter, last) for meter in ("function_update", "inner_update")}
    return rates_table(cases, "depth", columns)


# ---- words ----------------------------------------------------------------------------------------------------


def text(results: Results, images: str) -> str:
    """The page."""
    own = results.setting
    wide, deep = (results.of("muon", "complete-p", axis) for axis in ("width", "depth"))
    rates = {"small": best(wide, 0), "at_wide": best(wide, -1), "at_deep": best(deep, -1)}
    lists = {name: listed(own[name]) for name in ("widths", "depths", "checked", "at")}
    sizes = {
        "width": own["widths"][0], "widest": own["widths"][-1], "depth": own["depths"][0], "deepest": own["depths"][-1],
        "steps": own["at"][-1], "batch": own["batch"], "adamw_lr": own["adamw_lr"],
        "structured": own["structured_from"], "wide_seeds": own["seeds"][0], "deep_seeds": own["seeds"][1],
    }  # fmt: skip
    tables = {
        "summary": summary_table(results),
        "along_width": width_table(results), "along_depth": depth_table(results), "alone": alone_table(results),
        "both": powers_table(results), "meters": meters_table(results), "gpt": gpt_table(results),
    }  # fmt: skip
    gpts = {f"gpt_{start[:5]}": moves(results.of("muon", start, "depth", model="gpt")) for start in STARTS}
    lines = {"powers": "\n".join(powers(results)), "limit": "\n".join(limits(results)), "images": images}
    return words.PAGE.format(**sizes, **rates, **lists, **tables, **gpts, **lines)


def listed(values: Sequence[int]) -> str:
    """``64, 128 and 4,096``."""
    *most, last = (f"{value:,}" for value in values)
    return f"{', '.join(most)} and {last}"


def best(case: Case | None, place: int) -> str:
    """The best rate of a network of a case, 0 for its smallest."""
    return "(not measured)" if case is None else bracketed([*case.every("best rate")][place], ".2g")


def moves(case: Case | None) -> str:
    """``stays: +0.01 [-0.05, +0.07]``, of a best rate."""
    return "not measured" if case is None else said({**case.drift, "verdict": verdict(interval(case.drift))})


def summary_table(results: Results) -> str:
    """What stays, by optimizer, axis and start."""
    last = results.setting["at"][-1]
    places = [("width", "complete-p"), *(("depth", start) for start in STARTS)]
    rows = []
    for optimizer, name in NAMES.items():
        for axis, start in places:
            if case := results.of(optimizer, start, axis):
                seen = [case.one(f"{meter}_update exponent", last) for meter in ("function", "inner")]
                about = f"{name}, {axis}{f', {start}' if axis == 'depth' else ''}"
                rows.append([about, moves(case), *map(said, seen)])
    return table(["", "best rate", f"function update, step {last}", f"inner update, step {last}"], rows)


def said(row: Row | None) -> str:
    """``stays: +0.01 [-0.05, +0.07]``."""
    return "-" if row is None else f"{MOVES[row['verdict']]}: {bracketed(row, '+z.2f')}"


def powers(results: Results) -> Iterator[str]:
    """The power of L of each kind of matrix that keeps the best rate, and whether the plan's lies in its interval."""
    for start in STARTS:
        for role in ROLES:
            if case := results.of("muon", start, "depth", trains=(role,)):
                planned, drift = rule_power(start, role), interval(case.drift)
                agrees = "does not agree" if drift.resolved else "agrees" if drift.low <= 0 else "may agree"
                measured = bracketed(plus(case.drift, planned), "+z.2f")
                yield f"- {role} matrices from the start of `{start}`: {measured}; the plan's {planned:g} {agrees}."


def limits(results: Results) -> Iterator[str]:
    """The loss of the infinitely wide network under Muon and SGD."""
    for optimizer, name in NAMES.items():
        case = results.of(optimizer, "complete-p", "width")
        if case and (row := case.one("limit of the loss")) and (bias := case.one("bias of the loss")):
            about = {"name": name, "lr": row["at"], "loss": bracketed(row, ".3f")}
            yield words.LIMIT.format(**about, width=bias["size"], bias=bias["value"])


def write(numbers: Path, page: Path, images: Path) -> None:
    """The page and its charts."""
    results = Results(numbers)
    for name, picture in charts(results):
        write_bytes(images / name, picture)
    write_text(page, text(results, "" if images == page.parent else f"{images.name}/"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numbers", type=Path, default=NUMBERS, help="what muon_limit.py kept")
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    write(given.numbers, given.page, given.page.parent / "images")
