"""The tour: every question of nfd is put to every model of the zoo, and the answers make one page.

python -m tests.zoo                 asks what ``docs/zoo.json`` lacks; writes it and ``docs/zoo.md``
python -m tests.zoo --again Llama   asks of some again; of all without names
"""

from __future__ import annotations

import argparse
import json
import re
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.zoo.published import Exhibit
from tests.zoo.test_plans import CASES, EXHIBITS, planned, sample_of
from tests.zoo.test_plans import test_every_tensor_is_planned_as_published as as_published

import nfd
from makers.pages.words import LEVEL, paragraph, scaled, sentence
from nfd.core.estimates import share
from nfd.core.words import listed
from nfd.scaling.model import matches
from nfd.scaling.samples import call_with

DOCS = Path(__file__).parents[2] / "docs"
ANSWERS = DOCS / "zoo.json"
PAGE = DOCS / "zoo.md"
RATES = (2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)
STEPS = 8
LONG = 24
LR = 2e-3


def task(exhibit: Exhibit, steps: int = STEPS) -> nfd.Task:
    """The first batches of a model, each of which it sees more than once: so there is something to
    learn.
    """
    pairs = [exhibit.batch(step % 2) for step in range(steps)]
    return nfd.Task(pairs) if isinstance(pairs[0], dict) else nfd.Task(pairs, loss=exhibit.loss)


def family(exhibit: Exhibit, rule: str) -> nfd.Family:
    """A model under a rule, with what a plan must be told."""
    return nfd.Family(exhibit.make, exhibit.base, rule=rule, name=exhibit.name, **exhibit.options)  # type: ignore[arg-type]


def sizes(exhibit: Exhibit) -> tuple[list[int], list[int]]:
    """Three widths, and two depths where a rule scales with depth."""
    width, depth = exhibit.base
    return [width, 2 * width, 4 * width], [depth, 2 * depth] if "complete-p" in exhibit.rules else [
        depth
    ]


# ---- the questions: each returns a verdict and, where there is more to say, a sentence


def plans(exhibit: Exhibit) -> tuple[str, str]:
    """Whether every tensor has the published factors."""
    for _, rule in (case for case in CASES if case[0] is exhibit):
        as_published(exhibit, rule)
    count = len(planned(exhibit, exhibit.rules[-1])[1].entries)
    try:
        planned(exhibit, "complete-p")
    except ValueError as error:
        return f"{count} of {count} right", f"complete-p is refused: {error}"
    return f"{count} of {count} right", ""


def checks(exhibit: Exhibit, rule: str) -> tuple[str, str]:
    """What a check finds."""
    found = nfd.check(family(exhibit, rule), task(exhibit), *sizes(exhibit), lr=LR, remedy=False)
    faults = [f"{row['meter']} {row['verdict']} with {row['axis']}" for row in found.faults]
    told = [*map(str, found.failures), *faults, *found.suspicions]
    count = len(found.faults) + len(found.failures)
    return (f"{count} faults, {len(found.suspects)} suspects" if told else "sound"), "; ".join(told)


def transfers(exhibit: Exhibit) -> tuple[str, str]:
    """Whether the best rate of the smallest network serves one that is twice as wide."""
    rule = exhibit.rules[-1]
    ((width, *_), (depth, *_)) = sizes(exhibit)
    found = nfd.transfer(
        family(exhibit, rule), task(exhibit, LONG), [width, 2 * width], [depth], RATES, rules=[rule]
    )
    return str(found.verdict(rule)).rpartition(".")[2], str(found.of(rule))


def defers(exhibit: Exhibit) -> tuple[str, str]:
    """How many matrices are trained without being stored; where some cannot, the rest by
    ``where=``.
    """
    width, depth = exhibit.base
    made: Any = {"base": exhibit.base, "make_model": exhibit.make, "sample": sample_of(exhibit)}
    plan = nfd.plan(
        exhibit.make(4 * width, depth),
        rule=exhibit.rules[-1],
        optimizer="sgd",
        **made,
        **exhibit.options,
    )
    ((inputs, targets),) = (given := task(exhibit, 1)).batches

    def trained(**options: Any) -> str:
        model: Any = nfd.defer(
            exhibit.make(4 * width, depth), plan, weights="structured", **options
        )
        optimizer = plan.make_optimizer(model, lr=LR)
        given.value(call_with(model, inputs), targets).backward()
        optimizer.step()
        return f"{len(model.deferral.replaced)} matrices"

    try:
        return trained(), ""
    except (ValueError, RuntimeError) as error:
        own = [own.name for own in nfd.deferral(exhibit.make(4 * width, depth), plan).replaced]
        where = [
            name.rpartition(".")[0]
            for name in own
            if not any(matches(name, p) for p in exhibit.read)
        ]
        return f"{trained(where=where)} by where=", str(error)


