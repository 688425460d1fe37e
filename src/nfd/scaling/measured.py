"""What one forward and backward pass shows of a planned model: updates, initial activations, streams and outputs.

The loss is ``l = mean(f c)`` of the outputs ``f``, with fixed signs ``c``: its gradient in the outputs is the same at
every size, and neither labels nor training are needed. With ``y`` the result of the first operation in which a tensor
meets data, ``g`` its gradient, and a *kind* the tensors of one name in all blocks:

========  ==========================================================================================================
update    ``R``, the sum over a kind of ``rate |g|*``: how much its update at rate 1 lowers the loss, to first order.
          ``|g|*`` is ``|g|_1`` for Adam and Lion, ``|g|_2^2`` for SGD, the nuclear norm times that of the optimizer's
          own factor for Muon
move      ``R / |dl/dy|_1`` (SGD: ``|dl/dy|_1^2``): by how much this update moves ``y``
coherent  what ``R`` would be if all terms of the gradient had one sign
start     ``F = rms(y)``; gain: over the RMS of the data that the tensor meets
response  ``F |dl/dy|_1``, which does not change where a constant moves from one factor of the network to the next
added     ``rms(block(h) - h)`` over blocks
stream    ``rms(h)`` behind the last block
output    ``rms(f)``
========  ==========================================================================================================

The operation is found by the storage of its operands, and so for every spelling of it. 64-bit numbers show gradients
that are zero by symmetry, such as those of the biases of keys, as rounding, which is left out.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nfd.core.errors import InputError, UsageError
from nfd.core.random import generator
from nfd.scaling.base import instance
from nfd.scaling.carried import Axis, Carrier
from nfd.scaling.model import block_of, in_any_block, tensors
from nfd.scaling.optimizers import WHOLE_MATRIX, OptimizerLaw
from nfd.scaling.plan import Plan
from nfd.scaling.rules import rule_named
from nfd.scaling.samples import as_written, blaming_the_sample, call_with, evaluating, mapped, on_device, outputs_of

FACTOR = 4  # between the sizes: wrong powers are half ones or more, and then a factor of 2
_ROUNDING = {torch.float64: 1e-9}  # of the largest update: a gradient that is zero but for rounding
_OF_OTHERS = 1e-5
_STEP = 0.02  # RMS of the entries of an update of the smallest model
_OUTWEIGHS = 3.0  # times what all branches add together
_LARGEST = 4.0
_STREAM = 0.5  # what a block gives back holds its input once, give or take; else no stream passes through it

Key = tuple[str, str]  # a quantity, and a kind


@dataclass
class Meeting:
    """An operation in which a parameter meets data."""

    operation: str
    shape: tuple[int, ...]
    square: float
    entering: float
    gradient: float = 0.0

    def add(self, gradient: Tensor) -> None:
        """Add the size of the gradient of its result."""
        self.gradient += float(gradient.abs().sum())


class Meetings(TorchFunctionMode):
    """Records operations in which parameters, or views of them, meet data, by the name of the parameter.

    Args:
        names: of parameters, by where their storage lies, which views share.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self.names = names
        self.met = defaultdict[str, list[Meeting]](list)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        first = result[0] if isinstance(result, tuple) and result else result
        if not isinstance(first, Tensor) or not first.is_floating_point() or self._name_of(first) is not None:
            return result
        operands = _tensors_among((*args, *(kwargs or {}).values()))
        names = {name for operand in operands if (name := self._name_of(operand)) is not None}
        if len(operands) > 1:  # an operation on the parameter alone meets no data
            for name in names:
                self._note(name, getattr(func, "__name__", ""), operands, first)
        return result

    def _note(self, name: str, operation: str, operands: list[Tensor], result: Tensor) -> None:
        data = [x for x in operands if x.is_floating_point() and self._name_of(x) is None]
        entering = mean_square(data[0]) if data else 1.0
        meeting = Meeting(operation, tuple(result.shape), mean_square(result), entering)
        self.met[name].append(meeting)
        if result.requires_grad:
            result.register_hook(meeting.add)

    def _name_of(self, value: Tensor) -> str | None:
        try:
            return self.names.get(value.untyped_storage().data_ptr())
        except (RuntimeError, NotImplementedError):  # a sparse tensor, or another without a storage
            return None


