"""What a check says of its networks: how every meter changes along an axis, what that means, and
what broke.

A verdict is a word for the slope of a meter against width or depth, in logarithms. An event is what
went wrong in the training of one network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from csv import DictReader
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nfd.core.estimates import UNKNOWN, Interval, log_slope, mean, pooled_slope
from nfd.core.modes import undisturbed
from nfd.core.names import AXES, Axis, RuleName
from nfd.core.tables import Row
from nfd.families.streams import EndGradients
from nfd.scaling.model import modules, numberless
from nfd.scaling.rules import RULES

# ---- the word for a slope

# chosen by both errors of a check, docs/verdicts.md
_SMALL = 0.15
_CLEAR = 0.25
# a factor from the smallest size to the largest; without it, two near sizes raise twice as many
# alarms
_LEAST = 1.2
_ROOT = -0.5  # the exponent of what adds up as independent parts do
_OF_THE_FUNCTION = "function_update", "function_update_inner"
_OF_LAYERS = "inner_update", "update_to_weight", "stream_update"
# What these would be at perfect alignment: no meters of the table, but they judge some
_BOUNDS = {
    "inner_update": "inner_bound",
    "stream_update": "stream_bound",
    "activation_update": "activation_bound",
}
THRESHOLDS = (
    f"STABLE: the interval lies within ±{_CLEAR}; COLLAPSES, GROWS: beyond ±{_SMALL} and a factor "
    f"of {_LEAST} over these sizes, the exponent beyond ±{_CLEAR}."
)
LIMITS = (
    f"LIMIT: falls no faster than by the power {_ROOT}, as in sound networks that are small: no "
    "fault."
)

Verdict = Literal["STABLE", "LIMIT", "COLLAPSES", "FALLS", "GROWS", "UNCERTAIN", "NOT MEASURED"]


def verdict_of(slope: Interval, span: float = math.inf) -> Verdict:
    """``STABLE``: the 95 % interval lies within +-0.25. ``COLLAPSES``, ``GROWS``: it lies beyond
    -0.15 or +0.15, and beyond a factor of 1.2 over sizes that span this factor, and the slope
    beyond -0.25 or +0.25. Otherwise ``UNCERTAIN``."""
    small = _resolved(span)
    if slope.low >= -_CLEAR and slope.high <= _CLEAR:
        return "STABLE"
    if slope.high < -small and slope.value < -_CLEAR:
        return "COLLAPSES"
    if slope.low > small and slope.value > _CLEAR:
        return "GROWS"
    return "UNCERTAIN"


def _resolved(span: float) -> float:
    """The exponent beyond which the nearer end of an interval must lie."""
    return max(_SMALL, math.log(_LEAST) / math.log(span))


def judged(
    meter: str, axis: Axis, slope: Interval, span: float = math.inf, direction: float = 0.0
) -> tuple[Verdict, str]:
    """The word for a meter's slope, and why.

    The update of the function is ``v^2 = a^2 + b^2 / width``: a from what moves it alike, b from
    independent parts. Small networks have the larger b, so that sound ones show exponents down to
    -1/2. A collapse of this update alone would look alike over the sizes of a check; where features
    stop moving, ``inner_update`` tells.

    So do the updates of layers, where a batch has more independent inputs than a layer has
    coordinates: random tokens give exponents of -0.3 at widths 32 to 128 under AdamW, SGD and the
    sign of a momentum. ``direction`` is the part of the exponent that is of the directions of
    updates, which fit the inputs less, and not of their sizes, which fall with the rates where
    features stop moving.

    Branches of 1/L that begin independent add up as L^-1/2, and so does the stream beside an
    embedding that begins smaller, and with it what norms let through of the gradient. What training
    changes in such branches adds up alike where its directions differ, as behind norms, which turn
    every branch (Gemma 3: L^-0.28 at depths 2 to 8): no fault where the sum of the sizes of these
    changes, ``activation_bound``, stands. It falls where multipliers or rates do.
    """
    word = verdict_of(slope, span)
    if word == "STABLE":
        return word, "flat" if slope.low <= 0 <= slope.high else "little"
    if word == "COLLAPSES" and meter == "loss":
        return "FALLS", "trend"
    if word == "COLLAPSES" and axis == "width":
        if meter in _OF_THE_FUNCTION and slope.high >= _ROOT + direction:
            return "LIMIT", "limit"
        if meter in _OF_LAYERS and slope.high >= _ROOT and slope.value - direction >= -_CLEAR:
            return "LIMIT", "direction"
    if word == "COLLAPSES" and axis == "depth" and slope.high >= _ROOT:
        if meter in ("activation", "gradient"):
            return "LIMIT", "embedding"
        if meter == "activation_update" and slope.value - direction >= -_CLEAR:
            return "LIMIT", "independent"
    return word, "edge" if word == "UNCERTAIN" else "trend"


def is_fault(row: Mapping[str, Any]) -> bool:
    """Whether a row of the table says that something scales wrongly."""
    return row.get("verdict") in ("GROWS", "COLLAPSES")


def since(sizes: Sequence[int], values: Tensor) -> int:
    """The size from which every later local slope of ``values`` [sizes] is beyond 0.25, or the last
    but one.
    """
    x = values.double().log()
    start = len(sizes) - 2
    while start > 0 and abs(float(x[start] - x[start - 1])) > _CLEAR * math.log(
        sizes[start] / sizes[start - 1]
    ):
        start -= 1
    return sizes[start]


# ---- what it means

_MUP = [name for name, rule in RULES.items() if rule.scales_width]
_DEEP = [name for name in _MUP if RULES[name].scales_depth]
_EIGHT: list[RuleName] = ["complete-p", "depth-mup-inner"]
_KINDS: dict[str, list[RuleName]] = {
    "": [],
    "mup": _MUP,
    "deep": _DEEP,
    "complete-p": ["complete-p"],
    "eq-8": _EIGHT,
}
_PRICE = ", or 'depth-mup-inner' (Eq. 8) at the price that function_update_inner shows"
with Path(__file__).with_name("advice.csv").open(encoding="utf-8") as _file:
    # What was seen of a meter along an axis that has a word, and the rules that prevent it
    ADVICE = {
        (row["meter"], row["axis"], row["verdict"]): (row["seen"], _KINDS[row["rules"]])
        for row in DictReader(_file)
    }


def cure_of_all(faults: Iterable[Mapping[str, Any]], rule: str) -> RuleName | None:
    """The rule that prevents every one of these rows; None where there is none."""
    prevented = [
        ADVICE.get((row["meter"], row["axis"], row["verdict"]), ("", []))[1] for row in faults
    ]
    shared = [name for name in RULES if all(name in rules for rules in prevented)]
    return shared[-1] if shared and rule not in shared else None


@dataclass(frozen=True)
class Beside:
    """What keeps any rule from preventing a fault, in words: norms whose epsilon decides, updates
    that are rounded.
    """

    norms: str = ""
    rounding: str = ""


_NOTHING = Beside()


def cause(
    meter: str, axis: Axis, word: Verdict, rule: str | None = None, beside: Beside = _NOTHING
) -> str:
    """What was seen and its remedy; empty for what the meter's name says.

    Where the rule in use should prevent it, it is not named as the cure: something else is wrong.
    ``beside``: what is known to keep any rule from preventing it.
    """
    seen, rules = ADVICE.get((meter, axis, word), ("", []))
    if beside.rounding and axis == "width" and word == "COLLAPSES" and "lazy" in seen:
        return f"{beside.rounding}."
    if rule in rules and beside.norms:
        return f"{seen}. {rule!r} would prevent it, but {beside.norms}"
    if rule in rules:
        return (
            f"{seen}. {rule!r} should prevent it: check roles, base and rate, and take more steps "
            "or larger sizes."
        )
    use = f" Use 'complete-p'{_PRICE if rules is _EIGHT else ''}." if rules else ""
    return f"{seen}.{use}" if seen else ""


def causes(faults: Iterable[Mapping[str, Any]], rule: str, runs: Sequence[Row]) -> Iterator[str]:
    """The faults in sentences, one for all meters that share a cause; some begin beyond the
    smallest network.
    """
    shared = dict[tuple[str, str, str], list[str]]()
    least = {axis: min(run[axis] for run in runs) for axis in AXES}
    beside = beside_of(runs)
    for row in faults:
        since = f" since {row['axis']} {row['since']}" if row["since"] != least[row["axis"]] else ""
        text = cause(row["meter"], row["axis"], row["verdict"], rule, beside)
        shared.setdefault((row["axis"], row["verdict"].lower(), text), []).append(
            f"{row_name(row)}{since}"
        )
    for (axis, verb, text), every in shared.items():
        names = list(dict.fromkeys(every))  # of several steps
        some = f"{len(names)} meters {verb[:-1]} with {axis}. " if len(names) > 1 else ""
        yield f"{some}{text or f'A meter {verb} with {axis}.'} ({', '.join(names)})"


def row_name(row: Mapping[str, Any]) -> str:
    """The meter of a row, and its stack of blocks."""
    return f"{row['meter']} of {row['stack']}" if row.get("stack") else str(row["meter"])


# ---- the table

# What a meter is; the table of a check has them in this order
METERS = {
    "first_activation": "RMS of the stream that enters the first block",
    "activation": "RMS of the stream after the last block",
    "activation_update": "RMS of its change by training",
    "inner_update": "RMS of the change that training made to the outputs of the inner matrices, "
    "Eq. 27",
    "stream_update": "RMS of what training the outer matrices adds to the stream, times the depth, "
    "Eqs. 33 and 34",
    "first_update": "stream_update after the first update that changes it, before later updates "
    "cancel it",
    "function_update": "RMS of the change of the outputs by training",
    "function_update_inner": "RMS of the change of the outputs when the inner matrices are reset "
    "to their start",
    "update_to_weight": "largest singular value of the change of inner matrices over that of their "
    "start",
    "alignment": "how well the last update of a matrix is aligned with its inputs, relative to "
    "perfect alignment: 1 where sums over n coordinates add as n, n^-1/2 where they add as sqrt(n)",
    "gradient": "RMS of the gradient entering the first block over that leaving the last, where "
    "the stream is not zero (padding): at the start, or where the check looks at several steps "
    "before each update",
    "loss": "loss of the last batch before its update",
}
_OF_ONE_AXIS: dict[str, Axis] = {
    "gradient": "depth",
    "alignment": "width",
    "first_activation": "width",
    "first_update": "depth",
}
OF_ONE_STEP = ("first_update",)  # meters that are alike after every later step
_MOST = 20.0  # |log| of a factor that is worth a number


def networks(runs: Iterable[Row], step: int, stack: str = "") -> list[Row]:
    """The networks as they were after a step: size, meters, and what is ``unread``.

    With the name of one of several stacks of blocks, its meters alone; without one, those of no
    stack.
    """
    seen = []
    for run in runs:
        looks = (row for row in run["rows"] if (row["step"], row.get("stack", "")) == (step, stack))
        unread = (run.get("stacks", {}).get(stack, {}) if stack else run).get("unread", {})
        look: Row = next((row for row in looks if not row["matrix"]), {})
        seen.append(
            {name: run[name] for name in ("width", "depth", "seed")} | {"unread": unread} | look
        )
    return seen


def stacks_of(runs: Sequence[Row]) -> list[str]:
    """The names of the stacks of some network, after ``""`` for the network itself."""
    return list(dict.fromkeys(["", *(stack for run in runs for stack in run.get("stacks", ()))]))


@undisturbed()
def rows(
    seen: Sequence[Row],
    sizes: Mapping[str, list[int]],
    axis: Axis,
    rule: RuleName,
    beside: Beside = _NOTHING,
) -> list[Row]:
    """One row per meter of ``networks``: its trend along one axis, with a factor for every size of
    the other; all networks begin independently. ``beside``: as in ``cause``."""
    other: Axis = "depth" if axis == "width" else "width"
    table = []
    directions = {}
    # where the bound stands, rates are right; what falls is how directions fit
    for meter, bound in _BOUNDS.items():
        slopes = [
            _slope([(run[axis], run[other], run[m]) for run in seen if m in run])
            for m in (meter, bound)
        ]
        fall = slopes[0].value - slopes[1].value
        least = 0.0 if meter == "activation_update" else _SMALL
        directions[meter] = fall if verdict_of(slopes[1]) == "STABLE" and fall < -least else 0.0
    for meter in METERS if len(sizes[axis]) > 1 else ():
        if _OF_ONE_AXIS.get(meter, axis) != axis:
            continue
        row: Row = {"meter": meter, "axis": axis, "since": None}
        points = [(run[axis], run[other], run[meter]) for run in seen if meter in run]
        unread = next((run["unread"][meter] for run in seen if meter in run.get("unread", {})), "")
        slope = UNKNOWN
        if unread:
            row |= {"verdict": "NOT MEASURED", "reason": "unread", "cause": unread}
        elif points:
            slope, judgement = _judged(
                meter,
                axis,
                sizes[axis],
                points,
                directions.get(meter, directions["inner_update"]),
                len(seen),
                partial(cause, rule=rule, beside=beside),
                is_excused=not (beside.rounding and axis == "width"),
            )
            row |= judgement
        else:
            continue
        table.append(row | {"slope": slope.value} | slope.limits)
    return table


def _judged(
    meter: str,
    axis: Axis,
    sizes: list[int],
    points: list[tuple[int, int, float]],
    direction: float,
    runs: int,
    advised: Callable[[str, Axis, Verdict], str],
    *,
    is_excused: bool,
) -> tuple[Interval, Row]:
    """The slope of points (size, size of the other axis, value) and its row."""

    def said(word: Verdict, reason: str, text: str, **more: object) -> tuple[Interval, Row]:
        return slope, {"verdict": word, "reason": reason, "cause": text} | more

    slope = _slope(points)
    kept = _positive(points)
    size, _, value = torch.tensor(kept, dtype=torch.float64).view(-1, 3).T
    if all(value == 0 for *_, value in points):
        return said(
            "NOT MEASURED", "zero", "exactly zero in every network: no training changes it."
        )
    if {int(s) for s in size} != set(sizes):
        return said("UNCERTAIN", "missing", "zero or not finite in every network of some size.")
    span = sizes[-1] / sizes[0]
    changed = change(slope, axis, sizes)
    word, reason = judged(meter, axis, slope, span, direction)
    if word == "LIMIT" and not is_excused:  # a cause is known
        word = "COLLAPSES"
        reason = "trend"
    advice = advised(meter, axis, word)
    if reason == "trend":
        typical = torch.stack([value[size == s].log().mean().exp() for s in sizes])
        return said(word, reason, f"{changed}. {advice}".strip(), since=since(sizes, typical))
    if word == "UNCERTAIN" and len(kept) < runs:
        reason = "broken"
    texts = {
        "flat": f"no significant trend with {axis}.",
        "little": f"depends little on {axis}: {changed}.",
        "limit": f"no fault: {changed}, as in small sound networks, whose independent parts add up "
        "as width^-1/2. It would be one if inner_update collapsed too.",
        "direction": f"no fault of the rates: {changed}. Matrices change as much, but fit the "
        "inputs less, as when a batch has more independent inputs than a layer has coordinates.",
        "independent": f"no fault: {changed}. Every block changes as it should, but blocks change "
        "the stream in more independent directions, which add up as depth^-1/2.",
        "embedding": f"no fault: {changed}, as independent branches of 1/depth do beside a small "
        "embedding. Begin the embedding larger.",
        "edge": f"undecided: {changed}. More seeds or larger sizes would settle it.",
        "broken": "zero or not finite in some networks.",
    }
    return said(word, reason, texts[reason])


def _positive(points: Iterable[tuple[int, int, float]]) -> list[tuple[int, int, float]]:
    return [point for point in points if math.isfinite(point[2]) and point[2] > 0]


def _slope(points: Iterable[tuple[int, int, float]]) -> Interval:
    """The exponent of points (size, size of the other axis, value)."""
    size, group, value = torch.tensor(_positive(points), dtype=torch.float64).view(-1, 3).T
    return pooled_slope(size.log(), value.log(), group) if len(value) else UNKNOWN


def change(slope: Interval, axis: Axis | Literal["step"], sizes: Sequence[int]) -> str:
    """``falls by 18 % [12, 24] from depth 4 to 32``: a slope over the range of sizes that was
    tested.
    """
    change_of_log = slope.scaled(math.log(sizes[-1] / sizes[0]))
    if not max(abs(change_of_log.low), abs(change_of_log.high)) < _MOST:  # not-a-number too
        return f"changes by an unknown amount from {axis} {sizes[0]} to {sizes[-1]}"
    factor = change_of_log.exp()
    ends = sorted(
        100 * (v - 1) * (1 if factor.value >= 1 else -1) for v in (factor.low, factor.high)
    )
    verb, size = ("rises", factor.value - 1) if factor.value >= 1 else ("falls", 1 - factor.value)
    low, high = (f"{round(v) + 0:d}" for v in ends)
    return f"{verb} by {round(100 * size)} % [{low}, {high}] from {axis} {sizes[0]} to {sizes[-1]}"


def growth(runs: Sequence[Row], steps: Sequence[int]) -> list[Row]:
    """One row per meter and stack: the exponent p of ``meter ~ step^p``, averaged over networks in
    logarithms.

    The steps of one network depend on each other, so that each network gives one slope; the
    interval comes from how they differ, by Student's t.
    """
    table: list[Row] = []
    for stack in stacks_of(runs) if len(steps) > 1 else ():
        looks = list(zip(*(networks(runs, step, stack) for step in steps), strict=True))
        for meter in METERS:
            if meter in OF_ONE_STEP:
                continue
            curves = torch.tensor(
                [[look.get(meter, 0.0) for look in own] for own in looks], dtype=torch.float64
            )
            curves = curves[(curves.isfinite() & (curves > 0)).all(1)]
            if len(curves) > 1:
                slope = mean(log_slope(steps, curves))
                row = {"meter": meter, "axis": "step", "slope": slope.value} | slope.limits
                table.append(
                    row
                    | {"cause": f"{change(slope, 'step', steps)}."}
                    | ({"stack": stack} if stack else {})
                )
    return table


# ---- events: what went wrong in one network


_TEXTS = {
    "not-finite": "not finite, first in {layer}",
    "loss-rose": "the loss rose to {size:.3g} times the first one: the learning rate is too large",
    "gradient-not-finite": "the gradient of the stream is not finite{place}",
    "gradients-vanish": "gradients vanish{place}: {size:.1e} of the last block's reaches the first",
    "gradients-explode": "gradients explode{place}: {size:.1e} times the last block's at the first",
    "gradients-explode-at-zero": "gradients explode{place} where the stream is zero, as at a "
    "padding id with a zero embedding, which a norm divides by the root of its epsilon: {size:.1e} "
    "times the last block's at the first. Mask that id in the loss and in attention, or keep it "
    "out of the batches",
    "experts-dead": "no token reached {layer} at any step in any network, as {size:.0%} of the "
    "experts there: does the router choose among all? Add a balancing loss or bias",
    "router-collapsed": "the router {layer} chooses one expert first for {size:.0%} of the tokens, "
    "from every seed: a balancing loss, a lower rate or a smaller start of the router keep it even",
}


@dataclass(frozen=True)
class Event:
    """One event of one network.

    Attributes:
        kind: what happened.
        step: how many updates the network had taken.
        layer: the first layer that shows it, or the stack of blocks; empty for the whole network.
        size: the loss over the first loss, the gradient that enters the first block over that which
            leaves the last, or a share of experts or of tokens.
    """

    kind: str
    step: int
    layer: str = ""
    size: float = math.nan

    def __str__(self) -> str:
        when = f"after step {self.step}" if self.step else "at the start"
        place = f" in {self.layer}" if self.layer else ""
        return f"{when}, {_TEXTS[self.kind].format(layer=self.layer, place=place, size=self.size)}"


@dataclass(frozen=True)
class Failure:
    """A kind of event in the networks of a check: the earliest case, its network, and how many
    networks share it.
    """

    event: Event
    width: int
    depth: int
    seed: int
    networks: int
    of: int

    def __str__(self) -> str:
        where = f"width {self.width}, depth {self.depth}, seed {self.seed}"
        return f"{where}: {self.event} ({self.networks} of {self.of} networks)"


def failures_of(runs: Sequence[Row]) -> list[Failure]:
    """What went wrong, once per kind of event: its earliest case, and in how many networks."""
    cases: dict[str, list[tuple[Event, Row]]] = {}
    for run in runs:
        for event in run["events"]:
            cases.setdefault(event.kind, []).append((event, run))
    failures = []
    for own in cases.values():
        event, run = min(own, key=lambda case: case[0].step)
        shared = len({(r["width"], r["depth"], r["seed"]) for _, r in own})
        failures.append(Failure(event, run["width"], run["depth"], run["seed"], shared, len(runs)))
    return failures


_VANISHED = 1e-3
_EXPLODED = 1e3


def first_bad(model: nn.Module, run: Callable[[], Any]) -> str:
    """The first module whose output is not finite."""
    broken: list[str] = []

    def look(name: str, _: nn.Module, __: Any, out: Any) -> None:
        tensor = out[0] if isinstance(out, tuple | list) and out else out
        if isinstance(tensor, Tensor) and not bool(tensor.isfinite().all()):
            broken.append(name)

    with ExitStack() as hooks, torch.no_grad():
        for name, module in modules(model).items():
            if name:
                hooks.enter_context(module.register_forward_hook(partial(look, name)))
        run()
    return broken[0] if broken else "the loss"


_FEWER = 0.9  # of the share of entries that move in the narrowest network
# epsilon over variance: sound models have 1.5 at most (Gemma 3 at width 32), OLMo 2 has 40 to 4e6
_WEAK = 10.0
# names of it in norms of PyTorch and transformers
_EPSILONS = ("eps", "epsilon", "variance_epsilon")


@contextmanager
def norms_of(model: nn.Module) -> Iterator[dict[str, float]]:
    """A context of a forward pass that finds norms whose epsilon is more than ten times the
    variance of their inputs.

    Their names have ``*`` for numbers; the values are the largest of these ratios, by the median
    over vectors.
    """
    weak = dict[str, float]()

    def look(name: str, epsilon: float, module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        given = args[0] if args else None
        if (
            not isinstance(given, Tensor)
            or not isinstance(out, Tensor)
            or given.shape != out.shape
            or not given.numel()
        ):
            return
        x = given.detach().double()
        if isinstance(module, nn.LayerNorm):
            x = x - x.mean(-1, keepdim=True)
        variance = float(x.square().mean(-1).median())
        # a finite one also of zeros
        ratio = epsilon / max(variance, torch.finfo(torch.float32).tiny)
        if ratio > _WEAK:
            weak[name] = max(ratio, weak.get(name, 0.0))

    with ExitStack() as hooks:
        for name, module in modules(model).items():
            epsilon = next(
                (
                    value
                    for word in _EPSILONS
                    if isinstance(value := getattr(module, word, None), float)
                ),
                0.0,
            )
            if epsilon and not isinstance(module, _BatchNorm | nn.GroupNorm):
                hooks.enter_context(
                    module.register_forward_hook(partial(look, numberless(name), epsilon))
                )
        yield weak


def rounded_kinds(runs: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """Kinds of tensors of 16 bits of which training changes fewer entries as they widen: the shares
    at both ends.
    """
    widths = sorted({run["width"] for run in runs})
    shares: dict[str, dict[int, list[float]]] = {}
    for run in runs:
        for row in run.get("tensors", ()):
            if "moved" in row:
                of_kind = shares.setdefault(row["kind"], {})
                of_kind.setdefault(run["width"], []).append(row["moved"])
    kinds = {}
    for kind, by_width in shares.items():
        if len(widths) < 2 or widths[0] not in by_width or widths[-1] not in by_width:
            continue
        small, large = (math.fsum(by_width[n]) / len(by_width[n]) for n in (widths[0], widths[-1]))
        if large < _FEWER * small:
            kinds[kind] = small, large
    return kinds


def rounded_text(small: float, large: float) -> str:
    """What is rounded away, in words, by the shares of entries that move in the smallest and the
    largest network.
    """
    return (
        f"training changes {large:.0%} of its entries in the widest network and {small:.0%} in the "
        "narrowest: weights of 16 bits round updates away that are small beside them. Keep weights "
        "of 32 bits, and compute in 16 by torch.autocast"
    )


def _rounded(runs: Sequence[Row]) -> str:
    """The same of the tensor that loses most, for meters that collapse with it; empty where none
    does.
    """
    kinds = rounded_kinds(runs)
    if not kinds:
        return ""
    kind = min(kinds, key=lambda kind: kinds[kind][1] / kinds[kind][0])
    return f"Of {kind} {rounded_text(*kinds[kind])}"


def beside_of(runs: Sequence[Row]) -> Beside:
    """What is known of networks beside their meters, for the words of faults."""
    return Beside(weak_norms(runs), _rounded(runs))


def weak_norms(runs: Sequence[Row]) -> str:
    """What keeps rules from preventing faults: norms that let the scale of what they normalise
    through.
    """
    found = [
        (ratio, name, run["width"])
        for run in runs
        for name, ratio in run.get("weak_norms", {}).items()
    ]
    if not found:
        return ""
    ratio, name, width = max(found)
    return (
        f"the epsilon of {name} is {ratio:.1e} times the variance of its inputs at width {width}, "
        "so that this norm lets the scale of its branch through. Begin weights larger, lower the "
        "epsilon, or take wider networks."
    )


def gradient_events(ends: EndGradients, stack: str = "", step: int = 0) -> Iterator[Event]:
    """What happened to a gradient on its way from the last block of a stack to the first, after so
    many updates.
    """
    ratio = ends.first / ends.last
    at_zero = ends.at_zero / ends.last
    if not math.isfinite(ratio):
        yield Event("gradient-not-finite", step, stack)
    elif not _VANISHED <= ratio <= _EXPLODED:
        yield Event("gradients-vanish" if ratio < 1 else "gradients-explode", step, stack, ratio)
    if not at_zero <= _EXPLODED:
        size = at_zero if math.isfinite(at_zero) else math.inf
        yield Event("gradients-explode-at-zero", step, stack, size)
