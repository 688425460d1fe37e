"""Optimizers as they are found: every factor of shape is made up for by the rates."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.models import Transformer
from torch import Tensor, nn

import nfd
from nfd.scaling.find_law import law_of

BASE = 4
RATIOS = (1, 4, 16)
ROUNDING = 0.02  # bfloat16 has a unit of 2^-8, and Newton-Schulz five steps


class OtherMuon(torch.optim.Optimizer):
    """The polar factor of each gradient times a factor of the shape."""

    factor: Callable[[int, int], float]

    def __init__(self, params: Any, lr: float = 0.02, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                left, _, right = torch.linalg.svd(p.grad, full_matrices=False)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(left[:, :1] @ right[:1], alpha=group["lr"] * type(self).factor(*p.shape))


def other(factor: Callable[[int, int], float]) -> type[torch.optim.Optimizer]:
    return type("Muon", (OtherMuon,), {"factor": staticmethod(factor)})


SPECTRAL = other(lambda rows, columns: (rows / columns) ** 0.5)
MOONLIGHT = other(lambda rows, columns: 0.2 * max(rows, columns) ** 0.5)
UNIT = other(lambda rows, columns: 1.0)
FOUND: dict[str, tuple[Any, dict[str, Any], str]] = {
    "original": (torch.optim.Muon, {}, "muon"),
    "match_rms_adamw": (
        torch.optim.Muon,
        {"adjust_lr_fn": "match_rms_adamw"},
        "muon-match-rms-adamw",
    ),
    "spectral": (SPECTRAL, {}, "muon-spectral"),
    "unit": (UNIT, {}, "muon-unit"),
}


class Conv1D(nn.Module):
    """A linear map that stores its weight as [in, out], as in GPT-2."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(0.1 * torch.randn(nx, nf))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Tall(nn.Module):
    """A block whose inner size grows as width^3/2, so that both matrices change their aspect; one
    lies transposed.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = width * math.isqrt(width)
        self.up = nn.Linear(width, inner)
        self.down = Conv1D(width, inner)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.down(torch.relu(self.up(h)))


class TallNet(nn.Module):
    """Blocks of one kind between two linear maps."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(5, width)
        self.head = nn.Linear(width, 3)
        self.blocks = nn.Sequential(*(Tall(width) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(x)))


VECTORS = torch.linspace(-1, 1, 10).view(2, 5)


def planned(optimizer: Any, m: int) -> tuple[nn.Module, nfd.Plan]:
    model = TallNet(m * BASE, 2)
    plan = nfd.plan(
        model, rule="mup", make_model=TallNet, base=(BASE, 2), optimizer=optimizer, sample=VECTORS
    )
    return model, plan


def norms(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Operator norms of the updates of one step, from gradients of rank one."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    updates = {
        name: torch.atleast_2d(p.detach() - before[name]) for name, p in model.named_parameters()
    }
    return {name: float(torch.linalg.matrix_norm(update, 2)) for name, update in updates.items()}


def stepped(optimizer: Any, m: int, make: Any = None) -> dict[str, float]:
    model, plan = planned(optimizer, m)
    return norms(model, plan.make_optimizer(model, lr=0.1, make=make))


@pytest.mark.parametrize("m", RATIOS)
@pytest.mark.parametrize("convention", [*FOUND, "adamw"])
def test_updates_are_as_large_as_the_rule_says(convention: str, m: int) -> None:
    """The operator norm of every update grows as (out / in)^1/2: a unit input moves every output
    alike.
    """
    kind, options, optimizer = FOUND.get(convention, (torch.optim.AdamW, {}, "adamw"))
    made: dict[str, Any] = (
        {"make": lambda groups: kind(groups, **options)} if convention in FOUND else {}
    )
    base = stepped(optimizer, 1, **made)
    large = stepped(optimizer, m, **made)
    _, plan = planned(optimizer, m)
    for name, norm in large.items():
        ratios = plan.entries[name].ratios
        fan_in = 1.0 if plan.entries[name].is_vector else ratios.fan_in
        assert norm / base[name] == pytest.approx((ratios.fan_out / fan_in) ** 0.5, rel=ROUNDING), (
            name
        )
    taken = {name for name in plan.entries if plan.is_muon(name)}
    assert taken == (
        {n for n in large if n.endswith(("up.weight", "down.weight"))}
        if convention in FOUND
        else set()
    )


@pytest.mark.parametrize(("m", "times"), [(1, 1.0), (4, 2.0), (16, 4.0)])
def test_rates_of_another_convention_are_wrong(m: int, times: float) -> None:
    """What is measured is the convention: groups planned for updates of unit norm, stepped by
    Moonlight's.
    """

    model = Transformer(8 * m, 1)
    base = Transformer(8, 1)
    sample = torch.arange(12).view(2, 6) % 11

    def of(net: nn.Module) -> float:
        plan = nfd.plan(
            net,
            rule="mup",
            make_model=Transformer,
            base=(8, 1),
            optimizer="muon-unit",
            sample=sample,
        )
        return norms(net, plan.make_optimizer(net, lr=0.1, make=MOONLIGHT))["layers.0.b.weight"]

    assert of(model) / of(base) == pytest.approx(times, rel=ROUNDING)


def test_objects_are_known_by_their_class() -> None:
    params = [nn.Parameter(torch.ones(2, 3))]
    for optimizer, name in (
        (torch.optim.SGD(params, lr=0.1), "sgd"),
        (nfd.SGD(params, lr=0.1), "sgd"),
        (torch.optim.Adam(params), "adam"),
        (torch.optim.AdamW(params), "adamw"),
    ):
        assert law_of(optimizer).name == name
    # the settings of these say which law they have
    assert law_of(torch.optim.Adam(params, decoupled_weight_decay=True)).name == "adamw"
    assert law_of(torch.optim.Muon(params)).name == law_of(nfd.Muon(params)).name == "muon"
    assert law_of(torch.optim.Muon(params, adjust_lr_fn="original")).name == "muon"
    for kind in (torch.optim.Muon, nfd.Muon):
        assert law_of(kind(params, adjust_lr_fn="match_rms_adamw")).name == "muon-match-rms-adamw"
    first, second = (
        {"params": [nn.Parameter(torch.ones(2, 3))], "adjust_lr_fn": name}
        for name in (None, "match_rms_adamw")
    )
    with pytest.raises(ValueError, match="groups differ in adjust_lr_fn"):
        law_of(torch.optim.Muon([first, second]))
