"""How the settings of a run follow its batch and its length: a table of laws, and the factors that a plan takes.

``b`` is the batch over that of the small run, ``d`` the number of tokens (or samples) over that of the small run. A law
says by which factor one quantity changes: ``b^batch d^tokens``. docs/mathematics/recipe.md has the derivations, the
sources as they were read, their ranges and errors, and what was measured on a small GPT.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal, get_args

from rich.table import Column

from nfd.core.errors import InputError, InputTypeError, check_choice, check_count, check_flag, check_real
from nfd.core.estimates import Interval
from nfd.core.tables import as_text, table_of
from nfd.scaling.entries import Positive
from nfd.scaling.optimizers import OptimizerLaw, law_of


class Label(StrEnum):
    """How far a factor can be trusted."""

    THEOREM = "theorem"
    """follows from stated assumptions"""
    EMPIRICAL = "empirical law"
    """fitted to runs of others, with a range"""
    ASSUMPTION = "assumption"
    """neither proved nor fitted for this optimizer"""
    MEASURED = "measured"
    """measured on the user's own model"""


class Quantity(StrEnum):
    """The setting that a factor scales."""

    RATE = "rate"
    DECAY = "weight decay"
    BETA1 = "half-life of beta1, in steps"
    BETA2 = "half-life of beta2, in steps"
    EPSILON = "epsilon"
    WARMUP = "warm-up, in steps"
    LIMIT = "batch limit"


# ---- the laws ------------------------------------------------------------------------------------------------------

Kind = Literal["sgd", "adam", "other"]  # Adam and AdamW have an epsilon; Muon and Lion normalise in another way


@dataclass(frozen=True)
class RunLaw:
    """How a quantity follows the batch and the number of tokens.

    Attributes:
        name: by which it is switched off. Rows of one name are one law for several optimizers.
        batch, tokens: the powers of b and d.
        kinds: of optimizers that it is for; none where the quantity is one of the run.
        label, source: how far it can be trusted, and where it comes from.
        spread: the lowest and highest power of d among published fits; None where there is one value.
    """

    name: str
    quantity: Quantity
    batch: float
    tokens: float
    kinds: tuple[Kind, ...]
    label: Label
    source: str
    spread: tuple[float, float] | None = None


_MALLADI = "Malladi et al. 2022 (arXiv 2205.10287)"
_SCALE = "Wang & Aitchison 2024 (2405.13698); Bergsma et al. 2025 (2505.13738)"
_TOKENS = "Bjorck et al. 2025 (2409.19913), AdamW; Ren et al. 2026 (2603.28743), MuonH"
_LIMITS = "Bergsma et al. 2025 (2505.13738); Zhang et al. 2024 (2410.21676): 0.47, hardly of model size"
_Q, _L = Quantity, Label
RUN_LAWS: tuple[RunLaw, ...] = (
    RunLaw("batch-rate", _Q.RATE, 1.0, 0, ("sgd",), _L.THEOREM, "Jastrzebski et al. 2017; Goyal et al. 2017"),
    RunLaw("batch-rate", _Q.RATE, 0.5, 0, ("adam",), _L.THEOREM, _MALLADI),
    RunLaw("batch-rate", _Q.RATE, 0.5, 0, ("other",), _L.ASSUMPTION, "as for Adam; nanochat assumes it for Muon"),
    RunLaw("tokens-rate", _Q.RATE, 0, -0.32, ("adam",), _L.EMPIRICAL, _TOKENS, (-0.56, -0.32)),
    RunLaw(
        "tokens-rate", _Q.RATE, 0, -0.32, ("sgd", "other"), _L.ASSUMPTION, f"as for AdamW: {_TOKENS}", (-0.56, -0.32)
    ),
    RunLaw("decay-time-scale", _Q.DECAY, 1.0, -1.0, ("adam",), _L.EMPIRICAL, _SCALE),
    RunLaw("decay-time-scale", _Q.DECAY, 1.0, -1.0, ("sgd", "other"), _L.ASSUMPTION, f"as AdamW: {_SCALE}"),
    RunLaw("beta1-half-life", _Q.BETA1, -1.0, 0, ("adam",), _L.THEOREM, _MALLADI),
    RunLaw("beta2-half-life", _Q.BETA2, -1.0, 0, ("adam",), _L.THEOREM, f"{_MALLADI}; Marek et al. 2025 (2507.07101)"),
    RunLaw("batch-epsilon", _Q.EPSILON, -0.5, 0, ("adam",), _L.THEOREM, _MALLADI),
    RunLaw("warmup-tokens", _Q.WARMUP, -1.0, 0, (), _L.ASSUMPTION, "as many tokens as in the small run"),
    RunLaw("batch-limit", _Q.LIMIT, 0, 0.462, (), _L.EMPIRICAL, _LIMITS, (0.462, 0.47)),
)
SATURATION = "batch-saturation"
NAMES: tuple[str, ...] = tuple(dict.fromkeys([*(law.name for law in RUN_LAWS), SATURATION]))


