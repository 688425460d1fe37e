"""``Trial``: one network of a family, trained on a task by the one loop, a row per step.

No training run of the library is of another kind.
"""

from __future__ import annotations

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, Self

import torch
from torch import Tensor

from nfd.core.errors import (
    InputError,
    InputTypeError,
    UsageError,
    described,
    in_brief,
    place_of,
    trace_of,
)
from nfd.core.fingerprint import fingerprint_of_others
from nfd.core.names import NetworkWeights
from nfd.core.random import derive, global_streams
from nfd.families.family import Family
from nfd.families.member import NO_DECAY, Member
from nfd.runs.losses import classes_last
from nfd.runs.task import FROM_GROUPS, Task
from nfd.scaling.find_law import law_of
from nfd.scaling.groups import optimizer_of as optimizer_by
from nfd.scaling.model import tensors
from nfd.scaling.samples import evaluating
from nfd.store import Record

# ---- The loop: one pass over batches, one row per step


Around = Callable[[int], AbstractContextManager[object]]


def optimizer_of(task: Task, member: Member, lr: float) -> torch.optim.Optimizer:
    """Make the optimizer of a network: its plan's, or what the task's ``make_optimizer`` makes.

    What ``make_optimizer`` sets, and the task does not, is of the base, and is scaled by the plan.

    Raises:
        TypeError: where ``make_optimizer`` does not take groups, or makes no optimizer.
        ValueError: naming a setting that the task and ``make_optimizer`` set, or that cannot be
            scaled.
    """
    law = law_of(member.plan.optimizer)
    groups = member.base_groups(lr, task.weight_decay, task.adamw_lr)
    if task.make_optimizer is None:
        # The loop of Adam over tensors takes longer than the passes of a small network: fused it
        # takes a sixth.
        adam = law if law.rest is None else law_of(law.rest)
        settings = dict[str, Any]()
        if adam.is_ours and adam.accepts("fused") and adam.setting("betas") is not None:
            settings["fused"] = True
        return optimizer_by(law, groups, settings)
    try:
        made = optimizer_by(
            law, groups, {}, task.make_optimizer, takes_all=True, argument="make_optimizer"
        )
    except UsageError:
        raise
    except (TypeError, AttributeError) as error:
        message = f"make_optimizer raised {type(error).__name__}: {in_brief(error)}. {FROM_GROUPS}"
        raise InputTypeError(message) from error
    to_training: Any = getattr(made, "train", None)
    # Schedule-free optimizers refuse to step before.
    if callable(to_training):
        to_training()
    if not member.is_planned and any(group.get("weight_decay") for group in made.param_groups):
        raise InputError(NO_DECAY)
    return made


