"""What the commands of the paper share: where results go, and where networks are trained."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from nfd.core import option, prepare_results
from nfd.paper.settings import DataConfig

if TYPE_CHECKING:
    from nfd import Sweep


@dataclass(frozen=True)
class Options(DataConfig):
    """Options of a command beside the settings that decide its numbers."""

    out: str = option("out", "directory for the results")
    executor: str = option(
        "processes", "where networks are trained: processes, inline (this process) or ray (a cluster)"
    )
    workers: int | None = option(None, "number of processes; by default one for each core")
    device: str = option("cpu", "where it computes: cpu, cuda")

    kind: ClassVar[type[DataConfig]]  # the settings that decide the numbers

    def run(self, command: str) -> int:
        """Check the settings, prepare OUT, answer; ``command`` is the line that asked. Returns the exit code."""
        config = self.kind(**{setting.name: getattr(self, setting.name) for setting in fields(self.kind)})
        self.check_used(config)
        return self.answer(config, prepare_results(self.out), command)

    def check_used(self, config: Any) -> None:
        """InputError for options that have no part in what is asked."""

    def answer(self, config: Any, directory: Path, command: str) -> int:
        """Compute, write to ``directory``, print; returns the exit code."""
        raise NotImplementedError

    def sweep(self, directory: Path) -> Sweep:
        """The sweep in ``directory``."""
        from nfd import Sweep

        return Sweep(directory, self.workers, self.executor, self.device)
