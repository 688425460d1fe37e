"""Measure whether kernels in training hold the truth.

``python -m calibration.kernels_in_training`` takes half an hour of processor time, in parts. Their
numbers in ``kernels_in_training.json`` fill the page and its chart:

* ``dense``: how often 95 % intervals of ``nfd.predict(kernels=True)`` contain the kernels of dense
  networks, which are trained here in plain PyTorch, with the tangent kernel from all gradients of
  all parameters; with and without the kernels known before training.
* ``rules``: the same for two-layer blocks and for other optimizers than SGD.
* ``limits``: kernels of both limits of the paper against ``nfd.solve_nfd``.
* ``first step``: the intervals after one step, by many more predictions.
* ``turning``: how far kernels turn while digits are learned, for the chart.
* ``widths``: kernels at modules of a Transformer from networks of two pairs of widths.
* ``transformer``: how far those at modules of a Transformer turn while it learns sequences.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

import nfd
from calibration.dense_networks import MOMENTUM, NAMES, Problem, dense_kernels
from calibration.transformer import Transformer, sequences
from makers.pages.words import LEVEL, paragraph, sentence
from makers.tables import fill_page, markdown
from nfd.core.estimates import Interval, interval, stderr
from nfd.core.files import write_text
from nfd.core.words import listed
from nfd.data import digits
from nfd.limits.in_width import Estimates, at_infinite_width

ROOT = Path(__file__).parents[1]
NUMBERS = ROOT / "calibration/kernels_in_training.json"
PAGE = ROOT / "docs/kernels-in-training.md"

Row = dict[str, Any]

# How the page names optimizers.
OPTIMIZERS = {"momentum": "momentum", "adam": "Adam", "muon": "Muon"}
# A scale that float32 rounds to 1, under which ``nfd.predict`` does not use what is known.
_AS_THEY_ARE = 1 + 1e-9


def rms(values: Tensor) -> float:
    """The root mean square."""
    return float(values.square().mean().sqrt())


# ---- against dense networks in plain PyTorch


def equal_times(kernels: nfd.TrainedKernels, name: str, part: str = "value") -> Tensor:
    """Return a predicted kernel at equal times as [S, A, N, N], or [S, N, N] of the tangent's."""
    values: Tensor = getattr(getattr(kernels, name), part)
    if name == "tangent":
        return values[:, :, 0, :, 0]
    if name == "gradients":
        values = values[:, :, :, 0, :, :, 0]
    return torch.stack([values[:, s, :, s] for s in range(values.shape[1])])


Truth = dict[str, tuple[Tensor, Tensor]]


