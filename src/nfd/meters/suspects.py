"""Find tensors that scale otherwise than the tables of the rules say, and why.

The meters of a check say that something grows. Its suspects say where. A network shows these
quantities of every tensor W:

    start    rms(W(0))
    change   rms(W - W(0)) after the last step; |W - W(0)|_2 where the optimizer fixes the largest
             singular value (Muon)
    first    the change after the first step that changes W
    decay    the learning rate of W times its weight decay
    epsilon  Adam's epsilon over the root of its second moment
    moved    the share of entries with a gradient that training changes, where W has 16 bits and
             its large entries stay
    effect   the learning rate times the sum of |dLoss/dW|: the most that an update of Adam's size
             moves the loss

and a plan of the same model under a rule of mup's kind says how start and change are to follow the
sizes, with what the model's own forward pass multiplies the tensor by. What is left is the
*excess*, a power of width or depth that is to be 0. Updates of sound networks of Adam have the
exponents of their learning rates; updates of SGD follow their gradients, which have the powers of
``nfd.scaling.rules`` only in sound networks.

Steps of Adam's kind have the size of their learning rate, but what is left of several steps depends
on how their signs agree: biases of a sound MLP on digits keep 0.57 of ten steps at width 32 and
0.36 at width 128, where the initial outputs are smaller. So these are judged by their first step as
well.

Some tensors are not judged by their updates: a tensor whose gradient is rounding (biases of keys,
which softmax does not see, or biases before a norm of channels), and a tensor whose effect is next
to nothing (``A_log`` of a state space that is initialised small).
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
from nfd.core.estimates import LEVEL, UNKNOWN, Interval, pooled_slope, rms
from nfd.core.modes import undisturbed
from nfd.core.names import Axis, RuleName
from nfd.core.tables import Row
from nfd.core.words import number
from nfd.families.family import Family
from nfd.families.member import Member
from nfd.meters.beside import rounded_kinds, rounded_text
from nfd.meters.ratios import arrow, arrow_of_size, axes_of, divided, goes, should_go
from nfd.meters.updates import copies, spectral_norm
from nfd.meters.verdict import since, verdict_of
from nfd.scaling.model import block_of, in_any_block, numberless, tensors, whole
from nfd.scaling.optimizers import WHOLE_MATRIX, gradient_sizes
from nfd.scaling.plan import Plan
from nfd.scaling.rules import Power, rule_named

What = Literal["start", "update", "factor", "decay", "epsilon", "rounding", "attention"]
Quantity = Literal[
    "learning rate",
    "initial std",
    "initial value",
    "weight decay",
    "epsilon",
    "forward factor",
    "attention logits",
    "update",
    "rounding",
]
_Excesses = dict[tuple[str, What], Interval]
# The logarithm of a size, the size along the other axis, and the logarithm of a quantity
_Point = tuple[float, float, float]

# ---- What is read of one network


class Sizes:
    """How large every tensor of a network is initialised, and what training changes in it.

    Args:
        member: the network before training.
        kept: copies of some of its tensors, by name.
    """

    def __init__(self, member: Member, kept: Mapping[str, Tensor]) -> None:
        self.member = member
        infos = {}
        # How the networks of the paper scale is known.
        if member.net is None:
            infos = tensors(member.module)
        self.start: dict[str, Tensor] = {}
        if infos:
            without_copy = {name: t for name, t in infos.items() if name not in kept}
            self.start = copies(without_copy) | dict(kept)
        self.settings: dict[str, Row] = {name: {} for name in self.start}
        self.effects = dict[str, float]()
        # Sizes of the first change
        self.first = dict[str, float]()
        self.rounding: frozenset[str] = frozenset()
        self.optimizer: Any = None
        self.names = {id(t.parameter): name for name, t in infos.items()}

    def after(self, optimizer: torch.optim.Optimizer, factor: float = 1.0) -> None:
        """Note the effects of a step and its learning rates, of which the latest count.

        A loop may overwrite the learning rates of the groups after the first step.

        Args:
            factor: of the schedule at this step. Rates are noted without it, as the user gave them.
        """
        self.optimizer = optimizer
        for group in optimizer.param_groups:
            rate = float(group.get("lr") or 0.0)
            decay = float(group.get("weight_decay") or 0.0)
            if not rate:
                continue
            for p in group["params"]:
                name = self.names.get(id(p), "")
                if name in self.settings:
                    base_rate = rate / factor
                    self.settings[name] = {"rate": base_rate, "decay": base_rate * decay}
                    self._note(name, p, rate)

    def _note(self, name: str, p: Tensor, rate: float) -> None:
        """Note the first change of a tensor and its effect at a step."""
        if not self.first.get(name):
            self.first[name] = self._size(name, whole(p.detach()) - self.start[name])
        if p.grad is None or p.grad.is_sparse:
            return
        # Sums of 64 bits took three times as long; only orders of magnitude are compared.
        wide = torch.promote_types(p.grad.dtype, torch.float32)
        effect = rate * float(whole(p.grad).abs().sum(dtype=wide))
        # Take the largest of all steps: a batch may miss an expert, and heads may be initialised to
        # zero.
        self.effects[name] = max(effect, self.effects.get(name, 0.0))

    def _size(self, name: str, changed: Tensor) -> float:
        """The size of a change of a tensor, in the norm that its optimizer fixes."""
        fixes_norm = self.member.plan.law_for(name).unit == WHOLE_MATRIX
        if fixes_norm and changed.dim() > 1:
            return spectral_norm(changed.flatten(1))
        return rms(changed)

    def find_rounding(self, loss: Callable[[], Tensor]) -> None:
        """Find tensors whose gradient is rounding, among tensors of a small effect.

        A gradient is linear in the loss, its rounding is not. Where the loss is multiplied by 1.37,
        a gradient changes in the last digits, by 5e-7 of it, in 16 bits by 5e-3. What is left of
        terms that cancel changes by 0.7 to 1.8 of itself, in float32, bfloat16 and under autocast.

        Args:
            loss: returns the loss of the last batch; called once, and only if such tensors are
                there.
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
        """Return a row for every tensor."""
        infos = tensors(self.member.module)
        epsilons = self._epsilons()
        most = max(self.effects.values(), default=0.0)
        blocks = frozenset(self.member.plan.blocks)
        rows = []
        for name, start in self.start.items():
            changed = whole(infos[name].parameter.detach()) - start
            has_no_effect = self.effects.get(name, most) < _NO_EFFECT * most
            row = {
                "tensor": name,
                "start": rms(start),
                "change": self._size(name, changed),
                "first": self.first.get(name, 0.0),
                **self.settings[name],
                "epsilon": epsilons.get(name, 0.0),
                "is_faint": name in self.rounding or has_no_effect,
            }
            moved = self._moved(name, infos[name].parameter, start)
            if moved is not None:
                row["moved"] = moved
                row["kind"] = in_any_block(name, blocks)
            rows.append(row)
        return rows

    def _moved(self, name: str, p: nn.Parameter, start: Tensor) -> float | None:
        """The share of entries with a gradient that training changes, if rounding decides which.

        Rounding to the nearest number of 16 bits keeps large entries as they are. Two kinds of
        tensors are not judged, and have None: those with stochastic rounding, where large entries
        change, and those whose optimizer has one more tensor of this shape, which keeps the rest of
        an update, or weights of 32 bits.
        """
        has_16_bits = p.dtype in (torch.float16, torch.bfloat16)
        if not has_16_bits or p.grad is None or "rate" not in self.settings[name]:
            return None
        if self._keeps_more(p):
            return None
        is_trained = whole(p.grad) != 0
        before = start[is_trained].abs().float()
        changed = (whole(p.detach()) != start)[is_trained].float()
        if not len(changed):
            return None
        unchanged_count = len(changed) - int(changed.sum())
        if unchanged_count == 0:
            return 1.0
        share = float(changed.mean())
        if share == 0:
            return 0.0
        share_of_largest = float(changed[before.topk(unchanged_count).indices].mean())
        return share if share_of_largest < _LARGE_STAY * share else None

    def _keeps_more(self, p: nn.Parameter) -> bool:
        """Whether the optimizer keeps a tensor of this shape that PyTorch's do not keep."""
        if self.optimizer is None:
            return False
        state = self.optimizer.state.get(p, {})
        additions = [part for name, part in state.items() if name not in _STATES]
        return any(isinstance(part, Tensor) and part.shape == p.shape for part in additions)

    def _epsilons(self) -> dict[str, float]:
        """Adam's epsilon over the root of its second moment, of every tensor that has one."""
        epsilons = dict[str, float]()
        if self.optimizer is None:
            return epsilons
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                name = self.names.get(id(p))
                if name is None:
                    continue
                sizes = gradient_sizes(self.optimizer, group, p)
                if sizes is not None:
                    size = rms(sizes)
                    epsilons[name] = group["eps"] / size if size else math.inf
        return epsilons


