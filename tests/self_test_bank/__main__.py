"""Count the errors of self-tests: ``python -m tests.self_test_bank``, or of those held out by
``--held-out``.
"""

from __future__ import annotations

import argparse

import torch
from tests.self_test_bank import CASES
from tests.self_test_bank.held_out import HELD_OUT
from tests.self_test_bank.runner import asked, judged, report


def main() -> None:
    """Ask of every case, wrong ones first, then sound ones, and those about whose convention people
    disagree.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.self_test_bank", description=__doc__)
    parser.add_argument(
        "--held-out", action="store_true", help="count the cases that were held out"
    )
    cases = HELD_OUT if parser.parse_args().held_out else CASES
    torch.set_num_threads(1)
    parts = {
        "wrong": judged(cases, wrong=True),
        "sound": judged(cases, wrong=False),
        "disputed": [case for case in cases if case.disputed],
    }
    for name, part in parts.items():
        print(f"{name}: {report([asked(case) for case in part])}")


if __name__ == "__main__":
    main()
