"""``nfd.capacity`` of anyone's model: known laws through the whole measurement, counted costs, resuming, refusals."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models import Residual
from torch import Tensor, nn

import nfd
from nfd.cli.main import main
from nfd.core.errors import InputError
from nfd.families.paper import PaperFamily
from nfd.questions.costs import Cost, counted
from nfd.store.store import Store

ONES = [(torch.ones(2, 1), torch.ones(2))] * 3
STREAM = torch.Generator().manual_seed(0)
VECTORS = [(torch.randn(8, 5, generator=STREAM), torch.randint(0, 3, (8,), generator=STREAM))] * 2


class Known(nn.Module):
    """A loss that follows the law of size, with a little noise of every start, and weights that do not matter."""

    power = 1.0

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.noise = nn.Parameter(0.01 * torch.randn(1))
        self.unused = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.first = nn.Linear(1, width)
        self.height = 0.7 + 8 / width**self.power + 0.5 / depth

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for layer in self.unused:
            h = layer(h)
        return self.height + self.noise + 0 * h.sum()


class Slower(Known):
    """Another power of the width."""

    power = 0.5


class Longer(Known):
    """A loss that falls with every step of training, too."""

    seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += self.training
        return super().forward(x) + 2 / max(self.seen, 1) ** 0.5


def height(out: Tensor, y: Tensor) -> Tensor:
    return out.mean()


def of_known(make_model: Any, **options: Any) -> nfd.Capacity:
    given: dict[str, Any] = {"rule": "standard", "optimizer": "sgd", "lr": 1e-6, "loss": height, "seeds": 4}
    return nfd.capacity(make_model, (16, 32, 64, 128), (2, 4, 8), ONES, **given | options)


def test_a_known_law_is_found_and_its_best_size_is_counted() -> None:
    capacity = of_known(Known)
    assert capacity.law.good
    assert capacity.floor.low < 0.7 < capacity.floor.high
    larger = capacity.at(512, math.inf)
    assert larger.low < 0.7 + 8 / 512 < larger.high
    assert capacity.held_out is not None
    assert capacity.held_out.size == (128, 8)
    assert capacity.held_out.inside
    best = capacity.best(parameters=20_000)
    assert best.cost == sum(p.numel() for p in Known(best.width, best.depth).parameters()) <= 20_000
    assert best.width % 16 == 0
    operations = capacity.best(flops="1M").cost
    assert operations <= 10**6
    seconds = 1e6 / capacity.speed
    assert capacity.best(seconds=seconds) == capacity.best(flops=capacity.speed * seconds)
    with pytest.raises(ValueError, match="got flops and seconds"):
        capacity.best(seconds=1.0, flops=1e9)
    with pytest.raises(ValueError, match="how fast these networks train is not known"):
        replace(capacity, speed=math.nan).best(seconds=1.0)
    with pytest.raises(ValueError, match="memory is not known"):
        capacity.best(memory="1 GiB")
    assert {row["quantity"] for row in capacity.table} == {"floor", "a", "b", "training loss"}


def test_where_lengths_vary_the_law_has_a_power_of_them() -> None:
    given: dict[str, Any] = {"rule": "standard", "optimizer": "sgd", "lr": 1e-6, "loss": height, "seeds": 3}
    batches = [(torch.ones(2, 1), torch.zeros(2, dtype=torch.long))] * 10
    capacity = nfd.capacity(Longer, (16, 32, 64), (2, 4, 8), batches, lengths=(1, 2, 4, 10), **given)
    assert capacity.law.variables == ("width", "depth", "tokens")
    assert capacity.law.good
    assert capacity.floor.low < 0.7 < capacity.floor.high
    longer = capacity.at(64, 8, tokens=80)  # targets: 40 steps of two
    assert longer.low < 0.7 + 8 / 64 + 0.5 / 8 + 2 / 40**0.5 < longer.high
    assert capacity.held_out is not None
    assert capacity.held_out.size == (64, 8, 20)
    assert capacity.best(parameters=20_000).cost <= 20_000
    one = nfd.capacity(Longer, (16, 32, 64), (2, 4, 8), batches, lengths=(4,), **given)
    four = nfd.capacity(Longer, (16, 32, 64), (2, 4, 8), batches[:4], **given)
    assert one.law.variables == ("width", "depth")
    assert one.table == four.table


def test_a_law_that_does_not_hold_is_not_extrapolated() -> None:
    capacity = of_known(Slower, seeds=3)
    assert not capacity.law.good or capacity.held_out is None or not capacity.held_out.inside


def test_the_best_size_is_that_of_brute_force_among_multiples() -> None:
    capacity = of_known(Known)
    a, b, cost = capacity.law.terms["a"].value, capacity.law.terms["b"].value, capacity.costs
    assert cost is not None
    count = cost.cost("parameters")
    sizes = [(n, L) for n in range(16, 400, 16) for L in range(1, 80) if count.at(n, L) <= 20_000]
    least = min(a / n + b / L for n, L in sizes)
    best = capacity.best(parameters=20_000)
    assert a / best.width + b / best.depth == pytest.approx(least, rel=1e-12)


def test_costs_are_exact_or_not_known() -> None:
    cost = Cost(3, 11, 5, 4, 2, 7)
    sizes = [(n, L) for n in (8, 16, 24) for L in (1, 2, 3)]
    assert counted({size: cost.at(*size) for size in sizes}) == cost
    assert counted({size: cost.at(*size) + (size == (24, 3)) for size in sizes}) is None
    assert counted({size: cost.at(*size) for size in sizes[:5]}) is None
    doubled = cost.by(8)
    assert doubled.at(3, 5) == cost.at(24, 5)
    for budget in (10**4, 12_345, 10**6):
        n, L = cost.widest(5, budget), cost.deepest(9, budget)
        assert cost.at(n, 5) <= budget < cost.at(n + 1, 5)
        assert cost.at(9, L) <= budget < cost.at(9, L + 1)


@pytest.mark.parametrize(
    "family",
    [Residual, PaperFamily(nfd.ResNet, 5, 3, "depth-mup", "sgd")],
    ids=["anyone's", "the paper's"],
)
def test_both_kinds_of_family_are_asked_and_resumed(family: Any, tmp_path: Path) -> None:
    given: dict[str, Any] = {"rule": "depth-mup", "optimizer": "sgd", "lr": 0.01, "seeds": 2, "out": tmp_path}
    first = nfd.capacity(family, (8, 16), (2, 3), VECTORS, eval_batches=VECTORS, **given)
    with Store.read(tmp_path) as store:
        count = len(store)
    assert count == 8
    again = nfd.capacity(family, (8, 16), (2, 3), VECTORS, eval_batches=VECTORS, **given)
    assert again.table == first.table
    assert first.score == "test loss"
    with Store.read(tmp_path) as store:
        assert len(store) == count


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"seeds": 1}, ValueError, "seeds must be at least 2"),
    ({"lr": 0.0}, ValueError, "lr must be greater than 0"),
    ({"rule": "mupp"}, ValueError, "Did you mean 'mup'"),
    ({"optimizer": "sgdd"}, ValueError, "Did you mean 'sgd'"),
    ({"lengths": (1, 4)}, ValueError, "lengths must be at most 3; got 4"),
    ({"lengths": (2, 1)}, ValueError, "lengths must be ascending"),
    ({"lengths": (1, 3), "schedule": lambda step: 1.0}, ValueError, "schedule must take steps"),
]


@pytest.mark.parametrize(("options", "error", "message"), REFUSED)
def test_what_cannot_be_asked_is_refused_by_name(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        of_known(Known, **options)


def test_sizes_that_tell_no_law_are_refused_before_they_are_trained(tmp_path: Path) -> None:
    for widths, depths in (((8, 16, 32), (2,)), ((8,), (2, 4, 8))):
        with pytest.raises(ValueError, match="at least 2 widths, 2 depths"):
            nfd.capacity(Residual, widths, depths, VECTORS, out=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("blocks", ["", [], "layers.*"])
def test_blocks_that_name_nothing_are_refused_before_anything_is_trained(blocks: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="blocks must name modules of the model"):
        nfd.capacity(Residual, (8, 16), (2, 3), VECTORS, blocks=blocks, out=tmp_path)
    assert not list(tmp_path.iterdir())


# ---- the command -------------------------------------------------------------------------------------------------


def the_line(out: Path, *options: str) -> list[str]:
    words = ["capacity", "tests.models:Residual", "--batches", f"{__name__}:VECTORS", "--widths", "8,16,24"]
    words += ["--depths", "2,3,4", "--rule", "depth-mup", "--optimizer", "sgd", "--lr", "0.01", "--seeds", "2"]
    return [*words, "--out", str(out), *options]


def test_the_command_answers_as_the_function_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(the_line(tmp_path, "--executor", "inline", "--parameters", "2k"))
    printed, result = capsys.readouterr().out, json.loads((tmp_path / "result.json").read_text())
    assert {"report.html", "config.toml", "ceiling.csv"} <= {path.name for path in tmp_path.iterdir()}
    with Store.read(tmp_path) as store:
        trained = store.keys()
    given: dict[str, Any] = {"rule": "depth-mup", "optimizer": "sgd", "lr": 0.01, "seeds": 2, "out": tmp_path}
    capacity = nfd.capacity(Residual, (8, 16, 24), (2, 3, 4), VECTORS, **given)
    with Store.read(tmp_path) as store:
        assert store.keys() == trained
    assert code == (0 if capacity.law.good else 1)
    assert result["fit"]["good"] == capacity.law.good
    assert result["model"] == "tests.models:Residual"
    assert all(step["purpose"] in printed for step in result["next"])
    for option in (["--eta-c", "0.1"], ["--memory", "1 GiB"], ["--parameters", "many"]):
        assert main(the_line(tmp_path, *option)) == 2
        assert option[0].removeprefix("--") in capsys.readouterr().err