def mean_square(values: Tensor) -> float:
    """The mean of the squares of all entries."""
    return float(values.detach().square().mean()) if values.numel() else 0.0


def _tensors_among(arguments: Iterable[Any]) -> list[Tensor]:
    operands = list[Tensor]()
    for argument in arguments:
        parts = argument if isinstance(argument, list | tuple) else (argument,)
        operands += [part for part in parts if isinstance(part, Tensor)]
    return operands


@dataclass
class Pass:
    """What one pass showed: values by quantity and kind; operation, and shape of its result, by kind."""

    values: dict[Key, float] = field(default_factory=dict)
    operations: dict[str, str] = field(default_factory=dict)
    results: dict[str, tuple[int, ...]] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    output: tuple[int, ...] = ()


# ---- what an optimizer makes of a gradient


def reach(gradient: Tensor, law: OptimizerLaw) -> float:
    """How much an update at rate 1 lowers the loss, to first order: the dual norm of the gradient."""
    if law.unit == WHOLE_MATRIX and gradient.dim() == 2:
        return float(torch.linalg.svdvals(gradient).sum()) * law.shape_norm(*gradient.shape)
    return float(gradient.abs().pow(1 + law.degree).sum())


def update(gradient: Tensor, law: OptimizerLaw) -> Tensor:
    """That update: the first of Adam is the sign of the gradient, that of Muon its orthogonal part."""
    if law.unit == WHOLE_MATRIX and gradient.dim() == 2:
        u, _, v = torch.linalg.svd(gradient, full_matrices=False)
        return u @ v * law.shape_norm(*gradient.shape)
    return gradient.sign() * gradient.abs().pow(law.degree)


def rms(squares: Iterable[float]) -> float:
    """The root of the mean of squares."""
    values = list(squares)
    return math.sqrt(sum(values) / len(values))


# ---- one network after another


Place = tuple[Axis, int]  # the axis along which a model is larger than the smallest, and how many times
SMALLEST: Place = ("width", 1)
Factors = Mapping[str, float]  # on initial weights by kind, and on rates by "rate of " and the kind


class Bench:
    """Builds, plans and measures a model at several sizes.

    Args:
        carrier: of the plan to each size.
        sample: an input of the model.
    """

    def __init__(self, carrier: Carrier, sample: Any) -> None:
        self.carrier = carrier
        self.sample = sample
        self.dtype: torch.dtype | None = torch.float64
        self.plans = dict[Place, Plan]()
        self.steps = dict[tuple[int, str, int], float]()

    def built(self, place: Place, seed: int) -> tuple[nn.Module, Plan]:
        """A model with the initial weights of its plan."""
        axis, ratio = place
        width, depth = self.carrier.size
        size = (ratio * width, depth) if axis == "width" else (width, ratio * depth)
        model = instance(self.carrier.make_model, *size, seed)
        if place not in self.plans:
            self.plans[place] = self.carrier.at(model, axis, ratio)
        plan = self.plans[place]
        plan.apply_(model, seed=seed)
        return model, plan

    def measure(self, place: Place, seed: int, updates: int = 0, factors: Factors | None = None) -> list[Pass]:
        """One pass with the initial weights, and one after each update of all tensors at their planned rates."""
        if self.dtype is not None:
            try:
                return self._measure(place, seed, updates, factors or {})
            except UsageError as error:
                # Some models make 32-bit numbers inside, or have kernels for nothing else.
                if not isinstance(error.__cause__, RuntimeError | NotImplementedError):
                    raise
                self.dtype = None
                self.steps.clear()
        return self._measure(place, seed, updates, factors or {})

    def _measure(self, place: Place, seed: int, updates: int, factors: Factors) -> list[Pass]:
        network = _Network(self, *self.built(place, seed), self.unit, factors)
        passes = [network.look()]
        for k in range(updates):
            network.step((seed, k), is_smallest=place[1] == 1)
            passes.append(network.look())
        return passes

    def cast(self, model: nn.Module) -> tuple[nn.Module, Any]:
        """The model and the sample, in the precision and at the place of the measurement."""
        if self.dtype is not None:
            model = model.to(self.dtype)
        like = next(model.parameters())

        def as_model(value: Any) -> Any:
            is_real = isinstance(value, Tensor) and value.is_floating_point()
            return value.to(like.dtype) if is_real else value

        return model, mapped(on_device(self.sample, like.device), as_model)

    @cached_property
    def unit(self) -> Factors:
        """Factors on what reads the inputs, the same at all sizes, by which the stream outweighs the first branches.

        Language models begin with a stream of RMS 0.02, class tokens with 0, and norms behind branches add RMS 1.
        Random branches add up as the root of depth, and so would such a stream: without this sound models were off in
        depth by 0.3 to 1.3.
        """
        model, plan = self.built(SMALLEST, 0)
        if not plan.blocks or not rule_named(plan.rule).scales_depth:
            return {}
        network = _Network(self, model, plan, {}, {})
        seen = network.look()
        added = seen.values.get(("added", ""), 0.0) * math.sqrt(len(plan.blocks))
        wanted = min(max(1.0, _OUTWEIGHS * added), _LARGEST)
        factors = dict[str, float]()
        for name, t in network.infos.items():
            entry = plan.entries[name]
            if entry.role not in ("input", "embedding", "tied") or entry.is_vector:
                continue
            kind = network.kinds[name]
            size = float(t.parameter.detach().double().square().mean().sqrt())
            if entry.role == "input" and t.ins:
                size = seen.values.get(("start", kind), size)
            if size < wanted:
                factors[kind] = wanted / size if size else 0.0
        return factors


