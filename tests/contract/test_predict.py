"""``nfd.predict``: its limits are the known ones, its intervals hold them, and what has no limit is
refused.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import pickle
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from tests.contract.common import ResidualMLP, batches
from tests.models import Residual
from torch import Tensor, nn

import nfd

REFERENCE = json.loads((Path(__file__).parents[1] / "reference.json").read_text())


def parity(first: int, last: int) -> tuple[Tensor, Tensor]:
    """Digits as data/8 - 1, +1 for even ones and -1 for odd ones."""
    raw = load_digits()
    x = raw.data[first:last] / 8 - 1
    y = np.where(raw.target[first:last] % 2 == 0, 1.0, -1.0)
    return torch.from_numpy(x).float(), torch.from_numpy(y).float()


def one_by_one(x: Tensor, y: Tensor) -> nfd.Task:
    """Samples as batches of one, under the squared error."""
    return nfd.Task([(a[None], b[None, None]) for a, b in zip(x, y, strict=True)], loss="mse")


# ---- limits that are known


def case(of: dict[str, Any]) -> Any:
    """A trajectory of ``reference.json``; each activation and feedback is in one of the two that
    are quick to ask.
    """
    quick = (of["name"], of["activation"], of["feedback"]) in (
        ("A", "relu", "shared"),
        ("A", "tanh", "independent"),
    )
    return pytest.param(
        of, id="-".join(map(str, of.values()))[:30], marks=() if quick else pytest.mark.slow
    )


@pytest.mark.parametrize("of", [case(of) for of in REFERENCE])
def test_outputs_are_those_of_networks_that_were_trained_by_other_code(of: dict[str, Any]) -> None:
    x, y = parity(*of["rows"])
    family = nfd.resnets(
        x.shape[1], 1, horizon=of["horizon"], activation=of["activation"], feedback=of["feedback"]
    )
    p = nfd.predict(
        family,
        one_by_one(x, y),
        of["eta_c"],
        depth=of["depth"],
        width=2048,
        replicates=4,
        outputs=True,
    )
    error = torch.tensor(of["stderr"]).hypot(p.outputs_stderr[:, 0, 0])
    apart = (p.outputs[:, 0, 0] - torch.tensor(of["mean"])).abs() / error
    assert float(apart.max()) < 4.5
    assert float((p.outputs[:, 0, 0].abs() / error).max()) > 9  # outputs of zero would be seen


def test_independent_feedback_has_the_limit_of_the_particles_and_shared_feedback_another() -> None:
    """Definition 1, solved by particles."""
    x, y = parity(0, 10)
    shape: dict[str, Any] = {"horizon": 2.0, "activation": "tanh"}
    solved = nfd.solve_nfd(
        x.double(), y.double(), grid=4, eta_c=0.5, particles=8192, replicates=8, **shape
    )

    def apart(feedback: str) -> float:
        family = nfd.resnets(x.shape[1], 1, feedback=feedback, **shape)
        p = nfd.predict(family, one_by_one(x, y), 0.5, depth=4, width=4096, outputs=True)
        gap = (p.outputs[:, 0, 0] - solved.outputs).abs()
        # before it diverges
        return float((gap / p.outputs_stderr[:, 0, 0].hypot(solved.outputs_stderr))[1:8].max())

    assert apart("independent") < 4.5
    assert apart("shared") > 9


@pytest.mark.parametrize(
    ("feedback", "depth"),
    [
        ("shared", 4),
        ("independent", 4),
        ("shared", math.inf),
        pytest.param("independent", math.inf, marks=pytest.mark.slow),
    ],
)
def test_the_first_step_is_governed_by_the_kernel(feedback: str, depth: float) -> None:
    """A small step from outputs of zero to a target of one moves them by the rate times the
    kernel.
    """
    x = torch.ones(1, 6)
    rate = 1e-3
    task = nfd.Task([(x, torch.ones(1, 1))] * 2, loss="mse")
    p = nfd.predict(
        nfd.resnets(6, 1, feedback=feedback),
        task,
        rate,
        depth=depth,
        width=1024,
        rtol=0.05,
        outputs=True,
    )
    assert p.converged
    assert p.extrapolated == (depth == math.inf)
    moved = float((p.outputs[1] - p.outputs[0]).squeeze()) / rate
    kinds = (
        ("ntk", "independent-feedback") if feedback == "shared" else ("independent-feedback", "ntk")
    )
    own, other = (float(nfd.kernel(x.double(), kind=kind, depth=depth)) for kind in kinds)
    assert moved == pytest.approx(own, rel=0.05)
    assert abs(moved - other) > 0.15 * other


def test_intervals_hold_the_limit_and_those_without_the_correction_do_not() -> None:
    """Untrained linear networks: orthogonal inputs have independent outputs f of mean zero and
    variance ``c / n``, and targets of zero the loss ``f**2 / 2``: all of it is a bias of width, and
    the limit is zero."""
    d = 16
    task = nfd.Task(
        [(row[None], torch.zeros(1, 1)) for row in math.sqrt(d) * torch.eye(d)], loss="mse"
    )
    family = nfd.resnets(d, 1, activation="identity")
    held = 0
    raw = 0
    count = 0
    for width in (32, 64, 96):
        p = nfd.predict(family, task, 0.0, depth=1, width=width, replicates=48, weights="dense")
        held += int(((p.loss_low <= 0) & (p.loss_high >= 0)).sum())
        raw += int(((p.loss + p.loss_bias).abs() <= 2 * p.loss_stderr).sum())
        count += len(p.loss)
        assert bool((p.loss_bias > 0).any())
    assert held / count > 0.87  # 0.95 within three standard errors of such a count
    assert raw / count < 0.5


@pytest.mark.parametrize("loss", ["mse", "cross-entropy"])
def test_the_loss_before_training_is_exact_where_outputs_are_zero(loss: str) -> None:
    """The paper's networks answer zero; a model of one's own may answer anything."""
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    y = torch.arange(8) % 3
    known = math.log(3)
    if loss == "mse":
        y = torch.nn.functional.one_hot(y).float()
        known = float(y.square().mean()) / 2
    task = nfd.Task([(x, y)] * 2, loss=loss)
    p = predicted(nfd.resnets(5, 3), task, width=32)
    assert float(p.loss[0]) == pytest.approx(known, rel=1e-6)
    assert float(p.loss_low[0]) == float(p.loss_high[0]) == float(p.loss[0])
    assert float(p.loss_low[1]) < float(p.loss_high[1])
    assert "(exact)" in str(p)
    own = predicted(nfd.Family(Residual, (16, 2), rule="complete-p", optimizer="sgd"), task)
    assert float(own.loss_low[0]) < float(own.loss_high[0])
    assert "(exact)" not in str(own)


def test_the_loss_before_training_is_the_one_that_networks_have() -> None:
    """The second step is measured: of a batch that repeats, without a learning rate."""
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    task = nfd.Task([(x, x[:, :1])] * 2, loss="mse")
    held = 0
    for seed in range(20):
        p = predicted(nfd.resnets(5, 1), task, lr=0.0, replicates=8, seed=seed)
        held += int(p.loss_low[1] <= p.loss[0] <= p.loss_high[1])
    # 19 of 20 are expected, and 15 or fewer once in 300.
    assert held > 15


@pytest.mark.parametrize(("seconds", "is_told"), [(8.0, True), (1.0, False)])
def test_progress_is_told_after_a_minute_over_all_stages(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    seconds: float,
    is_told: bool,
) -> None:
    """No stage of a prediction takes a minute here: 8 s for each look at the clock."""
    ticks = itertools.count(0.0, seconds)
    clock = SimpleNamespace(monotonic=lambda: next(ticks))
    monkeypatch.setattr("nfd.core.tables.time", clock)
    p = predicted(nfd.resnets(10, 3), [(torch.ones(4, 10), torch.arange(4) % 3)], width=32)
    assert p.converged
    assert ("trainings" in capsys.readouterr().err) == is_told


def test_a_rule_that_boosts_inner_layers_has_a_limit_at_a_depth_and_none_in_depth() -> None:
    family = nfd.resnets(64, 10, block="two-layer", rule="depth-mup-inner")
    with pytest.raises(ValueError, match=r"depth-mup-inner.*no limit of large depth"):
        nfd.predict(family, batches(1), 0.1)
    assert nfd.predict(family, batches(1, size=4), 0.1, depth=2, width=16, replicates=2).converged


# ---- weights

FAMILY = nfd.Family(ResidualMLP, base=(16, 2), rule="complete-p", optimizer="sgd")
TASK = nfd.Task(batches(4, size=8), eval_batches=batches(1, size=32, seed=1))


def predicted(
    family: nfd.Family = FAMILY, task: Any = TASK, lr: float = 0.1, **settings: Any
) -> Any:
    return nfd.predict(family, task, lr, **{"depth": 2, "width": 64, "replicates": 4} | settings)


def test_all_kinds_of_weights_have_one_limit() -> None:
    dense, *others = (
        predicted(weights=weights, replicates=8) for weights in ("dense", "structured", "deferred")
    )
    # under SGD, where nobody chose
    assert predicted(width=32, replicates=2).weights == "structured"
    for p in others:
        apart = (p.loss - dense.loss).abs() / p.loss_stderr.hypot(dense.loss_stderr)
        assert float(apart.max()) < 4
    other_rate = predicted(weights="dense", replicates=8, lr=0.3)
    assert float(((other_rate.loss - dense.loss).abs() / dense.loss_stderr).max()) > 6


def test_optimizers_that_act_on_every_entry_are_predicted_by_stored_weights() -> None:
    adam = FAMILY.under(optimizer="adam")
    assert predicted(adam, lr=1e-3, width=32, replicates=2).weights == "dense"
    with pytest.raises(ValueError, match=r"'adam' acts on every entry.*weights='dense'"):
        predicted(adam, lr=1e-3, weights="structured")


def offset_task(steps: int, offset: float = 20.0) -> nfd.Task:
    """What tells twelve samples apart has so small a share of their length."""
    x = (offset + torch.randn(12, 64, generator=torch.Generator().manual_seed(0))) / offset
    return nfd.Task([(x, torch.arange(12) % 3)] * steps)


class Bare(nn.Module):
    """Residual blocks without norms, so that an offset of the inputs reaches every matrix."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(64, width, bias=False)
        self.head = nn.Linear(width, 3, bias=False)
        self.blocks = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(torch.relu(h))
        return self.head(h)


