"""nfd.Muon beside PyTorch's, and any program of training: layers without stored weights do what
dense twins do.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from safetensors.torch import load, save
from tests.test_wide_layers import LAYERS, Layer, every_layer, stored
from torch import Tensor, nn

import nfd
from nfd.wide import basis

F64 = torch.float64


def model(layer_of: Layer) -> nn.Sequential:
    """Two wide matrices of different aspect, between layers that another optimizer steps."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(5, 40, dtype=F64),
        nn.Tanh(),
        layer_of(40, 60, bias=True, std=40**-0.5, seed=1, dtype=F64),
        nn.Tanh(),
        layer_of(60, 44, std=60**-0.5, seed=2, dtype=F64),
        nn.Tanh(),
        nn.Linear(44, 3, dtype=F64),
    )


def wide(net: nn.Sequential) -> list[nn.Parameter]:
    """The parameters that Muon takes: matrices between wide layers, stored or not."""
    return [p for index in (2, 4) for name, p in net[index].named_parameters() if name != "bias"]


def train(
    net: nn.Sequential, make: Callable[..., torch.optim.Optimizer], steps: int = 8
) -> list[Tensor]:
    muon = make(wide(net))
    taken = set(map(id, muon.param_groups[0]["params"]))
    adamw = torch.optim.AdamW([p for p in net.parameters() if id(p) not in taken], lr=0.01)
    stream = torch.Generator().manual_seed(1)
    outputs = []
    for _ in range(steps):
        x = torch.randn(3, 5, generator=stream, dtype=F64)
        y = net(x)
        outputs.append(y.detach())
        muon.zero_grad()
        adamw.zero_grad()
        (3 * (y - 1)).square().mean().backward()
        nn.utils.clip_grad_norm_(wide(net), 0.5)
        muon.step()
        adamw.step()
    return outputs


OPTIONS: list[dict[str, Any]] = [
    {"lr": 0.05},
    {"lr": 0.05, "weight_decay": 0.3, "nesterov": False, "momentum": 0.8},
    {"lr": 0.02, "adjust_lr_fn": "match_rms_adamw", "ns_steps": 3},
]


def in_full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's Muon turns matrices in bfloat16; without that it is a reference to rounding."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)


@pytest.mark.parametrize("options", OPTIONS)
@every_layer
def test_layers_without_stored_weights_are_stepped_as_their_dense_twin_by_pytorchs_muon(
    layer_of: Layer, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = model(layer_of)
    start = copy.deepcopy(net)
    outputs = train(net, partial(nfd.Muon, **options))
    in_full_precision(monkeypatch)
    again = train(stored(net, start), partial(torch.optim.Muon, **options))
    for y, z in zip(outputs, again, strict=True):
        torch.testing.assert_close(y, z, rtol=1e-9, atol=1e-10)
    assert float((outputs[-1] - outputs[0]).abs().max()) > 0.1


def step(make: Callable[..., torch.optim.Optimizer], gradient: Tensor) -> Tensor:
    """What one step at rate 1 subtracts from a matrix of zeros, without the factor of its shape."""
    matrix = nn.Parameter(torch.zeros_like(gradient))
    matrix.grad = gradient.clone()
    make([matrix], lr=1.0).step()
    return -matrix.detach() / math.sqrt(max(1.0, gradient.shape[0] / gradient.shape[1]))


def test_steps_agree_with_those_in_bfloat16() -> None:
    """Along the gradient, to that rounding; beside a gradient of low rank PyTorch's turns rounding
    into steps.
    """
    stream = torch.Generator().manual_seed(0)
    for gradient in (
        torch.randn(30, 50, generator=stream),
        torch.randn(30, 6, generator=stream) @ torch.randn(6, 50, generator=stream),
    ):
        ours = step(nfd.Muon, gradient)
        theirs = step(torch.optim.Muon, gradient)
        rank = int(torch.linalg.matrix_rank(gradient))
        U, _, V = torch.linalg.svd(gradient)
        along = [U[:, :rank].T @ update @ V[:rank].T for update in (ours, theirs)]
        assert float((along[0] - along[1]).norm() / along[1].norm()) < 0.03
        assert float(ours.norm()) == pytest.approx(float(along[0].norm()), rel=1e-3)
        plain = gradient * (ours.norm() / gradient.norm())
        assert float((plain - ours).norm() / ours.norm()) > 0.1
    assert float(theirs.norm()) > 1.05 * float(along[1].norm())


@every_layer
def test_a_resumed_run_is_the_run(layer_of: Layer) -> None:
    x = torch.randn(4, 3, 40, dtype=F64, generator=torch.Generator().manual_seed(0))

    def steps(layer: Any, optimizer: torch.optim.Optimizer, batches: Tensor) -> None:
        for batch in batches:
            optimizer.zero_grad()
            torch.tanh(layer(batch) - 1).square().sum().backward()
            optimizer.step()

    layer = layer_of(40, 30, std=0.1, seed=0, dtype=F64)
    optimizer = nfd.Muon(layer.parameters(), lr=0.1)
    steps(layer, optimizer, x[:2])
    other = layer_of(40, 30, dtype=F64)
    other.load_state_dict(load(save(layer.state_dict())))
    resumed = nfd.Muon(other.parameters())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    steps(layer, optimizer, x[2:])
    steps(other, resumed, x[2:])
    assert torch.equal(layer(x[0]), other(x[0]))


def test_settings_and_parameters_of_others_are_refused() -> None:
    matrix = nn.Parameter(torch.ones(3, 3))
    for wrong, name in (
        ({"lr": -1.0}, "lr"),
        ({"momentum": -0.1}, "momentum"),
        ({"ns_steps": 100}, "ns_steps"),
        ({"ns_coefficients": (1.0, 2.0)}, "ns_coefficients"),
        ({"adjust_lr_fn": "spectral"}, "adjust_lr_fn"),
    ):
        with pytest.raises(ValueError, match=name):
            nfd.Muon([matrix], **wrong)
    with pytest.raises(ValueError, match=r"shape \[3\].*AdamW"):
        nfd.Muon([nn.Parameter(torch.ones(3))])
    with pytest.raises(ValueError, match=r"shape \[4\].*AdamW"):
        nfd.Muon([matrix]).add_param_group({"params": [nn.Parameter(torch.ones(4))]})


# ---- any program of training


def between(least: float, most: float) -> st.SearchStrategy[float]:
    return st.integers(0, 20).map(lambda k: least + k * (most - least) / 20)


def ruled(
    kind: type[torch.optim.Optimizer], **options: st.SearchStrategy[Any]
) -> st.SearchStrategy[Any]:
    """A rule with random options."""
    rates = {"lr": between(0.01, 0.2), "weight_decay": between(0, 0.5), "momentum": between(0, 0.9)}
    return st.fixed_dictionaries(rates | options).map(lambda drawn: partial(kind, **drawn))


SHAPES = st.sampled_from([None, "match_rms_adamw"])
RULES = st.one_of(
    ruled(nfd.SGD, dampening=between(0, 0.5), maximize=st.booleans()),
    ruled(nfd.Muon, nesterov=st.booleans(), adjust_lr_fn=SHAPES, ns_steps=st.integers(1, 6)),
)
CASES = st.tuples(st.sampled_from(list(LAYERS.values())), RULES)
KINDS = ["learn", "learn alike", "step", "step", "forget", "clip", "clip one", "rate", "look"]
TRAINING = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 4)), max_size=10)


