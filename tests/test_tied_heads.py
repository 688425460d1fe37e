"""The factor of a tied head: in the norm that feeds it alone, or in a wrapper; both train the same function."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.models import Transformer
from torch import Tensor, nn

import nfd
from nfd.scaling.rules import Power

IDS = torch.arange(24).view(4, 6) % 11
WRAPPED = "is the head as well, and no affine norm feeds it alone"


class Tied(Transformer):
    """A Transformer whose embedding is its head."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth, tied=True)


class RMSNorm(nn.Module):
    """Of one's own, as Llama's: the gain times a normalised copy of another type."""

    def __init__(self, width: int, offset: float = 0.0) -> None:
        super().__init__()
        self.weight, self.offset = nn.Parameter(torch.full((width,), 1.0 - offset)), offset

    def forward(self, x: Tensor) -> Tensor:
        z = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
        gain = self.weight + self.offset if self.offset else self.weight
        return gain * z.to(x.dtype)


class Llama(Tied):
    """With such a norm at its end."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.norm = RMSNorm(width)  # type: ignore[assignment]


class Gemma(Tied):
    """Its gain is stored as ``1 + g``."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.norm = RMSNorm(width, offset=1.0)  # type: ignore[assignment]


class TwoHeads(Tied):
    """Another head reads the same norm."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.value = nn.Linear(width, 11)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(super().features(ids))
        return torch.as_tensor(self.head(x) + self.value(x))


class Shown(Tied):
    """The normalised stream is an output, too."""

    def forward(self, ids: Tensor) -> Any:
        x = self.norm(super().features(ids))
        return self.head(x), x


class Frozen(Tied):
    """A gain that does not train stays what it is, so that it cannot stand for a factor."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.norm.weight.requires_grad_(False)


def planned(make: Any, optimizer: str = "adamw") -> tuple[nn.Module, nfd.Plan]:
    torch.manual_seed(0)
    model = make(64, 2)
    sizes: dict[str, Any] = {"make_model": make, "base": (16, 2)}
    return model, nfd.plan(model, rule="mup", optimizer=optimizer, sample=IDS, **sizes)


@pytest.mark.parametrize(("make", "norm"), [(Tied, {"norm.weight", "norm.bias"}), (Llama, {"norm.weight"})])
def test_a_norm_that_feeds_the_head_alone_takes_its_factor(make: Any, norm: set[str]) -> None:
    _, plan = planned(make)
    assert not plan.multipliers
    assert {name for name, entry in plan.entries.items() if entry.multiplier != Power()} == norm
    assert plan.constant("norm.weight") == 0.25
    assert all((plan.rate(name), plan.weight_decay(name), plan.epsilon(name)) == (0.25, 4, 1) for name in norm)


@pytest.mark.parametrize("make", [Gemma, TwoHeads, Shown, Frozen])
def test_a_head_is_wrapped_where_no_norm_can_take_its_factor(make: Any) -> None:
    _, plan = planned(make)
    assert plan.multipliers == {"head": 0.25}
    assert any(WRAPPED in note for note in plan.notes)


def test_without_a_sample_a_plan_says_that_it_does_not_know_the_norm() -> None:
    plan = nfd.plan(Tied(64, 2), rule="mup", make_model=Tied, base=(16, 2))
    assert plan.multipliers == {"head": 0.25}
    assert any("without sample= it is not known whether" in note for note in plan.notes)
    assert not any(WRAPPED in note for note in plan.notes)


@pytest.mark.parametrize(("optimizer", "decay"), [("adamw", 0.1), ("adam", 0.0), ("sgd", 0.1), ("muon", 0.1)])
def test_both_ways_train_the_same_function(optimizer: str, decay: float) -> None:
    """Thirty steps, bit for bit: the ratio of widths is a power of two."""
    model, folded = planned(Tied, optimizer)
    entries = {name: replace(entry, multiplier=Power()) for name, entry in folded.entries.items()}
    wrapped = replace(folded, entries=entries, multipliers={"head": 0.25})
    losses = []
    for plan in (folded, wrapped):
        own = plan.apply_(copy.deepcopy(model), seed=3)
        optimizer_of_plan = plan.make_optimizer(own, lr=0.01, weight_decay=decay)
        losses.append([])
        for _ in range(30):
            loss = nn.functional.cross_entropy(own(IDS).flatten(0, 1), IDS.roll(1, 1).flatten())
            optimizer_of_plan.zero_grad()
            loss.backward()
            optimizer_of_plan.step()
            losses[-1].append(float(loss.detach()))
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]


def test_a_folded_model_is_saved_and_loaded_as_it_is(tmp_path: Any) -> None:
    """By Hugging Face's own methods, with no wrapper that they could lose."""
    transformers = pytest.importorskip("transformers")

    def gpt2(width: int, depth: int) -> nn.Module:
        config = transformers.GPT2Config(
            n_embd=width, n_layer=depth, n_head=width // 8, n_positions=8, vocab_size=11, bos_token_id=0, eos_token_id=0
        )
        made: nn.Module = transformers.GPT2LMHeadModel(config)
        return made

    model: Any = gpt2(32, 2)
    nfd.plan(model, rule="mup", make_model=gpt2, base=(16, 2)).apply_(model)
    model.save_pretrained(tmp_path)
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    ids = IDS[:, :4]
    torch.testing.assert_close(loaded.eval()(ids).logits, model.eval()(ids).logits, rtol=0, atol=0)
