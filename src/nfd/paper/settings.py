"""The settings of the paper's studies, figures and claims; nothing here needs PyTorch."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from nfd.core import Activation, Data, InputError, check_choice, check_count, check_real, option

Preset = Literal["smoke", "cpu", "paper"]

_WIDEST_DENSE = 16384
_SMOKE = "At size smoke this shows that everything works, and nothing of what the paper says."


def warnings_of(size: Any) -> list[str]:
    """A sentence on the smallest size; none on another."""
    return [_SMOKE] if size == "smoke" else []


@dataclass(frozen=True)
class DataConfig:
    """Which data set, and the seed."""

    data: Data | None = option(
        None, "digits or cifar10; by default cifar10 with --data-dir, else digits", group="Data"
    )
    data_dir: str | None = option(
        None,
        "directory of CIFAR-10's official binary version, or its tar.gz",
        group="Data",
        is_path=True,
    )
    seed: int = option(0, "seed of everything random", group="Data")

    def __post_init__(self) -> None:
        check_count("seed", self.seed, minimum=0)
        if self.data is not None:
            check_choice("data", self.data, get_args(Data))
        if self.data_dir is None and self.data == "cifar10":
            raise InputError(
                "data='cifar10' needs data_dir, the directory that holds it. Give --data-dir DIR."
            )
        if self.data_dir is not None and (self.data == "digits" or not self.data_dir.strip()):
            raise InputError(
                f"data_dir is that of CIFAR-10; got data={self.data!r} and "
                f"data_dir={self.data_dir!r}. Drop one."
            )

    @property
    def source(self) -> tuple[Data, str | None]:
        """The name of the data set, and its directory as an absolute path."""
        if self.data_dir is None:
            return "digits", None
        return "cifar10", os.path.abspath(os.path.expanduser(self.data_dir))

    def plain(self) -> dict[str, Any]:
        """The settings as plain data, for ``result.json``."""
        data, directory = self.source
        return asdict(self) | {"data": data, "data_dir": directory}


@dataclass(frozen=True)
class FigureConfig(DataConfig):
    """The figures of the paper, and its claims: how large, and on what."""

    size: Preset = option(
        "cpu",
        "smoke (seconds), cpu (some 90 minutes for all on two cores) or paper (as its captions "
        "say; for a GPU)",
        group="Sizes",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("size", self.size, get_args(Preset))

    @property
    def warnings(self) -> list[str]:
        """A sentence where nothing of what the paper says is shown."""
        return warnings_of(self.size)


@dataclass(frozen=True)
class StudyConfig(DataConfig):
    """A study: predictions, real networks and two-layer blocks on the same batches."""

    activation: Activation = option("relu", "activation of the networks", group="Training")
    horizon: float = option(1.0, "time horizon T", group="Training")
    eta_c: float = option(
        0.3, "learning rate that depends on neither width nor depth", group="Training"
    )
    steps: int = option(30, "steps of SGD", group="Training")
    batch: int = option(16, "samples per step", group="Training")
    depths: tuple[int, ...] = option(
        (2, 4, 8, 16),
        "numbers of blocks L, ascending; infinite depth is extrapolated from the last two, L and "
        "2L",
        group="Sizes",
    )
    limit_width: int = option(
        2048, "width of the networks that stand for the infinitely wide one", group="Sizes"
    )
    replicates: int = option(6, "how many of those are averaged, at least 3", group="Sizes")
    widths: tuple[int, ...] = option(
        (64, 256, 1024), "widths of the real networks, ascending", group="Sizes"
    )
    seeds: int = option(5, "real networks of each width and depth, at least 2", group="Sizes")
    block_depths: tuple[int, ...] = option(
        (4, 8, 16, 32, 64),
        "depths of the two-layer networks whose updates are measured, ascending",
        group="Sizes",
    )
    block_width: int = option(128, "width of the two-layer networks", group="Sizes")
    block_seeds: int = option(4, "two-layer networks of each depth, at least 2", group="Sizes")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("activation", self.activation, get_args(Activation))
        check_real("horizon", self.horizon, above=0)
        check_real("eta_c", self.eta_c, least=0, below=1e30)
        least = {"replicates": 3, "seeds": 2, "block_seeds": 2, "seed": 0}
        for setting in fields(self):
            if setting.type == "int":
                check_count(setting.name, getattr(self, setting.name), least.get(setting.name, 1))
        for name in ("depths", "widths", "block_depths"):
            values = [check_count(name, value) for value in getattr(self, name)]
            if len(values) < 2 or values != sorted(set(values)):
                raise InputError(f"{name} must be two or more ascending numbers; got {values}.")
        if self.depths[-1] != 2 * self.depths[-2]:
            raise InputError(
                f"depths must end in L and 2L, to extrapolate from; got {list(self.depths)}."
            )
        if self.widths[-1] > _WIDEST_DENSE:
            raise InputError(
                f"widths must be at most {_WIDEST_DENSE}, as these networks hold dense weights."
            )
        if self.limit_width < 2 * self.widths[-1]:
            raise InputError(
                f"limit_width must be at least twice the largest of widths, {self.widths[-1]}, to "
                f"stand for infinity; got {self.limit_width}."
            )
