"""``Stack``: networks of one shape trained as one, their weights side by side in batched matrix products.

The weights of a stack are effective ones: the forward multipliers of a network are folded into its start and its
rates, by the identity of ``nfd.scaling.rules``. So networks that differ in seed, rate, horizon, rule or regime differ
only in numbers, and share every product: ``[R, b, n] x [R, n, n]``. Nothing of one enters another, so that one that
diverges leaves the rest as they were.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from nfd.core.activations import Activation
from nfd.nets.dense import DenseLinear, decoupled_product
from nfd.nets.network import Network
from nfd.nets.stacked_optimizers import by_name, stacked_group
from nfd.scaling.forward_multipliers import roles_of
from nfd.scaling.laws import law_of

_REPLACED = ("forward", "embed", "product", "add", "read")  # which a stack computes in place of its networks
_RECURSION = ("run", "branch", "alpha", "scale")  # which it takes from them


class Stack(nn.Module):
    """R networks with dense weights as one module, ``[b, d]`` to ``[R, b, C]``, equal to each of them to rounding.

    Args:
        nets: networks that differ only in seed, horizon, branch exponent and regime.

    Raises:
        ValueError: when they differ in anything else, hold deferred weights, or compute in a way of their own.
    """

    def __init__(self, nets: Sequence[Network]) -> None:
        super().__init__()
        for net in nets:
            _check_plain(net)
        forms = {_form(net) for net in nets}
        if len(forms) != 1 or any(net.weights != "dense" for net in nets):
            raise ValueError(
                f"networks of a stack must hold dense weights and have one shape; got {sorted(map(str, forms))}."
            )
        # their recursion and their rates are needed, not their weights; a tuple hides them from nn.Module
        self._nets = tuple(copy.deepcopy(net).to("meta") for net in nets)
        roles = roles_of(nets[0])
        self._scales = {
            name: _column([net.scale(_role_of(name, roles)) for net in nets], tensor)
            for name, tensor in nets[0].named_parameters()
        }
        for name, tensor in nets[0].named_parameters():
            together = torch.stack([net.get_parameter(name).detach() for net in nets])
            effective = together * self._scales[name]
            self.register_parameter(_flat(name), nn.Parameter(effective, requires_grad=tensor.requires_grad))
        self.branch: Tensor = _column([net.branch for net in nets], nets[0].U)

    def forward(self, x: Tensor) -> Tensor:
        """``[b, d]`` to ``[R, b, C]``."""
        return self.read(self._nets[0].run(self, x)[0][-1])

    def param_groups(
        self, eta_c: Sequence[float], rules: Sequence[str], optimizer: str = "sgd"
    ) -> list[dict[str, Any]]:
        """Parameters by role with a column ``[R, 1, 1]`` of rates (and Adam's epsilons), one per network."""
        settings = zip(self._nets, eta_c, rules, strict=True)
        alone = [by_name(net, net.param_groups(rate, rule, optimizer)) for net, rate, rule in settings]
        return self.folded(alone, optimizer)

    def folded(self, alone: Sequence[Mapping[str, Mapping[str, Any]]], optimizer: str) -> list[dict[str, Any]]:
        """The same from the settings that the parameters of every network have, by name."""
        law = law_of(optimizer)
        groups = []
        for name in alone[0]:
            scale = self._scales[name]
            group = stacked_group(self.get_parameter(_flat(name)), [settings[name] for settings in alone])
            turn = scale ** (1 + law.degree)
            group["lr"] = _column(group["lr"], scale) * turn
            if "eps" in group:
                group["eps"] = _column(group["eps"], scale) / scale
            if "weight_decay" in group:
                group["weight_decay"] = _column(group["weight_decay"], scale) / turn
            groups.append(group)
        return groups

    # ---- the arithmetic of a stack: effective weights, no multipliers -----------------------------------------

    def embed(self, x: Tensor) -> Tensor:
        """``U x``, ``[b, d]`` to ``[R, b, n]``."""
        return x @ self.get_parameter("U").mT

    def product(self, layer: str, index: int, x: Tensor) -> Tensor:
        """``W x``."""
        W, B = self._weights(layer, index)
        return torch.bmm(x, W.mT) if B is W else decoupled_product(x, W, B)

    def add(self, h: Tensor, layer: str, index: int, x: Tensor) -> Tensor:
        """``h + W phi(x)``."""
        W, B = self._weights(layer, index)
        other = None if x is h else x
        return cast(Tensor, _Add.apply(h, other, W, B, self._nets[0].activation))  # type: ignore[no-untyped-call]

    def read(self, h: Tensor) -> Tensor:
        """``V h``."""
        return torch.bmm(h, self.get_parameter("V").mT)

    def _weights(self, layer: str, index: int) -> tuple[Tensor, Tensor]:
        """Forward and backward weights of a layer."""
        parameters = self._parameters
        W = cast(Tensor, parameters[_flat(f"{layer}.{index}.weight")])
        B = parameters.get(_flat(f"{layer}.{index}.feedback_weight"))
        return W, W if B is None else B


class _Add(torch.autograd.Function):
    """``h + phi(x) W'``, whose backward is a step of Eq. 3: ``(g, phi'(x) * (g B))``, with B = W or its feedback copy.

    Where x is h, and is passed as None, their gradients are added here: ``g + phi'(h) * (g B)``.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, x: Tensor | None, W: Tensor, B: Tensor, activation: Activation) -> Tensor:
        ctx.added = x is None
        x = h if x is None else x
        a = activation.phi(x)
        reused = ctx.added and activation.name == "relu"  # phi'(h) is that of phi(h), so h itself is free
        ctx.save_for_backward(a if reused else x, a, B)
        ctx.activation, ctx.shared = activation, B is W
        if reused:
            ctx.mark_dirty(h)
        return h.baddbmm_(a, W.mT) if reused else torch.baddbmm(h, a, W.mT)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = grads
        x, a, B = ctx.saved_tensors
        update = torch.bmm(g.mT, a)
        to_feedback = update if ctx.needs_input_grad[3] and not ctx.shared else None
        back = ctx.activation.pull_(torch.bmm(g, B), x)
        return (back.add_(g), None, update, to_feedback, None) if ctx.added else (g, back, update, to_feedback, None)


def _check_plain(net: Network) -> None:
    """ValueError for a network that computes otherwise than the class that is ``stackable``, which a stack would not
    see."""
    kind = type(net)
    parent = next((base for base in kind.__mro__ if vars(base).get("stackable")), Network)
    changed = [name for name in _REPLACED if getattr(kind, name) is not getattr(Network, name)]
    changed += [name for name in _RECURSION if getattr(kind, name) is not getattr(parent, name)]
    changed += [name for name in (*_REPLACED, *_RECURSION) if name in vars(net)]
    matrices = {id(p) for layer in net.modules() if type(layer) is DenseLinear for p in layer.parameters()}
    stacked = matrices | {id(net.U), id(net.V)}
    own = [f"its own {name}" for name in changed]
    own += [f"the parameter {name!r}" for name, p in net.named_parameters() if id(p) not in stacked]
    own += [f"hooks on {name or 'it'!r}" for name, m in net.named_modules() if m._forward_hooks or m._forward_pre_hooks]
    if own and net.weights == "dense":
        raise ValueError(
            f"a stack computes what {parent.__name__} computes; {kind.__name__} has {', '.join(own)}, which it would "
            "leave out. Train these networks one by one."
        )


def _form(net: Network) -> tuple[Any, ...]:
    shapes = tuple((name, tuple(p.shape), str(p.dtype), str(p.device)) for name, p in net.named_parameters())
    return type(net), net.activation.name, net.feedback, getattr(net, "order", None), shapes


def _role_of(name: str, roles: Any) -> Any:
    """A static feedback matrix has no role of its own; its scale is that of the matrix it stands in for."""
    return roles[name] if name in roles else roles[name.replace("feedback_weight", "weight")]


def _column(values: Sequence[float] | Tensor, like: Tensor) -> Tensor:
    """``[R, 1, 1]``."""
    return torch.as_tensor(values, dtype=torch.float64).to(like).view(-1, 1, 1)


def _flat(name: str) -> str:
    return name.replace(".", "_")
