"""``EquivariantOptimizer``: optimizers that are exact for layers without stored weights, by their rule for one matrix.

A rule U is exact in the factors of such a layer when it is equivariant: ``U(P G Q') = P U(G) Q'`` for P and Q with
orthonormal columns. Gradients of the layer are ``P G Q'``, so the rule acts on the small matrix G alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from nfd.core.errors import InputError
from nfd.nets.equivariance import check_equivariance
from nfd.nets.factored_optimizer import FactoredOptimizer
from nfd.nets.fingerprint import Watched
from nfd.nets.guarded import Guarded
from nfd.nets.orthogonal import TOLERANCE


class EquivariantOptimizer(FactoredOptimizer):
    """Steps matrices, stored or not, by a rule U that acts on a matrix as a whole.

    With the gradients G_1 to G_t of W and a factor c of its shape,

        W <- (1 - lr wd) W - lr c U(G_1, ..., G_t)

    A subclass defines U by ``direction``, its state tensors by ``states``, and its own settings by ``__init__``::

        class NormalisedSGD(nfd.EquivariantOptimizer):
            states = {"average": ("rows", "columns")}

            def __init__(self, params, lr=1e-3, weight_decay=0.0, momentum=0.9):
                super().__init__(params, lr=lr, weight_decay=weight_decay, momentum=momentum)

            def direction(self, gradient, state, group):
                average = state["average"].lerp_(gradient, 1 - group["momentum"])
                return average / average.norm().clamp_min(1e-30)

    The rule is exact for ``DeferredLinear`` and ``StructuredLinear`` if it is equivariant, ``U(P G Q') = P U(G) Q'``
    for P and Q with orthonormal columns: it may depend on singular values and on products such as ``G G'``, but not on
    single entries, nor on the size of the matrix that it is given. Before the first step of such a layer the rule is
    measured on random matrices whose bases grow, and is refused if it is not equivariant. States grow with the layer,
    are saved and loaded; schedules, accumulation and ``clip_grad_norm_`` act as on dense weights.

    Weight decay is decoupled: it scales W, that is, both parameters of a layer. Coupled decay would put ``s W_0`` into
    the gradient, where only a linear rule leaves it a multiple of W_0: ``nfd.SGD`` has it.

    Args:
        params: matrices, and all parameters of layers without stored weights except biases.
        lr, weight_decay: at least 0.
        **settings: further settings of a group, with their defaults.

    Attributes:
        states: of the class: names of the tensors that the rule stores for a matrix, zero at the start. Each has the
            side of W along which every axis grows: ``("rows", "rows")`` for a sum of ``G G'``, ``()`` for a number.
        is_proved: of the class: whether the rule is known to be equivariant and needs no measurement; not inherited.

    Raises:
        ValueError, TypeError: if a parameter is not a matrix, for unknown settings and values out of range, and for
            layers that do not fit ``states``; by the first ``step``, for a rule that is not equivariant.
        RuntimeError: by ``step``, before anything changes, if the gradient of a layer was edited in another way than
            scaling, or if the two parameters of a layer would be updated differently.

    Source: docs/mathematics/deferred-decisions.md.
    """

    kind = "nfd.EquivariantOptimizer"  # that of the class where it says none
    is_proved: ClassVar[bool] = False  # whether the rule needs no measurement; of this class alone
    _measured: int = 0  # groups whose rule was measured

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.kind = cls.__dict__.get("kind", cls.__name__)
        cls.is_proved = cls.__dict__.get("is_proved", False)

    def __init__(self, params: Any, lr: float = 1e-3, weight_decay: float = 0.0, **settings: Any) -> None:
        settings = {"lr": lr, "weight_decay": weight_decay, **settings}
        self.check_settings(settings, "the options")
        super().__init__(self.check_params(params), settings)

    def direction(self, gradient: Tensor, state: dict[str, Tensor], group: Mapping[str, Any]) -> Tensor:
        """The rule U: the direction in which one matrix moves at rate 1.

        Args:
            gradient: [rows, columns]; must not be changed.
            state: the tensors of ``states``, to be updated in place.
            group: the settings, such as ``group["momentum"]``.

        Returns:
            [rows, columns]; the step subtracts this times the rate and ``shape_factor``.
        """
        raise NotImplementedError(f"{self.kind} needs a direction(gradient, state, group), its rule for one matrix.")

    def shape_factor(self, group: Mapping[str, Any], rows: int, columns: int) -> float:
        """The factor c of the rate for a W [rows, columns]; 1 unless a subclass says otherwise."""
        return 1.0

    @property
    def options(self) -> frozenset[str]:
        """The settings that a parameter group may have."""
        return frozenset({*self.defaults, "use_muon"})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of matrices; settings that it does not have are the defaults."""
        super().add_param_group(param_group)
        try:
            for p in self.param_groups[-1]["params"]:
                self._check_param(p)
        except InputError:
            del self.param_groups[-1]
            raise
        self._warn_of_resolution(self.param_groups[-1]["params"])

    def apply_rule(self) -> None:
        """Update all parameters that have a gradient; ``step`` calls it."""
        self._check_rule()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.mul_(1 - float(group["lr"]) * group["weight_decay"])
                    if p.dim() == 2 and p.numel():
                        self._move(p, p.grad, group)

    def _move(self, p: Tensor, grad: Tensor, group: Mapping[str, Any]) -> None:
        """Add the part of a step that comes from the gradient."""
        state = self.state[p]
        for name in self.states.keys() - state.keys():
            state[name] = torch.zeros(self._sizes(name, p), dtype=p.dtype, device=p.device)
        update = self.direction(grad.numbers if isinstance(grad, Watched) else grad, state, group)
        shape = p.stands_for if isinstance(p, Guarded) else p.shape
        p.add_(update, alpha=-float(group["lr"]) * self.shape_factor(group, *shape))

    def _check_rule(self) -> None:
        """Measure the rule with the settings of every group that holds a layer and was not measured before."""
        before, self._measured = self._measured, len(self.param_groups)
        try:
            for group in self.param_groups[before:]:
                layers = [p for p in group["params"] if isinstance(p, Guarded)]
                if layers and not self.is_proved:
                    check_equivariance(self, group, transposed=not all(p.has_two_bases for p in layers))
        except BaseException:
            self._measured = before
            raise

    def _warn_of_resolution(self, params: Sequence[Tensor]) -> None:
        """Warn where layers leave out directions that the rule may step as far as any other."""
        coarsest = max((p.resolution for p in params if isinstance(p, Guarded)), default=0.0)
        if coarsest > max(TOLERANCE.values()):
            warnings.warn(
                f"Layers with resolution={coarsest:g} leave out short directions, but {self.kind} steps these as far "
                "as long ones, so that nothing bounds the difference: inputs with a large common offset differ in "
                "short directions alone. Leave resolution out, or compare with a narrower network without one.",
                stacklevel=5,
            )

    def _check_param(self, p: Tensor) -> None:
        """ValueError when the rule has no form for a parameter."""
        if not isinstance(p, Guarded):
            if p.dim() != 2:
                raise InputError(
                    f"{self.kind} steps matrices; params hold one of shape {list(p.shape)}. Give vectors, embeddings "
                    "and readouts to torch.optim.AdamW, or plan with optimizer='muon' or 'shampoo', which does."
                )
        elif not p.has_two_bases and any(len(set(sides)) < len(sides) for sides in self.states.values()):
            n = max(p.stands_for)
            raise InputError(
                f"{self.kind} keeps a square matrix for each side of W. The update of a {p.owner} has a basis on one "
                f"side alone, so that the matrix of the other would be as large as W, up to {n} x {n}. Use "
                "nfd.DeferredLinear (weights='deferred'), or nfd.Muon, which keeps no such matrix."
            )
