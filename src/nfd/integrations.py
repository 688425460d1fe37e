"""Plans and watches in other people's trainers.

There are callbacks, each made when it is first used, and writers of rows.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import chain, groupby
from operator import attrgetter
from typing import Any

import torch
from torch import distributed, nn

from nfd.core.errors import InputError, InputTypeError
from nfd.core.notices import tell
from nfd.core.words import quoted
from nfd.meters.reading import WatchRow
from nfd.scaling.base_group import SCALE
from nfd.scaling.held import held_as_planned, held_by
from nfd.scaling.kept_rates import check_rates, warn_of_lost_ratios
from nfd.scaling.plan import Plan
from nfd.watch.bands import ALERTS
from nfd.watch.watch import Watch

# The entry of a watch in the state of Hugging Face's Trainer.
_STATE = "nfd.Watch"
# A short training is advised to take so many looks.
_FEW_LOOKS = 10


@cache
def __getattr__(name: str) -> Any:
    """Make a callback with the base class of its trainer, which takes seconds to import."""
    if name not in _CALLBACKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    hooks, library, base, packages = _CALLBACKS[name]
    try:
        trainer = importlib.import_module(library)
    except ImportError:
        raise ImportError(
            f"{name} needs {library}, which is not installed. pip install {packages}"
        ) from None
    bases = (hooks, getattr(trainer, base))
    return type(name, bases, {"__module__": __name__, "__doc__": hooks.__doc__})


class _Hooks:
    """A plan and a watch, which the callbacks of all trainers share."""

    def __init__(self, plan: Plan | None, watch: Watch | None) -> None:
        name = type(self).__name__
        if not isinstance(plan, Plan | None):
            raise InputTypeError(f"plan must be an nfd.Plan or None; got {type(plan).__name__}.")
        if not isinstance(watch, Watch | None):
            raise InputTypeError(f"watch must be an nfd.Watch or None; got {type(watch).__name__}.")
        if plan is None and watch is None:
            raise InputError(
                f"{name} has nothing to do: it was given neither a plan, whose rates it checks, "
                "nor a watch, which it steps. A training without a plan is watched by "
                f"{name}(None, nfd.Watch(model, None, sample))."
            )
        self.plan = plan
        self.watch = watch

    def _tell_of_no_look(self, steps: float) -> None:
        """Warn where a training of so many steps ends before the next look of the watch."""
        watch = self.watch
        if watch is None or steps <= watch.steps:
            return
        if steps // watch.every == watch.steps // watch.every:
            tell(
                f"The watch looks every {watch.every} steps, and this training ends at step "
                f"{steps:g}: no layer will be looked at. Make it with "
                f"nfd.Watch(..., every={max(1, round(steps) // _FEW_LOOKS)}).",
                UserWarning,
            )

    def _step(self, watch: Watch, loss: torch.Tensor | float | None = None) -> dict[str, float]:
        """Step a watch, and return the numbers to log.

        These are the meters of the network after a look, and new alerts at once.
        """
        count = len(watch.alerts) if watch.steps else 0
        rows = watch.step(loss)
        if not rows and len(watch.alerts) > count:
            return {f"nfd/{ALERTS}": float(len(watch.alerts))}
        return of_network(rows)


class _InTrainer(_Hooks):
    """A callback for Hugging Face's Trainer that steps a watch.

    It checks that the optimizer is the plan's.

    The watch counts updates, not accumulated batches, and not the steps that a gradient scaler
    skips. It gets the losses that the Trainer logs. It is saved in ``trainer_state.json`` of every
    checkpoint and continues from there. If it was made with ``on_alert="stop"``, the training ends
    at an alert.

    Args:
        plan: of the Trainer's model. If given, training does not begin unless the optimizer has its
            groups; any optimizer with one rate fits a plan whose factors are all 1, such as
            ``rule="standard"``.
        watch: of the same model, made after the Trainer (which moves the model) and before
            training; of a model without a plan ``nfd.Watch(model, None, sample)``.
        log: a function that gets the meters of the whole network and the number of alerts,
            ``nfd/alerts``, after every look, as a dict. Pass ``trainer.log`` to send them to all
            loggers of the Trainer. None leaves them in ``watch.rows``.

    Raises:
        ImportError: if transformers is not installed.
        ValueError: without a plan and a watch; when training begins, if the optimizer is not the
            plan's.

    Example::

        trainer = transformers.Trainer(
            model, arguments, train_dataset=data, optimizers=(optimizer, None)
        )
        watch = nfd.Watch(model, plan, sample)
        trainer.add_callback(nfd.integrations.TrainerCallback(plan, watch, log=trainer.log))
    """

    def __init__(
        self,
        plan: Plan | None = None,
        watch: Watch | None = None,
        log: Callable[[dict[str, float]], None] | None = None,
    ) -> None:
        super().__init__(plan, watch)
        self.log = log
        self._unlogged: dict[str, float] = {}
        # The step up to which the Trainer has logged its loss, a mean over the steps since
        self._logged = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Check the optimizer, and restore the watch from the checkpoint, if there is one."""
        if self.plan is not None:
            optimizer = given["optimizer"]
            # accelerate wraps it
            inner = getattr(optimizer, "optimizer", optimizer)
            remedy = "Give the Trainer optimizers=(plan.make_optimizer(model, lr=...), None)."
            check_optimizers(self.plan, given["model"], [inner], remedy)
        stored = state.stateful_callbacks.get(_STATE)
        if self.watch is not None and stored:
            self.watch.load_state_dict(stored)
        if self.watch is not None:
            self._logged = self.watch.steps
        self._tell_of_no_look(state.max_steps)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Step the watch, before gradients are cleared."""
        if self.watch is None or getattr(given["optimizer"], "step_was_skipped", False):
            return
        self._unlogged = self._step(self.watch)
        if self.watch.on_alert == "stop" and _in_any_process(self.watch.should_stop, args.device):
            control.should_training_stop = True

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Log the look of this step, where it may be logged.

        That is after the gradients' norm and before a checkpoint.
        """
        unlogged = self._unlogged
        self._unlogged = {}
        if unlogged and self.log is not None:
            is_due = control.should_log
            self.log(unlogged)
            # A log of any numbers clears the flag, and the Trainer's own loss was not logged yet.
            control.should_log = is_due
        self.on_epoch_end(args, state, control)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **given: Any
    ) -> None:
        """Give the watch a loss that the Trainer logs."""
        if self.watch is not None and logs is not None and "loss" in logs:
            self.watch.note_loss(float(logs["loss"]), steps=self.watch.steps - self._logged)
            self._logged = self.watch.steps

    def on_epoch_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Put the watch into the state, if the Trainer is to save it."""
        if control.should_save:
            self.on_evaluate(args, state, control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Put the watch into the state, as JSON.

        Only after this the Trainer decides whether to save its best model.
        """
        if self.watch is not None:
            state.stateful_callbacks[_STATE] = self.watch.state_dict(start=False)


