"""Further axes of ``nfd.transfer`` and halving of its rates: known exponents through the whole measurement."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models import Residual
from torch import Tensor, nn

import nfd
from nfd.cli.main import main
from nfd.questions.against import RateAgainst, SettingAxis
from nfd.questions.assumed import Assumed, assumed_of
from nfd.questions.halving import halved, wider
from nfd.questions.optimum import Scores
from nfd.questions.transfer import Transfer
from nfd.questions.transfer_findings import result, transfer_findings
from nfd.runs.trials import Trial
from nfd.scaling.laws import law_of
from nfd.store.store import Store
from nfd.training.task import Task

STREAM = torch.Generator().manual_seed(0)
SAMPLES = [(torch.ones(4, 1), torch.ones(4, 1))] * 8
VECTORS = [(torch.randn(8, 5, generator=STREAM), torch.randint(0, 3, (8,), generator=STREAM)) for _ in range(8)]


class Bowl(nn.Module):
    """A place in a bowl of curvature 1: plain descent is best at rate 1 / (1 + weight decay)."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.place = nn.Parameter(1 + 0.1 * torch.rand(1))
        self.unused = nn.Linear(1, width)

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.place).square() / 2 + 0 * self.unused(x).sum()


class Slope(Bowl):
    """A slope that is walked down in strides of the rate, and should be by about 1: the best rate is 1 / steps."""

    summed = False

    def forward(self, x: Tensor) -> Tensor:
        gone = self.place - 1
        if not self.training:
            return x * (1 - gone).square() + 0 * self.unused(x).sum()
        return x * (1.5 - gone * (len(x) / 4 if self.summed else 1)) + 0 * self.unused(x).sum()


class Summed(Slope):
    """The same with a gradient that is summed over the batch: every sample moves it as far."""

    summed = True


def height(out: Tensor, y: Tensor) -> Tensor:
    return out.mean() + 0.1


def of_toys(axes: Mapping[str, Sequence[float]], make_model: Any, **options: Any) -> RateAgainst:
    """The answer along the one axis, under the rule that leaves every rate as it is."""
    given: dict[str, Any] = {"rules": ("standard",), "optimizer": "sgd", "loss": height, "seeds": 2}
    given |= {"batches": SAMPLES, "eval_batches": SAMPLES[:1], "lr": octaves(-6, 0), "axes": axes}
    answer = nfd.transfer(make_model, (4,), (2,), **given | options)
    (against,) = answer.rules[0].against.values()
    assert answer.drift("standard", against.axis.name) is against.exponent
    return against


def octaves(first: int, last: int) -> list[float]:
    return [2.0**k for k in range(first, last + 1)]


def test_linear_scaling_of_the_batch_is_told_from_none() -> None:
    """Of the same samples, larger batches make fewer steps; a gradient that is summed makes up for it."""
    linear, none = (of_toys({"batch_size": (2, 4, 8)}, made) for made in (Slope, Summed))
    assert linear.exponent.value == pytest.approx(1, abs=0.05)
    assert none.exponent.value == pytest.approx(0, abs=0.05)
    assert (linear.agreement, none.agreement) == ("AGREES", "DIFFERS")
    assert linear.best((4, 2), 8).value == pytest.approx(1 / 4, rel=0.1)
    assert "usually assumed: batch_size^1 (linear scaling" in linear.sentence
    assert "these runs differ from it" in none.sentence


def test_steps_are_the_first_batches_and_a_schedule_knows_how_many() -> None:
    against = of_toys({"steps": (2, 4, 8)}, Slope, schedule=lambda step, steps: (steps / 4) ** 0.5)
    assert against.exponent.value == pytest.approx(-1.5, abs=0.05)
    assert against.agreement is None  # nothing is assumed of plain descent
    assert "nothing is usually assumed" in against.sentence


