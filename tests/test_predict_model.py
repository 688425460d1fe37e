"""nfd.predict of anyone's networks: against wide dense networks, its estimates, memory, depth, refusals."""

from __future__ import annotations

import csv
import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from nfd.families.constructed import ConstructedFamily
from nfd.limits.cost import Storage
from nfd.limits.model_cost import ModelCosts
from nfd.limits.ranks import Ranks, foreseen
from nfd.runs.trials import Trial
from nfd.training.recipe import Recipe
from tests.models import Residual, Transformer
from torch import Tensor

import nfd
from nfd.cli.main import main
from nfd.core.errors import StateError
from nfd.limits import sampler, weighing
from nfd.nets import matrix_cost
from nfd.runs import trials
from nfd.runs.sweep import Sweep
from nfd.training.task import Task

pytestmark = pytest.mark.filterwarnings("ignore:A StructuredLinear of size")  # these are small

STREAM = torch.Generator().manual_seed(0)
VECTORS = [(torch.randn(8, 5, generator=STREAM), torch.arange(8) % 3)] * 4  # the same ones, so that much is learned
TOKENS = [(ids[:, :-1], ids[:, 1:]) for ids in torch.randint(1, 11, (3, 2, 9), generator=STREAM)]
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "MLP": (Residual, VECTORS, {"optimizer": "sgd", "lr": 0.3}),
    "GPT": (Transformer, TOKENS, {"optimizer": "muon", "lr": 0.02, "adamw_lr": 0.005}),
}
SMALL: dict[str, Any] = {"depth": 2, "base_width": 16, "width": 64, "replicates": 8}


def predicted(case: str = "MLP", **settings: Any) -> nfd.LossPrediction:
    make_model, batches, tuned = CASES[case]
    return nfd.predict(**{"batches": batches, "make_model": make_model} | tuned | SMALL | settings)


@cache
def wide(case: str, count: int = 8) -> Tensor:
    """Losses [networks, steps] of wide dense networks, trained by the plan."""
    make_model, batches, tuned = CASES[case]
    family = ConstructedFamily(make_model, (16, 2), "complete-p", tuned["optimizer"], sample=batches[0][0])
    recipe = Recipe(family, Task.of(batches))
    width = 512 if case == "MLP" else 128  # Muon takes products in 16 bits, which processors are slow at
    own = [Trial(recipe, width, 2, seed, tuned["lr"], adamw_lr=tuned.get("adamw_lr")) for seed in range(count)]
    with Sweep(None) as sweep:
        records = sweep.run_all({"wide": own})["wide"]
        return torch.stack([sweep.store.curves(record.key)["loss"] for record in records])


def distance(p: nfd.LossPrediction, losses: Tensor) -> float:
    """The largest difference to the mean of networks, in standard errors of both."""
    error = (p.loss_stderr**2 + losses.var(0) / len(losses)).sqrt()
    return float(((p.loss - losses.mean(0)) / error).abs().max())


@pytest.mark.parametrize("weights", ["dense", "structured"])
@pytest.mark.parametrize("case", CASES)
def test_the_limit_is_that_of_wide_dense_networks(case: str, weights: str) -> None:
    p = predicted(case, weights=weights)
    assert p.weights == weights
    assert (p.width, p.narrow_width, p.replicates, p.depths) == (64, 16, 8, (2,))
    assert p.loss.shape == (len(CASES[case][1]),)
    assert distance(p, wide(case)) < 4


def test_networks_of_another_rate_are_not_taken_for_those_of_the_limit() -> None:
    assert distance(predicted(lr=0.03), wide("MLP")) > 8


def test_width_and_replicates_follow_from_the_wanted_error_and_memory() -> None:
    coarse, fine = (predicted(width="auto", replicates=None, rtol=rtol) for rtol in (0.5, 0.004))
    assert (coarse.width, coarse.replicates) == (64, 8)
    assert fine.width * fine.replicates > coarse.width * coarse.replicates
    assert fine.narrow_width == fine.width // 4
    assert float(fine.loss_stderr.mean()) < float(coarse.loss_stderr.mean())
    least = predicted(width="auto", replicates=None, rtol=0.004, memory=max(way.bytes for way in coarse.ways))
    assert least.width <= fine.width


ROWS = [(torch.randn(64, 5, generator=STREAM), torch.arange(64) % 3)] * 4  # far more than the directions they span


def costs_of_rows() -> ModelCosts:
    family = ConstructedFamily(Residual, (16, 2), "complete-p", "sgd", sample=ROWS[0][0])
    return ModelCosts(family, Task.of(ROWS))


