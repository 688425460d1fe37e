"""Make docs/real-ladders.md, forecasts and learning rates on other people's runs.

``python -m makers.real_ladders_page`` makes it again from docs/real-ladders.json. ``--ladders`` and ``--unseen`` (from
``--out`` of ``priors.ladders`` and ``unseen_ladders``), ``--rates``, ``--curves`` and ``--own`` (of
``rate_law``, ``curves`` and ``own_ladder``) replace their parts. Pictures need ``--ladders``, whose
runs are other people's and not kept.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined

from calibration import forms
from makers import real_ladders_charts as charts
from makers.pictures import svg
from makers.real_ladders_charts import Row, signed
from nfd.core.files import write_text
from nfd.laws.ladder_outlook import REACH
from priors import curves
from priors.ladders import BINS, SHOWN, SOURCES

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "real-ladders.md"
NUMBERS = DOCS / "real-ladders.json"
IMAGES = DOCS / "images"
README = DOCS.parent / "README.md"
WORDS = Path(__file__).with_suffix(".md.jinja")
# Times the compute: the cut of a ladder that is drawn is the nearest to it.
DRAWN = 30
# What was asked of accepted forecasts, by factor: width in percent, median error in percent, and
# share of cases.
ASKED = {10: (4.5, 0.5, 0.60), 30: (6.0, 0.6, 0.50), 100: (8.0, 1.0, 0.20)}
# Asked of the intervals of targets, over ladders.
COVERED = 0.93
# Asked of the error of an accepted forecast, in percent.
FURTHEST = 2.0
# Asked: the share of a ladder's targets that lie in their intervals.
MOST = 0.9
# Asked: error of the final loss of a running job, in percent.
HALF = 0.5
# OLMo's authors on 13B-5T: allenai/OLMo-ladder at 67a3f44,
# src/scripts/paper/figures/step1_c4_main.csv
AUTHORS = 100 * (2.3443873053175697 / 2.437876033782959 - 1)
OLMO = ("7B-4T", "13B-5T")
# The columns of our own ladder that the page shows.
SHOWN_OF_OWN = (
    "target",
    "losses",
    "rate",
    "measured",
    "measured rate",
    "measured excess",
    "error",
    "inside",
)
# Sources under MIT or Apache-2.0.
FREE = ("epfl", "fantastic", "gadre", "gemstones", "olmo", "porian")

# A ladder, or the beginning of its name -> why its forecasts fail, where they do.
WHY = {
    "chinchilla": "Losses are read off a figure's colours, in steps.",
    "epfl_wsd": "Its longest runs ended before the cooldown.",
    "gadre": "Its runs scatter by 0.9 % about the law.",
    "llama3": "Points are read off a figure; the loss falls more slowly at its largest budgets.",
    "marin_moe": "Its one target has far more tokens than any fitted run.",
    "porian": "Warm-up and rate do not suit its small runs.",
    "steplaw": "Few runs are left, of nearly one size.",
    "xlstm": "The loss falls more slowly over its smallest budgets.",
}


# ---- words


def listed(values: Sequence[Any], last: str = "and") -> str:
    """A list of values as text, with commas and a last "and"."""
    texts = [str(value) for value in values]
    if not texts:
        return "none"
    if len(texts) == 1:
        return texts[0]
    return f"{', '.join(texts[:-1])} {last} {texts[-1]}"


def share(part: float | None) -> str:
    """A share as text, in percent."""
    return "-" if part is None else f"{100 * part:.0f} %"


def digits(value: float | None, places: int) -> str:
    """A number as text, with a fixed number of places."""
    return "-" if value is None else f"{value:.{places}f}"


def bracketed(row: Row, places: int) -> str:
    """An interval as text."""
    return f"{row['value']:.{places}f} [{row['low']:.{places}f}, {row['high']:.{places}f}]"


def medians(rows: Sequence[Row], name: str) -> str:
    """A column of medians as text, in percent."""
    return f"{listed([f'{row[name]:.1f}' for row in rows])} %"


def error_of(case: Row) -> str:
    """The error and the half width of a forecast of OLMo's larger target, as text."""
    target = case["targets"][-1]
    half = 50 * (target["high"] - target["low"]) / target["loss"]
    return f"{signed(100 * (target['forecast'] / target['loss'] - 1))} ± {half:.1f} %"


