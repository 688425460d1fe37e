"""docs/coverage.md from a result of ``make coverage``."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Any

from benchmarks.coverage_case import WANTED, Row
from benchmarks.show import markdown

PAGE = Path(__file__).parents[1] / "docs" / "coverage.md"

TITLES = {
    "means": (
        "Means, differences, ratios, exponents, shares",
        "Simulated normal numbers (log-normal ones where a row says so), given to the functions that make intervals, "
        "bands and bars on all pages.",
    ),
    "slopes": (
        "Slopes of a check, simulated numbers",
        "Simulated meters fall as the root of the size; the scatter of their logarithms is a power of it. The slope is "
        "fitted with an intercept for every size of the other axis.",
    ),
    "networks": (
        "Slopes of a check, trained networks",
        "`nfd.check` trains two-layer residual networks for two steps. Each slope is fitted to three seeds; the truth "
        "is the mean of all slopes.",
    ),
    "study": (
        "The study",
        "Simulated outputs whose limit is known, given to the findings of `nfd paper study`. Their noise has 36 "
        "directions, as in trained networks (150 networks of width 64 on digits).",
    ),
    "claims": (
        "Distances, correlations and tails in claims",
        "Two groups of outputs whose means lie a known distance apart. With noise in 32 directions the entries err "
        "independently, with noise in one direction all err together.",
    ),
    "predict": ("Predictions", "Small networks through `nfd.predict`, against very wide ones."),
    "noise": (
        "Noise scales of gradients",
        "Gradients with normal or heavy-tailed noise, given to `nfd.meters.noise.GradientNoise`: micro-batches of 4 "
        "samples, 8 in a group. An interval without an upper limit counts by its lower one.",
    ),
    "laws": (
        "Laws of size, best rates, regret",
        "Simulated losses, given to the fits of `nfd scaling-law` and `nfd transfer`. Laws of size have 3 x 3 or 4 x 5 "
        "sizes and two, three or six seeds, of each size or shared by all, as a user has them; laws that were refused "
        "are not counted.",
    ),
}

# Kind -> why its intervals fall short in some cases.
WHY = {
    "mean of replicates": "A few numbers do not show how skewed their distribution is. Losses over seeds scatter by a "
    "few per cent and are hardly skewed; log-normal numbers with a standard deviation of 0.5 are an extreme case.",
    "distance of two groups": "If all entries err together and the distance is about twice the noise, an estimate that "
    "is too small by chance also has an error that is too small, since the jackknife error grows with the estimate. "
    "With noise in several directions, as in outputs on several samples, this averages out.",
    "distance of pairs": "As for the distance of two groups.",
    "exponent of a distance in width": "An exponent is fitted only where all distances differ from zero by their own "
    "intervals; with three replicates that selects draws with little scatter.",
    "exponent of a kurtosis": "The variance of a variance from 50 draws is itself hardly known; the claim uses 1,000 "
    "draws and more.",
}


def reason(row: Row) -> str:
    """Why a row may fall short, as it says itself or as is known of its kind; empty where nothing is known."""
    return str(row.get("why") or WHY.get(row["kind"], ""))


def page(result: dict[str, Any]) -> str:
    """The whole page."""
    parts = [_part(name, result) for name in TITLES if name in result["parts"]]
    parts += [_part(name, result) for name in result["parts"] if name not in TITLES]
    return "\n\n".join(["# Coverage", *_opening(result), *parts]) + "\n"


def _opening(result: dict[str, Any]) -> list[str]:
    rows = [row for rows in result["parts"].values() for row in rows]
    below = [row for row in rows if row["count"] and row["measured"] < WANTED]
    shorter = [row for row in rows if row["verdict"] == "falls short"]
    kinds = len({row["kind"] for row in rows})
    counts = result["repetitions"].values()
    dates = " to ".join(sorted({date[:10] for date in result["dates"].values()}))
    said = [
        "How far can you trust an interval of `nfd`? This page counts how often intervals contain the truth.",
        "*Made by `make coverage`; no number is written by hand.*",
        "A 95 % interval should contain the truth 19 times in 20, if its assumptions hold. Here every kind of interval "
        "that `nfd` prints is computed many times on cases whose truth is known.",
        f"{min(counts):,} to {max(counts):,} repetitions (said by each part) of {len(rows)} cases of {kinds} kinds, "
        f"seed {result['seed']}, on {dates}. {len(below)} cases lie below {WANTED}, {len(shorter)} of them by more "
        "than the noise of counting; the text under their table says why. "
        "Intervals that contain the truth more often than they promise are too wide, and safe.",
        'Intervals that are "unknown", because no data are left to estimate the noise, are left out. The column '
        "`intervals` counts the others.",
    ]
    return [_filled(text) for text in said]


def _part(name: str, result: dict[str, Any]) -> str:
    (title, before), rows = TITLES.get(name, (name.capitalize(), "")), result["parts"][name]
    before = f"{before} {result['repetitions'][name]:,} repetitions, on {result['dates'][name][:10]}.".lstrip()
    table = markdown([_shown(row) for row in rows])
    kinds = dict.fromkeys(row["kind"] for row in rows if row["verdict"] == "falls short")
    why = [f"**{kind[:1].upper()}{kind[1:]}.** {_why(kind, rows)}" for kind in kinds]
    return "\n\n".join([f"## {title}", _filled(before), table, *map(_filled, why)])


def _why(kind: str, rows: list[Row]) -> str:
    found = (reason(row) for row in rows if row["kind"] == kind and row["verdict"] == "falls short")
    return next(filter(None, found), "Falls short; it is not known why.")


def _shown(row: Row) -> Row:
    measured = f"{row['measured']:.3f} ± {row['error']:.3f}" if row["count"] else "-"
    return {
        "kind": row["kind"],
        "case": row["case"],
        "nominal": f"{row['nominal']:.2f}",
        "measured ± standard error": measured,
        "intervals": row["count"],
        f"{WANTED}": row["verdict"],
    }


def _filled(text: str) -> str:
    return fill(text, 120, break_long_words=False, break_on_hyphens=False)