# ---- the factors of a run ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Factor:
    """The factor of one law for one setting of the large run.

    Attributes:
        law: its name, for ``laws=`` of ``Plan.for_run``.
        quantity, optimizer: the setting that it scales, and the optimizer that has this setting.
        value: the setting of the large run as a multiple of that of the small one.
        label, formula, source: how far it can be trusted, and where it comes from.
        applied: whether the plan uses it.
        low, high: the range of published fits, or the interval of a measurement; None if there is one value only.
    """

    law: str
    quantity: Quantity
    optimizer: str
    value: Positive
    label: Label
    formula: str
    source: str
    applied: bool = True
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class RunScaling:
    """How the settings of the large run follow from its batch size and length: ``plan.run``.

    Attributes:
        batch, tokens: of one step and of the whole run, each (small run, large run), in the same unit; None if not
            given.
        factors: one ``Factor`` per law and setting.
        critical_batch: of the large run, in the unit of ``batch``; None if it was not measured.
        schedule: of the large run; None if none was given.
    """

    batch: tuple[Positive, Positive] | None
    tokens: tuple[Positive, Positive] | None
    factors: tuple[Factor, ...]
    critical_batch: Positive | None
    schedule: RateSchedule | None

    @property
    def steps(self) -> int | None:
        """Number of updates of the large run; None unless both ``batch`` and ``tokens`` were given."""
        return None if self.batch is None or self.tokens is None else round(self.tokens[1] / self.batch[1])

    def factor(self, quantity: Quantity, optimizer: str) -> float:
        """The product of all applied factors of a quantity, such as the rate, for an optimizer."""
        return _product(f for f in self.factors if f.quantity == quantity and f.optimizer == optimizer)

    def betas(self, betas: tuple[float, float], optimizer: str) -> tuple[float, float]:
        """Adam's betas, their half-lives multiplied by the factors."""
        halves = (self.factor(quantity, optimizer) for quantity in (Quantity.BETA1, Quantity.BETA2))
        first, second = (math.pow(beta, 1 / half) for beta, half in zip(betas, halves, strict=True))
        return first, second

    def explain(self) -> str:
        """A line per factor with its label and source, then what stays."""
        known = [f"{name} {pair[0]:g} to {pair[1]:g}" for name in ("batch", "tokens") if (pair := getattr(self, name))]
        known += [f"{self.steps} steps"] if self.steps is not None else []
        known += [f"{self.schedule.warmup} of warm-up"] if self.schedule is not None else []
        if self.critical_batch is not None and self.batch is not None:
            beyond = " (exceeded: larger batches gain little)" if self.batch[1] > self.critical_batch else ""
            known.append(f"critical batch about {self.critical_batch:.3g}{beyond}")
        columns = ("quantity", "factor", "law", "label", "formula", "source")
        table = table_of(*(Column(name, no_wrap=name != "source") for name in columns))
        for f in self.factors:
            ends = "" if f.low is None or f.high is None else f" [{f.low:.3g}, {f.high:.3g}]"
            value = f"{f.value:.4g}{ends}" if f.applied else f"off ({f.value:.4g}{ends})"
            quantity = f"{f.quantity} ({f.optimizer})" if f.optimizer else f"{f.quantity}"
            table.add_row(quantity, value, f.law, f.label, f.formula, f.source)
        same = [] if self.schedule else ["warm-up and decay of the rate (no schedule=)"]
        same += [] if self.critical_batch else ["batch limit (no critical_batch=; nfd check --noise estimates it)"]
        same += ["momentum of other optimizers than Adam, clipping of gradients, dropout, averages of weights"]
        title = f"Run: {', '.join(known)}; b, d: batch and tokens over the small run's"
        return "\n".join([title, as_text(table, 200), "", f"not scaled  {'; '.join(same)}"])


