"""Checks: definitions against slow obvious versions, the verdicts of real cases, faults named with step and layer."""

from __future__ import annotations

import copy
import json
import math
import random
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nfd.families.constructed import member_of
from nfd.questions.named import named_batches
from nfd.questions.plan_lines import plan_lines
from nfd.runs.model_settings import CheckConfig
from tests.models import ConvNet, Listed, Residual, Transformer
from torch import Tensor, nn

import nfd
from nfd.cli.main import main
from nfd.core.statistics import Interval
from nfd.meters import running, table
from nfd.meters.advice import cause
from nfd.meters.event import Event, EventKind
from nfd.meters.health import dead_units
from nfd.meters.outcome import Check
from nfd.meters.table import METERS
from nfd.meters.updates import Baseline
from nfd.meters.verdict import seeds_needed, since
from nfd.questions.check_findings import check_findings
from nfd.report.check import check_report
from nfd.scaling.planning import plan
from nfd.scaling.rules import RULES
from nfd.training.losses import loss_of

G = torch.Generator().manual_seed(0)
TOKENS = [(ids[:, :-1], ids[:, 1:]) for ids in torch.randint(0, 11, (4, 8, 7), generator=G)]


def vectors(steps: int, batch: int = 16) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(batch, 5, generator=g), torch.randint(0, 3, (batch,), generator=g)) for _ in range(steps)]


def two_layer(width: int, depth: int) -> nfd.ResNet:
    return nfd.ResNet(5, 3, width, depth, block="two-layer")


def complete(width: int, depth: int) -> nfd.ResNet:
    return nfd.ResNet(5, 3, width, depth, block="two-layer", branch_exponent=1.0)


def rows(found: Check) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["meter"], row["axis"]): row for row in found.table}


# ---- reference: meters by hand -----------------------------------------------------------------------------------


def test_meters_of_a_plain_module_are_what_they_say() -> None:
    torch.manual_seed(0)  # how far power iteration has come depends on the matrix
    x, y = vectors(1)[0]
    model = Residual(12, 3)
    planned = plan(model, base_width=6, base_depth=3, sample=x)
    baseline, start = Baseline(member_of(model, planned), x), copy.deepcopy(model)
    optimizer = torch.optim.SGD(planned.param_groups(model, lr=0.5))
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    found = baseline.updates()
    inner, stream = [], []
    with torch.no_grad():
        h, reset = model.embed(x), copy.deepcopy(model)
        for block, before, back in zip(model.blocks, start.blocks, reset.blocks, strict=True):
            inner.append(h @ (block.up.weight - before.up.weight).T)  # type: ignore[union-attr, operator]
            z = torch.relu(block.up(h))  # type: ignore[operator, union-attr]
            stream.append(3 * z @ (block.down.weight - before.down.weight).T)  # type: ignore[union-attr, operator]
            h = block(h)
            back.up.weight.copy_(before.up.weight)  # type: ignore[union-attr, operator, arg-type]
        for meter, expected in (
            ("inner_update", torch.stack(inner)),
            ("stream_update", torch.stack(stream)),
            ("activation", h),
            ("function_update", model(x) - start(x)),
            ("function_update_inner", model(x) - reset(x)),
        ):
            assert found[meter] == pytest.approx(float(expected.square().mean().sqrt()), rel=1e-5), meter
        ratios = [
            torch.linalg.matrix_norm(b.up.weight - s.up.weight, 2) / torch.linalg.matrix_norm(s.up.weight, 2)  # type: ignore[union-attr, operator]
            for b, s in zip(model.blocks, start.blocks, strict=True)
        ]
    assert found["update_to_weight"] == pytest.approx(float(torch.stack(ratios).square().mean().sqrt()), rel=0.02)
    assert model.training


@pytest.mark.parametrize("make", [Transformer, ConvNet])
def test_every_kind_of_module_is_measured(make: Any) -> None:
    batches: list[Any] = TOKENS if make is Transformer else [(torch.randn(4, 3, 6, 6), torch.tensor([0, 1, 2, 3]))] * 3
    found = nfd.check(make, [8, 16], [2, 4], batches, rule="complete-p", optimizer="adamw", eta_c=1e-3, seeds=2)
    measured = {meter for meter, _ in rows(found)}
    assert measured >= {"inner_update", "stream_update", "function_update", "function_update_inner", "gradient", "loss"}
    assert len(found.runs) == 8
    assert all(math.isfinite(run[m]) and run[m] > 0 for run in found.runs for m in measured)


def test_an_encoder_with_fused_attention_is_measured() -> None:
    def make(width: int, depth: int) -> nn.Module:
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, norm_first=True, batch_first=True, dropout=0.0)
        return nn.Sequential(
            nn.Embedding(11, width),
            nn.TransformerEncoder(layer, depth, enable_nested_tensor=False),
            nn.LayerNorm(width),
            nn.Linear(width, 11),
        )

    found = nfd.check(make, [8], [2, 4], TOKENS, rule="depth-mup", optimizer="adamw", eta_c=1e-3, seeds=2)
    assert all(run["inner_update"] > 0 and run["stream_update"] > 0 for run in found.runs)


