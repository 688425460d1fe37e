"""docs/real-ladders.md: forecasts and rates on other people's runs, ``python -m benchmarks.real_ladders_page``.

Without options the page is made again from docs/real-ladders.json. ``--ladders`` and ``--rates`` (from ``--out`` of
``benchmarks.ladders`` and ``benchmarks.rate_law``), ``--curves`` and ``--own`` replace their parts of it. Pictures need
``--ladders``, whose runs are other people's and are not kept.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from benchmarks import real_ladders_charts as charts
from benchmarks.ladders import BINS, SHOWN, SOURCES
from benchmarks.real_ladders_charts import Row, signed
from benchmarks.show import markdown
from nfd.core.files import write_text

DOCS = Path(__file__).parents[1] / "docs"
PAGE, NUMBERS, IMAGES = DOCS / "real-ladders.md", DOCS / "real-ladders.json", DOCS / "images"
README = DOCS.parent / "README.md"
DRAWN = 30  # times the compute: the cut of a ladder that is drawn is the nearest to it
# What was asked of accepted forecasts, by factor: width and median error in percent, share of cases.
ASKED = {10: (4.5, 0.5, 0.60), 30: (6.0, 0.6, 0.50), 100: (8.0, 1.0, 0.20)}
COVERED, FURTHEST, MOST = 0.93, 2.0, 0.9  # asked: over ladders; percent; of targets in as many ladders
# OLMo's authors on 13B-5T: allenai/OLMo-ladder at 67a3f44, src/scripts/paper/figures/step1_c4_main.csv
AUTHORS = 100 * (2.3443873053175697 / 2.437876033782959 - 1)
OLMO = ("7B-4T", "13B-5T")
FREE = ("epfl", "fantastic", "gadre", "gemstones", "olmo", "porian")  # sources under MIT or Apache-2.0

# A ladder, or the beginning of its name -> why its forecasts fail, where they do.
WHY: dict[str, str] = {}

TEXT = """# Real ladders

How far can you trust a forecast of a run that is ten or a hundred times larger? Here `nfd` forecasts {ladders}
published ladders of training runs, up to {largest} operations, from their small runs alone.

*Made by `python -m benchmarks.real_ladders_page`; no number is written by hand. Bars and ± are 95 % intervals.*

## The answer

{answer}

![{olmo}](images/real-ladders-olmo.svg)

*Above: OLMo's fitted runs (grey), its two large runs (diamonds), and their forecasts from all runs. Below: how far
forecasts from ever fewer runs are off, and the one that the authors published (cross).*

## The loss of a larger run

Every group of ladders that share authors or data is left out in turn: prior, form and calibration come from the others.
Targets are the runs that others held out, or the largest ones. Cut off further and further below them, the ladders are
{cases} cases. A forecast is refused where {reasons}.

{goals}

![{error}](images/real-ladders-error.svg) ![{plain}](images/real-ladders-plain.svg)

*One mark per case, hollow where it was refused; lines are medians of accepted ones. The usual fit is the additive
law, `E + A/N^a + B/D^b`, by Huber's loss. It has no honest interval, and was nearer in {better} of the ladders below.*

![Half of the ladders, {accepted} of {ladders} accepted](images/real-ladders-first.svg) {second}

*Loss against operations, from the cut nearest to {drawn} times less compute. Titles: error ± half interval; "out":
targets outside. Refused forecasts are grey and broken.*

## Where it fails

{fails}
{parts}
## Sources

{sources}

Rows without a licence ({unfree}) must not be redistributed; no rows of any source are stored here, fitted numbers are
(`docs/real-ladders.json`). With a folder of CSV:

```bash
python -m benchmarks.ladders --data DIR --out ladders.json
python -m benchmarks.rate_law --data DIR --out rates.json
python -m benchmarks.real_ladders_page --ladders ladders.json --rates rates.json
```
"""


# ---- words


def listed(values: Sequence[str]) -> str:
    """With commas and "and"."""
    return " and ".join(filter(None, [", ".join(values[:-1]), *values[-1:]])) or "none"


def share(part: float) -> str:
    """In percent."""
    return f"{100 * part:.0f} %"


def medians(known: Row, name: str) -> dict[int, float]:
    """Of accepted cases, in percent, by factor."""
    return {row["factor"]: row[name] for row in known["summary"] if row["factor"] in ASKED and row["accepted"]}


def factors(values: Mapping[int, float]) -> str:
    """Those of some medians."""
    return listed([str(factor) for factor in values])


def said(values: Mapping[int, float]) -> str:
    """Some medians."""
    return f"{listed([f'{value:.1f}' for value in values.values()])} %"


def olmo_said(known: Row, cut: int) -> str:
    """Error and half width of the larger target, from one of the cuts that are shown."""
    own = known["olmo"][cut]["targets"][-1]
    half = 50 * (own["high"] - own["low"]) / own["loss"]
    return f"{signed(100 * (own['forecast'] / own['loss'] - 1))} ± {half:.1f} %"


def titles_of(known: Row) -> dict[str, str]:
    """The findings of the charts."""
    error, plain = medians(known, "error"), medians(known, "plain")
    return {
        "olmo": f"OLMo's {OLMO[-1]}, forecast from {SHOWN[0]} times less compute: {olmo_said(known, 0)}; from "
        f"{SHOWN[-1]:,} times less: {olmo_said(known, -1)}",
        "error": f"At {factors(error)} times the compute accepted forecasts are off by {said(error)}",
        "plain": f"The usual fit of the same runs is off by {said(plain)}",
    }


# ---- parts of the page


def drawn_of(cases: Sequence[Row]) -> list[Row]:
    """One case per ladder, accepted ones first: the cut whose factor is nearest to the one that is drawn."""
    nearest = dict[str, Row]()
    for case in sorted(cases, key=lambda case: abs(math.log(case["factor"] / DRAWN))):
        nearest.setdefault(case["ladder"], case)
    return sorted(nearest.values(), key=lambda case: (not case["accepted"], case["ladder"]))


def answer(known: Row) -> list[str]:
    """What matters, in a few sentences."""
    error, over, cases = medians(known, "error"), known["over ladders"], known["cases"]
    return [
        f"- **Loss.** At {factors(error)} times the compute, accepted forecasts are off by "
        f"{said(error)} in the median, the usual fit of the same cases by {said(medians(known, 'plain'))}. "
        f"{sum(case['accepted'] for case in cases)} of {len(cases)} cases are accepted. Intervals hold "
        f"{share(over['coverage'])} of the targets of a ladder (asked: {share(COVERED)}), and 9 of 10 targets in "
        f"{share(over['at least .9'])} of ladders (asked: {share(MOST)}).",
        f"- **OLMo's {OLMO[-1]}** from {SHOWN[0]} times less compute: {olmo_said(known, 0)}. From {SHOWN[1]} times "
        f"less, as its authors had, {olmo_said(known, 1)}; theirs was {signed(AUTHORS)} %.",
        *(part(known[name])[0] for name, part in PARTS.items() if name in known),
    ]


def goals(known: Row) -> str:
    """Accepted forecasts by factor, beside what was asked."""
    rows = []
    for row in known["summary"]:
        if row["factor"] in ASKED:
            width, error, most = ASKED[row["factor"]]
            rows.append({
                "times the compute": row["factor"], "cases": row["cases"],
                "accepted (asked)": f"{share(row['accepted'])} ({share(most)})",
                "width, % (asked)": f"{row['width']:.1f} ({width:g})",
                "error, % (asked)": f"{row['error']:.2f} ({error:g})", "usual fit, %": f"{row['plain']:.2f}",
                "largest error, % (asked)": f"{row['worst']:.1f} ({FURTHEST:g})",
            })  # fmt: skip
    return markdown(rows)


def fails(known: Row) -> list[str]:
    """Ladders whose targets lie outside too often, or whose accepted forecasts are too far off, and why."""
    lines, cases = [], known["cases"]
    for ladder in sorted({case["ladder"] for case in cases}):
        own = [case for case in cases if case["ladder"] == ladder]
        covered = float(np.mean([case["covered"] for case in own]))
        off = max((case["error"] for case in own if case["accepted"]), default=0.0)
        if covered < MOST or off > FURTHEST:
            why = next((text for name, text in WHY.items() if ladder.startswith(name)), "It is not known why.")
            also = f", an accepted forecast {off:.1f} % off" if off > FURTHEST else ""
            lines.append(f"- **{ladder}**: {share(covered)} of targets inside{also}. {why}")
    never = sorted({case["ladder"] for case in cases} - {case["ladder"] for case in cases if case["accepted"]})
    return [*lines, "", f"No case is accepted of {listed(never)}."]


RATES = """## The best rate

