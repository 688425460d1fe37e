"""Which initial weights and rates mend what a self-test found: tried, and only proposed.

Wrong initial weights show in every tensor after them, and through the gradient in every one before,
so that the tensors that are off are not a list of culprits. Each suspect's initial weights are
multiplied by the ratio of sizes to the powers -1, -1/2, 1/2 and 1; what frees most of the others is
kept, at most one tensor a round. What is still off then is off for one tensor by itself: its
learning rate, by the power that was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nfd.scaling.carried import Axis
from nfd.scaling.entries import Ratios
from nfd.scaling.one_pass import FACTOR, SMALLEST, Bench
from nfd.scaling.rules import ROLES, Power, Role, rule_named
from nfd.scaling.self_judge import LIMIT, Judge, Judged
from nfd.scaling.self_test_result import Proposal, Reading

_POWERS = (-1.0, -0.5, 0.5, 1.0)
_ROUNDS = 3
_GAIN = 0.9  # readings that a change must free beyond those that it costs
_DETAIL = 0.05  # of a reading: between changes that free as many, the one that leaves less


def proposals(bench: Bench, off: Sequence[Reading], seeds: int) -> list[Proposal]:
    """Factors that mend what is off, along each axis by itself."""
    proposed = list[Proposal]()
    # No initial weights and no rate mend logits that grow once trained.
    for axis in dict.fromkeys(reading.axis for reading in off if reading.quantity != "logits"):
        proposed += _Search(bench, axis, range(seeds)).proposals()
    return proposed


class _Search:
    """The search along one axis."""

    def __init__(self, bench: Bench, axis: Axis, seeds: range) -> None:
        self.bench = bench
        self.axis = axis
        self.seeds = seeds
        self.small = [bench.measure(SMALLEST, seed) for seed in seeds]

    def proposals(self) -> list[Proposal]:
        """Starts that free most of what is off, then the rates that are left."""
        starts = dict[str, float]()
        current = self._readings(starts)
        for _ in range(_ROUNDS):
            tried = dict[tuple[str, float], list[Judged]]()
            for kind in self._suspects(current):
                for power in _POWERS:
                    tried[kind, power] = self._readings(
                        {**starts, kind: starts.get(kind, 0.0) + power}
                    )
            if not tried:
                break
            (kind, power), best = min(tried.items(), key=lambda item: _cost(item[1]))
            if _cost(best) > _cost(current) - _GAIN:
                break
            starts[kind] = starts.get(kind, 0.0) + power
            current = best
        rates = self._rates(current)
        kinds = dict.fromkeys([*starts, *rates])
        return [
            Proposal(
                kind,
                self.axis,
                starts.get(kind, 0.0),
                rates.get(kind, 0.0),
                self._role(kind, starts, rates),
            )
            for kind in kinds
        ]

    def _role(self, kind: str, starts: Mapping[str, float], rates: Mapping[str, float]) -> str:
        """The role under which the plan would have these powers; empty where none does."""
        plan, base = (self.bench.plans[place] for place in ((self.axis, FACTOR), SMALLEST))
        name = Judge(plan, self.axis, []).names[kind]
        entry = plan.entries[name]
        beginning = base.entries[Judge(base, self.axis, []).names[kind]].start
        # Where the plan's own base is off, no role explains it.
        if self.axis == "depth" or beginning != entry.start or entry.own_factor != 1:
            return ""
        rule = rule_named(plan.rule)
        law = plan.law_for(name)

        def exponents(role: Role) -> tuple[float, float]:
            powers = rule.powers(role, law, entry.multiplier, vector=entry.is_vector)
            return _of_width(powers.std, entry.ratios), _of_width(powers.rate, entry.ratios)

        start, rate = exponents(entry.role)
        wanted = start + starts.get(kind, 0.0), rate + rates.get(kind, 0.0)
        fitting = [role for role in ROLES if role != entry.role and exponents(role) == wanted]
        return fitting[0] if fitting else ""

    def _readings(self, starts: Mapping[str, float]) -> list[Judged]:
        """Read the networks with multiplied initial weights, at unchanged rates."""
        factors = {kind: FACTOR**power for kind, power in starts.items()}
        pairs = [
            (small, self.bench.measure((self.axis, FACTOR), seed, factors))
            for seed, small in zip(self.seeds, self.small, strict=True)
        ]
        plan = self.bench.plans[self.axis, FACTOR]
        return Judge(plan, self.axis, pairs).judged()

    def _suspects(self, readings: Sequence[Judged]) -> list[str]:
        """List the kinds whose initial weights may be wrong, the likeliest first.

        They are the kinds whose initial activations are off, or else all matrices.
        """
        plan = self.bench.plans[self.axis, FACTOR]
        kinds = Judge(plan, self.axis, []).names
        off = [reading.kind for reading in readings if reading.off and reading.kind]
        starts = [
            reading.kind for reading in readings if reading.off and reading.quantity == "start"
        ]
        matrices = [kind for kind, name in kinds.items() if not plan.entries[name].is_vector]
        return starts or (
            [kind for kind in matrices if kind in off]
            + [kind for kind in matrices if kind not in off]
        )

    def _rates(self, readings: Sequence[Judged]) -> dict[str, float]:
        """What is left of updates, as powers of rates."""
        return {
            reading.kind: -round(2 * reading.deviation) / 2
            for reading in readings
            if reading.quantity == "update" and reading.off and abs(reading.deviation) > LIMIT
        }


def _cost(readings: Sequence[Judged]) -> float:
    """How many readings are off, and by how much."""
    return sum(reading.off for reading in readings) + _DETAIL * sum(
        abs(reading.deviation) for reading in readings
    )


def _of_width(power: Power, ratios: Ratios) -> float:
    """The exponent of width in a power, for a tensor whose fans grow or do not."""
    return power.fan_in * (ratios.fan_in != 1) + power.fan_out * (ratios.fan_out != 1)