class _InLightning(_Hooks):
    """A callback for Lightning that steps a watch and logs its meters.

    It checks that the optimizer is the plan's.

    The watch counts updates, not accumulated batches, and gets the losses of ``training_step``. It
    is saved with every checkpoint and continues from there. Loggers get the meters of the whole
    network and the number of alerts, ``nfd/alerts``. If the watch was made with
    ``on_alert="stop"``, the training ends at an alert.

    Args:
        plan: of the LightningModule or of a module inside it. If given, training does not begin
            unless the optimizers have its groups; any optimizer with one rate fits a plan whose
            factors are all 1, such as ``rule="standard"``.
        watch: of the same module, made before training, with the module on the device of the
            training; of a module without a plan ``nfd.Watch(module, None, sample)``.

    Raises:
        ImportError: if lightning is not installed.
        ValueError: without a plan and a watch; when training begins, if the optimizers are not the
            plan's.
    """

    def __init__(self, plan: Plan | None = None, watch: Watch | None = None) -> None:
        super().__init__(plan, watch)
        self._stepped = 0

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Check the optimizers."""
        self._stepped = trainer.global_step
        if self.plan is not None:
            parts = (pl_module, *pl_module.children())
            planned = (part for part in parts if held_by(part).keys() == self.plan.entries.keys())
            remedy = "Let configure_optimizers return plan.make_optimizer(self.model, lr=...)."
            check_optimizers(self.plan, next(planned, pl_module), trainer.optimizers, remedy)
        self._tell_of_no_look(trainer.estimated_stepping_batches)

    def on_train_batch_end(
        self, trainer: Any, pl_module: nn.Module, outputs: Any = None, *_: Any, **__: Any
    ) -> None:
        """Step the watch if the optimizer has stepped, and log the meters of the whole network."""
        if self.watch is None or trainer.global_step == self._stepped:
            return
        self._stepped = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if not isinstance(loss, torch.Tensor):
            loss = None
        meters = self._step(self.watch, loss)
        if meters:
            for logger in trainer.loggers:
                logger.log_metrics(meters, step=self.watch.steps)
        should_stop = self.watch.should_stop
        if self.watch.on_alert == "stop" and _in_any_process(should_stop, pl_module.device):
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        """The state of the watch, for a checkpoint."""
        if self.watch is None:
            return {}
        return self.watch.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the watch from a checkpoint."""
        if self.watch is not None and state_dict:
            self.watch.load_state_dict(state_dict)