def truth_of(problem: Problem, count: int, width: int = 512) -> Truth:
    """Return kernels of dense networks at infinite width, with standard errors, by name.

    Like the prediction's: how far training moved them, added to those before, which are known.
    """
    wide = dense_kernels(problem, width, count, 1_000)
    narrow = dense_kernels(problem, width // 4, count, 2_000_000)
    known = prediction(problem, 64, 2, 0).kernels
    assert known is not None
    truth = Truth()
    for name in wide:
        if name == "outputs":
            parts = at_infinite_width(wide[name], narrow[name], 4.0)
            truth[name] = (parts["value"][..., 0], parts["stderr"][..., 0])
            continue
        moved = [values - values[:, :1] for values in (wide[name], narrow[name])]
        parts = at_infinite_width(moved[0], moved[1], 4.0)
        truth[name] = (parts["value"] + equal_times(known, name)[0], parts["stderr"])
    return truth


def distances_before(problem: Problem, count: int, width: int, sets: int) -> dict[str, float]:
    """Return how far dense networks before training are from the known kernels, by name.

    In standard errors, RMS over entries and sets of networks.
    """
    known = prediction(problem, 64, 2, 0).kernels
    assert known is not None
    untrained = replace(problem, looks=(0,))
    squares: dict[str, list[float]] = {name: [] for name in NAMES}
    for number in range(sets):
        wide = dense_kernels(untrained, width, count, 10_000_000 * (number + 1))
        narrow = dense_kernels(untrained, width // 4, count, 10_000_000 * (number + 1) + 5_000_000)
        for name in NAMES:
            parts = at_infinite_width(wide[name][:, 0], narrow[name][:, 0], 4.0)
            away = (parts["value"] - equal_times(known, name)[0]) / parts["stderr"]
            squares[name].append(rms(away) ** 2)
    return {name: math.sqrt(math.fsum(values) / sets) for name, values in squares.items()}


def prediction(
    problem: Problem, width: int, replicates: int, seed: int, scale: float = 1.0
) -> nfd.Prediction:
    """The prediction of kernels whose intervals are judged."""
    x, y, probes = problem.data
    make_optimizer = None
    if problem.optimizer == "momentum":
        make_optimizer = partial(nfd.SGD, momentum=MOMENTUM)
    task = nfd.Task(
        list(zip(x, y, strict=True)),
        loss="mse",
        init_scale=scale,
        make_optimizer=make_optimizer,
    )
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


# ---- two-layer blocks and other optimizers

RULES = (
    Problem("relu", block="two-layer", looks=(0, 1, 4)),
    Problem("tanh", block="two-layer", looks=(0, 1, 4)),
    Problem("relu", optimizer="momentum", rate=0.1, looks=(0, 1, 4)),
    Problem("relu", optimizer="muon", rate=0.3, looks=(0, 1, 4)),
    Problem("relu", optimizer="adam", rate=0.3, looks=(0, 1, 4)),
)


def rule_rows(draws: int, count: int) -> list[Row]:
    """Compare predictions of width 256, 8 replicates, with dense networks of that width."""
    rows = list[Row]()
    for problem in RULES:
        truth = truth_of(problem, count, 256)
        before = distances_before(problem, count, 256, 4)
        kernels = [prediction(problem, 256, 8, 100 + seed).kernels for seed in range(draws)]
        of_problem = {
            "activation": problem.activation,
            "block": problem.block,
            "optimizer": problem.optimizer,
        }
        for name in NAMES:
            first = {"quantity": name, "step": 0, "z": before[name]}
            rows.append(of_problem | first)
            for s, step in enumerate(problem.looks):
                if step > 0:
                    rows.append(of_problem | _judged(kernels, truth[name], name, s, step))
    return rows


def first_step_rows(draws: int, count: int) -> list[Row]:
    """Judge kernels after the first step by many more predictions."""
    rows = list[Row]()
    for activation in ("relu", "tanh"):
        problem = Problem(activation, looks=(0, 1))
        truth = truth_of(problem, count)
        kernels = [prediction(problem, 256, 8, 1_000 + seed).kernels for seed in range(draws)]
        for name in NAMES:
            row = _judged(kernels, truth[name], name, 1, 1)
            rows.append({"activation": activation} | row)
    return rows


def _judged(
    kernels: Sequence[nfd.TrainedKernels | None],
    truth: tuple[Tensor, Tensor],
    name: str,
    s: int,
    step: int,
) -> Row:
    """Return the share of intervals that hold a kernel, and distances in standard errors."""
    values, errors = (part[s] for part in truth)
    distances = list[Tensor]()
    held = list[Tensor]()
    halves = list[Tensor]()
    for one in kernels:
        assert one is not None
        estimate, error, low, high = (
            equal_times(one, name, part)[s] for part in ("value", "stderr", "low", "high")
        )
        distances.append((estimate - values) / error.hypot(errors))
        held.append((low <= values) & (values <= high))
        halves.append((high - low) / 2)
    shares = torch.stack([one.double().mean() for one in held])
    return {
        "quantity": name,
        "step": step,
        "size": rms(values),
        "moved": rms(values - truth[0][0]),
        "half": rms(torch.stack(halves)),
        "noise of truth": rms(errors),
        "z": rms(torch.stack(distances)),
        "held": float(shares.mean()),
        # Entries of one prediction depend on each other, predictions do not.
        "held stderr": float(stderr(shares)),
        "draws": len(kernels),
    }


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


def transformer_rows(width: int, replicates: int) -> list[Row]:
    """Measure angles between kernels of a Transformer at its modules and those before training."""
    tokens = sequences(8 * 32, 9, 1).view(32, 8, 9)
    family = nfd.Family(Transformer, base=(32, 2), rule="complete-p", optimizer="adam")
    p = nfd.predict(
        family,
        [(batch[:, :-1], batch[:, 1:]) for batch in tokens],
        3e-3,
        depth=2,
        width=width,
        replicates=replicates,
        probes=sequences(2, 8, 2),
        kernels=nfd.Kernels(modules=["blocks.0", "blocks.1", "norm"]),
    )
    assert p.module_kernels is not None
    rows = list[Row]()
    for name, estimates in p.module_kernels.features.items():
        samples = estimates.replicates
        # [R, S, 16, 16]: probes and positions are rows
        kernels = torch.stack(
            [
                samples[:, s, :, :, s].flatten(3).flatten(1, 2)
                for s in range(len(p.module_kernels.steps))
            ],
            1,
        )
        for s, step in enumerate(p.module_kernels.steps):
            angle = interval(_turned, kernels[:, [0, s]])
            rows.append({"module": name, "quantity": "features", "step": step} | _plain(angle))
    losses = {"first loss": float(p.loss[0]), "last loss": float(p.loss[-1])}
    rows.append({"module": "", "quantity": "loss", "step": 31} | losses)
    return rows


def width_rows(replicates: int) -> list[Row]:
    """Compare a Transformer's kernels of widths 128 over 32 with those of 256 over 64."""
    tokens = sequences(8 * 6, 9, 1).view(6, 8, 9)
    rows = list[Row]()
    for optimizer, rate in (("sgd", 0.5), ("adam", 3e-3)):
        family = nfd.Family(Transformer, base=(32, 2), optimizer=optimizer)
        pair = list[nfd.ModuleKernels]()
        for width in (128, 256):
            p = nfd.predict(
                family,
                [(batch[:, :-1], batch[:, 1:]) for batch in tokens],
                rate,
                depth=2,
                width=width,
                replicates=replicates,
                weights="dense",
                seed=width,
                probes=sequences(2, 6, 2),
                kernels=nfd.Kernels(modules=["blocks.0", "blocks.1", "norm"], steps=[1, 5]),
            )
            assert p.module_kernels is not None
            pair.append(p.module_kernels)
        for quantity in ("features", "gradients"):
            for module in pair[0].features:
                small, large = (getattr(one, quantity)[module] for one in pair)
                error = small.stderr.hypot(large.stderr)
                # Positions that the output does not see have no gradient.
                seen = error > 0
                z = rms(((small.value - large.value) / error)[seen])
                size = rms(large.value[seen])
                rows.append(
                    {
                        "optimizer": optimizer,
                        "quantity": quantity,
                        "module": module,
                        "size": size,
                        "difference": rms((small.value - large.value)[seen]) / size,
                        "z": z,
                    }
                )
    return rows


def _turned(pairs: Tensor) -> Tensor:
    """The angle between the means of both kernels of pairs [R, 2, N, N], in degrees."""
    return _angle(pairs[:, 0].mean(0), pairs[:, 1])


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


def read() -> dict[str, Any]:
    """The stored numbers."""
    numbers: dict[str, Any] = json.loads(NUMBERS.read_text(encoding="utf-8"))
    return numbers


def texts(numbers: dict[str, Any]) -> dict[str, str]:
    """The texts of the page."""
    return {
        "answer": _answer(numbers),
        "widths": _width_words(numbers["widths"]),
        "dense": markdown(_dense_table(numbers["dense"])),
        "first-step": _first_step_words(numbers),
        "rules": _rule_words(numbers["rules"]),
        "limits": _limit_words(numbers["limits"]),
    }


def _answer(numbers: dict[str, Any]) -> str:
    turned = {
        row["feedback"]: row
        for row in numbers["turning"]
        if row["quantity"] == "features" and row["step"] == max(_steps(numbers["turning"]))
    }
    held = [row["held"] for row in _of_kernels(numbers["dense"]) if row["kind"] == "known"]
    return paragraph(
        "**They turn: while relu networks of infinite width learn to tell odd from even digits, "
        f"features turn by {sentence(turned['shared'], '.0f', level=LEVEL)} degrees in 32 steps, "
        f"and in the decoupled network by {sentence(turned['difference'], '.0f')} less.** "
        "`nfd.predict(probes=x, kernels=True)` computes them for the paper's networks, with 95 % "
        f"intervals that hold in {100 * mean(held):.0f} % of the entries of dense networks, and "
        "`kernels=nfd.Kernels(modules=[...])` at modules of any model."
    )


def _steps(rows: Sequence[Row]) -> set[int]:
    return {row["step"] for row in rows}


def _of_kernels(rows: Sequence[Row]) -> list[Row]:
    """The rows of kernels in training, without outputs and without step 0."""
    return [row for row in rows if row["step"] > 0 and row["quantity"] != "outputs"]


def _range(values: Sequence[float], spec: str = ".0f") -> str:
    """The least and the largest value."""
    ends = [f"{min(values):{spec}}", f"{max(values):{spec}}"]
    return " to ".join(dict.fromkeys(ends))


def _width_words(rows: Sequence[Row]) -> str:
    differences = [100 * row["difference"] for row in rows]
    errors = max(row["z"] for row in rows)
    return paragraph(
        "In a two-block causal Transformer, five steps of SGD or Adam, widths 128 over 32 give the "
        f"kernels of 256 over 64 but for {_range(differences)} %, within {errors:.1f} standard "
        "errors."
    )


def _first_step_words(numbers: dict[str, Any]) -> str:
    lowest = min(
        (row for row in _of_kernels(numbers["dense"]) if row["kind"] == "known"),
        key=lambda row: float(row["held"]),
    )
    first = numbers["first step"]
    (again,) = [
        row
        for row in first
        if (row["activation"], row["quantity"]) == (lowest["activation"], lowest["quantity"])
    ]
    every = [100 * row["held"] for row in first]
    return paragraph(
        f"The lowest, {100 * lowest['held']:.0f} % for {lowest['quantity']} of "
        f"{lowest['activation']} after one step, was not found again: of {first[0]['draws']} other "
        f"predictions, against 256 dense networks of each width, {100 * again['held']:.0f} % hold, "
        f"and {_range(every)} % of all kernels after one step."
    )


def _limit_words(rows: Sequence[Row]) -> str:
    ranges = {}
    for feedback in ("independent", "shared"):
        of_network = [row for row in rows if row["feedback"] == feedback]
        ranges[feedback] = _range([100 * row["difference"] for row in of_network], ".1f")
    noise = _range([100 * row["noise"] for row in rows], ".1f")
    return paragraph(
        "The kernels of Definition 1, solved by `nfd.solve_nfd` (6 steps of one sample, depth 8), "
        f"are those of the *decoupled* network but for {ranges['independent']} % RMS, where noise "
        f"is {noise} %. Those of the *standard* network, which people train, differ by "
        f"{ranges['shared']} %: this is [the gap of outputs](two-limits.md), seen in features."
    )


def _rule_words(rows: Sequence[Row]) -> str:
    networks = {(row["activation"], row["block"], row["optimizer"]) for row in rows}
    trained = [row for row in rows if row["step"] > 0]
    last = [row for row in trained if row["step"] == max(_steps(trained))]
    optimizers = dict.fromkeys(row["optimizer"] for row in rows if row["optimizer"] != "sgd")
    moved = _range([100 * row["moved"] / row["size"] for row in last])
    widths = _range([100 * row["half"] / row["size"] for row in last])
    held = _range([100 * row["held"] for row in trained])
    apart = _range([row["z"] for row in trained], ".2f")
    return paragraph(
        f"Of {len(networks)} more networks, two-layer blocks and one-layer blocks under "
        f"{listed(OPTIMIZERS[name] for name in optimizers)}, kernels move by {moved} % in four "
        f"steps, half-widths are {widths} %, and {held} % of the entries hold; dense networks are "
        f"{apart} standard errors away, RMS, where 1.2 is expected of 8 replicates."
    )


def _dense_table(rows: Sequence[Row]) -> list[Row]:
    """A row of the page for every quantity, over steps and activations."""
    kernels = dict[str, list[Row]]()
    for row in rows:
        if row["step"] > 0 and row["kind"] == "known":
            kernels.setdefault(row["quantity"], []).append(row)
    table = list[Row]()
    for quantity, of_kernel in kernels.items():
        table.append(
            {
                "of": quantity,
                "half-width, %": _range([100 * row["half"] / row["size"] for row in of_kernel]),
                "held, %": _range([100 * row["held"] for row in of_kernel]),
            }
        )
    return table


def main() -> None:
    """Measure the parts that are chosen, and fill the page from all stored numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--draws", type=int, default=20)
    given = parser.parse_args()
    torch.set_num_threads(1)
    numbers = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else {}
    parts = {
        "turning": partial(turning_rows, 512, 8),
        "widths": partial(width_rows, 12),
        "transformer": partial(transformer_rows, 256, 8),
        "limits": partial(limit_rows, 16),
        "dense": partial(dense_rows, given.draws, 128),
        "rules": partial(rule_rows, 8, 64),
        "first step": partial(first_step_rows, 100, 256),
    }
    for name, measure in parts.items():
        if given.only is None or name in given.only:
            start = time.process_time()
            numbers[name] = measure()
            print(f"{name}: {time.process_time() - start:.0f} s of processor time", flush=True)
            write_text(NUMBERS, json.dumps(numbers, indent=1) + "\n")
    if numbers.keys() >= parts.keys():
        fill_page(PAGE, texts(numbers))


if __name__ == "__main__":
    main()