def test_what_a_resolution_leaves_out_is_measured_against_exact_networks() -> None:
    """Under SGD structured layers leave short directions out; under Muon, and where weights are
    stored, nothing.
    """
    bare = nfd.Family(Bare, base=(16, 2), rule="complete-p", optimizer="sgd")
    p = predicted(bare, offset_task(40), lr=0.1)
    exact = predicted(bare, offset_task(40), lr=0.1, weights="dense")
    bias = float(p.loss_resolution_bias[-1])
    assert bias > 1e-3
    assert bool(p.loss_resolution_bias_stderr[-1] > 0)
    assert float(p.loss_high[-1] - p.loss_low[-1]) >= 2 * abs(bias)
    assert float(p.loss_low[-1]) < float(exact.loss[-1]) < float(p.loss_high[-1])
    assert "resolution" in " ".join(p.answer.details)
    muon = predicted(bare.under(optimizer="muon"), offset_task(3), lr=0.02)
    assert muon.weights == "structured"
    for other in (exact, muon):
        assert not other.loss_resolution_bias.any()
        assert "resolution" not in " ".join(other.answer.details)


# ---- what is asked for


def test_replicates_are_doubled_until_the_error_is_met() -> None:
    loose, tight = (
        predicted(width=32, replicates=2, rtol=rtol, weights="dense") for rtol in (0.5, 0.005)
    )
    assert loose.replicates == 2
    assert tight.replicates in (8, 16, 32, 64, 128)
    assert float(tight.loss_sampling_error.norm() / tight.loss.norm()) < 0.006
    assert len(tight.loss_replicates) == tight.replicates


