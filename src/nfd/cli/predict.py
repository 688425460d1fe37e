"""``nfd predict``: the limit itself."""

from __future__ import annotations

from nfd.cli.options import DeviceOptions
from nfd.experiment.settings import PredictConfig


class PredictCommand(DeviceOptions, PredictConfig):
    """Predict the training loss of an infinitely wide, with --depth inf infinitely deep, residual network.

    Writes result.json, config.toml and predict.csv (step, loss, error, interval, what width had added) to OUT.
    """

    out: str = "out/predict"
    """directory for the results"""

    def run(self, command: str) -> int:
        """Check, run, write, and print the curve in a few lines."""
        config = self.settings(PredictConfig)
        from nfd.core.files import prepare_directory, staged, write_csv, write_json, write_text
        from nfd.experiment.prediction import prediction

        directory = prepare_directory(self.out, ["predict.csv", "config.toml", "result.json"])
        done = prediction(config, device=self.device, progress=True)
        with staged(directory) as folder:
            write_csv(folder / "predict.csv", done.found.table)
            write_text(folder / "config.toml", config.toml())
            write_json(folder / "result.json", {"command": command, **done.result()})
        print(done.found)
        print(f"Result: {directory / 'result.json'}")
        return 0
