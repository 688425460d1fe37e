"""The opponents of the benchmarks compute the same; a planted slow-down is found, and noise is
not.
"""

from __future__ import annotations

import copy
import json
import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

import nfd
from benchmarks import check, counted, measure, networks
from benchmarks.check import BASELINE, changes, worse
from benchmarks.dense import DenseBaseline
from benchmarks.kernels import recursion
from benchmarks.ratio import Ratio
from benchmarks.result import Result, merged
from makers import evidence, pictures, question_charts, real_ladders_page
from makers.benchmarks_page import PAGE, tables_of
from nfd.data import digits
from nfd.runs.losses import cross_entropy
from nfd.runs.trial import optimizer_of, train
from nfd.wide import lazy_gaussian
from nfd.wide.basis import expand
from studies import beside, embedding_rate, muon_depth, two_limits, two_limits_depth

MACHINE = {
    "processor": "made up",
    "cores": 2,
    "threads": 2,
    "torch": "2",
    "date": "2026-01-01T00:00:00+00:00",
}


def result(parts: dict[str, list[dict[str, Any]]], **changed: Any) -> Result:
    return Result(MACHINE | changed, False, parts, dict.fromkeys(parts, 1.0), {})


def noisy(
    value: float, scatter: float, seed: int, rounds: int = 5, *, less_is_better: bool = False
) -> Ratio:
    stream = torch.Generator().manual_seed(seed)
    logs = math.log(value) + scatter * torch.randn(rounds, generator=stream, dtype=torch.float64)
    return Ratio(tuple(logs.exp().tolist()), less_is_better)


def noisy_run(first: int, factor: float = 1.0) -> Result:
    """Forty ratios with 5 % of noise; the one of row 7 is ``factor`` times as good."""
    rows = [
        {"row": k, "ratio": noisy(2.0 * (factor if k == 7 else 1.0), 0.05, first + k)}
        for k in range(40)
    ]
    return result({"made up": rows})


# ---- the opponents


def test_the_dense_baseline_trains_the_same_network() -> None:
    x, y = digits().batches(8, 6, 0)
    net = nfd.ResNet(64, 10, 48, 3)
    weights = [layer.weight.detach().clone() for layer in net.outer]
    baseline = DenseBaseline(net.U.detach().clone(), net.V.detach().clone(), weights, eta_c=0.3)
    rows = train(net, torch.optim.SGD(net.param_groups(0.3)), zip(x, y, strict=True), cross_entropy)
    for row, inputs, targets in zip(rows, x, y, strict=True):
        assert baseline.step(inputs, targets) == pytest.approx(row.loss, rel=1e-4)


@pytest.mark.parametrize("kind", ["nngp", "ntk"])
def test_the_recursion_is_the_kernel_of_that_depth(kind: str) -> None:
    x = digits().inputs[:12].double()
    # acos near 1 has half the digits
    torch.testing.assert_close(
        recursion(x, 16, kind), nfd.kernel(x, kind=kind, depth=16), rtol=1e-6, atol=0
    )


# ---- regressions


@pytest.mark.parametrize("seed", range(10))
def test_noise_is_not_a_regression(seed: int) -> None:
    assert worse(changes(noisy_run(1000 * seed), noisy_run(1000 * seed + 500))) == []


