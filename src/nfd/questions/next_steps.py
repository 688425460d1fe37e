"""What to do after a check: the next commands, filled in."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nfd.core.names import RuleName
from nfd.meters.advice import ADVICE
from nfd.meters.outcome import Check, is_fault
from nfd.runs.model_settings import CheckConfig

_PREFERRED: tuple[RuleName, ...] = ("complete-p", "depth-mup-inner", "depth-mup", "mup")
_OCTAVES = 2  # doublings to either side of the rate of the check


@dataclass(frozen=True)
class NextStep:
    """What a command is for, and the command: of the shell, or of Python."""

    purpose: str
    command: str

    def __str__(self) -> str:
        return f"{self.purpose}: {self.command}"


def next_steps(config: CheckConfig, model: str, check: Check) -> list[NextStep]:
    """The commands that go on from a check of ``model``, with its settings."""
    cure = cure_of(check)
    steps = []
    if cure is not None:
        again = _check(model, config.model_copy(update={"rule": cure}))
        steps.append(NextStep(f"Rule {cure!r} has a remedy built in. Check the same networks under it", again))
    elif check.ok and len(check.at) == 1 and config.batches is None:
        steps.append(NextStep("See whether this still holds late", _check(model, _later(config))))
    rules = list(dict.fromkeys((check.rule, cure or check.rule)))
    transfer = NextStep("In Python, see whether the best rate transfers, and what it costs", _transfer(check, rules))
    plan = NextStep("In Python, train at any size by the rate of the smallest", _plan(check, rules[-1]))
    return [*steps, transfer, *([plan] if check.rate_name == "lr" else [])]


def cure_of(check: Check) -> RuleName | None:
    """The rule that has the remedies of most faults built in; None where none has, or the rule in use has them."""
    advices = [ADVICE.get((row["meter"], row["axis"], row["verdict"])) for row in check.table if is_fault(row)]
    cures = [advice.rules for advice in advices if advice is not None and check.rule not in advice.rules]
    counts = {rule: sum(rule in rules for rules in cures) for rule in _PREFERRED}
    best = max(_PREFERRED, key=lambda rule: counts[rule])
    return best if counts[best] else None


def _later(config: CheckConfig) -> CheckConfig:
    """The same check at the first step, at its last and at ten times that."""
    at = sorted({1, config.steps, 10 * config.steps})
    return config.model_copy(update={"at": tuple(at), "steps": CheckConfig.model_fields["steps"].default})


def _check(model: str, config: CheckConfig) -> str:
    """A command line with the settings that differ from their defaults, and the sizes."""
    words = ["nfd", "check", model]
    for name, field in CheckConfig.model_fields.items():
        value = getattr(config, name)
        if name in ("widths", "depths") or value != field.default:
            words += [f"--{name.replace('_', '-')}", *_words(value)]
    return shlex.join(words)


def _words(value: Any) -> list[str]:
    if value is True:
        return []
    return [str(part) for part in value] if isinstance(value, tuple) else [str(value)]


def _transfer(check: Check, rules: Sequence[str]) -> str:
    rates = ", ".join(f"{check.lr * 2.0**octave:g}" for octave in range(-_OCTAVES, _OCTAVES + 1))
    about = f"rules={list(rules)}, optimizer={check.optimizer!r}, lr=[{rates}]"
    return f"nfd.transfer(make_model, {_sizes(check, 'width')}, {_sizes(check, 'depth')}, batches, {about})"


def _plan(check: Check, rule: str) -> str:
    base = f"base_width={_sizes(check, 'width')[0]}, base_depth={_sizes(check, 'depth')[0]}"
    return f"nfd.plan(model, rule={rule!r}, make_model=make_model, {base}, optimizer={check.optimizer!r})"


def _sizes(check: Check, axis: str) -> list[int]:
    return sorted({run[axis] for run in check.runs})
