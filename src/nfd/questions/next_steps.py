"""What to do after an answer about a constructor's networks: the next commands, with the names of who asked.

``nfd check`` says what is wrong, ``nfd transfer`` what that costs, ``nfd.plan`` repairs it, and ``nfd capacity`` says
how large to build.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Any, TypeVar

from nfd.core.names import RuleName
from nfd.meters.advice import ADVICE
from nfd.meters.outcome import Check, is_fault
from nfd.questions.budget import BestSize
from nfd.questions.capacity_answers import Answers
from nfd.questions.plan_lines import plan_lines
from nfd.questions.recommendation import recommended
from nfd.questions.rule_transfer import FEWEST_SEEDS
from nfd.questions.sweep_settings import ModelCapacityConfig, ModelTransferConfig
from nfd.questions.transfer import Transfer
from nfd.runs.model_settings import CheckConfig, ModelConfig, ModelPredictConfig, RecipeConfig

C = TypeVar("C", bound=ModelConfig)

_PREFERRED: tuple[RuleName, ...] = ("complete-p", "depth-mup-inner", "depth-mup", "mup")
_OCTAVES = 2  # doublings to either side of a rate that is known
_OF_ONE = ("width", "depth", "memory")  # of the networks of one question, which mean something else in another
_OF_A_LAW = 3  # sizes of an axis, for a law that may be extrapolated


@dataclass(frozen=True)
class NextStep:
    """What a command is for, and the command: a line of the shell, or lines of Python."""

    purpose: str
    command: str

    def __str__(self) -> str:
        return f"{self.purpose}:\n{indent(self.command, '    ')}"


@dataclass(frozen=True)
class NextSteps:
    """The next commands about the constructor that was asked about.

    Args:
        model: its package.module:name. device, out: as they were given to the command that was answered.
    """

    model: str
    device: str | None = None
    out: str | None = None

    def after_check(self, config: CheckConfig, check: Check) -> list[NextStep]:
        """Where a rule has a remedy, a check under it; what the rates cost; the plan."""
        cure, steps = cure_of(check), []
        if cure is not None:
            again = config.model_copy(update={"rule": cure})
            purpose = f"Rule {cure!r} has a remedy built in. Check the same networks under it"
            steps.append(NextStep(purpose, self._line("check", again)))
        elif check.ok and len(check.at) == 1 and config.batches is None:
            steps.append(NextStep("See whether this still holds late", self._line("check", _later(config))))
        rules = list(dict.fromkeys((check.rule, cure or check.rule)))
        as_long_as_usual = config.model_copy(update={"steps": None})  # a check is too short for a best rate
        purpose = "See whether the best rate transfers, and what it costs"
        steps.append(self._transfer(purpose, as_long_as_usual, rules, check.lr))
        if check.rate_name == "lr":
            purpose = "Train at any size by the rate lr that is the best at the smallest, in Python"
            steps.append(NextStep(purpose, self._plan(config, rules[-1], None)))
        return steps

    def after_transfer(self, config: ModelTransferConfig, transfer: Transfer) -> list[NextStep]:
        """Where a rule transfers, the capacity under it and the plan; else more seeds, or what is wrong."""
        advised = recommended(transfer.rules)
        if advised.kind == "more seeds":
            again = config.model_copy(update={"seeds": 2 * config.seeds})
            purpose = "Ask again with more seeds; what is trained already is kept"
            return [NextStep(purpose, self._line("transfer", again, out=self.out))]
        if advised.kind == "one size":
            larger = {"widths": (*config.widths, 2 * config.widths[-1]), "axes": None}
            line = self._line("transfer", config.model_copy(update=larger), out=self.out)
            return [NextStep("See whether this rate transfers; what is trained already is kept", line)]
        rule = advised.rule or transfer.rules[0].rule
        rate = None if advised.rate is None else float(f"{advised.rate.value:.2g}")
        if advised.kind != "use" or rate is None:
            check = _for(CheckConfig, config, rule=rule, lr=rate)
            return [NextStep(f"See what scales wrongly under {rule!r}", self._line("check", check))]
        sizes = {"widths": _enough(config.widths), "depths": _enough(config.depths)}
        capacity = _for(ModelCapacityConfig, config, rule=rule, lr=rate, **sizes)
        steps = [NextStep("Ask how big it should be, at this rate", self._line("capacity", capacity))]
        if advised.name == "lr":
            lines = self._plan(config, rule, rate)
            steps.append(NextStep("Train at any size by this rate, in Python", lines))
        return steps

    def after_capacity(self, config: ModelCapacityConfig, answers: Answers) -> list[NextStep]:
        """Where the law holds, whether the rate is the best and the plan of the best size; else larger sizes."""
        capacity = answers.capacity
        if not capacity.law.good:
            larger = {"widths": _larger(config.widths), "depths": _larger(config.depths)}
            line = self._line("capacity", config.model_copy(update=larger), out=self.out)
            return [NextStep("Fit the law to larger sizes; what is trained already is kept", line)]
        steps = []
        if config.lr is None:
            purpose = f"The rate {capacity.lr:g} was not tuned. See whether another is better"
            steps.append(self._transfer(purpose, config, None if config.rule is None else [config.rule], capacity.lr))
        best = next((size for size in answers.sizes.values() if isinstance(size, BestSize)), None)
        if best is not None and capacity.rate_name == "lr":
            lines = self._plan(config, config.rule, capacity.lr, (best.width, best.depth))
            steps.append(NextStep("Train the best size by the rate of the smallest, in Python", lines))
        return steps

    def after_predict(self, config: ModelPredictConfig, lr: float) -> list[NextStep]:
        """How near real sizes come to the limit, and the plan; ``lr`` is the rate of the base that was predicted at."""
        base, steps = config.base, []
        if config.adamw_lr is None:  # nfd capacity has one rate
            sizes = {"widths": _enough(base[:1]), "depths": _enough(base[1:])}
            capacity = _for(ModelCapacityConfig, config, rule=config.rule, lr=lr, **sizes)
            steps.append(NextStep("See how near networks of real sizes come to it", self._line("capacity", capacity)))
        lines = plan_lines(self.model, config, config.rule, lr, base, adamw_lr=config.adamw_lr)
        return [*steps, NextStep("Train at any size by the rate of the base, in Python", lines)]

    def _plan(
        self, config: ModelConfig, rule: str | None, lr: float | None, size: tuple[object, object] = ("width", "depth")
    ) -> str:
        base = config.widths[0], config.depths[0]
        return plan_lines(self.model, config, rule, lr, base, size, config.make_optimizer)

    def _transfer(self, purpose: str, config: ModelConfig, rules: Sequence[str] | None, lr: float) -> NextStep:
        """A transfer at the rates around one."""
        rates = tuple(float(f"{lr * 2.0**octave:g}") for octave in range(-_OCTAVES, _OCTAVES + 1))
        seeds = max(config.seeds, FEWEST_SEEDS)
        asked = _for(ModelTransferConfig, config, rules=rules and tuple(rules), lr=rates, seeds=seeds)
        return NextStep(purpose, self._line("transfer", asked))

    def _line(self, name: str, config: ModelConfig, **options: str | None) -> str:
        """A command line with the settings that differ from their defaults, and the sizes."""
        words = ["nfd", name, self.model]
        for field, info in type(config).model_fields.items():
            value = getattr(config, field)
            if field in ("widths", "depths") or value != info.default:
                words += [_option(field), *_words(value)]
        for option, text in {"device": self.device, **options}.items():
            words += [] if text is None else [_option(option), text]
        return shlex.join(words)


def cure_of(check: Check) -> RuleName | None:
    """The rule that has the remedies of most faults built in; None where none has, or the rule in use has them."""
    remedies = [ADVICE.get((row["meter"], row["axis"], row["verdict"])) for row in check.table if is_fault(row)]
    cures = [advice.rules for advice in remedies if advice is not None and check.rule not in advice.rules]
    counts = {rule: sum(rule in rules for rules in cures) for rule in _PREFERRED}
    best = max(_PREFERRED, key=lambda rule: counts[rule])
    return best if counts[best] else None


def _later(config: CheckConfig) -> CheckConfig:
    """The same check at the first step, at its last and at ten times that."""
    last = config.steps or config.USUAL_STEPS
    at = sorted({1, last, 10 * last})
    return config.model_copy(update={"at": tuple(at), "steps": None})


def _for(kind: type[C], config: RecipeConfig, **settings: Any) -> C:
    """The settings of another question about the same networks: the sizes, the optimizer, and what was set."""
    shared = (kind.model_fields.keys() & type(config).model_fields.keys()) - {"rule", "lr", *_OF_ONE}
    kept = [name for name in shared if name in ("widths", "depths", "optimizer") or config.changed(name)]
    return kind(**{name: getattr(config, name) for name in kept} | settings)


def _enough(sizes: Sequence[int]) -> tuple[int, ...]:
    """Sizes that are enough for a law: these, and doubled ones where they are too few."""
    while len(sizes) < _OF_A_LAW:
        sizes = _larger(sizes)
    return tuple(sizes)


def _larger(sizes: Sequence[int]) -> tuple[int, ...]:
    return (*sizes, 2 * sizes[-1])


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _words(value: Any) -> list[str]:
    if value is True:
        return []
    return [str(part) for part in value] if isinstance(value, tuple) else [str(value)]
