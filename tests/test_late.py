"""Checks that look at several steps: rates by name, verdicts late, growth with time, alignment of updates."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from nfd.runs.model_settings import CheckConfig
from tests.models import ConvNet, Residual, Transformer
from torch import Tensor, nn

import nfd
from nfd.cli.main import main
from nfd.core.errors import InputError
from nfd.meters.looks import growth
from nfd.meters.matrices import alignment
from nfd.meters.outcome import Check
from nfd.questions.late_findings import late_findings
from nfd.scaling.laws import law_of
from nfd.scaling.tensors import tensors

WIDTHS = [32, 64, 128, 256]


def vectors(steps: int, batch: int = 16) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(batch, 5, generator=g), torch.randint(0, 3, (batch,), generator=g)) for _ in range(steps)]


# ---- the rate by its names ---------------------------------------------------------------------------------------


def test_a_rate_has_one_name() -> None:
    sizes = ([8, 16], [2], vectors(2))
    by_lr, by_eta_c = nfd.check(Residual, *sizes, lr=0.2, seeds=2), nfd.check(Residual, *sizes, eta_c=0.2, seeds=2)
    assert by_lr.runs == by_eta_c.runs
    assert (by_lr.lr, by_lr.eta_c) == (0.2, 0.2)
    assert "lr = 0.2," in str(by_lr)
    papers = nfd.check(lambda width, depth: nfd.ResNet(5, 3, width, depth), *sizes, seeds=2)
    assert "eta_c = 0.1," in str(papers)
    with pytest.raises(ValueError, match=r"got lr=0\.2 and eta_c=0\.1\. Drop one"):
        nfd.check(Residual, *sizes, lr=0.2, eta_c=0.1)
    with pytest.raises(ValueError, match="lr must be greater than 0"):
        nfd.check(Residual, *sizes, lr=0.0)
    with pytest.raises(InputError, match=r"got lr=0\.2 and eta_c=0\.1\. Drop one"):
        CheckConfig(lr=0.2, eta_c=0.1)
    with pytest.raises(InputError, match=r"roles must be like .*; got .'inner'"):
        CheckConfig(roles=("inner",))


# ---- several steps -----------------------------------------------------------------------------------------------


def at_steps(check: Check, meter: str, axis: str = "width") -> dict[int, dict[str, Any]]:
    return {row["step"]: row for row in check.table if (row["meter"], row["axis"]) == (meter, axis)}


def test_what_is_seen_at_a_step_is_what_a_check_of_that_length_sees() -> None:
    batches, options = vectors(4), {"rule": "mup", "optimizer": "adamw", "lr": 1e-2, "seeds": 2}
    several = nfd.check(Residual, [8, 16], [2, 4], batches, at=(1, 3), **options)  # type: ignore[arg-type]
    for step in (1, 3):
        alone = nfd.check(Residual, [8, 16], [2, 4], batches[:step], **options)  # type: ignore[arg-type]
        assert [row for row in several.rows if row["step"] == step and not row["matrix"]] == [
            row | {name: several_row[name] for name in ("gradient", "alignment")}
            for row, several_row in zip(
                [row for row in alone.rows if not row["matrix"]],
                [row for row in several.rows if row["step"] == step and not row["matrix"]],
                strict=True,
            )
        ]
    assert several.steps == 3
    assert {row["step"] for row in several.table} == {1, 3}
    last = nfd.check(Residual, [8, 16], [2, 4], batches, **options)  # type: ignore[arg-type]
    assert (last.at, last.growth) == ((4,), [])
    assert "alignment" not in {row["meter"] for row in last.table}
    assert not late_findings(last, "vectors")


def test_rows_hold_every_size_step_and_matrix() -> None:
    check = nfd.check(Residual, [8, 16], [2], vectors(2), "mup", "adamw", lr=1e-2, seeds=2, at=(1, 2))
    matrices = [
        "",
        "embed.weight",
        *(f"blocks.{k}.{name}.weight" for k in range(2) for name in ("up", "down")),
        "head.weight",
    ]
    places = [(row["width"], row["seed"], row["step"], row["matrix"]) for row in check.rows]
    assert places == [(n, s, t, name) for n in (8, 16) for s in range(2) for t in (1, 2) for name in matrices]
    for row in check.rows:
        meters = ("change", "weight", "update", "alignment") if row["matrix"] else ("loss", "alignment")
        values = [row[meter] for meter in (meters[:2] if row["matrix"] == "embed.weight" else meters)]
        assert all(math.isfinite(value) and value > 0 for value in values)
        assert row.get("alignment", 0) <= 1
    json.dumps(check.rows)


@pytest.mark.parametrize(
    ("at", "says"),
    [((0, 1), "at must be at least 1"), ((2, 1), "at must be ascending"), ((), "at must be ascending"),
     ((1, 9), r"got at=\[1, 9\] and 2 batches"), (3, "at must be a list of steps")],
)  # fmt: skip
def test_steps_that_are_not_there_are_refused(at: Any, says: str) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        nfd.check(Residual, [8, 16], [2], vectors(2), at=at)


class Fading(torch.optim.AdamW):
    """AdamW that from its fifth step on pulls weights back to their start, the more the wider the network is."""

    def __init__(self, groups: Any, kept: float) -> None:
        super().__init__(groups)
        self.kept, self.steps = kept, 0
        self.start = [[p.detach().clone() for p in group["params"]] for group in self.param_groups]

    def step(self, *_: Any) -> None:  # type: ignore[override]
        super().step()
        self.steps += 1
        if self.steps < 5:
            return
        with torch.no_grad():
            for group, start in zip(self.param_groups, self.start, strict=True):
                for p, p_0 in zip(group["params"], start, strict=True):
                    p.lerp_(p_0, 1 - self.kept)


def fading(power: float) -> Any:
    """What is left of the training of every step is ``(32 / width)^power``."""

    def make(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        width = max(p.shape[0] for group in groups for p in group["params"]) / 2
        return Fading(groups, (32 / width) ** power)

    return make


@pytest.mark.parametrize(("power", "late"), [(0.0, "STABLE"), (0.6, "COLLAPSES")])
def test_a_collapse_that_comes_late_is_seen_late(power: float, late: str) -> None:
    batches = vectors(1, 32) * 8
    check = nfd.check(
        Residual, WIDTHS, [2], batches, "mup", "adamw", lr=1e-3, seeds=4, at=(1, 8), make_optimizer=fading(power)
    )
    inner = at_steps(check, "update_to_weight")
    assert (inner[1]["verdict"], inner[8]["verdict"]) == ("STABLE", late)
    assert check.ok == (late == "STABLE")
    (finding,) = [finding for finding in late_findings(check, "vectors") if finding.name == "late-width"]
    assert ("update to weight turns from STABLE to COLLAPSES" in finding.headline) == (late == "COLLAPSES")


# ---- growth with the step ----------------------------------------------------------------------------------------


def lawful(power: float, scatter: float, networks: int = 12) -> list[dict[str, Any]]:
    """Networks whose loss goes as a power of the step, each with one of its own about the one given."""
    g = torch.Generator().manual_seed(3)
    powers = power + scatter * torch.randn(networks, generator=g, dtype=torch.float64)
    return [{"rows": [{"step": t, "matrix": "", "loss": 2.0 * t ** float(p)} for t in (1, 10, 100)]} for p in powers]


def test_growth_with_the_step_is_the_power_of_the_networks() -> None:
    (row,) = growth(lawful(0.5, 0.05), (1, 10, 100))
    assert (row["meter"], row["axis"], row["slope"]) == ("loss", "step", row["value"])
    assert row["low"] < 0.5 < row["high"]
    assert 0.02 < row["high"] - row["low"] < 0.15
    (falling,) = growth(lawful(-0.3, 0.05), (1, 10, 100))
    assert falling["high"] < -0.2
    assert falling["cause"].startswith("falls by 7")
    assert growth(lawful(0.5, 0.05), (1,)) == []


# ---- alignment ---------------------------------------------------------------------------------------------------


def test_alignment_is_one_along_an_input_and_a_root_of_width_beside_it() -> None:
    g = torch.Generator().manual_seed(0)
    for n in (64, 256):
        layer = nn.Linear(n, 2 * n)
        info, z = tensors(layer)["weight"], torch.randn(1, n, generator=g)
        own, other = torch.randn(2 * n, 1, generator=g) @ z, torch.randn(2 * n, n, generator=g)
        assert alignment(info, own, z, law_of("sgd")) == pytest.approx(1, rel=1e-5)
        assert alignment(info, other, z, law_of("sgd")) == pytest.approx(n**-0.5, rel=0.2)
        rotation = torch.linalg.qr(torch.randn(2 * n, n, generator=g)).Q
        assert alignment(info, rotation, z, law_of("muon")) == pytest.approx(1, rel=1e-4)
        assert alignment(info, rotation, z, law_of("adamw")) == pytest.approx(n**-0.5, rel=1e-4)
        assert alignment(info, 0 * own, z, law_of("sgd")) is None


def test_the_alignment_of_a_convolution_is_that_of_its_patches() -> None:
    g = torch.Generator().manual_seed(0)
    for groups in (1, 2):
        layer = nn.Conv2d(4, 6, 3, padding=1, stride=2, groups=groups)
        update, z = torch.randn(layer.weight.shape, generator=g), torch.randn(5, 4, 6, 6, generator=g)
        patches = nn.functional.unfold(z, 3, padding=1, stride=2).unflatten(1, (groups, -1))  # [5, groups, fan, places]
        moved = torch.einsum("gof,bgfp->bgop", update.flatten(1).unflatten(0, (groups, -1)), patches)
        expected = float(moved.norm() / (update.norm() * patches.norm()))
        assert alignment(tensors(layer)["weight"], update, z, law_of("sgd")) == pytest.approx(expected, rel=1e-5)


class Turned(Residual):
    """Trained with random signs before every matrix, from a step on; in eval mode its inputs are as they are.

    What updates answer then is independent of what they meet.
    """

    def __init__(self, width: int, depth: int, since: int) -> None:
        super().__init__(width, depth)
        self.since, self.seen = since, 0
        self.signs = [torch.randn(width).sign() for _ in range(depth + 1)]
        self.wide_signs = [torch.randn(2 * width).sign() for _ in range(depth)]

    def forward(self, x: Tensor) -> Tensor:
        self.seen += self.training
        turned = self.training and self.seen > self.since
        h = self.embed(x)
        for block, signs, wide in zip(self.blocks, self.signs, self.wide_signs, strict=False):
            inner: Any = torch.relu(block.up(signs * h if turned else h))  # type: ignore[operator, union-attr]
            h = h + block.down(wide * inner if turned else inner)  # type: ignore[operator, union-attr]
        out: Tensor = self.head(self.signs[-1] * h if turned else h)
        return out


@pytest.mark.parametrize(("since", "verdicts"), [(99, ("STABLE", "STABLE")), (3, ("STABLE", "COLLAPSES"))])
def test_alignment_that_is_lost_late_is_seen_late(since: int, verdicts: tuple[str, str]) -> None:
    batches = vectors(1, 8) * 6

    def make(width: int, depth: int) -> nn.Module:
        return Turned(width, depth, since)

    check = nfd.check(make, WIDTHS, [2], batches, "mup", "sgd", lr=0.1, seeds=4, at=(1, 6))
    found = at_steps(check, "alignment")
    assert tuple(found[step]["verdict"] for step in (1, 6)) == verdicts
    (finding,) = [finding for finding in late_findings(check, "vectors") if finding.name == "alignment"]
    assert ("no longer grow as n" in finding.headline) == (verdicts[1] == "COLLAPSES")


@pytest.mark.parametrize(("make", "optimizer"), [(Transformer, "muon"), (ConvNet, "adamw")])
def test_every_kind_of_matrix_has_its_alignment(make: Any, optimizer: str) -> None:
    ids = torch.randint(0, 11, (2, 4, 7), generator=torch.Generator().manual_seed(0))
    batches: list[Any] = [(torch.randn(4, 3, 6, 6), torch.tensor([0, 1, 2, 3]))] * 2
    if make is Transformer:
        batches = [(part[:, :-1], part[:, 1:]) for part in ids]
    check = nfd.check(make, [8, 16], [2], batches, "mup", optimizer, lr=1e-3, seeds=2, at=(1, 2))
    aligned = [row["alignment"] for row in check.rows if row["matrix"] and "alignment" in row]
    assert aligned
    assert all(0 < value <= 1 + 1e-3 for value in aligned)


# ---- schedules, models without blocks, the command ---------------------------------------------------------------


def test_a_schedule_is_a_factor_on_every_rate() -> None:
    batches, options = vectors(3), {"rule": "mup", "seeds": 2}
    plain = nfd.check(Residual, [8, 16], [2], batches, lr=0.1, schedule=lambda step: 1.0, **options)  # type: ignore[arg-type]
    assert plain.runs == nfd.check(Residual, [8, 16], [2], batches, lr=0.1, **options).runs  # type: ignore[arg-type]
    halved = nfd.check(Residual, [8, 16], [2], batches, lr=0.2, schedule=lambda step: 0.5, **options)  # type: ignore[arg-type]
    assert [run["loss"] for run in halved.runs] == pytest.approx([run["loss"] for run in plain.runs], rel=1e-5)
    stopped = nfd.check(
        Residual,
        [8, 16],
        [2],
        batches,
        lr=0.1,
        schedule=lambda step: float(step < 1),
        at=(1, 3),
        **options,  # type: ignore[arg-type]
    )
    first, last = ([row["change"] for row in stopped.rows if row["step"] == step and row["matrix"]] for step in (1, 3))
    assert first == last
    of_pytorch = nfd.check(
        Residual, [8, 16], [2], batches, lr=0.1, schedule=lambda opt: torch.optim.lr_scheduler.StepLR(opt, 1, 0.0),
        at=(1, 3), **options,  # type: ignore[arg-type]
    )  # fmt: skip
    assert of_pytorch.runs == stopped.runs
    with pytest.raises(TypeError, match="schedule must be a function"):
        nfd.check(Residual, [8, 16], [2], batches, schedule="cosine")  # type: ignore[arg-type]


def test_a_model_without_blocks_says_so() -> None:
    def make(width: int, depth: int) -> nn.Module:
        return nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))

    check = nfd.check(make, [8, 16], [1], vectors(2), "mup", seeds=2)
    for meter in ("inner_update", "stream_update", "function_update_inner"):
        (row,) = at_steps(check, meter).values()
        assert row["verdict"] == "NOT MEASURED"
        assert "pass blocks=" in row["cause"]
    assert math.isfinite(at_steps(check, "update_to_weight")[2]["slope"])


def test_the_command_looks_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    (tmp_path / "latemodels.py").write_text(
        "import nfd\ndef make_model(width, depth):\n    return nfd.ResNet(64, 10, width, depth, block='two-layer')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    sizes = ["--widths", "8,16", "--depths", "2", "--seeds", "2", "--batch", "8"]
    assert main(["check", "latemodels:make_model", *sizes, "--at", "1", "2", "4", "--lr", "0.1"]) in (0, 1)
    assert "after step" in capsys.readouterr().out
    result = json.loads((tmp_path / "out/check/result.json").read_text())
    assert {row["step"] for row in result["table"]} == {1, 2, 4}
    assert {row["meter"] for row in result["growth"]} >= {"inner_update", "alignment"}
    assert {"alignment", "update", "change", "matrix", "step"} <= set().union(*(row.keys() for row in result["rows"]))
    assert set(result["findings"]) == {"width", "late-width", "time", "alignment"}
    page = (tmp_path / "out/check/report.html").read_text()
    assert "Do updates act on the stream as the rule assumes?" in page
    header, *lines = (tmp_path / "out/check/meters.csv").read_text().splitlines()
    assert header.startswith("width,depth,seed,step,matrix,role")
    assert len(lines) == len(result["rows"])
    assert main(["check", "latemodels:make_model", *sizes, "--at", "1", "2", "--steps", "4"]) == 2
    assert "at decides the steps" in capsys.readouterr().err
