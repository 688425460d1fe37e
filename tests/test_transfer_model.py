"""``nfd.transfer`` of anyone's model: known optima through the whole measurement, resuming, what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models import Residual
from tests.stopped import start
from torch import Tensor, nn

import nfd
from nfd.cli.main import main
from nfd.families.paper import PaperFamily
from nfd.questions.transfer import Transfer
from nfd.questions.transfer_findings import transfer_findings
from nfd.runs.executors.processes import Processes
from nfd.runs.sweep import Sweep
from nfd.store.store import Store

STREAM = torch.Generator().manual_seed(0)
VECTORS = [(torch.randn(8, 5, generator=STREAM), torch.randint(0, 3, (8,), generator=STREAM))] * 4
FEW: dict[str, Any] = {"rules": ("complete-p",), "lr": (0.001, 0.02, 0.4), "seeds": 2}
ONES = [(torch.ones(1), torch.ones(1))] * 3


class Valley(nn.Module):
    """A place in a valley of known curvature, ``(width / 4)**growth``; plain descent is best at its inverse."""

    growth = 0.0

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.place = nn.Parameter(1 + 0.1 * torch.rand(1))
        self.unused = nn.Linear(1, width)
        self.curvature = (width / 4) ** self.growth

    def forward(self, x: Tensor) -> Tensor:
        return self.curvature * (x * self.place).square() / 2 + 0 * self.unused(x).sum()


class Steeper(Valley):
    """The wider, the steeper."""

    growth = 1.0


def height(out: Tensor, y: Tensor) -> Tensor:
    return out.mean() + 0.1


def of_valleys(make_model: Any, **options: Any) -> Transfer:
    """Under the rule that leaves every rate as it is."""
    given: dict[str, Any] = {"rules": ("standard",), "optimizer": "sgd", "lr": (0.5, 0.7071, 1.0, 1.4142)}
    return nfd.transfer(make_model, (4, 16), (2,), ONES, loss=height, **given | options)


def test_a_rate_that_transfers_is_told_from_one_that_does_not() -> None:
    """Every network's best rate is known: one for all, or a quarter for the wide ones."""
    flat, steep = of_valleys(Valley), of_valleys(Steeper)
    assert flat.best("standard", 4, 2).value == pytest.approx(1, rel=0.1)
    assert flat.best("standard", 16, 2).value == pytest.approx(1, rel=0.1)
    assert steep.best("standard", 16, 2).value == pytest.approx(1 / 4, rel=0.1)
    for answer, moved in ((flat, 0.0), (steep, -1.0)):
        drift = answer.drift("standard", "width")
        assert drift.low <= moved <= drift.high
        assert drift.value == pytest.approx(moved, abs=0.1)
    assert flat.verdict("standard") == "TRANSFERS"
    assert steep.verdict("standard") == "COSTS"
    assert abs(flat.regret("standard").value) < 0.02
    assert steep.regret("standard").value > 1
    assert "best lr" in str(steep)
    assert {row["rule"] for row in steep.table} == {"standard"}


def test_the_curves_of_the_loss_show_their_fitted_optima() -> None:
    transfer = of_valleys(Steeper)
    (curves,) = [finding for finding in transfer_findings(transfer) if finding.name == "loss-standard"]
    marked = {(row["series"], row["lr"]) for row in curves.references}
    assert marked == {(f"best at width {n}", transfer.best("standard", n, 2).value) for n in (4, 16)}
    assert [row["width"] for row in curves.table] == ["4", "16"]
    unknown = of_valleys(Valley, lr=(1e-9, 2e-9, 4e-9))  # too low for anything to be learnt, and for the grid to grow
    (flat,) = [finding for finding in transfer_findings(unknown) if finding.name == "loss-standard"]
    assert not flat.references
    assert {row["best lr"] for row in flat.table} == {"unknown"}


def asked(out: Path | None, make_model: Any = Residual, **options: Any) -> Transfer:
    return nfd.transfer(make_model, (8, 16), (2,), VECTORS, out=out, **FEW | options)


def losses_of(answer: Transfer) -> Tensor:
    return torch.stack([cell.losses for cell in answer.rules[0].cells.values()])


def test_a_transfer_that_was_stopped_goes_on_and_gives_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = asked(None)
    keep, left = Sweep.keep, iter(range(1))

    def stopping(sweep: Sweep, records: Any) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        keep(sweep, records)

    monkeypatch.setattr(Sweep, "keep", stopping)
    with pytest.raises(KeyboardInterrupt):
        asked(tmp_path)
    monkeypatch.setattr(Sweep, "keep", keep)
    with Store.read(tmp_path) as store:
        before = store.keys()
    assert before
    again = asked(tmp_path)
    assert again.table == whole.table
    assert torch.equal(losses_of(again), losses_of(whole))
    with Store.read(tmp_path) as store:
        assert before < store.keys()
        trained = len(store)
    assert asked(tmp_path).table == whole.table
    with Store.read(tmp_path) as store:
        assert len(store) == trained


