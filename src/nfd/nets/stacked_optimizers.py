"""SGD, Adam, AdamW and Muon for networks that are trained together: settings of its own for every network.

A weight ``[R, ...]`` steps as soon as backward has made its gradient, while both are in the cache, and the gradient is
let go: this takes a third of the memory traffic out of a step. So ``step`` has nothing left to do, and gradients do not
accumulate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn

from nfd.wide.optimizers import COEFFICIENTS, EPSILON, MOMENTUM, STEPS, Shape, shape_factor

Group = dict[str, Any]


class StackedOptimizer:
    """Steps every parameter of ``groups`` during backward, for as long as it is held.

    Args:
        groups: ``params``, their ``lr`` and, where it applies, ``eps`` and ``weight_decay``, each with a number for
            every network: ``[R]``, or ``[R, 1, 1]`` where all parameters are matrices.
    """

    decoupled: ClassVar[bool] = False
    """Whether weight decay acts on the weights alone."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.param_groups = list(groups)
        for number, group in enumerate(self.param_groups):
            for p in group["params"]:
                if p.requires_grad:
                    p.register_post_accumulate_grad_hook(partial(_in_backward, ref(self), number, {}))

    def zero_grad(self) -> None:
        """Gradients are let go in ``backward``."""

    def step(self) -> None:
        """Weights have stepped in ``backward``."""

    @torch.no_grad()
    def _stepped(self, group: Group, state: dict[str, Any], p: Tensor) -> None:
        assert p.grad is not None
        g, lr, decay = p.grad, group["lr"], group.get("weight_decay")
        if decay is not None and self.decoupled:
            p.mul_(_column(1 - lr * decay, p))
        elif decay is not None:
            g = torch.addcmul(g, p, _column(decay, p))
        self._step(p, g, _column(lr, p), group, state)
        p.grad = None

    def _step(self, p: Tensor, g: Tensor, lr: Tensor, group: Group, state: dict[str, Any]) -> None:
        raise NotImplementedError


def _in_backward(optimizer: ReferenceType[StackedOptimizer], number: int, state: dict[str, Any], p: Tensor) -> None:
    """Step a weight of a group. A hook that held the optimizer would keep it and all of its weights for ever."""
    alive = optimizer()
    if alive is not None:
        alive._stepped(alive.param_groups[number], state, p)


class StackedSGD(StackedOptimizer):
    """``v <- momentum v + g``, ``w <- w - lr v``, with Nesterov ``g + momentum v`` for v: ``torch.optim.SGD``."""

    def __init__(self, groups: Sequence[Group], momentum: float = 0.0, nesterov: bool = False) -> None:
        super().__init__(groups)
        self.momentum, self.nesterov = momentum, nesterov

    def _step(self, p: Tensor, g: Tensor, lr: Tensor, group: Group, state: dict[str, Any]) -> None:
        if self.momentum:
            v = state["v"].mul_(self.momentum).add_(g) if state else state.setdefault("v", g)
            g = g.add(v, alpha=self.momentum) if self.nesterov else v
        p.addcmul_(g, lr, value=-1.0)


class StackedAdam(StackedOptimizer):
    """``torch.optim.Adam``."""

    def __init__(self, groups: Sequence[Group], betas: tuple[float, float] = (0.9, 0.999)) -> None:
        super().__init__(groups)
        self.betas = betas

    def _step(self, p: Tensor, g: Tensor, lr: Tensor, group: Group, state: dict[str, Any]) -> None:
        if not state:
            state.update(step=0, mean=torch.zeros_like(p), square=torch.zeros_like(p))
        state["step"] += 1
        first, second = self.betas
        mean = state["mean"].lerp_(g, 1 - first)
        square = state["square"].mul_(second).addcmul_(g, g, value=1 - second)
        size = (square / (1 - second ** state["step"])).sqrt_().add_(_column(group["eps"], p))
        p.addcdiv_(mean * lr, size, value=-1 / (1 - first ** state["step"]))


class StackedAdamW(StackedAdam):
    """``torch.optim.AdamW``."""

    decoupled = True


class StackedMuon(StackedOptimizer):
    """``torch.optim.Muon``, of matrices ``[R, rows, columns]``."""

    decoupled = True

    def __init__(self, groups: Sequence[Group], momentum: float = MOMENTUM, adjust_lr_fn: Shape | None = None) -> None:
        super().__init__(groups)
        self.momentum, self.adjust_lr_fn = momentum, adjust_lr_fn

    def _step(self, p: Tensor, g: Tensor, lr: Tensor, group: Group, state: dict[str, Any]) -> None:
        average = state.setdefault("average", torch.zeros_like(p)).lerp_(g, 1 - self.momentum)
        update = _newton_schulz(g.lerp(average, self.momentum))
        p.addcmul_(update.to(p), lr * shape_factor(self.adjust_lr_fn, *p.shape[1:]), value=-1.0)


class StackedParts(StackedOptimizer):
    """Several optimizers of different parameters as one."""

    def __init__(self, parts: Sequence[StackedOptimizer]) -> None:
        super().__init__([])
        self.parts = tuple(parts)  # they step as long as somebody holds them
        self.param_groups = [group for part in parts for group in part.param_groups]


def _newton_schulz(M: Tensor) -> Tensor:
    """The Newton-Schulz steps of ``torch.optim.Muon`` on every matrix of ``[R, rows, columns]``, in its 16 bits."""
    a, b, c = COEFFICIENTS
    is_tall = M.shape[1] > M.shape[2]
    X = M.bfloat16()
    X = X.mT if is_tall else X
    X = X / torch.linalg.vector_norm(X, dim=(1, 2), keepdim=True).clamp(min=EPSILON)
    for _ in range(STEPS):
        A = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(A, A, A, beta=b, alpha=c), X, beta=a)
    return X.mT if is_tall else X


def stacked_group(p: Tensor, alone: Sequence[Mapping[str, Any]]) -> Group:
    """The group of a parameter, from the settings that it has in every network."""
    group: Group = {key: value for key, value in alone[0].items() if key == "use_muon"}
    for key in ("lr", "eps", "weight_decay"):
        numbers = [settings.get(key, 0.0) for settings in alone]
        if key in alone[0] and (key != "weight_decay" or any(numbers)):
            group[key] = torch.tensor(numbers, dtype=torch.float64)
    return {"params": [p], **group}


def by_name(module: nn.Module, groups: Sequence[Group]) -> dict[str, Group]:
    """The group of every parameter that is in one."""
    group_of = {id(p): group for group in groups for p in group["params"]}
    return {name: group_of[id(p)] for name, p in module.named_parameters() if id(p) in group_of}


def _column(settings: Tensor, p: Tensor) -> Tensor:
    """A number for every network, ``[R, 1, ...]``, to multiply a parameter by."""
    return settings.to(p).view(-1, *[1] * (p.dim() - 1))


STACKED: dict[str, Callable[..., StackedOptimizer]] = {  # by the name of the law
    "sgd": StackedSGD,
    "adam": StackedAdam,
    "adamw": StackedAdamW,
    "muon": StackedMuon,
    "muon-match-rms-adamw": partial(StackedMuon, adjust_lr_fn="match_rms_adamw"),
}