def test_ranks_that_networks_reach_let_a_wider_one_fit(tmp_path: Path) -> None:
    """Its rows alone would not; where ranks are too many as well, it is refused, and what was trained is kept."""
    costs, settings = costs_of_rows(), {"batches": ROWS, "weights": "structured", "width": 512, "replicates": 2}
    enough, short = (costs.of("structured", 512, 2, rank=rank).bytes for rank in (64, 2))
    assert enough < costs.of("structured", 512, 2).bytes / 2
    p = predicted(**settings, memory=enough, out=tmp_path)
    assert p.width == 512
    assert max(way.bytes for way in p.ways) <= enough
    assert re.search(r"predicted from the mean rank .*: \d+ at width 32, \d+ at width 128", p.note)
    assert "predicted from the mean rank" not in predicted(**settings, out=tmp_path).note
    assert torch.equal(p.loss, predicted(**settings, out=tmp_path).loss)
    with pytest.raises(ValueError, match=r"width=512 .* does not fit .* \d+ at width 32, \d+ at width 128"):
        predicted(**settings, memory=short, seed=1, out=tmp_path)
    with pytest.raises(ValueError, match=r"does not fit into memory; \d+ does\. Raise memory"):
        predicted(**settings, memory=enough, rank=256)


def test_ranks_are_foreseen_by_the_power_between_the_two_widest() -> None:
    reached = {64: Ranks(20.0, 30.0), 256: Ranks(40.0, 30.0), 1024: Ranks(50.0, 90.0)}
    assert foreseen(reached, 32) is None
    assert foreseen(reached, 64) == Ranks(25.0, 37.5)
    assert foreseen({64: Ranks(20.0, 30.0)}, 128) == Ranks(50.0, 75.0)
    wider = foreseen({64: Ranks(20.0, 30.0), 256: Ranks(40.0, 20.0)}, 1024)
    assert wider is not None
    assert wider.mean == pytest.approx(1.25 * 80)
    assert wider.most == pytest.approx(1.25 * 20)  # not fewer than were reached


def test_a_network_that_outgrows_its_memory_is_stopped_and_nothing_is_lost(tmp_path: Path) -> None:
    recipe = Recipe(costs_of_rows().family, Task.of(ROWS))
    held: dict[str, Any] = {"weights": "structured", "resolution": 0.1}
    free, bound = (Trial(recipe, 64, 2, 0, 0.3, room=room, **held) for room in (2**30, 1000))
    assert free.key == bound.key
    with Sweep(tmp_path) as sweep:
        (record,) = sweep.run([Trial(recipe, 32, 2, 0, 0.3, weights="structured", room=2**30)])
        with pytest.raises(StateError, match=r"width 64 and depth 2 has outgrown its memory: after step 0 of 4 .*kept"):
            sweep.run([bound])
        assert sweep.store.keys(status="done") == {record.key}
    with Sweep(tmp_path) as sweep:
        (again,) = sweep.run([free])
    assert 1 <= again.metrics["directions"] <= again.metrics["most_directions"] <= 64


def test_memory_is_foreseen_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "train", classmethod(lambda *_: pytest.fail("trained")))
    with pytest.raises(ValueError, match=r"width=65536 at depth 2 does not fit into memory; \d+ does"):
        predicted(width=65536, memory="1 MB")
    with pytest.raises(ValueError, match="memory allows no network of width 32 at depth 2"):
        predicted(width="auto", memory="1 KB")


def test_predicted_bytes_bound_what_a_network_holds() -> None:
    """Parameters, gradients and states of Muon and AdamW after training, dense and structured."""
    make_model, batches, _ = CASES["GPT"]
    family = ConstructedFamily(make_model, (16, 2), "complete-p", "muon", sample=batches[0][0])
    costs, task = ModelCosts(family, Task.of(batches)), Task.of(batches)
    for weights in ("dense", "structured"):
        member = family.build(128, 3, 0, weights)  # type: ignore[arg-type]
        optimizer = member.plan.make_optimizer(member.module, lr=0.01)
        for x, y in task.batches:
            optimizer.zero_grad()
            task.value(member(x), y).backward()
            optimizer.step()
        tensors = [*member.module.parameters(), *(p.grad for p in member.module.parameters() if p.grad is not None)]
        states = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor)]
        bases = [m.matrix.nbytes for m in member.module.modules() if isinstance(m, nfd.StructuredLinear)]
        held = sum(t.nbytes for t in (*tensors, *states)) + sum(bases)
        assert held <= costs.of(weights, 128, 3).bytes <= 8 * held  # type: ignore[arg-type]