class Gained(Residual):
    """A model whose code has a number in it."""

    gain = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * super().forward(x)


def test_a_model_whose_code_has_changed_gets_no_stale_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = asked(tmp_path, Gained)
    monkeypatch.setattr(Gained, "gain", 2.0)
    after = asked(tmp_path, Gained)
    assert not torch.equal(losses_of(after), losses_of(before))
    assert torch.equal(losses_of(after), losses_of(asked(None, Gained)))


def test_losses_on_other_batches_judge_where_there_are_some() -> None:
    judged = asked(None, eval_batches=VECTORS[:1])
    assert judged.score == "test loss"
    assert not torch.equal(losses_of(judged), losses_of(asked(None)))


class Sign(torch.optim.Optimizer):
    """Steps by the sign of the gradient."""

    def __init__(self, groups: Any) -> None:
        super().__init__(groups, {"lr": 1e-3, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad.sign())


def test_an_optimizer_of_ones_own_answers_every_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nfd.scaling.laws._TABLE", dict(nfd.scaling.laws._TABLE))
    law = nfd.register_optimizer(nfd.OptimizerLaw("toy-sign", Sign, classes=("Sign",)))
    model = Residual(32, 2)
    plan = nfd.plan(model, rule="mup", optimizer="toy-sign", make_model=Residual, base_width=8, base_depth=2)
    assert isinstance(plan.make_optimizer(model, lr=0.1), Sign)
    assert plan.rate("blocks.0.up.weight") == pytest.approx(1 / 4)  # as Adam: updates of order one in every entry
    checked = nfd.check(Residual, [8, 16], [2], VECTORS, rule="mup", optimizer="toy-sign", lr=1e-3, seeds=2)
    assert checked.optimizer == law.name
    here = asked(None, optimizer="toy-sign")
    there = asked(None, optimizer=law, executor=Processes(1))
    assert torch.equal(losses_of(here), losses_of(there))
    assert here.best("complete-p", 8, 2).value > 0


def test_networks_of_a_family_are_asked_as_they_are() -> None:
    family = PaperFamily(nfd.ResNet, 5, 3)
    answer = nfd.transfer(family, (8, 16), (2,), VECTORS, optimizer="sgd", **FEW | {"rules": ("depth-mup",)})
    assert answer.rules[0].rate == "eta_c"
    assert [row["quantity"] for row in answer.table][:2] == ["best eta_c"] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": (0.1, 0.2)}, "lr must be three or more"),
        ({"lr": (0.1, -0.2, 0.3)}, "lr must be greater than 0"),
        ({"rules": ()}, "rules must be one or more"),
        ({"rules": ("mup", "mup")}, "rules must be one or more different"),
        ({"rules": ("mop",)}, "Did you mean 'mup'?"),
        ({"optimizer": "adam", "weight_decay": 0.1}, "is normalised with the gradient"),
        ({"optimizer": "lion"}, "pass make_optimizer="),
        ({"seeds": 1}, "seeds must be at least 2"),
        ({"loss": "crossentropy"}, "Did you mean 'cross-entropy'?"),
        ({"loss": lambda out, y: -1 - out.square().mean()}, "loss must not be negative"),
        ({"eval_batches": [VECTORS[0][0]]}, "eval_batches must be a list of"),
        ({"make_optimizer": "adam"}, "make_optimizer must be a function"),
        ({"schedule": 1.0}, "schedule must be a function"),
        ({"device": "nowhere"}, "device"),
    ],
)
def test_bad_requests_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message.replace("?", r"\?")):
        asked(None, **options)


def test_sizes_are_two_or_more() -> None:
    with pytest.raises(ValueError, match="must make two sizes or more"):
        nfd.transfer(Residual, (8,), (2,), VECTORS)
    with pytest.raises(ValueError, match="widths must be ascending"):
        nfd.transfer(Residual, (16, 8), (2,), VECTORS)


def test_seeds_that_give_one_network_are_refused() -> None:
    def make_model(width: int, depth: int) -> nn.Module:
        torch.manual_seed(0)
        return Residual(width, depth)

    with pytest.raises(ValueError, match=r"the same losses for seeds 0 and 1"):
        asked(None, make_model, rules=("standard",))


