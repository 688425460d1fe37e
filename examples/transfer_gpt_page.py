"""The page of ``transfer_gpt.py``: its tables and sentences, from numbers that are kept; nothing is trained."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import wide_gpt
from page_parts import LIMITS, bracketed, table
from transfer_gpt_charts import chart
from transfer_gpt_words import CHECKS, LADDER, LARGER, LIMITS_OF_IT, PAGE, SAVED, SETTING

from nfd.core.estimates import Interval, mean
from nfd.core.files import write_text
from nfd.meters.verdict import is_fault, verdict_of

Found = Mapping[str, Any]

NAMES = {"adamw": "AdamW", "muon": "Muon"}
AXES = ("width", "depth")


class Results:
    """What is known so far, by name of the job.

    Args:
        known: by name. same: the rules that each ladder stands for. missing: names of jobs that are not done.
    """

    def __init__(self, known: Mapping[str, Found], same: Mapping[str, Sequence[str]], missing: Sequence[str]) -> None:
        self.known, self.same, self.missing = known, same, missing
        self.ladders = {name: found for name, found in known.items() if "verdict" in found}
        self.larger = {name: found for name, found in known.items() if "losses" in found}

    @property
    def settings(self) -> Found:
        """Of the first ladder."""
        return next(iter(self.ladders.values()))["settings"]

    def along(self, axis: str) -> dict[str, Found]:
        """Ladders of one axis."""
        return {name: found for name, found in self.ladders.items() if axis_of(found) == axis}

    def title(self, name: str) -> str:
        """Optimizer and rules of a ladder."""
        return f"{NAMES[self.ladders[name]['settings']['optimizer']]}, {', '.join(self.same[name])}"

    def ladder_of(self, job: Found) -> str:
        """The name of the ladder that a check or a larger network belongs to."""
        return next(name for name, found in self.ladders.items() if found["settings"] == job["settings"]["ladder"])


def axis_of(ladder: Found) -> str:
    """What grows along a ladder."""
    return "width" if len(ladder["settings"]["widths"]) > 1 else "depth"


def write(page: Path, out: Path, results: Results, option: str) -> None:
    """The page, and in ``out`` its charts; a page elsewhere has them in a folder of images beside it."""
    links: dict[str, list[str]] = {axis: [] for axis in AXES}
    for axis in AXES:
        for optimizer, title in NAMES.items():
            panels = {
                results.title(name): ([*found["curves"], *larger_curves(results, name)], found["best"])
                for name, found in results.along(axis).items()
                if found["settings"]["optimizer"] == optimizer
            }
            if panels:
                file = f"transformers-{axis}-{optimizer}.png"
                chart(axis, panels).save(out / file, scale_factor=2)
                link = file if page.parent == out else f"images/{file}"
                links[axis].append(f"![Loss against the learning rate along {axis} under {title}]({link})")
    write_text(page, text(results, links, option))


def larger_curves(results: Results, ladder: str) -> list[dict[str, Any]]:
    """The network beyond a ladder, as rows of its curves."""
    return [
        {"width": found["width"], "depth": found["depth"], "lr": rate} | mean(losses).limits
        for found in results.larger.values()
        if results.ladder_of(found) == ladder
        for rate, losses in zip(found["rates"], losses_of(found).unbind(1), strict=True)
    ]


def losses_of(larger: Found) -> torch.Tensor:
    """Seeds times rates."""
    return torch.tensor(larger["losses"], dtype=torch.float64)


# ---- tables ---------------------------------------------------------------------------------------------------


def best_rates(results: Results, axis: str) -> str:
    """A row for every ladder of an axis."""
    ladders = results.along(axis)
    sizes = list(dict.fromkeys(row[axis] for found in ladders.values() for row in found["best"]))
    head = ["optimizer, rules", *(f"best rate, {axis} {size}" for size in sizes), "drift, doublings per doubling"]
    head += ["regret (nats)", "verdict, regret over progress", "best loss of the largest", "gain of size (nats)"]
    rows = []
    for name, found in ladders.items():
        best = {row[axis]: bracketed(row, ".2g") for row in found["best"]}
        word = f"{found['verdict']}, {bracketed(found['share'], '+z.1f', 100)} %"
        moved = [bracketed(found["drift"], "+z.2f"), bracketed(found["regret"], "+z.3f"), word]
        small, large = least(found, 0), least(found, -1)
        gained = [bracketed(large, ".3f"), f"{small['value'] - large['value']:.3f}"]
        rows.append([results.title(name), *(best.get(size, "-") for size in sizes), *moved, *gained])
    return table(head, rows)


def least(ladder: Found, place: int) -> Found:
    """The row of the least loss of the network at one place of a ladder, 0 for its smallest."""
    width, depth = (ladder["best"][place][axis] for axis in AXES)
    own = [row for row in ladder["curves"] if (row["width"], row["depth"]) == (width, depth)]
    return min(own, key=lambda row: row["value"])


def larger(results: Results) -> str:
    """The networks beyond the ladders: the loss at the small network's rate, and at the rates beside it."""
    rows = []
    for found in results.larger.values():
        losses, moved = losses_of(found), found["settings"]["factors"].index(1.0)
        own = int(losses.mean(0).argmin())
        cells = [bracketed(mean(column).limits, ".3f") for column in losses.unbind(1)]
        cells[own] = f"**{cells[own]}**"
        rates = [f"{cell} at {rate:.2g}" for cell, rate in zip(cells, found["rates"], strict=True)]
        paid = "0" if own == moved else bracketed(mean(losses[:, moved] - losses[:, own]).limits, "+z.3f")
        paid = f"at least {paid}" if own in (0, len(rates) - 1) else paid
        rows.append([results.title(results.ladder_of(found)), *rates, paid])
    if not rows:
        return "Nothing was trained."
    about = next(iter(results.larger.values()))
    ladder = about["settings"]["ladder"]
    small = next(iter(results.ladders[results.ladder_of(about)]["flops"].values()))
    head = ["optimizer, rules", "half the rate", "the rate tuned small", "twice the rate", "lost by not tuning (nats)"]
    return LARGER.format(
        width=about["width"], depth=about["depth"], seeds=ladder["seeds"], small=ladder["widths"][0],
        ratio=about["flops"] / small,
        table=table(head, rows),
    )  # fmt: skip