def test_a_constant_product_of_rate_and_decay_is_told_from_decay_that_does_nothing() -> None:
    """The best rate is 1 / (1 + decay)."""
    few = SAMPLES[:3]
    strong = of_toys({"weight_decay": (0.0, 63.0, 255.0)}, Bowl, lr=octaves(-11, 2), batches=few)
    weak = of_toys({"weight_decay": (0.0, 0.001, 0.002)}, Bowl, lr=octaves(-3, 2), batches=few)
    assert strong.exponent.value == pytest.approx(-1, abs=0.05)
    assert (strong.agreement, weak.agreement) == ("AGREES", "DIFFERS")
    products = [row["value"] for row in strong.table if row["quantity"] == "best lr x decay"]
    assert len(products) == 2  # none without decay
    assert products[0] == pytest.approx(products[1], rel=0.05)


def test_warmup_has_no_exponent_and_shows_by_how_much_the_rate_moves() -> None:
    """Rates 1/4, 2/4 and 3/4 and five whole ones instead of eight: the best is 8 / 6.5 as high."""
    against = of_toys({"warmup": (0.0, 0.375)}, Slope, lr=[2 ** (k / 4) for k in range(-16, -6)])
    assert math.isnan(against.exponent.value)
    assert against.moved.value == pytest.approx(math.log2(8 / 6.5), abs=0.1)
    assert "from warmup 0 to 0.375 the best lr moves by +0.2" in against.sentence
    assert "the loss is lowest at warmup" in against.sentence


def test_batches_of_another_size_hold_the_same_samples_in_the_same_order() -> None:
    samples = torch.arange(12.0)
    inputs = [{"x": rows, "flags": (True, rows.long())} for rows in samples.split(3)]
    task = Task([(x, x["x"]) for x in inputs], "mse").in_batches(4)
    assert [y.tolist() for _, y in task.batches] == [rows.tolist() for rows in samples.split(4)]
    assert [x["flags"][1].tolist() for x, _ in task.batches] == [rows.tolist() for rows in samples.split(4)]
    assert task.in_batches(3).fingerprint == Task([(x, x["x"]) for x in inputs], "mse").fingerprint
    for pair, message in (((torch.ones(3), torch.ones(2)), "no row for every sample"), ((samples[:3], 1.0), "others")):
        with pytest.raises(ValueError, match=message):
            Task([(samples[:3], 2.0), pair], "mse").in_batches(2)


def scores(best: float, grid: Sequence[float] = range(-4, 5), seeds: int = 3) -> Scores:
    """Parabolas about the best log2 rate."""
    log2 = torch.tensor([*grid], dtype=torch.float64)
    shifts = torch.linspace(-0.05, 0.05, seeds, dtype=torch.float64)[:, None]
    losses = 1 + 0.05 * (log2 - best - shifts).square()
    return Scores(log2, losses, torch.zeros(losses.shape, dtype=torch.bool), 2.0)


def along(bests: Mapping[float, float], assumed: float | None = None, name: str = "batch_size") -> RateAgainst:
    rule = None if assumed is None else Assumed(assumed, "a rule", "assumption", "a test")
    cells = {((n, 2), value): scores(best) for n in (8, 16) for value, best in bests.items()}
    return RateAgainst("mup", SettingAxis(name, tuple(bests), rule), cells)


def test_an_optimum_at_the_end_of_its_grid_is_said_and_not_fitted() -> None:
    whole, cut = along({1: 0.0, 2: 1.0, 4: 2.0}), along({1: 0.0, 2: 1.0, 4: 7.0})
    assert whole.exponent.value == pytest.approx(1, abs=0.01)
    assert cut.exponent.value == pytest.approx(1, abs=0.01)
    assert "best rate is not known" not in whole.sentence
    assert "best rate is not known at batch_size 4 and width 16 and depth 2; batch_size 4 and width 8" in cut.sentence
    assert math.isnan(cut.best((8, 2), 4).value)
    assert math.isnan(along({1: 0.0, 2: 7.0}).exponent.value)  # one value is left


