"""One look at a model: its meters as rows, what is kept of its start, and what it does not show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import partial
from typing import Any, cast

from torch import Tensor, nn

from nfd.families.paper import member_of
from nfd.meters.passes import Pass
from nfd.meters.readings import Reading, layers_of, meter_of, of_layer, readings
from nfd.meters.updates import NO_BLOCKS, Baseline, Look
from nfd.scaling.model import blaming_the_sample, modules, tensors
from nfd.scaling.plan import Plan
from nfd.watch.activity import DEAD, ENTROPY, LOGITS, Activity, activity
from nfd.watch.apart import apart
from nfd.watch.gradients import RATIO, gradient_ratios
from nfd.watch.rows import Kept, LeftOut, WatchRow
from nfd.watch.starts import Starts

_NO_ATTENTION = "no softmax of attention is seen in a pass over the sample: there is none, or a fused kernel has it."
_ABSENT = {
    DEAD: "no ReLU is seen in a pass over the sample, or the sample has fewer than 16 rows.",
    ENTROPY: _NO_ATTENTION,
    LOGITS: _NO_ATTENTION,
}
NO_GRADIENTS = "no parameter had a gradient at the last look: call step() before zero_grad()."


class Reader:
    """Reads a model at every look.

    Args:
        model: before training; a wrapper's model is called itself.
        plan, sample, seed: as in ``nfd.Watch``.
    """

    def __init__(self, model: nn.Module, plan: Plan, sample: Any, seed: int) -> None:
        self.member = member_of(modules(model)[""], plan)
        module = self.member.module
        with apart(module):
            with blaming_the_sample(sample):
                self.baseline = Baseline(self.member, sample, partial(Starts, plan, seed))
            with activity(module) as active:
                self.baseline.seen()
        self._unread = {
            meter_of(m, stack): why for stack, unread in self.baseline.unread.items() for m, why in unread.items()
        } | {m: why for m, why in _ABSENT.items() if m not in active.network}
        if not self.member.blocks:
            self._unread[RATIO] = NO_BLOCKS
        self._previous: dict[str, Tensor] | None = None

    @property
    def starts(self) -> Starts:
        """The matrices before training."""
        return cast(Starts, self.baseline.start)

    @property
    def layers(self) -> dict[str, str]:
        """The layer of every matrix, by their names."""
        return layers_of(self.baseline.matrices)

    def before_step(self, *, looked_at: bool) -> None:
        """Copy the matrices that a step will change, where a look will ask for the alignment of its update."""
        self._previous = None  # before new ones are made
        if looked_at:
            self._previous = self.baseline.weights()

    def rows(self, step: int) -> list[WatchRow]:
        """Look at the model after so many steps."""
        module = self.member.module
        previous, self._previous = self._previous, None  # of this step alone, also where the look fails
        with apart(module):
            infos, stacks = tensors(module), self.member.stacks
            ratios = {stack: gradient_ratios(infos, blocks) for stack, blocks in stacks.items()}
            with activity(module) as active:
                seen = self.baseline.seen()
            look = self.baseline.look(previous, seen)
        for stack, own in ratios.items():
            if own:
                self._unread.pop(meter_of(RATIO, stack), None)
            else:
                self._unread.setdefault(meter_of(RATIO, stack), NO_GRADIENTS)
        return [WatchRow(step, *reading) for reading in self._all(look, active, ratios)]

    def _all(self, look: Look, active: Activity, ratios: Mapping[str, Mapping[str, float]]) -> Iterator[Reading]:
        yield from readings(self.member, look)
        first = {meter_of(RATIO, stack): next(iter(own.values())) for stack, own in ratios.items() if own}
        for meter, value in (active.network | first).items():
            yield Reading(meter, None, None, value)
        for block, ratio in (item for own in ratios.values() for item in own.items()):
            yield from of_layer(self.member, block, block, {RATIO: ratio})
        for layer, meters in active.layers.items():
            yield from of_layer(self.member, layer, layer, meters)

    @property
    def left_out(self) -> list[LeftOut]:
        """The meters that cannot be read from this model, and why."""
        return [LeftOut(meter, reason) for meter, reason in self._unread.items()]

    @property
    def keeps(self) -> list[Kept]:
        """What is stored, where, and how many bytes."""
        before = self.baseline.before
        seen = [before.outputs, before.features, *before.behind.values()]
        distinct = {h.data_ptr(): h for h in seen}.values()
        kept = [Kept("outputs and stream of the sample", str(before.outputs.device), sum(h.nbytes for h in distinct))]
        if self.starts.kept:
            kept.append(Kept("initial matrices", "cpu", sum(start.nbytes for start in self.starts.kept.values())))
        if self._previous:
            place = str(next(iter(self._previous.values())).device)
            kept.append(Kept("matrices before the next step", place, sum(w.nbytes for w in self._previous.values())))
        return kept

    def state(self) -> dict[str, Any]:
        """What is known of the start, for a checkpoint."""
        before = {part.name: getattr(self.baseline.before, part.name) for part in fields(Pass)}
        return {"before": before, "seed": self.starts.seed, "kept": self.starts.kept}

    def load(self, state: Mapping[str, Any]) -> None:
        """Know this start again."""
        known = {part.name for part in fields(Pass)}  # earlier versions stored more
        self.baseline.begin_at(Pass(**{name: part for name, part in state["before"].items() if name in known}))
        self.starts.seed, self.starts.kept = state["seed"], dict(state["kept"])
