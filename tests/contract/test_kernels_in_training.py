"""Kernels and outputs for probes in training: they are the known ones before training and after a
small step, and looking changes nothing.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models import Residual
from torch import Tensor, nn

import nfd

D = 6


def probes(count: int = 4) -> Tensor:
    return torch.randn(count, D, generator=torch.Generator().manual_seed(7))


def regression(steps: int = 4, outputs: int = 1, **more: Any) -> nfd.Task:
    """Steps of four samples with targets of order one."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(steps, 4, D, generator=generator)
    y = torch.randn(steps, 4, outputs, generator=generator)
    return nfd.Task(list(zip(x, y, strict=True)), loss="mse", **more)


def predicted(family: nfd.Family, task: nfd.Task, lr: float = 0.3, **settings: Any) -> Any:
    defaults = {"depth": 4, "width": 64, "replicates": 4, "probes": probes()}
    return nfd.predict(family, task, lr, **{**defaults, **settings})


def rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


def apart(estimates: nfd.Estimates, truth: Tensor) -> float:
    """The distance from a truth in standard errors, RMS over entries.

    It is near 1.2 where they agree, by Student's t with the 7 degrees of freedom of 8 replicates.
    """
    return rms((estimates.value - truth) / estimates.stderr)


def at_the_output(streams: Tensor) -> Tensor:
    """The covariance of streams after the last block before training, [N, N]."""
    return streams[-1, 0, :, 0]


# ---- before training

# A scale that float32 rounds to 1. Kernels of scaled initial weights are not known in closed form,
# so that those of the networks themselves are given.
AS_THEY_ARE = 1 + 1e-9


ACTIVATIONS = ("relu", "tanh", "erf", "gelu", "identity")


@pytest.mark.parametrize(
    ("activation", "depth"),
    [
        *((activation, 4) for activation in ACTIVATIONS),
        ("gelu", math.inf),
        *(
            pytest.param(activation, math.inf, marks=pytest.mark.slow)
            for activation in ACTIVATIONS
            if activation != "gelu"
        ),
    ],
)
def test_before_training_kernels_are_those_in_closed_form(activation: str, depth: float) -> None:
    family = nfd.resnets(D, 2, activation=activation, horizon=1.5)
    settings: dict[str, Any] = {
        "lr": 0.0,
        "depth": depth,
        "width": 256,
        "replicates": 8,
        "kernels": nfd.Kernels(times=3, steps=[0]),
        # Depths 8, 16 and 32: the losses of outputs near zero are hardly looked at.
        "rtol": 0.5,
    }
    known = predicted(family, regression(1, 2), **settings).kernels
    own = predicted(family, regression(1, 2, init_scale=AS_THEY_ARE), **settings).kernels

    def closed_form(kind: str, name: str = activation) -> Tensor:
        kernel = nfd.kernel(probes().double(), kind=kind, activation=name, horizon=1.5, depth=depth)
        assert isinstance(kernel, Tensor)
        return kernel

    covariance = closed_form("nngp")
    tangent = torch.einsum("ij,cd->icjd", closed_form("ntk"), torch.eye(2).double())
    # Reported are those of the equations, which at infinite depth are solved to 1e-9.
    assert rms(at_the_output(known.streams.value) - covariance) < 1e-8 * rms(covariance)
    assert rms(known.tangent.value[0] - tangent) < 1e-8 * rms(tangent)
    assert float((known.tangent.high - known.tangent.low).abs().max()) == 0
    # The networks have these within their noise, and not those of another activation.
    for name in ("streams", "features", "gradients", "tangent"):
        assert apart(getattr(own, name), getattr(known, name).value) < 1.8, name
    other = closed_form("nngp", "tanh" if activation == "identity" else "identity")
    distances = at_the_output(own.streams.value) - other
    assert rms(distances / at_the_output(own.streams.stderr)) > 2.5


def test_known_kernels_make_intervals_narrower() -> None:
    """Half-widths of features after one step: 2 to 6 times narrower where they were measured."""
    settings: dict[str, Any] = {"width": 256, "kernels": nfd.Kernels(times=2, steps=[1])}
    family = nfd.resnets(D, 1)
    known = predicted(family, regression(), **settings).kernels.features
    own = predicted(family, regression(init_scale=AS_THEY_ARE), **settings).kernels.features

    def length(estimates: nfd.Estimates) -> float:
        return rms((estimates.high - estimates.low)[:, 1, :, 1])

    assert length(known) < 0.5 * length(own)
    assert apart(own, known.value) < 2


