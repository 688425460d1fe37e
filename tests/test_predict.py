"""The limit: reference trajectories, the exact first step, extrapolation, accuracy on demand, bad input."""

from __future__ import annotations

import inspect
import json
import math
import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from nfd.limits.cost import Storage, widest, within
from nfd.limits.problem import problem
from nfd.limits.sampler import Sampler
from torch import Tensor

import nfd
from nfd.core.activations import activation
from nfd.core.machine import bytes_of
from nfd.core.names import NetworkWeights, WideRuleName
from nfd.core.intervals import mean
from nfd.data.digits import digits
from nfd.limits import networks
from nfd.limits.loss import limit_losses
from nfd.nets.deferred import Feedback
from nfd.runs import replicates
from nfd.runs.executors.processes import Processes
from nfd.scaling.rules import RULES
from nfd.training.loop import train
from nfd.training.losses import cross_entropy

REFERENCE = json.loads((Path(__file__).parent / "reference.json").read_text())


def parity_rows(first: int, last: int) -> tuple[Tensor, Tensor]:
    """Rows of scikit-learn's digits as data/8 - 1, +1 for even digits and -1 for odd ones."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    x, y = raw.data[first:last] / 8 - 1, np.where(raw.target[first:last] % 2 == 0, 1.0, -1.0)
    return torch.from_numpy(x), torch.from_numpy(y)


def reference(case: dict[str, Any]) -> Any:
    """A trajectory with its name; each activation and each feedback is in one of the two that are quick to ask for."""
    quick = (case["activation"], case["feedback"]) in (("relu", "shared"), ("tanh", "independent"))
    name = f"{case['name']}-{case['activation']}-{case['feedback']}"
    return pytest.param(case, id=name, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize("case", [reference(case) for case in REFERENCE])
def test_reference_trajectories(case: dict[str, Any]) -> None:
    x, y = parity_rows(*case["rows"])
    kwargs = {key: case[key] for key in ("depth", "horizon", "activation", "eta_c", "feedback")}
    weights = "deferred" if case["activation"] == "tanh" else "structured"
    p = nfd.predict(x, y, loss="mse", width=8192, weights=weights, replicates=4, seed=1, **kwargs)
    error = (torch.tensor(case["stderr"]) ** 2 + p.outputs_stderr[:, 0, 0] ** 2).sqrt()
    z = (p.outputs[:, 0, 0] - torch.tensor(case["mean"])) / error
    assert float(z.abs().max()) < 4


def first_step_kernel(a: Tensor, b: Tensor, c: Tensor, name: str, L: int, T: float, feedback: Feedback) -> Tensor:
    """NTK of the depth-L network of infinite width (weight P = 1 for independent feedback), by its recursion.

    ``a, b, c``: |x|^2/d, |xbar|^2/d and x.xbar/d, any shape.
    """
    act, tau, start = activation(name), T / L, c
    moments, slopes = [], []
    for _ in range(L):
        moments.append(act.moment(a, b, c))
        slopes.append(act.slope_moment(a, b, c))
        a, b, c = a + tau * act.moment(a, a, a), b + tau * act.moment(b, b, b), c + tau * moments[-1]
    P = [torch.ones_like(c)]
    for slope in reversed(slopes):
        P.insert(0, P[0] * (1 + tau * slope) if feedback == "shared" else P[0])
    return c + tau * sum(m * p for m, p in zip(moments, P[1:], strict=True)) + start * P[0]


@pytest.mark.parametrize("feedback", ["shared", "independent"])
@pytest.mark.parametrize("name", ["relu", "tanh"])
@pytest.mark.parametrize("weights", [pytest.param("dense", marks=pytest.mark.slow), "deferred"])
def test_the_first_step_is_governed_by_the_exact_kernel(feedback: Feedback, name: str, weights: str) -> None:
    """[f(x1; theta1) - f(x1; theta0)] / eta_c -> -Lp0 K(x0, x1), both outputs of the same network."""
    eta_c, L, n = 1e-3, 8, 512 if weights == "dense" else 1024
    x = torch.randn(2, 6, generator=torch.Generator().manual_seed(2))
    x = x / x.square().mean(1, keepdim=True).sqrt()
    measured = []
    for seed in range(12 * 1024 // n):
        net = nfd.ResNet(6, 1, n, L, activation=name, feedback=feedback, weights=weights, seed=seed).double()
        optimizer = nfd.SGD(net.param_groups(eta_c))
        before = net(x.double())
        (0.5 * (before[0, 0] - 1).square()).backward()
        optimizer.step()
        measured.append((net(x.double()) - before).detach()[:, 0] / eta_c / (1 - before[0, 0].detach()))
    samples = torch.stack(measured)
    mean, error = samples.mean(0), samples.std(0) / math.sqrt(len(samples))
    C = (x.double() @ x.double().T) / x.shape[1]
    expected = first_step_kernel(C[0, 0], C.diagonal(), C[0], name, L, 1.0, feedback)
    assert float(((mean - expected) / error).abs().max()) < 4
    assert float((error / expected[0]).max()) < 0.02  # sharp enough to tell the two feedbacks apart


EXACT = {  # ReLU, T = 1, q_0 = 1, cos angle = -1, -0.75, ..., 1
    "shared": (-2.057021, -1.501043, -0.884184, -0.218152, 0.495863, 1.261054, 2.085873, 2.990933, 4.121803),
    "independent": (-1.950642, -1.381947, -0.788295, -0.172187, 0.466086, 1.127503, 1.814508, 2.532311, 3.297443),
}


@pytest.mark.parametrize("feedback", ["shared", "independent"])
def test_the_kernel_recursion_reaches_the_exact_values_at_infinite_depth(feedback: Feedback) -> None:
    one, cosine = torch.ones(9, dtype=torch.float64), torch.linspace(-1, 1, 9, dtype=torch.float64)
    coarse, fine = (first_step_kernel(one, one, cosine, "relu", L, 1.0, feedback) for L in (256, 512))
    expected = torch.tensor(EXACT[feedback], dtype=torch.float64)
    torch.testing.assert_close(2 * fine - coarse, expected, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def batches() -> tuple[Tensor, Tensor]:
    return digits().batches(4, 5, 0)


def test_accuracy_is_reached_on_demand(batches: tuple[Tensor, Tensor]) -> None:
    p = nfd.predict(*batches, depth=4, eta_c=0.3, rtol=0.1, classes=10)
    rms = float(p.outputs.square().mean().sqrt())
    assert float(p.outputs_stderr.square().mean().sqrt()) < 0.1 * rms
    assert p.converged
    assert p.depths == (4,)
    assert p.replicates >= 8
    assert p.outputs.shape == (5, 4, 10)
    assert p.eval_outputs is None
    assert abs(p.bias) < 0.1 * rms
    assert p.weights == min(p.ways, key=lambda way: way.seconds).weights


def test_depth_is_extrapolated_when_it_converges(batches: tuple[Tensor, Tensor]) -> None:
    p = nfd.predict(*batches, eta_c=0.1, rtol=0.6, width=128, replicates=8, classes=10)
    assert p.converged
    assert p.depths == (8, 16, 32)
    deep = nfd.predict(*batches, depth=64, eta_c=0.1, width=128, replicates=8, classes=10)
    assert float(((p.loss - deep.loss) / (p.loss_stderr**2 + deep.loss_stderr**2).sqrt()).abs().max()) < 4


@pytest.mark.parametrize("weights", ["dense", "deferred", "structured"])
def test_coupled_networks_converge_sample_by_sample(batches: tuple[Tensor, Tensor], weights: str) -> None:
    """Depths L and 2L of one path differ by little, and ever less; uncoupled ones by all that is random in W."""
    x, y = batches

    def trained(depth: int, seed: int, coupled: bool) -> Tensor:
        net = nfd.ResNet(64, 10, 256, depth, weights=weights, seed=seed, coupled=coupled)  # type: ignore[arg-type]
        rows = train(net, nfd.SGD(net.param_groups(0.3)), zip(x, y, strict=True), cross_entropy)
        return torch.stack([row.outputs for row in rows])

    def difference(depth: int, coupled: bool) -> float:
        both = [trained(2 * depth, s, coupled) - trained(depth, s, coupled) for s in range(2)]
        return float(torch.stack(both).square().mean().sqrt())

    assert difference(4, coupled=True) < 0.5 * difference(4, coupled=False)
    assert difference(16, coupled=True) < 0.7 * difference(4, coupled=True)


@pytest.mark.long
def test_equation_8_has_no_infinite_depth_limit_and_predict_says_so(batches: tuple[Tensor, Tensor]) -> None:
    """With the same noise and tolerance, uniform rates converge and depth-aware ones do not."""
    kwargs: dict[str, Any] = {"eta_c": 0.6, "block": "two-layer", "rtol": 0.2, "width": 256, "replicates": 10}
    kwargs |= {"weights": "dense"}
    uniform = nfd.predict(*batches, rule="depth-mup", classes=10, **kwargs)
    assert uniform.converged
    aware = nfd.predict(*batches, rule="depth-mup-inner", classes=10, **kwargs)
    assert not aware.converged
    assert aware.growth is not None
    assert aware.growth > 0  # 1/2 for the first step; a limit has -1
    assert "No limit in depth was found" in aware.note
    assert len(aware.depths) >= 3


def test_noise_is_not_taken_for_convergence(batches: tuple[Tensor, Tensor]) -> None:
    p = nfd.predict(*batches, eta_c=0.1, rtol=1e-3, width=64, replicates=4, classes=10)
    assert not p.converged
    assert "Noise hides whether" in p.note or "still changed" in p.note


def test_minibatches_momentum_rates_and_evaluation(batches: tuple[Tensor, Tensor]) -> None:
    x, y = batches
    fixed = {"depth": 3, "width": 64, "replicates": 4, "classes": 10, "momentum": 0.9, "eval_inputs": x[0]}
    p = nfd.predict(x, y, eta_c=[0.1] * 5, **fixed)
    q = nfd.predict(x, y, eta_c=0.1, **fixed)
    assert torch.equal(p.outputs, q.outputs)
    assert p.eval_outputs is not None
    assert p.eval_outputs.shape == (4, 10)
    frozen = nfd.predict(x, y, eta_c=[0.0] * 5, **fixed)
    torch.testing.assert_close(frozen.eval_outputs, frozen.outputs[0], rtol=0, atol=1e-3)
    assert not torch.allclose(p.loss, frozen.loss)


def test_predictions_repeat_bitwise(batches: tuple[Tensor, Tensor]) -> None:
    kwargs: dict[str, Any] = {"depth": 3, "width": 64, "replicates": 3, "classes": 10}
    assert torch.equal(nfd.predict(*batches, **kwargs).outputs, nfd.predict(*batches, **kwargs).outputs)
    assert not torch.equal(nfd.predict(*batches, **kwargs).outputs, nfd.predict(*batches, seed=1, **kwargs).outputs)


def test_the_last_update_is_made_where_something_is_read_after_it(
    batches: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = (values[:3] for values in batches)
    updates = list[int]()
    step = nfd.SGD.step
    monkeypatch.setattr(nfd.SGD, "step", lambda self: (updates.append(1), step(self)))
    kwargs: dict[str, Any] = {"depth": 1, "width": 16, "replicates": 2, "classes": 10, "weights": "dense"}
    alone = nfd.predict(x, y, **kwargs)
    count = len(updates)
    evaluated = nfd.predict(x, y, eval_inputs=x[0], **kwargs)
    assert (count * 3, torch.equal(alone.outputs, evaluated.outputs)) == ((len(updates) - count) * 2, True)


def test_a_prediction_is_a_sweep_that_goes_on_and_runs_anywhere(
    batches: tuple[Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit the same in this process, in others, and stopped in the middle; a store trains nothing twice."""
    x, y = batches
    kwargs: dict[str, Any] = {"depth": 2, "width": 64, "replicates": 3, "classes": 10, "eval_inputs": x[0]}
    here = nfd.predict(x, y, **kwargs)
    trained, done = replicates.trained, list[Any]()

    def counted(replicate: Any) -> Any:
        if len(done) == 2:
            done.append("stopped")
            raise KeyboardInterrupt
        done.append(replicate)
        return trained(replicate)

    monkeypatch.setattr(replicates, "trained", counted)
    with pytest.raises(KeyboardInterrupt):
        nfd.predict(x, y, out=tmp_path, **kwargs)
    stopped = nfd.predict(x, y, out=tmp_path, **kwargs)
    assert len(done) == 1 + 2 * kwargs["replicates"]
    nfd.predict(x, y, out=tmp_path, **kwargs)
    nfd.predict(x.numpy(), y.tolist(), out=tmp_path, **kwargs)  # the same task
    assert len(done) == 1 + 2 * kwargs["replicates"]
    nfd.predict(x, y.roll(1, 0), out=tmp_path, **kwargs)  # another
    assert len(done) == 1 + 4 * kwargs["replicates"]
    elsewhere = nfd.predict(x, y, executor=Processes(1), **kwargs)
    for other in (stopped, elsewhere):
        for name in ("outputs", "loss", "loss_low", "eval_outputs"):
            assert torch.equal(getattr(other, name), getattr(here, name)), name