def test_what_bends_is_no_power_of_the_setting() -> None:
    """The exponent of the middle is the assumed one, that of neither end is."""
    straight, bent = along({1: 0.0, 2: 0.5, 4: 1.0}, 0.5), along({1: 0.0, 2: 1.0, 4: 1.0}, 0.5)
    assert straight.exponent.value == pytest.approx(bent.exponent.value, abs=0.01)
    assert (straight.agreement, bent.agreement) == ("AGREES", "DIFFERS")
    assert not straight.bend.resolved
    assert bent.bend.value == pytest.approx(-0.5, abs=0.02)
    assert "but no power of it: the exponent is +1.00" in bent.sentence
    assert "and +0.00" in bent.sentence or "and -0.00" in bent.sentence
    assert math.isnan(along({1: 0.0, 2: 0.5}, 0.5).bend.value)


def test_agreement_needs_an_interval_that_tells_the_rule_from_none() -> None:
    true, false, wide = (along({1: 0.0, 2: p, 4: 2 * p}, 0.5) for p in (0.5, 1.0, 0.5))
    noisy = torch.linspace(-1.5, 1.5, 3, dtype=torch.float64)[:, None]
    for cell in wide.cells.values():
        cell.losses.copy_(1 + 0.05 * (cell.log2_eta - noisy * torch.randn(3, 1, generator=STREAM)).square())
    assert (true.agreement, false.agreement, wide.agreement) == ("AGREES", "DIFFERS", "UNDECIDED")
    assert along({1: 0.0, 2: 0.5}).agreement is None


def test_what_is_assumed_follows_the_optimizer() -> None:
    batch = {name: assumed_of("batch_size", law_of(name)) for name in ("sgd", "adamw", "muon")}
    assert [rule and (rule.exponent, rule.kind) for rule in batch.values()] == [
        (1.0, "empirical law"),
        (0.5, "theorem"),
        (0.5, "assumption"),
    ]
    horizon = assumed_of("steps", law_of("adamw"))
    assert horizon is not None
    assert -0.4 < horizon.exponent < -0.3
    assert assumed_of("warmup", law_of("adamw")) is None


# ---- a real network ------------------------------------------------------------------------------------------------


def asked(out: Path | None = None, **options: Any) -> Transfer:
    given: dict[str, Any] = {"rules": ("complete-p",), "lr": (0.001, 0.02, 0.4), "seeds": 2}
    return nfd.transfer(Residual, (8,), (2,), VECTORS, out=out, **given | options)


AXES = {"batch_size": (8, 16), "weight_decay": (0.0, 0.1), "warmup": (0.0, 0.25)}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("axes")


@pytest.fixture(scope="module")
def answer(out: Path) -> Transfer:
    return asked(out, axes=AXES)


def test_axes_share_runs_and_resume(answer: Transfer, out: Path) -> None:
    with Store.read(out) as store:
        trained = len(store)
        steps = {(config["steps"], config["weight_decay"]) for config in (run.config for run in store.records())}
    assert steps == {(8, 0.0), (4, 0.0), (8, 0.1)}
    assert asked(out, axes=AXES).table == answer.table
    with Store.read(out) as store:
        assert len(store) == trained
    assert answer.best("complete-p", 8, 2, batch_size=8) == answer.best("complete-p", 8, 2)  # the call's own value
    assert answer.rules[0].regret is None  # one size
    assert [row["quantity"] for row in answer.table if row.get("batch_size") == 16] == ["best lr", "loss"]
    assert "batch_size" in str(answer)


def test_axes_are_findings_and_content_of_a_page(answer: Transfer) -> None:
    findings = {finding.name: finding for finding in transfer_findings(answer)}
    assert {f"rate-{name}" for name in AXES} | {f"loss-complete-p-{name}" for name in AXES} <= findings.keys()
    rows = findings["loss-complete-p-weight_decay"].rows
    assert {row["series"] for row in rows} == {"weight_decay 0", "weight_decay 0.1"}
    assert findings["rate-weight_decay"].headline == answer.rules[0].against["weight_decay"].sentence
    assert {row["series"] for row in findings["rate-batch_size"].references} == {"square-root scaling, complete-p"}
    (content,) = result(answer.rules)
    assert [against["setting"] for against in content["against"]] == [*AXES]


