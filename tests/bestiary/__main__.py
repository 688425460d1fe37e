"""Ask of every beast and its twin, and write ``docs/bestiary.md``: ``python -m tests.bestiary``."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from tests.bestiary.beasts import BEASTS, SOUND
from tests.bestiary.judge import Answer, asked

PAGE = Path(__file__).parents[2] / "docs" / "bestiary.md"
WORDS = Path(__file__).with_name("page.md")


def _asked(name: str) -> tuple[Answer, Answer]:
    torch.set_num_threads(1)
    (beast,) = (own for own in BEASTS if own.name == name)
    return asked(beast, sound=False), asked(beast, sound=True)


def _of_sound(name: str) -> Answer:
    torch.set_num_threads(1)
    (model,) = (own for own in SOUND if own.name == name)
    return asked(model, sound=True)


def main() -> None:
    """Ask, and write the page."""
    with ProcessPoolExecutor(2) as pool:
        answers = list(pool.map(_asked, [beast.name for beast in BEASTS]))
        of_sound = list(pool.map(_of_sound, [model.name for model in SOUND]))
    named = sum(bool(bug.named) for bug, _ in answers)
    false = sum(bool(twin.raised) for _, twin in answers)
    rows = []
    for beast, (bug, twin) in zip(BEASTS, answers, strict=True):
        said = bug.named or "not named"
        said += f"; twin: {twin.raised[0]}" if twin.raised else ""
        rows.append(f"| {beast.says} *{beast.source}* | {said} |\n")
    sound = [
        f"| {model.says} *{model.source}* | {answer.raised[0] if answer.raised else 'nothing'} |\n"
        for model, answer in zip(SOUND, of_sound, strict=True)
    ]
    PAGE.write_text(
        WORDS.read_text().format(
            count=len(BEASTS), named=named, false=false, rows="".join(rows), sound="".join(sound)
        )
    )
    print(f"{named} of {len(BEASTS)} named, {false} twins raise something: {PAGE}")


if __name__ == "__main__":
    main()
