"""Gaussian-process regression with infinite-depth kernels, and the horizon that the data prefer (Prop. 5).

Labels are one-hot, centred: C outputs that add up to zero, so C - 1 independent ones (any orthonormal basis of what
they span), each with covariance ``s^2 (K_T / mean diag K_T + noise I)``. The scale ``s^2`` is the one that maximises
the likelihood, so that T changes the shape of functions and not their size; the noise is given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from scipy.optimize import brentq, minimize_scalar
from torch import Tensor

from nfd.core.ambient import undisturbed
from nfd.core.errors import InputError, RangeError, check_device
from nfd.core.random import generator
from nfd.core.statistics import Interval, share, standard_errors
from nfd.data.dataset import Dataset, Images
from nfd.data.load import load
from nfd.limits.kernel import gram_matrix
from nfd.questions.findings.finding import Axes, Finding
from nfd.runs.settings import KernelConfig

_DROP = standard_errors(math.inf) ** 2 / 2  # of the log likelihood, at the ends of a 95 % interval (Wilks)


@dataclass(frozen=True)
class Score:
    """One horizon: log marginal likelihood in nats (all outputs), test accuracy, and the error of the kernel."""

    horizon: float
    likelihood: float
    accuracy: Interval
    error: float


class KernelFit:
    """Scores of one kernel on one data set."""

    @undisturbed()
    def __init__(self, config: KernelConfig, *, device: str = "cpu", progress: bool = False) -> None:
        self.config, self.device = config, check_device(device)
        self.dataset: Dataset = load(
            config.data, config.data_dir, image_size=config.image_size, seed=config.seed, progress=progress
        )
        self.x, self.y = self._part("train", self.dataset.train, config.train)
        self.test_x, self.test_y = self._part("test", self.dataset.test, config.test)
        if bool((self.y == self.y[0]).all()):
            raise InputError(f"The {len(self.y)} training images are all of one class. Raise train (--train).")
        one_hot = torch.nn.functional.one_hot(self.y, len(self.dataset.classes)).double()
        self.targets = one_hot - one_hot.mean(0)

    @undisturbed()
    def score(self, horizon: float) -> Score:
        """Likelihood and accuracy at one horizon."""
        weights, likelihood, scale = self._solved(horizon)
        cross, _, error = gram_matrix(self.test_x, self.x, slopes=False, **self._kernel(horizon))
        right = ((cross / scale) @ weights).argmax(1) == self.test_y
        return Score(horizon, likelihood, share(int(right.sum()), len(right)), error)

    def best(self, scores: Sequence[Score]) -> tuple[float, float, float]:
        """The horizon of the greatest likelihood on the range of ``horizons``, and the ends of its 95 % interval."""
        low, high = (math.log(h) for h in (self.config.horizons[0], self.config.horizons[-1]))
        seen = {s.horizon: s.likelihood for s in scores if math.exp(low) <= s.horizon <= math.exp(high)}
        peak = math.log(max(seen, key=lambda h: seen[h]))
        gap = max(math.log(b / a) for a, b in pairwise(self.config.horizons))
        around = (max(low, peak - gap), min(high, peak + gap))
        fitted = minimize_scalar(
            lambda t: -self.likelihood(t), bounds=around, method="bounded", options={"xatol": 0.01}
        )
        top = max(float(-fitted.fun), max(seen.values()))
        best = float(fitted.x) if -fitted.fun >= max(seen.values()) else peak

        def below(t: float) -> float:
            return self.likelihood(t) - (top - _DROP)

        left = brentq(below, low, best, xtol=0.02) if below(low) < 0 else low
        right = brentq(below, best, high, xtol=0.02) if below(high) < 0 else high
        return math.exp(best), math.exp(left), math.exp(right)

    def likelihood(self, log_horizon: float) -> float:
        """Log marginal likelihood of the labels, its scale maximised."""
        return self._solved(math.exp(log_horizon))[1]

    def gram(self, horizon: float) -> Tensor:
        """The kernel of the training images [N, N]."""
        return gram_matrix(self.x, None, slopes=False, **self._kernel(horizon))[0]

    def _solved(self, horizon: float) -> tuple[Tensor, float, float]:
        """Weights of the training images, log marginal likelihood, and the mean diagonal of the kernel."""
        K = self.gram(horizon)
        scale = float(K.diagonal().mean())
        N, C = len(self.targets), self.targets.shape[1] - 1  # independent outputs
        factor, failed = torch.linalg.cholesky_ex(K / scale + self.config.noise * torch.eye(N).to(K))
        if int(failed):
            raise RangeError(f"The kernel at horizon {horizon:g} is singular to rounding. Raise noise (--noise).")
        weights = torch.cholesky_solve(self.targets, factor)
        variance = float((self.targets * weights).sum()) / (N * C)
        determinant = 2 * float(factor.diagonal().log().sum())
        likelihood = -0.5 * C * (N * math.log(2 * math.pi * variance) + determinant + N)
        return weights, likelihood, scale

    def _kernel(self, horizon: float) -> dict[str, Any]:
        c = self.config
        return {"kind": c.kind, "activation": c.activation, "horizon": horizon, "depth": math.inf}

    def _part(self, name: str, images: Images, count: int) -> tuple[Tensor, Tensor]:
        order = torch.randperm(len(images), generator=generator(self.config.seed, "kernel", name))
        part = images[order[: min(count, len(images))]]
        return self.dataset.normalised(part.pixels).double().to(self.device), part.labels.to(self.device)


def fit_findings(fit: KernelFit) -> list[Finding]:
    """Likelihood and accuracy against the horizon."""
    c = fit.config
    scores = [fit.score(h) for h in sorted({*c.horizons, c.horizon})]
    best, low, high = fit.best(scores)
    asked = next(s for s in scores if s.horizon == c.horizon)
    N = len(fit.y)
    edge = (
        " (the edge of the horizons given: widen them)"
        if low < 1.01 * c.horizons[0] or high > 0.99 * c.horizons[-1]
        else ""
    )
    caption = (
        f"{fit.dataset.title}, {N} training and {len(fit.test_y)} test images, {c.kind} kernel of {c.activation} "
        "networks, infinitely wide and deep; Gaussian-process regression on one-hot labels at noise "
        f"{c.noise:g} of the function's variance, scale by likelihood. Kernel entries are known to "
        f"{max(s.error for s in scores):.0e}."
    )
    if c.kind == "independent-feedback":
        caption += " This kernel is twice nngp, and the scale is fitted, so the fit is that of nngp."
    likelihood = Finding(
        "likelihood",
        "Which horizon do the data prefer?",
        f"T = {best:.3g} [{low:.3g}, {high:.3g}] maximises the marginal likelihood{edge}; at T = {c.horizon:g} it is "
        f"{asked.likelihood / N:.4f} nats per image.",
        [_point("log marginal likelihood", s.horizon, "likelihood", _exact(s.likelihood / N)) for s in scores],
        Axes("horizon", "likelihood", "horizon T", "log marginal likelihood per image (nats)", "named", zero=False),
        f"{caption} The interval is where the log likelihood is within {_DROP:.2f} of its maximum.",
    )
    at_best = fit.score(best)
    accuracy = Finding(
        "accuracy",
        "How accurate is it?",
        f"At T = {c.horizon:g} {_share(asked.accuracy)} of the test images are classified correctly; at T = "
        f"{best:.3g}, {_share(at_best.accuracy)}.",
        [_point("test accuracy", s.horizon, "accuracy", s.accuracy) for s in scores],
        Axes("horizon", "accuracy", "horizon T", "test accuracy", "named", zero=False),
        f"{caption} Bars: 95 % intervals (Wilson).",
    )
    return [likelihood, accuracy]


def _point(series: str, horizon: float, name: str, estimate: Interval) -> dict[str, Any]:
    return {"series": series, "horizon": horizon, name: estimate.value, "low": estimate.low, "high": estimate.high}


def _exact(value: float) -> Interval:
    return Interval(value, 0.0, value, value)


def _share(estimate: Interval) -> str:
    return f"{estimate.value:.1%} [{estimate.low:.1%}, {estimate.high:.1%}]"
