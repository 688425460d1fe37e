"""The few lines that train a network by a stored plan: in plain PyTorch, in a trainer, or in Megatron's groups.

Names that no line defines are the user's: ``arguments``, ``train_dataset``, ``Module``, ``loader``, ``min_lr``, and
``lr`` where the rate is not given.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from nfd.core.names import FrameworkName
from nfd.questions.plan_lines import import_lines, name_at
from nfd.runs.fields import is_path
from nfd.runs.model_settings import PlanConfig
from nfd.scaling.plan import Plan


def training_lines(framework: FrameworkName, plan: Plan, path: Path, config: PlanConfig, model: str) -> str:
    """The lines, for one framework.

    Args:
        plan: what ``path`` holds. model: the constructor, as package.module:name.
    """
    law = [config.optimizer] if config.optimizer and is_path(config.optimizer) else []
    make_model, seed = name_at(model), f", seed={config.seed}" if config.seed else ""
    return "\n".join(
        [
            *import_lines([model, *law], _LIBRARIES.get(framework, [])),
            "",
            *(f"nfd.register_optimizer({name_at(path)})" for path in law),
            f"model = {make_model}({config.width}, {config.depth})",
            f"plan = nfd.Plan.load({json.dumps(str(path))})",
            f"plan.apply_(model{seed})",
            *_FRAMEWORKS[framework](_rates(config), _made(plan), config),
        ]
    )


def _rates(config: PlanConfig) -> str:
    rates = ["lr=lr" if config.lr is None else f"lr={config.lr:g}"]
    rates += [] if config.adamw_lr is None else [f"adamw_lr={config.adamw_lr:g}"]
    return ", ".join([*rates, *([f"weight_decay={config.weight_decay:g}"] if config.weight_decay else [])])


def _made(plan: Plan) -> str:
    """How an optimizer is made that the library does not build."""
    laws = {plan.law_for(name).name: plan.law_for(name) for name in plan.entries}
    return "" if all(law.make is not None for law in laws.values()) else ", make=make_optimizer"


def _pytorch(rates: str, made: str, config: PlanConfig) -> list[str]:
    scheduler = "scheduler = plan.make_schedule(optimizer)  # scheduler.step() after every optimizer.step()"
    return [_optimizer(rates, made), *([scheduler] if config.schedule else [])]


def _optimizer(rates: str, made: str) -> str:
    return f"optimizer = plan.make_optimizer(model, {rates}{made})"


def _trainer(rates: str, made: str, config: PlanConfig) -> list[str]:
    scheduler = "plan.make_schedule(optimizer)" if config.schedule else "None"
    return [
        _optimizer(rates, made),
        "trainer = transformers.Trainer(",
        "    model,",
        "    arguments,  # your own; max_grad_norm=0.0, as a clip over all tensors acts differently at another size",
        "    train_dataset=train_dataset,",
        f"    optimizers=(optimizer, {scheduler}),",
        "    callbacks=[nfd.integrations.TrainerCallback(plan)],",
        ")",
        "trainer.train()",
    ]


def _lightning(rates: str, made: str, config: PlanConfig) -> list[str]:
    scheduler = '{"scheduler": plan.make_schedule(optimizer), "interval": "step"}'
    returned = f'{{"optimizer": optimizer, "lr_scheduler": {scheduler}}}' if config.schedule else "optimizer"
    return [
        "",
        "",
        "class Planned(Module):  # your LightningModule, which keeps what it is given as self.model",
        "    def configure_optimizers(self):",
        f"        optimizer = plan.make_optimizer(self.model, {rates}{made})",
        f"        return {returned}",
        "",
        "",
        "trainer = lightning.Trainer(callbacks=[nfd.integrations.LightningCallback(plan)], **arguments)",
        "trainer.fit(Planned(model), loader)",
    ]


def _megatron(rates: str, made: str, config: PlanConfig) -> list[str]:
    decay = f'    group["wd_mult"] = group["weight_decay"] / {config.weight_decay:g}'
    steps = "# its scheduler has lr_warmup_steps=plan.run.schedule.warmup and lr_decay_steps=plan.run.steps"
    return [
        f"groups = plan.param_groups(model, {rates})",
        *([steps] if config.schedule else []),
        "for group in groups:  # what Megatron's OptimizerParamScheduler reads; let init_lr be 0",
        '    group["max_lr"], group["min_lr"] = group["lr"], min_lr * group["lr_scale"]',
        *([decay] if config.weight_decay else []),
    ]


_LIBRARIES: dict[FrameworkName, list[str]] = {"trainer": ["transformers"], "lightning": ["lightning"]}
_FRAMEWORKS: dict[FrameworkName, Callable[[str, str, PlanConfig], list[str]]] = {
    "pytorch": _pytorch,
    "trainer": _trainer,
    "lightning": _lightning,
    "megatron": _megatron,
}
