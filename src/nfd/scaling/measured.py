"""The law of an optimizer that nobody described, from the size and shape of its steps on matrices
of its own.

Stepping shows how an update answers the size of a gradient, whether entries are normalised one by
one or a matrix as a whole or in parts, how the largest singular value of the update follows the
shape, and what epsilon and weight decay act on. It does not show what only long training does: how
a distance or a preconditioner that is estimated on the way ends up, or what other methods than
``step`` change.

A gradient of rank one, with entries of 1 and -1, stands for those of training: with growing width
their rank stays that of a batch.
"""

from __future__ import annotations

import copy
import inspect
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from nfd.core.errors import InputError, in_brief
from nfd.core.random import global_streams
from nfd.scaling.groups import OF_MATRICES, SCALE
from nfd.scaling.optimizers import (
    BETAS,
    EACH_ENTRY,
    EPS,
    LAWS,
    OF_THE_LIBRARY,
    WEIGHT_DECAY,
    WHOLE_MATRIX,
    Hyperparameter,
    OptimizerLaw,
    any_shape,
    register_optimizer,
)
from nfd.scaling.rules import Power

Make = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
Shape = tuple[int, ...]

DECAYS = (WEIGHT_DECAY.name, "wd")  # names of weight decay in groups
RATE = 2.0**-7  # of the steps; an update is what a step subtracts over the rate
# of the weights: above the floor of 1e-3 below which some optimizers see no weights
START = 2.0**-4
# some skip the first step, and some are linear in the gradient until the sixth
STEPS = 3
LATE = 12
# the two widths
NARROW = 16
WIDE = 64
# Fused queries, keys and values are three times as tall as wide; no other shape has that ratio.
PANEL: tuple[tuple[int, int], ...] = (
    (NARROW, NARROW),
    (WIDE, WIDE),
    (WIDE, NARROW),
    (NARROW, WIDE),
    (3 * NARROW, NARROW),
    (NARROW, 3 * NARROW),
    (3 * WIDE, WIDE),
)
LARGEST = 2**18  # entries of a matrix that is stepped to find the norm of its update
# Newton-Schulz runs in bfloat16, with a unit of 2^-8, for five steps: 2 %, as a test measures.
# What is told apart differs by a factor of 2^1/2 at least.
ALIKE = 0.06


class MeasurementError(InputError):
    """An optimizer has no law that its steps show."""


# ---- steps on parameters of our own


@dataclass(frozen=True)
class Probe:
    """An optimizer to be made anew for every measurement, never the user's own.

    Attributes:
        make: from parameter groups to an optimizer.
        name: what messages call it.
        dtype: of the parameters; some keep states in float32 alone.
    """

    make: Make
    name: str
    dtype: torch.dtype = torch.float64

    def optimizer(
        self, parameters: Sequence[nn.Parameter], rate: float = RATE
    ) -> torch.optim.Optimizer:
        """A fresh optimizer of these parameters, without weight decay."""
        optimizer = self.make([{"params": list(parameters), "lr": rate}])
        for group in optimizer.param_groups:
            group["lr"] = rate
            for name in DECAYS:
                if group.get(name):
                    group[name] = 0.0
        to_training = getattr(optimizer, "train", None)
        if callable(to_training):  # schedule-free optimizers refuse to step before
            to_training()
        return optimizer

    def in_its_precision(self) -> Probe:
        """The same in float64, or in float32 where the optimizer takes nothing else."""
        try:
            self.update(signs(*PANEL[0]))
        except Exception:  # whatever states of another precision raise
            return replace(self, dtype=torch.float32)
        return self

    def updates(
        self,
        gradients: Sequence[Tensor],
        *,
        rate: float = RATE,
        start: float = START,
        steps: int = STEPS,
        settings: Mapping[str, Any] | None = None,
    ) -> list[Tensor]:
        """What the last of some steps subtracts from every tensor, over the rate.

        Args:
            gradients: of the tensors, the same at every step.
            rate, start: the learning rate, and the size of the initial weights.
            settings: of all groups.
        """
        with global_streams(0), warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            gradients = [gradient.to(self.dtype) for gradient in gradients]
            parameters = [_parameter(gradient, start) for gradient in gradients]
            optimizer = self.optimizer(parameters, rate)
            for group in optimizer.param_groups:
                group.update(settings or {})
            for _ in range(steps):
                before = [p.detach().clone() for p in parameters]
                _step(optimizer, parameters, gradients)
        return [
            (old - p.detach()).double() / rate for old, p in zip(before, parameters, strict=True)
        ]

    def update(self, gradient: Tensor, **more: Any) -> Tensor:
        """What the last of some steps subtracts from one tensor, over the rate."""
        return self.updates([gradient], **more)[0]

    def states(
        self, gradient: Tensor, *, idle: int = 0
    ) -> tuple[torch.optim.Optimizer, dict[str, Tensor]]:
        """The optimizer after some steps, and its tensors for one parameter.

        Args:
            idle: further steps, with a gradient of zero.
        """
        with global_streams(0), warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            gradient = gradient.to(self.dtype)
            parameter = _parameter(gradient, START)
            optimizer = self.optimizer([parameter])
            for step in range(STEPS + idle):
                _step(
                    optimizer,
                    [parameter],
                    [gradient if step < STEPS else torch.zeros_like(gradient)],
                )
        return optimizer, _tensors(optimizer.state[parameter])


