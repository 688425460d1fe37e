"""Check ``nfd.kernel`` and ``nfd.kernel_ensemble`` against dense networks and integrations.

``python -m calibration.kernels`` takes three minutes of processor time, in five parts. Their
numbers in ``kernels.json`` fill two tables of the page on infinite depth:

* ``variances``: kernels with a bias and four variances that are not 1 against dense networks in
  plain PyTorch, with the tangent kernel from all gradients of all parameters.
* ``ensembles``: mean and covariance of trained ensembles against trained dense networks.
* ``gradients``: gradients in the inputs at infinite depth against an integration written apart.
* ``pairs``: kernels whose pairs of inputs are solved one by one against tables.
* ``seconds``: how long kernels take for which tables would be too large.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.integrate import solve_ivp
from scipy.special import ndtr
from torch import Tensor

import nfd
from makers.tables import fill_page, markdown
from nfd.core.estimates import rms, stderr
from nfd.core.files import write_text
from nfd.limits import kernels

ROOT = Path(__file__).parents[1]
NUMBERS = ROOT / "calibration/kernels.json"
PAGE = ROOT / "docs/mathematics/infinite-depth.md"

Row = dict[str, Any]

# None of them is 1.
VARIANCES: Row = {
    "input_variance": 0.5,
    "bias_variance": 0.3,
    "hidden_variance": 2.0,
    "output_variance": 1.7,
}
_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "tanh": torch.tanh}


def inputs(count: int, features: int, seed: int) -> Tensor:
    """Draw normal inputs [N, d]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, features, generator=generator, dtype=torch.float64)


# ---- dense networks in the kernel regime, in plain PyTorch


@dataclass(frozen=True)
class Shape:
    """Networks of a width and a depth, at T = 1."""

    activation: str
    features: int
    width: int
    depth: int
    # Whether gradients go back through other matrices, with the same updates.
    has_own_feedback: bool = False


