"""From networks of two widths, sampled at one depth or several, to the losses of a prediction."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from torch import Tensor

from nfd.core.errors import MOST, WIDEST, InputError, InputTypeError, check_count, check_real
from nfd.core.machine import bytes_of
from nfd.core.names import NetworkWeights
from nfd.core.statistics import rms, stderr
from nfd.limits.depth import Limit, at_depth, exact, narrower, to_infinity
from nfd.limits.loss import LimitLosses, Loss, limit_losses, replicate_losses
from nfd.limits.networks import Networks
from nfd.limits.sampler import Sampler, is_hidden

_FINEST = 1e-9  # no number of replicates that can be run reaches a smaller error


def sampling(
    width: int | str, replicates: int | None, rtol: float, memory: str | int, resolution: float | str | None
) -> Callable[[Networks], Sampler]:
    """What samples any networks at the sizes that the arguments of a prediction ask for.

    Raises:
        ValueError, TypeError: naming the argument.
    """
    return partial(
        Sampler,
        width=_width(width),
        replicates=None if replicates is None else check_count("replicates", replicates, minimum=2, maximum=MOST),
        rtol=check_real("rtol", rtol, least=_FINEST),
        memory=bytes_of(memory),
        resolution=_resolution(resolution),
    )


def resolved(kinds: Sequence[NetworkWeights], weights: str, resolution: float | str | None) -> list[NetworkWeights]:
    """The kinds that are left where a resolution is given: a number asks for structured weights, "auto" for no kind."""
    if resolution is not None and weights not in ("auto", "structured"):
        raise InputError(f"resolution is for weights='structured'; got {resolution!r} for {weights!r}. Drop one.")
    return [kind for kind in kinds if resolution in (None, "auto") or kind == "structured"]


def limit_at(sampler: Sampler, depth: float) -> tuple[Limit, tuple[Tensor, Tensor] | None]:
    """The limit at a depth, or at infinite depth, and what narrower networks gave, made in the same way."""
    networks = sampler.networks
    if depth == math.inf:
        sampler.settle(networks.depths[0], networks.depths[2], networks.amplification)
        limit = to_infinity(sampler)
    else:
        sampler.settle(int(depth), int(depth), 1.0)
        limit = at_depth(sampler, int(depth))
    return limit, narrower(sampler, limit)


def losses_of(
    about: str,
    sampler: Sampler,
    limit: Limit,
    narrow: tuple[Tensor, Tensor] | None,
    loss: Loss,
    eval_loss: Loss | None,
    seconds: float,
) -> dict[str, Any]:
    """The fields of a ``LossPrediction``.

    Args:
        about: the training, in words.
        loss, eval_loss: from outputs ``[..., *shape]``, and evaluation outputs, to losses ``[..., K]`` and
            ``[..., 1]``.
    """
    outputs, evaluations = narrow or (None, None)
    ratio = sampler.width / sampler.narrow_width
    whole, whole_evaluations = exact(sampler, limit) or (None, None)
    train_losses = limit_losses(loss, limit.outputs, outputs, ratio, limit.coarse, whole).named("loss")
    eval_losses: dict[str, Any] = dict.fromkeys((*LimitLosses.names("eval_loss"), "eval_loss_replicates"))
    if eval_loss is not None:
        judged = limit_losses(eval_loss, limit.eval_outputs, evaluations, ratio, limit.eval_coarse, whole_evaluations)
        eval_losses = {name: float(value) for name, value in judged.named("eval_loss").items()}
        single = replicate_losses(eval_loss, limit.eval_outputs, evaluations, ratio)
        eval_losses["eval_loss_replicates"] = single[:, 0]
    return {
        **train_losses,
        "loss_replicates": replicate_losses(loss, limit.outputs, outputs, ratio),
        **eval_losses,
        "about": about,
        "depths": limit.depths,
        "extrapolated": limit.extrapolated,
        "width": sampler.width,
        "narrow_width": sampler.narrow_width,
        "replicates": sampler.replicates,
        "rtol": sampler.rtol,
        "converged": limit.converged,
        "growth": limit.growth,
        "weights": limit.weights,
        "resolution": sampler.resolution_used if limit.weights == "structured" else None,
        "weighing": sampler.weighing,
        "ways": tuple(sampler.networks.ways(sampler.width, limit.depths[-1])),
        "seconds": seconds,
        "note": " ".join(filter(None, _notes(sampler, limit, outputs))),
    }


def _notes(sampler: Sampler, limit: Limit, narrow: Tensor | None) -> tuple[str, ...]:
    foresight = sampler.networks.foresight() if sampler.climbed else ""
    return limit.note, _accuracy(sampler, limit), _unknown(sampler, limit, narrow), foresight


def _unknown(sampler: Sampler, limit: Limit, narrow: Tensor | None) -> str:
    """What to say where losses come without intervals; empty where they have them."""
    if narrow is None:
        return "A network of width 1 has no narrower one to show the bias of width: the losses have no intervals."
    if bool(limit.outputs.isfinite().all()) and not bool(narrow.isfinite().all()):
        return (
            f"Networks of width {sampler.narrow_width} diverged, so the bias of width {sampler.width} is not known: "
            f"those losses have no intervals. Raise the width or lower {sampler.networks.words.rate}."
        )
    return ""


def _accuracy(sampler: Sampler, limit: Limit) -> str:
    """What to say when the standard error stayed above rtol; empty when it did not."""
    noise, signal = rms(stderr(limit.outputs)), rms(limit.outputs.mean(0))
    if not noise > sampler.rtol * signal:
        return ""
    values = sampler.networks.words.values
    if is_hidden(limit.outputs):
        return (
            f"The {values} have no significant size (RMS {signal:.2g}, standard error {noise:.2g}), so that a relative "
            f"error of rtol={sampler.rtol:g} cannot be reached. {_sizes(sampler)}"
        )
    return (
        f"The standard error is {noise / signal:.2g} of the RMS of the {values}, above rtol={sampler.rtol:g}. "
        f"{_sizes(sampler)}"
    )


def _sizes(sampler: Sampler) -> str:
    """Who chose the sizes, and which to change."""
    sizes = f"width {sampler.width}", f"{sampler.replicates} replicates"
    given = [size for size, is_given in zip(sizes, sampler.given, strict=True) if is_given]
    if given:
        return f"You chose {' and '.join(given)}: larger ones have less noise."
    return f"{' and '.join(sizes).capitalize()} were chosen within memory; pass larger ones for less noise."


def _resolution(value: float | str | None) -> float | Literal["auto"] | None:
    if value is None or value == "auto":
        return value  # type: ignore[return-value]
    if isinstance(value, str):
        raise InputTypeError(f"resolution must be a number or 'auto'; got {value!r}.")
    return check_real("resolution", value, least=0.0, below=1.0)


def _width(value: int | str) -> int | None:
    if isinstance(value, str) and value == "auto":
        return None
    if isinstance(value, str):
        raise InputTypeError(f"width must be a whole number or 'auto'; got {value!r}.")
    return check_count("width", value, maximum=WIDEST)
