"""Configurations: every error at once, in one voice; TOML there and back."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

import nfd
from nfd.cli.commands import COMMANDS, command
from nfd.core import names
from nfd.core.activations import ACTIVATIONS
from nfd.core.errors import InputError
from nfd.data.load import NAMES
from nfd.paper.config import FigureConfig
from nfd.questions.predict_model import predict_model
from nfd.questions.predict_paper import predict_paper
from nfd.questions.sweep_settings import ModelCapacityConfig, data_settings
from nfd.runs.config import Config
from nfd.runs.model_settings import ModelPredictConfig
from nfd.runs.settings import DataConfig, KernelConfig, PredictConfig, RunConfig, StudyConfig
from nfd.scaling.laws import rate_for
from nfd.scaling.rules import RULES


def test_names_are_those_of_what_they_name() -> None:
    assert set(get_args(names.Activation)) == set(ACTIVATIONS)
    assert set(get_args(names.RuleName)) == set(RULES)
    assert set(get_args(names.Data)) == set(NAMES)


@pytest.mark.parametrize(
    "config",
    [
        DataConfig(data="images", data_dir="/a b/ü\"'", image_size=4, seed=2**63 - 1),
        StudyConfig(depths=(1, 2), eta_c=1e-9),
        PredictConfig(depth=math.inf, width=7, replicates=3),
        PredictConfig(width="auto"),
    ],
)
def test_toml_brings_every_setting_back(config: Config, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(config.toml(), encoding="utf-8")
    assert type(config).load(tmp_path / "c.toml") == config


def test_every_wrong_setting_is_reported_at_once(tmp_path: Path) -> None:
    text = 'widhts = [3]\ndepths = [0, 2]\nwidths = [8]\nactivation = "rellu"\nseeds = 1\nsteps = true\nhorizon = "x"\n'
    (tmp_path / "c.toml").write_text(text + "eta_c = nan\nbatch = 1.5\nseed = -1\n")
    with pytest.raises(ValueError, match="settings are wrong") as error:
        StudyConfig.load(tmp_path / "c.toml")
    assert str(error.value).splitlines() == [
        f"config '{tmp_path / 'c.toml'}': 10 settings are wrong:",
        "  seed must be at least 0; got -1.",
        "  activation must be one of 'relu', 'tanh', 'erf', 'gelu', 'identity'; got 'rellu'. Did you mean 'relu'?",
        "  horizon must be a number; got 'x'.",
        "  eta_c must be finite; got nan.",
        "  steps must be a whole number; got True.",
        "  batch must be a whole number; got 1.5.",
        "  depths[0] must be at least 1; got 0.",
        "  widths must be two or more ascending numbers; got [8].",
        "  seeds must be at least 2; got 1.",
        "  widhts is not a setting. Did you mean 'widths'?",
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depths": [3, 5]}, "depths must be numbers that end in L and 2L"),
        ({"widths": [8, 20000]}, "widths must be at most 16384"),
        ({"widths": 8}, "widths must be a list; got 8"),
        ({"data": "cifar10"}, "needs data_dir"),
        ({"data_dir": "x"}, "data_dir is for data='cifar10' and data='images'"),
        ({"image_size": 8}, "image_size is for data='images'"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StudyConfig(**settings)


def test_the_data_of_figures_are_what_lies_there_unless_they_are_named(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-bin").mkdir()
    assert data_settings(FigureConfig())["data"] == "digits"
    assert FigureConfig(data_dir=str(tmp_path)).data == "cifar10"
    assert FigureConfig(data="images", data_dir=str(tmp_path)).data == "images"
    with pytest.raises(ValueError, match="got data='digits' and data_dir="):
        FigureConfig(data="digits", data_dir=str(tmp_path))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere.toml' cannot be read \(No such file"):
        StudyConfig.load(tmp_path / "nowhere.toml")
    (tmp_path / "bad.toml").write_text("steps = \n")
    with pytest.raises(ValueError, match=r"bad.toml' is not TOML: .*line 1"):
        StudyConfig.load(tmp_path / "bad.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="is not TOML"):
        StudyConfig.load(tmp_path / "bytes.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[study]\nsteps = 3\n", "study is a table; settings stand at the top level"),
        ("a = " + "[" * 3000, "is not TOML"),
        ("steps = " + "9" * 5000, "is not TOML|must be at most|must be a smaller number"),
        ("self = 1\n", "self is not a setting"),
        ("\ufeffsteps = 0\n", "steps must be at least 1"),
        ("limit_width = 1000000000000\n", "limit_width must be at most 67108864"),
        ("limit_width = 512\n", "limit_width must be at least twice the largest of widths, 1024"),
        (f"seed = {2**63}\n", f"seed must be at most {2**63 - 1}"),
    ],
)
def test_odd_files_are_one_message(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "c.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        StudyConfig.load(tmp_path / "c.toml")


def test_configurations_are_frozen() -> None:
    with pytest.raises(Exception, match="frozen"):
        StudyConfig().steps = 3  # type: ignore[misc]


# ---- defaults ------------------------------------------------------------------------------------------------

# What a run's settings are given to, and what has the kernel's settings without being a command.
BUILT: list[tuple[Callable[..., Any], type[Config]]] = [
    (nfd.ResNet, RunConfig),
    (nfd.MLP, RunConfig),
    (nfd.SGD, RunConfig),
    (nfd.ResNet.param_groups, RunConfig),
    (nfd.InfiniteDepthKernel, KernelConfig),
    (predict_paper, PredictConfig),
    (predict_model, ModelPredictConfig),
]
# None here means: what the network was built for, or what the family is for; where the inputs are, which for a command
# is the CPU; in this process and without a file, where a command keeps what it made and uses every core.
OPEN = {
    ("ScaledNetwork.param_groups", "rule"),
    ("check", "rule"),
    ("check", "optimizer"),
    ("kernel", "device"),
    ("plan", "base_width"),  # beside a base, or for networks of nfd.nets
    ("predict_paper", "out"),
    ("predict_paper", "executor"),
    ("predict_model", "out"),
    ("predict_model", "executor"),
    ("transfer", "out"),
    ("transfer", "executor"),
    ("capacity", "out"),
    ("capacity", "executor"),
    ("predict", "out"),
    ("predict", "executor"),
}


def called_like_commands() -> list[tuple[Callable[..., Any], type[Config]]]:
    """Every public function with a command of its name, in the form that takes a constructor where there is one."""
    names = [name for name in COMMANDS if inspect.isfunction(getattr(nfd, name, None))]
    return [(getattr(nfd, name), command(name).of_models or command(name)) for name in names]


def disagreements(function: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Parameters whose defaults are not those of the settings of their names."""
    parameters = inspect.signature(function).parameters.values()
    given = {p.name: p.default for p in parameters if p.default not in (p.empty, ...) and p.name in settings}
    return {
        name: (default, settings[name])
        for name, default in given.items()
        if default != settings[name] and (function.__qualname__, name) not in OPEN
    }