# ---- What all networks show

# A tensor that changes by less than this share of a normalised update does not move.
_IDLE = 0.02
# A tensor with less than this share of the largest effect may have a gradient of rounding. Its
# effect is 4e-6 at most in 16 bits and 1e-9 in float32 (biases of keys and before batch
# normalisation, widths 32 and 256).
_SMALL_EFFECT = 1e-4
# A gradient is rounding if a factor on the loss changes more than this share of it.
_ROUNDING = 0.1
# A tensor with less than this share of the largest effect cannot be seen in the loss. A_log of
# Falcon-H1 has 4e-12 of it and A_log of Granite's hybrids 3e-10 (widths 32 to 128, initial weights
# of 0.02); a branch multiplied by a gain of 1e-6 has 1e-7.
_NO_EFFECT = 1e-8
# An epsilon above this share of the gradient decides the size of Adam's updates.
_RULING = 0.3
# Exponents that differ by less are the same.
_ALIKE = 0.15
# Rounding to the nearest leaves the largest entries. Take as many of the largest as stay unchanged:
# less than this multiple of the share of all that change is to change among these.
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
        quantity: what is to be changed.
        now: its value in the largest network.
        sound: what it should be there, as far as this axis decides.
        since: the size from which on it deviates.
        role: the role of the tensor (``nfd.scaling.rules``).
    """

    tensor: str
    axis: Axis
    what: What
    excess: Interval
    cause: str
    quantity: Quantity = "update"
    now: float = math.nan
    sound: float = math.nan
    since: int = 0
    role: str = ""

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
    level: float = LEVEL,
) -> tuple[list[Suspect], str]:
    """Find the suspects of all networks along these axes, the furthest from sound first.

    Args:
        family: its plans judge, under its rule, or under a rule that scales if its rule leaves
            tensors as they are.
        updates: whether to judge updates: whether the optimizer law of the family is the law of the
            optimizer that trained.
        level: the probability beyond one end of an interval.

    Returns:
        The suspects; and where no plan can be made, the reason, else an empty text.
    """
    asked = [axis for axis in axes if len(sizes[axis]) > 1]
    if not asked or not any(run["tensors"] for run in runs):
        return [], ""
    is_free = not rule_named(family.rule).scales_width
    rules: list[RuleName] = [family.rule]
    if is_free:
        rules = ["complete-p", "mup"]
    why_none = ""
    for rule in rules:
        try:
            plans = _plans_of_all(family.under(rule), sizes)
            break
        except InputError as error:
            why_none = f"Tensors are not judged by themselves: {error}"
    else:
        return [], why_none
    suspects = list[Suspect]()
    for axis in asked:
        suspects += _Along(axis, runs, sizes[axis], plans, is_free, updates, level).suspects()
    return sorted(suspects, key=lambda suspect: -abs(suspect.excess.value)), ""


def _plans_of_all(family: Family, sizes: Mapping[str, list[int]]) -> dict[tuple[int, int], Plan]:
    """The plans of all networks of a family, by width and depth."""
    plans = {}
    for width in sizes["width"]:
        for depth in sizes["depth"]:
            plans[width, depth] = family.plan(width, depth)
    return plans


@dataclass(frozen=True)
class _Along:
    """The networks along one axis, and the plans that judge them.

    ``is_free`` is whether no plan scales these networks, ``updates`` whether their updates are
    judged, ``level`` the probability beyond one end of an interval.
    """

    axis: Axis
    runs: Sequence[Row]
    sizes: list[int]
    plans: Mapping[tuple[int, int], Plan]
    is_free: bool
    updates: bool
    level: float

    def suspects(self) -> Iterator[Suspect]:
        clear = self.without_what_follows(self.clear_excesses())
        for (kind, what), excess in clear.items():
            is_of_factor = what in ("start", "update") and self.is_factor(kind, clear)
            if not is_of_factor:
                yield self.suspect(kind, what, excess)
            elif what == "start":
                # One factor moves start and update alike: name it once.
                yield self.suspect(kind, "factor", excess)
        if self.axis == "width":
            yield from self.grown_logits()
            yield from self.decayed_gains()
            yield from self.rounded_away()

    def clear_excesses(self) -> _Excesses:
        """The excesses that are certain, without excesses of updates that have another cause."""
        # Both exponents of a branch have limits in depth: where nobody chose, the nearer one
        # judges.
        rules = [self.plan(self.runs[0]).rule]
        if self.is_free and self.axis == "depth":
            rules = ["depth-mup", "complete-p"]
        nearest: _Excesses = {}
        for rule in rules:
            for place, excess in self.excesses(rule).items():
                if place[1] == "update" and not self.updates:
                    continue
                if place not in nearest or abs(excess.value) < abs(nearest[place].value):
                    nearest[place] = excess
        span = self.sizes[-1] / self.sizes[0]
        # What is rounded away explains updates that are too small, and too large where a step is
        # the last digit.
        rounded = {numberless(kind) for kind in rounded_kinds(self.runs)}
        clear: _Excesses = {}
        for (kind, what), excess in nearest.items():
            if verdict_of(excess, span) not in ("GROWS", "COLLAPSES"):
                continue
            is_rounded = numberless(kind) in rounded
            if what == "update" and (is_rounded or self.only_cancels(kind)):
                continue
            clear[kind, what] = excess
        return clear

    def is_factor(self, kind: str, clear: _Excesses) -> bool:
        """Whether start and update deviate alike, and a factor of the forward pass does it."""
        start = clear.get((kind, "start"))
        update = clear.get((kind, "update"))
        if start is None or update is None or abs(start.value - update.value) >= _ALIKE:
            return False
        a, b = self.ends(kind)
        return not math.isclose(a["own_factor"], b["own_factor"], rel_tol=1e-3)

    def without_what_follows(self, clear: _Excesses) -> _Excesses:
        """Leave out updates at sound learning rates where something else is wrong.

        They may be a consequence of it.
        """
        causes: _Excesses = {}
        for (kind, what), excess in clear.items():
            has_sound_start = (kind, "start") not in clear
            follows = what == "update" and has_sound_start and self.has_sound_rate(kind)
            if not follows:
                causes[kind, what] = excess
        return causes or clear

    def only_cancels(self, kind: str) -> bool:
        """Whether single steps of a kind of tensors have sound sizes.

        Then what is left of several steps depends on their signs.
        """
        plan = self.plan(self.runs[0])
        names = [t["tensor"] for t in self.runs[0]["tensors"] if self.kinds.of(t["tensor"]) == kind]
        follows_gradient = any(plan.law_for(name).degree for name in names)
        if follows_gradient or not self.has_sound_rate(kind):
            return False
        first = self.first_excess(kind)
        span = self.sizes[-1] / self.sizes[0]
        return math.isfinite(first.value) and verdict_of(first, span) not in ("GROWS", "COLLAPSES")

    def first_excess(self, kind: str) -> Interval:
        """The power of the axis that is left of the first step of a kind of tensors."""
        points = list[_Point]()
        for run in self.runs:
            plan = self.plan(run)
            squares = []
            for t in run["tensors"]:
                if self.kinds.of(t["tensor"]) == kind and t.get("first"):
                    squares.append((t["first"] / _sound_update(plan, t["tensor"])) ** 2)
            if squares:
                log = math.log(math.fsum(squares) / len(squares)) / 2
                points.append((math.log(run[self.axis]), run[self.other], log))
        if not points:
            return UNKNOWN
        x, group, y = torch.tensor(points, dtype=torch.float64).T
        return pooled_slope(x, y, group, self.level)

    @cached_property
    def kinds(self) -> Kinds:
        """The kinds of tensors, as the largest network has them."""
        return Kinds(self.plans[max(self.plans)])

    @property
    def other(self) -> Axis:
        """The axis across this one."""
        if self.axis == "width":
            return "depth"
        return "width"

    def plan(self, run: Row) -> Plan:
        """The plan that judges a network."""
        return self.plans[run["width"], run["depth"]]

    def excesses(self, rule: RuleName) -> dict[tuple[str, What], Interval]:
        """The power of the axis that is left of every quantity of every kind of tensors."""
        excesses = {}
        for place, of_place in self.points(rule).items():
            x_values, group, y = torch.tensor(of_place, dtype=torch.float64).T
            excesses[place] = pooled_slope(x_values, y, group, self.level)
        return excesses

    def points(self, rule: RuleName) -> Mapping[tuple[str, What], list[_Point]]:
        """What is left of every quantity in every network, under a rule."""
        points = defaultdict[tuple[str, What], list[_Point]](list)
        for run in self.runs:
            plan = replace(self.plan(run), rule=rule)
            x = math.log(run[self.axis])
            for place, log in _logs(run, plan, self.kinds, self.idle).items():
                points[place].append((x, run[self.other], log))
            for name in self.lacking:
                kind = self.kinds.of(f"{name}.").rstrip(".")
                log = -math.log(plan.multipliers.get(name, 1.0))
                points[kind, "factor"].append((x, run[self.other], log))
        return points

    @cached_property
    def planned_points(self) -> Mapping[tuple[str, What], list[_Point]]:
        """What is left of every quantity under the rule of the plans."""
        return self.points(self.plan(self.runs[0]).rule)

    def since(self, kind: str, what: What) -> int:
        """The size from which on a quantity deviates."""
        logs = defaultdict[float, list[float]](list)
        for x, _, log in self.planned_points.get((kind, what), ()):
            logs[x].append(log)
        means = []
        for size in self.sizes:
            of_size = logs.get(math.log(size), [math.nan])
            means.append(math.exp(math.fsum(of_size) / len(of_size)))
        return since(self.sizes, torch.tensor(means, dtype=torch.float64))

    @cached_property
    def idle(self) -> frozenset[str]:
        """The kinds of tensors whose updates are not evidence.

        Normalised updates move them nowhere, or most networks do not need them.
        """
        moved = set[str]()
        faint = Counter[str]()
        networks_of = Counter[str]()
        for run in self.runs:
            plan = self.plan(run)
            needed = set[str]()
            kinds = set[str]()
            for t in run["tensors"]:
                kind = self.kinds.of(t["tensor"])
                kinds.add(kind)
                if plan.law_for(t["tensor"]).degree or t["change"] > _IDLE * t.get("rate", 0.0):
                    moved.add(kind)
                if not t["is_faint"]:
                    needed.add(kind)
            networks_of.update(kinds)
            faint.update(kinds - needed)
        idle = set[str]()
        for kind, count in networks_of.items():
            is_mostly_faint = 2 * faint[kind] >= count
            if kind not in moved or is_mostly_faint:
                idle.add(kind)
        return frozenset(idle)

    @cached_property
    def lacking(self) -> frozenset[str]:
        """The modules that need a factor in the forward pass that nobody gave them."""
        if not self.is_free or self.axis != "width":
            return frozenset()
        multiplied = [plan.multipliers.keys() for plan in self.plans.values()]
        return frozenset().union(*multiplied)

    def ends(self, kind: str) -> tuple[dict[str, float], dict[str, float]]:
        """The means of a kind of tensors at both ends of this axis, at one size of the other."""
        first = self.runs[0]
        end = (self.sizes[-1], first[self.other])
        last = next(run for run in self.runs if (run[self.axis], run[self.other]) == end)
        return self.means(first, kind), self.means(last, kind)

    def means(self, run: Row, kind: str) -> dict[str, float]:
        """The means of a kind of tensors in one network."""
        return _means(run, kind, self.plan(run), self.kinds)

    def has_sound_rate(self, kind: str) -> bool:
        """Whether the learning rate follows the plan and Adam's epsilon does not rule updates."""
        a, b = self.ends(kind)
        if a["rate"] <= 0 or b["epsilon"] >= _RULING:
            return False
        sound = b["sound_rate"] / a["sound_rate"]
        return math.isclose(b["rate"] / a["rate"], sound, rel_tol=0.05)

    # ---- In words

    def suspect(self, kind: str, what: What, excess: Interval) -> Suspect:
        """Put in words what was seen at both ends of the axis."""
        deviation = self.deviation(kind, what, excess)
        if deviation.quantity == "epsilon":
            what = "epsilon"
        since_size = self.since(kind, "update" if what == "epsilon" else what)
        now = self.in_the_largest(kind, deviation)
        return Suspect(
            deviation.tensor or kind,
            self.axis,
            what,
            excess,
            deviation.text,
            deviation.quantity,
            now,
            now * deviation.sound / deviation.now,
            since_size,
            self.role(deviation.tensor or kind),
        )

    def in_the_largest(self, kind: str, deviation: _Deviation) -> float:
        """The value of what deviates in the largest network along both axes."""
        key = _KEYS.get(deviation.quantity)
        if key is None:
            return deviation.now
        largest = max(self.runs, key=lambda run: (run["width"], run["depth"], -run["seed"]))
        means = self.means(largest, kind)
        if deviation.quantity == "weight decay":
            return means["decay"] / means["rate"]
        return means[key]

    def deviation(self, kind: str, what: What, excess: Interval) -> _Deviation:
        """Say what of a kind of tensors deviates, and from what."""
        a, b = self.ends(kind)
        if what == "factor":
            return self.factor(kind, excess)
        if what == "start":
            return self.start(kind)
        if what == "decay":
            return self.decay(kind)
        if b["epsilon"] > max(_RULING, a["epsilon"]) and excess.value < 0:
            text = (
                f"Adam's epsilon is {number(b['epsilon'])} times the gradient at {self.at_the_end} "
                "and slows its updates: lower it"
            )
            return _Deviation("epsilon", b["epsilon"], _RULING, text)
        if a["rate"] and not self.has_sound_rate(kind):
            now = b["rate"]
            sound = a["rate"] * b["sound_rate"] / a["sound_rate"]
            text = f"learning rate {arrow(now, sound)}, {self.by(now / sound)}"
            return _Deviation("learning rate", now, sound, text)
        now = b["change"]
        sound = a["change"] * b["sound_update"] / a["sound_update"]
        text = f"its updates are {arrow_of_size(now, sound)} at {self.at_the_end}"
        if a["rate"]:
            text += (
                "; its learning rate is sound, but not its gradient or the optimizer's factor of "
                "its shape"
            )
        return _Deviation("update", now, sound, text)

    def start(self, kind: str) -> _Deviation:
        """Say how initial weights follow the size, and how they should."""
        a, b = self.ends(kind)
        now = b["start"]
        sound_ratio = b["sound_start"] / a["sound_start"]
        sound = a["start"] * sound_ratio
        span = math.log(self.sizes[-1] / self.sizes[0])
        power = math.log(now / a["start"]) / span
        sound_power = math.log(sound_ratio) / span
        quantity: Quantity = "initial value" if self.is_constant(kind) else "initial std"
        text = (
            f"{quantity} {goes(power, self.axis)}; it should {should_go(sound_power, self.axis)} "
            f"({number(sound, 3)} at {self.at_the_end})"
        )
        return _Deviation(quantity, now, sound, text)

    def decay(self, kind: str) -> _Deviation:
        """Say what weight decay keeps the product with the learning rate."""
        a, b = self.ends(kind)
        now = b["decay"] / b["rate"]
        # Where the learning rate is to change as well, decay follows the sound one.
        rate = a["rate"] * b["sound_rate"] / a["sound_rate"]
        sound = a["decay"] / rate
        text = (
            f"weight decay {arrow(now, sound)}, {self.by(now / sound)}: it should rise as the "
            "learning rate falls, and no faster"
        )
        if math.isclose(now, sound, rel_tol=0.05):
            # Only the learning rate is wrong, and with it the product.
            sound = now
            text = "weight decay is sound once its learning rate is: their product is what counts"
        return _Deviation("weight decay", now, sound, text)

    def factor(self, kind: str, excess: Interval) -> _Deviation:
        """Put in words that the forward pass has a factor too many, or lacks one."""
        entries = self.plan(self.runs[-1]).entries
        tied = [name for name, entry in entries.items() if entry.role == "tied"]
        # The norm before a tied head takes the head's factor.
        is_factor_of_head = kind in entries and entries[kind].multiplier != Power()
        now = math.pow(self.sizes[-1] / self.sizes[0], excess.value)
        size = arrow_of_size(now, 1.0)
        if tied and is_factor_of_head:
            text = (
                f"it is the head as well, and its logits are {size} at {self.at_the_end}: the "
                f"forward pass must divide them by the {self.axis}, once"
            )
            return _Deviation("forward factor", now, 1.0, text, tied[0])
        text = (
            f"initial weights and updates are {size} at {self.at_the_end}: the forward pass has a "
            f"factor of {self.axis} too many, or lacks one"
        )
        return _Deviation("forward factor", now, 1.0, text)

    @property
    def at_the_end(self) -> str:
        """The largest size along this axis: ``width 128``."""
        return f"{self.axis} {self.sizes[-1]}"

    def by(self, ratio: float) -> str:
        """Write a ratio of what is to what should be as ``÷ 4 (width)``."""
        axes = {self.axis: (ratio, self.sizes[-1] / self.sizes[0])}
        return f"{divided(ratio)} ({axes_of(axes)})"

    def role(self, kind: str) -> str:
        """The role of a kind of tensors; empty for a module."""
        plan = self.plan(self.runs[0])
        for name, entry in plan.entries.items():
            if self.kinds.of(name) == kind:
                return entry.role
        return ""

    def is_constant(self, kind: str) -> bool:
        """Whether every entry of a kind of tensors is initialised to one number."""
        plan = self.plan(self.runs[0])
        starts = [e.start for name, e in plan.entries.items() if self.kinds.of(name) == kind]
        return any(start.constant is not None for start in starts)

    def grown_logits(self) -> Iterator[Suspect]:
        """Suspect attention whose logits get larger as its heads grow."""
        run = self.runs[-1]
        plan = self.plan(run)
        factors = dict[str, float]()
        for name, factor in plan.logits.items():
            factors.setdefault(self.kinds.of(name), factor)
        for kind, factor in factors.items():
            power = math.log(factor) / math.log(self.sizes[-1] / self.sizes[0])
            if abs(power) > _ALIKE:
                text = (
                    f"attention logits of its queries are {arrow_of_size(factor, 1.0)} at width "
                    f"{run['width']}: heads grow, and their logits need 1/d in place of 1/√d"
                )
                yield Suspect(
                    kind,
                    "width",
                    "attention",
                    _exactly(power),
                    text,
                    "attention logits",
                    factor,
                    1.0,
                    self.sizes[0],
                    self.role(kind),
                )

    def rounded_away(self) -> Iterator[Suspect]:
        """Suspect tensors of 16 bits of which a step changes less and less as they grow."""
        for kind, (small, large) in rounded_kinds(self.runs).items():
            power = math.log(max(large, 1e-3) / small) / math.log(self.sizes[-1] / self.sizes[0])
            text = rounded_text(small, large)
            yield Suspect(
                kind,
                "width",
                "rounding",
                _exactly(power),
                text,
                "rounding",
                large,
                small,
                self.sizes[0],
                self.role(kind),
            )

    def decayed_gains(self) -> Iterator[Suspect]:
        """Suspect gains that weight decay pulls to 0."""
        plan = self.plan(self.runs[0])
        decays = {t["tensor"]: t.get("decay", 0.0) for t in self.runs[0]["tensors"]}
        text = "weight decay pulls this gain to 0 while other vectors are spared"
        kinds = [self.kinds.of(name) for name in decayed_gains(plan, decays)]
        for kind in dict.fromkeys(kinds):
            now = self.means(self.runs[-1], kind)
            yield Suspect(
                kind,
                "width",
                "decay",
                UNKNOWN,
                text,
                "weight decay",
                now["decay"] / now["rate"],
                0.0,
                self.sizes[0],
                self.role(kind),
            )


