"""Kernel regression and the facts of its spaces, against textbook formulas and known facts."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.linalg import helmert
from sklearn.gaussian_process import GaussianProcessRegressor

import nfd
from nfd.cli.main import main
from nfd.core.statistics import share
from nfd.limits.function_space import kernel_facts
from nfd.questions.kernel_fit import KernelFit, fit_findings
from nfd.runs.settings import KernelConfig


@pytest.fixture(scope="module")
def fit() -> KernelFit:
    return KernelFit(KernelConfig(train=60, test=60, horizons=(0.25, 1.0, 16.0)))


def test_the_likelihood_is_that_of_a_gaussian(fit: KernelFit) -> None:
    K = nfd.kernel(fit.x.numpy())
    shape = K / np.diag(K).mean() + 0.01 * np.eye(len(K))
    independent = helmert(10) @ fit.targets.T.numpy()  # centred one-hot labels add up to zero
    variance = np.mean([y @ np.linalg.solve(shape, y) for y in independent]) / len(K)
    law = stats.multivariate_normal(np.zeros(len(K)), variance * shape)
    expected = sum(law.logpdf(y) for y in independent)
    assert fit.likelihood(0.0) == pytest.approx(expected)


def test_predictions_are_those_of_scikit_learn(fit: KernelFit) -> None:
    scale = float(np.diag(nfd.kernel(fit.x.numpy())).mean())
    process = GaussianProcessRegressor(nfd.InfiniteDepthKernel(), alpha=0.01 * scale, optimizer=None)
    predicted = process.fit(fit.x.numpy(), fit.targets.numpy()).predict(fit.test_x.numpy()).argmax(1)
    assert fit.score(1.0).accuracy.value == pytest.approx((predicted == fit.test_y.numpy()).mean())


def test_the_best_horizon_is_the_maximum_and_its_interval_the_drop() -> None:
    """With noise the data prefer a horizon within a short range, which takes a quarter of the work of a long one."""
    fit = KernelFit(KernelConfig(train=60, test=60, horizons=(0.25, 1.0, 8.0), noise=0.3))
    best, low, high = fit.best([fit.score(h) for h in fit.config.horizons])
    assert 0.25 < low < best < high < 8.0
    top = fit.likelihood(math.log(best))
    assert all(fit.likelihood(math.log(best) + step) <= top + 1e-3 for step in (-0.1, 0.1))
    for end in (low, high):
        assert fit.likelihood(math.log(end)) == pytest.approx(top - 1.92, abs=0.3)
    likelihood, accuracy = fit_findings(fit)
    assert [row["horizon"] for row in likelihood.rows] == [0.25, 1.0, 8.0]
    assert all(row["low"] < row["accuracy"] < row["high"] for row in accuracy.rows)


def test_wilson_intervals_are_scipys() -> None:
    for right, count in ((0, 10), (7, 10), (500, 500)):
        exact = stats.binomtest(right, count).proportion_ci(0.95, "wilson")
        found = share(right, count)
        assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=1e-6)


@pytest.mark.parametrize(
    "name", ["relu", "tanh", "identity", *(pytest.param(name, marks=pytest.mark.slow) for name in ("erf", "gelu"))]
)
def test_facts_are_what_theory_says(name: str) -> None:
    facts = kernel_facts(name)  # type: ignore[arg-type]
    odd = name in ("tanh", "erf", "identity")
    assert facts.parity == ("odd" if odd else "neither")
    assert (facts.counterexample is not None) == odd
    assert facts.universal.startswith("no:") == odd
    assert facts.nesting >= -facts.nesting_rounding  # Prop. 5
    assert (facts.smallest_antipodal > 1e-6) == (not odd)
    assert abs(facts.smallest_antipodal_0) < 1e-12  # relu and gelu have no odd part beyond degree 1 either
    assert (facts.smallest_random > 1e-6) == (name != "identity")
    assert torch.tensor(facts.hermite).square().sum() <= 1.0 + 1e-9


def test_the_commands_write_and_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["kernel", "fit", "--train", "60", "--test", "30", "--horizons", "0.5", "2", "--horizon", "0.5"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    assert "maximises the marginal likelihood" in capsys.readouterr().out
    names = {f"{n}.{k}" for n in ("likelihood", "accuracy") for k in ("csv", "pdf", "png")}
    assert {p.name for p in tmp_path.iterdir()} == {"report.html", "result.json", "config.toml", ".nfd", *names}
    assert main(["kernel", "facts", "--activation", "tanh", "--out", str(tmp_path / "facts")]) == 0
    assert "C_1(x, -x) = -1.427900" in capsys.readouterr().out
    assert json.loads((tmp_path / "facts" / "result.json").read_text())["facts"]["parity"] == "odd"


def test_cifar_10_prefers_a_longer_horizon_than_one(cifar_files: Path) -> None:
    config = KernelConfig(
        data="cifar10", data_dir=str(cifar_files / "cifar-10-batches-bin"), kind="ntk", train=400, test=200,
        horizons=(1.0, 4.0, 16.0),
    )  # fmt: skip
    fit = KernelFit(config)
    scores = [fit.score(h) for h in config.horizons]
    assert scores[1].likelihood > scores[0].likelihood
    assert all(s.accuracy.low > 0.13 for s in scores)  # chance is a tenth
