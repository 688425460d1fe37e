"""The command ``nfd predict``."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Literal

from nfd.cli.shared import TrainingCommand
from nfd.core.options import option
from nfd.core.tables import Lead, show


@dataclass
class PredictCommand(TrainingCommand):
    """Predict the loss of the infinitely wide, and with --depth inf infinitely deep, network.

    Example: nfd predict setup.py --lr 0.3 --depth 4 --width 512

    Writes result.json and predict.csv to OUT, and every network to OUT/runs.sqlite; the same
    command continues after a stop.
    """

    name = "predict"

    lr: float | None = option(None, "learning rate of the base", group="Training")
    base: tuple[int, int] = option(
        (64, 4), "width and depth of the base of a plain make_model", group="Model"
    )
    depth: float = option(math.inf, "number of blocks, or inf", group="Sizes")
    width: int | None = option(
        None,
        "width of the networks that stand for the infinitely wide one; by default 1,024",
        group="Sizes",
    )
    replicates: int = option(8, "how many of them are averaged", group="Sizes")
    weights: Literal["structured", "deferred", "dense"] | None = option(
        None, "structured, deferred or dense", group="Sizes"
    )
    rtol: float | None = option(
        None,
        "wanted relative standard error; replicates are doubled until it is met",
        group="Sizes",
    )
    seed: int = option(
        0, "of the networks, which all predictions with one seed share", group="Model"
    )

    def run(self, command: str) -> int:
        """Answer; returns the exit code."""
        from nfd.core.files import staged, write_csv, write_json
        from nfd.limits.predict import predict

        setup = self.read_setup()
        directory = self.directory()
        family = setup.family(self.base, self.rule, self.optimizer)
        # predict refuses a depth that is neither whole nor infinite.
        depth = int(self.depth) if self.depth.is_integer() else self.depth
        with self.sweep(directory) as sweep:
            answer = predict(
                family,
                setup.task,
                self.lr,
                depth=depth,
                width=self.width,
                replicates=self.replicates,
                weights=self.weights,
                rtol=self.rtol,
                seed=self.seed,
                sweep=sweep,
            )
        with staged(directory) as folder:
            write_csv(folder / "predict.csv", answer.table)
            lead = Lead(str(answer).partition("\n")[0])
            content = {
                "command": command,
                "lead": asdict(lead),
                "config": self.settings,
                "rows": answer.table,
            }
            write_json(folder / "result.json", content | {"note": answer.note})
        show(lead, answer, *self.stored(sweep), f"Result: {directory / 'result.json'}")
        return 0
