"""The command ``nfd scaling-law``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nfd.cli.shared import LoggedCommand, as_number, named
from nfd.core.answer import Answer
from nfd.core.checks import check_choice, check_count, check_real
from nfd.core.errors import InputError
from nfd.core.options import again, option
from nfd.core.words import number

if TYPE_CHECKING:
    from nfd.laws.ladder import LadderLaw
    from nfd.laws.ladder_answer import LadderForecast
    from nfd.laws.rate_law import RateLaw
    from nfd.laws.scaling_law import ScalingLaw
    from nfd.laws.scaling_law_answer import Growth
    from nfd.report.answer_page import AnswerPage

# Budgets of networks that are asked for by --at as well as by --best.
_RESOURCES = ("parameters", "flops")
# Steps of a training of which an eighth still is one.
_FEWEST_STEPS = 16


@dataclass
class ScalingLawCommand(LoggedCommand):
    """Fit the loss against width and depth, and say what growing buys and which size is best.

    Example: nfd scaling-law setup.py --widths 32 64 128 --best parameters=1M

    Writes report.html, result.json and charts to OUT, and every run to OUT/runs.sqlite; the same
    command continues after a stop. With --from it answers from a table of runs: nfd scaling-law
    --from runs.csv. It exits with 1 where the law contradicts the largest run.
    """

    name = "scaling-law"

    seeds: int = option(4, "initialisations of each network", group="Sizes")
    lr: float | None = option(None, "learning rate of the base", group="Training")
    lengths: tuple[int, ...] | None = option(
        None, "steps that every size is trained for, for a law in tokens too", group="Training"
    )
    at: tuple[str, ...] = option(
        (),
        "what is asked about: width=512 depth=16, by default the largest, or parameters=7B "
        "tokens=4T, or flops=6e20 at their best size",
        group="Question",
    )
    best: tuple[str, ...] = option(
        (),
        "budgets whose best size is asked for, such as parameters=1M flops=1e15",
        group="Question",
    )
    times: float | None = option(
        None, "a budget of so many times the largest run, such as 10", group="Question"
    )
    next_run: tuple[str, ...] | None = option(
        None,
        "with --from: which run to add, and how narrow it would make the forecast; budgets such as "
        "3e20, by default several",
        group="Question",
    )
    rate: str | None = option(
        None, "with --from: the learning rate whose runs count, or best", group="Table of runs"
    )

    def run(self, command: str) -> int:
        """Answer; returns the exit code."""
        from nfd.laws.best_size import amount
        from nfd.laws.ladder import LadderLaw

        self._check_no_multiples()
        budgets = named("--best", "such as parameters=1M", self.best, str)
        asked: dict[str, Any] = named(
            "--at", "whole numbers such as width=512, or parameters=7B", self.at, as_number
        )
        for resource, budget in budgets.items():
            # Complain of one that cannot be read before anything is trained.
            amount(resource, budget)
        if self.times is not None:
            check_real("--times", self.times, above=0.0)
        if self.next_run is not None and not self.log:
            raise InputError("--next-run is about a table of runs: give one by --from.")
        directory, law, remarks = self._fit() if self.log else self._train()
        if isinstance(law, LadderLaw):
            page = self._ladder_page(law, asked, budgets, command)
        elif self.next_run is not None:
            raise InputError("--next-run needs a table with a column of parameters or tokens.")
        else:
            page = self._growth_page(law, asked, budgets, command)
        return self.end(page.answer, page.write(directory), *remarks)

    def _check_no_multiples(self) -> None:
        """Raise InputError for a budget such as ``flops=10x``."""
        for text in (*self.best, *self.at):
            multiple = re.fullmatch(r"\w+=(\d+\.?\d*) ?[xX\u00d7]", text)
            if multiple:
                raise InputError(
                    f"{text!r} is not a number. For {multiple[1]} times the largest run: --times "
                    f"{multiple[1]}."
                )

    def _about(self, answer: Answer) -> str:
        source = Path(self.log or self.setup).name
        return f"nfd scaling-law · {source} · {answer.about}"

    # ---- a ladder

    def _ladder_page(
        self,
        law: LadderLaw,
        asked: Mapping[str, float],
        budgets: Mapping[str, str],
        command: str,
    ) -> AnswerPage:
        """The page of a law over parameters and tokens."""
        from nfd.laws import ladder_page
        from nfd.report.answer_page import AnswerPage

        forecasts = self._forecasts(law, asked, budgets)
        first, *others = forecasts.values()
        if law.has_rates and first.doubt == "wide":
            rates, batch = self._rates()
            first = replace(first, rates=rates, batch=batch)
        if self.next_run is not None:
            return self._page_of_next_runs(first, command)
        answer = self._ladder_answer(first, command)
        briefs = [other.answer.brief for other in others]
        answer = replace(answer, details=[*briefs, *answer.details])
        content = ladder_page.content(first)
        if "at" in forecasts:
            content["at"] = first.size | first.behind | {"loss": first.loss.limits}
        for name, forecast in forecasts.items():
            if name in budgets.values():
                content.setdefault("best", {})[name] = forecast.limits
        return AnswerPage(
            answer,
            command,
            self.settings,
            [
                *first.first_sections(),
                *ladder_page.next_sections(first),
                *ladder_page.folded_sections(first),
            ],
            content=content,
        )

    def _page_of_next_runs(self, forecast: LadderForecast, command: str) -> AnswerPage:
        """The page of the runs to add to a ladder."""
        from nfd.laws import ladder_page
        from nfd.laws.best_size import amount
        from nfd.report.answer_page import AnswerPage

        law = forecast.law
        budgets = [float(amount("flops", budget)) for budget in self.next_run or ()]
        plan = law.next_runs(
            target=forecast.size,
            budget=max(budgets, default=None),
            rates=forecast.rates,
            batch=forecast.batch,
        )
        if budgets and not plan.runs:
            plan = replace(plan, choices=law.choices(forecast.size, budgets))
        return AnswerPage(
            replace(plan.answer, about=self._about(forecast.answer)),
            command,
            self.settings,
            [*plan.first_sections(), *forecast.first_sections()],
            content=ladder_page.content(forecast) | {"next_runs": plan.table},
        )

    def _forecasts(
        self, law: LadderLaw, asked: Mapping[str, float], budgets: Mapping[str, str]
    ) -> dict[str, LadderForecast]:
        """What is asked of a ladder, by its name, the first question first.

        Raises:
            ValueError: for a budget in anything but operations.
        """
        from nfd.laws.best_size import amount

        other_resources = [resource for resource in budgets if resource != "flops"]
        if other_resources:
            raise InputError(
                "a law in parameters and tokens takes budgets in flops; got "
                f"{', '.join(other_resources)}."
            )
        forecasts = dict[str, Any]()
        if "flops" in asked:
            if len(asked) > 1:
                raise InputError(f"--at takes flops or a size; got {', '.join(asked)}.")
            forecasts["at"] = law.forecast_at(flops=asked["flops"])
        elif asked:
            for name in asked:
                check_choice("at", name, law.columns)
            forecasts["at"] = law.forecast_at(**asked)
        for budget in budgets.values():
            forecasts[budget] = law.best(flops=amount("flops", budget)).forecast
        if self.times is not None:
            forecasts["times"] = law.forecast_at(times=self.times)
        return forecasts or {"": law.forecast}

    def _ladder_answer(self, forecast: LadderForecast, command: str) -> Answer:
        """The answer with a command of the shell to run next."""
        answer = replace(forecast.answer, about=self._about(forecast.answer))
        if answer.tone == "good" and not forecast.is_ready:
            assert answer.next is not None
            return answer.with_next(answer.next.label, command)
        if answer.tone == "good" and forecast.law.has_rates:
            size = [f"{name}={number(value)}" for name, value in forecast.size.items()]
            size += self._batch()
            columns = ["--columns", *self.columns] if self.columns else []
            words = ["nfd", "transfer", "--from", self.log, *columns, "--at", *size]
            return answer.with_next("Next: the learning rate for this run", shlex.join(words))
        if answer.tone == "good":
            code = "nfd transfer setup.py --widths 32 64 128 --depths 2 4 8"
            return answer.with_next("Next: its learning rate, tuned on your small networks", code)
        if forecast.is_perplexity:
            new = f"log_{forecast.law.score}"
            label = f"Do this first: add a column {new}, its logarithm"
            return answer.with_next(label, again(command, "--columns", f"loss={new}"))
        if answer.next is not None:
            # This command in place of the call of Python.
            return answer.with_next(answer.next.label, command)
        return answer

    def _rates(self) -> tuple[RateLaw | None, float | None]:
        """The law of the learning rate of the table, and the batch of the dearest run.

        There is no law where the table has too few rates for one.
        """
        from nfd.laws.rate_runs import fit_rate_law

        try:
            return fit_rate_law(self.log, columns=self.named_columns()), self._dearest_batch()
        except InputError:
            return None, None

    def _dearest_batch(self) -> float | None:
        """The batch of the dearest run, where several are logged."""
        from nfd.laws.logs import RATE_FIELDS, read_log

        runs = read_log(self.log, self.named_columns(), ("lr", "loss"), RATE_FIELDS).runs
        if len({run.batch for run in runs}) < 2:
            return None
        return max(runs, key=lambda run: (run.parameters or 1.0) * (run.tokens or 1.0)).batch

    def _batch(self) -> list[str]:
        """The batch for ``nfd transfer``."""
        batch = self._dearest_batch()
        return [f"batch={batch:.10g}"] if batch else []

    # ---- width and depth

    def _growth_page(
        self,
        law: ScalingLaw,
        asked: Mapping[str, Any],
        budgets: Mapping[str, str],
        command: str,
    ) -> AnswerPage:
        """The page of a law over width and depth."""
        from nfd.laws import scaling_law_page
        from nfd.laws.scaling_law_answer import growth
        from nfd.report.answer_page import AnswerPage

        sizes = dict[str, int]()
        all_budgets: dict[str, str | float] = dict(budgets)
        for name, value in asked.items():
            if name in _RESOURCES:
                all_budgets[name] = value
            else:
                sizes[name] = check_count("--at", value)
        if self.times is not None:
            all_budgets |= law.budget_of(self.times)
        result = growth(law, sizes, all_budgets)
        answer = self._growth_answer(result, command)
        return AnswerPage(
            answer,
            command,
            self.settings,
            [*result.first_sections(), *scaling_law_page.folded_sections(result)],
            content=scaling_law_page.content(result),
        )

    def _growth_answer(self, growth: Growth, command: str) -> Answer:
        """The answer with a command of the shell to run next."""
        answer = replace(growth.answer, about=self._about(growth.answer))
        if answer.tone == "open" and growth.law.law.good and not self.log:
            code = again(command, "--seeds", 2 * self.seeds)
            label = f"Run next: {2 * self.seeds} seeds; those you have are kept"
            return answer.with_next(label, code)
        if answer.tone == "open" and not self.log:
            code = command
            for name, sizes in growth.larger.items():
                code = again(code, f"--{name}s", *sizes)
            return answer.with_next("Run next: larger sizes; those you have are kept", code)
        if answer.tone != "good":
            return answer
        if growth.best is not None:
            size = f"--width {growth.best.width} --depth {growth.best.depth}"
            if not self.log:
                size += f" --base {self.base[0]} {self.base[1]}"
            code = f"nfd plan {shlex.quote(self.setup or 'setup.py')} {size}"
            return answer.with_next("Next: the plan of this network", code)
        if not growth.grows:
            return self._longer(answer, command)
        if growth.budget:
            resource, budget = next(iter(growth.budget.items()))
            code = again(command, "--best", f"{resource}={budget:.3g}")
            return answer.with_next(f"Next: the best size for twice the {resource}", code)
        larger = [f"{name}={2 * value:.10g}" for name, value in growth.size.items()]
        code = again(command, "--at", *larger)
        return answer.with_next("Next: the loss of the size that you can train", code)

    def _longer(self, answer: Answer, command: str) -> Answer:
        """Ask next what more steps gain, where networks were trained for one number of them."""
        if self.log or self.lengths or self._steps < _FEWEST_STEPS:
            return answer
        lengths = [self._steps // 8, self._steps // 4, self._steps // 2, self._steps]
        code = again(command, "--lengths", *lengths)
        return answer.with_next("Next: what longer training gains", code)

    # ---- laws

    def _fit(self) -> tuple[Path, ScalingLaw | LadderLaw, list[str]]:
        """Fit a law to a table of runs; returns OUT, the law, and no remarks."""
        from nfd.laws.scaling_law import losses_of

        self.refuse_unread("rate", "at", "best", "times", "next_run")
        directory = self.directory()
        return directory, losses_of(self.log, self.named_columns(), self.rate), []

    def _train(self) -> tuple[Path, ScalingLaw | LadderLaw, list[str]]:
        """Fit a law to networks of the file; returns OUT, the law, and what was stored before."""
        from nfd.experiments.scaling_law import scaling_law

        self.refuse_without_table("columns", "rate")
        setup = self.read_setup()
        self._steps = setup.task.steps
        directory = self.directory()
        family = setup.family(self.base, self.rule, self.optimizer)
        with self.sweep(directory) as sweep:
            law = scaling_law(
                family,
                setup.task,
                self.widths,
                self.depths,
                self.lr,
                seeds=self.seeds,
                lengths=self.lengths,
                sweep=sweep,
            )
        return directory, law, self.stored(sweep)
