"""How the best learning rate is usually assumed to follow batch size, number of steps and weight decay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nfd.scaling.optimizers import OptimizerLaw

Support = Literal["theorem", "empirical law", "assumption"]


@dataclass(frozen=True)
class Assumed:
    """``best rate ~ setting^exponent``.

    Attributes:
        name: what the rule is called. kind: what it rests on. source: where it comes from, and for which networks.
    """

    exponent: float
    name: str
    kind: Support
    source: str

    def __str__(self) -> str:
        return f"^{self.exponent:g} ({self.name}, {self.kind}: {self.source})"


_LINEAR = Assumed(1.0, "linear scaling", "empirical law", "Goyal et al. 2017, arXiv 1706.02677, up to a critical batch")
_ROOT = Assumed(0.5, "square-root scaling", "theorem", "Malladi et al. 2022, arXiv 2205.10287, where noise dominates")
_ROOT_TOO = Assumed(0.5, "square-root scaling", "assumption", "as for Adam, whose updates are normalised too")
_HORIZON = Assumed(
    -0.32,
    "token horizon",
    "empirical law",
    "Bjorck et al. 2025, arXiv 2409.19913, language models of up to 2.7 billion parameters under AdamW",
)
_PRODUCT = Assumed(
    -1.0,
    "constant product",
    "assumption",
    "weights remember 1/(rate x decay) steps, Wang & Aitchison 2025, arXiv 2405.13698",
)


def assumed_of(setting: str, law: OptimizerLaw) -> Assumed | None:
    """What is usually assumed of the best rate along a setting under an optimizer; None where nothing is.

    The rules of the batch are those of a fixed number of samples.
    """
    if setting == "weight_decay":
        return _PRODUCT
    if setting == "steps":
        return None if law.degree else _HORIZON
    if setting == "batch_size":
        return _LINEAR if law.is_linear else None if law.degree else _ROOT if law.epsilon else _ROOT_TOO
    return None
