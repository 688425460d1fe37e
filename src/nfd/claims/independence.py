"""Claims on trained decoupled networks (Corollary 1, Figs. 4 and 7, section I.2)."""

from __future__ import annotations

import torch

from nfd.claims.claim import Claim, Judged
from nfd.claims.evidence import Evidence
from nfd.claims.rules import above, below, undecided
from nfd.core.statistics import Interval, interval, share
from nfd.figures import figure4
from nfd.figures.panels import difference
from nfd.figures.runs import Runs

_ALIGNED = 0.05  # of the progress: a gap below is none


def _ends(runs: Runs) -> tuple[int, int]:
    depths = sorted(runs.values("depth"))
    return depths[0], depths[-1]


def _vanishes(evidence: Evidence) -> Judged:
    runs = evidence.runs["4"]["dnn"]
    shallow, deep = _ends(runs)
    made = [figure4.progress(runs, L, evidence.classes) for L in (shallow, deep)]
    found = Interval(*(getattr(made[1], f) / made[0].value for f in ("value", "stderr", "low", "high")))
    return below(found, 0.1, f"Progress of {made[0]} nats at depth {shallow}, {made[1]} at depth {deep}.")


def _dnn_apart(evidence: Evidence) -> Judged:
    return _apart(evidence, "4", "dnn")


def _mup_apart(evidence: Evidence) -> Judged:
    return _apart(evidence, "4", "mup")


def _mup_apart_wide(evidence: Evidence) -> Judged:
    return _apart(evidence, "7", "mup")


def _apart(evidence: Evidence, figure: str, name: str) -> Judged:
    """Whether the two trainings stay apart, at the deepest network that learns and does not diverge."""
    runs = evidence.runs[figure][name]
    gaps = {}
    for depth in sorted(runs.values("depth")):
        progress = figure4.progress(runs, depth, evidence.classes)
        if progress.low > 0.05:
            gaps[depth] = figure4.relative_gap(runs, depth, evidence.classes)
    if not gaps:
        return undecided("No depth has networks that all learn.")
    depth, found = list(gaps.items())[-1]
    said = "; ".join(f"{g} at depth {L}" for L, g in gaps.items())
    return above(found, _ALIGNED, f"Gap over progress: {said}; deeper networks do not learn or diverge.")


def _mup_diverges(evidence: Evidence) -> Judged:
    runs = evidence.runs["4"]["mup"].where(feedback="shared")
    counts = {L: (sum(r.status == "diverged" for r in some), len(some)) for L, some in sorted(runs.by("depth").items())}
    deep = [pair for L, pair in counts.items() if L > 18]
    if not deep:
        return undecided("No network here is deeper than 18.")
    found = share(*map(sum, zip(*deep, strict=True)))
    shown = ", ".join(f"{bad} of {total} at depth {L}" for L, (bad, total) in counts.items())
    return above(found, 0.5, f"Diverged: {shown}.")


def _mup_overfits(evidence: Evidence) -> Judged:
    runs = evidence.runs["4"]["mup"].where(feedback="shared")
    apart = {
        L: some.metric("test_loss") - some.metric("train_loss")
        for L, some in sorted(runs.by("depth").items())
        if bool(some.metric("test_loss").isfinite().all())
    }
    (shallow, first), *_, (deep, last) = apart.items() if len(apart) > 1 else (*apart.items(), (0, torch.zeros(2)))
    if not deep:
        return undecided("Networks of all depths but one diverged.")
    found = difference(first, last)
    return above(
        found, 0.0, f"Test minus training loss rises by {found} nats from depth {shallow} to {deep}, after "
        f"{runs.values('steps')[0]} steps.",
    )  # fmt: skip


def _improves(evidence: Evidence, metric: str) -> Judged:
    runs = evidence.runs["4"]["depth-mup"].where(feedback="shared")
    shallow, deep = _ends(runs)
    found = difference(*(runs.where(depth=L).metric(metric) for L in (shallow, deep)))
    return below(found, 0.0, f"From depth {shallow} to {deep} it changes by {found} nats.")


def _improves_training(evidence: Evidence) -> Judged:
    return _improves(evidence, "train_loss")


def _improves_test(evidence: Evidence) -> Judged:
    return _improves(evidence, "test_loss")


def _aligns(evidence: Evidence) -> Judged:
    """Whether the gap, over the progress, goes with depth."""
    runs = evidence.runs["4"]["depth-mup"]
    found = {L: figure4.relative_gap(runs, L, evidence.classes) for L in sorted(runs.values("depth"))}
    said = "; ".join(f"{gap} at depth {L}" for L, gap in found.items())
    tried = []
    for eta_c, some in sorted(evidence.runs["claims"]["rates"].by("eta_c").items()):
        deep = figure4.relative_gap(some, _ends(some)[1], evidence.classes)
        tried.append(f"eta_c = {eta_c:g}: {deep} at depth {_ends(some)[1]}")
    return below(
        list(found.values())[-1], _ALIGNED, f"Gap over progress: {said}.", *tried,
        "squared loss and single samples, at infinite width: docs/two-limits.md",
        "the first step alone: claim corollary1-first-step",
    )  # fmt: skip


