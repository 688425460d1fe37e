"""Texts of docs/sweeps.md, from the stored numbers of version 0.2.0."""

from __future__ import annotations

from collections.abc import Sequence

from makers.pages.words import NUMBERS, bracketed, read_csv, scaled
from makers.tables import markdown
from nfd.core.tables import Row

# The networks of most rows.
USUAL = "CIFAR-10"
STORE = NUMBERS / "rates-in-depth.csv"


def read() -> list[Row]:
    """The stored rows."""
    return read_csv(STORE)


def texts(rows: Sequence[Row]) -> dict[str, str]:
    """The texts of the page."""
    by_ladder = dict[tuple[str, str, str], dict[str, Row]]()
    for row in rows:
        ladder = (row["networks"], row["depths"], row["rule"])
        by_ladder.setdefault(ladder, {})[row["quantity"]] = row
    table = list[Row]()
    for (networks, depths, rule), quantities in by_ladder.items():
        share = scaled(quantities["regret over progress"], 100)
        lost = bracketed(share, ".0f" if share["value"] >= 10 else ".1f", " %")
        drift = quantities["drift"]
        table.append(
            {
                "depths": depths if networks == USUAL else f"{depths}, {networks}",
                "rule": f"`{rule}`",
                "doublings per doubling of depth": bracketed(drift),
                "regret": lost,
            }
        )
    return {"measured": markdown(table)}
