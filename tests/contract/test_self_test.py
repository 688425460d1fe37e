"""A plan tests itself: wrong ones are found in any spelling, sound ones stay quiet, and the answer
says what to do.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.contract.common import ResidualMLP, run
from torch import Tensor, nn

import nfd

X = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
IDS = torch.randint(0, 11, (4, 8), generator=torch.Generator().manual_seed(1))
BASE = (16, 2)


class VectorReadout(nn.Module):
    """A last vector that is multiplied and summed, or a layer that does the same."""

    def __init__(self, width: int, depth: int, *, is_layer: bool) -> None:
        super().__init__()
        self.into = nn.Linear(64, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1, bias=False)
        self.is_layer = is_layer

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(torch.relu(self.into(x)))
        return self.head(h) if self.is_layer else (h * self.head.weight[0]).sum(-1, keepdim=True)


class Averaged(ResidualMLP):
    """Branches divided by the depth, or not."""

    is_divided = True

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h) / (len(self.blocks) if self.is_divided else 1)
        out: Tensor = self.head(self.norm(h))
        return out


class Summed(Averaged):
    """The same without the factor."""

    is_divided = False


def planned(
    width: int = 64, depth: int = 6, *, rule: str = "complete-p", optimizer: str = "adamw"
) -> nfd.Plan:
    model = ResidualMLP(width, depth)
    return nfd.plan(model, BASE, make_model=ResidualMLP, sample=X, rule=rule, optimizer=optimizer)


def with_rate(plan: nfd.Plan, name: str, factor: float) -> nfd.Plan:
    """A plan that trains the tensors of a name at so many times their rates."""
    entries = dict(plan.entries)
    for tensor, entry in plan.entries.items():
        if tensor.endswith(name):
            start = replace(entry.start, std=entry.start.std / factor)
            entries[tensor] = replace(entry, own_factor=entry.own_factor / factor, start=start)
    return replace(plan, entries=entries)


def with_start(plan: nfd.Plan, name: str, factor: float) -> nfd.Plan:
    """A plan that begins the tensors of a name at so many times their size."""
    entries = dict(plan.entries)
    for tensor, entry in plan.entries.items():
        if tensor.endswith(name):
            entries[tensor] = replace(
                entry, start=replace(entry.start, std=entry.start.std * factor)
            )
    return replace(plan, entries=entries)


@pytest.mark.parametrize(
    ("rule", "optimizer"),
    [("complete-p", "adamw"), ("mup", "sgd"), ("depth-mup", "lion"), ("complete-p", "muon")],
)
def test_a_sound_plan_is_quiet(rule: str, optimizer: str) -> None:
    test = planned(rule=rule, optimizer=optimizer).self_test(ResidualMLP, X)
    assert test.ok, test
    assert not test.off
    assert test.axes == (("width",) if rule == "mup" else ("width", "depth"))
    assert {row.quantity for row in test.rows} >= {"update", "start", "output"}
    assert str(test).startswith("✓ SCALES  The plan scales with width")


def test_a_wrong_rate_is_named_with_its_power() -> None:
    test = with_rate(planned(), "1.weight", math.sqrt(4)).self_test(ResidualMLP, X)
    (row,) = test.off
    assert (row.kind, row.quantity, row.axis) == ("blocks.*.1.weight", "update", "width")
    # a power that is fitted to two sizes from two seeds, wrong by 1/2
    assert row.power == pytest.approx(0.5, abs=0.2)
    assert row.factor == pytest.approx(4**row.power)
    assert "for this tensor only: its learning rate" in str(test)


def test_a_wrong_start_is_named_where_it_is() -> None:
    test = with_start(planned(), "1.weight", 4).self_test(ResidualMLP, X)
    starts = {row.kind for row in test.off if row.quantity == "start"}
    assert "blocks.*.1.weight" in starts
    assert "head.weight" not in starts
    (cause,) = [text for text in test.causes if text.startswith("blocks.*.1.weight: initial")]
    assert " times too large at 4 times the width, as width^" in cause


def test_a_start_off_with_depth_is_off_with_depth_only() -> None:
    test = with_start(planned(), "3.weight", 3).self_test(ResidualMLP, X)
    assert {row.axis for row in test.off} == {"depth"}
    assert "blocks.*.1.weight" in {row.kind for row in test.off}
    assert "repair=True" in str(test)


def test_a_factor_that_the_model_has_lost_is_found() -> None:
    plan = nfd.plan(Averaged(64, 6), BASE, make_model=Averaged, sample=X)
    assert plan.self_test(Averaged, X).ok
    assert not plan.self_test(Summed, X).ok


class TwoHeads(ResidualMLP):
    """Two outputs, as of a detector, which returns classes and boxes."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.boxes = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h)
        return self.head(h), self.boxes(h)