def saved(results: Results) -> str:
    """What the rates and seeds of a ladder's smallest network cost, against the same at the largest."""
    rows = []
    for name, found in results.ladders.items():
        trained = [f"{row['width']}x{row['depth']}" for row in found["curves"]]
        sizes, seeds = list(found["flops"]), found["settings"]["seeds"]
        small, large = (seeds * trained.count(size) * found["flops"][size] for size in (sizes[0], sizes[-1]))
        rows.append([ladder_title(results, name), f"{small:.2g}", f"{large:.2g}", f"{large / small:.0f}"])
    return SAVED.format(table=table(["ladder", "smallest (FLOPs)", "largest (FLOPs)", "ratio"], rows))


def ladder_title(results: Results, name: str) -> str:
    """Optimizer, rules and sizes of a ladder."""
    found = results.ladders[name]
    axis = axis_of(found)
    sizes = found["settings"][f"{axis}s"]
    return f"{results.title(name)}, {axis} {sizes[0]} to {sizes[-1]}"


# ---- what the check saw ---------------------------------------------------------------------------------------


def checks(results: Results) -> str:
    """The verdict on transfer beside the faults of the check after every step, and every exponent."""
    own = {results.ladder_of(found): found for found in results.known.values() if "table" in found}
    if not own:
        return "No check was done."
    rows = []
    for name, check in own.items():
        found, faults = results.ladders[name], faults_of(check)
        seen = [words_of(own) for own in faults.values()]
        moved = [bracketed(found["drift"], "+z.2f"), found["verdict"]]
        rows.append(
            [
                ladder_title(results, name),
                *seen,
                *moved,
                foresight(found["drift"], {row["verdict"] for own in faults.values() for row in own}),
            ]
        )
    settings = next(iter(own.values()))["settings"]
    seen_at = [f"faults at step {step}" for step in settings["at"]]
    head = ["ladder", *seen_at, "drift of the best rate", "transfer", "did the check predict it?"]
    details = [f"### {ladder_title(results, name)}\n\n{exponents(check)}" for name, check in own.items()]
    return CHECKS.format(seeds=settings["seeds"], table=table(head, rows), details="\n\n".join(details))


def faults_of(check: Found) -> dict[int, list[Found]]:
    """The rows of a check that say that something scales wrongly, by step."""
    at = check["settings"]["at"]
    return {step: [row for row in check["table"] if row["step"] == step and is_fault(row)] for step in at}


def words_of(faults: Sequence[Found]) -> str:
    """``GROWS: `stream_update` +0.41``."""
    texts = []
    for word in dict.fromkeys(row["verdict"] for row in faults):
        own = ", ".join(f"`{row['meter']}` {row['slope']:+.2f}" for row in faults if row["verdict"] == word)
        texts.append(f"{word}: {own}")
    return "; ".join(texts) or "none"


