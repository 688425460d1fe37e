"""Capacity: the law of size of a training run, the loss of its infinite network, and what stands between.

The law ``loss(n, L) = floor + a / n + b / L`` is fitted to a sweep (``nfd.sweep.law``). Its floor is found a second
way, by ``nfd.predict``, and it is held to account: a network larger than any in the fit is predicted, then trained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from scipy import stats

from nfd.core.statistics import Interval
from nfd.experiment.runs import dataset_of
from nfd.experiment.settings import CapacityConfig, RunConfig
from nfd.limits.predict import predict
from nfd.store.rows import Record
from nfd.sweep.budget import Shape
from nfd.sweep.grid import grid
from nfd.sweep.law import Law, fit_law
from nfd.sweep.sweep import Sweep

_HELD_OUT_SEEDS = 3
_STABLE_SEEDS = 2
_STEP = math.sqrt(2)  # between learning rates whose stability is tried
_FIRST_RATE, _ROUNDS = 0.5, 10
_OF_SIZE = ("width", "depth", "seed", "horizon")


@dataclass(frozen=True)
class Floor:
    """The loss of the infinite network by ``nfd.predict``, and what limits the answer (``note``)."""

    loss: Interval
    width: int
    replicates: int
    note: str


@dataclass(frozen=True)
class HeldOut:
    """A size outside the fit: what the law said of the mean of so many networks, and what they did."""

    width: int
    depth: int
    networks: int
    predicted: Interval
    measured: Interval

    @property
    def inside(self) -> bool:
        """Whether the measured mean lies in the prediction's 95 % interval."""
        return self.predicted.low <= self.measured.value <= self.predicted.high


@dataclass(frozen=True)
class Stability:
    """The largest learning rate at which every seed trains, and the next one, at which one does not."""

    horizon: float
    stable: float
    unstable: float


@dataclass(frozen=True)
class Capacity:
    """What was found: of ``base`` at its horizon, and at others."""

    base: RunConfig
    shape: Shape
    law: Law
    losses: dict[tuple[int, int], list[float]] = field(repr=False)
    floor: Floor | None = None
    held_out: HeldOut | None = None
    laws: dict[float, Law] = field(default_factory=dict)
    stability: list[Stability] = field(default_factory=list)


def capacity(config: CapacityConfig, sweep: Sweep) -> Capacity:
    """Train what the questions need, and answer them."""
    base = _base(config)
    records = sweep.run(_sizes(config, base, config.widths, config.horizon), "sizes")
    losses = losses_of(records)
    law = fit_law(losses, paired=False, trim=True)
    laws = _laws(config, base, sweep) | {config.horizon: law}
    return Capacity(
        base,
        shape_of(base),
        law,
        losses,
        floor_of(base, config.limit_width, config.replicates, progress=sweep.progress),
        held_out(base, law, config.held_out, sweep),
        dict(sorted(laws.items())),
        [_stability(config, base, horizon, sweep) for horizon in config.horizons],
    )


def from_records(records: Sequence[Record]) -> tuple[RunConfig, dict[tuple[int, int], list[float]], bool]:
    """The run that these records share but for size and seed, their losses by size, and whether seeds are shared.

    Raises:
        ValueError: when they differ in more, naming in what.
    """
    if not records:
        raise ValueError("there are no runs to fit. Name a directory with a sweep, or loosen --where.")
    differ = [
        name
        for name in records[0].config
        if name not in ("width", "depth", "seed") and len({repr(r.config.get(name)) for r in records}) > 1
    ]
    if differ:
        values = {name: sorted({repr(r.config.get(name)) for r in records}) for name in differ}
        said = "; ".join(f"{name} in {', '.join(v[:5])}" for name, v in values.items())
        raise ValueError(f"the runs must differ in width, depth and seed alone; they have {said}. Choose with --where.")
    seeds = [record.config["seed"] for record in records]
    return RunConfig(**records[0].config), losses_of(records), len(set(seeds)) < len(seeds)


def losses_of(records: Sequence[Record]) -> dict[tuple[int, int], list[float]]:
    """Test losses by (width, depth); those of runs that diverged or failed are infinite."""
    found: dict[tuple[int, int], list[float]] = {}
    for record in sorted(records, key=lambda r: int(r.config["seed"])):
        loss = record.metrics.get("test_loss", math.inf)
        found.setdefault((record.config["width"], record.config["depth"]), []).append(loss)
    return found


def shape_of(base: RunConfig) -> Shape:
    """What the networks of this sweep cost."""
    dataset = dataset_of(base)
    return Shape(
        dataset.inputs.shape[1],
        len(dataset.classes),
        2 if base.block == "two-layer" else 1,
        base.steps * base.batch,
        base.batch,
        "adam" if base.optimizer == "adam" else "momentum" if base.momentum else "sgd",
    )


