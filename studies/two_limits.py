"""Compare Definition 1, Eq. 5 and the two kinds of feedback at several depths, as a page.

    python -m studies.two_limits

fills ``studies/two_limits.md``, which docs/two-limits.md quotes, in about a quarter of an hour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from makers.tables import fill_page
from nfd import ResNet, kernel
from nfd.core import Activation, Feedback, activation
from nfd.core.estimates import interval, log_slope, rms, squared_distances, squared_size, stderr
from nfd.data import digits
from nfd.paper.two_limits import (
    errors_in_depth,
    flows,
    networks,
    solutions,
    systematic,
)

PAGE = Path(__file__).with_suffix(".md")
FEEDBACKS: tuple[Feedback, ...] = ("shared", "independent")
WIDTH = 4096
# Networks, and as many solutions of Definition 1.
NETWORKS = 24
PARTICLES = 8192


def main(
    page: Path, scale: float = 1.0, depths: Sequence[int] = (2, 8, 32), samples: int = 12
) -> None:
    """Measure and fill the page; ``scale`` multiplies widths and numbers of networks."""
    data = digits()
    x = data.inputs[:samples]
    y = torch.where(data.labels[:samples] % 2 == 0, 1.0, -1.0)

    def scaled(value: int, least: int) -> int:
        return max(least, int(value * scale))

    width = scaled(WIDTH, 16)
    count = scaled(NETWORKS, 4)
    particles = scaled(PARTICLES, 2 * samples + 2)
    tables = {
        "agreement": agreement(x, y, depths, particles, width, count),
        "before training": initialisation(x, scaled(256, 16), scaled(8, 2)),
        "during training": convergence(x, y, width, count),
        "orders": commutation(x, y, width, count, scaled(288, 2)),
    }
    print(*tables.values(), sep="\n\n")
    fill_page(page, tables)


def agreement(
    x: Tensor, y: Tensor, depths: Sequence[int], particles: int, width: int, count: int
) -> str:
    """Differences at every depth, and the size of the outputs."""
    names = (
        "Definition 1 - independent",
        "Eq. 5 - Definition 1",
        "Definition 1 - standard",
        "shared - standard",
    )
    rows = list[str]()
    paired = list[Tensor]()
    for L in depths:
        outputs = {
            "Definition 1": solutions(x, y, L, particles, count, eq5=False),
            "Eq. 5": solutions(x, y, L, particles, count, eq5=True),
            "independent": networks(x, y, L, width, count, "independent", "deferred"),
            "shared": networks(x, y, L, width, count, "shared", "deferred"),
            "standard": networks(x, y, L, width // 2, count, "shared", "dense", seed=1),
        }
        cells = []
        for name in names:
            first, second = (outputs[part] for part in name.split(" - "))
            same = name.startswith("Eq. 5")
            groups = (first - second,) if same else (first, second)
            cells.append("{:.4f} ({:.4f}), {:.1f}".format(*difference(*groups)))
        paired.append((outputs["Eq. 5"] - outputs["Definition 1"])[:, None])
        rows.append(f"| {L} | " + " | ".join(cells) + " |")
    head = f"| depth | {' | '.join(names)} |\n|{'---|' * (len(names) + 1)}"
    size = f"The outputs of the standard network have RMS {rms(outputs['standard'].mean(0)):.2f}."
    if len(depths) > 1:
        power = interval(lambda r: log_slope(depths, systematic(r)), torch.cat(paired, 1))
        size += f" What Eq. 5 adds falls as L^{power}."
    return "\n".join([head, *rows, "", size])


Pair = tuple[Tensor, Tensor]


def difference(
    first: Tensor | Pair, second: Tensor | Pair | None = None
) -> tuple[float, float, float]:
    """Size of a difference beyond noise, the noise, and the difference in standard errors.

    It is the difference of two groups of networks, or of two extrapolations ``2 f - f'`` of
    independent groups; a single group is of paired differences.
    """
    terms = weighted(first, 1.0) + ([] if second is None else weighted(second, -1.0))
    mean = sum((c * group.mean(0) for c, group in terms), torch.zeros(()))
    error = sum(((c * stderr(group)).square() for c, group in terms), torch.zeros(())).sqrt()
    later = error > 1e-9
    size = math.sqrt(max(0.0, float(squared_size(mean, error))))
    return size, rms(error), rms(mean[later] / error[later])


def weighted(group: Tensor | Pair, sign: float) -> list[tuple[float, Tensor]]:
    """The terms of a group, or of an extrapolation, in a sum: factors and groups."""
    if isinstance(group, Tensor):
        return [(sign, group)]
    return [(2 * sign, group[0]), (-sign, group[1])]


def initialisation(x: Tensor, n: int, count: int) -> str:
    """Fitted exponents of the mean-square errors of untrained networks in depth and width."""
    depths = (4, 8, 16, 32)
    L = 8
    widths = [max(4, n // 4), max(8, n // 2), n, 2 * n]
    rows: dict[str, list[str]] = {}
    for name in ("relu", "tanh"):
        h, g = zip(
            *(errors_in_depth(x, name, n, seed, depths) for seed in range(count)), strict=True
        )
        for what, squares in (("`h_L`", torch.stack(h)), ("`g_0`", torch.stack(g))):
            power = interval(lambda r: log_slope(depths, r.mean(0)), squares)
            rows.setdefault(f"{what}, depths {', '.join(map(str, depths))}", []).append(str(power))
        squares = torch.stack(
            [errors_in_width(x, name, L, seed, widths) for seed in range(4 * count)]
        )
        for k, what in enumerate(("`h_L.h_L / n`", "`g_0.g_0 / n`")):
            power = interval(lambda r: log_slope(widths, r.mean(0)), squares[:, k])
            rows.setdefault(f"{what}, widths {', '.join(map(str, widths))}", []).append(str(power))
    return table(["mean square of", "relu", "tanh"], rows)


def table(head: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """A table of Markdown, its rows by their first cell."""
    lines = [head, ["---"] * len(head), *([name, *cells] for name, cells in rows.items())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def errors_in_width(
    x: Tensor, name: Activation, L: int, seed: int, widths: Sequence[int]
) -> Tensor:
    """Mean squares [2, widths] of what ``h_L.h_L / n`` and ``g_0.g_0 / n`` lack to their limits.

    The limits are those of the same depth.
    """
    C, P = moments(x, name, L)
    errors = []
    for n in widths:
        net = ResNet(x.shape[1], 1, n, L, activation=name, seed=seed, dtype=torch.float64)
        streams = flows(net, x.double())
        h = streams.h[-1]
        g = streams.delta[0]
        errors.append(
            torch.stack([(h @ h.T / n - C).square().mean(), (g @ g.T / n - P).square().mean()])
        )
    return torch.stack(errors, 1)


def moments(x: Tensor, name: Activation, L: int) -> tuple[Tensor, Tensor]:
    """``C_L`` and ``P_0 = prod (1 + tau E[phi' phibar'])`` of networks of depth L."""
    act = activation(name)
    tau = 1.0 / L
    P = torch.ones(len(x), len(x), dtype=torch.float64)
    C = x.double() @ x.double().T / x.shape[1]
    for level in range(L):
        a = C.diagonal()
        P = P * (1 + tau * act.slope_moment(a[:, None], a[None], C))
        C = kernel(x.double(), activation=name, horizon=tau * (level + 1), depth=level + 1)
    return C, P


def convergence(x: Tensor, y: Tensor, width: int, count: int) -> str:
    """Fitted exponents in width and depth for both kinds of feedback."""
    depth = 8
    depths = (2, 4, 8, 16, 32)
    widths = [max(4, width // k) for k in (64, 32, 16, 8)]
    rows: dict[str, list[str]] = {}
    for feedback in FEEDBACKS:
        limit = networks(x, y, depth, width, count, feedback, "deferred", seed=2)
        runs = torch.stack(
            [networks(x, y, depth, n, count, feedback, "dense", seed=3) for n in widths], 1
        )
        wide = [
            networks(x, y, L, width, count, feedback, "deferred", seed=2, coupled=True)
            for L in depths
        ]
        apart = torch.stack([w - (2 * wide[-1] - wide[-2]) for w in wide[:-2]], 1)
        by_width = interval(
            lambda r, m: log_slope(widths, squared_distances(r, m).clamp_min(1e-12).sqrt()),
            runs,
            limit,
        )
        by_depth = interval(lambda r: log_slope(depths[:-2], systematic(r)), apart)
        rows.setdefault(f"widths {', '.join(map(str, widths))}", []).append(str(by_width))
        rows.setdefault(f"depths {', '.join(map(str, depths[:-2]))}", []).append(str(by_depth))
    return table(["RMS error against", *FEEDBACKS], rows)


def commutation(x: Tensor, y: Tensor, width: int, count: int, many: int) -> str:
    """Compare mean outputs extrapolated by width first, by depth first, and jointly."""
    n = max(8, width // 32)
    L = 8
    lines = ["| feedback | depth first - width first | joint - width first |", "|---|---|---|"]
    for feedback in FEEDBACKS:

        def at(
            width: int,
            depth: int,
            runs: int,
            weights: Literal["dense", "deferred"],
            seed: int,
            feedback: Feedback = feedback,
        ) -> Tensor:
            return networks(x, y, depth, width, runs, feedback, weights, seed=seed)

        wide = (at(width, 2 * L, count, "deferred", 6), at(width, L, count, "deferred", 7))
        deep = (at(2 * n, 8 * L, many, "dense", 8), at(n, 8 * L, many, "dense", 9))
        both = (at(4 * n, 4 * L, many, "dense", 10), at(2 * n, 2 * L, many, "dense", 11))
        cells = [
            "{:.4f} ({:.4f}), {:.1f}".format(*difference(wide, other)) for other in (deep, both)
        ]
        lines.append(f"| {feedback} | " + " | ".join(cells) + " |")
    sizes = (
        f"Extrapolated from n = {width}, L = {L} and {2 * L} (width first); L = {8 * L}, n = {n} "
        f"and {2 * n} (depth first); (n, L) = ({2 * n}, {2 * L}) and ({4 * n}, {4 * L}) (jointly)."
    )
    return "\n".join([*lines, "", sizes])


if __name__ == "__main__":
    main(PAGE)