def filled(text: str) -> str:
    """Wrap paragraphs and entries of lists at 120 characters, not tables, pictures and code."""

    def wrapped(match: re.Match[str]) -> str:
        indent = "  " * match[0].startswith("- ")
        return fill(
            match[0], 120, break_long_words=False, break_on_hyphens=False, subsequent_indent=indent
        )

    return re.sub(r"(?m)^(?![#|!]|```|python ).+(?:\n(?![-#|!]|```).+)*", wrapped, text)


# ---- the page


def goals_of(numbers: Row) -> list[Row]:
    """The rows of the summary of which something was asked, where anything was accepted."""
    return [row for row in numbers["summary"] if row["factor"] in ASKED and row["accepted"]]


def titles_of(numbers: Row) -> dict[str, str]:
    """The findings of the charts."""
    goals = goals_of(numbers)
    olmo = numbers["olmo"]
    at = listed([row["factor"] for row in goals])
    return {
        "olmo": f"OLMo's {OLMO[-1]}, forecast from {SHOWN[0]} times less compute: "
        f"{error_of(olmo[0])}; from {SHOWN[-1]:,} times less: {error_of(olmo[-1])}",
        "error": f"At {at} times the compute accepted forecasts are off by "
        f"{medians(goals, 'error')}",
        "plain": f"The usual fit of the same runs is off by {medians(goals, 'plain')}",
    }


def drawn_of(cases: Sequence[Row]) -> list[Row]:
    """One case for each ladder, accepted ones first.

    It is the cut whose factor is nearest to ``DRAWN``.
    """
    nearest = dict[str, Row]()
    for case in sorted(cases, key=lambda case: abs(math.log(case["factor"] / DRAWN))):
        nearest.setdefault(case["ladder"], case)
    return sorted(nearest.values(), key=lambda case: (not case["accepted"], case["ladder"]))


def failed(cases: Sequence[Row]) -> list[Row]:
    """The ladders whose forecasts fail, and why.

    Their targets lie outside too often, or their accepted forecasts are too far off.
    """
    rows = list[Row]()
    for ladder in sorted({case["ladder"] for case in cases}):
        of_ladder = [case for case in cases if case["ladder"] == ladder]
        covered = float(np.mean([case["covered"] for case in of_ladder]))
        off = max((case["error"] for case in of_ladder if case["accepted"]), default=0.0)
        if covered < MOST or off > FURTHEST:
            row = {"ladder": ladder, "covered": covered, "off": off, "why": why_of(ladder)}
            rows.append(row)
    return rows


def why_of(ladder: str) -> str:
    """Why forecasts of a ladder fail, by the beginning of its name."""
    for name, text in WHY.items():
        if ladder.startswith(name):
            return text
    return "It is not known why."


def linked(sources: Mapping[str, str]) -> dict[str, str]:
    """What each repository has, with links to papers, by a link to it."""
    by_repository = dict[str, list[str]]()
    for name, source in sources.items():
        repository = source.replace(",", "").split()[0]
        papers = re.findall(r"\d{4}\.\d{5}", source)
        parts = by_repository.setdefault(f"[{repository}](https://github.com/{repository})", [])
        parts.append(name)
        parts += [f"[{paper}](https://arxiv.org/abs/{paper})" for paper in papers]
    return {link: ", ".join(dict.fromkeys(parts)) for link, parts in by_repository.items()}


