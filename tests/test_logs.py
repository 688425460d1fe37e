"""Answers from logs: which rows are runs, best rates and laws that are known, published tables, and the commands."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models import Residual

import nfd
from nfd.cli.main import main
from nfd.core.estimates import UNKNOWN
from nfd.questions.law import Law
from nfd.questions.logs import read_log
from nfd.questions.power_law import PowerLaw
from nfd.questions.transfer_findings import sentence, transfer_findings

Rows = list[dict[str, Any]]


def written(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


class Frame:
    """What a DataFrame of pandas has of a table."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.columns = rows, list(rows[0])

    def to_dict(self, form: str) -> Rows:
        assert form == "records"
        return self.rows


# ---- rows ----------------------------------------------------------------------------------------------------

PLAIN: Rows = [{"width": 64, "lr": 0.1, "seed": 3, "loss": 2.5}, {"width": 128, "lr": 0.2, "seed": 4, "loss": 2.25}]
NAMED: dict[str, Any] = {
    "dicts": PLAIN,
    "W&B's API": [
        {"name": str(k), "config": {"n_embd": r["width"], "optim": {"lr": r["lr"]}, "seed": r["seed"]}}
        | {"summary": {"loss": r["loss"], "_step": 99}}
        for k, r in enumerate(PLAIN)
    ],
    "prefixes": [
        {
            "config/d_model": r["width"],
            "config.learning_rate": r["lr"],
            "hparams/seed": r["seed"],
            "val loss": r["loss"],
        }
        for r in PLAIN
    ],
    "a frame": Frame([{name: float(value) for name, value in row.items()} for row in PLAIN]),
    "texts": [{name: f" {value} " for name, value in row.items()} for row in PLAIN],
    "steps": [row | {"_step": step, "loss": row["loss"] + (9 - step)} for step in (0, 9, 4) for row in PLAIN],
    "scalars": [
        {"run": f"width={r['width']},lr={r['lr']},seed={r['seed']}", "tag": "loss", "step": step, "value": value}
        | {"wall_time": 1.0}
        for r in PLAIN
        for step, value in ((0, 9.0), (7, r["loss"]), (3, 8.0))
    ],
}


@pytest.mark.parametrize("rows", NAMED.values(), ids=NAMED)
def test_columns_are_known_by_their_usual_names(rows: Any) -> None:
    log = read_log(rows, None, ("lr", "loss"), ("width", "seed"))
    assert [(run.width, run.lr, run.seed, run.loss) for run in log.runs] == [(64, 0.1, "3", 2.5), (128, 0.2, "4", 2.25)]


def test_what_was_recognised_is_told(tmp_path: Path) -> None:
    path = written(tmp_path / "runs.csv", NAMED["prefixes"])
    log = read_log(path, {"loss": "val loss"}, ("lr", "loss"), ("width",))
    assert (
        log.recognised == "2 runs: lr from 'config.learning_rate', loss from 'val loss', width from 'config/d_model'."
    )
    assert [run.loss for run in log.runs] == [2.5, 2.25]
    assert read_log(path, {"lr": "config/learning_rate"}, ("lr",)).columns["lr"] == "config.learning_rate"
    assert "width" not in read_log(PLAIN, {"width": None}, ("lr",), ("width",)).columns


def test_runs_that_did_not_end_are_left_out_and_those_that_diverged_count() -> None:
    states = ("finished", "crashed", "diverged", "finished")
    rows = [PLAIN[0] | {"state": state, "seed": k, "loss": loss} for k, (state, loss) in enumerate(
        zip(states, (2.0, 1.0, "", "nan"), strict=True)
    )]  # fmt: skip
    log = read_log(rows, None, ("lr", "loss"), ("seed",))
    assert [(run.seed, run.loss) for run in log.runs] == [("0", 2.0), ("2", math.inf), ("3", math.inf)]
    assert any("crashed" in note for note in log.notes)
    lacking = read_log([*PLAIN, {"width": 1, "lr": "", "loss": 1.0}], None, ("lr", "loss"))
    assert len(lacking.runs) == 2
    assert "1 rows that lack" in lacking.notes[0]


class Gap(float):
    """What pandas has where a cell is empty: it is not equal to itself, and neither true nor false."""

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")

    def __str__(self) -> str:
        return "<NA>"


def history(name: str, losses: Sequence[float], every: int = 1) -> Rows:
    """A run of a frame: its loss after every so many steps, and nothing after the others."""
    about = {"width": 64, "lr": 0.1, "seed": name}
    cells = {every * k: loss for k, loss in enumerate(losses)}
    return [about | {"_step": step, "loss": cells.get(step, math.nan)} for step in range(every * len(losses))]


