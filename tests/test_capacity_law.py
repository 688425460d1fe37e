"""The law of size: hand-made fits, coverage, refusals, the cost of real networks, best sizes against brute force."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import nfd
from nfd.core.estimates import Interval
from nfd.questions.budget import best_size, returns
from nfd.questions.budget import amount, residual_costs
from nfd.questions.law import Law
from nfd.questions.law import fit_law
from nfd.training.losses import cross_entropy

TRUE = {"floor": 0.735, "a": 7.9, "b": 0.52}
NOISE = {"1/n": lambda n: 0.7 / math.sqrt(n), "equal": lambda n: 0.06, "small": lambda n: 0.2 / math.sqrt(n)}
WIDTHS, DEPTHS = (64, 96, 128, 192, 256), (2, 4, 8, 16)
Losses = dict[tuple[int, int], list[float]]


def expected(width: float, depth: float, power: float = 1.0) -> float:
    return TRUE["floor"] + TRUE["a"] / width**power + TRUE["b"] / depth


def drawn(
    seeds: int, seed: int, noise: str = "1/n", shared: float = 0.0, power: float = 1.0, bend: Any = 0.0
) -> Losses:
    """A sweep: a share of the noise common to all sizes of a seed, and as much common to those of equal width.

    ``bend``: the terms of second order (of width, depth and both) at the smallest size, over those of first order.
    """
    bends = np.broadcast_to(bend, 3) * [TRUE["a"] / 64, TRUE["b"] / 2, (TRUE["a"] / 64 + TRUE["b"] / 2) / 2]
    rng = np.random.default_rng(seed)
    common, grid = rng.normal(size=seeds), {}
    for n in WIDTHS:
        of_width = rng.normal(size=seeds)
        for L in DEPTHS:
            own = rng.normal(size=seeds)
            e = math.sqrt(shared) * (common + of_width) + math.sqrt(1 - 2 * shared) * own
            bent = bends @ [(64 / n) ** 2, (2 / L) ** 2, 128 / (n * L)]
            grid[n, L] = (expected(n, L, power) + bent + NOISE[noise](n) * e).tolist()
    return grid


def exact(spread: float = 1e-3, **given: float) -> Law:
    """Seeds that lie evenly about the law: the fit must find it to rounding."""
    law = TRUE | given
    offsets = [-spread, 0.0, spread]
    return fit_law(
        {(n, L): [law["floor"] + law["a"] / n + law["b"] / L + o for o in offsets] for n, L in product(WIDTHS, DEPTHS)},
        paired=False,
    )


def test_a_law_without_misfit_is_found_exactly() -> None:
    law = exact()
    assert law.floor.value == pytest.approx(0.735, abs=1e-10)
    assert law.a.value == pytest.approx(7.9, abs=1e-8)
    assert law.b.value == pytest.approx(0.52, abs=1e-9)
    assert law.loss(math.inf, math.inf).value == pytest.approx(0.735, abs=1e-10)
    assert law.loss(512, math.inf).value == pytest.approx(0.735 + 7.9 / 512, abs=1e-10)
    assert law.excess(100, 10).value == pytest.approx(0.079 + 0.052, abs=1e-9)
    assert [term.value for term in law.second] == pytest.approx([0, 0, 0], abs=1e-6)
    assert law.bought(64, 2, 128, 2).value == pytest.approx(7.9 / 128, abs=1e-9)
    assert (law.chi2, law.freedom, law.bend) == (pytest.approx(0, abs=1e-9), 14, pytest.approx(0, abs=1e-9))
    assert (law.widths, law.depths, law.seeds, law.good) == (WIDTHS, DEPTHS, 3, True)


def test_weights_and_errors_by_hand() -> None:
    """Equal noise everywhere: ordinary least squares, and its textbook errors from the pooled variance."""
    grid = {(n, L): [1 + 4 / n + 2 / L - 0.1, 1 + 4 / n + 2 / L + 0.1] for n, L in product((2, 4, 8), (2, 4, 8))}
    law = fit_law(grid, paired=False)
    X = np.array([[1, 1 / n, 1 / L] for n, L in grid])
    X = np.hstack([X, X[:, 1:] ** 2, X[:, 1:2] * X[:, 2:]])
    information = X.T @ X * 2 / 0.02  # variance 0.02 of a seed, two seeds a size
    free = np.sqrt(np.diag(np.linalg.inv(information)))
    first = np.hypot([4 / 2, 2 / 2], free[1:3] / 2)  # terms of first order at the smallest size, with their errors
    allowed = np.array([*first, first.mean()]) * [4, 4, 4]  # in units of c, d and e
    errors = np.sqrt(np.diag(np.linalg.inv(information + np.diag([0, 0, 0, *allowed**-2]))))
    found = [i.stderr for i in (law.floor, law.a, law.b, *law.second)]
    assert found == pytest.approx(errors.tolist(), rel=0.05)  # the prior of the variance tilts the weights a little
    one, four = law.network(4, 4), law.network(4, 4, 4)  # the centre, where the exponents do not matter
    assert one.stderr**2 - four.stderr**2 == pytest.approx(0.02 * (1 - 1 / 4), rel=0.05)


@pytest.mark.parametrize("seeds", [3, *(pytest.param(s, marks=pytest.mark.slow) for s in (5, 10))])
@pytest.mark.parametrize("noise", ["equal", "1/n"])
@pytest.mark.parametrize("paired", [False, True])
def test_intervals_cover_the_truth(seeds: int, noise: str, paired: bool) -> None:
    """No fewer than 95 of 100, with ordinary terms of second order in every second sweep; a law that holds is kept.

    Sizes are independent, or share seeds as ResNets do. More than 95 are covered where the terms of second order are
    smaller than the fit allows for.
    """
    sweeps, rng = 200, np.random.default_rng(0)
    hits = dict.fromkeys((*TRUE, "rejected"), 0)
    for k in range(sweeps):
        bend = rng.uniform(0.1, 0.5, 3) * rng.choice([-1, 1], 3) if k % 2 else 0.0
        law = fit_law(drawn(seeds, k, noise, shared=0.36 if paired else 0.0, bend=bend), paired=paired)
        for name, value in TRUE.items():
            interval: Interval = getattr(law, name)
            hits[name] += interval.low <= value <= interval.high
        hits["rejected"] += law.p_value < 0.01
    assert all(hits[name] / sweeps >= 0.9 for name in TRUE), hits  # three errors of 200 sweeps below 0.95
    assert hits["rejected"] / sweeps < (0.06 if paired else 0.03)


def test_terms_of_second_order_do_not_bend_the_floor_in_silence() -> None:
    """A fit of first order alone misses the floor by far more than the noise."""
    grid = drawn(4, 0, "small", bend=0.5)
    rows = np.array([[1, 1 / n, 1 / L] for n, L in grid])
    straight = np.linalg.lstsq(rows, np.array([np.mean(v) for v in grid.values()]), rcond=None)[0]
    law = fit_law(grid, paired=False)
    assert law.good
    assert law.floor.low < TRUE["floor"] < law.floor.high
    assert straight[0] < law.floor.low


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("bend", [(3.0, 3.0, 3.0), (-3.0, 3.0, -3.0), (0.0, -4.0, 0.0)])
def test_huge_terms_of_second_order_are_refused(bend: tuple[float, ...], paired: bool) -> None:
    law = fit_law(drawn(5, 3, "small", shared=0.36 if paired else 0.0, bend=bend), paired=paired)
    assert not law.good
    assert "terms of second order are too large" in law.note
    with pytest.raises(ValueError, match="may not be extrapolated"):
        law.loss(512, 32)


def test_new_networks_fall_where_they_are_predicted() -> None:
    rng, hits, trials = np.random.default_rng(0), 0, 300
    for k in range(trials):
        law = replace(fit_law(drawn(4, 1000 + k), paired=False), good=True)  # 1 in 100 is refused, and is needed here
        interval = law.network(512, 32, 4)
        hits += interval.low <= expected(512, 32) + 0.7 / math.sqrt(512) * rng.normal(size=4).mean() <= interval.high
    assert 0.92 <= hits / trials <= 0.99


def test_seeds_that_are_shared_are_seen() -> None:
    shared, ignored = (fit_law(drawn(6, 1, shared=0.36), paired=paired) for paired in (True, False))
    assert shared.correlation > 0.2
    assert (shared.paired, ignored.paired) == (True, False)
    assert shared.loss(256, 16).stderr > 1.3 * ignored.loss(256, 16).stderr
    assert fit_law(drawn(6, 1)) == fit_law(drawn(6, 1), paired=False)  # independent, whatever the seeds are called


@pytest.mark.parametrize("paired", [False, True])
def test_another_power_is_refused(paired: bool) -> None:
    grid = {key: [y + 0.02 * (v - y) for v in values] for key, values in drawn(5, 3, power=0.5).items()
            for y in [expected(*key, power=0.5)]}  # fmt: skip
    law = fit_law(grid, paired=paired)
    assert not law.good
    assert law.p_value < 0.01
    with pytest.raises(ValueError, match=r"width must be within 64\.\.256, what was fitted; got 512.*does not hold"):
        law.loss(512, 16)
    with pytest.raises(ValueError, match="may not be extrapolated"):
        law.excess(math.inf, 16)
    assert math.isfinite(law.loss(100, 5).value)  # interpolation remains
    assert best_size(law, residual_costs(64, 10), "parameters", 10**9).width == 256


def test_small_sizes_before_the_law_are_left_out_on_request() -> None:
    grid = drawn(8, 5, "equal")
    grid = {(n, L): [expected(n, L) + 0.1 * (v - expected(n, L)) for v in values] for (n, L), values in grid.items()}
    grid |= {(64, L): [v + 0.1 for v in grid[64, L]] for L in DEPTHS}
    whole = fit_law(grid, paired=False)
    assert not whole.good
    assert "holds for widths 96..256, depths 2..16" in whole.note
    law = fit_law(grid, paired=False, trim=True)
    assert law.good
    assert law.widths == WIDTHS[1:]
    assert "widths 96..256" in law.note
    assert law.a.low < TRUE["a"] < law.a.high


def test_diverged_runs_and_two_sizes_are_said() -> None:
    grid = drawn(3, 0)
    grid[256, 16][1] = math.nan
    law = fit_law(grid)
    assert "256 x 16" in law.note
    assert law.freedom == 13
    corners = fit_law({key: grid[key] for key in product((64, 192), (2, 8))})
    assert (corners.freedom, corners.good) == (0, False)
    assert "2 widths and 2 depths are too few to distinguish" in corners.note


GRID = drawn(3, 0)
BAD: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    ({k: v for k, v in GRID.items() if k[0] == 64}, {}, ValueError, r"2 widths.*got widths \[64\]"),
    ({k: GRID[k] for k in ((64, 2), (64, 4), (96, 2))}, {}, ValueError, "3 sizes"),
    ({k: v[:1] for k, v in GRID.items()}, {}, ValueError, "2 seeds or more"),
    ({k: [1.0, 1.0] for k in GRID}, {}, ValueError, "seeds must differ"),
    ({k: [*v[:2], math.inf] for k, v in GRID.items()}, {}, ValueError, r"got widths \[\].*diverged"),
    ({(32 * k, k): [1.0, 1.1] for k in (1, 2, 3, 4, 5)}, {}, ValueError, "independently of each other"),
    ({(64.5, L): [1.0, 2.0] for L in DEPTHS}, {}, TypeError, "width must be a whole number"),
]


@pytest.mark.parametrize(("losses", "options", "error", "message"), BAD)
def test_bad_grids_are_named(losses: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fit_law(losses, **options)


@pytest.mark.parametrize("size", [(0, 2), (math.nan, 2), (64, -1)])
def test_sizes_must_be_sizes(size: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        exact().loss(*size)


# ---- cost ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", ["one-layer", "two-layer"])
@pytest.mark.parametrize(("width", "depth"), [(32, 3), (48, 1), (7, 5)])
def test_the_cost_is_that_of_a_real_network(block: Any, width: int, depth: int) -> None:
    costs = residual_costs(20, 5, 1 if block == "one-layer" else 2, samples=8, batch=8)
    net = nfd.ResNet(20, 5, width, depth, block=block)
    assert costs.cost("parameters").at(width, depth) == sum(p.numel() for p in net.parameters())
    with FlopCounterMode(display=False) as counter:
        cross_entropy(net(torch.randn(8, 20)), torch.zeros(8, dtype=torch.long)).backward()
    assert costs.cost("flops").at(width, depth) == counter.get_total_flops()


@pytest.mark.parametrize("block", ["one-layer", "two-layer"])
def test_the_memory_is_roughly_that_of_a_real_network(block: Any) -> None:
    """Weights, gradients, momentum, and what autograd saves for the backward pass plus the stream it keeps."""
    batch, width, depth = 256, 64, 6
    net, x = nfd.ResNet(20, 5, width, depth, block=block), torch.randn(batch, 20)
    own, saved = {p.data_ptr() for p in net.parameters()}, {}

    def pack(t: torch.Tensor) -> torch.Tensor:
        if t.untyped_storage().data_ptr() not in own:
            saved[t.untyped_storage().data_ptr()] = t
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        streams = net.streams(x)
    kept = {t.data_ptr(): t for t in [*streams.layers, *streams.inner, x, streams.outputs, *saved.values()]}
    held = sum(t.untyped_storage().nbytes() for t in kept.values())
    held += 3 * sum(p.untyped_storage().nbytes() for p in net.parameters())
    layers = 1 if block == "one-layer" else 2

    def memory(**options: Any) -> int:
        return residual_costs(20, 5, layers, batch=batch, **options).cost("memory").at(width, depth)

    assert memory(momentum=0.9) == pytest.approx(held, rel=0.2)
    states = {"sgd": memory(), "momentum": memory(momentum=0.9), "adam": memory(optimizer="adam")}
    one = 4 * residual_costs(20, 5, layers).cost("parameters").at(width, depth)
    assert states["adam"] - states["momentum"] == states["momentum"] - states["sgd"] == one


def test_budgets_are_read_in_their_units() -> None:
    assert amount("parameters", "2M") == 2_000_000
    assert amount("parameters", "1.5 B") == amount("parameters", "1.5G params") == 1_500_000_000
    assert amount("flops", "3 TFLOP") == amount("flops", 3e12) == amount("flops", "3e12") == 3 * 10**12
    assert amount("flops", "2 PFLOPs") == 2 * 10**15
    assert amount("memory", "1 GiB") == 2**30


BUDGETS: list[tuple[Any, Any, type[Exception], str]] = [
    ("parameters", "2 GiB", ValueError, "budget in parameters must be like '2M'"),
    ("parameters", "many", ValueError, "got 'many'"),
    ("parameters", "0", ValueError, "at least 1"),
    ("parameters", True, TypeError, "budget must be a number"),
    ("flops", "3 TFLOP/s", ValueError, "like '3 TFLOP'"),
    ("flops", "9" * 400, ValueError, "budget in flops"),
    ("flops", math.inf, ValueError, "finite"),
    ("memory", "2 MFLOP", ValueError, "memory must be like"),
    ("flop", "1", ValueError, "Did you mean 'flops'"),
]


@pytest.mark.parametrize(("resource", "budget", "error", "message"), BUDGETS)
def test_bad_budgets_are_named(resource: Any, budget: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        amount(resource, budget)


# ---- the best size -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resource", ["parameters", "flops", "memory"])
@pytest.mark.parametrize("terms", [{"a": 7.9, "b": 0.52}, {"a": 0.5, "b": 3.0}, {"a": 60.0, "b": 0.2}])
def test_the_best_size_is_that_of_brute_force(resource: Any, terms: dict[str, float]) -> None:
    law, costs = exact(spread=1e-6, **terms), residual_costs(20, 5, 2, samples=3, batch=4)
    cost = costs.cost(resource)
    for budget in (cost.at(1, 1), cost.at(5, 9), cost.at(30, 7) + 11, cost.at(60, 20)):
        best = min(
            law.a.value / n + law.b.value / L
            for n in range(1, cost.widest(1, budget) + 1)
            for L in range(1, cost.deepest(n, budget) + 1)
        )
        found = best_size(law, costs, resource, budget)
        assert found.cost == cost.at(found.width, found.depth) <= budget
        assert law.a.value / found.width + law.b.value / found.depth == pytest.approx(best, rel=1e-12)


def test_partners_are_the_largest_that_fit() -> None:
    cost = residual_costs(20, 5, batch=3).cost("memory")
    for budget, size in product((10**4, 12_345, 10**6, 10**18), (1, 2, 17)):
        n, L = cost.widest(size, budget), cost.deepest(size, budget)
        assert n == 0 or cost.at(n, size) <= budget < cost.at(n + 1, size)
        assert L == 0 or cost.at(size, L) <= budget < cost.at(size, L + 1)


def test_a_large_budget_is_split_as_calculus_says() -> None:
    size = best_size(exact(), residual_costs(64, 10), "parameters", "100B")
    assert 7.9 / size.width == pytest.approx(2 * 0.52 / size.depth, rel=1e-2)
    assert size.cost == pytest.approx(1e11, rel=1e-2)
    assert not size.inside
    assert "64..256" in str(size)
    assert size.predicted.value == pytest.approx(0.735, abs=0.01)


def test_an_axis_that_does_not_pay_stays_small() -> None:
    costs = residual_costs(64, 10)
    parameters = costs.cost("parameters").at
    flat = best_size(exact(b=0.0), costs, "parameters", "1M")
    assert flat.depth == 2
    assert parameters(flat.width, 2) <= 10**6 < parameters(flat.width + 1, 2)
    assert "More depth does not pay significantly" in flat.note
    worse = best_size(exact(a=-1.0), costs, "parameters", "1M")
    assert worse.width == 64
    assert parameters(64, worse.depth) <= 10**6 < parameters(64, worse.depth + 1)
    harmful = best_size(exact(a=-1.0, b=-0.1), costs, "parameters", "1M")
    assert (harmful.width, harmful.depth, harmful.inside) == (64, 2, True)
    with pytest.raises(ValueError, match="budget must pay for width 64 and depth 2"):
        best_size(exact(a=-1.0, b=-0.1), costs, "parameters", "1K")
    with pytest.raises(ValueError, match="do not tell which size is best"):
        best_size(exact(a=0.0, b=0.0), costs, "parameters", "1M")


def test_returns_of_growth() -> None:
    found = returns(exact(), 100, 10)
    assert found.width.value == pytest.approx(0.0395, abs=1e-9)
    assert found.depth.value == pytest.approx(0.026, abs=1e-9)
    assert found.left.value == pytest.approx(2 * (0.0395 + 0.026), abs=1e-9)
    assert found.enough is not None
    n, L = found.enough  # two thirds of 0.0735 from width, one third from depth
    assert (n, L) == (math.ceil(7.9 / 0.049), math.ceil(0.52 / 0.0245))
    assert returns(exact(floor=-1.0), 100, 10).enough is None
    assert returns(exact(b=0.0), 100, 10).enough == (math.ceil(7.9 / 0.0735), 2)
