"""What reads a network while a run trains it, by the name in the run's settings."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nfd.experiment.settings import RunConfig
from nfd.meters.spectra import Spectra, Watched
from nfd.meters.updates import Baseline
from nfd.nets.network import Network
from nfd.scaling.planning import plan


class Meter:
    """Reads nothing; ``net`` is what is trained."""

    def __init__(self, net: Network, config: RunConfig, probes: Tensor) -> None:
        self.net: nn.Module = net
        self.probes = probes

    def after(self) -> None:
        """Called after every step."""

    def read(self) -> dict[str, Tensor]:
        """Vectors by name, at a look."""
        return {}


class UpdateMeter(Meter):
    """Updates of features and function (``nfd.meters.updates``)."""

    def __init__(self, net: Network, config: RunConfig, probes: Tensor) -> None:
        super().__init__(net, config, probes)
        self.baseline = Baseline(net, plan(net, rule=config.rule, optimizer="sgd"), probes)

    def read(self) -> dict[str, Tensor]:
        return {name: torch.tensor([value]) for name, value in self.baseline.updates(self.net).items()}


class SpectraMeter(Meter):
    """Smallest eigenvalues of the covariances of all steps (``nfd.meters.spectra``)."""

    def __init__(self, net: Network, config: RunConfig, probes: Tensor) -> None:
        super().__init__(net, config, probes)
        self.net = self.watched = Watched(net)
        self.spectra = Spectra(net)

    def after(self) -> None:
        assert self.watched.seen is not None
        self.spectra.gather(self.watched.seen)

    def read(self) -> dict[str, Tensor]:
        return self.spectra.smallest()


METERS: Mapping[str, type[Meter]] = {"updates": UpdateMeter, "spectra": SpectraMeter}


def metered(name: str) -> type[Meter]:
    """The meter of this name; one that reads nothing where training is not to be watched."""
    return METERS.get(name, Meter)