@contextmanager
def judging(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Give the network the weights to be judged, where a schedule-free optimizer trains others."""
    switches: Any = optimizer
    has_modes = all(callable(getattr(optimizer, mode, None)) for mode in ("train", "eval"))
    if has_modes:
        switches.eval()
    try:
        yield
    finally:
        if has_modes:
            switches.train()


@torch.no_grad()
def judged(member: Member, task: Task) -> tuple[float, float]:
    """Measure mean loss and accuracy on the evaluation batches, or on the last training batch.

    The accuracy is not a number where there is none.
    """
    pairs = task.eval_batches or task.batches[-1:]
    losses = list[float]()
    right = list[Tensor]()
    with evaluating(member.module):
        for x, y in pairs:
            outputs = member(x)
            losses.append(float(task.value(outputs, y)))
            if task.loss == "cross-entropy" and task.eval_batches:
                right.append((classes_last(outputs, y).argmax(-1) == y).flatten())
    loss = math.fsum(losses) / len(pairs)
    if not right:
        return loss, math.nan
    return loss, float(torch.cat(right).float().mean())


@dataclass(frozen=True)
class Step:
    """What one step saw before its update, and the optimizer that made the update.

    These are the outputs ``[b, C]`` and the batch-mean loss, which may not be a number.
    """

    step: int
    losses: Tensor
    outputs: Any = field(repr=False)
    diverged: bool
    optimizer: torch.optim.Optimizer = field(repr=False)

    @property
    def loss(self) -> float:
        """The loss as a float."""
        return float(self.losses)


def train(
    net: Callable[[Any], Any],
    optimizer: torch.optim.Optimizer,
    batches: Iterable[tuple[Any, Any]],
    loss: Callable[[Any, Any], Tensor],
    *,
    rates: Sequence[float] | None = None,
    around: Around | None = None,
) -> Iterator[Step]:
    """Train on one batch after the other, and yield a ``Step`` after every update.

    A divergence ends the training. The caller's code runs between two updates.

    Args:
        net: a module, or any function, from the inputs of a batch to outputs.
        optimizer: its optimizer.
        batches: pairs (inputs, targets).
        loss: from (outputs, targets) to a batch mean.
        rates: factors on every group's learning rate, one per step.
        around: gives a context for the forward and backward pass of a step; the update comes after
            it.
    """
    base = [group["lr"] for group in optimizer.param_groups]
    for step, (inputs, targets) in enumerate(batches):
        if rates is not None:
            for group, lr in zip(optimizer.param_groups, base, strict=True):
                group["lr"] = lr * rates[step]
        optimizer.zero_grad()
        with around(step) if around else nullcontext():
            outputs = net(inputs)
            value = loss(outputs, targets)
            losses = value.detach()
            seen = outputs.detach() if isinstance(outputs, Tensor) else outputs
            # the one wait for a device
            diverged = not bool(losses.isfinite())
            row = Step(step, losses, seen, diverged, optimizer)
            if not row.diverged:
                value.backward()  # type: ignore[no-untyped-call]
        if not row.diverged:
            optimizer.step()
        yield row
        if row.diverged:
            return


# ---- The trial, and what is seen of it


# counts changes of what a trial computes beyond rounding
NUMERICS = 3
# the setting of a trial that holds hashes of the user's code
CODE = "code"

Curves = dict[str, Any]


class Observation:
    """What an observer sees of one training. Every method does nothing unless it is overridden."""

    def around(self, step: int) -> AbstractContextManager[object]:
        """A context for the forward and backward pass of a step."""
        return nullcontext()

    def after(self, row: Step) -> None:
        """Called after the update of every step."""

    def end(self) -> tuple[dict[str, float], Curves, Any]:
        """Metrics by name, curves by name, and plain data (JSON), for the record of the trial."""
        return {}, {}, None


class Observer(ABC):
    """What is measured of a trial on the way.

    It is a frozen dataclass whose fields are plain data or tensors. Its name and ``settings`` are
    part of the trial's key. Numbers that it returns stand in the trial's record.

    Example::

        from dataclasses import dataclass


        @dataclass(frozen=True)
        class Norms(nfd.Observer):
            matrix: str

            @property
            def settings(self):
                return {"matrix": self.matrix}

            def begin(self, member, task):
                return Seen(member.module.get_parameter(self.matrix))


        class Seen(nfd.Observation):
            def __init__(self, weight):
                self.weight = weight
                self.norms = []

            def after(self, row):
                self.norms.append(self.weight.norm().item())

            def end(self):
                norms = torch.tensor(self.norms)
                return {"last_norm": self.norms[-1]}, {"norms": norms}, None


        family = nfd.Family(make_model, base=(16, 2))
        observe = (Norms("0.weight"),)
        trial = nfd.Trial(family, nfd.Task(batches), 16, 2, 0, lr=1e-3, observe=observe)
        with nfd.Sweep() as sweep:
            (record,) = sweep.run([trial])
        record.metrics["last_norm"]
    """

    @property
    def settings(self) -> Mapping[str, Any]:
        """What decides its numbers, as plain data."""
        return {}

    @abstractmethod
    def begin(self, member: Member, task: Task) -> Observation:
        """Look at an untrained network on the device where it will be trained."""


@dataclass(frozen=True)
class Trial:
    """One network of a family, trained on a task from one seed at one rate.

    Its record holds ``first_loss``, ``highest_loss``, ``train_loss`` (the mean over the last tenth
    of the steps), where the task has ``eval_batches`` also ``test_loss``, and under cross-entropy
    ``test_accuracy``; and the curve ``loss``, before each update. A trial that stops early is
    another trial: no evaluation batch judges it.

    Args:
        family, task: what is trained, and on what.
        width, depth, seed: of the network, in the units of its family.
        lr: of the base.
        stop: after how many steps to stop; None for all.
        weights: how the network holds its wide matrices (``nfd.defer``). resolution: of structured
            ones, below which they leave out directions; None for none.
        every: steps between evaluations, which give the curves ``test_loss``, ``test_accuracy`` and
            ``tested_after``.
        observe: what is measured on the way.
    """

    family: Family = field(repr=False)
    task: Task = field(repr=False)
    width: int
    depth: int
    seed: int
    lr: float
    stop: int | None = None
    weights: NetworkWeights = "dense"
    resolution: float | None = None
    every: int | None = None
    observe: tuple[Observer, ...] = ()

    def __post_init__(self) -> None:
        # to trace the model with
        object.__setattr__(self, "family", self.family.under(sample=self.task.sample))

    @property
    def key(self) -> str:
        """Its name in a store: a hash of all that decides its numbers."""
        return self._named[1]

    @property
    def settings(self) -> dict[str, Any]:
        """What decides its numbers, as plain data."""
        return self._named[2]

    @property
    def _named(self) -> tuple[Any, str, dict[str, Any]]:
        """The hashes of its task, which may have changed since they were read, key and settings."""
        hashes = (self.task.fingerprint, self.task.code)
        named: tuple[Any, str, dict[str, Any]] | None = self.__dict__.get("_as_named")
        if named is None or named[0] != hashes:
            settings = self._described()
            named = (hashes, hashed(settings), settings)
            self.__dict__["_as_named"] = named
        return named

    def _described(self) -> dict[str, Any]:
        schedule = self.factors and hashed({"factors": list(self.factors)})
        observers = [
            [type(observer).__name__, dict(observer.settings)] for observer in self.observe
        ]
        described = {
            **self.experiment,
            "width": self.width,
            "depth": self.depth,
            "seed": self.seed,
            "lr": self.lr,
            "stop": self.stop,
            "weights": self.weights,
            "resolution": self.resolution,
            "every": self.every,
            "schedule": schedule,
            "observe": observers,
        }
        if self.weights != "dense" and self.task.init_scale != 1:
            # In stores of earlier versions the matrices of such trials were not scaled.
            described["scales_unstored"] = True
        return described

    @property
    def experiment(self) -> dict[str, Any]:
        """What trials of other sizes, seeds and rates share, and the version of our numerics."""
        experiment = {**self.family.identity, **self.task.identity, "numerics": NUMERICS}
        # Trials that run no code of the user's keep the keys that they have in older stores.
        code = self.code
        if code:
            experiment[CODE] = code
        return experiment

    @property
    def code(self) -> dict[str, str]:
        """Hashes of the user's code that decides its numbers, by what the code is."""
        code = {**self.family.code, **self.task.code}
        for observer in self.observe:
            kind = type(observer)
            digest = fingerprint_of_others(kind)
            if digest is not None:
                code[f"observer {kind.__name__}"] = digest
        return code

    @cached_property
    def factors(self) -> tuple[float, ...] | None:
        """Its schedule as factors on its rates, one per step; None where there is none."""
        return self.task.factors(self.lr)

    @property
    def steps(self) -> int:
        """How many steps it is trained for."""
        return self.stop or self.task.steps

    @property
    def cost(self) -> float:
        """Counted work for the progress of a sweep, as if all hidden matrices were square."""
        rows = self.task.targets * self.steps / self.task.steps + self.task.eval_targets / 3
        # Wide matrices that are not stored cost a product with every earlier row.
        inputs = self.width if self.weights == "dense" else rows
        return rows * self.depth * self.width * inputs

    def held(self, tasks: dict[int, Task]) -> Self:
        """Return the trial of a task whose hashes stay as they are now.

        ``tasks`` has those that were held before, by the id of what they are of, and takes more.
        """
        if id(self.task) not in tasks:
            tasks[id(self.task)] = self.task.held()
        task = tasks[id(self.task)]
        return self if task is self.task else replace(self, task=task)

    def build(self, place: torch.device | str = "cpu") -> Member:
        """Build its network, to be trained."""
        member = self.family.member(
            self.width, self.depth, self.seed, self.weights, place, self.resolution
        )
        if self.task.init_scale != 1:
            _scale_(member, self.task.init_scale)
        member.module.train()
        return member

    def failed(self, error: str, trace: str | None = None) -> Record:
        """Make the record of a trial that could not be trained; ``trace`` of our mistakes."""
        return Record(self.key, "failed", self.settings, {}, error=error, trace=trace)

    def train(self, device: str | None = None) -> Record:
        """Train it, by default where its batches lie.

        If it cannot be trained, its record has the error.
        """
        try:
            with self.task.blaming(self.width, self.depth):
                place = self.task.device if device is None else torch.device(device)
                return self._trained(place)
        # a mistake of the input or ours, as the record says
        except Exception as error:
            return self.failed(described(error) + place_of(error), trace_of(error))

    def _trained(self, place: torch.device) -> Record:
        start = time.perf_counter()
        task = self.task.on(place).for_one_training()
        if self.stop is not None:
            task = task.first(self.stop).having(eval_batches=())
        seed = derive(self.seed, "training", self.width, self.depth)
        devices = [] if place.type == "cpu" else [place]
        with global_streams(seed, devices):
            member = self.build(place)
            member.reserve(task.rows)
            observations = [observer.begin(member, task) for observer in self.observe]
            losses, judgements = self._loop(member, task, observations)
            # An observer says more.
            if not losses[0].isfinite() and not self.observe:
                raise InputError(
                    f"make_model({self.width}, {self.depth}) has a loss of {float(losses[0]):g} "
                    "before it is trained, so that no rate can help. Check its outputs and the "
                    "loss on the first batch."
                )
            ends = [observation.end() for observation in observations]
        at_looks = torch.tensor(
            [judgements.get(step, (math.nan, math.nan)) for step in self._looks],
            dtype=torch.float64,
        )
        curves: Curves = {"loss": losses.double()}
        if self.every is not None:
            loss, accuracy = at_looks.float().unbind(1)
            curves |= {
                "test_loss": loss,
                "test_accuracy": accuracy,
                "tested_after": torch.tensor(self._looks).float(),
            }
        metrics = _metrics(curves["loss"], at_looks[-1].tolist(), bool(task.eval_batches))
        observed = list[Any]()
        for more_metrics, more_curves, data in ends:
            metrics |= more_metrics
            curves |= more_curves
            if data is not None:
                observed.append(data)
        return Record(
            self.key,
            "diverged" if "diverged_at" in metrics else "done",
            self.settings,
            metrics,
            {name: torch.as_tensor(x).detach().cpu().numpy() for name, x in curves.items()},
            seconds=time.perf_counter() - start,
            observed=observed,
        )

    @property
    def _looks(self) -> list[int]:
        """The numbers of steps after which the network is judged, ascending."""
        looks = {self.steps}
        if self.every:
            looks |= set(range(0, self.steps, self.every))
        return sorted(looks)

    def _loop(
        self, member: Member, task: Task, observations: Sequence[Observation]
    ) -> tuple[Tensor, dict[int, tuple[float, float]]]:
        """Train a network; return its losses [steps], and loss and accuracy by the step of a look.

        Where training diverges there are fewer steps and looks.
        """
        looks = set(self._looks)
        losses = list[Tensor]()
        judgements = dict[int, tuple[float, float]]()
        if 0 in looks:
            judgements[0] = judged(member, task)
        optimizer = optimizer_of(task, member, self.lr)
        around = _around(observations)
        steps = train(
            member, optimizer, task.batches, task.value, rates=self.factors, around=around
        )
        for row in steps:
            losses.append(row.losses)
            for observation in observations:
                observation.after(row)
            if row.step + 1 in looks and not row.diverged:
                with judging(optimizer):
                    judgements[row.step + 1] = judged(member, task)
        return torch.stack(losses), judgements


@torch.no_grad()
def _scale_(member: Member, factor: float) -> None:
    """Scale the initial weights of every matrix that is drawn at random."""
    entries = member.plan.entries
    of_layers = set[int]()
    for module in member.module.modules():
        layer: Any = module
        if getattr(module, "is_deferred", False) is True:
            layer.scale_initial_(factor)
            of_layers.update(id(p) for p in (layer.update, layer.scale))
    for name, tensor in tensors(member.module).items():
        is_drawn = name in entries and not (tensor.is_vector or entries[name].start.kept)
        if is_drawn and id(tensor.parameter) not in of_layers:
            tensor.parameter.mul_(factor)


def _metrics(losses: Tensor, last: Sequence[float], is_judged: bool) -> dict[str, float]:
    """Compute first, highest and last loss, and what judged the trained network.

    The last is the mean over the last tenth of the steps.

    Args:
        losses: ``[steps]``, before each update. last: loss and accuracy after the last step; not a
            number where it was not reached, and an accuracy where there is none.

    Returns:
        Where training diverged the highest, the mean and the judged loss are infinite, and
        ``diverged_at`` is the step of the first loss that is not a number.
    """
    bad = (~losses.isfinite()).nonzero()
    loss, accuracy = last
    metrics = {"first_loss": float(losses[0])}
    diverged = len(bad) > 0 or not math.isfinite(loss)
    if diverged:
        end = float(bad[0]) if len(bad) else float(len(losses))
        metrics |= {"highest_loss": math.inf, "train_loss": math.inf, "diverged_at": end}
    else:
        mean = losses[-max(1, len(losses) // 10) :].mean()
        metrics |= {"highest_loss": float(losses.max()), "train_loss": float(mean)}
    if is_judged and diverged:
        metrics |= {"test_loss": math.inf, "test_accuracy": 0.0}
    elif is_judged:
        metrics["test_loss"] = loss
        if not math.isnan(accuracy):
            metrics["test_accuracy"] = accuracy
    return metrics


def hashed(content: Mapping[str, Any]) -> str:
    """Return a name for plain data."""
    return blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=10).hexdigest()


def _around(
    observations: Sequence[Observation],
) -> Callable[[int], AbstractContextManager[object]] | None:
    """Return the contexts of all observations as one; None without any."""
    if not observations:
        return None

    @contextmanager
    def around(step: int) -> Iterator[None]:
        with ExitStack() as stack:
            for observation in observations:
                stack.enter_context(observation.around(step))
            yield

    return around
