"""The command ``nfd plan``."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from nfd.cli.setup_file import Setup
from nfd.cli.shared import NetworkCommand
from nfd.core.answer import in_terminal
from nfd.core.errors import VERDICT, InputError
from nfd.core.names import BASE
from nfd.core.options import option
from nfd.core.tables import Lead, show

if TYPE_CHECKING:
    from nfd.experiments.tuned import Tuned
    from nfd.families.family import Family


@dataclass
class PlanCommand(NetworkCommand):
    """Plan a network of a size, to train by the learning rates of a smaller one.

    Example: nfd plan setup.py --width 1024 --depth 24 --from out/transfer

    Writes plan.json to OUT; nfd.Plan.load reads it. With --fits it says whether a stored plan fits
    the network, and exits with 1 where it does not. With --self-test it runs the planned model at
    small sizes, and exits with 1 where something does not scale as the rule promises.
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
        from nfd.core.files import staged, write_json
        from nfd.experiments.tuned import Tuned
        from nfd.laws.rate_runs import law_for_plan

        setup = self.read_setup()
        tuned = None
        if self.tuned:
            tuned = Tuned.read(self.tuned, self.rule)
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
        lr = self.lr
        if lr is None and tuned is not None:
            lr = tuned.lr.value
        table = plan.explain(lr, setup.names.get("adamw_lr"))
        with staged(directory) as folder:
            plan.save(folder / "plan.json")
            lead = Lead(table.partition("\n")[0])
            content = {"command": command, "lead": asdict(lead), "config": self.settings, "lr": lr}
            write_json(folder / "result.json", content | {"plan": plan.to_dict()})
        show(lead, table, *self._remarks(setup, tuned, family), f"Plan: {directory / 'plan.json'}")
        if not self.self_test:
            return 0
        return self._test(family, plan)

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
        if not self.quiet:
            print(in_terminal(answer, verbose=self.verbose))
        return VERDICT if answer.tone == "bad" else 0

    def _family(self, setup: Setup, tuned: Tuned | None) -> Family:
        """Return the family of the file, with base, rule and optimizer as asked for or tuned."""
        base = self.base
        rule = self.rule
        optimizer = self.optimizer
        if tuned is not None:
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
        """Say where the base comes from, unless it was given."""
        if self.base is not None:
            return []
        if tuned is not None:
            return [str(tuned)]
        width, depth = family.base
        if "family" in setup.names:
            return [
                f"The base is that of the family in {setup.path}: width {width}, depth {depth}."
            ]
        return [
            f"Note: the base is the default, width {width} and depth {depth}. Factors are right "
            "only for rates that were tuned there: give --base WIDTH DEPTH, or --from out/transfer."
        ]

    def _compare(self, module: Any) -> int:
        """Say whether the stored plan fits the network; returns the exit code."""
        from nfd.scaling.held import held_as_planned
        from nfd.scaling.plan import Plan as Stored

        plan = Stored.load(str(self.fits))
        size = f"{self.setup} of width {self.width} and depth {self.depth}"
        try:
            held_as_planned(module, plan.entries)
        except InputError as differing:
            print(f"{self.fits} does not fit {size}. {differing}")
            return VERDICT
        print(
            f"{self.fits} fits {size}: all {len(plan.entries)} tensors have their names and shapes."
        )
        return 0