# ---- rate: the paper's two-layer network --------------------------------------------------------------------------


def test_eq_8_cures_the_inner_layers_and_moves_the_trouble() -> None:
    """Uniform rates: inner updates fall as L^-1/2; Eq. 8: they stay and their joint effect grows as sqrt(L)."""
    depths, batches = [4, 8, 16, 32], vectors(10, 64)
    uniform = rows(nfd.check(two_layer, [64], depths, batches, rule="depth-mup", seeds=3))
    cured = rows(nfd.check(two_layer, [64], depths, batches, rule="depth-mup-inner", seeds=3))
    whole = rows(nfd.check(complete, [64], depths, batches, rule="complete-p", seeds=3))
    inner, joint = ("inner_update", "depth"), ("function_update_inner", "depth")
    assert uniform[inner]["verdict"] == "COLLAPSES"
    assert uniform[inner]["slope"] == pytest.approx(-0.48, abs=0.08)
    assert uniform[inner]["since"] == 4
    assert "Eq. 8" in uniform[inner]["cause"]
    assert cured[inner]["verdict"] == "STABLE"
    assert abs(uniform[joint]["slope"]) < 0.2
    assert cured[joint]["verdict"] == "GROWS"
    assert cured[joint]["slope"] == pytest.approx(0.55, abs=0.12)
    assert "sqrt(L)" in cured[joint]["cause"]
    assert whole[inner]["verdict"] == "STABLE"
    assert abs(whole[joint]["slope"]) < 0.2


def test_adam_has_the_same_trade() -> None:
    """Inner rate L^0 and outer L^-1/2 in the paper's variables; both L^-1/2 starve the inner layers."""
    depths, batches = [4, 8, 16], vectors(10)
    both = {
        rule: rows(nfd.check(two_layer, [64], depths, batches, rule=rule, optimizer="adam", eta_c=0.02, seeds=3))
        for rule in ("depth-mup", "depth-mup-inner")
    }
    assert both["depth-mup"]["inner_update", "depth"]["slope"] == pytest.approx(-0.5, abs=0.1)
    assert both["depth-mup-inner"]["inner_update", "depth"]["slope"] == pytest.approx(0.0, abs=0.1)
    assert abs(both["depth-mup-inner"]["stream_update", "depth"]["slope"]) < 0.15
    more = "function_update_inner", "depth"
    assert both["depth-mup-inner"][more]["slope"] - both["depth-mup"][more]["slope"] > 0.35


def test_what_muon_leaves_to_adamw_has_a_rate_of_its_own() -> None:
    """At a rate of zero the readout stays; at the rate itself nothing changes; SGD leaves nothing."""

    def updates(**rates: float) -> list[dict[str, Any]]:
        found = nfd.check(Residual, [8, 16], [2], vectors(2), "complete-p", "muon", seeds=2, lr=0.02, **rates)
        return [row for row in found.rows if row["role"] == "readout"]

    assert all(row["change"] == 0 for row in updates(adamw_lr=0.0))
    assert updates(adamw_lr=0.02) == updates()
    assert all(row["change"] > 0 for row in updates())
    with pytest.raises(ValueError, match="adamw_lr is for tensors that Muon leaves to AdamW"):
        nfd.check(Residual, [8, 16], [2], vectors(2), "complete-p", "sgd", adamw_lr=0.1)


def test_a_broken_parameterisation_is_caught() -> None:
    """Standard rates: updates of inner layers grow with width, and the stream with depth, as no 1/L is there."""
    found = nfd.check(Residual, [32, 64, 128], [2, 4, 8], vectors(4), "standard", "sgd", 0.1, seeds=2)
    assert not found.ok
    table = rows(found)
    assert table["stream_update", "depth"]["verdict"] == "GROWS"
    assert table["inner_update", "width"]["verdict"] == "GROWS"
    assert "rates do not follow it" in table["inner_update", "width"]["cause"]
    mended = nfd.check(Residual, [32, 64, 128], [2, 4, 8], vectors(4), "mup", "sgd", 0.3, seeds=2)
    assert abs(rows(mended)["function_update", "width"]["slope"]) < 0.15


