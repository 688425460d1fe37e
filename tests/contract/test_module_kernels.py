"""Kernels at named modules of anyone's model in training."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.models import SHIFTED, Transformer
from torch import Tensor, nn

import nfd

IDS = SHIFTED[1][0][:2, :4]


class CausalBlock(nn.Module):
    """Pre-norm attention with heads of eight features, and an MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 8
        self.n1 = nn.LayerNorm(width)
        self.n2 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], self.heads, 8)
        q, k, v = (z.view(shape).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(nn.functional.gelu(self.up(self.n2(x))))


class Causal(Transformer):
    """Tokens to logits of the next one, with a module that is never called."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.layers = nn.ModuleList(CausalBlock(width) for _ in range(depth))
        self.unused = nn.Identity()


def predicted(
    optimizer: str = "sgd", make_model: Any = Causal, probes: Any = IDS, **settings: Any
) -> Any:
    family = nfd.Family(make_model, base=(16, 2), optimizer=optimizer)
    defaults: dict[str, Any] = {
        "lr": 0.5 if optimizer == "sgd" else 3e-3,
        "depth": 2,
        "width": 32,
        "replicates": 2,
        "kernels": nfd.Kernels(modules=["layers.1", "norm"], steps=[2]),
    }
    return nfd.predict(family, SHIFTED[:3], probes=probes, **{**defaults, **settings})


def rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_kernels_of_a_transformer_are_those_of_any_width(optimizer: str) -> None:
    """From widths 128 over 32 as from 256 over 64."""
    settings: dict[str, Any] = {"optimizer": optimizer, "replicates": 12, "weights": "dense"}
    settings["kernels"] = nfd.Kernels(modules=["layers.0", "layers.1", "norm"], steps=[1, 3])
    small = predicted(width=128, **settings).module_kernels
    large = predicted(width=256, **settings, seed=1).module_kernels
    for name in small.features:
        # Features of the other probe are not these.
        one, other = small.features[name], large.features[name]
        assert rms(one.value - other.value.flip(1)) > 3 * rms(one.stderr)
    pairs = [(small.features[name], large.features[name]) for name in small.features]
    # Gradients at the last norm are one number, the size of a row of the readout.
    pairs += [(small.gradients[name], large.gradients[name]) for name in ("layers.0", "layers.1")]
    for one, other in pairs:
        error = one.stderr.hypot(other.stderr)
        # Positions that the output does not see have no gradient.
        seen = error > 0
        assert 0.5 < rms(((one.value - other.value) / error)[seen]) < 1.5


def test_kernels_are_gram_matrices_of_what_modules_return() -> None:
    """Between all pairs of steps, probes and positions; losses stay the same."""
    p = predicted()
    kernels = p.module_kernels
    assert kernels.steps == (0, 2)
    assert list(kernels.features) == list(kernels.gradients) == ["layers.1", "norm"]
    for name in kernels.features:
        for estimates in (kernels.features[name], kernels.gradients[name]):
            assert estimates.value.shape == (2, 2, 4, 2, 2, 4)
            flat = estimates.value.reshape(16, 16)
            torch.testing.assert_close(flat, flat.T)
    # A normalised vector has a mean square of one before training.
    norms = kernels.features["norm"].value.reshape(16, 16).diagonal()[:8]
    torch.testing.assert_close(norms, torch.ones_like(norms), rtol=0.01, atol=0.01)
    # Behind the last block only the last position reaches the output that is looked at.
    gradients = kernels.gradients["norm"].value.reshape(2, 2, 4, 2, 2, 4)
    assert not gradients[:, :, :-1].any()
    assert bool((gradients[0, :, -1, 0, :, -1].diagonal() > 0).all())
    assert p.probe_outputs.value.shape == (4, 2, 4, 11)
    alone = predicted(kernels=False, probes=None)
    assert torch.equal(alone.loss_replicates, p.loss_replicates)
    assert (alone.module_kernels, p.kernels) == (None, None)


class Mean(nn.Module):
    """Two outputs that are means over neurons, so that all gradients are known."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(5, width, bias=False)
        self.hidden = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        mean = self.hidden(self.embed(x)).mean(-1)
        return torch.stack([mean, 3 * mean], -1)


def second(outputs: Tensor) -> Tensor:
    return outputs[:, 1]


@pytest.mark.parametrize(("output", "gradient"), [(None, 1.0), (second, 9.0)])
def test_kernels_of_a_model_whose_gradients_are_known(output: Any, gradient: float) -> None:
    """df/dz is 1/n or 3/n in every neuron, and PyTorch's initial weights have variance 1/15."""
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    family = nfd.Family(Mean, base=(16, 1), rule="mup", optimizer="sgd")
    p = nfd.predict(
        family,
        nfd.Task([(x, x[:, :2])] * 2, loss="mse"),
        0.1,
        depth=1,
        width=256,
        replicates=8,
        weights="dense",
        probes=x,
        kernels=nfd.Kernels(modules="hidden", steps=[2], output=output),
    )
    kernels = p.module_kernels
    assert kernels is not None
    gradients = kernels.gradients["hidden"].value
    torch.testing.assert_close(gradients, torch.full_like(gradients, gradient))
    features = kernels.features["hidden"]
    expected = (x @ x.T / 15).double()
    distances = (features.value[0, :, 0] - expected) / features.stderr[0, :, 0]
    assert rms(distances) < 1.8
    # of no other variance
    assert rms((features.value[0, :, 0] - 2 * expected) / features.stderr[0, :, 0]) > 5


class Pictures(nn.Module):
    """Channels second, a change in place, and a result in a tuple."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, str]:
        h = self.drop(torch.relu_(self.first(x)))
        return self.head(h.mean((2, 3))), "aux"


def test_channels_are_found_and_dropout_is_off() -> None:
    x = torch.randn(4, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    family = nfd.Family(Pictures, base=(16, 1), rule="mup", optimizer="sgd")
    kernels = nfd.Kernels(modules=["first", "drop"], steps=[0])
    settings: dict[str, Any] = {"depth": 1, "width": 256, "replicates": 8, "kernels": kernels}
    settings["weights"] = "dense"
    task = nfd.Task([(x, torch.arange(4) % 3)], loss=_of_first)
    features = nfd.predict(family, task, 0.1, probes=x[:2], **settings).module_kernels.features
    assert features["first"].value.shape == (1, 2, 3, 3, 1, 2, 3, 3)
    # Without dropout relu halves the mean square; dropout would double it again.
    squares = [features[name].value.reshape(18, 18).diagonal().mean() for name in features]
    assert float(squares[1] / squares[0]) == pytest.approx(0.5, abs=0.15)


def _of_first(result: Any, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(result[0], labels)


def test_after_a_divergence_kernels_at_modules_are_not_numbers() -> None:
    p = predicted(lr=1e9)
    values = p.module_kernels.features["layers.1"].value
    assert not values[0, :, :, 0].isnan().any()
    assert bool(values[1].isnan().all())


BAD: list[tuple[dict[str, Any], str]] = [
    ({"modules": ["layer.1"]}, r"no module 'layer.1'.*such as 'layers.1'"),
    ({"modules": ["blocks.7"]}, r"no module 'blocks.7'.*named_modules"),
    ({"modules": ["unused"]}, "'unused' is not called for the probes"),
    ({"modules": ["layers"]}, "'layers' is not called for the probes"),
    ({"modules": ["head"]}, r"'head' returns \[2, 4, 11\].*one axis must grow"),
    ({"modules": []}, "modules must be names"),
    ({"modules": [1]}, "modules must be names"),
    ({"modules": ["norm"], "times": 3}, "times are depths of nfd.resnets"),
    ({"output": second}, "output is for gradients at modules"),
    ({"modules": ["norm"], "output": Tensor.sum}, r"one number for each of the 2 probes, \[2\]"),
    ({"modules": ["norm"], "steps": [9]}, "at most the 3 updates"),
]


class Shared(nn.Module):
    """Tokens at up to 64 positions, and one activation that is called twice."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, width)
        self.positions = nn.Embedding(64, width)
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width)
        self.act = nn.ReLU()
        self.second = nn.Identity()
        self.head = nn.Linear(width, 11)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        h = self.act(self.up(h))
        h = self.second(self.act(self.down(h)))
        logits: Tensor = self.head(h)
        return logits


