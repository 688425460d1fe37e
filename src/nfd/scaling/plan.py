"""``nfd.Plan``: initialisation, rates, decay and epsilon of every tensor of a model, at any width
and depth.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import TypeAdapter
from rich.table import Column
from torch import Tensor, nn

from nfd.core.checks import check_device, check_patterns, check_real, check_seed
from nfd.core.errors import InputError, InputTypeError
from nfd.core.estimates import Interval
from nfd.core.files import expanded, replace_file
from nfd.core.names import RuleName
from nfd.core.random import generator
from nfd.core.tables import as_text, table_of
from nfd.core.words import nearest, quoted
from nfd.scaling.model import (
    Scaled,
    TensorInfo,
    block_of,
    in_any_block,
    matches,
    modules,
    stacks_of,
    tensors,
    unwrapped,
    whole,
)
from nfd.scaling.optimizers import (
    BETAS,
    EPS,
    LAWS,
    WEIGHT_DECAY,
    BaseGroup,
    Hyperparameter,
    OptimizerLaw,
    Scale,
    check_kind,
    check_rates,
    has_argument,
    law_of,
    mark_of,
    optimizer_of,
    warn_of_lost_ratios,
)
from nfd.scaling.rules import ADAM_EPSILON, MAX_RATE, SPECTRAL, Power, Powers, Role, rule_named

if TYPE_CHECKING:
    from nfd.laws.rate_law import RateLaw
    from nfd.laws.schedules import RateSchedule
    from nfd.scaling.run import RunScaling
    from nfd.scaling.self_test import SelfTest

VECTORS = "vectors"  # a word of no_decay

Layout = Literal["out-in", "in-out"]


@dataclass(frozen=True)
class Start:
    """How a tensor begins in the base model: at a constant, at random with a standard deviation, or
    as its constructor makes it, which is kept and scaled at most. ``std`` is the RMS; 0 of what is
    never scaled."""

    std: float
    constant: float | None
    kept: bool = False


@dataclass(frozen=True)
class Ratios:
    """Fan-in and fan-out of a tensor over those in the base; and the depth: of its stack, outside
    of blocks of all.
    """

    fan_in: float
    fan_out: float
    depth: float


@dataclass(frozen=True)
class Entry:
    """The part of a plan that describes one tensor.

    Attributes:
        shape, role, why: its shape, its role, and the reason for this role.
        fan_in: number of inputs that one of its outputs sums; None if its module does not say.
        ratios: its fan-in, fan-out and depth, as multiples of those in the base.
        start: initial weights of the same tensor in the base.
        multiplier: powers by which the model's own forward multiplier scales.
        matrix: memory layout of a matrix between two sizes that grow: ``"out-in"`` (as
            ``nn.Linear``) or ``"in-out"``; None for any other tensor.
        own_factor: the constant by which the forward pass of the user's model multiplies it, over
            that of the base.
    """

    shape: tuple[int, ...]
    role: Role
    why: str
    fan_in: int | None
    ratios: Ratios
    start: Start
    multiplier: Power = field(default=Power())
    matrix: Layout | None = None
    own_factor: float = 1.0

    @property
    def base_matrix(self) -> tuple[float, float]:
        """Rows and columns of the same matrix in the base."""
        rows, columns = self.shape
        grown = self.ratios.fan_out, self.ratios.fan_in
        grown = grown if self.matrix == "out-in" else grown[::-1]
        return rows / grown[0], columns / grown[1]

    @property
    def is_vector(self) -> bool:
        """Whether it is a bias, a gain, or the like, and no vector that outputs sum over, as in ``h
        @ w``.
        """
        return len(self.shape) < 2 and self.fan_in in (None, 1)


def layout_of(t: TensorInfo) -> Layout | None:
    """How the weight of a linear map lies in memory; None for every other tensor, stacks of
    matrices included.
    """
    if len(t.shape) != 2 or not t.ins or not t.outs:
        return None
    return "out-in" if t.outs == (0,) else "in-out"


@dataclass(frozen=True)
class Plan:
    """The result of ``nfd.plan``: initial scale, rate, decay and epsilon of every tensor, by name.

    It holds no tensors, can be saved, and fits every model with the same names and shapes.

    Attributes:
        rule, optimizer: their names.
        width, depth: of the model, as multiples of the base; ``depth`` is ``l`` in the formulas.
            Where stacks, such as encoder and decoder, grow by different factors, tensors in blocks
            have that of their stack.
        entries: the numbers of every tensor, by its name in ``model.named_parameters()``.
        blocks: names of the residual blocks.
        multipliers: forward factors that cannot be folded, by module name. ``apply_`` inserts them
            as ``nfd.Scaled``.
        notes: warnings and remarks, in words.
        run: factors for batch size and length of the run; None without ``for_run``.
        base: width and depth of the base, as arguments of ``make_model``; None without it, and for
            networks of the paper.
        logits: by how much larger than in the base attention logits get, where that is seen, by the
            matrix of their queries: heads that grow need logits over their size d, not its root.

    Example::

        plan = nfd.plan(model, rule="complete-p", make_model=make_model, base=(64, 2), sample=x)
        print(plan)  # a row for every tensor
        plan.save("plan.json")
        nfd.Plan.load("plan.json").apply_(model, seed=0)
    """

    rule: RuleName
    optimizer: str
    width: float
    depth: float
    entries: dict[str, Entry]
    blocks: tuple[str, ...]
    multipliers: dict[str, float]
    notes: tuple[str, ...]
    run: RunScaling | None = None
    base: tuple[float, float] | None = None
    logits: dict[str, float] = field(default_factory=dict)

    @property
    def roles(self) -> dict[str, Role]:
        """The role of every tensor."""
        return {name: entry.role for name, entry in self.entries.items()}

    @property
    def stacks(self) -> dict[str, tuple[str, ...]]:
        """The blocks of every stack (``stacks_of``). Where parts of blocks lie in lists of their
        own, the list that writes the stream is the stack, and those that lie inside of its branches
        are none."""
        inside = {
            block_of(name, self.blocks)
            for name, entry in self.entries.items()
            if entry.role != "inner"
        }
        holders = {block.rpartition(".")[0] for block in inside if block}
        return stacks_of([b for b in self.blocks if b.rpartition(".")[0] in holders] or self.blocks)

    # ---- the scale of one tensor

    def entry(self, name: str) -> Entry:
        """The entry of a tensor, by its name in the model, also in one that is compiled or wrapped
        by DDP or FSDP.

        Raises:
            ValueError: if the plan has no such tensor.
        """
        return self.entries[self._planned(name)]

    def _planned(self, name: str) -> str:
        if name in self.entries:
            return name
        same = [planned for planned in self.entries if unwrapped(planned) == unwrapped(name)]
        if len(same) != 1:  # a module of the user's may itself be called "module"
            hint = nearest(unwrapped(name), self.entries)
            raise InputError(
                f"the plan has no tensor {name!r}.{hint} Its names are those of "
                "model.named_parameters()."
            )
        return same[0]

    def powers(self, name: str) -> Powers:
        """How std, rate and epsilon of a tensor scale with its fans and the depth, including
        forward multipliers.
        """
        entry = self.entry(name)
        narrow = (
            entry.role in SPECTRAL
            and entry.ratios.fan_out == 1 != entry.ratios.fan_in
            and not entry.is_vector
        )
        rule = rule_named(self.rule)
        law = self.law_for(name)
        return rule.powers(entry.role, law, entry.multiplier, vector=entry.is_vector, narrow=narrow)

    def law_for(self, name: str) -> OptimizerLaw:
        """The law of the optimizer that trains a tensor; under Muon some tensors have AdamW's."""
        law = law_of(self.optimizer)
        if law.rest is not None and not self.is_muon(name):
            law = law_of(law.rest)
        return law.for_vectors() if self.entry(name).is_vector else law

    def is_muon(self, name: str) -> bool:
        """Whether Muon, or another optimizer that trains only the matrices in blocks, trains this
        tensor.

        Matrices at the ends of the model are not in blocks, nor is what conditions the blocks from
        outside, such as the time of a diffusion model. In a model without blocks all are that lie
        between two sizes that grow."""
        entry = self.entry(name)
        block = block_of(self._planned(name), self.blocks)
        is_inside = entry.role in SPECTRAL and (
            entry.role != "hidden" or block is not None or not self.blocks
        )
        return is_inside and entry.matrix is not None and law_of(self.optimizer).rest is not None

    def factor(self, name: str, power: Power) -> float:
        """The value of a power for a tensor: at its ratios of fan-in, fan-out and depth to the
        base.
        """
        ratios = self.entry(name).ratios
        return power.at(ratios.fan_in, ratios.fan_out, ratios.depth)

    def own_factor(self, name: str) -> float:
        """The factor by which the model's own forward pass multiplies a tensor, over that of the
        base, where the plan makes up for it; else 1."""
        return self.entry(name).own_factor if rule_named(self.rule).scales_width else 1.0

    def start_factor(self, name: str) -> float:
        """The initial entries of a tensor, as a multiple of those of the base."""
        return self.factor(name, self.powers(name).std) / self.own_factor(name)

    def std(self, name: str) -> float:
        """Initial standard deviation of the entries; 0 for a tensor that starts at a constant."""
        return self.entry(name).start.std * self.start_factor(name)

    def constant(self, name: str) -> float | None:
        """The initial value of every entry; None for a tensor that starts at random. Gains that
        write into the residual stream start lower in deeper models, like matrices that write into
        it."""
        constant = self.entry(name).start.constant
        return None if constant is None else constant * self.start_factor(name)

    def rate(self, name: str) -> float:
        """Learning rate of a tensor, as a multiple of that of the base, by width and depth."""
        return self.factor(name, self.powers(name).rate) * self._compensation(name)

    def _compensation(self, name: str) -> float:
        """The factor of a rate beside its powers: it cancels how the optimizer itself scales
        updates with the shape of a matrix, and how the model itself multiplies the tensor."""
        entry = self.entry(name)
        law = self.law_for(name)
        factor = math.pow(self.own_factor(name), -1 - law.degree)
        if entry.matrix is None or not rule_named(self.rule).scales_width:
            return factor
        return factor * law.shape_norm(*entry.base_matrix) / law.shape_norm(*entry.shape)

    def epsilon(self, name: str) -> float:
        """Adam's epsilon of a tensor, as a multiple of that of the base."""
        return self.factor(name, self.powers(name).epsilon) * self.own_factor(name)

    def weight_decay(self, name: str) -> float:
        """Weight decay of a tensor, as a multiple of that of the base: rate times decay is the same
        at every size.
        """
        return 1 / self.rate(name)

    # ---- beginning a model

    def apply_(
        self, model: nn.Module, seed: int = 0, device: torch.device | str | None = None
    ) -> nn.Module:
        """Begin a model in place: draw matrices from N(0, std^2), fill constant tensors, insert
        ``nfd.Scaled`` for every multiplier; returns the model. Apply a plan before the model is
        compiled or wrapped.

        Biases that layers of PyTorch draw by their fan-in are drawn as well, with the base's
        standard deviation. Everything else keeps the numbers of its constructor: other vectors that
        are not constant; tensors that two seeds of ``make_model`` build alike, or whose entries
        vary about a mean; tensors that do not train; layers of ``nfd.defer``. What of this the rule
        scales, such as an identity at the end of a branch, is multiplied by one factor. A second
        call draws again what is drawn; what is kept stays as trained.

        Each tensor has a random stream of its own, so its numbers depend on neither the device nor
        other tensors. Padding rows of embeddings are zero. A sharded model (FSDP2, or other
        DTensors) gets the numbers of the unsharded one; on the meta device it is never held whole
        by a process.

        Args:
            model: the planned one; its parameters may be on the meta device.
            seed: of all random streams; equal seeds give equal weights.
            device: where to make parameters that are on the meta device, by default the CPU; shards
                are made on the device of their mesh.

        Raises:
            ValueError: if the model is not the planned one, the plan cannot restore a tensor on the
                meta device, or a multiplier belongs inside a module that cannot be wrapped.
        """
        seed = check_seed(seed)
        place = check_device("cpu" if device is None else device)
        held_as_planned(model, self.entries)
        _materialise(self, model, place)
        infos = tensors(model)
        for name, held in held_by(model).items():
            if held.std is not None:
                if not math.isclose(held.std, self.std(name), rel_tol=1e-6):
                    raise InputError(
                        f"{name!r} is not stored and began with standard deviation {held.std:.4g}; "
                        f"the plan begins it with {self.std(name):.4g}. Let nfd.defer(model, plan) "
                        "make its layer."
                    )
            elif not held.is_trained:
                continue
            elif (start := drawn(self, infos[name], seed)) is not None:
                fill_(held.parameters[0], start)
            elif self.std(name) and self.start_factor(name) != 1:
                (p,) = held.parameters
                with torch.no_grad():  # to its RMS, so that a second call changes nothing
                    p.mul_(self.std(name) / whole(p).double().square().mean().sqrt())
        for name, factor in self.multipliers.items():
            module = model.get_submodule(name)
            if isinstance(module, Scaled):
                module.factor = factor
            else:
                model.set_submodule(name, Scaled(module, factor))
        return model

    # ---- training it

    def param_groups(
        self,
        model: nn.Module,
        lr: float,
        weight_decay: float | None = None,
        eps: float | None = None,
        no_decay: str | Sequence[str] = (),
        adamw_lr: float | None = None,
        betas: Sequence[float] | None = None,
    ) -> list[dict[str, Any]]:
        """Parameter groups for a PyTorch optimizer; tensors with equal settings share one.

        Settings that you do not choose here are those of the optimizer, and are scaled when it
        takes the groups: ``AdamW(groups, weight_decay=0.1)`` has 0.1 at the base. Until then the
        groups show decay 0 and PyTorch's ``eps``. A decay that nobody sets is 0.

        Args:
            model: the planned one; it may be deferred by ``nfd.defer``, compiled, or wrapped by DDP
                or FSDP2.
            lr: the rate tuned at the base, at least 0. A scheduler must scale every group alike.
            weight_decay: tuned at the base, at least 0.
            eps: Adam's, of the base.
            no_decay: tensors without weight decay: ``"vectors"`` for all of one dimension (biases
                and gains), or a pattern or patterns of names, such as ``("**.bias",)``.
            adamw_lr: under Muon, the rate of the tensors that AdamW trains, tuned at the base;
                ``lr`` if None.
            betas: Adam's, of the small run, two or more. They are scaled if the plan has ``batch``
                or ``tokens``.

        Returns:
            groups with ``params``, ``lr``, ``lr_scale`` (the rate as a multiple of the tuned one;
            schedules must keep it), ``weight_decay`` and ``roles``. Groups for Adam and AdamW also
            have ``eps``; under Muon ``use_muon`` is False for groups of AdamW.

        Raises:
            ValueError: if the model is not the planned one, or the optimizer does not accept weight
                decay.
        """
        chosen = {"weight_decay": weight_decay, "eps": eps, "betas": betas}
        groups = self.base_groups(model, lr, chosen, no_decay, adamw_lr)
        return [group.public() for group in groups]

    def base_groups(
        self,
        model: nn.Module,
        lr: float,
        chosen: Mapping[str, Any],
        no_decay: str | Sequence[str] = (),
        adamw_lr: float | None = None,
    ) -> list[BaseGroup]:
        """The parameters that are stepped alike, with settings of the base; None is one that nobody
        chose.

        Raises:
            ValueError, TypeError: as ``param_groups``.
        """
        law = law_of(self.optimizer)
        rest_lr = law.check_rest_rate(adamw_lr)
        lr = check_real("lr", lr, least=0.0, below=MAX_RATE)
        chosen = self._checked_settings(law, chosen)
        held = held_as_planned(model, self.entries)
        given = check_patterns("no_decay", no_decay) or []
        patterns = [given] if isinstance(given, str) else given
        if unfit := [
            p for p in patterns if p != VECTORS and not any(matches(name, p) for name in held)
        ]:
            raise InputError(
                "no_decay must name tensors of the model; no match for "
                f"{', '.join(map(repr, unfit))}."
            )
        groups: dict[tuple[Any, ...], BaseGroup] = {}
        for name, tensor in held.items():
            if not tensor.is_trained:
                continue
            by = self.law_for(name)
            entry = self.entries[name]
            if tensor.std is not None:
                by.check_unstored(repr(name))
            is_spared = any(
                len(entry.shape) < 2 if p == VECTORS else matches(name, p) for p in patterns
            )
            is_first = law.rest is None or by.name == law.name
            tuned = lr if rest_lr is None or is_first else rest_lr
            rate = self.rate(name) * self._run_factor("rate", by)
            scales = tuple(self._scale(name, setting, is_spared) for setting in by.settings)
            key = (tuned, rate, by.name, scales)
            if key not in groups:
                theirs = {n: value for n, value in chosen.items() if by.setting(n) is not None}
                scale = partial(self._scale, name, is_spared=is_spared)
                mark = mark_of(law, is_first)
                groups[key] = BaseGroup([], [], tuned, rate, by, scale, theirs, mark)
            group = groups[key]
            group.parameters.extend(tensor.parameters)
            if entry.role not in group.roles:
                group.roles.append(entry.role)
        return list(groups.values())

    def _checked_settings(self, law: OptimizerLaw, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that the caller chose, those of running means as tuples."""
        settings = {name: value for name, value in chosen.items() if value is not None}
        if EPS.name in settings:
            settings["eps"] = check_real("eps", settings["eps"], above=0.0, below=MAX_RATE)
            eps = settings["eps"]
            if (
                not any(self.law_for(name).setting("eps") for name in self.entries)
                and eps != ADAM_EPSILON
            ):
                raise InputError(
                    f"eps is Adam's; got eps={eps:g} for optimizer={self.optimizer!r}. Leave it "
                    "out."
                )
        if WEIGHT_DECAY.name in settings:
            decay = check_real("weight_decay", settings["weight_decay"], least=0.0, below=MAX_RATE)
            law.check_decay(decay)
            settings["weight_decay"] = decay
        if BETAS.name in settings:
            betas = settings["betas"]
            if not isinstance(betas, tuple | list) or len(betas) < 2:
                raise InputTypeError(
                    f"betas must be two numbers from 0 to below 1, or more; got {betas!r}."
                )
            settings["betas"] = tuple(betas)
        return settings

    def _scale(self, name: str, setting: Hyperparameter, is_spared: bool = False) -> Scale:
        """How a setting of the group of a tensor follows from that of the base."""
        law = self.law_for(name)
        follows = setting.follows
        factor = self._run_factor(setting.quantity, law)
        if rule_named(self.rule).scales_width:
            factor *= self.factor(name, setting.size)
        if follows == "epsilon":
            return Scale(factor * self.epsilon(name) * self._run_factor("epsilon", law))
        if setting.name == WEIGHT_DECAY.name and is_spared:
            return Scale(0.0)
        if follows == "weight decay":
            return Scale(factor * self.weight_decay(name) * self._run_factor("weight decay", law))
        if follows is None:
            return Scale(factor)
        averages = follows if isinstance(follows, tuple) else (follows,)
        half_lives = [
            1.0 if average is None else self._run_factor(f"half-life of {average}, in steps", law)
            for average in averages
        ]
        return Scale(1.0, () if all(h == 1 for h in half_lives) else tuple(half_lives))

    def _run_factor(self, quantity: str, law: OptimizerLaw) -> float:
        """The factor of batch and length for a quantity."""
        return 1.0 if self.run is None else self.run.factor(quantity, law.name)

    def make_optimizer(
        self,
        model: nn.Module,
        lr: float,
        weight_decay: float | None = None,
        *,
        eps: float | None = None,
        no_decay: str | Sequence[str] = (),
        adamw_lr: float | None = None,
        make: Callable[..., torch.optim.Optimizer] | None = None,
        **options: Any,
    ) -> torch.optim.Optimizer:
        """The optimizer of the plan, with the scaled rates of every tensor.

        Under Muon it is Muon and AdamW in one: one ``step``, one state, the groups of both. If
        rates leave the ratios of the plan, as under a scheduler that overwrites them, the next step
        warns once (``check_rates``).

        What ``make`` sets is the base's value, and is scaled: decay, epsilon, and ``for_run`` the
        betas. A value that it writes into a group goes before one for all groups. A decay that
        nobody sets is 0, also where PyTorch has another default.

        Args:
            model, lr, weight_decay, eps, no_decay, adamw_lr: as in ``param_groups``.
            make: a function of groups and options that returns the optimizer, or its class: for
                those that PyTorch does not have (``"lion"``), or for your own. Under Muon it makes
                the one of the matrices.
            **options: of the optimizer, such as ``momentum`` and ``betas``. Under Muon each goes to
                the one of the two that has it. A plan ``for_run`` scales running means, such as
                Adam's betas.

        Raises:
            ValueError: as ``param_groups``; naming options that the optimizer does not have,
                settings that are chosen both here and by ``make``, and an optimizer that is known
                to have another law.
        """
        chosen = {"weight_decay": weight_decay, "eps": eps}
        for_groups = [
            name for name in options if self._follows(name) and not has_argument(make, name)
        ]
        followed = {name: options.pop(name) for name in for_groups}
        groups = self.base_groups(model, lr, {**chosen, **followed}, no_decay, adamw_lr)
        optimizer = optimizer_of(law_of(self.optimizer), groups, options, make)
        check_kind(optimizer, law_of(self.optimizer))
        warn_of_lost_ratios(optimizer)
        return optimizer

    def _follows(self, option: str) -> bool:
        """Whether an option is a hyperparameter that a plan scales."""
        law = law_of(self.optimizer)
        laws = [law] if law.rest is None else [law, law_of(law.rest)]
        settings = [by.setting(option) for by in laws]
        return any(setting is not None and not setting.is_kept for setting in settings)

    check_rates = staticmethod(check_rates)

    def for_run(
        self,
        batch: Sequence[float] | None = None,
        tokens: Sequence[float] | None = None,
        *,
        schedule: RateSchedule | None = None,
        critical_batch: float | Interval | None = None,
        laws: Mapping[str, bool] | None = None,
        law: RateLaw | None = None,
    ) -> Plan:
        """The same plan for a run of another batch size and length than the one that the rate was
        tuned with.

        Each factor is a row of ``plan.run.factors`` with its source. The rate follows a law of the
        best one, with the factor's 95 % interval and what missing the best is expected to cost;
        under SGD the theorem. Weight decay, Adam's betas and epsilon follow published laws
        (``nfd.scaling.run``).

        Args:
            batch, tokens: of a step and of the whole run, ``(small, large)``, both in tokens. What
                is left out is equal in both runs, and widens the interval. Of images: both in
                samples, beside ``critical_batch`` in samples.
            schedule: of the small run; the large run warms up for as many tokens. See
                ``make_schedule``.
            critical_batch: measured in the small run, in the unit of ``batch``: a number or an
                interval. Rates stop growing beyond it. ``nfd.check(noise=True)`` estimates it.
            laws: law to False, to switch it off: ``{"beta1-half-life": False}``.
            law: of the best rate over batch and tokens: that of your runs
                (``nfd.fit_rate_law(table)``), for any optimizer. By default what public sweeps of
                AdamW have in common (``nfd.RateLaw.of_sweeps()``), which is an assumption under
                Muon and Lion, and is not used under SGD.

        Raises:
            ValueError, TypeError: naming the argument.

        Example::

            plan = nfd.plan(model, (64, 2), make_model=make_model, sample=x)
            plan = plan.for_run((32, 256), (1e6, 1e8))
            print(plan.run.factors[0].value)
        """
        from nfd.scaling.run import run_scaling

        own = law_of(self.optimizer)
        return replace(
            self, run=run_scaling(own, batch, tokens, schedule, critical_batch, laws, law)
        )

    def make_schedule(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
        """A scheduler with the warm-up and decay of the large run; step it after every update. It
        keeps the ratios.

        Raises:
            ValueError: if the plan has no schedule (``for_run``).
        """
        if self.run is None or self.run.schedule is None or self.run.steps is None:
            raise InputError(
                "The plan has no schedule. Pass schedule=, batch= and tokens= to plan.for_run."
            )
        return torch.optim.lr_scheduler.LambdaLR(
            optimizer, partial(self.run.schedule, steps=self.run.steps)
        )

    # ---- testing it

    def self_test(
        self,
        make_model: Callable[[int, int], nn.Module],
        sample: Any,
        *,
        base: tuple[int, int] | None = None,
        repair: bool = False,
        seeds: int = 2,
    ) -> SelfTest:
        """Run the planned model at small sizes, and compare what it does with what the rule
        promises.

        A plan reads how a model is written. This test runs it instead: the numbers of the plan are
        carried to the base, to a model 4 times as wide and to one 4 times as deep. Some forward and
        backward passes show how the effect of each tensor's update, ``rate * |gradient|`` in the
        dual norm of the optimizer, initial activations, the stream and the outputs follow width and
        depth. Under the rule most of them do not change. It takes as long as several plans
        (docs/howto/plan.md), and ``print`` says what is off, where, by which power, and what to do.

        It does not see weight decay, Adam's epsilon, 16 bits, or what only long training shows. Of
        that it says only which logits of attention grow, where the plan has read it.

        Example::

            test = plan.self_test(make_model, x)
            print(test)
            assert test.ok

        Args:
            make_model: ``make_model(width, depth)``, as for ``nfd.plan``.
            sample: an input of the model: a tensor, a tuple of arguments or a dict.
            base: width and depth of the smallest network; by default those of the plan's base.
            repair: also search which factors on initial weights and rates mend what is off. Slow,
                and only proposed: nothing is changed.
            seeds: initialisations of each network; some tests take more.

        Returns:
            An ``nfd.SelfTest``: ``ok``, and a row for every quantity.

        Raises:
            ValueError: if the rule promises nothing (``"standard"``), the plan does not fit the
                model, or the model cannot be built at these sizes.

        Source: Yang et al., Tensor Programs V, appendix D.1 (coordinate checks); Yang et al., A
        Spectral Condition for Feature Learning.
        """
        from nfd.scaling.self_test import self_test  # planning alone does without it

        return self_test(self, make_model, sample, base=base, repair=repair, seeds=seeds)

    # ---- showing and storing it

    def explain(self, lr: float | None = None, adamw_lr: float | None = None) -> str:
        """A table of every tensor: role, why, and std, rate and epsilon as formula and number.

        Tensors of several blocks that agree are one line.

        Args:
            lr, adamw_lr: rates that were tuned at the base. With them rates are absolute, as
                ``make_optimizer`` sets them; without them they are multiples of the tuned one.
        """
        if lr is not None:
            lr = check_real("lr", lr, above=0.0, below=MAX_RATE)
        rest_lr = (
            law_of(self.optimizer).check_rest_rate(adamw_lr, above=0.0) if lr is not None else None
        )

        def anywhere(name: str) -> str:
            return re.sub(r"^(inner|outer)\.\d+\.", r"\1.*.", in_any_block(name, self.blocks))

        rows = Counter((anywhere(name), *self._row(name, lr, rest_lr)) for name in self.entries)
        inserted = Counter(
            (anywhere(f"{name}.").rstrip("."), factor) for name, factor in self.multipliers.items()
        )
        stacks = {block: stack for stack, blocks in self.stacks.items() for block in blocks}
        inside = (
            (block_of(name, self.blocks), entry.ratios.depth)
            for name, entry in self.entries.items()
        )
        own = {stacks[block]: depth for block, depth in inside if block is not None}
        depths = ", ".join(f"l = {depth:g} in {stack}" for stack, depth in own.items())
        depths = depths if len(set(own.values())) > 1 else f"l = {self.depth:g}"
        columns = ("tensor", "shape", "role", "why", "std", "rate", "epsilon")
        table = table_of(*(Column(name, no_wrap=name in ("tensor", "role")) for name in columns))
        for (name, *cells), n in rows.items():
            table.add_row(f"{name} x{n}" if n > 1 else name, *cells)
        base = "" if self.base is None else " (width {:g}, depth {:g})".format(*self.base)
        over = (
            "rate and epsilon are"
            if lr is None
            else f"rates are for {lr:.4g} at the base, epsilon is"
        )
        lines = [
            f"Plan {self.rule!r} for {self.optimizer}: width x{self.width:g}, depth {depths} times "
            f"the base's{base}; {len(self.blocks) or 'no'} blocks",
            f"in, out: a tensor's fan-in and fan-out over the base's; {over} over the base's, too",
            as_text(table, 200),
            *(
                f"multiplier  {name}{f' x{n}' if n > 1 else ''}: {factor:.6g}"
                for (name, factor), n in inserted.items()
            ),
            *(f"note  {note}" for note in self.notes),
            *(["", self.run.explain()] if self.run is not None else []),
        ]
        return "\n".join(lines)

    def _row(self, name: str, lr: float | None, rest_lr: float | None) -> tuple[str, ...]:
        """The cells of a tensor's line after its name; with ``lr`` its rate is absolute."""
        entry = self.entries[name]
        own = self.own_factor(name)
        law = self.law_for(name)
        tuned = lr if rest_lr is None or law is law_of(self.optimizer) else rest_lr
        more = self._compensation(name)
        value = self.rate(name)
        if tuned is not None:
            of_run = 1.0 if self.run is None else self.run.factor("rate", law.name)
            more *= of_run
            value *= tuned * of_run
        std, rate, epsilon = self.powers(name)
        base = entry.start.std if entry.start.constant is None else entry.start.constant
        begins = _formula(std, base * self.start_factor(name), 1 / own, f"{base:.4g}")
        if entry.start.kept:
            begins = (
                "kept"
                if self.start_factor(name) == 1 or not base
                else f"kept, RMS {self.std(name):.4g}"
            )
        return (
            "x".join(map(str, entry.shape)) or "scalar",
            entry.role,
            entry.why,
            begins,
            _formula(rate, value, more, "" if tuned is None else f"{tuned:.4g}"),
            _formula(epsilon, self.epsilon(name), own) if law.epsilon else "-",
        )

    def __str__(self) -> str:
        return self.explain()

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, for JSON or a checkpoint."""
        return asdict(self)

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Plan:
        """The plan that ``to_dict`` returned; ValueError if it is not one."""
        return _read(json.dumps(stored))

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON; it replaces a file at ``path``."""
        replace_file(expanded(path), json.dumps(self.to_dict(), indent=1).encode())

    @staticmethod
    def load(path: str | Path) -> Plan:
        """The plan in a file that ``save`` wrote; ValueError if it is not a plan."""
        return _read(expanded(path).read_bytes(), str(path))


def _formula(power: Power, value: float, more: float, base: str = "") -> str:
    """The base's number times a power, and times what makes up for factors of the optimizer and of
    the model.
    """
    factors = [base, "" if power == Power() else str(power), "" if more == 1 else f"x {more:.3g}"]
    formula = " ".join(filter(None, factors)) or "1"
    return formula if power == Power() and more == 1 else f"{formula} = {value:.4g}"


def _read(text: str | bytes, place: str = "The stored plan") -> Plan:
    from nfd.scaling.run import RunScaling  # noqa: F401  # where pydantic finds the type of a field

    try:
        plan = TypeAdapter(Plan).validate_json(text, strict=True)
        _check_numbers(plan.to_dict())
    except ValueError as error:
        reason = " ".join(str(error).partition(" [type=")[0].splitlines()[1:]) or str(error)
        raise InputError(
            f"{place} is damaged, or no plan ({reason.strip()}). Plan the model again."
        ) from None
    if plan.optimizer not in LAWS:
        raise InputError(
            f"{place} is damaged, or for an optimizer that is not known here: {plan.optimizer!r}."
            f"{nearest(plan.optimizer, LAWS)} Register its law before (nfd.register_optimizer), or "
            "plan the model again."
        )
    return plan


# Sizes, ratios, factors and rates of a plan are above 0. These are not, or need not be:
_FROM_ZERO = frozenset({"std", "shape", "warmup", "final"})
_OF_ANY_SIGN = frozenset({"constant", "multiplier"})
# Statistics of a rate law, which may be unknown (not-a-number) or unbounded; no rate is made of
# them.
_STATISTICS = frozenset({"interval", "excess"})


def _check_numbers(stored: Mapping[str, Any]) -> None:
    """Raise ValueError, naming the field, for a number that no plan holds."""
    ahead: list[tuple[str, str, Any]] = [(key, key, value) for key, value in stored.items()]
    while ahead:
        place, field_name, value = ahead.pop()
        if isinstance(value, Mapping):
            inside = field_name in _OF_ANY_SIGN | _STATISTICS
            for key, part in value.items():
                ahead.append((f"{place}[{key!r}]", field_name if inside else str(key), part))
        elif isinstance(value, tuple | list):
            ahead += [(f"{place}[{k}]", field_name, part) for k, part in enumerate(value)]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            _check_number(place, field_name, float(value))


def _check_number(place: str, field_name: str, value: float) -> None:
    """Raise ValueError unless a number can stand in a field of a plan."""
    if field_name in _STATISTICS:
        if value < 0:
            raise InputError(f"{place} must be at least 0; got {value:g}.")
    elif field_name in _OF_ANY_SIGN:
        check_real(place, value)
    elif field_name in _FROM_ZERO or (field_name == "fan_in" and "['ratios']" not in place):
        check_real(place, value, least=0.0)
    else:
        check_real(place, value, above=0.0)


# ---- the parameters of a model by the names of its plan


@dataclass(frozen=True)
class Held:
    """What a model holds of one tensor of a plan: its shape, and the parameters that an optimizer
    is to step.

    Of a tensor that is not stored these are the update and the scale of its layer, which began with
    ``std``.
    """

    shape: tuple[int, ...]
    parameters: tuple[nn.Parameter, ...]
    std: float | None = None

    @property
    def is_trained(self) -> bool:
        """Whether it takes gradients."""
        return self.parameters[0].requires_grad


def held_by(model: nn.Module) -> dict[str, Held]:
    """What a model holds of every tensor, by the name that the tensor has where it is stored."""
    held: dict[str, Held] = {}
    for name, module in modules(model).items():
        layer: Any = module
        if getattr(module, "is_deferred", False) is True:
            shape = tuple(layer.weight.shape)
            parameters = (layer.update, layer.scale)
            held[f"{name}{layer.suffix}".lstrip(".")] = Held(shape, parameters, layer.std)
    factors = {id(p) for unstored in held.values() for p in unstored.parameters}
    stored = {name: t for name, t in tensors(model).items() if id(t.parameter) not in factors}
    return held | {name: Held(t.shape, (t.parameter,)) for name, t in stored.items()}


def held_as_planned(model: nn.Module, entries: Mapping[str, Entry]) -> dict[str, Held]:
    """What a model holds of every tensor of a plan; ValueError when it is not the model that was
    planned.
    """
    held = held_by(model)
    parts = {"missing": entries.keys() - held.keys(), "not planned": held.keys() - entries.keys()}
    said = [f"{state}: {quoted(sorted(names))}." for state, names in parts.items() if names]
    for name, own in held.items():
        planned = entries[name].shape if name in entries else own.shape
        if own.shape != planned and not is_sharded(own.parameters[0]) and len(said) < 3:
            said.append(
                f"{name!r} was planned as {list(planned)}; the model's is {list(own.shape)}."
            )
    if said:
        raise InputError(
            f"The model is not the one planned: {' '.join(said)} Plan it again, or build the one "
            "planned."
        )
    return held


# ---- how tensors begin, also without numbers and in parts
#
# A stream of PyTorch's generator can only be drawn from its beginning. So every process draws the
# whole of one tensor on the CPU and keeps its part: the numbers are those of the unsharded model,
# bit for bit, no process waits for another, and what is needed at a time beside the parts is the
# memory of one tensor.


def drawn(plan: Plan, t: TensorInfo, seed: int) -> Tensor | None:
    """What a plan begins a tensor with, on the CPU, the same at every call; None where it leaves it
    as it is.
    """
    if plan.entries[t.name].start.kept:
        return None
    if (constant := plan.constant(t.name)) is not None:
        return torch.full(t.shape, constant, dtype=t.parameter.dtype, device="cpu")
    stream = generator(seed, "init", t.name)
    start = torch.randn(t.shape, generator=stream, dtype=torch.float32, device="cpu").mul_(
        plan.std(t.name)
    )
    if t.padding is not None:
        start[t.padding] = 0
    return start


def is_sharded(p: Tensor) -> bool:
    """Whether a parameter is a DTensor, of which a process holds a part."""
    return hasattr(p, "placements")


def fill_(p: Tensor, whole: Tensor) -> None:
    """Write a whole tensor, of which a sharded parameter takes the part of this process; nothing is
    sent.
    """
    if is_sharded(p):
        from torch.distributed.tensor import distribute_tensor

        sharded: Any = p
        whole = distribute_tensor(
            whole.to(p.dtype), sharded.device_mesh, sharded.placements, src_data_rank=None
        )
    with torch.no_grad():
        p.copy_(whole)


def _materialise(plan: Plan, model: nn.Module, device: torch.device) -> None:
    """Give every parameter that is on the meta device memory, of a sharded one its part alone; tied
    ones stay tied. ValueError naming tensors whose numbers, or hooks, no plan knows: buffers, and
    parameters that it leaves."""
    empty = {name: t.parameter for name, t in tensors(model).items() if t.parameter.is_meta}
    unknown = [
        n
        for n, p in empty.items()
        if not p.requires_grad or p._backward_hooks or plan.entries[n].start.kept
    ]
    unknown += [name for name, buffer in model.named_buffers() if buffer.is_meta]
    if unknown:
        raise InputError(
            f"{quoted(unknown)} are on the meta device, and the plan does not know their numbers, "
            "or hooks. Build the model under nfd.meta_matrices(), where buffers and vectors have "
            "numbers, or under no such context."
        )
    made: dict[int, nn.Parameter] = {}
    for p in empty.values():
        sharded: Any = p
        place = str(sharded.device_mesh.device_type) if is_sharded(p) else device
        made[id(p)] = nn.Parameter(torch.empty_like(p, device=place))
    for module in model.modules() if empty else ():
        for key, p in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if id(p) in made:
                setattr(module, key, made[id(p)])
