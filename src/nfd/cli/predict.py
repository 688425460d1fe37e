"""``nfd predict``: the limit itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from nfd.cli.options import ModelOptions, Options, printed
from nfd.cli.sweeping import ExecutorOptions
from nfd.runs.model_settings import ModelPredictConfig
from nfd.runs.settings import PredictConfig

if TYPE_CHECKING:
    from nfd.questions.next_steps import NextStep
    from nfd.questions.prediction import Predicted


class PredictionFiles(Options):
    """The files of a prediction."""

    out: str = "out/predict"
    """directory for the results"""

    def files(self) -> list[str]:
        return ["predict.csv", "config.toml", "result.json"]

    def write(self, predicted: Predicted, directory: Path, command: str, steps: Sequence[NextStep] = ()) -> int:
        """Write them, and print the prediction and what to do next."""
        from nfd.core.files import staged, write_csv, write_json, write_text

        with staged(directory) as folder:
            write_csv(folder / "predict.csv", predicted.prediction.table)
            write_text(folder / "config.toml", predicted.config.toml())
            following = {"next": [asdict(step) for step in steps]} if steps else {}
            write_json(folder / "result.json", {"command": command, **predicted.result(), **following})
        print(predicted.prediction, f"Result: {directory / 'result.json'}", *printed(steps), sep="\n")
        return 0


class ModelPredictCommand(PredictionFiles, ModelOptions, ExecutorOptions, ModelPredictConfig):
    """Predict the losses of your own network at infinite width, with intervals.

    Without a constructor the command predicts the paper's networks: see nfd predict --help. Writes result.json,
    config.toml and predict.csv (step, loss, error, interval, bias of width) to OUT, and every network to
    OUT/runs.sqlite. It can be stopped at any time: the same command continues from there.
    """

    def answer(self, config: ModelPredictConfig, directory: Path, command: str) -> int:
        from nfd.questions.next_steps import NextSteps
        from nfd.questions.prediction import prediction_of_model

        executor = self.chosen_executor
        predicted = prediction_of_model(config, self.model, out=directory, executor=executor, device=self.device)
        steps = NextSteps(self.model, self.device, self.out).after_predict(config, predicted.lr)
        return self.write(predicted, directory, command, steps)


class PredictCommand(PredictionFiles, ExecutorOptions, PredictConfig):
    """Predict the training loss of an infinitely wide, with --depth inf infinitely deep, residual network.

    Writes result.json, config.toml and predict.csv (step, loss, error, interval, bias of width) to OUT, and
    every network to OUT/runs.sqlite. It can be stopped at any time: the same command continues from there.

    Your own networks: nfd predict package.module:make_model, whose options nfd predict package.module:make_model
    --help lists.
    """

    of_models: ClassVar[type[Options] | None] = ModelPredictCommand

    def answer(self, config: PredictConfig, directory: Path, command: str) -> int:
        from nfd.questions.prediction import prediction

        executor = self.chosen_executor
        predicted = prediction(config, device=self.device, out=directory, executor=executor, progress=True)
        return self.write(predicted, directory, command)