def run_scaling(
    optimizer: OptimizerLaw,
    batch: Sequence[float] | None,
    tokens: Sequence[float] | None,
    schedule: RateSchedule | None,
    critical_batch: float | Interval | None,
    laws: Mapping[str, bool] | None,
    scales_decay: bool,
) -> RunScaling | None:
    """What ``Plan.for_run`` does, for a plan that scales weight decay or not; None without a batch and a length.

    What the optimizer leaves to AdamW has rows of its own.
    """
    batch, tokens = _pair("batch", batch), _pair("tokens", tokens)
    if batch is None and tokens is None:
        for name, value in (("schedule", schedule), ("critical_batch", critical_batch), ("laws", laws)):
            if value is not None:
                raise InputError(f"{name} is for a run of another batch or length. Pass batch= or tokens=.")
        return None
    if not isinstance(schedule, RateSchedule | None):
        raise InputTypeError(f"schedule must be an nfd.RateSchedule; got {type(schedule).__name__}.")
    if schedule is not None and (batch is None or tokens is None):
        raise InputError("schedule needs the steps of the run. Pass batch= and tokens=, each (small, large).")
    if not isinstance(laws, Mapping | None):
        raise InputTypeError(f"laws must be a dict such as {{'{NAMES[0]}': False}}; got {laws!r}.")
    switched = {"decay-time-scale": scales_decay}
    for name, is_on in (laws or {}).items():
        switched[check_choice("a name in laws", name, NAMES)] = check_flag(f"laws[{name!r}]", is_on)
    b, d = (1.0 if pair is None else pair[1] / pair[0] for pair in (batch, tokens))

    def row(law: RunLaw, of: str) -> Factor:
        ends = (None, None) if law.spread is None or d == 1 else sorted(d**power for power in law.spread)
        powers = [f"{x}^{p:g}" if p != 1 else x for x, p in (("b", law.batch), ("d", law.tokens)) if p]
        formula = " ".join(powers) + (" / rate" if law.quantity is Quantity.DECAY else "")
        value, on = b**law.batch * d**law.tokens, switched.get(law.name, True)
        return Factor(law.name, law.quantity, of, value, law.label, formula, law.source, on, *ends)

    of_run = {law.quantity: row(law, "") for law in RUN_LAWS if not law.kinds}
    limit, critical = list[Factor](), None
    if critical_batch is not None:
        if batch is None:
            raise InputError("critical_batch limits the batch. Pass batch=(small, large) in the same unit.")
        limit = [_measured(critical_batch), of_run[Quantity.LIMIT]]
        critical = _product(limit)
    rows: list[Factor] = []
    for law in [optimizer] if optimizer.rest is None else [optimizer, law_of(optimizer.rest)]:
        kind: Kind = "sgd" if law.is_linear else "adam" if law.epsilon else "other"
        own = [row(known, law.name) for known in RUN_LAWS if kind in known.kinds]
        if critical is not None and batch is not None:  # what ((1 + C/B) / (1 + C0/B0))^-p lacks to b^p
            power, label = 1.0 if kind == "sgd" else 0.5, Label.ASSUMPTION if kind == "other" else Label.EMPIRICAL
            value = (b * (1 + critical / batch[1]) / (1 + limit[0].value / batch[0])) ** -power
            formula, source = f"(b (1 + C/B) / (1 + C0/B0))^-{power:g}", "McCandlish et al. 2018 (1812.06162)"
            on = switched.get(SATURATION, True)
            own.append(Factor(SATURATION, Quantity.RATE, law.name, value, label, formula, source, on))
        rate = _product(f for f in own if f.quantity is Quantity.RATE)  # 1/(rate decay) stays a share of the steps
        rows += [replace(f, value=f.value / rate) if f.quantity is Quantity.DECAY else f for f in own]
    if schedule is not None:
        rows.append(warmup := of_run[Quantity.WARMUP])
        schedule = replace(schedule, warmup=math.ceil(schedule.warmup * _product([warmup])))
    return RunScaling(batch, tokens, (*rows, *limit), critical, schedule)