# ---- after a small step


@pytest.mark.parametrize(
    ("depth", "rule"),
    [(4, "depth-mup"), pytest.param(math.inf, "complete-p", marks=pytest.mark.slow)],
)
def test_before_training_two_layer_blocks_have_the_kernels_of_the_equations(
    depth: float, rule: Any
) -> None:
    """``nfd.kernel`` is of one-layer blocks, which have another tangent kernel."""
    settings: dict[str, Any] = {
        "lr": 0.0,
        "depth": depth,
        "width": 256,
        "replicates": 8,
        "kernels": nfd.Kernels(times=3, steps=[0]),
        "rtol": 0.5,
    }
    kind: dict[str, Any] = {"activation": "tanh", "horizon": 2.0, "rule": rule}
    family = nfd.resnets(D, 1, block="two-layer", **kind)
    known = predicted(family, regression(1), **settings).kernels
    own = predicted(family, regression(1, init_scale=AS_THEY_ARE), **settings).kernels
    for name in ("streams", "features", "gradients", "tangent"):
        assert apart(getattr(own, name), getattr(known, name).value) < 1.8, name
    # One-layer blocks lack what the inner matrices learn.
    one_layer = predicted(nfd.resnets(D, 1, **kind), regression(1), **settings).kernels
    assert apart(own.tangent, one_layer.tangent.value) > 2.5


@pytest.mark.parametrize("rule", ["depth-mup", "complete-p"])
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("block", ["one-layer", "two-layer"])
def test_a_small_step_moves_outputs_by_the_tangent_kernel(
    rule: Any, outputs: int, block: str
) -> None:
    """Of probes that are not trained on, whose kernel to the sample stands in one row."""
    rate = 1e-3
    sample = torch.ones(1, D)
    target = torch.tensor([[1.0, -2.0][:outputs]])
    # The loss is a mean over outputs, which are zero before training.
    slope = -target.double() / outputs
    p = predicted(
        nfd.resnets(D, outputs, activation="tanh", rule=rule, block=block),
        nfd.Task([(sample, target)], loss="mse"),
        rate,
        width=1024,
        replicates=16,
        probes=torch.cat([sample, probes()]),
        kernels=nfd.Kernels(times=2, steps=[0]),
    )
    tangent = p.kernels.tangent.value[0]
    wanted = -rate * torch.einsum("cjd,c->jd", tangent[0, :, 1:], slope[0])
    moved = p.probe_outputs.value[1, 1:]
    # The noise of 16 replicates is 3 % of what moved.
    assert rms(moved - wanted) < 0.1 * rms(wanted)
    # Kernels of other inputs are not these.
    assert rms(moved - wanted.roll(1, 0)) > 0.2 * rms(wanted)


# ---- looking changes nothing

SMALL = nfd.Family(Residual, base=(16, 2), rule="complete-p", optimizer="sgd")


@pytest.mark.parametrize(
    ("optimizer", "weights", "kernels"),
    [
        ("sgd", "structured", True),
        ("sgd", "dense", True),
        ("sgd", "deferred", False),
        ("adam", "dense", True),
        ("muon", "dense", True),
    ],
)
def test_losses_are_the_same_with_and_without_probes(
    optimizer: str, weights: Any, kernels: bool
) -> None:
    family = nfd.resnets(D, 1, optimizer=optimizer)
    task = regression(eval_batches=[(probes(3), torch.ones(3, 1))])
    rate = 0.3 if optimizer == "sgd" else 0.01
    settings: dict[str, Any] = {"lr": rate, "width": 32, "replicates": 2, "weights": weights}
    alone = predicted(family, task, **settings, probes=None)
    probed = predicted(family, task, **settings, kernels=kernels, outputs=True)
    assert torch.equal(alone.loss_replicates, probed.loss_replicates)
    assert alone.eval_loss == probed.eval_loss
    assert (alone.probe_outputs, alone.eval_outputs, alone.kernels) == (None, None, None)
    if kernels:
        assert probed.kernels.tangent is not None


