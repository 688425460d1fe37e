"""The page of ``make demo``: tune small, train large, from the results of its commands.

Each part shows what the command itself concluded and drew, as its ``result.json`` holds it.

    python -m makers.demo out/demo
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nfd.core.answer import Answer
from nfd.core.files import write_text
from nfd.core.words import plural
from nfd.report.overview import Result, read_results, with_shared_key
from nfd.report.page import Cell, Section, page
from nfd.report.picture import Picture

_TITLE = "The small network's learning rate fits the large one, if you train by a plan"
_ABOUT = "make demo · a small Transformer on digits"
_COMMANDS = {
    "nfd check setup.py --widths 32 64 128 --depths 2 4 8 --lr 0.004": "seconds",
    "nfd transfer setup.py --widths 32 128 --depths 2 4": "minutes",
    "nfd plan setup.py --width 1024 --depth 24 --from out/transfer": "seconds",
}
# Small charts of a check that are shown, a row of them.
_SMALL = 4


def demo_page(directory: Path) -> str:
    """Return the page for the results ``check``, ``transfer`` and ``paper`` in a directory."""
    results, problems = read_results(directory)
    if problems:
        raise SystemExit("\n".join(problems))
    by_folder = {result.folder: result for result in results}
    check = by_folder["check"]
    transfer = by_folder["transfer"]
    sections = [
        _part("1", "Check", check, _first(check, "small", _SMALL)),
        _part(
            "2", "Transfer", transfer, [*_first(transfer, "half", 2), *_first(transfer, "page", 1)]
        ),
        _your_model(),
        _paper(by_folder["paper"]),
    ]
    about = f"{_ABOUT} · {_trainings(check, transfer)}"
    answer = _answer(replace(transfer.answer, about=about))
    return page("Tune small, train large", sections, answer=answer)


def _trainings(check: Result, transfer: Result) -> str:
    """Count what was trained: the networks of a check, and the trainings of a transfer."""
    networks = {(row["width"], row["depth"], row["seed"]) for row in check.content["rows"]}
    again = ", and again by the plan" if check.content["remedy"] else ""
    # A search says how many it took at the end of what it is about.
    *_, of_transfer = transfer.answer.about.split(" · ")
    return f"check: {plural(len(networks), 'network')}{again}; transfer: {of_transfer}"


def _answer(transfer: Answer) -> Answer:
    """Tell the story where the learning rate transfers, and else what the command concluded."""
    answer = transfer
    first, *_ = _COMMANDS
    answer = answer.with_next("Ask it of your own model, at a learning rate that trains it", first)
    if transfer.tone != "good":
        return answer
    because = f"{answer.because}{_costs(transfer)}"
    return replace(answer, state="Tune small, train large", title=_TITLE, because=because)


def _costs(transfer: Answer) -> str:
    """Say what tuning small costs under the rules that do not transfer."""
    sentences = ""
    for row in transfer.table:
        if row[""] == "Costs":
            share = row["gives up (95 %)"].replace("(", "(95 %: ").replace(")", " %)")
            sentences += f" Tuned small, {row['tuning small with']} give up {share}."
    return sentences


def _first(result: Result, kind: str, count: int) -> list[Picture]:
    """Return the first pictures of a kind, in the order of the command's own page."""
    return [picture for picture in result.pictures if picture.kind == kind][:count]


def _part(number: str, name: str, result: Result, pictures: Sequence[Picture]) -> Section:
    """Show what a command concluded, with some of its charts and a link to the others."""
    key, drawn = with_shared_key(pictures or result.pictures[:1])
    answer = result.answer
    return Section(
        f"{number}\u2002{name}: {answer.title[:1].lower()}{answer.title[1:]}",
        [answer.because] if name == "Check" else [],
        key=key,
        pictures=drawn,
        links={"All numbers and what to do": f"{result.folder}/report.html"},
    )


def _your_model() -> Section:
    rows = []
    for command, time in _COMMANDS.items():
        rows.append({"command": Cell(((command, "code"),)), "takes": time})
    text = (
        "setup.py defines make_model(width, depth) and batches, as examples/small_transformer.py."
    )
    return Section("3\u2002Your model: three commands", [], table=rows, caption=text)


def _paper(result: Result) -> Section:
    """Show what the study of the limit decided, folded."""
    answer = result.answer
    return Section(
        "Also in this demo: the paper's infinite limit",
        [f"{answer.title}. {answer.because}"],
        table=answer.table,
        folded=True,
        links={"The whole study": f"{result.folder}/report.html"},
    )


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    write_text(folder / "report.html", demo_page(folder))
    print(f"Demo: {folder / 'report.html'}")
