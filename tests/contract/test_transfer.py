"""``nfd.transfer``: best rates that are known, through the whole measurement; a sweep that is
stopped and goes on.
"""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.contract.common import ResidualMLP, batches, run, write_setup
from torch import Tensor, nn

import nfd

ONES = [(torch.ones(4, 1), torch.ones(4, 1))] * 8
FEW = batches(steps=4, size=8)


class Bowl(nn.Module):
    """A place in a bowl of curvature ``(width / 4)**growth``; plain descent is best at the inverse
    of its curvature.
    """

    growth = 0.0

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.place = nn.Parameter(1 + 0.1 * torch.rand(1))
        self.unused = nn.Linear(1, width)
        self.curvature = (width / 4) ** self.growth

    def forward(self, x: Tensor) -> Tensor:
        return self.curvature * (x * self.place).square() / 2 + 0 * self.unused(x).sum()


class Steeper(Bowl):
    """The wider, the steeper."""

    growth = 1.0


class Placed(Bowl):
    """The same place from every seed."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        nn.init.constant_(self.place, 1.05)


class Slope(Bowl):
    """A slope that is walked down in strides of the rate, and should be by about 1: the best rate
    is 1 / steps.
    """

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


def octaves(first: int, last: int) -> list[float]:
    return [2.0**k for k in range(first, last + 1)]


BOWL_RATES = (0.5, 0.7071, 1.0, 1.4142)


def of_bowls(
    make_model: Any, optimizer: str = "sgd", lr: Sequence[float] = BOWL_RATES, **task: Any
) -> nfd.Transfer:
    """Under the rule that leaves every rate as it is."""
    family = nfd.Family(make_model, (4, 2), "standard", optimizer)
    return nfd.transfer(family, nfd.Task(ONES[:3], height, **task), [4, 16], [2], lr=lr)


def test_networks_that_are_the_same_for_two_seeds_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"make_model\(4, 2\) gives the same losses for seeds 0 and 1"
    ):
        of_bowls(Placed)


def test_a_rate_that_transfers_is_told_from_one_that_does_not() -> None:
    flat = of_bowls(Bowl)
    steep = of_bowls(Steeper)
    for answer, best in ((flat, 1.0), (steep, 1 / 4)):
        assert answer.best("standard", 16, 2).value == pytest.approx(best, rel=0.1)
        assert answer.best("standard", 4, 2).value == pytest.approx(1, rel=0.1)
        drift = answer.drift("standard", "width")
        assert drift.low <= math.log(best, 4) <= drift.high
    assert (flat.verdict("standard"), steep.verdict("standard")) == ("TRANSFERS", "COSTS")
    assert (flat.answer.tone, steep.answer.tone) == ("good", "bad")
    rate = f"{flat.best('standard', 4, 2).value:.2g}"
    assert flat.answer.title == f"Train at learning rate {rate} with PyTorch's defaults"
    assert steep.answer.title.startswith("A small network's rate costs too much")
    assert abs(flat.regret("standard").value) < 0.02
    assert steep.regret("standard").value > 1


def test_a_rate_that_transfers_comes_with_its_drift_and_where_training_fails() -> None:
    calm = of_bowls(Bowl).answer.because
    failing = of_bowls(Bowl, lr=(*BOWL_RATES, 2.8284)).answer.because
    for because in (calm, failing):
        assert "The best rate is multiplied by 1.00 (95 %: 0.8" in because
        assert "when width doubles" in because
    assert "learns nothing" not in calm
    assert "At rates from 2.8 on, the network of 4 wide, 2 deep learns nothing." in failing


def test_the_advised_plan_has_the_optimizer_of_the_runs_and_no_more() -> None:
    plain = of_bowls(Bowl).answer.next
    decayed = of_bowls(Bowl, weight_decay=1e-4).answer.next
    own = of_bowls(Bowl, make_optimizer=torch.optim.SGD).answer.next
    assert plain is not None
    assert decayed is not None
    assert own is not None
    for advised in (plain, decayed, own):
        assert 'optimizer="sgd"' in advised.code
        assert "sample=task.sample" in advised.code
    assert "weight_decay" not in plain.code
    assert "make=" not in plain.code
    assert "weight_decay=0.0001)" in decayed.code
    assert "make=task.make_optimizer)" in own.code


def along(
    axes: dict[str, Any], make_model: Any, lr: list[float], steps: int = 8, **about: Any
) -> Any:
    """The answer along one axis."""
    family = nfd.Family(make_model, (4, 2), "standard", "sgd")
    task = nfd.Task(ONES[:steps], height, eval_batches=ONES[:1], **about)
    answer = nfd.transfer(family, task, [4], [2], lr=lr, axes=axes, seeds=2)
    (against,) = answer.rules[0].against.values()
    return against


def test_linear_scaling_of_the_batch_is_told_from_none() -> None:
    """Of the same samples, larger batches make fewer steps; a gradient that is summed makes up for
    it.
    """
    linear, none = (
        along({"batch_size": (2, 4, 8)}, made, octaves(-6, 0)) for made in (Slope, Summed)
    )
    assert linear.exponent.value == pytest.approx(1, abs=0.05)
    assert none.exponent.value == pytest.approx(0, abs=0.05)


def test_a_constant_product_of_rate_and_decay_is_told_from_decay_that_does_nothing() -> None:
    """The best rate is 1 / (1 + decay)."""
    strong = along({"weight_decay": (0.0, 63.0, 255.0)}, Bowl, octaves(-11, 2), 3)
    weak = along({"weight_decay": (0.0, 0.001, 0.002)}, Bowl, octaves(-3, 2), 3)
    assert strong.exponent.value == pytest.approx(-1, abs=0.05)
    assert strong.exponent.low < -1 < strong.exponent.high
    assert weak.exponent.low > -0.5


def test_steps_are_the_first_batches_and_a_schedule_knows_how_many() -> None:
    against = along(
        {"steps": (2, 4, 8)}, Slope, octaves(-6, 0), schedule=lambda step, steps: (steps / 4) ** 0.5
    )
    assert against.exponent.value == pytest.approx(-1.5, abs=0.05)


def test_an_exponent_needs_two_values_above_zero() -> None:
    assert math.isnan(along({"weight_decay": (0.0, 63.0)}, Bowl, octaves(-11, 2), 3).exponent.value)


def asked(
    make_model: Any = ResidualMLP, task: Any = FEW, sweep: nfd.Sweep | None = None, **more: Any
) -> nfd.Transfer:
    options = {"rules": ("complete-p",), "lr": (0.001, 0.02, 0.4), "seeds": 2} | more
    return nfd.transfer(make_model, task, [8, 16], [2], sweep=sweep, **options)


@pytest.mark.filterwarnings("ignore:halving goes")
def test_halving_finds_the_rates_of_the_whole_grid_with_fewer_whole_trainings(
    tmp_path: Path,
) -> None:
    long = tuple(0.0005 * 3.0**k for k in range(9))
    answers = []
    whole = []
    for halving in (False, True):
        with nfd.Sweep(tmp_path / str(halving), progress=False, executor="inline") as sweep:
            answers.append(asked(task=batches(8, 8), sweep=sweep, lr=long, halving=halving))
            whole.append(
                {
                    run.config["lr"]
                    for run in sweep.store.records()
                    if run.config.get("stop") is None
                }
            )
    assert answers[0].best("complete-p", 16, 2) == answers[1].best("complete-p", 16, 2)
    assert len(whole[1]) < len(whole[0])


class Deaf(ResidualMLP):
    """A network that no training moves: its outputs pass no gradient."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out.detach() + 0 * out


