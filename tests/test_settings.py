"""Nothing accepted is ignored: changing any setting of any configuration changes what is computed, or is refused.

Every class of settings is found by walking the subclasses of ``Config``, so that a new one, or a new field, cannot be
forgotten. Each is run, tiny, in several contexts; in each of them another value of each field must change the numbers,
or be refused by name.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import pkgutil
import re
import sys
import types
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import nfd
import nfd.cli
import nfd.questions
import nfd.runs
from nfd.cli.capacity import CapacityCommand, ModelCapacityCommand
from nfd.cli.check import CheckCommand
from nfd.cli.claims import ClaimsCommand
from nfd.cli.figure import FigureCommand
from nfd.cli.logs import LogConfig
from nfd.cli.main import main
from nfd.cli.options import DeviceOptions, Options
from nfd.cli.predict import ModelPredictCommand
from nfd.cli.study import StudyCommand
from nfd.cli.sweep import SweepCommand
from nfd.cli.sweeping import ExecutorOptions, SweepOptions
from nfd.cli.transfer import ModelTransferCommand, TransferCommand
from nfd.core.errors import UsageError
from nfd.data.describe import description
from nfd.data.load import load
from nfd.paper.config import FigureConfig
from nfd.paper.figures import FIGURES
from nfd.paper.figures.making import trained
from nfd.questions import checking, kernel_fit, model_plan, model_sweeps, named, prediction, study
from nfd.questions.capacity_answers import answers_of
from nfd.questions.capacity_sweep import capacity_of_sweep
from nfd.questions.sweep_settings import CapacityConfig, ModelCapacityConfig, ModelTransferConfig, TransferConfig
from nfd.questions.training_lines import training_lines
from nfd.questions.transfer_sweep import transfer_of_sweep
from nfd.runs.config import Config
from nfd.runs.executors import executor_named
from nfd.runs.executors.executor import Executor, Inline, Outcome, unnoticed
from nfd.runs.model_settings import CheckConfig, ModelPredictConfig, PlanConfig
from nfd.runs.records import ConfiguredRun, dataset_of, run_key, train_group
from nfd.runs.settings import DataConfig, KernelConfig, PredictConfig, RunConfig, StudyConfig
from nfd.runs.sweep import Sweep
from nfd.store.rows import Record
from nfd.training import together

pytestmark = pytest.mark.filterwarnings("ignore:A (Deferred|Structured)Linear of size")

Settings = Mapping[str, Any]
Changes = Mapping[str, Sequence[Any]]

for package in (nfd.runs, nfd.questions, nfd.cli):
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(found.name)


def below(kind: type[Config]) -> Iterator[type[Config]]:
    """Every subclass of the library, of any generation."""
    for child in kind.__subclasses__():
        yield from below(child)
        if child.__module__.startswith("nfd."):
            yield child


def plain(value: Any) -> Any:
    """Numbers and texts that can be compared, not-a-number included."""
    if isinstance(value, Tensor | np.ndarray):
        return repr(value.tolist())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.name != "seconds"}
    if isinstance(value, Mapping):
        return {repr(plain(k)): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return repr(value)


# ---- tiny runs of every configuration ----------------------------------------------------------------------------


class Lawful(Executor):
    """Losses that obey a law of size and of rates, which every setting of a run moves; it trains for a floor alone."""

    slots = 1

    def run(
        self, work: Callable[[Any], Any], tasks: Sequence[Any], started: Callable[[int], None] = unnoticed
    ) -> Generator[Outcome[Any], None, None]:
        for index, task in enumerate(tasks):
            known = all(isinstance(run, ConfiguredRun) for run in task.runs)
            yield Outcome(index, value=[self._record(run.config) for run in task.runs] if known else task.train("cpu"))

    def _record(self, config: RunConfig) -> Record:
        key = run_key(config, dataset_of(config).fingerprint)
        alike = config.model_copy(update={"width": 1, "depth": 1, "seed": 0, "eta_c": 1.0})
        shift, noise = (int(name, 16) / 16**20 for name in (run_key(alike, alike.data), key))
        best = 0.5 * config.depth**-0.1
        loss = 1 + 0.1 * shift + 0.5 / config.width + 0.2 / config.depth + 0.01 * (noise - 0.5)
        loss += 0.05 * math.log(config.eta_c / best) ** 2
        metrics = {"first_loss": 2.0, "highest_loss": 2.0 + 4 * (config.eta_c * config.horizon > 1 + shift)}
        metrics |= {"train_loss": loss, "test_loss": loss + 0.1 * noise, "test_accuracy": 0.5}
        return Record(key, "together", "done", config.model_dump(), metrics)


class LawfulTrials(Executor):
    """Losses of anyone's networks that obey a law of size; every setting of a trial is in its name, and so in them."""

    slots = 1

    def __init__(self) -> None:
        self.keys: list[str] = []

    def run(
        self, work: Callable[[Any], Any], tasks: Sequence[Any], started: Callable[[int], None] = unnoticed
    ) -> Generator[Outcome[Any], None, None]:
        for index, task in enumerate(tasks):
            yield Outcome(index, value=[self._record(trial) for trial in task.runs])

    def _record(self, trial: Any) -> Record:
        self.keys.append(trial.key)
        loss = 1 + 0.5 / trial.width + 0.2 / trial.depth + 0.01 * (int(trial.key, 16) / 16**20 - 0.5)
        metrics = {"first_loss": 2.0, "highest_loss": 2.0, "train_loss": loss, "test_loss": loss}
        return Record(trial.key, "together", "done", trial.settings, metrics)


