"""What to run next after an alert: code to paste, with the modules of the user's own model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from nfd.core.answer import Next
from nfd.core.words import number
from nfd.scaling.model import modules
from nfd.watch.alerts import Cause, Fault

if TYPE_CHECKING:
    from nfd.watch.watch import Watch

# Layers that are named in the code of one fault, and lines of all code
_NAMED = 2
_LINES = 4
# A fault that was there within so many looks was there from the start.
_FIRST_LOOKS = 2
_BACK = {Cause.BROKEN, Cause.EXPLODING, Cause.SPIKE}
_SCALED = 'group["lr"] = lr * group["lr_scale"]'


def next_of(watch: Watch, faults: Sequence[Fault]) -> Next:
    """What to do after these faults: the label says whether to begin again, the code how."""
    lines = list[str]()
    for fault in faults:
        for line in _code_of(watch, fault):
            if line not in lines:
                lines.append(line)
    return Next(_label(watch, faults), "\n".join(lines[:_LINES]))


def _label(watch: Watch, faults: Sequence[Fault]) -> str:
    since = min(fault.since for fault in faults)
    cause = faults[0].cause
    if cause is Cause.LOSS:
        return f"Compare with the steps before {since:,}"
    if since > _FIRST_LOOKS * watch.every:
        return f"Fix, then go on from a checkpoint before step {since:,}"
    if cause in _BACK:
        return "Fix, then start again"
    return "Fix, then start again: training on does not undo the first steps"


def _code_of(watch: Watch, fault: Fault) -> list[str]:
    """The code for one fault, a line for every layer that it names."""
    cause = fault.cause
    lower = _each_group('group["lr"] /= 2')
    if cause is Cause.FROZEN:
        return _frozen(watch, fault)
    if cause is Cause.START:
        return ["plan.apply_(model, seed=0)  # after all else that initialises the model"]
    if cause in (Cause.OPTIMIZER, Cause.ALL_RATES):
        return _optimizer(watch, fault)
    if cause is Cause.RATE:
        return [_each_group(_SCALED)]
    if cause is Cause.DECAY:
        return [_each_group('group["weight_decay"] /= 10')]
    if cause is Cause.MULTIPLIER:
        return _beside_another(watch, fault)
    if cause is Cause.ROUNDING:
        return ["model.float()  # 16 bits only to compute: with torch.autocast(...)"]
    if cause in (Cause.BROKEN, Cause.EXPLODING):
        clip = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # before optimizer.step()"
        return [lower, f"torch.{clip}"]
    if cause in (Cause.DEAD, Cause.SPIKE):
        return [lower]
    if cause is Cause.CHANGE and fault.layers:
        parameters = _place_of(watch.module, fault.layers[0]).all_parameters
        return [f"print([p.grad.norm() for p in {parameters}])"]
    meter = fault.alerts[0].meter
    if cause is Cause.LOSS:
        return ["print(watch.losses)"]
    return [f"print([row for row in watch.rows if row.meter == {meter!r}])"]


def _each_group(change: str) -> str:
    return f"for group in optimizer.param_groups: {change}"


def _frozen(watch: Watch, fault: Fault) -> list[str]:
    """Let layers train that require no gradients, or that the optimizer lacks."""
    if not fault.layers:
        return ["optimizer = torch.optim.AdamW(model.parameters(), lr=...)  # of this model"]
    stepped = _stepped(watch)
    lines = []
    for layer in fault.layers:
        place = _place_of(watch.module, layer)
        parameters = place.all_parameters
        if not all(p.requires_grad for p in place.parameters):
            lines.append(f"for p in {parameters}: p.requires_grad_(True)")
        elif stepped and not all(id(p) in stepped for p in place.parameters):
            lines.append(f'optimizer.add_param_group({{"params": {parameters}}})')
        else:
            lines.append(f"print([p.grad for p in {parameters}])  # None: no gradient")
    return _first_of(lines)


def _stepped(watch: Watch) -> set[int]:
    """The identities of the parameters that an optimizer was seen to step."""
    parameters = set[int]()
    for optimizer in watch.optimizers:
        for group in optimizer.param_groups:
            parameters |= {id(p) for p in group["params"]}
    return parameters


def _optimizer(watch: Watch, fault: Fault) -> list[str]:
    rate = watch.rate
    expected = watch.expected
    if fault.cause is Cause.ALL_RATES and expected is not None and expected.ladder is not None:
        rate = expected.ladder.lr or math.nan
    lr = "..." if math.isnan(rate) else f"{rate:.3g}"
    if not watch.is_planned:
        return [_each_group(f'group["lr"] = {lr}')]
    return [f"optimizer = plan.make_optimizer(model, lr={lr})"]


def _beside_another(watch: Watch, fault: Fault) -> list[str]:
    """Print a block whose output is off beside one whose output is not."""
    alert = fault.alerts[0]
    others = dict.fromkeys(row.layer for row in watch.rows if row.meter == alert.meter)
    sound = [layer for layer in others if layer is not None and layer not in fault.layers]
    compared = [*fault.layers[:1], *sound[:1]]
    names = ", ".join(_place_of(watch.module, layer).code for layer in compared)
    comment = ""
    if alert.band is not None and alert.value > 0 and alert.band.value > 0:
        ratio = alert.value / alert.band.value
        times = number(max(ratio, 1 / ratio), 2)
        comment = f"  # its output is {times} times too {alert.side}"
    return [f"print({names}){comment}"]


def _first_of(lines: Sequence[str]) -> list[str]:
    """The first lines, the last of them with a comment that counts the others."""
    shown = list(lines[:_NAMED])
    others = len(lines) - len(shown)
    if others:
        shown[-1] += f"  # and {others} more"
    return shown


@dataclass(frozen=True)
class _Place:
    """A layer as code, such as ``model.layers[3].linear1``, and what of it trains."""

    code: str
    parameters: Sequence[nn.Parameter]
    is_module: bool

    @property
    def all_parameters(self) -> str:
        """The code of an iterable of its parameters."""
        return f"{self.code}.parameters()" if self.is_module else f"[{self.code}]"


def _place_of(model: nn.Module, layer: str) -> _Place:
    """Find a layer: a module, or a tensor of a module that has several."""
    code = "model"
    name = ""
    by_name = modules(model)
    for part in layer.split("."):
        parent = by_name.get(name)
        if isinstance(parent, nn.ModuleDict):
            code += f"[{part!r}]"
        elif part.isdigit():
            code += f"[{part}]"
        else:
            code += f".{part}"
        name = f"{name}.{part}".removeprefix(".")
    module = by_name.get(layer)
    if module is not None:
        return _Place(code, list(module.parameters()), is_module=True)
    tensor = getattr(by_name.get(layer.rpartition(".")[0]), layer.rpartition(".")[2], None)
    parameters = [tensor] if isinstance(tensor, nn.Parameter) else []
    return _Place(code, parameters, is_module=False)
