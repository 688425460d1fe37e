"""Count the errors of self-tests: ``python -m tests.self_test_bank``."""

from __future__ import annotations

import torch
from tests.self_test_bank import CASES
from tests.self_test_bank.runner import asked, judged, report


def main() -> None:
    """Ask of every case, wrong ones first, then sound ones, and those about whose convention people disagree."""
    torch.set_num_threads(1)
    parts = {
        "wrong": judged(CASES, wrong=True),
        "sound": judged(CASES, wrong=False),
        "disputed": [case for case in CASES if case.disputed],
    }
    for name, cases in parts.items():
        print(f"{name}: {report([asked(case) for case in cases])}")


if __name__ == "__main__":
    main()
