"""Kernels of infinite depth: cold Gram matrices, and recursion over 256 layers, as others do it."""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import nfd
from benchmarks import tangents
from benchmarks.counted import gram_work, table_work
from benchmarks.measure import Round, Row, UnavailableError, apart, best, limits, seconds, shares
from benchmarks.ratio import Ratio
from nfd.core.machine import peak_memory
from nfd.data import digits
from nfd.limits.functions import kernel_activation
from nfd.limits.kernels import Choice, Equations, needed_nodes, range_of, table

DEPTH = 256
# Layers of the recursion that are timed: each costs the same.
SOME = 64
KINDS = ("nngp", "ntk")
# Inputs, and how often others are timed on so many.
OTHERS = {1000: 3, 4000: 1}
ENVIRONMENT = Path(__file__).parents[1] / "out" / "neural-tangents"


def gram_run(
    name: str, kind: str, count: int, low: float = 0.3, high: float = 1.3, horizon: float = 1.0
) -> list[float]:
    """Make a Gram matrix of inputs in R^64 of different norms.

    Returns:
        Seconds, bytes beyond the inputs, and the stated error.
    """
    x = _inputs(count, low, high)
    nfd.kernel(x[:8], activation=name, kind=kind, horizon=0.9)
    before = peak_memory()
    errors = list[float]()
    took = seconds(
        lambda: errors.append(
            nfd.kernel(x, activation=name, kind=kind, horizon=horizon, return_error=True)[1]
        )
    )
    return [took, peak_memory() - before, errors[0]]


def _inputs(count: int, low: float = 0.3, high: float = 1.3) -> Tensor:
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(count, 64, generator=stream, dtype=torch.float64)
    return x * (low + (high - low) * torch.rand(count, 1, generator=stream, dtype=torch.float64))


def grams(turn: Round) -> list[Row]:
    """Measure Gram matrices in fresh processes, their tables included."""
    if turn.quick:
        return [_gram("relu", "nngp", 1000), _gram("tanh", "ntk", 1000)]
    cases = product(("relu", "erf", "tanh", "gelu"), KINDS)
    return [_gram(name, kind, 4000) for name, kind in cases]


def _gram(name: str, kind: str, count: int) -> Row:
    now = limits()
    took, held, error = apart(f"benchmarks.kernels:gram_run({name!r}, {kind!r}, {count})")
    size = 8 * count * count
    x = _inputs(count)
    equations = _equations(x, name, kind)
    made = table(equations)
    nodes = needed_nodes(equations)
    work = gram_work(count, x.shape[1], len(made.values), len(made.norms))
    work += table_work(nodes.pairs, equations.kernels, nodes.effort)
    row: Row = {
        "activation": name,
        "kind": kind,
        "inputs": count,
        "seconds": took,
        "stated error": error,
        "memory / result": Ratio.of(held / size, less_is_better=True),
    }
    return row | shares(now, work, took, torch.float64)


def _equations(x: Tensor, name: str, kind: str) -> Equations:
    """The equations whose table the kernel of these inputs uses."""
    choice = Choice(kind, kernel_activation(name), 1.0, math.inf)
    return choice.equations(*range_of(choice.norms(x)))


def tables(turn: Round) -> list[Row]:
    """Time tables of kernels, and Gram matrices whose table is there, apart."""
    count = 1000 if turn.quick else 4000
    names = ("relu", "tanh") if turn.quick else ("relu", "erf", "tanh", "gelu")
    rows = list[Row]()
    for name, kind in product(names, KINDS):
        x = _inputs(count)
        equations = _equations(x, name, kind)
        # Constants are made once in a process.
        nfd.kernel(x[:8], activation=name, kind=kind, horizon=0.9)
        table.cache_clear()
        needed_nodes.cache_clear()
        now = limits()
        took = seconds(partial(table, equations))
        nodes = needed_nodes(equations)
        work = table_work(nodes.pairs, equations.kernels, nodes.effort)
        row: Row = {"made": "table", "activation": name, "kind": kind, "size": nodes.pairs}
        rows.append(row | {"ms": 1e3 * took} | shares(now, work, took, torch.float64))
        made = table(equations)
        took = best(partial(nfd.kernel, x, activation=name, kind=kind))
        work = gram_work(count, x.shape[1], len(made.values), len(made.norms))
        row = {"made": "Gram matrix", "activation": name, "kind": kind, "size": count}
        rows.append(row | {"ms": 1e3 * took} | shares(now, work, took, torch.float64))
    return rows


def long_horizons(turn: Round) -> list[Row]:
    """Measure the first use of a kernel at T = 16 with norms from 0.3 to 1.5.

    It is what a table costs, once for each horizon.
    """
    if turn.quick:
        return []
    took, _, error = apart("benchmarks.kernels:gram_run('erf', 'nngp', 64, 0.3, 1.5, 16.0)")
    return [{"activation": "erf", "kind": "nngp", "T": 16, "seconds": took, "stated error": error}]


