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
    power_in_words,
    undecided,
)
from nfd.paper.claims.limit import RATE
from nfd.paper.figures import figure4
from nfd.paper.figures.figure import Runs
from nfd.paper.figures.panels import difference, difference_in_words

# A gap within this share of the progress counts as none.
ALIGNED = 0.05
# A network that learns less than this, in nats, learns nothing to compare.
_LEARNT = 0.05
# In networks deeper than this the paper saw NaN.
_DEEP = 18
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
    of_shallow = figure4.progress(runs, shallow, evidence.classes)
    of_deep = figure4.progress(runs, deep, evidence.classes)
    progress = torch.stack([of_shallow, of_deep], 1)
    share = interval(lambda p: p[:, 1].mean() / p[:, 0].mean(), progress)
    if not known(share):
        return no_number(runs.where(feedback="shared"), "depth", "depth")
    reading = (
        f"Progress in nats: {mean(of_shallow)} at depth {shallow} and {mean(of_deep)} at depth "
        f"{deep}."
    )
    return below(share, 0.1, reading, "eta_c = 0.1 alone, as in the caption")


def _apart(evidence: Evidence, figure: str, name: str) -> Judged:
    """Judge whether the two kinds of training stay apart.

    The deepest network that learns and does not diverge decides.
    """
    runs = evidence.runs[figure][name]
    gaps: dict[int, Interval] = {}
    for L in _learning(runs, evidence.classes):
        gap = figure4.relative_gap(runs, L, evidence.classes)
        if known(gap):
            gaps[L] = gap
    if not gaps:
        return undecided("At every depth networks learn nothing or diverge.")
    *_, (depth, gap) = gaps.items()
    deeper = [L for L in sorted(runs.values("depth")) if depth < L]
    reading = f"Gap over progress: {_gaps_in_words(gaps)}."
    if deeper:
        reading += f" {_none_learns(deeper)}"
    verdict = inside(gap, -ALIGNED, ALIGNED).opposite
    tried = () if verdict == ClaimVerdict.HOLDS else ("every depth of the figure",)
    return Judged(gap, verdict, reading, tried)


def _none_learns(depths: Sequence[int]) -> str:
    return f"Of networks of depth {', '.join(map(str, depths))} some learn nothing or diverge."


def _learning(runs: Runs, classes: int) -> list[int]:
    """Return the depths whose standard networks all learn."""
    depths = sorted(runs.values("depth"))
    return [L for L in depths if mean(figure4.progress(runs, L, classes)).low > _LEARNT]


def _gaps_in_words(gaps: dict[int, Interval]) -> str:
    return "; ".join(f"{difference_in_words(gap)} at depth {L}" for L, gap in gaps.items())


def _without_gap(runs: Runs, classes: int, *depths: int) -> list[int]:
    """Return the depths that have no gap over progress.

    Their networks learn nothing, or some diverge.
    """
    learning = _learning(runs, classes)

    def has_gap(depth: int) -> bool:
        return depth in learning and known(figure4.relative_gap(runs, depth, classes))

    return [L for L in depths if not has_gap(L)]


def _mup_diverges(evidence: Evidence) -> Judged:
    runs = evidence.runs["4"]["mup"].where(feedback="shared")
    if max(runs.values("depth")) <= _DEEP:
        return undecided(f"No network here is deeper than {_DEEP}.")
    seeds = len(runs.values("seed"))
    counts: list[str] = []
    is_diverged: list[bool] = []
    depths = sorted(runs.values("depth"))
    for L in depths:
        of_depth = [record.status == "diverged" for record in runs.where(depth=L)]
        counts.append(f"{sum(of_depth)} of {seeds} at depth {L}")
        if L > _DEEP:
            is_diverged += of_depth
    share = mean(torch.tensor(is_diverged).double())
    reading = f"Diverged within {runs.values('steps')[0]} steps: {', '.join(counts)}."
    return above(share, 0.5, reading, f"depths {', '.join(map(str, depths))}")


