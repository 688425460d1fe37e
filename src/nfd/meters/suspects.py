"""Which tensors scale otherwise than the tables of the rules say, and why.

The meters of a check say that something grows. Its suspects say where. Of every tensor W a network
shows

    start    rms(W(0))
    change   rms(W - W(0)) after the last step; |W - W(0)|_2 where the optimizer fixes the largest
             singular value (Muon)
    first    the same after the first step that changes it
    decay    its rate times its weight decay
    epsilon  Adam's epsilon over the root of its second moment
    moved    of a tensor of 16 bits whose large entries stay: the share of entries with a gradient
             that training changes
    effect   its rate times the sum of |dLoss/dW|: the most that an update of Adam's size moves the
             loss

and a plan of the same model under a rule of mup's kind says how start and change are to follow the
sizes, with what the model's own forward pass multiplies the tensor by. What is left is the
*excess*, a power of width or depth that is to be 0. Updates of sound networks of Adam have the
exponents of their rates; those of SGD follow their gradients, which have the powers of
``nfd.scaling.rules`` in sound networks alone.

Steps of Adam's kind have the size of their rate, but what is left of several depends on how their
signs agree: biases of a sound MLP on digits keep 0.57 of ten steps at width 32 and 0.36 at width
128, where the initial outputs are smaller. So these are judged by their first step as well.

A tensor whose gradient is rounding (biases of keys, which softmax does not see, or of what a norm
of channels follows) or whose effect is next to nothing (``A_log`` of a state space that begins
small) is not judged by its updates.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nfd.core.errors import InputError
from nfd.core.estimates import UNKNOWN, Interval, pooled_slope, rms
from nfd.core.modes import undisturbed
from nfd.core.names import Axis, RuleName
from nfd.core.tables import Row
from nfd.families.family import Family
from nfd.families.member import Member
from nfd.meters.beside import rounded_kinds, rounded_text
from nfd.meters.updates import copies, spectral_norm
from nfd.meters.verdict import verdict_of
from nfd.scaling.model import block_of, in_any_block, numberless, tensors, whole
from nfd.scaling.optimizers import WHOLE_MATRIX, gradient_sizes
from nfd.scaling.plan import Plan
from nfd.scaling.rules import Power, rule_named

_Excesses = dict[tuple[str, "What"], Interval]
What = Literal["start", "update", "factor", "decay", "epsilon", "rounding", "attention"]

# ---- what is read of one network


class Sizes:
    """How large every tensor of a network begins, and what training changes in it.

    Args:
        member: the network before training.
        kept: copies of some of its tensors, by name.
    """

    def __init__(self, member: Member, kept: Mapping[str, Tensor]) -> None:
        # of the paper's all is known
        self.member = member
        own = {} if member.net is not None else tensors(member.module)
        self.start = (
            copies({name: t for name, t in own.items() if name not in kept}) | dict(kept)
            if own
            else {}
        )
        self.settings: dict[str, Row] = {name: {} for name in self.start}
        self.effects = dict[str, float]()
        self.first = dict[str, float]()  # sizes of the first change
        self.rounding: frozenset[str] = frozenset()
        self.optimizer: Any = None
        self.names = {id(t.parameter): name for name, t in own.items()}

    def after(self, optimizer: torch.optim.Optimizer) -> None:
        """Note rates, which those of later steps replace, as a loop may overwrite those of the
        groups, and effects.
        """
        self.optimizer, names = optimizer, self.names
        for group in optimizer.param_groups:
            rate = float(group.get("lr") or 0.0)
            decay = float(group.get("weight_decay") or 0.0)
            for p in group["params"] if rate else ():
                name = names.get(id(p), "")
                if name not in self.settings:
                    continue
                self.settings[name] = {"rate": rate, "decay": rate * decay}
                if not self.first.get(name):
                    self.first[name] = self._size(name, whole(p.detach()) - self.start[name])
                if p.grad is None or p.grad.is_sparse:
                    continue
                effect = rate * float(whole(p.grad).abs().sum(dtype=torch.float64))
                # The largest of all steps: a batch may miss an expert, and heads may start at zero.
                self.effects[name] = max(effect, self.effects.get(name, 0.0))

    def _size(self, name: str, changed: Tensor) -> float:
        """The size of a change of a tensor, in the norm that its optimizer fixes."""
        in_norm = self.member.plan.law_for(name).unit == WHOLE_MATRIX and changed.dim() > 1
        return spectral_norm(changed) if in_norm else rms(changed)

    def find_rounding(self, loss: Callable[[], Tensor]) -> None:
        """Find tensors whose gradient is rounding, among those of a small effect.

        A gradient is linear in the loss, its rounding is not: of 1.37 times the loss a gradient
        changes in the last digits, and what is left of terms that cancel changes by its own size
        (0.7 to 1.8 of it in float32, bfloat16 and under autocast; other gradients by 5e-7, in 16
        bits by 5e-3).

        Args:
            loss: of the last batch; called once, and only if such tensors are there.
        """
        infos = tensors(self.member.module)
        most = max(self.effects.values(), default=0.0)
        names = [name for name, effect in self.effects.items() if effect < _SMALL_EFFECT * most]
        if not names:
            return
        parameters = [infos[name].parameter for name in names]
        value = loss()
        factor = torch.full_like(value, 1.37)
        plain = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
        times = torch.autograd.grad(value, parameters, factor, allow_unused=True)
        rounding = set[str]()
        for name, a, b in zip(names, plain, times, strict=True):
            if a is None or b is None:
                continue
            if rms(b.double() / float(factor) - a.double()) > _ROUNDING * rms(a):
                rounding.add(name)
        self.rounding = frozenset(rounding)

    def read(self) -> list[Row]:
        """A row for every tensor."""
        infos = tensors(self.member.module)
        epsilons = self._epsilons()
        most = max(self.effects.values(), default=0.0)
        rows = []
        for name, start in self.start.items():
            changed = whole(infos[name].parameter.detach()) - start
            sizes = {
                "start": rms(start),
                "change": self._size(name, changed),
                "first": self.first.get(name, 0.0),
            }
            is_faint = name in self.rounding or self.effects.get(name, most) < _NO_EFFECT * most
            row = {
                "tensor": name,
                **sizes,
                **self.settings[name],
                "epsilon": epsilons.get(name, 0.0),
            }
            moved = self._moved(name, infos[name].parameter, start)
            rows.append(
                row
                | {"is_faint": is_faint}
                | (
                    {}
                    if moved is None
                    else {"moved": moved, "kind": in_any_block(name, self.member.plan.blocks)}
                )
            )
        return rows

    def _moved(self, name: str, p: nn.Parameter, start: Tensor) -> float | None:
        """The share of entries with a gradient that training changes, where rounding to 16 bits
        decides which.

        Rounding to the nearest keeps large entries as they are. Stochastic rounding does not, and
        an optimizer that keeps the rest of an update, or weights of 32 bits, has one more tensor of
        this shape: these are not judged.
        """
        if (
            p.dtype not in (torch.float16, torch.bfloat16)
            or p.grad is None
            or "rate" not in self.settings[name]
        ):
            return None
        state = {} if self.optimizer is None else self.optimizer.state.get(p, {})
        if any(
            isinstance(part, Tensor) and part.shape == p.shape
            for key, part in state.items()
            if key not in _STATES
        ):
            return None
        is_trained = whole(p.grad) != 0
        before = start[is_trained].abs().float()
        changed = (whole(p.detach()) != start)[is_trained].float()
        still = len(changed) - int(changed.sum())
        if not len(changed) or not still:
            return None if not len(changed) else 1.0
        share = float(changed.mean())
        largest = float(changed[before.topk(still).indices].mean())
        return share if largest < _LARGE_STAY * share or not share else None

    def _epsilons(self) -> dict[str, float]:
        names = self.names
        found = dict[str, float]()
        for group in self.optimizer.param_groups if self.optimizer is not None else ():
            for p in group["params"]:
                sizes = gradient_sizes(self.optimizer, group, p) if id(p) in names else None
                if sizes is not None:
                    size = rms(sizes)
                    found[names[id(p)]] = group["eps"] / size if size else math.inf
        return found


# ---- what all networks show

_IDLE = 0.02  # of what a normalised update would change: a tensor that does not move
# Of the largest effect of a tensor: those below it may have a gradient of rounding, which is 4e-6
# at most in 16 bits and 1e-9 in float32 (biases of keys and before batch normalisation, widths 32
# and 256)
_SMALL_EFFECT = 1e-4
_ROUNDING = 0.1  # of a gradient that changes with a factor on the loss: it is rounding
# Of the largest effect: nothing that such a tensor does can be seen in the loss. A_log of Falcon-H1
# has 4e-12 and of Granite's hybrids 3e-10 of it (widths 32 to 128, initial weights of 0.02); a
# branch behind a gain of 1e-6 has 1e-7.
_NO_EFFECT = 1e-8
_RULING = 0.3  # of the gradient: an epsilon that decides the size of Adam's updates
_ALIKE = 0.15  # exponents that are the same
# Of the share that moves: how much of as many of the largest entries as stay. Rounding to the
# nearest leaves them.
_LARGE_STAY = 0.35
# What optimizers of PyTorch keep of a parameter
_STATES = frozenset(
    {
        "exp_avg",
        "exp_avg_sq",
        "max_exp_avg_sq",
        "exp_inf",
        "momentum_buffer",
        "square_avg",
        "grad_avg",
        "sum",
    }
)


@dataclass(frozen=True)
class Suspect:
    """A kind of tensors that scales otherwise than it should. Print it for the sentence.

    Attributes:
        tensor: its name, with ``*`` for every block.
        axis: width or depth.
        what: its ``start`` or its ``update``; the ``factor`` of the forward pass, where both
            deviate alike; its ``decay``; Adam's ``epsilon``; the ``rounding`` of its updates to 16
            bits; or the scale of the ``attention`` logits of these queries.
        excess: the power of the axis that is to be 0.
        cause: why, in words.
    """

    tensor: str
    axis: Axis
    what: What
    excess: Interval
    cause: str

    def __str__(self) -> str:
        return f"{self.tensor}: {self.cause}"


@undisturbed()
def suspects_of(
    runs: Sequence[Row],
    sizes: Mapping[str, list[int]],
    family: Family,
    axes: Sequence[Axis],
    *,
    updates: bool,
) -> tuple[list[Suspect], str]:
    """The suspects of all networks along these axes, the furthest from what is sound first; and why
    there can be none, where no plan can be made.

    Args:
        family: its plans judge: those of its rule, or where that leaves tensors as they are of one
            that scales.
        updates: whether the law of its optimizer is the law of the one that trained.
    """
    asked = [axis for axis in axes if len(sizes[axis]) > 1]
    if not asked or not any(run["tensors"] for run in runs):
        return [], ""
    is_free = not rule_named(family.rule).scales_width
    plans = {}
    untold = ""
    for rule in ["complete-p", "mup"] if is_free else [family.rule]:
        try:
            judge = family.under(rule)
            plans = {(n, L): judge.plan(n, L) for n in sizes["width"] for L in sizes["depth"]}
            break
        except InputError as error:
            untold = f"Tensors are not judged by themselves: {error}"
    if not plans:
        return [], untold
    found = [
        s
        for axis in asked
        for s in _Along(axis, runs, sizes[axis], plans, is_free, updates).suspects()
    ]
    return sorted(found, key=lambda suspect: -abs(suspect.excess.value)), ""


@dataclass(frozen=True)
class _Along:
    """The networks along one axis and the plans that judge them; ``is_free``: whether no plan
    scales these networks, ``updates``: whether their updates are judged."""

    axis: Axis
    runs: Sequence[Row]
    sizes: list[int]
    plans: Mapping[tuple[int, int], Plan]
    is_free: bool
    updates: bool

    def suspects(self) -> Iterator[Suspect]:
        found = dict[tuple[str, What], Interval]()
        # both exponents of a branch have limits in depth: where nobody chose, the nearer one judges
        rules: list[RuleName] = (
            ["depth-mup", "complete-p"] if self.is_free and self.axis == "depth" else []
        )
        for rule in rules or [self.plan(self.runs[0]).rule]:
            for place, excess in self.excesses(rule).items():
                is_judged = self.updates or place[1] != "update"
                if is_judged and (
                    place not in found or abs(excess.value) < abs(found[place].value)
                ):
                    found[place] = excess
        span = self.sizes[-1] / self.sizes[0]
        clear = {
            place: own
            for place, own in found.items()
            if verdict_of(own, span) in ("GROWS", "COLLAPSES")
        }
        rounded = {numberless(kind) for kind in rounded_kinds(self.runs)}
        # What is rounded away explains updates that are too small, and too large where a step is
        # the last digit.
        clear = {
            place: own
            for place, own in clear.items()
            if place[1] != "update" or place[0] not in rounded
        }
        clear = {
            place: own
            for place, own in clear.items()
            if place[1] != "update" or not self.only_cancels(place[0])
        }
        clear = self.without_what_follows(clear)
        for (kind, what), excess in clear.items():
            start, update = (clear.get((kind, of)) for of in ("start", "update"))
            alike = start and update and abs(start.value - update.value) < _ALIKE
            a, b = self.ends(kind)
            if (
                not alike
                or math.isclose(a["own_factor"], b["own_factor"], rel_tol=1e-3)
                or what not in ("start", "update")
            ):
                yield self.suspect(kind, what, excess)
            elif what == "start":
                yield self.suspect(kind, "factor", excess)
        if self.axis == "width":
            yield from self.grown_logits()
            yield from self.decayed_gains()
            yield from self.rounded_away()

    def without_what_follows(self, clear: _Excesses) -> _Excesses:
        """Suspects without updates at sound rates, where something else is wrong of which they may
        be a consequence.
        """
        follows = {
            (kind, what): what == "update"
            and self.has_sound_rate(kind)
            and (kind, "start") not in clear
            for kind, what in clear
        }
        causes = {place: excess for place, excess in clear.items() if not follows[place]}
        return causes or clear

    def only_cancels(self, kind: str) -> bool:
        """Whether steps of a kind of tensors have sound sizes, and what is left of several depends
        on their signs.
        """
        names = [
            t["tensor"]
            for t in self.runs[0]["tensors"]
            if _kind(t["tensor"], self.plan(self.runs[0])) == kind
        ]
        if any(
            self.plan(self.runs[0]).law_for(name).degree for name in names
        ) or not self.has_sound_rate(kind):
            return False
        first = self.first_excess(kind)
        span = self.sizes[-1] / self.sizes[0]
        return math.isfinite(first.value) and verdict_of(first, span) not in ("GROWS", "COLLAPSES")

    def first_excess(self, kind: str) -> Interval:
        """The power of the axis that is left of the first step of a kind of tensors."""
        other: Axis = "depth" if self.axis == "width" else "width"
        points = list[tuple[float, float, float]]()
        for run in self.runs:
            plan = self.plan(run)
            own = [t for t in run["tensors"] if _kind(t["tensor"], plan) == kind and t.get("first")]
            squares = [(t["first"] / _sound_update(plan, t["tensor"])) ** 2 for t in own]
            if squares:
                points.append(
                    (
                        math.log(run[self.axis]),
                        run[other],
                        math.log(math.fsum(squares) / len(squares)) / 2,
                    )
                )
        if not points:
            return UNKNOWN
        x, group, y = torch.tensor(points, dtype=torch.float64).T
        return pooled_slope(x, y, group)

    def plan(self, run: Row) -> Plan:
        """What judges a network."""
        return self.plans[run["width"], run["depth"]]

    def excesses(self, rule: RuleName) -> dict[tuple[str, What], Interval]:
        """The power of the axis that is left of every quantity of every kind of tensors."""
        other: Axis = "depth" if self.axis == "width" else "width"
        points = defaultdict[tuple[str, What], list[tuple[float, float, float]]](list)
        for run in self.runs:
            plan = replace(self.plan(run), rule=rule)
            for place, value in _logs(run, plan, self.idle).items():
                points[place].append((math.log(run[self.axis]), run[other], value))
            for name in self.lacking:
                points[_kind(f"{name}.", plan).rstrip("."), "factor"].append(
                    (
                        math.log(run[self.axis]),
                        run[other],
                        -math.log(plan.multipliers.get(name, 1.0)),
                    )
                )
        columns = {place: torch.tensor(own, dtype=torch.float64).T for place, own in points.items()}
        return {place: pooled_slope(x, y, group) for place, (x, group, y) in columns.items()}

    @cached_property
    def idle(self) -> frozenset[str]:
        """Kinds whose updates are no evidence: normalised ones move them nowhere, or most networks
        do not need them.
        """
        moved = set[str]()
        faint = Counter[str]()
        networks_of = Counter[str]()
        for run in self.runs:
            plan = self.plan(run)
            needed = set[str]()
            kinds = set[str]()
            for t in run["tensors"]:
                kind = _kind(t["tensor"], plan)
                kinds.add(kind)
                if plan.law_for(t["tensor"]).degree or t["change"] > _IDLE * t.get("rate", 0.0):
                    moved.add(kind)
                if not t["is_faint"]:
                    needed.add(kind)
            networks_of.update(kinds)
            faint.update(kinds - needed)
        return frozenset(
            kind
            for kind, count in networks_of.items()
            if kind not in moved or 2 * faint[kind] >= count
        )

    @cached_property
    def lacking(self) -> frozenset[str]:
        """Modules that need a factor in the forward pass that nobody gave them."""
        plans = self.plans.values() if self.is_free and self.axis == "width" else ()
        return frozenset(name for plan in plans for name in plan.multipliers)

    def ends(self, kind: str) -> tuple[dict[str, float], dict[str, float]]:
        """Means of a kind of tensors at both ends of the axis, at one size of the other."""
        first = self.runs[0]
        other = "depth" if self.axis == "width" else "width"
        last = next(
            run
            for run in self.runs
            if (run[self.axis], run[other]) == (self.sizes[-1], first[other])
        )
        return _means(first, kind, self.plan(first)), _means(last, kind, self.plan(last))

    def has_sound_rate(self, kind: str) -> bool:
        """Whether its rate follows the plan and Adam's epsilon leaves its updates alone."""
        a, b = self.ends(kind)
        follows = a["rate"] > 0 and math.isclose(
            b["rate"] / a["rate"], b["sound_rate"] / a["sound_rate"], rel_tol=0.05
        )
        return follows and b["epsilon"] < _RULING

    # ---- in words

    def suspect(self, kind: str, what: What, excess: Interval) -> Suspect:
        """With what was seen at both ends of the axis."""
        (a, b) = self.ends(kind)
        (first, last) = (f"{self.axis} {self.sizes[k]}" for k in (0, -1))
        side = "large" if excess.value > 0 else "small"
        by = (
            f"too {side} by {self.axis}^{excess.value:+.2f} [{excess.low:+.2f}, {excess.high:+.2f}]"
        )

        def values(name: str, sound: str) -> str:
            meant = a[name] * b[sound] / a[sound]
            return (
                f"{a[name]:.3g} at {first} and {b[name]:.3g} at {last}, where {meant:.3g} is sound"
            )

        if what == "factor":
            text = (
                f"start and updates {by}: the forward pass has a factor of {self.axis} too many, "
                "or lacks one"
            )
            entries = self.plan(self.runs[-1]).entries
            tied = [name for name, entry in entries.items() if entry.role == "tied"]
            if (
                tied and kind in entries and entries[kind].multiplier != Power()
            ):  # the norm that takes the head's factor
                kind = tied[0]
                text = (
                    f"it is the head as well, and its logits are {by}: the forward pass must "
                    "divide them"
                )
                text += f" by the {self.axis}, once"
        elif what == "start":
            text = f"start {by}: RMS {values('start', 'sound_start')}"
        elif what == "decay":
            text = (
                f"rate times decay {by}: {values('decay', 'one')}. Let decays rise as rates fall, "
                "and no faster"
            )
        elif b["epsilon"] > max(_RULING, a["epsilon"]) and excess.value < 0:
            what = "epsilon"
            text = (
                f"updates {by}: Adam's epsilon is {b['epsilon']:.2g} times the gradient at {last}. "
                "Lower it"
            )
        elif a["rate"] and not self.has_sound_rate(kind):
            text = f"updates {by}: its rate is {values('rate', 'sound_rate')}"
        else:
            text = f"updates {by}: {values('change', 'sound_update')}"
            text += (
                "; its rate is sound, but not its gradient or the optimizer's factor of its shape"
                if a["rate"]
                else ""
            )
        return Suspect(kind, self.axis, what, excess, text)

    def grown_logits(self) -> Iterator[Suspect]:
        """Attention whose logits get larger as its heads grow."""
        run = self.runs[-1]
        plan = self.plan(run)
        grown = dict[str, float]()
        for name, factor in plan.logits.items():
            grown.setdefault(_kind(name, plan), factor)
        for kind, factor in grown.items():
            power = math.log(factor) / math.log(self.sizes[-1] / self.sizes[0])
            if abs(power) > _ALIKE:
                text = (
                    f"attention logits of its queries are {factor:.3g} times too large at width "
                    f"{run['width']}"
                )
                remedy = "heads grow, and their logits need 1/d in place of 1/sqrt(d)"
                yield Suspect(
                    kind,
                    "width",
                    "attention",
                    Interval(power, 0.0, power, power),
                    f"{text}: {remedy}",
                )

    def rounded_away(self) -> Iterator[Suspect]:
        """Tensors of 16 bits of which a step changes less and less as they grow."""
        for kind, (small, large) in rounded_kinds(self.runs).items():
            power = math.log(max(large, 1e-3) / small) / math.log(self.sizes[-1] / self.sizes[0])
            yield Suspect(
                kind,
                "width",
                "rounding",
                Interval(power, 0.0, power, power),
                rounded_text(small, large),
            )

    def decayed_gains(self) -> Iterator[Suspect]:
        plan = self.plan(self.runs[0])
        read = self.runs[0]["tensors"]
        for name in dict.fromkeys(
            _kind(n, plan)
            for n in decayed_gains(plan, {t["tensor"]: t.get("decay", 0.0) for t in read})
        ):
            yield Suspect(
                name,
                "width",
                "decay",
                UNKNOWN,
                "weight decay pulls this gain to 0 while other vectors are spared",
            )


