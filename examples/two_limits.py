"""Which limit is whose? Definition 1, Eq. 5 and the two kinds of feedback compared at several depths, as a page.

Run: python examples/two_limits.py [--depths 2 8 32] [--samples 12] [--scale 1.0] [--out docs]
Writes two-limits.md. ``--scale`` multiplies widths and numbers of networks; 1 takes a few minutes on two cores.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import Tensor

import nfd
from nfd.core.files import prepare_directory, staged, write_text
from nfd.core.statistics import interval, log_slope, rms, squared_size, stderr
from nfd.data.digits import digits
from nfd.limits.ensemble import ensemble
from nfd.limits.problem import Problem, problem

HORIZON, ETA_C, WIDTH, NETWORKS, PARTICLES, SOLUTIONS = 1.0, 0.3, 4096, 24, 8192, 24

PAGE = """# Two limits

*Made by `python examples/two_limits.py`: {samples} digits, one per step, +1 for even and -1 for odd, inputs normalised,
(f - y)^2 / 2, ReLU, T = {horizon:g}, eta_c = {eta_c:g}. {networks} networks of width {width:,} stand for infinite
width, {solutions} solutions with {particles:,} particles for Definition 1.*

Theorem 1 and Corollary 1 say that a residual network, as its width and then its depth go to infinity, trains like the
SDE of Definition 1, and that it makes no difference whether the backward pass uses the network's own weights or an
independent copy of them. A reader who believes this should expect every row below to show the same outputs, at least
at large depth. They do not.

## What was measured

The table gives the RMS difference of the outputs over all steps, beyond what noise explains, and in brackets the noise;
then the RMS of the differences in units of their standard errors, which is about 1 when two things are the same.

{table}

- Definition 1, solved literally by particles, **is** the network whose backward weights are independent.
- The standard network **is** the infinitely wide one with shared feedback.
- These two differ, by far more than the noise, and the difference does not shrink with depth.
- Eq. 5 as printed moves Definition 1 by terms of order tau^2 per layer. They vanish with depth, as the paper says; but
  they are not what separates the two limits.

## The missing term

