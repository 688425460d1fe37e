"""``nfd.integrations.TrainerCallback``: a plan and a watch in Hugging Face's Trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nfd.integrations.planned import check_optimizers, of_network
from nfd.scaling.plan import Plan
from nfd.watch.bands import WatchRow
from nfd.watch.watch import Watch

try:
    import transformers
except ImportError:
    raise ImportError("Hugging Face's Trainer is not installed. pip install transformers accelerate") from None

_REMEDY = "Give the Trainer optimizers=(plan.make_optimizer(model, lr=...), None)."
_STATE = "nfd.Watch"  # its entry in the state of the trainer


class TrainerCallback(transformers.TrainerCallback):
    """A callback for Hugging Face's Trainer: it checks that the optimizer is the plan's, and steps a watch.

    The watch counts updates, not accumulated batches, and not the steps that a gradient scaler skips. It is saved in
    ``trainer_state.json`` of every checkpoint and continues from there.

    Args:
        plan: of the Trainer's model. If given, training does not begin unless the optimizer has its groups.
        watch: of the same model, made after the Trainer (which moves the model) and before training.
        log: a function that gets the meters of the whole network after every look, as a dict. Pass ``trainer.log`` to
            send them to all loggers of the Trainer. None leaves them in ``watch.rows``.

    Raises:
        ImportError: if transformers is not installed.

    Example::

        trainer = transformers.Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, None))
        watch = nfd.Watch(model, plan, sample)
        trainer.add_callback(nfd.integrations.TrainerCallback(plan, watch, log=trainer.log))
    """

    def __init__(
        self,
        plan: Plan | None = None,
        watch: Watch | None = None,
        log: Callable[[dict[str, float]], None] | None = None,
    ) -> None:
        self.plan, self.watch, self.log = plan, watch, log
        self._looked: Sequence[WatchRow] = ()  # rows that are not logged yet

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Check the optimizer, and restore the watch from the checkpoint, if there is one.

        Raises:
            ValueError: if the optimizer is not the plan's.
        """
        if self.plan is not None:
            stepped = given["optimizer"]
            inner = getattr(stepped, "optimizer", stepped)  # accelerate wraps it
            check_optimizers(self.plan, given["model"], [inner], _REMEDY)
        if self.watch is not None and (stored := state.stateful_callbacks.get(_STATE)):
            self.watch.load_state_dict(stored)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Step the watch, before gradients are cleared."""
        stepped = given["optimizer"]
        if self.watch is not None and not getattr(stepped, "step_was_skipped", False):
            self._looked = self.watch.step()

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Log the look of this step, and put the watch into the state for a checkpoint."""
        if self._looked and self.log is not None:
            self.log(of_network(self._looked))
        self._looked = ()
        self._keep(state, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Put the watch into the state for a checkpoint."""
        self._keep(state, control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Put the watch into the state: the Trainer may save a checkpoint after an evaluation."""
        self._keep(state)

    def _keep(self, state: Any, control: Any = None) -> None:
        if self.watch is not None and (control is None or control.should_save):
            state.stateful_callbacks[_STATE] = self.watch.state_dict(start=False)  # JSON
