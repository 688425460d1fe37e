"""Which optimizer a plan gives each tensor."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import nfd


class DiT(nn.Module):
    """A diffusion transformer: its blocks and its last layer are modulated by an embedding of time and class."""

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width, elementwise_affine=False)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 3 * width))

        def forward(self, x: Tensor, condition: Tensor) -> Tensor:
            shift, scale, gate = self.modulation(condition)[:, None].chunk(3, -1)
            return x + gate * self.mlp(self.norm(x) * (1 + scale) + shift)

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patch = nn.Linear(12, width)
        self.time = nn.Sequential(nn.Linear(16, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(10, width)
        self.blocks = nn.ModuleList(self.Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        self.out = nn.Linear(width, 12)

    def forward(self, patches: Tensor, time: Tensor, label: Tensor) -> Tensor:
        x, condition = self.patch(patches), self.time(time) + self.label(label)
        for block in self.blocks:
            x = block(x, condition)
        shift, scale = self.modulation(condition)[:, None].chunk(2, -1)
        return self.out(self.norm(x) * (1 + scale) + shift)


def stack(width: int, depth: int) -> nn.Module:
    """Layers without residual blocks."""
    inner = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(12, width), nn.ReLU(), *inner, nn.Linear(width, 4))


def stepped_by_muon(model: nn.Module, plan: nfd.Plan) -> set[str]:
    """Names of the matrices that Muon steps."""
    groups = plan.make_optimizer(model, lr=0.02, adamw_lr=1e-3).param_groups
    taken = {id(p) for group in groups if group["use_muon"] for p in group["params"]}
    return {name for name, p in model.named_parameters() if id(p) in taken}


@pytest.mark.parametrize("rule", ["standard", "mup", "complete-p"])
def test_muon_steps_the_matrices_of_blocks_and_adamw_those_of_the_condition(rule: str) -> None:
    model, sample = DiT(32, 4), (torch.randn(2, 5, 12), torch.randn(2, 16), torch.tensor([0, 1]))
    plan = nfd.plan(
        model, rule=rule, make_model=DiT, base=(16, 2), optimizer="muon", blocks="blocks.*",
        sample=sample,
    )  # fmt: skip
    inside = {f"blocks.{k}.{name}.weight" for k in range(4) for name in ("mlp.0", "mlp.2", "modulation.1")}
    assert stepped_by_muon(model, plan) == inside
    outside = next(note for note in plan.notes if "go to adamw" in note)
    assert "time.2.weight" in outside
    assert "modulation.1.weight" in outside


def test_muon_steps_the_inner_matrices_of_a_network_without_blocks() -> None:
    model = stack(32, 2)
    plan = nfd.plan(model, rule="mup", make_model=stack, base=(8, 2), optimizer="muon")
    assert stepped_by_muon(model, plan) == {"2.weight", "4.weight"}
