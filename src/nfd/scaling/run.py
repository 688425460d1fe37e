"""How the settings of a training run follow its batch and its length.

It is a table of laws, and the factors that a plan takes.

``b`` is the batch over that of the small run, ``d`` the number of tokens over that of the small
run. A law says by which factor one quantity changes, ``b^batch d^tokens``; the rate follows the law
of the best rate (``rate_law``), under SGD the theorem. docs/mathematics/recipe.md has the
derivations, the sources as they were read, their ranges and errors.
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
from nfd.scaling.find_law import law_of
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
# Adam and AdamW have an epsilon; Muon and Lion normalise in another way
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


_ANY: tuple[Kind, ...] = ("sgd", "adam", "other")  # that have the setting
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
        value: the setting of the large run as a multiple of that of the small one.
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
        critical_batch: of the large run; None if that of the small run was not measured.
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
        return (
            None
            if self.batch is None or self.tokens is None
            else round(self.tokens[1] / self.batch[1])
        )

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
        """A line per factor with its label and source."""
        known = [
            f"{name} {pair[0]:g} to {pair[1]:g}"
            for name in ("batch", "tokens")
            if (pair := getattr(self, name))
        ]
        if self.steps is not None:
            known.append(f"{self.steps} steps")
        if self.schedule is not None:
            known.append(f"{self.schedule.warmup} of warm-up")
        if self.critical_batch is not None and self.batch is not None:
            beyond = (
                " (exceeded: larger batches gain little)"
                if self.batch[1] > self.critical_batch
                else ""
            )
            known.append(f"critical batch about {self.critical_batch:.3g}{beyond}")
        columns = ("quantity", "factor", "95 %", "costs", "law", "label", "formula", "source")
        table = table_of(*(Column(name, no_wrap=name != "source") for name in columns))
        for f in self.factors:
            quantity = f"{f.quantity} ({f.optimizer})" if f.optimizer else f.quantity
            within = "" if f.interval is None else "{:.3g} to {:.3g}".format(*f.interval)
            costs = "" if f.excess is None else f"{100 * f.excess:.2g} %"
            table.add_row(
                quantity, f"{f.value:.4g}", within, costs, f.law, f.label, f.formula, f.source
            )
        title = f"Run: {', '.join(known)}; b, d: batch and tokens over the small run's"
        note = "95 %: of the best rate. costs: what missing it is expected to cost, of the loss."
        remark = note if any(f.interval for f in self.factors) else ""
        return f"{title}\n{as_text(table, 200)}\n{remark}".rstrip()


def run_scaling(
    optimizer: OptimizerLaw,
    batch: Sequence[float] | None,
    tokens: Sequence[float] | None,
    schedule: RateSchedule | None = None,
    critical_batch: float | Interval | None = None,
    laws: Mapping[str, bool] | None = None,
    law: RateLaw | None = None,
) -> RunScaling:
    """What ``Plan.for_run`` does; what the optimizer leaves to AdamW has rows of its own."""
    batch = _pair("batch", batch)
    tokens = _pair("tokens", tokens)
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
    laws = {} if laws is None else laws
    if not isinstance(laws, Mapping):
        raise InputTypeError(f"laws must be a dict such as {{'{NAMES[0]}': False}}; got {laws!r}.")
    for name in laws:
        check_choice("a name in laws", name, NAMES)
    if not isinstance(law, RateLaw | None):
        raise InputTypeError(
            "law must be an nfd.RateLaw, which nfd.fit_rate_law fits to a table of runs; got "
            f"{type(law).__name__}."
        )
    b, d = (1.0 if pair is None else pair[1] / pair[0] for pair in (batch, tokens))
    followed = RateLaw.of_sweeps() if law is None else law
    critical = None
    saturated = None
    if critical_batch is not None:
        if batch is None:
            raise InputError(
                "critical_batch limits the batch. Pass batch=(small, large) in the same unit."
            )
        known = critical_batch.value if isinstance(critical_batch, Interval) else critical_batch
        small = check_real("critical_batch", known, above=0.0)
        measured = (
            critical_batch
            if isinstance(critical_batch, Interval)
            else Interval(small, 0.0, small, small)
        )
        followed = followed.with_critical_batch(measured, None if tokens is None else tokens[0])
        critical = small * d ** followed.exponents["critical_batch"].value
        saturated = (1 + small / batch[0]) / (1 + critical / batch[1])
    used = [row for row in RUN_LAWS if laws.get(row.name, True)]

    def row(known: RunLaw, of: str = "") -> Factor:
        formula = " ".join(
            f"{x}^{p:g}" if p != 1 else x for x, p in (("b", known.batch), ("d", known.tokens)) if p
        )
        value = b**known.batch * d**known.tokens
        return Factor(known.name, known.quantity, of, value, known.label, formula, known.source)

    rows = list[Factor]()
    for own in [optimizer] if optimizer.rest is None else [optimizer, law_of(optimizer.rest)]:
        kind: Kind = "sgd" if own.is_linear else "adam" if own.epsilon else "other"
        factors = [
            row(known, own.name)
            for known in used
            if kind in known.kinds and _has(own, known.quantity)
        ]
        if kind != "sgd" or law is not None:  # no public sweep is of SGD; yours may be
            factors = [f for f in factors if f.quantity != "rate"]
            if laws.get(_BEST_RATE, True):
                label: Label = "assumption" if kind == "other" and law is None else "empirical law"
                factors = [_best_rate(followed, own.name, label, batch, tokens), *factors]
                factors += [_assumed(kind, own.name, b, d)] if kind != "sgd" else []
        elif saturated is not None:
            said = {
                "value": saturated,
                "label": "empirical law",
                "formula": _SATURATED,
                "source": _CRITICAL,
            }
            factors = [replace(f, **said) if f.law == "batch-rate" else f for f in factors]
        # 1/(rate decay) stays a share of the steps
        rate = _product(f for f in factors if f.quantity == "rate")
        for f in factors:
            of_decay = f.quantity == "weight decay"
            rows.append(
                replace(f, value=f.value / rate, formula=f"{f.formula} / rate") if of_decay else f
            )
        rows += [
            _by_own_powers(own, setting, b, d)
            for setting in own.settings
            if setting.batch or setting.tokens
        ]
    if schedule is not None:
        warmup = [row(known) for known in used if known.quantity == "warm-up, in steps"]
        schedule = replace(schedule, warmup=math.ceil(schedule.warmup * _product(warmup)))
        rows = rows + warmup
    return RunScaling(batch, tokens, tuple(rows), critical, schedule)


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
        followed |= (
            set(setting.follows) if isinstance(setting.follows, tuple) else {setting.follows}
        )
    return _SETTINGS[quantity] in followed


def _by_own_powers(law: OptimizerLaw, setting: Hyperparameter, b: float, d: float) -> Factor:
    """The factor of a setting by the powers that the law of its optimizer gives it."""
    powers = (("b", setting.batch), ("d", setting.tokens))
    formula = " ".join(f"{x}^{power:g}" if power != 1 else x for x, power in powers if power)
    value = b**setting.batch * d**setting.tokens
    source = f"the law of {law.name}"
    return Factor(setting.name, setting.quantity, law.name, value, "assumption", formula, source)


def _best_rate(
    law: RateLaw,
    of: str,
    label: Label,
    batch: tuple[float, float] | None,
    tokens: tuple[float, float] | None,
) -> Factor:
    """Return the factor of the learning rate by a law of the best one.

    It is slightly below the best, as losses rise faster above.
    """
    found = law.factor(batch=batch, tokens=tokens)
    runs = [f"{len(law.found)} cells of runs"] if len(law.found) else []
    source = ". ".join(
        [*runs, *([f"public sweeps: {'; '.join(law.sources)}"] if law.sources else [])]
    )
    formula = f"below the best, {found.rate.value:.3g}"
    within = (found.rate.low, found.rate.high)
    return Factor(
        _BEST_RATE, "rate", of, found.advised, label, formula, source, within, found.excess.value
    )


def _assumed(kind: str, of: str, b: float, d: float) -> Factor:
    """Return the learning rate by fixed powers, with their evidence.

    That is their mean excess loss on public sweeps beside the one of their law.
    """
    tried = "; ".join(
        f"{case} {', '.join(f'{cost[name]:.2g}' for name in ('powers', 'law', 'same'))} %"
        for case, cost in evidence()[kind].items()
    )
    source = (
        "mean excess loss by these powers, by the law of public sweeps, and at the same rate: "
        f"{tried}"
    )
    value = b**0.5 * d**-0.32
    formula = "b^0.5 d^-0.32"
    return Factor("fixed powers", "rate, not used", of, value, "assumption", formula, source)


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