def foresight(drift: Mapping[str, float | None], faults: Collection[str]) -> str:
    """Whether the verdicts of a check agree with a sweep whose best rate drifts or not."""
    value, low, high = (math.nan if drift[name] is None else drift[name] for name in LIMITS)
    moved = Interval(value, math.nan, low, high)
    if not math.isfinite(low) or not math.isfinite(high):
        return "the drift is not known"
    kind = "growth" if "GROWS" in faults else "a collapse"
    if not moved.resolved:
        return f"no: {kind} without a drift" if faults else "yes: no fault, and no significant drift"
    if faults:
        return f"yes: {kind}, and a drift"
    small = verdict_of(moved) in ("STABLE", "UNCERTAIN")
    return "no: a drift without a fault" + (", too small for a check to call it one" if small else "")


def exponents(check: Found) -> str:
    """A row for every meter, a column for every step."""
    steps, meters = check["settings"]["at"], list(dict.fromkeys(row["meter"] for row in check["table"]))
    cells = {(row["meter"], row["step"]): exponent(row) for row in check["table"]}
    rows = [[f"`{meter}`", *(cells.get((meter, step), "-") for step in steps)] for meter in meters]
    return table(["meter", *(f"step {step}" for step in steps)], rows)


def exponent(row: Found) -> str:
    """The slope with its interval, and the verdict where something is said."""
    slope = bracketed({"value": row["slope"], "low": row["low"], "high": row["high"]}, "+z.2f")
    return slope if row["verdict"] == "STABLE" else f"{slope} {row['verdict']}"


# ---- words ----------------------------------------------------------------------------------------------------


def text(results: Results, links: Mapping[str, Sequence[str]], option: str) -> str:
    """The page."""
    return PAGE.format(
        option=option, summary="\n".join(summary(results, name) for name in results.ladders),
        setting=setting(results), larger=larger(results), saved=saved(results), checks=checks(results),
        limits=limits(results),
        **{axis: about_axis(results, axis, links[axis]) for axis in AXES},
    )  # fmt: skip


def summary(results: Results, name: str) -> str:
    """One sentence about a ladder."""
    found = results.ladders[name]
    small, large = (bracketed(row, ".2g") for row in (found["best"][0], found["best"][-1]))
    return (
        f"- **{ladder_title(results, name)}**: {found['verdict']}. The best rate goes from {small} to {large}, a "
        f"drift of {bracketed(found['drift'], '+z.2f')} doublings per doubling. The smallest network's rate costs the "
        f"largest {bracketed(found['regret'], '+z.3f')} nats. At their best rates their losses are "
        f"{least(found, 0)['value']:.3f} and {least(found, -1)['value']:.3f}."
    )


def setting(results: Results) -> str:
    """Model, data and training."""
    first, ladders = results.settings, [found["settings"] for found in results.ladders.values()]
    sizes = sorted({(n, L) for own in ladders for n in own["widths"] for L in own["depths"]})
    parameters = [sum(p.numel() for p in wide_gpt.GPT(*size).parameters()) for size in sizes]
    tokens = wide_gpt.BATCH * wide_gpt.LENGTH
    merged = [ladder_title(results, name) for name in results.ladders if len(results.same[name]) > 1]
    grids = {NAMES[own["optimizer"]]: own["lr"] for own in ladders}
    rates = [f"{', '.join(f'{rate:g}' for rate in lr)} under {name}" for name, lr in grids.items()]
    words = SETTING.format(
        head=wide_gpt.HEAD, batch=wide_gpt.BATCH, length=wide_gpt.LENGTH, bytes=first["steps"] * tokens,
        least=min(parameters), most=max(parameters), steps=first["steps"], seeds=first["seeds"],
        rates="; ".join(rates), merged="; ".join(merged) or "there are none here",
    )  # fmt: skip
    return "\n\n".join(textwrap.fill(paragraph, 120, break_on_hyphens=False) for paragraph in words.split("\n\n"))


def about_axis(results: Results, axis: str, links: Sequence[str]) -> str:
    """Charts and the table of one axis."""
    if not links:
        return "Nothing was trained."
    first = next(iter(results.along(axis).values()))["settings"]
    held = f"depth {first['depths'][0]}" if axis == "width" else f"width {first['widths'][0]}"
    return LADDER.format(pictures="\n\n".join(links), held=held, table=best_rates(results, axis))


def limits(results: Results) -> str:
    """What was not run, and what short runs cannot say."""
    names = ", ".join(f"`{name}`" for name in results.missing)
    missing = f"Not run: {names}." if names else "Everything that the script lists was run."
    return LIMITS_OF_IT.format(missing=missing, steps=results.settings["steps"])
