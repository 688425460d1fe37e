"""Thousands of awkward queries through small deferred layers in float32, against their dense twins in float64.

What a deferred layer may be off by, per answer, relative to the length of the query and the norm of the matrix:

* ``tolerance`` for the part of the query that is dropped, and as much for what the queries of each side left out of the
  updates;
* the loss of orthogonality ``delta`` of either basis, for the updates, which see ``P D Q'x`` with both as they are.

Neither grows with the number of samples. Where answers feed back into queries, the dense twin itself tells by how much
such errors are magnified: it is trained with errors of this size put into every product.

For ``delta``: a coordinate of ``Q'q`` is an inner product of n rounded terms, ``sqrt(n) u`` of its length (u the unit
roundoff; Higham & Mary 2019, with probability near one), magnified by at most ``_SAFE_GAIN`` when a residual is
normalised without a second projection.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import pytest
import torch
from torch import Tensor, nn

import nfd
from nfd.core.names import Feedback
from nfd.nets.deferred import DeferredLinear
from nfd.nets.dense import DenseLinear
from nfd.nets.orthogonal import _SAFE_GAIN, TOLERANCE, Basis

F64 = torch.float64
SHORT, LONG = 100, 2500  # steps: 800 samples and 20,000
UNIT = torch.finfo(torch.float32).eps / 2
FEEDBACKS: list[Feedback] = ["shared", "independent", "static"]

pytestmark = pytest.mark.filterwarnings("ignore:A DeferredLinear")  # of a full basis, which is meant
steps = pytest.mark.parametrize("steps", [SHORT, pytest.param(LONG, marks=pytest.mark.slow)])


def awkward(n: int, seed: int, rank: int | None = None) -> Iterator[Tensor]:
    """Batches [8, n] that drift, repeat, nearly repeat, depend on each other, vanish, and change size by 10^6.

    With ``rank``, of vectors in a space of that dimension.
    """
    stream = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=stream)

    d = rank or n
    space = torch.linalg.qr(normal(n, d))[0].T
    a, b, c, e = normal(4, d)
    past = deque([normal(d)], maxlen=50)
    k = 0
    while True:
        angle = k / 40
        drifting = math.cos(angle) * a + math.sin(angle) * b
        creeping = c + 1e-2 * angle * e
        fresh = normal(d) if k % 3 == 0 else torch.zeros(d)
        near = drifting + 10.0 ** -(k % 8) * normal(d)
        mixed = normal(2, 4) @ torch.stack([drifting, creeping, c, e])
        old = past[int(torch.randint(len(past), (), generator=stream))]
        past.append(near)
        batch = torch.stack([drifting, creeping, fresh, near, *mixed, old, old * (1 + 1e-6)]) / math.sqrt(d)
        yield (batch @ space) * (10.0 ** (k // 5 % 7 - 3) if k % 5 == 0 else 1.0)
        k += 1


def orthogonality(basis: Basis) -> float:
    """max |Q'Q - I|."""
    Q = basis.rows.double()
    return float((Q @ Q.T - torch.eye(len(Q), dtype=F64)).abs().max())


def delta(n: int) -> float:
    """What orthogonality may be lost in R^n."""
    return _SAFE_GAIN * math.sqrt(n) * UNIT


@dataclass
class Asked:
    """One step: queries and answers of both sides."""

    x: Tensor
    y: Tensor
    g: Tensor
    pulled: Tensor


def driven(layer: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, g: Tensor) -> Asked:
    """A step of which neither query depends on an answer: errors add up, and are not magnified."""
    x = x.clone().requires_grad_()
    optimizer.zero_grad()
    y = layer(x)
    y.backward(g)
    optimizer.step()
    assert x.grad is not None
    return Asked(x.detach(), y.detach(), g, x.grad)


def twin_of(layer: DeferredLinear) -> DenseLinear:
    """The dense layer with the weights that the answers came from."""
    twin = DenseLinear(layer.in_features, layer.out_features, feedback=layer.feedback, dtype=F64)
    W = layer.double().complete(seed=7)
    with torch.no_grad():
        if isinstance(W, Tensor):
            twin.weight.copy_(W)
        else:
            twin.weight.copy_(W[0])
            twin.feedback_weight.copy_(W[1])
    return twin


