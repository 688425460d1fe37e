"""The networks of a check: built, planned, trained on the same batches and measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nfd.core.ambient import plain
from nfd.core.errors import InputError, InputTypeError, check_choice, first_line
from nfd.core.random import derive, global_streams
from nfd.core.statistics import rms
from nfd.meters.event import Event, EventKind
from nfd.meters.health import dead_units, first_bad, gradient_event, stream_gradients
from nfd.meters.updates import Baseline
from nfd.nets.network import Network
from nfd.scaling.calls import call_with, outputs_of
from nfd.scaling.plan import Plan
from nfd.scaling.planning import plan
from nfd.scaling.scaled import Scaled
from nfd.scaling.sizes import MakeModel, instance
from nfd.training.losses import LOSSES
from nfd.training.optimizers import optimizer_named

_ROSE = 2.0  # times the first loss: no rate that is meant does this

Run = dict[str, Any]
Groups = list[dict[str, Any]]


def moved(value: Any, place: torch.device | None) -> Any:
    """Inputs or targets with their tensors on ``place``; where they are when it is None."""
    if isinstance(value, Tensor):
        return plain(value if place is None else value.to(place))
    if isinstance(value, Mapping):
        return {name: moved(v, place) for name, v in value.items()}
    if type(value) in (tuple, list):
        return type(value)(moved(v, place) for v in value)
    return value


@dataclass(frozen=True)
class Built:
    """A network that is ready to be trained, and its decoupled twin where one was asked for."""

    width: int
    depth: int
    seed: int
    model: nn.Module
    planned: Plan
    twin: nn.Module | None
    planned_twin: Plan | None


@dataclass(frozen=True)
class Job:
    """What every network is built, trained and measured by."""

    make_model: MakeModel
    base_width: int
    base_depth: int
    batches: list[tuple[Any, Any]]
    rule: str
    optimizer: str
    eta_c: float
    loss: Callable[[Any, Any], Tensor]
    blocks: str | Sequence[str] | None
    roles: Mapping[str, str] | None
    weight_decay: float
    make_optimizer: Callable[[Groups], torch.optim.Optimizer] | None
    gia: bool
    device: torch.device | None

    @property
    def devices(self) -> list[torch.device]:
        """Beside the CPU, where random numbers are drawn."""
        return [self.device] if self.device is not None and self.device.type != "cpu" else []

    def built(self, width: int, depth: int, seed: int) -> Built:
        """A network before training, and its decoupled twin if asked for; moves no random stream."""
        model = instance(self.make_model, width, depth, derive(seed, "check", width, depth))
        if self.device is not None:
            model.to(self.device)
        planned = self._plan(model)
        if self.rule != "standard" or isinstance(model, Network):  # elsewhere the model's own start is the standard one
            planned.initialize_(model, derive(seed, "check", width, depth))  # every network begins on its own
        for name, factor in planned.multipliers.items():
            _insert(model, name, factor)
        twin = _decoupled(model) if self.gia else None
        return Built(width, depth, seed, model.train(), planned, twin, None if twin is None else self._plan(twin))

    def run(self, built: Built) -> Run:
        """Train it and measure it."""
        model, planned = built.model, built.planned
        found: Run = {"width": built.width, "depth": built.depth, "seed": built.seed, "events": []}
        baseline = Baseline(model, planned, self.batches[0][0])
        found["unread"] = dict(baseline.unread)
        losses = self._train(model, planned, found, baseline)
        found["loss"] = losses[-1]
        if math.isfinite(losses[-1]) and losses[-1] > _ROSE * losses[0] > 0:
            found["events"].append(Event(EventKind.LOSS_ROSE, len(losses) - 1, size=losses[-1] / losses[0]))
        if math.isfinite(losses[-1]) and self._stays_finite(model, len(losses), found):
            found |= baseline.updates(model)
            if built.twin is not None and built.planned_twin is not None:
                self._train(built.twin, built.planned_twin, {"events": []})
                found["gia_gap"] = self._gap(model, built.twin, losses[0])
        return found

    def _stays_finite(self, model: nn.Module, steps: int, found: Run) -> bool:
        """Whether the last update left a network that still answers."""
        x = self.batches[-1][0]
        with torch.no_grad():
            fine = bool(outputs_of(call_with(model, x)).isfinite().all())
        if not fine:
            bad = first_bad(model, partial(call_with, model, x))
            found["events"].append(Event(EventKind.NOT_FINITE, steps, bad))
        return fine

    def _gap(self, model: nn.Module, twin: nn.Module, start: float) -> float:
        """How far apart standard and decoupled training end on the first batch, over the standard one's progress."""
        with torch.no_grad():
            standard, decoupled = (
                float(self.loss(net(self.batches[0][0]), self.batches[0][1])) for net in (model, twin)
            )
        return abs(standard - decoupled) / (start - standard) if start > standard else math.nan

    def _plan(self, model: nn.Module) -> Plan:
        own = isinstance(model, Network)
        with global_streams(0, self.devices):
            return plan(
                model,
                rule=self.rule,
                make_model=None if own else self.make_model,
                base_width=None if own else self.base_width,
                base_depth=None if own else self.base_depth,
                optimizer=self.optimizer,
                blocks=self.blocks,
                roles=self.roles,
                sample=self.batches[0][0],
            )

    def _train(self, model: nn.Module, planned: Plan, found: Run, baseline: Baseline | None = None) -> list[float]:
        optimizer = self._optimizer(planned.param_groups(model, lr=self.eta_c, weight_decay=self.weight_decay))
        losses: list[float] = []
        for step, (x, y) in enumerate(self.batches):
            optimizer.zero_grad()
            if step == 0:
                with stream_gradients(model, planned) as ends:
                    value = self._value(model, x, y, found)
                    value.backward()  # type: ignore[no-untyped-call]
                _note_gradient(found, ends)
                if baseline is not None and "gradient" not in found:
                    found["unread"] |= baseline.no_gradient(ends)
            else:
                value = self._value(model, x, y, found)
                value.backward()  # type: ignore[no-untyped-call]
            losses.append(float(value.detach()))
            if not math.isfinite(losses[-1]):
                bad = first_bad(model, partial(call_with, model, x))
                found["events"].append(Event(EventKind.NOT_FINITE, step, bad))
                return losses
            optimizer.step()
            if step == 0 and baseline is not None and len(self.batches) > 1:
                found["first"] = baseline.updates(model)
            if step.bit_count() <= 1 or step == len(self.batches) - 1:  # after steps 1, 2, 3, 5, 9, ... and the last
                dead = dead_units(model, partial(call_with, model, x), step + 1)
                if dead is not None and all(event.kind != dead.kind for event in found["events"]):
                    found["events"].append(dead)
        return losses

    def _value(self, model: nn.Module, x: Any, y: Any, found: Run) -> Tensor:
        if isinstance(model, Network) and "gradient" not in found and "seed" in found:
            streams = model.streams(x)
            value = self.loss(streams.outputs, y)
            ends = torch.autograd.grad(value, [streams.layers[0], streams.layers[-1]], retain_graph=True)
            _note_gradient(found, [rms(g) for g in ends])
            return value
        return self.loss(call_with(model, x), y)

    def _optimizer(self, groups: Groups) -> torch.optim.Optimizer:
        if self.make_optimizer is not None:
            return self.make_optimizer(groups)
        return optimizer_named(self.optimizer, groups)