def watches(exhibit: Exhibit) -> tuple[str, str]:
    """Alerts of a run by its plan, of which there are to be none, and of one that gives all tensors
    one rate.
    """
    rule = exhibit.rules[-1]
    given = task(exhibit, 6)
    (widths, depths) = sizes(exhibit)
    check = nfd.check(
        family(exhibit, rule), given, widths[:2], depths, lr=LR, at=(1, 3, 6), remedy=False
    )
    alerts = dict[bool, list[str]]()
    for sound in (True, False):
        large = family(exhibit, rule).under(sample=given.sample)
        model = large.build(4 * exhibit.base[0], depths[-1], seed=0)
        plan = large.plan(4 * exhibit.base[0], depths[-1])
        watch = nfd.Watch(model, plan, given.sample, every=3, expected=check, own_start=True)
        groups = (
            plan.param_groups(model, lr=LR)
            if sound
            else [{"params": [*model.parameters()], "lr": LR}]
        )
        optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
        for inputs, targets in given.batches:
            optimizer.zero_grad()
            given.value(call_with(model, inputs), targets).backward()
            optimizer.step()
            watch.step()
        alerts[sound] = [str(alert) for alert in watch.alerts] + [str(watch.failed)] * (
            watch.failed is not None
        )
    verdict = (
        "quiet; named"
        if not alerts[True] and alerts[False]
        else f"{len(alerts[True])}; {len(alerts[False])}"
    )
    return verdict, "; ".join(alerts[True])


QUESTIONS: dict[str, Callable[[Exhibit], tuple[str, str]]] = {
    "plan": plans,
    "check, standard": partial(checks, rule="standard"),
    "check": lambda exhibit: checks(exhibit, exhibit.rules[-1]),
    "transfer": transfers,
    "defer": defers,
    "watch": watches,
}


def asked(name: str) -> dict[str, Any]:
    """Verdict, seconds and note of every question that is put to a model."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    (exhibit,) = (own for own in EXHIBITS if own.name == name)
    answers = {}
    for question, ask in QUESTIONS.items():
        began = time.perf_counter()
        try:
            verdict, note = ask(exhibit)
        except Exception as error:  # it is told on the page
            verdict = "error"
            note = f"{type(error).__name__}: {error}"
        seconds = round(time.perf_counter() - began, 1)
        answers[question] = {"verdict": verdict, "seconds": seconds, "note": note[:600]}
    return answers


# ---- the page

WORDS = Path(__file__).with_name("page.md")


def page(answers: dict[str, Any]) -> str:
    """The page of these answers."""
    known = {exhibit.name: exhibit for exhibit in EXHIBITS}
    sound = list[str]()
    unsound = list[str]()
    told = dict[str, list[str]]()
    for name, of in answers.items():
        package = f" ({known[name].source})" if known[name].source != "transformers" else ""
        if of["check"]["verdict"] == "sound":
            sound.append(f"{name}{package}")
        else:
            unsound.append(name)
        for question in ("plan", "check", "watch"):
            if note := of[question]["note"]:
                why = f" ({known[name].note})" if question == "check" else ""
                told.setdefault(f"{question}: {_short(note)}{why}", []).append(name)

    def named(question: str, verdict: str) -> list[str]:
        return [
            name for name, of in answers.items() if re.fullmatch(verdict, of[question]["verdict"])
        ]

    faults = [int(of["check, standard"]["verdict"].split()[0]) for of in answers.values()]
    seconds = [sum(own["seconds"] for own in of.values()) for of in answers.values()]
    counts = {
        "plan": r"(\d+) of \1 right",
        "check": "sound",
        "transfer": "TRANSFERS",
        "watch": "quiet; named",
    }
    found = {q: len(named(q, v)) for q, v in counts.items()}
    shares = {}
    for question, level in (("plan", LEVEL), ("check", "")):
        interval = scaled(share(found[question], len(answers)).limits, 100)
        text = sentence(interval, ".0f", " %", level)
        shares[f"{question}_share"] = text.partition("(")[2].rstrip(")")
    return WORDS.read_text().format(
        count=len(answers),
        width=32,
        most=128,
        long=LONG,
        sound=paragraph(f"Sound under the plan: {listed(sound)}. Not sound: {listed(unsound)}."),
        fewest=min(faults),
        most_faults=max(faults),
        least=min(seconds),
        longest=max(seconds),
        told="".join(f"- **{', '.join(names)}**, {note}\n" for note, names in told.items()),
        unsure=listed(named("transfer", "UNCERTAIN")),
        **found,
        **shares,
    )


def _short(note: str, most: int = 130) -> str:
    """A note in one line."""
    line = re.sub(r"\s+", " ", note).replace("*", "&ast;")
    return line if len(line) <= most else f"{line[:most].rpartition(' ')[0]} ..."


def main() -> None:
    """Ask, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", nargs="*", help="names of models to ask again; none for all")
    chosen = parser.parse_args().again
    answers = json.loads(ANSWERS.read_text()) if ANSWERS.exists() else {}
    names = [exhibit.name for exhibit in EXHIBITS]
    left = [
        n for n in names if n not in answers or (chosen is not None and (not chosen or n in chosen))
    ]
    with ProcessPoolExecutor(2) as pool:
        for name, answer in _told(pool, left):
            answers[name] = answer
            ordered = {n: answers[n] for n in names if n in answers}
            ANSWERS.write_text(json.dumps(ordered, indent=1) + "\n")
            PAGE.write_text(page(ordered))


def _told(pool: ProcessPoolExecutor, names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, answer in zip(names, pool.map(asked, names), strict=True):
        print(name, {question: own["verdict"] for question, own in answer.items()}, flush=True)
        yield name, answer


if __name__ == "__main__":
    main()
