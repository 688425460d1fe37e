"""Any program of training: hypothesis writes it, and a layer without stored weights does what its dense twin does."""

from __future__ import annotations

import copy
import warnings
from functools import partial
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import torch
from hypothesis import given, settings
from tests.test_wide_layers import LAYERS, stored
from torch import Tensor, nn

import nfd
from nfd.wide import basis

F64 = torch.float64


def between(least: float, most: float) -> st.SearchStrategy[float]:
    return st.integers(0, 20).map(lambda k: least + k * (most - least) / 20)


def ruled(kind: type[torch.optim.Optimizer], **options: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
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
        self.net, self.optimizer, self.stream = net, optimizer, torch.Generator().manual_seed(seed)
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
    (layer_of, rule_of), (n, m, k) = case, sizes
    reused = mock.patch.object(basis, "_MAPPED", seed % 2 << 25)  # in every other program as if arrays were large
    with warnings.catch_warnings(), reused:
        warnings.simplefilter("ignore")
        layers = [layer_of(i, o, std=i**-0.5, seed=seed + i, dtype=F64) for i, o in ((n, m), (m, k))]
        net = nn.Sequential(layers[0], nn.Tanh(), layers[1])
        start = copy.deepcopy(net)
        answers = Trained(net, rule_of(net.parameters()), seed).run(program)
        twin = stored(net, start)
        again = Trained(twin, rule_of(twin.parameters()), seed).run(program)
    for y, z in zip(answers, again, strict=True):
        torch.testing.assert_close(y, z, rtol=1e-9, atol=1e-9)
