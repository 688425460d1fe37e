"""The covariances of the steps of online training and their smallest eigenvalues (Assumption 1, Fig. 6).

After k steps of one sample each, with ``phi(h_{l-1}^(i))`` and the loss-weighted ``delta_l^(i)`` (Eq. 3) of step i,

    Sigma_l[i, j] = phi(h_{l-1}^(i)) . phi(h_{l-1}^(j)) / n,     Theta_l[i, j] = delta_l^(i) . delta_l^(j) / n.

Nothing is added to the diagonal.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nfd.nets.network import Network, Streams


class Watched(nn.Module):
    """A network that keeps the streams of its last pass; trained like the network itself."""

    def __init__(self, net: Network) -> None:
        super().__init__()
        self.net = net
        self.seen: Streams | None = None

    def forward(self, x: Tensor) -> Tensor:
        """``[b, d]`` to ``[b, C]``."""
        self.seen = self.net.streams(x)
        return self.seen.outputs


class Spectra:
    """Gathers the streams of every step, and gives the smallest eigenvalues ``[L]`` of what it has."""

    def __init__(self, net: Network) -> None:
        self.net = net
        self._forward: list[Tensor] = []
        self._backward: list[Tensor] = []

    def gather(self, seen: Streams) -> None:
        """Keep ``phi(h_0) .. phi(h_{L-1})`` and ``delta_1 .. delta_L`` of one step, after its backward pass."""
        self._forward.append(self.net.activation.phi(seen.h[:-1, 0]))
        self._backward.append(seen.delta[1:, 0])

    def smallest(self) -> dict[str, Tensor]:
        """``sigma`` and ``theta``, ``[L]`` each; ``sigma_relative`` and ``theta_relative`` of their correlations.

        Not-a-number before the first step, and where vectors left the range of floating-point numbers.
        """
        found: dict[str, Tensor] = {}
        for name, vectors in (("sigma", self._forward), ("theta", self._backward)):
            if not vectors:
                blank = torch.full((self.net.depth,), torch.nan, dtype=torch.float64)
                found |= {name: blank, f"{name}_relative": blank}
                continue
            each = torch.stack(vectors, 1).double()  # [L, k, n]
            gram = each @ each.mT / each.shape[-1]
            scale = gram.diagonal(dim1=1, dim2=2).clamp_min(1e-300).rsqrt()
            found[name] = _lowest(gram)
            found[f"{name}_relative"] = _lowest(scale[:, :, None] * gram * scale[:, None, :])
        return found


def _lowest(matrices: Tensor) -> Tensor:
    finite = matrices.isfinite().all(-1).all(-1)
    values = torch.linalg.eigvalsh(torch.where(finite[:, None, None], matrices, 0.0))[:, 0]
    return torch.where(finite, values, torch.nan)
