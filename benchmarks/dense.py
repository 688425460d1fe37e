"""The opponent: a plain dense residual network in PyTorch, written as well as a CPU allows.

Eq. 1 with cross-entropy and plain SGD: fused ``addmm`` forward and backward, rank-b updates in
place, no autograd, no gradient matrices. It computes what ``nfd.ResNet(weights="dense")`` computes
(tests/test_benchmarks.py).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot


class DenseBaseline:
    """A width-n, depth-L ReLU network with C outputs in the feature-learning regime."""

    def __init__(self, U: Tensor, V: Tensor, W: list[Tensor], eta_c: float) -> None:
        self.U = U
        self.V = V
        self.W = W
        self.eta_c = eta_c

    @classmethod
    def random(cls, d: int, classes: int, width: int, depth: int, eta_c: float) -> DenseBaseline:
        """Weights i.i.d. N(0, 1)."""
        stream = torch.Generator().manual_seed(0)
        U, V = (torch.randn(*shape, generator=stream) for shape in ((width, d), (classes, width)))
        return cls(U, V, [torch.randn(width, width, generator=stream) for _ in range(depth)], eta_c)

    def step(self, x: Tensor, y: Tensor) -> float:
        """One step of SGD; the loss before it."""
        n = len(self.U)
        L = len(self.W)
        branch = math.sqrt(1 / (L * n))
        scale = 1 / math.sqrt(x.shape[1])
        h = (x @ self.U.T).mul_(scale)
        streams = [h]
        features = []
        for W in self.W:
            features.append(torch.relu(h))
            h = torch.addmm(h, features[-1], W.T, alpha=branch)
            streams.append(h)
        f = h @ self.V.T / n
        weighted = (torch.softmax(f, 1) - one_hot(y, len(self.V))) / len(x)
        g = weighted @ self.V / n
        lr = self.eta_c * n
        self.V.addmm_(weighted.T, h, alpha=-lr / n)
        for W, h, p in zip(
            reversed(self.W), reversed(streams[:-1]), reversed(features), strict=True
        ):
            pulled = g @ W
            W.addmm_(g.T, p, alpha=-lr * branch)
            g = torch.addcmul(g, pulled, (h > 0).to(g.dtype), value=branch)
        self.U.addmm_(g.T, x, alpha=-lr * scale)
        return float(cross_entropy(f, y))