def _mup_overfits(evidence: Evidence) -> Judged:
    """Judge whether the test loss rises with depth while the training loss does not.

    That can only be where samples are seen again.
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
    overfit: dict[int, Tensor] = {}
    for L, some in sorted(runs.by("depth").items()):
        test_loss = some.metric("test_loss")
        if bool(test_loss.isfinite().all()):
            overfit[L] = test_loss - some.metric("train_loss")
    if not overfit:
        return undecided("Networks diverged at every depth.")
    if len(overfit) == 1:
        return undecided("Networks diverged at every depth but one.")
    shallow, *_, deep = overfit
    change = difference(overfit[shallow], overfit[deep])
    passes = f"after {seen / images:.1f} passes"
    reading = (
        f"Test minus training loss changes by {change} nats from depth {shallow} to {deep} "
        f"{passes}."
    )
    return above(change, 0.0, reading, f"{passes} alone")


def _improves(evidence: Evidence, metric: str) -> Judged:
    runs = evidence.part("4", "depth-mup").where(feedback="shared")
    shallow, deep = _ends(runs)
    of_shallow = runs.where(depth=shallow).metric(metric)
    of_deep = runs.where(depth=deep).metric(metric)
    change = difference(of_shallow, of_deep)
    if not known(change):
        return no_number(runs, "depth", "depth")
    reading = f"From depth {shallow} to {deep} it changes by {change} nats."
    return below(change, 0.0, reading, "eta_c = 0.1 alone")


def _relative_gaps(runs: Runs, classes: int) -> dict[int, Interval]:
    """Return the gap over the progress at every depth."""
    return {L: figure4.relative_gap(runs, L, classes) for L in sorted(runs.values("depth"))}


def _aligns(evidence: Evidence) -> Judged:
    """Judge whether there is no gap, over the progress, at the largest depth."""
    runs = evidence.part("4", "depth-mup")
    gaps = _relative_gaps(runs, evidence.classes)
    _, deep = _ends(runs)
    missing = _without_gap(runs, evidence.classes, deep)
    if missing:
        return undecided(f"Gap over progress: {_gaps_in_words(gaps)}. {_none_learns(missing)}")
    reading = (
        f"Gap over progress: {_gaps_in_words(gaps)}; {figure4.gap(runs, deep)} nats at depth "
        f"{deep}."
    )
    return between(
        gaps[deep],
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
        _, deep = _ends(some)
        gap = figure4.relative_gap(some, deep, evidence.classes)
        tried.append(f"eta_c = {eta_c:g}: {difference_in_words(gap)} at depth {deep}")
    return tried


def _closes(evidence: Evidence) -> Judged:
    """Judge whether the gap, over the progress, shrinks with depth."""
    runs = evidence.part("4", "depth-mup")
    depths = _ends(runs)
    missing = _without_gap(runs, evidence.classes, *depths)
    if missing:
        return undecided(_none_learns(missing))
    pairs = torch.stack([figure4.late(runs, L) for L in depths], 1)
    power = interval(lambda p: _fall(depths, p.unbind(1), evidence), pairs)
    gaps = _relative_gaps(runs, evidence.classes)
    reading = f"Gap over progress: {_gaps_in_words(gaps)}; it goes as {power_in_words('L', power)}."
    return _shrinks(power, reading, *_other_rates(evidence))


def _fall(sizes: Sequence[int], pairs: Sequence[Tensor], evidence: Evidence) -> Tensor:
    """Return the exponent in a size of the gap over the progress.

    ``pairs`` are standard and decoupled losses [seeds, 2] at each of two sizes.
    """
    gaps = [figure4.gap_over_progress(pair, evidence.classes).abs() for pair in pairs]
    return log_slope(sizes, torch.stack(gaps))


def _shrinks(power: Interval, reading: str, *tried: str) -> Judged:
    """Judge by its exponent in a size whether a gap vanishes as it should, or shrinks at all.

    The paper has outputs within O(1/n + 1/L) in mean square, so a gap falls with the root, or
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
    """Judge whether wider muP networks rise less on the way.

    They are compared at the depths where the narrower ones are unstable.
    """
    narrow = evidence.part("4", "mup", "unsteady").where(feedback="shared")
    wide = evidence.part("7", "mup", "unsteady").where(feedback="shared")
    depths: list[int] = []
    of_narrow: list[Tensor] = []
    of_wide: list[Tensor] = []
    for L in sorted(narrow.values("depth")):
        first = narrow.where(depth=L).metric("highest_loss")
        is_unstable = float(first.median()) > 2 * math.log(evidence.classes)
        if not is_unstable:
            continue
        second = wide.where(depth=L).metric("highest_loss")
        # Where every network diverged there is nothing to compare.
        if bool(torch.cat([first, second]).isfinite().any()):
            depths.append(L)
            of_narrow.append(first)
            of_wide.append(second)
    if not depths:
        return undecided(
            "There is no depth at which half of the narrower networks rise above 2 log C and some "
            "network ends."
        )
    chance = interval(_lower, torch.stack(of_narrow, 1), torch.stack(of_wide, 1))
    n = narrow.values("width")[0]
    m = wide.values("width")[0]
    numbers = ", ".join(
        f"{float(first.median()):.3g} at width {n} and {float(second.median()):.3g} at {m} "
        f"(medians, depth {L})"
        for L, first, second in zip(depths, of_narrow, of_wide, strict=True)
    )
    reading = (
        f"A network of width {m} rises less than one of {n} with chance {chance.unsigned}: "
        f"{numbers}."
    )
    return above(
        chance,
        0.5,
        reading.replace("inf", "beyond any number"),
        f"depths {', '.join(map(str, depths))}",
    )