class Asked(Executor):
    """An executor that keeps the tasks and stops there."""

    slots = 1

    def run(
        self, work: Callable[[Any], Any], tasks: Sequence[Any], started: Callable[[int], None] = unnoticed
    ) -> Generator[Outcome[Any], None, None]:
        raise _Stopped(tasks)
        yield


class _Stopped(BaseException):
    """Carries what a run came to, past everything that handles errors."""


def data_numbers(config: DataConfig, place: Path) -> Any:
    """What ``nfd data`` says."""
    dataset = load(config.data, config.data_dir, image_size=config.image_size, seed=config.seed)
    return description(dataset)


def run_numbers(config: RunConfig, place: Path) -> Any:
    """Metrics and curves of a trained run."""
    (record,) = train_group([config.model_dump()])
    assert record.status == "done", f"accepted, and failed deep inside: {config} {record.error}"
    return record.metrics, record.curves


def study_numbers(config: StudyConfig, place: Path) -> Any:
    """Every unit's numbers."""
    with Sweep(None) as sweep:
        measured = study.Study(config).measure(sweep)
    return measured.limits, measured.narrow, measured.real, measured.blocks


def predict_numbers(config: PredictConfig, place: Path) -> Any:
    """The prediction, all of it."""
    predicted = prediction.prediction(config).prediction
    return predicted, predicted.table


class Predicting(LawfulTrials):
    """The same as curves, for predictions."""

    def _record(self, trial: Any) -> Record:
        record = super()._record(trial)
        curve = np.full(trial.recipe.task.steps, record.metrics["train_loss"])
        return dataclasses.replace(record, curves={"loss": curve})


def model_predict_numbers(config: ModelPredictConfig, place: Path) -> Any:
    """The trials of a constructor's prediction, and the prediction."""
    trained, model = Predicting(), f"{__name__}_models:plain"
    predicted = prediction.prediction_of_model(config, model, out=place, executor=trained, device="cpu")
    return sorted(trained.keys), predicted.prediction, predicted.result()["data"]


def kernel_numbers(config: KernelConfig, place: Path) -> Any:
    """Headlines, charts and tables."""
    return kernel_fit.fit_findings(kernel_fit.KernelFit(config))


def check_numbers(config: CheckConfig, place: Path) -> Any:
    """The check of a network of nfd.nets, or of a plain module."""
    kind = "plain" if config.widths[0] == PLAIN["widths"][0] else "fitting"
    found, data = checking.checked(config, f"{__name__}_models:{kind}")
    return found.runs, found.table, data


def plan_numbers(config: PlanConfig, place: Path) -> Any:
    """The plan, the lines that train by it, and what the network is tried with."""
    model = f"{__name__}_models:plain"
    plan = model_plan.planned(config, model)
    sample = model_plan.sample_of(config, Plain, (config.base_width, config.base_depth or config.depth))
    return plan.to_dict(), training_lines("megatron", plan, Path("plan.json"), config, model), sample


def transfer_numbers(config: TransferConfig, place: Path) -> Any:
    """Runs and verdicts."""
    with Sweep(place, Lawful()) as sweep:
        found = transfer_of_sweep(config, sweep)
        return found, sorted(sweep.store.keys())


def model_transfer_numbers(config: ModelTransferConfig, place: Path) -> Any:
    """The trials that a constructor's transfer asks for first."""
    with pytest.raises(_Stopped) as stopped:
        model_sweeps.transfer_of_model(config, f"{__name__}_models:plain", out=place, executor=Asked(), device="cpu")
    return sorted(run.key for task in stopped.value.args[0] for run in task.runs)


def model_capacity_numbers(config: ModelCapacityConfig, place: Path) -> Any:
    """The trials of a constructor's capacity, and the answers."""
    trained, model = LawfulTrials(), f"{__name__}_models:plain"
    capacity, data = model_sweeps.capacity_of_model(config, model, out=place, executor=trained, device="cpu")
    assert capacity.law.good
    return sorted(trained.keys), answers_of(config, capacity).result, data


def capacity_numbers(config: CapacityConfig, place: Path) -> Any:
    """Runs and answers."""
    with Sweep(place, Lawful()) as sweep:
        capacity = capacity_of_sweep(config, sweep)
        assert capacity.horizons is not None
        return answers_of(config, capacity).result, capacity.horizons.stability, sorted(sweep.store.keys())


def figure_numbers(config: FigureConfig, place: Path) -> Any:
    """The runs that a figure asks for."""
    with Sweep(place, Asked()) as sweep, pytest.raises(_Stopped) as stopped:
        trained(FIGURES["2"], config, sweep)
    return stopped.value.args


