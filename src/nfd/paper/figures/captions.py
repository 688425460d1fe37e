"""Captions, made from the settings of the runs that they are of."""

from __future__ import annotations

from nfd.core import listed
from nfd.paper.figures.panels import shown
from nfd.paper.figures.selection import DataSummary, Runs

_FORMS = {
    "activation": "{}",
    "network": "",
    "block": "{} blocks",
    "order": "{}-activation",
    "rule": "{}",
    "feedback": "{} feedback",
    "width": "width {}",
    "depth": "depth {}",
    "horizon": "T = {}",
}
_TRAINING = {"eta_c": "eta_c = {}", "batch": "batch {}", "steps": "{} steps"}
_USUAL = {"block": "one-layer", "order": "pre", "feedback": "shared"}


def caption(runs: Runs, data: DataSummary, *sentences: str) -> str:
    """What is shown, and what ran, in words."""
    is_start = runs.values("meter") == ["start"]
    forms = _FORMS if is_start else _FORMS | _TRAINING
    parts = [part for name, form in forms.items() if (part := _setting(runs, name, form))]
    seeds = f"{len(runs.values('seed'))} seeds of the initial weights"
    how = "inputs normalised per channel"
    if not is_start:
        how, seeds = f"{_training(runs)}, {how}", f"{seeds}, the same batches for all"
    return " ".join([*sentences, f"{data.title}; {', '.join(parts)}; {how}; {seeds}."])


def _setting(runs: Runs, name: str, form: str) -> str:
    """The values of a setting; nothing where it is the usual one."""
    values = runs.values(name)
    if name == "network":
        return "vanilla networks without skip connections" if "mlp" in values else ""
    return "" if values == [_USUAL.get(name)] else form.format(listed([shown(value) for value in values]))


def _training(runs: Runs) -> str:
    optimizers, momenta = runs.values("optimizer"), runs.values("momentum")
    momentum = "without momentum" if momenta == [0.0] else f"with momentum {listed([shown(m) for m in momenta])}"
    scale = "1/sqrt(n)" if runs.values("rule") == ["ntk"] else "1/n"
    named = listed([name.upper() for name in optimizers])
    return f"{named} {momentum}, LR = eta_c, cross-entropy in nats, outputs scaled by {scale}"
