"""The laws by which the settings of a run follow its batch and its length: a table, one row for each law and optimizer.

``b`` is the batch over that of the small run, ``d`` the number of tokens (or samples) over that of the small run. A law
says by which factor one quantity changes: ``b^batch d^tokens``. docs/mathematics/recipe.md has the derivations, the
sources as they were read, and what was measured on a small GPT.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from nfd.scaling.laws import OptimizerLaw


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