def log_numbers(config: LogConfig, place: Path) -> Any:
    """Best rates in a table of runs, whose two columns of losses and whose twin have other ones."""
    for name, shift in (("runs", 0.0), ("others", 0.5)):
        rates = [2.0**k for k in range(-4, 5)]
        rows = [(n, lr, *(1 + (math.log2(lr) - best) ** 2 for best in (shift, 1.0))) for n in (8, 16) for lr in rates]
        lines = ["width,lr,loss,eval", *(",".join(map(str, row)) for row in rows)]
        Path(f"{name}.csv").write_text("\n".join(lines))
    command = TransferCommand(log=config.log, columns=config.columns)
    return nfd.fit_transfer(command.log, columns=command.named_columns()).table


@dataclasses.dataclass(frozen=True)
class Probe:
    """How a configuration is run, from which settings which fields are changed (all if none is named), and to what."""

    numbers: Callable[[Any, Path], Any]
    contexts: Sequence[tuple[Settings, Sequence[str]]]
    changes: Changes


IMAGES: Settings = {"data": "images", "data_dir": "first", "image_size": 8}
OF_IMAGES = ("data", "data_dir", "image_size")
DATA: Changes = {
    "data": [{"data": "images"}, IMAGES],
    "data_dir": ["second"],
    "image_size": [6],
    "seed": [1],
}
TRAINING: Changes = DATA | {"activation": ["tanh"], "horizon": [2.0], "eta_c": [0.4], "steps": [4], "batch": [5]}
SHORT: Settings = {"steps": 3, "batch": 4}

RUN = SHORT | {"width": 12, "depth": 2}
FORMS = (
    "network", "block", "order", "feedback", "weights", "rule", "optimizer", "momentum", "data_seed", "coupled",
    "every", "meter", "horizon", "resolution", "train", "validation",
)  # fmt: skip
RUNS = Probe(
    run_numbers,
    [
        (RUN, ()),
        (RUN | IMAGES, OF_IMAGES),
        *(
            (RUN | form, FORMS)
            for form in (
                {"optimizer": "adam"}, {"momentum": 0.5}, {"every": 1}, {"coupled": True}, {"weights": "deferred"},
                {"weights": "structured"}, {"coupled": True, "optimizer": "adam"}, {"order": "post"},
                {"network": "mlp", "rule": "mup"},
                {"rule": "ntk"}, {"feedback": "static"}, {"block": "two-layer", "optimizer": "adam"},
                {"meter": "outputs", "optimizer": "adam"}, {"meter": "start"}, {"meter": "updates", "momentum": 0.5},
                {"meter": "spectra", "batch": 1},
            )
        ),
    ],
    TRAINING
    | {
        "network": ["mlp", "resnet"],
        "width": [13],
        "depth": [3],
        "block": ["one-layer", "two-layer"],
        "order": ["post"],
        "feedback": ["independent"],
        "weights": ["deferred", "structured"],
        "rule": ["standard", "ntk", "mup", "depth-mup-inner"],
        "optimizer": ["adam", "sgd"],
        "momentum": [0.9],
        "data_seed": [1],
        "coupled": [True],
        "every": [2],
        "train": [40],
        "resolution": [0.5],
        "validation": [30],
        "meter": ["none", "start", "updates", "spectra", "outputs"],
    },
)  # fmt: skip

STUDY: Settings = {
    "steps": 2, "batch": 2, "depths": (1, 2), "limit_width": 8, "replicates": 3, "widths": (2, 4), "seeds": 2,
    "block_depths": (1, 2), "block_width": 4, "block_seeds": 2,
}  # fmt: skip
STUDIES = Probe(
    study_numbers,
    [(STUDY, ()), (STUDY | IMAGES, OF_IMAGES)],
    TRAINING
    | {
        "depths": [(2, 4)],
        "limit_width": [9],
        "replicates": [4],
        "widths": [(3, 4)],
        "seeds": [3],
        "block_depths": [(1, 3)],
        "block_width": [5],
        "block_seeds": [3],
    },
)

PREDICTED = SHORT | {"depth": 2.0, "width": 16, "replicates": 2, "rtol": 0.5}
PREDICTIONS = Probe(
    predict_numbers,
    [
        (PREDICTED, sorted(set(PredictConfig.model_fields) - {"memory"})),  # a bound that does not bind changes nothing
        (PREDICTED | IMAGES, OF_IMAGES),
        (PREDICTED | {"depth": math.inf}, ("depth", "block", "rtol")),
        (PREDICTED | {"width": "auto", "replicates": None, "memory": "300 KB"}, ("rtol", "memory")),
    ],
    TRAINING
    | {
        "depth": [3.0],
        "block": ["two-layer"],
        "rule": ["mup", "complete-p", "standard", "ntk", "depth-mup-inner"],
        "feedback": ["independent", "static"],
        "momentum": [0.5],
        "width": [20],
        "weights": ["deferred", "structured"],
        "resolution": [0.5],
        "replicates": [3],
        "rtol": [0.2],
        "memory": ["150 KB", "9 KB"],
    },
)

FITTED: Settings = {"train": 12, "test": 6, "horizons": (0.5, 1.0)}
KERNELS = Probe(
    kernel_numbers,
    [(FITTED, ()), (FITTED | IMAGES, OF_IMAGES)],
    DATA
    | {
        "kind": ["ntk", "independent-feedback"],
        "activation": ["erf"],
        "horizon": [0.7],
        "horizons": [(0.5, 0.8)],
        "train": [14],
        "test": [7],
        "noise": [0.1],
    },
)

