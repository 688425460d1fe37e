"""The covariances of the steps of online training and their smallest eigenvalues (Assumption 1, Fig. 6).

After k steps of one sample each, with ``phi(h_{l-1}^(i))`` and the gradient ``g_l^(i)`` of the first output (Eq. 3) of
step i, before its update,

    Sigma_l[i, j] = phi(h_{l-1}^(i)) . phi(h_{l-1}^(j)) / n,     Theta_l[i, j] = g_l^(i) . g_l^(j) / n,

and ``Delta_l``, the same of the loss-weighted ``delta_l^(i)``, what backpropagation carries. Nothing is added to the
diagonal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nfd.families import Network, Streams


@dataclass
class Seen:
    """The streams of one pass, and the gradient of its first output ``[L+1, b, n]``."""

    streams: Streams
    g: Tensor


class Spectra:
    """Gathers the streams of every step, and gives the smallest eigenvalues ``[L]`` of what it has."""

    def __init__(self, net: Network) -> None:
        self.net = net
        self.seen: Seen | None = None
        self._kept: dict[str, list[Tensor]] = {"sigma": [], "theta": [], "delta": []}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keep what the passes within show."""
        net = self.net

        def look(_module: nn.Module, _args: Any, outputs: Tensor) -> None:
            layers, inner = passes[-1]
            streams = Streams(outputs, math.sqrt(net.width) / net.alpha, layers, inner)
            self.seen = Seen(streams, first_gradient(net, layers, outputs))
            for h in layers:
                h.grad = None  # of the first output; what is kept there is the loss's

        with net.watched() as passes, net.register_forward_hook(look):
            yield

    def gather(self) -> None:
        """Keep ``phi(h_0) .. phi(h_{L-1})``, ``g_1 .. g_L``, ``delta_1 .. delta_L`` of a step, after its backward."""
        assert self.seen is not None
        self._kept["sigma"].append(self.net.activation.phi(self.seen.streams.h[:-1, 0]))
        self._kept["theta"].append(self.seen.g[1:, 0])
        self._kept["delta"].append(self.seen.streams.delta[1:, 0])

    def smallest(self) -> dict[str, Tensor]:
        """``sigma``, ``theta`` and ``delta``, ``[L]`` each; with ``_relative`` those of their correlations.

        Not-a-number before the first step, and where vectors left the range of floating-point numbers.
        """
        smallest: dict[str, Tensor] = {}
        for name, vectors in self._kept.items():
            if not vectors:
                blank = torch.full((self.net.depth,), torch.nan, dtype=torch.float64)
                smallest |= {name: blank, f"{name}_relative": blank}
                continue
            matrix = torch.stack(vectors, 1).double()  # [L, k, n]
            gram = matrix @ matrix.mT / matrix.shape[-1]
            scale = gram.diagonal(dim1=1, dim2=2).clamp_min(1e-300).rsqrt()
            smallest[name] = _lowest(gram)
            smallest[f"{name}_relative"] = _lowest(scale[:, :, None] * gram * scale[:, None, :])
        return smallest


def first_gradient(net: Network, layers: Sequence[Tensor], outputs: Tensor) -> Tensor:
    """g of Eq. 3 for the first output, ``sqrt(n) / alpha df_1 / dh_l``, ``[L+1, b, n]``."""
    gradients = torch.autograd.grad(outputs[:, 0].sum(), list(layers), retain_graph=True)
    return math.sqrt(net.width) / net.alpha * torch.stack(gradients)


def _lowest(matrices: Tensor) -> Tensor:
    finite = matrices.isfinite().all(-1).all(-1)
    values = torch.linalg.eigvalsh(torch.where(finite[:, None, None], matrices, 0.0))[:, 0]
    return torch.where(finite, values, torch.nan)
