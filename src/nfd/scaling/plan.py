"""``nfd.Plan``: initial weights and learning rates of a model, at any width and depth.

It has weight decay and epsilon of every tensor too.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nfd.core.answer import Answer
from nfd.core.checks import check_device, check_seed
from nfd.core.errors import InputError
from nfd.core.estimates import Interval
from nfd.core.files import expanded, replace_file
from nfd.core.names import FrameworkName, RuleName
from nfd.core.tables import Row
from nfd.core.words import nearest
from nfd.report.shown import Shown
from nfd.scaling.base_group import BaseGroup
from nfd.scaling.constructors import has_argument
from nfd.scaling.entries import Entry
from nfd.scaling.find_law import law_of
from nfd.scaling.groups import check_kind, optimizer_of
from nfd.scaling.initialise import initialise_, warn_of_meta
from nfd.scaling.kept_rates import check_rates, warn_of_lost_ratios
from nfd.scaling.model import block_of, stacks_of, unwrapped
from nfd.scaling.optimizers import OptimizerLaw
from nfd.scaling.plan_answer import PlannedTraining, plan_answer, table_of_plan
from nfd.scaling.plan_file import read_plan
from nfd.scaling.plan_groups import groups_of
from nfd.scaling.plan_table import explained
from nfd.scaling.rules import SPECTRAL, Power, Powers, Role, rule_named
from nfd.scaling.self_test import self_test
from nfd.scaling.self_test_result import SelfTest

if TYPE_CHECKING:
    from nfd.laws.rate_law import RateLaw
    from nfd.laws.schedules import RateSchedule
    from nfd.report.page import Section
    from nfd.scaling.run import RunScaling


@dataclass(frozen=True, repr=False)
class Plan(Shown):
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
        table: a row for every tensor, which ``to_pandas`` gives too: ``tensor``, ``role``, initial
            ``std``, and ``rate``, ``epsilon`` and ``weight_decay`` as multiples of the base's.

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

    @cached_property
    def stacks(self) -> dict[str, tuple[str, ...]]:
        """The blocks of every stack (``stacks_of``).

        Where parts of blocks lie in lists of their own, the list that writes the stream is the
        stack; those that lie inside of its branches are not stacks.
        """
        inside = {
            block_of(name, self.block_names)
            for name, entry in self.entries.items()
            if entry.role != "inner"
        }
        holders = {block.rpartition(".")[0] for block in inside if block}
        return stacks_of([b for b in self.blocks if b.rpartition(".")[0] in holders] or self.blocks)

    # ---- the scale of one tensor

    def entry(self, name: str) -> Entry:
        """Return the entry of a tensor, by its name in the model.

        The model may be compiled or wrapped by DDP or FSDP.

        Raises:
            ValueError: if the plan has no such tensor.
        """
        return self.entries[self._planned(name)]

    def _planned(self, name: str) -> str:
        if name in self.entries:
            return name
        same = self._by_unwrapped_name.get(unwrapped(name), [])
        if len(same) != 1:  # a module of the user's may itself be called "module"
            hint = nearest(unwrapped(name), self.entries)
            raise InputError(
                f"the plan has no tensor {name!r}.{hint} Its names are those of "
                "model.named_parameters()."
            )
        return same[0]

    @cached_property
    def _by_unwrapped_name(self) -> dict[str, list[str]]:
        """The tensors, by their names without what wrappers put into them."""
        names = dict[str, list[str]]()
        for planned in self.entries:
            names.setdefault(unwrapped(planned), []).append(planned)
        return names

    @cached_property
    def block_names(self) -> frozenset[str]:
        """The blocks, to be looked up for every tensor."""
        return frozenset(self.blocks)

    def powers(self, name: str) -> Powers:
        """Return how std, rate and epsilon of a tensor scale with its fans and the depth.

        They include forward multipliers.
        """
        entry = self.entry(name)
        narrow = (
            entry.role in SPECTRAL
            and entry.ratios.fan_out == 1 != entry.ratios.fan_in
            and not entry.is_vector
            and not entry.is_adapter
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
        """Whether Muon, or another optimizer of only the matrices in blocks, trains this tensor.

        Matrices at the ends of the model are not in blocks, nor is what conditions the blocks from
        outside, such as the time of a diffusion model. In a model without blocks all are that lie
        between two sizes that grow.
        """
        entry = self.entry(name)
        block = block_of(self._planned(name), self.block_names)
        is_inside = entry.role in SPECTRAL and (
            entry.role != "hidden" or block is not None or not self.blocks
        )
        return is_inside and entry.matrix is not None and law_of(self.optimizer).rest is not None

    def factor(self, name: str, power: Power) -> float:
        """Return the value of a power for a tensor.

        It is taken at its ratios of fan-in, fan-out and depth to the base.
        """
        ratios = self.entry(name).ratios
        return power.at(ratios.fan_in, ratios.fan_out, ratios.depth)

    def own_factor(self, name: str) -> float:
        """Return the factor by which the model's own forward pass multiplies a tensor.

        It is over the base's, where the plan makes up for it; else 1.
        """
        return self.entry(name).own_factor if rule_named(self.rule).scales_width else 1.0

    def start_factor(self, name: str) -> float:
        """Return the initial entries of a tensor, as a multiple of the base's.

        A frozen tensor keeps its entries: 1.
        """
        if self.entry(name).is_frozen:
            return 1.0
        return self.factor(name, self.powers(name).std) / self.own_factor(name)

    def std(self, name: str) -> float:
        """Return the initial standard deviation of the entries; 0 where they are constant."""
        return self.entry(name).start.std * self.start_factor(name)

    def constant(self, name: str) -> float | None:
        """Return the initial value of every entry; None for a tensor that is random.

        Gains that write into the residual stream are initialised lower in deeper models, like
        matrices that write into it.
        """
        constant = self.entry(name).start.constant
        return None if constant is None else constant * self.start_factor(name)

    def rate(self, name: str) -> float:
        """Return the learning rate of a tensor, as a multiple of the base's, by width and depth."""
        return self.factor(name, self.powers(name).rate) * self.rate_compensation(name)

    def rate_compensation(self, name: str) -> float:
        """Return the factor of a rate beside its powers.

        It cancels how the optimizer itself scales updates with the shape of a matrix, and how the
        model itself multiplies the tensor.
        """
        entry = self.entry(name)
        law = self.law_for(name)
        factor = math.pow(self.own_factor(name), -1 - law.degree)
        if entry.matrix is None or not rule_named(self.rule).scales_width:
            return factor
        return factor * law.shape_norm(*entry.base_matrix) / law.shape_norm(*entry.shape)

    def epsilon(self, name: str) -> float:
        """Return Adam's epsilon of a tensor, as a multiple of the base's.

        The gradient of a weight is a sum over its uses, and so is epsilon.
        """
        power = self.factor(name, self.powers(name).epsilon)
        return power * self.own_factor(name) * self.entry(name).uses

    def weight_decay(self, name: str) -> float:
        """Return weight decay of a tensor, as a multiple of the base's.

        Rate times decay is the same at every size.
        """
        return 1 / self.rate(name)

    # ---- initialising a model

    def apply_(
        self, model: nn.Module, seed: int = 0, device: torch.device | str | None = None
    ) -> nn.Module:
        """Initialise a model in place, and return it.

        Draw matrices from N(0, std^2), fill constant tensors, insert ``nfd.Scaled`` for every
        multiplier. Apply a plan before the model is compiled or wrapped.

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
        initialise_(self, model, seed, place)
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

        Matrices and vectors (of fewer than two dimensions) never do: a rule of yours for whole
        groups, such as no decay for vectors, finds them apart.

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
            groups of the tensors that train now, with ``params``, ``lr``, ``lr_scale`` (the rate as
            a multiple of the tuned one; schedules must keep it), ``weight_decay`` and ``roles``.
            Groups for Adam and AdamW also have ``eps``; under Muon ``use_muon`` is False for groups
            of AdamW.

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
        """Group the parameters that are stepped alike, with settings of the base.

        None is a setting that nobody chose.

        Raises:
            ValueError, TypeError: as ``param_groups``.
        """
        return groups_of(self, model, lr, chosen, no_decay, adamw_lr)

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
        # Some schedulers, such as those of transformers with a min_lr, divide a rate of the base by
        # this one, which is the default of the optimizer's class otherwise.
        optimizer.defaults["lr"] = lr
        warn_of_lost_ratios(optimizer)
        warn_of_meta(model)
        return optimizer

    def _follows(self, option: str) -> bool:
        """Whether an option is a hyperparameter that a plan scales."""
        settings = [law.setting(option) for law in law_of(self.optimizer).parts]
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
        """Return the plan for a run of another batch size and length than the tuned one.

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
        # Few plans have a run, and its laws of the learning rate are costly to import.
        from nfd.scaling.run import run_scaling

        run = run_scaling(
            law_of(self.optimizer), batch, tokens, schedule, critical_batch, laws, law
        )
        return replace(self, run=run)

    def make_schedule(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
        """Make a scheduler with the warm-up and decay of the large run.

        Step it after every update. It keeps the ratios.

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
        """Run the planned model at small sizes, and compare it with what the rule promises.

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
        return self_test(self, make_model, sample, base=base, repair=repair, seeds=seeds)

    # ---- showing and storing it

    def explain(self, lr: float | None = None, adamw_lr: float | None = None) -> str:
        """A table of every tensor: role, why, and std, rate and epsilon as formula and number.

        Tensors of several blocks that agree are one line.

        Args:
            lr, adamw_lr: rates that were tuned at the base. With them rates are absolute, as
                ``make_optimizer`` sets them; without them they are multiples of the tuned one.
        """
        return explained(self, lr, adamw_lr)

    @property
    def answer(self) -> Answer:
        """What the plan decides: by which rate to train, and what it changes."""
        return plan_answer(self, PlannedTraining())

    @property
    def table(self) -> list[Row]:
        """A row for every tensor."""
        return table_of_plan(self)

    def first_sections(self) -> list[Section]:
        """What a notebook shows below the answer: the factors of all tensors."""
        from nfd.report.page import Section

        return [Section("", [], table=self.answer.table)]

    def __str__(self) -> str:
        return self.explain()

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, for JSON or a checkpoint."""
        return asdict(self)

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Plan:
        """The plan that ``to_dict`` returned; ValueError if it is not one."""
        return read_plan(Plan, json.dumps(stored))

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON; it replaces a file at ``path``.

        The file also holds the table of ``to("json")``, which ``load`` does not need.
        """
        replace_file(expanded(path), self.to("json").encode())

    def to(self, framework: FrameworkName) -> str:
        """Write the plan as a text that a framework for training takes.

        Args:
            framework: ``"megatron"`` (Megatron-LM), ``"torchtitan"`` or ``"transformers"`` (Hugging
                Face's Trainer): a module of Python that does not need ``nfd``. ``"json"``: the plan
                as ``save`` writes it, with a table of names and factors that other frameworks can
                be told from.

        Returns:
            the text of the file. What the framework has no setting for stands at its head, and in
            its ``NOT_EXPRESSED``.

        Raises:
            ValueError: for another framework, or if it does not take the plan's optimizer.

        Warns:
            UserWarning: with every factor that the framework cannot express.

        Example::

            Path("nfd_torchtitan.py").write_text(plan.to("torchtitan"))
        """
        # Few plans are exported.
        from nfd.scaling.export import export

        exported = export(self, framework)
        for sentence in exported.not_expressed:
            warnings.warn(sentence, UserWarning, stacklevel=2)
        return exported.text

    @staticmethod
    def load(path: str | Path) -> Plan:
        """The plan in a file that ``save`` wrote; ValueError if it is not a plan."""
        return read_plan(Plan, expanded(path).read_bytes(), str(path))