SIZES: Settings = {"widths": (4, 8), "depths": (2,), "seeds": 2}
CHECKED: Settings = SIZES | {"steps": 2, "batch": 4}
PLAIN: Settings = {"widths": (5, 8), "depths": (2, 3)}  # the width stands for plain modules
CHECKS = Probe(
    check_numbers,
    [
        (CHECKED, ()),
        (CHECKED | IMAGES, OF_IMAGES),
        (CHECKED | {"optimizer": "adam"}, ("weight_decay", "lr", "eta_c", "rule")),
        (CHECKED | {"optimizer": "adamw", "weight_decay": 0.1}, ("weight_decay",)),
        (CHECKED | PLAIN, ("blocks", "roles", "loss", "gia", "rule", "batches", "make_optimizer")),
        (SIZES, ("batches", "at")),
        (SIZES | {"batches": f"{__name__}_models:batches"}, (*DATA, "steps", "batch", "seeds", "eta_c")),
    ],
    DATA
    | {
        "widths": [(4, 9)],
        "depths": [(1, 3)],
        "rule": ["mup", "standard", "ntk", "depth-mup-inner"],
        "optimizer": ["adam"],
        "lr": [0.2],
        "eta_c": [0.2],
        "weight_decay": [0.5],
        "seeds": [3],
        "steps": [3],
        "at": [(1, 2), (1, 3)],
        "batch": [5],
        "blocks": ["outer.*", "more.*", "*.*"],
        "roles": [("head.weight=hidden",), ("layers.*.a.weight=outer",)],
        "loss": ["hinge", f"{__name__}_models:loss"],
        "batches": [f"{__name__}_models:batches"],
        "gia": [True],
        "noise": [True],
        "schedule": [f"{__name__}_models:schedule"],
        "make_optimizer": [f"{__name__}_models:make_optimizer"],
    },
)

SWEPT: Changes = DATA | {
    "activation": ["tanh"], "horizon": [2.0], "steps": [5], "epochs": [0.5], "batch": [5], "seeds": [3],
}  # fmt: skip
TRANSFERRED: Settings = {"widths": (4, 8), "depths": (1, 2), "eta_c": (0.25, 0.5, 1.0), "seeds": 2}
TRANSFERS = Probe(
    transfer_numbers,
    [
        (TRANSFERRED, ()),
        (TRANSFERRED | IMAGES, OF_IMAGES),
        (TRANSFERRED | {"optimizer": "adam"}, ("optimizer", "rules")),
        (TRANSFERRED | {"epochs": 0.1}, ("steps", "epochs", "batch")),
        (TRANSFERRED | {"steps": 4}, ("steps", "epochs")),
    ],
    SWEPT
    | {
        "rules": [("mup",), ("mup", "ntk")],
        "optimizer": ["adam", "sgd"],
        "block": [{"block": "one-layer", "rules": ("mup",)}, "one-layer"],
        "widths": [(4, 6)],
        "depths": [(1, 3)],
        "eta_c": [(0.2, 0.4, 0.8)],
        "score": ["test_loss"],
    },
)

MODELS_TRANSFERRED: Settings = {"widths": (4, 8), "depths": (2, 3), "seeds": 2, "steps": 2, "batch": 4}
OF_MODELS: Changes = {name: DATA[name] for name in DATA} | {
    "optimizer": ["adam", f"{__name__}_models:LAW"], "weight_decay": [0.5], "seeds": [3], "steps": [3], "batch": [5],
    "blocks": ["layers.*"], "roles": [("head.weight=hidden",)], "loss": [f"{__name__}_models:loss"],
    "batches": [{"batches": f"{__name__}_models:batches", "steps": None, "batch": 32}], "version": ["2"],
    "eval_batches": [f"{__name__}_models:batches"], "schedule": [f"{__name__}_models:schedule"],
    "make_optimizer": [f"{__name__}_models:make_optimizer"],
}  # fmt: skip
MODEL_TRANSFERS = Probe(
    model_transfer_numbers,
    [
        (MODELS_TRANSFERRED, ()),
        (MODELS_TRANSFERRED | IMAGES, OF_IMAGES),
        ({"widths": (4, 8), "depths": (2, 3), "batches": f"{__name__}_models:batches"}, (*DATA, "steps", "batch")),
        (MODELS_TRANSFERRED | {"optimizer": "muon"}, ("adamw_lr", "halving")),
    ],
    OF_MODELS
    | {
        "rules": [("mup",), ("ntk",)],
        "widths": [(4, 9)],
        "depths": [(2, 4)],
        "lr": [(0.1, 0.2, 0.4)],
        "adamw_lr": [0.1],
        "axes": [("weight_decay=0,0.1",), ("steps=1,9",)],
        "halving": [True],
    },
)
MODELS_SIZED: Settings = {"widths": (4, 8, 16), "depths": (1, 2, 4), "seeds": 4, "steps": 2, "batch": 4}
MODEL_CAPACITIES = Probe(
    model_capacity_numbers,
    [(MODELS_SIZED, ()), (MODELS_SIZED | IMAGES, OF_IMAGES)],
    OF_MODELS
    | {
        "rule": ["mup", "ntk"], "widths": [(4, 8, 20)], "depths": [(1, 2, 5)], "lr": [0.1], "width": [9], "depth": [9],
        "lengths": [(1,)],
        "parameters": ["2k", "many parameters"], "flops": ["9G"],
    },
)  # fmt: skip