def test_a_step_without_a_rate_leaves_the_evaluation_where_it_began() -> None:
    x, y = TASK.batches[0]
    p = predicted(
        task=nfd.Task([(x, y)] * 2, eval_batches=[(x, y)]), lr=0.0, outputs=True, weights="dense"
    )
    assert p.eval_loss == pytest.approx(float(p.loss[0]), rel=1e-4)
    assert p.loss[1] == pytest.approx(float(p.loss[0]), rel=1e-6)
    assert p.outputs.shape == (2, 8, 10)
    assert p.outputs_stderr.shape == (2, 8, 10)
    plain = predicted(task=[(x, y)], width=32)
    assert (plain.outputs, plain.eval_loss, plain.eval_interval) == (None, None, None)


def test_a_prediction_prints_and_lists_its_losses() -> None:
    p = predicted(width=32)
    assert [row["step"] for row in p.table] == [0, 1, 2, 3]
    assert [row["value"] for row in p.table] == p.loss.tolist()
    assert torch.allclose(p.loss_replicates.mean(0), p.loss)
    assert bool(((p.loss_low < p.loss) & (p.loss < p.loss_high)).all())
    for text in (
        f"{p.loss[-1]:.3f}"[:4],
        "4 networks of width 32",
        "width 16",
        "evaluation",
        "depth 2",
    ):
        assert text in str(p), text
    assert repr(p).startswith("<Prediction: ✓ Predicted: The infinitely wide network of depth 2")
    assert "<svg" in p._repr_html_()
    assert p.plot().to_dict()["layer"]
    kept = pickle.loads(pickle.dumps(p))
    assert torch.equal(kept.loss, p.loss)
    assert str(kept) == str(p)


