"""What the steps of an optimizer show, as values: printed, made into a law, held against a law."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nfd.scaling.optimizers import (
    BETAS,
    EACH_ENTRY,
    EPS,
    WEIGHT_DECAY,
    WHOLE_MATRIX,
    Hyperparameter,
    OptimizerLaw,
    any_shape,
)
from nfd.scaling.probe import ALIKE, PANEL, Probe, norm, signs
from nfd.scaling.rules import Power

# what weight decay acts on
AT_ANY_RATE = "weights, at any rate"
OF_WEIGHTS = "weights"
OF_GRADIENT = "gradient"
# by which degrees that are alike may differ
DEGREE = 0.02
# entries of a matrix that is stepped to find the norm of its update
_LARGEST = 2**18
_UNIT_NAMES = {EACH_ENTRY: "EACH_ENTRY", WHOLE_MATRIX: "WHOLE_MATRIX"}
_UNIT_WORDS = {EACH_ENTRY: "entry by entry", WHOLE_MATRIX: "as a whole"}


@dataclass
class MeasuredShape:
    """The largest singular value of the update of a matrix, by its shape, in multiples of ``unit``.

    A matrix of that shape is stepped. One of more than 2^18 entries is halved on both sides as
    often as needed, and the norm grows with the power that squares have: parts of a fixed size are
    then not seen.

    Attributes:
        growth: the power of the norm of squares by their side.
        norms: what has been measured, by (rows, columns).
    """

    probe: Probe
    unit: Power
    growth: float
    norms: dict[tuple[int, int], float] = field(default_factory=dict)

    def __call__(self, rows: float, columns: float) -> float:
        shape = (max(1, round(rows)), max(1, round(columns)))
        if shape not in self.norms:
            self.norms[shape] = self._measure(shape)
        return self.norms[shape] / unit_norm(self.unit, *shape)

    def _measure(self, shape: tuple[int, int]) -> float:
        halvings = 0
        while math.prod(shape) > _LARGEST and min(shape) > 1:
            shape = (max(1, shape[0] // 2), max(1, shape[1] // 2))
            halvings += 1
        stepped = norm(self.probe.update(signs(*shape)))
        return float(stepped * 2 ** (halvings * self.growth))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MeasuredShape) or self.unit != other.unit:
            return False
        here = [self(*shape) for shape in PANEL]
        there = [other(*shape) for shape in PANEL]
        return are_proportional(here, there)

    __hash__ = None  # type: ignore[assignment]


def unit_norm(unit: Power, rows: float, columns: float) -> float:
    """Return the norm of a matrix of rank one whose entries scale as a unit."""
    return unit.at(columns, rows, 1.0) * math.sqrt(rows * columns)


def are_proportional(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether numbers are others times one constant."""
    ratios = [x / y for x, y in zip(a, b, strict=True)]
    return max(ratios) <= min(ratios) * (1 + ALIKE)


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
        shape_norm: as in ``nfd.OptimizerLaw``, for any shape.
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
        first = self.norms[PANEL[0]]
        norms = ", ".join(f"{r} x {c}: {value / first:.3g}" for (r, c), value in self.norms.items())
        vectors = "not stepped" if self.vector_unit is None else _UNIT_WORDS[self.vector_unit]
        split = self._split("{} x {} in {}")
        in_parts = f", in parts: {split}" if split else ""
        epsilon = "beside the entries of the gradient" if self.epsilon else "none of entries"
        decay = "none" if self.decay is None else f"of the {self.decay}"
        lines = [
            f"{self.name}: updates of degree {self.degree:g} in the gradient",
            f"matrices     {_UNIT_WORDS[self.unit]}{in_parts}",
            f"vectors      {vectors}",
            f"norms        {norms}, over that of {PANEL[0][0]} x {PANEL[0][1]}",
            f"epsilon      {epsilon}",
            f"decay        {decay}",
            f"states       {self.states} numbers per parameter",
        ]
        return "\n".join(lines)

    def law(self, name: str, make: Any = None) -> OptimizerLaw:
        """Return the law of an optimizer that steps so."""
        settings: tuple[Hyperparameter, ...] | None = None
        decay = replace(WEIGHT_DECAY, name=self.decay_name)
        if self.decay == AT_ANY_RATE:
            # The share of the weights that a step removes is the decay itself; a training run of
            # other length removes it as AdamW's law says.
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
        """Return what a plan says of the optimizer."""
        if not self.is_split:
            return ()
        split = self._split("[{}, {}] in {}")
        return (f"{self.name} normalises some matrices in parts, as it was seen to step {split}.",)

    def _split(self, form: str) -> str:
        """List the shapes that are normalised in parts: rows, columns and parts in a form."""
        shapes = [form.format(*shape, count) for shape, count in self.parts.items() if count > 1]
        return ", ".join(shapes)

    def fits(self, law: OptimizerLaw) -> bool:
        """Whether a law says the same, but for the numbers that are stored."""
        steps_all = self.vector_unit is not None
        return steps_all == (law.rest is None) and not self.false_claims(law)

    def false_claims(self, law: OptimizerLaw) -> list[str]:
        """List what a law says of updates, epsilon and decay that is false, each by its field."""
        return [
            *self._false_degree(law),
            *self._false_units(law),
            *self._false_shape_norm(law),
            *self._false_epsilon(law),
            *self._false_decay(law),
            *self._false_equivariance(law),
        ]

    def _false_degree(self, law: OptimizerLaw) -> list[str]:
        if abs(law.degree - self.degree) <= DEGREE:
            return []
        return [f"degree is {law.degree:g}; measured {self.degree:g}."]

    def _false_units(self, law: OptimizerLaw) -> list[str]:
        false = list[str]()
        if law.unit != self.unit:
            false.append(f"unit is {_unit_name(law.unit)}; measured {_unit_name(self.unit)}.")
        if law.rest is not None:
            return false
        if self.vector_unit is None:
            false.append(
                "rest is None; the optimizer steps no vectors. Name the law of what trains them."
            )
            return false
        # A wrong unit of matrices is a wrong unit of vectors, unless the law has another for these.
        says_by_itself = law.unit == self.unit or law.vector_unit
        vector_unit = law.for_vectors().unit
        if says_by_itself and vector_unit != self.vector_unit:
            false.append(
                f"vector_unit is {_unit_name(vector_unit)}; measured "
                f"{_unit_name(self.vector_unit)}."
            )
        return false

    def _false_shape_norm(self, law: OptimizerLaw) -> list[str]:
        if law.unit != self.unit:
            return []
        shapes = list(self.norms)
        measured = list(self.norms.values())
        claimed = [law.shape_norm(*shape) * unit_norm(self.unit, *shape) for shape in shapes]
        if are_proportional(measured, claimed):
            return []
        first = PANEL[0]
        measured_ratios = {
            shape: value / measured[0] for shape, value in zip(shapes, measured, strict=True)
        }
        claimed_ratios = {
            shape: value / claimed[0] for shape, value in zip(shapes, claimed, strict=True)
        }
        worst = max(
            shapes, key=lambda shape: abs(math.log(measured_ratios[shape] / claimed_ratios[shape]))
        )
        count = self.parts.get(worst, 1)
        parts = f" It is normalised in {count} parts." if count > 1 else ""
        return [
            f"shape_norm of [{worst[0]}, {worst[1]}] over that of {list(first)} is "
            f"{claimed_ratios[worst]:.3g} in spectral norms; measured "
            f"{measured_ratios[worst]:.3g}.{parts}"
        ]

    def _false_epsilon(self, law: OptimizerLaw) -> list[str]:
        if law.epsilon == self.epsilon:
            return []
        acts = "acts" if self.epsilon else "does not act"
        return [
            f"epsilon is {law.epsilon}; measured: an eps {acts} beside the entries of the gradient."
        ]

    def _false_decay(self, law: OptimizerLaw) -> list[str]:
        if self.decay is None:
            return []
        false = list[str]()
        # With a linear update, decay of the gradient and of the weights are one.
        if not law.is_linear and law.decoupled != (self.decay != OF_GRADIENT):
            false.append(f"decoupled is {law.decoupled}; measured: decay acts on the {self.decay}.")
        decay = law.setting(WEIGHT_DECAY.name)
        if decay is not None and decay.follows == "weight decay" and self.decay == AT_ANY_RATE:
            false.append(
                "hyperparameters: weight_decay follows 'weight decay'; measured: it acts at any "
                "rate."
            )
        return false

    def _false_equivariance(self, law: OptimizerLaw) -> list[str]:
        if self.equivariant or not law.equivariant:
            return []
        return ["equivariant is True; measured: turning a gradient does not turn its update."]


def _unit_name(unit: Power) -> str:
    return _UNIT_NAMES.get(unit, str(unit))
