"""``Task``: what networks are trained on, and how but for their learning rate."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from hashlib import blake2b
from numbers import Real
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from nfd.core.checks import check_choice, check_real, check_several, check_takes
from nfd.core.copies import copied
from nfd.core.errors import InputError, InputTypeError, blaming
from nfd.core.fingerprint import fingerprint
from nfd.core.modes import plain
from nfd.runs.losses import IGNORED, LOSSES, MODELS_OWN, loss_of
from nfd.scaling.rules import MAX_RATE
from nfd.scaling.samples import batch_size, check_sample, mapped, on_device, shape_of, tensors_in

# ---- Schedules of the learning rate as plain factors, one per step


Schedule = Callable[..., Any]
"""From the step to a factor, or from an optimizer to a scheduler.

One that also takes ``steps`` gets their number.
"""


def factors_of(schedule: Schedule, steps: int, lr: float) -> tuple[float, ...]:
    """Return the factors of a schedule on the base's learning rate, one per step.

    Every group of parameters follows in proportion, so that a rule holds at every step. A rate that
    a scheduler names itself, such as ``eta_min``, is one of the base.

    Args:
        schedule: a function from the step to a factor, or from an optimizer to a scheduler of
            ``torch.optim``.
        steps: how many. lr: the rate of the base.

    Raises:
        ValueError, TypeError: where it is neither, or schedules more than rates.
    """
    schedule = _fitted(schedule, steps)
    try:
        factor: Any = schedule(0)
    # whatever a scheduler's constructor raises where an optimizer should be
    except Exception:
        factor = None
    is_one_number = isinstance(factor, Tensor) and factor.dim() == 0
    if isinstance(factor, Real) or is_one_number:
        return tuple(
            check_real(f"schedule({step})", schedule(step), least=0.0) for step in range(steps)
        )
    return tuple(rate / lr for rate in _rates(schedule, steps, lr))


def _fitted(schedule: Schedule, steps: int) -> Schedule:
    """Return the schedule of so many steps, as a function of only the step or the optimizer."""
    if knows_steps(schedule):
        schedule = partial(schedule, steps=steps)
    check_takes("schedule", schedule, "step_or_optimizer")
    return schedule


def knows_steps(schedule: Schedule) -> bool:
    """Whether a schedule takes the number of steps, and so fits training runs of any length."""
    try:
        taken = inspect.signature(schedule).parameters
    # some that are written in C have no signature
    except (TypeError, ValueError):
        return False
    return "steps" in taken and taken["steps"].default is inspect.Parameter.empty


def _rates(schedule: Schedule, steps: int, lr: float) -> list[float]:
    """List the learning rates that a scheduler gives an optimizer, one per step."""
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr, weight_decay=0.0)
    settings = _settings_but_rate(optimizer)
    scheduler = schedule(optimizer)
    is_scheduler = isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler)
    needs_losses = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
    if not is_scheduler or needs_losses:
        raise InputTypeError(
            "schedule must be a function from the step to a factor, or from an optimizer to a "
            "scheduler of torch.optim that needs no measurement; called with an optimizer it "
            f"returned {type(scheduler).__name__}."
        )
    rates = list[float]()
    for step in range(steps):
        rate = optimizer.param_groups[0]["lr"]
        rates.append(check_real(f"rate of schedule at step {step}", rate, least=0.0))
        if _settings_but_rate(optimizer) != settings:
            raise InputError(
                "schedule must change rates alone; for OneCycleLR pass cycle_momentum=False."
            )
        optimizer.step()
        scheduler.step()
    return rates


def _settings_but_rate(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [optimizer.param_groups[0][name] for name in ("betas", "weight_decay")]


# ---- ``Task``: what networks are trained on, and how but for their learning rate


Pair = tuple[Any, Any]
Batch = Pair | Mapping[str, Any]  # as users give them
MakeOptimizer = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]

_DEFAULT = "cross-entropy"
FROM_GROUPS = (
    "It is a function from the parameter groups of a plan to an optimizer, such as lambda groups: "
    "torch.optim.AdamW(groups). The groups have the rates of the rule that is tested."
)
COPIES = (
    "Note: targets equal inputs: the model is trained to copy its input. Shift them, or pass the "
    "batch as a dict so that the model shifts."
)


# The properties of a task that are hashes, with the fields that they are of; and the attribute by
# which they stay as they are.
_HASHED = {"code": {"loss", "make_optimizer"}, "fingerprint": {"batches", "eval_batches"}}
_HELD = "_hashes_are_held"


@dataclass(frozen=True)
class Task:
    """What networks are trained on, and how: batches, loss, schedule and optimizer.

    Args:
        batches: (inputs, targets), one update for each in this order: a list or a loader, of
            tensors or arrays. Inputs are a tensor, a tuple of arguments or a dict of keyword
            arguments. A batch that is only a dict is passed to the model by keyword, and the model
            returns its loss.
        loss: ``"cross-entropy"`` (class ids, -100 for those that do not count; any leading
            dimensions); ``"mse"``, the mean of ``(f - y)**2 / 2`` over the batch and all outputs,
            half of ``F.mse_loss``; or a function of what the model returns and the targets, to a
            batch mean.
        eval_batches: batches whose mean loss judges a trained network; by default the mean training
            loss over the last tenth of the steps.
        schedule: a function from the step to a factor on every rate, or from an optimizer to a
            PyTorch scheduler. If it has a second argument ``steps``, that is the number of steps.
        make_optimizer: a function from parameter groups to an optimizer, in place of PyTorch's.
            What it sets, such as decay, epsilon and betas, is of the base, and is scaled.
        weight_decay: of the base; None: what ``make_optimizer`` sets, and 0 without it.
        adamw_lr: under Muon, the base's rate of the tensors that AdamW trains; the rate itself if
            None.
        init_scale: factor on the initial weights of every matrix that is drawn at random.

    Raises:
        ValueError, TypeError: naming the argument.

    Example::

        falling = lambda step, steps: 1 - step / steps
        task = nfd.Task(batches, weight_decay=0.1, schedule=falling)
        print(nfd.check(make_model, task, [16, 32], [2], lr=3e-3))
    """

    batches: Sequence[Pair] = field(repr=False)
    loss: str | Callable[[Any, Any], Tensor] = _DEFAULT
    eval_batches: Sequence[Pair] = field(default=(), repr=False)
    schedule: Schedule | None = None
    make_optimizer: MakeOptimizer | None = None
    weight_decay: float | None = None
    adamw_lr: float | None = None
    init_scale: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.loss, str):
            check_takes("loss", self.loss, "outputs", "targets")
        elif self.loss != MODELS_OWN:
            check_choice("loss", self.loss, LOSSES)
        judged = list[Pair]()
        if self.eval_batches != ():
            judged = pairs_of(self.eval_batches, "eval_batches")
        pairs = pairs_of(self.batches)
        loss = self.loss
        if isinstance(loss, str):
            loss = _with_targets(loss, [*pairs, *judged])
        if loss in (_DEFAULT, MODELS_OWN):
            check_labels("batches", pairs)
            check_labels("eval_batches", judged)
        if self.make_optimizer is not None:
            check_takes("make_optimizer", self.make_optimizer, "groups")
        if self.schedule is not None:
            _fitted(self.schedule, len(pairs))
        init_scale = check_real("init_scale", self.init_scale, above=0.0, below=MAX_RATE)
        self.__dict__.update(
            batches=pairs,
            eval_batches=judged,
            loss=loss,
            weight_decay=self._checked_decay(),
            init_scale=init_scale,
        )

    @property
    def optimizer_code(self) -> str:
        """Further arguments of ``plan.make_optimizer``, as code: what trials are trained with."""
        code = f", weight_decay={self.weight_decay:g}" if self.weight_decay else ""
        if self.make_optimizer is not None:
            code += ", make=task.make_optimizer"
        return code

    def _checked_decay(self) -> float | None:
        """Return the decay as it was given, None where ``make_optimizer`` decides."""
        if self.weight_decay is None and self.make_optimizer is not None:
            return None
        if self.weight_decay is None:
            return 0.0
        return check_real("weight_decay", self.weight_decay, least=0.0, below=MAX_RATE)

    def having(self, **changes: Any) -> Self:
        """Return the task with other values of some fields, which are not checked again."""
        other = object.__new__(type(self))
        other.__dict__.update({f.name: self.__dict__[f.name] for f in fields(self)} | changes)
        for name, decided_by in _HASHED.items():
            if name in self.__dict__ and not changes.keys() & decided_by:
                other.__dict__[name] = self.__dict__[name]
        other.__dict__[_HELD] = self.__dict__.get(_HELD, False)
        return other

    def held(self) -> Self:
        """Return the task with its hashes as they are now, which stay while it is trained.

        Code can change under a name, as in ``as_family``, and batches can change in place.
        """
        if self.__dict__.get(_HELD, False):
            return self
        for name in _HASHED:
            self.__dict__.pop(name, None)
            getattr(self, name)
        other = self.having()
        other.__dict__[_HELD] = True
        return other

    def for_one_training(self) -> Self:
        """Return the task with a copy of its loss, so that what it counts starts anew."""
        if isinstance(self.loss, str):
            return self
        return self.having(loss=copied(self.loss))

    @property
    def steps(self) -> int:
        """How many updates there are."""
        return len(self.batches)

    @cached_property
    def targets(self) -> int:
        """How many class ids that count a training is shown; samples without class ids."""
        return _targets(self.batches)

    @cached_property
    def rows(self) -> int:
        """How many rows pass through a matrix in training.

        Class ids that do not count are rows as well.
        """
        rows = 0
        for x, y in self.batches:
            ids = _ids(x, y)
            rows += batch_size(x) if ids is None else ids.numel()
        return rows

    @cached_property
    def eval_targets(self) -> int:
        """How many class ids, or samples, a trained network is judged by."""
        return _targets(self.eval_batches)

    @property
    def score(self) -> str:
        """The metric by which trained networks are compared."""
        return "test_loss" if self.eval_batches else "train_loss"

    @property
    def about(self) -> str:
        """How its batches are read, in words: the first stands for all."""
        shape = list(tensors_in(self.sample)[0].shape)
        steps = "1 step" if self.steps == 1 else f"{self.steps} steps"
        samples = "1 sample" if shape[0] == 1 else f"{shape[0]} samples"
        return f"{steps} of {samples} {shape}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What is likely to be a mistake in the batches, in words."""
        if self.copies:
            return (COPIES,)
        return ()

    @cached_property
    def copies(self) -> bool:
        """Whether the targets of the library's cross-entropy are the inputs themselves."""
        if self.loss != _DEFAULT:
            return False
        return all(_is_copied(inputs, targets) for inputs, targets in self.batches)

    @property
    def sample(self) -> Any:
        """The inputs of the first batch."""
        return self.batches[0][0]

    @property
    def device(self) -> torch.device:
        """Where its first tensor lies."""
        return next((tensor.device for tensor in tensors_in(self.batches[0])), torch.device("cpu"))

    @property
    def value(self) -> Callable[[Any, Any], Tensor]:
        """The loss, from what a network returns and the targets to a batch mean."""
        return loss_of(self.loss)

    def factors(self, lr: float) -> tuple[float, ...] | None:
        """Return the schedule as factors on the rates, one per step; None where there is none."""
        if self.schedule is None:
            return None
        return factors_of(copied(self.schedule), self.steps, lr)

    def first(self, steps: int) -> Self:
        """Return the task with only its first batches."""
        return self.having(batches=self.batches[:steps])

    def in_batches(self, size: int) -> Self:
        """Return the task with its samples in the same order, in batches of another size.

        Raises:
            ValueError: where the size does not divide the samples, a tensor has no row for every
                sample, or no label of a batch counts.
        """
        batches = cut(self.batches, size)
        if self.loss in (_DEFAULT, MODELS_OWN):
            check_labels(f"batches of {size} samples ", batches)
        return self.having(batches=batches)

    def on(self, device: torch.device) -> Self:
        """Return the task with its tensors on a device."""
        return self.having(
            batches=on_device(self.batches, device),
            eval_batches=on_device(self.eval_batches, device),
        )

    @property
    def identity(self) -> Mapping[str, Any]:
        """Plain data that names it in a store, but for its schedule, which a rate completes.

        A loss and an optimizer of the user's are named by ``code``.
        """
        return {
            "task": self.fingerprint,
            "make_optimizer": self.make_optimizer is not None,
            "weight_decay": self.weight_decay,
            "adamw_lr": self.adamw_lr,
            "steps": self.steps,
            "init_scale": self.init_scale,
            "loss": self.loss if isinstance(self.loss, str) else "custom",
        }

    @cached_property
    def code(self) -> Mapping[str, str]:
        """Hashes of a loss and of an optimizer that the user gives, by what they are.

        A schedule is known by its factors at every step.
        """
        hashes = dict[str, str]()
        if not isinstance(self.loss, str):
            hashes["loss"] = fingerprint(self.loss)
        if self.make_optimizer is not None:
            hashes["make_optimizer"] = fingerprint(self.make_optimizer)
        return hashes

    @cached_property
    def fingerprint(self) -> str:
        """A hash of every number in its batches, the same wherever the tensors lie."""
        return content_hash((self.batches, self.eval_batches))

    def blaming(self, width: int, depth: int) -> AbstractContextManager[None]:
        """A context whose errors name the model of this size, and the shapes of the first batch."""
        x, y = (shape_of(part) for part in self.batches[0])
        what = (
            f"make_model({width}, {depth}) could not be trained on batches[0], inputs {x} and "
            f"targets {y}"
        )
        return blaming(what)


