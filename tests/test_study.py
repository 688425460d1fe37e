"""What a study says, from outputs whose loss has a closed form: where a statement is true and where
not.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nfd import Sweep
from nfd.cli import main
from nfd.core.answer import in_terminal
from nfd.core.findings import Finding
from nfd.core.words import INFINITE
from nfd.paper.findings import NAMES, findings
from nfd.paper.settings import StudyConfig
from nfd.paper.study import BLOCK_RULES, NARROW, Study
from nfd.paper.study_answer import decisions_of, study_answer

DEPTHS = (2, 4, 8, 16)
WIDTHS = (64, 256)
STEPS = 2
METERS = ("inner_update", "stream_update", "function_update", "function_update_inner")
Margin = Callable[[str, float], float]  # of the right output over the others, by feedback and depth


def loss(margin: float) -> float:
    """Cross-entropy in nats where the right one of ten outputs is larger by the margin."""
    return math.log(1 + 9 * math.exp(-margin))


def nearing(feedback: str, depth: float) -> float:
    """2 at infinite depth, less by 2 / L; with independent feedback less by a half."""
    return 2 - 2 / depth - (0.5 if feedback == "independent" else 0.0)


@cache
def template() -> Study:
    return Study(
        StudyConfig(depths=DEPTHS, widths=WIDTHS, replicates=3, seeds=3, steps=STEPS, batch=4)
    )


def right(margin: float, spread: float = 0.0) -> Tensor:
    """Outputs of three runs that answer right by a margin, at every step; by ``spread`` more or
    less.
    """
    hot = torch.nn.functional.one_hot(template().targets, 10).double()
    return torch.stack([(margin + spread * k) * hot for k in (-1, 0, 1)])


def made(
    margin: Margin = nearing,
    *,
    narrow: float = 0.0,
    real: Callable[[int, int], float] | None = None,
    spread: float = 0.0,
) -> Study:
    """A study whose limits have these margins, of narrow ones ``narrow`` less; and real networks
    theirs.

    A replicate has ``spread`` more or less of the margin at every depth and with either feedback,
    as a seed does.
    """
    study = template()
    study.measured = type(study.measured)()
    for feedback in ("shared", "independent"):
        for L in DEPTHS:
            study.measured.limits[feedback, L] = right(margin(feedback, L), spread)
        study.measured.narrow[feedback] = right(margin(feedback, DEPTHS[-2]) - narrow)
    if real is not None:
        for L in DEPTHS:
            for n in WIDTHS:
                study.measured.real[L, n] = right(real(n, L), spread)
    return study


def add_blocks(study: Study, **powers: float) -> None:
    """Sizes of updates of two-layer blocks that go as these powers of the depth under uniform
    rates, others alike.
    """
    for rule in BLOCK_RULES:
        for L in study.config.block_depths:
            for index in range(study.config.block_seeds):
                sizes = dict.fromkeys(METERS, 1.0)
                for meter, power in powers.items():
                    sizes[meter] = (
                        0.1 * L ** (power if rule == "depth-mup" else 0.0) * (1 + 0.01 * index)
                    )
                study.measured.blocks.append(
                    {"rule": rule, "depth": L, "index": index, "steps": STEPS} | sizes
                )


def named(study: Study, name: str) -> Finding:
    return next(f for f in findings(study) if f.name == name)


def numbers(text: str, before: str) -> list[float]:
    """The numbers in a sentence that begins like this."""
    sentence = re.search(re.escape(before) + r".*?(?:\.(?= |$)|$)", text)
    assert sentence is not None, text
    return [
        float(n)
        for n in re.findall(r"(?<![\w^])[-+]?\d+(?:\.\d+)?", sentence[0].removeprefix(before))
    ]


# ---- losses


def test_losses_are_those_of_the_margins() -> None:
    finding = named(made(), "loss-shared")
    wanted = {f"infinitely wide, depth {L}": loss(2 - 2 / L) for L in DEPTHS} | {
        "infinitely wide and deep": loss(2.0)
    }
    assert {row["series"]: row["loss"] for row in finding.rows} == pytest.approx(wanted)
    assert numbers(finding.headline, "from loss ")[0] == pytest.approx(loss(2.0), abs=1e-4)
    assert "with 1 updates of 4 samples" in finding.headline
    other = {row["series"]: row["loss"] for row in named(made(), "loss-independent").rows}
    assert other["infinitely wide and deep"] == pytest.approx(loss(1.5))


@pytest.mark.parametrize(
    ("deep", "shallow"),
    [(2.0, 1.0), (2.0, 3.0), (2.0, 2.0)],
    ids=["depth pays", "depth costs", "depth does nothing"],
)
def test_the_share_of_the_shallowest_is_that_of_the_progress(deep: float, shallow: float) -> None:
    study = made(lambda feedback, L: deep + (shallow - deep) * 2 / L)
    said = named(study, "loss-shared").reading
    share = (math.log(10) - loss(shallow)) / (math.log(10) - loss(deep))
    assert (
        f"depth 2 makes {100 * share:.0f} % [{100 * share:.0f}, {100 * share:.0f}] of its progress"
        in said
    )


def test_without_progress_no_share_is_stated() -> None:
    study = made(lambda feedback, L: -1.0)
    assert "No progress is made" in named(study, "loss-shared").reading
    assert "progress made" not in named(study, "gap").headline
    assert {row["share_of_progress"] for row in named(study, "gap").rows} == {None}


def test_the_extrapolation_is_compared_with_that_of_half_the_depth() -> None:
    """``2 - 4 / L^2`` is not linear in 1/L: from 4 and 8 it gives 2 + 1/8, from 8 and 16 it gives 2
    + 1/32.
    """
    for margin, moved in (
        (nearing, 0.0),
        (lambda _, L: 2 - 4 / L**2, loss(2 + 1 / 32) - loss(2 + 1 / 8)),
    ):
        said = named(made(margin), "loss-shared").reading
        assert numbers(said, "differs, on average over the steps, by ")[0] == pytest.approx(
            moved, abs=6e-4
        )


@pytest.mark.parametrize("less", [0.2, 0.0, -0.2])
def test_what_a_finite_width_shifts_is_a_third_of_what_four_times_less_does(less: float) -> None:
    """``a / n`` from ``f_m - f_n = a (1/m - 1/n)``, m = n / 4."""
    study = made(narrow=less)
    at = {feedback: nearing(feedback, 8) for feedback in ("shared", "independent")}
    bias = {
        feedback: (loss(margin - less) - loss(margin)) / (NARROW - 1)
        for feedback, margin in at.items()
    }
    for feedback, wanted in bias.items():
        said = numbers(
            named(study, f"loss-{feedback}").reading, "in place of infinity shifts the loss by "
        )
        assert said[0] == pytest.approx(wanted, abs=6e-4)
    shift = numbers(named(study, "gap").reading, "in place of infinity shifts it by ")
    assert shift[0] == pytest.approx(bias["independent"] - bias["shared"], abs=6e-5)


def test_real_networks_lie_above_their_own_prediction_or_do_not() -> None:
    study = made(real=lambda n, L: nearing("shared", L) - (0.3 if n == 64 else 0.0), spread=0.01)
    said = named(study, "loss-shared").reading
    margin = nearing("shared", 16)
    above = re.search(r"by width: 64: (\S+) .*; 256: (\S+) ", said)
    assert [float(n) for n in above.groups()] == pytest.approx(
        [loss(margin - 0.3) - loss(margin), 0.0], abs=1e-3
    )
    assert "(significant: width 64)" in said
    own = [row for row in named(study, "loss-shared").rows if row["series"].startswith("real")]
    assert {(row["series"], row["depth"]) for row in own} == {
        (f"real, width {n}", 16) for n in WIDTHS
    }
    losses = torch.tensor([loss(margin + 0.01 * k) for k in (-1, 0, 1)])
    assert own[-1]["stderr"] == pytest.approx(float(losses.std()) / 3**0.5, rel=1e-3)
    same = named(made(real=lambda n, L: nearing("shared", L), spread=0.01), "loss-shared").reading
    assert "(none is significant)" in same


# ---- the gap


@pytest.mark.parametrize(
    ("apart", "side", "trend"),
    [
        (lambda L: 0.5, "above", None),
        (lambda L: -0.5, "below", None),
        (lambda L: 1 / L, None, "narrows"),
        (lambda L: 0.5 - 0.5 / L, "above", "widens"),
        (lambda L: 0.0, None, "does not change significantly"),
    ],
    ids=["worse", "better", "closes", "opens", "none"],
)
def test_the_gap_is_the_difference_of_the_losses(
    apart: Callable[[float], float], side: str | None, trend: str | None
) -> None:
    def margin(feedback: str, L: float) -> float:
        return 2.0 - (apart(L) if feedback == "independent" else 0.0)

    finding = named(made(margin), "gap")
    for row in finding.rows:
        ends = margin("shared", row["depth"]), margin("independent", row["depth"])
        gap = loss(ends[1]) - loss(ends[0])
        assert row["gap"] == pytest.approx(gap, abs=1e-9)
        assert row["share_of_progress"] == pytest.approx(
            gap / (math.log(10) - loss(ends[0])), abs=1e-9
        )
    assert finding.rows[-1]["depth"] == INFINITE
    assert (
        f"loss lies {side} the standard one's" in finding.headline
        if side
        else "do not differ significantly" in finding.headline
    )
    if trend is not None:
        assert f"From depth 2 to infinite depth the gap {trend}" in finding.reading


def test_the_gap_is_paired_with_the_interval_of_its_differences() -> None:
    """Replicates differ by ten times as much as their gaps do; those of infinite depth are
    extrapolated one by one.
    """
    finding = named(made(spread=0.05), "gap")
    assert [row["depth"] for row in finding.rows] == [*DEPTHS, INFINITE]
    for row in finding.rows:
        shared, other = (nearing(feedback, row["depth"]) for feedback in ("shared", "independent"))
        gaps = torch.tensor([loss(other + 0.05 * k) - loss(shared + 0.05 * k) for k in (-1, 0, 1)])
        assert row["stderr"] == pytest.approx(float(gaps.std()) / 3**0.5, rel=1e-3)
        # Student's t
        assert row["high"] - row["gap"] == pytest.approx(4.302653 * row["stderr"], rel=1e-4)


# ---- distances


@pytest.mark.parametrize("power", [-0.5, -0.25, 0.0])
def test_distances_to_the_limit_go_as_they_were_made(power: float) -> None:
    """Outputs off by ``n^power``: one output in ten, so that the RMS is that over sqrt(10)."""
    finding = named(made(real=lambda n, L: nearing("shared", L) - n**power), "distance-width")
    assert finding.headline.startswith("One real network of depth 16 is ")
    assert [row["slope"] for row in finding.slopes] == pytest.approx(
        [power] * len(DEPTHS), abs=1e-9
    )
    for row in finding.rows:
        assert row["distance"] == pytest.approx(row["width"] ** power / math.sqrt(10))


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_distances_to_infinite_depth_go_as_they_were_made(power: float) -> None:
    finding = named(made(lambda feedback, L: 2 - L**-power), "distance-depth")
    end = 2 * (2 - 16**-power) - (2 - 8**-power)  # where the two deepest point to
    rows = {row["depth"]: row["distance"] for row in finding.rows}
    assert rows == pytest.approx({L: abs(2 - L**-power - end) / math.sqrt(10) for L in DEPTHS})
    logs = torch.tensor([[L, rows[L]] for L in DEPTHS[:-1]], dtype=torch.float64).log()
    x, y = (logs - logs.mean(0)).T
    assert finding.slopes[-1]["slope"] == pytest.approx(float(x @ y / x.square().sum()))
    if power == 1.0:
        assert finding.slopes[-1]["slope"] == pytest.approx(-1.0)


def test_noise_that_hides_a_distance_hides_its_trend() -> None:
    study = made(lambda feedback, L: 2.0)
    for L in DEPTHS:
        noise = torch.randn(
            right(2.0).shape, generator=torch.Generator().manual_seed(L), dtype=torch.float64
        )
        study.measured.limits["shared", L] = right(2.0) + noise
    finding = named(study, "distance-depth")
    assert "noise hides its trend" in finding.headline
    assert finding.table[-1]["exponent [95 % interval] ± standard error"] == "not resolved"


# ---- blocks

SAID = {-0.5: "COLLAPSES", 0.0: "STABLE", 0.5: "GROWS"}


@pytest.mark.parametrize("uniform", SAID)
@pytest.mark.parametrize("meter", ["inner_update", "function_update_inner"])
def test_updates_of_blocks_go_as_they_were_made(uniform: float, meter: str) -> None:
    study = made()
    add_blocks(study, **{meter: uniform})
    finding = named(study, "updates")
    found = {(row["rule"], row["meter"]): row for row in finding.slopes}
    assert found["depth-mup", meter]["slope"] == pytest.approx(uniform, abs=1e-9)
    assert found["depth-mup", meter]["verdict"] == SAID[uniform]
    assert found["depth-mup-inner", meter]["verdict"] == "STABLE"
    other = "function_update_inner" if meter == "inner_update" else "inner_update"
    assert found["depth-mup", other]["verdict"] == "STABLE"


# ---- what a study decides

STATEMENTS = ["loss-shared", "gap", "distance-width", "distance-depth", "updates"]


def tones(study: Study) -> dict[str, str]:
    """The tone of every statement of a study."""
    return {one.finding: one.tone for one in decisions_of(study, findings(study))}


@pytest.mark.parametrize(
    ("power", "tone"),
    [(-0.5, "good"), (0.0, "open"), (0.5, "bad")],
    ids=["nears", "same", "leaves"],
)
def test_wider_networks_approach_the_limit_or_do_not(power: float, tone: str) -> None:
    study = made(real=lambda n, L: nearing("shared", L) - n**power, spread=0.001)
    assert tones(study)["distance-width"] == tone


def test_a_study_says_of_five_statements_whether_they_hold() -> None:
    study = made(real=lambda n, L: nearing("shared", L) - n**-0.5, spread=0.001)
    add_blocks(study, inner_update=-0.5)
    assert tones(study) == {
        "loss-shared": "good",
        "gap": "bad",
        "distance-width": "good",
        "distance-depth": "good",
        "updates": "good",
    }
    study.measured.complete = True
    answer = study_answer(study, findings(study), "nfd paper study")
    assert answer.title.endswith("4 hold and 1 does not hold")
    assert answer.tone == "good"
    assert len(in_terminal(answer, "out/study/report.html").splitlines()) <= 15
    # At a loss above that of chance nothing is learned; without blocks nothing is said of them.
    chance = tones(made(lambda feedback, L: -1.0))
    assert chance["loss-shared"] == "bad"
    assert chance["gap"] == "open"
    assert chance["updates"] == "open"


def test_an_interrupted_study_is_not_decided() -> None:
    study = made()
    study.measured.complete = False
    answer = study_answer(study, findings(study), "nfd paper study --seeds 3")
    assert (answer.tone, answer.state) == ("open", "Interrupted")
    assert answer.next is not None
    assert "--seeds" in answer.next.code


# ---- divergence and the command


def test_diverged_runs_are_named_and_left_out() -> None:
    study = made(real=lambda n, L: nearing("shared", L) - n**-0.5, spread=0.01)
    add_blocks(study, inner_update=-0.5)
    study.measured.real[16, 64][0, 1:] = torch.nan
    study.measured.limits["independent", 16] = torch.full_like(
        study.measured.limits["independent", 16], torch.nan
    )
    next(row for row in study.measured.blocks if row["depth"] == 64).update({"diverged_at": 4})
    for finding in findings(study):
        assert "nan" not in finding.reading
        assert all(math.isfinite(s["slope"]) for s in finding.slopes)
    shared = named(study, "loss-shared")
    assert "Training diverged: 1 of 3 of width 64 and depth 16 (first at step 1)." in shared.reading
    ended = [row for row in shared.rows if row["series"] == "real, width 64"]
    assert [math.isfinite(row["loss"]) for row in ended] == [True, False]
    assert [row["depth"] for row in named(study, "gap").rows] == [2, 4, 8]
    assert (
        "3 of 3 of infinitely wide ones of depth 16 (first at step 0)"
        in named(study, "loss-independent").reading
    )
    assert "1 networks with uniform rates, of depth 64" in named(study, "updates").reading


SMALL = (
    "--steps 3 --batch 4 --depths 1 2 4 --widths 8 16 --seeds 2 --limit-width 32 --replicates 3 "
    "--block-depths 2 4"
)


def test_the_command_writes_its_report_and_trains_nothing_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [
        "paper",
        "study",
        *SMALL.split(),
        "--executor",
        "inline",
        "--out",
        str(tmp_path / "fresh"),
    ]
    assert main(asked) == 0
    said = capsys.readouterr().out
    page = (tmp_path / "fresh" / "report.html").read_text()
    assert f"All numbers: {tmp_path / 'fresh' / 'report.html'}" in said
    assert all(
        (tmp_path / "fresh" / f"{name}.{kind}").exists()
        for name in NAMES
        for kind in ("csv", "pdf", "png")
    )
    assert "Decoupled minus standard loss at " in page
    result = json.loads((tmp_path / "fresh" / "result.json").read_text())
    assert result["complete"] is True
    with Sweep(tmp_path / "fresh") as sweep:
        before = sweep.store.keys()
    assert main(asked) == 0
    with Sweep(tmp_path / "fresh") as sweep:
        assert sweep.store.keys() == before
    assert capsys.readouterr().out == said