class Networks:
    """R networks with standard normal parameters: U, b, W_1 .. W_L and v."""

    def __init__(self, shape: Shape, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.shape = shape
        self.phi = _FUNCTIONS[shape.activation]
        n = shape.width

        def gaussian(*sizes: int) -> Tensor:
            return torch.randn(count, *sizes, generator=generator).requires_grad_()

        self.U = gaussian(n, shape.features)
        self.b = gaussian(1, n)
        self.W = [gaussian(n, n) for _ in range(shape.depth)]
        self.v = gaussian(n, 1)
        # The matrices that gradients go back through, where they have their own.
        self.feedback = list[Tensor]()
        if shape.has_own_feedback:
            self.feedback = [gaussian(n, n).detach() for _ in range(shape.depth)]

    @property
    def parameters(self) -> list[Tensor]:
        """All of them."""
        return [self.U, self.b, *self.W, self.v]

    def stream(self, x: Tensor) -> Tensor:
        """Return h_L of inputs [N, d], [R, N, n]."""
        variances = VARIANCES
        of_input = math.sqrt(variances["input_variance"] / self.shape.features)
        h = of_input * (x @ self.U.mT) + math.sqrt(variances["bias_variance"]) * self.b
        size = math.sqrt(variances["hidden_variance"] / (self.shape.depth * self.shape.width))
        for layer, W in enumerate(self.W):
            h = h + size * self._product(layer, W, self.phi(h))
        return h

    def _product(self, layer: int, W: Tensor, features: Tensor) -> Tensor:
        if not self.feedback:
            return features @ W.mT
        forward = features.detach() @ W.mT
        back = features @ self.feedback[layer].mT
        # The value of the first, and the gradient in the features of the second.
        return forward + back - back.detach()

    def outputs(self, x: Tensor) -> Tensor:
        """Return outputs [R, N]."""
        size = math.sqrt(VARIANCES["output_variance"] / self.shape.width)
        outputs: Tensor = size * (self.stream(x) @ self.v)[..., 0]
        return outputs

    def nngp(self, x: Tensor) -> Tensor:
        """Return the covariance of outputs over v, [R, N, N]."""
        h = self.stream(x).detach()
        covariance: Tensor = VARIANCES["output_variance"] / self.shape.width * (h @ h.mT)
        return covariance

    def ntk(self, x: Tensor) -> Tensor:
        """Return the products of gradients in all parameters, [R, N, N]."""
        outputs = self.outputs(x)
        total = torch.zeros(*outputs.shape, len(x))
        gradients = [
            torch.autograd.grad(outputs[:, i].sum(), self.parameters, retain_graph=True)
            for i in range(len(x))
        ]
        for i, first in enumerate(gradients):
            for j, second in enumerate(gradients[: i + 1]):
                for a, b in zip(first, second, strict=True):
                    total[:, i, j] += (a * b).flatten(1).sum(1)
                total[:, j, i] = total[:, i, j]
        return total

    def step(self, x: Tensor, y: Tensor, rate: float, trained: Sequence[Tensor]) -> None:
        """One step of gradient descent on the mean of ``(f - y)^2 / 2``."""
        loss = 0.5 * (self.outputs(x) - y).square().mean(1).sum()
        gradients = torch.autograd.grad(loss, trained)
        with torch.no_grad():
            for parameter, gradient in zip(trained, gradients, strict=True):
                parameter -= rate * gradient
                for W, other in zip(self.W, self.feedback, strict=False):
                    if W is parameter:
                        other -= rate * gradient


def variance_rows(width: int, count: int) -> list[Row]:
    """Compare kernels with a bias and variances with those of untrained dense networks."""
    x = inputs(6, 3, 0)
    rows = list[Row]()
    for index, name in enumerate(_FUNCTIONS):
        shape = Shape(name, 3, width, 4)
        of_networks: dict[str, list[Tensor]] = {"nngp": [], "ntk": []}
        for seed in range(count):
            networks = Networks(shape, 1, index * count + seed)
            of_networks["nngp"].append(networks.nngp(x.float()))
            of_networks["ntk"].append(networks.ntk(x.float()))
        for kind, samples in of_networks.items():
            K = nfd.kernel(x, kind=kind, activation=name, depth=4, **VARIANCES)
            plain = nfd.kernel(x, kind=kind, activation=name, depth=4)
            rows.append(
                {
                    "kind": kind,
                    "activation": name,
                    "networks": count,
                    "width": width,
                    **_distances(torch.cat(samples).double(), K, plain),
                }
            )
    return rows


def _distances(samples: Tensor, K: Tensor, other: Tensor) -> Row:
    """Return RMS distances of means [R, N, N] in standard errors, of a kernel and of another."""
    upper = torch.triu_indices(*K.shape)
    mean = samples.mean(0)
    error = stderr(samples)

    def distance(kernel: Tensor) -> float:
        return rms(((mean - kernel) / error)[upper[0], upper[1]])

    return {"rms z": distance(K), "rms z of another": distance(other), "noise": rms(error) / rms(K)}


# ---- trained ensembles


# So many networks are in memory at a time.
_BATCH = 64
ALL_KINDS = ("nngp", "ntk", "independent-feedback")


def ensemble_rows(
    width: int,
    count: int,
    times: Sequence[float] = (0.6, 3.0),
    rate: float = 0.03,
    kinds: Sequence[str] = ALL_KINDS,
) -> list[Row]:
    """Compare mean and covariance of trained ensembles with those of trained dense networks."""
    x = inputs(5, 3, 1)
    test = inputs(4, 3, 2)
    y = torch.sin(2 * x[:, 0]) + 1
    settings: Row = {"activation": "relu", "depth": 3, **VARIANCES}
    expected = {
        kind: nfd.kernel_ensemble(x, y, test, time=list(times), kind=kind, **settings)
        for kind in ALL_KINDS
    }
    rows = list[Row]()
    for kind in kinds:
        ensemble = expected[kind]
        shape = Shape("relu", 3, width, 3, has_own_feedback=kind == "independent-feedback")
        batches = list[Tensor]()
        for start in range(0, count, _BATCH):
            networks = Networks(shape, min(_BATCH, count - start), start)
            only_readout = kind == "nngp"
            batches.append(_trained(networks, x, y, test, times, rate, only_readout=only_readout))
        outputs = torch.cat(batches, 1)
        other = expected["ntk" if kind == "nngp" else "nngp"]
        for t, at in enumerate(times):
            row: Row = {"kind": kind, "time": at, "networks": count, "width": width}
            of_this = _of_ensemble(outputs[t], ensemble.mean[t], ensemble.covariance[t])
            of_another = _of_ensemble(outputs[t], other.mean[t], other.covariance[t])
            row |= {f"rms z of {name}": value for name, value in of_this.items()}
            row |= {f"rms z of {name}, another": value for name, value in of_another.items()}
            rows.append(row)
    return rows


def _trained(
    networks: Networks,
    x: Tensor,
    y: Tensor,
    test: Tensor,
    times: Sequence[float],
    rate: float,
    *,
    only_readout: bool,
) -> Tensor:
    """Train networks, and return outputs of test inputs at each time, [T, R, M]."""
    trained = [networks.v] if only_readout else networks.parameters
    looks = [round(at / rate) for at in times]
    seen = list[Tensor]()
    for step in range(1, max(looks) + 1):
        networks.step(x.float(), y.float(), rate, trained)
        if step in looks:
            seen.append(networks.outputs(test.float()).detach())
    return torch.stack(seen).double()


def _of_ensemble(outputs: Tensor, mean: Tensor, covariance: Tensor) -> dict[str, float]:
    """Return RMS distances in the standard errors of samples of such a Gaussian."""
    count = len(outputs)
    variances = covariance.diagonal()
    error = (variances / count).sqrt()
    between = (variances[:, None] * variances + covariance.square()) / (count - 1)
    upper = torch.triu_indices(*covariance.shape)
    gap = (outputs.T.cov() - covariance) / between.sqrt()
    return {
        "mean": rms((outputs.mean(0) - mean) / error),
        "covariance": rms(gap[upper[0], upper[1]]),
    }


# ---- gradients at infinite depth


_Z = np.arange(-9, 9.01, 0.2)
_DENSITY = np.exp(-_Z * _Z / 2) / np.exp(-_Z * _Z / 2).sum()

Array = NDArray[np.float64]


def _gelu_slope(h: Array) -> Array:
    slope: Array = ndtr(h) + h * np.exp(-h * h / 2) / math.sqrt(2 * math.pi)
    return slope


_WITH_SLOPES: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "tanh": (np.tanh, lambda h: 1 - np.tanh(h) ** 2),
    "gelu": (lambda h: h * ndtr(h), _gelu_slope),
}