LOSSES = {  # of 0.2.0, whose definition of a loss of one's own model this is
    "value": [1.1216601481040318, 1.0093056211868916, 0.9411273449659348, 0.8805060734351476],
    "bias": [
        0.0006494919459025065,
        -0.004470954338709365,
        -0.005501508712768555,
        -0.004447785516579946,
    ],
}


def test_losses_are_those_of_the_last_version() -> None:
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    family = nfd.Family(Residual, base=(16, 2), rule="complete-p", optimizer="sgd")
    p = predicted(family, [(x, torch.arange(8) % 3)] * 4, lr=0.3, replicates=8, weights="dense")
    assert [row["value"] for row in p.table] == pytest.approx(LOSSES["value"], rel=1e-5)
    assert [row["bias"] for row in p.table] == pytest.approx(LOSSES["bias"], abs=1e-5)


def test_a_run_that_diverges_is_a_result_without_numbers() -> None:
    p = predicted(lr=1e6, width=32, replicates=2)
    assert not p.converged
    assert "diverged at step" in p.note
    assert "Lower lr" in p.note
    assert math.isfinite(float(p.loss[0]))
    assert math.isnan(float(p.loss[-1]))
    assert math.isnan(p.table[-1]["low"])
    assert math.isnan(p.eval_loss)
    assert "diverged" in str(p)
    assert p.answer.tone == "bad"
    assert p.answer.title.endswith("diverges")


PASSES = Counter[int]()


class Counted(Residual):
    """It counts the passes of every width, and may be stopped at one, from outside of its code."""

    def forward(self, x: Tensor) -> Tensor:
        width = self.embed.out_features
        PASSES[width] += 1
        if os.environ.get("STOP_AT") == str(width):
            raise KeyboardInterrupt
        return super().forward(x)


def test_a_stopped_prediction_goes_on_and_what_a_sweep_holds_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    task = [(x, torch.arange(8) % 3)] * 40

    def asked(**settings: Any) -> tuple[Any, int, int]:
        """The prediction, and how many passes wide and narrow networks made for it."""
        PASSES.clear()
        family = nfd.Family(Counted, base=(16, 2), rule="complete-p", optimizer="sgd")
        p = predicted(family, task, width=128, weights="dense", **settings)
        return p, PASSES[128], PASSES[32]

    here, wide, narrow = asked()
    assert min(wide, narrow) >= 40
    monkeypatch.setenv("STOP_AT", "32")
    with pytest.raises(KeyboardInterrupt), nfd.Sweep(tmp_path) as sweep:
        asked(sweep=sweep)
    monkeypatch.delenv("STOP_AT")
    with nfd.Sweep(tmp_path) as sweep:
        resumed, *made = asked(sweep=sweep)
        assert made[0] < 40 <= made[1]
        again, *none = asked(sweep=sweep)
        assert max(none) < 40
        more, *added = asked(sweep=sweep, replicates=6)
        assert min(added) >= 40
        _, *of_a_seed = asked(sweep=sweep, replicates=6, seed=1)
        assert min(of_a_seed) >= 40
        _, *of_that_seed_again = asked(sweep=sweep, replicates=6, seed=1)
        assert max(of_that_seed_again) < 40
    for p in (resumed, again):
        assert torch.equal(p.loss, here.loss)
    assert torch.allclose(more.loss_replicates.mean(0), more.loss)
    assert not torch.equal(more.loss, here.loss)


