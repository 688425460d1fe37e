"""A plan from the command line: of a constructor by name, and whether a stored one fits a network."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from nfd.core.errors import check_callable
from nfd.core.random import global_streams
from nfd.data.digits import digits
from nfd.families.constructed import ConstructedFamily, shapes_of
from nfd.questions.named import named, named_batches, perhaps_named, roles_of
from nfd.runs.model_settings import PlanConfig
from nfd.scaling.held import Differences, differences, held_by
from nfd.scaling.laws import law_of
from nfd.scaling.plan import Plan
from nfd.scaling.rate_schedule import RateSchedule
from nfd.scaling.run_scaling import RunScaling
from nfd.scaling.self_describing import own_samples
from nfd.scaling.sizes import MakeModel, instance
from nfd.training.batches import pairs_of


def planned(config: PlanConfig, model: str) -> Plan:
    """The plan that the settings describe, of the constructor ``model``.

    The network is built on the meta device, where it takes no memory, unless a plan could not restore its numbers.
    """
    make_model = _constructor(config, model)
    base = config.base_width, config.base_depth or config.depth
    chosen: dict[str, Any] = {"rule": config.rule, "optimizer": perhaps_named(config.optimizer, "optimizer")}
    family = ConstructedFamily(
        make_model,
        base,
        **chosen,
        blocks=config.blocks,
        roles=roles_of(config),
        sample=sample_of(config, make_model, base),
    )
    if family.rate_name == "lr":
        _, plan = family.outline(config.width, config.depth)
    else:  # networks of nfd.nets scale themselves
        plan = family.build(config.width, config.depth, config.seed).plan
    return replace(plan, decay=config.decay, run=config.scaled_run(law_of(plan.optimizer)))


def fit_of(plan: Plan, config: PlanConfig, model: str) -> Differences:
    """How the network of a size differs from the one that was planned; no difference where the plan fits."""
    make_model = _constructor(config, model)
    built = next(shapes_of(make_model, config.width, config.depth), None)
    module = instance(make_model, config.width, config.depth) if built is None else built
    return differences(held_by(module), plan.entries)


def run_fit_of(plan: Plan, config: PlanConfig) -> dict[str, tuple[Any, Any]]:
    """Those settings of the run that are given and that a plan was not made for, by name: its own, and what it would
    have."""
    asked = config.scaled_run(law_of(plan.optimizer))
    if asked is None:
        return {}
    given = [name for name in ("batch", "tokens", "schedule", "critical_batch") if getattr(config, name) is not None]
    pairs: dict[str, tuple[Any, Any]] = {name: (_plain(plan.run, name), _plain(asked, name)) for name in given}
    planned = {} if plan.run is None else {row.law: row.applied for row in plan.run.factors}
    pairs |= {name: (planned.get(name), state) for name, state in (config.switched_laws or {}).items()}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _plain(run: RunScaling | None, name: str) -> Any:
    """A setting of a run as numbers and texts; None where there is none."""
    value = getattr(run, name, None)
    return asdict(value) if isinstance(value, RateSchedule) else value


def _constructor(config: PlanConfig, model: str) -> MakeModel:
    with global_streams(config.seed):  # the module may draw numbers where it is imported
        make_model: MakeModel = check_callable("model", named(model, "model"), "a function of (width, depth)")
    return make_model


def sample_of(config: PlanConfig, make_model: MakeModel, base: tuple[int, int]) -> Any:
    """The first inputs of the batches; without them None for a network that says what it takes, else rows of pixels."""
    if config.batches is not None:
        return pairs_of(named_batches(config.batches, "batches", config.seed, 1))[0][0]
    if own_samples(instance(make_model, *base)):
        return None
    inputs, _ = digits().batches(size=2, steps=1, seed=0)
    return inputs[0]
