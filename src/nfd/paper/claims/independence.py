"""Claims on trained decoupled networks (Corollary 1, Figs. 4 and 7, section I.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from nfd.core import UNKNOWN, Interval, interval, log_slope, mean
from nfd.paper.claims.claim import (
    FASTER,
    Claim,
    ClaimVerdict,
    Evidence,
    Judged,
    above,
    as_fast_as,
    below,
    between,
    conditional,
    inside,
    known,
    no_number,
    power_said,
    undecided,
)
from nfd.paper.claims.limit import RATE
from nfd.paper.figures import figure4
from nfd.paper.figures.figure import Runs
from nfd.paper.figures.panels import apart_said, difference

ALIGNED = 0.05  # of the progress: a gap within is none
_LEARNT = 0.05  # nats: a network that learns less learns nothing to compare
_DEEP = 18  # the depth from which on the paper saw NaN
_SHRINKS = (
    f"holds below {RATE + FASTER:g}, with a condition below 0, does not where the whole interval "
    "is above"
)


def _ends(runs: Runs) -> tuple[int, int]:
    depths = sorted(runs.values("depth"))
    return depths[0], depths[-1]


def _vanishes(evidence: Evidence) -> Judged:
    runs = evidence.runs["4"]["dnn"]
    shallow, deep = _ends(runs)
    if shallow not in _learning(runs, evidence.classes):
        return undecided(f"{_none_learns([shallow])} There is no progress to compare with.")
    made = torch.stack([figure4.made(runs, L, evidence.classes) for L in (shallow, deep)], 1)
    share = interval(lambda m: m[:, 1].mean() / m[:, 0].mean(), made)
    if not known(share):
        return no_number(runs.where(feedback="shared"), "depth", "depth")
    numbers = " and ".join(
        f"{mean(made[:, k])} at depth {L}" for k, L in enumerate((shallow, deep))
    )
    return below(
        share, 0.1, f"Progress in nats: {numbers}.", "eta_c = 0.1 alone, as in the caption"
    )


def _apart(evidence: Evidence, figure: str, name: str) -> Judged:
    """Whether the two trainings stay apart, at the deepest network that learns and does not
    diverge.
    """
    runs = evidence.runs[figure][name]
    gaps = {
        L: figure4.relative_gap(runs, L, evidence.classes)
        for L in _learning(runs, evidence.classes)
    }
    gaps = {L: gap for L, gap in gaps.items() if known(gap)}
    if not gaps:
        return undecided("At every depth networks learn nothing or diverge.")
    depth, gap = list(gaps.items())[-1]
    rest = [L for L in sorted(runs.values("depth")) if depth < L]
    reading = f"Gap over progress: {_gaps_in_words(gaps)}."
    if rest:
        reading += f" {_none_learns(rest)}"
    verdict = inside(gap, -ALIGNED, ALIGNED).opposite
    tried = () if verdict == ClaimVerdict.HOLDS else ("every depth of the figure",)
    return Judged(gap, verdict, reading, tried)


def _none_learns(depths: Sequence[int]) -> str:
    return f"Of networks of depth {', '.join(map(str, depths))} some learn nothing or diverge."


def _learning(runs: Runs, classes: int) -> list[int]:
    """The depths whose standard networks all learn."""
    made = {L: mean(figure4.made(runs, L, classes)) for L in sorted(runs.values("depth"))}
    return [L for L, progress in made.items() if progress.low > _LEARNT]


def _gaps_in_words(gaps: dict[int, Interval]) -> str:
    return "; ".join(f"{apart_said(gap)} at depth {L}" for L, gap in gaps.items())


def _compared(runs: Runs, classes: int, *depths: int) -> list[int]:
    """Those of these depths where there is no gap over progress: networks learn nothing, or some
    diverge.
    """
    learning = _learning(runs, classes)
    return [
        L for L in depths if L not in learning or not known(figure4.relative_gap(runs, L, classes))
    ]


def _mup_diverges(evidence: Evidence) -> Judged:
    runs = evidence.runs["4"]["mup"].where(feedback="shared")
    deep = [L for L in sorted(runs.values("depth")) if L > _DEEP]
    if not deep:
        return undecided(f"No network here is deeper than {_DEEP}.")
    ended = {
        L: sum(r.status == "diverged" for r in some) for L, some in sorted(runs.by("depth").items())
    }
    count = len(runs.values("seed"))
    numbers = ", ".join(f"{bad} of {count} at depth {L}" for L, bad in ended.items())
    diverged = torch.tensor(
        [r.status == "diverged" for r in runs if r.config["depth"] > _DEEP]
    ).double()
    reading = f"Diverged within {runs.values('steps')[0]} steps: {numbers}."
    return above(mean(diverged), 0.5, reading, f"depths {', '.join(map(str, ended))}")


def _mup_overfits(evidence: Evidence) -> Judged:
    """Whether the test loss rises with depth while the training loss does not; needs samples that
    are seen again.
    """
    runs = evidence.runs["4"]["mup"].where(feedback="shared")
    config = runs.configs[0]
    seen = config.steps * config.batch
    images = len(evidence.dataset.train)
    if seen <= images:
        reading = (
            f"These runs see {seen:,} of {images:,} images, each once: what is learnt cannot be "
            "overfitted."
        )
        return Judged(UNKNOWN, ClaimVerdict.UNTESTABLE, reading)
    depths = [
        L
        for L, some in sorted(runs.by("depth").items())
        if bool(some.metric("test_loss").isfinite().all())
    ]
    if len(depths) < 2:
        return undecided(f"Networks diverged at every depth{' but one' * len(depths)}.")
    apart = [
        runs.where(depth=L).metric("test_loss") - runs.where(depth=L).metric("train_loss")
        for L in depths
    ]
    change = difference(apart[0], apart[-1])
    passes = f"after {seen / images:.1f} passes"
    reading = (
        f"Test minus training loss changes by {change} nats from depth {depths[0]} to {depths[-1]} "
        f"{passes}."
    )
    return above(change, 0.0, reading, f"{passes} alone")


def _improves(evidence: Evidence, metric: str) -> Judged:
    runs = evidence.part("4", "depth-mup").where(feedback="shared")
    shallow, deep = _ends(runs)
    change = difference(*(runs.where(depth=L).metric(metric) for L in (shallow, deep)))
    if not known(change):
        return no_number(runs, "depth", "depth")
    return below(
        change,
        0.0,
        f"From depth {shallow} to {deep} it changes by {change} nats.",
        "eta_c = 0.1 alone",
    )


def _aligns(evidence: Evidence) -> Judged:
    """Whether the gap, over the progress, is none at the largest depth."""
    runs = evidence.part("4", "depth-mup")
    gaps = {
        L: figure4.relative_gap(runs, L, evidence.classes) for L in sorted(runs.values("depth"))
    }
    _, deep = _ends(runs)
    if missing := _compared(runs, evidence.classes, deep):
        return undecided(f"Gap over progress: {_gaps_in_words(gaps)}. {_none_learns(missing)}")
    gap = gaps[deep]
    reading = (
        f"Gap over progress: {_gaps_in_words(gaps)}; {figure4.gap(runs, deep)} nats at depth "
        f"{deep}."
    )
    return between(
        gap,
        -ALIGNED,
        ALIGNED,
        reading,
        *_other_rates(evidence),
        "squared loss, single samples: docs/two-limits.md",
        "the first step alone: corollary1-first-step",
    )


def _other_rates(evidence: Evidence) -> list[str]:
    tried = []
    for eta_c, some in sorted(evidence.runs["claims"]["rates"].by("eta_c").items()):
        deep = _ends(some)[1]
        gap = figure4.relative_gap(some, deep, evidence.classes)
        tried.append(f"eta_c = {eta_c:g}: {apart_said(gap)} at depth {deep}")
    return tried


def _closes(evidence: Evidence) -> Judged:
    """Whether the gap, over the progress, shrinks with depth."""
    runs = evidence.part("4", "depth-mup")
    depths = _ends(runs)
    if missing := _compared(runs, evidence.classes, *depths):
        return undecided(_none_learns(missing))
    pairs = torch.stack([figure4.late(runs, L) for L in depths], 1)
    power = interval(lambda p: _fall(depths, p.unbind(1), evidence), pairs)
    gaps = {
        L: figure4.relative_gap(runs, L, evidence.classes) for L in sorted(runs.values("depth"))
    }
    reading = f"Gap over progress: {_gaps_in_words(gaps)}; it goes as {power_said('L', power)}."
    return _shrinks(power, reading, *_other_rates(evidence))


def _fall(sizes: Sequence[int], pairs: Sequence[Tensor], evidence: Evidence) -> Tensor:
    """The exponent in a size of the gap over the progress, from its pairs of losses at two
    sizes.
    """
    return log_slope(
        sizes, torch.stack([figure4.gap_over_progress(p, evidence.classes).abs() for p in pairs])
    )


def _shrinks(power: Interval, reading: str, *tried: str) -> Judged:
    """Whether a gap goes to nothing as it should, or shrinks at all, by its exponent in a size.

    Outputs are said to be within O(1/n + 1/L) in mean square, so a gap falls with the root, or
    ``FASTER`` slower.
    """
    judged = as_fast_as(power, RATE, reading, *tried)
    if judged.verdict == ClaimVerdict.HOLDS or not power.high < 0:
        return judged
    return conditional(
        below(power, 0.0, reading, *tried),
        f"It shrinks, and is not seen to go as {RATE + FASTER:g}:",
    )


def _wide_steadies(evidence: Evidence) -> Judged:
    """Whether wider muP networks rise less on the way, at the depths where the narrower ones are
    unstable.
    """
    both = [
        evidence.part(figure, "mup", "unsteady").where(feedback="shared") for figure in ("4", "7")
    ]
    narrow, wide = (
        {L: some.metric("highest_loss") for L, some in sorted(runs.by("depth").items())}
        for runs in both
    )
    unstable = [
        L
        for L, highest in narrow.items()
        if float(highest.median()) > 2 * math.log(evidence.classes)
    ]
    told = [L for L in unstable if bool(torch.cat([narrow[L], wide[L]]).isfinite().any())]
    if not told:
        return undecided(
            "There is no depth at which half of the narrower networks rise above 2 log C and some "
            "network ends."
        )
    groups = [torch.stack([highest[L] for L in told], 1) for highest in (narrow, wide)]
    chance = interval(_lower, *groups)
    (n, some), (m, others) = (
        (runs.values("width")[0], highest) for runs, highest in zip(both, groups, strict=True)
    )
    numbers = ", ".join(
        f"{float(a.median()):.3g} at width {n} and {float(b.median()):.3g} at {m} (medians, depth "
        f"{L})"
        for L, a, b in zip(told, some.unbind(1), others.unbind(1), strict=True)
    )
    reading = (
        f"A network of width {m} rises less than one of {n} with chance {chance.unsigned}: "
        f"{numbers}."
    )
    return above(
        chance,
        0.5,
        reading.replace("inf", "beyond any number"),
        f"depths {', '.join(map(str, told))}",
    )


def _lower(narrow: Tensor, wide: Tensor) -> Tensor:
    """The chance that a number of the second group is below one of the first [R, depths], mean over
    depths; equal numbers, as of two networks that diverged, count half."""
    first = narrow[:, None]
    second = wide[None]
    return ((second < first).double() + (second == first).double() / 2).mean()


def _wide_aligns(evidence: Evidence) -> Judged:
    runs = [evidence.part(figure, "depth-mup") for figure in ("4", "7")]
    deep = max(set.intersection(*(set(some.values("depth")) for some in runs)))
    if any(_compared(r, evidence.classes, deep) for r in runs):
        return undecided(_none_learns([deep]))
    gaps = {r.values("width")[0]: figure4.relative_gap(r, deep, evidence.classes) for r in runs}
    power = interval(
        lambda *p: _fall(list(gaps), p, evidence), *(figure4.late(r, deep) for r in runs)
    )
    numbers = ", ".join(f"{gap} at width {n}" for n, gap in gaps.items())
    reading = f"Gap over progress at depth {deep}: {numbers}; it goes as {power_said('n', power)}."
    return _shrinks(power, reading, "infinite width: docs/two-limits.md")


def _wide_gains(evidence: Evidence) -> Judged:
    runs = [
        evidence.part(figure, "depth-mup", "gains").where(feedback="shared")
        for figure in ("4", "7")
    ]
    _, deep = _ends(runs[0])
    change = interval(
        lambda a, b: b.mean(0) - a.mean(0), *(r.where(depth=deep).metric("test_loss") for r in runs)
    )
    if not known(change):
        return no_number(
            Runs([r for some in runs for r in some.where(depth=deep)]), "width", "width"
        )
    return below(
        change,
        0.0,
        f"The test loss at depth {deep} changes by {change} nats.",
        "one width doubling",
    )


INDEPENDENCE = (
    Claim(
        "fig4-dnn-vanishes",
        "Fig. 4a; Section I.2",
        "Deep vanilla networks make little progress.",
        "Progress (log C minus the training loss of the second half) of the deepest over the "
        "shallowest: holds below 0.1.",
        _vanishes,
    ),
    Claim(
        "fig4-dnn-apart",
        "Fig. 4a; Section I.2",
        "Vanilla networks train differently when decoupled.",
        f"Gap over progress at the deepest network that learns: holds outside of +-{ALIGNED}.",
        partial(_apart, figure="4", name="dnn"),
    ),
    Claim(
        "fig4-mup-apart",
        "Fig. 4b; Section I.2",
        "muP residual networks train differently when decoupled.",
        f"Gap over progress at the deepest network that learns: holds outside of +-{ALIGNED}.",
        partial(_apart, figure="4", name="mup"),
    ),
    Claim(
        "fig4-mup-diverges",
        "Section I.2",
        "muP residual networks deeper than 18 end in NaN.",
        "Share of standard networks deeper than 18 that diverge: holds above a half.",
        _mup_diverges,
    ),
    Claim(
        "fig4-mup-overfits",
        "Fig. 4b",
        "Deep muP residual networks overfit.",
        "Test minus training loss at the deepest network that does not diverge minus at the "
        "shallowest, where images are seen more than once: holds above 0.",
        _mup_overfits,
    ),
    Claim(
        "fig4-depth-train",
        "Fig. 4c; Section I.2",
        "Under depth-muP depth improves the training loss.",
        "Training loss at the end, deepest minus shallowest, paired by seed: holds below 0.",
        partial(_improves, metric="train_loss"),
    ),
    Claim(
        "fig4-depth-test",
        "Fig. 4c; Section I.2",
        "Under depth-muP depth improves the test loss.",
        "Test loss at the end, deepest minus shallowest, paired by seed: holds below 0.",
        partial(_improves, metric="test_loss"),
    ),
    Claim(
        "corollary1-trained",
        "Corollary 1; Fig. 4c",
        "Deep depth-muP networks train alike when decoupled.",
        "Decoupled minus standard training loss over the second half, over the progress, at the "
        f"largest depth: holds within {ALIGNED} of 0.",
        _aligns,
    ),
    Claim(
        "fig4-closes",
        "Fig. 4c; Section I.2",
        "Under depth-muP the two trainings come closer as depth grows.",
        "Exponent in L of the gap over progress, from the smallest to the largest depth: "
        f"{_SHRINKS}.",
        _closes,
    ),
    Claim(
        "fig7-steadies",
        "Fig. 7b; Section I.2",
        "Width makes muP residual networks less unstable.",
        "Chance that the highest loss on the way is lower at width 256 than at 128, at depths "
        "where half of width 128 rise above 2 log C, twice the loss of a uniform guess: holds "
        "above 1/2.",
        _wide_steadies,
    ),
    Claim(
        "fig7-mup-apart",
        "Fig. 7b; Section I.2",
        "Wider muP residual networks still train differently when decoupled.",
        f"As fig4-mup-apart, at width 256: holds outside of +-{ALIGNED}.",
        partial(_apart, figure="7", name="mup"),
    ),
    Claim(
        "fig7-aligns",
        "Fig. 7c; Section I.2",
        "Width brings decoupled and standard depth-muP training closer.",
        "Exponent in n of the gap over progress at the largest depth of both widths, 128 and 256: "
        f"{_SHRINKS}.",
        _wide_aligns,
    ),
    Claim(
        "fig7-gains",
        "Fig. 7c; Section I.2",
        "Width improves depth-muP networks.",
        "Test loss at the largest depth, width 256 minus 128: holds below 0.",
        _wide_gains,
    ),
)
