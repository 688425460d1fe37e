"""Networks of one size that are trained together have the records of each alone; what cannot be is trained alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tests.models import Residual, Transformer
from torch import Tensor, nn

import nfd
from nfd.families.constructed import ConstructedFamily
from nfd.families.family import Family
from nfd.families.paper import PaperFamily
from nfd.runs.trials import Trial
from nfd.training.recipe import Recipe
from nfd.training.task import Task
from nfd.training.together import Alone, together

STREAM = torch.Generator().manual_seed(0)
STEPS = 6
CLASSES = torch.randint(0, 3, (STEPS, 6), generator=STREAM)
VECTORS = list(zip(torch.randn(STEPS, 6, 5, generator=STREAM), CLASSES, strict=True))
DOUBLE = [(x.double(), y) for x, y in VECTORS]
TOKENS = [(ids[:, :-1], ids[:, 1:]) for ids in torch.randint(0, 11, (STEPS, 3, 8), generator=STREAM)]
RATES = (1e-3, 1e-2, 1e18, 3e-3)  # one diverges


def recipe(
    make_model: Any, batches: Any = VECTORS, optimizer: str = "adamw", rule: str = "complete-p", **of: Any
) -> Recipe:
    given: dict[str, Any] = {"loss": "cross-entropy"} | of
    task = Task.of(batches[:-2], given.pop("loss"), batches[-2:])
    made = make_model
    if not isinstance(made, Family):
        made = ConstructedFamily(make_model, (8, 2), rule, optimizer, sample=batches[0][0], version="1")
    return Recipe(made, task, version="1", **given)


def in_double(make_model: Callable[..., nn.Module], *sizes: int) -> nn.Module:
    return make_model(*sizes).double()


def check_records(runs: list[Trial], monkeypatch: pytest.MonkeyPatch) -> None:
    """Together they are what they are alone."""
    alone = [record for run in runs for record in Trial.train([run], "cpu")]
    with monkeypatch.context() as patch:
        patch.setattr(Trial, "_alone", None)
        together = Trial.train(runs, "cpu")
    assert [record.status for record in alone] == ["diverged" if run.lr > 1 else "done" for run in runs]
    for one, other in zip(together, alone, strict=True):
        assert (one.key, one.status, one.config) == (other.key, other.status, other.config)
        assert one.metrics == pytest.approx(other.metrics | {"together": 1.0}, rel=1e-9)
        torch.testing.assert_close(
            torch.tensor(one.curves["loss"]), torch.tensor(other.curves["loss"]), rtol=1e-9, atol=0, equal_nan=True
        )


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "muon", "muon-match-rms-adamw"])
@pytest.mark.parametrize("batches", [DOUBLE, TOKENS], ids=["vectors", "tokens"])
def test_together_is_alone(optimizer: str, batches: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """To rounding, with rates, decays and schedules of their own, vectors beside one that diverges."""
    monkeypatch.setattr(Tensor, "bfloat16", Tensor.clone)  # or rounding would be that of Muon's 16 bits
    make_model = partial(in_double, Residual if batches is DOUBLE else partial(Transformer, tied=True))
    cosine = partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=3, eta_min=1e-3)
    given = recipe(make_model, batches, optimizer, schedule=cosine)
    rates = [min(lr, 1.0) for lr in RATES] if batches is TOKENS or optimizer == "adam" else RATES
    decays = (0.0, 0.0, 0.0, 0.0) if optimizer == "adam" else (0.1, 0.0, 0.1, 0.3)
    runs = [Trial(given, 16, 5, seed, lr, decay) for seed, (lr, decay) in enumerate(zip(rates, decays, strict=True))]
    check_records(runs, monkeypatch)


OPTIONS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.9, "nesterov": True},
    "adamw": {"betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.2},
}


@pytest.mark.parametrize("family", [in_double, nfd.ResNet])
@pytest.mark.parametrize("optimizer", OPTIONS)
def test_options_of_pytorch_s_optimizers(family: Any, optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = OPTIONS[optimizer]
    double = partial(in_double, Residual)
    make_model = double if family is in_double else partial(nfd.ResNet, 5, 3, branch_exponent=1.0, dtype=torch.float64)
    make = partial(getattr(torch.optim, {"sgd": "SGD", "adamw": "AdamW"}[optimizer]), **options)
    given = recipe(make_model, DOUBLE, optimizer, make_optimizer=make)
    check_records([Trial(given, 16, 3, seed, lr, 0.1) for seed, lr in enumerate(RATES)], monkeypatch)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
def test_the_paper_s_networks_are_trained_together_too(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "bfloat16", Tensor.clone)
    given = recipe(partial(nfd.ResNet, 5, 3, branch_exponent=1.0, dtype=torch.float64), DOUBLE, optimizer)
    runs = [Trial(given, 16, 5, seed, lr, 0.1) for seed, lr in enumerate(RATES)]
    check_records(runs, monkeypatch)


class Changed(nn.Module):
    """A residual network, and something on the way to its outputs."""

    def __init__(self, change: Callable[[Tensor], Tensor], width: int, depth: int) -> None:
        super().__init__()
        self.net, self.change, self.own = Residual(width, depth), change, float(torch.rand(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.change(self.net(x))


class OwnNumber(Changed):
    """A number of its own, which is neither a parameter nor a buffer."""

    def forward(self, x: Tensor) -> Tensor:
        return self.own * self.net(x)


class Buffered(Changed):
    """A buffer that counts passes."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1  # type: ignore[operator]
        return self.net(x) / self.passes


