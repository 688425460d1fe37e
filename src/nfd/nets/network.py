"""What every network of the paper shares: input and output maps, hidden layers, and streams."""

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
    LESS_MEMORY,
    MOST,
    WIDEST,
    InputError,
    InputTypeError,
    check_choice,
    check_count,
    check_device,
    check_dtype,
    check_finite,
    check_seed,
    out_of_memory,
)
from nfd.core.names import Feedback, NetworkWeights, Regime
from nfd.core.random import Increment, derive, generator
from nfd.nets.deferred import DeferredLinear
from nfd.nets.dense import DenseLinear
from nfd.nets.factored import FactoredLinear
from nfd.nets.factored_state import FEEDBACKS
from nfd.nets.recorded import RecordedLinear
from nfd.nets.scaled_network import ScaledNetwork
from nfd.nets.streams import Arithmetic, Streams
from nfd.nets.structured import StructuredLinear
from nfd.scaling.rules import rule_named

Linear = DenseLinear | FactoredLinear | RecordedLinear

_LAYERS: dict[str, Callable[..., Linear]] = {
    "dense": DenseLinear,
    "deferred": DeferredLinear,
    "structured": StructuredLinear,
}


class Network(ScaledNetwork):
    """The base class of the paper's networks: ``h_0 = U x / sqrt(d)``, hidden layers, ``f = alpha / sqrt(n) V h_L``.

    All weights start as N(0, 1). ``alpha`` is ``1 / sqrt(n)`` in the feature-learning regime and 1 in the kernel regime
    (sections 2 and 4.2). A subclass defines the hidden layers by ``run``. If ``run`` uses only the products of
    ``Arithmetic`` and entrywise functions, set ``stackable = True`` in its body: then many networks train as one.
    """

    stackable: ClassVar[bool] = False
    coupled: int = 0
    """The depth at which every layer is one draw of the path whose increments the layers are; 0 without a path."""

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
        self.regime = cast(Regime, check_choice("regime", regime, get_args(Regime)))
        self.weights = cast(NetworkWeights, check_choice("weights", weights, _LAYERS))
        self.feedback = cast(Feedback, check_choice("feedback", feedback, FEEDBACKS))
        if resolution is not None and self.weights == "dense":
            raise InputError(
                f"resolution is for weights='deferred' or 'structured'; got {resolution!r} for 'dense'. Drop it."
            )
        self.resolution = resolution
        self.seed = check_seed(seed)
        self._factory: dict[str, Any] = {"dtype": check_dtype(dtype), "device": check_device(device)}
        try:
            self.U = nn.Parameter(self._gaussian("U", self.width, self.in_features))
            self.V = nn.Parameter(self._gaussian("V", self.out_features, self.width))
            self._add_layers()
        except (MemoryError, RuntimeError) as error:
            if out_of_memory(error):
                error.add_note(f"A network of width {self.width:,} with {self.weights} weights. {LESS_MEMORY}")
            raise

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [batch, out_features] of inputs [batch, in_features]; Theta(alpha) before training."""
        return self.read(self.run(self, self._checked(x))[0][-1])

    def streams(self, x: Tensor) -> Streams:
        """Run a forward pass and return its outputs with all hidden vectors, and after ``backward()`` their gradients.

        Args:
            x: [batch, in_features]. Deferred weights record it as any forward pass; use training mode for ``delta``.
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
        """A context in which every forward pass calls ``see`` with (h_0 .. h_L) and (x_1 .. x_L)."""
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
        """ValueError unless a forward pass called ``run`` once; ``made`` is the number of calls."""
        if made != 1:
            raise InputError(
                f"{type(self).__name__}.forward must make one pass through run() to have streams; it made {made}. "
                "Call super().forward(x) once in it."
            )

    @classmethod
    def settings_of(cls, rule: str) -> dict[str, Any]:
        """The arguments of the constructor that follow from a rule, such as ``{"regime": "feature"}``."""
        return {"regime": rule_named(rule).regime}

    def is_standard_normal(self, name: str) -> bool:
        owner = self.get_submodule(name.rpartition(".")[0])
        return name in ("U", "V") if owner is self else isinstance(owner, Linear)

    def decoupled(self) -> Self:
        """A copy with the same weights whose gradients pass through independent ones (Corollary 1).

        Raises:
            ValueError: if the weights are not stored: build the network with ``feedback="independent"``.
        """
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
        """Whether the blocks are those of Eq. 1: one matrix each, which acts on the activation of the stream."""
        return False

    def reserve(self, samples: int) -> None:
        """Reserve memory for a training of this many samples; only layers without stored weights need it."""
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
        """The hidden vectors (h_0 .. h_L) and, for two-layer blocks, (x_1 .. x_L), each [batch, n].

        Args:
            by: the products with weights, of this network or of a stack of them.
            x: [batch, in_features].
        """
        raise NotImplementedError

    def _add_layers(self) -> None:
        """Make the hidden layers, where they follow from the arguments of every network."""

    def _layer(self, name: str, index: int) -> Linear:
        seed: int | Increment = derive(self.seed, "init", name, index)
        if self.coupled:
            seed = Increment(derive(self.seed, "init", name), index, self.depth, self.coupled)
        options = self._factory if self.resolution is None else self._factory | {"resolution": self.resolution}
        return _LAYERS[self.weights](self.width, self.width, feedback=self.feedback, seed=seed, **options)

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
