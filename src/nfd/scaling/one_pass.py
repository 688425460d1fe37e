"""What one forward and backward pass of a planned model shows.

It shows updates, initial activations, streams and outputs. The loss is ``l = mean(f c)`` of the
outputs ``f``, with fixed ``signs`` ``c``, and the sum of these where a model returns several: its
gradient in the outputs is the same at every size, and neither labels nor training are needed. With
``y`` the result of the first operation in which a tensor meets data, ``g`` its gradient, and a
*kind* the tensors of one name in all blocks:

========  ====================================================================================
update    ``R``, the sum over a kind of ``rate |g|*``: how much its update at rate 1 lowers
          the loss, to first order. ``|g|*`` is ``|g|_1`` for Adam and Lion, ``|g|_2^2`` for
          SGD, the nuclear norm times that of the optimizer's own factor for Muon
move      ``R / |dl/dy|_1`` (SGD: ``|dl/dy|_1^2``): by how much this update moves ``y``
coherent  what ``R`` would be if all terms of the gradient had one sign
start     ``F = rms(y)``
gain      ``F`` over the RMS of the data that the tensor meets; the RMS of what is looked up
          or added
fit       ``move`` over ``F``, of vectors over their RMS (SGD: over its square): whether the
          rate fits the start
response  ``F |dl/dy|_1``, which does not change where a constant moves from one factor of the
          network to the next
added     ``rms(block(h) - h)`` over blocks
stream    ``rms(h)`` after the last block
output    ``rms(f)``
========  ====================================================================================

The operation is found by the storage of its operands, and so for every spelling of it. 64-bit
numbers show gradients that are zero by symmetry, such as those of the biases of keys, as rounding,
which is left out.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nfd.core.copies import copied
from nfd.core.errors import InputError, UsageError
from nfd.core.random import generator
from nfd.scaling.base import instance
from nfd.scaling.carried import Axis, Carrier
from nfd.scaling.entries import Entry
from nfd.scaling.model import TensorInfo, block_of, in_any_block, tensors
from nfd.scaling.optimizers import WHOLE_MATRIX, OptimizerLaw
from nfd.scaling.rules import INPUT_LIKE, rule_named
from nfd.scaling.samples import (
    all_outputs_of,
    as_written,
    blaming_the_sample,
    call_with,
    evaluating,
    mapped,
    on_device,
    outputs_of,
)

if TYPE_CHECKING:
    from nfd.scaling.plan import Plan

FACTOR = 4  # between the sizes: wrong powers are half ones or more, and then a factor of 2
_ROUNDING = {torch.float64: 1e-9}  # of the largest update: a gradient that is zero but for rounding
_OF_OTHERS = 1e-5
# a constant may come after, as in a gain
ELEMENTWISE = ("mul", "div", "__mul__", "__rmul__", "mul_", "addcmul")
PRODUCTS = (
    "linear",
    "matmul",
    "__matmul__",
    "__rmatmul__",
    "mm",
    "bmm",
    "einsum",
    "addmm",
    "baddbmm",
    "mv",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
)
LOOKUPS = (
    "embedding",
    "embedding_bag",
    "add",
    "__add__",
    "__radd__",
    "__iadd__",
    "add_",
    "cat",
    "__getitem__",
    "index_select",
)
# Of random outputs: their size is then sure to an eighth. With more than a quarter of them one draw
# is sure enough.
_OUTPUTS = 32
_FEW_OUTPUTS = 8
_OUTWEIGHS = 3.0  # times what all branches add together
_LARGEST = 4.0
_NEXT_TO_NONE = 1e-3
# what a block gives back holds its input once, give or take; else no stream passes through it
_STREAM = 0.5

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
    """A record of operations in which parameters, or views of them, meet data, by parameter.

    Args:
        names: of parameters, by where their storage lies, which views share.
        redrawn: parameters with so few outputs that chance decides how large these are. A head with
            one output, that many draws give 1, gives anything from 0.1 to 2.5, which is a power of
            1 between two sizes. What they give is the mean over other draws of them.
    """

    def __init__(self, names: Mapping[int, str], redrawn: Mapping[str, int], seed: int) -> None:
        super().__init__()
        self.names = names
        self.redrawn = redrawn
        self.random = torch.Generator().manual_seed(seed)
        self.met = defaultdict[str, list[Meeting]](list)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        first = result[0] if isinstance(result, tuple) and result else result
        if (
            not isinstance(first, Tensor)
            or not first.is_floating_point()
            or self._name_of(first) is not None
        ):
            return result
        operands = _tensors_among((*args, *(kwargs or {}).values()))
        names = {name for operand in operands if (name := self._name_of(operand)) is not None}
        # An operation on only the parameter meets no data.
        if names and len(operands) > 1:
            operation = getattr(func, "__name__", "")
            draws = max(self.redrawn.get(name, 0) for name in names) if operation in PRODUCTS else 0
            square = (
                float(self._expected_square(draws, func, args, kwargs or {}))
                if draws
                else mean_square(first)
            )
            data = [x for x in operands if x.is_floating_point() and self._name_of(x) is None]
            entering = mean_square(data[0]) if data else 1.0
            self._note(names, Meeting(operation, tuple(first.shape), square, entering), first)
        return result

    def _note(self, names: Iterable[str], meeting: Meeting, result: Tensor) -> None:
        for name in names:
            self.met[name].append(meeting)
        if result.requires_grad:
            result.register_hook(meeting.add)  # type: ignore[no-untyped-call]

    def _expected_square(self, draws: int, func: Any, args: Any, kwargs: Any) -> Tensor:
        """Average the square of a product over draws of the parameters that are redrawn."""
        total = torch.zeros(())
        with torch.no_grad():
            for _ in range(draws):
                drawn = [self._drawn(argument) for argument in args]
                total = total + func(*drawn, **kwargs).square().mean()
        return total / draws

    def _drawn(self, argument: Any) -> Any:
        """Another draw of a parameter that is redrawn; anything else as it is."""
        if not isinstance(argument, Tensor) or self._name_of(argument) not in self.redrawn:
            return argument
        numbers = torch.randn(argument.shape, generator=self.random, dtype=torch.float64).to(
            argument
        )
        return numbers * argument.square().mean().sqrt()

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
    """What one pass showed: a value for each quantity and kind, and an operation for each kind.

    Attributes:
        results: shapes of the results of the operations.
        shapes: of the tensors themselves.
        outputs: shapes of the outputs of the model.
    """

    values: dict[Key, float] = field(default_factory=dict)
    operations: dict[str, str] = field(default_factory=dict)
    results: dict[str, tuple[int, ...]] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    outputs: list[tuple[int, ...]] = field(default_factory=list)


# ---- what an optimizer makes of a gradient


def reach(gradient: Tensor, law: OptimizerLaw) -> float:
    """Estimate how much an update at learning rate 1 lowers the loss, to first order.

    That is the dual norm of the gradient.
    """
    if law.unit == WHOLE_MATRIX and gradient.dim() == 2:
        return float(torch.linalg.svdvals(gradient).sum()) * law.shape_norm(*gradient.shape)
    return float(gradient.abs().pow(1 + law.degree).sum())


def signs(shape: torch.Size) -> Tensor:
    """Draw the signs that outputs have in the loss.

    Each output has one sign, which is turned round in a quarter of the rows.

    With as many turned round as not, all that outputs have in common for all inputs cancels, and
    what is left may be a sum of random terms: a Transformer that is read through a class token was
    off by width^-0.9 and depth^-1.2. With none turned round, networks that normalise over rows
    would have no gradient.
    """
    random = torch.Generator().manual_seed(0)
    outputs = shape[-1] if len(shape) > 1 else 1
    rows = shape.numel() // max(outputs, 1)
    of_rows = torch.ones(rows)
    of_rows[torch.randperm(rows, generator=random)[: rows // 4]] = -1.0
    of_outputs = torch.randint(0, 2, (outputs,), generator=random) * 2.0 - 1.0
    return (of_rows[:, None] * of_outputs).reshape(shape)


def rms(squares: Iterable[float]) -> float:
    """The root of the mean of squares."""
    values = list(squares)
    return math.sqrt(sum(values) / len(values))


# ---- one network after another


# the axis along which a model is larger than the smallest, and how many times
Place = tuple[Axis, int]
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
        self.plans: dict[Place, Plan] = {}

    def built(self, place: Place, seed: int) -> tuple[nn.Module, Plan]:
        """A model with the initial weights of its plan."""
        axis, ratio = place
        width, depth = self.carrier.size
        size = (ratio * width, depth) if axis == "width" else (width, ratio * depth)
        # A test multiplies tensors, of which models may share frozen ones with the user's code.
        model = copied(instance(self.carrier.make_model, *size, seed))
        if place not in self.plans:
            self.plans[place] = self.carrier.at(model, axis, ratio)
        plan = self.plans[place]
        plan.apply_(model, seed=seed)
        return model, plan

    def measure(self, place: Place, seed: int, factors: Factors | None = None) -> Pass:
        """One pass with the initial weights of the plan."""
        if self.dtype is not None:
            try:
                return self._measure(place, seed, factors or {})
            except UsageError as error:
                # Some models make 32-bit numbers inside, or have kernels for nothing else.
                if not isinstance(error.__cause__, RuntimeError | NotImplementedError):
                    raise
                self.dtype = None
        return self._measure(place, seed, factors or {})

    def _measure(self, place: Place, seed: int, factors: Factors) -> Pass:
        is_as_planned = not self.unit
        if is_as_planned and (place, seed, factors) == (SMALLEST, 0, {}):
            return self.as_planned
        return _Network(self, place, seed, factors).look()

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
    def as_planned(self) -> Pass:
        """What the smallest model shows before ``unit`` multiplies anything."""
        model, sample = self.cast(self.built(SMALLEST, 0)[0])
        # An error of the model is told from one of the measurement where nothing is measured.
        with blaming_the_sample(self.sample), evaluating(model), torch.no_grad(), as_written():
            outputs_of(call_with(model, sample))
        return _Network(self, SMALLEST, 0, None).look()

    @cached_property
    def unit(self) -> Mapping[str, Unit]:
        """What is multiplied or filled, so that every tensor shows its powers at once.

        It is done at all sizes alike. Language models have an initial stream of RMS 0.02, and norms
        after branches add RMS 1. Random branches add up as the root of depth, and so would such a
        stream: without this sound models were off in depth by 0.3 to 1.3. So what reads the inputs
        is multiplied until the stream outweighs the first branches. What is initialised at zero,
        such as a class token or the end of a branch, hides all before it, and is filled with random
        numbers in its place. Random biases hide how what their matrices give falls, and become
        small.
        """
        model, plan = self.built(SMALLEST, 0)
        wanted = self._wanted_stream(plan)
        units = dict[str, Unit]()
        blocks = frozenset(plan.blocks)
        for name, t in tensors(model).items():
            kind = in_any_block(name, blocks)
            unit = self._unit_of(kind, t, plan.entries[name], wanted)
            if unit is not None:
                units[kind] = unit
        return units

    def _wanted_stream(self, plan: Plan) -> float:
        """Return the wanted initial RMS of the stream; 0 where no stream grows in depth."""
        if not plan.blocks or not rule_named(plan.rule).scales_depth:
            return 0.0
        added = self.as_planned.values.get(("added", ""), 0.0) * math.sqrt(len(plan.blocks))
        return min(max(1.0, _OUTWEIGHS * added), _LARGEST)

    def _unit_of(self, kind: str, t: TensorInfo, entry: Entry, wanted: float) -> Unit | None:
        """What is multiplied or filled of one tensor; None for nothing."""
        seen = self.as_planned
        operation = seen.operations.get(kind)
        # A class token may be a vector; other vectors are biases and gains.
        reads = entry.role in INPUT_LIKE and (not entry.is_vector or operation == "cat")
        size = math.sqrt(mean_square(t.parameter.double()))
        if size == 0 and t.parameter.requires_grad:
            is_factor = not entry.is_vector or operation in ELEMENTWISE
            fill = 1.0 if reads or entry.is_vector else (entry.fan_in or t.shape[-1]) ** -0.5
            return Unit(fill=fill) if is_factor else None
        if entry.is_vector and operation in PRODUCTS and not entry.start.kept:
            return Unit(factor=_NEXT_TO_NONE, of_rate=1.0)
        if not reads:
            return None
        if entry.role == "input" and t.ins:
            size = seen.values.get(("start", kind), size)
        # What is initialised at zero and does not train stays zero.
        is_small = 0 < size < wanted
        return Unit(factor=wanted / size, of_rate=wanted / size) if is_small else None


@dataclass(frozen=True)
class Unit:
    """Factors on initial weights and learning rate, or what fills a tensor of zeros.

    Attributes:
        factor, of_rate: factors on the initial weights and the learning rate.
        fill: standard deviation of what fills zeros in the smallest model; 0 fills nothing.
    """

    factor: float = 1.0
    of_rate: float = 1.0
    fill: float = 0.0


class _Network:
    """One model under its plan: measured, and trained for a few steps."""

    def __init__(self, bench: Bench, place: Place, seed: int, factors: Factors | None) -> None:
        model, plan = bench.built(place, seed)
        self.seed = seed
        self.bench = bench
        self.plan = plan
        self.model, self.sample = bench.cast(model)
        self.infos = tensors(self.model)
        blocks = frozenset(plan.blocks)
        self.kinds = {name: in_any_block(name, blocks) for name in self.infos}
        self.laws = {name: plan.law_for(name) for name in self.infos}
        self.rates = {name: plan.rate(name) for name in self.infos}
        self.blocks = [block for stack in plan.stacks.values() for block in stack]
        if factors is None:
            return
        with torch.no_grad():
            for name, t in self.infos.items():
                self._prepare(name, t.parameter, factors)

    def _prepare(self, name: str, parameter: Tensor, factors: Factors) -> None:
        kind = self.kinds[name]
        unit = self.bench.unit.get(kind, Unit())
        if unit.fill:
            numbers = torch.randn(parameter.shape, generator=generator(self.seed, "unit", name))
            size = unit.fill * self.plan.start_factor(name)
            parameter.copy_((numbers * (size / math.sqrt(mean_square(numbers)))).to(parameter))
        parameter.mul_(unit.factor * factors.get(kind, 1.0))
        self.rates[name] *= unit.of_rate * factors.get(f"rate of {kind}", 1.0)

    def look(self) -> Pass:
        """One forward and one backward pass."""
        names = {t.parameter.untyped_storage().data_ptr(): name for name, t in self.infos.items()}
        ends = dict[str, tuple[Tensor, Tensor]]()
        with ExitStack() as stack:
            for block in self.blocks:
                hook = partial(_keep_ends, ends, block)
                handle = self.model.get_submodule(block).register_forward_hook(
                    hook, with_kwargs=True
                )
                stack.callback(handle.remove)
            stack.enter_context(evaluating(self.model))
            stack.enter_context(torch.random.fork_rng(devices=[]))
            stack.enter_context(as_written())
            stack.enter_context(blaming_the_sample(self.bench.sample))
            log = stack.enter_context(Meetings(names, self._redrawn(), self.seed))
            outputs = all_outputs_of(call_with(self.model, self.sample))
            log.names = {}
            self._backward(outputs)
        return self._read([f.detach() for f in outputs], log, ends)

    def _redrawn(self) -> dict[str, int]:
        """How many draws to take of each matrix that is drawn at random and has few outputs."""
        draws = dict[str, int]()
        for name, t in self.infos.items():
            start = self.plan.entries[name].start
            fan_in = t.fan_in()
            is_drawn = start.constant is None and not start.kept
            if is_drawn and fan_in and t.parameter.numel() <= _FEW_OUTPUTS * fan_in:
                draws[name] = _OUTPUTS * fan_in // t.parameter.numel()
        return draws

    def _backward(self, outputs: Sequence[Tensor]) -> None:
        if not outputs:
            raise InputError(
                "the outputs of the model depend on no parameter that trains: there is nothing to "
                "test."
            )
        self.model.zero_grad()
        losses = [(f * signs(f.shape).to(f)).mean() for f in outputs]
        torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]

    def _read(
        self, outputs: Sequence[Tensor], log: Meetings, ends: Mapping[str, tuple[Tensor, Tensor]]
    ) -> Pass:
        seen = Pass(outputs=[tuple(f.shape) for f in outputs])
        updates = self._updates()
        met = defaultdict[str, list[Meeting]](list)
        for name, kind in self.kinds.items():
            met[kind] += log.met[name]
        blocks = frozenset(self.blocks)
        held = Counter(
            self.kinds[name] for name in self.infos if block_of(name, blocks) is not None
        )
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
            seen.values["added", ""] = rms(
                float((after - h).square().mean()) for h, after in ends.values()
            )
            seen.values["stream", ""] = rms([float(ends[last][1].square().mean())])
        seen.values["output", ""] = rms(float(f.square().mean()) for f in outputs)
        return seen

    def _read_moves(self, seen: Pass, kind: str, gradient: float) -> None:
        """Read what an update does where gradients are sums of random terms.

        Such terms align only once trained.
        """
        names = [name for name, other in self.kinds.items() if other == kind]
        parameters = [self.infos[name].parameter.detach() for name in names]
        power = 1 + self.laws[names[0]].degree
        size = rms(mean_square(p) for p in parameters)
        seen.shapes[kind] = tuple(parameters[0].shape)
        initial_size = seen.values["start", kind]
        operation = seen.operations[kind]
        if operation in LOOKUPS or (operation in PRODUCTS and len(seen.shapes[kind]) < 2):
            initial_size = size
        if operation in LOOKUPS:  # the result has other summands
            seen.values["gain", kind] = size
            seen.values["response", kind] = size * gradient
        if not gradient:
            return
        count = len(names)
        response = seen.values["response", kind]
        rate = sum(self.rates[name] for name in names) / count
        reached = response / size if size and response else gradient
        seen.values["coherent", kind] = count * rate * (reached / count) ** power
        for update, move, fit in (
            ("update", "move", "fit"),
            ("coherent", "coherent move", "coherent fit"),
        ):
            value = seen.values.get((update, kind))
            if value is not None and ("update", kind) in seen.values:
                seen.values[move, kind] = value / count / (gradient / count) ** power
                seen.values[fit, kind] = (
                    seen.values[move, kind] / initial_size**power if initial_size else 0.0
                )

    def _updates(self) -> dict[str, float]:
        """By kind, how much updates lower the loss; without those that are rounding."""
        total = defaultdict[str, float](float)
        for name, t in self.infos.items():
            if t.parameter.requires_grad and t.parameter.grad is not None:
                total[self.kinds[name]] += self.rates[name] * reach(
                    t.parameter.grad, self.laws[name]
                )
        dtype = next(iter(self.infos.values())).parameter.dtype
        least = _ROUNDING.get(dtype, _OF_OTHERS) * max(total.values(), default=0.0)
        return {kind: value for kind, value in total.items() if value > least}


def _read_meetings(seen: Pass, kind: str, meetings: list[Meeting]) -> None:
    first = meetings[0]
    gradient = sum(meeting.gradient for meeting in meetings)
    # of a tied head, the embedding's
    alike = [meeting for meeting in meetings if meeting.operation == first.operation]
    size = rms(meeting.square for meeting in alike)
    seen.operations[kind] = first.operation
    seen.results[kind] = first.shape
    entering = rms(meeting.entering for meeting in alike)
    seen.values["start", kind] = size
    seen.values["gain", kind] = size / entering if entering else 0.0
    seen.values["response", kind] = size * gradient


def _keep_ends(
    ends: dict[str, tuple[Tensor, Tensor]],
    block: str,
    _: nn.Module,
    args: Any,
    kwargs: Any,
    result: Any,
) -> None:
    """Keep what enters and leaves a block, where it passes a stream on."""
    h = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
    after = result
    if isinstance(result, tuple):
        after = next(iter(result), None)
    if h is None or not isinstance(after, Tensor):
        return
    if h.shape != after.shape or not h.is_floating_point():
        return
    h = h.detach()
    after = after.detach()
    passed_on = float((h * after).sum() / h.square().sum())
    if abs(passed_on - 1) < _STREAM:
        ends[block] = h, after