def page(numbers: Row) -> str:
    """The whole page."""
    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, autoescape=False
    )
    environment.filters |= {
        f.__name__: f for f in (listed, share, digits, bracketed, medians, error_of, signed)
    }
    template = environment.from_string(WORDS.read_text(encoding="utf-8"))
    constants = {name: value for name, value in globals().items() if name.isupper()}
    facts = {**facts_of_ladders(numbers), **facts_of_rates(numbers["rates"])}
    facts["forms"] = forms.texts(forms.read_rows())
    return filled(template.render({**constants, **numbers, **facts})) + "\n"


def facts_of_ladders(numbers: Row) -> dict[str, Any]:
    """What the page says of forecasts of losses, and of whose runs they are."""
    cases = numbers["cases"]
    drawn = drawn_of(cases)
    names = sorted({source_of(case["ladder"]) for case in cases})
    sources = {name: SOURCES[name] for name in names}
    for row in numbers["curves"][:-1]:
        sources[f"{row['source']} (curves)"] = curves.SOURCES[row["source"]]
    every_ladder = {case["ladder"] for case in cases}
    accepted_ladders = {case["ladder"] for case in cases if case["accepted"]}
    return {
        "drawn": drawn,
        "goals": goals_of(numbers),
        "titles": titles_of(numbers),
        "over": numbers["over ladders"],
        "accepted": sum(case["accepted"] for case in cases),
        "failed": failed(cases),
        "reasons": sorted({case["why"] for case in cases if case["why"]}),
        "nearer": sum(case["plain"] < case["error"] for case in drawn),
        "never": sorted(every_ladder - accepted_ladders),
        "reach": REACH,
        "sources": linked(sources),
        "unfree": [name for name in names if name not in FREE],
        "done": [row | {"refused": is_refused(row)} for row in numbers["own"]],
    }


def facts_of_rates(rates: Row) -> dict[str, Any]:
    """What the page says of best rates."""
    cases = rates["cases"]
    coverage = rates["coverage"]
    with_goal = [row for row in cases if row["goal"] is not None]
    return {
        "cheaper": sum(row["excess"] < min(row["same"], row["plan"]) for row in cases),
        "met": sum(row["excess"] <= row["goal"] for row in with_goal),
        "held": float(np.mean([*coverage.values()])),
        "below": [
            f"{name} ({share(value)})" for name, value in coverage.items() if value < COVERED
        ],
    }


def source_of(ladder: str) -> str:
    """The source of a ladder, by the beginning of its name."""
    return next(name for name in SOURCES if ladder.startswith(name))


def is_refused(row: Row) -> bool:
    """Whether every law refused to forecast a run of our own ladder."""
    return all(law["refused"] for law in row["losses"].values())


# ---- pictures and numbers


def pictures(numbers: Row, ladders: Row) -> dict[str, str]:
    """SVG by name."""
    titles = titles_of(numbers)
    drawn = drawn_of(ladders["cases"])
    half = math.ceil(len(drawn) / 2)
    names = {
        target["flops"]: name
        for target, name in zip(ladders["olmo"][0]["targets"], OLMO, strict=True)
    }
    theirs = {"names": names, "label": f"{OLMO[-1]}, authors, {SHOWN[1]}x less", "error": AUTHORS}
    svgs = {"olmo": svg(charts.olmo(ladders["olmo"], theirs, titles["olmo"]), 1.4)}
    for name in ("error", "plain"):
        steps = {BINS[row["factor"]]: row[name] for row in goals_of(numbers)}
        svgs[name] = svg(charts.against_factor(ladders["cases"], name, titles[name], steps))
    for name, some in (("first", drawn[:half]), ("second", drawn[half:])):
        svgs[name] = svg(charts.ladders(some, said_of(some)))
    return svgs


def said_of(cases: Sequence[Row]) -> str:
    """Say how many forecasts in a picture of ladders were accepted, and how many of them held."""
    taken = [case for case in cases if case["accepted"]]
    if not taken:
        return f"All {len(cases)} forecasts are refused"
    held = sum(case["covered"] == 1 for case in taken)
    return f"{len(taken)} of {len(cases)} forecasts are accepted, {held} hold every target"