@pytest.mark.parametrize("make_model", [Deaf, ResidualMLP])
def test_an_answer_begins_with_that_nothing_is_learnt_only_if_it_is_so(make_model: Any) -> None:
    said = str(asked(make_model, rules=("standard", "complete-p")))
    assert (
        said.startswith("? NOT DECIDED YET  Nothing is learnt at 16 wide, 2 deep")
        == ("Nothing is learnt" in said)
        == (make_model is Deaf)
    )


def test_losses_on_other_batches_judge_where_there_are_some() -> None:
    judged = asked(task=nfd.Task(FEW, eval_batches=batches(1, 64, seed=1)))
    assert judged.score == "test loss"
    assert judged.table != asked().table


class Sign(torch.optim.Optimizer):
    """Steps by the sign of the gradient."""

    def __init__(self, groups: Any) -> None:
        super().__init__(groups, {"lr": 1e-3, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad.sign())


def test_an_optimizer_of_ones_own_answers_here_and_in_other_processes() -> None:
    law = nfd.register_optimizer(nfd.OptimizerLaw("toy-sign", Sign, classes=("Sign",)))
    here = asked(optimizer=law)
    with nfd.Sweep(workers=1, progress=False) as sweep:
        assert asked(optimizer="toy-sign", sweep=sweep).table == here.table


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": (0.1, -0.2, 0.3)}, "lr must be greater than 0"),
        ({"rules": ()}, "rules must be one or more"),
        ({"rules": ("mop",)}, "'mup'"),
        ({"optimizer": "lion"}, "make_optimizer"),
        ({"seeds": 1}, "seeds must be at least 2"),
        ({"axes": {"decay": (0.0, 1.0)}}, "weight_decay"),
        ({"axes": {"steps": (4, 9)}}, "steps"),
        ({"make_model": ResidualMLP(8, 2)}, "function"),
        ({"task": [FEW[0][0]]}, "inputs, targets"),
    ],
)
def test_bad_requests_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        asked(**options)


def test_seeds_that_give_one_network_are_refused() -> None:
    def make_model(width: int, depth: int) -> nn.Module:
        torch.manual_seed(0)
        return ResidualMLP(width, depth)

    with pytest.raises(ValueError, match="seeds 0 and 1"):
        asked(make_model, rules=("standard",))


# ---- the command

SETUP = """
from common import ResidualMLP, batches as drawn

class Breaking(ResidualMLP):
    seen = 0

    def forward(self, x):
        self.seen += self.training
        if self.embed.out_features == 16 and self.seen == 2:
            raise RuntimeError("a mistake of the user's")
        return super().forward(x)

make_model = {model}
batches = drawn({steps}, 64)
"""
WORDS = [
    "--widths",
    "8",
    "16",
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
    "--workers",
    "1",
]


def test_a_mistake_of_the_model_is_shown_once_with_its_line(tmp_path: Path) -> None:
    write_setup(tmp_path, SETUP.format(model="Breaking", steps=3))
    ended = run("transfer", "setup.py", *WORDS, folder=tmp_path)
    assert ended.returncode == 2
    assert ended.stderr.count("a mistake of the user's") == 1
    assert "setup.py, line 10" in ended.stderr
    assert "Traceback" not in ended.stderr


# ---- three states, and what to run next


def test_too_few_seeds_are_not_decided_and_say_how_many_would_do() -> None:
    """Two seeds decide nothing, whatever they show."""
    answer = compared(Planted, rules=("mup",), seeds=2)
    assert answer.verdict("mup") == "UNCERTAIN"
    first = answer.answer
    assert (first.tone, first.state) == ("open", "Not decided yet")
    seeds = int(first.title.partition("train ")[2].split()[0])
    assert seeds >= 4
    assert first.next is not None
    assert f"nfd.transfer(..., seeds={seeds})" in first.next.code
    # Four rates or more, since grids grow, of two sizes and two more seeds; 2 rates of new seeds.
    count = int(first.next.label.partition("about ")[2].split()[0])
    assert count >= 2 * 4 * (seeds - 2) + 2 * 2 * seeds
    assert "No rule is known to transfer" not in str(answer)