def _in_any_process(is_true: bool, device: Any) -> bool:
    """Whether a flag is set in one of the processes of a training: they have to stop together."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return is_true
    count = torch.tensor(int(is_true), device=device)
    distributed.all_reduce(count)
    return bool(count)


# By name: the hooks, the library and its base class of callbacks, and the packages to install.
_CALLBACKS = {
    "TrainerCallback": (_InTrainer, "transformers", "TrainerCallback", "transformers accelerate"),
    "LightningCallback": (_InLightning, "lightning", "Callback", "lightning"),
}
__all__ = [*_CALLBACKS, "to_tensorboard", "to_wandb"]


def check_optimizers(
    plan: Plan, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], remedy: str
) -> None:
    """Raise unless optimizers step a model at the learning rates of its plan.

    The error has the remedy. Optimizers are made to warn of lost ratios.

    Where every factor of the plan is 1, an optimizer without its groups fits that has one rate for
    all tensors.
    """
    groups = list(chain.from_iterable(optimizer.param_groups for optimizer in optimizers))
    planned = dict[int, float]()
    for group in plan.param_groups(model, lr=1.0):
        planned |= dict.fromkeys(map(id, group["params"]), group[SCALE])
    rates = {float(group.get("lr") or 0.0) for group in groups}
    has_one_rate = len(rates) == 1 and all(SCALE not in group for group in groups)
    is_plain = has_one_rate and all(
        math.isclose(scale, 1.0, rel_tol=1e-6) for scale in planned.values()
    )
    # A group without a scale fits a plain optimizer only; nan is close to no scale.
    unscaled = 1.0 if is_plain else math.nan
    scales = dict[int, float]()
    for group in groups:
        scales |= dict.fromkeys(map(id, group["params"]), group.get(SCALE, unscaled))
    tensors = held_as_planned(model, plan.entries)
    names = {id(held.parameters[0]): name for name, held in tensors.items()}
    wrong = list[str]()
    for key, name in names.items():
        scale = scales.get(key, math.nan)
        if key in planned and not math.isclose(scale, planned[key], rel_tol=1e-6):
            wrong.append(name)
    if wrong:
        kinds = " and ".join(type(optimizer).__name__ for optimizer in optimizers) or "trainer"
        raise InputError(
            f"The {kinds} does not step {quoted(wrong)} at the rates of the plan: it was made "
            "without its groups, for another plan or model, or before these were to train. "
            f"{remedy}"
        )
    if is_plain:
        return
    for optimizer in optimizers:
        check_rates(optimizer)
        warn_of_lost_ratios(optimizer)


# ---- Rows of a watch for loggers


def tag(row: WatchRow) -> str:
    """``nfd/meter``, and of one layer ``nfd/meter/layer``."""
    if row.layer is None:
        return f"nfd/{row.meter}"
    return f"nfd/{row.meter}/{row.layer}"


def of_network(rows: Iterable[WatchRow]) -> dict[str, float]:
    """The meters of the whole network, by name."""
    return {tag(row): row.value for row in rows if row.layer is None}


def to_tensorboard(rows: Iterable[WatchRow], writer: Any) -> None:
    """Write the rows of a watch to TensorBoard: one scalar per meter and layer, at its step.

    Args:
        rows: of ``watch.step()`` or ``watch.rows``.
        writer: a ``torch.utils.tensorboard.SummaryWriter``.
    """
    for row in rows:
        writer.add_scalar(tag(row), row.value, row.step)


def to_wandb(rows: Sequence[WatchRow], run: Any) -> None:
    """Log the rows of a watch to Weights & Biases, at their steps.

    These must not precede steps logged before.

    Args:
        rows: of ``watch.step()`` or ``watch.rows``.
        run: of ``wandb.init``.
    """
    for step, of_step in groupby(rows, attrgetter("step")):
        run.log({tag(row): row.value for row in of_step}, step=step)