def _parameter(gradient: Tensor, start: float) -> nn.Parameter:
    drawn = torch.randn(
        gradient.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    return nn.Parameter((start * drawn).to(gradient.dtype))


def _step(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[nn.Parameter],
    gradients: Sequence[Tensor],
) -> None:
    for p, gradient in zip(parameters, gradients, strict=True):
        p.grad = gradient.clone()
    optimizer.step()


def _tensors(state: Any, name: str = "") -> dict[str, Tensor]:
    """The tensors of a state, also in lists and dicts, by a name."""
    if isinstance(state, Tensor):
        return {name: state.detach().clone()}
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(state, Mapping):
        parts = state.items()
    elif isinstance(state, tuple | list):
        parts = enumerate(state)
    return {
        key: tensor
        for part, value in parts
        for key, tensor in _tensors(value, f"{name}.{part}".strip(".")).items()
    }


def signs(*shape: int) -> Tensor:
    """A gradient of rank one with entries of 1 and -1."""
    g = torch.Generator().manual_seed(len(shape) + sum(shape))
    parts = [
        2.0 * torch.randint(2, (size,), generator=g, dtype=torch.float64) - 1 for size in shape
    ]
    return torch.outer(*parts) if len(shape) == 2 else parts[0]


def norm(update: Tensor) -> float:
    """The largest singular value of a matrix, the length of a vector."""
    return float(torch.linalg.norm(update.double(), 2))


def rms(update: Tensor) -> float:
    """The root of the mean square of the entries."""
    return float(update.double().square().mean().sqrt())


def deviation(a: Tensor, b: Tensor) -> float:
    """How far two tensors differ, over the size of the second."""
    return rms(a - b) / max(rms(b), 1e-300)


# ---- an optimizer like the user's, on other parameters


_NOT_SETTINGS = ("params", "lr", "initial_lr", "param_names", "name", SCALE, "roles", "role")


def probes_of(optimizer: Any) -> tuple[Probe, Probe | None]:
    """What makes optimizers like one of the user's: of matrices, and of vectors if other groups
    have these.

    Args:
        optimizer: an object, its class, or a function from groups that makes it.

    Raises:
        ValueError: if groups step matrices of one shape with different settings, so that no one law
            fits.
    """
    if not hasattr(optimizer, "param_groups") or isinstance(optimizer, type):
        probe = Probe(optimizer, _name_of_made(optimizer))
        return probe, probe
    kind = type(optimizer).__name__
    matrices = list[Like]()
    vectors = list[Like]()
    for group in optimizer.param_groups:
        settings = {name: value for name, value in group.items() if name not in _NOT_SETTINGS}
        of_matrices = [p for p in group["params"] if p.dim() > 1 and group.get(OF_MATRICES, True)]
        if of_matrices:
            matrices.append(Like(settings, frozenset(map(_ratio, of_matrices))))
        if len(of_matrices) < len(group["params"]):
            vectors.append(Like(settings))
    if not matrices:
        matrices = vectors[:1]
    matrices = _one_for_each_shape(matrices, kind)
    probe = Probe(_Remade(optimizer, matrices), kind)
    if OF_MATRICES in matrices[0].settings:  # it leaves vectors to AdamW by itself
        return probe, None
    return probe, Probe(_Remade(optimizer, vectors[:1]), kind) if vectors else probe


@dataclass(frozen=True)
class Like:
    """Settings of a group of the user's optimizer, and rows over columns of its matrices."""

    settings: Mapping[str, Any]
    ratios: frozenset[float] = frozenset()

    @property
    def decisive(self) -> dict[str, Any]:
        """The settings but those that a plan scales."""
        followed = (*DECAYS, EPS.name, BETAS.name)
        return {name: value for name, value in self.settings.items() if name not in followed}

    def nearness(self, ratio: float) -> float:
        """How near one of the ratios is."""
        return -min((abs(math.log(ratio / own)) for own in self.ratios), default=math.inf)


def _ratio(p: Tensor) -> float:
    rows = p.shape[0]
    return rows * rows / max(p.numel(), 1)


def _one_for_each_shape(groups: Sequence[Like], kind: str) -> list[Like]:
    """The groups that step matrices in another way, each with its ratios; ValueError where ratios
    are shared.
    """
    apart = list[Like]()
    for group in groups:
        same = [
            place for place, other in enumerate(apart) if _are_same(other.decisive, group.decisive)
        ]
        if same:
            other = apart[same[0]]
            apart[same[0]] = replace(other, ratios=other.ratios | group.ratios)
        else:
            apart.append(group)
    for place, group in enumerate(apart):
        for other in apart[:place]:
            if group.ratios & other.ratios:
                theirs = other.decisive
                ours = group.decisive
                differing = [name for name in ours if not _are_same(ours[name], theirs.get(name))]
                raise MeasurementError(
                    f"optimizer is a {kind} whose groups step matrices of one shape with different "
                    f"{', '.join(differing)}: a plan has one law for a shape. Give both groups the "
                    "same."
                )
    return apart


def _name_of_made(make: Any) -> str:
    """The class of what a function makes; ValueError if it makes no optimizer of one matrix."""
    name = getattr(make, "__name__", type(make).__name__)
    try:
        made = Probe(make, name).optimizer([_parameter(signs(*PANEL[0]), START)])
    except Exception as error:
        raise MeasurementError(
            f"optimizer is {name}, which could not make an optimizer of one matrix: "
            f"{type(error).__name__}: {in_brief(error)}. Pass a function that does, "
            "optimizer=lambda groups: ..., or its law, nfd.OptimizerLaw."
        ) from error
    return type(made).__name__


def _are_same(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except RuntimeError:
        return False


class _Remade:
    """Makes optimizers with the class and settings of another, which it never steps."""

    def __init__(self, optimizer: torch.optim.Optimizer, groups: Sequence[Like]) -> None:
        self.kind = type(optimizer)
        self.groups = [
            replace(group, settings=copy.deepcopy(dict(group.settings))) for group in groups
        ]
        self.defaults = copy.deepcopy(dict(getattr(optimizer, "defaults", {})))
        self.attributes = {
            name: value for name, value in vars(optimizer).items() if _is_plain(value)
        }

    def _like(self, p: Tensor) -> Mapping[str, Any]:
        """The settings of the group whose matrices have a shape most like that of a parameter."""
        ratio = _ratio(p)
        return max(self.groups, key=lambda group: group.nearness(ratio)).settings

    def __call__(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        settings = {**self.defaults, **self.attributes}
        parameters = list(inspect.signature(self.kind).parameters.values())
        takes = next((p.name for p in parameters if "param" in p.name), parameters[0].name)
        parameters = [p for p in parameters if p.name != takes]
        options = {p.name: settings[p.name] for p in parameters if p.name in settings}
        complete = [
            {**self._like(p), **group, "params": [p]} for group in groups for p in group["params"]
        ]
        bare = [p for group in groups for p in group["params"]]
        errors = list[Exception]()
        for given in (complete, bare):  # some take parameters without groups
            try:
                made = self.kind(**cast(dict[str, Any], {takes: given}), **options)
            except Exception as error:
                errors.append(error)
                continue
            for group in made.param_groups:
                group.update(self._like(group["params"][0]))
            return made
        missing = [
            p.name
            for p in parameters
            if p.default is p.empty and p.name not in options and p.kind is p.POSITIONAL_OR_KEYWORD
        ]
        lacking = f" (its {', '.join(missing)} are not seen)" if missing else ""
        raise MeasurementError(
            f"optimizer is a {self.kind.__name__}, and another like it cannot be made{lacking}: "
            f"{in_brief(errors[0])}. Pass a function that makes it, optimizer=lambda groups: "
            f"{self.kind.__name__}(groups, ...), or its law, nfd.OptimizerLaw."
        )


def _is_plain(value: Any) -> bool:
    """Whether a value holds no tensors or optimizers of the user's."""
    if value is None or isinstance(value, bool | int | float | str | torch.dtype):
        return True
    return isinstance(value, tuple | list) and all(_is_plain(part) for part in value)


# ---- the norm of an update by the shape of its matrix


@dataclass
class MeasuredShape:
    """The largest singular value of the update of a matrix by its shape, as a multiple of that in
    ``unit``.

    A matrix of that shape is stepped. One of more than 2^18 entries is halved on both sides as
    often as needed, and the norm grows with the power that squares have: parts of a fixed size are
    then not seen.
    """

    probe: Probe
    unit: Power
    growth: float  # the power of the norm of squares by their side
    norms: dict[tuple[int, int], float] = field(default_factory=dict)

    def __call__(self, rows: float, columns: float) -> float:
        shape = max(1, round(rows)), max(1, round(columns))
        if shape not in self.norms:
            halvings = 0
            stepped = shape
            while math.prod(stepped) > LARGEST and min(stepped) > 1:
                stepped = (max(1, stepped[0] // 2), max(1, stepped[1] // 2))
                halvings += 1
            self.norms[shape] = norm(self.probe.update(signs(*stepped))) * 2 ** (
                halvings * self.growth
            )
        return self.norms[shape] / unit_norm(self.unit, *shape)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MeasuredShape) or self.unit != other.unit:
            return False
        return are_proportional(
            [self(*shape) for shape in PANEL], [other(*shape) for shape in PANEL]
        )

    __hash__ = None  # type: ignore[assignment]


def unit_norm(unit: Power, rows: float, columns: float) -> float:
    """The largest singular value of a matrix of rank one with entries that scale as a unit."""
    return unit.at(columns, rows, 1.0) * math.sqrt(rows * columns)


def are_proportional(a: Sequence[float], b: Sequence[float], within: float = ALIKE) -> bool:
    """Whether numbers are others times one constant."""
    ratios = [x / y for x, y in zip(a, b, strict=True)]
    return max(ratios) <= min(ratios) * (1 + within)


# ---- what stepping shows


@dataclass(frozen=True)
class Measurement:
    """What the steps of an optimizer show. Print it for a line for each.

    Attributes:
        name: of its class, or of the function that makes it.
        degree: a gradient c times as large gives an update ``c**degree`` times as large.
        unit, vector_unit: whether matrices and vectors are normalised entry by entry or as a whole;
            ``vector_unit`` is None if the optimizer steps no vectors.
        norms: the largest singular value of the update of a matrix, by (rows, columns).
        parts: into how many parts, each normalised by itself, a matrix falls, by (rows, columns).
        epsilon: whether ``eps`` acts beside the entries of the gradient.
        decay: what weight decay acts on: ``"weights"`` (times the rate), ``"weights, at any
            rate"``, ``"gradient"``, or None where the optimizer has none.
        states: numbers stored per parameter, of a square matrix.
        equivariant: whether turning the gradient turns the update.
        decay_name: what groups call weight decay.
        shape_norm: that of ``nfd.OptimizerLaw``, for any shape.
    """

    name: str
    degree: float
    unit: Power
    vector_unit: Power | None
    norms: Mapping[tuple[int, int], float]
    parts: Mapping[tuple[int, int], int]
    epsilon: bool
    decay: str | None
    states: int
    equivariant: bool
    decay_name: str = WEIGHT_DECAY.name
    shape_norm: Callable[[float, float], float] = field(
        repr=False, compare=False, default=any_shape
    )

    @property
    def is_split(self) -> bool:
        """Whether some matrices are normalised in parts."""
        return any(count > 1 for count in self.parts.values())

    def __str__(self) -> str:
        units = {EACH_ENTRY: "entry by entry", WHOLE_MATRIX: "as a whole"}
        split = [
            f"{rows} x {columns} in {count}"
            for (rows, columns), count in self.parts.items()
            if count > 1
        ]
        first = self.norms[PANEL[0]]
        norms = ", ".join(f"{r} x {c}: {value / first:.3g}" for (r, c), value in self.norms.items())
        vectors = "not stepped" if self.vector_unit is None else units[self.vector_unit]
        in_parts = f", in parts: {', '.join(split)}" if split else ""
        epsilon = "beside the entries of the gradient" if self.epsilon else "none of entries"
        lines = [
            f"{self.name}: updates of degree {self.degree:g} in the gradient",
            f"matrices     {units[self.unit]}{in_parts}",
            f"vectors      {vectors}",
            f"norms        {norms}, over that of {PANEL[0][0]} x {PANEL[0][1]}",
            f"epsilon      {epsilon}",
            f"decay        {'none' if self.decay is None else f'of the {self.decay}'}",
            f"states       {self.states} numbers per parameter",
        ]
        return "\n".join(lines)

    def law(self, name: str, make: Any = None) -> OptimizerLaw:
        """The law of an optimizer that steps so."""
        settings: tuple[Hyperparameter, ...] | None = None
        decay = replace(WEIGHT_DECAY, name=self.decay_name)
        if self.decay == AT_ANY_RATE:
            # The share of the weights that a step removes is the decay itself; a run of other
            # length removes it as AdamW's law says.
            decay = Hyperparameter(self.decay_name, default=0.0, batch=1.0, tokens=-1.0)
        if decay != WEIGHT_DECAY:
            settings = (decay, EPS, BETAS) if self.epsilon else (decay,)
        return OptimizerLaw(
            name,
            make,
            degree=self.degree,
            unit=self.unit,
            shape_norm=self.shape_norm,
            epsilon=self.epsilon,
            decoupled=self.decay != OF_GRADIENT,
            states=self.states,
            rest="adamw" if self.vector_unit is None else None,
            equivariant=False,
            hyperparameters=settings,
            vector_unit=None if self.vector_unit == self.unit else self.vector_unit,
            notes=self.notes(),
        )

    def notes(self) -> tuple[str, ...]:
        """What a plan says of the optimizer."""
        split = [
            f"[{rows}, {columns}] in {count}"
            for (rows, columns), count in self.parts.items()
            if count > 1
        ]
        if split:
            return (
                f"{self.name} normalises some matrices in parts, as it was seen to step "
                f"{', '.join(split)}.",
            )
        return ()

    def fits(self, law: OptimizerLaw) -> bool:
        """Whether a law says the same, but for the numbers that are stored."""
        steps_all = self.vector_unit is not None
        return steps_all == (law.rest is None) and not self.false_claims(law)

    def false_claims(self, law: OptimizerLaw) -> list[str]:
        """What a law says of updates, epsilon and decay that is not so, each with its field
        first.
        """
        false = list[str]()
        if abs(law.degree - self.degree) > _DEGREE:
            false.append(f"degree is {law.degree:g}; measured {self.degree:g}.")
        if law.unit != self.unit:
            false.append(f"unit is {_unit_name(law.unit)}; measured {_unit_name(self.unit)}.")
        of_vectors = law.for_vectors().unit
        if law.rest is None and self.vector_unit is None:
            false.append(
                "rest is None; the optimizer steps no vectors. Name the law of what trains them."
            )
        elif (
            law.rest is None
            and of_vectors != self.vector_unit
            and (law.unit == self.unit or law.vector_unit)
        ):
            assert self.vector_unit is not None
            false.append(
                f"vector_unit is {_unit_name(of_vectors)}; measured {_unit_name(self.vector_unit)}."
            )
        said = [law.shape_norm(*shape) * unit_norm(self.unit, *shape) for shape in self.norms]
        seen = list(self.norms.values())
        if law.unit == self.unit and not are_proportional(seen, said):
            ratios = {
                shape: (s / seen[0]) / (a / said[0])
                for shape, s, a in zip(self.norms, seen, said, strict=True)
            }
            worst = max(ratios, key=lambda shape: abs(math.log(ratios[shape])))
            is_part = self.parts.get(worst, 1) > 1
            parts = f" It is normalised in {self.parts[worst]} parts." if is_part else ""
            false.append(
                f"shape_norm of [{worst[0]}, {worst[1]}] over that of {list(PANEL[0])} is "
                f"{said[list(self.norms).index(worst)] / said[0]:.3g} in spectral norms; measured "
                f"{self.norms[worst] / seen[0]:.3g}.{parts}"
            )
        if law.epsilon != self.epsilon:
            acts = "acts" if self.epsilon else "does not act"
            false.append(
                f"epsilon is {law.epsilon}; measured: an eps {acts} beside the entries of the "
                "gradient."
            )
        if (
            not law.is_linear
            and self.decay is not None
            and law.decoupled != (self.decay != OF_GRADIENT)
        ):
            false.append(f"decoupled is {law.decoupled}; measured: decay acts on the {self.decay}.")
        decay = law.setting(WEIGHT_DECAY.name)
        if decay is not None and decay.follows == "weight decay" and self.decay == AT_ANY_RATE:
            false.append(
                "hyperparameters: weight_decay follows 'weight decay'; measured: it acts at any "
                "rate."
            )
        if law.equivariant and not self.equivariant:
            false.append(
                "equivariant is True; measured: turning a gradient does not turn its update."
            )
        return false


AT_ANY_RATE = "weights, at any rate"
OF_WEIGHTS = "weights"
OF_GRADIENT = "gradient"
_DEGREE = 0.02


def _unit_name(unit: Power) -> str:
    return {EACH_ENTRY: "EACH_ENTRY", WHOLE_MATRIX: "WHOLE_MATRIX"}.get(unit, str(unit))


def measure(optimizer: Any) -> Measurement:
    """What the steps of an optimizer show: an object, its class, or a function from groups that
    makes it.

    Optimizers like it step matrices and vectors of our own, of two widths; the user's is not
    stepped.

    Raises:
        ValueError: if it cannot be made or stepped, or if its updates have no size that a plan can
            scale: they follow the weights, other tensors, or no power of the gradient.
    """
    probe, vectors = probes_of(optimizer)
    try:
        return _measured(probe, vectors)
    except InputError:
        raise
    except Exception as error:
        raise MeasurementError(
            f"optimizer is a {probe.name}, which could not be stepped on a matrix: "
            f"{type(error).__name__}: {in_brief(error)}. Pass its law, nfd.OptimizerLaw."
        ) from error


def _measured(probe: Probe, vectors: Probe | None) -> Measurement:
    gradient = signs(*PANEL[0])
    probe = probe.in_its_precision()
    vectors = None if vectors is None else replace(vectors, dtype=probe.dtype)
    update = probe.update(gradient)
    if not bool(update.isfinite().all()) or rms(update) == 0:
        raise MeasurementError(
            f"{probe.name} does not move a matrix whose gradient is not zero. Pass its law."
        )
    degree = _degree(probe, gradient)
    _check_scalable(probe, gradient, update)
    norms = {shape: norm(probe.update(signs(*shape))) for shape in PANEL}
    growth = math.log(norms[WIDE, WIDE] / norms[NARROW, NARROW]) / math.log(WIDE / NARROW)
    is_local = _is_local(probe)
    unit = EACH_ENTRY if is_local or abs(growth - 1) < ALIKE else WHOLE_MATRIX
    shape_norm: Callable[[float, float], float] = MeasuredShape(probe, unit, growth, dict(norms))
    sizes = [value / unit_norm(unit, *shape) for shape, value in norms.items()]
    if unit == EACH_ENTRY and are_proportional(sizes, [1.0] * len(sizes)):
        shape_norm = any_shape
    parts = {} if is_local else {shape: _parts(probe, shape) for shape in PANEL}
    return Measurement(
        probe.name,
        degree,
        unit,
        _vector_unit(vectors),
        norms,
        parts,
        _has_epsilon(probe),
        _decay(probe, gradient),
        _states(probe),
        _is_equivariant(probe),
        _decay_name(probe),
        shape_norm,
    )


def _degree(probe: Probe, gradient: Tensor) -> float:
    """The power with which updates follow the gradient, at an early and a late step, for larger and
    smaller ones.
    """
    degrees = dict[tuple[int, float], float]()
    for steps in (STEPS, LATE):
        at_one = rms(probe.update(gradient, steps=steps))
        for times in (2.0**6, 2.0**-6):
            scaled = rms(probe.update(times * gradient, steps=steps))
            if min(scaled, at_one) == 0:
                raise MeasurementError(
                    f"{probe.name} does not move a matrix at every size of the gradient. Pass its "
                    "law."
                )
            degrees[steps, times] = math.log(scaled / at_one) / math.log(times)
    values = list(degrees.values())
    if max(values) - min(values) > 2 * _DEGREE:
        said = ", ".join(
            f"{value:.2g} at step {k} for gradients {times:g} times as large"
            for (k, times), value in degrees.items()
        )
        raise MeasurementError(
            f"optimizer is a {probe.name}, whose updates are no one power of the gradient, as "
            "under clipping or a warm-up of its own: for gradients so many times as large, "
            f"{said}. Switch that off, or pass its law, nfd.OptimizerLaw."
        )
    middle = sum(values) / len(values)
    return round(middle * 4) / 4 if abs(middle * 4 - round(middle * 4)) < 4 * _DEGREE else middle


def _check_scalable(probe: Probe, gradient: Tensor, update: Tensor) -> None:
    """ValueError if updates follow the weights, other tensors or not the rate, or a state is never
    filled.
    """
    what = f"optimizer is a {probe.name}, whose updates"
    larger = rms(probe.update(gradient, start=8 * START)) / rms(update)
    if abs(larger - 1) > ALIKE:
        raise MeasurementError(
            f"{what} follow the size of the weights (a trust ratio, as of LAMB and LARS, or "
            f"relative steps, as of Adafactor): weights 8 times as large give updates {larger:.3g} "
            "times as large. Weights grow in training, and may start at zero, so no rate of a plan "
            "keeps such updates in proportion. Switch it off, or use the optimizer without it."
        )
    _, beside = probe.updates([1000 * signs(*PANEL[0]).flip(0), gradient])
    if deviation(beside, update) > ALIKE:
        raise MeasurementError(
            f"{what} of one tensor follow the gradient of another, as under a norm over all "
            "tensors: a plan has a rate for every tensor by itself. Switch that off, or pass its "
            "law, nfd.OptimizerLaw."
        )
    if deviation(probe.update(gradient, rate=RATE / 4), update) > ALIKE:
        raise MeasurementError(
            f"{what} are not proportional to lr of the groups, by which a plan scales them. Pass "
            "its law, nfd.OptimizerLaw, if a scale of lr is enough."
        )
    optimizer, states = probe.states(gradient)
    others = [
        name
        for name, state in states.items()
        if state.shape == gradient.shape and not bool(state.any())
    ]
    if others:
        raise MeasurementError(
            f"optimizer is a {type(optimizer).__name__}, whose state {others[0]!r} is not filled "
            "by step (as a Hessian is by another method): stepping does not show its updates. Pass "
            "its law, nfd.OptimizerLaw."
        )


def _is_local(probe: Probe) -> bool:
    """Whether an entry of the update follows that of the gradient alone."""
    gradient = signs(*PANEL[0])
    other = gradient.clone()
    other[0, 0] *= 64
    a = probe.update(gradient)
    b = probe.update(other)
    a[0, 0] = b[0, 0] = 0
    return deviation(b, a) < ALIKE


# decades over which rows grow: rounding of the largest must not be seen beside the smallest
_SPAN = 1.5


def _parts(probe: Probe, shape: tuple[int, int]) -> int:
    """Into how many parts, each normalised by itself, a matrix falls.

    In a gradient of rank one with rows of growing size, every part of the update is that of the
    gradient times a constant, one over the size of the part.
    """
    counts = []
    for axis, size in enumerate(shape):
        growing = torch.logspace(0, _SPAN, size, dtype=torch.float64)
        gradient = signs(*shape) * (growing[:, None] if axis == 0 else growing)
        ratios = (probe.update(gradient) / gradient).abs().mean(1 - axis)
        if not bool((ratios > 0).all()):
            return 1
        logs = ratios.log().sort().values
        # neighbours of an interleaved part differ by the growth of one row
        apart = 0.5 * _SPAN * math.log(10) / size
        counts.append(1 + int((logs.diff() > max(apart, math.log1p(ALIKE) / 2)).sum()))
    return counts[0] * counts[1]


def _vector_unit(probe: Probe | None) -> Power | None:
    """The unit of updates of vectors; None if they are not stepped."""
    if probe is None:
        return None
    try:
        narrow, wide = (rms(probe.update(signs(size))) for size in (NARROW, WIDE))
    except Exception:  # whatever an optimizer of matrices raises
        return None
    if min(narrow, wide) == 0:
        return None
    power = math.log(wide / narrow) / math.log(WIDE / NARROW)
    if abs(power) < ALIKE:
        return EACH_ENTRY
    if abs(power + 0.5) < ALIKE:
        return WHOLE_MATRIX
    raise MeasurementError(
        f"optimizer is a {probe.name}, whose updates of vectors have entries that grow as the "
        f"power {power:.2g} of their length; known are 0 and -1/2. Pass its law, nfd.OptimizerLaw."
    )


def _has_epsilon(probe: Probe) -> bool:
    """Whether an ``eps`` of the groups acts beside the entries of the gradient, at every width
    alike.
    """
    shrinks = []
    for size in (NARROW, WIDE):
        gradient = signs(size, size)
        groups = probe.optimizer([_parameter(gradient, START)]).param_groups
        if any(not isinstance(group.get(EPS.name), float) for group in groups):
            return False
        plain = rms(probe.update(gradient, settings={EPS.name: 1e-12}))
        shrinks.append(rms(probe.update(gradient, settings={EPS.name: 1.0})) / plain)
    narrow, wide = shrinks
    return narrow < 1 - 2 * ALIKE and abs(wide / narrow - 1) < ALIKE


def _decay_name(probe: Probe) -> str:
    """What groups call weight decay."""
    groups = probe.optimizer([_parameter(signs(*PANEL[0]), START)]).param_groups
    return next(
        (name for name in DECAYS if all(name in group for group in groups)), WEIGHT_DECAY.name
    )


def _decay(probe: Probe, gradient: Tensor) -> str | None:
    """What weight decay acts on."""
    name = _decay_name(probe)
    groups = probe.optimizer([_parameter(gradient, START)]).param_groups
    if any(group.get(name) is None for group in groups):
        return None
    strength = 0.5
    gradient = 2.0**-10 * gradient  # a sign shows a decay that is larger than the gradient
    for steps in (1, STEPS):  # some leave the first step out
        without, with_it = (
            probe.update(gradient, settings={name: decay}, steps=steps) for decay in (0.0, strength)
        )
        change = with_it - without
        if bool(change.any()):
            break
    else:
        return None
    expected = strength * _parameter(gradient, START).detach()
    if deviation(change, expected) < ALIKE:
        return OF_WEIGHTS
    if deviation(change * RATE, expected) < ALIKE:
        return AT_ANY_RATE
    return OF_GRADIENT


def _states(probe: Probe) -> int:
    """Numbers that are stored per parameter of a square matrix."""
    gradient = signs(WIDE, WIDE)
    _, states = probe.states(gradient)
    return round(
        sum(state.numel() for state in states.values() if state.numel() > 1) / gradient.numel()
    )


def _is_equivariant(probe: Probe) -> bool:
    """Whether ``U(P G Q') = P U(G) Q'`` for orthonormal P and Q and a gradient of full rank."""
    g = torch.Generator().manual_seed(0)
    left, right, gradient = torch.randn(3, NARROW, NARROW, generator=g, dtype=torch.float64)
    P = torch.linalg.qr(left).Q
    Q = torch.linalg.qr(right).Q
    turned = probe.update(P @ gradient @ Q.T)
    return deviation(turned, P @ probe.update(gradient) @ Q.T) < 2 * ALIKE


def decouples(optimizer: torch.optim.Optimizer) -> bool | None:
    """Whether weight decay of an optimizer acts on the weights directly; None where stepping does
    not show it.
    """
    try:
        probe, _ = probes_of(optimizer)
        decay = _decay(probe.in_its_precision(), signs(*PANEL[0]))
    except Exception:  # whatever an optimizer that cannot be made anew raises
        return None
    return None if decay is None else decay != OF_GRADIENT


# ---- the law of a measurement


def measured_law(optimizer: Any) -> OptimizerLaw:
    """The law of an optimizer object, its class or a function that makes it, registered under its
    name.

    An object that steps as a law says has that law.
    """
    measurement = measure(optimizer)
    is_object = hasattr(optimizer, "param_groups") and not isinstance(optimizer, type)
    if is_object:
        fitting = [law for law in OF_THE_LIBRARY if measurement.fits(law)]
        if fitting:
            return fitting[0]
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", measurement.name).lower()
    make = None if is_object else optimizer
    return _registered(measurement.law(name, make))


def _registered(law: OptimizerLaw) -> OptimizerLaw:
    """The law, under its name or one with a number where another has it."""
    name = law.name
    number = 1
    while name in LAWS and replace(LAWS[name], make=law.make, name=law.name) != law:
        number += 1
        name = f"{law.name}-{number}"
    return register_optimizer(replace(law, name=name), replace=True)
