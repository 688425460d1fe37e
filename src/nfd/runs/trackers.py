"""Trackers: a sweep's runs in TensorBoard or Weights & Biases, with the names that rows have here."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, get_args

from nfd.core.errors import MissingError, check_choice
from nfd.core.names import TrackerName
from nfd.store.rows import Record

TRACKERS: tuple[TrackerName, ...] = get_args(TrackerName)


class Tracker(Protocol):
    """Logs every run once it is stored."""

    def log(self, record: Record) -> None:
        """Keep the settings, final numbers and curves of a run, in place of what was kept of it before."""

    def known(self) -> set[str]:
        """The names of the runs that were kept, by this process or an earlier one."""
        ...

    def close(self) -> None:
        """End."""


def tracker_named(name: str, directory: Path) -> Tracker:
    """``"tensorboard"`` or ``"wandb"`` (offline), writing into ``directory``; ImportError that says what to install."""
    check_choice("track", name, TRACKERS)
    return _TensorBoard(directory / "tensorboard") if name == "tensorboard" else _Wandb(directory)


class _TensorBoard:
    """One folder of events per run, with its settings as hyperparameters."""

    def __init__(self, directory: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingError("TensorBoard is not installed. pip install 'nfd[tensorboard]'") from None
        self._writer, self._directory = SummaryWriter, directory

    def __repr__(self) -> str:
        return "TensorBoard"

    def known(self) -> set[str]:
        return {path.name for path in self._directory.glob("[!.]*")}

    def log(self, record: Record) -> None:
        final, draft = self._directory / record.key, self._directory / f".{record.key}"
        shutil.rmtree(draft, ignore_errors=True)  # of an interrupted process
        with self._writer(str(draft)) as writer:
            for name, curve in record.curves.items():
                for step, value in enumerate(curve):
                    writer.add_scalar(name, float(value), step)
            settings = {k: v for k, v in record.config.items() if v is not None}
            writer.add_hparams(settings, dict(record.metrics), run_name=".")
        shutil.rmtree(final, ignore_errors=True)  # of an attempt that failed
        draft.rename(final)

    def close(self) -> None:
        """Every run's file is closed already."""


class _Wandb:
    """One offline run each; ``wandb sync`` uploads them, if anybody wants that."""

    def __init__(self, directory: Path) -> None:
        try:
            import wandb
        except ImportError:
            raise MissingError("Weights & Biases is not installed. pip install 'nfd[wandb]'") from None
        self._wandb: Any = wandb
        self._directory = directory

    def __repr__(self) -> str:
        return "Weights & Biases"

    def known(self) -> set[str]:
        return {path.name.rpartition("-")[2] for path in self._directory.glob("wandb/offline-run-*")}

    def log(self, record: Record) -> None:
        quiet = self._wandb.Settings(silent=True, console="off")
        run = self._wandb.init(
            mode="offline",
            project="nfd",
            id=record.key,
            name=record.key,
            config=dict(record.config),
            dir=str(self._directory),
            settings=quiet,
            reinit="finish_previous",
        )
        for step in range(max((len(curve) for curve in record.curves.values()), default=0)):
            run.log(_at(record.curves, step), step=step)
        run.summary.update(dict(record.metrics) | {"status": record.status})
        run.finish()

    def close(self) -> None:
        """Every run is finished already."""


def _at(curves: Mapping[str, Any], step: int) -> dict[str, float]:
    return {name: float(curve[step]) for name, curve in curves.items() if step < len(curve)}