def recursion(x: Tensor, depth: int, kind: str) -> Tensor:
    """The ReLU kernel of Eq. 1 at infinite width in plain PyTorch.

    It is the arc-cosine recursion on whole Gram matrices.
    """
    C = x @ x.T / x.shape[1]
    D = C.clone()
    for _ in range(depth):
        size = C.diagonal().sqrt()
        scale = size[:, None] * size
        cosine = (C / scale).clamp_(-1, 1)
        angle = math.pi - cosine.acos()
        moment = scale * (((1 - cosine * cosine).sqrt() + angle * cosine) / (2 * math.pi))
        if kind == "ntk":
            D = D + (moment + D * (angle / (2 * math.pi))) / depth
        C = C + moment / depth
    return C + D if kind == "ntk" else C


def against_recursion(turn: Round) -> list[Row]:
    """Time infinite depth here, table included, against 256 layers in plain PyTorch, float64."""
    count = 300 if turn.quick else 1000
    return [_against_recursion(kind, count) for kind in KINDS]


def _against_recursion(kind: str, count: int) -> Row:
    x = digits().inputs[:count].double()
    ours = _timed_kernel(x, kind)[0]
    theirs = seconds(lambda: recursion(x, SOME, kind)) * DEPTH / SOME
    return {
        "kind": kind,
        "inputs": len(x),
        "infinite depth, s": ours,
        f"{DEPTH} layers of recursion (from {SOME}), s": theirs,
        "recursion / ours": Ratio.of(theirs / ours),
    }


def _timed_kernel(x: Tensor, kind: str, depth: float = math.inf) -> tuple[float, Tensor, float]:
    """Seconds, Gram matrix and stated error, the table made anew."""
    table.cache_clear()
    results = list[Any]()
    took = seconds(lambda: results.extend(nfd.kernel(x, kind=kind, depth=depth, return_error=True)))
    return took, results[0], results[1]


def against_neural_tangents(turn: Round) -> list[Row]:
    """Time infinite depth here against L = 256 there, float64; both at L = 256 must agree.

    They are compiled once and then timed in a row, as we are: compiling takes longer than all that
    is measured. Inputs are of digits, where there are enough, or Gaussian of different norms.
    """
    if turn.quick:
        raise UnavailableError("compiling it takes longer than a quick run should")
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        raise UnavailableError(
            "neural-tangents has no environment; make bench-neural-tangents makes it"
        )
    rows = list[Row]()
    for count, repeats in OTHERS.items():
        images = digits().inputs[:count].double()
        x = images if len(images) == count else _inputs(count)
        with tempfile.TemporaryDirectory() as folder:
            np.save(Path(folder) / "inputs.npy", x.numpy())
            rows += [
                _against_neural_tangents(python, Path(folder), x, kind, repeats) for kind in KINDS
            ]
    return rows


def _against_neural_tangents(python: Path, folder: Path, x: Tensor, kind: str, repeats: int) -> Row:
    theirs, took = _theirs(python, folder, kind, repeats)
    timed = [_timed_kernel(x, kind) for _ in took]
    _, limit, bound = timed[0]
    scale = (limit.diagonal()[:, None] * limit.diagonal()).sqrt()
    at_depth, finite, _ = _timed_kernel(x, kind, DEPTH)
    ratios = [one / other for one, (other, _, _) in zip(took, timed, strict=True)]
    gram = torch.from_numpy(theirs)
    return {
        "kind": kind,
        "inputs": len(x),
        f"neural-tangents, L = {DEPTH}, s": median(took),
        "nfd, infinite depth, s": median(ours for ours, _, _ in timed),
        f"nfd, L = {DEPTH}, s": at_depth,
        "neural-tangents / ours": Ratio(tuple(ratios)),
        "its error to infinite depth": float(((gram - limit).abs() / scale).max()),
        "our stated error": float(bound),
        f"difference at L = {DEPTH}": float(((gram - finite).abs() / scale).max()),
    }


def _theirs(
    python: Path, folder: Path, kind: str, repeats: int
) -> tuple[NDArray[np.float64], list[float]]:
    out = folder / f"{kind}.npz"
    call = [
        str(python),
        tangents.__file__,
        str(folder / "inputs.npy"),
        str(DEPTH),
        kind,
        str(repeats),
        str(out),
    ]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(call, capture_output=True, text=True, env=clean, check=False)
    if done.returncode:
        raise UnavailableError(
            f"neural-tangents failed ({done.stderr.strip().splitlines()[-1].split(':')[0]})"
        )
    stored = np.load(out)
    return stored["gram"], stored["seconds"].tolist()