def test_dense_weights_are_chosen_for_narrow_networks_and_structured_ones_for_wide_ones() -> None:
    make_model, batches, _ = CASES["GPT"]
    family = ConstructedFamily(make_model, (16, 2), "complete-p", "sgd", sample=batches[0][0])
    costs = ModelCosts(family, Task.of(batches))
    narrow, broad = ([costs.of(kind, n, 2) for kind in ("dense", "structured")] for n in (64, 16384))  # type: ignore[arg-type]
    assert narrow[0].seconds < narrow[1].seconds
    assert broad[0].seconds > broad[1].seconds
    assert broad[0].bytes > broad[1].bytes


def test_both_widths_hold_their_weights_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the narrow networks would be cheaper with dense weights: the laws differ at finite width."""
    held, trained = set[tuple[int, str]](), trials.Trial.train

    def costs(_: ModelCosts, weights: Any, width: int, depth: int, rank: int | None = None) -> Storage:
        return Storage(weights, 1, 1.0 if (weights == "structured") == (width > 16) else 2.0)

    def watched(runs: Any, device: str) -> Any:
        held.update((run.width, run.weights) for run in runs)
        return trained(runs, device)

    monkeypatch.setattr(ModelCosts, "of", costs)
    monkeypatch.setattr(trials.Trial, "train", watched)
    p = predicted(width=32, replicates=2)
    assert p.weights == "structured"
    assert held == {(32, "structured"), (16, "structured")}


def test_a_resolution_is_asked_of_structured_weights_and_part_of_the_error() -> None:
    coarse, fine = (predicted(replicates=3, lr=1.0, resolution=resolution) for resolution in (0.9, 1e-4))
    assert (coarse.weights, fine.weights, fine.resolution) == ("structured", "structured", 1e-4)
    assert float(fine.loss_resolution_bias.abs().max()) < 1e-3 * float(coarse.loss_resolution_bias.abs().max())
    assert f"Resolution {coarse.resolution:g} adds" in str(coarse)


def weighed(**settings: Any) -> tuple[nfd.LossPrediction, weighing.Weighing]:
    p = predicted(**{"resolution": "auto", "replicates": 4, "lr": 1.0} | settings)
    assert p.weighing is not None
    return p, p.weighing


def test_a_resolution_is_chosen_where_it_is_cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_cost, "MATRIX_RATE", 1e5)  # of a machine to which dense matrices are dear
    p, choice = weighed()
    assert (p.weights, p.resolution, p.width) == ("structured", weighing.RESOLUTIONS[0], 64)
    assert choice.resolved is choice.chosen
    assert choice.exact is not None
    assert f"A resolution saves {1 - choice.resolved.seconds / choice.exact.seconds:.0%}" in str(p)  # type: ignore[union-attr]
    assert re.search(r"sampling \S+, width \S+, resolution \S+\.\n", str(p))


def test_exact_layers_are_used_where_no_resolution_saves() -> None:
    p, choice = weighed()
    assert (p.weights, p.resolution) == ("dense", None)
    assert choice.exact is choice.chosen
    assert choice.resolved is not None
    assert choice.resolved.seconds > choice.exact.seconds  # type: ignore[union-attr]
    assert f"No resolution saves time. Predicted for {choice.exact}; the best with one, {choice.resolved}." in str(p)


def test_a_resolution_whose_bias_is_beyond_the_error_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    coarse = (0.95, 0.475, 0.2375)
    for module in (sampler, weighing):
        monkeypatch.setattr(module, "RESOLUTIONS", coarse)
    monkeypatch.setattr(matrix_cost, "MATRIX_RATE", 1e5)
    several, chosen = weighed(width=32, replicates=16)
    assert several.resolution == coarse[1]
    assert chosen.resolved is not None
    assert chosen.resolved.bias < chosen.resolved.sampling


def test_the_bias_of_a_resolution_is_what_exact_networks_show_or_the_noise_that_hides_it() -> None:
    noise, exact = torch.randn(2, 6, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert weighing.resolution_bias(exact + 0.5, exact) == pytest.approx(0.5)
    hidden = weighing.resolution_bias(exact + noise - noise.mean(0), exact)
    assert 0.8 < hidden * math.sqrt(6) < 1.2
    assert weighing.resolution_bias(exact * math.nan, exact) == math.inf


def test_the_cheapest_networks_within_an_error_are_chosen() -> None:
    def best(**settings: Any) -> weighing.Option | None:
        given: dict[str, Any] = {"spread": 8.0, "bias": 0.03, "wanted": 0.05, "replicates": None}
        costs = {64: 1.0, 256: 3.0, 1024: None}  # the widest does not fit
        return weighing.best_option("structured", 0.3, list(costs), costs.get, **given | settings)

    option = best()
    assert option is not None
    assert (option.width, option.replicates, option.seconds) == (256, 157, 471.0)  # 64 / (256 * 0.04^2), for 626 of 64
    assert option.sampling == pytest.approx(8 / math.sqrt(256 * 157))
    assert option.error <= 0.05
    assert best(bias=0.05) is None  # nothing is left for the noise
    assert best(replicates=100) is None
    assert best(replicates=200) is not None


def test_the_depth_is_doubled_to_its_limit() -> None:
    settings: dict[str, Any] = {"base_depth": 2, "replicates": 16, "rtol": 0.05}
    p = predicted(depth=math.inf, **settings)
    assert p.extrapolated
    assert p.converged
    assert p.depths[:3] == (2, 4, 8)
    deep = predicted(depth=32, **settings)
    assert float(((p.loss - deep.loss) / (p.loss_stderr**2 + deep.loss_stderr**2).sqrt()).abs().max()) < 4


def test_a_prediction_repeats_and_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"width": 32, "replicates": 3, "eval_batches": VECTORS[:1]}
    here, other = predicted(**settings), predicted(**settings, seed=1)
    trained, done = trials.Trial.train, list[Any]()

    def counted(runs: Any, device: str) -> Any:
        done.append(runs)
        if len(done) == 2:  # the narrower networks
            raise KeyboardInterrupt
        return trained(runs, device)

    monkeypatch.setattr(trials.Trial, "train", counted)
    with pytest.raises(KeyboardInterrupt):
        predicted(**settings, out=tmp_path)
    assert len(done) == 2
    resumed = predicted(**settings, out=tmp_path)
    assert sum(map(len, done)) == 3 * 3  # the narrower ones twice, the wide ones once
    assert torch.equal(here.loss, resumed.loss)
    assert here.eval_loss == resumed.eval_loss
    assert not torch.equal(here.loss, other.loss)
    monkeypatch.setattr(trials.Trial, "train", classmethod(lambda *_: pytest.fail("trained twice")))
    assert torch.equal(here.loss, predicted(**settings, out=tmp_path).loss)


def test_a_schedule_and_evaluation_batches() -> None:
    """Where rates are zero nothing is learned: the evaluation is that of the start."""
    p = predicted(schedule=lambda step: 0.0, eval_batches=VECTORS[:1], width=32)
    assert p.eval_loss == pytest.approx(float(p.loss[0]), abs=1e-4)
    assert p.eval_interval is not None
    assert [row["value"] for row in p.table] == p.loss.tolist()
    assert "evaluation, after the last step" in str(p)
    assert "dense weights" in str(p)


def test_a_run_that_diverges_is_a_result() -> None:
    p = predicted(lr=1e6, width=32, replicates=2)
    assert not p.converged
    assert "Lower lr" in p.note
    assert math.isfinite(float(p.loss[0]))
    assert math.isnan(float(p.loss[-1]))


class Constant(Residual):
    """Begins alike whatever the seed."""

    def forward(self, x: Tensor) -> Tensor:
        return 0 * super().forward(x)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"rule": "standard"}, ValueError, "rule='standard' has no limit of large width"),
    ({"optimizer": "adamw", "weights": "structured"}, ValueError, "weights='structured'.*'adamw' acts on every entry"),
    ({"optimizer": "adamw", "rank": 4}, ValueError, "rank is of structured"),
    ({"width": 16}, ValueError, "width must be above base_width=16"),
    ({"width": "wide"}, TypeError, "width must be a whole number or 'auto'"),
    ({"weights": "deferred"}, ValueError, "weights must be one of"),
    ({"adamw_lr": 0.1}, ValueError, "adamw_lr is for tensors that Muon leaves to AdamW"),
    ({"make_model": nfd.PaperFamily(nfd.ResNet, 5, 3)}, ValueError, r"nfd\.predict\(inputs, targets\)"),
    ({"make_model": lambda n, L: nfd.ResNet(5, 3, n, L)}, ValueError, r"nfd\.predict\(inputs, targets\)"),
    ({"make_model": 3}, TypeError, "make_model must be"),
    ({"make_model": Constant}, ValueError, "the same losses from every seed"),
    ({"batches": []}, ValueError, "batches must be"),
    ({"rank": 0}, ValueError, "rank must be at least 1"),
    ({"weights": "dense", "resolution": 0.1}, ValueError, "resolution is for weights='structured'"),
    ({"eta_c": 0.1}, TypeError, "eta_c"),
    ({"replicates": 1}, ValueError, "replicates must be at least 2"),
]


@pytest.mark.parametrize("rule", ["mup", "depth-mup-inner"])
def test_a_rule_without_a_limit_of_depth_is_refused(rule: str) -> None:
    with pytest.raises(ValueError, match=f"rule='{rule}' has no limit of large depth; use 'depth-mup' or 'complete-p'"):
        predicted(rule=rule, depth=math.inf)


@pytest.mark.parametrize(("settings", "kind", "message"), BAD)
def test_bad_arguments_are_refused_by_name(settings: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        predicted(**settings)


class Own(torch.nn.Linear):
    """A layer with a forward pass of its own, for which no other can stand in."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 1.0