def _closes(evidence: Evidence) -> Judged:
    """Whether the gap falls with depth."""
    runs = evidence.runs["4"]["depth-mup"]
    shallow, deep = _ends(runs)
    pair = [torch.stack([figure4.losses(runs, L, f) for f in ("shared", "independent")], 1) for L in (shallow, deep)]

    def relative(losses: torch.Tensor) -> torch.Tensor:
        late = losses[:, :, losses.shape[2] // 2 :].mean(2)
        made = torch.tensor(float(evidence.classes)).log() - late[:, 0].mean()
        return (late[:, 1] - late[:, 0]).mean() / made

    found = interval(lambda a, b: relative(b) - relative(a), *pair)
    return below(found, 0.0, f"Gap over progress at depth {deep} minus at depth {shallow}: {found}.")


def _wide_steadies(evidence: Evidence) -> Judged:
    """Whether wider muP networks rise less on the way, at the deepest that does not diverge in either figure."""
    both = [evidence.runs[figure]["mup"].where(feedback="shared") for figure in ("4", "7")]
    finite = [L for L in sorted(both[0].values("depth")) if all(_finite(r.where(depth=L)) for r in both)]
    if not finite:
        return undecided("Networks diverged at every depth.")
    highest = [r.where(depth=finite[-1]).metric("highest_loss") for r in both]
    found = interval(lambda a, b: b.mean(0) - a.mean(0), *highest)
    widths = [r.values("width")[0] for r in both]
    return below(
        found, 0.0,
        f"The highest loss changes by {found} nats from width {widths[0]} to {widths[1]} at depth {finite[-1]}.",
    )  # fmt: skip


def _finite(runs: Runs) -> bool:
    return bool(runs.metric("highest_loss").isfinite().all())


def _wide_aligns(evidence: Evidence) -> Judged:
    narrow, wide = (evidence.runs[figure]["depth-mup"] for figure in ("4", "7"))
    _, deep = _ends(narrow)
    gaps = [figure4.relative_gap(runs, deep, evidence.classes) for runs in (narrow, wide)]
    error = (gaps[0].stderr ** 2 + gaps[1].stderr ** 2) ** 0.5
    value = gaps[1].value - gaps[0].value
    found = Interval(value, error, value - 2.5 * error, value + 2.5 * error)
    widths = [runs.values("width")[0] for runs in (narrow, wide)]
    return below(
        found, 0.0,
        f"Gap over progress at depth {deep}: {gaps[0]} at width {widths[0]}, {gaps[1]} at width {widths[1]}.",
    )  # fmt: skip


def _wide_gains(evidence: Evidence) -> Judged:
    runs = [evidence.runs[figure]["depth-mup"].where(feedback="shared") for figure in ("4", "7")]
    _, deep = _ends(runs[0])
    found = interval(lambda a, b: b.mean(0) - a.mean(0), *(r.where(depth=deep).metric("test_loss") for r in runs))
    return below(found, 0.0, f"The test loss at depth {deep} changes by {found} nats.")


CLAIMS = (
    Claim(
        "fig4-dnn-vanishes", "Fig. 4a; Section I.2", "Deep vanilla networks make little progress.",
        "Progress of the deepest network over that of the shallowest: holds below 0.1.", _vanishes,
    ),
    Claim(
        "fig4-dnn-apart", "Fig. 4a; Section I.2", "Vanilla networks train differently when decoupled.",
        f"Gap over progress at the deepest network that learns: holds above {_ALIGNED}.", _dnn_apart,
    ),
    Claim(
        "fig4-mup-apart", "Fig. 4b; Section I.2", "muP residual networks train differently when decoupled.",
        f"Gap over progress at the deepest network that learns: holds above {_ALIGNED}.", _mup_apart,
    ),
    Claim(
        "fig4-mup-diverges", "Section I.2", "muP residual networks deeper than 18 end in NaN.",
        "Share of networks deeper than 18 that diverge: holds above a half.", _mup_diverges,
    ),
    Claim(
        "fig4-mup-overfits", "Fig. 4b", "Deep muP residual networks overfit.",
        "Test minus training loss at the deepest network that does not diverge minus at the shallowest: holds above 0.",
        _mup_overfits,
    ),
    Claim(
        "fig4-depth-train", "Fig. 4c; Section I.2", "Under depth-muP depth improves the training loss.",
        "Training loss at the end, deepest minus shallowest, paired by seed: holds below 0.", _improves_training,
    ),
    Claim(
        "fig4-depth-test", "Fig. 4c; Section I.2", "Under depth-muP depth improves the test loss.",
        "Test loss at the end, deepest minus shallowest, paired by seed: holds below 0.", _improves_test,
    ),
    Claim(
        "corollary1-trained", "Corollary 1; Fig. 4c", "Deep depth-muP networks train alike when decoupled.",
        f"Decoupled minus standard training loss over the second half, over the progress, at the largest depth: holds "
        f"below {_ALIGNED}.", _aligns,
    ),
    Claim(
        "fig4-closes", "Fig. 4c; Section I.2", "Under depth-muP the two trainings come closer as depth grows.",
        "Gap over progress at the largest depth minus at the smallest: holds below 0.", _closes,
    ),
    Claim(
        "fig7-steadies", "Fig. 7b; Section I.2", "Width makes muP residual networks less unstable.",
        "Highest loss on the way at width 256 minus 128, at the deepest that does not diverge: holds below 0.",
        _wide_steadies,
    ),
    Claim(
        "fig7-mup-apart", "Fig. 7b; Section I.2", "Wider muP residual networks still train differently when decoupled.",
        f"As fig4-mup-apart, at width 256: holds above {_ALIGNED}.", _mup_apart_wide,
    ),
    Claim(
        "fig7-aligns", "Fig. 7c; Section I.2", "Width brings decoupled and standard depth-muP training closer.",
        "Gap over progress at the largest depth, width 256 minus 128: holds below 0.", _wide_aligns,
    ),
    Claim(
        "fig7-gains", "Fig. 7c; Section I.2", "Width improves depth-muP networks.",
        "Test loss at the largest depth, width 256 minus 128: holds below 0.", _wide_gains,
    ),
)  # fmt: skip
