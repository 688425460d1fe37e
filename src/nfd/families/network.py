"""The networks of the paper: residual ones (Eqs. 1, 6, 9) and the vanilla one of Fig. 4a."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast, get_args

import torch
from torch import Tensor, nn

from nfd.core import activations
from nfd.core.checks import (
    check_choice,
    check_count,
    check_device,
    check_dtype,
    check_finite,
    check_real,
    check_seed,
)
from nfd.core.errors import InputError, InputTypeError, StateError
from nfd.core.names import MOST, WIDEST, Block, Feedback, NetworkWeights, Order, Regime
from nfd.core.random import Increment, derive, generator
from nfd.scaling.rules import MAX_ETA_C, ROLES, SPECTRAL, Power, Role, rule_named

if TYPE_CHECKING:
    from nfd.scaling.base_group import BaseGroup
    from nfd.scaling.optimizers import Hyperparameter, Scale
    from nfd.scaling.plan import Plan


def _scale_of(setting: Hyperparameter, epsilon: Scale) -> Scale:
    """Return how a hyperparameter follows from the base's: only epsilon does."""
    from nfd.scaling.optimizers import Scale

    return epsilon if setting.follows == "epsilon" else Scale()


@dataclass
class Streams:
    """The vectors of one pass, with b inputs.

    ``outputs`` is [b, C], ``h`` [L+1, b, n], ``x_inner`` of two-layer blocks [L, b, n]. ``delta`` =
    sqrt(n)/alpha dLoss/dh, [L+1, b, n], does not scale with the width: it is the paper's g (Eq. 3)
    weighted by dLoss/df and summed over outputs. It exists after ``loss.backward()``.
    """

    outputs: Tensor
    gradient_scale: float
    layers: list[Tensor] = field(repr=False)
    inner: list[Tensor] = field(repr=False)

    @property
    def h(self) -> Tensor:
        """The residual stream after every block, [L+1, b, n]."""
        return torch.stack([h.detach() for h in self.layers])

    @property
    def x_inner(self) -> Tensor | None:
        """The pre-activation inside every two-layer block, [L, b, n]; None for other networks."""
        return torch.stack([x.detach() for x in self.inner]) if self.inner else None

    @property
    def delta(self) -> Tensor:
        """sqrt(n)/alpha dLoss/dh, [L+1, b, n]."""
        if any(h.grad is None for h in self.layers):
            raise StateError(
                "delta exists after loss.backward() on a loss of these outputs; it was not called "
                "yet."
            )
        return self.gradient_scale * torch.stack([cast(Tensor, h.grad) for h in self.layers])


# ---- Dense layers, with or without feedback of their own


class DenseLinear(nn.Module):
    """``y = x W'`` with ``W`` [out_features, in_features], initialised as i.i.d. N(0, 1).

    ``feedback`` says which matrix carries gradients backward: W itself (``"shared"``), an
    independent initial copy that receives the same gradient, so under any optimizer the same data
    updates (``"independent"``), or a copy that is never updated (``"static"``).
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        feedback: Feedback = "shared",
        seed: int | Increment = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.feedback = feedback
        source = seed if isinstance(seed, Increment) else Increment(seed)

        def gaussian(name: str) -> Tensor:
            # drawn on the CPU, so that initial weights are the same on every device
            empty = torch.empty(out_features, in_features, dtype=dtype, device="cpu")
            return source.normal_(empty, "init", name).to(device)

        self.weight = nn.Parameter(gaussian("forward"))
        if feedback != "shared":
            self.feedback_weight = nn.Parameter(
                gaussian("backward"), requires_grad=feedback == "independent"
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., in_features]`` to ``[..., out_features]``."""
        if self.feedback == "shared":
            return nn.functional.linear(x, self.weight)
        return cast(Tensor, _Decoupled.apply(x, self.weight, self.feedback_weight))  # type: ignore[no-untyped-call]


