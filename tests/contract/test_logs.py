"""Answers from logs: which rows are runs, best rates and laws that are known, published tables, and
the commands.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.contract.common import run

import nfd

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
        self.rows = rows
        self.columns = list(rows[0])

    def to_dict(self, form: str) -> Rows:
        assert form == "records"
        return self.rows


# ---- rows


def rates(drift: float, seeds: int = 4, scatter: float = 0.1, scale: float = 1.0) -> Rows:
    """Losses that are parabolas around ``2^(-10 + drift log2(width / 64))``, with another place for
    every seed.
    """
    random = np.random.default_rng(0)
    places = scatter * random.normal(size=(4, seeds))
    return [
        {"width": n, "depth": 4, "lr": 2.0**k, "seed": s}
        | {
            "loss": scale
            * (3 + 0.05 * (k + 10 - drift * j + places[j, s]) ** 2 + 0.002 * random.normal())
        }
        for j, n in enumerate((64, 128, 256, 512))
        for s in range(seeds)
        for k in range(-14, -4)
    ]


PLAIN = rates(0.0, seeds=2)
DRESSES: dict[str, Callable[[Rows], Any]] = {
    "W&B's API": lambda rows: [
        {
            "name": str(k),
            "config": {
                "n_embd": r["width"],
                "optim": {"lr": r["lr"]},
                "seed": r["seed"],
                "depth": 4,
            },
        }
        | {"summary": {"loss": r["loss"], "_step": 99}}
        for k, r in enumerate(rows)
    ],
    "prefixes": lambda rows: [
        {
            "config/d_model": r["width"],
            "config.learning_rate": r["lr"],
            "hparams/seed": r["seed"],
            "loss": r["loss"],
        }
        | {"config/n_layer": 4}
        for r in rows
    ],
    "a frame": lambda rows: Frame(
        [{name: float(value) for name, value in row.items()} for row in rows]
    ),
    "texts": lambda rows: [{name: f" {value} " for name, value in row.items()} for row in rows],
    "steps": lambda rows: [
        r | {"_step": step, "loss": r["loss"] + (9 - step)} for step in (0, 9, 4) for r in rows
    ],
    "scalars": lambda rows: [
        {
            "run": f"width={r['width']},depth=4,lr={r['lr']},seed={r['seed']}",
            "tag": "loss",
            "step": k,
            "value": value,
        }
        for r in rows
        for k, value in ((0, 9.0), (7, r["loss"]), (3, 8.0))
    ],
}


@pytest.mark.parametrize("dress", DRESSES)
def test_columns_are_known_by_their_usual_names(dress: str) -> None:
    given = DRESSES[dress](PLAIN)
    assert nfd.fit_transfer(given).best("logged", 512, 4) == nfd.fit_transfer(PLAIN).best(
        "logged", 512, 4
    )


def test_runs_that_did_not_end_are_left_out_and_those_that_diverged_count() -> None:
    states = {2.0**-6: "crashed", 2.0**-5: "diverged"}
    rows = [row | {"state": states.get(row["lr"], "finished")} for row in PLAIN]
    transfer = nfd.fit_transfer(rows)
    losses = transfer.of("logged").cells[512, 4].losses
    assert losses.shape == (2, 9)
    assert np.isinf(losses[:, -1]).all()
    assert any("crashed" in note for note in transfer.notes)


def test_steps_without_a_loss_are_told_from_divergence() -> None:
    """A frame has not-a-number for both: gaps stand between losses, and where other runs have none
    either.
    """

    def history(row: dict[str, Any], losses: Sequence[float]) -> Rows:
        cells = {4 * k: loss for k, loss in enumerate(losses)}
        return [
            row | {"_step": step, "loss": cells.get(step, math.nan)}
            for step in range(4 * len(losses))
        ]

    ends = {2.0**-5: (4.0, 3.5, math.nan)}
    table = [
        cells
        for row in PLAIN
        for cells in history(row, ends.get(row["lr"], (4.0, 3.5, row["loss"])))
    ]
    losses = nfd.fit_transfer(Frame(table)).of("logged").cells[512, 4].losses
    assert np.isinf(losses).sum(1).tolist() == [1, 1]
    assert np.isinf(losses[:, -1]).all()


ONE = PLAIN[0]
BAD: list[tuple[Any, Any, type[Exception], str]] = [
    (3, None, TypeError, "dicts, or a DataFrame, or the path of a CSV"),
    ("no such file.csv", None, OSError, "there is none at 'no such file.csv'"),
    (
        [{"width": 1, "loss": 2.0}],
        None,
        ValueError,
        r"known to be the lr. Name it: .*The columns are 'width', 'loss'",
    ),
    (
        [{"lr": 1, "train_loss": 2.0, "val_loss": 3.0}],
        None,
        ValueError,
        "'train_loss', 'val_loss' may all be the loss",
    ),
    (PLAIN, {"lr": "rate"}, ValueError, "'rate' for the lr, but the log has no such column"),
    ([ONE | {"lr": "high"}], None, ValueError, "column 'lr' must hold numbers; row 1 has 'high'"),
    ([{"lr": 0.1, "loss": 1.0}], None, ValueError, "must say the width or the depth"),
    ([*PLAIN, ONE | {"loss": 9.0}], None, ValueError, "they differ in something else"),
    ([*PLAIN, ONE], None, ValueError, "1 copy of rows, such as row 81, which is row 1"),
    (
        [row | {"steps": steps} for row in PLAIN for steps in (100, 200)],
        None,
        ValueError,
        "several lengths",
    ),
]


@pytest.mark.parametrize(("rows", "columns", "error", "message"), BAD)
def test_malformed_tables_are_refused_by_name(
    rows: Any, columns: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        nfd.fit_transfer(rows, columns=columns)


def test_a_setting_that_varies_and_is_not_read_is_said() -> None:
    """As seeds, runs of two decays would make an interval of what is no noise."""
    mixed, constant = (
        [row | {"config/weight_decay": f * row["seed"] + 0.1} for row in PLAIN] for f in (0.1, 0.0)
    )
    (note,) = {*nfd.fit_transfer(mixed).notes} - {*nfd.fit_transfer(PLAIN).notes}
    assert "'config/weight_decay' varies but is not read" in note
    assert nfd.fit_transfer(constant).notes == nfd.fit_transfer(PLAIN).notes


def test_rows_that_differ_in_words_alone_are_said_to_count_as_equal() -> None:
    """As seeds, the losses of two optimizers, architectures or data sets would be averaged without
    a word.
    """
    runs = [{"params": N, "tokens": 20 * N, "loss": 2 + 100 / N**0.3} for N in (1e7, 3e7, 1e8, 3e8)]
    mixed, apart = (
        [run | {"Model": f"{k} layers", "host": f"node{i}"} for i, run in enumerate(runs)]
        for k in (6, 28)
    )
    (note,) = {*nfd.fit_ladder([*mixed, *apart]).notes} - {*nfd.fit_ladder(runs).notes}
    assert "differ in 'Model'" in note
    assert nfd.fit_ladder(mixed).notes == nfd.fit_ladder(runs).notes


def test_histories_of_several_runs_that_no_column_tells_apart_are_refused() -> None:
    """The last row of one of them would stand for all."""
    sizes = (1e7, 3e7, 1e8, 3e8)
    rows = [
        {
            "params": N,
            "step": step,
            "job": f"{kind}-{N:g}",
            "loss": 2 + kind / 9 + 100 / N**0.3 + 9 / step,
        }
        for N in sizes
        for kind in (1, 2)
        for step in (10, 20, 30)
    ]
    with pytest.raises(ValueError, match=r"several losses at one step.*columns=\{'run'"):
        nfd.fit_ladder(rows)
    law = nfd.fit_ladder(rows, columns={"run": "job"})
    assert {len(own) for own in law.losses.values()} == {2}
    assert len(nfd.fit_ladder([row for row in rows if row["job"][0] == "1"]).losses) == len(sizes)


# ---- tables as people have them

BATCH = 2**19
LENGTH = 2048
SWEPT: Rows = [
    {
        "parameters": N,
        "tokens": steps * BATCH,
        "batch": BATCH,
        "lr": k * 1e-3,
        "loss": 3 + math.log(k / best) ** 2 / 50,
    }
    for N, best in ((125_000_000, 4), (350_000_000, 3))
    for steps in (4000, 16000)
    for k in (1, 2, 4, 8)
]


def german(x: float) -> str:
    return str(x).replace(".", ",")


# what is between fields, and a row
TABLES: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "W&B's runs": (
        ",",
        lambda r: (
            {
                "Name": f"run {r}",
                "State": "finished",
                "config.model.n_params": r["parameters"],
                "Tags": "",
            }
            | {
                "config.data.train_tokens": r["tokens"],
                "config.batch_tokens": BATCH,
                "config.lr": r["lr"],
            }
            | {"summary.lr": 0, "summary.val/loss": r["loss"]}
        ),
    ),
    "words, semicolons and decimal commas": (
        ";",
        lambda r: (
            {
                "Number of parameters": f"{german(r['parameters'] / 1e9)} B",
                "Training tokens": f"{r['tokens']:,}",
            }
            | {"Batch size (tokens)": "2^19", "Peak learning rate": german(r["lr"])}
            | {"final val loss (nats/token)": german(r["loss"])}
        ),
    ),
    "tabs, a mark of order and thousands": (
        "\t",
        lambda r: (
            {
                "\ufeffparams": f"{r['parameters'] // 10**6}M",
                "D": f"{r['tokens']:,}".replace(",", " "),
            }
            | {
                "batch": f"{BATCH:,}",
                "max_lr": f"{r['lr'] * 1e3:g} x 10^-3",
                "Validation loss": r["loss"],
            }
        ),
    ),
    "units in names": (
        ",",
        lambda r: (
            {"Parameters (M)": r["parameters"] / 1e6, "tokens_B": r["tokens"] / 1e9, "lr": r["lr"]}
            | {"tokens per batch [K]": BATCH / 1e3, "loss": r["loss"]}
        ),
    ),
    "letters, with and without embeddings": (
        ",",
        lambda r: (
            {
                "N": r["parameters"],
                "N_noemb": r["parameters"] // 2,
                "D": r["tokens"],
                "batch_tokens": BATCH,
            }
            | {"lr": r["lr"], "width": "", "loss": r["loss"]}
        ),
    ),
    "without embeddings": (
        ",",
        lambda r: (
            {
                "non_embedding_params": r["parameters"],
                "tokens": r["tokens"],
                "batch": BATCH,
                "lr": r["lr"],
            }
            | {"loss": r["loss"]}
        ),
    ),
    "steps of a batch": (
        ",",
        lambda r: (
            {"n_params": r["parameters"], "max_steps": r["tokens"] // BATCH, "batch_tokens": BATCH}
            | {"lr": r["lr"], "loss": r["loss"]}
        ),
    ),
    "steps of sequences": (
        ",",
        lambda r: (
            {
                "n_params": r["parameters"],
                "max_iters": r["tokens"] // BATCH,
                "lr": r["lr"],
                "loss": r["loss"],
            }
            | {
                "seq_len": LENGTH,
                "global_batch_size": BATCH // LENGTH,
                "gradient_accumulation_steps": 4,
            }
        ),
    ),
}
COUNTED = {
    "letters, with and without embeddings": "those of 'N', not 'N_noemb': ask",
    "without embeddings": "counted without embeddings ('non_embedding_params'): ask",
}


def read_as(kind: str, path: Path, encoding: str = "utf-8") -> nfd.RateLaw:
    between, dress = TABLES[kind]
    rows = [dress(row) for row in SWEPT]
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=between)
        writer.writeheader()
        writer.writerows(rows)
    return nfd.fit_rate_law(path)


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_is_read_as_it_was_exported(kind: str, tmp_path: Path) -> None:
    read = read_as(kind, tmp_path / "runs.csv")
    size = {"parameters": 7e9, "tokens": 1e11, "batch": 1e6}
    meant = nfd.fit_rate_law(SWEPT).at(**size)
    assert read.at(**size).rate.value == pytest.approx(meant.rate.value, rel=1e-6)
    assert read.at(**size).rate.high == pytest.approx(meant.rate.high, rel=1e-6)
    assert ("embeddings" in read.about or "noemb" in read.about) == (kind in COUNTED)
    assert COUNTED.get(kind, "") in read.about
    assert not read.notes


def test_a_table_of_excel_in_utf_16_and_a_chart_of_wandb_are_read(tmp_path: Path) -> None:
    """The chart has a column for each run, whose name says its settings, beside its least and
    most.
    """
    meant = nfd.fit_rate_law(SWEPT)
    assert str(read_as("units in names", tmp_path / "runs.csv", "utf-16")) == str(meant)
    runs = {
        f"N={r['parameters']}_D={r['tokens']},batch=2^19,lr={r['lr']:g} - val/loss": r["loss"]
        for r in SWEPT
    }
    chart: Rows = [
        {"Step": step}
        | {
            name + end: text
            for name, loss in runs.items()
            for end in ("", "__MIN", "__MAX")
            for text in ["" if step > 300 else loss + (300 - step)]
        }
        for step in (100, 300, 200, 400)
    ]
    assert str(nfd.fit_rate_law(written(tmp_path / "chart.csv", chart))) == str(meant)


QUESTIONS = [  # where a guess may be wrong
    (
        "params,n_parameters,loss\n7,8,1",
        r"'n_parameters', 'params' may all be the parameters.*--columns parameters=",
    ),
    ("params,tokens,train_loss,eval/loss\n7,8,1,2", "may all be the loss, and differ"),
    ("params,tokens,loss,loss\n7,8,1,2", "several columns 'loss'"),
    ("width,tokens,loss\n65.536,8,1", "'65.536'. It may be read in two ways"),
    ('params,tokens,loss\n"1,300B",8,1', "'1,300B'. It may be read in two ways"),
    ("params,tokens,loss\n7 or 8,8,1", "column 'params' must hold numbers; row 1 has '7 or 8'"),
    (
        "params,steps,global_batch_size,seq_len,loss\n7,8,4194304,1024,1",
        r"4.29e\+09 tokens in a batch.*columns batch=",
    ),
    (
        "model,perplexity\nbig,8",
        r"no column of the log is known to be the loss. Name it: columns=\{'loss'",
    ),
    ("params;tokens;loss\n7;8", "another number of fields"),
]


@pytest.mark.parametrize(("text", "message"), QUESTIONS)
def test_a_table_that_may_be_read_in_two_ways_is_a_question(
    text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "runs.csv").write_text(text + "\n")
    with pytest.raises(ValueError, match=message):
        nfd.fit_scaling_law(tmp_path / "runs.csv")


def test_steps_stand_for_tokens_only_where_a_batch_is_unknown_and_this_is_said() -> None:
    def law(**more: int) -> nfd.LadderLaw:
        rows = [
            {"params": N, "max_iters": steps, "loss": 1.7 + 110 / N**0.27 + 50 / steps**0.28} | more
            for N in (1e8, 2e8, 4e8)
            for steps in (1000, 4000, 16000)
        ]
        return nfd.fit_ladder(rows)

    def longest(law: nfd.LadderLaw) -> float:
        return max(tokens for _, tokens in law.losses)

    whole = law(batch_size=12, block_size=1024)
    part = law(batch_size=12, block_size=1024, gradient_accumulation_steps=40)
    alone = law(batch_size=12)
    assert [longest(read) for read in (whole, part, alone)] == [16000 * 12 * 1024, 16000, 16000]
    assert not any("Steps stand for tokens" in note for note in whole.notes)
    assert "batch of one device, as there is 'gradient_accumulation_steps'" in part.notes[0]
    assert all("Steps stand for tokens" in " ".join(law.notes) for law in (part, alone))


# ---- transfer


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


def test_drifts_of_one_seed_hold_the_truth() -> None:
    """About 95 of 100, from the scatter about a power law alone."""
    random = np.random.default_rng(1)
    held = 0
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
    assert [width for (width, _), cell in answer.cells.items() if cell.has_optimum] == [64]
    assert math.isnan(transfer.best("logged", 512, 4).value)
    assert "width" not in answer.drifts
    assert "width 512 and depth 4 (higher rates may be better)" in answer.doubt
    assert any(answer.doubt in text for text in transfer.answer.details)
    assert "end of your grid" in str(transfer)
    assert not nfd.fit_transfer(rates(0.0)).of("logged").doubt


def test_divergence_counts_and_does_not_move_the_optimum() -> None:
    rows = [row | ({"loss": "nan"} if row["lr"] > 2**-8.5 else {}) for row in rates(0.0)]
    spikes = [row | ({"loss": 1e5} if row["lr"] > 2**-8.5 else {}) for row in rates(0.0)]
    for given in (rows, spikes):
        transfer = nfd.fit_transfer(given)
        best = transfer.best("logged", 128, 4)
        assert best.low < 2**-10 < best.high
        assert best.value == pytest.approx(2**-10, rel=0.3)
    assert nfd.fit_transfer(rows).of("logged").cells[128, 4].fails_from == 2.0**-8
    assert nfd.fit_transfer(rates(0.0)).of("logged").cells[128, 4].fails_from == math.inf


# ---- the law of size


def sizes(
    seeds: int, noise: float = 0.01, power: float = 1.0, lengths: Sequence[float] = ()
) -> Rows:
    """Losses ``0.7 + 8 / n^power + 0.5 / L``, with ``3 / sqrt(D)`` more where runs have lengths."""
    random = np.random.default_rng(1)
    return [
        {"width": n, "depth": L, "seed": 10_000 * n + 100 * L + s}
        | ({"tokens": D} if lengths else {"params": 12 * n * n * L + 100 * n})
        | {
            "loss": 0.7
            + 8 / n**power
            + 0.5 / L
            + (3 / math.sqrt(D) if lengths else 0.0)
            + noise * random.normal()
        }
        for n in (64, 128, 256, 512)
        for L in (4, 8, 16, 32)
        for D in lengths or (1.0,)
        for s in range(seeds)
    ]


def test_a_grid_with_seeds_has_the_law_of_size_with_its_floor() -> None:
    capacity = nfd.fit_scaling_law(sizes(4))
    assert capacity.law.good
    assert capacity.floor.low < 0.7 < capacity.floor.high
    assert capacity.at(1024, math.inf).low < 0.7 + 8 / 1024 < capacity.at(1024, math.inf).high
    assert capacity.held_out.size == (512, 32)
    assert capacity.held_out.inside
    best = capacity.best(parameters="1M")
    assert best.cost <= 10**6
    # counted by the log's own counts
    assert best.cost == 12 * best.width**2 * best.depth + 100 * best.width
    with pytest.raises(ValueError, match="flops is not known: only parameters are"):
        capacity.best(flops="1T")


def test_another_power_is_seen_without_seeds_and_not_extrapolated() -> None:
    capacity = nfd.fit_scaling_law(sizes(1, noise=1e-4, power=0.5))
    assert not capacity.law.good
    with pytest.raises(ValueError, match="may not be extrapolated"):
        capacity.at(4096, 64)
    assert nfd.fit_scaling_law(sizes(1, noise=1e-4)).law.good


def test_lengths_have_a_power_of_their_own() -> None:
    capacity = nfd.fit_scaling_law(sizes(1, noise=0.003, lengths=(100, 200, 400, 800)))
    assert capacity.law.variables == ("width", "depth", "tokens")
    beta = capacity.law.terms["beta"]
    assert beta.low < 0.5 < beta.high
    assert beta.high - beta.low < 0.3
    assert capacity.floor.low < 0.7 < capacity.floor.high


def test_small_sizes_that_break_the_law_are_left_out_and_told() -> None:
    random = np.random.default_rng(0)
    held = list[bool]()
    for _ in range(40):
        rows = [
            {
                "width": n,
                "seed": 100 * n + s,
                "loss": 2 + 8 / n + (1.0 if n == 64 else 0.0) + 0.01 * random.normal(),
            }
            for n in (64, 128, 256, 512, 1024, 2048)
            for s in range(3)
        ]
        capacity = nfd.fit_scaling_law(rows)
        if capacity.law.good:
            assert capacity.trusted == {"width": 128}
            assert "Smaller sizes were left out" in capacity.law.note
            held.append(capacity.floor.low < 2 < capacity.floor.high)
    assert len(held) >= 34  # 5 of 100 are refused; three errors of 40
    assert sum(held) >= len(held) - 6


def test_of_several_rates_the_best_of_each_size_or_a_given_one_counts() -> None:
    rows = sizes(2, noise=1e-4)
    best = [row | {"lr": 0.1 if row["width"] > 64 else 0.2} for row in rows]
    worse = [row | {"lr": lr, "loss": row["loss"] + 1} for row in rows for lr in (0.05, 0.4)]
    chosen = nfd.fit_scaling_law(best + worse, rate="best")
    floor = nfd.fit_scaling_law(best).floor.value
    assert chosen.floor.value == pytest.approx(floor)
    assert nfd.fit_scaling_law(best + worse, rate=0.05).floor.value == pytest.approx(
        floor + 1, abs=0.01
    )
    with pytest.raises(ValueError, match=r"The rates are 0.05, 0.1"):
        nfd.fit_scaling_law(best + worse, rate=0.3)


REFUSED: list[tuple[Rows, str]] = [
    ([{"width": 64, "loss": 1.0}] * 3, "needs runs that differ in size; this table has one width"),
    (
        [{"width": 32 * k, "depth": k, "loss": 1 + 1 / k} for k in range(1, 9)],
        "independently of each other",
    ),
    ([row | {"lr": k % 2 + 1} for k, row in enumerate(sizes(2))], "differ in lr"),
    ([{"tokens": k, "loss": 1 + 1 / k} for k in (1, 2, 3)], "needs more sizes"),
]


@pytest.mark.parametrize(("rows", "message"), REFUSED)
def test_logs_without_a_law_are_refused(rows: Rows, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nfd.fit_scaling_law(rows)


def test_tokens_that_grow_within_a_run_are_its_history_where_steps_say_so_and_else_a_question() -> (
    None
):
    rows: list[dict[str, Any]] = [
        {
            "run": f"{N:g}",
            "step": k,
            "params": N,
            "tokens": 2 * N * k,
            "loss": 1.7 + 400 / N**0.34 + 410 / (2 * N * k) ** 0.28,
        }
        for N in (1e8, 2e8, 4e8, 8e8, 1.6e9)
        for k in range(1, 11)
    ]
    law = nfd.fit_ladder(rows)
    assert sorted(law.losses) == [(N, 20 * N) for N in (1e8, 2e8, 4e8, 8e8, 1.6e9)]
    unsure = nfd.fit_ladder(
        [{name: value for name, value in row.items() if name != "step"} for row in rows]
    )
    assert len(unsure.losses) == 50
    assert any("give the last row of every run" in note for note in unsure.notes)
    assert not any("give the last row of every run" in note for note in law.notes)


# ---- the commands


@pytest.mark.slow
def test_the_commands_answer_from_a_table(tmp_path: Path) -> None:
    written(
        tmp_path / "rates.csv",
        [{"my rate" if k == "lr" else k: v for k, v in r.items()} for r in rates(0.5)],
    )
    words = ("--columns", "lr=my rate", "--out", "t", "--verbose")
    done = run("transfer", "--from", "rates.csv", *words, folder=tmp_path)
    assert "lr from 'my rate'" in done.stdout
    drift = json.loads((tmp_path / "t/result.json").read_text())["rules"][0]["drift"]["width"]
    assert drift["low"] < 0.5 < drift["high"]
    written(tmp_path / "sizes.csv", [{**row, "eval/loss": row.pop("loss")} for row in sizes(3)])
    done = run(
        "scaling-law",
        "--from",
        "sizes.csv",
        "--columns",
        "loss=eval/loss",
        "--out",
        "c",
        folder=tmp_path,
    )
    assert "FORECAST USABLE" in done.stdout
    floor = json.loads((tmp_path / "c/result.json").read_text())["fit"]["floor"]
    assert floor["low"] < 0.7 < floor["high"]
    done = run("scaling-law", "--from", "none.csv", folder=tmp_path)
    assert done.returncode == 2
    assert "there is none at 'none.csv'" in done.stderr


def test_the_shell_says_the_rate_of_a_training(tmp_path: Path) -> None:
    written(tmp_path / "rates.csv", SWEPT)
    at = ("--at", "parameters=7B", "tokens=100B", "batch=1e6")
    done = run("transfer", "--from", "rates.csv", *at, "--out", "t", folder=tmp_path)
    best = nfd.fit_rate_law(SWEPT).at(parameters=7e9, tokens=1e11, batch=1e6)
    assert (
        best.answer.title
        == f"Train 7B parameters on 100B tokens at learning rate {best.advised:.2g}"
    )
    assert best.answer.title in " ".join(done.stdout.split())
    assert "Next: train it" in done.stdout
    assert "nfd scaling-law --from rates.csv --rate best\n" in done.stdout
    stored = json.loads((tmp_path / "t/result.json").read_text())["at"]
    assert stored["best"]["low"] < stored["advised"] < stored["best"]["high"]
    done = run("transfer", "--from", "rates.csv", "--at", "width=512", folder=tmp_path)
    assert done.returncode == 2
    assert "--at must be one of 'parameters', 'tokens', 'batch'; got 'width'" in done.stderr


def test_one_seed_of_each_rate_has_no_interval_and_a_report(tmp_path: Path) -> None:
    rows = [
        {"width": n, "lr": 2.0**k, "loss": 2 + (k + 8) ** 2 / 9 + 9 / n}
        for n in (64, 128)
        for k in range(-11, -5)
    ]
    lines = (",".join(map(str, row.values())) for row in rows)
    (tmp_path / "runs.csv").write_text("\n".join(["width,lr,loss", *lines]))
    done = run("transfer", "--from", "runs.csv", "--out", "out", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    stored = json.loads((tmp_path / "out/result.json").read_text())
    (best,) = (r for r in stored["table"] if (r["quantity"], r["width"]) == ("best lr", 64))
    assert (best["low"], best["high"]) == (None, None)
    assert 2**-8.5 < best["value"] < 2**-7.5


def test_kinds_that_follow_different_laws_are_refused_and_alike_ones_are_not() -> None:
    def rows(slope: float) -> list[dict[str, Any]]:
        sizes = (1e6, 3e6, 1e7, 3e7, 1e8)
        return [
            {"model_type": kind, "params": N, "loss": 1 + factor * (N / 1e6) ** power}
            for kind, factor, power in (("lstm", 1.5, slope), ("transformer", 1.0, -0.2))
            for N in sizes
        ]

    with pytest.raises(ValueError, match=r"'lstm', 'transformer'.*follow different laws of size"):
        nfd.fit_ladder(rows(-0.4))
    random = np.random.default_rng(0)
    alike = []
    for row in rows(-0.2):
        loss = (1 + (row["params"] / 1e6) ** -0.2) * math.exp(0.003 * random.normal())
        alike.append(row | {"loss": loss})
    law = nfd.fit_ladder(alike)
    assert any("differ in 'model_type'" in note for note in law.notes)


def test_a_quotient_of_sizes_is_no_size_and_na_are_active_parameters() -> None:
    rows = [
        {"N": 2e9, "Na": N, "D": D, "D/N": D / 2e9, "Na/N": N / 2e9, "loss": 2 + 90 / N**0.3}
        for N in (1e8, 2e8, 4e8)
        for D in (2e9, 8e9)
    ]
    about = nfd.fit_ladder(rows).about
    assert "parameters from 'Na'" in about
    assert "tokens from 'D'" in about


def test_all_epochs_of_a_training_are_no_passes_over_its_tokens() -> None:
    rows = [
        {"params": N, "tokens": D, "total_epochs": D / 1e8, "loss": 2 + 90 / N**0.3 + 9e2 / D**0.3}
        for N in (1e8, 2e8, 4e8)
        for D in (2e9, 8e9)
    ]
    assert nfd.fit_ladder(rows).supplies == ()


def test_a_sweep_without_a_size_is_sent_to_the_law_of_the_rate() -> None:
    rows = [{"lr": lr, "loss": 2 + (lr - 0.01) ** 2} for lr in (0.001, 0.01, 0.1)]
    with pytest.raises(ValueError, match=r"columns parameters=\.\.\. It sweeps the learning rate"):
        nfd.fit_ladder(rows)


def test_a_history_has_the_highest_rate_of_its_schedule() -> None:
    sizes = (1e6, 3e6, 1e7, 3e7)
    rows = [
        {"run_id": f"{N:g}", "params": N, "step": step, "lr": lr, "loss": 1 + loss + 9 / N**0.2}
        for N in sizes
        for step, lr, loss in ((100, 0.001, 2.0), (200, 0.002, 1.0), (300, 0.0001, 0.5))
    ]
    losses = nfd.fit_ladder(rows).losses
    assert losses == {(N,): [1.5 + 9 / N**0.2] for N in sizes}
    # A name with several runs at one step: their rates are their own.
    sweep = [row | {"step": 300, "lr": 0.001 * row["step"]} for row in rows]
    with pytest.raises(ValueError, match="differ in lr"):
        nfd.fit_ladder(sweep)


# ---- columns of numbers that are not read

LADDER: Rows = [
    {"params": N, "tokens": 20 * N, "loss": 1.7 + 110 / N**0.27 + (0.003 if seed else 0.0)}
    for N in (1e8, 2e8, 4e8, 8e8)
    for seed in (0, 1)
]

# Two values of a setting each, which alternate.
OF_RUNS: dict[str, tuple[float, float]] = {
    "D/N": (20, 80),
    "tokens/param": (20, 80),
    "ratio": (20, 80),
    "tokens_per_param": (20, 80),
    "chinchilla_multiplier": (0.5, 2),
    "dataset_size": (2e9, 8e9),
    "data_fraction": (0.1, 1),
    "examples": (1e6, 4e6),
    "sequences": (1e6, 4e6),
    "GFLOPs": (1e9, 4e9),
    "compute (PF-days)": (0.1, 0.4),
    "Training FLOPs (1e18)": (1, 4),
    "batch": (2**17, 2**19),
    "bsz": (8, 16),
    "GBS": (512, 1024),
    "config/batch_size": (64, 256),
    "seq_len": (1024, 4096),
    "context_window": (2048, 8192),
    "version": (1, 2),
    "optimizer_version": (1, 2),
    "config.model.n_heads": (8, 16),
    "n_kv_heads": (1, 8),
    "vocab_size": (32000, 50257),
    "ffn_mult": (4, 2.67),
    "rope_theta": (1e4, 5e5),
    "n_experts": (8, 64),
    "topk": (1, 2),
    "dropout": (0, 0.1),
    "weight_decay": (0.1, 0.01),
    "warmup_steps": (100, 1000),
    "beta2": (0.95, 0.99),
    "grad_clip": (1, 0.5),
    "label_smoothing": (0, 0.1),
    "z_loss_weight": (0, 1e-4),
    "min_lr": (1e-5, 1e-4),
    "cooldown_frac": (0.1, 0.2),
    "lora_rank": (8, 16),
    "hparams/alpha": (1, 2),
}
# Least and most of what only keeps the books of a run.
BOOKS: dict[str, tuple[float, float]] = {
    "": (0, 8),
    "Unnamed: 0": (0, 8),
    "trial": (0, 8),
    "data_seed": (0, 8),
    "pid": (4000, 5000),
    "slurm_job_id": (91000, 92000),
    "timestamp": (1.7e9, 1.71e9),
    "created_at": (1.7e9, 1.71e9),
    "_runtime": (1e3, 1e5),
    "wall time (h)": (1, 9),
    "steps/s": (2, 5),
    "steps_per_sec": (2, 5),
    "tokens_per_second": (1e5, 2e5),
    "tokens/s": (1e5, 2e5),
    "latency_ms": (3, 5),
    "mfu": (0.3, 0.5),
    "TFLOPs": (300, 420),
    "tflops_per_gpu": (300, 420),
    "TFLOP/s/device": (300, 420),
    "gpu_hours": (1, 9),
    "num_gpus": (8, 16),
    "world_size": (8, 16),
    "nodes": (1, 2),
    "max_memory_gb": (30, 70),
    "num_workers": (4, 8),
    "grad_accum_steps": (1, 2),
    "micro_batch_size": (4, 8),
    "eval_interval": (100, 200),
    "cost_usd": (1, 9),
    "grad_norm": (0.1, 1),
    "param_norm": (100, 300),
    "val_acc": (0.3, 0.5),
    "eval/hellaswag": (0.3, 0.5),
    "ppl": (9, 30),
    "val_bpb": (0.9, 1.3),
    "loss_spikes": (0, 3),
    "summary/epoch": (0.9, 1.1),
    "summary/attn_logit_max": (3, 20),
}


def notes_with(name: str, values: Sequence[float]) -> set[str]:
    rows = [row | {name: value} for row, value in zip(LADDER, values, strict=True)]
    law = nfd.fit_ladder(rows, columns={"loss": "loss"})
    return {*law.notes} - {*nfd.fit_ladder(LADDER).notes}


@pytest.mark.parametrize("name", OF_RUNS)
def test_a_size_or_setting_in_which_repeats_differ_is_said_by_name(name: str) -> None:
    (note,) = notes_with(name, OF_RUNS[name] * 4)
    assert repr(name) in note
    assert not notes_with(name, OF_RUNS[name][:1] * 8)


@pytest.mark.parametrize("name", BOOKS)
def test_what_keeps_the_books_of_runs_is_not_said(name: str) -> None:
    assert not notes_with(name, np.random.default_rng(0).uniform(*BOOKS[name], size=8).tolist())
    assert not notes_with(name, [round(value) for value in BOOKS[name]] * 4)


def test_compute_is_read_in_its_unit_and_the_speed_of_a_device_is_not_compute() -> None:
    def with_compute(name: str, unit: float) -> Rows:
        return [
            {"params": row["params"], "loss": row["loss"], name: 120 * row["params"] ** 2 / unit}
            for row in LADDER
        ]

    meant = sorted((row["params"], pytest.approx(row["tokens"])) for row in LADDER[::2])
    for name, unit in (
        ("flops", 1.0),
        ("GFLOPs", 1e9),
        ("compute (EFLOPs)", 1e18),
        ("PF-days", 8.64e19),
        ("compute (petaflop/s-days)", 8.64e19),
    ):
        assert sorted(nfd.fit_ladder(with_compute(name, unit)).losses) == meant
    assert nfd.fit_ladder(with_compute("TFLOPs", 1e18)).variables == ("parameters",)
    with pytest.raises(ValueError, match="it seems the compute of one sample"):
        nfd.fit_ladder([{"params": 2.5e7, "GFLOPs": 4.1, "loss": 3.0}])


def test_samples_are_counted_by_their_length_and_alone_are_said_to_stand_for_tokens() -> None:
    length = 1024
    rows = [
        {"params": N, "samples": D / length, "loss": 1.7 + 110 / N**0.27 + 370 / D**0.28}
        for N in (1e8, 2e8, 4e8)
        for D in (2e9, 8e9, 3.2e10)
    ]
    whole = nfd.fit_ladder([row | {"seq_len": length} for row in rows])
    assert max(tokens for _, tokens in whole.losses) == pytest.approx(3.2e10)
    assert not any("samples" in note for note in whole.notes)
    assert "tokens from 'samples x seq_len'" in whole.about
    alone = nfd.fit_ladder(rows)
    assert max(tokens for _, tokens in alone.losses) == pytest.approx(3.2e10 / length)
    assert any("'samples' is taken for tokens" in note for note in alone.notes)
    given = nfd.fit_ladder(rows, columns={"tokens": "samples"})
    assert given.losses == alone.losses
    assert not any("samples" in note for note in given.notes)


TWICE_OR_UNCLEAR = [
    ({"params (M)": "10M"}, "'10M'. The name of the column has a unit, too"),
    ({"params": "3e8 B"}, "'3e8 B'. It has a power of ten and a unit"),
    ({"params": 1e8, "lr": "1.95m"}, "'1.95m'. 'm' after a number .* milli or million"),
]


@pytest.mark.parametrize(("cells", "message"), TWICE_OR_UNCLEAR)
def test_a_unit_that_may_mean_two_things_is_a_question(cells: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nfd.fit_ladder([cells | {"tokens": 1e9, "loss": 3.0}])


def test_a_unit_in_a_cell_or_in_the_name_is_read() -> None:
    def sizes_of(name: str, cells: Sequence[Any]) -> list[tuple[float, ...]]:
        rows = [{name: cell, "loss": 3 - k / 10} for k, cell in enumerate(cells)]
        return [*nfd.fit_ladder(rows).losses]

    meant = [(1e7,), (1.5e7,), (2e7,), (4e7,)]
    assert sizes_of("params", ["10M", "1.5e7", "20m", "40000K"]) == meant
    assert sizes_of("params (M)", ["10", "15,0", 20, "4e1"]) == meant


@pytest.mark.parametrize("fit", [nfd.fit_ladder, nfd.fit_rate_law, nfd.fit_transfer])
def test_a_table_that_is_pasted_twice_is_refused_and_seeds_that_agree_are_not(
    fit: Callable[[Rows], Any],
) -> None:
    tables = {nfd.fit_ladder: LADDER, nfd.fit_rate_law: SWEPT}
    rows = tables.get(fit, [without_seed(row) for row in PLAIN])
    with pytest.raises(ValueError, match=r"holds \d+ copies of rows, such as row"):
        fit([*rows, *rows])
    with pytest.raises(ValueError, match=r"holds \d+ copies of rows, such as row"):
        fit([row | {"run_id": str(k)} for k, row in enumerate([*rows, *rows])])
    fit([*rows, *(row | {"loss": row["loss"] * 1.001} for row in rows)])
    rounded = [row | {"loss": round(row["loss"], 2)} for row in rows]
    fit(rounded)


def without_seed(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "seed"}


def test_a_frame_with_two_columns_of_one_name_is_refused() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([[1e8, 3.0, 4.0]], columns=["params", "loss", "loss"])
    with pytest.raises(ValueError, match="several columns 'loss'"):
        nfd.fit_ladder(frame)