def as_task(task: Task | Iterable[Batch]) -> Task:
    """Return the task that a verb was given, or make one of plain batches."""
    if not isinstance(task, Task):
        return Task(cast("Sequence[Pair]", task))
    return task.held()


def check_labels(argument: str, pairs: Sequence[Pair]) -> None:
    """Raise ValueError for a batch of which no class id counts: its mean loss is not a number.

    ``argument`` is what messages call the batches.
    """
    for step, (inputs, targets) in enumerate(pairs):
        ids = _ids(inputs, targets)
        if ids is not None and not bool((ids != IGNORED).any()):
            name = "labels" if targets is None else "targets"
            raise InputError(
                f"{name} of {argument}[{step}] must hold a "
                f"class id that counts; all {ids.numel()} are {IGNORED}, which no loss counts. "
                "Leave the batch out, or make it larger."
            )


def _with_targets(loss: str, pairs: Sequence[Pair]) -> str:
    """Return the name of the loss: the model's own where no batch has targets."""
    without = sum(y is None for _, y in pairs)
    if without and (without < len(pairs) or loss != _DEFAULT):
        raise InputError(
            f"loss={loss!r} needs the targets of every batch; got {without} of {len(pairs)} "
            "batches without targets. Give all batches as (inputs, targets); or none, and leave "
            "loss out to train by the loss that the model returns; or pass a function, loss=lambda "
            "output, targets: ..."
        )
    return MODELS_OWN if without else loss


