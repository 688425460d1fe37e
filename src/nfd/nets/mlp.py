"""The vanilla deep network of Fig. 4a: no skip connections."""

from __future__ import annotations

from torch import Tensor, nn

from nfd.nets.network import Network, trainable
from nfd.nets.streams import Arithmetic
from nfd.scaling.rules import Role


class MLP(Network):
    """The vanilla network: no skip connections.

    ``h_0 = U x / sqrt(d)``, ``h_l = W_l phi(h_{l-1}) / sqrt(n)``, ``f = alpha / sqrt(n) V h_L``.

    Its rates are those of ``rule="mup"``: ``eta_c n`` everywhere. Arguments and errors as in ``nfd.ResNet``.

    Source: Fig. 4a, the vanilla network.

    Example::

        net = nfd.MLP(64, 10, width=256, depth=4)
        net(x)  # [8, 10]
    """

    def _add_layers(self) -> None:
        self.hidden = self._layers("outer")

    def run(self, by: Arithmetic, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        layers = [by.embed(x)]
        for index in range(self.depth):
            layers.append(by.product("hidden", index, self.activation.phi(layers[-1])))
        return layers, []

    def _roles(self) -> dict[Role, list[nn.Parameter]]:
        return {"input": [self.U], "hidden": trainable(list(self.hidden)), "readout": [self.V]}