def test_every_output_of_a_model_is_tested() -> None:
    plan = nfd.plan(TwoHeads(64, 6), BASE, make_model=TwoHeads, sample=X)
    assert plan.self_test(TwoHeads, X).ok
    test = with_rate(plan, "boxes.weight", 4).self_test(TwoHeads, X)
    assert [row.kind for row in test.off] == ["boxes.weight"]


class Recurrent(nn.Module):
    """One block that acts ``depth`` times."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.depth = depth
        self.embed = nn.Linear(64, width)
        self.block = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for _ in range(self.depth):
            h = h + self.block(h)
        output: Tensor = self.head(h)
        return output


def test_a_block_that_acts_again_and_again_is_as_deep_as_it_acts() -> None:
    plan = nfd.plan(Recurrent(64, 6), BASE, make_model=Recurrent, sample=X, blocks="block")
    assert plan.self_test(Recurrent, X).ok
    shallow = {
        name: replace(entry, ratios=replace(entry.ratios, depth=1.0))
        for name, entry in plan.entries.items()
    }
    test = replace(plan, entries=shallow).self_test(Recurrent, X)
    assert {row.axis for row in test.off} == {"depth"}


@pytest.mark.parametrize("is_layer", [True, False])
def test_a_readout_with_the_role_of_a_vector_is_found_in_any_spelling(is_layer: bool) -> None:
    def make_model(width: int, depth: int) -> nn.Module:
        return VectorReadout(width, depth, is_layer=is_layer)

    def test(role: str) -> nfd.SelfTest:
        roles = {"head.weight": role}
        plan = nfd.plan(
            make_model(64, 1), (16, 1), make_model=make_model, sample=X, rule="mup", roles=roles
        )
        return plan.self_test(make_model, X)

    assert test("readout").ok, test("readout")
    assert not test("vector").ok


class Attention(nn.Module):
    """Two heads that grow, whose logits are divided by a power of their size; read through a class
    token.
    """

    def __init__(self, width: int, depth: int, power: float = 1.0) -> None:
        super().__init__()
        self.power = power
        self.embed = nn.Embedding(11, width)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.LayerNorm(width),
                    "qkv": nn.Linear(width, 3 * width),
                    "out": nn.Linear(width, width),
                }
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1)

    def forward(self, ids: Tensor) -> Tensor:
        h = torch.cat([self.token.expand(len(ids), -1, -1), self.embed(ids)], 1)
        for block in self.blocks:
            q, k, v = (
                x.unflatten(-1, (2, -1)).transpose(1, 2)
                for x in block["qkv"](block["norm"](h)).chunk(3, -1)
            )
            weights = (q @ k.mT / q.shape[-1] ** self.power).softmax(-1)
            h = h + block["out"]((weights @ v).transpose(1, 2).flatten(2))
        out: Tensor = self.head(self.norm(h)[:, 0])
        return out


class ByRoot(Attention):
    """The same over the root."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth, 0.5)


@pytest.mark.parametrize("make_model", [Attention, ByRoot])
def test_sums_that_training_aligns_are_no_fault_and_logits_that_it_makes_grow_are(
    make_model: type[Attention],
) -> None:
    plan = nfd.plan(make_model(64, 6), BASE, make_model=make_model, sample=IDS)
    test = plan.self_test(make_model, IDS)
    by_root = make_model is ByRoot
    assert {row.quantity for row in test.off} == ({"logits"} if by_root else set()), test
    assert ("divide them by the size of a head" in " ".join(test.causes)) == by_root


class Weakened(ResidualMLP):
    """Branches, or outputs, that are divided by the root of the width."""

    is_output = False

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        root = math.sqrt(h.shape[-1] / BASE[0])
        for block in self.blocks:
            h = h + block(h) / (1 if self.is_output else root)
        out: Tensor = self.head(self.norm(h)) / (root if self.is_output else 1)
        return out


class WeakOutputs(Weakened):
    """Outputs that are."""

    is_output = True