def test_questions_about_settings_without_runs_are_refused(answer: Transfer) -> None:
    with pytest.raises(ValueError, match="no runs of batch_size 5"):
        answer.best("complete-p", 8, 2, batch_size=5)
    with pytest.raises(ValueError, match="Did you mean 'batch_size'"):
        answer.best("complete-p", 8, 2, batchsize=4)
    without = Transfer((replace(answer.rules[0], against={}),), "", "")
    with pytest.raises(ValueError, match="nothing but width and depth varied; got steps"):
        without.best("complete-p", 8, 2, steps=4)
    with pytest.raises(ValueError, match="one at a time"):
        answer.best("complete-p", 8, 2, batch_size=4, warmup=0)
    with pytest.raises(ValueError, match="must be one of 'width', 'depth', 'batch_size'"):
        answer.drift("complete-p", "steps")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials are trained one by one, so that their bits do not depend on which are trained together."""
    monkeypatch.setattr(Trial, "most_together", 1)


@pytest.mark.usefixtures("alone")
def test_muon_leaves_adamw_a_rate_of_its_own() -> None:
    answer = asked(optimizer="muon", axes={"adamw_lr": (0.001, 0.01)}, lr=(0.005, 0.02, 0.08))
    cells = answer.rules[0].against["adamw_lr"].cells
    low, high = (cells[(8, 2), value].losses for value in (0.001, 0.01))
    assert not torch.equal(low[:, :3], high[:, :3])
    fixed = asked(optimizer="muon", adamw_lr=0.01, axes={"adamw_lr": (0.01,)}, lr=(0.005, 0.02, 0.08))
    assert torch.equal(fixed.rules[0].cells[8, 2].losses, high)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"axes": {"batchsize": (4, 8)}}, "Did you mean 'batch_size'?"),
        ({"axes": (4, 8)}, "axes must be a dict"),
        ({"axes": {"batch_size": 8}}, "axes['batch_size'] must be a list"),
        ({"axes": {"batch_size": (8, 4)}}, "must be one or more ascending numbers"),
        ({"axes": {"batch_size": ()}}, "must be one or more ascending numbers"),
        ({"axes": {"batch_size": (4, 7)}}, "batch_size must divide the 64 samples"),
        ({"axes": {"steps": (4, 9)}}, "steps must be at most 8"),
        ({"axes": {"warmup": (0.01,)}}, "warmup must be at least one step"),
        ({"axes": {"warmup": (0.0, 1.0)}}, "warmup must be less than 1"),
        ({"axes": {"adamw_lr": (0.1,)}}, "Muon leaves to AdamW"),
        ({"adamw_lr": 0.1}, "Muon leaves to AdamW"),
        ({"axes": {"steps": (4, 8)}, "schedule": lambda step: 1.0}, "schedule must take steps"),
        ({"axes": {"weight_decay": (0.0, 0.1)}, "optimizer": "adam"}, "is normalised with the gradient"),
        ({"axes": {}}, "must make two sizes or more"),
        ({"halving": 1, "axes": {"steps": (8,)}}, "halving must be True or False"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as refused:
        asked(**options)
    assert message in str(refused.value)


# ---- halving -------------------------------------------------------------------------------------------------------


def test_halving_keeps_the_better_half_in_a_row() -> None:
    asked_for: list[tuple[int, float]] = []

    def losses(rates: Mapping[str, Sequence[float]], share: float) -> dict[str, list[float]]:
        asked_for.append((len(rates["a"]), share))
        return {place: [abs(rate - 9) for rate in grid] for place, grid in rates.items()}

    left = halved({"a": range(1, 15), "b": range(1, 5)}, losses)
    assert left == {"a": [8, 9, 10, 11], "b": [1, 2, 3, 4]}
    assert asked_for == [(14, 1 / 8), (7, 1 / 4)]
    lost = halved({"a": range(8)}, lambda rates, share: {"a": [torch.inf] * 8})
    assert lost == {"a": [0, 1, 2, 3]}


def test_grids_grow_until_their_ends_are_out_of_the_fit() -> None:
    whole = [2.0**k for k in range(-4, 5)]
    for kept, expected in ((range(-1, 3), range(-3, 4)), (range(-4, 0), range(-4, 4)), (range(-3, 4), range(-3, 4))):
        rates = [2.0**k for k in kept]
        for _ in range(9):
            grid = [k for k in range(-4, 5) if 2.0**k in rates]
            rates = wider(rates, whole, scores(0.0, grid))
        assert rates == [2.0**k for k in expected]


def test_rates_left_out_come_back_where_nothing_is_learnt() -> None:
    dead = Scores(torch.arange(3.0), torch.full((2, 3), 2.0), torch.zeros(2, 3, dtype=torch.bool), 2.0)
    assert wider([1.0, 2.0, 4.0], [0.5, 1.0, 2.0, 4.0, 8.0], dead) == [0.5, 1.0, 2.0, 4.0, 8.0]


LONG = tuple(0.0005 * 3.0**k for k in range(9))


@pytest.mark.usefixtures("alone")
def test_halving_gives_the_answer_of_the_whole_grid_for_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where short trainings mislead it to begin with the wrong rates."""
    one = {"axes": {"steps": (8,)}, "lr": LONG}
    full, few = asked(tmp_path / "full", **one), asked(tmp_path / "few", **one, halving=True)
    monkeypatch.setattr("nfd.questions.halving._better_half", lambda rates, losses: list(rates[:4]))
    misled = asked(tmp_path / "few", **one, halving=True)
    assert few.best("complete-p", 8, 2) == misled.best("complete-p", 8, 2) == full.best("complete-p", 8, 2)
    with Store.read(tmp_path / "full") as store:
        whole = {
            (run.config["lr"], run.config["seed"]): store.curves(run.key)["loss"].tolist() for run in store.records()
        }
    with Store.read(tmp_path / "few") as store:
        short = [run for run in store.records() if "stop" in run.config]
        assert len({run.config["lr"] for run in store.records() if "stop" not in run.config}) < len(LONG)
        for run in short:
            beginning = whole[run.config["lr"], run.config["seed"]][: run.config["stop"]]
            assert store.curves(run.key)["loss"].tolist() == beginning
    assert len(short) == len(LONG) + 5