MODELS_PREDICTED: Settings = SHORT | {"version": "1", "depth": 2.0, "base_width": 4, "width": 8, "replicates": 2}
MODEL_PREDICTIONS = Probe(
    model_predict_numbers,
    [
        (MODELS_PREDICTED, sorted(set(ModelPredictConfig.model_fields) - {"adamw_lr", "base_depth", "memory", "rtol"})),
        (MODELS_PREDICTED | {"optimizer": "sgd"}, ("optimizer", "weights", "resolution", "rank")),
        (MODELS_PREDICTED | IMAGES, OF_IMAGES),
        (MODELS_PREDICTED | {"optimizer": "muon"}, ("adamw_lr",)),
        (MODELS_PREDICTED | {"depth": math.inf, "rtol": 0.5}, ("base_depth",)),
        (MODELS_PREDICTED | {"width": "auto", "rtol": 1e-4}, ("rtol", "memory")),
    ],
    {name: values for name, values in OF_MODELS.items() if name not in ("seeds", "make_optimizer")}
    | {
        "optimizer": ["sgd", "muon", f"{__name__}_models:LAW"], "steps": [2], "batch": [5],
        "depth": [3.0], "rule": ["mup", "standard", "ntk"], "lr": [0.2], "adamw_lr": [0.2], "base_width": [2],
        "base_depth": [3], "width": [16], "weights": ["structured"],
        "resolution": [0.5], "rank": [1], "replicates": [3], "rtol": [0.5],
        "memory": ["60 KB", "1 KB", "plenty"],
    },
)  # fmt: skip

PLANNED: Settings = {"width": 8, "base_width": 4, "depth": 3, "base_depth": 2, "weight_decay": 0.1}
PLANNED |= {"batch": (1.0, 2.0), "tokens": (1.0, 2.0), "schedule": ("warmup=1",)}
PLANS = Probe(
    plan_numbers,
    [(PLANNED, sorted(set(PlanConfig.model_fields) - {"adamw_lr"})), (PLANNED | {"optimizer": "muon"}, ("adamw_lr",))],
    {
        "width": [16],
        "depth": [4],
        "base_width": [2],
        "base_depth": [3],
        "rule": ["mup", "ntk"],
        "optimizer": ["sgd", f"{__name__}_models:LAW"],
        "decay": ["raw"],
        "lr": [0.2],
        "adamw_lr": [0.3],
        "weight_decay": [0.0],
        "blocks": ["*.*"],
        "roles": [("head.weight=hidden",)],
        "batches": [f"{__name__}_models:batches"],
        "batch": [(1.0, 3.0)],
        "tokens": [(1.0, 3.0)],
        "schedule": [("fall=linear",)],
        "critical_batch": [9.0],
        "laws": [("tokens-rate=off",)],
        "seed": [1],
    },
)

SIZED: Settings = {"widths": (4, 8, 16), "depths": (1, 2, 4), "horizons": (0.5, 1.0), "seeds": 4, "replicates": 0}
CAPACITIES = Probe(
    capacity_numbers,
    [
        (SIZED, ()),
        (SIZED | IMAGES, OF_IMAGES),
        (SIZED | {"epochs": 0.1}, ("steps", "epochs", "batch")),
        (SIZED | {"hold_out": False}, ("hold_out", "held_out")),
        (SIZED | {"held_out": (24, 4)}, ("hold_out", "held_out")),
    ],
    SWEPT
    | {
        "widths": [(4, 8, 18)],
        "depths": [(1, 2, 5)],
        "eta_c": [0.4],
        "rule": ["complete-p", "depth-mup-inner"],
        "block": ["two-layer"],
        "horizons": [(0.5, 2.0)],
        "width": [100],
        "depth": [9],
        "parameters": ["2M"],
        "memory": ["9 MiB"],
        "flops": ["9G"],
        "held_out": [(20, 4)],
        "hold_out": [False],
        "limit_width": [16, {"limit_width": 16, "replicates": 2, "steps": 2, "batch": 2}],
        "replicates": [{"replicates": 2, "limit_width": 8, "steps": 2, "batch": 2}],
    },
)

SMOKE: Settings = {"size": "smoke"}
PROBES: dict[type[Config], Probe] = {
    DataConfig: Probe(data_numbers, [({}, ()), (IMAGES, ())], DATA),
    RunConfig: RUNS,
    StudyConfig: STUDIES,
    PredictConfig: PREDICTIONS,
    ModelPredictConfig: MODEL_PREDICTIONS,
    KernelConfig: KERNELS,
    CheckConfig: CHECKS,
    PlanConfig: PLANS,
    TransferConfig: TRANSFERS,
    ModelTransferConfig: MODEL_TRANSFERS,
    ModelCapacityConfig: MODEL_CAPACITIES,
    CapacityConfig: CAPACITIES,
    LogConfig: Probe(log_numbers, [({"log": "runs.csv"}, ())], {"log": ["others.csv"], "columns": [("loss=eval",)]}),
    FigureConfig: Probe(figure_numbers, [(SMOKE, ()), (SMOKE | IMAGES, OF_IMAGES)], DATA | {"size": ["cpu"]}),
}


