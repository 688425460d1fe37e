"""The transfer of the paper's networks, as a configuration asks for it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nfd.core.ambient import undisturbed
from nfd.questions.best_rates import SCORES, Asked, Networks, Place, best_rates
from nfd.questions.optimum import LEARNT
from nfd.questions.sweep_settings import TransferConfig, data_settings
from nfd.questions.transfer import Transfer
from nfd.runs.grid import grid
from nfd.runs.records import dataset_of
from nfd.runs.run import Run
from nfd.runs.settings import RunConfig
from nfd.runs.sweep import Sweep
from nfd.store.rows import Record


@undisturbed()
def transfer_of_sweep(config: TransferConfig, sweep: Sweep) -> Transfer:
    """Train what the configuration asks for."""
    return best_rates(_Configured(config, progress=sweep.progress), sweep)


class _Configured(Networks):
    def __init__(self, config: TransferConfig, *, progress: bool | None) -> None:
        dataset = dataset_of(RunConfig(**data_settings(config)), progress=progress)
        self.guess = math.log(len(dataset.classes))
        self.settings = config.run_settings(len(dataset.train)) | {"optimizer": config.optimizer}
        self.new_seeds = config.new_seeds
        sizes = [(n, L) for n in config.widths for L in config.depths]
        about = _about(config, dataset.title)
        self.asked = Asked(config.rules, sizes, config.eta_c, "eta_c", config.score, about)

    def runs(self, place: Place, rates: Sequence[float], *, new: bool = False) -> list[RunConfig | Run]:
        shared = self.settings | {"rule": place.rule, "width": place.size[0], "depth": place.size[1]}
        points = [{"seed": s, "eta_c": eta} for s in (self.new_seeds if new else shared["seed"]) for eta in rates]
        return [run for point in points for run in grid(**shared | point)]

    def reference(self, records: Sequence[Record]) -> tuple[float, float]:
        """log C, and a hundredth of a nat."""
        return self.guess, LEARNT


def _about(config: TransferConfig, data: str) -> str:
    """What is trained, in words."""
    trained = f"{config.epochs:g} epochs" if config.epochs is not None else f"{config.steps} steps"
    return (
        f"{data}; {config.block} blocks, {config.activation}, T = {config.horizon:g}, {config.optimizer}, {trained} of "
        f"{config.batch} samples, {config.seeds} seeds; best by {SCORES[config.score]}; a network that diverged "
        "counts as log C."
    )
