"""Other people's published numbers beside ours: CompleteP, mup, neural-tangents, rate curves, losses, the pi-limit.

python examples/against_others.py --out docs                      # the numbers that need this library alone
python examples/against_others.py --out docs --completep DIR      # DIR: param_diff_05.npy and param_diff_1.npy
python examples/against_others.py --out docs --neural-tangents out/neural-tangents/bin/python
PYTHONPATH=FOLDER_OF_MUP python examples/against_others.py --out docs --mup

What is measured goes into against-others.json; parts that are left out keep the numbers of docs.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import against_others_page
import numpy as np
import torch
from torch import Tensor, nn

import nfd
from nfd.core.estimates import Interval, mean
from nfd.core.files import prepare_directory, write_json
from nfd.data import digits

Row = dict[str, Any]

NUMBERS = "against-others.json"
PUBLISHED = json.loads((Path(__file__).parent / "against_others.json").read_text())
DOCS = Path(__file__).parents[1] / "docs"
TANGENTS = Path(__file__).parents[1] / "benchmarks" / "tangents.py"
TOY_WIDTH, TOY_DEPTHS, TOY_SEEDS = 256, (2, 4, 8, 16, 32, 64, 128), 8
TOY_RATE, TOY_EPSILONS = 1e-4, (1e-8, 3e-5)
MUP_WIDTHS, MUP_STEPS, MUP_SEEDS = (64, 128, 256, 512, 1024), 4, 5
MUP_RATES = {"sgd": 0.1, "adam": 1e-3}
MUP_LAYERS = {"0.0": "first", "1.0": "second", "2.0": "third", "3": "logits"}
KERNEL_INPUTS, KERNEL_DEPTHS = 200, (4, 64, 256)


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
        return self.readout(h)


def moved(rule: str, depth: int, seed: int, epsilon: float) -> float:
    """How far the first weight of the second branch moves in one step of Adam."""
    model, (x, y) = Toy(TOY_WIDTH, depth), first_batch()
    plan = nfd.plan(model, rule=rule, make_model=Toy, base=(TOY_WIDTH, TOY_DEPTHS[0]), optimizer="adam", sample=x)
    plan.apply_(model, seed)
    optimizer = plan.make_optimizer(model, lr=TOY_RATE, eps=epsilon)
    weight = model.get_submodule("blocks.1.1").weight
    start = weight.detach().clone()
    torch.autograd.backward(nn.functional.cross_entropy(model(x), y))
    optimizer.step()
    return float((weight.detach() - start).norm())


def toy() -> list[Row]:
    """Exponents of the planned toy, with PyTorch's epsilon and with one that is a quarter of the typical gradient."""
    rows = []
    for epsilon in TOY_EPSILONS:
        for rule in ("depth-mup", "complete-p"):
            values = [[moved(rule, L, seed, epsilon) for L in TOY_DEPTHS] for seed in range(TOY_SEEDS)]
            about = {"rule": rule, "depths": list(TOY_DEPTHS), "seeds": TOY_SEEDS, "epsilon": epsilon}
            rows.append(about | slopes(TOY_DEPTHS, torch.tensor(values)).limits)
    return rows


def completep(folder: Path) -> list[Row]:
    """Exponents of the published arrays ``[seeds, depths]``, from all depths and from 16 on."""
    depths = [2**k for k in range(1, 13)]
    rows = []
    for rule, name in (("depth-mup", "param_diff_05"), ("complete-p", "param_diff_1")):
        values = torch.from_numpy(np.load(folder / f"{name}.npy"))
        for first in (0, 3):
            of_depths = {"rule": rule, "depths": depths[first:], "seeds": len(values), "epsilon": 1e-8}
            rows.append(of_depths | slopes(depths[first:], values[:, first:]).limits)
    return rows


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


def by_plan(width: int, optimizer: str, seed: int, rule: str = "mup") -> tuple[nn.Module, torch.optim.Optimizer]:
    """The plain network under a plan of ours."""
    model = perceptron(width)
    plan = nfd.plan(
        model, rule=rule, make_model=lambda width, depth: perceptron(width), base=(MUP_WIDTHS[0], None),
        optimizer=optimizer, sample=first_batch()[0],
    )  # fmt: skip
    plan.apply_(model, seed)
    return model, plan.make_optimizer(model, lr=MUP_RATES[optimizer])


Make = Callable[[int, str, int], tuple[nn.Module, torch.optim.Optimizer]]


def coordinates(make: Make, optimizer: str) -> dict[tuple[str, int], Row]:
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
        place: slopes(
            MUP_WIDTHS, torch.tensor(np.stack([table.loc[place, list(MUP_WIDTHS)] for table in tables]))
        ).limits
        for place in places
    }


