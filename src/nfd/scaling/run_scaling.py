"""``RunScaling``: by which factors the settings of a larger run differ from those of the small one that was tuned."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from nfd.core.errors import InputError, InputTypeError, check_choice, check_flag, check_real
from nfd.core.estimates import Interval
from nfd.scaling.entries import Positive
from nfd.scaling.laws import OptimizerLaw, law_of
from nfd.scaling.rate_schedule import RateSchedule
from nfd.scaling.run_laws import NAMES, RUN_LAWS, SATURATION, SHARED, TIME_SCALE, Label, Quantity, RunLaw

if TYPE_CHECKING:
    import torch

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
        label, formula, source, scope, error: as in ``nfd.scaling.run_laws.RunLaw``.
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
