"""Other people's published numbers beside ours: how far CompleteP's toy moves, and mup's coordinate check.

    python -m benchmarks.against_others                      # our toy, which needs this library alone
    python -m benchmarks.against_others --completep DIR      # DIR: param_diff_05.npy and param_diff_1.npy
    PYTHONPATH=.:FOLDER_OF_MUP python -m benchmarks.against_others --mup

Each fills its table of docs/against-others.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import nfd
from benchmarks.measure import Row
from benchmarks.show import fill_page, markdown
from nfd.core.errors import RuleName
from nfd.core.estimates import Interval, mean
from nfd.data import digits

PAGE = Path(__file__).parents[1] / "docs/against-others.md"
TOY_WIDTH, TOY_DEPTHS, TOY_SEEDS = 256, (2, 4, 8, 16, 32, 64, 128), 8
TOY_RATE, TOY_EPSILONS = 1e-4, (1e-8, 3e-5)
THEORY: dict[RuleName, tuple[str, float]] = {"depth-mup": ("1/sqrt(L)", -0.5), "complete-p": ("1/L", 0.0)}
MUP_WIDTHS, MUP_STEPS, MUP_SEEDS = (64, 128, 256, 512, 1024), 4, 5
MUP_RATES = {"sgd": 0.1, "adam": 1e-3}
MUP_LAYERS = {"0.0": "first", "1.0": "second", "2.0": "third", "3": "logits"}


def slopes(sizes: Sequence[float], values: Tensor) -> Interval:
    """Of ``[seeds, sizes]``: the power of the size, a slope for every seed, and their mean."""
    x = torch.tensor(sizes, dtype=torch.float64).log()
    x = x - x.mean()
    return mean((values.double().log() * x).sum(1) / x.square().sum())


def first_batch(rows: int = 128) -> tuple[Tensor, Tensor]:
    """Digits and their classes."""
    data = digits()
    return data.inputs[:rows].float(), data.labels[:rows]


# ---- CompleteP: how far one inner weight moves in a step, by depth ----------------------------------------------


class Toy(nn.Module):
    """The residual toy of CompleteP's notebook and its start: two-layer relu branches without biases, on digits."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()

        def branch() -> nn.Module:
            first, second = (nn.Linear(width, width, bias=False) for _ in range(2))
            return nn.Sequential(nn.ReLU(), first, nn.ReLU(), second)

        self.read_in = nn.Linear(64, width, bias=False)
        self.blocks = nn.ModuleList(branch() for _ in range(depth))
        self.readout = nn.Linear(width, 10, bias=False)
        for weight in self.parameters():
            nn.init.normal_(weight, std=math.sqrt(2 / width))
        nn.init.normal_(self.read_in.weight, std=1 / math.sqrt(64))
        nn.init.normal_(self.readout.weight, std=1 / width)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        h = self.read_in(x)
        for block in self.blocks:
            h = h + block(h)
        logits: Tensor = self.readout(h)
        return logits


def moved(rule: RuleName, depth: int, seed: int, epsilon: float) -> float:
    """How far the first weight of the second branch moves in one step of Adam."""
    model, (x, y) = Toy(TOY_WIDTH, depth), first_batch()
    plan = nfd.plan(model, rule=rule, make_model=Toy, base=(TOY_WIDTH, TOY_DEPTHS[0]), optimizer="adam", sample=x)
    plan.apply_(model, seed)
    optimizer = plan.make_optimizer(model, lr=TOY_RATE, eps=epsilon)
    weight = model.get_parameter("blocks.1.1.weight")
    start = weight.detach().clone()
    torch.autograd.backward(nn.functional.cross_entropy(model(x), y))
    optimizer.step()
    return float((weight.detach() - start).norm())


def shown(rule: RuleName, depths: Sequence[int], epsilon: float, values: Tensor) -> Row:
    """A row of the tables of the toy, of movements ``[seeds, depths]``."""
    name, power = THEORY[rule]
    return {
        "multiplier of branches": f"{name} (`{rule}`)",
        "depths": f"{depths[0]} to {depths[-1]:,}",
        "seeds": len(values),
        "epsilon": f"{epsilon:.0e}",
        "power of depth": str(slopes(depths, values)),
        "theory": f"{power:+.1f}",
    }


def toy() -> list[Row]:
    """Exponents of the planned toy, with PyTorch's epsilon and with one that is a quarter of the typical gradient."""
    return [
        shown(rule, TOY_DEPTHS, epsilon, torch.tensor(
            [[moved(rule, L, seed, epsilon) for L in TOY_DEPTHS] for seed in range(TOY_SEEDS)]))
        for epsilon in TOY_EPSILONS
        for rule in THEORY
    ]  # fmt: skip