class Fitting(nfd.ResNet):
    """A network of nfd.nets that takes images of up to 64 numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.pad(x, (0, 64 - x.shape[1])))


class Plain(nn.Module):
    """Anyone's module, with two containers of residual blocks; it takes images of up to 64 numbers."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(64, width)
        self.layers, self.more = (nn.ModuleList(Block(width) for _ in range(count)) for count in (depth, 2))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(nn.functional.pad(x, (0, 64 - x.shape[1])))
        for block in (*self.layers, *self.more):
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(torch.relu(self.a(x)))  # type: ignore[no-any-return]


def cheap_kernel(X: Tensor, X2: Tensor | None, *, kind: str, activation: str, horizon: float, **_: Any) -> Any:
    """Stands for ``gram_matrix``, whose tables take seconds: what it is given changes its numbers."""
    scale = {"relu": 1.0, "erf": 2.0}[activation] * {"ntk": 3.0}.get(kind, 1.0) * horizon
    gram = torch.exp(-torch.cdist(X, X if X2 is None else X2).square() / (X.shape[1] * scale))
    return (2.0 if kind == "independent-feedback" else 1.0) * gram, None, 1e-9


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two folders of images, batches and constructors by name, a cheap kernel, and no trial of training together."""
    pixels = np.random.default_rng(0)
    for folder, size in (("first", 8), ("second", 8)):
        for name in "abc":
            (tmp_path / folder / name).mkdir(parents=True)
            for k in range(10):
                image = Image.fromarray(pixels.integers(0, 255, (size, size), dtype=np.uint8))
                image.save(tmp_path / folder / name / f"{k}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kernel_fit, "gram_matrix", cheap_kernel)
    alone = together.Together(1, together.Alone.WIDTH)
    monkeypatch.setattr(together, "_decided", lambda *_: alone)  # no network of a constructor is trained here
    kept = lru_cache(load)  # reading the digits takes longer than training on them here
    for module in (named, kernel_fit, prediction, study):
        monkeypatch.setattr(module, "load", lambda name, place, *, progress, **options: kept(name, place, **options))
    models = types.ModuleType(f"{__name__}_models")
    models.fitting = lambda width, depth: Fitting(64, 10, width, depth)  # type: ignore[attr-defined]
    models.plain = Plain  # type: ignore[attr-defined]
    models.loss = lambda outputs, targets: outputs.square().mean()  # type: ignore[attr-defined]
    models.schedule = lambda step: 1 / (1 + step)  # type: ignore[attr-defined]
    models.make_optimizer = torch.optim.RMSprop  # type: ignore[attr-defined]
    models.LAW = nfd.OptimizerLaw("settings-rprop", torch.optim.Rprop, classes=("Rprop",))  # type: ignore[attr-defined]
    monkeypatch.setattr("nfd.scaling.laws._TABLE", dict(nfd.scaling.laws._TABLE))
    stream = torch.Generator().manual_seed(0)
    models.batches = [(torch.randn(4, 64, generator=stream), torch.zeros(4, dtype=torch.long))] * 2  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, models.__name__, models)
    return tmp_path


def outcomes(kind: type[Config], probe: Probe, place: Path) -> dict[str, list[str]]:
    """For every field what became of each change: "changed", "refused" or "ignored in ...", over all contexts."""
    seen: dict[str, Any] = {}

    def numbers(settings: Settings) -> Any:
        config = kind(**settings)
        if config.toml() not in seen:
            seen[config.toml()] = plain(probe.numbers(config, place / f"sweep{len(seen)}"))
        return seen[config.toml()]

    found: dict[str, list[str]] = {name: [] for name in probe.changes}
    for context, fields in probe.contexts:
        base, alone = numbers(context), kind(**context)
        for name, values in probe.changes.items():
            for value in values if not fields or name in fields else ():
                change = value if isinstance(value, dict) else {name: value}
                if all(getattr(alone, key) == new for key, new in change.items()):
                    continue
                try:
                    came = "changed" if numbers({**context, **change}) != base else f"ignored in {context}: {change}"
                except ValueError as error:
                    came = "refused" if name.removesuffix("s") in str(error) else f"refused without its name: {error}"
                found[name].append(came)
    return found


@pytest.mark.parametrize("kind", PROBES, ids=lambda kind: kind.__name__)
def test_every_setting_changes_what_is_computed_or_is_refused(kind: type[Config], place: Path) -> None:
    probe = PROBES[kind]
    assert set(probe.changes) == set(kind.model_fields)
    found = outcomes(kind, probe, place)
    assert not [came for each in found.values() for came in each if came not in ("changed", "refused")]
    assert not [name for name, each in found.items() if "changed" not in each]  # not one that is always refused


def test_a_setting_that_is_ignored_would_be_seen(place: Path) -> None:
    class Deaf(DataConfig):
        """A configuration with a setting that nobody reads."""

        unread: int = 0

    probe = Probe(data_numbers, [({}, ())], {"seed": [1], "unread": [1]})
    assert outcomes(Deaf, probe, place) == {"seed": ["changed"], "unread": ["ignored in {}: {'unread': 1}"]}


def test_no_configuration_is_forgotten() -> None:
    """Each is run here, or only stands above one that is and adds no field that this one lacks."""
    kinds = [kind for kind in below(Config) if not issubclass(kind, Options)]
    assert len(kinds) >= len(PROBES)
    for kind in kinds:
        heirs = [probed for probed in PROBES if issubclass(probed, kind)]
        assert heirs, f"{kind.__name__} has no probe"
        assert all(set(kind.model_fields) <= set(heir.model_fields) for heir in heirs)


# ---- options of commands, which are no settings ------------------------------------------------------------------

COMMANDS = [
    kind for kind in dict.fromkeys(below(Options)) if not kind.__subclasses__() and kind.__name__.endswith("Command")
]
STEERING = set(SweepOptions.model_fields) - set(DeviceOptions.model_fields)  # where networks are trained, who is told
NEEDED: dict[str, dict[str, Any]] = {  # what a command cannot go without
    "CheckCommand": {"model": f"{__name__}_models:fitting"} | CHECKED,
    "PlanCommand": {"model": f"{__name__}_models:plain"} | PLANNED,
    "SweepCommand": {"grid": ("grid.toml",)},
    "StudyCommand": dict(STUDY),
    "PredictCommand": dict(PREDICTED),
    "ModelPredictCommand": {"model": f"{__name__}_models:plain"} | MODELS_PREDICTED,
    "KernelCommand": dict(FITTED),
    "TransferCommand": dict(TRANSFERRED),
    "ModelTransferCommand": {"model": f"{__name__}_models:plain"} | MODELS_TRANSFERRED,
    "ModelCapacityCommand": {"model": f"{__name__}_models:plain"} | MODELS_SIZED,
    "CapacityCommand": dict(SIZED),
    "FigureCommand": {"size": "smoke"},
    "ClaimsCommand": {"size": "smoke"},
}
ELSEWHERE = {  # options of one command, and the test below that changes them
    "RunsCommand": {"directory", "where", "status", "limit", "out"},
    "ReportCommand": {"directory", "out"},
    "CapacityCommand": {"store", "where", "log", "columns", "rate"},
    "TransferCommand": {"log", "columns", "guess"},
    "FigureCommand": {"number", "store"},
    "ClaimsCommand": {"store", "only"},
    "KernelCommand": {"action"},
    "DataCommand": {"action"},
    "CheckCommand": {"model"},
    "PlanCommand": {"model", "framework", "fits"},  # in tests/test_plan_command.py
    "ModelTransferCommand": {"model"},
    "ModelCapacityCommand": {"model"},
    "ModelPredictCommand": {"model"},
    "SweepCommand": {"grid"},
}


STORED: Settings = {name: CapacityConfig.model_fields[name].default for name in SIZED}  # as if none were given


def made(kind: type[Options], **options: Any) -> Options:
    """A command as the shell makes it, with what it cannot go without."""
    return kind(**{"out": "made", "config": None} | NEEDED.get(kind.__name__, {}) | options)


def stopped_at(target: str, command: Options) -> Any:
    """The arguments with which a command calls a function, where it ends."""

    def stop(*arguments: Any, **options: Any) -> Any:
        raise _Stopped(*arguments, *options.values())

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(target, stop)
        with pytest.raises(_Stopped) as stopped:
            command.run("")
    return stopped.value.args


def test_no_option_of_a_command_is_forgotten() -> None:
    assert len(COMMANDS) == 16
    for kind in COMMANDS:
        own = set(kind.model_fields) - set(kind.settings_type().model_fields) - {"out", "config", "traceback"}
        own -= {"device"} if issubclass(kind, DeviceOptions) else set()
        own -= STEERING if issubclass(kind, SweepOptions) else set()
        own -= STEERING - {"track"} if issubclass(kind, ExecutorOptions) else set()
        assert own == ELSEWHERE.get(kind.__name__, set()) - {"out"}, kind.__name__


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
def test_every_command_uses_out_config_device_and_where_it_trains(kind: type[Options], place: Path) -> None:
    (place / "grid.toml").write_text("width = [4]\nsteps = 2\n")
    (place / "settings.toml").write_text("seed = 7\n")
    if kind.__name__ not in ("RunsCommand", "ReportCommand"):  # which read a directory first: see below
        assert stopped_at("nfd.core.files.prepare_directory", made(kind, out="here"))[0] == "here"
    if kind.settings_type() is Config:
        with pytest.raises(UsageError, match="this command has none"):
            kind.defaults(["--config", "settings.toml"])
    else:
        assert kind.defaults(["--config", "settings.toml"]).seed == 7  # type: ignore[attr-defined]
    if issubclass(kind, ExecutorOptions):
        stopped_at("nfd.runs.executors.executor_named", made(kind))
    if issubclass(kind, DeviceOptions):
        inline = {"executor": "inline"} if issubclass(kind, ExecutorOptions) else {}
        with pytest.raises(ValueError, match="device"):
            made(kind, device="nowhere", **inline).run("")


def test_workers_are_prepared_where_networks_will_be_trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    prepared = list[str]()

    class Noting(Inline):
        def prepare(self, module: str) -> None:
            prepared.append(module)

    def count(kind: type[Options], **options: Any) -> int:
        prepared.clear()
        made(kind, **options).guarded(tmp_path, lambda: 0)
        return len(prepared)

    monkeypatch.setattr("nfd.runs.executors.executor_named", lambda name, **options: Noting())
    assert (count(StudyCommand), count(TransferCommand), count(TransferCommand, log="runs.csv")) == (1, 1, 0)
    (tmp_path / "runs.sqlite").touch()
    assert count(StudyCommand) == 0


def test_where_networks_are_trained_reaches_the_executor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every option of ``SweepOptions``, or words against it."""
    monkeypatch.setattr("nfd.runs.executors.executor_named", lambda name, **options: {"executor": name, **options})
    monkeypatch.setattr("nfd.runs.trackers.tracker_named", lambda name, directory: name)
    monkeypatch.setattr("nfd.runs.sweep.Sweep", lambda directory, executor, **options: (executor, options))

    def asked(**options: Any) -> Any:
        return made(SweepCommand, **options).sweep(tmp_path)  # type: ignore[attr-defined]

    changes: dict[str, Any] = {
        "executor": "inline", "workers": 3, "threads": 2, "address": "auto", "gpus": 0.5, "track": ("tensorboard",),
    }  # fmt: skip
    assert set(changes) == STEERING
    for name, value in {**changes, "device": "cuda"}.items():
        with_gpu = {"device": "cuda"} if name == "gpus" else {}
        assert asked(**{name: value}, **with_gpu) != asked(**with_gpu), name
    with pytest.raises(UsageError, match=r"--gpus 0.5 reserves GPUs, which --device cpu leaves idle"):
        asked(gpus=0.5)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("inline", {"workers": 2}, "workers is an option of the executor 'processes'"),
        ("ray", {"workers": 2}, "workers is an option of the executor 'processes'"),
        ("inline", {"address": "auto"}, "address is an option of the executor 'ray'"),
        ("processes", {"gpus": 0.5}, "gpus is an option of the executor 'ray'"),
        ("inline", {"attempts": 2}, "attempts is an option of the executor 'processes'"),
    ],
)
def test_options_that_an_executor_does_not_have_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        executor_named(name, **options)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["capacity", "--where", "width=4"], "got width=4 without its directory"),
        (
            ["capacity", "there", "--eta-c", "0.2", "--seeds", "3"],
            r"got seeds=3, eta_c=0.2, which would change",
        ),
        (["capacity", "there", "--no-hold-out", "--threads", "2"], r"got threads=2, which would change nothing"),
        (["kernel", "facts", "--device", "cuda"], r"kernel facts takes --activation and --seed; got device='cuda'"),
        (["kernel", "facts", "--horizon", "2"], r"kernel facts takes --activation and --seed; got horizon=2.0"),
        (["data", "--data", "images", "--data-dir", "split", "--seed", "3"], "brings its own. Drop --seed 3"),
    ],
    ids=str,
)
def test_options_without_a_part_in_what_is_asked_are_refused(
    command: list[str], message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "split").mkdir()
    (place / "split" / "train").symlink_to(place / "first")
    (place / "split" / "test").symlink_to(place / "second")
    assert main([*command, "--out", "refused"]) == 2
    said = capsys.readouterr().err
    assert re.search(message, said), said


