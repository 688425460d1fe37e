"""Ask of every beast and its twin, store the answers and write ``docs/bestiary.md``.

python -m tests.bestiary         asks, in minutes; writes ``docs/bestiary.json`` and the page
python -m tests.bestiary page    writes the page from the stored answers
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from tests.bestiary.beasts import BEASTS, SOUND, Beast
from tests.bestiary.judge import asked

from makers.pages.words import LEVEL, scaled, sentence
from nfd.core.estimates import share
from nfd.core.files import write_json

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "bestiary.md"
ANSWERS = DOCS / "bestiary.json"
WORDS = Path(__file__).with_name("page.md")


def _of_beast(name: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    (beast,) = (own for own in BEASTS if own.name == name)
    bug = asked(beast, sound=False)
    twin = asked(beast, sound=True)
    return {"named": bug.named, "twin": list(twin.raised)}


def _of_sound(name: str) -> list[str]:
    torch.set_num_threads(1)
    (model,) = (own for own in SOUND if own.name == name)
    return list(asked(model, sound=True).raised)


def answers() -> dict[str, Any]:
    """Ask of all: how a bug is named, and what its twin and every sound model raise."""
    beasts = [beast.name for beast in BEASTS]
    models = [model.name for model in SOUND]
    with ProcessPoolExecutor(2) as pool:
        bugs = dict(zip(beasts, pool.map(_of_beast, beasts), strict=True))
        sound = dict(zip(models, pool.map(_of_sound, models), strict=True))
    return {"bugs": bugs, "sound": sound}


def page(stored: Mapping[str, Any]) -> str:
    """The page of these answers."""
    bugs = stored["bugs"]
    named = sum(bool(answer["named"]) for answer in bugs.values())
    false = sum(bool(answer["twin"]) for answer in bugs.values())
    rows = []
    for beast in BEASTS:
        answer = bugs[beast.name]
        said = answer["named"] or "not named"
        said += f"; twin: {answer['twin'][0]}" if answer["twin"] else ""
        rows.append(f"| {_line(beast)} | {said} |\n")
    sound = []
    for model in SOUND:
        raised = stored["sound"][model.name]
        sound.append(f"| {_line(model)} | {raised[0] if raised else 'nothing'} |\n")
    shares = {}
    for name, count, level in (("named", named, LEVEL), ("false", false, "")):
        interval = scaled(share(count, len(bugs)).limits, 100)
        text = sentence(interval, ".0f", " %", level)
        shares[f"{name}_share"] = text.partition("(")[2].rstrip(")")
    return WORDS.read_text(encoding="utf-8").format(
        count=len(bugs),
        named=named,
        false=false,
        rows="".join(rows),
        sound="".join(sound),
        **shares,
    )


def _line(beast: Beast) -> str:
    """What a beast is and where it stands, in one line."""
    return " ".join(f"{beast.says} *{beast.source}*".split())


def main() -> None:
    """Ask, unless only the page is wanted, and write the page."""
    if sys.argv[1:] != ["page"]:
        write_json(ANSWERS, answers())
    PAGE.write_text(page(json.loads(ANSWERS.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