class Empty(Residual):
    """A model whose outputs are no numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * math.nan


def test_a_loss_that_is_no_number_before_training_is_refused() -> None:
    """No rate can help, so that more of them would be tried in vain."""
    for loss in ("cross-entropy", lambda out, y: out.square().mean()):
        with pytest.raises(RuntimeError, match=r"make_model\((8|16), 2\) has a loss of nan before it is trained"):
            asked(None, Empty, loss=loss)


# ---- the command -------------------------------------------------------------------------------------------------


BATCHES = "tests.test_transfer_model:VECTORS"  # for other processes, too


def the_line(out: Path, *options: str) -> list[str]:
    """The command that asks what ``asked`` asks."""
    words = ["transfer", "tests.models:Residual", "--batches", BATCHES, "--widths", "8,16"]
    words += [
        "--depths",
        "2",
        "--rules",
        "complete-p",
        "--lr",
        "0.001",
        "0.02",
        "0.4",
        "--seeds",
        "2",
        "--out",
        str(out),
    ]
    return [*words, *options]


def stored(place: Path) -> set[str]:
    with Store.read(place) as store:
        return store.keys()


def test_the_command_answers_as_the_function_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(the_line(tmp_path, "--executor", "inline")) == 0
    trained = stored(tmp_path)
    assert {"report.html", "result.json", "transfer.csv", "config.toml"} <= {path.name for path in tmp_path.iterdir()}
    asked(tmp_path)
    assert stored(tmp_path) == trained
    (step, *_) = json.loads((tmp_path / "result.json").read_text())["next"]
    printed = capsys.readouterr().out
    assert step["command"] in printed
    assert step["command"].startswith("nfd ")
    assert f"--batches {BATCHES}" in step["command"]
    for option in (["--eta-c", "0.1"], ["--from", "runs.csv"]):
        assert main(the_line(tmp_path, *option)) == 2
        assert option[0] in capsys.readouterr().err
    assert main(["transfer", "--batches", BATCHES]) == 2
    assert "--batches" in capsys.readouterr().err


def warm_up(step: int) -> float:
    return (1 + step) / len(VECTORS)


LAW = nfd.OptimizerLaw("transfer-test-sign", Sign, classes=("Sign",))


def test_every_argument_of_the_function_has_its_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule, a loss, an optimizer's law, roles, blocks and batches to judge by."""
    monkeypatch.setattr("nfd.scaling.laws._TABLE", dict(nfd.scaling.laws._TABLE))
    here = f"{__name__}:"
    names = {"schedule": "warm_up", "loss": "spread", "optimizer": "LAW", "eval-batches": "VECTORS"}
    options = [word for option, name in names.items() for word in (f"--{option}", here + name)]
    options += ["--roles", "head.weight=readout", "--blocks", "blocks.*", "--executor", "inline"]
    assert main(the_line(tmp_path, *options)) == 0
    trained = stored(tmp_path)
    given: dict[str, Any] = {"schedule": warm_up, "loss": spread, "optimizer": LAW, "eval_batches": VECTORS}
    asked(tmp_path, roles={"head.weight": "readout"}, blocks="blocks.*", **given)
    assert stored(tmp_path) == trained


def spread(out: Tensor, y: Tensor) -> Tensor:
    return out.square().mean() + 0.1


@pytest.mark.slow
@pytest.mark.parametrize("point", ["written", "handed", "trained"])
def test_a_transfer_that_is_killed_goes_on_with_workers_and_gives_the_same_bits(point: str, tmp_path: Path) -> None:
    """kill -9 of the driver of a worker; then to the end, against one that was not killed."""
    driver = start(point, 2, *the_line(tmp_path / "killed", "--executor", "processes", "--workers", "1"))
    driver.kill()
    driver.communicate()
    before = stored(tmp_path / "killed")
    again = asked(tmp_path / "killed", executor=Processes(1))
    whole = asked(tmp_path / "whole")
    assert again.table == whole.table
    assert torch.equal(losses_of(again), losses_of(whole))
    assert before < stored(tmp_path / "killed") == stored(tmp_path / "whole")


class Breaking(Residual):
    """A model with a mistake that shows in the second step of its larger size alone."""

    seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += self.training
        if self.embed.out_features == 16 and self.seen == 2:
            raise RuntimeError("a mistake of the user's")
        return super().forward(x)


def test_a_mistake_in_a_worker_is_shown_once_with_its_line_and_ends_the_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = the_line(tmp_path, "--executor", "processes", "--workers", "1")
    line[1] = "tests.test_transfer_model:Breaking"
    assert main(line) == 2
    said = capsys.readouterr().err
    assert said.count("a mistake of the user's") == 1
    assert "test_transfer_model.py, line" in said
    assert "Traceback" not in said
    with Store.read(tmp_path) as store:
        assert len(store.keys(status="failed")) == 1  # the others would fail alike


def test_a_mistake_that_a_loss_makes_is_shown_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(the_line(tmp_path, "--loss", f"{__name__}:mistaken", "--executor", "inline")) == 2
    said = capsys.readouterr().err
    assert "Fix it" in said
    assert "in mistaken" in said
    assert not stored(tmp_path)


def mistaken(out: Tensor, y: Tensor) -> Tensor:
    return out[len(out)]