class Stored(Residual):
    """With such layers."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        for block in self.blocks:
            block.down = Own(2 * width, width)


def test_matrices_that_cannot_be_replaced_are_stored() -> None:
    p = predicted(make_model=Stored, width=32, replicates=2)
    assert p.weights == "dense"
    assert "Matrices are stored: No layer can stand in for these matrices" in p.note
    with pytest.raises(ValueError, match="No layer can stand in for these matrices"):
        predicted(make_model=Stored, weights="structured")


# ---- the command -------------------------------------------------------------------------------------------------


def the_line(out: Path, *options: str) -> list[str]:
    """The command that asks what ``predicted`` asks, at width 32."""
    words = [
        "predict",
        "tests.models:Residual",
        "--batches",
        f"{__name__}:VECTORS",
        "--lr",
        "0.3",
        "--depth",
        "2",
        "--optimizer",
        "sgd",
    ]
    return [*words, "--base-width", "16", "--width", "32", "--replicates", "3", "--out", str(out), *options]


def test_the_command_answers_as_the_function_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluated = ["--eval-batches", f"{__name__}:VECTORS", "--executor", "inline"]
    assert main(the_line(tmp_path, *evaluated)) == 0
    printed = capsys.readouterr().out
    result = json.loads((tmp_path / "result.json").read_text())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trials.Trial, "train", classmethod(lambda *_: pytest.fail("trained twice")))
        p = predicted(width=32, replicates=3, eval_batches=VECTORS, out=tmp_path)
        assert main(["predict", "tests.models:Residual", "--config", str(tmp_path / "config.toml"), *evaluated[2:],
                     "--out", str(tmp_path)]) == 0  # fmt: skip
    assert result["rows"] == p.table
    assert result["eval_loss"]["value"] == p.eval_loss
    assert (result["model"], result["width"], result["weights"]) == ("tests.models:Residual", 32, "dense")
    assert [way["weights"] for way in result["ways"]] == ["structured", "dense"]
    assert "Infinitely wide network, depth 2" in printed
    assert "nfd capacity tests.models:Residual --widths 16 32 64 --depths 2 4 8 --optimizer sgd" in printed
    assert [step["purpose"] in printed for step in result["next"]] == [True, True]
    with (tmp_path / "predict.csv").open() as file:
        assert [float(row["loss"]) for row in csv.DictReader(file)] == p.loss.tolist()


def test_a_stopped_command_says_where_it_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = trials.Trial.train

    def stopped(runs: Any, device: str) -> Any:
        if runs[0].width == 16:  # the narrower networks
            raise KeyboardInterrupt
        return trained(runs, device)

    monkeypatch.setattr(trials.Trial, "train", stopped)
    assert main(the_line(tmp_path, "--executor", "inline")) == 130
    assert f"3 runs are kept in {tmp_path}" in capsys.readouterr().err
    assert not (tmp_path / "result.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--optimizer", "adamw", "--resolution", "0.2"], "acts on every entry"),
        (["--width", "16"], "width must be above base_width=16"),
        (["--rule", "ntk"], "--rule takes one of"),
        (["--memory", "1 KB"], "does not fit into memory"),
        (["--batch", "8"], "brings its own data"),
        (["--eta-c", "0.1"], "--eta-c"),
        (["--batches", f"{__name__}:NOTHING"], "has no 'NOTHING'"),
    ],
)
def test_bad_options_are_one_message_and_exit_code_2(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(the_line(tmp_path, *options, "--executor", "inline"))
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert message in capsys.readouterr().err