class InEval(Changed):
    """A number of its own that only its answers in eval mode show."""

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) if self.training else self.own * self.net(x)


class LateNoise(Changed):
    """Random numbers from the seventh step."""

    steps = 0

    def forward(self, x: Tensor) -> Tensor:
        self.steps += self.training
        return drawn(self.net(x)) if self.steps > 6 else self.net(x)


def rounded(width: int, depth: int) -> nn.Module:
    net = Residual(width, depth).bfloat16()
    net.register_forward_pre_hook(lambda module, args: args[0].bfloat16())
    net.register_forward_hook(lambda module, args, out: out.float())
    return net


def clips(g: Tensor) -> Tensor:
    return g.clamp(-0.3, 0.3)


def hooked(module: nn.Module, args: Any, out: Tensor) -> None:
    if out.requires_grad:
        out.register_hook(clips)


PLACES = ("outputs", "module", "weight")


def with_hooks(width: int, depth: int, place: str) -> nn.Module:
    """Gradients that are clipped where they are large, which those of the first steps need not be."""
    net = Residual(width, depth)
    if place == "outputs":
        net.register_forward_hook(hooked)
    elif place == "module":
        net.head.register_full_backward_hook(lambda module, before, after: (clips(before[0]),))
    else:
        net.head.weight.register_hook(clips)
    return net


def masked(width: int, depth: int) -> nn.Module:
    """With buffers that are the same in every network, and some that are not."""
    net = nn.Sequential(Residual(width, depth), nn.Linear(3, 3))
    net.register_buffer("mask", torch.ones(3))
    net[1].register_buffer("noise", torch.randn(3))
    net.register_forward_hook(lambda module, args, out: module.mask * out + module[1].noise)
    return net


def same(width: int, depth: int) -> nn.Module:
    torch.manual_seed(0)
    return Residual(width, depth)


def drawn(out: Tensor) -> Tensor:
    return out * float(np.random.rand() + random.random())


def clipped(out: Tensor) -> Tensor:
    return out / out.norm() if float(out.detach().norm()) > 1e-3 else out


