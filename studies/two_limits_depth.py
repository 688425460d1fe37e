"""Measure as which power of the depth L the standard network parts from the decoupled one.

The answer and the table of sizes are on docs/two-limits.md.

Later versions of the paper say that the coupling of both passes adds up to nothing as L grows, so
that both networks differ by O(1/L) at most. We derive a difference of order one. Which is it?

Setting: ``nfd.ResNet`` with ``feedback="shared"`` and ``"independent"``, both from the same
weights, learn digits one at a time by SGD, +1 for even and -1 for odd ones. The rate is 1 / (6
C_T): one decoupled step goes a third of the way to the target of an input of ``|x|^2 = d``. Looked
at are outputs on 64 other digits after 1, 5 and 40 steps: the RMS over them of the mean over seeds
of (standard - decoupled), noise subtracted, and its power of L by least squares in logarithms, its
interval by the jackknife over seeds. The main case, relu at T = 1, has depths 4 to 512 and width
256; five activations at T = .5, 1 and 2, and cross-entropy of ten classes, have depths 4, 16, 64,
256 and width 128.

Written down before the main runs, after a pilot of eight seeds at depths 4, 16, 64 (relu at T = 1,
the identity at T = 2) that found sizes and times, and powers of -0.08 to +0.30. The paper's power
is -1 or below, ours 0; small depths add a positive part, as ``1 / (1 + T/(2L))`` grows. Of a power
with its 95 % interval is said

- "vanishes", as the paper has it, where the interval lies below -1/2;
- "stays", as we have it, where it lies above -1/2; else "undecided".

The first small step has a closed form at infinite width; its power stands beside. Coupling per
layer (relu, T = 1): the initial ``W_l`` multiplies the change of ``phi(h_(l-1))`` by one step that
lowers f. The part of the product along ``g_l`` is, over the rate, tau s D by us and tau^2 s m by
Appendix F.

Run: ``python -m studies.two_limits_depth`` takes half an hour on one core, resumes, writes
``studies/two_limits_depth.json`` and fills the page.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from makers.tables import fill_page
from nfd import SGD, ResNet, kernel
from nfd.core import Activation, interval, intervals, log_slope
from nfd.core.files import write_text
from nfd.data import digits
from nfd.paper.two_limits import systematic
from studies.two_limits import FEEDBACKS, table

PAGE = Path(__file__).parents[1] / "docs/two-limits.md"
NUMBERS = Path(__file__).with_suffix(".json")
STORE = Path("build/two-limits-depth")
LOOKS = (1, 5, 40)
PROBES = 64
SEEDS = 16


@dataclass(frozen=True)
class Case:
    """What is trained, and at which sizes."""

    activation: Activation = "relu"
    horizon: float = 1.0
    outputs: int = 1
    depths: tuple[int, ...] = (4, 16, 64, 256)
    width: int = 128

    @property
    def name(self) -> str:
        loss = ", cross-entropy" if self.outputs > 1 else ""
        return f"{self.activation}, {self.horizon:g}{loss}"

    @property
    def eta_c(self) -> float:
        ones = torch.ones(1, 4, dtype=torch.float64)
        return 1 / (3 * float(self.kernel(ones, "independent-feedback")))

    def kernel(self, x: Tensor, kind: Any, depth: float = math.inf) -> Tensor:
        """What a small step moves at infinite width."""
        return cast(
            "Tensor",
            kernel(x, kind=kind, activation=self.activation, horizon=self.horizon, depth=depth),
        )

    def network(self, L: int, **settings: Any) -> ResNet:
        return ResNet(
            64,
            self.outputs,
            self.width,
            L,
            horizon=self.horizon,
            activation=self.activation,
            **settings,
        )

    def loss(self, f: Tensor, label: Tensor) -> Tensor:
        if self.outputs > 1:
            return cross_entropy(f, label)
        return (f[:, 0] - torch.where(label % 2 == 0, 1.0, -1.0)).square().sum() / 2


MAIN = Case(depths=(4, 8, 16, 32, 64, 128, 256, 512), width=256)
_NAMES: tuple[Activation, ...] = ("relu", "gelu", "tanh", "erf", "identity")
GRID = (*(Case(*case) for case in product(_NAMES, (0.5, 1.0, 2.0))), Case(outputs=10))


def exact(case: Case) -> Tensor:
    """The RMS [depths] of the difference after one small step at infinite width."""
    x = digits().inputs.double()[[0, *range(LOOKS[-1], LOOKS[-1] + PROBES)]]
    sizes = list[Tensor]()
    for L in case.depths:
        gap = case.kernel(x, "ntk", L) - case.kernel(x, "independent-feedback", L)
        sizes.append(gap[0, 1:].square().mean().sqrt())
    return case.eta_c * torch.stack(sizes)


def apart(case: Case, seed: int) -> Tensor:
    """Standard minus decoupled [depths, looks, probes * outputs]."""
    differences = list[Tensor]()
    for L in case.depths:
        standard, decoupled = (
            changes(case, case.network(L, feedback=kind, seed=seed)) for kind in FEEDBACKS
        )
        differences.append(standard - decoupled)
    return torch.stack(differences)


def changes(case: Case, net: ResNet) -> Tensor:
    """Changes of the outputs on other digits [looks, probes * outputs]."""
    data = digits()
    steps = LOOKS[-1]
    x = data.inputs.float()
    label = data.labels
    probe = data.inputs[steps : steps + PROBES].float()
    optimizer = SGD(net.param_groups(case.eta_c))
    seen = []
    with torch.no_grad():
        start = net(probe)
    for k in range(steps):
        optimizer.zero_grad()
        torch.autograd.backward(case.loss(net(x[k : k + 1]), label[k : k + 1]))
        optimizer.step()
        if k + 1 in LOOKS:
            with torch.no_grad():
                seen.append((net(probe) - start).flatten().double())
    return torch.stack(seen)


def coupling(case: Case, L: int, seed: int) -> Tensor:
    """The mean over layers of what initial matrices answer along g, over the learning rate.

    It is measured after one step on one digit.
    """
    x = digits().inputs[:1].float()
    rate = 0.01
    net = case.network(L, seed=seed)
    x = x / x.norm() * math.sqrt(x.shape[1])
    start = [cast("Tensor", layer.weight).detach().clone() for layer in net.outer]
    before = net.streams(x)
    torch.autograd.backward(before.outputs.sum())
    h = before.h[:, 0].detach()
    g = before.delta[:, 0]
    SGD(net.param_groups(rate)).step()
    with torch.no_grad():
        moved = torch.relu(net.streams(x).h[:, 0]) - torch.relu(h)
        parts = [
            -(g[k + 1] @ (W @ moved[k])) / g[k + 1].square().sum() for k, W in enumerate(start)
        ]
    return math.sqrt(case.horizon / L / case.width) / rate * torch.stack(parts).mean().double()


def counted(L: int) -> tuple[float, float]:
    """The coupling of relu at T = 1 and infinite width, by us and by Appendix F."""
    tau = 1 / L
    D = 1.0
    ours = 0.0
    theirs = 0.0
    for k in range(L):
        m = (1 + tau / 2) ** k / 2
        ours = ours + tau * D / 2
        theirs = theirs + tau**2 * m / (1 + tau / 2) / 2 * (k > 0)
        D += tau * (m + D / 2)
    return ours / L, theirs / L


def size_and_power(depths: Sequence[int], differences: Tensor) -> dict[str, Any]:
    """The sizes of differences [R, depths, ...], their power of L, and the word for it.

    Noise is subtracted.
    """
    power = interval(lambda r: log_slope(depths, systematic(r)), differences)
    word = "undecided"
    if power.high < -0.5:
        word = "vanishes"
    elif power.low > -0.5:
        word = "stays"
    shown = f"{power.value:+.2f}±{power.high - power.value:.2f}"
    sizes = [size.limits for size in intervals(systematic, differences)]
    return {
        "sizes": [size["value"] for size in sizes],
        "bars": sizes,
        "power": shown,
        "said": word,
    } | power.limits


def formula(depths: Sequence[int], sizes: Tensor) -> dict[str, Any]:
    """Sizes without noise, and their power of L."""
    return {"sizes": sizes.tolist(), "power": f"{log_slope(depths, sizes):+.2f}"}


def stored(name: str, case: Case, measured: Callable[[int], Tensor]) -> Tensor:
    """What is measured of every seed, kept in files."""
    STORE.mkdir(parents=True, exist_ok=True)
    files = [STORE / f"{name}, {case.name}, {case.width}, {seed}.pt" for seed in range(SEEDS)]
    for seed, file in enumerate(files):
        if not file.exists():
            torch.save(measured(seed), file)
    return torch.stack([torch.load(file) for file in files])


def case_numbers(case: Case) -> dict[str, Any]:
    """The powers of a case by the number of steps, and that of the closed form."""
    differences = stored("apart", case, partial(apart, case))
    after = {
        f"step {k}": size_and_power(case.depths, differences[:, :, i]) for i, k in enumerate(LOOKS)
    }
    return {"formula, step 1": formula(case.depths, exact(case))} | after


def tables(numbers: dict[str, Any]) -> dict[str, str]:
    """The answer and the tables of the page."""
    main = numbers["main"]
    cases = numbers["cases"]
    looks = [f"step {k}" for k in LOOKS]
    words = Counter[str]()
    for case in (main, *cases.values()):
        words.update(case[look]["said"] for look in looks if look in case)
    measured = ", ".join(main[look]["power"] for look in looks if look in main)
    answer = (
        f"ReLU, $T = 1$: after 1, 5 and 40 steps the power is {measured}; the paper's is -1 or "
        f"below, ours 0. Of all {words.total()}, {words['stays']} have their interval above -1/2, "
        f"{words['vanishes']} below. What one layer answers has the power "
        f"{main['one layer']['power']}, all layers together {main['all layers']['power']}."
    )
    return {"answer": answer, "depth": by_depth(main)}


def by_depth(rows: dict[str, Any]) -> str:
    """The sizes of differences at some depths, and their powers."""
    shown = (4, 32, 512)
    places = [MAIN.depths.index(L) for L in shown]
    cells = {}
    for name, row in rows.items():
        cells[name] = [*(f"{row['sizes'][place]:.2g}" for place in places), row["power"]]
    return table(["", *(f"L = {L}" for L in shown), "power"], cells)


def main() -> None:
    """Measure, and write what was found."""
    depths = MAIN.depths
    L = torch.tensor(MAIN.depths)

    def couplings(seed: int) -> Tensor:
        return torch.stack([coupling(MAIN, L, seed) for L in depths])

    layer = stored("layers", MAIN, couplings)[:, :, None]
    ours, theirs = torch.tensor([counted(L) for L in depths], dtype=torch.float64).T
    main = case_numbers(MAIN) | {
        "one layer": size_and_power(depths, layer),
        "by us": formula(depths, ours),
        "by Appendix F": formula(depths, theirs),
        "all layers": size_and_power(depths, layer * L[:, None]),
        "all by us": formula(depths, ours * L),
        "all by Appendix F": formula(depths, theirs * L),
    }
    numbers = {"main": main, "cases": {case.name: case_numbers(case) for case in GRID}}
    write_text(NUMBERS, json.dumps(numbers, indent=1) + "\n")
    fill_page(PAGE, tables(numbers))


if __name__ == "__main__":
    main()
