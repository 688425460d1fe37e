"""The page of ``watched_run.py``, from numbers that are kept; nothing is trained."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

Numbers = Mapping[str, Any]

RUNS = {
    "sound": "as planned",
    "wrong": "one rate for all groups",
    "mended": "the same, with the right rates once the alert is read",
    "saved": "the same, begun again once the alert is read",
}

# The lines that are shown of what was printed, by their beginnings.
TRANSFER = r"Use | width| ─| \d|complete-p:"
PLAN = r" tensor| ─| tokens| blocks\.\*\.(query|out|down)| head"
WATCH = (
    r" meter| ─| (activation|function_update|inner_update|stream_update|alignment) +the network "
)
# Columns of the plan that would make the page scroll.
NARROW = "shape", "why", "epsilon"
# Steps at the end of a run over which its training loss is averaged.
LAST = 8
# Characters of a line of code that the page shows without scrolling.
WIDTH = 88

PAGE = """# A larger run, watched and saved

A small GPT reads the source of Python's `typing` and `inspect` as bytes. We tune it small, plan a larger one, make a
mistake that many training loops make, and save the run:

{losses}

{verdict}

*Made by `python makers/watched_run.py`, in minutes on two cores.* The commands run in the folder of the example,
and take your own file as well.

## Tune small

{transfer}

```text
{transferred}
```

Through its plan the larger network gets this rate, {lr:g}.

## Learn what to expect

A check trains small networks of two widths and two depths with the same batches, rate and schedule, and looks at them
at several steps. From it the watch predicts every meter of the larger network.

{check}

{verdicts}

## Plan the larger network

{plan}

```text
{planned}
```

## Train it, and watch

```bash
python makers/watched_run.py
```

trains width {width} and depth {depth} by this plan, in a loop of plain PyTorch. The lines that matter:

```text
watch = nfd.Watch(model, plan, sample, every={every}, expected="{out}/check")
# a page that follows the run
watch.listeners.append(partial(nfd.run_page, path="run.html"))
...
# of every group, before every step
group["lr"] = lr * schedule(step) * group["lr_scale"]
...
watch.step()  # after optimizer.step()
```

The run keeps its bands: {sound_alerts}.

## The run that goes wrong

Many loops set one rate for all groups:

```text
group["lr"] = lr * schedule(step)
```

The plan gave the matrices inside of branches {factor:g} times the rate of the embedding; this line erases that.
Nothing breaks, and the loss falls. The optimizer of the plan warns at its first step, and so does the watch.

{alert}

```text
{table}
```

## The run that is saved

Two ways lead on from step {read}. Both end with the same batch as the first two runs, so that all have cost the same.
One loop takes `group["lr_scale"]` again and continues with its present weights. The other starts again, with the
weights of `plan.apply_` and the batches that are left. Here it paid to begin again.

`nfd.run_page` wrote a page for each run ([how](watch.md)).
"""


def page(numbers: Numbers) -> str:
    """The page in Markdown."""
    sound = numbers["sound"]
    wrong = numbers["wrong"]
    return PAGE.format(
        transfer=command_block(numbers["transfer"]["command"]),
        check=command_block(numbers["check"]["command"]),
        plan=command_block(numbers["plan"]["command"]),
        transferred=shown(numbers["transfer"]["printed"], TRANSFER),
        planned=shown(numbers["plan"]["printed"], PLAN, NARROW),
        verdicts=verdicts(numbers["verdicts"]),
        **numbers["setting"],
        lr=numbers["lr"],
        sound_alerts=f"{len(sound['alerts'])} alerts",
        alert=alert(wrong["alerts"], numbers["setting"]["read"]),
        table=answer(wrong["table"]),
        losses=losses(numbers),
        verdict=verdict({name: numbers[name]["held_out"] for name in RUNS}),
    )


def verdicts(rows: Sequence[Numbers]) -> str:
    """How many verdicts of a check there are of each kind, and which are against the rule."""
    counts = Counter(row["verdict"] for row in rows)
    counted = ", ".join(f"{count} {word}" for word, count in counts.items())
    faults = [
        f"`{row['meter']}` against {row['axis']} after step {row['step']} {row['verdict']}"
        for row in rows
        if row["verdict"] in ("COLLAPSES", "GROWS")
    ]
    against = "None of them is against the rule."
    if faults:
        against = (
            f"Against the rule: {'; '.join(faults)}. A watch raises no alert at a fault that its "
            "small networks have, too."
        )
    return filled(f"Its table has {len(rows)} verdicts: {counted}. {against}")


def alert(alerts: Sequence[Numbers], read: int) -> str:
    """The first alert, and what leads over to the table of the watch when it is read."""
    if not alerts:
        return "The watch raises no alert here. `print(watch)` at the end:"
    step = alerts[0]["step"]
    text = quoted([alerts[0]["text"]])
    return (
        f"The watch raises an alert at step {step}:\n\n{text}\n\nSuppose that nobody reads it "
        f"before step {read}. `print(watch)` then, without the layers:"
    )


def answer(printed: str) -> str:
    """What ``print(watch)`` printed; of versions that printed every layer, the network's lines."""
    if printed.startswith("Step "):
        return shown(printed, WATCH)
    return printed


def command_block(command: str) -> str:
    """A command as a block of code, in lines that begin with an option."""
    words = re.sub(" (?!--)", "\0", command)
    # Beside the words a line has four spaces before and a backslash behind them.
    lines = textwrap.wrap(words, WIDTH - 6, break_on_hyphens=False)
    return "```bash\n" + " \\\n    ".join(lines).replace("\0", " ") + "\n```"


def shown(text: str, lines: str, leave: Sequence[str] = ()) -> str:
    """The lines that begin with a pattern: a table without columns to leave, and sentences.

    No two columns of the table are far apart, and sentences are wrapped.
    """
    chosen = [line for line in text.splitlines() if re.match(lines, line)]
    table = [line for line in chosen if re.match(r" \S", line)]
    places = shown_places(table, leave)
    texts = []
    for line in chosen:
        narrow = "".join(line[i : i + 1] for i in places).rstrip()
        is_row = line in table
        texts.append(narrow if is_row and narrow else filled(line))
    return "\n".join(texts)


def shown_places(table: Sequence[str], leave: Sequence[str]) -> list[int]:
    """The places of characters that a table keeps: no column of ``leave``, no wide gap."""
    head = table[0] if table else ""
    left_out = set[int]()
    for match in re.finditer(r"\S+( \S+)* *", head):
        if match[0].strip() in leave:
            left_out |= set(range(*match.span()))
    blank = []
    for i, column in enumerate(zip_longest(*table, fillvalue=" ")):
        blank.append(i in left_out or set(column) <= {" ", "─"})
    places = []
    for i in range(len(blank)):
        # The third blank in a row, and those after it, are a gap.
        is_gap = all(blank[max(i - 2, 0) : i + 1])
        if i not in left_out and not is_gap:
            places.append(i)
    return places


def filled(text: str) -> str:
    """Wrap a text into lines that the page shows whole."""
    return textwrap.fill(text, WIDTH, break_on_hyphens=False, break_long_words=False)


def quoted(texts: Sequence[str]) -> str:
    """Show texts as blocks of text."""
    return "\n\n".join(f"```text\n{filled(text)}\n```" for text in texts)


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
