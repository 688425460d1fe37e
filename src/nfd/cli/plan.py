"""The command ``nfd plan``."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from nfd.cli.setup_file import Setup
from nfd.cli.shared import NetworkCommand
from nfd.core.answer import Answer, in_terminal
from nfd.core.checks import check_choice
from nfd.core.errors import VERDICT, InputError
from nfd.core.names import BASE, FrameworkName
from nfd.core.options import option

if TYPE_CHECKING:
    from pathlib import Path

    from nfd.experiments.tuned import Tuned
    from nfd.families.family import Family
    from nfd.scaling.export import Export
    from nfd.scaling.plan import Plan

_DEFAULT_BASE = (
    "the base is the default, width {} and depth {}: give that of your rate by --base WIDTH DEPTH, "
    "or --from out/transfer."
)


@dataclass
class PlanCommand(NetworkCommand):
    """Plan a network of a size, to train by the learning rates of a smaller one.

    Example: nfd plan setup.py --width 1024 --depth 24 --from out/transfer

    Writes plan.json to OUT; nfd.Plan.load reads it. With --fits it says whether a stored plan fits
    the network, and exits with 1 where it does not. With --self-test it runs the planned model at
    small sizes, and exits with 1 where something does not scale as the rule promises. With --to it
    also writes a file that a framework takes, such as nfd_torchtitan.py.
    """

    name = "plan"

    width: int = option(256, "width of the network", group="Sizes")
    depth: int = option(4, "depth of the network", group="Sizes")
    base: tuple[int, int] | None = option(
        None, "width and depth that rates were tuned at; by default 64 4", group="Model"
    )
    tuned: str = option(
        "",
        "answer of nfd transfer, such as out/transfer, for base, rule and lr",
        name="from",
        group="Training",
        is_path=True,
    )
    lr: float | None = option(
        None,
        "learning rate that was tuned at the base, to show the rate of every tensor",
        group="Training",
    )
    batch: tuple[float, float] | None = option(
        None, "batch of the small run and of this one, in tokens", group="Run"
    )
    tokens: tuple[float, float] | None = option(
        None, "length of the small run and of this one, in tokens", group="Run"
    )
    law: str | None = option(
        None,
        "CSV of runs whose best rates say how the rate follows both, not public sweeps",
        group="Run",
        is_path=True,
    )
    to: str | None = option(
        None,
        "also write a file for a framework: megatron, torchtitan, transformers; json is plan.json",
        group="Results",
    )
    fits: str | None = option(
        None,
        "plan.json of an earlier plan, to compare with the network",
        group="Question",
        is_path=True,
    )
    self_test: bool = option(
        False,
        "also run the planned model at small sizes; exit code 1 if something does not scale",
        group="Question",
    )

    def run(self, command: str) -> int:
        """Answer; returns the exit code."""
        from nfd.experiments.tuned import Tuned
        from nfd.laws.rate_runs import law_for_plan

        if self.to is not None:
            check_choice("--to", self.to, get_args(FrameworkName))
            if self.fits:
                raise InputError("--fits compares a stored plan and writes no file. Drop --to.")
        setup = self.read_setup()
        tuned = None
        if self.tuned:
            tuned = Tuned.read(self.tuned, self.rule, self.base)
        family = self._family(setup, tuned)
        module, plan = family.outline(self.width, self.depth)
        if self.fits:
            return self._compare(module)
        directory = self.directory()
        if self.batch or self.tokens or self.law:
            law = None
            if self.law:
                law = law_for_plan(self.law, plan.rule)
            plan = plan.for_run(self.batch, self.tokens, law=law)
        code = self._write(plan, directory, command, setup, tuned, family)
        if not self.self_test:
            return code
        return self._test(family, plan)

    def _write(
        self,
        plan: Plan,
        directory: Path,
        command: str,
        setup: Setup,
        tuned: Tuned | None,
        family: Family,
    ) -> int:
        """Write the plan and what it decides, and print that; returns the exit code."""
        from nfd.core.files import staged, write_json
        from nfd.scaling.export import export
        from nfd.scaling.plan_answer import PlannedTraining, plan_answer

        path = directory / "plan.json"
        lr = self.lr
        shown_lr = lr
        evidence = ""
        if tuned is not None:
            evidence = tuned.evidence
        if tuned is not None and lr is None:
            lr = tuned.lr.value
            # Its interval leaves no more digits.
            shown_lr = float(f"{lr:.2g}")
        adamw_lr = setup.names.get("adamw_lr")
        table = plan.explain(shown_lr, adamw_lr)
        training = PlannedTraining(
            shown_lr, adamw_lr, path.as_posix(), evidence, _optimizer_of(setup)
        )
        answer = plan_answer(plan, training)
        if self.base is None and tuned is None and "family" not in setup.names:
            answer = replace(answer, but=_DEFAULT_BASE.format(*family.base))
        if tuned is not None and self.lr is None:
            doubts = tuned.doubts(family.name)
            if doubts:
                answer = replace(answer, but=f"{'; '.join(doubts)}.")
        about = f"nfd plan · make_model in {setup.path} · {answer.about}"
        answer = replace(answer, about=about, details=table.splitlines())
        exported = export(plan, self.to or "json")
        answer = _in_framework(answer, exported, directory, shown_lr)
        with staged(directory) as folder:
            plan.save(folder / "plan.json")
            if exported.file != path.name:
                (folder / exported.file).write_text(exported.text, "utf-8")
            content = {
                "title": answer.title,
                "command": command,
                "answer": answer.plain(),
                "lead": answer.lead,
                "config": self.settings,
                "lr": lr,
            }
            write_json(folder / "result.json", content | {"plan": plan.to_dict()})
        return self.end(answer, path, *self._remarks(setup, tuned, family))

    def _test(self, family: Family, plan: Any) -> int:
        """Let the plan test itself; returns the exit code."""
        test = plan.self_test(family.make_model, family.sample)
        answer = test.answer
        if answer.tone == "bad":
            answer = answer.with_next(
                "Look at the roles of these tensors", f"nfd plan {self.setup}"
            )
        elif answer.tone == "good":
            words = ["nfd", "check", self.setup]
            answer = answer.with_next("Then check what training does", shlex.join(words))
        else:
            answer = replace(answer, next=None)
        # With --json standard output is one document, the plan's; the exit code has the verdict.
        if not (self.quiet or self.json):
            print(in_terminal(answer, verbose=self.verbose))
        return VERDICT if answer.tone == "bad" else 0

    def _family(self, setup: Setup, tuned: Tuned | None) -> Family:
        """Return the family of the file, with base, rule and optimizer as asked for or tuned."""
        base = self.base
        rule = self.rule
        optimizer = self.optimizer
        if tuned is not None:
            if base is not None and base != tuned.base and self.lr is None:
                # SciPy, which it loads, would delay --help.
                from nfd.laws.best_rate import in_words

                raise InputError(
                    f"--from {self.tuned} has the rate of the base {in_words(tuned.base)}, and "
                    f"another base has another rate; got --base {base[0]} {base[1]}. Leave --base "
                    "out, or give --lr."
                )
            base = base or tuned.base
            rule = rule or tuned.rule
            optimizer = optimizer or tuned.optimizer
            if optimizer != (tuned.optimizer or optimizer):
                raise InputError(
                    f"--from {self.tuned} was tuned with {tuned.optimizer}, whose rates are not "
                    f"those of --optimizer {optimizer}. Leave --optimizer out, or give --base and "
                    "--lr."
                )
        family = setup.family(base or BASE, rule, optimizer)
        # A family of the file has a base of its own, which yields to the one that was asked for.
        if base is None:
            return family
        return replace(family, base=base)

    def _remarks(self, setup: Setup, tuned: Tuned | None, family: Family) -> list[str]:
        """Say where the base comes from, unless it was given or is the default."""
        if self.base is not None:
            return []
        if tuned is not None:
            return [str(tuned)]
        width, depth = family.base
        if "family" in setup.names:
            return [
                f"The base is that of the family in {setup.path}: width {width}, depth {depth}."
            ]
        return []

    def _compare(self, module: Any) -> int:
        """Say whether the stored plan fits the network; returns the exit code."""
        from nfd.scaling.held import held_as_planned
        from nfd.scaling.plan import Plan as Stored

        plan = Stored.load(str(self.fits))
        size = f"{self.setup} of width {self.width} and depth {self.depth}"
        try:
            held_as_planned(module, plan.entries)
        except InputError as differing:
            answer = Answer(
                "bad", "Does not fit", f"{self.fits} does not fit {size}", because=str(differing)
            )
        else:
            answer = Answer(
                "good",
                "Fits",
                f"{self.fits} fits {size}",
                because=f"All {len(plan.entries)} tensors have their names and shapes.",
            )
        return self.end(answer, None)


def _optimizer_of(setup: Setup) -> str:
    """Write what a task says of the optimizer as further arguments of ``make_optimizer``."""
    if not setup.has_task:
        return ""
    code = setup.task.optimizer_code
    if "make_optimizer" in setup.names:
        code = code.replace("make=task.", "make=")
    return code


def _in_framework(answer: Answer, exported: Export, directory: Path, lr: float | None) -> Answer:
    """Say how to train in the framework that a file was written for, and what is not in the file.

    Args:
        answer: of the plan.
        exported: the file; of JSON, which needs no more than the plan, nothing is said.
        directory: where it lies.
        lr: the learning rate of the base, where it is known.
    """
    if not exported.title:
        return answer
    path = (directory / exported.file).as_posix()
    rate = "lr" if lr is None else f"{lr:.6g}"
    label = f"Train it in {exported.title} by {path}, written for {exported.read}"
    code = exported.use.replace("LR", rate)
    sentences = " ".join([answer.but, *exported.not_expressed]).strip()
    return replace(answer.with_next(label, code), but=sentences)