def test_the_rest_of_what_commands_take_changes_what_they_say(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, widths in (("one", "[4, 8]"), ("two", "[8, 16]")):
        (place / f"{name}.toml").write_text(f"width = {widths}\ndepth = 2\nsteps = 2\nbatch = 4\neta_c = [0.3, 1e12]\n")

    def said(*command: str) -> str:
        assert main(list(command)) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    first, second = (said("sweep", f"{n}.toml", "--out", n, "--executor", "inline") for n in ("one", "two"))
    assert first != second
    listed = said("runs", "one")
    for change in (["--where", "width=4"], ["--status", "diverged"], ["--limit", "1"], ["--out", "listed"]):
        assert said("runs", "one", *change) != listed
    assert said("runs", "two") != listed
    pages = []
    for directory in ("one", "listed"):
        said("report", directory, "--out", f"page of {directory}")
        pages.append((place / f"page of {directory}" / "report.html").read_text())
    assert "nfd runs one" in pages[1]
    assert "nfd runs one" not in pages[0]
    assert "Hermite" in said("kernel", "facts").title()
    for number in ("2", "6"):
        command = made(FigureCommand, number=number, store="kept", executor="inline")
        assert stopped_at("nfd.paper.figures.making.trained", command)[0] is FIGURES[number]
        assert (place / "kept").is_dir()
    with pytest.raises(UsageError, match="'nowhere' holds no networks"):
        made(ClaimsCommand, store="nowhere").run("")
    with pytest.raises(UsageError, match=r"--only takes ids of statements, .*; got nothing"):
        made(ClaimsCommand, only=("nothing",)).run("")
    for name in ("fitting", "plain"):
        for question, kind in (
            ("checking.check", CheckCommand),
            ("model_sweeps.transfer", ModelTransferCommand),
            ("model_sweeps.capacity", ModelCapacityCommand),
            ("prediction.predict", ModelPredictCommand),
        ):
            model = stopped_at(f"nfd.questions.{question}", made(kind, model=f"{__name__}_models:{name}"))[0]
            assert model is getattr(sys.modules[f"{__name__}_models"], name)
    for where, count in (((), 4), (("width=8",), 2)):
        command = made(CapacityCommand, store="two", where=where, executor="inline", **STORED)
        assert len(stopped_at("nfd.questions.capacity_sweep.capacity_of_records", command)[0]) == count