With tau = T / L, Eq. 3 reads `g_{{l-1}} = g_l + sqrt(tau / n) phi'(h_{{l-1}}) W_l' g_l`. One step of SGD changes every
`h_j`, j < l, by a drift of size tau that contains `g_j`, and `g_j` contains `W_l' g_l` for every l > j. So before the
forward pass of the next step reaches layer l, its input has moved:

    h_{{l-1}} -> h_{{l-1}} + (sum over l - 1 layers of size tau) x (something of size sqrt(tau / n) W_l' g_l)
             =  h_{{l-1}} + O(sqrt(tau / n)) W_l' g_l.

Layer l then multiplies by `sqrt(tau / n) W_l`, and `W_l W_l' g_l / n` is not small: it is `g_l` itself. The result is a
term of size sqrt(tau) x sqrt(tau) = tau along `g_l`, in each of L layers: order one in all, the same order as the drift
that Definition 1 keeps. Eq. 5 keeps only the path through the last layer, j = l - 1, where the sum has one term of
size tau instead of L, which is why its correction is tau^2 and vanishes. In the language of spin glasses this is the
Onsager, or response, term; the deferred layers of this library carry it exactly (`k = Y' q - P' z`).

For the first step of gradient descent the sum can be done in closed form. The change of f is the neural tangent kernel,
whose weight is `P_t = E[g_t^2] = exp((T - t) / 2)` for ReLU. Definition 1 has 1 in its place: for a repeated unit input
at infinite depth (2 + T / 2) e^(T/2) against 2 e^(T/2), a ratio of 1 + T / 4, which no depth removes.

## Convergence at initialisation

Mean squares of `h_L` and `g_0` of networks of width {start_width} minus those of depth {deepest}, along one Brownian
path (`nfd.ResNet(coupled=True)`), and of `h_L.h_L / n` minus the kernel of Prop. 3 at depth {kernel_depth}, as powers
of depth and of width. Props. 2 and 6 bound the first two by L^-1 and the last by n^-1; Prop. 6 asks
for a Lipschitz phi', which relu has not.

{start}

## Convergence while training

RMS error of the outputs against the limit, as a power of width n (one network of depth {depth}, against the infinitely
wide one) and of depth L (infinitely wide, shared feedback, one Brownian path at all depths, against infinite depth
extrapolated from L = {last} and {twice}), fitted over the sizes given.

{slopes}

Width first and then depth, depth first and then width, or both together give one limit: at n = L = {joint} the RMS
distance to it is {joint_distance}, where the root of the summed squares of the two errors gives {joint_expected:.3f}.
"""


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depths", type=int, nargs="+", default=[2, 8, 32])
    parser.add_argument("--samples", type=int, default=12)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--out", default="docs")
    a = parser.parse_args()
    data = digits()
    x = data.inputs[: a.samples]
    y = torch.where(data.labels[: a.samples] % 2 == 0, 1.0, -1.0)

    def scaled(value: int, least: int) -> int:
        return max(least, int(value * a.scale))

    sizes = {"width": scaled(WIDTH, 16), "networks": scaled(NETWORKS, 4), "solutions": scaled(SOLUTIONS, 4)}
    particles = scaled(PARTICLES, 2 * a.samples + 2)
    lines = [
        "| depth | Definition 1 - independent | Eq. 5 - independent | Eq. 5 - shared | Definition 1 - standard | "
        "shared - standard |",
        "|---|---|---|---|---|---|",
    ]
    for L in a.depths:
        found = {
            "Definition 1": solutions(x, y, L, particles, sizes["solutions"], eq5=False),
            "Eq. 5": solutions(x, y, L, particles, sizes["solutions"], eq5=True),
            "independent": networks(x, y, L, sizes["width"], sizes["networks"], "independent", "deferred"),
            "shared": networks(x, y, L, sizes["width"], sizes["networks"], "shared", "deferred"),
            "standard": networks(x, y, L, sizes["width"] // 2, sizes["networks"], "shared", "dense", seed=1),
        }
        pairs = [head.split(" - ") for head in lines[0].strip("| ").split(" | ")[1:]]
        lines.append(f"| {L} | " + " | ".join(compared(found[p], found[q]) for p, q in pairs) + " |")
        print(lines[-1], flush=True)
    start, start_facts = initialisation(x, scaled(256, 16), scaled(8, 4))
    print(start, flush=True)
    slopes, facts = convergence(x, y, sizes["width"], sizes["networks"])
    text = PAGE.format(
        samples=a.samples, horizon=HORIZON, eta_c=ETA_C, particles=particles, table="\n".join(lines), slopes=slopes,
        start=start, **sizes, **facts, **start_facts,
    )  # fmt: skip
    with staged(prepare_directory(a.out)) as folder:
        write_text(folder / "two-limits.md", text)


def solutions(x: Tensor, y: Tensor, L: int, particles: int, count: int, *, eq5: bool) -> Tensor:
    """Outputs [count / 2, K] of independent solutions of Definition 1, two to a sample."""
    found = [
        nfd.solve_nfd(
            x, y, grid=L, horizon=HORIZON, activation="relu", eta_c=ETA_C, particles=particles, replicates=2,
            eq5_term=eq5, seed=seed,
        ).outputs
        for seed in range(count // 2)
    ]  # fmt: skip
    return torch.stack(found)


def given(x: Tensor, y: Tensor, feedback: str, *, coupled: bool = False) -> Problem:
    """The training problem."""
    return problem(
        x, y, loss="mse", classes=None, horizon=HORIZON, activation="relu", block="one-layer", eta_c=ETA_C,
        momentum=0.0, feedback=feedback, rule="depth-mup", device="cpu", coupled=coupled,
    )  # fmt: skip


def networks(
    x: Tensor, y: Tensor, L: int, width: int, count: int, feedback: str, weights: str, *, seed: int = 0,
    coupled: bool = False,
) -> Tensor:  # fmt: skip
    """Outputs [count, K] of networks."""
    problem_given = given(x, y, feedback, coupled=coupled)
    return ensemble(problem_given, width, L, weights, range(count), seed, lambda: None).outputs[:, :, 0, 0]


def compared(a: Tensor, b: Tensor) -> str:
    """Size of the difference, its noise, and the RMS of the differences in standard errors."""
    difference = a.mean(0) - b.mean(0)
    error = (stderr(a) ** 2 + stderr(b) ** 2).sqrt()
    size = math.sqrt(max(0.0, float(squared_size(difference, error))))
    later = error[1:] > 0
    return f"{size:.4f} ({rms(error):.4f}), {rms(difference[1:][later] / error[1:][later]):.1f}"


def initialisation(x: Tensor, n: int, count: int) -> tuple[str, dict[str, object]]:
    """Fitted exponents of the mean-square errors of untrained networks in depth and width."""
    depths, deepest, L = (2, 4, 8, 16), 128, 8
    lines = [
        "| what | activation | against | exponent of the mean square [95 % interval] |",
        "|---|---|---|---|",
    ]
    for name in ("relu", "tanh"):
        h, g = zip(*(errors_in_depth(x, name, n, seed, depths, deepest) for seed in range(count)), strict=True)
        for what, squares in (("`h_L`", torch.stack(h)), ("`g_0`", torch.stack(g))):
            found = interval(lambda r: log_slope(depths, r.mean(0)), squares)
            lines.append(f"| {what} | {name} | depth {', '.join(map(str, depths))} | {found} |")
        widths = [max(4, n // 4), max(8, n // 2), n, 2 * n]
        squares = torch.stack([errors_in_width(x, name, L, seed, widths) for seed in range(4 * count)])
        found = interval(lambda r, w=widths: log_slope(w, r.mean(0)), squares)  # type: ignore[misc]
        lines.append(f"| `h_L.h_L / n` | {name} | width {', '.join(map(str, widths))} | {found} |")
    return "\n".join(lines), {"start_width": n, "deepest": deepest, "kernel_depth": L}


def errors_in_depth(
    x: Tensor, name: str, n: int, seed: int, depths: tuple[int, ...], deepest: int
) -> tuple[Tensor, Tensor]:
    """Mean squares [depths] of ``h_L`` and of ``g_0`` against the deepest network of the same path."""
    ends = [endpoints(x, name, n, L, seed) for L in (*depths, deepest)]
    (h, g) = ends[-1]
    return (
        torch.stack([(a - h).square().mean() for a, _ in ends[:-1]]),
        torch.stack([(b - g).square().mean() for _, b in ends[:-1]]),
    )


def endpoints(x: Tensor, name: str, n: int, L: int, seed: int) -> tuple[Tensor, Tensor]:
    """``h_L`` and ``g_0`` of one untrained network with one output."""
    net = nfd.ResNet(x.shape[1], 1, n, L, horizon=HORIZON, activation=name, seed=seed, coupled=True)
    streams = net.streams(x)
    streams.outputs.sum().backward()
    return streams.h[-1].double(), streams.delta[0].double()


def errors_in_width(x: Tensor, name: str, L: int, seed: int, widths: list[int]) -> Tensor:
    """Mean squares [widths] of ``h_L.h_L / n`` minus the kernel of the same depth."""
    exact = nfd.kernel(x, activation=name, horizon=HORIZON, depth=L)
    found = []
    for n in widths:
        net = nfd.ResNet(x.shape[1], 1, n, L, horizon=HORIZON, activation=name, seed=seed)
        h = net.streams(x).h[-1].double()
        found.append((h @ h.T / n - exact).square().mean())
    return torch.stack(found)


def convergence(x: Tensor, y: Tensor, width: int, count: int) -> tuple[str, dict[str, object]]:
    """Fitted exponents in width and depth, and the joint limit."""
    depth, depths, widths = 8, (2, 4, 8, 16, 32), [max(4, width // k) for k in (64, 32, 16, 8)]
    limit = networks(x, y, depth, width, count, "shared", "deferred", seed=2)
    runs = torch.stack([networks(x, y, depth, n, count, "shared", "dense", seed=3) for n in widths], 1)
    wide = [networks(x, y, L, width, count, "shared", "deferred", seed=2, coupled=True) for L in depths]
    deep = 2 * wide[-1] - wide[-2]
    apart = torch.stack([w - deep for w in wide[:-1]], 1)
    by_width = interval(lambda r, m: log_slope(widths, individual(r, m)), runs, limit)
    by_depth = interval(lambda r: log_slope(depths[:-1], systematic(r)), apart)
    n = L = 32
    joint = networks(x, y, L, n, count, "shared", "dense", seed=4)[:, None]
    reached = interval(lambda r, m: individual(r, m)[0], joint, deep)
    at_width = float(individual(networks(x, y, depth, n, count, "shared", "dense", seed=5)[:, None], limit)[0])
    at_depth = float(systematic(torch.stack([wide[-1] - deep], 1))[0])
    table = [
        "| against | sizes | exponent [95 % interval] | expected |",
        "|---|---|---|---|",
        f"| width n | {', '.join(map(str, widths))} | {by_width} | -1/2, fluctuations of one network |",
        f"| depth L | {', '.join(map(str, depths[:-1]))} | {by_depth} | -1 for large L |",
    ]
    facts = {
        "depth": depth, "last": depths[-2], "twice": depths[-1], "joint": n,
        "joint_distance": f"{reached.value:.3f} [{reached.low:.3f}, {reached.high:.3f}]",
        "joint_expected": math.hypot(at_width, at_depth),
    }  # fmt: skip
    return "\n".join(table), facts


def individual(runs: Tensor, limit: Tensor) -> Tensor:
    """RMS distance [sizes] of single networks [R, sizes, K] to the mean of a prediction."""
    noise = stderr(limit).square().mean()
    return ((runs - limit.mean(0)).square().mean((0, 2)) - noise).clamp_min(1e-12).sqrt()


def systematic(differences: Tensor) -> Tensor:
    """RMS [sizes] of mean differences [R, sizes, K], noise taken away."""
    squares: list[Tensor] = [squared_size(d.mean(0), stderr(d)) for d in differences.unbind(1)]
    return torch.stack(squares).clamp_min(1e-12).sqrt()


if __name__ == "__main__":
    main()