def numbers_of(name: str, part: Row) -> Mapping[str, Any]:
    """The numbers that the page needs of an input.

    Runs of other people are not among them, but for OLMo's two targets.
    """
    if name == "unseen":
        return {name: _of_unseen(part)}
    if name == "rates":
        return {name: _of_rates(part)}
    if name == "curves":
        return {name: part["tables"]["source left out"]}
    if name == "own":
        # Every number is in studies/own_ladder.json.
        return {name: _of_own_ladder(part)}
    cases = [_of_ladder(case) for case in part["cases"]]
    olmo = [without(case, "fit") for case in part["olmo"]]
    return {**part, "cases": cases, "olmo": olmo}


def _of_own_ladder(part: Row) -> list[Row]:
    """The forecasts of our own ladder that were measured, in the columns that the page shows."""
    rows = list[Row]()
    for forecast in part["forecasts"]:
        if "measured" in forecast:
            rows.append({key: forecast[key] for key in SHOWN_OF_OWN})
    return rows


def _of_unseen(part: Row) -> Row:
    """Count ladders that the prior was not learned from, and measure their accepted forecasts."""
    cases = part["cases"]
    accepted = [case for case in cases if case["accepted"]]
    numbers: dict[str, Any] = {
        "ladders": len({case["ladder"] for case in cases}),
        "groups": len({case["group"] for case in cases}),
    }
    numbers |= part["over ladders"]
    for what in ("error", "plain"):
        errors = [case[what] for case in accepted]
        numbers[what] = float(np.median(errors))
        numbers[f"worst {what}"] = float(max(errors))
    return numbers | {"cases": len(cases), "accepted": len(accepted)}


def _of_rates(part: Row) -> Row:
    """The numbers of a validation of rate laws that the page shows.

    They are cases with a goal, cases of mixtures of experts, and the other sources whose advised
    learning rate diverged.
    """
    shown = []
    diverged = []
    for case in part["cases"]:
        if case["goal"] or case["source"] == "steplaw_moe":
            shown.append(case)
        if case["excess"] > 1 and not case["source"].startswith("steplaw"):
            diverged.append(f"{case['source']}, {case['case']} ({case['excess']:.0f} % lost)")
    return {
        "cases": shown,
        "coverage": part["coverage"],
        "prices": part["prices"],
        "diverged": diverged,
    }


def _of_ladder(case: Row) -> Row:
    """A case without its runs, and its largest target in operations."""
    largest = max(row["flops"] for row in case["targets"])
    return without(case, "fit", "targets") | {"largest": largest}


def without(row: Row, *names: str) -> dict[str, Any]:
    """A row without some of its columns."""
    return {key: value for key, value in row.items() if key not in names}


def rounded(value: Any) -> Any:
    """Five digits of every number; None in place of those that are not finite."""
    return json.loads(
        json.dumps(value),
        parse_float=lambda text: float(f"{float(text):.5g}"),
        parse_constant=lambda text: None,
    )


def main() -> None:
    """Write the page, and what is given of pictures and numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("ladders", "unseen", "rates", "curves", "own"):
        parser.add_argument(f"--{name}", type=Path, help="JSON")
    paths = vars(parser.parse_args())
    given = {name: json.loads(path.read_text()) for name, path in paths.items() if path}
    numbers = json.loads(NUMBERS.read_text())
    for name, part in given.items():
        numbers |= rounded(numbers_of(name, part))
    if "ladders" in given:
        for name, picture in pictures(numbers, given["ladders"]).items():
            write_text(IMAGES / f"real-ladders-{name}.svg", picture)
    write_text(NUMBERS, json.dumps(numbers).replace("}, {", "},\n {") + "\n")
    write_text(PAGE, page(numbers))
    shown = f"![{titles_of(numbers)['olmo']}](docs/images/real-ladders-olmo.svg)"
    readme = README.read_text(encoding="utf-8")
    write_text(README, re.sub(r"!\[[^\]]*\]\(docs/images/real-ladders-olmo.svg\)", shown, readme))


if __name__ == "__main__":
    main()