def test_models_of_ones_own_answer_probes_as_their_batches() -> None:
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    pair = (x, torch.arange(8) % 3)
    task = nfd.Task([pair] * 3, eval_batches=[pair, pair])
    settings: dict[str, Any] = {"lr": 0.1, "depth": 2, "probes": x[2:].numpy()}
    p = predicted(SMALL, task, **settings, outputs=True)
    assert p.probe_outputs.value.shape == (4, 6, 3)
    assert p.eval_outputs.value.shape == (4, 16, 3)
    assert p.probe_outputs.replicates.shape == (4, 4, 6, 3)
    torch.testing.assert_close(p.probe_outputs.value[:3], p.outputs[:, 2:], rtol=0, atol=1e-5)
    torch.testing.assert_close(p.eval_outputs.value[:3, 8:], p.outputs, rtol=0, atol=1e-5)
    torch.testing.assert_close(p.eval_outputs.stderr[:3, :8], p.outputs_stderr, rtol=0, atol=1e-5)
    alone = predicted(SMALL, task, **settings | {"probes": None})
    assert torch.equal(p.loss, alone.loss)
    loss = torch.nn.functional.cross_entropy(p.eval_outputs.value[-1, :8], pair[1])
    # of the mean outputs, which is below the mean loss by the noise of outputs
    assert float(loss) == pytest.approx(p.eval_loss, rel=0.05)