@pytest.mark.parametrize("make_model", [Weakened, WeakOutputs])
def test_a_factor_that_is_as_small_as_a_random_sum_is_found(make_model: type[Weakened]) -> None:
    test = planned().self_test(make_model, X)
    assert {row.quantity for row in test.off} == {"update"}, test
    assert {row.axis for row in test.off} == {"width"}
    assert all(row.power == pytest.approx(-0.5, abs=0.2) for row in test.off)


def test_a_repair_is_proposed_and_not_applied() -> None:
    plan = with_start(planned(rule="mup", depth=2), "head.weight", 4)
    before = plan.to_dict()
    test = plan.self_test(ResidualMLP, X, repair=True)
    assert [(p.kind, p.axis, p.start, p.rate) for p in test.proposals] == [
        ("head.weight", "width", -1.0, 0.0)
    ]
    assert "multiply its initial weights by width^-1" in str(test)
    assert plan.to_dict() == before


def test_what_is_not_tested_is_said() -> None:
    wide = planned(depth=2).self_test(ResidualMLP, X)
    assert wide.axes == ("width",)
    assert "depth" in wide.notes[0]
    same = planned(16, 2).self_test(ResidualMLP, X)
    assert "Nothing was tested" in str(same)


def test_what_cannot_be_tested_is_refused_with_a_reason() -> None:
    with pytest.raises(ValueError, match="promises nothing"):
        nfd.plan(ResidualMLP(64, 2), rule="standard", sample=X).self_test(ResidualMLP, X)
    tuned = nfd.plan(ResidualMLP(64, 2), ResidualMLP(16, 2), sample=X)
    with pytest.raises(ValueError, match="base="):
        tuned.self_test(ResidualMLP, X)
    assert tuned.self_test(ResidualMLP, X, base=BASE).ok
    with pytest.raises(ValueError, match="no tensor like"):
        planned().self_test(lambda n, L: VectorReadout(n, L, is_layer=True), X)
    with pytest.raises(TypeError, match="must take the sample"):
        planned().self_test(ResidualMLP, X[:, :3])


def test_a_test_leaves_random_streams_and_the_plan_alone() -> None:
    plan = planned(rule="mup", depth=2)
    before = plan.to_dict()
    state = torch.get_rng_state()
    first = plan.self_test(ResidualMLP, X)
    second = plan.self_test(ResidualMLP, X)
    assert first == second
    assert torch.equal(state, torch.get_rng_state())
    assert plan.to_dict() == before


# ---- beside a check, and from the command line

BATCHES = [(X, torch.zeros(8, dtype=torch.long))] * 2


def only_small(width: int, depth: int) -> nn.Module:
    """A model that cannot be built 4 times as large."""
    if width > 24:
        raise RuntimeError("too wide")
    return ResidualMLP(width, depth)


def test_a_check_says_what_the_plan_finds_and_why_it_could_not_look() -> None:
    sizes = {"widths": [8, 16], "depths": [1], "seeds": 2, "sweep": nfd.Sweep(executor="inline")}
    assert nfd.check(ResidualMLP, BATCHES, rule="mup", **sizes).tested == ()
    wrong = nfd.Family(ResidualMLP, (8, 1), rule="mup", roles={"head.weight": "embedding"})
    found = nfd.check(wrong, BATCHES, **sizes)
    assert any("Self-test of the plan: head.weight" in note for note in found.notes), found.notes
    (refused,) = nfd.check(only_small, BATCHES, rule="mup", **sizes).tested
    assert "could not test itself" in refused
    assert "too wide" in refused


SETUP = """
import torch
from common import ResidualMLP as make_model

batches = [(torch.randn(8, 64), torch.zeros(8, dtype=torch.long))]
"""


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        pytest.param("", 0, "The plan scales", marks=pytest.mark.slow),
        ("roles", 1, "does not scale"),
    ],
)
def test_the_command_exits_with_the_answer(more: str, code: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "common.py").write_text(Path(__file__).with_name("common.py").read_text())
    roles = 'roles = {"head.weight": "embedding"}\n' if more else ""
    (tmp_path / "setup.py").write_text(SETUP + roles)
    size = ("--width", "64", "--depth", "6", "--base", "16", "2")
    done = run("plan", "setup.py", *size, "--self-test", folder=tmp_path)
    assert done.returncode == code, done.stdout + done.stderr
    assert said in done.stdout
