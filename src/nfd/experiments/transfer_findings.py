"""The rules of a transfer as ``result.json`` holds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nfd.core.findings import numbers
from nfd.core.names import AXES
from nfd.laws.rule_transfer import RuleTransfer


def result(answers: Sequence[RuleTransfer]) -> list[dict[str, Any]]:
    """Return verdict, sentence, cost and drift of every rule, as plain data."""
    rules = list[dict[str, Any]]()
    for answer in answers:
        drift = {axis: numbers(answer.drifts.get(axis)) for axis in AXES}
        cost = None if answer.regret is None else answer.regret.share.limits
        rules.append(
            {
                "rule": answer.rule,
                "verdict": answer.verdict,
                "sentence": str(answer),
                "cost": cost,
                "drift": drift,
            }
        )
    return rules
