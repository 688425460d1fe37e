"""The opponents of the benchmarks compute the same; a planted slow-down is found, and noise is not."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import check, constants
from benchmarks.accounting import Ledger, account, count
from benchmarks.check import BASELINE, changes, worse
from benchmarks.dense import DenseBaseline
from benchmarks.kernels import recursion
from benchmarks.measure import Limits, Round, UnavailableError
from benchmarks.networks import query_bound, training_bound
from benchmarks.page import PAGE, SECTIONS, page
from benchmarks.ratio import Ratio, improvement
from benchmarks.resolution import Training, read
from benchmarks.resolution_page import PAGE as RESOLUTION_PAGE
from benchmarks.resolution_page import TABLES, Trainings, filled, power_table
from benchmarks.result import Result, merged
from benchmarks.run import PARTS, Part, measured
from benchmarks.show import cell

import nfd
from nfd.data.digits import digits
from nfd.nets import matrix_cost
from nfd.training.loop import train
from nfd.training.losses import cross_entropy

ROOT = Path(__file__).parents[1]
MACHINE = {"processor": "made up", "cores": 2, "threads": 2, "torch": "2", "date": "2026-01-01T00:00:00+00:00"}


def result(parts: dict[str, list[dict[str, Any]]], **changed: Any) -> Result:
    return Result(MACHINE | changed, False, parts, dict.fromkeys(parts, 1.0), {})


def noisy(value: float, scatter: float, seed: int, rounds: int = 5, *, less_is_better: bool = False) -> Ratio:
    stream = torch.Generator().manual_seed(seed)
    logs = math.log(value) + scatter * torch.randn(rounds, generator=stream, dtype=torch.float64)
    return Ratio(tuple(logs.exp().tolist()), less_is_better)


def noisy_run(first: int, factor: float = 1.0) -> Result:
    """Forty ratios with 5 % of noise; the one of row 7 is ``factor`` times as good."""
    rows = [{"row": k, "ratio": noisy(2.0 * (factor if k == 7 else 1.0), 0.05, first + k)} for k in range(40)]
    return result({"made up": rows})


# ---- the opponents --------------------------------------------------------------------------------------------


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
    torch.testing.assert_close(recursion(x, 16, kind), nfd.kernel(x, kind=kind, depth=16), rtol=1e-6, atol=0)


# ---- regressions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_noise_is_not_a_regression(seed: int) -> None:
    assert worse(changes(noisy_run(1000 * seed), noisy_run(1000 * seed + 500))) == []


@pytest.mark.parametrize("seed", range(10))
def test_a_planted_slow_down_is_found_and_alone(seed: int) -> None:
    found = worse(changes(noisy_run(1000 * seed), noisy_run(1000 * seed + 500, factor=0.5)))
    assert [change.row for change in found] == [(("row", 7),)]


def test_what_became_better_is_not_worse() -> None:
    assert worse(changes(noisy_run(0), noisy_run(500, factor=2.0))) == []


def test_where_less_is_better_more_is_worse() -> None:
    old, new = noisy(2.0, 0.01, 0, less_is_better=True), noisy(3.0, 0.01, 1, less_is_better=True)
    assert improvement(old, new, 0.025).value == pytest.approx(2 / 3, rel=0.02)
    assert improvement(old, new, 0.025).high < 1 < improvement(new, old, 0.025).low


def test_a_small_loss_does_not_count_however_certain() -> None:
    rows = [{"ratio": noisy(value, 1e-5, 0)} for value in (1.0, 0.97)]
    old, new = (result({"made up": [row]}) for row in rows)
    assert changes(old, new)[0].change.high < 1
    assert worse(changes(old, new)) == []
    assert len(worse(changes(old, new), least=1.0)) == 1


def test_one_repeat_says_nothing() -> None:
    old, new = (result({"made up": [{"ratio": Ratio.of(value)}]}) for value in (2.0, 1.0))
    (change,) = changes(old, new)
    assert math.isnan(change.change.high)
    assert worse([change]) == []


def test_the_intervals_of_a_ratio_cover_it() -> None:
    covered = sum(
        found.low < 3.0 < found.high for found in (noisy(3.0, 0.2, seed, rounds=4).interval for seed in range(400))
    )
    assert 0.92 * 400 < covered < 0.98 * 400  # 95 % within three standard errors


@pytest.mark.parametrize("least", ["0", "-1", "nan", "0.5"])
def test_a_least_loss_that_would_hide_all_is_refused(
    least: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["check", "--least", least, str(BASELINE)])
    assert check.main() == 2
    assert "--least must be" in capsys.readouterr().err


def test_a_result_that_says_little_of_its_machine_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    run = noisy_run(0)
    assert check.report(run, replace(run, machine={}), check.LEAST) == 0
    assert "cores 2, now None" in capsys.readouterr().out


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (0.5, 1)])
def test_the_command_prints_a_line_for_each_regression(
    factor: float, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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


def test_what_cannot_be_compared_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = result({"a": [{"ratio": noisy(1.0, 0.1, 0)}], "b": [{"ratio": noisy(1.0, 0.1, 1)}]}).keep(tmp_path)
    new = result({"a": [{"ratio": noisy(1.0, 0.1, 2)}]}, cores=64).keep(tmp_path)
    other = result({"c": [{"ratio": noisy(1.0, 0.1, 2)}]}).keep(tmp_path)
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    monkeypatch.setattr("sys.argv", ["check", str(old), str(new)])
    assert check.main() == 0
    said = capsys.readouterr().out
    assert "Not measured now, but before, in part or as a whole: b." in said
    assert "cores 2, now 64" in said
    for pair in ((old, other), (old, broken)):
        monkeypatch.setattr("sys.argv", ["check", *map(str, pair)])
        assert check.main() == 2
    assert "make bench writes one" in capsys.readouterr().err


def test_parts_measured_anew_replace_those_of_the_baseline(tmp_path: Path) -> None:
    old = result({"a": [{"ratio": noisy(1.0, 0.1, 0)}], "b": [{"ratio": noisy(1.0, 0.1, 1)}]})
    baseline = tmp_path / "baseline.json"
    baseline.write_bytes(old.keep(tmp_path).read_bytes())  # as git has it
    check.accept(old.keep(tmp_path), baseline)
    again = result({"a": [{"ratio": noisy(3.0, 0.1, 2)}]})
    check.accept(again.keep(tmp_path), baseline)
    assert Result.read(baseline).parts == {**old.parts, **again.parts}
    elsewhere = result({"a": [{"ratio": noisy(4.0, 0.1, 3)}]}, cores=64).keep(tmp_path)
    with pytest.raises(ValueError, match="cores 2, now 64"):
        check.accept(elsewhere, baseline)
    assert Result.read(baseline).parts == {**old.parts, **again.parts}


@pytest.mark.parametrize("repeats", [(), (1.0, 0.0), (math.nan,), (math.inf,)])
def test_a_ratio_is_of_positive_numbers(repeats: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="positive"):
        Ratio(repeats)


# ---- running and keeping --------------------------------------------------------------------------------------


def test_rounds_are_joined_by_what_was_measured() -> None:
    rounds = [[{"width": 1, "s": s, "ratio": Ratio.of(r)}, {"width": 2, "s": 9.0}] for s, r in ((1.0, 2.0), (5.0, 8.0))]
    joined = merged([*rounds, [{"width": 1, "s": 2.0, "ratio": Ratio.of(4.0)}]])
    assert joined == [{"width": 1, "s": 2.0, "ratio": Ratio((2.0, 8.0, 4.0))}, {"width": 2, "s": 9.0}]
    assert joined[0]["ratio"].interval.value == pytest.approx(4.0)


def test_parts_alternate_and_what_is_missing_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.run.machine", lambda: MACHINE)
    order: list[str] = []

    def part(name: str) -> Any:
        def measure(turn: Round) -> list[dict[str, Any]]:
            order.append(f"{name}{turn.number}")
            return [{"part": name, "ratio": Ratio.of(1.0 + turn.number)}]

        return measure

    def absent(turn: Round) -> list[dict[str, Any]]:
        raise UnavailableError("it is not here")

    found = measured([Part("a", part("a"), 2), Part("b", part("b"), 5), Part("c", absent)], quick=True)
    assert order == ["a0", "b0", "a1", "b1", "b2"]
    assert found.parts["b"] == [{"part": "b", "ratio": Ratio((1.0, 2.0, 3.0))}]
    assert found.missing == {"c": "it is not here"}
    assert "c" not in found.parts
    first, second = found.keep(tmp_path), found.keep(tmp_path)
    assert first != second
    assert Result.read(first) == Result.read(second) == found


def test_every_part_has_its_place_on_the_page() -> None:
    placed = [name for section in SECTIONS for name in section.parts]
    assert len(placed) == len(set(placed))
    assert {part.name for part in PARTS} <= set(placed)


def test_the_page_is_made_from_the_baseline() -> None:
    assert page(Result.read(BASELINE)) == PAGE.read_text()


def test_the_page_of_resolution_is_made_from_its_trainings(tmp_path: Path) -> None:
    copied = tmp_path / "page.md"
    copied.write_text(re.sub(r"\| .*", "| another number |", RESOLUTION_PAGE.read_text()))
    filled(read(), copied)
    for name in TABLES:
        parts = [text.split(f"<!-- made: {name} -->")[1].split("<!-- end -->")[0] for text in
                 (copied.read_text(), RESOLUTION_PAGE.read_text())]  # fmt: skip
        assert parts[0] == parts[1], name


def test_the_power_of_a_bias_is_found() -> None:
    rows = [
        {"width": 2048, "weights": weights, "resolution": epsilon, "seed": seed, "passes": 1, "steps": 100,
         "losses": [1 + 0.1 * seed + (3 + seed) * (epsilon or 0) ** 2.5 + drop / 100 for drop in range(100)]}
        for weights, exact in (("deferred", None), ("structured", 0.001))
        for epsilon in (exact, 0.1, 0.2, 0.4)
        for seed in range(3)
    ]  # fmt: skip
    assert power_table(Trainings(rows)).count("2.5") >= 6


def test_a_training_counts_its_operations_and_directions() -> None:
    dense, deferred = (Training(48, *kind, 0, 10).run() for kind in (("dense", None), ("deferred", 0.4)))
    assert dense["operations"] >= 10 * 16 * 4 * 3 * 2 * 48**2
    assert len(deferred["losses"]) == len(deferred["ranks"]) == 10
    assert all(0 < rank <= 48 for ranks in deferred["ranks"][-1] for rank in ranks)


def test_every_constant_of_the_cost_model_is_measured() -> None:
    measured = constants.measured(width=64, repeat=1)
    assert all(hasattr(matrix_cost, name) and value >= 0 for name, value in measured.items())
    written = Path(matrix_cost.__file__).read_text()
    counted = re.findall(r"^(\w+(?:_RATE|_SECONDS)) = [\d.]+e", written, flags=re.MULTILINE)
    assert set(counted) == measured.keys()


def test_what_other_pages_quote_is_the_baselines() -> None:
    parts = Result.read(BASELINE).parts
    gains = {row["width"]: row["dense / deferred"].interval.value for row in parts["dense"]}
    shares = [100 * row["share of the bound"].interval.value for row in parts["query"]]
    readme, limits = (
        " ".join((ROOT / page).read_text().split()) for page in ("README.md", "docs/limits-of-the-tool.md")
    )
    assert f"{gains[8192]:.0f} times faster than a plain dense network, and of width 4,096 {gains[4096]:.1f}" in readme
    assert f"{gains[4096]:.1f} and {gains[8192]:.0f} times a plain dense network" in limits
    assert f"a query reaches {min(shares):.0f} to {max(shares):.0f} %" in limits


def test_the_page_shows_what_the_result_holds() -> None:
    kept = Result.read(BASELINE)
    name = next(iter(kept.parts))
    row = kept.parts[name][0] | {"planted": 123.4}
    changed = page(replace(kept, parts={**kept.parts, name: [row]}, missing={"gpu": "there is none"}))
    assert "| 123 |" in changed
    assert "gpu (there is none)" in changed.replace("\n", " ")


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("width", 65536, "65,536"),
        ("seconds", 0.0123456, "0.0123"),
        ("seconds", 12345.6, "12,346"),
        ("error", 1.1e-10, "1.1e-10"),
        ("share of the bound", 0.294, "29 %"),
        ("share of the bound", 0.0294, "2.9 %"),
        ("ratio", Ratio((2.0, 2.0, 2.0)), "2 [2, 2]"),
        ("ratio", Ratio((2.0,)), "2"),
        ("kind", None, ""),
    ],
)
def test_numbers_as_text(column: str, value: Any, text: str) -> None:
    assert cell(column, value) == text


# ---- bounds and accounts --------------------------------------------------------------------------------------


def test_the_bound_of_a_query_counts_its_passes() -> None:
    now = Limits(read=4.0, products={torch.float32: 14.0})
    assert query_bound(now, width=10, rank=3, batch=2) == (6 * 10 * 3, 10 * 3 * 2)
    # steps at ranks 0, 2 and 4, two queries of each of five layers
    assert training_bound(now, 10, 5, 3, 2) == 2 * 5 * (0 + 120 + 240)


def test_the_ledger_counts_products_with_their_gradients() -> None:
    a, b = torch.randn(3, 5, 7, requires_grad=True), torch.randn(3, 7, 2)
    assert count(lambda: torch.bmm(a, b).sum().backward()) == {torch.float32: 2 * (2 * 3 * 5 * 7 * 2)}
    ledger = Ledger()
    with ledger:
        h = torch.zeros(4, 2).addmm_(torch.ones(4, 3), torch.ones(3, 2)).t()
    (product,) = [call for call in ledger.calls if call.is_product]
    assert product.operations == 2 * 4 * 3 * 2
    assert product.traffic == 4 * (8 + 12 + 6)  # read and written in place is counted once
    assert h.shape == (2, 4)
    assert not any("t.default" in str(call.func) for call in ledger.calls)  # views move nothing


def test_the_account_of_a_product_is_a_product() -> None:
    a = torch.randn(400, 400)
    row = account("made up", lambda: a @ a, repeat=5)
    assert row["operations"] == row["products"] == 1
    assert row["GFLOP"] == pytest.approx(2 * 400**3 / 1e9)
    assert row["other operations alone"] < 0.1 < row["products alone"]