# ---- seeds


def test_predictions_share_their_networks_unless_they_have_seeds_of_their_own() -> None:
    small: dict[str, Any] = {"width": 32, "weights": "dense"}
    first, again, other = (predicted(**small, **seed) for seed in ({}, {"seed": 0}, {"seed": 1}))
    assert torch.equal(first.loss, again.loss)
    assert not torch.equal(first.loss, other.loss)
    assert (first.seed, other.seed) == (0, 1)

    def noise(seed: int) -> float:
        """Of the difference to a slightly larger rate, from this seed."""
        apart = first.loss_replicates - predicted(**small, lr=0.11, seed=seed).loss_replicates
        return float(apart.std(0)[-1])

    assert noise(0) < 0.2 * noise(1)


# ---- divergence of a few


class Rarely(Residual):
    """Networks that train, but for a share whose gradients are a million times too large."""

    share: ClassVar[float] = 0.0
    narrower_than: ClassVar[int] = 1000

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        fails = float(torch.rand(())) < self.share and width < self.narrower_than
        self.gain = 1e6 if fails else 1.0

    def forward(self, x: Tensor) -> Tensor:
        outputs = super().forward(x)
        if outputs.requires_grad:
            outputs.register_hook(lambda gradient: self.gain * gradient)
        return outputs


def rarely(
    monkeypatch: pytest.MonkeyPatch, share: float, loss: str = "cross-entropy", **settings: Any
) -> Any:
    """A prediction from networks of which this share diverges; under the cross-entropy with finite
    losses.
    """
    monkeypatch.setattr(Rarely, "share", share)
    monkeypatch.setattr(Rarely, "narrower_than", settings.pop("narrower_than", 1000))
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    y = torch.arange(8) % 3
    targets = torch.nn.functional.one_hot(y).float() if loss == "mse" else y
    task = nfd.Task([(x, targets)] * 4, eval_batches=[(x, targets)], loss=loss)
    family = nfd.Family(Rarely, base=(16, 2), rule="complete-p", optimizer="sgd")
    return predicted(family, task, **{"width": 32, "replicates": 16, "weights": "dense"} | settings)