# Where a network has the value of a quantity
_KEYS: dict[Quantity, str] = {
    "learning rate": "rate",
    "initial std": "start",
    "initial value": "start",
    "weight decay": "decay",
    "epsilon": "epsilon",
    "update": "change",
}


@dataclass(frozen=True)
class _Deviation:
    """What deviates, its value at the largest size, what is sound there, and both in words.

    ``tensor`` is the tensor to name, where it is another one.
    """

    quantity: Quantity
    now: float
    sound: float
    text: str
    tensor: str = ""


def _exactly(power: float) -> Interval:
    return Interval(power, 0.0, power, power)


def decayed_gains(plan: Plan, decays: Mapping[str, float]) -> list[str]:
    """Find gains that decay while other vectors are spared.

    A list of names or of classes without decay that misses them does that.
    """
    decayed = [name for name in decays if decays[name]]
    decayed_vectors = [name for name in decayed if plan.entry(name).is_vector]
    spared = [name for name in decays if not decays[name]]
    gains = [name for name in decayed_vectors if plan.entry(name).start.constant]
    is_any_vector_spared = any(plan.entry(name).is_vector for name in spared)
    is_other_decayed = len(gains) < len(decayed)
    if is_any_vector_spared and is_other_decayed:
        return gains
    return []


class Kinds:
    """The kinds of tensors of a model: what corresponds in all blocks, and all experts of a layer.

    Numbers inside of a block are those of experts where all tensors are alike that differ only in
    them. Those of an ``nn.Sequential`` are not: its layers are kinds of their own.

    Args:
        plan: of the deepest network.
    """

    def __init__(self, plan: Plan) -> None:
        self.blocks = frozenset(plan.blocks)
        self.names = dict[str, str]()
        traits = defaultdict[str, set[tuple[Any, ...]]](set)
        for name, entry in plan.entries.items():
            trait = (entry.role, entry.shape, entry.start)
            traits[numberless(in_any_block(name, self.blocks))].add(trait)
        self.different = {kind for kind, of_kind in traits.items() if len(of_kind) > 1}

    def of(self, name: str) -> str:
        """The name with ``*`` for a block, and for an expert in it."""
        if name not in self.names:
            self.names[name] = self._of(name)
        return self.names[name]

    def _of(self, name: str) -> str:
        if block_of(name, self.blocks) is None:
            return name
        in_block = in_any_block(name, self.blocks)
        kind = numberless(in_block)
        return in_block if kind in self.different else kind


