"""Measure whether kernels in training hold the truth.

``python -m calibration.kernels_in_training`` takes ten minutes of processor time, in three parts.
Their numbers in ``kernels_in_training.json`` fill the page and its chart:

* ``dense``: how often 95 % intervals of ``nfd.predict(kernels=True)`` contain the kernels of dense
  networks, which are trained here in plain PyTorch, with the tangent kernel from all gradients of
  all parameters; with and without the kernels known before training.
* ``limits``: kernels of both limits of the paper against ``nfd.solve_nfd``.
* ``turning``: how far kernels turn while digits are learned, for the chart.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import nfd
from makers.tables import fill_page, markdown
from nfd.core.activations import activation
from nfd.core.estimates import Interval, interval
from nfd.core.files import write_text
from nfd.data import digits
from nfd.limits.in_width import Estimates, at_infinite_width

ROOT = Path(__file__).parents[1]
NUMBERS = ROOT / "calibration/kernels_in_training.json"
PAGE = ROOT / "docs/kernels-in-training.md"

Row = dict[str, Any]
NAMES = ("features", "streams", "gradients", "tangent")

# A scale that float32 rounds to 1, under which ``nfd.predict`` does not use what is known.
_AS_THEY_ARE = 1 + 1e-9


def rms(values: Tensor) -> float:
    """The root mean square."""
    return float(values.square().mean().sqrt())


# ---- against dense networks in plain PyTorch


@dataclass(frozen=True)
class Problem:
    """Eight steps of four samples, four other inputs, and a residual network of depth 4."""

    activation: str
    features: int = 8
    depth: int = 4
    rate: float = 0.3
    looks: tuple[int, ...] = (0, 1, 4, 8)

    @property
    def data(self) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs [8, 4, d], targets [8, 4, 1] and probes [4, d]."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(8, 4, self.features, generator=generator)
        y = torch.sin(2 * x[..., :1]) + x[..., 1:2] * x[..., 2:3]
        return x, y, torch.randn(4, self.features, generator=generator)

    @property
    def family(self) -> nfd.Family:
        """The networks that ``nfd.predict`` trains."""
        return nfd.resnets(self.features, 1, activation=self.activation)


class Dense:
    """R networks of a width, in plain PyTorch: U [R, n, d], W [L, R, n, n] and V [R, 1, n]."""

    def __init__(self, problem: Problem, width: int, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.problem = problem
        self.width = width
        self.phi = activation(problem.activation).phi

        def gaussian(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).requires_grad_()

        self.U = gaussian(count, width, problem.features)
        self.W = [gaussian(count, width, width) for _ in range(problem.depth)]
        self.V = gaussian(count, 1, width)

    @property
    def parameters(self) -> list[Tensor]:
        """All of them."""
        return [self.U, *self.W, self.V]

    def layers(self, x: Tensor) -> list[Tensor]:
        """The streams h_0 .. h_L of inputs [N, d], [R, N, n] each."""
        h = [(x / math.sqrt(self.problem.features)) @ self.U.mT]
        for W in self.W:
            branch = self.phi(h[-1]) @ W.mT / math.sqrt(self.width * self.problem.depth)
            h.append(h[-1] + branch)
        return h

    def step(self, x: Tensor, y: Tensor) -> None:
        """One step of gradient descent on the mean of ``(f - y)^2 / 2``."""
        f = self.layers(x)[-1] @ self.V.mT / self.width
        loss = (f - y).square().mean((1, 2)).sum() / 2
        gradients = torch.autograd.grad(loss, self.parameters)
        with torch.no_grad():
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter -= self.problem.rate * self.width * gradient

    def look(self, x: Tensor) -> dict[str, Tensor]:
        """Return h, phi(h) and g [R, A, N, n], outputs and tangent kernels [R, N, N] of probes."""
        layers = self.layers(x)
        f = layers[-1] @ self.V.mT / self.width
        g = torch.autograd.grad(f.sum(), layers, retain_graph=True)
        tangent = torch.zeros(len(f), len(x), len(x))
        of_probes = [
            torch.autograd.grad(f[:, i].sum(), self.parameters, retain_graph=True)
            for i in range(len(x))
        ]
        for i, first in enumerate(of_probes):
            for j, second in enumerate(of_probes):
                for a, b in zip(first, second, strict=True):
                    tangent[:, i, j] += self.width * (a * b).flatten(1).sum(1)
        h = torch.stack(layers, 1).detach()
        return {
            "streams": h,
            "features": self.phi(h),
            "gradients": self.width * torch.stack(g, 1),
            "tangent": tangent,
            "outputs": f.detach(),
        }


def dense_kernels(problem: Problem, width: int, count: int, seed: int) -> dict[str, Tensor]:
    """Return kernels of equal times by name, [count, S, A, N, N], and outputs [count, S, N]."""
    x, y, probes = problem.data
    parts: dict[str, list[Tensor]] = {name: [] for name in (*NAMES, "outputs")}
    chunk = max(1, 2**21 // width**2)
    for start in range(0, count, chunk):
        networks = Dense(problem, width, min(chunk, count - start), seed + start)
        looks: dict[str, list[Tensor]] = {name: [] for name in parts}
        for step in range(len(x) + 1):
            if step in problem.looks:
                for name, seen in networks.look(probes).items():
                    is_vector = name in ("streams", "features", "gradients")
                    looks[name].append(seen @ seen.mT / width if is_vector else seen)
            if step < len(x):
                networks.step(x[step], y[step])
        for name, rows in looks.items():
            parts[name].append(torch.stack(rows, 1).double())
    return {name: torch.cat(values) for name, values in parts.items()}


def equal_times(kernels: nfd.TrainedKernels, name: str, part: str = "value") -> Tensor:
    """Return a predicted kernel at equal times as [S, A, N, N], or [S, N, N] of the tangent's."""
    values: Tensor = getattr(getattr(kernels, name), part)
    if name == "tangent":
        return values[:, :, 0, :, 0]
    if name == "gradients":
        values = values[:, :, :, 0, :, :, 0]
    return torch.stack([values[:, s, :, s] for s in range(values.shape[1])])