class _Network:
    """One model under its plan: measured, and trained for a few steps."""

    def __init__(self, bench: Bench, model: nn.Module, plan: Plan, unit: Factors, factors: Factors) -> None:
        self.bench, self.plan = bench, plan
        self.model, self.sample = bench.cast(model)
        self.infos = tensors(self.model)
        self.kinds = {name: in_any_block(name, plan.blocks) for name in self.infos}
        self.laws = {name: plan.law_for(name) for name in self.infos}
        self.rates = {name: plan.rate(name) for name in self.infos}
        self.blocks = [block for stack in plan.stacks.values() for block in stack]
        with torch.no_grad():
            for name, t in self.infos.items():
                self._multiply(name, t.parameter, unit, factors)

    def _multiply(self, name: str, parameter: Tensor, unit: Factors, factors: Factors) -> None:
        kind = self.kinds[name]
        more = unit.get(kind, 1.0)
        if more == 0:  # a tensor of zeros, such as a class token, stands where training would take it
            stream = generator(0, "unit", name)
            parameter.copy_(torch.randn(parameter.shape, generator=stream).to(parameter))
            more = 1.0
        parameter.mul_(more * factors.get(kind, 1.0))
        self.rates[name] *= more * factors.get(f"rate of {kind}", 1.0)

    def look(self) -> Pass:
        """One forward and one backward pass."""
        names = {t.parameter.untyped_storage().data_ptr(): name for name, t in self.infos.items()}
        ends = dict[str, tuple[Tensor, Tensor]]()
        with ExitStack() as stack:
            for block in self.blocks:
                hook = partial(_keep_ends, ends, block)
                handle = self.model.get_submodule(block).register_forward_hook(hook, with_kwargs=True)
                stack.callback(handle.remove)
            stack.enter_context(evaluating(self.model))
            stack.enter_context(torch.random.fork_rng(devices=[]))
            stack.enter_context(as_written())
            stack.enter_context(blaming_the_sample(self.bench.sample))
            log = stack.enter_context(Meetings(names))
            f = outputs_of(call_with(self.model, self.sample))
            log.names = {}
            self._backward(f)
        return self._read(f.detach(), log, ends)

    def _backward(self, f: Tensor) -> None:
        if not f.requires_grad:
            raise InputError("the outputs of the model depend on no parameter that trains: there is nothing to test.")
        random = torch.Generator().manual_seed(0)
        signs = torch.randint(0, 2, f.shape, generator=random).to(f) * 2 - 1
        self.model.zero_grad()
        (f * signs).mean().backward()

    def step(self, key: tuple[int, int], *, is_smallest: bool) -> None:
        """Update every tensor: in the smallest model by entries of a fixed RMS, in others as the plan says."""
        with torch.no_grad():
            for name, t in self.infos.items():
                gradient = t.parameter.grad
                if not t.parameter.requires_grad or gradient is None:
                    continue
                change = self.rates[name] * update(gradient, self.laws[name])
                place = (*key, self.kinds[name])
                size = float(change.square().mean().sqrt())
                if is_smallest and size and place not in self.bench.steps:
                    self.bench.steps[place] = _STEP / size
                t.parameter.sub_(self.bench.steps.get(place, 0.0) * change)

    def _read(self, f: Tensor, log: Meetings, ends: Mapping[str, tuple[Tensor, Tensor]]) -> Pass:
        seen = Pass(output=tuple(f.shape))
        updates = self._updates()
        met = defaultdict[str, list[Meeting]](list)
        for name, kind in self.kinds.items():
            met[kind] += log.met[name]
        held = Counter(self.kinds[name] for name in self.infos if block_of(name, self.blocks) is not None)
        for kind, value in updates.items():
            seen.values["update", kind] = value
            if 0 < held[kind] < len(self.blocks):  # a kind that stands in some blocks only
                seen.values["update in all", kind] = value * len(self.blocks) / held[kind]
        for kind, meetings in met.items():
            if meetings:
                _read_meetings(seen, kind, meetings)
                self._read_moves(seen, kind, sum(meeting.gradient for meeting in meetings))
        if ends:
            last = [block for block in self.blocks if block in ends][-1]
            seen.values["added", ""] = rms(float((after - h).square().mean()) for h, after in ends.values())
            seen.values["stream", ""] = rms([float(ends[last][1].square().mean())])
        seen.values["output", ""] = rms([float(f.square().mean())])
        return seen

    def _read_moves(self, seen: Pass, kind: str, gradient: float) -> None:
        """Read what an update does where gradients are sums of random terms, which align only once trained."""
        names = [name for name, other in self.kinds.items() if other == kind]
        power = 1 + self.laws[names[0]].degree
        # An output's update is judged as it is: constants may stand behind it, as in logits over m.
        is_output = seen.results[kind][1:] == seen.output[1:]
        if gradient and ("update", kind) in seen.values and not is_output:
            seen.values["move", kind] = seen.values["update", kind] / gradient**power
        parameters = [self.infos[name].parameter.detach() for name in names]
        size = rms(float(p.square().mean()) for p in parameters)
        reached = seen.values["response", kind] / size if size and seen.values["start", kind] else gradient
        rate = sum(self.rates[name] for name in names) / len(names)
        seen.values["coherent", kind] = rate * reached**power
        seen.shapes[kind] = tuple(parameters[0].shape)

    def _updates(self) -> dict[str, float]:
        """By kind, how much updates lower the loss; without those that are rounding."""
        total = defaultdict[str, float](float)
        for name, t in self.infos.items():
            if t.parameter.requires_grad and t.parameter.grad is not None:
                total[self.kinds[name]] += self.rates[name] * reach(t.parameter.grad, self.laws[name])
        dtype = next(iter(self.infos.values())).parameter.dtype
        least = _ROUNDING.get(dtype, _OF_OTHERS) * max(total.values(), default=0.0)
        return {kind: value for kind, value in total.items() if value > least}