def _targets(pairs: Sequence[Pair]) -> int:
    """Count the class ids of batches that count, or samples where targets are not class ids."""
    count = 0
    for inputs, targets in pairs:
        ids = _ids(inputs, targets)
        count += batch_size(inputs) if ids is None else int((ids != IGNORED).sum())
    return count


def _is_copied(inputs: Any, targets: Any) -> bool:
    """Whether targets equal one of the inputs."""
    if not isinstance(targets, Tensor):
        return False
    return any(torch.equal(x, targets.to(x.device)) for x in tensors_in(inputs))


def _ids(inputs: Any, targets: Any) -> Tensor | None:
    """Return the class ids of a batch, from ``labels`` without targets; None without any."""
    if targets is None and isinstance(inputs, Mapping):
        targets = inputs.get("labels")
    if isinstance(targets, Tensor) and not targets.is_floating_point():
        return targets
    return None


def content_hash(value: Any) -> str:
    """Hash every number in tensors, numbers and texts, in tuples, lists and dicts."""
    digest = blake2b(digest_size=10)
    _add(digest, value)
    return digest.hexdigest()


def _add(digest: blake2b, value: Any) -> None:
    if isinstance(value, Tensor):
        entries = value.detach().cpu().contiguous().flatten()
        digest.update(f"{value.dtype} {list(value.shape)}".encode())
        digest.update(entries.view(torch.uint8).numpy().data)
    elif isinstance(value, Mapping):
        digest.update(repr(list(value)).encode())
        for part in value.values():
            _add(digest, part)
    elif isinstance(value, tuple | list):
        digest.update(f"{len(value)} parts".encode())
        for part in value:
            _add(digest, part)
    elif value is None or isinstance(value, bool | int | float | str):
        digest.update(repr(value).encode())
    else:
        raise InputTypeError(
            "batches must hold tensors, numbers and texts, in tuples, lists and dicts; got "
            f"{type(value).__name__}."
        )


