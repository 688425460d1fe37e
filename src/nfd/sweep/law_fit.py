"""The fit of the law of size to a sweep.

Each size of the grid was trained from several seeds on the same batches. Weights: the variance of one
network is smoothed over the grid as ``s^2 n^p L^q``, the raw variances of a few seeds being too uncertain to weigh by;
a prior of 1/2 around -1/2 and 0 holds p and q where seeds are few. Networks of one seed number share random weights,
and their losses are correlated over the sizes (``nfd.ResNet`` on digits: 0.7 at equal width, 0.4 otherwise). Sizes are
then not independent, but each seed is a fit of its own, and the errors come from the spread of these fits, with
``seeds - 1`` degrees of freedom (``paired``). Where every network has a seed number of its own, sizes are independent:
the errors come from the spread of the seeds or from the smoothed variances, whichever is larger, with the degrees of
freedom of all sizes together (Satterthwaite), and are much smaller. The misfit is tested against the noise by an F
test: for independent sizes with 0.7 of the denominator's degrees of freedom, for what smoothing the variances costs,
which rejects a law that holds once in 100 at p = 0.01 (simulated); for paired seeds with Box's degrees of freedom,
``tr(C)^2 / tr(C^2)``, which does so up to 4 times in 100 when seeds are few.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from nfd.core.errors import InputError, check_count
from nfd.core.statistics import combined
from nfd.sweep.law import Cell, Law, Noise, spread

Losses = Mapping[tuple[int, int], Sequence[float]]
Array = NDArray[np.float64]
Sizes = dict[tuple[int, int], Array]

GOOD = 0.01  # the p-value below which the law does not hold
_FEWEST = 3  # widths, and depths, that can tell 1/n from another power
_CORRELATED = 3.0  # standard errors
_WORTH = 0.7  # of the degrees of freedom of a smoothed variance, by simulation with 2 to 10 seeds
_EXPONENTS = np.array([-0.5, 0.0])  # of the variance in n and L, and how sure we are before any data
_SURE = np.diag([0.0, 4.0, 4.0])
_MOST_STEPS, _SETTLED = 50, 1e-8  # of Fisher scoring
_SHARED = (
    "Losses with the same place in the lists of seeds are correlated ({:.2f}): if they come from one seed number, pass "
    "paired=True; the intervals are wrong otherwise."
)


def fit_law(losses: Losses, *, paired: bool = True, trim: bool = False) -> Law:
    """Fit the law to the final losses of a grid of sizes.

    Args:
        losses: (width, depth) -> losses of the seeds. At least 2 widths, 2 depths, 4 sizes and 2 seeds each.
        paired: whether the i-th losses of all sizes come from one seed number, and so from common random weights.
            False, where every network had a seed number of its own, makes the intervals much narrower.
        trim: whether to leave out the smallest widths or depths, down to three of each, until the law holds.

    Returns:
        A ``Law``, good or not. Sizes at which any run diverged are left out, and its note says so.

    Raises:
        ValueError, TypeError: on too few sizes or seeds, and on seeds that do not differ.
    """
    sizes, note = _checked(losses)
    counts = sorted({len(sample) for sample in sizes.values()})
    if paired and len(counts) > 1:
        raise InputError(f"paired=True needs as many seeds at every size; got {counts}. Pass paired=False.")
    law = _law(sizes, paired, note)
    if law.p_value >= GOOD:
        return law
    shorter = _trimmed(sizes, paired)
    if shorter is None:
        return replace(law, note=_join(law.note, "Leaving out the smallest sizes does not help."))
    kept = f"widths {_range(shorter.widths)}, depths {_range(shorter.depths)}"
    if not trim:
        return replace(law, note=_join(law.note, f"It holds for {kept} (p = {shorter.p_value:.2g}): pass trim=True."))
    dropped = f"Smaller sizes were left out until the law held: {kept}; on the whole grid p = {law.p_value:.1g}."
    return replace(shorter, note=_join(note, dropped))


# ---- what was given ------------------------------------------------------------------------------------------


def _checked(losses: Losses) -> tuple[Sizes, str]:
    sizes, lost = {}, []
    for (n, L), values in sorted(losses.items()):
        key = check_count("width", n), check_count("depth", L)
        sample = np.asarray(values, dtype=np.float64)
        if sample.ndim != 1 or len(sample) < 2:
            raise InputError(
                f"losses must hold 2 seeds or more for every size; got {sample.size} at width {n}, depth {L}."
            )
        if np.isfinite(sample).all():
            sizes[key] = sample
        else:
            lost.append(f"{n} x {L}")
    note = f"Left out, as runs diverged there: width x depth {', '.join(lost)}." if lost else ""
    _require(sizes, note)
    return sizes, note


def _require(sizes: Sizes, note: str) -> None:
    widths, depths = _axes(sizes)
    if len(widths) < 2 or len(depths) < 2 or len(sizes) < 4:
        raise InputError(
            f"losses must cover at least 2 widths, 2 depths and 4 sizes; got widths {list(widths)}, depths "
            f"{list(depths)}, {len(sizes)} sizes. {note}".rstrip()
        )
    if np.linalg.matrix_rank(_design(sizes) * [1, widths[0], depths[0]], tol=1e-6) < 3:
        raise InputError(
            f"losses must vary width and depth independently of each other; got sizes {list(sizes)}. Add sizes."
        )
    if all(np.ptp(sample) == 0 for sample in sizes.values()):
        raise InputError("losses of different seeds must differ; they are equal at every size. Train from other seeds.")


def _axes(sizes: Sizes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(sorted({n for n, _ in sizes})), tuple(sorted({L for _, L in sizes}))


def _design(sizes: Sizes) -> Array:
    return np.array([[1.0, 1 / n, 1 / L] for n, L in sizes])


# ---- the fit -------------------------------------------------------------------------------------------------


def _law(sizes: Sizes, paired: bool, note: str) -> Law:
    correlation, told = _correlation(sizes)
    noise = _noise(sizes, correlation if paired else 0.0)
    variance = np.array([noise.at(n, L)[0] for n, L in sizes])
    mean, count = np.array([s.mean() for s in sizes.values()]), np.array([len(s) for s in sizes.values()])
    X, root = _design(sizes), np.sqrt(count / variance)
    pull = np.linalg.pinv(X * root[:, None]) * root  # [3, sizes]; theta = pull @ mean
    theta = pull @ mean
    cells = tuple(
        Cell(n, L, tuple(s.tolist()), math.sqrt(v), float(f), tuple(p.tolist()))
        for ((n, L), s), v, f, p in zip(sizes.items(), variance, X @ theta, pull.T, strict=True)
    )
    ratio, p_value = _misfit(sizes, root, X, paired)
    floor, a, b = (combined(float(theta[i]), [spread(cells, np.eye(3)[i], paired)]) for i in range(3))
    widths, depths = _axes(sizes)
    reason = _reason(p_value, widths, depths)
    freedom = len(cells) - 3
    return Law(
        floor,
        a,
        b,
        chi2=ratio * freedom,
        freedom=freedom,
        p_value=p_value,
        widths=widths,
        depths=depths,
        seeds=int(count.min()),
        correlation=correlation,
        paired=paired,
        good=not reason,
        note=_join(reason, note, _SHARED.format(correlation) if told and not paired else ""),
        cells=cells,
        noise=noise,
    )


def _correlation(sizes: Sizes) -> tuple[float, bool]:
    """Mean correlation over pairs of sizes of losses with the same place, and whether it is told from zero."""
    if len({len(s) for s in sizes.values()}) > 1:
        return math.nan, False
    Y = np.stack([s - s.mean() for s in sizes.values() if np.ptp(s) > 0])
    unit, K, freedom = Y / np.linalg.norm(Y, axis=1, keepdims=True), len(Y), Y.shape[1] - 1
    if K < 2:
        return 0.0, False
    mean = float((unit.sum(0) ** 2).sum() - K) / (K * (K - 1))
    return mean, mean * math.sqrt(freedom * K * (K - 1) / 2) > _CORRELATED


def _noise(sizes: Sizes, correlation: float) -> Noise:
    """Most likely variances ``exp(Z c)``: each sample variance is ``var chi2_f / f``, with f = seeds - 1.

    Fisher scoring. The covariance counts correlated sizes for as many as they are worth, ``K / (1 + (K - 1) r^2)``.
    """
    Z = np.array([[1.0, math.log(n), math.log(L)] for n, L in sizes])
    centre = np.concatenate([[0.0], Z[:, 1:].mean(0)])
    Z = Z - centre
    seen = np.array([s.var(ddof=1) for s in sizes.values()])
    half = np.array([(len(s) - 1) / 2 for s in sizes.values()])
    c = np.array([math.log(half @ seen / half.sum()), *_EXPONENTS])
    prior, information = c.copy(), Z.T @ (Z * half[:, None]) + _SURE
    for _ in range(_MOST_STEPS):
        score = Z.T @ (half * (seen * np.exp(-Z @ c) - 1)) - _SURE @ (c - prior)
        step = np.clip(np.linalg.solve(information, score), -1, 1)
        c = c + step
        if np.abs(step).max() < _SETTLED:
            break
    worth = 1 + (len(sizes) - 1) * correlation**2
    back = np.eye(3)
    back[0, 1:] = -centre[1:]  # c . (z - centre), written for z itself
    covariance = back @ np.linalg.inv(information / worth) @ back.T
    return Noise(tuple((back @ c).tolist()), tuple(map(tuple, covariance.tolist())))


def _misfit(sizes: Sizes, root: Array, X: Array, paired: bool) -> tuple[float, float]:
    """Misfit over what noise makes it, and the chance of more."""
    Q, _ = np.linalg.qr(X * root[:, None])
    freedom = len(sizes) - 3
    if not paired:
        r = root * np.array([s.mean() for s in sizes.values()])
        ratio = float(np.square(r - Q @ (Q.T @ r)).sum()) / freedom
        return ratio, float(stats.f.sf(ratio, freedom, _WORTH * sum(len(s) - 1 for s in sizes.values())))
    each = root[:, None] * np.stack(list(sizes.values()))
    each = each - Q @ (Q.T @ each)  # [sizes, seeds]
    S = each.shape[1]
    centred = each - each.mean(1, keepdims=True)
    ratio = S * float(np.square(each.mean(1)).sum()) / (float(np.square(centred).sum()) / (S - 1))
    box = _box(centred, freedom)
    return ratio, float(stats.f.sf(ratio, box, (S - 1) * box))


def _box(centred: Array, most: int) -> float:
    """``tr(C)^2 / tr(C^2)`` of the covariance C behind centred samples ``[K, S]``, both without bias."""
    f = centred.shape[1] - 1
    if f < 2:
        return max(1.0, most / 2)
    gram = centred.T @ centred / f
    square, trace = float(np.square(gram).sum()), float(np.trace(gram))
    above, below = (f + 1) / f * (trace**2 - 2 * square / (f + 1)), square - trace**2 / f
    return float(np.clip(above / below, 1.0, most)) if below > 0 else float(most)


def _reason(p_value: float, widths: tuple[int, ...], depths: tuple[int, ...]) -> str:
    """Why the law may not be extrapolated; empty when it may."""
    if not p_value >= GOOD:
        return f"The law does not hold on this grid: the misfit is beyond the noise of the seeds (p = {p_value:.1g})."
    few = [f"{len(v)} {name}" for name, v in (("widths", widths), ("depths", depths)) if len(v) < _FEWEST]
    return f"{' and '.join(few)} cannot tell 1/n or 1/L from other powers; take {_FEWEST} or more." if few else ""


def _trimmed(sizes: Sizes, paired: bool) -> Law | None:
    """The law without the smallest widths or depths, one at a time, whichever helps more, until it holds."""
    while True:
        tried = []
        for axis, values in enumerate(_axes(sizes)):
            rest = {key: s for key, s in sizes.items() if key[axis] != values[0]}
            if all(len(v) >= _FEWEST for v in _axes(rest)):
                tried.append((_law(rest, paired, ""), rest))
        if not tried:
            return None
        law, sizes = max(tried, key=lambda pair: pair[0].p_value)
        if law.p_value >= GOOD:
            return law


def _range(values: tuple[int, ...]) -> str:
    return f"{values[0]}..{values[-1]}"


def _join(*sentences: str) -> str:
    return " ".join(filter(None, sentences))
