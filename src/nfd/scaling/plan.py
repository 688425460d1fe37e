"""``nfd.plan``: initialisation, rates, decay and epsilon of every tensor of a model, at any width and depth."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch import nn

from nfd.core.errors import InputError, check_callable, check_device, check_patterns, check_real, check_seed, nearest
from nfd.core.names import Decay, RuleName
from nfd.scaling import stored_plan
from nfd.scaling.combined import optimizer_of
from nfd.scaling.entry import Entry
from nfd.scaling.explain import explained
from nfd.scaling.grouping import Tuned, groups_of
from nfd.scaling.held import held_as_planned
from nfd.scaling.initialising import initialise, insert_multiplier
from nfd.scaling.kept_rates import check_rates, warn_of_lost_ratios
from nfd.scaling.laws import OptimizerLaw, law_of
from nfd.scaling.matrices import acts_inside
from nfd.scaling.rules import ADAM_EPSILON, MAX_RATE, Power, Powers, Role, rule_named
from nfd.scaling.run_scaling import ADAM_BETAS, RunScaling, check_betas, large_schedule
from nfd.scaling.shards import materialise
from nfd.scaling.sizes import Positive
from nfd.scaling.tensors import tensors, unwrapped

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
            ``nfd.nets``.

    Example::

        plan = nfd.plan(model, rule="complete-p", make_model=make_model, base_width=64, base_depth=2, sample=x)
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
        for plain in (name, inner):
            if plain in self.entries:
                return plain
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
            ADAM_BETAS if betas is None and self.run is not None else check_betas(betas),
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
                that has it. A plan with ``batch`` or ``tokens`` scales Adam's betas.

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

    def make_schedule(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
        """A scheduler with the warm-up and decay of the large run; step it after every update. It keeps the ratios.

        Raises:
            ValueError: if the plan was made without ``schedule=``.
        """
        return large_schedule(self.run, optimizer)

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
        return stored_plan.plain(self)

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Plan:
        """The plan that ``to_dict`` returned; ValueError if it is not one."""
        return stored_plan.restored(stored)

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON. It replaces an earlier plan; FileError if ``path`` is another file."""
        stored_plan.save(self, path)

    @staticmethod
    def load(path: str | Path) -> Plan:
        """The plan in a file that ``save`` wrote; ValueError if it is not a plan."""
        return stored_plan.load(path)