class Trained:
    """Two wide matrices and the program of their training, which notes what they answered."""

    def __init__(self, net: nn.Sequential, optimizer: torch.optim.Optimizer, seed: int) -> None:
        self.net = net
        self.optimizer = optimizer
        self.stream = torch.Generator().manual_seed(seed)
        self.answers: list[Tensor] = []

    def run(self, program: list[tuple[str, int]]) -> list[Tensor]:
        for kind, size in [("learn", 2), *program, ("learn", 1)]:
            x = torch.randn(size, self.net[0].in_features, generator=self.stream, dtype=F64)
            parameters = [p for p in self.net.parameters() if p.grad is not None]
            if kind == "learn alike":  # directions are then found in more than one round
                x[1:] = x[:1] + 1e-6 * x[1:]
            if kind.startswith("learn"):
                y = self.net(x)
                self.answers.append(y.detach())
                (y - 1).square().sum().backward()
            elif kind == "look":
                with torch.no_grad():
                    self.net(x)
            elif kind == "step":
                self.optimizer.step()
            elif kind == "forget":
                self.optimizer.zero_grad()
            elif kind == "rate":
                self.optimizer.param_groups[0]["lr"] *= size / 2
            elif parameters and kind == "clip":
                nn.utils.clip_grad_norm_(parameters, 0.1 * size)
            elif parameters:
                nn.utils.clip_grad_norm_(parameters[:1], 0.1 * size)
        return self.answers


@settings(max_examples=100, deadline=None, derandomize=True)
@given(CASES, TRAINING, st.tuples(*[st.integers(2, 9)] * 3), st.integers(0, 99))
def test_any_program_steps_a_layer_as_its_dense_twin(
    case: tuple[Any, Any], program: list[tuple[str, int]], sizes: tuple[int, int, int], seed: int
) -> None:
    (layer_of, rule_of) = case
    (n, m, k) = sizes
    # in every other program as if arrays were large
    reused = mock.patch.object(basis, "_MAPPED", seed % 2 << 25)
    with warnings.catch_warnings(), reused:
        warnings.simplefilter("ignore")
        layers = [
            layer_of(i, o, std=i**-0.5, seed=seed + i, dtype=F64) for i, o in ((n, m), (m, k))
        ]
        net = nn.Sequential(layers[0], nn.Tanh(), layers[1])
        start = copy.deepcopy(net)
        answers = Trained(net, rule_of(net.parameters()), seed).run(program)
        twin = stored(net, start)
        again = Trained(twin, rule_of(twin.parameters()), seed).run(program)
    for y, z in zip(answers, again, strict=True):
        torch.testing.assert_close(y, z, rtol=1e-9, atol=1e-9)
