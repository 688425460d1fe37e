"""Ask the judges of the cases that the stored numbers lack, and fill the page.

python -m calibration.sound_bank [JUDGE ...]
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

from calibration.sound_bank.cases import BROKEN, BY_NAME, CASES, Case
from calibration.sound_bank.judges import (
    BREAKS,
    JUDGES,
    fits,
    transferred,
    watched,
)
from calibration.sound_bank.page import NUMBERS, read_numbers, write_page
from nfd.core.files import write_json
from nfd.core.tables import Row

NAMES = (*JUDGES, "watch", "transfer")
# A watch and a transfer are asked of random cases, in an order that was drawn before any was asked,
# and of as many as the time on a busy machine allowed. The truth about a broken one needs 40
# trainings, which are short only without a stream.
ORDER = 2026
WATCHES = 39
TRANSFERS = 17
TRUTHS = 10
# Without a rule the best rate of these falls as one over width, so that a transfer surely fails.
ADAPTIVE = ("adam", "adamw")
UNSCALED = 12


def in_order(cases: list[Case]) -> list[Case]:
    """The cases in random order."""
    return random.Random(ORDER).sample(cases, len(cases))


def questions(judge: str) -> Iterator[tuple[Case, str]]:
    """The cases and variants of a judge."""
    if judge == "watch":
        for case in in_order(CASES)[:WATCHES]:
            yield case, "sound"
        return
    if judge == "transfer":
        for case in in_order(CASES)[:TRANSFERS]:
            yield case, "planned"
        for case in in_order([case for case in BROKEN if case.axes == "width"])[:TRUTHS]:
            yield case, "broken"
        adaptive = [case for case in CASES if case.axes == "width" and case.optimizer in ADAPTIVE]
        for case in in_order(adaptive)[:UNSCALED]:
            yield case, "unscaled"
        return
    for case in CASES:
        yield case, "planned"
    for case in BROKEN:
        if judge == "check":
            yield case, "by hand"
        assert case.mistake is not None
        if judge == "check" or not case.mistake.is_of_loop:
            yield case, "broken"


def breaks_of(case: Case) -> list[str]:
    """Two ways in which a training of a case is broken, chosen by its name."""
    fitting = [name for name in BREAKS if fits(case, name)]
    return random.Random(case.name).sample(fitting, 2)


def axis_of(case: Case, variant: str) -> str:
    """The axis along which a transfer is asked, or ``far``: along width, sixteen times."""
    if variant == "unscaled":
        return "far"
    if variant == "broken" and case.mistake is not None:
        return case.mistake.axis
    if case.axes == "width":
        return "width"
    return random.Random(case.name).choice(("width", "depth"))


def ask(judge: str, case: Case, variant: str) -> dict[str, Row]:
    """The rows of a question, by variant."""
    if judge == "watch":
        return watched(case, breaks_of(case))
    if judge == "transfer":
        return {variant: transferred(case, variant, axis_of(case, variant))}  # type: ignore[arg-type]
    return {variant: JUDGES[judge](case, variant)}


def ask_again(stored: dict[str, Any]) -> None:
    """Ask of every answer again but those of transfers, which hold their truth."""
    for judge in ("check", "self-test", "watch"):
        for name, answers in stored[judge].items():
            case = BY_NAME[name]
            if judge == "watch":
                rows = watched(case, [variant for variant in answers if variant != "sound"])
            else:
                rows = {variant: JUDGES[judge](case, variant) for variant in answers}
            for variant, row in answers.items():
                row["later"] = {key: rows[variant][key] for key in ("said", "why")}
                changed = rows[variant]["said"] != row["said"]
                mark = {"changed": changed, "case": name, "variant": variant}
                print(json.dumps({"judge": judge} | mark | row["later"]), flush=True)
            write_json(NUMBERS, stored)


def main(judges: list[str]) -> None:
    """Ask, keep every answer, and fill the page."""
    torch.set_num_threads(1)
    stored: dict[str, Any] = read_numbers() if NUMBERS.exists() else {}
    if judges == ["again"]:
        ask_again(stored)
        judges = []
    for judge in judges:
        answers = stored.setdefault(judge, {})
        for case, variant in questions(judge):
            if variant in answers.get(case.name, {}):
                continue
            rows = ask(judge, case, variant)
            answers.setdefault(case.name, {}).update(rows)
            write_json(NUMBERS, stored)
            for name, row in rows.items():
                print(json.dumps({"judge": judge, "case": case.name, "variant": name} | row))
                sys.stdout.flush()
    write_page(stored)


if __name__ == "__main__":
    main(sys.argv[1:] or [*NAMES])