# ---- Batches as users give them: checked, as tensors, and on a device


BATCHES = "(inputs, targets) or dicts of keyword arguments, one per step"


def pairs_of(batches: Iterable[Any], argument: str = "batches") -> list[tuple[Any, Any]]:
    """List batches (inputs, targets), with arrays of NumPy as tensors.

    A batch that is a mapping holds the inputs by keyword, and its targets are None. ``argument`` is
    what messages call the batches.

    Raises:
        ValueError, TypeError: naming what is no batch or not finite.
    """
    if isinstance(batches, Mapping):
        raise InputError(
            f"{argument} must be a list of {BATCHES}; got a single dict. Put it into a list: "
            "[batch]."
        )
    if isinstance(batches, Iterable) and not isinstance(batches, Sequence | np.ndarray | Tensor):
        # A loader may refill the tensors of a batch with the next one.
        batches = (mapped(batch, _own) for batch in batches)
    given = check_several(argument, batches, BATCHES)
    if len(given) == 2 and all(isinstance(part, Tensor | np.ndarray) for part in given):
        shapes = " and ".join(str(list(part.shape)) for part in given)
        raise InputError(
            f"{argument} must be a list of {BATCHES}; got two tensors, {shapes}. If they are one "
            "batch, pass [(inputs, targets)]; if their first dimension counts steps, "
            "list(zip(inputs, targets))."
        )
    pairs = [(batch, None) if isinstance(batch, Mapping) else batch for batch in given]
    if not pairs:
        raise InputError(f"{argument} must be a list of {BATCHES}; got none.")
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InputError(f"{argument} must be a list of {BATCHES}; got {shape_of(pair)}.")
    pairs = [mapped(tuple(pair), _as_tensor) for pair in pairs]
    for step, (x, y) in enumerate(pairs):
        check_sample(f"inputs of {argument}[{step}]", x)
        batch_size(x, f"inputs of {argument}[{step}]")
        check_sample(f"targets of {argument}[{step}]", y)
    return pairs