def _sound_update(plan: Plan, name: str) -> float:
    """How large updates of a tensor are to be, as a multiple of its updates in the base."""
    law = plan.law_for(name)
    powers = plan.powers(name)
    size = plan.factor(name, powers.rate) * math.pow(plan.own_factor(name), -1 - law.degree)
    return size * math.pow(plan.epsilon(name), law.degree)


def _logs(
    run: Row, plan: Plan, kinds: Kinds, idle: Collection[str]
) -> dict[tuple[str, What], float]:
    """The logarithms of what a network shows over what is sound, by kind and quantity.

    They are logarithms of root mean squares over the tensors of a kind.
    """
    ratios = defaultdict[tuple[str, What], list[float]](list)
    for t in run["tensors"]:
        kind = kinds.of(t["tensor"])
        entry = plan.entry(t["tensor"])
        # Biases that are too small harm nothing.
        is_drawn_vector = entry.is_vector and entry.start.constant is None
        if t["start"] and not entry.start.kept and not is_drawn_vector:
            ratios[kind, "start"].append(t["start"] / plan.start_factor(t["tensor"]))
        if t["change"] and kind not in idle:
            ratios[kind, "update"].append(t["change"] / _sound_update(plan, t["tensor"]))
        if t.get("decay"):
            ratios[kind, "decay"].append(t["decay"])
    logs = {}
    for place, of_place in ratios.items():
        square = math.fsum(ratio * ratio for ratio in of_place) / len(of_place)
        if 0 < square < math.inf:
            logs[place] = math.log(square) / 2
    return logs


def _means(run: Row, kind: str, plan: Plan, kinds: Kinds) -> dict[str, float]:
    """The means of what a kind of tensors shows in a network, and what is sound."""
    of_kind = [t for t in run["tensors"] if kinds.of(t["tensor"]) == kind]
    means = {}
    for quantity in ("start", "change", "rate", "decay", "epsilon"):
        total = math.fsum(t.get(quantity, 0.0) for t in of_kind)
        means[quantity] = total / max(1, len(of_kind))
    if not of_kind:
        # A module that lacks a factor
        return means | {"own_factor": 0.0}
    name = of_kind[0]["tensor"]
    return means | {
        "sound_start": plan.start_factor(name),
        "sound_update": _sound_update(plan, name),
        "sound_rate": plan.rate(name),
        "own_factor": plan.own_factor(name),
        "one": 1.0,
    }