def floor_of(base: RunConfig, width: int, replicates: int, *, progress: bool) -> Floor | None:
    """The loss of the infinite network on the same batches, by ``nfd.predict``; None for no replicates."""
    if replicates < 2 or base.optimizer != "sgd" or base.order != "pre":
        return None
    dataset = dataset_of(base)
    inputs, targets = dataset.batches(base.batch, base.steps, base.data_seed)
    found = predict(
        inputs,
        targets,
        horizon=base.horizon,
        activation=base.activation,
        block=base.block,
        eta_c=base.eta_c,
        momentum=base.momentum,
        classes=len(dataset.classes),
        feedback=base.feedback,
        rule=base.rule,
        width=width,
        replicates=replicates,
        rtol=0.1,
        eval_inputs=dataset.test_inputs,
        eval_targets=dataset.test_labels,
        progress=progress,
    )
    if found.eval_loss is None or found.eval_loss_stderr is None:
        return None
    return Floor(_student(found.eval_loss, found.eval_loss_stderr, replicates - 1), width, replicates, found.note)


def held_out(base: RunConfig, law: Law, size: tuple[int, int] | None, sweep: Sweep) -> HeldOut | None:
    """Predict a size, then train it; None when there is none to try or the law may not be extrapolated."""
    if size is None or not law.good:
        return None
    n, L = size
    predicted = law.network(n, L, _HELD_OUT_SEEDS)
    seeds = [_own_seed(base.data_seed, -1, index) for index in range(_HELD_OUT_SEEDS)]
    records = sweep.run(_of(base, width=n, depth=L, seed=seeds), "held-out network")
    losses = losses_of(records)[n, L]
    mean = sum(losses) / len(losses)
    error = math.sqrt(sum((v - mean) ** 2 for v in losses) / (len(losses) - 1) / len(losses))
    return HeldOut(n, L, len(losses), predicted, _student(mean, error, len(losses) - 1))


def _laws(config: CapacityConfig, base: RunConfig, sweep: Sweep) -> dict[float, Law]:
    """The law at every other horizon, without the widest networks; those that cannot be fitted are left out."""
    widths = config.widths[:-1] if len(config.widths) > 3 else config.widths
    others = [horizon for horizon in config.horizons if horizon != config.horizon]
    plans = {horizon: _sizes(config, base, widths, horizon) for horizon in others}
    records = iter(sweep.run([c for plan in plans.values() for c in plan], "horizons"))
    laws = {}
    for horizon, plan in plans.items():
        losses = losses_of([next(records) for _ in plan])
        try:
            laws[horizon] = fit_law(losses, paired=False, trim=True)
        except ValueError:  # too few sizes train at this horizon
            continue
    return laws


def _stability(config: CapacityConfig, base: RunConfig, horizon: float, sweep: Sweep) -> Stability:
    """Rates by factors of sqrt(2), up and down from ``_FIRST_RATE``, until one is stable and the next is not."""
    guess = math.log(len(dataset_of(base).classes))
    rates = {k: _FIRST_RATE * _STEP**k for k in range(-2, 5)}
    stable: dict[int, bool] = {}
    n, L = config.widths[len(config.widths) // 2], config.depths[len(config.depths) // 2]
    for _ in range(_ROUNDS):
        etas = [float(f"{rates[k]:.4g}") for k in rates]
        seeds = list(range(_STABLE_SEEDS))
        found = sweep.run(_of(base, width=n, depth=L, horizon=horizon, eta_c=etas, seed=seeds), "stability")
        for index, k in enumerate(rates):
            runs = found[index * _STABLE_SEEDS : (index + 1) * _STABLE_SEEDS]
            stable[k] = all(r.status == "done" and r.metrics["train_loss"] < guess for r in runs)
        first_bad = min((k for k in stable if not stable[k]), default=None)
        if first_bad is not None and first_bad - 1 in stable:
            return Stability(horizon, rates[first_bad - 1], rates[first_bad])
        new = range(min(rates) - 4, min(rates)) if first_bad is not None else range(max(rates) + 1, max(rates) + 5)
        rates = {k: _FIRST_RATE * _STEP**k for k in sorted({*rates, *new})}
    return Stability(horizon, math.nan, math.nan)


def _base(config: CapacityConfig) -> RunConfig:
    names = ("data", "data_dir", "image_size")
    data = {name: getattr(config, name) for name in names} | {"data_seed": config.seed}
    images = len(dataset_of(RunConfig(**data)).train)
    settings = config.run_settings(images) | {"seed": 0, "eta_c": config.eta_c, "rule": config.rule}
    return RunConfig(**settings)


def _sizes(config: CapacityConfig, base: RunConfig, widths: Sequence[int], horizon: float) -> list[RunConfig]:
    """Every size with seeds of its own: losses of networks that share a seed are correlated (``nfd.sweep.law``)."""
    found = list[RunConfig]()
    sizes = [(n, L) for n in widths for L in config.depths]
    for index, (n, L) in enumerate(sizes):
        seeds = [_own_seed(config.seed, index, replicate) for replicate in range(config.seeds)]
        found += _of(base, width=n, depth=L, horizon=horizon, seed=seeds)
    return found


def _own_seed(seed: int, size: int, replicate: int) -> int:
    return seed * 1_000_003 + 1000 * (size + 1) + replicate


def _of(base: RunConfig, **settings: Any) -> list[RunConfig]:
    return grid(**(base.model_dump() | settings))


def _student(value: float, error: float, freedom: int) -> Interval:
    half = float(stats.t.ppf(0.975, freedom)) * error
    return Interval(value, error, value - half, value + half)