def spectral(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix.detach(), 2))


def relative(found: Tensor, exact: Tensor, query: Tensor, norm: float) -> float:
    """Largest error of an answer over the length of its query and the norm of the matrix."""
    length = query.double().norm(dim=1)
    return float((((found - exact).norm(dim=1))[length > 0] / (length[length > 0] * norm)).max())


def allowed(layer: DeferredLinear) -> float:
    """What an answer may be off by, relative to the length of its query and the norm of the matrix."""
    return 3 * TOLERANCE[torch.float32] + delta(layer.in_features) + delta(layer.out_features)


@dataclass(frozen=True)
class Case:
    """A layer, the dimension of the space of its queries, and how it is trained."""

    n_in: int
    n_out: int
    rank: int | None
    lr: float
    weight_decay: float


CASES = [
    Case(48, 32, None, 1e-3, 1e-2),  # both bases fill up; half of W_0 is left after 20,000 samples
    Case(24, 40, None, 1e-2, 1.0),  # wider than its inputs; W_0 decays to nothing
    Case(300, 260, 40, 1e-3, 1e-2),  # queries of low rank
]


@steps
@pytest.mark.parametrize("feedback", FEEDBACKS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_layer_stays_orthonormal_and_true_to_its_dense_twin(case: Case, feedback: Feedback, steps: int) -> None:
    layer = DeferredLinear(case.n_in, case.n_out, feedback=feedback, seed=3)
    options = {"lr": case.lr, "momentum": 0.9, "weight_decay": case.weight_decay}
    optimizer = nfd.SGD(layer.parameters(), **options)
    queries = zip(awkward(case.n_in, 1, case.rank), awkward(case.n_out, 2, case.rank), strict=True)
    seen = [driven(layer, optimizer, x, g / (1 + g.norm())) for x, g in islice(queries, steps)]
    for basis, n in ((layer.matrix.forward.directions, case.n_in), (layer.matrix.backward.directions, case.n_out)):
        assert orthogonality(basis) <= delta(n)
    if case.rank is None:
        assert layer.rank == (case.n_out, case.n_in)
    else:  # a direction found at the tolerance is off their space by a tenth, which is then found once more
        assert case.rank <= min(layer.rank)
        assert max(layer.rank) <= 2 * case.rank
    assert_true_to(twin_of(layer), options, seen, allowed(layer))


def assert_true_to(twin: DenseLinear, options: dict[str, float], seen: list[Asked], bound: float) -> None:
    """Every answer of the layer is that of its twin, within ``bound``."""
    trained = [p for p in twin.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, **options)  # type: ignore[arg-type]
    for step, one in enumerate(seen):
        if step % 10 == 0:
            norm, norm_back = spectral(twin.weight), spectral(backward_weight(twin))
        again = driven(twin, optimizer, one.x.double(), one.g.double())
        assert relative(one.y, again.y, one.x, norm) <= bound
        assert relative(one.pulled, again.pulled, one.g, norm_back) <= bound


def backward_weight(layer: DenseLinear) -> Tensor:
    return layer.weight if layer.feedback == "shared" else layer.feedback_weight


class Errors:
    """Errors of relative size ``size`` in every product of the dense layers of a network, forward and backward."""

    def __init__(self, net: nn.Module, size: float) -> None:
        self.size, self.stream = size, torch.Generator().manual_seed(0)
        for layer in net.modules():
            if isinstance(layer, DenseLinear):
                layer.register_forward_hook(lambda layer, x, y: self._off(y, x[0], layer.weight))
                layer.register_full_backward_hook(lambda layer, x, y: (self._off(x[0], y[0], backward_weight(layer)),))

    def _off(self, answer: Tensor, query: Tensor, matrix: Tensor) -> Tensor:
        direction = nn.functional.normalize(torch.randn(answer.shape, generator=self.stream, dtype=F64), dim=1)
        return answer + self.size * spectral(matrix) * query.detach().norm(dim=1, keepdim=True) * direction
