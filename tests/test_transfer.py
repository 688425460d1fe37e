"""Transfer: optima, drifts and regrets of networks whose losses are known, and the command at a small size."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from benchmarks.coverage_laws import CURVES, Seeds, best_rate, inside, laws_cover, sweep

from nfd.cli.main import main
from nfd.core.files import staged, write_text
from nfd.questions.optimum import Scores, of_seeds, resamples, rounded, vertex
from nfd.questions.recommendation import recommended
from nfd.questions.regret import Regret
from nfd.questions.rule_transfer import drift
from nfd.questions.sweep_settings import TransferConfig
from nfd.questions.transfer_findings import sentence, table
from nfd.questions.transfer_sweep import transfer_of_sweep
from nfd.runs.records import run_key
from nfd.runs.settings import RunConfig
from nfd.runs.sweep import Sweep
from nfd.store.rows import Record
from nfd.store.store import Store

RATES = torch.arange(-4.0, 3.0, dtype=torch.float64)
GUESS = math.log(10)


def parabolas(*optima: float, bend: float = 0.02) -> torch.Tensor:
    """One seed each, with its best rate at this power of two."""
    return torch.stack([0.5 + bend * (RATES - o).square() for o in optima])


def cell(losses: torch.Tensor, upset: torch.Tensor | None = None) -> Scores:
    return Scores(RATES, losses, ~losses.isfinite() if upset is None else upset, GUESS)


def test_the_vertex_of_a_parabola_is_found() -> None:
    assert cell(parabolas(-0.7)).best() == pytest.approx(-0.7)
    found = cell(parabolas(-0.9, -0.7, -0.5)).optimum()
    assert found.value == pytest.approx(-0.7, abs=0.01)
    assert found.stderr == pytest.approx(0.2 / math.sqrt(3), rel=0.05)  # nearly the mean of the vertices
    assert found.low < -0.9 < -0.5 < found.high


@pytest.mark.parametrize("cliff", [0.0, 1.0, 2.0])
def test_divergence_beside_the_best_rate_does_not_move_it(cliff: float) -> None:
    """The best rate found is never worse than the best of the grid by more than the bend allows."""
    losses = parabolas(0.3, 0.3, 0.3, bend=0.1)
    losses[:, cliff < RATES] = math.inf
    found = cell(losses)
    best = RATES[losses[0].argmin()]
    assert abs(found.best() - float(best)) <= 0.5
    assert float(np.interp(found.best(), RATES, losses[0])) <= float(losses.min()) + 0.03


def test_the_parabola_is_fitted_where_a_fifth_of_the_progress_is_not_yet_lost() -> None:
    """Of 2.1 nats: below 0.62 lie four rates, within a fifth of the loss itself only the best."""
    x = torch.arange(1.0, 6.0, dtype=torch.float64)
    losses = (0.2 + 0.1 * (x - 2.9) ** 2).expand(3, -1)
    assert Scores(x, losses, torch.zeros_like(losses) > 0, 2.3).best() == pytest.approx(2.9)


def test_where_the_grid_alone_decides_the_interval_holds_its_step() -> None:
    sharp = cell(parabolas(0.2, 0.2, 0.2, bend=2.0)).optimum()
    assert sharp.low == pytest.approx(-0.475, abs=0.01)  # 95 % of half a step
    assert sharp.high == pytest.approx(0.475, abs=0.01)


def test_an_optimum_at_an_end_is_known_as_one() -> None:
    assert cell(parabolas(-7.0)).edge == -1
    assert cell(parabolas(9.0)).edge == 1
    assert cell(parabolas(0.0)).edge == 0
    assert cell(parabolas(9.0)).best() <= float(RATES[-1])


def test_rates_at_which_nothing_is_learnt_are_too_high_or_too_low() -> None:
    none = torch.full((2, len(RATES)), 2.34)
    assert not cell(none).learns
    assert cell(none).edge == 1  # calm everywhere: too low
    assert cell(torch.full_like(none, math.inf)).edge == -1  # diverged everywhere: too high
    dead = torch.ones_like(none, dtype=torch.bool)
    assert cell(torch.full_like(none, GUESS), dead).edge == -1  # died: finite at the end, upset on the way
    half = torch.where(RATES > 0, math.inf, none)
    assert cell(half).edge == 0  # both: no rate of this grid's kind will do


class Known:
    """A sweep whose losses are a parabola around ``2^(start + p log2 L + q log2 n)``, with a little noise per seed."""

    progress = False
    run_all = Sweep.run_all

    def __init__(self, p: float, q: float, start: float, always: float = 0.0, status: str = "done") -> None:
        self.p, self.q, self.start, self.always, self.status = p, q, start, always, status

    def run(self, configs: Iterable[RunConfig], label: str = "") -> list[Record]:
        found = []
        for config in configs:
            best = self.start + self.p * math.log2(config.depth) + self.q * math.log2(config.width)
            noise = torch.randn((), generator=torch.Generator().manual_seed(config.seed)).item()
            loss = 0.5 + 0.05 * (math.log2(config.eta_c) - best + 0.01 * noise) ** 2
            loss = math.inf if loss > 2.0 else loss + 0.001 * noise
            loss = self.always or loss
            metrics = {"first_loss": 2.4, "highest_loss": max(2.4, loss), "train_loss": loss, "test_loss": loss}
            found.append(Record(run_key(config, ""), "g", self.status, config.model_dump(), metrics, error="broken"))
        return found


def config(**settings: Any) -> TransferConfig:
    return TransferConfig(rules=("depth-mup",), widths=(16, 32), depths=(2, 8), **settings)


@pytest.mark.parametrize(("p", "q"), [(0.0, 0.0), (-0.5, 0.25), (-1.5, 0.0)])
def test_drifts_are_found_and_grids_extended(p: float, q: float) -> None:
    known = Known(p, q, start=-0.5)
    (found,) = transfer_of_sweep(config(), cast(Sweep, known))
    for axis, slope in (("depth", p), ("width", q)):
        drift = found.drift(axis)  # type: ignore[arg-type]
        assert drift is not None
        assert drift.value == pytest.approx(slope, abs=0.02)
        assert drift.stderr < 0.05
    assert not found.doubt
    for (n, L), cell in found.cells.items():
        assert cell.optimum().value == pytest.approx(-0.5 + p * math.log2(L) + q * math.log2(n), abs=0.05)


def test_the_regret_is_what_the_largest_network_pays() -> None:
    (found,) = transfer_of_sweep(config(), cast(Sweep, Known(-1.0, 0.0, start=0.0)))
    assert found.regret.foreign_eta == pytest.approx(0.5, rel=0.02)  # best at depth 2
    assert found.regret.own_eta == pytest.approx(0.125, rel=0.02)
    assert found.regret.loss.value == pytest.approx(0.05 * 2**2, abs=0.01)
    assert found.regret.share.value == pytest.approx(0.2 / (math.log(10) - 0.5), abs=0.01)
    assert found.verdict == "COSTS"
    (kept,) = transfer_of_sweep(config(), cast(Sweep, Known(0.0, 0.0, start=-1.0)))
    assert kept.verdict == "TRANSFERS"
    assert "it transfers" in sentence(kept)
    assert table([found, kept])[0]["drift per doubling of depth"].startswith("-1.00")


def test_a_rate_that_may_gain_much_and_costs_little_transfers() -> None:
    """Two of eight starts diverge at the large network's own best rate, none at the small one's."""
    (known,) = transfer_of_sweep(config(), cast(Sweep, Known(0.0, 0.0, start=-1.0)))
    gains = replace(known, regret=regret_of([0.5] * 16, (0, 0, 0, 2, 8), own_eta=2.0))
    assert gains.regret.share.low < -0.1
    assert gains.regret.share.high < 0.1
    assert gains.verdict == "TRANSFERS"
    loses = replace(known, regret=regret_of([0.5] * 16, (0, 0, 2, 8, 8)))
    assert loses.regret.share.high > 0.1
    assert loses.verdict == "UNCERTAIN"


def test_two_seeds_give_no_verdict_and_the_answer_says_so() -> None:
    (known,) = transfer_of_sweep(config(), cast(Sweep, Known(0.0, 0.0, start=-1.0)))
    assert known.regret is not None
    grid = known.regret.grid.of(torch.arange(2))
    few = replace(known, regret=replace(known.regret, grid=grid))
    assert few.verdict == "UNCERTAIN"
    for answer, says in ((few, True), (known, False)):
        assert ("a verdict needs 3 seeds" in sentence(answer)) is says
        assert ("a verdict needs 3 seeds" in str(answer)) is says


def test_what_pytorch_was_told_does_not_reach_the_answer() -> None:
    known = cast(Sweep, Known(-1.0, 0.0, start=0.0))
    expected = table(transfer_of_sweep(config(), known).rules)
    with torch.device("meta"), torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        answer = transfer_of_sweep(config(), known)
    assert table(answer.rules) == expected


def test_what_does_not_learn_gets_no_verdict() -> None:
    (found,) = transfer_of_sweep(config(), cast(Sweep, Known(0.0, 0.0, start=0.0, always=2.35)))
    assert found.verdict == "UNCERTAIN"
    assert "nothing is learnt at width 16 and depth 2" in sentence(found)


def test_runs_that_failed_stop_the_question() -> None:
    with pytest.raises(RuntimeError, match="could not be trained: broken"):
        transfer_of_sweep(config(), cast(Sweep, Known(0.0, 0.0, start=0.0, status="failed")))


def regret_of(foreign: list[float], lost: tuple[int, ...], own_eta: float = 0.5) -> Regret:
    """The regret at rate 1, where so many of eight starts diverge at the rates of a grid of 1/4, 1/2, 1, 2 and 4."""
    grid = torch.full((8, 5), 0.5, dtype=torch.float64)
    for place, count in enumerate(lost):
        grid[:count, place] = math.inf
    scores = Scores(torch.arange(-2.0, 3.0), grid, grid > GUESS, GUESS)
    new = torch.stack([torch.tensor(foreign), torch.linspace(0.49, 0.51, len(foreign))], 1).double()
    return Regret(1.0, own_eta, at_rates(1.0, own_eta, new), scores)


def at_rates(foreign_eta: float, own_eta: float, losses: torch.Tensor) -> Scores:
    return Scores(torch.tensor([foreign_eta, own_eta]).log2(), losses, ~losses.isfinite(), GUESS)


def test_the_regret_knows_of_divergence_that_no_start_happened_to_show() -> None:
    """No new start of 16 diverges; how far that may be luck is told by the grid at and above the rate."""
    calm = [0.52, 0.5] * 8
    near, far = regret_of(calm, (0, 0, 0, 8, 8)), regret_of(calm, (0, 0, 0, 0, 8))
    assert near.loss.value == pytest.approx(0.01, abs=0.02)
    assert near.loss.high == pytest.approx(0.01 + (1 - math.exp(-2.15 / 24)) * (GUESS - 0.5), abs=0.02)  # 24 are calm
    assert far.loss.high < near.loss.high / 2
    assert near.loss.low == pytest.approx(far.loss.low, abs=0.02)
    same = regret_of(calm, (0, 0, 0, 8, 8), own_eta=1.0)
    assert same.diverges == (0, 0, 0)  # whatever the chance, it is that of both


def test_the_regret_of_networks_that_diverge_is_what_they_lose() -> None:
    lost = GUESS - 0.5
    half = regret_of([math.inf, 0.5] * 8, (0, 0, 4, 8, 8)).loss
    assert half.value == pytest.approx(lost / 2, rel=0.05)
    assert half.low < 0.35 * lost
    assert half.high > 0.65 * lost
    none = regret_of([math.inf] * 16, (0, 0, 8, 8, 8)).loss
    assert none.value == pytest.approx(lost, rel=0.05)
    assert none.low > 0.8 * lost
    blind = replace(regret_of([0.5] * 16, (0, 0, 0, 0, 8)), new=at_rates(1.0, 0.5, torch.tensor([[0.5, GUESS]] * 16)))
    assert math.isnan(blind.loss.value)


def test_the_regret_of_calm_networks_is_a_mean_over_pairs() -> None:
    """No rate diverges: nothing but the pairs is left, and a bound on what 24 starts did not show."""
    one = regret_of([0.6, 0.7, 0.8, 0.7] * 4, (0, 0, 0, 0, 0))
    paid = one.foreign - one.own
    assert one.loss.value == pytest.approx(float(paid.mean()), abs=1e-3)
    half = 2.13 * float(paid.std()) / 4
    assert one.loss.value - one.loss.low == pytest.approx(half, rel=0.1)
    assert half < one.loss.high - one.loss.value < 3 * half


def test_the_error_of_a_mean_over_samples_of_the_seeds_is_exact_for_a_mean() -> None:
    for seeds in (2, 3, 8):
        values = torch.randn(seeds, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        means = resamples(seeds) @ values
        assert float(means.mean()) == pytest.approx(float(values.mean()))
        assert of_seeds(means, seeds) == pytest.approx(float(values.var()) / seeds)


def test_best_rates_on_the_grid_leave_their_drift_open_by_half_a_step_each() -> None:
    """Cliffs on both sides of one rate: no parabola is fitted, and seeds agree on the rate exactly."""

    def cliffs(best: float) -> Scores:
        return cell(torch.where(best == RATES, 0.5, 2.2).expand(5, -1))

    cells = {(16, 2): cliffs(0.0), (16, 4): cliffs(0.0), (16, 8): cliffs(0.0)}
    half = 0.475 * math.sqrt(2) * 0.5  # two ends, each half, anywhere within half a step
    for found, moved in ((drift(cells, "depth"), 0.0), (drift({**cells, (16, 8): cliffs(-1.0)}, "depth"), -0.5)):
        assert found is not None
        assert found.value == pytest.approx(moved)
        assert (found.low, found.high) == pytest.approx((moved - half, moved + half), abs=1e-3)
    fitted = {size: cell(parabolas(0.3, 0.3, 0.3)) for size in cells}
    found = drift(fitted, "depth")
    assert found is not None
    assert found.stderr == pytest.approx(0, abs=1e-6)  # vertices between the rates have no such doubt
    both = drift({(n, L): cliffs(0.0) for n in (16, 32) for L in (2, 8)}, "width")
    assert both is not None
    assert both.high - both.value == pytest.approx(math.sqrt(4) * 0.5 * 0.475, rel=1e-3)  # four sizes, each by half


def test_a_curve_that_is_steeper_on_one_side_does_not_move_the_best_rate() -> None:
    """The vertex of a parabola lies a third of a doubling off, that of the cubic half as far; the interval knows."""
    x = torch.arange(-3.0, 3.01, 0.5, dtype=torch.float64)
    losses = 0.5 + torch.where(x < 0.1, 0.2, 0.06) * (x - 0.1).square()
    found = Scores(x, losses.expand(4, -1), torch.zeros(4, len(x), dtype=torch.bool), GUESS)
    shape = vertex(x, found.typical, GUESS)
    assert abs(float(shape.place) - 0.1) < 0.6 * abs(float(shape.parabola) - 0.1)
    assert found.optimum().low < 0.1 < found.optimum().high


@pytest.mark.parametrize("name", ["parabola", "divergence at 1.5 times"])
def test_intervals_of_the_best_rate_hold_it(name: str) -> None:
    """About 95 of 100 (three errors of 80 repetitions), beside divergence too; by being near, not by being wide."""
    random, curve = np.random.default_rng(0), CURVES[name]
    truth = best_rate(curve)
    found = [sweep(curve, Seeds.drawn(random, 6), random).optimum() for _ in range(80)]
    assert np.mean([inside(each, truth) for each in found]) > 0.87
    assert np.mean([inside(each, truth + 0.7) for each in found]) < 0.3


class Chosen(Known):
    """Losses that no rate moves, with much noise of their own at every rate: what is best is luck."""

    def run(self, configs: Iterable[RunConfig], label: str = "") -> list[Record]:
        found = []
        for record in super().run(configs, label):
            random = torch.Generator().manual_seed(hash((record.config["seed"], round(record.config["eta_c"], 9))))
            bowl = 0.3 * math.log2(record.config["eta_c"] / 0.5) ** 4 / (3 if record.config["depth"] == 2 else 1)
            loss = 0.5 + bowl + 0.15 * torch.randn((), generator=random).item()
            found.append(replace(record, metrics=record.metrics | {"train_loss": loss}))
        return found


def test_the_regret_is_scored_on_seeds_that_did_not_choose() -> None:
    """Starts that chose neither rate are trained at both."""
    known = Chosen(0.0, 0.0, start=-1.0)
    asked: list[RunConfig] = []

    class Watched:
        progress = False
        run_all = Sweep.run_all

        def run(self, configs: Iterable[RunConfig], label: str = "") -> list[Record]:
            some = list(configs)
            asked.extend(some if label == "regrets" else [])
            return known.run(some, label)

    settings = config(seeds=6)
    (found,) = transfer_of_sweep(settings, cast(Sweep, Watched()))
    rates = [rounded(found.cells[size].best()) for size in ((16, 2), (32, 8))]
    assert [found.regret.foreign_eta, found.regret.own_eta] == rates
    for size, own in (((32, 8), rates), ((16, 2), rates[:1])):  # the smallest network for its loss
        runs = [(run.seed, run.eta_c) for run in asked if (run.width, run.depth) == size]
        assert runs == [(seed, eta) for seed in range(6, 18) for eta in own]
    assert {(run.width, run.depth) for run in asked} == {(32, 8), (16, 2)}
    assert len(found.regret.own) == 12
    assert found.regret.grid is found.cells[32, 8]


def test_the_benchmark_of_coverage_has_a_row_for_every_kind() -> None:
    rows = laws_cover(1, 0)
    kinds = {str(row["kind"]) for row in rows}
    assert {"law of size: floor", "best rate", "drift of the best rate", "regret"} <= kinds
    assert all(set(row) == {"kind", "case", "nominal", "measured", "error", "count"} for row in rows)


def test_the_recommendation_says_what_to_do() -> None:
    (kept,) = transfer_of_sweep(config(), cast(Sweep, Known(0.0, 0.0, start=-1.0)))
    (moved,) = transfer_of_sweep(config(), cast(Sweep, Known(-1.5, 0.0, start=0.0)))
    (blind,) = transfer_of_sweep(config(), cast(Sweep, Known(0.0, 0.0, start=0.0, always=2.35)))
    use = recommended([moved, kept])
    assert (use.kind, use.rule, use.small, use.large) == ("use", "depth-mup", (16, 2), (32, 8))
    assert str(use).startswith("Use depth-mup at eta_c = 0.5 [0.")
    assert "tuned at width 16 and depth 2 it costs 0 % [" in str(use)
    assert str(use).endswith("] of the progress at width 32 and depth 8.")
    large = recommended([moved])
    assert large.kind == "tune large"
    assert large.rate is not None
    assert large.rate.value == pytest.approx(2**-4.5, rel=0.1)
    regret = moved.regret
    assert regret is not None
    assert f"of the progress of {regret.progress:.2g} nats at width 32" in str(large)
    assert "No rule transfers" in str(large)
    few = transfer_of_sweep(config(seeds=2), cast(Sweep, Known(0.0, 0.0, start=-1.0))).rules
    assert (recommended(few).kind, "with 4 seeds" in str(recommended(few))) == ("more seeds", True)
    assert recommended([blind]).kind == "other rates"
    assert "Give other rates or more steps" in str(recommended([blind]))


def test_it_prints_as_a_table_whose_rows_are_plain() -> None:
    (found,) = transfer_of_sweep(config(), cast(Sweep, Known(-0.5, 0.0, start=0.0)))
    rates = [row for row in found.table if row["quantity"] == "best eta_c"]
    assert [(row["width"], row["depth"]) for row in rates] == list(found.cells)
    assert all(row["low"] < row["value"] < row["high"] for row in rates)
    others = {row["quantity"]: row["value"] for row in found.table if row["width"] is None}
    assert set(others) == {
        "drift per doubling of depth",
        "drift per doubling of width",
        "regret (nats)",
        "regret over progress",
    }
    assert others["drift per doubling of depth"] == pytest.approx(-0.5, abs=0.1)
    assert others["regret (nats)"] == found.regret.loss.value
    assert str(found).startswith(f"depth-mup: {found.verdict}")


def test_one_axis_alone_has_no_drift_along_the_other() -> None:
    one = TransferConfig(rules=("depth-mup",), widths=(16,), depths=(2, 8))
    (found,) = transfer_of_sweep(one, cast(Sweep, Known(-0.5, 0.0, start=0.0)))
    assert found.drift("width") is None
    assert "doubling of width" not in sentence(found)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"eta_c": (0.1, 0.2)}, "three or more"),
        ({"eta_c": (0.2, 0.1, 0.2)}, "0.2 twice"),
        ({"widths": (16,), "depths": (4,)}, "two sizes"),
        ({"rules": ("mup", "mup")}, "different"),
        ({"block": "one-layer", "rules": ("depth-mup-inner",)}, "two-layer"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TransferConfig(**settings)


SMALL = [
    *("--widths", "8,16", "--depths", "2,4", "--steps", "6", "--seeds", "2", "--executor", "inline"),
    *("--rules", "depth-mup", "mup"),
]


def test_the_command_writes_its_page_and_trains_nothing_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with staged(tmp_path) as folder:
        write_text(folder / "loss-complete-p.csv", "of an earlier sweep with another rule")
    left = tmp_path / "loss-complete-p.csv"
    assert main(["transfer", *SMALL, "--out", str(tmp_path)]) == 0
    assert not left.exists()
    said = capsys.readouterr()
    assert said.out.count("depth-mup: the best eta_c is") == 1
    assert said.err == ""
    found = json.loads((tmp_path / "result.json").read_text())
    assert [rule["rule"] for rule in found["rules"]] == ["depth-mup", "mup"]
    assert {"value", "low", "high"} == set(found["rules"][0]["drift"]["depth"])
    assert said.out.splitlines()[-1] == found["recommendation"]["sentence"]
    assert found["recommendation"]["kind"] in ("use", "more seeds", "tune large", "other rates")
    assert found["recommendation"]["sentence"] in (tmp_path / "report.html").read_text()
    for name in ("report.html", "depth.png", "width.pdf", "loss-mup.csv", "transfer.csv", "config.toml"):
        assert (tmp_path / name).stat().st_size > 100
    with Store.read(tmp_path) as store:
        runs = len(store)
    assert (
        main(["transfer", "--config", str(tmp_path / "config.toml"), "--executor", "inline", "--out", str(tmp_path)])
        == 0
    )
    assert capsys.readouterr().out == said.out
    with Store.read(tmp_path) as store:
        assert len(store) == runs


def test_ready_configurations_are_found_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transfer", "--config", "fig5-row2", "--data", "cifar10"]) == 2
    assert "needs data_dir" in capsys.readouterr().err
    assert main(["transfer", "--config", "fig5-row"]) == 2
    assert "Did you mean 'fig5-row2'?" in capsys.readouterr().err
    for name in ("cifar10", "deep", "fig5-row2"):
        presets = Path(__file__).parents[1] / "src/nfd/cli/presets/transfer"
        assert TransferConfig.load(presets / f"{name}.toml", partial=True).depths