`nfd.fit_transfer` on rate sweeps, with priors from other sources. Below, part of StepLaw's is held out; excess loss is
that of the advised rate.

{table}

Intervals of best rates hold {share} of the cells over {sources} sources, less than asked in {below}. "Powers" are the
rules of 0.2.0. [The recipe](mathematics/recipe.md#the-best-rate-over-size-length-and-batch) compares exponents with
published ones."""


def rates(found: Row) -> tuple[str, str]:
    """The rates of runs that were held out: an answer, and a part of the page."""
    judged, coverage, rows = found["cases"], found["coverage"], []
    for case in judged:
        rows.append({
            "held out": ("MoE, " if "moe" in case["source"] else "") + case["case"], "cells": case["cells"],
            "excess loss, % (asked)": f"{case['excess']:.3f} ({case['goal']:g})",
            "nearest cell's rate, %": f"{case['same']:.2f}", "powers, %": f"{case['plan']:.2f}",
            "error, doublings": f"{case['error']:.2f} ± {case['half']:.2f}", "inside": share(case["covered"]),
        })  # fmt: skip
    met = sum(case["excess"] <= case["goal"] for case in judged)
    better = sum(case["excess"] < min(case["same"], case["plan"]) for case in judged)
    below = [f"{name} ({share(value)})" for name, value in coverage.items() if value < COVERED]
    over = share(float(np.mean([*coverage.values()])))
    return (
        f"- **Rate.** {met} of {len(judged)} goals for what an advised rate costs are met. It costs less than the "
        f"nearest measured rate and than the powers of 0.2.0 in {better} of {len(judged)}.",
        RATES.format(table=markdown(rows), sources=len(coverage), share=over, below=listed(below)),
    )


PARTS: dict[str, Callable[[Any], tuple[str, str]]] = {"rates": rates}


def sources(known: Row) -> list[str]:
    """Who published the ladders, with links."""
    found = dict[str, dict[str, None]]()
    for ladder in sorted({case["ladder"] for case in known["cases"]}):
        prefix = next(prefix for prefix in SOURCES if ladder.startswith(prefix))
        found.setdefault(SOURCES[prefix].replace("arXiv ", ""), {})[prefix] = None
    return [
        f"- {', '.join(names)}: "
        + re.sub(r"^([\w.-]+/[\w.-]+)", r"[\1](https://github.com/\1)",
                 re.sub(r"(\d{4}\.\d{5})", r"[\1](https://arxiv.org/abs/\1)", text))
        for text, names in found.items()
    ]  # fmt: skip


def page(known: Row) -> str:
    """The whole page."""
    cases, titles = known["cases"], titles_of(known)
    drawn = drawn_of(cases)
    unfree = sorted({p for case in cases for p in SOURCES if case["ladder"].startswith(p) and p not in FREE})
    text = TEXT.format(
        ladders=len(drawn), largest=f"{max(case['largest'] for case in cases):.0e}", cases=len(cases), drawn=DRAWN,
        answer="\n".join(answer(known)), goals=goals(known),
        fails="\n".join(fails(known)), sources="\n".join(sources(known)),
        parts="".join(f"\n{part(known[name])[1]}\n" for name, part in PARTS.items() if name in known),
        unfree=listed(unfree), better=sum(case["plain"] < case["error"] for case in drawn),
        reasons=listed(sorted({case["why"] for case in cases if case["why"]})),
        accepted=sum(case["accepted"] for case in drawn),
        second="![The other half, refused ones last](images/real-ladders-second.svg)",
        **titles,
    )  # fmt: skip
    words, fence, code = text.partition("```bash")
    lines = r"(?m)^(?![#|!]).+(?:\n(?![-#|!]).+)*"  # a paragraph, or an entry of a list
    return re.sub(lines, lambda match: _filled(match[0]), words) + fence + code


def _filled(text: str) -> str:
    indent = "  " * text.startswith("- ")
    return fill(text, 120, break_long_words=False, break_on_hyphens=False, subsequent_indent=indent)


# ---- pictures and numbers


def pictures(known: Row, ladders: Row) -> dict[str, str]:
    """SVG by name."""
    titles, drawn = titles_of(known), drawn_of(ladders["cases"])
    half = -(-len(drawn) // 2)
    names = {target["flops"]: name for target, name in zip(ladders["olmo"][0]["targets"], OLMO, strict=True)}
    theirs = {"names": names, "label": f"{OLMO[-1]}, authors, {SHOWN[1]}x less", "error": AUTHORS}
    found = {"olmo": charts.svg(charts.olmo(ladders["olmo"], theirs, titles["olmo"]), 1.4)}
    for name in ("error", "plain"):
        steps = {BINS[factor]: value for factor, value in medians(known, name).items()}
        found[name] = charts.svg(charts.against_factor(ladders["cases"], name, titles[name], steps))
    for name, some in (("first", drawn[:half]), ("second", drawn[half:])):
        found[name] = charts.svg(charts.ladders(some))
    return found


def kept(name: str, part: Row) -> dict[str, Any]:
    """The numbers that the page needs of an input; of the runs of others only OLMo's two targets."""
    if name == "rates":
        return {name: {**part, "cases": [case for case in part["cases"] if case["goal"] is not None]}}
    if name != "ladders":
        return {name: part}
    cases = [
        {key: value for key, value in case.items() if key not in ("fit", "targets")}
        | {"largest": max(row["flops"] for row in case["targets"])}
        for case in part["cases"]
    ]
    olmo = [{key: value for key, value in case.items() if key != "fit"} for case in part["olmo"]]
    return {**part, "cases": cases, "olmo": olmo}


def rounded(value: Any) -> Any:
    """Five digits of every number."""
    if isinstance(value, dict):
        return {key: rounded(own) for key, own in value.items()}
    if isinstance(value, list):
        return [rounded(own) for own in value]
    return float(f"{value:.5g}") if isinstance(value, float) and math.isfinite(value) else value


def main() -> None:
    """Write the page, and what is given of pictures and numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("ladders", "rates", "curves", "own"):
        parser.add_argument(f"--{name}", type=Path, help="JSON")
    given = {name: json.loads(path.read_text()) for name, path in vars(parser.parse_args()).items() if path}
    known = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else {}
    for name, part in given.items():
        known |= rounded(kept(name, part))
    for name, picture in pictures(known, given["ladders"]).items() if "ladders" in given else ():
        write_text(IMAGES / f"real-ladders-{name}.svg", picture)
    write_text(NUMBERS, json.dumps(known).replace("}, {", "},\n {") + "\n")
    write_text(PAGE, page(known))
    shown = f"![{titles_of(known)['olmo']}](docs/images/real-ladders-olmo.svg)"
    readme = README.read_text(encoding="utf-8")
    write_text(README, re.sub(r"!\[[^\]]*\]\(docs/images/real-ladders-olmo.svg\)", shown, readme))


if __name__ == "__main__":
    main()