def test_a_prediction_without_a_store_leaves_no_file(
    batches: tuple[Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    nfd.predict(*batches, depth=2, width=32, replicates=2, classes=10)
    assert list(tmp_path.iterdir()) == []


def test_all_kinds_of_weights_predict_the_same(batches: tuple[Tensor, Tensor]) -> None:
    def predicted(weights: str) -> nfd.Prediction:
        p = nfd.predict(*batches, depth=4, eta_c=0.3, width=256, weights=weights, replicates=12, classes=10)
        assert p.weights == weights
        assert [way.weights for way in p.ways] == [weights]
        return p

    a = predicted("dense")
    for b in map(predicted, ("deferred", "structured")):
        error = (a.outputs_stderr**2 + b.outputs_stderr**2).sqrt()
        assert float(((a.outputs - b.outputs) / error).abs().max()) < 4.5


@pytest.mark.parametrize("wide", ["structured", "deferred"])
def test_all_networks_have_weights_of_one_law(
    wide: NetworkWeights, batches: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dense and deferred weights have one, so that narrow networks are dense where wide ones are deferred."""
    held, trained = set[tuple[int, str]](), replicates.trained

    def costs(weights: NetworkWeights, _: Any, width: int, depth: int, rank: float | None = None) -> Storage:
        return Storage(weights, 1, 1.0 if weights == (wide if width > 32 else "dense") else 2.0)

    def watched(replicate: Any) -> Any:
        held.add((replicate.width, replicate.weights))
        return trained(replicate)

    monkeypatch.setattr(networks, "way_of", costs)
    monkeypatch.setattr(replicates, "trained", watched)
    p = nfd.predict(*batches, depth=2, width=128, replicates=2, classes=10)
    assert p.weights == wide
    assert held == {(128, wide), (32, "structured" if wide == "structured" else "dense")}


@pytest.mark.parametrize(("power", "size"), [(2.0, (128, 32)), (0.0, (512, 8))])
def test_width_and_replicates_are_the_cheapest_that_reach_the_error(
    power: float, size: tuple[int, int], batches: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a network costs n^2 many narrow ones are cheapest, where all cost the same few wide ones."""

    def costs(weights: NetworkWeights, _: Any, width: int, depth: int, rank: float | None = None) -> Storage:
        return Storage(weights, 1, 1e-6 * width**power)

    monkeypatch.setattr(networks, "way_of", costs)
    monkeypatch.setattr(networks.PaperNetworks, "pilot_width", 32)
    monkeypatch.setattr(Sampler, "_needed", lambda *_: 4096.0)
    p = nfd.predict(*(x[:2] for x in batches), depth=1, classes=10, weights="structured")
    assert (p.width, p.replicates) == size


def test_stored_networks_of_one_kind_of_weights_are_not_taken_for_those_of_another(
    batches: tuple[Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kwargs: dict[str, Any] = {"depth": 2, "width": 64, "replicates": 2, "classes": 10, "out": tmp_path}
    first, other = (nfd.predict(*batches, weights=weights, **kwargs) for weights in ("structured", "deferred"))
    assert not torch.equal(first.loss, other.loss)
    monkeypatch.setattr(replicates, "trained", lambda _: pytest.fail("trained twice"))
    assert torch.equal(first.loss, nfd.predict(*batches, weights="structured", **kwargs).loss)


@pytest.mark.parametrize("weights", ["dense", "deferred", "structured"])
def test_progress_is_counted_in_predicted_seconds(
    weights: NetworkWeights, batches: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    costs, trained = list[float](), replicates.trained

    def watched(replicate: Any) -> Any:
        costs.append(replicates.ReplicateRun(replicate).cost)
        return trained(replicate)

    monkeypatch.setattr(replicates, "trained", watched)
    p = nfd.predict(*batches, depth=2, width=64, replicates=2, classes=10, weights=weights)
    assert costs.count(p.ways[0].seconds) == 2


def test_long_runs_of_narrow_networks_choose_dense_weights() -> None:
    x, y = digits().batches(16, 300, 0)
    p = nfd.predict(x, y, depth=2, width=64, replicates=2, classes=10)
    assert p.weights == "dense"
    assert p.loss[-20:].mean() < 0.7


def test_divergence_is_reported_with_its_step(batches: tuple[Tensor, Tensor]) -> None:
    p = nfd.predict(*batches, depth=4, eta_c=1e6, width=64, replicates=2, classes=10)
    assert not p.converged
    assert "diverged at step" in p.note
    assert math.isfinite(float(p.loss[0]))
    assert math.isnan(float(p.loss[-1]))


def test_memory_is_a_bound_and_text_is_understood() -> None:
    assert bytes_of("4 GiB") == 4 * 2**30
    assert bytes_of("500MB") == 500_000_000
    assert bytes_of(1000) == 1000
    for bad in ("lots", "-1 GB", "0", "1 XB", ".", "9" * 400):
        with pytest.raises(ValueError, match="memory must be"):
            bytes_of(bad)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"inputs": torch.zeros(0, 3)}, ValueError, "inputs must be"),
    ({"inputs": torch.full((2, 3), math.nan)}, ValueError, "inputs must be finite"),
    ({"inputs": "text"}, TypeError, "inputs must be a tensor"),
    ({"targets": torch.tensor([0, 1, 2])}, ValueError, r"targets must be \[2, 1\]"),
    ({"targets": torch.tensor([0.5, 1.0])}, TypeError, "integer class ids"),
    ({"targets": torch.tensor([0, 7]), "classes": 3}, ValueError, r"class ids in 0\.\.2"),
    ({"depth": 0}, ValueError, "depth must be at least 1"),
    ({"depth": 2.5}, TypeError, "depth must be a whole number"),
    ({"horizon": 0}, ValueError, "horizon must be greater"),
    ({"activation": "tanhh"}, ValueError, "Did you mean 'tanh'"),
    ({"feedback": "decoupled"}, ValueError, "feedback must be one of"),
    ({"rule": "depth-mup-inner"}, ValueError, "needs inner and outer roles"),
    ({"eta_c": [0.1]}, ValueError, r"one per step, \[2\]"),
    ({"eta_c": math.nan}, ValueError, "eta_c must be finite"),
    ({"width": 0}, ValueError, "width must be at least 1"),
    ({"width": "wide"}, TypeError, "width must be a whole number or 'auto'"),
    ({"momentum": 5.0}, ValueError, "momentum must be less than 1"),
    ({"classes": 1, "targets": torch.tensor([0, 0])}, ValueError, "classes must be at least 2"),
    ({"targets": torch.tensor([True, False])}, TypeError, "integer class ids"),
    ({"targets": torch.tensor([0, 10**12])}, ValueError, "C at most"),
    ({"inputs": torch.ones(2, 3, dtype=torch.complex64)}, TypeError, "real numbers"),
    ({"inputs": [[1.0, 2.0, 3.0], [1.0]]}, TypeError, "inputs must be a tensor or a rectangular array"),
    ({"eta_c": 1e300}, ValueError, "eta_c must be less than"),
    ({"device": "foo"}, ValueError, "device must be one"),
    ({"memory": "1 KB", "width": "auto"}, ValueError, "memory allows no network"),
    ({"replicates": 1}, ValueError, "replicates must be at least 2"),
    ({"rtol": 0}, ValueError, "rtol must be at least 1e-09"),
    ({"memory": "1 KB", "width": 4096}, ValueError, "does not fit into memory"),
    ({"eval_inputs": torch.zeros(2, 5)}, ValueError, r"eval_inputs must be \[n_eval, 3\]"),
    ({"loss": "hinge"}, ValueError, "loss must be one of"),
    ({"block": "two"}, ValueError, "block must be one of"),
    ({"weights": "sparse"}, ValueError, "weights must be one of"),
    ({"weights": "dense", "resolution": 0.1}, ValueError, "resolution is for weights='structured'"),
    ({"resolution": 1.5}, ValueError, "resolution must be less than 1"),
    ({"rule": "standard"}, ValueError, "rule='standard' has no limit of large width.*Choose one of 'mup'"),
    ({"rule": "mu"}, ValueError, "rule must be one of 'mup', 'depth-mup', 'depth-mup-inner', 'complete-p'; got 'mu'"),
    ({"horizon": 1e6}, ValueError, "horizon must be less than 1000"),
    ({"loss": "mse", "targets": torch.ones(2, 1, 3)}, ValueError, r"one output: pass one of them, such as targets\["),
    ({"targets": torch.ones(2, 1, 3)}, ValueError, r"pass targets\.argmax\(-1\)"),
    ({"rule": "mup", "depth": math.inf}, ValueError, "no limit of large depth; use 'depth-mup' or 'complete-p'"),
    ({"lr": 0.1}, TypeError, "of the paper's networks has no argument 'lr'. Did you mean eta_c"),
    ({"horizn": 1.0}, TypeError, "no argument 'horizn'. Did you mean horizon"),
    ({"batches": [], "eta_c": 0.1}, TypeError, "of your model has no argument"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD)
def test_bad_input_is_named(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    given = {"inputs": torch.ones(2, 3), "targets": torch.tensor([0, 1]), "depth": 2, "width": 8, "replicates": 2}
    with pytest.raises(error, match=message):
        nfd.predict(**(given | arguments))


@pytest.mark.parametrize(
    ("targets", "classes", "absent"),
    [
        ([[0, 1]], None, None),
        ([[1, 2]], None, "0..2, 0 never"),
        ([[1, 2]], 3, None),
        ([[0, 0]], None, "0..1, 1 never"),
        ([[0, 9]], None, "0..9, 1, 2, 3, 4, 5 and 3 more never"),
    ],
)
def test_class_ids_that_never_occur_are_noted(targets: Any, classes: int | None, absent: str | None) -> None:
    p = nfd.predict(torch.ones(1, 2, 3), targets, classes=classes, depth=1, width=8, replicates=2)
    assert ("never occur" in p.note) == (absent is not None)
    assert (absent or "") in p.note


def test_rules_of_the_settings_are_those_with_a_limit_of_width() -> None:
    assert get_args(WideRuleName) == tuple(name for name, rule in RULES.items() if rule.scales_width)


@pytest.mark.parametrize(("eta_c", "hidden"), [(0.0, True), (1.0, False)])
def test_no_accuracy_is_sought_of_outputs_that_vanish(
    eta_c: float, hidden: bool, batches: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least sizes are trained, and the note does not call them the caller's."""
    monkeypatch.setattr(networks.PaperNetworks, "pilot_width", 32)
    p = nfd.predict(*batches, depth=1, classes=10, eta_c=eta_c, rtol=0.1)
    assert ((p.width, p.replicates) == (128, 8)) == hidden
    assert ("no significant size" in p.note) == hidden
    assert "You chose" not in p.note
    own = nfd.predict(*batches, depth=1, classes=10, eta_c=eta_c, width=8, replicates=2)
    assert "You chose width 8 and 2 replicates" in own.note


@pytest.mark.parametrize("long", [True, False])
def test_a_prediction_that_takes_long_warns_before_it_trains(
    long: bool, batches: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def way(weights: NetworkWeights, _: Any, width: int, depth: int, rank: float | None = None) -> Storage:
        return Storage(weights, 1, (5.0 if long else 2.0) * width)  # of two of width 8 and two of width 4: 120 s, 48 s

    monkeypatch.setattr(networks, "way_of", way)
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        nfd.predict(*batches, depth=1, classes=10, width=8, replicates=2)
    assert [(Path(w.filename), "about 2 minutes" in str(w.message)) for w in raised] == [(Path(__file__), True)] * long


def test_the_signature_names_every_argument_and_no_default_that_is_of_one_form_alone() -> None:
    defaults = {name: p.default for name, p in inspect.signature(nfd.predict).parameters.items()}
    assert {"inputs", "eta_c", "make_model", "lr"} <= defaults.keys()
    assert (defaults["progress"], defaults["seed"], defaults["eta_c"]) == (None, 0, 0.3)
    assert {name for name, default in defaults.items() if default is ...} == {
        *("inputs", "targets", "batches", "make_model"),
        *("depth", "rule", "rtol", "device"),
    }


def test_what_is_missing_is_named() -> None:
    with pytest.raises(TypeError, match=r"inputs and targets, or batches= and make_model=.*missing.*'targets'"):
        nfd.predict(torch.ones(2, 3))


@pytest.mark.parametrize(("factor", "warned"), [(1.0, False), (100.0, True), (0.01, True)])
def test_inputs_of_an_unusual_size_are_warned_of(factor: float, warned: bool) -> None:
    x, y = torch.full((1, 2, 3), factor), torch.tensor([[0, 1]])
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        nfd.predict(x, y, depth=1, width=8, replicates=2)
    assert [Path(warning.filename) == Path(__file__) for warning in raised] == [True] * warned


def test_predicted_memory_covers_what_the_factors_need() -> None:
    x, y = digits().batches(8, 6, 0)
    given = problem(
        x, y, loss="cross-entropy", classes=10, horizon=1.0, activation="relu", block="one-layer", eta_c=0.1,
        momentum=0.0, feedback="shared", rule="depth-mup", device="cpu", coupled=False,
    )  # fmt: skip
    net = given.network(512, 3, "deferred", 0)
    for k in range(6):
        net(x[k]).square().sum().backward()
    held = sum(m.matrix.nbytes for m in net.modules() if isinstance(m, nfd.DeferredLinear))
    cost = within(given, 512, 3, 2**40)
    assert cost is not None
    assert held <= cost.bytes <= 6 * held
    n = widest(lambda n: within(given, n, 3, cost.bytes) is not None)
    assert within(given, n, 3, cost.bytes)
    assert not within(given, 2 * n, 3, cost.bytes)


@pytest.mark.slow
def test_the_memory_model_bounds_the_measured_peak() -> None:
    code = """
from nfd.core.machine import peak_memory as peak
from nfd.data.digits import digits
from nfd.runs import replicates
from nfd.limits.cost import within
from nfd.limits.problem import problem
x, y = digits().batches(8, 12, 0)
given = problem(x, y, loss="cross-entropy", classes=10, horizon=1.0, activation="relu", block="one-layer", eta_c=0.1,
                momentum=0.0, feedback="shared", rule="depth-mup", device="cpu", coupled=False)
from nfd.runs.replicates import trained
from nfd.limits.ensemble import Replicate
trained(Replicate(given, 64, 4, "deferred", 0))
before = peak()
trained(Replicate(given, 65536, 4, "deferred", 0))
print((peak() - before) / within(given, 65536, 4, 2**40).bytes)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0.4 < float(done.stdout) < 1.1  # a bound that is neither broken nor useless


@pytest.mark.parametrize("loss", ["cross-entropy", "mse"])
def test_the_loss_at_evaluation_inputs(batches: tuple[Tensor, Tensor], loss: str) -> None:
    """With nothing learned the evaluation is the first step again; the rest of a prediction does not change."""
    x, y = batches
    y = y.float() / 10 if loss == "mse" else y
    kwargs: dict[str, Any] = {"depth": 3, "width": 64, "replicates": 4, "loss": loss, "eval_inputs": x[0]}
    kwargs |= {"classes": 10} if loss == "cross-entropy" else {}
    p = nfd.predict(x, y, eta_c=0.0, eval_targets=y[0], **kwargs)
    assert p.eval_loss == pytest.approx(float(p.loss[0]), abs=1e-3)
    assert p.eval_loss_stderr == pytest.approx(float(p.loss_stderr[0]), rel=1e-2)
    plain = nfd.predict(x, y, eta_c=0.0, **kwargs)
    assert (plain.eval_loss, plain.eval_loss_stderr) == (None, None)
    assert torch.equal(plain.outputs, p.outputs)
    assert torch.equal(plain.eval_outputs, p.eval_outputs)  # type: ignore[arg-type]


def test_the_loss_of_a_diverged_run_is_not_a_number(batches: tuple[Tensor, Tensor]) -> None:
    x, y = batches
    kwargs: dict[str, Any] = {"depth": 4, "width": 64, "replicates": 2, "classes": 10}
    p = nfd.predict(x, y, eta_c=1e6, eval_inputs=x[0], eval_targets=y[0], **kwargs)
    assert p.eval_loss is not None
    assert math.isnan(p.eval_loss)


def gaussian_outputs(width: int, bias: float, generator: torch.Generator, count: int = 8) -> Tensor:
    """Outputs [count, 1, 3, 1] ``f + bias / n + noise / sqrt(n)`` of networks whose limit is f = (1, 2, 3)."""
    noise = torch.randn(count, 1, 3, 1, generator=generator, dtype=torch.float64)
    return torch.tensor([1.0, 2.0, 3.0]).double().view(1, 3, 1) + bias / width + noise / math.sqrt(width)


@pytest.mark.parametrize("bias", [0.0, 8.0])
def test_intervals_of_losses_cover_the_infinite_width(bias: float) -> None:
    """Targets of 0.5 make the loss move with the outputs: a bias of 8 / 128 by three standard errors."""
    draws, generator = 300, torch.Generator().manual_seed(0)

    def loss(outputs: Tensor) -> Tensor:
        return 0.5 * (outputs.squeeze(-1) - 0.5).square().mean(-1)

    limit = float(loss(torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1)))
    covered = raw = 0
    shifts = []
    for _ in range(draws):
        wide, narrow = (gaussian_outputs(n, bias, generator) for n in (128, 32))
        found = limit_losses(loss, wide, narrow, 4.0)
        covered += bool(found.low[0] <= limit <= found.high[0])
        half = (found.high - found.low)[0] / 2
        raw += bool(abs(loss(wide.mean(0))[0] - limit) <= half)
        shifts.append(float(found.bias[0]))
    assert covered >= 0.93 * draws
    assert (raw >= 0.93 * draws) == (bias == 0)  # without the correction a bias is missed
    assert sum(shifts) / draws == pytest.approx(1.5 * bias / 128, abs=0.015)


def test_a_loss_counts_how_far_the_last_doubling_moved_it() -> None:
    generator = torch.Generator().manual_seed(1)
    wide, narrow = gaussian_outputs(128, 0.0, generator), gaussian_outputs(32, 0.0, generator)

    def loss(outputs: Tensor) -> Tensor:
        return outputs.mean((-1, -2))

    plain, moved = (limit_losses(loss, wide, narrow, 4.0, coarse) for coarse in (None, wide - 0.7))
    assert torch.equal(plain.value, moved.value)
    assert torch.equal(plain.stderr, moved.stderr)
    half, wider = ((p.high - p.value)[0] for p in (plain, moved))
    assert float(wider) == pytest.approx(math.hypot(float(half), 0.7))


def test_a_loss_counts_what_resolution_adds_and_does_not_take_it_out() -> None:
    generator = torch.Generator().manual_seed(1)
    wide, narrow = gaussian_outputs(128, 0.0, generator), gaussian_outputs(32, 0.0, generator)

    def loss(outputs: Tensor) -> Tensor:
        return outputs.mean((-1, -2))

    without = limit_losses(loss, wide, narrow, 4.0)
    for b in (1.0, 4e-12):
        p = limit_losses(loss, wide, narrow, 4.0, exact=(narrow - b)[:3])
        assert float(p.resolution_bias) == pytest.approx(b)
        assert float(p.resolution_bias_stderr) < 1e-12
        assert torch.equal(p.value, without.value)
        half, wider = ((q.high - q.value)[0] for q in (without, p))
        assert float(wider) == pytest.approx(math.hypot(float(half), b))
    assert not without.resolution_bias.any()


def test_a_coarse_resolution_is_seen_and_a_fine_one_adds_nothing() -> None:
    x, y = digits().batches(4, 6, 0)
    kwargs: dict[str, Any] = {"depth": 2, "eta_c": 1.0, "width": 128, "replicates": 4, "classes": 10}
    coarse, fine = (nfd.predict(x, y, resolution=resolution, **kwargs) for resolution in (0.9, 1e-4))
    exact = nfd.predict(x, y, weights="dense", **kwargs)
    for p, resolution in ((coarse, 0.9), (fine, 1e-4), (exact, None)):
        assert p.resolution == resolution
        assert ("Resolution" in str(p)) == (resolution is not None)
        assert [row["resolution_bias"] for row in p.table] == p.loss_resolution_bias.tolist()
    assert float(fine.loss_resolution_bias.abs().max()) < 1e-4 < 1e-2 < float(coarse.loss_resolution_bias.abs().max())
    assert not exact.loss_resolution_bias.any()
    assert bool(((coarse.loss_low <= fine.loss) & (fine.loss <= coarse.loss_high)).all())


@pytest.mark.parametrize("width", [1, 2])
def test_a_loss_without_a_known_bias_has_no_interval(batches: tuple[Tensor, Tensor], width: int) -> None:
    p = nfd.predict(*batches, depth=2, width=width, replicates=2, classes=10)
    known = width > 1
    assert bool(p.loss.isfinite().all())
    assert bool(p.loss_low.isfinite().all()) == bool(p.loss_bias.isfinite().all()) == known
    assert ("no narrower one" in p.note) == (not known)
    assert ("interval not known" in str(p)) == (not known)


def test_narrow_networks_that_diverge_leave_no_interval(
    batches: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = replicates.trained

    def broken(replicate: Any) -> Any:
        trajectory = trained(replicate)
        if replicate.width == 32:
            trajectory.outputs[3:] = math.nan
        return trajectory

    monkeypatch.setattr(replicates, "trained", broken)
    p = nfd.predict(*batches, depth=2, width=128, replicates=3, classes=10)
    assert p.narrow_width == 32
    assert bool(p.loss.isfinite().all())
    assert p.loss_low.isfinite().tolist() == [True, True, True, False, False]
    assert "Networks of width 32 diverged" in p.note


def test_the_width_is_taken_out_of_the_loss(batches: tuple[Tensor, Tensor]) -> None:
    """``loss`` and ``loss_bias`` give back the loss of the networks that were run, but for the jackknife's part."""
    p = nfd.predict(*batches, depth=2, width=128, replicates=6, classes=10, eta_c=0.3)
    at_width = cross_entropy(p.outputs, batches[1])
    torch.testing.assert_close(p.loss + p.loss_bias, at_width, rtol=0, atol=0.05)
    assert bool(((p.loss_low < p.loss) & (p.loss < p.loss_high)).all())
    half = (p.loss_high - p.loss)[-1] / p.loss_stderr[-1]
    assert 2.0 < float(half) < 2.6  # Student's t of the five degrees of freedom of each ensemble, combined


def test_a_prediction_prints_its_losses(batches: tuple[Tensor, Tensor]) -> None:
    x, y = batches
    p = nfd.predict(x, y, depth=2, width=64, replicates=3, classes=10, eval_inputs=x[0], eval_targets=y[0])
    said = str(p)
    assert repr(p) == said
    assert len(said.splitlines()) < 15
    for row in (p.table[0], p.table[-1]):
        line = next(line for line in said.splitlines() if line.strip().startswith(f"step {row['step']} "))
        value, low, high = map(float, re.findall(r"\d+\.\d+", line)[:3])
        assert (value, low, high) == pytest.approx((row["loss"], row["low"], row["high"]), abs=0.006)
    kept = pickle.loads(pickle.dumps(p))
    assert torch.equal(kept.loss, p.loss)
    assert (kept == p, p == p) == (False, True)  # identity: tensors have no truth
    assert all(key in (type(p).table.__doc__ or "") for key in p.table[0])
    assert "evaluation" in said
    assert "3 networks of width 64 (dense weights) and 3 of width 32" in said
    assert p.eval_interval is not None
    assert p.eval_interval.unsigned in said
    assert [row["step"] for row in p.table] == [0, 1, 2, 3, 4]
    assert [row["value"] for row in p.table] == p.loss.tolist()


BAD_EVALUATIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"eval_inputs": None}, ValueError, "eval_inputs=None. Pass both"),
    ({"eval_targets": [0]}, ValueError, r"eval_targets must be \[2\]"),
    ({"eval_targets": [0, 3]}, ValueError, r"eval_targets must be class ids in 0\.\.2"),
    ({"eval_targets": [0.0, 1.0]}, TypeError, "eval_targets for loss='cross-entropy' must be integer"),
    ({"eval_targets": "ab"}, TypeError, "eval_targets must be a tensor"),
    ({"eval_inputs": torch.zeros(0, 3), "eval_targets": torch.zeros(0)}, ValueError, "n_eval of at least 1"),
    ({"loss": "mse", "targets": torch.zeros(2), "eval_targets": [0.0, math.nan], "classes": None}, ValueError,
     "eval_targets must be finite"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "error", "message"), BAD_EVALUATIONS)
def test_bad_evaluation_targets_are_named(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    given = {"inputs": torch.ones(2, 3), "targets": torch.tensor([0, 1]), "depth": 2, "width": 8, "replicates": 2}
    given |= {"classes": 3, "eval_inputs": torch.ones(2, 3), "eval_targets": torch.tensor([0, 2])}
    with pytest.raises(error, match=message):
        nfd.predict(**(given | arguments))


def test_replicates_show_the_gap_of_the_two_limits_and_no_gap_where_there_is_none() -> None:
    """Their mean is the loss. Standard and decoupled training differ after some steps, two decoupled ones do not."""
    inputs, targets = digits().batches(size=8, steps=4, seed=0)
    settings: dict[str, Any] = {"depth": 4, "width": 64, "replicates": 12, "weights": "dense"}
    settings |= {"eval_inputs": inputs[0], "eval_targets": targets[0]}
    standard, decoupled, other = (
        nfd.predict(inputs, targets, feedback=feedback, seed=seed, **settings)
        for feedback, seed in (("shared", 0), ("independent", 0), ("independent", 1))
    )
    assert torch.allclose(standard.loss_replicates.mean(0), standard.loss)
    assert float(standard.eval_loss_replicates.mean()) == pytest.approx(standard.eval_loss)

    def gap(first: Any, second: Any) -> Any:
        return mean(first.loss_replicates[:, -1] - second.loss_replicates[:, -1])

    assert gap(standard, decoupled).resolved
    assert not gap(decoupled, other).resolved
    assert gap(standard, decoupled).stderr < 0.2 * gap(decoupled, other).stderr  # of pairs that share their weights
