"""The pages of mathematics: their names exist, their formulas render, their closed forms are what
is computed.

The Python blocks of the pages are run with those of all pages, in test_docs.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nfd
from nfd.core.activations import stream_variances
from nfd.core.estimates import student
from nfd.core.names import Axis
from nfd.laws.best_size import Cost
from nfd.laws.loss_law import fit_law
from nfd.laws.rule_transfer import TOLERANCE
from nfd.limits.predict import Ensemble, extrapolated, to_infinity
from nfd.meters.verdict import judged, verdict_of

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [*sorted((DOCS / "mathematics").glob("*.md")), DOCS / "limits-of-the-tool.md"]
NAMES = [path.relative_to(DOCS).with_suffix("").as_posix() for path in PAGES]


def prose(page: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"```.*?```", "", (DOCS / f"{page}.md").read_text(), flags=re.DOTALL)


def rows(page: str, head: str) -> list[list[str]]:
    """Cells of the table that begins with this header."""
    lines = prose(page).split(head)[1].splitlines()[2:]
    table = lines[: next(k for k, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


@pytest.mark.parametrize("page", NAMES)
def test_formulas_survive_every_renderer(page: str) -> None:
    text = re.sub(r"`[^`]*`", "", prose(page))
    inline = re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL)
    assert inline.count("$") % 2 == 0
    assert not any("\n" in formula for formula in re.findall(r"\$([^$]*)\$", inline))
    formulas = [
        *re.findall(r"\$\$(.*?)\$\$", text, flags=re.DOTALL),
        *re.findall(r"\$([^$]*)\$", inline),
    ]
    for formula in formulas:
        # GitHub drops the backslash before punctuation
        assert not re.search(r"\\[^A-Za-z\s]", formula), formula
        assert formula.count("{") == formula.count("}"), formula
    for line in text.splitlines():
        if line.startswith("|"):
            assert "|" not in "".join(re.findall(r"\$([^$]*)\$", line)), line


# ---- networks and scalings


@pytest.mark.parametrize("rule", ["mup", "depth-mup", "depth-mup-inner", "complete-p"])
def test_unfolded_rates_are_those_of_the_page(rule: str) -> None:
    n = 64
    L = 16
    a = {"mup": 0.0, "complete-p": 1.0}.get(rule, 0.5)
    values = {"$\\eta_c n$": n, "$\\eta_c n L^{1/2}$": n * math.sqrt(L), "$\\eta_c n L$": n * L}
    (cells,) = (
        c
        for c in rows("mathematics/networks-and-scalings", "| rule | $a$ |")
        if f"`{rule}`" in c[0]
    )
    net = nfd.ResNet(8, 3, n, L, block="two-layer", branch_exponent=a)
    rates = {group["role"]: group["lr"] for group in net.param_groups(1.0, rule)}
    for roles, cell in zip((("input", "readout"), ("outer",), ("inner",)), cells[2:], strict=True):
        assert all(math.isclose(rates[role], values[cell]) for role in roles)


# ---- infinite depth, response


@pytest.mark.parametrize("T", [0.5, 3.0])
def test_closed_forms_of_kernels(T: float) -> None:
    x = np.ones((1, 3))
    assert math.isclose(nfd.kernel(x, horizon=T)[0, 0], math.exp(T / 2), rel_tol=1e-9)
    assert math.isclose(
        nfd.kernel(x, kind="ntk", horizon=T)[0, 0], (2 + T / 2) * math.exp(T / 2), rel_tol=1e-9
    )
    linear = nfd.kernel(x, kind="ntk", activation="identity", horizon=T)[0, 0]
    assert math.isclose(linear, (2 + T) * math.exp(T), rel_tol=1e-9)
    q, P = stream_variances("relu", 1.0, 6, T)
    steps = torch.arange(7, dtype=torch.float64)
    torch.testing.assert_close(q, (1 + T / 12) ** steps)
    torch.testing.assert_close(P, (1 + T / 12) ** (6 - steps))


def test_ratios_of_the_first_step_are_those_of_the_page() -> None:
    ratios = [
        nfd.kernel(np.ones((1, 2)), kind="ntk", depth=L)[0, 0] / 2 / (1 + 0.5 / L) ** L
        for L in (4, 16, 64, 128)
    ]
    assert "{:.3f}, {:.3f}, {:.3f} and {:.3f}".format(*ratios) in prose(
        "mathematics/response"
    ).replace("\n", " ")


@pytest.mark.parametrize(("T", "L"), [(1.0, 4), (0.5, 16), (4.0, 64)])
def test_the_tangent_kernel_over_that_of_decoupled_networks(T: float, L: int) -> None:
    x = np.ones((1, 2))
    tangent = nfd.kernel(x, kind="ntk", horizon=T, depth=L)[0, 0]
    decoupled = nfd.kernel(x, kind="independent-feedback", horizon=T, depth=L)[0, 0]
    assert math.isclose(tangent / decoupled, 1 + (T / 4) / (1 + T / (2 * L)), rel_tol=1e-9)


# Of the networks whose first step is measured: width and one input with the mean square 1.
WIDTH = 512
ONE_INPUT = torch.ones(1, 4, dtype=torch.float64)


def measured_response(feedback: str, depth: int, seed: int) -> list[float]:
    """What initial matrices answer to the change of one small step, along g, for every layer."""
    rate = 0.01
    net = nfd.ResNet(4, 1, WIDTH, depth, feedback=feedback, seed=seed, dtype=torch.float64)
    start = [layer.weight.detach().clone() for layer in net.outer]
    before = net.streams(ONE_INPUT)
    # A loss with the derivative 1.
    before.outputs.sum().backward()
    h = before.h[:, 0]
    g = before.delta[:, 0]
    nfd.SGD(net.param_groups(rate)).step()
    moved = torch.relu(net.streams(ONE_INPUT).h[:, 0]) - torch.relu(h)
    answers = [matrix @ moved[k] / math.sqrt(WIDTH) for k, matrix in enumerate(start)]
    along = [float(g[k + 1] @ y / g[k + 1].square().sum()) for k, y in enumerate(answers)]
    return [-value * math.sqrt(depth) / rate for value in along]


def test_the_response_to_one_step_is_that_of_the_page() -> None:
    depth = 4
    D = 1.0
    expected = []
    for k in range(depth):
        # relu: s = 1/2, m = q/2
        expected.append(D / 2)
        D += ((1 + 1 / (2 * depth)) ** k / 2 + D / 2) / depth
    standard = torch.tensor([measured_response("shared", depth, seed) for seed in range(4)])
    decoupled = torch.tensor([measured_response("independent", depth, seed) for seed in range(4)])
    assert (standard.mean(0) / torch.tensor(expected) - 1).abs().max() < 0.3
    assert decoupled.mean(0).abs().max() < 0.2


# ---- extrapolation, inner layers


def inner_part(feedback: str, depth: int, seed: int) -> float:
    """How far the first update of inner matrices under Eq. 8 moves the output, over the rate."""
    rate = 1e-4
    net = nfd.ResNet(
        4, 1, 256, depth, block="two-layer", feedback=feedback, seed=seed, dtype=torch.float64
    )
    start = [layer.weight.detach().clone() for layer in net.inner]
    optimizer = nfd.SGD(net.param_groups(rate, "depth-mup-inner"))
    net(ONE_INPUT).sum().backward()
    optimizer.step()
    with torch.no_grad():
        trained = net(ONE_INPUT).item()
        for layer, weight in zip(net.inner, start, strict=True):
            layer.weight.copy_(weight)
        return float(net(ONE_INPUT).item() - trained) / rate


def test_inner_layers_move_the_function_as_the_page_says() -> None:
    depth = 16
    expected = math.sqrt(depth) * (1 + 1 / (2 * depth)) ** (depth - 1) / 2
    shared = sum(inner_part("shared", depth, seed) for seed in range(3)) / 3
    independent = sum(inner_part("independent", depth, seed) for seed in range(3)) / 3
    assert abs(shared / expected - 1) < 0.3
    assert abs(independent / expected) < 0.1


def test_a_third_of_the_last_move_is_left() -> None:
    f = torch.tensor(
        [nfd.kernel(np.ones((1, 2)), kind="ntk", depth=L)[0, 0] for L in (32, 64, 128)]
    )
    first = extrapolated(f[0], f[1])
    second = extrapolated(f[1], f[2])
    left = nfd.kernel(np.ones((1, 2)), kind="ntk")[0, 0] - second
    assert math.isclose(float((second - first) / left), 3, rel_tol=0.05)


def ensembles(means: Callable[[int], float], noise: float = 1e-6) -> Callable[[int], Ensemble]:
    """Sixteen networks of every depth whose losses have this mean; their noise is shared between
    depths.
    """
    scatter = noise * torch.randn(
        16, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    return lambda L: Ensemble(8, L, scatter * L**0.5 + means(L), torch.empty(16, 0), {}, {})


@pytest.mark.parametrize(
    ("means", "noise", "converged", "note"),
    [
        (lambda L: 2 + 1 / L, 1e-6, True, ""),
        (lambda L: 2 + L**0.5, 1e-6, False, "No limit in depth was found.*8, 16, 32"),
        (lambda L: 2 + 1 / L, 1.0, False, "Noise hides|still changed"),
        (lambda L: 2 + L**-0.5, 1e-6, False, "still changed"),
    ],
    ids=["a limit", "growth", "noise", "slow"],
)
def test_a_limit_in_depth_is_found_where_there_is_one(
    means: Any, noise: float, converged: bool, note: str
) -> None:
    """Changes that halve with every doubling of the depth go as L^-1; ones that grow by sqrt(2) as
    L^(1/2).
    """
    found = to_infinity(ensembles(means, noise), [8 * 2**k for k in range(7)], 1e-3)
    assert found.converged == converged
    assert re.search(note, found.note)
    assert converged == (not found.note)
    if converged:
        assert float(found.of(ensembles(means)).mean()) == pytest.approx(2, abs=1e-3)


@pytest.mark.parametrize(
    ("growth", "is_found"),
    [(1e-3, True), (0.5, False)],
    ids=["below rtol", "above rtol"],
)
def test_changes_below_rtol_need_not_shrink(growth: float, is_found: bool) -> None:
    def means(depth: int) -> float:
        return 2 + growth * math.log2(depth)

    found = to_infinity(ensembles(means), [8, 16, 32, 64], 1e-2)
    assert found.converged == is_found
    assert ("No limit" in found.note) != is_found


def test_changes_within_noise_are_not_called_changes_that_stay() -> None:
    """Noise of its own at every depth changes losses by as much each time."""

    def at(depth: int) -> Ensemble:
        generator = torch.Generator().manual_seed(depth)
        noise = torch.randn(16, 20, generator=generator, dtype=torch.float64)
        return Ensemble(8, depth, 2 + 1 / depth + 0.1 * noise, torch.empty(16, 0), {}, {})

    found = to_infinity(at, [8, 16, 32, 64], 1e-2)
    assert not found.converged
    assert "No limit" not in found.note
    needed = re.search(r"About ([\d,]+) replicates would decide", found.note)
    assert needed
    # Extrapolations of three depths have noise of 0.1 sqrt(4 + 9 + 1), and 1e-2 of 2 is wanted.
    assert int(needed[1].replace(",", "")) == pytest.approx(14 * (0.1 / 2e-2) ** 2, rel=0.3)


# ---- size


def test_the_best_size_for_a_budget_is_that_of_the_page() -> None:
    a = 11.0
    b = 0.75
    budget = 10**9
    losses = {
        (n, L): [0.7 + a / n + b / L + 1e-6 * math.sin(s + n + 7 * L) for s in range(4)]
        for n in (64, 128, 256, 512)
        for L in (4, 8, 16, 32)
    }
    law = fit_law(("width", "depth"), losses, paired=False)
    # (2 + n L) n
    cost = Cost(0, 2, 0, 1)
    size = nfd.ScalingLaw(law, losses, "made up", costs={"flops": cost}).best(flops=budget)
    least = (27 * a**2 * b / (4 * budget)) ** (1 / 3)
    assert math.isclose(size.predicted.value - law.floor.value, least, rel_tol=2e-3)
    # The optimum is flat, and sizes are whole numbers.
    assert math.isclose(size.width / size.depth, a / (2 * b), rel_tol=0.05)


# ---- statistics


def test_rules_of_verdicts_are_those_of_the_page() -> None:
    assert verdict_of(student(0.2, 0.01, 30)) == "STABLE"
    assert verdict_of(student(-0.26, 0.05, 30)) == "COLLAPSES"
    assert verdict_of(student(0.26, 0.05, 30)) == "GROWS"
    assert verdict_of(student(0.24, 0.05, 30)) == "UNCERTAIN"
    bounds = {
        float(v)
        for row in rows("mathematics/statistics", "| verdict | rule |")
        for v in re.findall("0[.]1", row[1])
    }
    assert bounds == {TOLERANCE}


@pytest.mark.parametrize(
    ("meter", "axis", "direction", "verdict"),
    [
        ("inner_update", "width", 0.0, ("COLLAPSES", "trend")),
        ("function_update_inner", "width", 0.0, ("LIMIT", "limit")),
        ("inner_update", "width", -0.3, ("LIMIT", "direction")),
        ("activation", "depth", 0.0, ("LIMIT", "embedding")),
    ],
)
def test_falls_that_are_no_faults_are_those_of_the_page(
    meter: str, axis: Axis, direction: float, verdict: tuple[str, str]
) -> None:
    assert judged(meter, axis, student(-0.4, 0.02, 30), direction=direction) == verdict
