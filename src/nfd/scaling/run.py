"""How the settings of a run follow its batch and its length: a table of laws, and the factors that a plan takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import Field
from rich.table import Column

from nfd.core.errors import InputError, InputTypeError, check_choice, check_count, check_flag, check_real
from nfd.core.estimates import Interval
from nfd.core.tables import as_text, table_of
from nfd.scaling.entries import Positive
from nfd.scaling.optimizers import OptimizerLaw, law_of

if TYPE_CHECKING:
    import torch


# ---- The laws: a table, one row for each law and optimizer


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


SHARED = (Quantity.WARMUP, Quantity.LIMIT)  # one for all optimizers


@dataclass(frozen=True)
class RunLaw:
    """How a quantity follows the batch and the number of tokens.

    Attributes:
        name: by which it is switched off. Rows of one name are one law for several optimizers.
        formula: in the letters of the table.
        batch, tokens: the powers of b and d.
        spread: the lowest and highest power of d (of b where there is none) among published fits; None where there is
            one value.
        label, source, scope, error: where it comes from, the range of the fit or the assumptions, and what is known of
            its error.
        takes: which optimizers it is for.
    """

    name: str
    quantity: Quantity
    formula: str
    label: Label
    source: str
    scope: str
    error: str
    takes: Callable[[OptimizerLaw], bool]
    batch: float = 0.0
    tokens: float = 0.0
    spread: tuple[float, float] | None = None


def is_linear(law: OptimizerLaw) -> bool:
    """SGD."""
    return law.is_linear


def is_adam(law: OptimizerLaw) -> bool:
    """Adam and AdamW: normalised entry by entry, with an epsilon."""
    return law.epsilon


def is_other(law: OptimizerLaw) -> bool:
    """Muon, Lion: normalised in another way."""
    return not law.is_linear and not law.epsilon


def is_any(law: OptimizerLaw) -> bool:
    """Every optimizer."""
    return True


def is_not_adam(law: OptimizerLaw) -> bool:
    """Every other one."""
    return not law.epsilon


BATCH_RATE, SATURATION, TOKENS_RATE, TIME_SCALE = "batch-rate", "batch-saturation", "tokens-rate", "decay-time-scale"

_SMALL_STEPS = "same number of samples; rates so small that training follows a stochastic differential equation"
_NOISY = f"{_SMALL_STEPS}; the noise of a step exceeds its gradient (batches below the critical one)"
_MALLADI = "Malladi et al. 2022 (arXiv 2205.10287)"
_FIRST_ORDER = "first order in the rate; not bounded for a given run"
_SCALE_SOURCE = "Wang & Aitchison 2024 (2405.13698); Bergsma et al. 2025 (2505.13738)"
_TOKENS_SOURCE = "Bjorck et al. 2025 (2409.19913), AdamW; Ren et al. 2026 (2603.28743), MuonH"
_TOKENS_SCOPE = "language models, billions of tokens, one batch size"
_TOKENS_ERROR = "others fit -0.395 (MuonH, marin #5951) and -0.56 (Scion, 2510.03871); curvature (2606.29158)"

RUN_LAWS: tuple[RunLaw, ...] = (
    RunLaw(
        BATCH_RATE, Quantity.RATE, "b", Label.THEOREM, "Jastrzebski et al. 2017; Goyal et al. 2017", _SMALL_STEPS,
        _FIRST_ORDER, is_linear, batch=1.0,
    ),
    RunLaw(
        BATCH_RATE, Quantity.RATE, "b^1/2", Label.THEOREM, _MALLADI, _NOISY,
        _FIRST_ORDER, is_adam, batch=0.5,
    ),
    RunLaw(
        BATCH_RATE, Quantity.RATE, "b^1/2", Label.ASSUMPTION, "as for Adam; nanochat assumes it for Muon", _NOISY,
        "Scion: b^0.62 beside d^-0.56 (2510.03871)", is_other, batch=0.5,
    ),
    RunLaw(
        TOKENS_RATE, Quantity.RATE, "d^-0.32", Label.EMPIRICAL, _TOKENS_SOURCE, _TOKENS_SCOPE, _TOKENS_ERROR, is_adam,
        tokens=-0.32, spread=(-0.56, -0.32),
    ),
    RunLaw(
        TOKENS_RATE, Quantity.RATE, "d^-0.32", Label.ASSUMPTION, f"as for AdamW: {_TOKENS_SOURCE}", _TOKENS_SCOPE,
        _TOKENS_ERROR, is_not_adam, tokens=-0.32, spread=(-0.56, -0.32),
    ),
    RunLaw(
        TIME_SCALE, Quantity.DECAY, "b / (d x rate)", Label.EMPIRICAL, _SCALE_SOURCE,
        "ResNet-18, ViT, NanoGPT; GPTs of 0.1 to 3.3 billion parameters: 1/(rate decay) stays a share of the steps",
        "linear in b confirmed; with tokens per parameter the best share falls (power -0.53, not applied)", is_adam,
        batch=1.0, tokens=-1.0,
    ),
    RunLaw(
        TIME_SCALE, Quantity.DECAY, "b / (d x rate)", Label.ASSUMPTION, f"as for AdamW: {_SCALE_SOURCE}",
        "1/(rate decay) stays a share of the steps", "not fitted for this optimizer", is_not_adam, batch=1.0,
        tokens=-1.0,
    ),
    RunLaw(
        "beta1-half-life", Quantity.BETA1, "1/b: beta1^b", Label.THEOREM, _MALLADI, _NOISY,
        "first order in 1 - beta; the time scale of momentum may matter little", is_adam, batch=-1.0,
    ),
    RunLaw(
        "beta2-half-life", Quantity.BETA2, "1/b: beta2^b", Label.THEOREM,
        f"{_MALLADI}; Marek et al. 2025 (2507.07101) measure it", _NOISY,
        "first order in 1 - beta; held in language models at batches of 1 to 4,096 sequences", is_adam, batch=-1.0,
    ),
    RunLaw(
        "batch-epsilon", Quantity.EPSILON, "b^-1/2", Label.THEOREM, _MALLADI, _NOISY, _FIRST_ORDER, is_adam, batch=-0.5,
    ),
    RunLaw(
        "warmup-tokens", Quantity.WARMUP, "1/b", Label.ASSUMPTION, "as many tokens as in the small run",
        "follows from beta2's half-life where warm-up waits for beta2", "not fitted", is_any, batch=-1.0,
    ),
    RunLaw(
        "batch-limit", Quantity.LIMIT, "d^0.462", Label.EMPIRICAL,
        "Bergsma et al. 2025 (2505.13738); Zhang et al. 2024 (2410.21676): 0.47, hardly of model size",
        "GPTs of 0.1 to 3.3 billion parameters, AdamW; both runs as far from their limits",
        "within a run it levels off (2505.23971); the best batch grows as d^0.383", is_any,
        tokens=0.462, spread=(0.462, 0.47),
    ),
)  # fmt: skip
NAMES: tuple[str, ...] = tuple(dict.fromkeys([*(law.name for law in RUN_LAWS), SATURATION]))


# ---- ``RateSchedule``: a linear warm-up and a decay of the learning rate, as a share of the full rate at every step


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

    warmup: Annotated[int, Field(ge=0)] = 0
    fall: Fall = "constant"
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    final: Annotated[float, Field(ge=0, le=1)] = 0.0

    def __post_init__(self) -> None:
        check_choice("fall", self.fall, get_args(Fall))
        share, final = check_real("share", self.share, above=0.0), check_real("final", self.final, least=0.0)
        if max(share, final) > 1:
            raise InputError(f"share and final must be at most 1; got {share:g} and {final:g}.")
        checked = {"warmup": check_count("warmup", self.warmup, minimum=0), "share": share, "final": final}
        for name, number in checked.items():  # as plain numbers
            object.__setattr__(self, name, number)

    def __call__(self, step: int, steps: int) -> float:
        """The share of the full rate at a step."""
        return ramp(step, self.warmup) * self._fallen(step, steps)

    def _fallen(self, step: int, steps: int) -> float:
        falling = self.share * steps
        progress = min(max((step - (steps - falling)) / falling, 0.0), 1.0)
        left = {"constant": 1.0, "linear": 1 - progress, "cosine": (1 + math.cos(math.pi * progress)) / 2}[self.fall]
        return left if self.fall == "constant" else self.final + (1 - self.final) * left


def ramp(step: int, warmup: int) -> float:
    """The share of the full rate at a step of a linear warm-up, 1 after it."""
    return min(1.0, (step + 1) / (warmup + 1))


# ---- ``RunScaling``: by which factors the settings of a larger run differ from those of the small one that was tuned


ADAM_BETAS = (0.9, 0.999)  # PyTorch's
_FURTHEST = 1e12  # of two runs, in batch or tokens


@dataclass(frozen=True)
class Factor:
    """The factor of one law for one setting of the large run.

    Attributes:
        law: its name, for ``laws=`` of ``Plan.for_run``.
        quantity, optimizer: the setting that it scales, and the optimizer that has this setting.
        value: the setting of the large run as a multiple of that of the small one. low, high: the range of published
            fits, or the interval of a measurement; None if there is one value only.
        label, formula, source, scope, error: as in ``nfd.scaling.run.RunLaw``.
        applied: whether the plan uses it.
    """

    law: str
    quantity: Quantity
    optimizer: str
    value: Positive
    low: float | None
    high: float | None
    label: Label
    formula: str
    source: str
    scope: str
    error: str
    applied: bool


@dataclass(frozen=True)
class RunScaling:
    """How the settings of the large run follow from its batch size and length: ``plan.run``.

    Attributes:
        batch, tokens: of one step and of the whole run, each (small run, large run), in the same unit; None if not
            given.
        factors: one ``Factor`` per law and setting.
        critical_batch: of the large run, in the unit of ``batch``; None if it was not measured.
        schedule: of the large run; None if none was given.
        unscaled: settings that stay the same, in words.
    """

    batch: tuple[Positive, Positive] | None
    tokens: tuple[Positive, Positive] | None
    factors: tuple[Factor, ...]
    critical_batch: Positive | None
    schedule: RateSchedule | None
    unscaled: tuple[str, ...]

    @property
    def steps(self) -> int | None:
        """Number of updates of the large run; None unless both ``batch`` and ``tokens`` were given."""
        return None if self.batch is None or self.tokens is None else round(self.tokens[1] / self.batch[1])

    def factor(self, quantity: Quantity, optimizer: str) -> float:
        """The product of all applied factors of a quantity, such as the rate, for an optimizer."""
        fitting = (f for f in self.factors if f.quantity == quantity and f.optimizer == optimizer and f.applied)
        return math.prod(f.value for f in fitting)

    def betas(self, betas: tuple[float, float], optimizer: str) -> tuple[float, float]:
        """Adam's betas, their half-lives multiplied by the factors."""
        halves = (self.factor(quantity, optimizer) for quantity in (Quantity.BETA1, Quantity.BETA2))
        first, second = (math.pow(beta, 1 / half) for beta, half in zip(betas, halves, strict=True))
        return first, second