def integrated(x: Array, y: Array, name: str, kind: str, horizon: float) -> float:
    """Return the kernel of two inputs at infinite depth, by the trapezoidal rule in both numbers.

    Its error is that of the integrator: a rule of half the step gives the same to 1e-13.
    """
    phi, slope = _WITH_SLOPES[name]

    def moments(a: float, b: float, c: float) -> tuple[float, float]:
        h = math.sqrt(a) * _Z[:, None]
        other = c / math.sqrt(a) * _Z[:, None] + math.sqrt(max(b - c * c / a, 0.0)) * _Z
        m = _DENSITY @ (phi(h) * phi(other)) @ _DENSITY
        s = _DENSITY @ (slope(h) * slope(other)) @ _DENSITY
        return float(m), float(s)

    def rate(_: float, state: Array) -> list[float]:
        a, b, C, D = state
        m, s = moments(a, b, C)
        of_a = _DENSITY @ phi(math.sqrt(a) * _Z) ** 2
        of_b = _DENSITY @ phi(math.sqrt(b) * _Z) ** 2
        return [float(of_a), float(of_b), m, m + s * D]

    product = x @ y / len(x)
    start = [x @ x / len(x), y @ y / len(x), product, product]
    orbit = solve_ivp(rate, (0, horizon), start, method="DOP853", rtol=1e-12, atol=1e-13)
    C, D = orbit.y[2:, -1]
    return float(C + D) if kind == "ntk" else float(C)


def integrated_gradient(x: Array, y: Array, name: str, kind: str, horizon: float) -> Array:
    """Return its gradient in the first input, by differences of fourth order."""
    step = 1e-3

    def moved(row: int, steps: int) -> float:
        other = x.copy()
        other[row] += steps * step
        return integrated(other, y, name, kind, horizon)

    slopes = [
        (8 * (moved(row, 1) - moved(row, -1)) - (moved(row, 2) - moved(row, -2))) / (12 * step)
        for row in range(len(x))
    ]
    return np.array(slopes)