def truth_of(problem: Problem, count: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return kernels of dense networks at infinite width, with standard errors, by name.

    Like the prediction's: how far training moved them, added to those before, which are known.
    """
    wide = dense_kernels(problem, 512, count, 1_000)
    narrow = dense_kernels(problem, 128, count, 2_000_000)
    known = prediction(problem, 64, 2, 0).kernels
    assert known is not None
    truth = {}
    for name in wide:
        if name == "outputs":
            parts = at_infinite_width(wide[name], narrow[name], 4.0)
            truth[name] = (parts["value"][..., 0], parts["stderr"][..., 0])
            continue
        moved = [values - values[:, :1] for values in (wide[name], narrow[name])]
        parts = at_infinite_width(moved[0], moved[1], 4.0)
        truth[name] = (parts["value"] + equal_times(known, name)[0], parts["stderr"])
    return truth


def prediction(
    problem: Problem, width: int, replicates: int, seed: int, scale: float = 1.0
) -> nfd.Prediction:
    """The prediction of kernels whose intervals are judged."""
    x, y, probes = problem.data
    task = nfd.Task(list(zip(x, y, strict=True)), loss="mse", init_scale=scale)
    return nfd.predict(
        problem.family,
        task,
        problem.rate,
        depth=problem.depth,
        width=width,
        replicates=replicates,
        seed=seed,
        probes=probes,
        kernels=nfd.Kernels(times=problem.depth + 1, steps=problem.looks),
    )


def dense_rows(draws: int, count: int) -> list[Row]:
    """Compare predictions of width 256, 8 replicates, with dense networks."""
    rows = list[Row]()
    for name in ("relu", "tanh"):
        problem = Problem(name)
        truth = truth_of(problem, count)
        tallies: dict[tuple[str, int, str], list[tuple[Tensor, Tensor]]] = {}
        for seed in range(draws):
            for kind, scale in (("known", 1.0), ("plain", _AS_THEY_ARE)):
                p = prediction(problem, 256, 8, 100 + seed, scale)
                _tally(tallies, truth, p, kind, problem.looks)
        for (quantity, step, kind), pairs in tallies.items():
            held = torch.cat([held.flatten() for held, _ in pairs])
            halves = torch.stack([half for _, half in pairs])
            scale_of = rms(truth[quantity][0][problem.looks.index(step)])
            moved = truth[quantity][0][problem.looks.index(step)] - truth[quantity][0][0]
            rows.append(
                {
                    "activation": name,
                    "quantity": quantity,
                    "step": step,
                    "kind": kind,
                    "size": scale_of,
                    "moved": rms(moved),
                    "half": rms(halves),
                    "noise of truth": rms(truth[quantity][1][problem.looks.index(step)]),
                    "held": float(held.double().mean()),
                    "entries": held.numel(),
                    "draws": draws,
                }
            )
    return rows


def _tally(
    tallies: dict[tuple[str, int, str], list[tuple[Tensor, Tensor]]],
    truth: dict[str, tuple[Tensor, Tensor]],
    p: nfd.Prediction,
    kind: str,
    looks: Sequence[int],
) -> None:
    """Add whether every interval of a prediction holds the truth, and its half-width."""
    assert p.kernels is not None
    assert p.probe_outputs is not None
    for name, (values, _) in truth.items():
        if name == "outputs":
            steps = torch.tensor(looks)
            low = p.probe_outputs.low[steps, :, 0]
            high = p.probe_outputs.high[steps, :, 0]
        else:
            low = equal_times(p.kernels, name, "low")
            high = equal_times(p.kernels, name, "high")
        for s, step in enumerate(looks):
            held = (low[s] <= values[s]) & (values[s] <= high[s])
            tallies.setdefault((name, step, kind), []).append((held, (high - low)[s] / 2))


# ---- both limits of the paper against Definition 1


def limit_rows(replicates: int) -> list[Row]:
    """Compare two-time kernels of standard and decoupled networks with Definition 1's."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 6, generator=generator)
    y = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    task = nfd.Task([(a[None], b[None, None]) for a, b in zip(x, y, strict=True)], loss="mse")
    rows = list[Row]()
    for name in ("tanh", "relu"):
        solved = [
            nfd.solve_nfd(x, y, grid=8, activation=name, eta_c=0.3, particles=4096, seed=seed)
            for seed in (0, 1)
        ]
        for feedback in ("independent", "shared"):
            p = nfd.predict(
                nfd.resnets(6, 1, activation=name, feedback=feedback),
                task,
                0.3,
                depth=8,
                width=512,
                replicates=replicates,
                probes=x,
                kernels=nfd.Kernels(times=5, steps=range(6)),
            )
            for quantity in ("features", "gradients"):
                row = _against(solved, p, quantity)
                rows.append(row | {"activation": name, "feedback": feedback})
    return rows


def _against(solved: Sequence[nfd.Solution], p: nfd.Prediction, quantity: str) -> Row:
    """Compare a kernel of the sample of each step, before the step, with two solutions' mean."""
    assert p.kernels is not None
    estimates: Estimates = getattr(p.kernels, quantity)
    values, errors = (_of_samples(part) for part in (estimates.value, estimates.stderr))
    first, second = (one.Sigma if quantity == "features" else one.Theta for one in solved)
    definition = (first + second)[::2] / 2
    noise = rms((first - second)[::2] / 2)
    size = rms(definition)
    return {
        "quantity": quantity,
        "difference": rms(values - definition) / size,
        "noise": math.hypot(rms(errors), noise) / size,
    }


def _of_samples(values: Tensor) -> Tensor:
    """Take sample k at step k on both sides of a kernel, [A, K, K]."""
    if values.dim() == 7:
        values = values[:, :, :, 0, :, :, 0]
    steps = torch.arange(6)
    return values[:, steps, steps][:, :, steps, steps]


# ---- how kernels turn


def turning_rows(width: int, replicates: int) -> list[Row]:
    """Measure angles between kernels and those before training, on odd and even digits."""
    data = digits()
    inputs, labels = data.batches(8, 32, 0)
    targets = 1.0 - 2.0 * (labels % 2).float()
    task = nfd.Task(list(zip(inputs, targets[..., None], strict=True)), loss="mse")
    rows = list[Row]()
    features = dict[str, Tensor]()
    for feedback in ("shared", "independent"):
        p = nfd.predict(
            nfd.resnets(64, 1, feedback=feedback),
            task,
            0.3,
            depth=8,
            width=width,
            replicates=replicates,
            probes=data.test_inputs[:8],
            kernels=True,
        )
        assert p.kernels is not None
        for quantity in ("features", "gradients", "tangent"):
            estimates: Estimates | None = getattr(p.kernels, quantity)
            if estimates is None:
                continue
            samples = _at_one_depth(estimates.replicates, quantity)
            if quantity == "features":
                features[feedback] = samples
            for s, step in enumerate(p.kernels.steps):
                angle = interval(partial(_angle, samples[:, 0].mean(0)), samples[:, s])
                rows.append(
                    {"feedback": feedback, "quantity": quantity, "step": step} | _plain(angle)
                )
    # Networks of one seed begin alike, so that much of their noise cancels.
    pairs = torch.stack([features["shared"][:, -1], features["independent"][:, -1]], 1)
    gap = interval(partial(_gap, features["shared"][:, 0].mean(0)), pairs)
    rows.append({"feedback": "difference", "quantity": "features", "step": 32} | gap.limits)
    return rows


def _gap(first: Tensor, pairs: Tensor) -> Tensor:
    """How much further the first kernels of pairs [R, 2, N, N] turned than the second, degrees."""
    return _angle(first, pairs[:, 0]) - _angle(first, pairs[:, 1])


def _at_one_depth(replicates: Tensor, quantity: str) -> Tensor:
    """Kernels at equal times, [R, S, N, N]: features at the output, gradients at the input."""
    if quantity == "tangent":
        return replicates[:, :, :, 0, :, 0]
    at = replicates[:, 0, :, :, 0, :, :, 0] if quantity == "gradients" else replicates[:, -1]
    return torch.stack([at[:, s, :, s] for s in range(at.shape[1])], 1)


def _angle(first: Tensor, samples: Tensor) -> Tensor:
    """The angle between the mean of kernels [R, N, N] and a first one, in degrees."""
    mean = samples.mean(0)
    cosine = (mean * first).sum() / (mean.norm() * first.norm())
    return torch.rad2deg(torch.arccos(cosine.clamp(max=1.0)))


def _plain(one: Interval) -> Row:
    """An angle, which is not negative, for JSON."""
    return {"value": one.value, "low": max(0.0, one.low), "high": one.high}


# ---- the page


def tables(numbers: dict[str, Any]) -> dict[str, str]:
    """The tables of the page."""
    texts = {}
    for name in ("relu", "tanh"):
        texts[f"dense-{name}"] = markdown(_dense_table(numbers["dense"], name))
    limits = [
        {
            "activation": row["activation"],
            "kernel": row["quantity"],
            "network": "decoupled" if row["feedback"] == "independent" else "standard",
            "from Definition 1": f"{100 * row['difference']:.1f} %",
            "noise": f"{100 * row['noise']:.1f} %",
        }
        for row in numbers["limits"]
    ]
    texts["limits"] = markdown(limits)
    return texts


def _dense_table(rows: Sequence[Row], name: str) -> list[Row]:
    """A row of the page for every quantity and step of an activation."""
    cells = dict[tuple[str, int], dict[str, Row]]()
    for row in rows:
        if row["activation"] == name and row["step"] > 0:
            cells.setdefault((row["quantity"], row["step"]), {})[row["kind"]] = row
    table = list[Row]()
    for (quantity, step), kinds in cells.items():
        known = kinds["known"]
        plain = kinds["plain"]
        row = {
            "of": quantity,
            "step": step,
            "RMS": f"{known['size']:.3f}",
            "moved by": f"{known['moved']:.3f}",
            "half-width": f"{known['half']:.3f}",
            "held": f"{100 * known['held']:.0f} %",
        }
        if quantity != "outputs":
            row["half-width, as measured"] = f"{plain['half']:.3f}"
            row["held, as measured"] = f"{100 * plain['held']:.0f} %"
        table.append(row)
    return table


def main() -> None:
    """Measure the parts that are chosen, and fill the page from all stored numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=["dense", "limits", "turning"])
    parser.add_argument("--draws", type=int, default=20)
    given = parser.parse_args()
    torch.set_num_threads(1)
    numbers = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else {}
    parts = {
        "turning": partial(turning_rows, 512, 8),
        "limits": partial(limit_rows, 16),
        "dense": partial(dense_rows, given.draws, 128),
    }
    for name, measure in parts.items():
        if name in given.only:
            start = time.process_time()
            numbers[name] = measure()
            print(f"{name}: {time.process_time() - start:.0f} s of processor time", flush=True)
            write_text(NUMBERS, json.dumps(numbers, indent=1) + "\n")
    if numbers.keys() >= parts.keys():
        fill_page(PAGE, tables(numbers))


if __name__ == "__main__":
    main()
