"""``nfd.plan``: initialisation, rates, decay and epsilon of every tensor of a model, at any width and depth."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import torch
from pydantic import TypeAdapter, ValidationError
from rich.table import Column
from torch import Tensor, nn

from nfd.core.errors import (
    InputError,
    InputTypeError,
    check_callable,
    check_choice,
    check_device,
    check_patterns,
    check_real,
    check_seed,
    nearest,
)
from nfd.core.estimates import Interval
from nfd.core.files import expanded, replace_file
from nfd.core.machine import gradients, plain
from nfd.core.names import Decay, RuleName
from nfd.core.random import generator
from nfd.core.statistics import rms
from nfd.core.tables import as_text, table_of
from nfd.scaling.base import (
    GivenBase,
    check_nothing_said,
    defaults_of,
    foreseen_factors,
    measured_factors,
    told_by,
    told_parts,
    with_own_depth,
)
from nfd.scaling.entries import (
    Base,
    Entry,
    MakeModel,
    Parts,
    Positive,
    acts_inside,
    depths_of,
    entries_of_base,
    entries_of_ratio,
    note_on_kept,
    notes_on_matrices,
    widest,
    with_layouts,
    with_multipliers,
    with_own_constants,
    with_own_factors,
)
from nfd.scaling.forward import Own, Scaled, head_sizes
from nfd.scaling.model import (
    Repeated,
    TensorInfo,
    Where,
    block_of,
    blocks_of,
    check_input,
    check_not_complex,
    check_not_parametrized,
    check_stored,
    in_any_block,
    listed,
    mapped,
    matches,
    modules,
    parametrized,
    repeated,
    stacks_of,
    tensors,
    unwrapped,
    whole,
)
from nfd.scaling.optimizers import SCALE, OptimizerLaw, check_rates, law_of, optimizer_of, warn_of_lost_ratios
from nfd.scaling.roles import anatomy, is_unbuilt, settled_roles, stream_width
from nfd.scaling.rules import ADAM_EPSILON, MAX_RATE, ROLES, Power, Powers, Role, Rule, rule_named
from nfd.scaling.run import (
    Quantity,
    RateSchedule,
    RunScaling,
    run_scaling,
)

# ---- ``nfd.plan``: initialisation, rates, decay and epsilon of every tensor of a model, at any width and depth


DECAYS: tuple[Decay, ...] = get_args(Decay)


@dataclass(frozen=True)
class Plan:
    """The result of ``nfd.plan``: initial scale, rate, decay and epsilon of every tensor, by name.

    It holds no tensors, can be saved, and fits every model with the same names and shapes.

    Attributes:
        rule, optimizer, decay: their names.
        width, depth: of the model, as multiples of the base; ``depth`` is ``l`` in the formulas. Where stacks, such as
            encoder and decoder, grow by different factors, tensors in blocks have that of their stack.
        entries: the numbers of every tensor, by its name in ``model.named_parameters()``.
        blocks: names of the residual blocks.
        multipliers: forward factors that cannot be folded, by module name. ``apply_`` inserts them as ``nfd.Scaled``.
        notes: warnings and remarks, in words.
        run: factors for batch size and length of the run; None if neither ``batch`` nor ``tokens`` was given.
        base: width and depth of the base, as arguments of ``make_model``; None without it, and for networks of
            the paper.

    Example::

        plan = nfd.plan(model, rule="complete-p", make_model=make_model, base=(64, 2), sample=x)
        print(plan)  # a row for every tensor
        plan.save("plan.json")
        nfd.Plan.load("plan.json").apply_(model, seed=0)
    """

    rule: RuleName
    optimizer: str
    decay: Decay
    width: Positive
    depth: Positive
    entries: dict[str, Entry]
    blocks: tuple[str, ...]
    multipliers: dict[str, float]
    notes: tuple[str, ...]
    run: RunScaling | None = None
    base: tuple[Positive, Positive] | None = None

    @property
    def roles(self) -> dict[str, Role]:
        """The role of every tensor."""
        return {name: entry.role for name, entry in self.entries.items()}

    # ---- the scale of one tensor -----------------------------------------------------------------------------

    def entry(self, name: str) -> Entry:
        """The entry of a tensor, by its name in the model, also in one that is compiled or wrapped by DDP or FSDP.

        Raises:
            ValueError: if the plan has no such tensor.
        """
        return self.entries[self._planned(name)]

    def _planned(self, name: str) -> str:
        inner = unwrapped(str(name))
        for known in (name, inner):
            if known in self.entries:
                return known
        same = [planned for planned in self.entries if unwrapped(planned) == inner]  # a module of it is called "module"
        if len(same) != 1:
            hint = nearest(inner, self.entries)
            raise InputError(f"the plan has no tensor {name!r}.{hint} Its names are those of model.named_parameters().")
        return same[0]

    def powers(self, name: str) -> Powers:
        """How std, rate and epsilon of a tensor scale with its fans and the depth, including forward multipliers."""
        entry = self.entry(name)
        return rule_named(self.rule).powers(entry.role, self.law_for(name), entry.multiplier, vector=entry.is_vector)

    def law_for(self, name: str) -> OptimizerLaw:
        """The law of the optimizer that trains a tensor; under Muon some tensors have AdamW's."""
        law = law_of(self.optimizer)
        return law if law.rest is None or self.is_muon(name) else law_of(law.rest)

    def factor(self, name: str, power: Power) -> float:
        """The value of a power for a tensor: at its ratios of fan-in, fan-out and depth to the base."""
        entry = self.entry(name)
        depth = self.depth if entry.depth is None else entry.depth
        return power.at(entry.ratios.fan_in, entry.ratios.fan_out, depth)

    def own_factor(self, name: str) -> float:
        """The factor by which the model's own forward pass multiplies a tensor, over that of the base, where the plan
        makes up for it; else 1."""
        return self.entry(name).own_factor if rule_named(self.rule).scales_width else 1.0

    def start_factor(self, name: str) -> float:
        """By what the initial entries of a tensor are those of the base."""
        return self.factor(name, self.powers(name).std) / self.own_factor(name)

    def std(self, name: str) -> float:
        """Initial standard deviation of the entries; 0 for a tensor that starts at a constant."""
        return self.entry(name).start.std * self.start_factor(name)

    def constant(self, name: str) -> float | None:
        """The initial value of every entry; None for a tensor that starts at random. Gains that write into the
        residual stream start lower in deeper models, like matrices that write into it."""
        constant = self.entry(name).start.constant
        return None if constant is None else constant * self.start_factor(name)

    def rate(self, name: str) -> float:
        """Learning rate of a tensor, as a multiple of that of the base, by width and depth."""
        own = math.pow(self.own_factor(name), 1 + self.law_for(name).degree)
        return self.factor(name, self.powers(name).rate) * self.shape_factor(name) / own

    def shape_factor(self, name: str) -> float:
        """The factor in ``rate`` that cancels the optimizer's own scaling of updates with the shape of a matrix."""
        entry, law = self.entry(name), self.law_for(name)
        if entry.matrix is None or not rule_named(self.rule).scales_width:
            return 1.0
        return law.shape_norm(*entry.base_matrix) / law.shape_norm(*entry.shape)

    def epsilon(self, name: str) -> float:
        """Adam's epsilon of a tensor, as a multiple of that of the base."""
        return self.factor(name, self.powers(name).epsilon) * self.own_factor(name)

    def weight_decay(self, name: str) -> float:
        """Weight decay of a tensor, as a multiple of that of the base, by width and depth. The factor ``1/lr`` of
        ``decay="independent"`` is not included."""
        return 1.0 if self.decay == "raw" else 1 / self.rate(name)

    def is_muon(self, name: str) -> bool:
        """Whether Muon, or another optimizer that trains only the matrices in blocks, trains this tensor.

        In a model without blocks these are the matrices between two sizes that grow."""
        name, law = self._planned(name), law_of(self.optimizer)
        entry = self.entries[name]
        return law.rest is not None and entry.matrix is not None and acts_inside(name, entry, self.blocks)

    # ---- using it --------------------------------------------------------------------------------------------

    def param_groups(
        self,
        model: nn.Module,
        lr: float,
        weight_decay: float = 0.0,
        eps: float = ADAM_EPSILON,
        no_decay: str | Sequence[str] = (),
        adamw_lr: float | None = None,
        betas: tuple[float, float] | None = None,
    ) -> list[dict[str, Any]]:
        """Parameter groups for a PyTorch optimizer; tensors with equal settings share one.

        Args:
            model: the planned one; it may be deferred by ``nfd.defer``, compiled, or wrapped by DDP or FSDP2.
            lr: the rate tuned at the base, at least 0. A scheduler must scale every group alike.
            weight_decay: tuned at the base, at least 0.
            eps: Adam's, of the base.
            no_decay: tensors without weight decay: ``"vectors"`` for all of one dimension (biases and gains), or a
                pattern or patterns of names, such as ``("**.bias",)``.
            adamw_lr: under Muon, the rate of the tensors that AdamW trains, tuned at the base; ``lr`` if None.
            betas: Adam's, of the small run. If None, PyTorch's: they are scaled if the plan has ``batch`` or
                ``tokens``, and otherwise left to the optimizer.

        Returns:
            groups with ``params``, ``lr``, ``lr_scale`` (the rate as a multiple of the tuned one; schedules must keep
            it), ``weight_decay`` and ``roles``. Groups for Adam and AdamW also have ``eps``; under Muon ``use_muon``
            is False for groups of AdamW.

        Raises:
            ValueError: if the model is not the planned one, or the optimizer does not accept weight decay.
        """
        law, eps = law_of(self.optimizer), check_real("eps", eps, above=0.0, below=MAX_RATE)
        if eps != ADAM_EPSILON and not any(self.law_for(name).epsilon for name in self.entries):
            raise InputError(f"eps is Adam's; got eps={eps:g} for optimizer={self.optimizer!r}. Leave it out.")
        rest_rate = law.check_rest_rate(adamw_lr)
        tuned = Tuned(
            check_real("lr", lr, least=0.0, below=MAX_RATE),
            check_real("weight_decay", weight_decay, least=0.0, below=MAX_RATE),
            eps,
            lr if rest_rate is None else rest_rate,
            ADAM_BETAS if betas is None and self.run is not None else betas and _checked_betas(betas),
        )
        if self.decay != "raw":
            law.check_decay(tuned.weight_decay)
        patterns = check_patterns("no_decay", no_decay) or []
        return groups_of(
            self, held_as_planned(model, self.entries), tuned, [patterns] if isinstance(patterns, str) else patterns
        )

    def initialize_(self, model: nn.Module, seed: int = 0, device: torch.device | str | None = None) -> None:
        """Draw matrices from N(0, std^2) and fill constant tensors, in place.

        Biases that linear, convolutional and recurrent layers of PyTorch draw by their fan-in are drawn as well, with
        the base's standard deviation. Everything else keeps the numbers of its constructor: other vectors that are not
        constant; tensors that two seeds of ``make_model`` build alike, or whose entries vary about a mean; tensors that
        do not train; layers of ``nfd.defer``. What of this the rule scales, such as an identity at the end of a branch,
        is multiplied by one factor. A note of the plan names what is kept. Its numbers come from the seed under which
        the model was built, and after training they are the trained ones: to begin again, build the model anew.

        Each tensor has a random stream of its own, so its numbers do not depend on the device or on other tensors.
        Padding rows of embeddings are zero. A sharded model (FSDP2, or other DTensors) gets the numbers of the
        unsharded one: every process draws one whole tensor after the other on the CPU, and keeps its part.

        Args:
            model: the planned one; its parameters may be on the meta device.
            seed: of all random streams; equal seeds give equal weights.
            device: where to make parameters that are on the meta device, by default the CPU; shards are made on the
                device of their mesh.

        Raises:
            ValueError: if the model is not the planned one, or the plan cannot restore a tensor on the meta device.
        """
        seed, place = check_seed(seed), check_device("cpu" if device is None else device)
        held_as_planned(model, self.entries)
        materialise(self, model, tensors(model), place)
        initialise(self, held_as_planned(model, self.entries), tensors(model), seed)

    def apply_(self, model: nn.Module, seed: int = 0, device: torch.device | str | None = None) -> nn.Module:
        """Initialise a model in place as ``initialize_`` does, insert ``nfd.Scaled`` for every multiplier, return it.

        Apply a plan before the model is compiled or wrapped. A second call draws again what is drawn and keeps the
        multipliers. A model on the meta device that was sharded by ``fully_shard`` is never held whole by a process.

        Raises:
            ValueError: as ``initialize_``, and if a multiplier belongs inside a module that cannot be wrapped.
        """
        self.initialize_(model, seed, device)
        for name, factor in self.multipliers.items():
            insert_multiplier(model, name, factor)
        return model

    def make_optimizer(
        self,
        model: nn.Module,
        lr: float,
        weight_decay: float = 0.0,
        *,
        eps: float = ADAM_EPSILON,
        no_decay: str | Sequence[str] = (),
        adamw_lr: float | None = None,
        make: Callable[..., torch.optim.Optimizer] | None = None,
        **options: Any,
    ) -> torch.optim.Optimizer:
        """The optimizer of the plan, with the scaled rates of every tensor.

        Under Muon it is Muon and AdamW in one: one ``step``, one state, the groups of both. If rates leave the ratios
        of the plan, as under a scheduler that overwrites them, the next step warns once (``check_rates``).

        Args:
            model, lr, weight_decay, eps, no_decay, adamw_lr: as in ``param_groups``.
            make: a function of groups and options that returns the optimizer: for those that PyTorch does not have
                (``"lion"``), or for your own.
            **options: of the optimizer, such as ``momentum`` and ``betas``. Under Muon each goes to the one of the two
                that has it. A plan ``for_run`` scales Adam's betas.

        Raises:
            ValueError: as ``param_groups``; naming options that the optimizer does not have.
        """
        if make is not None:
            check_callable("make", make, "a function of parameter groups")
        betas = None if self.run is None else options.pop("betas", None)
        groups = self.param_groups(model, lr, weight_decay, eps, no_decay, adamw_lr, betas)
        optimizer = optimizer_of(law_of(self.optimizer), groups, options, make)
        warn_of_lost_ratios(optimizer)
        return optimizer

    def for_run(
        self,
        batch: Sequence[float] | None = None,
        tokens: Sequence[float] | None = None,
        *,
        schedule: RateSchedule | None = None,
        critical_batch: float | Interval | None = None,
        laws: Mapping[str, bool] | None = None,
    ) -> Plan:
        """The same plan for a run of another batch size and length than the one that the rate was tuned with.

        Rates, weight decay, Adam's betas and epsilon are scaled by published laws (``nfd.scaling.run``). Each
        factor is a row of ``plan.run.factors`` with its source.

        Args:
            batch, tokens: of a step and of the whole run, ``(small, large)``, both in tokens or both in samples.
            schedule: of the small run; the large run warms up for as many tokens. See ``make_schedule``.
            critical_batch: measured in the small run, in the unit of ``batch``: a number or an interval. Rates stop
                growing beyond it. ``nfd.check(noise=True)`` estimates it.
            laws: law to False, to switch it off: ``{"tokens-rate": False}``; or to True, to apply it.

        Raises:
            ValueError, TypeError: naming the argument.

        Example::

            plan = nfd.plan(model, (64, 2), make_model=make_model, sample=x).for_run((32, 256), (1e6, 1e8))
            print(plan.run.factors[0].value)
        """
        law, scales_decay = law_of(self.optimizer), self.decay != "raw"
        return replace(self, run=run_scaling(law, batch, tokens, schedule, critical_batch, laws, scales_decay))

    def make_schedule(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
        """A scheduler with the warm-up and decay of the large run; step it after every update. It keeps the ratios.

        Raises:
            ValueError: if the plan has no schedule (``for_run``).
        """
        if self.run is None or self.run.schedule is None or self.run.steps is None:
            raise InputError("The plan has no schedule. Pass schedule=, batch= and tokens= to plan.for_run.")
        return torch.optim.lr_scheduler.LambdaLR(optimizer, partial(self.run.schedule, steps=self.run.steps))

    @staticmethod
    def check_rates(optimizer: torch.optim.Optimizer) -> None:
        """Raise unless an optimizer has the groups of a plan, with rates in the plan's ratios.

        Call it after the first step of a scheduler, or before the training in another library's trainer.

        Raises:
            TypeError: if it is not an optimizer of PyTorch.
            ValueError: naming two groups and their rates, or if the groups are not from a plan.
        """
        check_rates(optimizer)

    def explain(self) -> str:
        """A table of every tensor: role, why, fan-in, and std, rate, decay and epsilon as formula and number."""
        return explained(self)

    def __str__(self) -> str:
        return self.explain()

    # ---- storing it ------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, for JSON or a checkpoint."""
        return _plain(self)

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Plan:
        """The plan that ``to_dict`` returned; ValueError if it is not one."""
        return _restored(stored)

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON. It replaces an earlier plan; FileExistsError if ``path`` is another file."""
        _save(self, path)

    @staticmethod
    def load(path: str | Path) -> Plan:
        """The plan in a file that ``save`` wrote; ValueError if it is not a plan."""
        return _load(path)


# ---- Parameter groups of a plan: the settings of every tensor, and tensors with equal settings together.


Groups = list[dict[str, Any]]

ADAM_BETAS = (0.9, 0.999)  # PyTorch's


def _checked_betas(betas: Sequence[float]) -> tuple[float, float]:
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        raise InputTypeError(f"betas must be two numbers from 0 to below 1; got {betas!r}.")
    first, second = (check_real("betas", beta, least=0.0, below=1.0) for beta in betas)
    return first, second


VECTORS = "vectors"  # a word of no_decay


class Tuned(NamedTuple):
    """What was tuned at the base; ``adamw_lr`` is the rate of tensors that Muon leaves to AdamW.

    ``betas`` are Adam's; None where the optimizer's own stay.
    """

    lr: float
    weight_decay: float
    eps: float
    adamw_lr: float
    betas: tuple[float, float] | None


def groups_of(plan: Plan, named: Mapping[str, Held], tuned: Tuned, no_decay: Sequence[str]) -> Groups:
    """Groups of the parameters that train; ValueError when a pattern of ``no_decay`` fits no tensor."""
    spare_vectors, no_decay = VECTORS in no_decay, [pattern for pattern in no_decay if pattern != VECTORS]
    if unfit := [pattern for pattern in no_decay if not any(matches(name, pattern) for name in named)]:
        raise InputError(f"no_decay must name tensors of the model; no match for {', '.join(map(repr, unfit))}.")
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, held in named.items():
        if not held.is_trained:
            continue
        if not held.is_stored:
            plan.law_for(name).check_unstored(repr(name))
        is_spared_vector = spare_vectors and plan.entries[name].is_vector
        spared = is_spared_vector or any(matches(name, pattern) for pattern in no_decay)
        settings = _settings(plan, name, tuned._replace(weight_decay=0.0) if spared else tuned)
        group = groups.setdefault(tuple(settings.items()), {"params": [], **settings, "roles": []})
        group["params"].extend(held.parameters)
        if plan.entries[name].role not in group["roles"]:
            group["roles"].append(plan.entries[name].role)
    return list(groups.values())


def _settings(plan: Plan, name: str, tuned: Tuned) -> dict[str, Any]:
    law, own = law_of(plan.optimizer), plan.law_for(name)
    lr = tuned.lr if own is law else tuned.adamw_lr
    decay = tuned.weight_decay * plan.weight_decay(name)
    if plan.decay == "independent" and tuned.weight_decay:
        if not lr:
            raise InputError("decay='independent' divides by the rate; got lr=0. Pass lr > 0.")
        decay = decay / lr
    scale, eps, betas = plan.rate(name), tuned.eps * plan.epsilon(name), tuned.betas
    if plan.run is not None:
        scale *= plan.run.factor(Quantity.RATE, own.name)
        decay *= plan.run.factor(Quantity.DECAY, own.name)
        eps *= plan.run.factor(Quantity.EPSILON, own.name)
        betas = betas and plan.run.betas(betas, own.name)
    settings: dict[str, Any] = {"lr": lr * scale, "weight_decay": decay, SCALE: scale}
    if own.epsilon:
        settings["eps"] = eps
        settings |= {} if betas is None else {"betas": betas}
    if law.rest is not None:
        settings["use_muon"] = own is law
    return settings


# ---- How a plan begins a model: every tensor drawn or set, and forward multipliers inserted.


def initialise(plan: Plan, named: Mapping[str, Held], infos: Mapping[str, TensorInfo], seed: int) -> None:
    """Draw every random tensor N(0, std^2), from a stream of its name, and set every constant one, in place.

    What is kept has its numbers, but for a factor where the rule scales it.

    Raises:
        ValueError: where a layer that is not stored began otherwise.
    """
    for name, held in named.items():
        if held.std is not None:
            _check_begun(name, held.std, plan.std(name))
            continue
        (p,) = held.parameters
        if not p.requires_grad:
            continue
        if (start := start_of(plan, infos[name], seed)) is not None:
            fill_(p, start)
        elif plan.std(name) and plan.start_factor(name) != 1:
            with torch.no_grad():
                p.mul_(plan.std(name) / rms(whole(p).double()))  # a second call changes nothing


def start_of(plan: Plan, t: TensorInfo, seed: int) -> Tensor | None:
    """What a plan begins a tensor with, on the CPU, the same at every call; None where it leaves it as it is."""
    if plan.entries[t.name].start.kept:
        return None
    if (constant := plan.constant(t.name)) is not None:
        return torch.full(t.shape, constant, dtype=t.parameter.dtype, device="cpu")
    stream = generator(seed, "init", t.name)
    start = torch.randn(t.shape, generator=stream, dtype=torch.float32, device="cpu").mul_(plan.std(t.name))
    if t.padding is not None:
        start[t.padding] = 0
    return start


def _check_begun(name: str, std: float, planned: float) -> None:
    """ValueError unless a layer without stored weights began as the plan says."""
    if not math.isclose(std, planned, rel_tol=1e-6):
        raise InputError(
            f"{name!r} is not stored and began with standard deviation {std:.4g}; the plan begins it with "
            f"{planned:.4g}. Let nfd.defer(model, plan) make its layer."
        )


def insert_multiplier(model: nn.Module, name: str, factor: float) -> None:
    """Put ``nfd.Scaled`` around a module; one that stands there gets the factor.

    Raises:
        ValueError: when the name is that of a whole attention, whose queries have no module of their own.
    """
    module = model.get_submodule(name)
    if isinstance(module, Scaled):
        module.factor = factor
        return
    if "" in head_sizes(module):  # it is a whole attention
        raise InputError(
            f"The size of a head grows with width, and {name!r} makes queries, keys and values together, so that the "
            "factor of the logits cannot be inserted. Let make_model keep the size of a head and grow their number: "
            "heads = width // 16."
        )
    model.set_submodule(name, Scaled(module, factor))


# ---- Tensors without numbers and tensors in parts: made and filled one after the other, each process its own part.
#
# A stream of PyTorch's generator can only be drawn from its beginning. So every process draws the whole of one tensor
# on the CPU and keeps its part: the numbers are those of the unsharded model, bit for bit, no process waits for
# another, and what is needed at a time beside the parts is the memory of one tensor.


def is_sharded(p: Tensor) -> bool:
    """Whether a parameter is a DTensor, of which a process holds a part."""
    return hasattr(p, "placements")


def fill_(p: Tensor, whole: Tensor) -> None:
    """Write a whole tensor, of which a sharded parameter takes the part of this process; nothing is sent."""
    if is_sharded(p):
        from torch.distributed.tensor import distribute_tensor

        sharded: Any = p
        whole = distribute_tensor(whole.to(p.dtype), sharded.device_mesh, sharded.placements, src_data_rank=None)
    with torch.no_grad():
        p.copy_(whole)


def materialise(plan: Plan, model: nn.Module, infos: Mapping[str, TensorInfo], device: torch.device) -> None:
    """Give every parameter that is on the meta device memory, of a sharded one its part alone; tied ones stay tied.

    Args:
        device: of parameters that are not sharded. Parts go where the mesh of the sharding is.

    Raises:
        ValueError: naming tensors whose numbers no plan knows: buffers, and parameters that it leaves as they are.
    """
    empty = {id(t.parameter): name for name, t in infos.items() if t.parameter.is_meta}
    unknown = [name for name in empty.values() if not _begins(plan, infos[name])]
    unknown += [name for name, buffer in model.named_buffers() if buffer.is_meta]
    if unknown:
        raise InputError(
            f"{listed(unknown)} are on the meta device, and the plan does not know their numbers. Build the model "
            "under nfd.meta_matrices(), where buffers and vectors have numbers, or under no such context."
        )
    made: dict[int, nn.Parameter] = {}
    for module in model.modules() if empty else ():
        for key, p in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if id(p) in empty:
                if id(p) not in made:
                    made[id(p)] = nn.Parameter(torch.empty_like(p, device=_place(p, device)))
                setattr(module, key, made[id(p)])


def _place(p: Any, device: torch.device) -> torch.device | str:
    return str(p.device_mesh.device_type) if is_sharded(p) else device


def _begins(plan: Plan, t: TensorInfo) -> bool:
    return t.parameter.requires_grad and not plan.entries[t.name].start.kept


# ---- A plan as plain numbers and strings, and as a file.


FORMAT = 2


def _plain(plan: Plan) -> dict[str, Any]:
    """Numbers and strings, for JSON or a checkpoint."""
    return {"format": FORMAT, **asdict(plan)}


def _restored(stored: Any) -> Plan:
    """The plan that ``plain`` made; ValueError when it is not one."""
    if not isinstance(stored, Mapping) or stored.get("format") != FORMAT:
        got = stored.get("format") if isinstance(stored, Mapping) else type(stored).__name__
        raise InputError(f"This is not a plan of format {FORMAT}; got {got!r}. Plan the model again.")
    try:
        plan = _adapter().validate_json(json.dumps(dict(stored), allow_nan=False), strict=True)
        json.dumps(_plain(plan), allow_nan=False)  # a whole number of 400 digits was read as infinity
        law_of(plan.optimizer)
        for name in plan.entries:
            _check_numbers(plan, name)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"The stored plan is damaged ({_reason(error)}). Plan the model again.") from None
    return plan


def _save(plan: Plan, path: str | Path) -> None:
    """Write the plan as JSON, over an earlier plan if there is one; FileExistsError where another file lies there."""
    there = expanded(path)
    if there.is_file() and there.stat().st_size and not _is_plan(there):
        raise FileExistsError(f"{path} is not a plan and would be replaced. Nothing was changed. Choose another path.")
    replace_file(there, json.dumps(_plain(plan), indent=1).encode())


def _load(path: str | Path) -> Plan:
    """Read what ``save`` wrote; ValueError when it is not a plan."""
    if not isinstance(path, str | Path):
        raise InputTypeError(f"path must be a text or a Path; got {path!r}.")
    try:
        stored = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{str(path)!r} is not a plan: {error}.") from None
    return _restored(stored)


@cache
def _adapter() -> TypeAdapter[Plan]:
    return TypeAdapter(Plan)


def _check_numbers(plan: Plan, name: str) -> None:
    """ValueError unless the numbers of a tensor can be used: ratios may be so far from 1 that powers are not."""
    try:
        numbers = [of(name) for of in (plan.std, plan.rate, plan.epsilon, plan.weight_decay)]
    except ArithmeticError:
        numbers = [math.inf]
    if not all(map(math.isfinite, numbers)):
        raise InputError(f"{name!r} has ratios or powers beyond all numbers: {plan.entries[name]}")


def _reason(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _is_plan(path: Path) -> bool:
    """Whether a file holds a plan, of any version."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return False
    return isinstance(stored, dict) and {"format", "rule", "entries"} <= stored.keys()


# ---- A plan as a table that a person reads.


_COLUMNS = ("tensor", "shape", "role", "why", "fan-in", "std", "rate", "decay", "epsilon")


def explained(plan: Plan) -> str:
    """One line per tensor, those of several blocks that agree taken together, and what the reader should know."""
    table = table_of(*(Column(name, no_wrap=name in ("tensor", "role")) for name in _COLUMNS))
    for name, count, row in _rows(plan):
        table.add_row(name if count == 1 else f"{name} x{count}", *row)
    run = [] if plan.run is None else ["", plan.run.explain()]
    return "\n".join([_title(plan), _legend(plan), as_text(table, 200), *_ends(plan), *run])


def _title(plan: Plan) -> str:
    return f"Plan {plan.rule!r} for {plan.optimizer}: width x{plan.width:g}, depth x{plan.depth:g} of the base"


def _legend(plan: Plan) -> str:
    blocks = f"{len(plan.blocks)} blocks" if plan.blocks else "no blocks"
    return (
        f"{blocks}; in, out: a tensor's fan-in and fan-out over the base's; {_depths(plan)}; std is absolute, rate, "
        f"decay ({plan.decay}) and epsilon are over the base's"
    )


def _depths(plan: Plan) -> str:
    """``l = 4``, or what it is in every stack where they differ."""
    own = {
        stack: plan.entries[n].depth
        for stack, blocks in stacks_of(plan.blocks).items()
        for n in plan.entries
        if block_of(n, blocks) is not None
    }
    parts = [f"l = {depth:g} in {stack}" for stack, depth in own.items() if depth is not None]
    return ", ".join(parts) or f"l = {plan.depth:g}"


def _rows(plan: Plan) -> list[tuple[str, int, tuple[str, ...]]]:
    """Tensors of different blocks with the same row become one."""
    merged: dict[tuple[str, tuple[str, ...]], int] = {}
    for name in plan.entries:
        key = (_generic(name, plan.blocks), _row(plan, name))
        merged[key] = merged.get(key, 0) + 1
    return [(name, count, row) for (name, row), count in merged.items()]


def _row(plan: Plan, name: str) -> tuple[str, ...]:
    entry = plan.entries[name]
    std, rate, epsilon = plan.powers(name)
    start = entry.start
    own = plan.own_factor(name)
    begins = _formula(start.std, std, plan.std(name), 1 / own)
    if start.kept:
        begins = "kept" if plan.start_factor(name) == 1 or not start.std else f"kept, RMS {plan.std(name):.4g}"
    if (constant := plan.constant(name)) is not None:
        begins = f"{constant:g} (kept)"
        if constant != start.constant:
            begins = _formula(start.constant, std, constant, 1 / own)
    decay, more = "1", plan.shape_factor(name) / own ** (1 + plan.law_for(name).degree)
    if plan.decay != "raw":
        per_rate = " /lr" if plan.decay == "independent" else ""
        decay = _formula(None, rate**-1, plan.weight_decay(name), 1 / more) + per_rate
    return (
        "x".join(map(str, entry.shape)) or "scalar",
        entry.role,
        entry.why,
        "-" if entry.fan_in is None or entry.is_vector else str(entry.fan_in),
        begins,
        _formula(None, rate, plan.rate(name), more),
        decay,
        _formula(None, epsilon, plan.epsilon(name), own) if plan.law_for(name).epsilon else "-",
    )


def _formula(base: float | None, power: Power, value: float, more: float = 1.0) -> str:
    """The base's number times a power, and times what makes up for factors of the optimizer and of the model."""
    start = [] if base is None else [f"{base:.4g}"]
    powers = [] if str(power) == "1" and (start or more == 1) else [str(power)]
    terms = [" ".join([*start, *powers]), *([f"{more:.3g}"] if more != 1 else [])]
    formula = " x ".join(term for term in terms if term)
    return f"{formula} = {value:.4g}" if powers or more != 1 else formula or "1"


def _ends(plan: Plan) -> list[str]:
    alike: dict[tuple[str, float], int] = {}
    for name, factor in plan.multipliers.items():
        key = (_generic(f"{name}.", plan.blocks).rstrip("."), factor)
        alike[key] = alike.get(key, 0) + 1
    times = {count: f" x{count}" if count > 1 else "" for count in alike.values()}
    lines = [f"multiplier  {name}{times[count]}: {factor:.6g}" for (name, factor), count in alike.items()]
    return ["", *lines, *(f"note  {note}" for note in plan.notes)] if lines or plan.notes else []


def _generic(name: str, blocks: tuple[str, ...]) -> str:
    return re.sub(r"^(inner|outer)\.\d+\.", r"\1.*.", in_any_block(name, blocks))


# ---- ``nfd.plan``: from a model and its base to a ``Plan``


_CLIP = (
    "Folding moves gradient norms between tensors: a global clip acts on other tensors than in the base (Hugging "
    "Face's Trainer clips at 1.0). Clip by tensor, or raise max_grad_norm."
)
_HEADS = (
    "Attention heads are assumed to keep their size. If they grow with width, attention logits need 1/d instead of "
    "1/sqrt(d)."
)
_OWN_DEPTH = (
    "This rule does not scale with depth, and tensors begin as in the base. If your constructor lets a start depend on "
    "depth, as GPT-2 does by 1/sqrt(2L), pass make_model=, and that is kept."
)
_UNSCALED = (
    "No tensor scales some branches (gains stored as 1 + g, standardised weights): wrap the modules that end them in "
    "nfd.Scaled, factors in plan.multipliers."
)
_SHOWN = 4  # frozen tensors, by name
_LAW = (
    "No base model was given, so the plan assumes: initial weights follow fan_in^-1/2 and do not depend on depth, "
    "every dimension inside blocks grows with width, heads keep their size, and the forward pass has no factors that "
    "depend on size. Pass base= or make_model= to read this from the base itself."
)
_UNSEEN = (
    "Whether the model's own forward pass has factors that depend on its size, as Gemma's on embeddings, is not known: "
)


@gradients()
def plan(
    model: nn.Module,
    base: nn.Module | tuple[int | None, int | None] | None = None,
    *,
    make_model: MakeModel | None = None,
    rule: str | None = None,
    optimizer: str | OptimizerLaw | torch.optim.Optimizer | None = None,
    blocks: str | Sequence[str] | None = None,
    roles: Mapping[str, str] | None = None,
    decay: str = "constant-product",
    sample: Any = None,
) -> Plan:
    """Plan a large model from a small, tuned one: initial scale, rate, decay and epsilon of every tensor.

    The small model is the base. Tune its rate, and pass it to the plan of the large one, which scales it for every
    tensor by the rule. Factors are folded into initial weights and rates, with few exceptions
    (``Plan.multipliers``).

    Example::

        model = make_model(256, 8)
        plan = nfd.plan(model, base=(64, 2), make_model=make_model, sample=x)
        print(plan)
        plan.apply_(model, seed=0)
        optimizer = plan.make_optimizer(model, lr=3e-3, weight_decay=0.1)

    Args:
        model: any module; the plan does not change it. On the meta device it needs a base.
        base: the tuned model itself, or its ``(width, depth)``: arguments of ``make_model``, or without one the size of
            the residual stream and the number of blocks. None in the pair: as that of the model.
        make_model: ``make_model(width, depth)``; it shows which dimensions grow.
        rule: ``"complete-p"``, the default, ``"standard"``, ``"mup"``, ``"depth-mup"`` (that of ``nfd.ResNet``) or
            ``"depth-mup-inner"`` (Eq. 8).
        optimizer: ``"adamw"``, the default, ``"sgd"``, ``"adam"``, ``"lion"``, ``"muon"`` (for matrices in blocks,
            AdamW for the rest), ``"muon-match-rms-adamw"``, ``"muon-spectral"``, ``"muon-unit"``, a law
            (``nfd.register_optimizer``), or an optimizer object, whose law is read from it.
        blocks: pattern of the residual blocks, such as ``"transformer.h.*"``; None finds them.
        roles: pattern to role, for tensors that you know better: ``"input"``, ``"embedding"``, ``"tied"``,
            ``"vector"``, ``"hidden"``, ``"outer"``, ``"inner"``, ``"readout"``.
        decay: ``"constant-product"`` keeps rate times decay constant, ``"independent"`` the shrinkage per step,
            ``"raw"`` the decay.
        sample: an input to trace the model with: a tensor, a tuple of arguments or a dict.

    Returns:
        A ``Plan``: ``print`` shows it, ``apply_`` initialises the model, ``make_optimizer`` makes its optimizer, and
        ``for_run`` scales it to another batch and length.

    Raises:
        ValueError: naming every tensor that could not be decided; also if a depth rule meets a model without a pre-norm
            residual stream.

    Source: sections 2 and 4.2, Eq. 8; Yang et al., Tensor Programs V and VI; Dey et al. (CompleteP).
    """
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    check_stored(model)
    check_not_complex(model)
    usual_rule, usual_optimizer = defaults_of(model)
    rule = usual_rule if rule is None else rule
    chosen, law = rule_named(rule), law_of(usual_optimizer if optimizer is None else optimizer)
    if chosen.scales_width:
        check_not_parametrized(model)
    decay = check_choice("decay", decay, DECAYS)
    if chosen.regime == "kernel":
        raise InputError(f"Rule {rule!r} is for nfd.ResNet(regime='kernel'). Choose 'mup' or a depth rule.")
    given = GivenBase.checked(base, make_model)
    blocks, roles = check_patterns("blocks", blocks), checked_roles(roles)
    if sample is not None:
        check_input(sample)
    sample = mapped(sample, lambda part: plain(part) if isinstance(part, Tensor) else part)
    net = told_by(model)
    if net is not None:
        check_nothing_said(blocks, roles)
        parts = told_parts(model, net, rule, given)
    elif given.is_open and chosen.scales_width:
        raise InputError(
            "A plan compares a model with the smaller one that was tuned. Pass base=, it or its (width, depth), "
            "with make_model= where you have a constructor."
        )
    else:
        given = given.completed(model, blocks)
        parts = _parts_of_any(model, rule, given, blocks, roles, sample)
    notes = [*parts.notes, *_of_frozen(model), *([_CLIP] if chosen.scales_width else [])]
    if law.rest is not None:
        notes += notes_on_matrices(parts.entries, parts.blocks, law.rest)
    return Plan(
        cast(RuleName, rule),
        law.name,
        cast(Decay, decay),
        parts.width,
        parts.depth,
        parts.entries,
        tuple(parts.blocks),
        parts.multipliers,
        tuple(notes),
        None,
        given.size if net is None else None,
    )


def _of_frozen(model: nn.Module) -> list[str]:
    """A note on the tensors that do not train; none where all do."""
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    if not frozen:
        return []
    shown = ", ".join(frozen[:_SHOWN]) + (f" and {len(frozen) - _SHOWN} more" if len(frozen) > _SHOWN else "")
    return [f"Tensors that do not train keep the start that they have, and have no rate: {shown}."]


def _parts_of_any(
    model: nn.Module,
    rule: str,
    given: GivenBase,
    blocks: Where,
    roles: Mapping[str, str],
    sample: Any,
) -> Parts:
    """The parts of the plan of a module."""
    chosen, base = rule_named(rule), given.built(blocks)
    if blocks is None and base is not None:
        blocks = _shown_blocks(model, base, given, chosen)
    grows = None if base is None else given.growing(model, base, blocks)
    structure = anatomy(model, base, blocks=blocks, roles=roles, sample=sample, scaling=grows)
    settled = settled_roles(structure, chosen, rule, model)
    if not chosen.scales_width:  # the model's own start is that of the rule
        entries = with_layouts(entries_of_ratio(structure, settled, 1.0), structure, grows)
        entries |= {n: replace(entries[n], start=replace(entries[n].start, kept=True)) for n in parametrized(model)}
        return Parts(entries, 1.0, 1.0, [*structure.blocks])
    notes, found = [], dict[str, Own | None]()
    if base is not None:
        tuned = given.begun(base, blocks)
        entries = entries_of_base(structure, settled, tuned)
        m, depth = widest(entries), len(structure.blocks) / len(tuned.blocks) if tuned.blocks else 1.0
        as_deep: nn.Module | None = base
        if depth != 1 and not chosen.scales_depth:
            as_deep = given.as_deep(depth)
            if as_deep is None:
                notes.append(_OWN_DEPTH)
            else:
                deep = Base(tensors(as_deep), blocks_of(as_deep, blocks))
                entries, notes = with_own_depth(entries, structure, tuned, deep)
        unseen = ""
        if m == depth == 1 and all(e.depth is None for e in entries.values()):
            pass  # it is as large as the base
        elif is_unbuilt(model):
            deeper = {n: e.depth or depth for n, e in entries.items()} if chosen.scales_depth else {}
            ratios = dict.fromkeys(entries, m), deeper
            found, unseen = foreseen_factors(structure, given, ratios, tuned.blocks, blocks, sample)
        else:
            found, unseen = measured_factors(structure, base, as_deep, blocks, sample)
        entries, of_own = with_own_factors(entries, found, structure.blocks)
        notes += [*of_own, *([_UNSEEN + unseen] if unseen else [])]
    else:
        width = stream_width(structure.tensors, {name: role for name, (role, _) in settled.items()})
        if width is None and given.width is not None:
            raise InputError("The width of the model could not be found, to compare with base=. Pass make_model=.")
        m = 1.0 if width is None or given.width is None else width / given.width
        depth = len(structure.blocks) / given.depth if given.depth and structure.blocks else 1.0
        entries = entries_of_ratio(structure, settled, m)
        notes = [] if m == 1 and depth == 1 else [_LAW]
    entries = with_layouts(entries, structure, grows)
    entries, factors, of_factors = with_multipliers(model, structure, entries, found, base)
    entries, of_constants = with_own_constants(structure, entries, chosen)
    depths = {} if base is None else depths_of(structure.blocks, tuned.blocks)
    own = {
        name: depths.get(block_of(f"{name}.", structure.blocks) or "", depth)
        for name in sorted(structure.traced.unscaled)
    }
    branches = {name: chosen.std("outer").at(1.0, 1.0, deeper) for name, deeper in own.items() if deeper != 1}
    if chosen.scales_depth and branches:
        factors |= branches
        notes.append(_UNSCALED)
    knows_heads = base is not None and bool(head_sizes(model))
    notes += [*of_factors, *of_constants, *note_on_kept(entries, structure.blocks)]
    notes += [*([] if knows_heads or not structure.traced.attention else [_HEADS])]
    return Parts(entries, m, depth, [*structure.blocks], factors, notes)


def _shown_blocks(model: nn.Module, base: nn.Module, given: GivenBase, chosen: Rule) -> Repeated | None:
    """The blocks, from two instances of which one has more; None where there are none such."""
    shown = repeated(model, base)
    if shown is None and given.make_model is not None and given.depth is not None and chosen.scales_depth:
        shown = repeated(base, given.instance(depth=2 * given.depth))
    return shown


def checked_roles(roles: Mapping[str, str] | None) -> Mapping[str, str]:
    """The roles that a caller gave, none where None; TypeError where they are no dict, ValueError for no role."""
    if roles is None:
        return {}
    if not isinstance(roles, Mapping) or not all(isinstance(pattern, str) for pattern in roles):
        raise InputTypeError(
            f"roles must be a dict from pattern to role, such as {{'head.*': 'readout'}}; got {roles!r}."
        )
    for pattern, role in roles.items():
        check_choice(f"roles[{pattern!r}]", role, ROLES)
    return roles


# ---- The parameters of a model by the names of its plan: stored tensors, and factors of matrices that are not stored


_MOST = 3  # shapes that a message names


@dataclass(frozen=True)
class Held:
    """What a model holds of one tensor of a plan: its shape, and the parameters that an optimizer is to step.

    Of a tensor that is not stored these are the update and the scale of its layer, which began with ``std``.
    """

    shape: tuple[int, ...]
    parameters: tuple[nn.Parameter, ...]
    std: float | None = None

    @property
    def is_stored(self) -> bool:
        """Whether its numbers are a parameter of the model."""
        return self.std is None

    @property
    def is_trained(self) -> bool:
        """Whether it takes gradients."""
        return self.parameters[0].requires_grad


def held_by(model: nn.Module) -> dict[str, Held]:
    """What a model holds of every tensor, by the name that the tensor has where it is stored."""
    held: dict[str, Held] = {}
    factors: set[int] = set()
    for name, module in modules(model).items():
        layer: Any = module
        if getattr(module, "is_deferred", False) is True:
            factors |= {id(layer.update), id(layer.scale)}
            held[f"{name}{layer.suffix}".lstrip(".")] = Held(layer.weight_shape, (layer.update, layer.scale), layer.std)
    for name, t in tensors(model).items():
        if id(t.parameter) not in factors:
            held[name] = Held(t.shape, (t.parameter,))
    return held


@dataclass(frozen=True)
class Differences:
    """How a model differs from the one that was planned.

    Attributes:
        missing: tensors of the plan that the model does not have.
        unplanned: tensors of the model that the plan does not know.
        reshaped: the planned and the model's own shape, of tensors where they differ.
    """

    missing: tuple[str, ...] = ()
    unplanned: tuple[str, ...] = ()
    reshaped: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.missing or self.unplanned or self.reshaped)

    def __str__(self) -> str:
        shapes = [
            f"{name!r} was planned as {list(planned)}; the model's is {list(own)}."
            for name, (planned, own) in self.reshaped.items()
        ]
        parts = (("missing", self.missing), ("not planned", self.unplanned))
        more = [f"and {len(shapes) - _MOST} more shapes."] if len(shapes) > _MOST else []
        return " ".join([*(f"{state}: {listed(names)}." for state, names in parts if names), *shapes[:_MOST], *more])


def differences(held: Mapping[str, Held], entries: Mapping[str, Entry]) -> Differences:
    """How what a model holds differs from the entries of a plan; shapes of shards are not compared."""
    return Differences(
        tuple(sorted(entries.keys() - held.keys())),
        tuple(sorted(held.keys() - entries.keys())),
        {
            name: (entries[name].shape, own.shape)
            for name, own in held.items()
            if name in entries and own.shape != entries[name].shape and not hasattr(own.parameters[0], "placements")
        },
    )


def held_as_planned(model: nn.Module, entries: Mapping[str, Entry]) -> dict[str, Held]:
    """What a model holds of every tensor of a plan; ValueError when it is not the model that was planned."""
    held = held_by(model)
    if differing := differences(held, entries):
        raise InputError(
            f"The model is not the one planned: {differing} Plan it again, or build the model that was planned."
        )
    return held
