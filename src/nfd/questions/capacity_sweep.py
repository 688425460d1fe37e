"""The capacity of the paper's networks: which runs the law of size needs, and what they say.

The law ``loss(n, L) = floor + a / n + b / L`` is fitted to a sweep (``nfd.questions.law``). Its floor is found a second
way, by ``nfd.predict``, and it is held to account: a network larger than any in the fit is predicted, then trained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from nfd.core.ambient import undisturbed
from nfd.core.errors import InputError
from nfd.questions.capacity import Capacity, HeldOut, Horizons, mean_of, shorter
from nfd.questions.costs import RESOURCES, Costs, Resource, amount, residual_costs
from nfd.questions.floor import floor_of
from nfd.questions.law import Law, Losses
from nfd.questions.law_fit import fit_law
from nfd.questions.stability import stability
from nfd.questions.sweep_settings import CapacityConfig, SizeConfig, data_settings, initial_seed
from nfd.runs.grid import grid_like
from nfd.runs.records import dataset_of
from nfd.runs.settings import RunConfig
from nfd.runs.sweep import Sweep
from nfd.runs.trained import TESTED
from nfd.store.rows import Record

_HELD_OUT_SEEDS = 3


@undisturbed()
def capacity_of_sweep(config: CapacityConfig, sweep: Sweep) -> Capacity:
    """Train what the questions need, and answer them.

    Raises:
        ValueError: when too few sizes train for a fit.
    """
    base = _base(config)
    _affordable(config, costs_of(base))
    _beyond(config, config.widths[-1], config.depths[-1])
    losses = _losses(config, base, sweep)
    middle = config.widths[len(config.widths) // 2], config.depths[len(config.depths) // 2]
    law = fit_law(losses[config.horizon], paired=False, trim=True)
    rates = stability(base, middle, list(losses), config.seed, sweep)
    horizons = Horizons(base, dataset_of(base).title, _laws(losses), rates, middle)
    return _answer(config, sweep, losses[config.horizon], law, horizons)


@undisturbed()
def capacity_of_records(records: Sequence[Record], config: CapacityConfig, sweep: Sweep) -> Capacity:
    """The same from runs that are there already: the law, its floor and a held-out size, at one horizon."""
    base, losses, paired = from_records(records)
    losses = {size: runs for size, runs in losses.items() if size != config.held_out}  # which is predicted
    law = fit_law(losses, paired=paired, trim=True)
    _affordable(config, costs_of(base))
    return _answer(config, sweep, losses, law, Horizons(base, dataset_of(base).title, {base.horizon: law}))


def _answer(config: CapacityConfig, sweep: Sweep, losses: Losses, law: Law, horizons: Horizons) -> Capacity:
    base = horizons.base
    return Capacity(
        law,
        losses,
        _about(base, law, horizons.data),
        costs=costs_of(base),
        held_out=held_out(base, law, _beyond(config, law.widths[-1], law.depths[-1]), sweep),
        shorter=shorter(partial(fit_law, paired=law.paired), losses),
        predicted=floor_of(base, config.limit_width, config.replicates, sweep),
        horizons=horizons,
        lr=base.eta_c,
    )


def _about(base: RunConfig, law: Law, data: str) -> str:
    """The runs in words."""
    kind = "vanilla networks" if base.network == "mlp" else f"{base.block} blocks"
    special = [f"{base.order}-activation"] * (base.order != "pre")
    special += [f"{base.feedback} feedback"] * (base.feedback != "shared")
    horizon = [f"T = {base.horizon:g}"] * (base.network != "mlp")
    networks = [kind, *special, base.activation, f"rule {base.rule}", *horizon, base.optimizer]
    tested = "" if base.meter == "none" else f", tested on {TESTED} samples"
    return (
        f"{data}; {', '.join(networks)}, eta_c = {base.eta_c:g}, {base.steps} steps of {base.batch} samples{tested}, "
        f"{law.seeds} seeds of each size."
    )


def _beyond(config: CapacityConfig, width: int, depth: int) -> tuple[int, int] | None:
    """The size to hold out, None for none; ValueError for one inside a fit up to this width and depth."""
    if not config.hold_out:
        return None
    size = config.held_out or (2 * width, depth)
    if size[0] <= width and size[1] <= depth:
        raise InputError(
            f"held_out must be wider than {width} or deeper than {depth}, the largest of the fit; got {list(size)}."
        )
    return size


def _affordable(config: CapacityConfig, costs: Costs) -> None:
    """Read every budget before anything is trained; ValueError for one that buys no network at all."""
    for resource, budget in budgets_of(config).items():
        least = costs.cost(resource).at(1, 1)
        if amount(resource, budget) < least:
            raise InputError(
                f"{resource}={budget!r} is too small for any network; width 1 and depth 1 cost {least}. Raise it."
            )


def budgets_of(config: SizeConfig) -> dict[Resource, str]:
    """The budgets that are set."""
    budgets = {resource: getattr(config, resource, None) for resource in RESOURCES}
    return {resource: budget for resource, budget in budgets.items() if budget is not None}


def from_records(records: Sequence[Record]) -> tuple[RunConfig, Losses, bool]:
    """The run that these records share but for size and seed, their losses by size, and whether seeds are shared.

    Raises:
        ValueError: when they differ in more, naming in what.
    """
    if not records:
        raise InputError("there are no runs to fit. Name a directory with a sweep, or loosen --where.")
    records = sorted(records, key=_place)
    differ = [
        name
        for name in records[0].config
        if name not in ("width", "depth", "seed") and len({repr(r.config.get(name)) for r in records}) > 1
    ]
    if differ:
        values = {name: sorted({repr(r.config.get(name)) for r in records}) for name in differ}
        listed = "; ".join(f"{name} in {', '.join(v[:5])}" for name, v in values.items())
        raise InputError(
            f"the runs must differ in width, depth and seed alone; they have {listed}. Choose with --where."
        )
    seeds = [record.config["seed"] for record in records]
    return RunConfig(**records[0].config), losses_of(records), len(set(seeds)) < len(seeds)


def _place(record: Record) -> tuple[int, int, int, str]:
    return *(int(record.config[name]) for name in ("width", "depth", "seed")), record.key  # type: ignore[return-value]


def losses_of(records: Sequence[Record]) -> Losses:
    """Test losses by (width, depth), in an order that the records do not change, so that sums agree to the last bit;
    those of runs that diverged or failed are infinite."""
    losses: dict[tuple[int, int], list[float]] = {}
    for record in sorted(records, key=_place):
        loss = record.metrics.get("test_loss", math.inf)
        losses.setdefault((record.config["width"], record.config["depth"]), []).append(loss)
    return losses


def costs_of(base: RunConfig) -> Costs:
    """What the networks of this sweep cost."""
    dataset = dataset_of(base)
    return residual_costs(
        dataset.inputs.shape[1],
        len(dataset.classes),
        2 if base.block == "two-layer" else 1,
        samples=base.steps * base.batch,
        batch=base.batch,
        optimizer=base.optimizer,
        momentum=base.momentum,
    )


def held_out(base: RunConfig, law: Law, size: tuple[int, int] | None, sweep: Sweep) -> HeldOut | None:
    """Predict a size, then train it; None when there is none to try or the law may not be extrapolated."""
    if size is None or not law.good:
        return None
    n, L = size
    predicted = law.network(n, L, _HELD_OUT_SEEDS)
    seeds = [_own_seed(base.data_seed, -1, index) for index in range(_HELD_OUT_SEEDS)]
    records = sweep.run_all({size: grid_like(base, width=n, depth=L, seed=seeds)}, "held-out network")
    losses = losses_of(records[size])[size]
    return HeldOut(size, len(losses), predicted, mean_of(losses))


def _losses(config: CapacityConfig, base: RunConfig, sweep: Sweep) -> dict[float, Losses]:
    """By horizon and size, asked for together so that every core has work to the end; at other horizons than the
    configured one without the widest networks."""
    fewer = config.widths[:-1] if len(config.widths) > 3 else config.widths
    widths = dict.fromkeys(config.horizons, fewer) | {config.horizon: config.widths}
    plans = {T: _sizes(config, base, widths[T], T) for T in sorted(widths)}
    return {T: losses_of(records) for T, records in sweep.run_all(plans, "sizes").items()}


def _sizes(config: CapacityConfig, base: RunConfig, widths: Sequence[int], horizon: float) -> list[RunConfig]:
    """Every size with seeds of its own: networks that share one have correlated losses (``law_fit``)."""
    runs = list[RunConfig]()
    for index, (n, L) in enumerate((n, L) for n in widths for L in config.depths):
        seeds = [_own_seed(config.seed, index, replicate) for replicate in range(config.seeds)]
        runs += grid_like(base, width=n, depth=L, horizon=horizon, seed=seeds)
    return runs


def _laws(losses: dict[float, Losses]) -> dict[float, Law]:
    """The law at every horizon at which enough sizes train."""
    laws = {}
    for horizon, values in losses.items():
        with suppress(ValueError):
            laws[horizon] = fit_law(values, paired=False, trim=True)
    return laws


def _base(config: CapacityConfig) -> RunConfig:
    images = len(dataset_of(RunConfig(**data_settings(config))).train)
    settings = config.run_settings(images) | {"seed": 0, "eta_c": config.eta_c, "rule": config.rule}
    return RunConfig(**settings)


def _own_seed(seed: int, size: int, replicate: int) -> int:
    return initial_seed(seed, 1000 * (size + 1) + replicate)
