"""What to run next after an alert: code to paste, with the modules of the user's own model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import TYPE_CHECKING, Any

from torch import nn

from nfd.core.answer import Next
from nfd.core.words import number
from nfd.scaling.base_group import OF_MATRICES, SCALE
from nfd.scaling.kept_rates import FIRST, PEAK, adds_to_rates
from nfd.scaling.model import modules
from nfd.watch.alerts import Cause, Fault
from nfd.watch.signs import READING_REMEDY, STEADY_REMEDY

if TYPE_CHECKING:
    from nfd.watch.watch import Watch

# Layers that are named in the code of one fault
_NAMED = 2
# Rows that code prints
_ROWS = 8
# Layers that code lists by their names, at most
_LISTED = 12
# A fault that was there within so many looks was there from the start.
_FIRST_LOOKS = 2
_LOOK = "Look for the cause"
_STILL = {Cause.FROZEN, Cause.STOPPED}
_BACK = {Cause.BROKEN, Cause.EXPLODING, Cause.SPIKE}
# What a training is given comes before what follows from it: activations, gradients, the loss.
_ROOTS_FIRST = (
    Cause.OPTIMIZER,
    Cause.RATE,
    Cause.START,
    Cause.ALL_RATES,
    Cause.RISE,
    Cause.JUMP,
    Cause.FROZEN,
    Cause.STOPPED,
    Cause.ROUNDING,
    Cause.DECAY,
    Cause.MULTIPLIER,
    Cause.CHANGE,
    Cause.UNKNOWN,
    Cause.DEAD,
    Cause.EXPLODING,
    Cause.BROKEN,
    Cause.SPIKE,
    Cause.LOSS,
)


def next_of(watch: Watch, faults: Sequence[Fault]) -> Next:
    """What to do after these faults: the label says whether to begin again, the code how.

    The code mends the cause that may explain the others, and not what follows from it.
    """
    root = min(faults, key=_order)
    lines = _code_of(watch, root)
    return Next(_label(watch, faults, root, lines), "\n".join(lines))


def _order(fault: Fault) -> tuple[bool, int]:
    """Sort key of causes: comparisons with the plan first, which need no small networks."""
    is_compared_with_plan = bool(fault.alerts[0].tensors)
    return not is_compared_with_plan, _ROOTS_FIRST.index(fault.cause)


def _label(watch: Watch, faults: Sequence[Fault], root: Fault, lines: Sequence[str]) -> str:
    why = _why_frozen(watch, root) if root.cause in _STILL else ""
    then = _what_then(watch, faults, root)
    # Code that only prints mends nothing.
    if "fix it" in then and all(line.startswith(("print(", "rows =")) for line in lines):
        reads_gradients = any(".grad" in line for line in lines)
        then = "Look for the cause, after loss.backward()" if reads_gradients else _LOOK
    return f"{why}{then}"


def _why_frozen(watch: Watch, fault: Fault) -> str:
    """Say what keeps all layers of a fault from training, where one reason holds for all."""
    parameters = [p for layer in fault.layers for p in _place_of(watch.module, layer).parameters]
    if not parameters:
        return ""
    if not any(p.requires_grad for p in parameters):
        return "They require no gradients. "
    stepped = _stepped(watch)
    if stepped and not any(id(p) in stepped for p in parameters):
        return "The optimizer lacks them. "
    return ""


def _what_then(watch: Watch, faults: Sequence[Fault], root: Fault) -> str:
    """Whether to begin again, or from where to go on."""
    since = min(fault.since for fault in faults)
    cause = root.cause
    if cause is Cause.MULTIPLIER:
        return "Stop, compare its factors, hooks and gains with another block's, and start again"
    if cause is Cause.LOSS:
        return f"Compare with the steps before {since:,}"
    if cause is Cause.RISE:
        return f"Compare with the schedule, and go back to a checkpoint before step {since:,}"
    # At this look all was as it should be.
    if cause is Cause.JUMP:
        return f"Go back to a checkpoint of step {since:,} or before, and see what wrote the layer"
    if cause is Cause.STOPPED:
        return f"Stop, fix it, and go on from a checkpoint of step {since:,} or before"
    if cause is Cause.BROKEN and since > watch.every and root.alerts[0].meter != "loss":
        before = since - watch.every
        return f"Stop, fix it, and go on from a checkpoint of step {before:,} or before"
    if since > _FIRST_LOOKS * watch.every:
        return f"Stop, fix it, and go on from a checkpoint before step {since:,}"
    if cause in _BACK:
        return "Stop, fix it, and start again"
    return "Stop, fix it, and start again: training on does not undo the first steps"


def _code_of(watch: Watch, fault: Fault) -> list[str]:
    """The code for one fault, a line for every layer that it names."""
    cause = fault.cause
    if cause in _STILL:
        return _frozen(watch, fault)
    if cause is Cause.START:
        return ["plan.apply_(model, seed=0)  # after all else that initialises the model"]
    if cause in (Cause.OPTIMIZER, Cause.ALL_RATES):
        return _optimizer(watch, fault)
    if cause is Cause.RATE:
        return _rates(watch)
    if cause is Cause.DECAY:
        return [_each_group('group["weight_decay"] /= 10')]
    if cause is Cause.MULTIPLIER:
        return _beside_another(watch, fault)
    if cause is Cause.JUMP:
        return _latest_rows(fault)
    if cause is Cause.ROUNDING:
        return ["model.float()  # 16 bits only to compute: with torch.autocast(...)"]
    if cause is Cause.RISE:
        return ['print([group["lr"] for group in optimizer.param_groups][:8])']
    if cause is Cause.BROKEN and fault.remedy.startswith(STEADY_REMEDY):
        return ["torch.autograd.set_detect_anomaly(True)  # names the operation; slow"]
    if cause is Cause.BROKEN and fault.remedy == READING_REMEDY:
        return _latest_rows(fault)
    if cause in (Cause.BROKEN, Cause.EXPLODING, Cause.DEAD, Cause.SPIKE):
        return [_each_group('group["lr"] /= 2')]
    if cause is Cause.CHANGE and fault.layers:
        parameters = _place_of(watch.module, fault.layers[0]).all_parameters
        # Frozen parameters have no gradient, and after ``zero_grad`` none has.
        shown = "(p.requires_grad, p.grad is not None and p.grad.norm())"
        return [f"print([{shown} for p in {parameters}])"]
    if cause is Cause.LOSS:
        return ["print(watch.losses)"]
    return _latest_rows(fault)


def _latest_rows(fault: Fault) -> list[str]:
    """Print the latest values of the layer that is furthest off, step by step."""
    first = fault.alerts[0]
    if first.layer is None:
        rows = f"row.meter == {first.meter!r}"
        shown = "row.step, row.layer, row.value"
    else:
        rows = f"(row.meter, row.layer) == ({first.meter!r}, {first.layer!r})"
        shown = "row.step, row.value"
    return [
        f"rows = [row for row in watch.rows if {rows}]",
        f"print([({shown}) for row in rows[-{_ROWS}:]])",
    ]


def _each_group(change: str) -> str:
    return f"for group in optimizer.param_groups: {change}"


def _frozen(watch: Watch, fault: Fault) -> list[str]:
    """Let layers train that require no gradients, or that the optimizer lacks."""
    if not fault.layers:
        return ["optimizer = torch.optim.AdamW(model.parameters(), lr=...)  # of this model"]
    stepped = _stepped(watch)
    lines = []
    order = [name for name, _ in watch.module.named_modules()]
    layers = sorted(fault.layers, key=lambda name: order.index(name) if name in order else 0)
    for layer in layers:
        place = _place_of(watch.module, layer)
        parameters = place.all_parameters
        if not all(p.requires_grad for p in place.parameters):
            lines.append(f"for p in {parameters}: p.requires_grad_(True)")
        elif stepped and not all(id(p) in stepped for p in place.parameters):
            lines.append(f'optimizer.add_param_group({{"params": {parameters}}})')
        else:
            lines.append(f"print([p.grad for p in {parameters}])  # None: no gradient")
    are_all_held = all(line.endswith("requires_grad_(True)") for line in lines)
    are_modules = all(_place_of(watch.module, layer).is_module for layer in fault.layers)
    if _NAMED < len(lines) <= _LISTED and are_all_held and are_modules:
        names = ", ".join(map(repr, layers))
        return [f"for name in ({names}):", "    model.get_submodule(name).requires_grad_(True)"]
    return _first_of(lines)


def _stepped(watch: Watch) -> set[int]:
    """The identities of the parameters that an optimizer was seen to step."""
    parameters = set[int]()
    for optimizer in watch.optimizers:
        for group in optimizer.param_groups:
            parameters |= {id(p) for p in group["params"]}
    return parameters


def _optimizer(watch: Watch, fault: Fault) -> list[str]:
    rates = _tuned_rates(watch)
    expected = watch.expected
    if fault.cause is Cause.ALL_RATES and expected is not None and expected.ladder is not None:
        rates = [expected.ladder.lr or math.nan]
    lr = _in_code(rates[0])
    if not watch.is_planned:
        return [_each_group(f'group["lr"] = {lr}')]
    rest = f", adamw_lr={_in_code(rates[1])}" if len(rates) > 1 else ""
    return [f"optimizer = plan.make_optimizer(model, lr={lr}{rest})"]


def _rates(watch: Watch) -> list[str]:
    """Set every learning rate to the plan's."""
    rates = _tuned_rates(watch)
    texts = [_in_code(rate) for rate in rates]
    if not watch.is_planned:
        return [_each_group(f'group["lr"] = {texts[0]}')]
    groups = _groups(watch)
    if not groups or any(SCALE not in group for group in groups):
        return [f"optimizer = plan.make_optimizer(model, lr={texts[0]})"]
    if any(PEAK in group for group in groups):
        peaks = f'[{texts[0]} * group["{SCALE}"] for group in optimizer.param_groups]'
        return [f"max_lr = {peaks}  # for OneCycleLR"]
    if adds_to_rates(groups):
        made = f"optimizer = plan.make_optimizer(model, lr={texts[0]})"
        return [f"{made}  # and a scheduler with eta_min=0"]
    if len(texts) == 1:
        return [_each_group(f'group["lr"] = {texts[0]} * group["{SCALE}"]')]
    of_matrices, of_rest = texts
    return [
        "for group in optimizer.param_groups:",
        f'    lr = {of_matrices} if group["{OF_MATRICES}"] else {of_rest}',
        f'    group["lr"] = lr * group["{SCALE}"]',
    ]


