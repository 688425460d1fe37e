"""The page of ``watched_run.py``, from numbers that are kept; nothing is trained."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

Numbers = Mapping[str, Any]

RUNS = {
    "sound": "as planned",
    "wrong": "one rate for all groups",
    "mended": "the same, with the right rates once the alert is read",
    "saved": "the same, begun again once the alert is read",
}

# Steps at the end of a run over which its training loss is averaged.
LAST = 8
# Characters of a line of code that the page shows without scrolling.
WIDTH = 88

PAGE = """# A larger run, watched and saved

A small GPT reads the source of Python's `typing` and `inspect` as bytes. We tune it small, plan a larger one, make a
mistake that many training loops make, and save the run:

{losses}

{verdict}

*Made by `python makers/watched_run.py`, in minutes on two cores.*

## Tune small, and learn what to expect

{transfer}

```text
{transferred}
```

A check of small networks with the same batches, rate and schedule says what to expect. Then a plan:

{check}

{plan}

## The run that goes wrong

The script trains width {width} and depth {depth} by this plan, in a loop of plain PyTorch that sets
`group["lr"] = lr * schedule(step) * group["lr_scale"]` of every group, and steps a watch of the check, `every={every}`.

The run keeps its bands: {sound_alerts}. Many loops set one rate for all groups, `group["lr"] = lr * schedule(step)`.
The plan gave the matrices inside of branches {factor:g} times the rate of the embedding; that line erases it. Nothing
breaks, and the loss falls. {alert}

```text
{table}
```

## The run that is saved

Two ways lead on from step {read}. One loop takes `group["lr_scale"]` again and continues with its present weights. The
other starts again, with the weights of `plan.apply_` and the batches that are left, so that all runs have cost the
same. How to watch your own run: [watch a training](watch.md).
"""


def page(numbers: Numbers) -> str:
    """The page in Markdown."""
    sound = numbers["sound"]
    wrong = numbers["wrong"]
    return PAGE.format(
        transfer=command_block(numbers["transfer"]["command"]),
        check=command_block(numbers["check"]["command"]),
        plan=command_block(numbers["plan"]["command"]),
        transferred=numbers["transfer"]["printed"].partition("\n")[0],
        **numbers["setting"],
        sound_alerts=f"{len(sound['alerts'])} alerts",
        alert=alert(wrong["alerts"], numbers["setting"]["read"]),
        table=wrong["table"],
        losses=losses(numbers),
        verdict=verdict({name: numbers[name]["held_out"] for name in RUNS}),
    )


def alert(alerts: Sequence[Numbers], read: int) -> str:
    """When the first alert comes, and what leads over to what the watch prints when it is read."""
    if not alerts:
        return "The watch raises no alert here. `print(watch)` at the end:"
    return (
        "The optimizer of the plan warns at its first step, and the watch at step "
        f"{alerts[0]['step']}. Suppose that nobody reads it before step {read}. `print(watch)` then:"
    )


def command_block(command: str) -> str:
    """A command as a block of code, in lines that begin with an option."""
    words = re.sub(" (?!--)", "\0", command)
    # Beside the words a line has four spaces before and a backslash behind them.
    lines = textwrap.wrap(words, WIDTH - 6, break_on_hyphens=False)
    return "```bash\n" + " \\\n    ".join(lines).replace("\0", " ") + "\n```"


def filled(text: str) -> str:
    """Wrap a text into lines that the page shows whole."""
    return textwrap.fill(text, WIDTH, break_on_hyphens=False, break_long_words=False)


def losses(numbers: Numbers) -> str:
    """A table of the runs: steps, mean loss of the last steps, loss on text that was held out."""
    rows = [["run", "steps", "last steps, in training", "held out"], ["---"] * 4]
    for name, title in RUNS.items():
        values = numbers[name]["losses"]
        rows.append(
            [
                title,
                str(len(values)),
                f"{sum(values[-LAST:]) / LAST:.3f}",
                f"{numbers[name]['held_out']:.3f}",
            ]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def verdict(held_out: Mapping[str, float]) -> str:
    """What the mistake cost, and what the two ways on from the alert saved of that."""
    lost = held_out["wrong"] - held_out["sound"]
    if lost <= 0:
        return f"Here the mistake cost nothing: the run that kept it ends {-lost:.3f} nats lower."
    mended = 100 * (held_out["wrong"] - held_out["mended"]) / lost
    saved = 100 * (held_out["wrong"] - held_out["saved"]) / lost
    continuing = f"saves {mended:.0f} % of that" if mended > 0 else "saves nothing of that"
    return filled(
        f"On text that was held out the mistake costs {lost:.3f} nats. Continuing with the right "
        f"rates {continuing}: what the first steps did to the stream stays. To begin again saves "
        f"{saved:.0f} %."
    )
