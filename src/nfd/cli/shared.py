"""What commands share: the file that they read, where they train, the sizes they are about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from nfd.cli.answering import AnsweringCommand
from nfd.cli.setup_file import Setup
from nfd.core.checks import check_count
from nfd.core.errors import InputError
from nfd.core.files import prepare_results
from nfd.core.names import PLANNED_RULES, RULE
from nfd.core.options import option

if TYPE_CHECKING:
    from nfd.runs.sweep import Sweep


V = TypeVar("V")


@dataclass
class NetworkCommand(AnsweringCommand):
    """What the commands that read a Python file share."""

    name: ClassVar[str]  # such as "check"

    setup: str = option(
        "",
        "Python file with make_model and batches, or with family and task",
        place="SETUP.py",
        group="Model",
        is_path=True,
    )
    rule: str | None = option(
        None, f"scaling rule: {', '.join(PLANNED_RULES)}; {RULE} by default", group="Model"
    )
    optimizer: str | None = option(
        None, "adamw by default; sgd, adam, muon or another registered one", group="Model"
    )
    seed: int = option(
        0,
        "seed of what the file draws while it is read, such as the order of a loader",
        group="Model",
    )
    out: str = option(
        "",
        "directory for the results; by default out/ and the name of the command",
        group="Results",
        is_path=True,
    )

    @property
    def settings(self) -> dict[str, Any]:
        """The options as plain data, for ``result.json``."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def read_setup(self) -> Setup:
        """Read the file that was named."""
        if not self.setup:
            raise InputError(
                f"{self.name} needs a Python file, such as nfd {self.name} setup.py. See nfd "
                "--help."
            )
        return Setup(self.setup, self.seed)

    def directory(self) -> Path:
        """Return OUT, ready to be written to."""
        return prepare_results(self.out or f"out/{self.name}")


@dataclass
class TrainingCommand(NetworkCommand):
    """What the commands that train share."""

    workers: int | None = option(
        None, "number of processes; by default one for each core", group="Computing"
    )
    executor: str = option(
        "processes",
        "where networks are trained: processes, inline (in this one), ray or slurm",
        group="Computing",
    )
    slurm: tuple[str, ...] = option(
        (),
        "options of nfd.Slurm, such as partition=gpu time=2:00:00 jobs=16",
        group="Computing",
    )
    device: str | None = option(
        None, "where it computes: cpu, cuda; by default where the batches lie", group="Computing"
    )

    def sweep(self, directory: Path | None) -> Sweep:
        """Return where networks are trained and kept."""
        from nfd.runs.slurm import Slurm
        from nfd.runs.sweep import Sweep

        executor: str | Slurm = self.executor
        if self.slurm:
            if executor != "slurm":
                raise InputError(f"--slurm goes with --executor slurm; got {executor}.")
            executor = Slurm(**named("--slurm", "such as partition=gpu", self.slurm, _as_option))
        return Sweep(directory, self.workers, executor, self.device, not self.quiet)

    def stored(self, sweep: Sweep) -> list[str]:
        """Say which runs were stored before; the answer itself notes runs of other code."""
        if sweep.reused:
            return [f"{len(sweep.reused)} runs were stored in {sweep.out} and not trained again."]
        if sweep.held and not sweep.holds_other_code:
            other = "other settings"
            if sweep.differing:
                other = f"other {' and '.join(sweep.differing)}"
            return [
                f"None of the {len(sweep.held)} runs stored in {sweep.out} is of this model and "
                f"task: {other}."
            ]
        return []


@dataclass
class SizesCommand(TrainingCommand):
    """What the commands over several sizes share."""

    widths: tuple[int, ...] = option(
        (32, 64, 128), "widths of the networks; the smallest is that of the base", group="Sizes"
    )
    depths: tuple[int, ...] = option((2, 4, 8), "depths of the networks", group="Sizes")

    @property
    def base(self) -> tuple[int, int]:
        """The smallest size."""
        if not self.widths or not self.depths:
            raise InputError("--widths and --depths need one number or more each.")
        return check_count("widths", min(self.widths)), check_count("depths", min(self.depths))


# What every answer from a table of runs reads.
_OF_TABLES = {"log", "columns", "out", "seed"}


@dataclass
class LoggedCommand(SizesCommand):
    """What the commands share that also answer from a table of runs."""

    log: str = option(
        "",
        "file of runs, of any framework, to answer from: CSV, JSON or parquet",
        name="from",
        group="Table of runs",
        is_path=True,
    )
    columns: tuple[str, ...] = option(
        (),
        "with --from, such as lr=config/learning_rate; seed= ignores a column",
        group="Table of runs",
    )

    def read_setup(self) -> Setup:
        """Read the file that was named."""
        if not self.setup:
            raise InputError(
                f"{self.name} needs a Python file, such as nfd {self.name} setup.py, or a table of "
                f"runs, such as nfd {self.name} --from runs.csv. See nfd --help."
            )
        return super().read_setup()

    def refuse_unread(self, *read: str) -> None:
        """Refuse options that a table of runs does not read, beside those of ``read``.

        Raises:
            InputError: naming an option that is not at its default.
        """
        fields_of_table = {f.name for f in fields(AnsweringCommand)} | _OF_TABLES | {*read}
        for f in fields(self):
            default = f.default if f.default_factory is MISSING else f.default_factory()
            if f.name not in fields_of_table and getattr(self, f.name) != default:
                what = f"the file {self.setup}" if f.name == "setup" else f"--{f.name}"
                raise InputError(
                    f"--from answers from a table of runs, and does not read {what}. Leave it out."
                )

    def refuse_without_table(self, *names: str) -> None:
        """Refuse options that only an answer from a table of runs reads.

        Raises:
            InputError: naming an option that was given.
        """
        for name in names:
            if self.has(name):
                raise InputError(f"--{name} is for a table of runs: pass it with --from runs.csv.")

    def has(self, name: str) -> bool:
        """Whether an option without a default was given."""
        return getattr(self, name) not in ((), None)

    def named_columns(self) -> dict[str, str | None]:
        """Return the columns by field."""
        return named(
            "--columns",
            "such as lr=config/learning_rate",
            self.columns,
            lambda column: column or None,
        )


def named(argument: str, what: str, texts: Sequence[str], read: Callable[[str], V]) -> dict[str, V]:
    """Read ``name=value`` texts as a dict, each value by ``read``.

    Raises InputError where ``read`` raises ValueError.
    """
    values = dict[str, V]()
    for text in texts:
        name, sign, value = text.partition("=")
        try:
            if not sign:
                raise ValueError
            values[name] = read(value)
        except ValueError:
            raise InputError(
                f"{argument} takes name=value, {what}; got {name}={value!r}."
            ) from None
    return values


def _as_option(value: str) -> Any:
    """Read whole numbers as such."""
    return int(value) if value.isdecimal() else value


def as_numbers(values: str) -> tuple[float, ...]:
    """Read ``16,32,64``."""
    return tuple(as_number(value) for value in values.split(","))


def as_number(value: str) -> float:
    """Read a number, such as ``7B`` or ``1e9``; only digits are a whole number."""
    from nfd.laws.rows import as_number as read

    if value.strip().isdecimal():
        return int(value)
    return read(value)