@pytest.mark.parametrize("loss", ["cross-entropy", "mse"])
def test_few_networks_that_diverge_are_left_out_and_counted(
    monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    sound = rarely(monkeypatch, 0.0, loss)
    assert (sound.note, bool(sound.loss_replicates.isfinite().all())) == ("", True)
    few = rarely(monkeypatch, 0.05, loss, outputs=True)
    lost = int(few.loss_replicates.isnan().any(1).sum())
    counts = [
        int(count)
        for count in re.findall(
            r"(\d+) of 16 networks of width \d+ diverged, the first at step", few.note
        )
    ]
    assert sum(map(int, counts)) == lost > 0
    assert re.search(r"\([\d.]+ % \[[\d.]+, [\d.]+\]\): the answer leaves them out", few.note)
    assert few.converged
    # most networks are those of ``sound``
    assert float(((few.loss - sound.loss).abs() / sound.loss_stderr).max()) < 3
    assert bool((few.loss_stderr < 1.5 * sound.loss_stderr).all())
    assert few.eval_row["stderr"] < 1.5 * sound.eval_row["stderr"]
    assert bool(few.outputs.isfinite().all())
    assert torch.allclose(few.loss_replicates.nanmean(0), few.loss)


@pytest.mark.parametrize("loss", ["cross-entropy", "mse"])
def test_where_many_networks_diverge_training_diverged(
    monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    many = rarely(monkeypatch, 0.5, loss)
    assert re.match(
        r"Training diverged at step 1 at width 32, depth 2: \d+ of 16 networks\. Lower lr\.",
        many.note,
    )
    assert not many.converged
    assert bool(many.loss[0].isfinite())
    assert bool(many.loss[1:].isnan().all())
    assert math.isnan(many.eval_loss)


def test_where_narrow_networks_diverge_the_bias_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    p = rarely(monkeypatch, 0.5, narrower_than=32)
    assert re.match(
        r"\d+ of 16 networks of width 16 diverged.*the bias of width 32 is unknown from step 1 on",
        p.note,
    )
    assert bool(p.loss.isfinite().all())
    assert bool(p.loss_high[1:].isnan().all())
    assert bool(p.loss_high[0].isfinite())


def test_a_divergence_does_not_raise_the_replicates_that_an_error_asks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    p = rarely(monkeypatch, 0.05, "mse", rtol=0.1)
    assert p.replicates == 16
    assert "diverged" in p.note


def test_an_error_that_no_number_of_networks_has_is_not_sought() -> None:
    p = predicted(width=32, rtol=1e-7, weights="dense")
    assert p.replicates == 4
    assert re.search(
        r"above rtol=1e-07, for which about [\d,]+ replicates .*; at most 1,024 are trained", p.note
    )


def test_memory_bounds_the_replicates_that_an_error_asks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nfd.limits.predict.memory_of", lambda device: 1250e3)
    p = predicted(width=32, rtol=0.01, weights="dense", outputs=True)
    assert 4 < p.replicates < 32
    assert re.search(r"memory has room for \d+", p.note)


class Scaled(Residual):
    """Networks of which one in sixteen scales its outputs by a factor of every step."""

    factors: ClassVar[tuple[float, ...]] = (1.0,)

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.is_scaled = float(torch.rand(())) < 1 / 16
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        outputs = super().forward(x)
        if not (self.is_scaled and outputs.requires_grad):
            return outputs
        factor = self.factors[min(self.passes, len(self.factors) - 1)]
        self.passes += 1
        return factor * outputs


def scaled(monkeypatch: pytest.MonkeyPatch, *factors: float) -> Any:
    """A prediction of four steps without a learning rate, with these factors of one network in
    sixteen.
    """
    monkeypatch.setattr(Scaled, "factors", factors)
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    task = nfd.Task([(x, torch.nn.functional.one_hot(torch.arange(8) % 3).float())] * 4, loss="mse")
    family = nfd.Family(Scaled, base=(16, 2), rule="complete-p", optimizer="sgd")
    return predicted(family, task, lr=0.0, width=32, replicates=64, weights="dense")


@pytest.fixture(scope="module")
def unscaled() -> Any:
    """The same prediction where every network is left as it is."""
    with pytest.MonkeyPatch.context() as patch:
        return scaled(patch, 1.0)


def test_a_network_that_leaves_the_others_for_good_counts_as_diverging(
    monkeypatch: pytest.MonkeyPatch, unscaled: Any
) -> None:
    sound = unscaled
    leaving = scaled(monkeypatch, 1.0, 8.0, 20.0, 40.0)
    assert sound.note == ""
    lost = leaving.loss_replicates.isnan().all(1)
    counts = re.findall(
        r"(\d+) of 64 networks of width \d+ diverged, the first at step [123]", leaving.note
    )
    assert sum(map(int, counts)) == int(lost.sum()) > 0
    assert "of networks that do not diverge" in leaving.note
    assert torch.equal(leaving.loss_replicates[~lost], sound.loss_replicates[~lost])
    assert bool((leaving.loss_stderr < 1.5 * sound.loss_stderr).all())
    assert leaving.converged


@pytest.mark.parametrize("factors", [(1.0, 40.0, 8.0, 1.0), (40.0,), (1.0, 2.0, 2.5, 3.0)])
def test_large_losses_that_come_back_or_were_there_or_are_not_alone_are_kept(
    monkeypatch: pytest.MonkeyPatch, factors: tuple[float, ...], unscaled: Any
) -> None:
    p = scaled(monkeypatch, *factors)
    assert "diverged" not in p.note
    assert bool(p.loss_replicates.isfinite().all())
    assert not torch.equal(p.loss, unscaled.loss)


# ---- what is refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"family": FAMILY.under(rule="mup"), "depth": math.inf},
            "'mup' has no limit of large depth.*'depth-mup'",
        ),
        ({"family": FAMILY.under(rule="standard")}, "'standard' has no limit of large width"),
        ({"width": 16}, "width must be above that of the base, 16.*got 16"),
        (
            {"width": 2**20, "weights": "dense"},
            r"width 1,048,576 and depth 2 with dense weights needs .* GiB",
        ),
        ({"depth": 0}, "depth must be at least 1"),
        ({"depth": 2.5}, "depth must be a whole number"),
        ({"replicates": 1}, "replicates must be at least 2"),
        ({"rtol": 0.0}, "rtol must be greater than 0"),
        ({"lr": math.nan}, "lr must be finite"),
        ({"weights": "sparse"}, "weights must be one of"),
        ({"outputs": "yes"}, "outputs must be True or False"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"seed": 0.5}, "seed must be a whole number"),
        ({"task": []}, "batches"),
        (
            {"task": [(np.ma.masked_less(np.eye(4, 5), 1), np.arange(4))]},
            "batches have masked entries.*fill them",
        ),
        ({"family": 3}, "family must be"),
    ],
)
def test_what_has_no_limit_or_no_meaning_is_refused_before_training(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        predicted(**settings)


class Constant(Residual):
    def forward(self, x: Tensor) -> Tensor:
        return 0 * super().forward(x)


def test_networks_that_are_the_same_from_every_seed_are_refused() -> None:
    with pytest.raises(ValueError, match="the same losses from every seed"):
        predicted(
            nfd.Family(Constant, base=(16, 2), optimizer="sgd"),
            [(torch.ones(4, 5), torch.arange(4) % 3)],
        )


def test_a_model_without_a_wide_matrix_is_predicted_with_stored_weights() -> None:
    def shallow(width: int, depth: int) -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, 2)
        )

    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    family = nfd.Family(shallow, (16, 1), rule="mup", optimizer="sgd", sample=x)
    settings: Any = {"lr": 0.1, "depth": 1, "width": 32, "replicates": 2}
    batches = [(x, torch.tensor([0, 1] * 3))] * 2
    assert nfd.predict(family, batches, **settings).weights == "dense"
    with pytest.raises(ValueError, match="names no matrix"):
        nfd.predict(family, batches, weights="structured", **settings)