def _in_code(rate: float) -> str:
    return "..." if math.isnan(rate) else f"{rate:.3g}"


def _groups(watch: Watch) -> list[dict[str, Any]]:
    """The groups of the optimizers that were seen to step the model."""
    groups = list[dict[str, Any]]()
    for optimizer in watch.optimizers:
        groups += optimizer.param_groups
    return groups


def _tuned_rates(watch: Watch) -> list[float]:
    """The tuned learning rate, or that of the matrices and of the rest, where they differ.

    A scheduler keeps the rates before its schedule, which the first step does not show: a warm-up
    begins near zero. Most tensors are taken to have the right rate.
    """
    groups = _groups(watch)
    has_scales = all(SCALE in group for group in groups)
    has_schedule = all(FIRST in group for group in groups)
    if not groups or not (has_scales or has_schedule):
        return [watch.rate]
    tuned = list[float]()
    for is_of_matrices in (True, False):
        rates = list[float]()
        scaled = list[float]()
        for group in groups:
            if group.get(OF_MATRICES, True) == is_of_matrices:
                rate = float(group.get(PEAK, group.get(FIRST, group["lr"])))
                rates.append(rate)
                scaled += [rate / float(group.get(SCALE, 1.0))] * len(group["params"])
        if scaled:
            # One rate for all is taken for the tuned one.
            tuned.append(rates[0] if len({*rates}) == 1 else median_low(scaled))
    return tuned if len(tuned) > 1 and not math.isclose(*tuned) else tuned[:1]


def _beside_another(watch: Watch, fault: Fault) -> list[str]:
    """Print a block whose output is off beside one whose output is not."""
    alert = fault.alerts[0]
    others = dict.fromkeys(row.layer for row in watch.rows if row.meter == alert.meter)
    sound = [layer for layer in others if layer is not None and layer not in fault.layers]
    compared = [*fault.layers[:1], *sound[:1]]
    # They hold what a printed module leaves out: hooks and factors.
    names = ", ".join(f"vars({_place_of(watch.module, layer).code})" for layer in compared)
    comment = ""
    if alert.band is not None and math.isfinite(fault.times[0]):
        comment = f"  # its output is {number(fault.times[0], 2)} times too {alert.side}"
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