def noisy(share: float, seeds: int, noise: float) -> list[dict[str, Any]]:
    """A log in which the small network's best rate costs about so large a share of the progress."""
    random = np.random.default_rng(3)
    guess = math.log(10)
    shift = math.sqrt(share * (guess - 0.6) / 0.05)
    rows = []

    def add(width: int, rates: list[float], names: range) -> None:
        vertex = -8.5 + (shift if width == 128 else 0.0)
        for seed in names:
            for rate in rates:
                loss = (0.6 + 0.05 * (rate - vertex) ** 2) * math.exp(noise * random.normal())
                rows.append({"width": width, "lr": 2.0**rate, "seed": seed, "loss": loss})

    for width in (32, 128):
        add(width, [float(rate) for rate in range(-13, 0)], range(seeds))
    found = nfd.fit_transfer(rows, guess=guess)
    best = [math.log2(found.best("logged", width, 1).value) for width in (32, 128)]
    add(128, best, range(seeds, 3 * seeds))
    return rows


@pytest.mark.parametrize(
    ("share", "noise", "verdict", "tone", "begins"),
    [
        (0.01, 0.02, "TRANSFERS", "good", "Train at learning rate 0.00"),
        (0.5, 0.02, "COSTS", "bad", "A small network's rate costs too much: tune at full size"),
        (0.1, 0.2, "UNCERTAIN", "open", "A small network's rate probably transfers; about"),
        (0.3, 0.2, "UNCERTAIN", "open", "A small network's rate probably costs too much; about"),
    ],
)
def test_logs_have_three_states(
    share: float, noise: float, verdict: str, tone: str, begins: str
) -> None:
    transfer = nfd.fit_transfer(noisy(share, 4, noise), guess=math.log(10))
    assert (transfer.verdict("logged"), transfer.answer.tone) == (verdict, tone)
    assert transfer.answer.title.startswith(begins)
    assert transfer.answer.next is not None
    assert len(str(transfer).splitlines()) <= 15
    assert repr(transfer) == f"<Transfer: {transfer.answer.brief}>"


@pytest.mark.parametrize(("least", "hardly"), [(2.25, True), (1.5, False)])
def test_networks_that_hardly_learn_are_trained_longer(least: float, hardly: bool) -> None:
    """Where 2 % of the loss is learnt, no number of seeds tells which share of it is given up."""
    random = np.random.default_rng(0)
    guess = math.log(10)
    rows = []
    for width in (32, 128):
        for seed in range(4):
            for rate in range(-13, -4):
                bowl = 0.05 * (guess - least) * (rate + 9) ** 2
                loss = least + bowl + 0.3 * (guess - least) * random.normal()
                rows.append({"width": width, "lr": 2.0**rate, "seed": seed, "loss": loss})
    best = [
        math.log2(nfd.fit_transfer(rows, guess=guess).best("logged", width, 1).value)
        for width in (32, 128)
    ]
    for seed in range(4, 12):
        for rate in best:
            loss = least + 0.3 * (guess - least) * random.normal()
            rows.append({"width": 128, "lr": 2.0**rate, "seed": seed, "loss": loss})
    transfer = nfd.fit_transfer(rows, guess=guess)
    assert transfer.verdict("logged") == "UNCERTAIN"
    answer = transfer.answer
    assert (answer.title == "These networks hardly learn: train longer") == hardly
    if hardly:
        assert "nats (95 %:" in answer.because
        assert answer.next is None


@pytest.mark.parametrize(("least", "verdict"), [(2.27, "UNCERTAIN"), (1.5, "COSTS")])
def test_a_small_network_that_hardly_learns_costs_the_large_one_nothing_certain(
    least: float, verdict: str
) -> None:
    """At the small one's best rate, four octaves above, the large one loses all that it learns."""
    random = np.random.default_rng(0)
    guess = math.log(10)
    at_best = {32: (least, -5), 128: (1.5, -9)}

    def row(width: int, rate: float, seed: int) -> dict[str, float]:
        lowest, best = at_best[width]
        learnt = guess - lowest
        loss = guess - learnt * max(0.0, 1 - (rate - best) ** 2 / 12) + 0.01 * learnt * noise()
        return {"width": width, "lr": 2.0**rate, "seed": seed, "loss": loss}

    noise = random.normal
    rows = [row(width, k, seed) for width in at_best for seed in range(4) for k in range(-13, -1)]
    tuned = nfd.fit_transfer(rows, guess=guess)
    rates = [math.log2(tuned.best("logged", width, 1).value) for width in at_best]
    rows += [row(128, rate, seed) for seed in range(4, 12) for rate in rates]
    transfer = nfd.fit_transfer(rows, guess=guess)
    assert transfer.verdict("logged") == verdict
    assert transfer.rules[0].regret.share.low > 0.5
    is_open = transfer.answer.title == "These networks hardly learn: train longer"
    assert is_open == (verdict == "UNCERTAIN")
    if is_open:
        assert "32 wide" in transfer.answer.because


def test_an_interval_far_across_the_limit_names_what_else_there_is() -> None:
    """A cost of about the limit takes ten times the seeds, or more than anybody trains."""
    far = nfd.fit_transfer(noisy(0.09, 4, 0.05), guess=math.log(10)).answer
    assert (far.tone, far.title) == (
        "open",
        "Tuning small costs at most 12 %: accept that, or train longer",
    )
    assert "seeds in all" in far.because
    assert far.next is not None
    at_the_limit = nfd.fit_transfer(noisy(0.1, 4, 0.05), guess=math.log(10)).answer
    assert at_the_limit.title.endswith("accept that, or train longer")
    assert "seeds" not in at_the_limit.because
    assert at_the_limit.next is None