@pytest.mark.parametrize("weights", ["structured", "deferred"])
def test_initial_weights_that_are_not_stored_are_scaled_too(weights: Any) -> None:
    # The loss depends on the weights squared. It is known before the first step, so that the second
    # one is read, after a step of nothing.
    task = nfd.Task([batches(1, 16)[0]] * 2, loss=lambda out, y: out.square().mean(), init_scale=3)
    settings: dict[str, Any] = {"depth": 2, "width": 64, "replicates": 8}
    family = nfd.resnets(64, 10, activation="identity")
    ours = nfd.predict(family, task, 0.0, weights=weights, **settings)
    theirs = nfd.predict(family, task, 0.0, weights="dense", **settings)
    # Of matrices that stayed as they are, it would be below a half.
    assert float(ours.loss_replicates[:, 1].mean() + ours.loss_bias[1]) == pytest.approx(
        float(theirs.loss_replicates[:, 1].mean() + theirs.loss_bias[1]), rel=0.25
    )


def test_outputs_are_of_batches_of_one_size() -> None:
    (x, y), (x2, y2) = batches(2, 8)
    task = [(x, y), (x2[:5], y2[:5])]
    settings: dict[str, Any] = {"depth": 1, "width": 32, "replicates": 2}
    with pytest.raises(ValueError, match=r"batches of 5 and 8 samples.*probes="):
        nfd.predict(nfd.resnets(64, 10), task, 0.3, outputs=True, **settings)
    assert nfd.predict(nfd.resnets(64, 10), task, 0.3, **settings).loss.isfinite().all()