def gpt2(width: int, depth: int) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    config = transformers.GPT2Config(
        n_embd=width, n_layer=depth, n_head=width // 16, n_positions=64, vocab_size=256, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def source_text(steps: int, batch: int, length: int) -> list[tuple[Tensor, Tensor]]:
    """Bytes of Python's own source, and the bytes after them."""
    text = Path(json.__file__).with_name("decoder.py").read_bytes() + Path(copy.__file__).read_bytes()
    ids = torch.tensor(list(text))
    starts = torch.randint(0, len(ids) - length - 1, (steps, batch), generator=torch.Generator().manual_seed(0))
    windows = ids[starts[:, :, None] + torch.arange(length + 1)]
    return [(w[:, :-1], w[:, 1:]) for w in windows]


def gpt2_checks(widths: list[int], depths: list[int], steps: int, seeds: int) -> dict[str, dict[Any, dict[str, Any]]]:
    batches = source_text(steps, 8, 32)
    return {
        rule: rows(nfd.check(gpt2, widths, depths, batches, rule=rule, optimizer="adamw", eta_c=3e-3, seeds=seeds))
        for rule in ("mup", "complete-p")
    }


def test_gpt_2_drifts_with_depth_under_mup_and_not_under_complete_p() -> None:
    found = gpt2_checks([32, 64], [2, 8], 10, 2)
    for meter in ("activation_update", "stream_update"):
        assert found["mup"][meter, "depth"]["verdict"] == "GROWS"
        assert found["complete-p"][meter, "depth"]["verdict"] == "STABLE"


@pytest.mark.slow
def test_gpt_2_over_four_widths_and_depths() -> None:
    found = gpt2_checks([32, 64, 128, 256], [2, 4, 8, 16], 10, 2)
    assert found["mup"]["activation_update", "depth"]["verdict"] == "GROWS"
    for meter in ("activation", "activation_update", "inner_update", "stream_update"):
        assert abs(found["complete-p"][meter, "depth"]["slope"]) < 0.25, meter
    for meter in ("activation_update", "inner_update", "stream_update"):
        assert abs(found["complete-p"][meter, "width"]["slope"]) < 0.25, meter


def test_gradient_independence_is_measured_on_any_network_of_ours() -> None:
    found = nfd.check(two_layer, [32], [2, 4], vectors(1, 64) * 8, eta_c=0.1, seeds=3, gia=True)
    assert all(0 < run["gia_gap"] < 1 for run in found.runs)
    assert ("gia_gap", "depth") in rows(found)
    net = two_layer(16, 2)
    twin = net.decoupled()
    x = vectors(1)[0][0]
    torch.testing.assert_close(twin(x), net(x))
    net(x).square().sum().backward()
    twin(x).square().sum().backward()
    torch.testing.assert_close(twin.V.grad, net.V.grad)
    assert not torch.allclose(twin.U.grad, net.U.grad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Residual has no decoupled twin"):
        nfd.check(Residual, [8], [2, 4], vectors(2), seeds=2, gia=True)


def test_runs_at_a_time_and_one_by_one_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    together = nfd.check(two_layer, [8], [2, 4, 8], vectors(4), seeds=2)
    monkeypatch.setattr("nfd.meters.running._MOST_AT_A_TIME", 1)
    one_by_one = nfd.check(two_layer, [8], [2, 4, 8], vectors(4), seeds=2)
    assert together.runs == one_by_one.runs


class Dropping(Residual):
    """Wide ones draw from PyTorch's, NumPy's or Python's global stream while they train."""

    def __init__(self, width: int, depth: int, draw: Any) -> None:
        super().__init__(width, depth)
        self.draw = draw if width > 8 else lambda: 1.0

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * (1.0 + self.draw()) if self.training else x)


def pretend_threads(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch says that it has so many threads, and keeps those of the test: what is restored is not what was said."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)


@pytest.mark.parametrize("draw", [lambda: torch.rand(()), np.random.random, random.random])
def test_networks_that_draw_have_streams_of_their_own(draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest network draws nothing, so that others begin side by side; only what they draw tells."""

    def runs() -> list[dict[str, Any]]:
        return nfd.check(lambda w, d: Dropping(w, d, draw), [8, 16], [2, 4], vectors(3), rule="mup", seeds=2).runs

    one_by_one = runs()
    pretend_threads(3, monkeypatch)
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # type: ignore[index]
    together = runs()
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # type: ignore[index]
    assert before[2] == random.getstate()
    draw()
    assert together == one_by_one == runs()
    wide = [r["loss"] for r in together if r["width"] == 16 and r["depth"] == 2]
    assert wide[0] != wide[1]


def test_side_by_side_networks_are_told_from_those_that_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    together = running._together

    def watched(*arguments: Any) -> Any:
        found = together(*arguments)
        seen.append(found is not None)
        return found

    monkeypatch.setattr(running, "_together", watched)
    pretend_threads(2, monkeypatch)
    nfd.check(Residual, [8, 16], [2], vectors(2), rule="mup", seeds=2)
    assert seen == [True, True]
    seen.clear()
    nfd.check(lambda w, d: Dropping(w, d, random.random), [8, 16], [2], vectors(2), rule="mup", seeds=2)
    assert seen == [False]


def test_networks_of_one_block_are_measured_as_deeper_ones_are() -> None:
    found = nfd.check(Residual, [8, 16], [1, 2], vectors(2), "complete-p", "adamw", seeds=2)
    assert "inner_update" in found.runs[0]
    assert all(run.keys() == found.runs[0].keys() for run in found.runs)


def test_seeds_that_give_one_network_are_refused() -> None:
    def fixed(width: int, depth: int) -> nn.Module:
        torch.manual_seed(3)
        return Residual(width, depth)

    with pytest.raises(ValueError, match=r"make_model\(16, 2\) gives the same network for seeds 0 and 1"):
        nfd.check(fixed, [8, 16], [2], vectors(2), rule="standard", seeds=2)
    assert nfd.check(fixed, [8, 16], [2], vectors(2), rule="mup", seeds=2).table  # the rule draws the start anew


# ---- falls: judged through the whole measurement ----------------------------------------------------------------


def falling(power: float) -> Any:
    """AdamW with every rate times ``(64 / width)^power``."""

    def make(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        width = max(p.shape[0] for group in groups for p in group["params"]) / 4
        return torch.optim.AdamW([group | {"lr": group["lr"] * (64 / width) ** power} for group in groups])

    return make


def test_a_sound_gpt_does_not_collapse_after_few_steps() -> None:
    """What inner layers do to the function falls as width^-0.3 to ^-0.4 at first, to a limit."""
    batches = source_text(3, 8, 16)
    found = nfd.check(gpt2, [64, 128, 256], [2], batches, rule="complete-p", optimizer="adamw", eta_c=3e-3, seeds=3)
    row = rows(found)["function_update_inner", "width"]
    assert row["slope"] < -0.25
    assert row["verdict"] in ("LIMIT", "UNCERTAIN")
    assert row["since"] is None
    assert found.ok


def test_a_collapse_with_width_is_found_at_few_sizes() -> None:
    g = torch.Generator().manual_seed(0)
    batches = [(ids[:, :-1], ids[:, 1:]) for ids in torch.randint(0, 11, (2, 4, 9), generator=g)]
    found = nfd.check(
        Transformer, [64, 128, 256], [2], batches, rule="complete-p", optimizer="adamw", eta_c=3e-3, seeds=3,
        make_optimizer=falling(0.5),
    )  # fmt: skip
    row = rows(found)["inner_update", "width"]
    assert (row["verdict"], row["reason"]) == ("COLLAPSES", "trend")
    assert row["slope"] == pytest.approx(-0.5, abs=0.1)
    assert "'complete-p' should keep it" in row["cause"]
    assert not found.ok


def test_a_stream_that_is_not_seen_is_not_measured(tmp_path: Path) -> None:
    """Blocks that are lists are never called: all that could be hooked lies behind the last norm."""
    found = nfd.check(Listed, [8, 16], [2, 4], vectors(2), rule="mup", optimizer="adamw", eta_c=1e-3, seeds=2)
    for key in (("activation", "width"), ("activation_update", "depth"), ("gradient", "depth")):
        assert rows(found)[key]["verdict"] == "NOT MEASURED"
        assert rows(found)[key]["reason"] == "unread"
        assert math.isnan(rows(found)[key]["slope"])
    assert "not called as modules" in str(found)
    assert math.isfinite(rows(found)["function_update", "width"]["slope"])
    config = CheckConfig(widths=(8, 16), depths=(2, 4), rule="mup", optimizer="adamw", eta_c=1e-3, seeds=2)
    page = check_report(config, "m:make", found, check_findings(config, found, "vectors"), "nfd check").write(tmp_path)
    assert "NOT MEASURED" in page.read_text()
    assert "were not measured" in page.read_text()
    assert "activation: not measured, the blocks" in (tmp_path / "runs.csv").read_text()


def test_what_lies_behind_a_norm_is_not_measured() -> None:
    def make(width: int, depth: int) -> nn.Module:
        layers = [nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width)) for _ in range(depth)]
        return nn.Sequential(nn.Linear(5, width), nn.Sequential(*layers), nn.Linear(width, 3))

    found = rows(nfd.check(make, [8, 16], [2, 4], vectors(2), rule="standard", seeds=2))
    assert found["activation", "width"]["verdict"] == "NOT MEASURED"
    assert "behind a norm" in found["activation", "width"]["cause"]
    assert math.isfinite(found["activation_update", "width"]["slope"])
    plain = rows(nfd.check(Residual, [8, 16], [2, 4], vectors(2), rule="standard", seeds=2))
    assert math.isfinite(plain["activation", "width"]["slope"])


def made(law: Any, sizes: list[int], meter: str = "inner_update", scatter: float = 0.04) -> dict[str, Any]:
    """The row of networks that follow a law of width exactly, but for their scatter."""
    g = torch.Generator().manual_seed(5)
    runs = [
        {"width": n, "depth": 2, "seed": s, meter: law(n) * math.exp(scatter * float(torch.randn((), generator=g)))}
        for n in sizes
        for s in range(3)
    ]
    (row,) = table.rows(runs, {"width": sizes, "depth": [2]}, "width", 3, "mup")
    return row


@pytest.mark.parametrize(
    ("power", "meter", "word", "reason"),
    [
        (-0.5, "inner_update", "COLLAPSES", "trend"),
        (-0.35, "inner_update", "COLLAPSES", "trend"),
        (0.5, "inner_update", "GROWS", "trend"),
        (0.0, "inner_update", "STABLE", "flat"),
        (-0.1, "inner_update", "STABLE", "little"),
        (-0.24, "inner_update", "UNCERTAIN", "edge"),
        (-0.4, "function_update", "LIMIT", "limit"),
        (-0.4, "function_update_inner", "LIMIT", "limit"),
        (-0.8, "function_update_inner", "COLLAPSES", "trend"),
        (0.4, "function_update_inner", "GROWS", "trend"),
    ],
)
def test_words_follow_from_the_exponent_and_whether_the_meter_has_independent_parts(
    power: float, meter: str, word: str, reason: str
) -> None:
    row = made(lambda n: n**power, [32, 64, 128, 256], meter)
    assert (row["verdict"], row["reason"]) == (word, reason)
    assert (row["since"] is not None) == (word in ("COLLAPSES", "GROWS"))
    assert ("from width 32 to 256" in row["cause"]) == (reason != "flat")


def test_numbers_without_scatter_have_no_interval() -> None:
    few = [64, 128, 256]
    got = {
        name: made(law, few, scatter=0.0)
        for name, law in {"same": lambda n: 1 / n, "constant": lambda n: 2.3, "zero": lambda n: 0.0}.items()
    }
    assert {name: row["reason"] for name, row in got.items()} == {name: name for name in got}
    assert all(math.isnan(row["low"]) and math.isnan(row["high"]) for row in got.values())
    assert got["same"]["verdict"] == got["zero"]["verdict"] == "NOT MEASURED"
    assert "2.3 in every network" in got["constant"]["cause"]


def test_stable_says_how_much() -> None:
    slow = made(lambda n: n**-0.14, [64, 128, 256, 512], scatter=0.02)
    assert slow["verdict"] == "STABLE"
    assert re.fullmatch(r"depends little on width: falls by 2\d % \[\d+, \d+\] from width 64 to 512\.", slow["cause"])
    assert made(lambda n: 1.0, [64, 128, 256])["cause"] == "no significant trend with width."
    assert (
        table.change(Interval(0.1, 0.01, 0.08, 0.12), "depth", [4, 32]) == "rises by 23 % [18, 28] from depth 4 to 32"
    )
    assert table.change(Interval(-0.1, 0.01, -0.12, -0.08), "depth", [4, 32]) == (
        "falls by 19 % [15, 22] from depth 4 to 32"
    )


def test_no_advice_names_the_rule_in_use() -> None:
    """For every meter, axis, verdict and rule: neither the rule nor its kind is the cure."""
    width = {name for name, rule in RULES.items() if rule.scales_width}
    kinds = {"a rule of mup's kind": width} | {f"'{n}'": {n} for n in RULES}
    changes = [(m, axis, word) for m in METERS for axis in ("width", "depth") for word in ("COLLAPSES", "GROWS")]
    for meter, axis, word in changes:
        if (axis == "width" and meter in ("gradient", "gia_gap")) or (axis == "depth" and meter == "alignment"):
            continue
        for rule in RULES:
            said = cause(meter, axis, word, rule).replace("instead of 'standard'", "")  # type: ignore[arg-type]
            cures = [part for part in re.split(r"(?<=[.;]) ", said) if re.search(r"\buse\b", part, re.IGNORECASE)]
            for kind, names in kinds.items():
                assert not any(kind in cure and rule in names for cure in cures), (meter, axis, word, rule)
    assert "Use a rule of mup's kind" in cause("inner_update", "width", "COLLAPSES", "standard")
    assert "'complete-p' should keep it" in cause("function_update_inner", "width", "COLLAPSES", "complete-p")


@pytest.mark.parametrize(("factor", "reason"), [(1.0, "trend"), (0.0, "training")])
def test_branches_are_blamed_only_where_the_stream_grows_at_the_start(factor: float, reason: str) -> None:
    class Branches(Residual):
        def __init__(self, width: int, depth: int) -> None:
            super().__init__(width, depth)
            for block in self.blocks:
                nn.init.orthogonal_(block.get_parameter("down.weight"), gain=max(2 * factor, 1e-3))

    found = nfd.check(Branches, [16], [2, 8], vectors(2), rule="standard", optimizer="adam", lr=0.3, seeds=2)
    row = rows(found)["activation", "depth"]
    assert (row["verdict"], row["reason"]) == ("GROWS", reason)
    assert ("branches carry no 1/sqrt(L)" in row["cause"]) == (factor > 0)
    assert ("by training" in row["cause"]) == (factor == 0)


# ---- faults ------------------------------------------------------------------------------------------------------


def test_matrices_that_nothing_moves_are_named_and_the_first_line_counts_faults() -> None:
    class Frozen(Residual):
        def __init__(self, width: int, depth: int) -> None:
            super().__init__(width, depth)
            self.blocks[0].get_parameter("up.weight").requires_grad_(False)

    frozen, sound = (
        nfd.check(make, [8, 16], [2], vectors(2), rule="mup", optimizer="adamw", lr=1e-3, seeds=2)
        for make in (Frozen, Residual)
    )
    assert frozen.unmoved == ["blocks.0.up.weight"]
    assert "no training moved 'blocks.0.up.weight'" in str(frozen)
    assert (sound.unmoved, sound.notes) == ([], [])
    fall = sound.table[0] | {"meter": "inner_update", "verdict": "COLLAPSES", "reason": "trend"}
    good = [row | {"verdict": "STABLE"} for row in sound.table]
    said = str(replace(sound, table=[*good, fall], rule="standard")).splitlines()
    assert said[0] == "1 fault. Rule 'complete-p' has the remedies built in: train by its plan."
    assert next(line for line in said if "inner_update" in line).count("COLLAPSES") == 1  # faults stand first
    assert replace(sound, table=[*good, fall], rule="mup").conclusion == "1 fault."
    assert str(replace(sound, table=good)).startswith("No fault found.")


def test_a_run_that_diverges_says_when_and_where() -> None:
    found = nfd.check(two_layer, [16], [2, 4], vectors(12), eta_c=1e6, seeds=2)
    assert not found.ok
    (broken,) = [failure for failure in found.failures if failure.event.kind == EventKind.NOT_FINITE]
    assert 0 < broken.event.step < 12
    assert broken.of == 4
    assert f"after step {broken.event.step}, not finite, first in {broken.event.layer}" in str(found)
    assert {row["verdict"] for row in found.table if row["meter"] == "loss"} <= {"UNCERTAIN"}
    assert "zero or not finite" in str(found)


def test_a_last_step_that_breaks_the_network_is_no_success() -> None:
    found = nfd.check(Residual, [16], [2, 4], vectors(1), rule="standard", eta_c=9e19, seeds=2)
    assert not found.ok
    assert (EventKind.NOT_FINITE, 1) in [(failure.event.kind, failure.event.step) for failure in found.failures]
    assert any("after step 1, not finite" in event for event in found.events)


def test_batch_statistics_are_not_mistaken_for_learning() -> None:
    batches = [(torch.randn(8, 3, 6, 6) + 3, torch.arange(8))] * 2
    found = nfd.check(ConvNet, [8], [2, 4], batches, rule="standard", eta_c=1e-12, seeds=2)
    assert all(run["activation_update"] < 1e-5 * run["activation"] for run in found.runs)


def test_networks_of_different_size_begin_independently() -> None:
    runs = nfd.check(two_layer, [16], [2, 4], vectors(1), seeds=12).runs
    shallow, deep = (torch.tensor([r["activation"] for r in runs if r["depth"] == d]) for d in (2, 4))
    assert abs(float(torch.corrcoef(torch.stack([shallow, deep]))[0, 1])) < 0.7  # shared draws make it 0.9 and more


def test_matrices_that_are_not_alone_in_their_module_are_left_out() -> None:
    class Bare(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.up = nn.Parameter(torch.randn(width, width) / width**0.5)
            self.down = nn.Parameter(torch.randn(width, width) / width**0.5)

        def forward(self, h: Tensor) -> Tensor:
            return h + torch.relu(h @ self.up.T) @ self.down.T

    class Wrapped(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.inside = Bare(width)

        def forward(self, h: Tensor) -> Tensor:
            out: Tensor = self.inside(h)
            return out

    def make(width: int, depth: int) -> nn.Module:
        blocks = nn.Sequential(*[Wrapped(width) for _ in range(depth)])
        return nn.Sequential(nn.Linear(5, width), blocks, nn.Linear(width, 3))

    found = rows(nfd.check(make, [8, 16], [2, 4], vectors(2), rule="depth-mup", seeds=2))
    assert found["inner_update", "depth"]["verdict"] == "NOT MEASURED"
    assert "nothing but apply it" in found["inner_update", "depth"]["cause"]
    assert math.isfinite(found["function_update_inner", "depth"]["slope"])


def test_dead_units_of_images_are_channels() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    with torch.no_grad():
        model[0].bias[:6] = -100.0  # type: ignore[index]
    dead = Event(EventKind.DEAD_UNITS, 1, "ReLU 1 in 1", 0.75)
    assert dead_units(model, lambda: model(torch.randn(4, 3, 8, 8)), 1) == dead
    assert dead_units(model, lambda: model(torch.randn(1, 3, 4, 4)), 1) is None  # four pixels tell nothing


def test_a_loss_that_rises_is_no_success() -> None:
    batches = [(x.numpy(), y.numpy()) for x, y in vectors(1) * 6]
    found = nfd.check(Residual, [8, 16], [2], batches, rule="mup", optimizer="adamw", eta_c=3.0, seeds=2)
    assert not found.ok
    (rose,) = [failure for failure in found.failures if failure.event.kind == EventKind.LOSS_ROSE]
    assert rose.event.size > 2
    assert rose.networks > 1  # one failure, however far each loss rose
    assert any("the loss rose to" in event and "rate is too large" in event for event in found.events)


def test_dead_units_are_named() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    x = vectors(1)[0][0]
    assert dead_units(model, lambda: model(x), 3) is None
    with torch.no_grad():
        model[0].bias[:5] = -100.0  # type: ignore[index]
    assert dead_units(model, lambda: model(x), 3) == Event(EventKind.DEAD_UNITS, 3, "ReLU 1 in 1", 5 / 8)

    def make(width: int, depth: int) -> nn.Module:
        made = Residual(width, depth)
        nn.init.constant_(made.blocks[1].up.bias, -50.0)  # type: ignore[union-attr, arg-type]
        return made

    found = nfd.check(make, [8, 16], [2], vectors(2), rule="mup", seeds=2)
    assert any("ReLU 2 in blocks.1: 100% of its units are dead" in event for event in found.events)


def test_vanishing_gradients_are_reported() -> None:
    class Squashed(Residual):
        def forward(self, x: Tensor) -> Tensor:
            h = self.embed(x)
            for block in self.blocks:
                h = block(0.1 * h)
            out: Tensor = self.head(h)
            return out

    found = nfd.check(Squashed, [8], [2, 8], vectors(2), rule="mup", seeds=2)
    assert any("gradients vanish" in event for event in found.events)


# ---- verdicts ----------------------------------------------------------------------------------------------------


def test_uncertain_slopes_say_how_many_seeds_would_do() -> None:
    """An interval of half width 0.2 around 0 is settled by 3 * (0.2 / 0.25)^2 seeds; around 0.2 it needs half 0.05."""
    assert seeds_needed(Interval(0.05, 0.1, -0.25, 0.35), 3) == 7
    assert seeds_needed(Interval(0.245, 0.1, -0.05, 0.545), 3) is None
    assert seeds_needed(Interval(-0.5, 0.1, -1.0, 0.0), 4) == 9
    assert seeds_needed(Interval(math.nan, math.nan, math.nan, math.nan), 3) is None
    assert since([2, 4, 8, 16], torch.tensor([1.0, 1.0, 0.5, 0.25])) == 4
    assert since([2, 4, 8], torch.tensor([1.0, 2.0, 4.0])) == 2
    assert "Use 'complete-p'" in cause("inner_update", "depth", "GROWS", "depth-mup")
    assert "'complete-p' should keep it: check roles" in cause("inner_update", "depth", "GROWS", "complete-p")
    assert "'mup' should keep it" in cause("stream_update", "width", "GROWS", "mup")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"widths": [8], "depths": [2]}, "two sizes or more"),
        ({"widths": [16, 8]}, "widths must be ascending"),
        ({"batches": []}, "batches must be a list"),
        ({"seeds": 1}, "seeds must be at least 2"),
        ({"rule": "depth"}, "rule must be one of"),
        ({"optimizer": "lion"}, "pass make_optimizer="),
        ({"loss": "hinge"}, "loss must be one of"),
        ({"eta_c": 0}, "eta_c must be greater than 0"),
        ({"widths": 8}, r"must be a list of sizes; got 8"),
        ({"make_model": lambda w, d: Residual(8, d)}, "does it use its first argument, width"),
        ({"make_model": lambda w, d: Residual(d, w)}, r"or are they \(depth, width\)"),
        ({"batches": [(torch.full((2, 5), math.nan), torch.tensor([0, 1]))]}, r"inputs of batches\[0\] must be finite"),
        (
            {"batches": [({"x": torch.full((2, 5), math.nan)}, torch.tensor([0, 1]))]},
            r"batches\[0\]\['x'\] must be fin",
        ),
        ({"batches": [((torch.ones(2, 5), [np.array([math.inf])]), torch.tensor([0, 1]))]}, r"\[0\]\[1\]\[0\] must be"),
        ({"batches": [(torch.ones(2, 5), torch.full((2,), math.nan))]}, r"targets of batches\[0\] must be finite"),
        ({"batches": [(torch.randn(2, 7), torch.tensor([0, 1]))]}, r"could not be trained on batches\[0\].*\[2, 7\]"),
        ({"batches": [(torch.randn(2, 5), torch.tensor([0, 9]))]}, r"could not be trained on batches\[0\]"),
        ({"make_model": lambda w, d: None}, "must return a torch.nn.Module"),
    ],
)
def test_bad_requests_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        nfd.check(**({"make_model": Residual, "widths": [8, 16], "depths": [2, 4], "batches": vectors(2)} | options))


def test_logits_of_images_and_wrong_shapes() -> None:
    loss, y = loss_of("cross-entropy"), torch.randint(0, 3, (2, 4, 5))
    out = torch.randn(2, 3, 4, 5)
    torch.testing.assert_close(loss(out, y), nn.functional.cross_entropy(out, y))
    torch.testing.assert_close(loss(out.movedim(1, -1), y), nn.functional.cross_entropy(out, y))
    with pytest.raises(ValueError, match=r"needs logits \[..., C\] for targets \[...\]; got \[2, 3\] for \[5\]"):
        loss(torch.randn(2, 3), torch.zeros(5, dtype=torch.long))


def test_losses_and_optimizers_of_ones_own() -> None:
    found = nfd.check(
        Residual, [8, 16], [2], vectors(2), rule="mup", optimizer="lion", seeds=2,
        loss=lambda out, y: (out.square().mean() - 1).square(),
        make_optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1),
    )  # fmt: skip
    assert found.table
    assert all(row["value"] == row["slope"] or math.isnan(row["value"]) for row in found.table)


@pytest.mark.parametrize("probability", [0.0, 0.5])
def test_a_check_says_that_a_model_draws_random_numbers(probability: float) -> None:
    class Dropping(Residual):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(nn.functional.dropout(x, probability, self.training and probability > 0))

    found = nfd.check(Dropping, [8, 16], [2], vectors(2), seeds=2)
    assert found.draws is (probability > 0)
    assert ("draws random numbers" in str(found)) is found.draws
    (finding,) = check_findings(CheckConfig(widths=(8, 16), depths=(2,)), found, "vectors")
    assert ("draws random numbers" in finding.caption) is found.draws


def test_batches_that_are_no_pairs_are_refused() -> None:
    inputs, targets = vectors(1)[0]
    with pytest.raises(ValueError, match="one per step; got tuple of 3"):
        nfd.check(Residual, [8, 16], [2], [(inputs, targets, targets)])  # type: ignore[list-item]


# ---- the command -------------------------------------------------------------------------------------------------


def test_the_shell_reads_the_first_steps_of_a_loader_and_the_same_batches_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "myloaders.py").write_text(
        "import itertools, torch\n"
        "from torch.utils.data import DataLoader, IterableDataset, TensorDataset\n"
        "shuffled = DataLoader(TensorDataset(torch.arange(64.0), torch.arange(64)), batch_size=4, shuffle=True)\n"
        "class Stream(IterableDataset):\n"
        "    def __iter__(self):\n"
        "        return ((torch.rand(3), k) for k in itertools.count())\n"
        "def endless():\n"
        "    return DataLoader(Stream(), batch_size=4)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    state = torch.get_rng_state()
    for path, steps, count in (("myloaders:shuffled", None, 16), ("myloaders:endless", 3, 3)):
        first, again = (named_batches(path, "batches", 0, steps) for _ in range(2))
        assert len(first) == count
        assert torch.equal(torch.cat([x for x, _ in first]), torch.cat([x for x, _ in again]))
        assert torch.equal(torch.get_rng_state(), state)
    lines = plan_lines("m:make", CheckConfig(batches="myloaders:shuffled"), "mup", 0.1, (8, 2))
    assert "sample=next(iter(shuffled))[0]," in lines
    lines = plan_lines("m:make", CheckConfig(batches="myloaders:endless"), "mup", 0.1, (8, 2))
    assert "sample=next(iter(endless()))[0]," in lines


def test_the_command_says_writes_and_exits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mymodels.py").write_text(
        "import nfd, torch\n"
        "def make_model(width, depth):\n"
        "    return nfd.ResNet(64, 10, width, depth, block='two-layer')\n"
        "batches = [(torch.randn(4, 64), torch.tensor([0, 1, 2, 3])) for _ in range(2)]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    arguments = ["check", "mymodels:make_model", "--widths", "64", "--depths", "4,8,16,32"]
    assert main([*arguments, "--batch", "16", "--steps", "3", "--seeds", "3"]) == 1
    assert "COLLAPSES" in capsys.readouterr().out
    result = json.loads((tmp_path / "out/check/result.json").read_text())
    assert result["ok"] is False
    assert (result["rule"], result["optimizer"]) == ("depth-mup", "sgd")  # the default of nfd.ResNet
    assert {"meter", "slope", "low", "high", "verdict", "cause"} <= result["table"][0].keys()
    assert (tmp_path / "out/check/depth.png").stat().st_size > 5000
    assert "<script" in (tmp_path / "out/check/report.html").read_text()
    assert len((tmp_path / "out/check/runs.csv").read_text().splitlines()) == 13
    assert main([*arguments, "--batches", "mymodels:batches"]) in (0, 1)
    assert main([*arguments, "--batches", "mymodels:batches", "--steps", "3"]) == 2
    assert "gives 2 batches, too few for 3 steps" in capsys.readouterr().err
    assert main([*arguments, "--batches", "mymodels:batches", "--batch", "3"]) == 2
    assert "brings its own data; got batch=3" in capsys.readouterr().err
    for bad, said in (
        ([], "needs a constructor"),
        (["mymodels"], "package.module:name"),
        (["nothere:f"], "no module 'nothere'"),
        (["nothere.py:f"], "Name the module, not its file: nothere:f."),
        (["mymodels:nothing"], "has no 'nothing'"),
        (["mymodels:make_model", "--widths", "8", "4"], "must be ascending"),
    ):
        capsys.readouterr()
        assert main(["check", *bad]) == 2
        assert said in capsys.readouterr().err
