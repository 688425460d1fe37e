"""``nfd plan``: start, rate, decay and epsilon of every tensor of a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import tyro

from nfd.cli.ending import VERDICT
from nfd.cli.options import Options
from nfd.core.errors import UsageError
from nfd.core.names import FrameworkName
from nfd.runs.model_settings import PlanConfig

_COMPARED = ("width", "depth", "seed", "batch", "tokens", "schedule", "critical_batch", "laws")  # with a stored plan


class PlanCommand(Options, PlanConfig):
    """Plan a constructor's network for training by the rates of a smaller one, and write the lines that train it.

    With --batch and --tokens, of the small run and of this one, it scales rate, decay, betas, epsilon and warm-up too.
    Writes plan.json, lines.py, result.json and config.toml to OUT. With --fits it says whether a stored plan fits the
    network of --width and --depth, and the run where one is given, writes result.json, and exits with 1 where it does
    not.
    """

    model: tyro.conf.Positional[str] = ""
    """package.module:make_model, a function of (width, depth) that returns a torch.nn.Module"""
    framework: Annotated[FrameworkName, tyro.conf.arg(name="for")] = "pytorch"
    """what the lines are for: pytorch, trainer (Hugging Face), lightning, or megatron (parameter groups)"""
    fits: str | None = None
    """plan.json of an earlier plan, to compare with the network"""
    out: str = "out/plan"
    """directory for the results"""

    def files(self) -> list[str]:
        return ["result.json"] if self.fits else ["plan.json", "lines.py", "result.json", "config.toml"]

    def check_used(self, config: PlanConfig) -> None:
        if not self.model:
            raise UsageError("plan needs a constructor, such as mypackage.mymodule:make_model. See nfd plan --help.")
        others = [name for name in PlanConfig.model_fields if name not in _COMPARED]
        unused = [*([] if self.config else config.changed(*others)), *self.changed("framework")]
        if self.fits and unused:
            raise UsageError(
                "--fits compares an earlier plan with the network of --width and --depth, and with a run; got "
                f"{', '.join(unused)}, which would change nothing. Drop it."
            )

    def answer(self, config: PlanConfig, directory: Path, command: str) -> int:
        return self._plan(config, directory, command) if self.fits is None else self._fit(config, directory, command)

    def _plan(self, config: PlanConfig, directory: Path, command: str) -> int:
        from nfd.core.files import staged, write_json, write_text
        from nfd.questions.model_plan import planned
        from nfd.questions.training_lines import training_lines

        plan, path = planned(config, self.model), directory / "plan.json"
        lines = training_lines(self.framework, plan, path, config, self.model)
        content = {"command": command, "model": self.model, "for": self.framework, "lines": lines}
        with staged(directory) as folder:
            plan.save(folder / "plan.json")
            write_text(folder / "lines.py", f"{lines}\n")
            write_json(folder / "result.json", {**content, "config": dict(config), "plan": plan.to_dict()})
            write_text(folder / "config.toml", config.toml())
        print(plan, f"Plan: {path}", "", lines, sep="\n")
        return 0

    def _fit(self, config: PlanConfig, directory: Path, command: str) -> int:
        from nfd.core.files import staged, write_json
        from nfd.questions.model_plan import fit_of, run_fit_of
        from nfd.scaling.plan import Plan

        plan = Plan.load(str(self.fits))
        differing, of_run = fit_of(plan, config, self.model), run_fit_of(plan, config)
        shapes = {n: {"planned": old, "network": own} for n, (old, own) in differing.reshaped.items()}
        content: dict[str, Any] = {"command": command, "model": self.model, "fits": not (differing or of_run)}
        content |= {"missing": differing.missing, "not_planned": differing.unplanned, "reshaped": shapes}
        content["run"] = {name: {"planned": planned, "asked": asked} for name, (planned, asked) in of_run.items()}
        with staged(directory) as folder:
            write_json(folder / "result.json", content)
        size = f"{self.model} of width {config.width} and depth {config.depth}"
        if differing:
            print(f"{self.fits} does not fit {size}: {differing} Plan it again, or build the network that was planned.")
        if of_run:
            settings = (f"{name} {planned} and not {asked}" for name, (planned, asked) in of_run.items())
            print(f"{self.fits} does not fit this run: it was planned for {', '.join(settings)}. Plan it again.")
        if differing or of_run:
            return VERDICT
        print(f"{self.fits} fits {size}: all {len(plan.entries)} tensors have their names and shapes.")
        return 0
