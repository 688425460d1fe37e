"""What reads a network while a run trains it, by the name in the run's settings."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nfd.families.member import Member
from nfd.meters.spectra import Spectra, WatchedNetwork
from nfd.meters.start import at_start
from nfd.meters.updates import Baseline

STARTS = 8  # of the probes, on which streams are read


class Meter:
    """Reads nothing; ``net``, a member's module or a stack of several, is what is trained."""

    def __init__(self, net: nn.Module, member: Member, probes: Tensor) -> None:
        self.net, self.member, self.probes = net, member, probes

    def start(self) -> tuple[dict[str, float], dict[str, Tensor]]:
        """Numbers and vectors by name, before training."""
        return {}, {}

    def after(self) -> None:
        """Called after every step."""

    def read(self) -> dict[str, Tensor]:
        """Vectors by name, at a look."""
        return {}

    def end(self, outputs: Tensor) -> dict[str, Tensor]:
        """Vectors by name of the outputs ``[N, C]`` on the test part after training."""
        return {}


class StartMeter(Meter):
    """Streams before training (``nfd.meters.start``)."""

    def start(self) -> tuple[dict[str, float], dict[str, Tensor]]:
        return at_start(self.member.network(), self.probes[:STARTS])


class OutputsMeter(Meter):
    """The outputs themselves."""

    def end(self, outputs: Tensor) -> dict[str, Tensor]:
        return {"outputs": outputs.flatten()}


class UpdateMeter(Meter):
    """Updates of features and function (``nfd.meters.updates``)."""

    def __init__(self, net: nn.Module, member: Member, probes: Tensor) -> None:
        super().__init__(net, member, probes)
        self.baseline = Baseline(member, probes)

    def read(self) -> dict[str, Tensor]:
        return {name: torch.tensor([value]) for name, value in self.baseline.updates().items()}


class SpectraMeter(Meter):
    """Smallest eigenvalues of the covariances of all steps (``nfd.meters.spectra``)."""

    def __init__(self, net: nn.Module, member: Member, probes: Tensor) -> None:
        super().__init__(net, member, probes)
        self.net = self.watched = WatchedNetwork(member.network())
        self.spectra = Spectra(member.network())

    def after(self) -> None:
        assert self.watched.seen is not None
        self.spectra.gather(self.watched.seen)

    def read(self) -> dict[str, Tensor]:
        return self.spectra.smallest()


METERS: Mapping[str, type[Meter]] = {
    "none": Meter,
    "start": StartMeter,
    "updates": UpdateMeter,
    "spectra": SpectraMeter,
    "outputs": OutputsMeter,
}
