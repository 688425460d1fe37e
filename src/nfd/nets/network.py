"""What every network of the paper shares: input and output maps, streams, and parameter groups with their rates."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self, cast, get_args

import torch
from torch import Tensor, nn

from nfd.core import activations
from nfd.core.errors import (
    MOST,
    WIDEST,
    InputError,
    InputTypeError,
    check_choice,
    check_count,
    check_device,
    check_dtype,
    check_finite,
    check_real,
    check_seed,
)
from nfd.core.names import Feedback, NetworkWeights, Regime
from nfd.core.random import Increment, derive, generator
from nfd.nets.deferred import DeferredLinear
from nfd.nets.dense import DenseLinear
from nfd.nets.factored import FEEDBACKS, FactoredLinear
from nfd.nets.streams import Arithmetic, Streams
from nfd.nets.structured import StructuredLinear
from nfd.scaling.laws import check_optimizer, law_of
from nfd.scaling.rules import ADAM_EPSILON, MAX_ETA_C, ROLES, Power, Role, rule_named
from nfd.scaling.self_scaled import SelfScaled
from nfd.scaling.sizes import Ratios, ratios_by_role
from nfd.scaling.tensors import tensors

Linear = DenseLinear | FactoredLinear

_LAYERS: dict[str, Callable[..., Linear]] = {
    "dense": DenseLinear,
    "deferred": DeferredLinear,
    "structured": StructuredLinear,
}


class Network(SelfScaled):
    """``h_0 = U x / sqrt(d)``, hidden layers of a subclass, ``f = alpha / sqrt(n) V h_L``; all weights N(0, 1).

    ``alpha`` is ``1 / sqrt(n)`` in the feature-learning regime and 1 in the kernel regime (sections 2 and 4.2).
    """

    branch_exponent: float = 0.0
    coupled: bool = False
    default_rule: ClassVar[str] = "mup"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        width: int,
        depth: int,
        *,
        activation: str,
        regime: Regime,
        weights: NetworkWeights,
        feedback: Feedback,
        seed: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        super().__init__()
        self.in_features = check_count("in_features", in_features, maximum=WIDEST)
        self.out_features = check_count("out_features", out_features, maximum=WIDEST)
        self.width = check_count("width", width, maximum=WIDEST)
        self.depth = check_count("depth", depth, maximum=MOST)
        self.activation = activations.activation(activation)
        self.regime = cast(Regime, check_choice("regime", regime, get_args(Regime)))
        self.weights = cast(NetworkWeights, check_choice("weights", weights, _LAYERS))
        self.feedback = cast(Feedback, check_choice("feedback", feedback, FEEDBACKS))
        self.seed = check_seed(seed)
        self._factory: dict[str, Any] = {"dtype": check_dtype(dtype), "device": check_device(device)}
        self.U = nn.Parameter(self._gaussian("U", self.width, self.in_features))
        self.V = nn.Parameter(self._gaussian("V", self.out_features, self.width))

    @property
    def alpha(self) -> float:
        """The output multiplier in ``f = alpha / sqrt(n) V h_L``: 1/sqrt(n), or 1 in the kernel regime."""
        return 1 / math.sqrt(self.width) if self.regime == "feature" else 1.0

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, in_features]`` to ``[batch, out_features]``; Theta(alpha) at the start."""
        return self.read(self.run(self, self._checked(x))[0][-1])

    def streams(self, x: Tensor) -> Streams:
        """One pass that keeps every hidden vector.

        For deferred weights it is a query like any other, recorded in training mode; use that mode for ``delta``.
        """
        passes = list[tuple[list[Tensor], list[Tensor]]]()
        with self.watched(lambda *vectors: passes.append(vectors)):
            outputs = self(x)
        self.check_one_pass(len(passes))
        ((layers, inner),) = passes
        for h in layers:
            if h.requires_grad:
                h.retain_grad()
        return Streams(outputs, math.sqrt(self.width) / self.alpha, layers, inner)

    @contextmanager
    def watched(self, see: Callable[[list[Tensor], list[Tensor]], None]) -> Iterator[None]:
        """Within it, ``see`` is given h_0 .. h_L and x_1 .. x_L of every pass, in a subclass's own ``forward`` too."""
        run = self.run

        def seen(by: Arithmetic, inputs: Tensor) -> tuple[list[Tensor], list[Tensor]]:
            vectors = run(by, inputs)
            see(*vectors)
            return vectors

        self.__dict__["run"] = seen
        try:
            yield
        finally:
            del self.__dict__["run"]

    def check_one_pass(self, made: int) -> None:
        """ValueError where a forward pass did not make one pass through ``run``."""
        if made != 1:
            raise InputError(
                f"{type(self).__name__}.forward must make one pass through run() to have streams; it made {made}. "
                "Call super().forward(x) once in it."
            )

    @classmethod
    def settings_of(cls, rule: str) -> dict[str, Any]:
        """The arguments that a rule decides."""
        return {"regime": "kernel" if rule == "ntk" else "feature"}

    def param_groups(self, eta_c: float, rule: str | None = None, optimizer: str = "sgd") -> list[dict[str, Any]]:
        """Parameters by role with their rates; for SGD ``eta_c n`` times the rule's depth factor (kernel: no n).

        For Adam they are ``eta_c / sqrt(n)`` for hidden matrices, ``eta_c`` for U and V, times the depth factor, each
        with its own epsilon: 1e-8 times how the entries of its gradient scale. What a subclass adds learns by its role,
        as a plain parameter that nothing multiplies.

        Args:
            eta_c: the rate that does not depend on width or depth, at least 0.
            rule: a name of ``nfd.scaling.rules``; its exponent must be this network's ``branch_exponent``. Default
                ``"depth-mup"`` for ``ResNet``, ``"mup"`` for ``MLP``.
            optimizer: ``"sgd"``, ``"adam"``, or another registered one that takes every tensor.

        Raises:
            ValueError: when the rule belongs to another residual multiplier or needs two-layer blocks; when the
                optimizer is not exact for these weights or this rule; naming the parameters of a subclass that have no
                role.
        """
        eta_c = check_real("eta_c", eta_c, least=0.0, below=MAX_ETA_C)
        law = law_of(optimizer)
        if law.rest is not None:
            raise InputError(f"optimizer={law.name!r} takes matrices alone. Use nfd.plan(net, optimizer={law.name!r}).")
        rule = self.default_rule if rule is None else rule
        chosen = rule_named(rule)
        self.check_rule(rule)
        check_optimizer(law.name, rule=rule, deferred=self.weights != "dense")
        groups: dict[tuple[Any, ...], dict[str, Any]] = {}
        for name, role in sorted(self.settled_roles().items(), key=lambda pair: ROLES.index(pair[1])):
            multiplier = self.multiplier(role) if self.is_standard_normal(name) else Power()
            powers = chosen.powers(role, law, multiplier, vector=self.get_parameter(name).dim() < 2)
            ratios = self._ratios(name, role)
            lr, eps = (p.at(ratios.fan_in, ratios.fan_out, self.depth) for p in (powers.rate, powers.epsilon))
            settings = {"lr": eta_c * lr, "role": role} | ({"eps": ADAM_EPSILON * eps} if law.epsilon else {})
            group = groups.setdefault(tuple(settings.items()), {"params": [], **settings})
            group["params"].append(self.get_parameter(name))
        return list(groups.values())

    def _ratios(self, name: str, role: Role) -> Ratios:
        """A tensor's size over that of the base, width 1; the kernel regime has rates of that base at every width."""
        n = float(self.width) if self.regime == "feature" else 1.0
        return Ratios(n, n) if self.is_standard_normal(name) else ratios_by_role(tensors(self)[name], role, n)

    def multiplier(self, role: Role) -> Power:
        """How the forward multiplier of weights with this role scales with n and L: they are N(0, 1) themselves."""
        readout = 0.5 if self.regime == "kernel" else 1.0
        width = {"input": 0.0, "readout": readout}.get(role, 0.5)
        return Power(fan_in=-width, depth=-self.branch_exponent if role == "outer" else 0.0)

    def scale(self, role: Role) -> float:
        """The forward multiplier of weights with this role."""
        width = self.in_features if role == "input" else self.width
        return {"input": 1.0, "readout": self.alpha}.get(role, 1.0) / math.sqrt(width)

    def named_roles(self) -> dict[str, Role]:
        """The role of every trainable parameter, by its name; a subclass with more parameters adds theirs."""
        roles = {id(p): role for role, parameters in self._roles().items() for p in parameters}
        return {name: roles[id(p)] for name, p in self.named_parameters() if id(p) in roles}

    def check_rule(self, rule: str) -> None:
        """ValueError when a rule is made for another regime, residual multiplier or block."""
        chosen = rule_named(rule)
        if rule == "ntk" and self.regime != "kernel":
            raise InputError("Rule 'ntk' is for regime='kernel'; this network has 'feature'. Choose another rule.")
        if chosen.scales_depth and not self.block_names():
            raise InputError(f"Rule {rule!r} needs a residual branch; {type(self).__name__} has none. Choose 'mup'.")
        if chosen.exponent is not None and chosen.exponent != self.branch_exponent:
            raise InputError(
                f"Rule {rule!r} is made for branch_exponent={chosen.exponent:g}; this network has "
                f"{self.branch_exponent:g}. Build it with branch_exponent={chosen.exponent:g} or choose another rule."
            )
        if chosen.boosts_inner and not self._roles().get("inner"):
            raise InputError(
                f"Rule {rule!r} needs inner and outer roles; got {sorted(r for r, p in self._roles().items() if p)}. "
                "Build the network with block='two-layer' or use rule='depth-mup'."
            )

    def block_names(self) -> list[str]:
        return []

    def is_standard_normal(self, name: str) -> bool:
        owner = self.get_submodule(name.rpartition(".")[0])
        return name in ("U", "V") if owner is self else isinstance(owner, Linear)

    def decoupled(self) -> Self:
        """A copy with the same weights and independent feedback (Corollary 1), for dense weights."""
        twin = copy.deepcopy(self)
        twin.feedback = "independent"
        for name, layer in twin.named_modules():
            if isinstance(layer, FactoredLinear):
                raise InputError(
                    "A decoupled copy needs stored weights; build this network with feedback='independent'."
                )
            if isinstance(layer, DenseLinear):
                layer.decouple_(derive(self.seed, "decoupled", name))
        return twin

    @property
    def follows_eq_1(self) -> bool:
        """Whether every block is one matrix behind the activation, so that the stream is driven by its noise alone."""
        return False

    def reserve(self, samples: int) -> None:
        """Tell deferred layers how many samples they will see, so that growing never copies."""
        for layer in self.modules():
            if isinstance(layer, FactoredLinear):
                layer.reserve(samples)

    # ---- the arithmetic of one network ------------------------------------------------------------------------

    @property
    def branch(self) -> float:
        """m, the residual multiplier."""
        return 1.0

    def embed(self, x: Tensor) -> Tensor:
        """``U x / sqrt(d)``."""
        return nn.functional.linear(x, self.U) / math.sqrt(self.in_features)

    def product(self, layer: str, index: int, x: Tensor) -> Tensor:
        """``W x / sqrt(n)``."""
        return cast(Tensor, getattr(self, layer)[index](x)) / math.sqrt(self.width)

    def add(self, h: Tensor, layer: str, index: int, x: Tensor) -> Tensor:
        """``h + m W phi(x) / sqrt(n)``."""
        W = getattr(self, layer)[index]
        return h + (self.branch / math.sqrt(self.width)) * cast(Tensor, W(self.activation.phi(x)))

    def read(self, h: Tensor) -> Tensor:
        """``alpha / sqrt(n) V h``."""
        return nn.functional.linear(h, self.V) * (self.alpha / math.sqrt(self.width))

    # ---- for subclasses --------------------------------------------------------------------------------------

    def run(self, by: Arithmetic, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The hidden vectors h_0 .. h_L and, for two-layer blocks, x_1 .. x_L: the recursion, with any weights."""
        raise NotImplementedError

    def _roles(self) -> dict[Role, list[nn.Parameter]]:
        """Trainable parameters by role; ``outer`` writes the stream, ``inner`` is every earlier matrix."""
        raise NotImplementedError

    def _layer(self, name: str, index: int) -> Linear:
        path = Increment(derive(self.seed, "init", name), index, self.depth)
        seed = path if self.coupled else derive(self.seed, "init", name, index)
        return _LAYERS[self.weights](self.width, self.width, feedback=self.feedback, seed=seed, **self._factory)

    def _layers(self, name: str) -> nn.ModuleList:
        return nn.ModuleList([self._layer(name, index) for index in range(self.depth)])

    def _gaussian(self, name: str, *shape: int) -> Tensor:
        stream, dtype = generator(self.seed, "init", name), self._factory["dtype"]
        drawn = torch.randn(*shape, generator=stream, dtype=dtype, device="cpu")
        return drawn.to(self._factory["device"])

    def _checked(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor):
            raise InputTypeError(f"x must be a tensor; got {type(x).__name__}.")
        if x.dim() != 2 or x.shape[1] != self.in_features:
            raise InputError(f"x must be [batch, {self.in_features}]; got shape {list(x.shape)}.")
        if x.dtype != self.U.dtype:
            raise InputTypeError(f"x must be {self.U.dtype}, the dtype of the network; got {x.dtype}.")
        return check_finite("x", x)


def trainable(layers: Sequence[nn.Module]) -> list[nn.Parameter]:
    """Every parameter of these layers that takes a gradient."""
    return [p for layer in layers for p in layer.parameters() if p.requires_grad]