@pytest.mark.parametrize("seed", range(10))
def test_a_planted_slow_down_is_found_and_alone(seed: int) -> None:
    found = worse(changes(noisy_run(1000 * seed), noisy_run(1000 * seed + 500, factor=0.5)))
    assert [change.row for change in found] == [(("row", 7),)]


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (0.5, 1)])
def test_the_command_prints_a_line_for_each_regression(
    factor: float,
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, new = (run.keep(tmp_path) for run in (noisy_run(0), noisy_run(500, factor)))
    monkeypatch.setattr("sys.argv", ["check", str(old), str(new)])
    assert check.main() == code
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + code
    assert lines[-1].startswith(f"40 ratios compared, {code} worse")
    if code:
        assert lines[0].startswith("made up (row 7): ratio was ")
        assert "times as good" in lines[0]


class Counting(TorchDispatchMode):
    """A clock that counts the numbers which PyTorch's operations are given, and no seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0.0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        leaves, _ = tree_flatten((args, kwargs))
        self.numbers += 1 + sum(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("times", "code"), [(1, 0), (2, 1)])
def test_a_share_of_a_bound_shows_on_any_machine_whether_a_query_became_slower(
    times: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries that expand their rows so many times, by a clock that counts numbers."""

    def run(processor: str) -> Result:
        with Counting() as counting, monkeypatch.context() as patch:
            patch.setattr(measure, "clock", lambda: counting.numbers)
            # What it counts is the same each time, and in a cache.
            patch.setattr(measure, "COLD", 1)
            rounds = [[networks._query(1024, 64, 8)] for _ in range(3)]
        return result({"query": merged(rounds)}, processor=processor)

    def slowed(*arguments: Any) -> Any:
        return [expand(*arguments) for _ in range(times)][-1]

    before = run("one")
    monkeypatch.setattr(lazy_gaussian, "expand", slowed)
    compared = changes(before, run("another"))
    assert {change.column for change in compared} == {measure.SHARE, measure.AT_LARGE}
    assert bool(worse(compared)) == bool(code)


def test_ratios_of_times_are_compared_on_one_machine_only() -> None:
    row = {"size": 1, "dense / ours": Ratio((2.0, 2.1)), measure.SHARE: Ratio((0.5, 0.51))}
    old = result({"part": [row]})
    here = result({"part": [row]})
    elsewhere = result({"part": [row]}, processor="another")
    assert [change.column for change in changes(old, here)] == ["dense / ours", measure.SHARE]
    assert [change.column for change in changes(old, elsewhere)] == [measure.SHARE]


@pytest.mark.parametrize(
    "work",
    [
        counted.query_work(4096, 100, 8),
        counted.deferred_work(4096, 16, 25, 8),
        counted.structured_work(4096, 16, 25, 8),
        counted.structured_muon_work(4096, 16, 25, 8),
        counted.compression_work(4096, 300),
        counted.gram_work(1000, 64, 30, 5),
    ],
)
def test_a_bound_falls_in_proportion_to_the_speed_of_the_machine(work: counted.Work) -> None:
    def machine(speed: float) -> counted.Limits:
        rates = {torch.float32: 1e11 * speed}
        return counted.Limits(
            1e10 * speed, rates, 3e10 * speed, 1e8 * speed, 1e-4 / speed, 1e8 * speed, 1e9 * speed
        )

    assert machine(2.0).bound(work) == pytest.approx(machine(1.0).bound(work) / 2)
    assert machine(1.0).of_large_products(work) <= machine(1.0).bound(work)


# ---- running and keeping


def test_the_page_is_made_from_the_baseline() -> None:
    tables = tables_of(Result.read(BASELINE))
    assert len(tables) == PAGE.read_text().count("<!-- made: ")
    assert all(table in PAGE.read_text() for table in tables.values())


def test_the_charts_of_evidence_and_questions_are_those_of_their_numbers() -> None:
    for name, drawn in (evidence.pictures() | question_charts.pictures()).items():
        words = [
            re.findall(">([^<>]+)</text>", svg)
            for svg in (drawn, (evidence.OUT / f"{name}.svg").read_text())
        ]
        assert words[0] == words[1]


# ---- nfd beside others


def test_edits_of_a_way_are_counted_and_what_its_check_says_anew_is_caught() -> None:
    assert [beside.changed(beside.edited(way)) for way in ("nothing", "nfd")] == [0, 5]
    assert beside.changed(beside.edited("nfd", "one rate for all")) == 4
    own = {
        "said": {
            "-": {"note": ""},
            "one rate for all": {"note": "", "watch 1": ""},
            "start forgotten": {"note": ""},
        }
    }
    judged = [
        beside.caught(own, mistake)
        for mistake in ("one rate for all", "start forgotten", "head forgotten")
    ]
    assert judged == ["caught: `nfd.Watch`", "**not seen**", "no such line"]


# ---- the page of Muon in depth


@pytest.mark.parametrize(
    ("drift", "extra", "power"),
    [
        ({"depth-mup": -0.5}, {}, "1/L"),
        ({"complete-p": -0.5}, {}, "1/sqrt(L)"),
        ({}, {"depth-mup": 0.05}, "1/L"),
        ({}, {"complete-p": 0.05}, "1/sqrt(L)"),
        ({}, {}, "either"),
        ({"depth-mup": -0.5}, {"complete-p": 0.05}, "undecided"),
        ({"complete-p": -0.5, "depth-mup": -0.5}, {}, "undecided"),
    ],
)
def test_the_power_of_depth_is_told_from_drifts_and_losses(
    drift: dict[str, float], extra: dict[str, float], power: str
) -> None:
    """Parabolas whose best rate and lowest loss move with depth as planted, and a little noise."""
    stream = torch.Generator().manual_seed(0)
    rows: list[dict[str, Any]] = [
        {"width": 32, "depth": 4 * 2**d, "rule": rule, "lr": 2.0**k, "seed": seed}
        | {"loss": 1 + d * extra.get(rule, 0) + 0.1 * (k + 5 - d * drift.get(rule, 0)) ** 2}
        for rule in muon_depth.POWERS
        for d in (0, 2, 4)
        for seed in range(3)
        for k in range(-9, 0)
    ]
    for row in rows:
        row["loss"] += 0.002 * float(torch.randn((), generator=stream))
    assert muon_depth.power_of_depth(nfd.fit_transfer(rows, guess=4.0)) == power


# ---- what muP gives, and which part of it does


def test_a_part_explains_mup_where_the_standard_scaling_has_its_loss_with_it_alone() -> None:
    mup = 2.5 + 0.01 * torch.randn(6, generator=torch.Generator().manual_seed(0))
    words = [embedding_rate.compared(mup + cost, mup, 3.0)[0] for cost in (0.0, 0.3)]
    assert words == ["equals", "lacks"]
    assert embedding_rate.explains(*words) == "yes"
    assert embedding_rate.explains("equals", "equals") == "no"  # nothing is to be explained
    assert embedding_rate.explains("lacks", "lacks") == "no"
    noisy = mup + 0.06 + 0.2 * torch.randn(6, generator=torch.Generator().manual_seed(1))
    assert embedding_rate.compared(noisy, mup, 3.0)[0] == "undecided"
    assert embedding_rate.explains("undecided", "lacks") == "undecided"


def test_recipes_move_the_rates_that_they_name_and_every_matrix_decays_alike() -> None:
    sample = torch.zeros(1, embedding_rate.LENGTH, dtype=torch.long)
    rates = dict[str, list[float]]()
    for name, recipe in embedding_rate.RECIPES.items():
        decay = recipe.decay
        make = partial(
            embedding_rate.GPT, falls=recipe.falls, embeddings_fall=recipe.embeddings_fall
        )
        member = nfd.Family(make, (64, 1), recipe.rule, "adamw", sample=sample).member(128, 1)
        batch = (sample, sample)
        make_optimizer = partial(embedding_rate.adamw, decay=decay)
        task = nfd.Task([batch], eval_batches=[batch], make_optimizer=make_optimizer)
        groups = optimizer_of(task, member, 1.0).param_groups
        assert {round(group["lr"] * group["weight_decay"], 9) for group in groups} <= {0.0, decay}
        of = {id(p): group["lr"] for group in groups for p in group["params"]}
        module = member.module
        tensors = [
            module.get_parameter(one)
            for one in ("tokens.weight", "blocks.0.up.weight", "norm.weight")
        ]
        rates[name] = [of[id(p)] for p in tensors]
    assert rates["standard"] == rates["standard-decay"] == [1, 1, 1]
    assert rates["by-width"] == [0.5, 0.5, 0.5]
    assert rates["embedding"] == [1, 0.5, 0.5]
    assert rates["mup"] == rates["mup-decay"] == [1, 0.5, 1]
    assert rates["mup-without"] == [0.5, 0.5, 1]


# ---- the page of the two limits


@pytest.mark.slow
def test_the_two_limits_are_measured_and_their_page_filled(tmp_path: Path) -> None:
    page = tmp_path / "two-limits.md"
    page.write_text(two_limits.PAGE.read_text())
    two_limits.main(page, scale=0.01, depths=[2], samples=2)
    text = page.read_text()
    assert text.count("\n| 2 | ") == 1
    assert "\n| 32 | " not in text  # a depth of the whole measurement
    assert "Extrapolated from n = 40" in text


def test_powers_of_depth_are_told_apart() -> None:
    depths = (4, 16, 64)
    noise = torch.randn(8, 3, 16, generator=torch.Generator().manual_seed(0)) / 50
    for p, said in ((0.0, "stays"), (-1.0, "vanishes"), (-0.5, "undecided")):
        sizes = torch.tensor([float(L) ** p for L in depths])
        assert two_limits_depth.size_and_power(depths, sizes[:, None] * (1 + noise))["said"] == said


def test_a_layer_couples_as_the_derivation_counts() -> None:
    case = two_limits_depth.Case(width=256)
    measured = torch.stack([two_limits_depth.coupling(case, 8, seed) for seed in range(8)]).mean()
    ours, theirs = two_limits_depth.counted(8)
    assert abs(measured - ours) < 0.25 * ours < 0.5 * abs(measured - theirs)


# ---- the page of real ladders


def test_the_page_of_real_ladders_is_made_from_its_numbers() -> None:
    known = json.loads(real_ladders_page.NUMBERS.read_text())
    text = real_ladders_page.page(known)
    assert text == real_ladders_page.PAGE.read_text()
    readme = (real_ladders_page.DOCS.parent / "README.md").read_text()
    assert (
        f"![{real_ladders_page.titles_of(known)['olmo']}](docs/images/real-ladders-olmo.svg)"
        in readme
    )
    assert sum(bool(re.search(r"[a-z]", word)) for word in text.split()) <= 900
    other = copy.deepcopy(known)
    other["cases"][0] |= {"accepted": True, "error": 12.3}
    assert "12.3 %" in real_ladders_page.page(other)
    assert "12.3 %" not in text


def case(ladder: str, factor: float, *, accepted: bool) -> dict[str, Any]:
    """A ladder of eight runs whose targets, twice, are forecast 1 % too high."""
    fit = [[10.0 ** (15 + k / 4), 4 - k / 5] for k in range(8)]
    target = {
        "flops": factor * fit[-1][0],
        "loss": 2.2,
        "forecast": 2.222,
        "low": 2.1,
        "high": 2.35,
        "plain": 2.3,
    }
    about = {
        "ladder": ladder,
        "group": ladder,
        "factor": factor,
        "runs": 8,
        "width": 11.0,
        "error": 1.0,
        "bias": 1.0,
    }
    about |= {
        "plain": 4.5,
        "covered": 0.5,
        "accepted": accepted,
        "why": None if accepted else "it is too wide",
    }
    return about | {"fit": fit, "targets": [target, target]}


def test_pictures_of_ladders_say_what_they_show() -> None:
    """Accepted ones their error, refused ones that they are; no data in words, and no text below 11
    pixels.
    """
    drawn = real_ladders_page.drawn_of([case("a", 9, accepted=False), case("b", 30, accepted=True)])
    assert [one["ladder"] for one in drawn] == ["b", "a"]
    svg = pictures.svg(real_ladders_page.charts.ladders(drawn, real_ladders_page.said_of(drawn)))
    assert ">1 of 2 forecasts are accepted" in svg
    assert re.findall(r">(\w+x: [^<]*)<", svg) == [
        "30x: +1.0 ± 5.5 %, 1 out",
        "9x: refused (± 5.5 %)",
    ]
    assert svg.count('stroke-dasharray="3,2"') == 2  # the bars of the refused one
    assert "aria-label=" not in svg
    assert "2.222" not in svg
    assert min(float(size) for size in re.findall(r'font-size="([\d.]+)px"', svg)) >= 11