def decayed_gains(plan: Plan, decays: Mapping[str, float]) -> list[str]:
    """Gains that decay while other vectors are spared, as by a list of names or classes that misses
    them.
    """
    vectors = [name for name in decays if plan.entry(name).is_vector]
    gains = [name for name in vectors if decays[name] and plan.entry(name).start.constant]
    return (
        gains
        if len(gains) < sum(map(bool, decays.values()))
        and any(not decays[name] for name in vectors)
        else []
    )


def _kind(name: str, plan: Plan) -> str:
    """The name with ``*`` for a block, and for an expert in it."""
    return (
        name if block_of(name, plan.blocks) is None else numberless(in_any_block(name, plan.blocks))
    )


def _sound_update(plan: Plan, name: str) -> float:
    """What updates of a tensor are to be, as a multiple of those of the base."""
    law = plan.law_for(name)
    powers = plan.powers(name)
    size = plan.factor(name, powers.rate) * math.pow(plan.own_factor(name), -1 - law.degree)
    return size * math.pow(plan.epsilon(name), law.degree)


def _logs(run: Row, plan: Plan, idle: Collection[str]) -> dict[tuple[str, What], float]:
    """What a network shows over what is sound, by kind, as logarithms of root mean squares over its
    tensors.
    """
    parts = defaultdict[tuple[str, What], list[float]](list)
    for t in run["tensors"]:
        kind = _kind(t["tensor"], plan)
        begins = plan.entry(t["tensor"])
        # smaller biases harm nothing
        is_drawn_vector = begins.is_vector and begins.start.constant is None
        if t["start"] and not begins.start.kept and not is_drawn_vector:
            parts[kind, "start"].append(t["start"] / plan.start_factor(t["tensor"]))
        if t["change"] and kind not in idle:
            parts[kind, "update"].append(t["change"] / _sound_update(plan, t["tensor"]))
        if t.get("decay"):
            parts[kind, "decay"].append(t["decay"])
    squares = {place: math.fsum(v * v for v in own) / len(own) for place, own in parts.items()}
    return {
        place: math.log(square) / 2 for place, square in squares.items() if 0 < square < math.inf
    }


def _means(run: Row, kind: str, plan: Plan) -> dict[str, float]:
    """Means of what a kind of tensors shows in a network, and what is sound."""
    own = [t for t in run["tensors"] if _kind(t["tensor"], plan) == kind]
    read = ("start", "change", "rate", "decay", "epsilon")
    means = {name: math.fsum(t.get(name, 0.0) for t in own) / max(1, len(own)) for name in read}
    if not own:  # a module that lacks a factor
        return means | {"own_factor": 0.0}
    name = own[0]["tensor"]
    means |= {"sound_start": plan.start_factor(name), "sound_update": _sound_update(plan, name)}
    return means | {"sound_rate": plan.rate(name), "own_factor": plan.own_factor(name), "one": 1.0}