def against_mup() -> list[Row]:
    """Row by row: the same check on mup's network, on ours, and on an unplanned one."""
    rows = []
    for optimizer in MUP_RATES:
        theirs, ours = coordinates(by_mup, optimizer), coordinates(by_plan, optimizer)
        standard = coordinates(partial(by_plan, rule="standard"), optimizer)
        for (layer, step), power in theirs.items():
            about = {"optimizer": optimizer, "layer": MUP_LAYERS[layer], "step": step}
            rows.append(about | {"theirs": power, "ours": ours[layer, step], "standard": standard[layer, step]})
    return rows


# ---- neural-tangents: kernels entry by entry ----------------------------------------------------------------------


def kernels(python: Path) -> list[Row]:
    """The largest difference of an entry, relative to the diagonal, of the kernels at several depths."""
    x = digits().inputs[:KERNEL_INPUTS].double().numpy()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder, "x.npy"), Path(folder, "out.npz")
        np.save(given, x)
        for kind in ("nngp", "ntk"):
            for depth in KERNEL_DEPTHS:
                subprocess.run([python, TANGENTS, given, str(depth), kind, out], check=True)
                theirs, ours = np.load(out)["gram"], nfd.kernel(x, kind=kind, depth=depth)
                size = np.sqrt(np.outer(ours.diagonal(), ours.diagonal()))
                rows.append({"kind": kind, "depth": depth, "difference": float(np.abs((theirs - ours) / size).max())})
    return rows


# ---- published curves: our fitters on other people's losses -------------------------------------------------------


def optima() -> list[Row]:
    """The best rate of published curves, by ``nfd.fit_transfer``."""
    rows = []
    for curve in PUBLISHED["curves"]:
        runs = [{"width": 1, "lr": lr, "loss": loss} for lr, loss in zip(curve["lr"], curve["loss"], strict=True)]
        ours = nfd.fit_transfer(runs).best("logged", 1, 1).value
        rows.append({"name": curve["name"], "theirs": curve["best"], "ours": ours, "source": curve["source"]})
    return rows


def drifts() -> list[Row]:
    """The drift of published best rates with width, in doublings per doubling."""
    widths, rows = PUBLISHED["drifts"]["width"], []
    for rule, rates in PUBLISHED["drifts"]["rates"].items():
        x, y = np.log2(widths), np.log2(rates)
        rows.append({"rule": rule, "rates": rates, "widths": widths, "slope": float(np.polyfit(x, y, 1)[0])})
    return rows


def laws() -> list[Row]:
    """The last of a series of published losses, predicted by the law of those before it."""
    rows = []
    for series in PUBLISHED["losses"]:
        runs = [{"tokens": n, "loss": loss} for n, loss in zip(series["tokens"], series["loss"], strict=True)]
        held = nfd.fit_scaling_law(runs).held_out
        about = {"name": series["name"], "source": series["source"], "tokens": series["tokens"][-1]}
        rows.append(about | {"theirs": held.measured.value} | held.predicted.limits)
    return rows


# ---- the whole ----------------------------------------------------------------------------------------------------


def epochs() -> list[Row]:
    """The test errors of the networks of ``epochs.py``, in percent."""
    with (DOCS / "epochs.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    limits = {"value": "test_error", "low": "test_error_low", "high": "test_error_high"}
    return [
        {"name": f"width {int(row['width']):,}, {row['weights']} weights"}
        | {name: float(row[column]) for name, column in limits.items()}
        for row in rows
    ]


def main(out: Path, parts: dict[str, Callable[[], list[Row]]]) -> None:
    """Measure the parts and write the page of all that is known."""
    path = prepare_directory(out) / NUMBERS
    known = json.loads((path if path.exists() else DOCS / NUMBERS).read_text())
    for name, measure in parts.items():
        known[name] = measure()
        write_json(path, known)
        print(f"{name}: measured", flush=True)
    against_others_page.write(out, known, PUBLISHED)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/against-others"))
    parser.add_argument("--completep", type=Path, help="a folder with CompleteP's arrays")
    parser.add_argument("--neural-tangents", type=Path, help="a Python that has neural-tangents")
    parser.add_argument("--mup", action="store_true", help="mup is installed")
    a = parser.parse_args()
    chosen: dict[str, Callable[[], list[Row]]] = {
        "toy": toy,
        "optima": optima,
        "drifts": drifts,
        "laws": laws,
        "epochs": epochs,
    }
    if a.completep:
        chosen["completep"] = lambda: completep(a.completep)
    if a.mup:
        chosen["mup"] = against_mup
    if a.neural_tangents:
        chosen["kernels"] = lambda: kernels(a.neural_tangents)
    main(a.out, chosen)
