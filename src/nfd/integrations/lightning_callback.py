"""``nfd.integrations.LightningCallback``: a plan and a watch in Lightning's Trainer."""

from __future__ import annotations

from typing import Any

from torch import nn

from nfd.integrations.planned import check_optimizers, of_network
from nfd.scaling.plan import Plan, held_by
from nfd.watch.watch import Watch

try:
    import lightning
except ImportError:
    raise ImportError("Lightning is not installed. pip install lightning") from None

_REMEDY = "Let configure_optimizers return plan.make_optimizer(self.model, lr=...)."


class LightningCallback(lightning.Callback):
    """A callback for Lightning: it checks that the optimizer is the plan's, steps a watch, and logs its meters.

    The watch counts updates, not accumulated batches. It is saved with every checkpoint and continues from there.

    Args:
        plan: of the LightningModule or of a module inside it. If given, training does not begin unless the optimizers
            have its groups.
        watch: of the same module, made before training, with the module on the device of the training.

    Raises:
        ImportError: if lightning is not installed.
    """

    def __init__(self, plan: Plan | None = None, watch: Watch | None = None) -> None:
        self.plan, self.watch = plan, watch
        self._stepped = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Check the optimizers.

        Raises:
            ValueError: if they are not the plan's.
        """
        self._stepped = trainer.global_step
        if self.plan is not None:
            check_optimizers(self.plan, _planned(self.plan, pl_module), trainer.optimizers, _REMEDY)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        """Step the watch if the optimizer has stepped, and log the meters of the whole network."""
        if self.watch is None or trainer.global_step == self._stepped:
            return
        self._stepped = trainer.global_step
        if meters := of_network(self.watch.step()):
            for logger in trainer.loggers:
                logger.log_metrics(meters, step=self.watch.steps)

    def state_dict(self) -> dict[str, Any]:
        """The state of the watch, for a checkpoint."""
        return {} if self.watch is None else self.watch.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the watch from a checkpoint."""
        if self.watch is not None and state_dict:
            self.watch.load_state_dict(state_dict)


def _planned(plan: Plan, module: nn.Module) -> nn.Module:
    """What a plan is of: a LightningModule, or the first module that it holds and that the plan fits."""
    held = (part for part in (module, *module.children()) if held_by(part).keys() == plan.entries.keys())
    return next(held, module)
