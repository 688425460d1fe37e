"""``nfd.predict``: how an infinitely wide network trains, from networks of two widths."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from functools import partial
from typing import Any, get_args

from torch import Tensor

from nfd.core.errors import MOST, WIDEST, InputError, check_choice, check_count, check_depth, check_flag, check_real
from nfd.core.machine import undisturbed
from nfd.core.names import NetworkWeights
from nfd.core.statistics import rms, stderr
from nfd.families.family import Family, as_family
from nfd.limits.depth import Limit, at_depth, to_infinity
from nfd.limits.ensemble import Ensemble, Networks
from nfd.limits.loss import LimitLosses, limit_losses, replicate_losses
from nfd.limits.prediction import Prediction
from nfd.runs.sweep import Sweep
from nfd.scaling.entries import MakeModel
from nfd.scaling.laws import names_where
from nfd.scaling.rules import MAX_RATE, check_finite_depth, check_wide_limit
from nfd.training.task import Batch, Task, as_task

WIDTH, REPLICATES = 1024, 8
LEVER = 4  # how many times narrower the networks are that show the bias of width: fewer add noise, more bend 1/n
_RTOL = 0.01  # of the limit in depth, where none is asked for
_DOUBLINGS = 6  # of the depth, at most
_SHALLOWEST = 8  # where the base has depth 1
_MOST_REPLICATES = 1024
_PAIRS = 4  # of networks that show the bias of resolution


@undisturbed()
def predict(
    family: Family | MakeModel,
    task: Task | Iterable[Batch],
    lr: float | None = None,
    *,
    depth: float = math.inf,
    width: int | None = None,
    replicates: int = REPLICATES,
    weights: NetworkWeights | None = None,
    rtol: float | None = None,
    outputs: bool = False,
    sweep: Sweep | None = None,
) -> Prediction:
    """Predict how an infinitely wide network trains: its loss before every step, with 95 % intervals.

    Networks of two widths are trained on the task: R of width n, and R that are r times narrower. Their mean loss at
    width n is ``loss + a / n``, so the two widths give the loss of the infinitely wide network:

        loss = loss(n) - bias,    bias = (loss(n / r) - loss(n)) / (r - 1).

    Standard errors come from the spread over seeds. For infinite depth, the depth L is doubled from that of the base
    until the extrapolated loss ``2 loss_2L - loss_L`` changes by less than ``rtol``.

    Example::

        p = nfd.predict(nfd.resnets(64, 10), batches, lr=0.3, depth=4, width=64, replicates=2)
        print(p)
        p.loss, p.loss_low, p.loss_high  # of every step

    Args:
        family: an ``nfd.Family``, such as ``nfd.resnets(...)``, or a function of (width, depth).
        task: batches, one update for each, or an ``nfd.Task``.
        lr: of the base; for ``nfd.resnets`` the paper's ``eta_c``. By default the usual rate of the optimizer.
        depth: L, or ``math.inf`` under a rule with a limit in depth (``"depth-mup"``, ``"complete-p"``).
        width: n, a multiple of the base's width; by default 1,024 or the next multiple.
        replicates: R.
        weights: ``"structured"``, ``"deferred"`` or ``"dense"`` (``nfd.defer``); all networks have the same kind. By
            default structured under optimizers that act on whole matrices (SGD, Muon) and dense under others, which
            act on every stored entry.
        rtol: the relative standard error that you want; R is doubled until it is met. At infinite depth also how far
            the last doubling may move the losses, by default 0.01.
        outputs: also give the outputs of every step.
        sweep: where networks are trained and kept.

    Returns:
        A ``Prediction``. If training diverges, numbers are not-a-number from that step on, and ``note`` says so.
        Estimates are not clipped: where a loss is smaller than its error they may be negative.

    Raises:
        ValueError, TypeError: naming the argument; for rules and optimizers without a limit, and for networks that do
            not fit into memory.

    Source: Theorem 1 and Definition 1 for ``feedback="independent"``; docs/mathematics/extrapolation.md.
    """
    start, depth, task = time.perf_counter(), check_depth(depth), as_task(task)
    family = as_family(family, (64, 4 if depth == math.inf else int(depth)), sample=task.sample)
    weights = weights or ("structured" if family.law.equivariant else "dense")
    _check_limits(family, depth, check_choice("weights", weights, get_args(NetworkWeights)))
    rate = check_real("lr", family.law.check_rate if lr is None else lr, least=0.0, below=MAX_RATE)
    count = check_count("replicates", replicates, minimum=2, maximum=MOST)
    wanted = None if rtol is None else check_real("rtol", rtol, above=0.0)
    wide, narrow = _widths(family, width)
    family.check_sizes([family.base[0], 2 * family.base[0]], [family.base[1]])  # wide ones may not fit into memory
    depths = _depths(family)
    if depth == math.inf:
        family = family.along_one_path(depths[1])
    with sweep or Sweep() as opened:
        networks = Networks(family, task, rate, weights, opened, 0, check_flag("outputs", outputs))
        while True:
            wide_at = partial(_cached, {}, networks, wide, count)
            limit = (
                to_infinity(wide_at, depths, wanted or _RTOL) if depth == math.inf else at_depth(wide_at(int(depth)))
            )
            losses = limit.of(lambda L, at=wide_at: at(L).losses)  # type: ignore[misc]
            error = rms(stderr(losses)) / rms(losses.mean(0))
            if wanted is None or not error > wanted or count >= _MOST_REPLICATES:
                break
            count = min(2 * count, _MOST_REPLICATES)
        narrow_at = partial(_cached, {}, networks, narrow, count)
        exact_at = _exact(networks, narrow, count)
        made = _losses(limit, wide_at, narrow_at, exact_at, wide / narrow, bool(task.eval_batches))
        if outputs:
            made |= _outputs(limit, wide_at, narrow_at, wide / narrow)
        missed = wanted is not None and error > wanted
        noise = f"The standard error is {error:.2g} of the losses, above rtol={wanted:g}." if missed else ""
        return Prediction(
            **made,
            about=task.about,
            depths=limit.depths,
            extrapolated=limit.extrapolated,
            width=wide,
            narrow_width=narrow,
            replicates=count,
            converged=limit.converged,
            growth=limit.growth,
            weights=weights,
            seconds=time.perf_counter() - start,
            note=" ".join(filter(None, (*task.notes, limit.note, noise))),
        )


def _check_limits(family: Family, depth: float, weights: str) -> None:
    """ValueError where training under a rule and an optimizer has no limit that this library computes."""
    if not check_wide_limit(family.rule).has_depth_limit:
        check_finite_depth(family.rule, depth)
    if not family.law.equivariant and weights != "dense":
        raise InputError(
            f"optimizer={family.optimizer!r} acts on every entry of the hidden matrices by itself, which is exact for "
            f"stored weights alone. Use {names_where(lambda other: other.equivariant)}, or weights='dense'."
        )


def _widths(family: Family, width: int | None) -> tuple[int, int]:
    """The width that was asked for, and the narrower one."""
    unit = family.base[0]
    wide = -(-WIDTH // unit) * unit if width is None else check_count("width", width, maximum=WIDEST)
    narrow = max(unit, wide // LEVER // unit * unit)
    if narrow >= wide:
        raise InputError(
            f"width must be above that of the base, {unit}, whose networks show the bias of width; got {width}."
        )
    return wide, narrow


def _depths(family: Family) -> list[int]:
    first = family.base[1] if family.base[1] > 1 else _SHALLOWEST
    return [first * 2**k for k in range(_DOUBLINGS + 1)]


def _cached(kept: dict[int, Ensemble], networks: Networks, width: int, count: int, depth: int) -> Ensemble:
    if depth not in kept:
        kept[depth] = networks.train(width, depth, count)
    return kept[depth]


def _exact(networks: Networks, width: int, count: int) -> Any:
    """Ensembles without a resolution, where weights have one: they show its bias."""
    if networks.resolution is None:
        return None
    return lambda depth: networks.train(width, depth, min(count, _PAIRS), exact=True)


def _losses(limit: Limit, wide_at: Any, narrow_at: Any, exact_at: Any, ratio: float, judged: bool) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, field in (("loss", "losses"), ("eval_loss", "judged")):
        if field == "judged" and not judged:
            made |= dict.fromkeys((*LimitLosses.names(name), f"{name}_replicates"))
            continue

        def of(at: Any, field: str = field) -> Tensor:
            values: Tensor = limit.of(lambda L: getattr(at(L), field))
            return values

        coarse = limit.before(lambda L, field=field: getattr(wide_at(L), field))  # type: ignore[misc]
        exact = None if exact_at is None else of(exact_at)
        wide, narrow = of(wide_at), of(narrow_at)
        named = limit_losses(_same, wide, narrow, ratio, coarse, exact).named(name)
        single = replicate_losses(_same, wide, narrow, ratio)
        if field == "judged":
            named = {key: float(value) for key, value in named.items()}  # type: ignore[misc]
            single = single[:, 0]
        made |= {**named, f"{name}_replicates": single}
    return made


def _outputs(limit: Limit, wide_at: Any, narrow_at: Any, ratio: float) -> dict[str, Tensor]:
    """The mean outputs of the limit, and their standard error."""
    wide, narrow = (limit.of(lambda L, at=at: at(L).outputs) for at in (wide_at, narrow_at))  # type: ignore[misc]
    lever = 1 / (ratio - 1)
    error = ((1 + lever) * stderr(wide)).hypot(lever * stderr(narrow))
    return {"outputs": (1 + lever) * wide.mean(0) - lever * narrow.mean(0), "outputs_stderr": error}


def _same(losses: Tensor) -> Tensor:
    return losses
