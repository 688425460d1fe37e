"""Plans as files that frameworks for training take: ``Plan.to``.

Each is written from the neutral table, by a template in ``exports``. The templates were written
after reading how each framework matches names and applies settings; ``Framework.read`` says which
version.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pprint import pformat
from typing import TYPE_CHECKING, Any

import nfd
from nfd.core.checks import check_choice
from nfd.core.errors import InputError
from nfd.core.words import number
from nfd.scaling.neutral import ForwardFactor, NeutralTable, neutral_table

if TYPE_CHECKING:
    from nfd.scaling.plan import Plan

_JSON = "json"
# What a row of an exported file holds of one in plan.json.
_FIELDS = ("pattern", "regex", "dimensions", "init", "init_value", "factors", "half_lives")
_KINDS = {
    "attention": "the logits of attention (queries: {})",
    "output": "the output of {}",
    "branch": "the output of {}, which ends a residual branch",
}


@dataclass(frozen=True)
class Framework:
    """A framework that takes a plan.

    Attributes:
        title: its name.
        read: the version of its code that the template was written for.
        imports: what its file imports, beside torch.
        optimizers: what it calls the optimizers that it takes, by those of plans.
        use: the lines that use its file, with ``LR`` for the learning rate of the base.
        can_express: whether it has a setting of its own for a factor of the forward pass.
    """

    title: str
    read: str
    imports: str
    optimizers: Mapping[str, str]
    use: str
    can_express: Callable[[ForwardFactor], bool]


@dataclass(frozen=True)
class Export:
    """A plan as a file for a framework.

    Attributes:
        file: how the file is called.
        text: its text.
        title, read: the framework, and the version that it was written for; empty of JSON.
        use: the lines that use it, with ``LR`` for the learning rate of the base.
        not_expressed: a sentence for every factor that the framework has no setting for.
    """

    file: str
    text: str
    title: str = ""
    read: str = ""
    use: str = ""
    not_expressed: Sequence[str] = ()


def _by_megatron(factor: ForwardFactor) -> bool:
    """Whether Megatron's ``softmax_scale`` or ``mup_output_mult`` is this factor."""
    if factor.kind == "output":
        return factor.at.rpartition(".")[2] == "output_layer"
    return factor.kind == "attention"


def _by_none(factor: ForwardFactor) -> bool:
    return False


FRAMEWORKS = {
    "megatron": Framework(
        "Megatron-LM",
        "Megatron-LM core 0.20.0, commit d98e8a6 of 2026-08-22",
        "from megatron.core.optimizer.optimizer_config import ParamKey, ParamWithNamePredicate",
        {"adamw": "adamw", "adam": "adam", "sgd": "sgd"},
        "config_overrides |= nfd_megatron.config_overrides(config)  # config.lr is LR",
        _by_megatron,
    ),
    "torchtitan": Framework(
        "torchtitan",
        "torchtitan 0.2.2, commit b5bcd76 of 2026-08-21",
        "from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig",
        {"adamw": "AdamW", "adam": "Adam"},
        "optimizer=nfd_torchtitan.optimizer_config(lr=LR)",
        _by_none,
    ),
    "transformers": Framework(
        "Hugging Face's Trainer",
        "transformers 5.23.0",
        "import transformers",
        {"adamw": "AdamW", "sgd": "SGD"},
        "nfd_transformers.PlannedTrainer(model, arguments)  # arguments.learning_rate is LR",
        _by_none,
    ),
}


def export(plan: Plan, framework: str) -> Export:
    """Write a plan for a framework.

    Raises:
        ValueError: as ``Plan.to``.
    """
    name = check_choice("framework", framework, (_JSON, *FRAMEWORKS))
    table = neutral_table(plan)
    if name == _JSON:
        return Export("plan.json", json.dumps(plan.to_dict() | table.plain(), indent=1))
    target = FRAMEWORKS[name]
    _check_optimizer(plan, target)
    expressed = _expressed(table, target)
    missing = [
        _missing(factor, target.title) for factor in table.forward if factor not in expressed
    ]
    template = _template("common") + _template(name)
    blanks = {
        "framework": target.title,
        "about": f"{_about(plan)} of the base",
        "nfd": nfd.__version__,
        "read": target.read,
        "imports": target.imports,
        "not_expressed": _head(missing),
        "rows": _literal(_rows(table)),
        "sentences": _literal(missing),
        "notes": _literal(list(plan.notes)),
        "optimizer": repr(target.optimizers[plan.optimizer]),
        "forward": repr({factor.kind: factor.factor for factor in expressed}),
    }
    return Export(
        file=f"nfd_{name}.py",
        text=_filled(template, blanks),
        title=target.title,
        read=target.read,
        use=f"nfd_{name}.initialise_(model)\n{target.use}",
        not_expressed=missing,
    )


def _check_optimizer(plan: Plan, target: Framework) -> None:
    if plan.optimizer in target.optimizers:
        return
    names = " or ".join(target.optimizers)
    raise InputError(
        f"{target.title} takes plans for {names} from here; this one is for {plan.optimizer}. "
        'Write the table by plan.to("json"), and set the groups by it, as '
        "docs/howto/other-frameworks.md does."
    )


def _expressed(table: NeutralTable, target: Framework) -> list[ForwardFactor]:
    """Find the factors of the forward pass that settings of the framework stand for.

    A setting holds for all layers, so several factors of a kind are not expressed.
    """
    of_kind: dict[str, set[float]] = {}
    for factor in table.forward:
        of_kind.setdefault(factor.kind, set()).add(factor.factor)
    return [
        factor
        for factor in table.forward
        if len(of_kind[factor.kind]) == 1 and target.can_express(factor)
    ]


def _missing(factor: ForwardFactor, title: str) -> str:
    """Say that a framework has no setting for a factor, and what to do."""
    what = _KINDS[factor.kind].format(factor.at)
    return (
        f"{title} has no setting that multiplies {what} by {number(factor.factor, 4)}: do so in "
        "the model."
    )


# ---- the blanks of a template


def _about(plan: Plan) -> str:
    return f"rule {plan.rule}, {plan.optimizer}, width x{plan.width:g} and depth x{plan.depth:g}"


def _head(missing: Sequence[str]) -> str:
    if not missing:
        return ""
    return "\nNOT IN THIS FILE:\n" + "".join(f"- {sentence}\n" for sentence in missing)


def _rows(table: NeutralTable) -> list[dict[str, Any]]:
    rows = []
    for group in table.groups:
        plain = group.plain()
        rows.append({key: plain[key] for key in _FIELDS})
    return rows


def _literal(value: Any) -> str:
    return pformat(value, width=100, sort_dicts=False)


def _template(name: str) -> str:
    return resources.files("nfd.scaling").joinpath("exports", f"{name}.py.txt").read_text("utf-8")


def _filled(template: str, blanks: Mapping[str, str]) -> str:
    for name, text in blanks.items():
        template = template.replace("{{" + name + "}}", text)
    return template