def _read_meetings(seen: Pass, kind: str, meetings: list[Meeting]) -> None:
    first = meetings[0]
    gradient = sum(meeting.gradient for meeting in meetings)
    alike = [meeting for meeting in meetings if meeting.operation == first.operation]  # of a tied head, the embedding's
    size = rms(meeting.square for meeting in alike)
    seen.operations[kind] = first.operation
    seen.results[kind] = first.shape
    entering = rms(meeting.entering for meeting in alike)
    seen.values["start", kind] = size
    seen.values["gain", kind] = size / entering if entering else 0.0
    seen.values["response", kind] = size * gradient


def _keep_ends(
    ends: dict[str, tuple[Tensor, Tensor]], block: str, _: nn.Module, args: Any, kwargs: Any, result: Any
) -> None:
    """Keep what enters and leaves a block, where it passes a stream on."""
    h = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
    after = result if isinstance(result, Tensor) else next(iter(result), None) if isinstance(result, tuple) else None
    if h is None or not isinstance(after, Tensor) or h.shape != after.shape or not h.is_floating_point():
        return
    h, after = h.detach(), after.detach()
    passed_on = float((h * after).sum() / h.square().sum())
    if abs(passed_on - 1) < _STREAM:
        ends[block] = h, after


Measure = Callable[[Place, int, int], list[Pass]]