def _own(part: Any) -> Any:
    """Return a copy of a tensor or an array; anything else as it is."""
    if isinstance(part, Tensor):
        return part.clone()
    return part.copy() if isinstance(part, np.ndarray) else part


def inputs_of(argument: str, inputs: Any) -> Any:
    """Return inputs as those of a batch, with arrays of NumPy as tensors.

    Raises:
        ValueError, TypeError: naming the argument, where they are empty or not finite.
    """
    inputs = mapped(inputs, _as_tensor)
    if not tensors_in(inputs):
        raise InputTypeError(
            f"{argument} must be inputs as those of a batch, a tensor or several; got "
            f"{shape_of(inputs)}. Pass lists of numbers as torch.tensor({argument})."
        )
    check_sample(argument, inputs)
    batch_size(inputs, argument)
    return inputs


def _as_tensor(part: Any) -> Any:
    if np.ma.is_masked(part):
        raise InputError(
            "batches have masked entries, which stand for no number. Remove or fill them first."
        )
    if isinstance(part, Tensor):
        # What it was computed from is not trained.
        return plain(part).detach()
    if not isinstance(part, np.ndarray):
        return part
    tensor = torch.from_numpy(part)
    if tensor.is_floating_point():
        return tensor.to(torch.get_default_dtype())
    return tensor


def cut(pairs: Sequence[tuple[Any, Any]], size: int) -> list[tuple[Any, Any]]:
    """Cut the samples of some batches, in the same order, into batches of another size.

    Raises:
        ValueError: where the size does not divide the samples, or a tensor has no row for every
            sample of its batch.
    """
    counts = [batch_size(inputs) for inputs, _ in pairs]
    if sum(counts) % size:
        raise InputError(
            f"batch_size must divide the {sum(counts)} samples of the batches; got {size}."
        )
    flat = [tree_flatten(pair) for pair in pairs]
    (_, structure) = flat[0]
    whole = list[Any]()
    for parts in zip(*(leaves for leaves, _ in flat), strict=True):
        if isinstance(parts[0], Tensor):
            for part, count in zip(parts, counts, strict=True):
                if part.dim() == 0 or len(part) != count:
                    raise InputError(
                        "batch_size cannot vary where a tensor of the batches has no row for every "
                        f"sample; got {list(part.shape)} in a batch of {count}."
                    )
            whole.append(torch.split(torch.cat(parts), size))
        elif any(part != parts[0] for part in parts):
            raise InputError(
                f"batch_size cannot vary where batches differ in {parts[0]!r}, which is no tensor."
            )
        else:
            whole.append([parts[0]] * (sum(counts) // size))
    return [tree_unflatten(leaves, structure) for leaves in zip(*whole, strict=True)]
