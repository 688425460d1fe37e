"""What a capacity sweep found, in charts, tables and sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nfd.core.errors import InputError
from nfd.core.statistics import mean
from nfd.experiment.findings.finding import Axes, Finding, Row, columns, numbers
from nfd.experiment.settings import RunConfig
from nfd.experiment.sweep_settings import CapacityConfig
from nfd.experiment.trained import TESTED
from nfd.sweep.budget import Resource, Shape, Size, best_size, returns
from nfd.sweep.capacity import Capacity, budgets_of
from nfd.sweep.law import Law

_LEVELS = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)  # of excess loss, as shares of the floor
_POINTS = 60  # of a line of the map
_UNITS = {"parameters": "parameters", "memory": "bytes of memory", "flops": "floating-point operations"}


@dataclass(frozen=True)
class Asked:
    """What is asked of a law: about a network of a size, and the best size for each budget."""

    width: int
    depth: int
    budgets: dict[Resource, str | int]


def asked_of(config: CapacityConfig, found: Capacity) -> Asked:
    """The questions of a configuration; without a budget, that of the largest network of the fit in parameters."""
    budgets: dict[Resource, str | int] = {**budgets_of(config)}
    if not budgets:
        budgets["parameters"] = found.shape.parameters(found.law.widths[-1], found.law.depths[-1])
    return Asked(config.width, config.depth, budgets)


def capacity_findings(found: Capacity, asked: Asked, data: str) -> list[Finding]:
    """The ceiling, the map of sizes, and what the horizon does."""
    caption = _caption(found, data)
    findings = [_ceiling(found, asked, caption)]
    if found.law.good:
        findings.append(_map(found, asked, caption))
    if sum(law.good for law in found.laws.values()) > 1:
        findings.append(_horizons(found, caption))
    if any(math.isfinite(one.stable) for one in found.stability):
        findings.append(_stability(found, data))
    return findings


def answers(found: Capacity, asked: Asked) -> list[str]:
    """The questions of the page, answered in a sentence each."""
    law, n, L = found.law, asked.width, asked.depth
    if not law.good:
        none = f"The law floor + a/n + b/L may not be used beyond the sizes trained, and gives no floor. {law.note}"
        return [none] if found.floor is None else [none, found.floor.sentence()]
    said = [f"The law: loss = {law.floor.unsigned} + ({law.a}) / n + ({law.b}) / L; {_fit(law)}"]
    if found.shorter is not None:
        less, moved = found.shorter.floor.unsigned, found.shorter.floor.value - law.floor.value
        said.append(f"Without its smallest width and depth the floor is {less}, {moved:+.3f} away.")
    if found.floor is not None:
        said.append(found.floor.beside(law.floor))
    bought = returns(law, n, L)
    better = bought.left.high < 0
    apart = "to its size: it is better than the infinite network" if better else "to its size"
    said.append(
        f"A network of width {n} and depth {L} loses {bought.left.unsigned} nats {apart}. Doubling its width buys "
        f"{bought.width}, doubling its depth {bought.depth}. {_horizon(found, n, L)}"
    )
    if bought.enough is not None and not better:
        said.append(
            f"Returns diminish beyond width {bought.enough[0]:,} and depth {bought.enough[1]:,}: from there on all "
            "growth together lowers the loss by less than a tenth of the floor."
        )
    sizes, unbought = _bought(found, asked)
    said += [*(_best(size, r, asked.budgets[r]) for r, size in sizes.items()), *unbought]
    return said + _held_out(found)


def result(found: Capacity, asked: Asked) -> dict[str, Any]:
    """The same as numbers."""
    law = found.law
    fit: dict[str, Any] = {"floor": numbers(law.floor), "a": numbers(law.a), "b": numbers(law.b)}
    fit["second_order"] = {name: numbers(term) for name, term in zip("cde", law.second, strict=True)} | {
        "bend": law.bend
    }
    fit |= {"chi2": law.chi2, "freedom": law.freedom, "p_value": law.p_value, "good": law.good, "note": law.note}
    done: dict[str, Any] = {"fit": fit, "answers": answers(found, asked)}
    if found.shorter is not None:
        done["fit"]["floor_without_smallest"] = numbers(found.shorter.floor)
    done["floor_predicted"] = None
    done |= found.floor.numbers() if found.floor is not None else {}
    if found.held_out is not None:
        h = found.held_out
        size = {"width": h.width, "depth": h.depth, "networks": h.networks, "inside": h.inside}
        done["held_out"] = size | {"predicted": numbers(h.predicted), "measured": numbers(h.measured)}
    if law.good:
        sizes, _ = _bought(found, asked)
        done["best"] = {
            r: {"width": s.width, "depth": s.depth, "cost": s.cost, "loss": numbers(s.predicted), "note": s.note}
            for r, s in sizes.items()
        }
        bought = returns(law, asked.width, asked.depth)
        done["network"] = {"width": asked.width, "depth": asked.depth, "excess": numbers(bought.left)}
        done["network"] |= {"doubling_width": numbers(bought.width), "doubling_depth": numbers(bought.depth)}
    done["horizons"] = [
        {"horizon": T, "good": one.good, "floor": numbers(one.floor), "a": numbers(one.a), "b": numbers(one.b)}
        for T, one in found.laws.items()
    ]
    done["stability"] = [{"horizon": s.horizon, "stable": s.stable, "unstable": s.unstable} for s in found.stability]
    return done


# ---- charts --------------------------------------------------------------------------------------------------


def _ceiling(found: Capacity, asked: Asked, caption: str) -> Finding:
    """Measured losses against depth, a line per width, over the floor found two ways."""
    rows = list[Row]()
    for (n, L), losses in sorted(found.losses.items()):
        if all(math.isfinite(v) for v in losses):
            found_mean = mean(torch.tensor(losses, dtype=torch.float64))
            rows.append({"series": f"width {n}", "depth": L} | columns("loss", found_mean))
    floors = {"floor of the law": found.law.floor} if found.law.good else {}
    if found.floor is not None and found.floor.loss is not None:
        floors["floor by nfd.predict"] = found.floor.loss
    depths = sorted({L for _, L in found.losses})
    rows += [{"series": name, "depth": L} | columns("loss", f) for name, f in floors.items() for L in depths]
    axes = Axes("depth", "loss", "depth", "test loss after training (nats)", "semilogarithmic", zero=False)
    headline = answers(found, asked)[0]
    note = f"Bars: 95 % intervals over seeds. {caption}"
    return Finding("ceiling", "How far is a network from its ceiling?", headline, rows, axes, note)


def _map(found: Capacity, asked: Asked, caption: str) -> Finding:
    """Lines of equal excess loss over width and depth, the budgets, and the sizes to choose."""
    law, shape = found.law, found.shape
    best, _ = _bought(found, asked)
    widths = [*law.widths, asked.width, *(s.width for s in best.values())]
    depths = [*law.depths, asked.depth, *(s.depth for s in best.values())]
    spans = _span(min(widths), 4 * max(widths)), (min(depths) / 1.2, 4 * max(depths))
    rows = list[Row]()
    for share in _LEVELS:
        excess = share * law.floor.value
        name = f"{excess:.2g} nats above the floor"
        rows += _line(name, spans, lambda n, e=excess: _depth_for(law, e, n))
    for resource, size in best.items():
        name = f"budget of {size.cost:.2g} {_UNITS[resource]}"
        rows += _line(name, spans, lambda n, r=resource, c=size.cost: _depth_within(shape, r, c, n))
        place = f"best for it: width {size.width} and depth {size.depth}"
        rows.append(_place(f"{place} ({resource})", size.width, size.depth))
    rows.append(_place("your network", asked.width, asked.depth))
    axes = Axes("width", "depth", "width n", "depth L", "map")
    said = " ".join(_best(size, resource, asked.budgets[resource]) for resource, size in best.items())
    sizes = f"widths {_range(law.widths)} and depths {_range(law.depths)}"
    note = f"Lines of equal excess a/n + b/L, the first order of the law, which was fitted to {sizes}."
    return Finding("map", "How big should it be?", said, rows, axes, f"{note} {caption}")


def _horizons(found: Capacity, caption: str) -> Finding:
    """The floor against the horizon, where the law holds."""
    good = {T: law for T, law in found.laws.items() if law.good}
    rows = [{"series": "floor of the law", "horizon": T} | columns("floor", law.floor) for T, law in good.items()]
    first, *rest = sorted(good, key=lambda T: good[T].floor.value)
    told = all(good[first].floor.high < good[T].floor.low for T in rest)
    headline = f"The floor is lowest at T = {first:g}: {good[first].floor.unsigned}, at this learning rate"
    headline += "." if told else ", though not told from all others."
    reversed_ = [f"{T:g}" for T, law in good.items() if law.b.high < 0]
    if reversed_:
        headline += f" At T = {', '.join(reversed_)} depth raises the loss (b < 0)."
    unknown = [f"{T:g}" for T in found.laws if T not in good]
    if unknown:
        headline += f" At T = {', '.join(unknown)} the law does not hold, and no floor is shown."
    axes = Axes("horizon", "floor", "horizon T", "floor of the test loss (nats)", "semilogarithmic", zero=False)
    return Finding("horizon", "What does the horizon buy?", headline, rows, axes, f"Bars: 95 % intervals. {caption}")


def _stability(found: Capacity, data: str) -> Finding:
    """The largest stable rate against the horizon."""
    known = [one for one in found.stability if math.isfinite(one.stable)]
    rows = [
        {"series": "largest stable eta_c", "horizon": s.horizon, "eta_c": s.stable, "low": s.stable, "high": s.unstable}
        for s in known
    ]
    said = "; ".join(f"T = {s.horizon:g}: {s.stable:.2g} (not {s.unstable:.2g})" for s in known)
    missing = [f"{one.horizon:g}" for one in found.stability if one not in known]
    none = f" None was found at T = {', '.join(missing)}." if missing else ""
    axes = Axes("horizon", "eta_c", "horizon T", "largest stable eta_c", "logarithmic")
    b, (n, L) = found.base, found.stability_size
    note = (
        "Stable: of two networks none diverges, nor doubles its first loss on the way. Bars reach to the next rate, at "
        f"which one does. Width {n}, depth {L}; {data}; {b.block} blocks, {b.activation}, rule {b.rule}, "
        f"{b.optimizer}, {b.steps} steps of {b.batch} samples."
    )
    title = "What does the horizon cost in stability?"
    return Finding("stability", title, f"The largest stable eta_c: {said}.{none}", rows, axes, note)


def _line(name: str, spans: Any, depth: Any) -> list[Row]:
    """``depth(n)`` at widths of the map, where it lies inside."""
    (left, right), (bottom, top) = spans
    found = []
    for k in range(_POINTS):
        n = left * (right / left) ** (k / (_POINTS - 1))
        L = depth(n)
        if L is not None and bottom <= L <= top:
            found.append({"series": name, "width": n, "depth": L})
    return found if len(found) > 1 else []


def _place(name: str, width: int, depth: int) -> Row:
    return {"series": name, "width": width, "depth": depth}


def _span(low: float, high: float) -> tuple[float, float]:
    return low / 1.2, high


def _depth_for(law: Law, excess: float, n: float) -> float | None:
    left = excess - law.a.value / n
    return law.b.value / left if left > 0 and law.b.value > 0 else None


def _depth_within(shape: Shape, resource: Resource, budget: int, n: float) -> float | None:
    cost = shape.cost(resource)
    room = budget - cost.constant - cost.per_width * n
    return room / (cost.per_layer * n + cost.per_matrix * n * n) if room > 0 else None


# ---- words ---------------------------------------------------------------------------------------------------


def _fit(law: Law) -> str:
    quality = "it holds" if law.good else "it does not hold"
    said = f"{quality} ({law.test})."
    return f"{said} {law.note}".strip()


def _horizon(found: Capacity, n: int, L: int) -> str:
    """What doubling the horizon does to the loss of a network."""
    T = found.base.horizon
    now, later = found.laws.get(T), found.laws.get(2 * T)
    if now is None or later is None or not later.good:
        return f"What T = {2 * T:g} would buy is not known: it was not fitted."
    bought = now.loss(n, L).minus(later.loss(n, L))
    return f"Doubling the horizon to T = {2 * T:g} buys {bought} at the same learning rate."


def _bought(found: Capacity, asked: Asked) -> tuple[dict[Resource, Size], list[str]]:
    """The best size for every budget, and what to say of those that buy none."""
    sizes, unbought = dict[Resource, Size](), list[str]()
    for resource, budget in asked.budgets.items():
        try:
            sizes[resource] = best_size(found.law, found.shape, resource, budget)
        except InputError as error:
            unbought.append(f"For {budget} of {resource} there is no best size: {error}")
    return sizes, unbought


def _best(size: Size, resource: Resource, budget: str | int) -> str:
    shown = f"{budget:,} {resource}" if isinstance(budget, int) else f"{budget} of {resource}"
    return (
        f"For {shown} the best size is width {size.width:,} and depth {size.depth:,}: loss "
        f"{size.predicted.unsigned}. {size.note}"
    ).strip()


def _held_out(found: Capacity) -> list[str]:
    h = found.held_out
    if h is None:
        return []
    verdict = "the prediction holds" if h.inside else "the prediction fails, as their mean lies outside of its interval"
    return [
        f"Held out: for the mean of {h.networks} networks of width {h.width:,} and depth {h.depth:,} the law said "
        f"{h.predicted.unsigned}; trained, they reach {h.measured.unsigned}: {verdict}."
    ]


def _caption(found: Capacity, data: str) -> str:
    b = found.base
    tested = "" if b.meter == "none" else f", tested on {TESTED} samples"
    return (
        f"{data}; {_form(b)}, eta_c = {b.eta_c:g}, {b.steps} steps of {b.batch} samples{tested}, {found.law.seeds} "
        "seeds of each size."
    )


def _form(b: RunConfig) -> str:
    """The networks and their optimizer."""
    kind = "vanilla networks" if b.network == "mlp" else f"{b.block} blocks"
    special = [f"{b.order}-activation"] * (b.order != "pre") + [f"{b.feedback} feedback"] * (b.feedback != "shared")
    horizon = [f"T = {b.horizon:g}"] * (b.network != "mlp")
    return ", ".join([kind, *special, b.activation, f"rule {b.rule}", *horizon, b.optimizer])


def _range(values: Sequence[int]) -> str:
    return f"{values[0]}..{values[-1]}"