def _product(factors: Iterable[Factor]) -> float:
    return math.prod(factor.value for factor in factors if factor.applied)


def _measured(critical_batch: float | Interval) -> Factor:
    """The critical batch as it was measured in the small run."""
    low, high = None, None
    if isinstance(critical_batch, Interval):
        low, high = (end if math.isfinite(end) else None for end in (critical_batch.low, critical_batch.high))
        critical_batch = critical_batch.value
    value = check_real("critical_batch", critical_batch, above=0.0)
    return Factor("measured", Quantity.LIMIT, "", value, Label.MEASURED, "C0", "critical_batch=", True, low, high)


def _pair(argument: str, pair: Sequence[float] | None) -> tuple[float, float] | None:
    if pair is None:
        return None
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InputTypeError(f"{argument} must be (small, large), two numbers in one unit; got {pair!r}.")
    small, large = (check_real(argument, number, above=0.0) for number in pair)
    return small, large


# ---- the schedule of a run -----------------------------------------------------------------------------------------

Fall = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True)
class RateSchedule:
    """A schedule of warm-up and decay: ``schedule(step, steps)`` is the share of the full rate at a step, from 0.

    It multiplies rates, so that the ratios of a plan stay. It is a schedule wherever the library takes one.

    Args:
        warmup: steps before the full rate: step t of them has the share ``(t + 1) / (warmup + 1)``.
        fall: how the rate falls at the end: ``"constant"`` (it does not), ``"linear"`` or ``"cosine"``.
        share: of the steps, the last ones, over which it falls, above 0 and at most 1.
        final: the share that would be reached after the last step, from 0 to 1.

    Raises:
        ValueError: naming the argument.

    Example::

        schedule = nfd.RateSchedule(warmup=10, fall="cosine", share=0.5)
        schedule(0, 100), schedule(50, 100)  # 1/11, 1
    """

    warmup: int = 0
    fall: Fall = "constant"
    share: float = 1.0
    final: float = 0.0

    def __post_init__(self) -> None:
        check_choice("fall", self.fall, get_args(Fall))
        check_count("warmup", self.warmup, minimum=0)
        check_real("share", self.share, above=0.0)
        check_real("final", self.final, least=0.0)
        if max(self.share, self.final) > 1:
            raise InputError(f"share and final must be at most 1; got {self.share:g} and {self.final:g}.")

    def __call__(self, step: int, steps: int) -> float:
        """The share of the full rate at a step."""
        falling = self.share * steps
        progress = min(max((step - (steps - falling)) / falling, 0.0), 1.0)
        left = {"constant": 1.0, "linear": 1 - progress, "cosine": (1 + math.cos(math.pi * progress)) / 2}[self.fall]
        return ramp(step, self.warmup) * (1.0 if self.fall == "constant" else self.final + (1 - self.final) * left)


def ramp(step: int, warmup: int) -> float:
    """The share of the full rate at a step of a linear warm-up, 1 after it."""
    return min(1.0, (step + 1) / (warmup + 1))