def gradient_rows() -> list[Row]:
    """Compare gradients, of pairs and of tables, with differences of integrations."""
    rows = list[Row]()
    for name in _WITH_SLOPES:
        for kind in ("nngp", "ntk"):
            for count, way in ((3, "pairs"), (30, "table")):
                X = inputs(count, 4, 3).requires_grad_()
                Y = inputs(count, 4, 4)
                largest = 0.0
                for i, j in ((0, 1), (1, 1), (2, 0)):
                    K = nfd.kernel(X, Y, kind=kind, activation=name)
                    (gradient,) = torch.autograd.grad(K[i, j], X)
                    x, y = X.detach()[i].numpy(), Y[j].numpy()
                    exact = integrated_gradient(x, y, name, kind, 1.0)
                    gap = np.abs(gradient[i].numpy() - exact).max() / np.abs(exact).max()
                    largest = max(largest, float(gap))
                rows.append({"activation": name, "kind": kind, "by": way, "difference": largest})
    return rows


# ---- pairs one by one


def pair_rows() -> list[Row]:
    """Compare kernels of pairs that are solved one by one with tables, and measure seconds."""
    rows = list[Row]()
    # Few enough for tanh, too, to be solved one by one.
    X = inputs(6, 5, 5)
    for name in ("erf", "gelu", "tanh"):
        for kind in ("nngp", "ntk"):
            by_pairs = nfd.kernel(X, kind=kind, activation=name)
            few, kernels._FEW = kernels._FEW, 0
            try:
                by_table, error = nfd.kernel(X, kind=kind, activation=name, return_error=True)
            finally:
                kernels._FEW = few
            scale = (by_table.diag()[:, None] * by_table.diag()).sqrt()
            difference = float(((by_pairs - by_table) / scale).abs().max())
            rows.append(
                {"activation": name, "kind": kind, "difference": difference, "stated": error}
            )
    return rows


# ---- the page


def tables(numbers: Row) -> dict[str, str]:
    """Make the tables of the page, by their names."""
    networks = [
        ("kernels with a bias and variances", "variances", "rms z", "rms z of another"),
        *(
            (f"{part} of ensembles", "ensembles", f"rms z of {part}", f"rms z of {part}, another")
            for part in ("mean", "covariance")
        ),
    ]
    exact = [
        ("gradients, by pairs and by table", "gradients", "differences of integrations"),
        ("pairs one by one", "pairs", "table"),
    ]
    rows = list[Row]()
    for checked, part, ours, another in networks:
        counts = {(row["networks"], row["width"]) for row in numbers[part]}
        ((count, width),) = counts
        rows.append(
            {
                "checked": checked,
                "against": f"{count} networks, width {width:,}",
                "difference": f"RMS z {_span((row[ours] for row in numbers[part]), 2)}",
                "of another kernel": _span((row[another] for row in numbers[part]), 0),
            }
        )
    for checked, part, against in exact:
        largest = max(row["difference"] for row in numbers[part])
        rows.append(
            {"checked": checked, "against": against, "difference": f"at most {largest:.0e}"}
        )
    return {"kernel-checks": markdown(rows)}


def _span(values: Iterable[float], decimals: int) -> str:
    """The smallest and the largest of these, in words."""
    listed = list(values)
    return f"{min(listed):.{decimals}f} to {max(listed):.{decimals}f}"


def main() -> None:
    """Measure the parts that are chosen, and fill the page from all stored numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parts: dict[str, Callable[[], list[Row]]] = {
        "variances": partial(variance_rows, 512, 128),
        "ensembles": partial(ensemble_rows, 256, 256),
        "gradients": gradient_rows,
        "pairs": pair_rows,
    }
    parser.add_argument("--only", nargs="*", default=list(parts))
    given = parser.parse_args()
    torch.set_num_threads(1)
    numbers = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else {}
    for name, measure in parts.items():
        if name in given.only:
            start = time.process_time()
            numbers[name] = measure()
            seconds = time.process_time() - start
            print(f"{name}: {seconds:.0f} s of processor time, load {os.getloadavg()[0]:.1f}")
            print(*numbers[name], sep="\n", flush=True)
            write_text(NUMBERS, json.dumps(numbers, indent=1) + "\n")
    if numbers.keys() >= parts.keys():
        fill_page(PAGE, tables(numbers))


if __name__ == "__main__":
    main()