def test_empty_cells_of_a_frame_are_no_numbers() -> None:
    gap = Gap(math.nan)
    rows = [PLAIN[0] | {"seed": gap}, PLAIN[1] | {"width": gap}, PLAIN[0] | {"lr": math.nan}]
    log = read_log(Frame(rows), None, ("lr", "loss"), ("width", "seed"))
    assert [(run.width, run.seed, run.lr) for run in log.runs] == [(64, None, 0.1), (None, "4", 0.2)]
    assert log.notes == ("1 rows that lack one of lr, loss were left out.",)


def test_steps_without_a_loss_are_told_from_divergence() -> None:
    """A frame has not-a-number for both: gaps stand between losses, and where other runs have none either."""
    sound, lost = history("sound", (3.0, 2.0, 1.5), every=4), history("lost", (3.0, 2.5, math.nan), every=4)
    always = history("every step", (3.0, 2.0, math.nan, math.nan))
    log = read_log(Frame([*sound, *lost, *always]), None, ("lr", "loss"), ("width", "seed"))
    assert {run.seed: run.loss for run in log.runs} == {"sound": 1.5, "lost": math.inf, "every step": math.inf}
    short = history("stopped", (3.0, 2.0), every=4)  # no more was asked of it
    log = read_log(Frame([*sound, *short]), None, ("lr", "loss"), ("width", "seed"))
    assert {run.seed: run.loss for run in log.runs} == {"sound": 1.5, "stopped": 2.0}


BAD: list[tuple[Any, Any, type[Exception], str]] = [
    ([], None, ValueError, "has no rows"),
    (3, None, TypeError, "dicts, or a DataFrame, or the path of a CSV"),
    (["a"], None, TypeError, "got str among them"),
    ("no such file.csv", None, OSError, "there is none at 'no such file.csv'"),
    ([{"width": 1, "loss": 2.0}], None, ValueError, r"known to be the lr. Name it: .*The columns are 'width', 'loss'"),
    ([{"lr": 1, "train_loss": 2.0, "val_loss": 3.0}], None, ValueError, "'train_loss', 'val_loss' may all be the loss"),
    (PLAIN, {"lr": "rate"}, ValueError, "'rate' for the lr, but the log has no such column"),
    (PLAIN, {"rate": "lr"}, ValueError, "columns must be one of"),
    ([PLAIN[0] | {"lr": "high"}], None, ValueError, "column 'lr' must hold numbers; row 1 has 'high'"),
    ([PLAIN[0] | {"lr": 0}], None, ValueError, "above 0; row 1 has 0"),
    ([PLAIN[0] | {"width": 6.5}], None, ValueError, "whole numbers; row 1 has 6.5"),
    ([PLAIN[0] | {"loss": True}], None, ValueError, "must hold numbers; row 1 has True"),
    ([{"lr": "", "loss": 1.0}], None, ValueError, "no row of the log has all of lr, loss"),
]


