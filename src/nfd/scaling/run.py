"""How the settings of a training run follow its batch and its length.

It is a table of laws, and the factors that a plan takes.

``b`` is the batch over the small run's, ``d`` the number of tokens over the small run's. A law says
by which factor one quantity changes, ``b^batch d^tokens``; the learning rate follows the law of the
best one (``rate_law``), under SGD the theorem. docs/mathematics/recipe.md has the derivations, the
sources as they were read, their ranges and errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rich.table import Column

from nfd.core.checks import check_choice, check_real
from nfd.core.errors import InputError, InputTypeError
from nfd.core.estimates import Interval
from nfd.core.tables import as_text, table_of
from nfd.laws.rate_law import RateLaw, evidence
from nfd.laws.schedules import RateSchedule
from nfd.scaling.optimizers import Follows, Hyperparameter, OptimizerLaw

Label = Literal["theorem", "empirical law", "assumption"]
Quantity = Literal[
    "rate",
    "rate, not used",
    "weight decay",
    "half-life of beta1, in steps",
    "half-life of beta2, in steps",
    "epsilon",
    "warm-up, in steps",
]
_BETA1: Quantity = "half-life of beta1, in steps"
_BETA2: Quantity = "half-life of beta2, in steps"
# Adam and AdamW have an epsilon; Muon and Lion normalise in another way.
Kind = Literal["sgd", "adam", "other"]


@dataclass(frozen=True)
class RunLaw:
    """How a quantity follows the batch and the number of tokens, by its powers of b and d.

    Rows of one name are one law, for several kinds of optimizers; none where the quantity is one of
    the run.
    """

    name: str
    quantity: Quantity
    kinds: tuple[Kind, ...]
    label: Label
    source: str
    batch: float = 0.0
    tokens: float = 0.0


# All kinds of optimizers that have the setting.
_ANY: tuple[Kind, ...] = ("sgd", "adam", "other")
_MALLADI = "Malladi et al. 2022 (arXiv 2205.10287)"
_SCALE = "Wang & Aitchison 2024 (2405.13698); Bergsma et al. 2025 (2505.13738)"
_CRITICAL = "McCandlish et al. 2018 (1812.06162)"
_GOYAL = "Jastrzebski et al. 2017; Goyal et al. 2017"
RUN_LAWS: tuple[RunLaw, ...] = (
    RunLaw("batch-rate", "rate", ("sgd",), "theorem", _GOYAL, batch=1.0),
    RunLaw(
        "tokens-rate",
        "rate",
        ("sgd",),
        "assumption",
        "as AdamW at small batches: 2409.19913",
        tokens=-0.32,
    ),
    RunLaw("decay-time-scale", "weight decay", ("adam",), "empirical law", _SCALE, 1.0, -1.0),
    RunLaw(
        "decay-time-scale",
        "weight decay",
        ("sgd", "other"),
        "assumption",
        f"as AdamW: {_SCALE}",
        1.0,
        -1.0,
    ),
    RunLaw("beta1-half-life", _BETA1, _ANY, "theorem", _MALLADI, batch=-1.0),
    RunLaw(
        "beta2-half-life",
        _BETA2,
        _ANY,
        "theorem",
        f"{_MALLADI}; Marek et al. 2025 (2507.07101)",
        batch=-1.0,
    ),
    RunLaw("batch-epsilon", "epsilon", _ANY, "theorem", _MALLADI, batch=-0.5),
    RunLaw(
        "warmup-tokens",
        "warm-up, in steps",
        (),
        "assumption",
        "as many tokens as in the small run",
        batch=-1.0,
    ),
)
_BEST_RATE = "best-rate"
_SATURATED = "(1 + C0/B0) / (1 + C/B)"
NAMES: tuple[str, ...] = (_BEST_RATE, *dict.fromkeys(law.name for law in RUN_LAWS))


@dataclass(frozen=True)
class Factor:
    """The factor of one law for one setting of the large run.

    Attributes:
        law: its name, for ``laws=`` of ``Plan.for_run``.
        quantity, optimizer: the setting that it scales, and the optimizer that has this setting.
            ``"rate, not used"`` is evidence: what fixed powers say, and what they cost where they
            were tried. ``"setting NAME"`` is of a hyperparameter whose optimizer law has its own
            powers.
        value: the setting of the large run as a multiple of the small one's.
        label, formula, source: how far it can be trusted, and where it comes from.
        interval, excess: of the best rate: the 95 % interval of its factor, and the share of the
            loss that missing it is expected to cost.
    """

    law: str
    quantity: str
    optimizer: str
    value: float
    label: Label
    formula: str
    source: str
    interval: tuple[float, float] | None = None
    excess: float | None = None


@dataclass(frozen=True)
class RunScaling:
    """How the settings of the large run follow from its batch size and length: ``plan.run``.

    Attributes:
        batch, tokens: of one step and of the whole run, each (small run, large run), in tokens;
            None if not given.
        factors: one ``Factor`` per law and setting, without those that are switched off.
        critical_batch: of the large run; None if the small run's was not measured.
        schedule: of the large run; None if none was given.
    """

    batch: tuple[float, float] | None
    tokens: tuple[float, float] | None
    factors: tuple[Factor, ...]
    critical_batch: float | None
    schedule: RateSchedule | None

    @property
    def steps(self) -> int | None:
        """The number of updates of the large run.

        None unless both ``batch`` and ``tokens`` were given.
        """
        if self.batch is None or self.tokens is None:
            return None
        return round(self.tokens[1] / self.batch[1])

    def factor(self, quantity: str, optimizer: str) -> float:
        """The product of the factors of a quantity, such as the rate, for an optimizer."""
        return _product(
            f for f in self.factors if f.quantity == quantity and f.optimizer == optimizer
        )

    def betas(self, betas: Sequence[float], optimizer: str) -> tuple[float, ...]:
        """Adam's betas, their half-lives in steps multiplied by the factors.

        A third beta, as of AdEMAMix, is of a second mean of gradients, and follows the first.
        """
        first = self.factor(_BETA1, optimizer)
        second = self.factor(_BETA2, optimizer)
        half_lives = [second if place == 1 else first for place in range(len(betas))]
        return tuple(
            math.pow(beta, 1 / half_life) for beta, half_life in zip(betas, half_lives, strict=True)
        )

    def explain(self) -> str:
        """Write a line for each factor, with its label and source."""
        columns = ("quantity", "factor", "95 %", "costs", "law", "label", "formula", "source")
        table = table_of(*(Column(name, no_wrap=name != "source") for name in columns))
        for f in self.factors:
            quantity = f"{f.quantity} ({f.optimizer})" if f.optimizer else f.quantity
            within = "" if f.interval is None else "{:.3g} to {:.3g}".format(*f.interval)
            costs = "" if f.excess is None else f"{100 * f.excess:.2g} %"
            table.add_row(
                quantity, f"{f.value:.4g}", within, costs, f.law, f.label, f.formula, f.source
            )
        title = f"Run: {', '.join(self._sizes())}; b, d: batch and tokens over the small run's"
        lines = [title, as_text(table, 200)]
        if any(f.interval for f in self.factors):
            lines.append(
                "95 %: of the best rate. costs: what missing it is expected to cost, of the loss."
            )
        return "\n".join(lines).rstrip()

    def _sizes(self) -> list[str]:
        """Say how large both runs are, as far as it is given."""
        sizes = list[str]()
        for name, pair in (("batch", self.batch), ("tokens", self.tokens)):
            if pair:
                sizes.append(f"{name} {pair[0]:g} to {pair[1]:g}")
        if self.steps is not None:
            sizes.append(f"{self.steps} steps")
        if self.schedule is not None:
            sizes.append(f"{self.schedule.warmup} of warm-up")
        if self.critical_batch is not None and self.batch is not None:
            is_exceeded = self.batch[1] > self.critical_batch
            beyond = " (exceeded: larger batches gain little)" if is_exceeded else ""
            sizes.append(f"critical batch about {self.critical_batch:.3g}{beyond}")
        return sizes


@dataclass(frozen=True)
class _Growth:
    """The sizes of both training runs, and the laws that lead from one to the other.

    Attributes:
        batch, tokens: (small run, large run); None if not given.
        laws: rows of ``RUN_LAWS`` that are not switched off.
        rate_law: of the best learning rate; None where that is switched off.
        is_users_law: whether the user passed ``rate_law``.
        saturation: the factor of SGD's rate where the critical batch is known; else None.
    """

    batch: tuple[float, float] | None
    tokens: tuple[float, float] | None
    laws: tuple[RunLaw, ...]
    rate_law: RateLaw | None
    is_users_law: bool
    saturation: float | None

    @property
    def b(self) -> float:
        """The batch over that of the small run."""
        return _ratio(self.batch)

    @property
    def d(self) -> float:
        """The number of tokens over that of the small run."""
        return _ratio(self.tokens)

    def factor(self, law: RunLaw, optimizer: str = "") -> Factor:
        """Return the factor of one law."""
        value = self.b**law.batch * self.d**law.tokens
        formula = _formula(law.batch, law.tokens)
        return Factor(law.name, law.quantity, optimizer, value, law.label, formula, law.source)


def _ratio(pair: tuple[float, float] | None) -> float:
    """Divide the large by the small number of a pair; 1 without one."""
    return 1.0 if pair is None else pair[1] / pair[0]


def run_scaling(
    optimizer: OptimizerLaw,
    batch: Sequence[float] | None,
    tokens: Sequence[float] | None,
    schedule: RateSchedule | None = None,
    critical_batch: float | Interval | None = None,
    laws: Mapping[str, bool] | None = None,
    law: RateLaw | None = None,
) -> RunScaling:
    """Do what ``Plan.for_run`` says; what the optimizer leaves to AdamW has its own rows."""
    batch = _pair("batch", batch)
    tokens = _pair("tokens", tokens)
    laws = {} if laws is None else laws
    _check_run(batch, tokens, schedule, laws, law)

    rate_law = RateLaw.of_sweeps() if law is None else law
    critical = None
    saturation = None
    if critical_batch is not None:
        if batch is None:
            raise InputError(
                "critical_batch limits the batch. Pass batch=(small, large) in the same unit."
            )
        measured = _as_interval(critical_batch)
        rate_law = rate_law.with_critical_batch(measured, None if tokens is None else tokens[0])
        critical = measured.value * _ratio(tokens) ** rate_law.exponents["critical_batch"].value
        saturation = (1 + measured.value / batch[0]) / (1 + critical / batch[1])

    growth = _Growth(
        batch=batch,
        tokens=tokens,
        laws=tuple(row for row in RUN_LAWS if laws.get(row.name, True)),
        rate_law=rate_law if laws.get(_BEST_RATE, True) else None,
        is_users_law=law is not None,
        saturation=saturation,
    )
    rows = list[Factor]()
    for part in optimizer.parts:
        rows += _factors_of(part, growth)
    if schedule is not None:
        warmup = [growth.factor(row) for row in growth.laws if row.quantity == "warm-up, in steps"]
        schedule = replace(schedule, warmup=math.ceil(schedule.warmup * _product(warmup)))
        rows += warmup
    return RunScaling(batch, tokens, tuple(rows), critical, schedule)


def _check_run(
    batch: tuple[float, float] | None,
    tokens: tuple[float, float] | None,
    schedule: RateSchedule | None,
    laws: Mapping[str, bool],
    law: RateLaw | None,
) -> None:
    """Raise ValueError or TypeError naming an argument of ``Plan.for_run``."""
    if batch is None and tokens is None:
        raise InputError(
            "A run differs by its batch or its length. Pass batch= or tokens=, each (small, large)."
        )
    if not isinstance(schedule, RateSchedule | None):
        raise InputTypeError(
            f"schedule must be an nfd.RateSchedule; got {type(schedule).__name__}."
        )
    if schedule is not None and (batch is None or tokens is None):
        raise InputError(
            "schedule needs the steps of the run. Pass batch= and tokens=, each (small, large)."
        )
    if not isinstance(laws, Mapping):
        raise InputTypeError(f"laws must be a dict such as {{'{NAMES[0]}': False}}; got {laws!r}.")
    for name in laws:
        check_choice("a name in laws", name, NAMES)
    if not isinstance(law, RateLaw | None):
        raise InputTypeError(
            "law must be an nfd.RateLaw, which nfd.fit_rate_law fits to a table of runs; got "
            f"{type(law).__name__}."
        )


def _as_interval(critical_batch: float | Interval) -> Interval:
    """Read a critical batch; a number is an interval without error."""
    if isinstance(critical_batch, Interval):
        check_real("critical_batch", critical_batch.value, above=0.0)
        return critical_batch
    value = check_real("critical_batch", critical_batch, above=0.0)
    return Interval(value, 0.0, value, value)


def _factors_of(law: OptimizerLaw, growth: _Growth) -> list[Factor]:
    """List the factors of all settings of one optimizer."""
    kind = _kind(law)
    factors = list[Factor]()
    for row in growth.laws:
        if kind in row.kinds and _has(law, row.quantity):
            factors.append(growth.factor(row, law.name))
    # No public sweep is of SGD, but the user's law may be.
    if kind != "sgd" or growth.is_users_law:
        others = [factor for factor in factors if factor.quantity != "rate"]
        factors = _rate_factors(law, kind, growth, others)
    elif growth.saturation is not None:
        factors = [_saturated(factor, growth.saturation) for factor in factors]
    # The time scale of decay, 1/(rate decay), stays a share of the steps.
    rate = _product(factor for factor in factors if factor.quantity == "rate")
    rows = list[Factor]()
    for factor in factors:
        if factor.quantity == "weight decay":
            formula = f"{factor.formula} / rate"
            factor = replace(factor, value=factor.value / rate, formula=formula)
        rows.append(factor)
    for setting in law.settings:
        if setting.batch or setting.tokens:
            rows.append(_by_own_powers(law, setting, growth.b, growth.d))
    return rows


def _kind(law: OptimizerLaw) -> Kind:
    """Return the kind of optimizers to which a law belongs."""
    if law.is_linear:
        return "sgd"
    return "adam" if law.epsilon else "other"


def _rate_factors(
    law: OptimizerLaw, kind: Kind, growth: _Growth, others: list[Factor]
) -> list[Factor]:
    """Put the factor of the best rate before the others, and its alternative after them."""
    if growth.rate_law is None:
        return others
    is_assumed = kind == "other" and not growth.is_users_law
    label: Label = "assumption" if is_assumed else "empirical law"
    best = _best_rate(growth.rate_law, law.name, label, growth.batch, growth.tokens)
    if kind == "sgd":
        return [best, *others]
    return [best, *others, _assumed(kind, law.name, growth.b, growth.d)]


def _saturated(factor: Factor, saturation: float) -> Factor:
    """Let SGD's rate follow the critical batch in place of the batch."""
    if factor.law != "batch-rate":
        return factor
    return replace(
        factor,
        value=saturation,
        label="empirical law",
        formula=_SATURATED,
        source=_CRITICAL,
    )