def smoothed(out: Any, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(out, y, label_smoothing=0.1)


class Doubled(torch.autograd.Function):
    """Without a rule for ``vmap``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 2 * grads[0]


def weighed(out: Any, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(out, y) * float(out.detach().norm() > 0)


def clipping(groups: Any) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(groups)
    optimizer.register_step_pre_hook(lambda *about: None)
    return optimizer


TOGETHER = {
    "MLP": recipe(Residual),
    "Transformer": recipe(Transformer, TOKENS),
    "tied weights": recipe(partial(Transformer, tied=True), TOKENS),
    "buffers": recipe(masked),
    "a dropout of nothing": recipe(partial(Changed, nn.Dropout(0.0))),
    "a loss of one's own": recipe(Residual, loss=smoothed),
    "SGD": recipe(Residual, optimizer="sgd"),
    "Muon": recipe(Residual, optimizer="muon"),
    "PyTorch's optimizer with options": recipe(Residual, make_optimizer=partial(torch.optim.AdamW, betas=(0.5, 0.9))),
    "the paper's": recipe(PaperFamily(nfd.ResNet, 5, 3)),
}
OWN: dict[str, Any] = {
    "an option": partial(torch.optim.AdamW, amsgrad=True),
    "another class": torch.optim.Adam,
    "a hook": clipping,
    "options of groups": lambda groups: torch.optim.AdamW([groups[0] | {"betas": (0.5, 0.9)}, *groups[1:]]),
}
ALONE = {
    "dropout": (recipe(partial(Changed, nn.Dropout(0.1))), Alone.RANDOM),
    "batch norm": (recipe(partial(Changed, nn.BatchNorm1d(3))), Alone.BUFFERS),
    "random numbers of others": (recipe(partial(Changed, drawn)), Alone.RANDOM),
    "control flow": (recipe(partial(Changed, clipped)), Alone.REFUSED),
    "a function without a rule": (recipe(partial(Changed, Doubled.apply)), Alone.REFUSED),
    "a number of its own": (recipe(partial(OwnNumber, nn.Identity())), Alone.DIFFERENT),
    "a counter": (recipe(partial(Buffered, nn.Identity())), Alone.BUFFERS),
    "networks that are the same": (recipe(same, rule="standard"), Alone.EQUAL),
    "a number that shows in eval mode": (recipe(partial(InEval, nn.Identity())), Alone.DIFFERENT),
    "16 bits": (recipe(rounded, optimizer="muon"), Alone.PRECISION),
    **{
        f"hooks, {place}": (recipe(partial(with_hooks, place=place), optimizer="muon"), Alone.HOOKS) for place in PLACES
    },
    "a loss that looks": (recipe(Residual, loss=weighed), Alone.REFUSED),
    **{
        f"its own optimizer, {name}": (recipe(Residual, make_optimizer=make), Alone.OPTIMIZER)
        for name, make in OWN.items()
    },
    "an error": (recipe(partial(Changed, lambda out: out[:, :1])), Alone.REFUSED),
}


@pytest.mark.parametrize("case", [*TOGETHER, *ALONE])
def test_what_can_be_is_trained_together(case: str, recwarn: pytest.WarningsRecorder) -> None:
    given, reason = ALONE.get(case) or (TOGETHER[case], None)
    state = torch.get_rng_state()
    decided = together(given, 16, 2)
    assert (decided.reason, decided.most > 1) == (reason, case in TOGETHER)
    assert bool(decided.detail) is (reason is Alone.REFUSED)
    assert torch.equal(torch.get_rng_state(), state)
    assert not recwarn.list


def test_networks_that_draw_random_numbers_late_draw_their_own() -> None:
    """Their first steps draw none, so that they look as if they could be trained together."""
    given = recipe(partial(LateNoise, nn.Identity()), [*VECTORS, *VECTORS])
    runs = [Trial(given, 16, 2, seed, 1e-3) for seed in range(2)]
    assert given.task.steps > 6
    assert together(given, 16, 2).most > 1
    alone = [record for run in runs for record in Trial.train([run], "cpu")]
    assert [record.metrics for record in Trial.train(runs, "cpu")] == [record.metrics for record in alone]


def test_networks_that_are_large_are_trained_alone() -> None:
    assert together(recipe(Residual), 512, 2).reason is Alone.WIDTH
    many = [(torch.randn(60, 5), torch.randint(0, 3, (60,)))] * 3
    assert together(recipe(Residual, many), 128, 2).reason is Alone.PRODUCTS
    assert together(recipe(Residual, many, "muon"), 128, 2).reason is None  # its own products are small
    assert together(recipe(Residual, many, "muon"), 256, 2).reason is Alone.PRODUCTS


def test_a_transfer_tells_why_small_networks_were_trained_one_after_another() -> None:
    asked = {"widths": (4, 8), "depths": (1,), "batches": VECTORS[:3], "lr": (1e-3, 1e-2, 1e-1), "seeds": 2}
    assert not nfd.transfer(Residual, rules=("mup",), **asked).notes
    noisy = nfd.transfer(partial(Changed, nn.Dropout(0.1)), rules=("mup",), **asked, version="1")
    assert noisy.notes == ("Small networks are trained one after another: they draw random numbers.",)
    assert noisy.notes[0] in str(noisy)
