"""Plans that are sound and plans that are wrong, by mathematics, to count how often a self-test
errs.

The cases were written by another hand than the test, which set no limit by them.
"""

from __future__ import annotations

from tests.self_test_bank.cases import Case
from tests.self_test_bank.sound import SOUND
from tests.self_test_bank.wrong import UNKNOWN, WRONG

CASES: list[Case] = [*SOUND, *WRONG, *UNKNOWN]

__all__ = ["CASES", "Case"]
