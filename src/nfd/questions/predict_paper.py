"""``nfd.predict`` of the paper's networks: the training of an infinitely wide, and if asked infinitely deep, one.

Width: a network of large width n, R independent replicates; their spread gives the standard error. It does not see
the O(1/n) bias: a narrower ensemble shows it, and it is subtracted from the losses (``nfd.limits.loss``). Depth: see
``nfd.limits.depth``. Replicates at different depths share U, V and, in one-layer blocks, the Brownian path whose
increments their layers are, so that the standard error of ``2 f_2L - f_L``, taken from the replicates themselves, is
hardly larger than that of ``f_2L``; replicates at different widths share nothing.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from nfd.core.ambient import undisturbed
from nfd.core.defaults import DEPTH, ETA_C, MEMORY, RTOL
from nfd.core.errors import check_choice, check_depth, check_seed
from nfd.core.names import NetworkWeights, PaperWeights
from nfd.core.statistics import stderr
from nfd.limits.depth import Limit
from nfd.limits.loss import output_bias
from nfd.limits.networks import DEPTHS, PaperNetworks
from nfd.limits.prediction import Prediction
from nfd.limits.problem import Problem, problem
from nfd.limits.sampler import Sampler
from nfd.questions.sampled import limit_at, losses_of, resolved, sampling
from nfd.runs.executors.executor import Executor, Inline
from nfd.runs.replicates import Replicates
from nfd.runs.sweep import Sweep
from nfd.scaling.rules import check_finite_depth, check_wide_limit
from nfd.training.losses import IGNORED
from nfd.training.tensors import TensorTask

_LISTED = 5  # class ids in a note
_UNUSUAL = 30.0  # times the usual mean square of inputs, or one over it


@undisturbed()
def predict_paper(
    inputs: Any,
    targets: Any,
    *,
    depth: float = DEPTH,
    horizon: float = 1.0,
    activation: str = "relu",
    block: str = "one-layer",
    eta_c: float | Sequence[float] = ETA_C,
    momentum: float = 0.0,
    loss: str = "cross-entropy",
    classes: int | None = None,
    feedback: str = "shared",
    rule: str = "depth-mup",
    width: int | str = "auto",
    weights: str = "auto",
    resolution: float | str | None = None,
    replicates: int | None = None,
    rtol: float = RTOL,
    memory: str | int = MEMORY,
    seed: int = 0,
    eval_inputs: Any = None,
    eval_targets: Any = None,
    device: torch.device | str = "cpu",
    out: str | Path | None = None,
    executor: Executor | None = None,
    progress: bool | None = None,
) -> Prediction:
    """As ``nfd.predict`` of inputs and targets says."""
    start = time.perf_counter()
    depth, chosen = check_depth(depth), check_wide_limit(rule)
    given = problem(
        inputs,
        targets,
        eval_inputs=eval_inputs,
        eval_targets=eval_targets,
        loss=loss,
        classes=classes,
        horizon=horizon,
        activation=activation,
        block=block,
        eta_c=eta_c,
        momentum=momentum,
        feedback=feedback,
        rule=rule,
        device=device,
        coupled=DEPTHS[1] if depth == math.inf and block == "one-layer" else False,
    )
    _warn_of_size(given.task.inputs)
    if not chosen.scales_depth:
        check_finite_depth(given.rule, depth)
    choice = check_choice("weights", weights, get_args(PaperWeights))
    kinds = resolved([kind for kind in get_args(NetworkWeights) if choice in ("auto", kind)], choice, resolution)
    sampled, seed = sampling(width, replicates, rtol, memory, resolution), check_seed(seed)
    executor = Inline(torch.get_num_threads()) if executor is None else executor
    with Sweep(out, executor, device=str(given.device), progress=progress) as sweep:
        networks = PaperNetworks(given, Replicates(sweep).run, seed, kinds)
        sampler = sampled(networks)
        limit, narrow = limit_at(sampler, depth)
        predicted = _prediction(given, sampler, limit, narrow, time.perf_counter() - start)
    guessed = "" if classes is not None or loss == "mse" else _absent_classes(given.task)
    return replace(predicted, note=f"{predicted.note} {guessed}".strip())


def _warn_of_size(inputs: Tensor) -> None:
    size = float(inputs.square().mean())
    if not 1 / _UNUSUAL <= size <= _UNUSUAL:
        warnings.warn(
            f"The mean of inputs**2 is {size:.3g}. The formulas of rates and depth take it to be near 1: scale the "
            "inputs, by their RMS for instance.",
            stacklevel=5,
        )


def _absent_classes(task: TensorTask) -> str:
    """A note on class ids that were counted as classes and never occur; empty where all occur."""
    seen = torch.cat([labels.flatten() for labels in (task.targets, task.eval_targets) if labels is not None])
    absent = (seen[seen != IGNORED].bincount(minlength=task.outputs) == 0).nonzero().flatten().tolist()
    if not absent:
        return ""
    more = f" and {len(absent) - _LISTED:,} more" if len(absent) > _LISTED else ""
    return (
        f"Of the class ids 0..{task.outputs - 1}, {', '.join(map(str, absent[:_LISTED]))}{more} never occur in "
        "targets, yet the networks have outputs for them. Renumber the classes from 0, or pass "
        f"classes={task.outputs} if this is meant."
    )


def _prediction(
    given: Problem, sampler: Sampler, limit: Limit, narrow: tuple[Tensor, Tensor] | None, seconds: float
) -> Prediction:
    judged, evaluated = given.task.eval_targets is not None, given.task.eval_inputs is not None
    eval_loss = _eval_losses(given) if judged else None
    losses = losses_of(given.task.about, sampler, limit, narrow, given.task.mean_loss, eval_loss, seconds)
    bias = output_bias(limit.outputs, None if narrow is None else narrow[0], sampler.width / sampler.narrow_width)
    return Prediction(
        **losses,
        outputs=limit.outputs.mean(0),
        outputs_stderr=stderr(limit.outputs),
        eval_outputs=limit.eval_outputs.mean(0) if evaluated else None,
        eval_stderr=stderr(limit.eval_outputs) if evaluated else None,
        bias=bias.value,
        bias_stderr=bias.noise,
    )


def _eval_losses(given: Problem) -> Callable[[Tensor], Tensor]:
    return lambda outputs: given.task.eval_loss(outputs)[..., None]