def run_scaling(
    optimizer: OptimizerLaw,
    batch: Sequence[float] | None,
    tokens: Sequence[float] | None,
    schedule: RateSchedule | None,
    critical_batch: float | Interval | None,
    laws: Mapping[str, bool] | None,
    scales_decay: bool,
) -> RunScaling | None:
    """The factors of a run; None where neither its batch nor its length is given.

    Args:
        optimizer: of the plan; what it leaves to AdamW has rows of its own.
        batch, tokens, schedule, critical_batch, laws: as in ``Plan.for_run``.
        scales_decay: whether the plan scales weight decay at all.

    Raises:
        ValueError, TypeError: naming the argument; unknown laws with the names of all.
    """
    batch, tokens = _pair("batch", batch), _pair("tokens", tokens)
    _check_laws(laws)
    if batch is None and tokens is None:
        _check_unused(schedule=schedule, critical_batch=critical_batch, laws=laws)
        return None
    if schedule is not None and not isinstance(schedule, RateSchedule):
        raise InputTypeError(f"schedule must be an nfd.RateSchedule; got {type(schedule).__name__}.")
    if schedule is not None and (batch is None or tokens is None):
        raise InputError("schedule needs the steps of the run. Pass batch= and tokens=, each (small, large).")
    b, d = (1.0 if pair is None else pair[1] / pair[0] for pair in (batch, tokens))
    switched = {} if scales_decay else {TIME_SCALE: False}
    switched |= dict(laws or {})
    if critical_batch is not None and batch is None:
        raise InputError("critical_batch limits the batch. Pass batch=(small, large) in the same unit.")
    limit = [] if critical_batch is None else _limit_rows(critical_batch, d, switched)
    critical = math.prod(row.value for row in limit if row.applied) if limit else None
    rows: list[Factor] = []
    for law in [optimizer, *([] if optimizer.rest is None else [law_of(optimizer.rest)])]:
        own = [
            _power_row(row, law.name, b, d, switched)
            for row in RUN_LAWS
            if row.quantity not in SHARED and row.takes(law)
        ]
        if critical is not None and batch is not None:
            own.append(_saturation(law, batch, limit[0].value, critical, switched))
        rows += _with_decay(own)
    large = None
    if schedule is not None:
        warmup = _shared_row(Quantity.WARMUP, b, d, switched)
        rows.append(warmup)
        large = replace(schedule, warmup=math.ceil(schedule.warmup * (warmup.value if warmup.applied else 1.0)))
    return RunScaling(
        batch, tokens, (*rows, *limit), critical, large, tuple(_unscaled(optimizer, [*rows, *limit], large, critical))
    )