_SETTINGS: dict[Quantity, Follows] = {
    "weight decay": "weight decay",
    _BETA1: "beta1",
    _BETA2: "beta2",
    "epsilon": "epsilon",
}


def _has(law: OptimizerLaw, quantity: Quantity) -> bool:
    """Whether an optimizer has a setting that follows a quantity.

    It is also true for a quantity that is not one of its settings.
    """
    if quantity not in _SETTINGS:
        return True
    followed = set[Follows | None]()
    for setting in law.settings:
        follows = setting.follows
        followed |= set(follows) if isinstance(follows, tuple) else {follows}
    return _SETTINGS[quantity] in followed


def _formula(batch: float, tokens: float) -> str:
    """Write powers of b and d."""
    parts = list[str]()
    for symbol, power in (("b", batch), ("d", tokens)):
        if power:
            parts.append(symbol if power == 1 else f"{symbol}^{power:g}")
    return " ".join(parts)


def _by_own_powers(law: OptimizerLaw, setting: Hyperparameter, b: float, d: float) -> Factor:
    """Return the factor of a setting by the powers in the law of its optimizer."""
    formula = _formula(setting.batch, setting.tokens)
    value = b**setting.batch * d**setting.tokens
    source = f"the law of {law.name}"
    return Factor(setting.name, setting.quantity, law.name, value, "assumption", formula, source)