class _Decoupled(torch.autograd.Function):
    """``x W'`` whose input gradient goes through another matrix.

    Both matrices get the gradient of W.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, feedback_weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, feedback_weight)
        return x @ weight.mT

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = grads
        (x, feedback_weight) = ctx.saved_tensors
        _, weight_needs, feedback_needs = ctx.needs_input_grad
        update = None
        if weight_needs or feedback_needs:
            update = g.flatten(0, -2).T @ x.flatten(0, -2)
        return g @ feedback_weight, update, update if feedback_needs else None


# ---- What the networks share


_ROLES: dict[str, Role] = {
    "U": "input",
    "inner": "inner",
    "outer": "outer",
    "hidden": "hidden",
    "V": "readout",
}


class Network(nn.Module):
    """The base class of the paper's networks.

    ``h_0 = U x / sqrt(d)``, then hidden layers, then ``f = alpha / sqrt(n) V h_L``. All weights are
    initialised as N(0, 1). ``alpha`` is ``1 / sqrt(n)`` in the feature-learning regime and 1
    in the kernel regime (sections 2 and 4.2). A subclass defines the hidden layers by ``run``.
    """

    default_rule: str = "mup"
    default_optimizer: str = "sgd"
    horizon: float = 1.0
    branch_exponent: float = 0.0
    coupled: int = 0
    """The depth at which every layer is one draw of its path; 0 without a path.

    The layers of a coupled network are increments of one path.
    """
    # where streams are asked for
    _passes: list[tuple[list[Tensor], list[Tensor]]] | None = None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        width: int,
        depth: int,
        *,
        activation: str = "relu",
        regime: Regime = "feature",
        weights: NetworkWeights = "dense",
        feedback: Feedback = "shared",
        resolution: float | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.in_features = check_count("in_features", in_features, maximum=WIDEST)
        self.out_features = check_count("out_features", out_features, maximum=WIDEST)
        self.width = check_count("width", width, maximum=WIDEST)
        self.depth = check_count("depth", depth, maximum=MOST)
        self.activation = activations.activation(activation)
        self.regime = check_choice("regime", regime, get_args(Regime))
        self.weights = check_choice("weights", weights, get_args(NetworkWeights))
        self.feedback = check_choice("feedback", feedback, get_args(Feedback))
        if resolution is not None and self.weights != "structured":
            raise InputError(
                f"resolution is for weights='structured'; got {resolution!r} for {weights!r}. Drop "
                "it."
            )
        self.resolution = resolution
        self.seed = check_seed(seed)
        self._factory: dict[str, Any] = {
            "dtype": check_dtype(dtype),
            "device": check_device(device),
        }
        self.U = nn.Parameter(self._gaussian("U", self.width, self.in_features))
        self.V = nn.Parameter(self._gaussian("V", self.out_features, self.width))
        self._add_layers()

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs [batch, in_features] to outputs [batch, out_features].

        Outputs are Theta(alpha) before training.
        """
        layers, inner = self.run(self._checked(x))
        if self._passes is not None:
            for h in layers:
                if h.requires_grad:
                    h.retain_grad()
            self._passes.append((layers, inner))
        return self.read(layers[-1])

    def streams(self, x: Tensor) -> Streams:
        """Run a forward pass and return its outputs with all hidden vectors.

        After ``backward()`` the result also has their gradients.

        Args:
            x: [batch, in_features]. Deferred weights record it as any forward pass; use training
                mode for ``delta``.
        """
        with self.watched() as passes:
            outputs = self(x)
        ((layers, inner),) = passes
        return Streams(outputs, math.sqrt(self.width) / self.alpha, layers, inner)

    @contextmanager
    def watched(self) -> Iterator[list[tuple[list[Tensor], list[Tensor]]]]:
        """A context that lists (h_0 .. h_L) and (x_1 .. x_L) of its one forward pass.

        PyTorch keeps their gradients.
        """
        self._passes = passes = list[tuple[list[Tensor], list[Tensor]]]()
        try:
            yield passes
        finally:
            self._passes = None

    @classmethod
    def settings_of(cls, rule: str) -> dict[str, Any]:
        """Return the constructor's arguments that a rule decides, such as the regime."""
        return {"regime": rule_named(rule).regime}

    def reserve(self, samples: int) -> None:
        """Reserve memory for a training run of this many samples.

        Only layers without stored weights need it.
        """
        for layer in self.modules():
            if getattr(layer, "is_deferred", False):
                cast(Any, layer).reserve(samples)

    # ---- how it is scaled: roles, multipliers and rates, under every rule

    @property
    def alpha(self) -> float:
        """The output multiplier in ``f = alpha / sqrt(n) V h_L``.

        It is 1/sqrt(n), or 1 in the kernel regime.
        """
        return 1 / math.sqrt(self.width) if self.regime == "feature" else 1.0

    def param_groups(
        self, lr: float, rule: str | None = None, optimizer: str = "sgd"
    ) -> list[dict[str, Any]]:
        """Group parameters by role, with their learning rates.

        For SGD these are ``lr n`` times the rule's depth factor (kernel: no n). For Adam they are
        ``lr / sqrt(n)`` for hidden matrices, ``lr`` for U and V, times the depth factor, each with
        its own epsilon: 1e-8 times how the entries of its gradient scale.

        Args:
            lr: of the network of width 1 and depth 1, the paper's ``eta_c``: it does not depend on
                size; at least 0.
            rule: a name of ``nfd.scaling.rules``; its exponent must be this network's
                ``branch_exponent``. Default ``"depth-mup"`` for ``ResNet``, ``"mup"`` for ``MLP``.
            optimizer: ``"sgd"``, ``"adam"``, or another registered one that takes every tensor.

        Raises:
            ValueError: when the rule belongs to another residual multiplier or needs two-layer
                blocks; when the optimizer is not exact for these weights or this rule.
        """
        from nfd.scaling.optimizers import EPS

        groups = list[dict[str, Any]]()
        for base in self.base_groups(lr, rule, optimizer):
            group: dict[str, Any] = {
                "params": [],
                "lr": base.lr * base.lr_scale,
                "role": base.roles[0],
            }
            if base.law.setting(EPS.name) is not None:
                group[EPS.name] = base.scale(EPS)(EPS.name, EPS.default)
            group["params"] = base.open_parameters([EPS.name], group)
            groups.append(group)
        return groups

    def base_groups(
        self, lr: float, rule: str | None = None, optimizer: str = "sgd"
    ) -> list[BaseGroup]:
        """Group the parameters that are stepped alike, with settings of the base.

        Arguments and errors are as in ``param_groups``.
        """
        from nfd.scaling.base_group import BaseGroup
        from nfd.scaling.find_law import check_optimizer, law_of
        from nfd.scaling.optimizers import Scale

        lr = check_real("lr", lr, least=0.0, below=MAX_ETA_C)
        law = law_of(optimizer)
        if law.rest is not None:
            raise InputError(
                f"optimizer={law.name!r} takes only matrices. Store them, weights='dense', and use "
                f"nfd.plan(net, optimizer={law.name!r})."
            )
        rule = self.default_rule if rule is None else rule
        # in the kernel regime rates are the base's at every width
        base_width = 1 if self.regime == "feature" else None
        rates = self.own_plan(rule, law.name, base_width, 1)
        check_optimizer(law.name, rule=rule, weights=self.weights)
        groups = dict[tuple[Any, ...], BaseGroup]()
        roles = self.named_roles()
        for name in sorted(roles, key=lambda name: ROLES.index(roles[name])):
            role = roles[name]
            rate = rates.rate(name)
            epsilon = Scale(rates.epsilon(name))
            key = (rate, role, epsilon if law.epsilon else None)
            if key not in groups:
                scale = partial(_scale_of, epsilon=epsilon)
                groups[key] = BaseGroup([], [role], lr, rate, law, scale, {}, {})
            groups[key].parameters.append(self.get_parameter(name))
        return list(groups.values())

    def own_plan(self, rule: str, optimizer: str, width: int | None, depth: int | None) -> Plan:
        """Return its plan from a base of this width and depth, its own where None.

        Trained weights are initialised as N(0, 1), and multiplied in the forward pass by constants
        that scale with width and depth.

        Raises:
            ValueError: when the rule is for another network.
        """
        # a network by itself needs no plan
        from nfd.scaling.entries import Entry, Ratios, Start, layout_of
        from nfd.scaling.model import tensors
        from nfd.scaling.plan import Plan

        self.check_rule(rule)
        m = self.width / (width or self.width)
        deeper = self.depth / (depth or self.depth)
        roles = self.named_roles()
        entries = dict[str, Entry]()
        for name, t in tensors(self).items():
            role = roles.get(name, "vector")
            is_trained = name in roles
            ratios = Ratios(1.0 if role == "input" else m, 1.0 if role == "readout" else m, deeper)
            entries[name] = Entry(
                t.shape,
                role,
                type(self).__name__ if is_trained else "fixed",
                math.prod(t.shape[1:]),
                ratios,
                Start(1.0, None),
                self._multiplier(role) if is_trained else Power(),
                "out-in" if role in SPECTRAL and self.weights == "dense" else layout_of(t),
            )
        return Plan(
            cast(Any, rule), optimizer, m, deeper, entries, tuple(self.block_names()), {}, ()
        )

    def _multiplier(self, role: Role) -> Power:
        """Return how the forward multiplier of weights with this role scales."""
        widths = {"input": 0.0, "readout": 0.5 if self.regime == "kernel" else 1.0}
        depth = -self.branch_exponent if role == "outer" else 0.0
        return Power(fan_in=-widths.get(role, 0.5), depth=depth)

    def scale(self, role: Role) -> float:
        """Return the forward multiplier of weights with this role."""
        if role == "input":
            return 1 / math.sqrt(self.in_features)
        if role == "readout":
            return self.alpha / math.sqrt(self.width)
        return 1 / math.sqrt(self.width)

    def named_roles(self) -> dict[str, Role]:
        """Return the role of every trainable parameter, by its name.

        Raises:
            ValueError: naming parameters that a subclass added, which have no learning rate.
        """
        names = [name for name, p in self.named_parameters() if p.requires_grad]
        added = [name for name in names if name.partition(".")[0] not in _ROLES]
        if added:
            raise InputError(
                f"{type(self).__name__} has trainable parameters without a role, and so without a "
                f"rate: {', '.join(map(repr, added))}. Freeze them with requires_grad_(False), or "
                "make the model a plain nn.Module, in which nfd.plan finds roles by itself."
            )
        return {name: _ROLES[name.partition(".")[0]] for name in names}

    def check_rule(self, rule: str) -> None:
        """Raise ValueError when a rule is for another regime, residual multiplier or block."""
        chosen = rule_named(rule)
        if chosen.regime == "kernel" and self.regime != "kernel":
            raise InputError(
                f"Rule {rule!r} is for regime='kernel'; this network has 'feature'. Choose another "
                "rule."
            )
        if chosen.scales_depth and not self.block_names():
            raise InputError(
                f"Rule {rule!r} needs a residual branch; {type(self).__name__} has none. Choose "
                "'mup'."
            )
        if chosen.exponent is not None and chosen.exponent != self.branch_exponent:
            raise InputError(
                f"Rule {rule!r} is made for branch_exponent={chosen.exponent:g}; this network has "
                f"{self.branch_exponent:g}. Build it with branch_exponent={chosen.exponent:g} or "
                "choose another rule."
            )
        roles = set(self.named_roles().values())
        if chosen.boosts_inner and "inner" not in roles:
            raise InputError(
                f"Rule {rule!r} needs inner and outer roles; got {sorted(roles)}. "
                "Build the network with block='two-layer' or use rule='depth-mup'."
            )

    def block_names(self) -> list[str]:
        """Name the modules that write the residual stream, one per block.

        A network without a stream has none.
        """
        return []

    # ---- for subclasses

    def run(self, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Compute the hidden vectors (h_0 .. h_L) of x [batch, d], each [batch, n].

        The second list is (x_1 .. x_L) of two-layer blocks, or empty.
        """
        raise NotImplementedError

    def embed(self, x: Tensor) -> Tensor:
        """Return ``U x / sqrt(d)``."""
        return nn.functional.linear(x, self.U) / math.sqrt(self.in_features)

    def read(self, h: Tensor) -> Tensor:
        """Return ``alpha / sqrt(n) V h``."""
        return nn.functional.linear(h, self.V) * (self.alpha / math.sqrt(self.width))

    def _add_layers(self) -> None:
        """Make the hidden layers, where they follow from the arguments of every network."""

    def _layers(self, name: str) -> nn.ModuleList:
        make: Callable[..., nn.Module] = DenseLinear
        if self.weights != "dense":
            # stored weights do without this room
            from nfd.wide.layers import DeferredLinear, StructuredLinear

            make = DeferredLinear if self.weights == "deferred" else StructuredLinear
        options = self._factory | {"feedback": self.feedback}
        if self.resolution is not None:
            options["resolution"] = self.resolution
        layers = nn.ModuleList()
        for index in range(self.depth):
            seed: int | Increment = derive(self.seed, "init", name, index)
            if self.coupled:
                path = derive(self.seed, "init", name)
                seed = Increment(path, index, self.depth, self.coupled)
            layers.append(make(self.width, self.width, seed=seed, **options))
        return layers

    def _gaussian(self, name: str, *shape: int) -> Tensor:
        stream = generator(self.seed, "init", name)
        dtype = self._factory["dtype"]
        drawn = torch.randn(*shape, generator=stream, dtype=dtype, device="cpu")
        return drawn.to(self._factory["device"])

    def _checked(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor):
            raise InputTypeError(f"x must be a tensor; got {type(x).__name__}.")
        if x.dim() != 2 or x.shape[1] != self.in_features:
            raise InputError(f"x must be [batch, {self.in_features}]; got shape {list(x.shape)}.")
        if x.dtype != self.U.dtype:
            raise InputTypeError(
                f"x must be {self.U.dtype}, the dtype of the network; got {x.dtype}."
            )
        return check_finite("x", x)


# ---- The residual networks of the paper (Eqs. 1, 6, 9) in one class


# |log| of a residual multiplier that float32 holds
_FURTHEST = 60.0


class ResNet(Network):
    """A residual network of width n, depth L and horizon T.

    Its residual multiplier is ``m = sqrt(T) L**-a``.

    ==================  =============================================================  ==========
    pre, one-layer      ``h_l = h_{l-1} + m W_l phi(h_{l-1}) / sqrt(n)``               Eq. 1
    pre, two-layer      ``x_l = W_{l,1} h_{l-1} / sqrt(n)``,                           Eqs. 6, 23
                        ``h_l = h_{l-1} + m W_{l,2} phi(x_l) / sqrt(n)``
    post, one-layer     ``h_0 = phi(U x / sqrt(d))``,                                  Eq. 9
                        ``h_l = h_{l-1} + m phi(W_l h_{l-1} / sqrt(n))``
    ==================  =============================================================  ==========

    Otherwise ``h_0 = U x / sqrt(d)``; always ``f = alpha / sqrt(n) V h_L``. All weights are
    initialised as N(0, 1).

    Args:
        in_features: d, the size of an input.
        out_features: C, the number of outputs.
        width: n, at least 1.
        depth: L blocks, at least 1.
        horizon: T > 0.
        block: ``"one-layer"`` or ``"two-layer"``.
        order: ``"pre"`` or ``"post"`` (the paper defines post for one-layer blocks only).
        branch_exponent: a; 0.5 is depth-muP, 0 muP, 1 CompleteP.
        coupled: whether the layers are increments of one Brownian path. Then networks of the same
            seed and width with L, 2L, 4L, ... blocks are finer cuts of the same path; the law of
            each network stays the same. A number is the depth at which every layer is a
            single draw (True: 1): near it networks are cheapest. Only networks with the same number
            are coupled (``nfd.core.random``).
        **settings: of ``nfd.MLP`` too.

            activation: ``"relu"``, ``"tanh"``, ``"erf"``, ``"gelu"`` or ``"identity"``.
            regime: ``"feature"`` (alpha = 1/sqrt(n)) or ``"kernel"`` (alpha = 1).
            weights: ``"dense"``; ``"deferred"`` for hidden matrices that are never stored, with
            exactly the law of Gaussian ones; or ``"structured"`` for matrices with fast products,
            with the limit of Gaussian ones. feedback: which hidden matrices carry gradients
            backward: ``"shared"`` (the standard), ``"independent"`` (the paper's decoupled one) or
            ``"static"``. resolution: of structured layers (``nfd.StructuredLinear``), below
            which they leave out directions; None for none.
            seed: of every weight; dense and deferred networks share U and V for the same seed.
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
        block: Block = "one-layer",
        order: Order = "pre",
        branch_exponent: float = 0.5,
        coupled: bool | int = False,
        **settings: Any,
    ) -> None:
        super().__init__(in_features, out_features, width, depth, **settings)
        self.horizon = check_real("horizon", horizon, above=0.0)
        self.block = check_choice("block", block, get_args(Block))
        self.order = check_choice("order", order, get_args(Order))
        self.branch_exponent = check_real("branch_exponent", branch_exponent)
        if abs(self.branch_exponent) * math.log(self.depth) > _FURTHEST:
            raise InputError(
                "branch_exponent must leave depth**-branch_exponent a number; got "
                f"{self.branch_exponent:g} at depth {self.depth}. Choose one between 0 and 1."
            )
        if self.order == "post" and self.block == "two-layer":
            raise InputError(
                "order='post' is defined for block='one-layer' (Eq. 9); got block='two-layer'."
            )
        if isinstance(coupled, bool):
            self.coupled = int(coupled)
        else:
            self.coupled = check_count("coupled", coupled, maximum=MOST)
        self.outer = self._layers("outer")
        self.inner = self._layers("inner") if self.block == "two-layer" else None

    @classmethod
    def settings_of(cls, rule: str) -> dict[str, Any]:
        exponent = rule_named(rule).exponent
        if exponent is None:
            exponent = 0.5
        return super().settings_of(rule) | {"branch_exponent": exponent}

    @property
    def branch(self) -> float:
        """m, the residual multiplier ``sqrt(T) L**-a``."""
        return math.sqrt(self.horizon) * math.pow(self.depth, -self.branch_exponent)

    def scale(self, role: Role) -> float:
        """Return the multiplier of weights with this role, up to the activation that follows."""
        multiplier = super().scale(role)
        if role == "outer" and self.order == "pre":
            return multiplier * self.branch
        return multiplier

    def run(self, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        phi = self.activation.phi
        m = self.branch
        root = math.sqrt(self.width)
        layers = [self.embed(x)]
        inner = list[Tensor]()
        if self.order == "post":
            layers = [phi(layers[0])]
        for index, W in enumerate(self.outer):
            h = layers[-1]
            if self.order == "post":
                # Eq. 9
                layers.append(torch.add(h, phi(W(h) / root), alpha=m))
                continue
            if self.inner is not None:
                inner.append(self.inner[index](h) / root)
            # Eqs. 1, 6
            layers.append(torch.add(h, W(phi(inner[-1] if inner else h)), alpha=m / root))
        return layers, inner

    def block_names(self) -> list[str]:
        return [f"outer.{index}" for index in range(self.depth)]


# ---- The vanilla deep network of Fig. 4a: no skip connections


class MLP(Network):
    """The vanilla network: no skip connections.

    ``h_0 = U x / sqrt(d)``, ``h_l = W_l phi(h_{l-1}) / sqrt(n)``, ``f = alpha / sqrt(n) V h_L``.

    Its learning rates follow ``rule="mup"``: ``eta_c n`` everywhere. Arguments and errors as in
    ``nfd.ResNet``.

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