# ---- the command ---------------------------------------------------------------------------------------------------


def batches() -> list[Any]:
    return VECTORS


def test_the_command_takes_axes_and_writes_their_charts(
    answer: Transfer, out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One size is enough, and the runs are those of the function."""
    monkeypatch.setattr("nfd.report.charts.still", lambda *_: (b"", b""))
    with Store.read(out) as store:
        trained = store.keys()
    line = ["transfer", f"{__name__}:Residual", "--batches", f"{__name__}:batches", "--widths", "8", "--depths", "2"]
    line += ["--rules", "complete-p", "--seeds", "2", "--lr", "0.001", "0.02", "0.4", "--executor", "inline"]
    assert main([*line, "--out", str(out), "--axes", "batch_size=8,16", "--halving"]) == 0
    printed = capsys.readouterr().out
    assert answer.rules[0].against["batch_size"].sentence in printed
    assert "UNCERTAIN" not in printed
    assert "Give two sizes or more" in printed
    assert "--widths 8 16" in printed
    assert {"rate-batch_size.csv", "loss-complete-p-batch_size.csv"} <= {path.name for path in out.iterdir()}
    with Store.read(out) as store:
        assert store.keys() == trained
    for axes in (["batch_size=a,b"], ["steps=4,9"]):
        assert main([*line, "--out", str(out), "--axes", *axes]) == 2
        assert "axes" in capsys.readouterr().err
