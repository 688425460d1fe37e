"""The command ``nfd predict``."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from nfd.cli.shared import TrainingCommand
from nfd.core.answer import Next
from nfd.core.options import again, option

if TYPE_CHECKING:
    from nfd.limits.predict import Prediction


@dataclass
class PredictCommand(TrainingCommand):
    """Predict the loss of the infinitely wide, and with --depth inf infinitely deep, network.

    Example: nfd predict setup.py --lr 0.3 --depth 4 --width 512

    Writes report.html, result.json and predict.csv to OUT, and every network to OUT/runs.sqlite;
    the same command continues after a stop.
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
        from nfd.limits.predict import predict
        from nfd.report.answer_page import AnswerPage

        setup = self.read_setup()
        directory = self.directory()
        family = setup.family(self.base, self.rule, self.optimizer)
        # predict refuses a depth that is neither whole nor infinite.
        depth = int(self.depth) if self.depth.is_integer() else self.depth
        with self.sweep(directory) as sweep:
            prediction = predict(
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
        answer = prediction.answer
        about = f"nfd predict · {family.name} in {setup.path} · {answer.about}"
        answer = replace(answer, about=about, next=self._next(prediction, command))
        page = AnswerPage(
            answer,
            command,
            self.settings,
            prediction.first_sections(),
            content={"rows": prediction.table, "note": prediction.note},
            tables={"predict.csv": prediction.table},
        )
        return self.end(answer, page.write(directory), *self.stored(sweep))

    def _next(self, prediction: Prediction, command: str) -> Next:
        """Return the command that makes the number better."""
        if not math.isfinite(prediction.table[-1]["value"]):
            smaller = f"{self.lr / 4:g}" if self.lr else "LR"
            return Next("Run next, at a lower learning rate", again(command, "--lr", smaller))
        return Next(
            "For an interval half as wide, about 4 times as long",
            again(command, "--replicates", 4 * prediction.replicates),
        )