def large_schedule(run: RunScaling | None, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
    """A scheduler of the large run for an optimizer; ValueError where the plan has no schedule."""
    if run is None or run.schedule is None or run.steps is None:
        raise InputError("The plan has no schedule. Pass schedule=, batch= and tokens= to plan.for_run.")
    import torch

    return torch.optim.lr_scheduler.LambdaLR(optimizer, partial(run.schedule, steps=run.steps))


def check_betas(betas: Sequence[float] | None) -> tuple[float, float] | None:
    """Adam's betas as numbers; ValueError or TypeError where they are no two numbers from 0 to below 1."""
    if betas is None:
        return None
    if isinstance(betas, str) or not isinstance(betas, Sequence) or len(betas) != 2:
        raise InputTypeError(f"betas must be two numbers from 0 to below 1; got {betas!r}.")
    first, second = (check_real("betas", beta, least=0.0, below=1.0) for beta in betas)
    return first, second


# ---- rows -----------------------------------------------------------------------------------------------------


def _power_row(law: RunLaw, optimizer: str, b: float, d: float, switched: Mapping[str, bool]) -> Factor:
    value, spread = b**law.batch * d**law.tokens, None
    if law.spread is not None:
        spread = sorted((d if law.tokens else b) ** power for power in law.spread)
    low, high = (None, None) if spread is None or spread[0] == spread[1] else spread
    return Factor(
        law.name, law.quantity, optimizer, value, low, high, law.label, law.formula, law.source, law.scope, law.error,
        switched.get(law.name, True),
    )  # fmt: skip


def _saturation(
    law: OptimizerLaw, batch: tuple[float, float], before: float, after: float, switched: Mapping[str, bool]
) -> Factor:
    """What ``((1 + C/B) / (1 + C0/B0))^-p`` lacks to ``b^p``: rates stop growing at the critical batch C."""
    power = 1.0 if law.is_linear else 0.5
    full = ((1 + after / batch[1]) / (1 + before / batch[0])) ** -power
    return Factor(
        SATURATION, Quantity.RATE, law.name, full / (batch[1] / batch[0]) ** power, None, None,
        Label.EMPIRICAL if law.is_linear or law.epsilon else Label.ASSUMPTION,
        f"((1 + C/B) / (1 + C0/B0))^-{power:g} / b^{power:g}", "McCandlish et al. 2018 (1812.06162)",
        "SGD on a quadratic loss; Adam by its fits (powers 1/2 to 1)", "C is an estimate: see its interval",
        switched.get(SATURATION, True),
    )  # fmt: skip


def _limit_rows(critical_batch: float | Interval, d: float, switched: Mapping[str, bool]) -> list[Factor]:
    """The critical batch as it was measured in the small run, and how it grows with length."""
    known = critical_batch if isinstance(critical_batch, Interval) else None
    value = check_real("critical_batch", critical_batch if known is None else known.value, above=0.0)
    ends = (None, None) if known is None else (known.low, known.high)
    low, high = (end if end is not None and math.isfinite(end) else None for end in ends)
    measured = Factor(
        "measured", Quantity.LIMIT, "", value, low, high, Label.MEASURED, "C0", "critical_batch=", "the small run",
        "its interval; gradient noise stands for the critical batch", True,
    )  # fmt: skip
    return [measured, _shared_row(Quantity.LIMIT, 1.0, d, switched)]


def _shared_row(quantity: Quantity, b: float, d: float, switched: Mapping[str, bool]) -> Factor:
    """The row of a quantity that is one for all optimizers."""
    (law,) = (law for law in RUN_LAWS if law.quantity is quantity)
    return _power_row(law, "", b, d, switched)


def _with_decay(rows: Sequence[Factor]) -> list[Factor]:
    """Rows whose weight decay makes up for the factors of the rate: 1/(rate decay) stays a share of the steps."""
    rate = math.prod(row.value for row in rows if row.quantity is Quantity.RATE and row.applied)
    return [replace(row, value=row.value / rate) if row.quantity is Quantity.DECAY else row for row in rows]


def _unscaled(
    optimizer: OptimizerLaw, rows: Sequence[Factor], schedule: RateSchedule | None, critical: float | None
) -> Iterable[str]:
    """What stays as it is, in words."""
    for row in rows:
        if not row.applied:
            yield f"{row.quantity}{f' of {row.optimizer}' if row.optimizer else ''} ({row.law} is off)"
    if not optimizer.epsilon:
        yield f"momentum of {optimizer.name}"
    if schedule is None:
        yield "warm-up and decay of the rate (no schedule=)"
    if critical is None:
        yield "batch limit (no critical_batch=; nfd check --noise estimates it)"
    yield "clipping of gradients, dropout, averages of weights"


# ---- what users pass --------------------------------------------------------------------------------------------


def _pair(argument: str, pair: Sequence[float] | None) -> tuple[float, float] | None:
    if pair is None:
        return None
    if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
        raise InputTypeError(f"{argument} must be (small, large), two numbers in one unit; got {pair!r}.")
    small, large = (check_real(argument, number, above=0.0) for number in pair)
    if not 1 / _FURTHEST <= large / small <= _FURTHEST:
        raise InputError(f"{argument} must lie within a factor of {_FURTHEST:g}; got {small:g} and {large:g}.")
    return small, large


def _check_laws(laws: Mapping[str, bool] | None) -> None:
    if laws is None:
        return
    if not isinstance(laws, Mapping):
        raise InputTypeError(f"laws must be a dict such as {{'{NAMES[0]}': False}}; got {laws!r}.")
    for name, is_on in laws.items():
        check_choice("a name in laws", name, NAMES)
        check_flag(f"laws[{name!r}]", is_on)


def _check_unused(**options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            raise InputError(f"{name} is for a run of another batch or length. Pass batch= or tokens=, (small, large).")


# ---- The factors of a run as a table that a person reads


_COLUMNS = ("quantity", "factor", "law", "label", "formula", "source")


def explained_run(run: RunScaling) -> list[str]:
    """One line per factor: what it is of, its value, its law with label and source; then what stays, and the range and
    error of every law."""
    table = table_of(*(Column(name, no_wrap=name != "source") for name in _COLUMNS))
    for factor in run.factors:
        table.add_row(*_row(factor))
    ranges = dict.fromkeys(f"law  {factor.law}: {factor.scope}; {factor.error}" for factor in run.factors)
    return ["", _title(run), as_text(table, 200), "", f"not scaled  {'; '.join(run.unscaled)}", *ranges]


def _title(run: RunScaling) -> str:
    pairs = {"batch": run.batch, "tokens": run.tokens}
    known = [f"{name} {pair[0]:g} to {pair[1]:g}" for name, pair in pairs.items() if pair is not None]
    steps = [] if run.steps is None else [f"{run.steps} steps"]
    warmup = [] if run.schedule is None else [f"{run.schedule.warmup} of warm-up"]
    return f"Run: {', '.join([*known, *steps, *warmup, *_limit(run)])}; b, d: batch and tokens over the small run's"


def _limit(run: RunScaling) -> list[str]:
    if run.critical_batch is None or run.batch is None:
        return []
    beyond = " (exceeded: larger batches gain little)" if run.batch[1] > run.critical_batch else ""
    return [f"critical batch about {run.critical_batch:.3g}{beyond}"]


def _row(factor: Factor) -> tuple[str, ...]:
    ends = "" if factor.low is None or factor.high is None else f" [{factor.low:.3g}, {factor.high:.3g}]"
    value = f"{factor.value:.4g}{ends}" if factor.applied else f"off ({factor.value:.4g}{ends})"
    quantity = f"{factor.quantity} ({factor.optimizer})" if factor.optimizer else str(factor.quantity)
    return quantity, value, factor.law, factor.label, factor.formula, factor.source