def of_shared(modules: list[str] | None, probes: Tensor = IDS) -> Any:
    family = nfd.Family(Shared, base=(16, 1), rule="mup", optimizer="sgd")
    settings: dict[str, Any] = {"depth": 1, "width": 32, "replicates": 2, "probes": probes}
    settings["kernels"] = nfd.Kernels(modules=modules, steps=[0]) if modules else False
    return nfd.predict(family, SHIFTED[:1], 0.1, **settings)


def test_a_module_that_is_called_several_times_is_named() -> None:
    with pytest.raises(ValueError, match=r"'act' is called 2 times in a forward pass"):
        of_shared(["act"])
    features = of_shared(["second"]).module_kernels.features
    assert features["second"].value.shape == (1, 2, 4, 1, 2, 4)


def detached(outputs: Tensor) -> Tensor:
    return outputs[:, 0, 0].detach()


def test_an_output_without_a_gradient_is_named() -> None:
    with pytest.raises(ValueError, match=r"nfd.Kernels\(output=\) gave carries none"):
        predicted(kernels=nfd.Kernels(modules=["norm"], output=detached))


@pytest.mark.parametrize(
    "probes", [IDS + 11, IDS.float(), IDS.repeat(1, 50)], ids=["range", "float", "long"]
)
@pytest.mark.parametrize("modules", [["second"], None])
def test_tokens_that_the_model_does_not_take_are_named(
    probes: Tensor, modules: list[str] | None
) -> None:
    with pytest.raises(ValueError, match=r"probes must be inputs that the model takes.*got \[2, "):
        of_shared(modules, probes)


def test_the_representation_of_module_kernels_is_a_line() -> None:
    text = repr(predicted().module_kernels)
    assert text == (
        "ModuleKernels(features and gradients at 'layers.1' [2, 2, 4, 2, 2, 4] and 'norm' "
        "[2, 2, 4, 2, 2, 4]; steps (0, 2))"
    )


def test_kernels_at_modules_have_as_many_rows_as_memory_has_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 65 probes, four positions and two steps, 520 rows."""
    settings: dict[str, Any] = {"probes": SHIFTED[1][0].repeat(20, 1)[:65, :4]}
    settings["kernels"] = nfd.Kernels(modules=["norm"], steps=[1])
    p = predicted(**settings)
    assert p.module_kernels.features["norm"].value.shape == (2, 65, 4, 2, 65, 4)
    monkeypatch.setattr("nfd.limits.probes.memory_of", lambda device: 50 * 2**20)
    with pytest.raises(ValueError, match=r"65 probes with their positions at 1 module and 2 steps"):
        predicted(**settings)
    predicted(**settings | {"probes": IDS})


@pytest.mark.parametrize(("settings", "message"), BAD)
def test_what_has_no_kernels_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        predicted(kernels=nfd.Kernels(**settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth": math.inf}, "kernels at modules are of one depth.*Pass depth=L"),
        ({"weights": "deferred"}, "need one matrix for the probes"),
        ({"kernels": True}, r"nfd.Kernels\(modules="),
    ],
)
def test_predictions_without_kernels_at_modules_are_named(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        predicted(**settings)
