"""Subclasses of the networks: recognised by what they are, trained whole, and refused where they would be cut short."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nfd
from nfd.runs.losses import cross_entropy
from nfd.scaling.rules import Role

D, C = 5, 3


class Renamed(nfd.ResNet):
    """Other arguments, the same network."""

    def __init__(self, width: int, depth: int, seed: int = 0) -> None:
        super().__init__(D, C, width, depth, seed=seed, block="two-layer")


class Louder(Renamed):
    """Another forward pass."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Twice(Renamed):
    """Two passes: it has no streams of one."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + super().forward(-x)


class Forgetful(Renamed):
    """A bias and a gain that nobody gave a role."""

    def __init__(self, width: int, depth: int, seed: int = 0) -> None:
        super().__init__(width, depth, seed)
        self.bias = nn.Parameter(torch.zeros(C))
        self.gain = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.bias + 0 * self.gain.weight.sum()


class Biased(Renamed):
    """A bias on the outputs, a gain of each neuron and a plain matrix, with their roles."""

    def __init__(self, width: int, depth: int, seed: int = 0) -> None:
        super().__init__(width, depth, seed)
        self.bias = nn.Parameter(torch.zeros(C))
        self.gain = nn.Parameter(torch.ones(width))
        self.mix = nn.Linear(width, width, bias=False)

    def named_roles(self) -> dict[str, Role]:
        return {**super().named_roles(), "bias": "readout", "gain": "vector", "mix.weight": "hidden"}

    def read(self, h: Tensor) -> Tensor:
        return super().read(self.mix(h) * self.gain) + self.bias


def batches(count: int = 2) -> list[tuple[Tensor, Tensor]]:
    stream = torch.Generator().manual_seed(0)
    return [(torch.randn(8, D, generator=stream), torch.randint(0, C, (8,), generator=stream)) for _ in range(count)]


def parent(width: int, depth: int) -> nfd.ResNet:
    return nfd.ResNet(D, C, width, depth, block="two-layer")


def test_a_subclass_with_other_arguments_is_the_same_network() -> None:
    own, other = Renamed(16, 4), parent(16, 4)
    for rule in ("depth-mup", "depth-mup-inner"):
        plans = [nfd.plan(net, rule=rule, optimizer="adam").to_dict() for net in (own, other)]
        for plan in plans:
            for entry in plan["entries"].values():
                entry.pop("why")
        assert plans[0] == plans[1]
    checks = [nfd.check(make, batches(), [8, 16], [2, 4], seeds=2) for make in (Renamed, parent)]
    assert checks[0].table == checks[1].table
    assert checks[0].runs == checks[1].runs


def test_a_forward_pass_of_its_own_is_what_is_trained_and_measured() -> None:
    """Streams, and with them the first step of a check, see the subclass's outputs and not its parent's."""
    x, _ = batches()[0]
    streams = Louder(16, 4).streams(x)
    torch.testing.assert_close(streams.outputs, 2 * parent(16, 4)(x))
    streams.outputs.sum().backward()  # type: ignore[no-untyped-call]
    other = parent(16, 4).streams(x)
    other.outputs.sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(streams.delta, 2 * other.delta)
    found = []
    for make in (Louder, parent):
        check = nfd.check(make, nfd.Task(batches(1), loss=lambda out, _: out.mean()), [8, 16], [2], lr=1e-3, seeds=2)
        found.append([(run["loss"], run["function_update"]) for run in check.runs])
    loud, plain = torch.tensor(found)
    torch.testing.assert_close(loud[:, 0], 2 * plain[:, 0])
    torch.testing.assert_close(loud[:, 1], 4 * plain[:, 1], rtol=0.01, atol=0)  # but for the second order of the step
    with pytest.raises(ValueError, match=r"Twice.forward must make one pass through run\(\).*made 2"):
        Twice(16, 4).streams(x)


def test_parameters_without_a_role_are_refused_by_name_wherever_rates_are_made() -> None:
    net, said = (
        Forgetful(16, 4),
        "Forgetful has trainable parameters without a role.*'bias', 'gain.weight', 'gain.bias'",
    )
    with pytest.raises(ValueError, match=said):
        net.param_groups(0.1)
    with pytest.raises(ValueError, match=said):
        nfd.plan(net)
    with pytest.raises(ValueError, match=said):
        nfd.check(Forgetful, batches(), [8, 16], [2], seeds=2)
    other = Renamed(8, 2)
    other.extra = nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError, match=r"Renamed has trainable parameters without a role.*'extra'"):
        nfd.plan(torch.nn.parallel.DataParallel(other))  # wherever it is
    for p in (net.bias, *net.gain.parameters()):
        p.requires_grad_(False)
    assert sum(len(group["params"]) for group in net.param_groups(0.1)) == 2 + 2 * 4
    nfd.plan(net)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_parameters_with_a_role_train_at_its_rate(optimizer: Any) -> None:
    """As plain parameters: hidden ones behind no multiplier have the rate of an effective weight."""
    n, net = 16, Biased(16, 4)
    rates = {id(p): group["lr"] for group in net.param_groups(0.5, optimizer=optimizer) for p in group["params"]}
    expected = {"bias": 1.0, "gain": n, "mix.weight": 1.0} if optimizer == "sgd" else {"bias": 1, "gain": 1}
    expected |= {"mix.weight": 1 / n} if optimizer == "adam" else {}
    assert {name: rates[id(net.get_parameter(name))] / 0.5 for name in expected} == pytest.approx(expected)
    plan = nfd.plan(net, optimizer=optimizer)
    planned = {id(p): group["lr"] for group in plan.param_groups(net, lr=0.5) for p in group["params"]}
    assert planned == pytest.approx(rates)
    before = copy.deepcopy(net.state_dict())
    plan.apply_(net, seed=3)
    assert torch.equal(net.gain, before["gain"])  # as the subclass begins them
    assert torch.equal(net.mix.weight, before["mix.weight"])
    assert not torch.equal(net.U, before["U"])
    x, y = batches()[0]
    stepper = nfd.SGD(net.param_groups(0.5)) if optimizer == "sgd" else torch.optim.Adam(plan.param_groups(net, lr=0.5))
    cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
    stepper.step()
    for name in expected:
        assert not torch.equal(net.get_parameter(name), before[name]), name
    assert nfd.check(Biased, batches(), [8, 16], [2, 4], lr=0.01, seeds=2, optimizer=optimizer).table