def _note_gradient(found: Run, ends: Sequence[float]) -> None:
    if len(ends) == 2 and "gradient" not in found and ends[1] != 0:  # a readout that begins at zero sends nothing back
        found["gradient"] = ends[0] / ends[1]
        event = gradient_event(found["gradient"])
        if event is not None:
            found["events"].append(event)


def shape_of(value: Any) -> str:
    """The shape and type of a tensor, or the kind of anything else, for a message."""
    return f"{list(value.shape)} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__


def loss_of(loss: str | Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
    if callable(loss):
        return loss
    chosen = LOSSES[check_choice("loss", loss, LOSSES)]

    def value(out: Any, y: Tensor) -> Tensor:
        outputs = outputs_of(out)
        try:
            if loss == "mse":
                return chosen(outputs, y)
            return chosen(_classes_last(outputs, y).flatten(0, -2), y.flatten())
        except (RuntimeError, IndexError) as error:  # both are the user's, and PyTorch's words on them
            said = f"outputs {shape_of(outputs)} and targets {shape_of(y)}: {first_line(error)}"
            raise InputTypeError(f"loss={loss!r} cannot be computed of {said}") from error

    return value


def _classes_last(out: Tensor, y: Tensor) -> Tensor:
    """Logits as [..., C], for targets [...], of models that put the classes second, as images have them."""
    if out.shape[:-1] == y.shape:
        return out
    if out.dim() == y.dim() + 1 and out[:, 0].shape == y.shape:
        return out.movedim(1, -1)
    raise InputError(
        f"loss='cross-entropy' needs logits [..., C] for targets [...]; got {list(out.shape)} for "
        f"{list(y.shape)}. Pass loss=, a function of what the model returns and the targets."
    )


def _decoupled(model: nn.Module) -> nn.Module:
    if not isinstance(model, Network) or model.feedback != "shared":
        raise InputError("gia=True compares networks of nfd.nets with feedback='shared' with their decoupled twins.")
    return model.decoupled()


def _insert(model: nn.Module, name: str, factor: float) -> None:
    module = model.get_submodule(name)
    if not isinstance(module, nn.Linear):
        raise InputError(
            f"Heads grow with width, and {name!r} makes queries, keys and values together, so that their factor cannot "
            "be inserted. Let make_model keep the head size and grow the number of heads."
        )
    model.set_submodule(name, Scaled(module, factor))
