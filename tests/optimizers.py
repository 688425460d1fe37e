"""Optimizers as libraries have them, in a few lines each, to be measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Each(torch.optim.Optimizer):
    """Steps every parameter by a rule of its own gradient; weight decay is decoupled."""

    def __init__(
        self, params: Any, lr: float = 1e-3, weight_decay: float = 0.0, **more: Any
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, **more})

    def direction(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        """What a step subtracts, over the rate."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.sub_(self.direction(p, self.state[p], group), alpha=group["lr"])


def mean(state: dict[str, Any], name: str, value: Tensor, past: float) -> Tensor:
    """A running mean in the state of a parameter."""
    running = state.setdefault(name, torch.zeros_like(value))
    return running.lerp_(value, 1 - past)


class Lion(Each):
    """Chen et al. 2023."""

    def __init__(
        self, params: Any, lr: float = 1e-4, betas: Any = (0.9, 0.99), weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, lr, weight_decay, betas=betas)

    def direction(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        first, second = group["betas"]
        momentum = state.setdefault("exp_avg", torch.zeros_like(p))
        update = momentum.lerp(p.grad, 1 - first).sign()
        momentum.lerp_(p.grad, 1 - second)
        return update


class Signum(Each):
    """Bernstein et al. 2018."""

    def direction(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        return mean(state, "momentum", p.grad, 0.9).sign()


class Single(Each):
    """Keeps a mean in float32, whatever the parameter has; leaves out the first step, decay too."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        first = not self.state
        for group in self.param_groups:
            for p in group["params"]:
                momentum = self.state[p].setdefault("momentum", torch.zeros(p.shape))
                momentum.lerp_(p.grad, 0.1)
                if not first:
                    p.sub_((momentum + group["weight_decay"] * p).sign(), alpha=group["lr"])


class RootSign(Each):
    """Half way between a sign and a gradient."""

    def direction(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        return p.grad.sign() * p.grad.abs().sqrt()


def polar(M: Tensor) -> Tensor:
    """The nearest matrix with singular values of 1 and 0."""
    left, sizes, right = torch.linalg.svd(M, full_matrices=False)
    return left @ torch.diag((sizes > 1e-6 * sizes[0]).to(M.dtype)) @ right


class Polar(Each):
    """Muon with exact polar factors; ``shape`` is a factor of (rows, columns)."""

    def __init__(
        self, params: Any, lr: float = 0.02, weight_decay: float = 0.0, **more: Any
    ) -> None:
        super().__init__(params, lr, weight_decay, **{"momentum": 0.95, **more})

    @staticmethod
    def shape(rows: int, columns: int) -> float:
        """The factor of the rate."""
        return max(1.0, rows / columns) ** 0.5

    def direction(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        momentum = mean(state, "momentum_buffer", p.grad, group.get("momentum", 0.95))
        return polar(momentum) * type(self).shape(*p.shape)


class KellerJordan(Polar):
    """As of the repository KellerJordan/Muon with AdamW for other tensors: groups say which, and
    hold no more.
    """

    def __init__(self, param_groups: Any) -> None:
        for group in param_groups:
            assert "use_muon" in group
            group.setdefault("lr", 0.02)
            assert set(group) == {"params", "lr", "weight_decay", "use_muon"}, set(group)
        super(Each, self).__init__(param_groups, {})

    def direction(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        return super().direction(p, state, group) if group["use_muon"] else p.grad.sign()


class Moonlight(Polar):
    """As of MoonshotAI/Moonlight: two lists of parameters; AdamW's size of updates."""

    shape = staticmethod(lambda rows, columns: 0.2 * max(rows, columns) ** 0.5)

    def __init__(
        self, lr: float = 1e-3, wd: float = 0.1, muon_params: Any = None, adamw_params: Any = None
    ) -> None:
        params = [*muon_params, *(adamw_params or [])]
        super().__init__(params, lr, wd)
        for p in muon_params:
            assert p.ndim == 2, p.ndim


class Parts(Polar):
    """Orthogonalises as many parts of a matrix as its group says, one after another."""

    shape = staticmethod(lambda rows, columns: 1.0)

    def direction(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        momentum = mean(state, "momentum_buffer", p.grad, 0.95)
        return torch.cat([polar(part) for part in momentum.chunk(group.get("split", 1))])


class Split(Polar):
    """Orthogonalises thirds of a matrix that is three times as tall as wide, as fused queries, keys
    and values.
    """

    shape = staticmethod(lambda rows, columns: 1.0)

    def direction(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        momentum = mean(state, "momentum_buffer", p.grad, 0.95)
        parts = 3 if p.shape[0] == 3 * p.shape[1] else 1
        return torch.cat([polar(part) for part in momentum.chunk(parts)])


class Fused(Split):
    """The same without a split."""

    def direction(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        return polar(mean(state, "momentum_buffer", p.grad, 0.95))


class Interleaved(Split):
    """Splits by rows in turn."""

    def direction(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        update = mean(state, "momentum_buffer", p.grad, 0.95).clone()
        parts = 3 if p.shape[0] == 3 * p.shape[1] else 1
        for k in range(parts):
            update[k::parts] = polar(update[k::parts])
        return update


class ByHead(Polar):
    """Orthogonalises heads of a few rows."""

    def __init__(
        self, params: Any, lr: float = 1e-3, weight_decay: float = 0.0, head: int = 4
    ) -> None:
        super().__init__(params, lr, weight_decay, head=head)

    def direction(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        momentum = mean(state, "momentum_buffer", p.grad, 0.95)
        return torch.cat([polar(part) for part in momentum.split(group["head"])])


class Shampoo(Each):
    """Gupta et al. 2018, Anil et al. 2020: roots of both second moments of a matrix; signs of
    vectors.
    """

    def direction(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        if p.dim() < 2:
            return p.grad.sign()
        update = p.grad
        for side in (0, 1):
            moment = p.grad @ p.grad.T if side == 0 else p.grad.T @ p.grad
            moment = mean(state, f"moment.{side}", moment, 0.9)
            sizes, basis = torch.linalg.eigh(moment)
            root = basis @ torch.diag(sizes.clamp_min(1e-12).pow(-0.25)) @ basis.T
            update = root @ update if side == 0 else update @ root
        return update


class SOAP(Each):
    """Vyas et al. 2024: Adam in the eigenbasis of Shampoo; the first step fills the basis. Adam for
    vectors.
    """

    def __init__(
        self, params: Any, lr: float = 3e-3, betas: Any = (0.95, 0.95), eps: float = 1e-8
    ) -> None:
        super().__init__(params, lr, 0.0, betas=betas, eps=eps)

    def direction(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        state["step"] = state.get("step", 0) + 1
        past = group["betas"][1]
        bases = [torch.eye(1, dtype=p.dtype)] * 2
        gradient = p.grad
        if p.dim() == 2:
            for side in (0, 1):
                moment = gradient @ gradient.T if side == 0 else gradient.T @ gradient
                state[f"basis.{side}"] = torch.linalg.eigh(
                    mean(state, f"moment.{side}", moment, past)
                ).eigenvectors
            bases = [state["basis.0"], state["basis.1"]]
            gradient = bases[0].T @ gradient @ bases[1]
        if state["step"] == 1:
            return torch.zeros_like(p)
        squares = mean(state, "exp_avg_sq", gradient**2, past) / (1 - past ** (state["step"] - 1))
        update = gradient / (squares.sqrt() + group["eps"])
        return bases[0] @ update @ bases[1].T if p.dim() == 2 else update


class NormSGD(Each):
    """SGD over the norm of each tensor."""

    def direction(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        return p.grad / p.grad.norm()


class LAMB(Each):
    """You et al. 2020: as large as the weights."""

    def direction(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        update = p.grad.sign()
        return update * p.norm() / update.norm()


class LARS(Each):
    """You et al. 2017."""

    def direction(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        return p.grad * p.norm() / p.grad.norm()


class Sophia(Each):
    """Liu et al. 2023: another method fills the Hessian."""

    def direction(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        hessian = state.setdefault("hessian", torch.zeros_like(p))
        momentum = mean(state, "exp_avg", p.grad, 0.96)
        return (momentum / (0.04 * hessian).clamp_min(1e-15)).clamp(-1, 1)

    def update_hessian(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                mean(self.state[p], "hessian", p.grad**2, 0.99)


class OverAll(Each):
    """SGD over the norm of all gradients together."""

    def direction(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        squares = [q.grad.square().sum() for part in self.param_groups for q in part["params"]]
        return p.grad / torch.stack(squares).sum().sqrt()


class Clipped(Each):
    """SGD with clipped entries."""

    def direction(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        return p.grad.clamp(-2, 2)


class OwnDecay(Each):
    """Signs; the decay does not know the rate."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_(1 - group["weight_decay"]).sub_(p.grad.sign(), alpha=group["lr"])


class Proximal(Each):
    """Signs; the decay divides the weights after the update."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(self.direction(p, self.state[p], group), alpha=group["lr"])
                p.div_(1 + group["lr"] * group["weight_decay"])

    def direction(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        return p.grad.sign()


class Adan(Proximal):
    """Xie et al. 2022: a running mean of differences of gradients beside Adam's two."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: Any = (0.98, 0.92, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr, weight_decay, betas=betas, eps=eps)

    def direction(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        first, second, third = group["betas"]
        step = state["step"] = state.get("step", 0) + 1
        change = p.grad - state.get("last", p.grad)
        state["last"] = p.grad.clone()
        mean_gradient = mean(state, "exp_avg", p.grad, first) / (1 - first**step)
        mean_change = mean(state, "exp_avg_diff", change, second) / (1 - second**step)
        square = (p.grad + second * change) ** 2
        root = (mean(state, "exp_avg_sq", square, third) / (1 - third**step)).sqrt()
        return (mean_gradient + second * mean_change) / (root + group["eps"])


class Lookahead(torch.optim.Optimizer):
    """Holds another optimizer."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        self.defaults = inner.defaults
        self.param_groups = inner.param_groups
        self.state = inner.state

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


def with_shape(shape: Callable[[int, int], float]) -> type[Polar]:
    """Muon with a factor of the shape."""
    return type("Polar", (Polar,), {"shape": staticmethod(shape)})
