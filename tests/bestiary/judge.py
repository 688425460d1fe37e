"""What ``nfd.check`` and ``nfd.Watch`` say of every beast and of its twin."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from tests.bestiary.beasts import Beast

import nfd
from nfd.scaling.model import numberless

NAMES = {"factor": "multiplier"}


@dataclass(frozen=True)
class Answer:
    """What was said of one network.

    Attributes:
        raised: the sentences, none if nothing was found. named: layer and cause of the bug, if they
            are said.
    """

    raised: tuple[str, ...]
    named: str


def asked(beast: Beast, *, sound: bool) -> Answer:
    """Ask of the bug, or of its twin."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        told = watched(beast, sound) if beast.ask == "watch" else checked(beast, sound)
    found = [
        f"`{layer}`: {cause}"
        for layer, cause, _ in told
        if layer in beast.layers and cause in beast.causes
    ]
    return Answer(tuple(text for *_, text in told), found[0] if found else "")


def checked(beast: Beast, sound: bool) -> list[tuple[str, str, str]]:
    """Layer, cause and sentence of all that a check raises; its meters name no layer."""
    make_model, task = beast.make(sound)
    check = nfd.check(
        make_model,
        task,
        *beast.sizes,
        lr=beast.lr,
        rule="standard",
        optimizer=beast.optimizer,
        seeds=2,
        remedy=False,
    )
    meters = [f"{row['meter']} {row['verdict']} with {row['axis']}" for row in check.faults]
    suspects = [(s.tensor, NAMES.get(s.what, s.what), str(s)) for s in check.suspects]
    return [*suspects, *(("", "", text) for text in [*map(str, check.failures), *meters])]


def watched(beast: Beast, sound: bool) -> list[tuple[str, str, str]]:
    """The same of a watch, by every tensor that an alert tells of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        watch = beast.make(sound)
    told = []
    for alert in watch.alerts:
        kinds = {numberless(other.tensor) for other in alert.tensors} or {
            numberless(alert.layer or "")
        }
        told += [(kind, alert.cause.value, str(alert)) for kind in sorted(kinds)]
    lost = [str(w.message) for w in caught if "no longer the plan's" in str(w.message)]
    return [*told, *(("", "rate", text) for text in lost)]
