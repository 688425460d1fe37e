"""The limit of feature learning trained for epochs, beside networks of real width and the kernels, as a page.

python examples/epochs.py --data-dir DIR                      # CIFAR-10, images in class folders: an hour on one core
python examples/epochs.py --size small --page out/epochs-small   # digits, seconds

Writes epochs.md with its charts, and epochs.csv. Networks are kept in out/epochs: start again, and it goes on.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from epochs_page import Answers, Row, write
from torch import Tensor

import nfd
from nfd.core.statistics import Interval, mean, share
from nfd.data.dataset import Dataset
from nfd.limits.loss import LimitLosses, limit_losses
from nfd.runs.records import dataset_of
from nfd.runs.settings import RunConfig
from nfd.store.rows import Record

OUT = "out/epochs"
METRICS = ("test_error", "test_loss", "train_loss")  # train_loss: the mean over the last tenth of the steps
RIDGES = [10.0**k for k in range(-4, 3)]  # over the mean eigenvalue of the kernel
FIRST_ORDER = 2.0  # a bias of this order in the resolution is this times what halving changes; a higher order, less


@dataclass(frozen=True)
class Size:
    """What is trained, and on how much.

    Attributes:
        shared: settings of every run. passes: over the training images.
        validation: images that choose rates and ridges. dense, structured: numbers of networks by width.
        halved: width and number of networks whose resolution is halved.
        tuned: width at which the rate is chosen. rates: eta_c / (1 - momentum) that it is chosen from.
        wide: structured width that the limit is extrapolated from, with a quarter of it.
    """

    shared: Mapping[str, Any]
    passes: int
    validation: int
    dense: Mapping[int, int]
    structured: Mapping[int, int]
    resolution: float
    halved: tuple[int, int]
    tuned: int
    rates: Sequence[float]
    wide: int
    momenta: Sequence[float] = (0.0, 0.9)

    def runs(self, **settings: Any) -> list[RunConfig]:
        """A grid of runs."""
        steps = self.passes * (self.shared["train"] // self.shared["batch"])
        return nfd.grid(**{**self.shared, "steps": steps, **settings})

    def networks(
        self, weights: str, rate: Mapping[str, float], **settings: Any
    ) -> dict[tuple[str, int], list[RunConfig]]:
        """Those with dense or structured weights, by weights and width."""
        counts = self.dense if weights == "dense" else self.structured
        return {
            (weights, width): self.runs(weights=weights, width=width, seed=list(range(count)), **rate, **settings)
            for width, count in counts.items()
        }


SIZES = {
    "full": Size(
        {"data": "images", "train": 2000, "batch": 50, "depth": 4},
        passes=10,
        validation=2000,
        dense={64: 6, 128: 6, 256: 6, 512: 4, 1024: 4, 2048: 3},
        structured={1024: 4, 2048: 4, 4096: 3, 8192: 3},
        resolution=0.3,
        halved=(2048, 3),
        tuned=256,
        rates=(0.125, 0.25, 0.35, 0.5, 0.7, 1.0),
        wide=8192,
    ),
    "small": Size(
        {"data": "digits", "train": 100, "batch": 20, "depth": 2},
        passes=2,
        validation=100,
        dense={8: 2, 16: 2},
        structured={16: 2, 64: 2},
        resolution=0.2,
        halved=(16, 2),
        tuned=8,
        rates=(0.5, 1.0),
        wide=64,
    ),
}


def chosen_rate(size: Size, sweep: nfd.Sweep) -> tuple[dict[str, float], list[Row]]:
    """The rate and the momentum of the least error on validation images, and that error of each."""
    choices = [{"momentum": m, "eta_c": round(rate * (1 - m), 6)} for m in size.momenta for rate in size.rates]
    plans = {
        k: size.runs(width=size.tuned, seed=[0, 1, 2], validation=size.validation, **choice)
        for k, choice in enumerate(choices)
    }
    errors = {k: mean(metric(records, "test_error")) for k, records in sweep.run_all(plans, "rates").items()}
    best = min(errors, key=lambda k: errors[k].value)
    return choices[best], [{**choices[k], **error.limits} for k, error in errors.items()]


def metric(records: Sequence[Record], name: str) -> Tensor:
    """A number of every run, ``[R]``; errors in percent."""
    if name == "test_error":
        return torch.tensor([100 * (1 - record.metrics["test_accuracy"]) for record in records], dtype=torch.float64)
    return torch.tensor([record.metrics[name] for record in records], dtype=torch.float64)


def metrics(records: Sequence[Record]) -> Tensor:
    """``[R, metrics]``."""
    return torch.stack([metric(records, name) for name in METRICS], 1)


def limit_of(wide: Sequence[Record], narrow: Sequence[Record], ratio: float) -> LimitLosses:
    """The metrics of the infinitely wide network, by ``a + b / n``."""
    return limit_losses(lambda samples: samples, metrics(wide), metrics(narrow), ratio)


def paired(first: Sequence[Record], second: Sequence[Record]) -> list[Interval]:
    """Differences of the metrics between runs of the same seeds, second minus first."""
    count = min(len(first), len(second))
    return [mean(values) for values in (metrics(second[:count]) - metrics(first[:count])).unbind(1)]


def kernel_error(fitted: Dataset, tested: Dataset, kind: str, depth: float) -> tuple[float, Interval]:
    """The ridge that is best on the validation images of ``fitted``, and the test error in percent at it."""
    x = fitted.inputs.double()
    targets = torch.nn.functional.one_hot(fitted.labels).double()
    values, vectors = torch.linalg.eigh(nfd.kernel(x, kind=kind, depth=depth))
    coordinates = vectors.T @ (targets - targets.mean(0))

    def wrong(data: Dataset, ridges: Sequence[float]) -> list[int]:
        answers = nfd.kernel(data.test_inputs.double(), x, kind=kind, depth=depth) @ vectors
        outputs = (answers @ (coordinates / (values + ridge * values.mean())[:, None]) for ridge in ridges)
        return [int((output.argmax(1) != data.test_labels).sum()) for output in outputs]

    counts = wrong(fitted, RIDGES)
    ridge = RIDGES[counts.index(min(counts))]
    return ridge, share(wrong(tested, [ridge])[0], len(tested.test_labels)).scaled(100)


def kernels(size: Size) -> list[Row]:
    """Errors of regression with the kernels of this depth and of infinite depth."""
    (judged,), (validated,) = size.runs(), size.runs(validation=size.validation)
    fitted, tested = dataset_of(validated), dataset_of(judged)
    rows = []
    for kind in ("nngp", "ntk"):
        for depth in (size.shared["depth"], math.inf):
            ridge, error = kernel_error(fitted, tested, kind, depth)
            rows.append({"kernel": kind, "depth": depth, "ridge": ridge, **error.limits})
    return rows


def answers(size: Size, sweep: nfd.Sweep) -> Answers:
    """Train what is missing, narrow networks first, and put together what the page says."""
    rate, tried = chosen_rate(size, sweep)
    coarse, fine = ({"resolution": size.resolution * factor} for factor in (1.0, 0.5))
    width, count = size.halved
    halved = size.runs(weights="structured", width=width, seed=list(range(count)), **rate, **fine)
    trained = sweep.run_all(size.networks("dense", rate), "dense widths")
    for key, runs in size.networks("structured", rate, **coarse).items():
        trained |= sweep.run_all({key: runs}, f"structured, width {key[1]}")
    finer = sweep.run_all({"halved": halved}, "half the resolution")["halved"]
    rows = [
        {
            "weights": weights,
            "width": n,
            "networks": len(records),
        }
        | {"directions": float(torch.tensor([r.metrics.get("directions", math.nan) for r in records]).mean())}
        | {name: mean(metric(records, name)) for name in METRICS}
        for (weights, n), records in trained.items()
    ]
    both = sorted(set(size.dense) & set(size.structured))
    apart = {(n, size.resolution): paired(trained["dense", n], trained["structured", n]) for n in both}
    apart |= {(width, size.resolution / 2): paired(trained["dense", width], finer)} if width in both else {}
    curves = {key: losses_of(sweep, records) for key, records in trained.items()}
    return Answers(
        settings={**size.shared, **rate, "passes": size.passes, "validation": size.validation, "tuned": size.tuned}
        | {"resolution": size.resolution, "halved": width, **about_data(size)},
        rates=tried,
        networks=rows,
        apart=apart,
        limit=limit_of(trained["structured", size.wide], trained["structured", size.wide // 4], 4.0),
        wide=size.wide,
        halving=[change.scaled(FIRST_ORDER) for change in paired(finer, trained["structured", width])],
        kernels=kernels(size),
        curves=curves,
        metrics=METRICS,
    )


def losses_of(sweep: nfd.Sweep, records: Sequence[Record]) -> Tensor:
    """The training losses before every step, ``[networks, steps]``."""
    return torch.stack([sweep.store.curves(record.key)["loss"] for record in records]).double()


def about_data(size: Size) -> dict[str, Any]:
    """What the data are called, and how many test images there are."""
    dataset = dataset_of(size.runs()[0])
    jpeg = "CIFAR-10, all 60,000 images recompressed as JPEG, not the official files"
    return {"data": jpeg if size.shared["data"] == "images" else dataset.title, "tests": len(dataset.test)}


def main() -> None:
    """Train, answer and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--data-dir", help="CIFAR-10 as images in class folders")
    parser.add_argument("--out", default=OUT, help="where networks and charts are kept")
    parser.add_argument("--page", type=Path, default=Path("docs"), help="where epochs.md and epochs.csv are written")
    given = parser.parse_args()
    size = SIZES[given.size]
    if given.data_dir is not None:
        size = replace(size, shared={**size.shared, "data_dir": given.data_dir})
    with nfd.Sweep(given.out, progress=True) as sweep:
        write(answers(size, sweep), Path(given.out), given.page)


if __name__ == "__main__":
    main()