def test_both_ends_of_the_cost_are_drawn_where_fresh_seeds_measured_them() -> None:
    """The grid's seeds chose the rates, and end lower than fresh ones by chance."""
    rows = noisy(0.5, 4, 0.05)
    transfer = nfd.fit_transfer(rows, guess=math.log(10))
    fresh = [row["loss"] for row in rows if row["seed"] >= 4]
    means = [float(np.mean(fresh[k::2])) for k in (0, 1)]

    def drawn(part: Any) -> list[dict[str, Any]]:
        if isinstance(part, dict):
            return [part, *(row for value in part.values() for row in drawn(value))]
        return [row for value in part for row in drawn(value)] if isinstance(part, list) else []

    points = drawn(transfer.plot().to_dict())
    ends = [row["value"] for row in points if "fresh seeds at the" in str(row.get("text"))]
    assert ends == pytest.approx(means)
    (bar,) = (row for row in points if "from" in row)
    assert (bar["value"], bar["from"]) == pytest.approx(tuple(means))


def test_every_rule_has_a_chart_in_the_row_that_a_notebook_shows() -> None:
    """One rule is one chart; two are a row, each under its title."""
    rows = [row | {"rule": "mup"} for row in noisy(0.5, 4, 0.05)]
    one = nfd.fit_transfer(rows, guess=math.log(10)).plot().to_dict()
    rows += [row | {"rule": "standard"} for row in noisy(0.5, 4, 0.05)]
    two = nfd.fit_transfer(rows, guess=math.log(10)).plot().to_dict()
    assert "hconcat" not in one
    titles = {part["title"] for part in two["hconcat"]}
    assert titles == {"PyTorch's defaults", "With the plan mup"}


