"""Independent copies of one training run at one size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nfd.core.random import derive
from nfd.limits.problem import Problem
from nfd.nets.network import Network
from nfd.training.loop import train
from nfd.training.losses import loss_named
from nfd.training.optimizers import optimizer_named

_EVAL_ROWS = 16  # at least; more when training batches are larger, which memory was counted for


@dataclass(frozen=True)
class Ensemble:
    """Replicates of a run: outputs [R, steps, b, C], eval outputs [R, n_eval, C]; not-a-number after divergence."""

    width: int
    depth: int
    weights: str
    outputs: Tensor
    eval_outputs: Tensor
    diverged_at: int | None

    def __len__(self) -> int:
        return len(self.outputs)

    def joined(self, more: Ensemble) -> Ensemble:
        """This ensemble and further replicates of it."""
        ends = [end for end in (self.diverged_at, more.diverged_at) if end is not None]
        return replace(
            self,
            outputs=torch.cat([self.outputs, more.outputs]),
            eval_outputs=torch.cat([self.eval_outputs, more.eval_outputs]),
            diverged_at=min(ends) if ends else None,
        )


def ensemble(
    problem: Problem, width: int, depth: int, weights: str, seeds: range, seed: int, tick: Callable[[], None]
) -> Ensemble:
    """Run the replicates numbered ``seeds`` of the stream ``seed``; ``tick`` is called after each."""
    outputs, evaluations, ends = [], [], []
    for index in seeds:
        y, e, end = _replicate(problem, width, depth, weights, derive(seed, "replicate", width, index))
        outputs.append(y)
        evaluations.append(e)
        ends.append(end)
        tick()
    diverged = [end for end in ends if end is not None]
    return Ensemble(
        width,
        depth,
        weights,
        torch.stack(outputs),
        torch.stack(evaluations),
        min(diverged) if diverged else None,
    )


def _replicate(problem: Problem, width: int, depth: int, weights: str, seed: int) -> tuple[Tensor, Tensor, int | None]:
    net = problem.network(width, depth, weights, seed)
    if weights == "deferred":
        net.reserve(problem.samples)
    optimizer = optimizer_named("sgd", net.param_groups(1.0, problem.rule), momentum=problem.momentum)
    batches = zip(problem.inputs, problem.targets, strict=True)
    rows = list(train(net, optimizer, batches, loss_named(problem.loss), rates=problem.eta_c))
    steps, batch, _ = problem.inputs.shape
    outputs = problem.inputs.new_full((steps, batch, problem.classes), torch.nan)
    outputs[: len(rows)] = torch.stack([row.outputs for row in rows])
    diverged = rows[-1].step if rows[-1].diverged else None
    evaluated = _evaluate(problem, net, diverged is not None)
    if diverged is None and not bool(torch.isfinite(evaluated).all()):
        diverged = rows[-1].step
    return outputs.double(), evaluated.double(), diverged


@torch.no_grad()
def _evaluate(problem: Problem, net: Network, diverged: bool) -> Tensor:
    """Outputs on the evaluation inputs, in parts; rows of different parts are not jointly consistent draws."""
    x = problem.eval_inputs
    if x is None or diverged:
        return problem.inputs.new_full((0 if x is None else len(x), problem.classes), torch.nan)
    net.eval()
    return torch.cat([net(part) for part in torch.split(x, max(_EVAL_ROWS, problem.inputs.shape[1]))])