def _lower(narrow: Tensor, wide: Tensor) -> Tensor:
    """Return the chance that a number of ``wide`` is below one of ``narrow`` [R, depths].

    It is a mean over depths. Equal numbers, as of two networks that diverged, count half.
    """
    first = narrow[:, None]
    second = wide[None]
    return ((second < first).double() + (second == first).double() / 2).mean()


def _wide_aligns(evidence: Evidence) -> Judged:
    both = [evidence.part(figure, "depth-mup") for figure in ("4", "7")]
    narrow, wide = both
    deep = max(set(narrow.values("depth")) & set(wide.values("depth")))
    if any(_without_gap(runs, evidence.classes, deep) for runs in both):
        return undecided(_none_learns([deep]))
    gaps: dict[int, Interval] = {}
    for runs in both:
        width = runs.values("width")[0]
        gaps[width] = figure4.relative_gap(runs, deep, evidence.classes)
    widths = list(gaps)
    pairs = [figure4.late(runs, deep) for runs in both]
    power = interval(lambda *p: _fall(widths, p, evidence), *pairs)
    numbers = ", ".join(f"{gap} at width {n}" for n, gap in gaps.items())
    reading = (
        f"Gap over progress at depth {deep}: {numbers}; it goes as {power_in_words('n', power)}."
    )
    return _shrinks(power, reading, "infinite width: docs/two-limits.md")


def _wide_gains(evidence: Evidence) -> Judged:
    narrow = evidence.part("4", "depth-mup", "gains").where(feedback="shared")
    _, deep = _ends(narrow)
    narrow = narrow.where(depth=deep)
    wide = evidence.part("7", "depth-mup", "gains").where(feedback="shared", depth=deep)
    change = interval(
        lambda a, b: b.mean(0) - a.mean(0), narrow.metric("test_loss"), wide.metric("test_loss")
    )
    if not known(change):
        return no_number(Runs([*narrow, *wide]), "width", "width")
    reading = f"The test loss at depth {deep} changes by {change} nats."
    return below(change, 0.0, reading, "one width doubling")


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
