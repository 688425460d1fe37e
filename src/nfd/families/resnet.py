"""The networks of the paper: residual ones (Eqs. 1, 6, 9), and the vanilla one of Fig. 4a."""

from __future__ import annotations

import math
from typing import Any, cast, get_args

import torch
from torch import Tensor

from nfd.core.errors import MOST, InputError, check_choice, check_count, check_real
from nfd.core.names import Block, Feedback, NetworkWeights, Order, Regime
from nfd.families.network import Network
from nfd.scaling.rules import Role, rule_named

# ---- The residual networks of the paper (Eqs. 1, 6, 9) in one class


_FURTHEST = 60.0  # |log| of a residual multiplier that float32 holds


class ResNet(Network):
    """A residual network of width n, depth L and horizon T with residual multiplier ``m = sqrt(T) L**-a``.

    ==================  =============================================================  ==========
    pre, one-layer      ``h_l = h_{l-1} + m W_l phi(h_{l-1}) / sqrt(n)``               Eq. 1
    pre, two-layer      ``x_l = W_{l,1} h_{l-1} / sqrt(n)``,                           Eqs. 6, 23
                        ``h_l = h_{l-1} + m W_{l,2} phi(x_l) / sqrt(n)``
    post, one-layer     ``h_0 = phi(U x / sqrt(d))``,                                  Eq. 9
                        ``h_l = h_{l-1} + m phi(W_l h_{l-1} / sqrt(n))``
    ==================  =============================================================  ==========

    Otherwise ``h_0 = U x / sqrt(d)``; always ``f = alpha / sqrt(n) V h_L``. All weights start N(0, 1).

    Args:
        in_features: d, the size of an input.
        out_features: C, the number of outputs.
        width: n, at least 1.
        depth: L, the number of blocks, at least 1.
        horizon: T > 0.
        activation: ``"relu"``, ``"tanh"``, ``"erf"``, ``"gelu"`` or ``"identity"``.
        block: ``"one-layer"`` or ``"two-layer"``.
        order: ``"pre"`` or ``"post"`` (the paper defines post for one-layer blocks only).
        branch_exponent: a; 0.5 is depth-muP, 0 muP, 1 CompleteP.
        regime: ``"feature"`` (alpha = 1/sqrt(n)) or ``"kernel"`` (alpha = 1).
        weights: ``"dense"``; ``"deferred"`` for hidden matrices that are never stored, with exactly the law of Gaussian
            ones; or ``"structured"`` for matrices with fast products, with the limit of Gaussian ones.
        feedback: which hidden matrices carry gradients backward: ``"shared"`` (the standard network),
            ``"independent"`` (the paper's decoupled one) or ``"static"``.
        resolution: of structured layers (``nfd.StructuredLinear``), below which they leave out directions;
            None for none.
        seed: of every weight; dense and deferred networks share U and V for the same seed.
        coupled: whether the layers are increments of one Brownian path. Then networks of the same seed and width with
            L, 2L, 4L, ... blocks are finer and finer cuts of the same path; the law of each network stays the same. A
            number is the depth at which every layer is a single draw (True: 1): near it networks are cheapest
            (``nfd.core.random.Increment``). Only networks with the same number are coupled.
        dtype, device: of parameters and factors.

    Raises:
        ValueError, TypeError: naming the argument, for anything outside these ranges.

    Example::

        net = nfd.ResNet(64, 10, width=256, depth=4)
        optimizer = nfd.SGD(net.param_groups(lr=0.3))
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    """

    default_rule = "depth-mup"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        width: int,
        depth: int,
        *,
        horizon: float = 1.0,
        activation: str = "relu",
        block: Block = "one-layer",
        order: Order = "pre",
        branch_exponent: float = 0.5,
        regime: Regime = "feature",
        weights: NetworkWeights = "dense",
        feedback: Feedback = "shared",
        resolution: float | None = None,
        seed: int = 0,
        coupled: bool | int = False,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(
            in_features,
            out_features,
            width,
            depth,
            activation=activation,
            regime=regime,
            weights=weights,
            feedback=feedback,
            resolution=resolution,
            seed=seed,
            dtype=dtype,
            device=device,
        )
        self.horizon = check_real("horizon", horizon, above=0.0)
        self.block = cast(Block, check_choice("block", block, get_args(Block)))
        self.order = cast(Order, check_choice("order", order, get_args(Order)))
        self.branch_exponent = check_real("branch_exponent", branch_exponent)
        if abs(self.branch_exponent) * math.log(self.depth) > _FURTHEST:
            raise InputError(
                f"branch_exponent must leave depth**-branch_exponent a number; got {self.branch_exponent:g} at depth "
                f"{self.depth}. Choose one between 0 and 1."
            )
        if self.order == "post" and self.block == "two-layer":
            raise InputError("order='post' is defined for block='one-layer' (Eq. 9); got block='two-layer'.")
        self.coupled = int(coupled if isinstance(coupled, bool) else check_count("coupled", coupled, maximum=MOST))
        self.outer = self._layers("outer")
        self.inner = self._layers("inner") if self.block == "two-layer" else None

    @classmethod
    def settings_of(cls, rule: str) -> dict[str, Any]:
        exponent = rule_named(rule).exponent
        return super().settings_of(rule) | {"branch_exponent": 0.5 if exponent is None else exponent}

    @property
    def branch(self) -> float:
        """m, the residual multiplier ``sqrt(T) L**-a``."""
        return math.sqrt(self.horizon) * math.pow(self.depth, -self.branch_exponent)

    def scale(self, role: Role) -> float:
        """The forward multiplier of weights with this role, up to the activation that follows."""
        return super().scale(role) * (self.branch if role == "outer" and self.order == "pre" else 1.0)

    def run(self, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        phi, m, root = self.activation.phi, self.branch, math.sqrt(self.width)
        layers, inner = [self.embed(x)], list[Tensor]()
        if self.order == "post":
            layers = [phi(layers[0])]
        for index, W in enumerate(self.outer):
            h = layers[-1]
            if self.order == "post":
                layers.append(h + m * phi(W(h) / root))  # Eq. 9
                continue
            if self.inner is not None:
                inner.append(self.inner[index](h) / root)
            layers.append(h + (m / root) * W(phi(inner[-1] if inner else h)))  # Eqs. 1, 6
        return layers, inner

    def block_names(self) -> list[str]:
        return [f"outer.{index}" for index in range(self.depth)]


# ---- The vanilla deep network of Fig. 4a: no skip connections


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

    def run(self, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        layers = [self.embed(x)]
        for W in self.hidden:
            layers.append(W(self.activation.phi(layers[-1])) / math.sqrt(self.width))
        return layers, []