class Pooled(nn.Module):
    """Inputs [b, positions, D] of any length, pooled."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(D, width)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(torch.relu(self.embed(x.mean(1))))
        return outputs


@pytest.mark.parametrize(("length", "is_given"), [(5, True), (7, False)])
def test_evaluation_batches_of_one_shape_have_outputs(length: int, is_given: bool) -> None:
    """Outputs of other shapes would not be one tensor: losses are given all the same."""
    pairs = [(torch.ones(2, positions, D), torch.arange(2)) for positions in (5, length)]
    task = nfd.Task(pairs[:1], eval_batches=pairs)
    family = nfd.Family(Pooled, base=(16, 1), rule="mup", optimizer="sgd")
    small: dict[str, Any] = {"depth": 1, "width": 32, "replicates": 2, "weights": "dense"}
    p = predicted(family, task, **small, outputs=True, probes=None)
    assert (p.eval_outputs is not None) == is_given
    assert math.isfinite(p.eval_loss)
    if is_given:
        assert p.eval_outputs.value.shape == (2, 4, 3)


def test_a_sweep_holds_kernels(tmp_path: Path) -> None:
    family = nfd.resnets(D, 1)
    settings: dict[str, Any] = {"width": 32, "replicates": 2, "kernels": True}
    here = predicted(family, regression(), **settings).kernels
    for _ in range(2):
        with nfd.Sweep(tmp_path) as sweep:
            kept = predicted(family, regression(), **settings, sweep=sweep).kernels
        assert torch.equal(kept.gradients.replicates, here.gradients.replicates)
    with nfd.Sweep(tmp_path) as sweep:
        others = predicted(
            family, regression(), **settings | {"probes": probes(2)}, sweep=sweep
        ).kernels
    assert others.features.value.shape[-1] == 2


# ---- what is given


def test_kernels_have_an_axis_for_each_thing() -> None:
    p = predicted(nfd.resnets(D, 3, horizon=2.0), regression(5, 3), kernels=True, width=32)
    kernels = p.kernels
    assert kernels.steps == (0, 1, 2, 4, 5)
    assert kernels.times.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert kernels.streams.value.shape == kernels.features.value.shape == (5, 5, 4, 5, 4)
    assert kernels.gradients.value.shape == (5, 5, 4, 3, 5, 4, 3)
    assert kernels.tangent.value.shape == (5, 4, 3, 4, 3)
    assert p.probe_outputs.value.shape == (6, 4, 3)
    for estimates in (kernels.streams, kernels.gradients, kernels.tangent, p.probe_outputs):
        assert bool((estimates.low <= estimates.value).all())
        assert bool((estimates.value <= estimates.high).all())
        torch.testing.assert_close(estimates.replicates.mean(0), estimates.value)
        assert not estimates.depth_error.any()
        assert estimates.value.dtype == torch.float64
    # between two times of training, one kernel read in both orders
    features = kernels.features.value
    torch.testing.assert_close(features, features.permute(0, 3, 4, 1, 2))
    # The outputs before training are zero, without an error.
    assert not p.probe_outputs.value[0].any()
    assert not (p.probe_outputs.high - p.probe_outputs.low)[0].any()


def test_depths_and_steps_are_chosen() -> None:
    family = nfd.resnets(D, 1)
    p = predicted(family, regression(), kernels=nfd.Kernels(times=3, steps=[4, 2]), width=32)
    assert p.kernels.steps == (0, 2, 4)
    assert p.kernels.times.tolist() == [0.0, 0.5, 1.0]
    for depth, times in ((1, 2), (6, 4)):
        p = predicted(family, regression(1), kernels=True, depth=depth, width=32, replicates=2)
        assert len(p.kernels.times) == times
    p = predicted(family, regression(80), kernels=True, depth=1, width=32, replicates=2, lr=0.0)
    assert len(p.kernels.steps) == 8
    assert (p.kernels.steps[0], p.kernels.steps[-1]) == (0, 80)


def test_the_error_of_depth_is_in_the_intervals_of_kernels() -> None:
    p = predicted(nfd.resnets(D, 1), regression(2), kernels=True, depth=math.inf, rtol=0.2)
    assert p.extrapolated
    estimates = p.kernels.tangent
    half = (estimates.high - estimates.low)[-1] / 2
    assert bool((estimates.depth_error[-1] > 0).all())
    assert bool((half >= estimates.depth_error[-1]).all())


@pytest.mark.parametrize(("horizon", "rtol", "converged"), [(0.5, 0.2, True), (6.0, 0.02, False)])
def test_convergence_in_depth_is_judged_by_kernels_too(
    horizon: float, rtol: float, converged: bool
) -> None:
    """Losses of far targets hardly see the network; 32 blocks are few for a horizon of 6."""
    batches = [(x, torch.full_like(y, 100.0)) for x, y in regression(1).batches]
    p = predicted(
        nfd.resnets(D, 1, horizon=horizon),
        nfd.Task(batches, loss="mse", init_scale=AS_THEY_ARE),
        0.0,
        depth=math.inf,
        rtol=rtol,
        replicates=8,
        probes=probes(2),
        kernels=nfd.Kernels(times=2, steps=[0]),
    )
    assert p.converged
    assert p.kernels.converged == converged
    assert (p.kernels.note == "") == converged
    assert p.kernels.note in p.note


def repeated(steps: int = 8, **more: Any) -> tuple[Tensor, nfd.Task]:
    """Eight samples, and a task of learning a product of two inputs from them."""
    x = torch.randn(8, D, generator=torch.Generator().manual_seed(0))
    return x, nfd.Task([(x, (x[:, :1] * x[:, 1:2]).sign())] * steps, loss="mse", **more)


@pytest.mark.parametrize("is_found", [True, False])
def test_kernels_without_a_limit_in_depth_say_so_and_count_the_last_doubling(
    monkeypatch: pytest.MonkeyPatch, is_found: bool
) -> None:
    """Where no limit is found, kernels before training are those of infinite depth all the same."""
    if not is_found:
        # Every change counts as one that does not shrink.
        monkeypatch.setattr("nfd.limits.predict._stays", lambda before, after: True)
        monkeypatch.setattr("nfd.limits.predict._RTOL", 1e-9)
    x, task = repeated(2)
    kernels = nfd.Kernels(times=2, steps=[2])
    settings: dict[str, Any] = {"depth": math.inf, "width": 32, "probes": x, "kernels": kernels}
    rtol = 0.5 if is_found else None
    p = predicted(nfd.resnets(D, 1, horizon=2.0), task, 0.2, rtol=rtol, **settings)
    tangent = p.kernels.tangent
    exact = nfd.kernel(x.double(), kind="ntk", horizon=2.0)
    assert isinstance(exact, Tensor)
    assert p.extrapolated == is_found
    assert rms(tangent.value[0, :, 0, :, 0] - exact) < 1e-8 * rms(exact)
    assert not tangent.depth_error[0].any()
    assert bool((tangent.depth_error[1] > 0).all())
    half = (tangent.high - tangent.low)[1] / 2
    assert bool((half >= tangent.depth_error[1]).all())
    assert bool((p.loss_depth_error[1:] > 0).all())
    moved_at = f"moved from training as at depth {p.depths[-1]}"
    assert (f"{moved_at}; before training they are exact" in p.kernels.note) != is_found
    assert p.kernels.note in p.note
    if not is_found:
        assert not p.kernels.converged
        shown = " ".join(str(p).split())
        assert "no limit in depth was found" in shown
        assert moved_at in shown
        assert len(str(p).splitlines()) <= 15


@pytest.mark.parametrize(("lr", "state"), [(0.3, "Predicted"), (2.0, "Not known")])
def test_what_noise_hides_is_not_called_predicted(lr: float, state: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 5, generator=generator)
    task = nfd.Task([(x, x[:, :1].sign())] * 4, loss="mse")
    kernels = nfd.Kernels(steps=[4])
    p = nfd.predict(
        nfd.resnets(5, 1), task, lr=lr, depth=4, width=64, replicates=8, probes=x, kernels=kernels
    )
    assert p.answer.state == state
    assert p.kernels is not None
    is_hidden = state == "Not known"
    assert ("wider than the loss was before training" in str(p.answer)) == is_hidden
    assert ("Noise hides kernels" in p.kernels.note) == is_hidden
    assert len(str(p.answer).splitlines()) <= 15


def replicates_in(note: str) -> int:
    found = re.search(r"[Aa]bout ([\d,]+) replicates", note)
    assert found, note
    return int(found[1].replace(",", ""))


def test_a_note_on_noise_says_how_many_replicates_would_decide() -> None:
    """More than there are, and none where the tolerance is loose."""
    x, task = repeated(2)

    def note(rtol: float | None = None) -> str:
        kernels = nfd.Kernels(times=2, steps=[2])
        settings: dict[str, Any] = {"depth": math.inf, "width": 32, "kernels": kernels}
        p = predicted(nfd.resnets(D, 1), task, 0.5, rtol=rtol, probes=x, **settings)
        shown = " ".join(str(p).split()).partition("But ")[2]
        assert p.kernels.note.lower() in shown.lower()
        return str(p.kernels.note)

    assert replicates_in(note()) > 4
    assert "rtol" not in note(rtol=1.0)


def test_a_kernel_moves_as_far_as_its_replicates_say() -> None:
    """A relative distance, whose interval does not reach below zero."""
    x, task = repeated()
    settings: dict[str, Any] = {"replicates": 8, "kernels": True, "probes": x}
    kernels = predicted(nfd.resnets(D, 1), task, 0.5, **settings).kernels
    pairs = {
        "tangent": kernels.tangent.value,
        "features": torch.stack([kernels.features.value[-1, s, :, s] for s in range(5)]),
    }
    for name, values in pairs.items():
        moved = kernels.moved(name)
        assert list(moved) == [1, 2, 4, 8]
        plain = float((values[-1] - values[0]).norm() / values[0].norm())
        # Noise makes the plain one larger.
        assert moved[8].value <= plain
        assert moved[8].value == pytest.approx(plain, rel=0.1)
        assert 0 < moved[8].low < moved[8].value < moved[8].high
        for interval in moved.values():
            assert 0 <= interval.low <= interval.value <= interval.high
    # At the input features move less than at the output.
    assert kernels.moved("features", at=0)[8].value < kernels.moved("features")[8].value
    still = predicted(nfd.resnets(D, 1), task, 0.0, **settings).kernels
    for interval in still.moved("tangent").values():
        assert (interval.value, interval.low, interval.high) == (0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="name must be one of"):
        kernels.moved("weights")
    with pytest.raises(ValueError, match="at must be at most 4"):
        kernels.moved("features", at=5)


def test_what_is_not_there_did_not_move() -> None:
    settings: dict[str, Any] = {"width": 32, "kernels": True}
    decoupled = predicted(nfd.resnets(D, 1, feedback="independent"), regression(), **settings)
    with pytest.raises(ValueError, match="feedback='independent'"):
        decoupled.kernels.moved("tangent")
    assert decoupled.kernels.moved("features")[4].low >= 0
    diverged = predicted(nfd.resnets(D, 1), regression(), lr=1e8, **settings).kernels
    assert str(diverged.moved("tangent")[4]) == "unknown"
    assert "after the divergence" in diverged.note


def test_a_momentum_of_torch_is_refused_at_once_and_ours_is_trained() -> None:
    def moved(optimizer: Any, **settings: Any) -> float:
        x, task = repeated(make_optimizer=optimizer)
        settings = {"probes": x, "kernels": nfd.Kernels(times=2, steps=[8])} | settings
        interval = predicted(nfd.resnets(D, 1), task, 0.2, **settings).kernels.moved("tangent")[8]
        return float(interval.value)

    def torchs(groups: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, momentum=0.9)

    # A network of this size would not be trained in a test.
    with pytest.raises(ValueError, match=r"nfd.SGD\(groups, momentum=0.9\), or weights='dense'"):
        moved(torchs, width=2**14, depth=256)
    plain = moved(None)
    assert moved(lambda groups: nfd.SGD(groups, momentum=0.9)) > 1.5 * plain
    assert moved(torchs, weights="dense") > 1.5 * plain


def test_after_a_divergence_kernels_and_outputs_are_not_numbers() -> None:
    p = predicted(nfd.resnets(D, 1), regression(), lr=1e8, kernels=True, width=32, replicates=2)
    assert "diverged" in p.note
    assert not p.probe_outputs.value[0].isnan().any()
    assert bool(p.probe_outputs.value[-1].isnan().all())
    assert not p.kernels.tangent.value[0].isnan().any()
    assert bool(p.kernels.tangent.value[-1].isnan().all())
    features = p.kernels.features.value
    assert bool(features[:, -1].isnan().all())
    assert bool(features[:, :, :, -1].isnan().all())
    assert not features[:, 0, :, 0].isnan().any()


@pytest.mark.parametrize("activation", ["relu", "identity"])
def test_kernels_before_training_are_known_at_long_horizons_too(activation: str) -> None:
    """Fixed steps of fourth order were wrong by 1e-5 of the largest at T = 4."""
    settings: dict[str, Any] = {"depth": math.inf, "width": 32, "replicates": 2, "rtol": 10.0}
    settings["kernels"] = nfd.Kernels(times=2, steps=[0])
    p = predicted(nfd.resnets(D, 1, activation=activation, horizon=4.0), regression(1), **settings)
    exact = nfd.kernel(probes().double(), kind="ntk", activation=activation, horizon=4.0)
    assert isinstance(exact, Tensor)
    tangent = p.kernels.tangent.value[0, :, 0, :, 0]
    assert float((tangent - exact).abs().max()) < 2e-9 * float(exact.abs().max())


def test_kernels_say_how_far_they_moved() -> None:
    x, task = repeated()
    settings: dict[str, Any] = {"probes": x, "replicates": 4, "kernels": True}
    p = predicted(nfd.resnets(D, 1), task, 0.3, **settings)
    moved = p.kernels.moved("tangent")[8].in_words()
    shown = " ".join(str(p.kernels).split())
    assert f"is {moved}, of 8 probes at 5 depths and after 0, 1, 2, 4 and 8 updates" in shown
    assert repr(p.kernels) == f"<TrainedKernels: {p.kernels.answer.brief}>"
    assert f"8 updates moved the tangent kernel by {moved} times its size" in str(p.answer.because)
    assert len(str(p.kernels).splitlines()) <= 15
    rows = {(row["kernel"], row["step"]): row["value"] for row in p.kernels.table}
    assert len(rows) == 4 * 4
    assert rows["features", 2] == p.kernels.moved("features")[2].value
    assert p.kernels.answer.title in p.kernels._repr_html_()
    settings["kernels"] = nfd.Kernels(times=2, steps=[0])
    p = predicted(nfd.resnets(D, 1), task, 0.3, **settings)
    assert "updates moved" not in p.answer.because
    assert "kernels before training" in str(p.kernels)
    assert p.kernels.table == []


def test_a_movement_that_noise_blurs_is_noted() -> None:
    """Four networks blur how far four steps move the kernel, and show what eight do."""
    x, task = repeated()

    def kernels(last: int) -> nfd.TrainedKernels:
        settings: dict[str, Any] = {"probes": x, "kernels": nfd.Kernels(times=2, steps=[last])}
        p = predicted(nfd.resnets(D, 1), task, 0.3, **settings)
        found = p.kernels
        assert isinstance(found, nfd.TrainedKernels)
        return found

    blurred = kernels(4)
    moved = blurred.moved("tangent")[4]
    assert moved.high - moved.low > moved.value
    assert "how far the tangent kernel moved is wider than that movement" in blurred.note
    sharp = kernels(8)
    moved = sharp.moved("tangent")[8]
    assert moved.high - moved.low < moved.value
    assert "wider than that movement" not in sharp.note


def test_kernels_have_as_many_rows_as_memory_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """600 rows of step and probe take 100 MiB here, and three steps of them three times that."""
    settings: dict[str, Any] = {"probes": probes(300), "width": 32, "replicates": 2, "depth": 2}
    two_steps = nfd.Kernels(times=2, steps=[2])
    p = predicted(nfd.resnets(D, 1), regression(2), **settings, kernels=two_steps)
    assert p.kernels.features.value.shape == (2, 2, 300, 2, 300)
    monkeypatch.setattr("nfd.limits.probes.memory_of", lambda device: 300 * 2**20)
    with pytest.raises(ValueError, match=r"GiB may be used. Take fewer probes\.") as error:
        predicted(nfd.resnets(D, 1), regression(2), **settings, kernels=two_steps)
    assert "steps=" not in str(error.value)
    settings["replicates"] = 8
    with pytest.raises(ValueError, match=r"or replicates, or fewer nfd.Kernels\(steps=.*times=2"):
        predicted(nfd.resnets(D, 1), regression(2), **settings, kernels=nfd.Kernels(steps=[1, 2]))


def make_model(width: int, depth: int) -> nn.Module:
    return nn.Sequential(nn.Linear(D, width), nn.ReLU(), nn.Linear(width, 1))


OWN = nfd.Family(make_model, base=(16, 1), rule="mup", optimizer="sgd")
TANH = nfd.resnets(D, 1, activation="tanh")
BAD: list[tuple[nfd.Family, dict[str, Any], str]] = [
    (nfd.resnets(D, 1), {"kernels": True, "probes": None}, r"kernels are of probes=\.\.\."),
    (nfd.resnets(D, 1), {"kernels": "features"}, "kernels must be True, False or nfd.Kernels"),
    (nfd.resnets(D, 1), {"kernels": nfd.Kernels(steps=[9])}, "at most the 4 updates.*got 9"),
    (nfd.resnets(D, 1), {"kernels": nfd.Kernels(times=4)}, "must divide the depth 4"),
    (nfd.resnets(D, 1), {"kernels": True, "weights": "deferred"}, "need one matrix for the probes"),
    (OWN, {"kernels": True}, "for the paper's residual networks"),
    (nfd.resnets(D, 1), {"probes": "x"}, "probes must be inputs as those of a batch"),
    (nfd.resnets(D, 1), {"probes": torch.full((2, D), torch.nan)}, "probes must be finite"),
    *(
        (
            nfd.resnets(D, 1),
            {"kernels": has_kernels, "probes": torch.ones(2, 3)},
            r"probes must.*\[2, 3\].*\[batch, 6\]",
        )
        for has_kernels in (True, False)
    ),
    (nfd.resnets(D, 1), {"probes": [[1.0] * D]}, r"got list.*Pass.*torch.tensor\(probes\)"),
    *(
        (nfd.resnets(D, 1), {"kernels": has_kernels, "probes": x}, f"probes must.*{x.dtype}")
        for x in (probes() + 1j, probes().long(), probes() > 0)
        for has_kernels in (True, False)
    ),
    (TANH, {"kernels": True, "probes": 50 * probes()}, "probes are too large.*Hermite"),
    (TANH, {"kernels": True, "probes": 1e6 * probes()}, "probes are too large.*Hermite"),
    (nfd.resnets(D, 1), {"kernels": True, "probes": 1e30 * probes()}, r"probes.*norms below"),
]


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        (TANH, {"kernels": True, "probes": 4 * probes()}),
        (TANH, {"kernels": False, "probes": 50 * probes()}),
        (nfd.resnets(D, 1), {"kernels": True, "probes": 1e14 * probes()}),
        (nfd.resnets(D, 1), {"kernels": True, "probes": probes().double()}),
        (nfd.resnets(D, 1), {"kernels": True, "probes": probes().double().numpy()}),
    ],
)
def test_probes_of_other_sizes_and_types_are_answered(
    family: nfd.Family, settings: dict[str, Any]
) -> None:
    p = predicted(family, regression(1), width=32, replicates=2, depth=2, **settings)
    assert bool(p.probe_outputs.value.isfinite().all())
    if settings["kernels"]:
        assert bool(p.kernels.tangent.value.isfinite().all())


def test_inputs_that_are_all_zero_are_named() -> None:
    """Networks that are alike for other reasons have another message."""
    zeros = nfd.Task([(torch.zeros(4, D), torch.ones(4, 1))] * 2, loss="mse")
    with pytest.raises(ValueError, match="the inputs of all batches are zero"):
        predicted(nfd.resnets(D, 1), zeros, width=32, replicates=2, probes=None)

    def always_zero(width: int, depth: int) -> nn.Module:
        return nn.Sequential(make_model(width, depth), nn.Threshold(1e9, 0.0))

    family = nfd.Family(always_zero, base=(16, 1), rule="mup", optimizer="sgd")
    with pytest.raises(ValueError, match="seed of its own"):
        predicted(
            family, regression(1), width=32, replicates=2, depth=1, weights="dense", probes=None
        )


def test_real_targets_without_a_loss_are_told_of_the_task() -> None:
    x, y = regression(1).batches[0]
    with pytest.raises(ValueError, match=r"nfd.Task\(batches, loss='mse'\)"):
        nfd.predict(nfd.resnets(D, 1), [(x, y)], 0.3, depth=2, width=32, replicates=2)


@pytest.mark.parametrize(("family", "settings", "message"), BAD)
def test_what_has_no_kernels_is_named(
    family: nfd.Family, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        predicted(family, regression(), width=32, replicates=2, **settings)


@pytest.mark.parametrize("settings", [{"times": 1}, {"steps": [-1]}, {"steps": "all"}])
def test_depths_and_steps_that_are_none_are_named(settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises((ValueError, TypeError), match=name):
        nfd.Kernels(**settings)


# ---- both limits of the paper


def of_samples(kernel: Tensor) -> Tensor:
    """Sample k before step k on both sides of a two-time kernel, [A, K, K]."""
    if kernel.dim() == 7:
        kernel = kernel[:, :, :, 0, :, :, 0]
    steps = torch.arange(4)
    return kernel[:, steps, steps][:, :, steps, steps]


def test_decoupled_networks_have_the_kernels_of_definition_1_and_standard_ones_do_not() -> None:
    """Two-time features and gradients, and outputs for inputs that are not trained on."""
    x = probes()
    y = torch.tensor([2.0, -2.0, 2.0, -2.0])
    unseen = torch.randn(3, D, generator=torch.Generator().manual_seed(8))
    settings: dict[str, Any] = {"horizon": 2.0, "activation": "tanh"}
    solved = nfd.solve_nfd(
        x, y, probes=unseen, grid=4, eta_c=0.4, particles=4096, replicates=4, **settings
    )
    task = nfd.Task([(a[None], b[None, None]) for a, b in zip(x, y, strict=True)], loss="mse")

    def distances(feedback: str) -> list[float]:
        """Of features, gradients and outputs, relative to the size of each."""
        p = predicted(
            nfd.resnets(D, 1, feedback=feedback, **settings),
            task,
            0.4,
            width=512,
            replicates=8,
            probes=torch.cat([x, unseen]),
            kernels=nfd.Kernels(times=5, steps=range(4)),
        )
        assert p.probe_outputs is not None
        pairs = [
            (of_samples(p.kernels.features.value), solved.Sigma[:, :4, :4]),
            (of_samples(p.kernels.gradients.value), solved.Theta[:, :4, :4]),
            (p.probe_outputs.value[-1, 4:, 0], solved.probe_outputs),
        ]
        assert (p.kernels.tangent is None) == (feedback == "independent")
        return [rms(value - truth) / rms(truth) for value, truth in pairs]

    decoupled = distances("independent")
    standard = distances("shared")
    # The noise of both is 2 to 4 % of kernels, and 5 % of outputs.
    assert max(decoupled[:2]) < 0.08
    assert decoupled[2] < 0.12
    for of_standard, of_decoupled in zip(standard, decoupled, strict=True):
        assert of_standard > 4 * of_decoupled
