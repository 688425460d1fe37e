"""The pages that are filled from stored numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibration import (
    check_looks,
    coverage,
    kernels_in_training,
    ladder_design,
    transfer_verdicts,
    verdicts,
)
from calibration.sound_bank import page as sound_bank
from makers.pages import (
    embedding_rate,
    epochs,
    experts,
    muon,
    muon_depth,
    rate_in_width,
    sweeps,
    transformers,
)
from makers.pages.words import DOCS
from makers.tables import fill_page
from studies import behind_sizes, forecasts, lora_ranks


@dataclass(frozen=True)
class Source:
    """Where texts of a page come from.

    Attributes:
        page: the name of the page.
        read: reads the stored numbers.
        texts: makes the texts from them, by the names of their marks.
    """

    page: str
    read: Callable[[], Any]
    texts: Callable[[Any], dict[str, str]]

    @property
    def path(self) -> Path:
        """The file of the page."""
        return DOCS / f"{self.page}.md"

    def fill(self) -> None:
        """Write the texts into the page."""
        fill_page(self.path, self.texts(self.read()))


SOURCES = (
    Source("best-rate-in-width", rate_in_width.read, rate_in_width.texts),
    Source("coverage", coverage.read, coverage.tables),
    Source("embedding-rate", embedding_rate.read, embedding_rate.texts),
    Source("experts", experts.read, experts.texts),
    Source("forecasts", forecasts.read, forecasts.texts),
    Source("kernels-in-training", kernels_in_training.read, kernels_in_training.texts),
    Source("kernels-in-training", epochs.read, epochs.texts),
    Source("ladder-design", ladder_design.read_numbers, ladder_design.texts),
    Source("lora", lora_ranks.read, lora_ranks.texts),
    Source("muon-depth", muon.read, muon.texts),
    Source("muon-depth", muon_depth.read, muon_depth.texts),
    Source("repeats-and-experts", behind_sizes.read_results, behind_sizes.texts),
    Source("sweeps", sweeps.read, sweeps.texts),
    Source("transfer-verdicts", transfer_verdicts.read, transfer_verdicts.texts),
    Source("transformers", transformers.read, transformers.texts),
    Source("verdicts", verdicts.read, verdicts.texts),
    Source("verdicts", check_looks.read, check_looks.texts),
    Source("verdicts", sound_bank.read, sound_bank.texts),
)