def completep(folder: Path) -> list[Row]:
    """Exponents of the published arrays ``[seeds, depths]``, from all depths and from 16 on."""
    depths = [2**k for k in range(1, 13)]
    arrays = {rule: torch.from_numpy(np.load(folder / f"param_diff_{name}.npy"))
              for rule, name in zip(THEORY, ("05", "1"), strict=True)}  # fmt: skip
    return [shown(rule, depths[k:], 1e-8, values[:, k:]) for rule, values in arrays.items() for k in (0, 3)]


# ---- mup: its own coordinate check on its own model and on ours ---------------------------------------------------


def perceptron(width: int, readout: Callable[..., nn.Module] = nn.Linear) -> nn.Module:
    """Three hidden layers of relu on digits."""
    hidden = [nn.Sequential(nn.Linear(width, width, bias=False), nn.ReLU()) for _ in range(2)]
    first = nn.Sequential(nn.Linear(64, width, bias=False), nn.ReLU())
    return nn.Sequential(first, *hidden, readout(width, 10, bias=False))


def by_mup(width: int, optimizer: str, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A network that mup parametrises, and mup's optimizer."""
    import mup  # type: ignore[import-not-found,unused-ignore]

    torch.manual_seed(seed)
    base, delta, model = (perceptron(n, mup.MuReadout) for n in (MUP_WIDTHS[0], 2 * MUP_WIDTHS[0], width))
    mup.set_base_shapes(model, base, delta=delta)
    make = {"sgd": mup.MuSGD, "adam": mup.MuAdam}[optimizer]
    return model, make(model.parameters(), lr=MUP_RATES[optimizer])


def by_plan(width: int, optimizer: str, seed: int, rule: RuleName = "mup") -> tuple[nn.Module, torch.optim.Optimizer]:
    """The plain network under a plan of ours."""
    model = perceptron(width)
    plan = nfd.plan(
        model, rule=rule, make_model=lambda width, depth: perceptron(width), base=(MUP_WIDTHS[0], None),
        optimizer=optimizer, sample=first_batch()[0],
    )  # fmt: skip
    plan.apply_(model, seed)
    return model, plan.make_optimizer(model, lr=MUP_RATES[optimizer])


Make = Callable[[int, str, int], tuple[nn.Module, torch.optim.Optimizer]]


def coordinates(make: Make, optimizer: str) -> dict[tuple[str, int], Interval]:
    """Powers of the width of the mean absolute output of every layer and step, by mup's check: step 1 is the start."""
    from mup.coord_check import _get_coord_data  # type: ignore[import-not-found,unused-ignore]

    tables = []
    for seed in range(MUP_SEEDS):
        made = {width: make(width, optimizer, seed) for width in MUP_WIDTHS}
        optimizers = dict(made.values())
        models = {width: (lambda model=model: model) for width, (model, _) in made.items()}
        data = _get_coord_data(models, [first_batch()], optimizers.__getitem__, nsteps=MUP_STEPS, cuda=False)
        tables.append(data.pivot_table(index=["module", "t"], columns="width", values="l1"))
    places = [(layer, step) for layer, step in tables[0].index if layer in MUP_LAYERS]
    return {
        place: slopes(MUP_WIDTHS, torch.tensor(np.stack([table.loc[place, list(MUP_WIDTHS)] for table in tables])))
        for place in places
    }


def overlap(one: Interval, other: Interval) -> bool:
    """Whether two intervals do."""
    return one.low <= other.high and other.low <= one.high


def against_mup() -> str:
    """Row by row: the same check on mup's network, on ours, and on an unplanned one; and how many rows agree."""
    rows, agree = list[Row](), list[tuple[bool, bool]]()
    for optimizer in MUP_RATES:
        theirs, ours, neither = (
            coordinates(make, optimizer) for make in (by_mup, by_plan, partial(by_plan, rule="standard"))
        )
        for (layer, step), power in theirs.items():
            agree.append((overlap(power, ours[layer, step]), overlap(power, neither[layer, step])))
            rows.append({
                "optimizer": optimizer, "layer": MUP_LAYERS[layer], "step": step, "mup": str(power),
                "our plan": str(ours[layer, step]), "neither": str(neither[layer, step]),
                "mup and our plan overlap": "yes" if agree[-1][0] else "no",
            })  # fmt: skip
    planned, unplanned = (sum(column) for column in zip(*agree, strict=True))
    return (
        f"{markdown(rows)}\n\nOf {len(rows)} rows, {planned} of our plan have intervals that overlap with those of "
        f"mup, and {unplanned} of the unplanned network."
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--completep", type=Path, help="a folder with CompleteP's arrays")
    parser.add_argument("--mup", action="store_true", help="mup is installed")
    given = parser.parse_args()
    made = {"toy": markdown(toy())}
    if given.completep:
        made["completep"] = markdown(completep(given.completep))
    if given.mup:
        made["mup"] = against_mup()
    fill_page(PAGE, made)
