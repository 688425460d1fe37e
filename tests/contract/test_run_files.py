"""Files of runs as people have them: which forms are read, and what is asked of the others."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.contract.common import run

import nfd

Rows = list[dict[str, Any]]


def loss_of(N: float, D: float) -> float:
    return float(1.7 + 110 / N**0.27 + 370 / D**0.28)


RUNS: Rows = [
    {"n_params": N, "tokens": D, "val_loss": loss_of(N, D)}
    for N in (1e8, 2e8, 4e8)
    for D in (2e9, 8e9)
]


def size(index: int) -> str:
    return f"run {index}"


def curve(loss: float) -> Rows:
    return [{"step": k, "val_loss": loss + 9 / k} for k in (10, 100)] + [
        {"step": 1000, "val_loss": loss}
    ]


def without_loss(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "val_loss"}


def columns(rows: Rows) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


# What a file holds, from the runs.
FORMS: dict[str, Callable[[Rows], Any]] = {
    "a list": lambda rows: rows,
    "runs by name": lambda rows: {size(k): row for k, row in enumerate(rows)},
    "runs beside a dict of settings": lambda rows: {
        "meta": {"seed": 0, "budgets": [1e18, 3e18]},
        "n_runs": len(rows),
        "results": rows,
    },
    "runs by name, two levels down": lambda rows: {
        "meta": {"seed": 0},
        "sweep": {"cells": {size(k): row for k, row in enumerate(rows)}},
    },
    "settings and results apart": lambda rows: [
        {
            "config": {"model": {"n_params": row["n_params"]}, "tokens": row["tokens"]},
            "summary": {"val_loss": row["val_loss"]},
        }
        for row in rows
    ],
    "a dict of columns": columns,
    "a frame of pandas, by columns": lambda rows: {
        name: {str(k): value for k, value in enumerate(values)}
        for name, values in columns(rows).items()
    },
    "a frame of pandas, split": lambda rows: {
        "columns": list(rows[0]),
        "index": list(range(len(rows))),
        "data": [list(row.values()) for row in rows],
    },
    "curves beside final losses": lambda rows: {
        size(k): row | {"log": curve(9.0), "train_losses": [[10, 9.0], [20, 8.0]]}
        for k, row in enumerate(rows)
    },
    "curves alone": lambda rows: [
        without_loss(row) | {"name": size(k), "history": curve(row["val_loss"])}
        for k, row in enumerate(rows)
    ],
    "curves of pairs": lambda rows: [
        without_loss(row) | {"val_losses": [[10, 9.0], [20, row["val_loss"]]]} for row in rows
    ],
    "curves of numbers": lambda rows: [
        without_loss(row) | {"val_loss": [9.0, 4.0, row["val_loss"]]} for row in rows
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_a_json_file_is_read_in_the_forms_that_people_write(form: str, tmp_path: Path) -> None:
    held = FORMS[form](RUNS)
    (tmp_path / "runs.json").write_text(json.dumps(held))
    losses = nfd.fit_ladder(tmp_path / "runs.json").losses
    assert losses == nfd.fit_ladder(RUNS).losses
    assert nfd.fit_ladder(held).losses == losses


def test_json_lines_gzip_and_parquet_are_read(tmp_path: Path) -> None:
    lines = "\n".join(map(json.dumps, RUNS)) + "\n\n"
    (tmp_path / "runs.jsonl").write_text(lines)
    (tmp_path / "runs.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    meant = nfd.fit_ladder(RUNS).losses
    for name in ("runs.jsonl", "runs.jsonl.gz"):
        assert nfd.fit_ladder(tmp_path / name).losses == meant
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.Table.from_pylist(RUNS)
    parquet.write_table(table, tmp_path / "runs.parquet")
    assert nfd.fit_ladder(tmp_path / "runs.parquet").losses == meant
    assert nfd.fit_ladder(table).losses == meant


class Polars:
    """What a DataFrame of polars has of a table."""

    columns = tuple(RUNS[0])

    def to_dicts(self) -> Rows:
        return RUNS


def test_frames_are_read_also_with_the_runs_in_their_index() -> None:
    meant = nfd.fit_ladder(RUNS).losses
    assert nfd.fit_ladder(Polars()).losses == meant
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(RUNS)
    assert nfd.fit_ladder(frame).losses == meant
    assert nfd.fit_ladder(frame.set_index(["n_params", "tokens"])).losses == meant


def test_lists_of_rates_and_losses_in_a_run_are_its_sweep() -> None:
    sweeps: Rows = [
        {"width": n, "lrs": [2.0**k for k in range(-12, -5)]}
        | {"losses": [3 + 8 / n + 0.05 * (k + 9) ** 2 for k in range(-12, -5)]}
        for n in (64, 128, 256)
    ]
    rows = [
        {"width": sweep["width"], "lr": rate, "loss": loss}
        for sweep in sweeps
        for rate, loss in zip(sweep["lrs"], sweep["losses"], strict=True)
    ]
    read = nfd.fit_transfer(sweeps).best("logged", 256, 1)
    assert read.value == nfd.fit_transfer(rows).best("logged", 256, 1).value


ONE = json.dumps(RUNS[0])
REFUSED: list[tuple[str, str]] = [
    ('{"runs": [1, 2', "must be JSON; it cannot be read"),
    (f"{ONE}\n{{broken\n{ONE}", "line 2 of .* must be a JSON object as the others"),
    ("[1, 2, 3]", "rows must be dicts, one for each run; got int among them"),
    ('{"alpha": 0.3, "fits": {"a": 1, "b": 2}}', "no runs with a loss.*'alpha', 'fits'.*columns="),
    (
        json.dumps({"sp": RUNS, "mup": RUNS[:4]}),
        r"several tables of runs: 'sp' \(6 runs\), 'mup' \(4 runs\).*--columns table=sp",
    ),
    ("[]", "the log has no rows"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_a_broken_or_ambiguous_file_is_a_question(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "runs.json").write_text(text)
    with pytest.raises((ValueError, TypeError), match=message):
        nfd.fit_ladder(tmp_path / "runs.json")


def test_one_of_several_tables_is_chosen_by_its_name(tmp_path: Path) -> None:
    held = {"sp": RUNS, "mup": [row | {"val_loss": row["val_loss"] + 1} for row in RUNS]}
    (tmp_path / "runs.json").write_text(json.dumps(held))
    law = nfd.fit_ladder(tmp_path / "runs.json", columns={"table": "mup"})
    assert law.losses == nfd.fit_ladder(held["mup"]).losses
    with pytest.raises(ValueError, match=r"table 'mip', but the tables .* are 'sp', 'mup'"):
        nfd.fit_ladder(held, columns={"table": "mip"})


def test_a_broken_parquet_file_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "runs.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match="must be a parquet file"):
        nfd.fit_ladder(tmp_path / "runs.parquet")


def test_a_compressed_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress("\n".join(map(json.dumps, RUNS)).encode())
    (tmp_path / "runs.jsonl.gz").write_bytes(whole[:-20])
    with pytest.raises(ValueError, match="damaged or cut off"):
        nfd.fit_ladder(tmp_path / "runs.jsonl.gz")


@pytest.mark.slow
def test_the_shell_reads_json_and_names_a_table(tmp_path: Path) -> None:
    held = {"sp": RUNS, "mup": RUNS}
    (tmp_path / "runs.json").write_text(json.dumps(held))
    done = run("scaling-law", "--from", "runs.json", folder=tmp_path)
    assert done.returncode == 2
    assert "--columns table=sp" in done.stderr
    words = ("--columns", "table=mup", "--out", "out")
    done = run("scaling-law", "--from", "runs.json", *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "FORECAST USABLE" in done.stdout or "NOT DECIDED" in done.stdout


# ---- compute


@pytest.mark.parametrize("name", ["flops", "compute", "C", "compute_budget", "total_flops"])
def test_compute_gives_the_tokens_that_no_column_has(name: str) -> None:
    rows = [without(row, "tokens") | {name: 6 * row["n_params"] * row["tokens"]} for row in RUNS]
    law = nfd.fit_ladder(rows)
    expected = [(row["n_params"], pytest.approx(row["tokens"])) for row in RUNS]
    assert sorted(law.losses) == sorted(expected, key=lambda size: (size[0], size[1].expected))
    assert any("tokens: they are compute over 6 parameters" in note for note in law.notes)
    # Beside both it is not needed, and nothing is said of it.
    both = nfd.fit_ladder([row | {name: 1e18} for row in RUNS])
    assert both.losses == nfd.fit_ladder(RUNS).losses
    assert not both.notes


def without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


def test_compute_alone_has_a_law_which_is_asked_in_flops(tmp_path: Path) -> None:
    def reached(C: float) -> float:
        return float(1.7 + 2900 / C**0.17)

    law = nfd.fit_ladder([{"C": C, "loss": reached(C)} for C in (1e18, 3e18, 1e19, 3e19, 1e20)])
    assert law.variables == ("flops",)
    forecast = law.at(flops=1e21)
    assert forecast.low < reached(1e21) < forecast.high
    assert "1e21 flops reach a loss of" in str(law)
    with pytest.raises(ValueError, match="the law is in flops; got parameters"):
        law.at(parameters=1e9)


# ---- what the losses are


def test_losses_in_bits_and_error_rates_are_called_so() -> None:
    def named(name: str, scale: float = 1.0) -> nfd.LadderLaw:
        rows = [without_loss(row) | {name: scale * row["val_loss"]} for row in RUNS]
        return nfd.fit_ladder(rows)

    bits = named("val_bpb", 0.3)
    assert any("'val_bpb' is in bits per byte" in note for note in bits.notes)
    assert "bits per byte" in bits.answer.title
    error = named("test_error", 0.1)
    assert any("'test_error' is an error rate" in note for note in error.notes)
    assert "an error rate of" in error.answer.title
    plain = named("val_loss")
    assert not plain.notes
    assert "a loss of" in plain.answer.title


def test_a_loss_is_read_before_an_error_rate_and_perplexity_and_accuracy_are_no_losses() -> None:
    both = nfd.fit_ladder([row | {"val_err": 0.5} for row in RUNS])
    assert both.score == "val_loss"
    for name, advice in (
        ("val_ppl", "is a perplexity: the loss is its logarithm"),
        ("val_acc", "is an accuracy, which rises"),
    ):
        rows = [without_loss(row) | {name: row["val_loss"]} for row in RUNS]
        with pytest.raises(ValueError, match=advice):
            nfd.fit_ladder(rows)


def test_an_accuracy_that_is_named_as_the_loss_is_refused_and_an_error_rate_is_not() -> None:
    swept = [
        {"width": n, "lr": lr, "accuracy": 0.9 - (math.log2(lr) + 8) ** 2 / 50}
        for n in (64, 128)
        for lr in (2**-9, 2**-8, 2**-7)
    ]
    with pytest.raises(ValueError, match="'accuracy' is an accuracy, which rises"):
        nfd.fit_transfer(swept, columns={"loss": "accuracy"})
    errors = [row | {"1 - acc (error)": 1 - row["accuracy"]} for row in swept]
    fitted = nfd.fit_transfer(errors, columns={"loss": "1 - acc (error)"})
    assert fitted.score == "1 - acc (error)"


def test_the_only_column_that_ends_as_a_loss_is_it_and_of_two_one_is_asked_for() -> None:
    one = [without_loss(row) | {"C4 Eval Loss": row["val_loss"]} for row in RUNS]
    assert nfd.fit_ladder(one).score == "C4 Eval Loss"
    two = [row | {"Wiki Eval Loss": 3.0, "aux_loss": 0.1} for row in one]
    with pytest.raises(ValueError, match="It may be 'C4 Eval Loss', 'Wiki Eval Loss'"):
        nfd.fit_ladder(two)


def test_rows_that_do_not_count_are_counted_in_the_short_answer() -> None:
    whole = nfd.fit_ladder(RUNS)
    assert "Left out" not in whole.answer.because
    law = nfd.fit_ladder([*RUNS, without_loss(RUNS[0])])
    assert law.answer.because == f"{whole.answer.because} Left out: 1 row without loss."
    assert "Left out: 1 row without loss." in law.notes

    by_shape = [
        {"width": n, "depth": L, "loss": 1 + 4 / n + 1 / L} for n in (64, 128, 256) for L in (4, 8)
    ]
    aborted = {"width": 512, "depth": 8, "loss": None}
    assert "Left out" not in nfd.fit_scaling_law(by_shape).answer.because
    of_shape = nfd.fit_scaling_law([*by_shape, aborted])
    assert of_shape.answer.because.endswith("Left out: 1 row without loss.")


def test_runs_whose_seed_lacks_a_rate_are_counted_in_the_short_answer() -> None:
    swept = [
        {"width": n, "lr": lr, "seed": seed, "loss": 1 + (math.log2(lr) + 8) ** 2 / 50 + seed / 1e3}
        for n in (64, 128)
        for lr in (2**-9, 2**-8, 2**-7)
        for seed in range(3)
    ]
    assert "Left out" not in nfd.fit_transfer(swept).answer.because
    fewer = nfd.fit_transfer(swept[:-1]).answer.because
    assert fewer.endswith("Left out: 2 runs whose seeds lack some rates, at 128 wide.")
    named = [row | {"rule": "mup"} for row in swept[:-1]]
    assert "Left out: 2 runs of mup whose" in nfd.fit_transfer(named).answer.because


@pytest.mark.parametrize("form", ["csv", "json"])
@pytest.mark.parametrize(("mark", "is_refused"), [(",", True), (".", False)])
def test_a_point_under_a_unit_is_refused_where_commas_stand_before_decimals(
    tmp_path: Path, mark: str, is_refused: bool, form: str
) -> None:
    """2.000 million are 2 where losses are 2.35, and may be 2,000 where they are 2,35."""
    rows: Rows = []
    for row in RUNS:
        loss = f"{row['val_loss']:.6f}".replace(".", mark)
        tokens_in_millions = f"{row['tokens'] / 1e6:.0f}"
        rows.append(
            {"n_params": row["n_params"], "tokens (M)": tokens_in_millions, "val_loss": loss}
        )
    path = tmp_path / f"runs.{form}"

    def write(table: Rows) -> None:
        lines = [";".join(table[0]), *(";".join(map(str, row.values())) for row in table)]
        path.write_text("\n".join(lines) if form == "csv" else json.dumps(table))

    write(rows)
    whole = nfd.fit_ladder(path)
    assert {tokens for _, tokens in whole.losses} == {row["tokens"] for row in RUNS}

    write([*rows, rows[0] | {"tokens (M)": "2.000"}])
    if is_refused:
        with pytest.raises(ValueError, match=r"'2\.000', and other numbers have decimal commas"):
            nfd.fit_ladder(path)
    else:
        assert 2e6 in {tokens for _, tokens in nfd.fit_ladder(path).losses}


def test_sizes_of_two_architectures_are_said_to_count_as_one_kind() -> None:
    mixed = [
        row | {"arch": arch, "n_params": factor * row["n_params"]}
        for arch, factor in (("lstm", 1.3), ("transformer", 1.0))
        for row in RUNS
    ]
    (note,) = nfd.fit_ladder(mixed).notes
    assert "Rows of 'lstm', 'transformer' ('arch') are taken for one kind" in note
    named = [row | {"preset": f"{row['n_params']:g}"} for row in RUNS]
    assert not nfd.fit_ladder(named).notes


def test_small_and_large_networks_on_other_data_are_said_to_count_as_one_kind() -> None:
    """Two sizes each are enough: a drift of the rate would be that of the data."""
    rows: Rows = [
        {"width": n, "lr": 2.0**k, "loss": 2 + 8 / n + 0.05 * (k + 10) ** 2}
        for n in (64, 128, 256, 512)
        for k in range(-14, -5)
    ]
    parted = [row | {"dataset": "web" if row["width"] < 200 else "books"} for row in rows]
    (note,) = nfd.fit_transfer(parted).notes
    assert "Rows of 'books', 'web' ('dataset') are taken for one kind" in note
    named = [row | {"preset": f"w{row['width']}"} for row in rows]
    assert not nfd.fit_transfer(named).notes


def test_rows_of_a_generator_are_read_as_those_of_a_list() -> None:
    rows: Rows = [
        {"width": n, "lr": 2.0**k, "loss": 2 + 8 / n + 0.05 * (k + 10) ** 2}
        for n in (64, 128)
        for k in range(-14, -5)
    ]
    assert str(nfd.fit_transfer(row for row in rows)) == str(nfd.fit_transfer(rows))
    with pytest.raises(ValueError, match="the log has no rows"):
        nfd.fit_transfer(row for row in rows[:0])


# ---- losses that rise with size


def sized(pairs: Sequence[tuple[float, float]], name: str = "val_loss") -> Rows:
    return [{"params": N, name: loss} for N, loss in pairs]


def test_losses_that_rise_are_told_from_accuracies_and_sent_to_where_they_belong() -> None:
    untuned = [(1.3e6, 0.60), (3.5e6, 0.50), (1.2e7, 0.51), (3.4e7, 1.74), (8.8e7, 2.39)]
    too_high = r"rate is too high for larger.*fit_transfer.*nfd check"
    with pytest.raises(ValueError, match=too_high) as raised:
        nfd.fit_ladder(sized(untuned))
    # The sizes at which the losses rise, and not those at which they fall
    assert "(12M, 34M and 88M parameters)" in str(raised.value)
    profile = [(1e7, 3.3), (3e7, 3.1), (1e8, 3.05), (3e8, 3.2), (1e9, 3.6)]
    with pytest.raises(ValueError, match="isoFLOP profile: add a column of flops"):
        nfd.fit_ladder(sized(profile))
    accuracies = [(1e7, 0.31), (3e7, 0.42), (1e8, 0.55), (3e8, 0.61)]
    with pytest.raises(ValueError, match=r"looks like an accuracy.*error rate"):
        nfd.fit_ladder(sized(accuracies))
    with pytest.raises(ValueError, match=r"is an accuracy.*error rate"):
        nfd.fit_ladder(sized(accuracies, "accuracy"), columns={"loss": "accuracy"})
    falling = [(N, 1.7 + 110 / N**0.27) for N in (1e7, 3e7, 1e8, 3e8)]
    assert nfd.fit_ladder(sized(falling)).score == "val_loss"


def test_runs_of_one_budget_are_fitted_whatever_side_of_the_best_size_they_lie_on() -> None:
    """Their losses do not follow compute, which is the same: that says nothing of accuracies."""
    for C in (1e19, 1e19 * (1 + 1e-9)):
        rows = [
            {"params": N, "flops": C * (1 + 1e-6 * k), "loss": loss_of(N, C / 6 / N)}
            for k, N in enumerate((2e8, 4e8, 8e8, 1.6e9, 3.2e9))
        ]
        law = nfd.fit_ladder(rows)
        assert math.isfinite(law.at(parameters=4e8, tokens=C / 6 / 4e8).value)


def test_two_budgets_are_fitted_where_losses_differ_more_within_one_than_between() -> None:
    """The dearer budget has the larger networks on few tokens, and the higher losses."""
    profiles = ((1e16, (2e7, 4e7, 8e7, 1.6e8)), (2e16, (4e7, 8e7, 3.2e8, 6.4e8, 1.3e9)))
    rows = [
        {"params": N, "tokens": C / 6 / N, "loss": loss_of(N, C / 6 / N)}
        for C, sizes in profiles
        for N in sizes
    ]
    costs = [6 * row["params"] * row["tokens"] for row in rows]
    assert np.corrcoef(np.log(costs), [row["loss"] for row in rows])[0, 1] > 0
    assert math.isfinite(nfd.fit_ladder(rows).at(parameters=1e8, tokens=1e9).value)
    # Where losses rise from a size to one that is larger in both, larger networks train worse.
    worse = [
        {"params": N, "tokens": r * N, "loss": 3 + 0.1 * math.log(N / 1e7)}
        for N in (1e7, 2e7, 4e7, 8e7)
        for r in (10, 20)
    ]
    with pytest.raises(ValueError, match="larger networks train worse"):
        nfd.fit_ladder(worse)


def test_distinct_tokens_are_read_and_must_be_above_zero() -> None:
    rows = [row | {"unique_tokens": row["tokens"] / 2} for row in RUNS]
    assert "unique_tokens from 'unique_tokens'" in nfd.fit_ladder(rows).about
    with pytest.raises(ValueError, match="'unique_tokens' must hold numbers above 0; row 1 has 0"):
        nfd.fit_ladder([row | {"unique_tokens": 0} for row in RUNS])