def _best_rate(
    law: RateLaw,
    optimizer: str,
    label: Label,
    batch: tuple[float, float] | None,
    tokens: tuple[float, float] | None,
) -> Factor:
    """Return the factor of the learning rate by a law of the best one.

    It is slightly below the best, as losses rise faster above.
    """
    answer = law.factor(batch=batch, tokens=tokens)
    sources = list[str]()
    if len(law.found):
        under = f" under {law.rule}" if law.rule else ""
        sources.append(f"{len(law.found)} cells of runs{under}")
    if law.sources:
        sources.append(f"public sweeps: {'; '.join(law.sources)}")
    return Factor(
        law=_BEST_RATE,
        quantity="rate",
        optimizer=optimizer,
        value=answer.advised,
        label=label,
        formula=f"below the best, {answer.rate.value:.3g}",
        source=". ".join(sources),
        interval=(answer.rate.low, answer.rate.high),
        excess=answer.excess.value,
    )


def _assumed(kind: str, optimizer: str, b: float, d: float) -> Factor:
    """Return the learning rate by fixed powers, with their evidence.

    That is their mean excess loss on public sweeps beside the one of their law.
    """
    cases = list[str]()
    for case, cost in evidence()[kind].items():
        costs = ", ".join(f"{cost[name]:.2g}" for name in ("powers", "law", "same"))
        cases.append(f"{case} {costs} %")
    source = (
        "mean excess loss by these powers, by the law of public sweeps, and at the same rate: "
        f"{'; '.join(cases)}"
    )
    value = b**0.5 * d**-0.32
    formula = "b^0.5 d^-0.32"
    return Factor("fixed powers", "rate, not used", optimizer, value, "assumption", formula, source)


def _product(factors: Iterable[Factor]) -> float:
    return math.prod(factor.value for factor in factors)


def _pair(argument: str, pair: Sequence[float] | None) -> tuple[float, float] | None:
    if pair is None:
        return None
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InputTypeError(
            f"{argument} must be (small, large), two numbers in one unit; got {pair!r}."
        )
    small, large = (check_real(argument, number, above=0.0) for number in pair)
    return small, large