def test_a_best_rate_at_the_end_of_a_log_says_which_rates_to_train() -> None:
    rows = [
        {"width": width, "lr": 2.0**rate, "seed": seed, "loss": 2 + 0.1 * (rate + end) ** 2 + seed}
        for width, end in ((32, 9.4), (128, 6.0))
        for seed in (0, 1)
        for rate in range(-12, -5)
    ]
    answer = nfd.fit_transfer(rows).answer
    assert answer.tone == "open"
    assert answer.title == "The best rate lies at the end of your grid, 0.016"
    assert answer.next is not None
    assert answer.next.label.startswith("Train 128 wide at 0.0312 and 0.0625")
    assert "end of your grid" not in str(nfd.fit_transfer(rows[: len(rows) // 2] * 1).answer)


BOWLS = """
import torch
from tests.contract.test_transfer import ONES, Bowl, Steeper, height
import nfd

family = nfd.Family({model}, (4, 2), "standard", "sgd")
task = nfd.Task(ONES[:3], height)
"""
SWEEP = ["--widths", "4", "16", "--depths", "2", "--lr", "0.5", "0.7071", "1", "1.4142"]


@pytest.mark.parametrize(("model", "code"), [("Bowl", 0), ("Steeper", 1)])
def test_the_shell_exits_with_1_only_where_every_rule_costs(
    model: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "setup.py").write_text(BOWLS.format(model=model))
    ended = run("transfer", "setup.py", *SWEEP, "--executor", "inline", folder=tmp_path)
    assert ended.returncode == code, ended.stderr
    lines = ended.stdout.splitlines()
    assert len(lines) <= 15
    assert lines[0].startswith("✗ COSTS" if code else "✓ TRANSFERS")
    stored = json.loads((tmp_path / "out/transfer/result.json").read_text())
    assert stored["answer"]["title"] in " ".join(ended.stdout.split())
    fresh = [row for row in stored["curves"] if row["seeds"] == "fresh"]
    assert [row["width"] for row in fresh] == [16, 16]
    (command,) = (line.strip() for line in lines if line.startswith("  nfd "))
    if code:
        assert command.startswith("nfd transfer setup.py")
        assert command.endswith("--rules standard complete-p")
    else:
        where = "--width 32 --depth 2 --rule standard --from out/transfer"
        assert command == f"nfd plan setup.py {where}"


# ---- losses at best rates

SINGLE = [(torch.ones(1), torch.ones(1))] * 3
ROLES = {"hidden.weight": "hidden", "readout.weight": "readout"}
RATES = (0.5, 0.7071, 1.0, 1.4142)


class Planted(nn.Module):
    """A place in a valley whose curvature grows with width, above a floor that is lowest where
    hidden weights have a root mean square of ``best``.

    Descent of the readout is best at rate 1 under mup, at 4 / width under standard scaling; mup
    makes hidden weights smaller with width. So mup transfers, standard scaling does not, and the
    floor of mup rises with width by ``rise``.
    """

    rise = 0.0
    gain = 0.0
    best = 1.0

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, width, bias=False)
        self.readout = nn.Linear(width, 8, bias=False)
        # a root mean square of exactly 1
        self.hidden.weight.data = torch.randn(width, width).sign()
        nn.init.normal_(self.readout.weight, std=0.1)
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        place = self.readout.weight.sum() / math.sqrt(self.readout.weight.numel())
        rms = self.hidden.weight.square().mean().sqrt()
        floor = (
            self.rise * (rms / self.best - 1).square().detach() + self.gain / self.width + 0 * rms
        )
        return x * (self.width / 4 * (place - 1).square() / 2 + floor)


class Worse(Planted):
    rise = 0.5


class Growing(Planted):
    gain = 2.0


class WorseGrowing(Planted):
    rise = 0.5
    gain = 2.0


def compared(make_model: Any, widths: tuple[int, ...] = (4, 16), **options: Any) -> nfd.Transfer:
    family = nfd.Family(make_model, (4, 2), "standard", "sgd", roles=ROLES)
    return nfd.transfer(family, nfd.Task(SINGLE, height), widths, (2,), RATES, **options)


@pytest.mark.parametrize(
    ("make_model", "is_worse", "grows"),
    [
        (Planted, False, False),
        (Worse, True, False),
        (Growing, False, True),
        (WorseGrowing, True, True),
    ],
)
def test_a_rule_that_transfers_is_beside_one_whose_loss_is_lower(
    make_model: Any, is_worse: bool, grows: bool
) -> None:
    """The regret is none in all cases: what differs is the loss of another rule, and of the
    smallest network.
    """
    answer = compared(make_model, rules=("standard", "mup"))
    assert (answer.verdict("mup"), answer.verdict("standard")) == ("TRANSFERS", "COSTS")
    but = answer.answer.but
    better = but.startswith("PyTorch's defaults end ")
    assert (better, not answer.notes) == (is_worse, grows)
    assert all("the larger network is" in note for note in answer.notes)
    assert {*answer.notes} <= {*answer.answer.details}
    if is_worse:
        gap = answer.loss("mup", 16, 2).value - answer.loss("standard", 16, 2).value
        assert gap == pytest.approx(0.5 * 0.25, abs=0.05)  # hidden weights are half as large
        assert f"{gap:.2f}" in but
        assert f"But {but[:30]}" in str(answer)
    assert answer.answer.tone == "good"
    rate = f"{answer.best('mup', 4, 2).value:.2g}"
    assert answer.answer.title == f"Train at learning rate {rate} with the plan mup"


def test_the_losses_of_every_rule_and_size_are_told() -> None:
    answer = compared(Growing, rules=("standard", "mup"))
    rows = {
        (row["rule"], row["width"]): row for row in answer.table if row["quantity"] == "best loss"
    }
    assert rows.keys() == {(rule, width) for rule in ("standard", "mup") for width in (4, 16)}
    for (rule, width), row in rows.items():
        loss = answer.loss(rule, width, 2)
        assert (row["value"], row["low"], row["high"]) == (loss.value, loss.low, loss.high)
        assert loss.value == pytest.approx(0.1 + 2 / width, abs=0.02)
        told = [row for row in answer.levels if row["network"] == f"{width} wide, 2 deep"]
        (level,) = (row for row in told if row["rule"] == rule)
        assert level["loss (95 %)"] == loss.in_words().replace("95 %: ", "")
    with pytest.raises(ValueError, match="width 5"):
        answer.loss("mup", 5, 2)


def test_chance_does_not_lower_the_loss_at_the_best_rate() -> None:
    """Losses that no rate moves: the best of twelve rates is lower by chance, the answer is not."""
    random = np.random.default_rng(0)
    found = []
    lowest = []
    for _ in range(40):
        losses = 1 + 0.1 * random.normal(size=(3, 12))
        rows = [
            {"width": width, "lr": 2.0**rate, "seed": seed, "loss": float(losses[seed, rate])}
            for width in (16, 32)
            for seed in range(3)
            for rate in range(12)
        ]
        found.append(nfd.fit_transfer(rows, guess=3.0).loss("logged", 32, 1).value)
        lowest.append(float(losses.mean(0).min()))
    error = 0.1 / math.sqrt(3 * 40)
    assert abs(np.mean(found) - 1) < 3 * error
    assert np.mean(lowest) < 1 - 5 * error


class SmallStart(ResidualMLP):
    """Begins as GPT-2 does, at a width that is too small for it."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)


TRIED: dict[str, Any] = {"rules": ("complete-p",), "lr": (1e-3, 1e-2, 1e-1), "seeds": 2}


@pytest.mark.parametrize(("make_model", "warned"), [(SmallStart, True), (ResidualMLP, False)])
def test_initial_weights_far_from_fan_in_scaling_are_named_with_the_axis_to_try(
    make_model: Any, warned: bool
) -> None:
    answer = nfd.transfer(make_model, batches(3, 8), (16, 32), (2,), **TRIED)
    said = [note for note in answer.notes if "init_scale" in note]
    assert bool(said) is warned
    if warned:
        # 0.02 over 16^-1/2
        assert float(said[0].partition(" times")[0].split()[-1]) == pytest.approx(0.08, rel=0.05)
    tried = nfd.transfer(
        make_model, batches(3, 8), (16,), (2,), **TRIED, axes={"init_scale": (1, 4)}
    )
    assert not any("init_scale" in note for note in tried.notes)


class Larger(Worse):
    best = 2.0


class Doubled(Larger):
    """The same with initial matrices twice as large, in its own code."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.mul_(2)


def test_the_scale_of_initial_weights_is_an_axis() -> None:
    answer = compared(Larger, (16,), rules=("standard",), axes={"init_scale": (0.5, 1, 2, 4)})
    against = answer.rules[0].against["init_scale"]
    assert "lowest at init_scale 2 " in against.sentence
    scaled = {row["init_scale"]: row["value"] for row in against.table if row["quantity"] == "loss"}
    twice = compared(Doubled, (16,), rules=("standard",), axes={"init_scale": (0.5, 1)})
    other = {
        r["init_scale"]: r["value"]
        for r in twice.rules[0].against["init_scale"].table
        if r["quantity"] == "loss"
    }
    assert (other[0.5], other[1]) == pytest.approx((scaled[1], scaled[2]), rel=1e-6)
    assert scaled[1] > scaled[2] + 0.05
    with pytest.raises(ValueError, match="init_scale must be greater than 0"):
        compared(Larger, (16,), rules=("standard",), axes={"init_scale": (0.0, 1.0)})


@pytest.mark.slow
def test_the_shell_prints_losses_and_warnings(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from tests.contract.common import batches as digits\n"
        "from tests.contract.test_transfer import SmallStart as make_model\n"
        "batches = digits(3, 8)\n"
    )
    sizes = [
        "--widths",
        "16",
        "32",
        "--depths",
        "2",
        "--seeds",
        "2",
        "--lr",
        "0.001",
        "0.01",
        "0.1",
    ]
    words = ["mine.py", *sizes, "--verbose"]
    ended = run("transfer", *words, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "'init_scale': (1, 2, 4, 8)" in ended.stdout
    assert "loss" in ended.stdout
    again = run(
        "transfer", *words, "--out", "axes", "--axes", "init_scale=1,2,4,8", folder=tmp_path
    )
    assert again.returncode == 0, again.stderr
    assert "lowest at init_scale" in again.stdout


# ---- without a grid, trainings go where they decide


def default_grid(family: nfd.Family) -> list[float]:
    """An eighth to eight times the usual rate."""
    return [family.law.default_lr * 2.0**k for k in range(-3, 4)]


def is_near(estimate: Any, rate: float) -> bool:
    """Whether an interval holds a rate, and its middle is as near as a search goes: it stops where
    the standard error is a quarter of a doubling.
    """
    within = abs(math.log2(estimate.value / rate)) < 0.35
    return within and bool(estimate.low <= rate <= estimate.high)


def by_width(sweep: nfd.Sweep) -> Counter[int]:
    return Counter(run.config["width"] for run in sweep.store.records())


@pytest.mark.parametrize(("make_model", "verdict"), [(Bowl, "TRANSFERS"), (Steeper, "COSTS")])
def test_a_search_decides_as_the_grid_does_with_fewer_trainings(
    make_model: Any, verdict: str
) -> None:
    family = nfd.Family(make_model, (4, 2), "standard", "sgd")
    task = nfd.Task(ONES[:3], height)
    counts = []
    for lr in (None, default_grid(family)):
        with nfd.Sweep(progress=False) as sweep:
            answer = nfd.transfer(family, task, [4, 16], [2], lr, sweep=sweep)
            counts.append(by_width(sweep))
        assert answer.verdict("standard") == verdict
        best = 1.0 if make_model is Bowl else 0.25
        for width, rate in ((4, 1.0), (16, best)):
            assert is_near(answer.best("standard", width, 2), rate)
        drift = answer.drift("standard", "width")
        assert drift.low <= math.log(best, 4) <= drift.high
    searched, whole = counts
    assert searched.total() < whole.total()
    # The large network is what a training of real sizes costs.
    assert 3 * searched[16] <= whole[16]


def searching(
    make_model: Any = ResidualMLP, widths: tuple[int, ...] = (8, 32), **options: Any
) -> nfd.Transfer:
    return nfd.transfer(make_model, batches(4, 16), widths, (2,), **({"rules": ("mup",)} | options))


def test_a_search_advises_the_rate_that_it_compared() -> None:
    answer = compared_by_search(Planted, rules=("standard", "mup"))
    assert (answer.verdict("mup"), answer.verdict("standard")) == ("TRANSFERS", "COSTS")
    rate = answer.best("mup", 4, 2).value
    assert f"learning rate {rate:.2g} with the plan mup" in answer.answer.title
    regret = answer.rules[1].regret
    assert regret is not None
    assert 2 ** regret.new.log2_eta[0] == pytest.approx(rate)
    assert 0 <= regret.share.value <= regret.share.high < 0.1


def compared_by_search(make_model: Any, **options: Any) -> nfd.Transfer:
    family = nfd.Family(make_model, (4, 2), "standard", "sgd", roles=ROLES)
    return nfd.transfer(family, nfd.Task(SINGLE, height), (4, 16), (2,), **options)


def test_a_budget_is_kept_and_a_larger_one_goes_on_from_the_store(tmp_path: Path) -> None:
    """Every answer has at most the budget; the stored runs are those of the whole search."""
    counts = []
    for budget in (10, 30, None, None):
        with nfd.Sweep(tmp_path / "out", progress=False) as sweep:
            answer = searching(seeds=3, budget=budget, sweep=sweep)
            keys = {run.key for run in sweep.store.records()}
        counts.append(len(keys))
        if budget is None:
            continue
        assert len(keys) <= budget
        assert answer.verdict("mup") == "UNCERTAIN"
        assert answer.answer.next is not None
        assert f"budget={2 * budget}" in answer.answer.next.code
        assert "nfd.transfer(..., budget=" in answer.answer.next.code
    small, larger, whole, again = counts
    assert small < larger < whole == again
    with nfd.Sweep(progress=False) as sweep:
        searching(seeds=3, sweep=sweep)
        assert {run.key for run in sweep.store.records()} == keys


class Counting:
    """An executor that trains one network after the other, and counts them by round.

    It passes for one of as many workers as ``slots`` says.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.rounds = list[int]()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def run(self, tasks: Any) -> Any:
        self.rounds.append(len(tasks))
        for index, task in enumerate(tasks):
            yield index, task(), None


def test_a_larger_budget_trains_only_what_is_new(tmp_path: Path) -> None:
    stored = 0
    for budget in (20, 40):
        counting: Any = Counting(1)
        with nfd.Sweep(tmp_path, executor=counting, progress=False) as sweep:
            answer = searching(seeds=4, budget=budget, sweep=sweep)
            assert sum(counting.rounds) == len(sweep.store.records()) - stored > 0
            stored = len(sweep.store.records())
    assert answer.answer.about.endswith("trainings")


def test_idle_workers_train_ahead_and_change_no_answer() -> None:
    """Rounds fill all workers; what was trained ahead is used, and the rest is said."""
    answers = {}
    rounds = {}
    for slots in (1, 4):
        counting: Any = Counting(slots)
        with nfd.Sweep(executor=counting, progress=False) as sweep:
            answers[slots] = searching(seeds=8, sweep=sweep)
        rounds[slots] = counting.rounds
    assert answers[4].table == answers[1].table
    assert answers[4].answer.title == answers[1].answer.title
    assert len(rounds[4]) < len(rounds[1])
    waves = {slots: sum(-(-count // 4) for count in rounds[slots]) for slots in rounds}
    assert waves[4] < waves[1]
    unused = sum(rounds[4]) - sum(rounds[1])
    said = [note for note in answers[4].notes if "Idle workers" in note]
    assert bool(said) is (unused > 0)
    assert not any("Idle workers" in note for note in answers[1].notes)
    if said:
        assert f"{unused} network" in said[0]


def test_a_budget_is_not_spent_on_what_may_not_be_needed() -> None:
    totals = []
    for slots in (1, 4):
        counting: Any = Counting(slots)
        with nfd.Sweep(executor=counting, progress=False) as sweep:
            searching(seeds=8, budget=30, sweep=sweep)
        totals.append(sum(counting.rounds))
    assert totals[0] == totals[1] <= 30


def test_a_log_says_what_is_known_and_what_comes_next(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every round takes more than a minute by this clock."""
    now = [0.0]

    def later() -> float:
        now[0] += 61.0
        return now[0]

    monkeypatch.setattr("nfd.core.tables.time.monotonic", later)
    with nfd.Sweep(progress=False) as sweep:
        searching(seeds=3, sweep=sweep)
    assert capsys.readouterr().err == ""
    with nfd.Sweep() as sweep:
        searching(seeds=3, sweep=sweep)
    said = capsys.readouterr().err
    assert "nfd: now: the small network's best rate" in said
    assert "mup: the small network's best rate is about 0.0" in said
    assert "now: where the large network's best rate lies" in said
    assert "the large one gives up" in said
    assert "3 seeds" in said


class OfDigits(nn.Module):
    """Two residual blocks, which learn digits in 60 steps."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(64, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h.relu())
        return self.head(h)


def test_an_undecided_search_says_how_many_seeds_and_a_decided_one_does_not() -> None:
    answer = nfd.transfer(OfDigits, batches(60, 16), (8, 32), (2,), rules=("mup",), seeds=2)
    assert answer.verdict("mup") == "UNCERTAIN"
    assert answer.answer.next is not None
    seeds = int(answer.answer.next.code.partition("seeds=")[2].partition(")")[0])
    assert seeds > 2
    assert f"{seeds} seeds" in answer.answer.title + answer.answer.because
    assert "rates" not in answer.answer.next.code
    decided = compared_by_search(Planted, rules=("mup",)).answer
    assert decided.next is not None
    assert "seeds=" not in decided.next.code


def test_sizes_between_are_trained_only_for_a_drift() -> None:
    """Their best rates are those of the bowls."""
    family = nfd.Family(Steeper, (4, 2), "standard", "sgd")
    answers = {}
    for drift in (False, True):
        with nfd.Sweep(progress=False) as sweep:
            answers[drift] = nfd.transfer(
                family, nfd.Task(ONES[:3], height), [4, 8, 16], [2], drift=drift, sweep=sweep
            )
            assert (8 in by_width(sweep)) is drift
        assert any("width 8" in note for note in answers[drift].notes) is not drift
    assert answers[True].verdict("standard") == answers[False].verdict("standard") == "COSTS"
    assert is_near(answers[True].best("standard", 8, 2), 0.5)
    estimate = answers[True].drift("standard", "width")
    assert estimate.low <= -1 <= estimate.high
    assert estimate.high - estimate.low < 2
    with pytest.raises(ValueError, match="no runs of width 8"):
        answers[False].best("standard", 8, 2)


@pytest.mark.parametrize(
    ("rules", "are_equal"), [(("mup", "complete-p"), True), (("standard", "mup"), False)]
)
def test_rules_share_the_small_network_where_their_plans_are_equal(
    rules: tuple[str, ...], are_equal: bool
) -> None:
    """At the base these two plans change nothing; a model without one keeps its own weights."""
    with nfd.Sweep(progress=False) as sweep:
        both = searching(rules=rules, seeds=2, sweep=sweep)
        trained = {run.config["rule"] for run in sweep.store.records() if run.config["width"] == 8}
    assert trained == ({"mup"} if are_equal else {*rules})
    alone = searching(rules=rules[1:], seeds=2)
    assert alone.table == [row for row in both.table if row["rule"] == rules[1]]


def test_halving_warns_and_a_grid_does_not() -> None:
    with pytest.warns(FutureWarning, match=r"halving goes in 0\.5"):
        asked(halving=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asked()


@pytest.mark.parametrize("make_model", [Deaf, ResidualMLP])
def test_a_search_ends_where_nothing_is_learnt(make_model: Any) -> None:
    answer = searching(make_model, seeds=2)
    is_deaf = make_model is Deaf
    assert answer.answer.title.startswith("Nothing is learnt at 8 wide") is is_deaf
    with pytest.raises(ValueError, match="no runs of width 32") if is_deaf else nullcontext():
        answer.best("mup", 32, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 40, "lr": (0.001, 0.02, 0.4)}, "budget bounds a search"),
        ({"budget": 5}, "budget must be at least 6"),
        ({"budget": 11, "rules": ("mup", "standard")}, "budget must be at least 12"),
        ({"seeds": 1}, "seeds must be at least 2"),
        ({"drift": 1}, "drift"),
    ],
)
def test_bad_requests_of_a_search_are_refused_by_name(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        searching(**options)


def test_the_shell_searches_and_goes_on_with_a_larger_budget(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text(BOWLS.format(model="Bowl"))
    sizes = ["--widths", "4", "16", "--depths", "2", "--executor", "inline"]
    ended = run("transfer", "setup.py", *sizes, "--budget", "20", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "? NOT DECIDED YET" in ended.stdout
    assert "--budget 40" in ended.stdout
    ended = run("transfer", "setup.py", *sizes, "--budget", "80", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("✓ TRANSFERS")
    stored = json.loads((tmp_path / "out/transfer/result.json").read_text())
    assert {row["seeds"] for row in stored["curves"]} == {"grid", "paired"}


# ---- a search along settings


class Valley(Bowl):
    """Pays for the distance of a setting from its best value, which may move with width.

    What it pays differs a little from start to start.
    """

    moves = False

    def __init__(self, width: int, depth: int, tilt: float = 0.0) -> None:
        super().__init__(width, depth)
        best = 1.0 if self.moves and width > 4 else 0.0
        noise = 0.01 * torch.randn(8)[int(4 * tilt)]
        self.register_buffer("paid", 0.3 * (tilt - best) ** 2 + noise)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.paid


class MovingValley(Valley):
    moves = True


def along_tilt(make_model: Any, **options: Any) -> nfd.Transfer:
    family = nfd.Family(make_model, (4, 2), "standard", "sgd")
    task = nfd.Task(ONES[:3], height)
    return nfd.transfer(family, task, [4, 16], [2], axes={"tilt": (0.0, 0.5, 1.0)}, **options)


@pytest.mark.parametrize(
    ("make_model", "verdict", "regret"), [(Valley, "TRANSFERS", 0.0), (MovingValley, "COSTS", 0.35)]
)
def test_the_best_value_of_a_setting_is_found_and_whether_it_serves_the_large_network(
    make_model: Any, verdict: str, regret: float
) -> None:
    with nfd.Sweep(progress=False) as sweep:
        answer = along_tilt(make_model, sweep=sweep)
        large = by_width(sweep)[16]
    assert answer.verdict("standard") == "TRANSFERS"
    assert answer.verdict("standard", "tilt") == verdict
    against = answer.rules[0].against["tilt"]
    assert against.best_value == 0.0
    # Of the loss reduction, .55 from the bowl and .3 from the setting, a better value saves .3.
    assert against.regret.value == pytest.approx(regret, abs=0.03)
    assert against.regret.low <= regret <= against.regret.high
    words = "transfers" if verdict == "TRANSFERS" else "costs too much"
    assert f"The smallest network's best tilt, 0, {words}: at width 16" in answer.answer.because
    assert "may transfer" not in answer.answer.because
    assert answer.answer.because.split("The smallest")[1] in str(against)
    rows = [row for row in answer.table if row.get("tilt") is not None]
    (row,) = (row for row in rows if row["quantity"] == "regret over progress")
    assert (row["tilt"], row["width"], row["value"]) == (0.0, 16, against.regret.value)
    assert is_near(answer.best("standard", 4, 2, tilt=0.5), 1.0)
    with pytest.raises(ValueError, match="at width 4 and depth 2"):
        answer.best("standard", 16, 2, tilt=0.5)
    # The rate takes at most 3 rates, each value 12 seeds.
    assert large <= 3 * 12 + 3 * 12


def test_a_setting_is_not_asked_where_the_rate_itself_costs_or_the_budget_is_spent() -> None:
    class SteepValley(Valley):
        growth = 1.0

    for answer, why in (
        (along_tilt(SteepValley), "its learning rate is not known to transfer"),
        (along_tilt(Valley, budget=60), "the budget is spent"),
    ):
        assert answer.rules[0].against == {}
        assert any("tilt" in note and why in note for note in answer.notes)
        with pytest.raises(ValueError, match="setting"):
            answer.verdict("standard", "tilt")


def test_steps_and_one_size_keep_the_grid() -> None:
    family = nfd.Family(Bowl, (4, 2), "standard", "sgd")
    task = nfd.Task(ONES[:4], height)
    for widths, axes in (([4, 16], {"steps": (2, 4)}), ([4], {"weight_decay": (0.0, 0.1)})):
        answer = nfd.transfer(family, task, widths, [2], axes=axes, seeds=2)
        assert answer.spent is None
        (against,) = answer.rules[0].against.values()
        assert len(against.cells) == 2 * len(widths)


def test_a_setting_that_two_seeds_do_not_decide_says_how_many_may_tell() -> None:
    class NoisyValley(Valley):
        """Pays for nothing but chance."""

        def __init__(self, width: int, depth: int, tilt: float = 0.0) -> None:
            super().__init__(width, depth, tilt)
            self.paid = 0.2 * torch.rand(8)[int(4 * tilt)] * (width > 4)

    answer = along_tilt(NoisyValley, seeds=2)
    assert answer.verdict("standard") == "TRANSFERS"
    assert answer.verdict("standard", "tilt") == "UNCERTAIN"
    sentence = answer.rules[0].against["tilt"].sentence
    assert "may transfer: at width 16 and depth 2 it gives up" in sentence
    assert "seeds may tell" in sentence


def test_the_shell_searches_along_a_setting(tmp_path: Path) -> None:
    """So weak a decay does nothing: each value serves."""
    (tmp_path / "setup.py").write_text(BOWLS.format(model="Bowl"))
    words = ["--widths", "4", "16", "--depths", "2", "--executor", "inline", "--rules", "standard"]
    axes = ["--axes", "weight_decay=0,0.0001"]
    ended = run("transfer", "setup.py", *words, *axes, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    printed = " ".join(ended.stdout.split())
    assert "best weight_decay" in printed
    assert "transfers: at" in printed
    page = (tmp_path / "out/transfer/report.html").read_text()
    assert "The best rate against weight_decay" in page
    assert "What one more seed buys against one more size" in page
    stored = json.loads((tmp_path / "out/transfer/result.json").read_text())
    rows = [row for row in stored["table"] if row.get("weight_decay") is not None]
    assert {row["width"] for row in rows if row["quantity"] == "regret over progress"} == {16}


class Unskipped(nn.Module):
    """Blocks without a skip, which complete-p does not scale."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Linear(64, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)
        )
        self.last = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for block in self.blocks:
            h = block(h)
        return self.last(h)


def test_rates_under_standard_are_compared_where_no_rule_scales() -> None:
    sizes: dict[str, Any] = {"widths": (4, 8), "depths": (2,), "lr": (0.01, 0.02, 0.04)}
    answer = nfd.transfer(Unskipped, FEW, **sizes, rules=("standard",), seeds=2)
    assert {row["rule"] for row in answer.table} == {"standard"}
    with pytest.raises(ValueError, match="cannot decide the roles"):
        nfd.transfer(Unskipped, FEW, **sizes, rules=("complete-p",), seeds=2)