@pytest.mark.parametrize(("rows", "columns", "error", "message"), BAD)
def test_malformed_tables_are_refused_by_name(rows: Any, columns: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_log(rows, columns, ("lr", "loss"), ("width",))


def test_malformed_files_are_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("lr,loss\n0.1,2.0\n0.2\n")
    with pytest.raises(ValueError, match=r"line 3 of .* has another number of fields"):
        read_log(path, None, ("lr", "loss"))
    path.write_bytes(b"lr,loss\n\xff\xfe,1\n")
    with pytest.raises(ValueError, match="CSV file in UTF-8"):
        read_log(path, None, ("lr", "loss"))


# ---- transfer ------------------------------------------------------------------------------------------------


def rates(drift: float, seeds: int = 4, scatter: float = 0.1, scale: float = 1.0, lowest: int = -14) -> Rows:
    """Losses that are parabolas around ``2^(-10 + drift log2(width / 64))``, with another place for every seed."""
    random = np.random.default_rng(0)
    places = scatter * random.normal(size=(4, seeds))
    return [
        {"width": n, "depth": 4, "lr": 2.0**k, "seed": s}
        | {"loss": scale * (3 + 0.05 * (k + 10 - drift * j + places[j, s]) ** 2 + 0.002 * random.normal())}
        for j, n in enumerate((64, 128, 256, 512))
        for s in range(seeds)
        for k in range(lowest, -4)
    ]


@pytest.mark.parametrize("drift", [0.0, 0.5, -1.0])
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_a_drift_is_found_whatever_the_unit_of_the_loss(drift: float, scale: float) -> None:
    transfer = nfd.fit_transfer(rates(drift, scale=scale))
    moved = transfer.drift("logged", "width")
    assert moved.low < drift < moved.high
    assert moved.resolved == (drift != 0)
    best = transfer.best("logged", 512, 4)
    assert best.low < 2 ** (-10 + 3 * drift) < best.high
    assert math.isnan(transfer.drift("logged", "depth").value)
    assert transfer.verdict("logged") == "UNCERTAIN"
    assert math.isnan(transfer.regret("logged").value)
    assert {row["quantity"] for row in transfer.table} == {"best lr", "best loss", "drift per doubling of width"}
    assert "logged: drift" in str(transfer)


def test_one_seed_gives_no_interval_of_a_rate_and_a_wider_one_of_the_drift() -> None:
    one, several = nfd.fit_transfer(rates(0.5, seeds=1)), nfd.fit_transfer(rates(0.5))
    best = one.best("logged", 64, 4)
    assert math.isfinite(best.value)
    assert math.isnan(best.low)
    assert any("one seed" in note for note in one.notes)
    narrow, wide = several.drift("logged", "width"), one.drift("logged", "width")
    assert wide.low < 0.5 < wide.high
    assert wide.high - wide.low > narrow.high - narrow.low
    two = nfd.fit_transfer([row for row in rates(0.5, seeds=1) if row["width"] in (64, 512)])
    assert math.isnan(two.drift("logged", "width").low)  # nothing is left to tell an error by
    assert "[nan" not in sentence(two.of("logged"))


def test_drifts_of_one_seed_hold_the_truth() -> None:
    """About 95 of 100, from the scatter about a power law alone."""
    random, held = np.random.default_rng(1), 0
    for _ in range(60):
        rows = [
            {"width": n, "lr": 2.0**k, "loss": 3 + 0.05 * (k + 10 + place) ** 2}
            for n in (32, 64, 128, 256, 512)
            for place in [0.3 * random.normal()]
            for k in range(-14, -5)
        ]
        moved = nfd.fit_transfer(rows).drift("logged", "width")
        held += moved.low <= 0 <= moved.high
    assert held / 60 > 0.85


def test_an_optimum_at_an_end_is_told_and_not_fitted() -> None:
    rows = [row for row in rates(1.0) if row["lr"] < 2**-8.5]
    transfer = nfd.fit_transfer(rows)
    answer = transfer.of("logged")
    assert [size[0] for size in answer.inside] == [64]
    assert math.isnan(transfer.best("logged", 512, 4).value)
    assert answer.drift("width") is None
    assert answer.doubt.ends[512, 4] == 1
    assert str(answer.doubt) in str(transfer)
    assert -1 not in answer.doubt.ends.values()
    low = nfd.fit_transfer([row for row in rates(0.0) if row["lr"] > 2**-9.5]).of("logged")
    assert set(low.doubt.ends.values()) == {-1}
    assert not low.inside
    assert not nfd.fit_transfer(rates(0.0)).of("logged").doubt


def test_divergence_counts_and_does_not_move_the_optimum() -> None:
    rows = [row | ({"loss": "nan"} if row["lr"] > 2**-8.5 else {}) for row in rates(0.0)]
    spikes = [row | ({"loss": 1e5} if row["lr"] > 2**-8.5 else {}) for row in rates(0.0)]
    for given in (rows, spikes):
        transfer = nfd.fit_transfer(given)
        best = transfer.best("logged", 128, 4)
        assert best.low < 2**-10 < best.high
        assert best.value == pytest.approx(2**-10, rel=0.3)
    lost = nfd.fit_transfer([row | ({"loss": math.inf} if row["width"] == 64 else {}) for row in rates(0.0)])
    assert any("Every run of logged at width 64" in note for note in lost.notes)
    assert nfd.fit_transfer(rows, guess=math.log(50_000)).of("logged").cells[64, 4].guess == math.log(50_000)


def test_seeds_that_were_not_trained_at_every_rate_are_left_out_and_told() -> None:
    rows = [row for row in rates(0.0) if row["seed"] < 2 or row["lr"] > 2**-12.5]
    transfer = nfd.fit_transfer(rows)
    assert all(len(cell.losses) == 2 for cell in transfer.of("logged").cells.values())
    assert any("not trained at every rate" in note for note in transfer.notes)
    own = [row | {"seed": f"{row['lr']}-{row['seed']}"} for row in rates(0.0)]  # every run has a seed of its own
    cells = nfd.fit_transfer(own).of("logged").cells
    assert all(len(cell.losses) == 4 for cell in cells.values())
    assert len({cell.seeds for cell in cells.values()}) == 4  # sizes do not share them


def test_rules_are_kept_apart_and_rows_of_other_settings_are_refused() -> None:
    rules = [row | {"rule": rule} for rule, drift in (("mup", 0.0), ("standard", -1.0)) for row in rates(drift)]
    transfer = nfd.fit_transfer(rules)
    assert [answer.rule for answer in transfer] == ["mup", "standard"]
    assert transfer.drift("standard", "width").high < -0.8 < transfer.drift("mup", "width").low
    assert {finding.name for finding in transfer_findings(transfer)} == {"width", "loss-mup", "loss-standard"}
    with pytest.raises(ValueError, match="Did you mean 'mup'"):
        transfer.best("mpu", 64, 4)
    with pytest.raises(ValueError, match="no runs of width 65"):
        transfer.best("mup", 65, 4)
    with pytest.raises(ValueError, match="they differ in something else"):
        nfd.fit_transfer([*rates(0.0), rates(0.0)[0]])
    with pytest.raises(ValueError, match="several lengths"):
        nfd.fit_transfer([row | {"steps": steps} for row in rates(0.0) for steps in (100, 200)])
    grown = nfd.fit_transfer([row | {"tokens": 20 * row["width"]} for row in rates(0.0)])
    assert any("Lengths of training differ" in note for note in grown.notes)
    with pytest.raises(ValueError, match="must say the width or the depth"):
        nfd.fit_transfer([{"lr": 0.1, "loss": 1.0}])
    with pytest.raises(ValueError, match="above 0"):
        nfd.fit_transfer([row | {"loss": -1.0} for row in rates(0.0)])


def new_starts(cost: float, *, noise: float = 0.01, at: float = 2.0**-10) -> Rows:
    """Runs of the largest network at two rates, of which that of the smallest costs more, from seeds of their own."""
    drawn = noise * np.random.default_rng(2).normal(size=(6, 2))
    return [
        {"width": 512, "depth": 4, "lr": rate, "seed": 10 + k, "loss": 3 + paid + drawn[k, j]}
        for k in range(6)
        for j, (rate, paid) in enumerate(((at, cost), (at * 2**1.5, 0.0)))
    ]


@pytest.mark.parametrize(("cost", "verdict"), [(0.01, "TRANSFERS"), (0.5, "COSTS")])
def test_a_log_with_new_starts_at_both_best_rates_has_their_regret(cost: float, verdict: str) -> None:
    grid = rates(0.5)
    moved = nfd.fit_transfer([*grid, *new_starts(cost)], guess=5.0)
    regret = moved.regret("logged")
    assert regret.low < cost < regret.high
    assert moved.verdict("logged") == verdict
    assert moved.best("logged", 512, 4) == nfd.fit_transfer(grid, guess=5.0).best("logged", 512, 4)
    assert not moved.notes
    shown = sentence(moved.of("logged"))
    assert "of its progress" in shown
    without = nfd.fit_transfer([*grid, *new_starts(cost)])  # from what loss progress counts is not known
    assert without.regret("logged").value == pytest.approx(regret.value, abs=0.02)
    assert without.verdict("logged") == "UNCERTAIN"
    assert "nan" not in sentence(without.of("logged"))


def test_starts_at_other_rates_or_from_seeds_of_the_grid_are_no_regret() -> None:
    grid = rates(0.5)
    mine = [row for row in new_starts(0.5) if row["seed"] < 14]
    far = nfd.fit_transfer([*grid, *new_starts(0.5, at=2.0**-12)], guess=5.0)
    own = nfd.fit_transfer([*grid, *(row | {"seed": row["seed"] % 4, "lr": 1.01 * row["lr"]} for row in mine)])
    assert math.isnan(far.regret("logged").value)
    assert math.isnan(own.regret("logged").value)
    assert any("12 runs of logged at width 512 and depth 4 were left out" in note for note in far.notes)


def test_the_runs_of_a_transfer_tell_what_it_told(tmp_path: Path) -> None:
    """Trained, exported as a table, and read again."""
    stream = torch.Generator().manual_seed(0)
    batches = [(torch.randn(8, 5, generator=stream), torch.randint(0, 3, (8,), generator=stream))] * 4
    whole = nfd.transfer(
        Residual, (8, 16), (2,), batches, rules=("mup", "complete-p"), lr=(0.001, 0.02, 0.4), out=tmp_path
    )
    assert main(["runs", str(tmp_path), "--out", str(tmp_path / "table")]) == 0
    again = nfd.fit_transfer(tmp_path / "table" / "runs.csv", columns={"loss": "train_loss"}, guess=math.log(3))
    for rule in ("mup", "complete-p"):
        assert again.best(rule, 16, 2) == whole.best(rule, 16, 2)
        assert again.regret(rule) == whole.regret(rule)
        assert again.verdict(rule) == whole.verdict(rule)


# Learning-rate curves of two attentions at width 1,024, losses at multiples of a rate, and the vertices that were
# published with them: github.com/marin-community/marin/issues/7381
MULTIPLES = (0.50, 0.75, 0.90, 1.00, 1.10, 1.25, 1.50)
MARIN = {
    "GQA": ((3.1928, 3.1554, 3.1490, 3.1485, 3.1526, 3.1558, 3.1671), 0.97),
    "MLA": ((3.1930, 3.1598, 3.1546, 3.1563, 3.1601, 3.1668, 3.1780), 0.92),
}
# Best rates at widths 128 to 2,048: github.com/NVIDIA/Megatron-LM/pull/3058
MEGATRON = {
    "standard": (9.77e-4, 4.88e-4, 2.44e-4, 1.22e-4, 6.10e-5),
    "mup": (9.77e-4, 9.77e-4, 9.77e-4, 9.77e-4, 1.95e-3),
}


def test_published_curves_have_their_published_vertices() -> None:
    rows = [
        {"rule": name, "width": 1024, "lr": rate, "loss": loss}
        for name, (losses, _) in MARIN.items()
        for rate, loss in zip(MULTIPLES, losses, strict=True)
    ]
    transfer = nfd.fit_transfer(rows)
    for name, (_, vertex) in MARIN.items():
        assert transfer.best(name, 1024, 1).value == pytest.approx(vertex, rel=0.04)  # by a parabola of all seven


def test_published_best_rates_drift_as_they_did() -> None:
    rows = [
        {"rule": name, "width": width, "lr": best * 2.0**k, "loss": 3 + 0.1 * k * k}
        for name, rates in MEGATRON.items()
        for width, best in zip((128, 256, 512, 1024, 2048), rates, strict=True)
        for k in range(-3, 4)
    ]
    transfer = nfd.fit_transfer(rows)
    assert transfer.drift("standard", "width").value == pytest.approx(-1, abs=0.01)
    assert transfer.drift("standard", "width").high < -0.9
    moved = transfer.drift("mup", "width")  # one grid step at the largest width alone
    assert moved.low < 0 < moved.high


# ---- capacity ------------------------------------------------------------------------------------------------


def sizes(seeds: int, noise: float = 0.01, power: float = 1.0, lengths: Sequence[float] = ()) -> Rows:
    """Losses ``0.7 + 8 / n^power + 0.5 / L``, with ``3 / sqrt(D)`` more where runs have lengths."""
    random = np.random.default_rng(1)
    return [
        {"width": n, "depth": L, "seed": 10_000 * n + 100 * L + s, "params": 12 * n * n * L + 100 * n}
        | ({"tokens": D} if lengths else {})
        | {"loss": 0.7 + 8 / n**power + 0.5 / L + (3 / math.sqrt(D) if lengths else 0.0) + noise * random.normal()}
        for n in (64, 128, 256, 512)
        for L in (4, 8, 16, 32)
        for D in lengths or (1.0,)
        for s in range(seeds)
    ]


def test_a_grid_with_seeds_has_the_law_of_size_with_its_floor() -> None:
    capacity = nfd.fit_capacity(sizes(4))
    assert isinstance(capacity.law, Law)
    assert capacity.law.good
    assert capacity.floor.low < 0.7 < capacity.floor.high
    assert capacity.at(1024, math.inf).low < 0.7 + 8 / 1024 < capacity.at(1024, math.inf).high
    assert capacity.held_out is not None
    assert capacity.held_out.size == (512, 32)
    assert capacity.held_out.inside
    assert capacity.shorter is not None
    assert capacity.trusted == {"width": 64, "depth": 4}
    best = capacity.best(parameters="1M")
    assert best.cost <= 10**6
    assert best.cost == 12 * best.width**2 * best.depth + 100 * best.width  # counted by the log's own counts
    with pytest.raises(ValueError, match="flops is not known: only parameters are"):
        capacity.best(flops="1T")
    with pytest.raises(ValueError, match="one budget"):
        capacity.best()
    with pytest.raises(ValueError, match="got tokens"):
        capacity.at(64, 4, tokens=5)
    rows = {row["quantity"] for row in capacity.table}
    assert rows == {"floor", "a", "b", "loss"}


def test_another_power_is_seen_and_not_extrapolated() -> None:
    capacity = nfd.fit_capacity(sizes(4, noise=1e-4, power=0.5))
    assert not capacity.law.good
    with pytest.raises(ValueError, match="may not be extrapolated"):
        capacity.at(4096, 64)
    one = nfd.fit_capacity(sizes(1, noise=1e-4, power=0.5))
    assert not one.law.good
    assert nfd.fit_capacity(sizes(1, noise=1e-4)).law.good


def test_one_seed_has_a_law_whose_intervals_come_from_its_misfit() -> None:
    capacity = nfd.fit_capacity(sizes(1))
    assert isinstance(capacity.law, PowerLaw)
    assert capacity.floor.low < 0.7 < capacity.floor.high
    assert capacity.law.p_value > 0.01
    assert capacity.held_out is not None
    assert capacity.held_out.inside
    assert capacity.best(parameters="1M").cost <= 10**6
    several = nfd.fit_capacity(sizes(4))
    assert capacity.floor.high - capacity.floor.low > 0.7 * (several.floor.high - several.floor.low)


def test_lengths_have_a_power_of_their_own() -> None:
    capacity = nfd.fit_capacity(sizes(1, noise=0.003, lengths=(100, 200, 400, 800)))
    assert capacity.law.variables == ("width", "depth", "tokens")
    beta = capacity.law.terms["beta"]
    assert beta.low < 0.5 < beta.high
    assert beta.high - beta.low < 0.3
    assert capacity.floor.low < 0.7 < capacity.floor.high
    longest = capacity.at(512, 32)  # without tokens, the most that were trained on
    assert longest.value == capacity.at(512, 32, tokens=800).value
    assert capacity.at(512, 32, tokens=math.inf).value < longest.value
    assert str(capacity).startswith("loss = floor + a / width + b / depth + c / tokens^beta")


def test_parameters_and_tokens_have_their_law_and_the_best_split_of_a_budget() -> None:
    random, alpha, beta, A, c = np.random.default_rng(0), 0.34, 0.28, 400.0, 400.0
    rows = [
        {"params": N, "tokens": D, "loss": 1.7 + A / N**alpha + c / D**beta + 0.005 * random.normal()}
        for N in 10.0 ** np.arange(6, 9.1, 0.75)
        for D in 10.0 ** np.arange(8, 10.6, 0.5)
    ]
    capacity = nfd.fit_capacity(rows)
    truths = {"floor": 1.7, "a": A, "alpha": alpha, "c": c, "beta": beta}
    assert set(capacity.law.terms) == set(truths)
    for name, value in truths.items():
        term = capacity.law.terms[name]
        assert term.low < value < term.high, name
    best = capacity.best(flops=1e21)
    N = (alpha * A / (beta * c)) ** (1 / (alpha + beta)) * (1e21 / 6) ** (beta / (alpha + beta))
    assert best.parameters.low < N < best.parameters.high
    assert 6 * best.parameters.value * best.tokens.value == pytest.approx(1e21, rel=1e-9)
    with pytest.raises(ValueError, match="give parameters as well"):
        capacity.at()
    with pytest.raises(ValueError, match="splits a budget of flops"):
        capacity.best(parameters="1M")


def test_small_sizes_that_break_the_law_are_left_out_and_told() -> None:
    random = np.random.default_rng(0)
    rows = [
        {"width": n, "seed": 100 * n + s, "loss": 2 + 8 / n + (1.0 if n == 64 else 0.0) + 0.01 * random.normal()}
        for n in (64, 128, 256, 512, 1024, 2048)
        for s in range(3)
    ]
    capacity = nfd.fit_capacity(rows)
    assert capacity.law.good
    assert capacity.trusted == {"width": 128}
    assert "Smaller sizes were left out" in capacity.law.note
    assert capacity.floor.low < 2 < capacity.floor.high
    assert nfd.fit_capacity([row for row in rows if row["width"] > 64]).law.note == ""
    late = [row | ({"loss": row["loss"] - 1} if row["width"] == 2048 else {}) for row in rows]
    broken = nfd.fit_capacity(late)
    assert not broken.law.good or broken.trusted["width"] > 128


def test_of_several_rates_the_best_of_each_size_or_a_given_one_counts() -> None:
    rows = sizes(2, noise=1e-4)
    best = [row | {"lr": 0.1 if row["width"] > 64 else 0.2} for row in rows]
    worse = [row | {"lr": lr, "loss": row["loss"] + 1} for row in rows for lr in (0.05, 0.4)]
    worse += [
        row | {"lr": round(0.3 - row["lr"], 1), "loss": math.nan if k % 2 else 0.1}  # one of two seeds diverged
        for k, row in enumerate(best)
    ]
    chosen = nfd.fit_capacity(best + worse, rate="best")
    assert chosen.losses == nfd.fit_capacity(best).losses
    assert any("0.1, 0.2 of 0.05, 0.1, 0.2, 0.4" in note for note in chosen.notes)
    assert not any("may lie beyond" in note for note in chosen.notes)
    for rate in (0.05, "0.05"):
        assert nfd.fit_capacity(best + worse, rate=rate).floor.value == pytest.approx(chosen.floor.value + 1, abs=0.01)
    coarse = nfd.fit_capacity([row | {"lr": 1.0} for row in rows] + worse, rate="best")
    assert any("At 16 of 16 sizes" in note for note in coarse.notes)


@pytest.mark.parametrize(
    ("rate", "message"), [(0.3, "The rates are 1, 2"), ("last", "or 'best'; got 'last'"), (-1, "greater than 0")]
)
def test_a_rate_that_no_run_has_is_refused(rate: Any, message: str) -> None:
    rows = [row | {"lr": k % 2 + 1} for k, row in enumerate(sizes(2))]
    with pytest.raises(ValueError, match=message):
        nfd.fit_capacity(rows, rate=rate)
    with pytest.raises(ValueError, match="which no column of the log holds"):
        nfd.fit_capacity(sizes(2), rate="best")


REFUSED: list[tuple[Rows, str]] = [
    ([{"width": 64, "loss": 1.0}] * 3, "none of them varies"),
    ([{"width": 32 * k, "depth": k, "loss": 1 + 1 / k} for k in range(1, 9)], "independently of each other"),
    ([row | {"lr": k % 2 + 1} for k, row in enumerate(sizes(2))], "differ in lr"),
    ([{"tokens": k, "loss": 1 + 1 / k} for k in (1, 2, 3)], "needs more sizes"),
]


@pytest.mark.parametrize(("rows", "message"), REFUSED)
def test_logs_without_a_law_are_refused(rows: Rows, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nfd.fit_capacity(rows)


def test_parameters_stand_for_a_width_and_a_depth_that_grow_together() -> None:
    rows = [{"width": 32 * k, "depth": k, "params": 10_000 * k**3, "loss": 1 + 2 / k**0.9} for k in range(1, 9)]
    assert nfd.fit_capacity(rows).law.variables == ("parameters",)


# Losses of a model of a billion parameters after 100 to 600 billion tokens: ArchScale (github.com/microsoft/ArchScale)
ARCHSCALE = {
    "standard": (2.0707, 2.0128, 1.9908, 1.9753, 1.9637, 1.9541),
    "muP++": (2.0514, 1.9995, 1.9737, 1.9583, 1.9475, 1.9395),
}


@pytest.mark.parametrize("name", ARCHSCALE)
def test_a_published_ladder_predicts_its_last_rung(name: str) -> None:
    rows = [{"tokens": 1e11 * k, "loss": loss} for k, loss in enumerate(ARCHSCALE[name], 1)]
    capacity = nfd.fit_capacity(rows)
    assert capacity.held_out is not None
    assert capacity.held_out.size == (6e11,)
    assert capacity.held_out.inside
    assert capacity.floor.high < ARCHSCALE[name][-1]
    assert capacity.law.terms["beta"].low > 0


def test_intervals_of_a_power_law_hold_the_truth() -> None:
    """About 95 of 100, of numbers, of a larger size and of new runs."""
    random = np.random.default_rng(0)
    held = dict.fromkeys(("floor", "power", "larger", "new"), 0)
    for _ in range(40):
        rows = [{"params": N, "loss": 2 + 8 * N**-0.4 + 0.01 * random.normal()} for N in 2.0 ** np.arange(6, 14)]
        law = nfd.fit_capacity(rows).law
        new = 2 + 8 * 2.0**-6 + 0.01 * random.normal()
        for name, interval, value in (
            ("floor", law.floor, 2),
            ("power", law.terms["alpha"], 0.4),
            ("larger", law.loss(2.0**16) if law.good else UNKNOWN, 2 + 8 * 2**-6.4),  # type: ignore[call-arg]
            ("new", law.network(2.0**15) if law.good else UNKNOWN, new),  # type: ignore[call-arg,arg-type]
        ):
            held[name] += not (interval.low > value or interval.high < value)
    assert all(count / 40 > 0.85 for count in held.values()), held


# ---- the commands --------------------------------------------------------------------------------------------


def test_the_commands_answer_from_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    renamed = [{"config/learning_rate" if name == "lr" else name: v for name, v in row.items()} for row in rates(0.5)]
    path = written(tmp_path / "rates.csv", renamed)
    assert main(["transfer", "--from", str(path), "--out", str(tmp_path / "t")]) == 0
    said = capsys.readouterr().out
    assert "lr from 'config/learning_rate'" in said
    content = json.loads((tmp_path / "t/result.json").read_text())
    assert content["rules"][0]["drift"]["width"]["low"] < 0.5 < content["rules"][0]["drift"]["width"]["high"]
    assert content["config"]["log"] == str(path)
    assert "recommendation" not in content
    for name in ("report.html", "transfer.csv", "width.png", "loss-logged.csv"):
        assert (tmp_path / "t" / name).stat().st_size > 100

    path = written(tmp_path / "sizes.csv", [{**row, "eval/loss": row.pop("loss")} for row in sizes(3)])
    assert main(["capacity", "--from", str(path), "--columns", "loss=eval/loss", "--out", str(tmp_path / "c")]) == 0
    assert "The law: loss =" in capsys.readouterr().out
    content = json.loads((tmp_path / "c/result.json").read_text())
    assert content["fit"]["floor"]["low"] < 0.7 < content["fit"]["floor"]["high"]
    assert content["held_out"]["inside"]


SHELL = [
    (["transfer", "--columns", "lr=rate"], "is about a log; none was given"),
    (["transfer", "--guess", "3"], "without --from"),
    (["transfer", "--from", "runs.csv", "--steps", "3"], "got steps=3, which would change nothing"),
    (["transfer", "--from", "runs.csv", "--workers", "3"], "got workers=3, which would change nothing"),
    (["capacity", "--from", "runs.csv", "--columns", "loss"], "takes field=column"),
    (["capacity", "--from", "none.csv"], "there is none at 'none.csv'"),
    (["capacity", "there", "--from", "runs.csv"], "got store='there', which would change nothing"),
]


@pytest.mark.parametrize(("arguments", "message"), SHELL)
def test_options_of_a_log_are_refused_where_they_change_nothing(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    written(Path("runs.csv"), rates(0.0))
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_our_own_runs_are_a_log(tmp_path: Path) -> None:
    with nfd.Sweep(tmp_path / "sweep") as sweep:
        sweep.run(nfd.grid(width=[8, 16], depth=2, seed=[0, 1], eta_c=[0.1, 0.2, 0.4], steps=2, batch=4))
    assert main(["runs", str(tmp_path / "sweep"), "--out", str(tmp_path)]) == 0
    with pytest.raises(ValueError, match="'train_loss', 'test_loss' may all be the loss"):
        nfd.fit_transfer(tmp_path / "runs.csv")
    transfer = nfd.fit_transfer(tmp_path / "runs.csv", columns={"loss": "test_loss"})
    cells = transfer.of("depth-mup").cells
    assert {size: tuple(cell.losses.shape) for size, cell in cells.items()} == {(8, 2): (2, 3), (16, 2): (2, 3)}
    assert torch.allclose(cells[8, 2].log2_eta, torch.tensor([0.1, 0.2, 0.4], dtype=torch.float64).log2())


def test_a_setting_that_varies_and_is_not_read_is_said() -> None:
    """As seeds, runs of two decays would make an interval of what is no noise."""
    places = [(width, 2.0**k, seed) for width in (32, 64) for k in range(-3, 3) for seed in (0, 1)]
    alike = [{"width": n, "lr": lr, "seed": s, "loss": 1 + math.log2(lr) ** 2 / 20 + s / 99} for n, lr, s in places]
    mixed = [{**row, "config/weight_decay": 0.1 * row["seed"]} for row in alike]
    (note,) = {*nfd.fit_transfer(mixed).notes} - {*nfd.fit_transfer(alike).notes}
    assert "'config/weight_decay' varies but is not read" in note
    constant = [{**row, "config/weight_decay": 0.1} for row in alike]
    assert nfd.fit_transfer(constant).notes == nfd.fit_transfer(alike).notes


def test_losses_that_obey_a_law_of_width_exactly_are_answered() -> None:
    """Nothing is left that could tell another power."""
    rows = [{"width": n, "lr": 0.1, "seed": 0, "loss": 2 + 8 / n} for n in (32, 64, 128, 256, 512)]
    assert nfd.fit_capacity(rows).law.floor.value == pytest.approx(2)
