"""Whether the rule of an optimizer is equivariant, ``U(P G Q') = P U(G) Q'``, measured over a few steps.

The same rule steps a random dense matrix ``s W_0 + P D Q'`` and its factors s and D, whose gradients are the G of the
dense gradients ``P G Q'``. P and Q have orthonormal columns, more of them at every step. Gradients have a rank below
the size of D, some have equal singular values, as those of orthogonal samples, and they differ in size by powers of
ten: a rule that clips entries acts on large ones alone, and equal values leave an eigenbasis undecided.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nfd.core.ambient import gradients
from nfd.core.errors import InputError
from nfd.core.random import generator
from nfd.nets.guarded import Guarded
from nfd.scaling.laws import step_others

if TYPE_CHECKING:
    from nfd.nets.factored_optimizer import FactoredOptimizer

_ROWS, _COLUMNS = 13, 11  # of W
_SAMPLES = 2  # of a batch
_STEPS = (  # sizes of D, the size of the gradient, and whether its singular values are equal
    (3, 2, 1.0, True),
    (5, 4, 1e-2, False),
    (6, 7, 1e2, False),
    (9, 8, 1.0, True),
)
_ROUNDING = 1e-7  # in float64, of rules that take roots of products; others than equivariant ones miss by 0.01 to 10


def check_equivariance(optimizer: FactoredOptimizer, group: Mapping[str, Any], *, transposed: bool) -> None:
    """ValueError with the measured difference when the rule is not exact in the factors of a layer.

    Args:
        optimizer: whose rule it is.
        group: its settings.
        transposed: whether the rule must also commute with transposition, ``U(G') = U(G)'``: the update of a structured
            layer stands for W or for its transpose.
    """
    name = optimizer.kind
    if not (gap := equivariance_gap(optimizer, group)) < _ROUNDING:
        raise InputError(
            f"{name} is not equivariant: on random matrices U(P G Q') and P U(G) Q' differ by {gap:.2g} of a step. "
            "Without stored weights only rules are exact that act on a matrix as a whole: no powers or signs of single "
            "entries, no sums along rows, no bases of earlier steps, no noise, nothing that counts the entries. Use "
            "stored weights for this rule, or nfd.SGD, nfd.Muon or nfd.Shampoo."
        )
    if transposed and not (gap := equivariance_gap(optimizer, group, transposed=True)) < _ROUNDING:
        raise InputError(
            f"{name} treats rows and columns of a matrix differently: U(G') and U(G)' differ by {gap:.2g} of a step. "
            "The update of a StructuredLinear may stand for the transpose of W. Use nfd.DeferredLinear for this rule."
        )


@gradients()
@torch.no_grad()
def equivariance_gap(optimizer: FactoredOptimizer, group: Mapping[str, Any], *, transposed: bool = False) -> float:
    """The largest distance of the dense matrix from its factors after a step, over that step; 0 to rounding.

    The optimizer, its parameters and its states stay as they are. ``transposed``: whether the dense matrix is stepped
    as its transpose.
    """
    stream = generator(0, "equivariance")

    def drawn(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=stream, dtype=torch.float64, device="cpu")

    P, Q = (torch.linalg.qr(drawn(n, n)).Q for n in (_ROWS, _COLUMNS))
    start = drawn(_ROWS, _COLUMNS)
    update, scale = Guarded(torch.zeros(0, 0, dtype=torch.float64)), Guarded(torch.ones((), dtype=torch.float64))
    dense = nn.Parameter(start.T.clone() if transposed else start.clone())
    update.stands_for = scale.stands_for = dense.shape[0], dense.shape[1]
    settings = {**group, "lr": 0.1}
    states: tuple[defaultdict[Tensor, Any], ...] = defaultdict(dict), defaultdict(dict)
    gaps = []
    for rows, columns, size, equal in _STEPS:
        left, right = drawn(rows, _SAMPLES), drawn(columns, _SAMPLES)
        if equal:
            left, right = torch.linalg.qr(left).Q, torch.linalg.qr(right).Q
        left, right = size * left.T, right.T
        gradient = P[:, :rows] @ left.T @ right @ Q[:, :columns].T
        dense.grad = gradient.T.contiguous() if transposed else gradient
        update.grad = scale.grad = None
        update.pad(rows, columns)
        scale.begin_gradient()
        update.scale = scale
        update.add_gradient(left, right)
        before = dense.clone()
        step_others(optimizer, settings, [update, scale], states[0])
        step_others(optimizer, settings, [dense], states[1])
        W = scale * start + P[:, :rows] @ update @ Q[:, :columns].T
        apart, step = (W - (dense.T if transposed else dense)).norm(), (dense - before).norm()
        gaps.append(apart / step.clamp_min(torch.finfo(step.dtype).tiny))
    return float(torch.stack(gaps).max())