@pytest.mark.parametrize(("function", "kind"), [*called_like_commands(), *BUILT], ids=lambda x: x.__qualname__)
def test_python_and_the_command_line_have_the_same_defaults(function: Callable[..., Any], kind: type[Config]) -> None:
    assert disagreements(function, dict(kind())) == {}


def test_the_comparison_of_defaults_finds_functions_and_what_differs() -> None:
    functions = {function.__name__ for function, _ in called_like_commands()}
    assert functions >= {"predict", "check", "plan", "transfer", "capacity", "kernel"}

    def predict(x: Any, *, rtol: float = 0.01, depth: float = math.inf, other: int = 1) -> None:
        """As nfd.predict was."""

    assert disagreements(predict, dict(PredictConfig())) == {"rtol": (0.01, 0.05)}


def test_the_rate_of_a_check_is_that_of_its_optimizer() -> None:
    for optimizer, rate in (("sgd", 0.1), ("adam", 1e-3), ("adamw", 1e-3), ("muon", 1e-3)):
        assert rate_for(optimizer, None) == rate
        assert rate_for(optimizer, 0.5) == 0.5


def test_a_law_over_several_lengths_takes_no_question_about_one_network() -> None:
    assert ModelCapacityConfig(lengths=(10,), width=9).width == 9
    for asked in ({"width": 9}, {"depth": 3}):
        with pytest.raises(InputError, match=rf"got {next(iter(asked))}=\d\. Drop it"):
            ModelCapacityConfig(lengths=(10, 20), **asked)
