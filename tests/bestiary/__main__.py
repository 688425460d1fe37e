"""Ask of every beast and its twin, and write ``docs/bestiary.md``: ``python -m tests.bestiary``."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from tests.bestiary.beasts import BEASTS
from tests.bestiary.judge import Answer, asked

PAGE = Path(__file__).parents[2] / "docs" / "bestiary.md"
HEAD = """# A bestiary

{count} scaling bugs as they stand, or stood, in public code, and the same code without them: what does nfd say?

*`make bestiary` asks, and writes this page. `tests/bestiary` has every bug in some thirty lines of our own: a small GPT
with its user's own muP, checked by `nfd.check(..., rule="standard")`, or watched. The source is where the fault stands,
or was reported; where it does no harm there, since sizes are fixed, the case lets them grow.*

**{named} of {count} bugs are named by layer and cause; {false} of {count} sound twins raise anything.**

The cases are not held out: what a check says was mended on some of them.

| bug, *and where it stands* | named as | s |
|---|---|---|
"""


def _asked(name: str) -> tuple[Answer, Answer]:
    torch.set_num_threads(1)
    (beast,) = (own for own in BEASTS if own.name == name)
    return asked(beast, sound=False), asked(beast, sound=True)


def main() -> None:
    """Ask, and write the page."""
    with ProcessPoolExecutor(2) as pool:
        answers = list(pool.map(_asked, [beast.name for beast in BEASTS]))
    named, false = sum(bool(bug.named) for bug, _ in answers), sum(bool(twin.raised) for _, twin in answers)
    rows = []
    for beast, (bug, twin) in zip(BEASTS, answers, strict=True):
        said = bug.named or "not named"
        said += f"; twin: {twin.raised[0]}" if twin.raised else ""
        rows.append(f"| {beast.says} *{beast.source.replace('*', '&ast;')}* | {said} | {bug.seconds:.0f} |\n")
    PAGE.write_text(HEAD.format(count=len(BEASTS), named=named, false=false) + "".join(rows))
    print(f"{named} of {len(BEASTS)} named, {false} twins raise something: {PAGE}")


if __name__ == "__main__":
    main()
