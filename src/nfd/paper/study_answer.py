"""What a study decides: five statements, each with its number; and its page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nfd.core import (
    Answer,
    Finding,
    Interval,
    Next,
    Row,
    Tone,
    again,
    alike,
    depth_name,
    interval,
    listed,
    number,
)
from nfd.paper.findings import progress, wide
from nfd.paper.study import WEIGHTS, Study
from nfd.report import AnswerPage, Section

_SYMBOLS: dict[Tone, str] = {"good": "✓", "bad": "✗", "open": "?"}
_OUTCOMES: dict[Tone, tuple[str, str]] = {
    "good": ("holds", "hold"),
    "bad": ("does not hold", "do not hold"),
    "open": ("is open", "are open"),
}
# Options that narrow the interval of a statement.
_MORE: dict[str, str] = {"updates": "block_seeds", "gap": "replicates"}


@dataclass(frozen=True)
class Decision:
    """A statement about the limit, whether it holds, and the number that decides.

    Attributes:
        finding: name of the finding with the chart.
        tone: ``good`` where it holds, ``bad`` where it does not, ``open`` where noise hides it.
        number: with its interval, in words.
    """

    finding: str
    statement: str
    tone: Tone
    number: str

    def row(self) -> dict[str, str]:
        """Return the line of a table."""
        return {"": _SYMBOLS[self.tone], "finding": self.statement, "measured": self.number}


def study_answer(study: Study, findings: Sequence[Finding], command: str) -> Answer:
    """Say what a study decided."""
    decisions = decisions_of(study, findings)
    counts = Counter(decision.tone for decision in decisions)
    parts = []
    for outcome, (one, several) in _OUTCOMES.items():
        if counts[outcome]:
            parts.append(f"{counts[outcome]} {one if counts[outcome] == 1 else several}")
    tone: Tone = "open" if counts["open"] else "good"
    state = "Not all decided" if counts["open"] else "Decided"
    but = ""
    if not study.measured.complete:
        tone = "open"
        state = "Interrupted"
        but = "the study was interrupted: this is partial, and the same command continues."
    c = study.config
    return Answer(
        tone,
        state,
        f"Of {len(decisions)} statements on the infinite limit {listed(parts)}",
        because=_loss_sentence(study),
        but=but,
        next=_next(study, decisions, command),
        about=(
            f"nfd paper study · {study.dataset.title} · depths {listed(c.depths)} · widths "
            f"{listed(c.widths)} · {c.seeds} seeds"
        ),
        table=[decision.row() for decision in decisions],
        details=[f"{finding.title}. {finding.reading}" for finding in findings],
    )


def decisions_of(study: Study, findings: Sequence[Finding]) -> list[Decision]:
    """Return the five statements, in the order of the report."""
    by_name = {finding.name: finding for finding in findings}
    return [
        _learns(study),
        _gap(by_name.get("gap")),
        _nears("distance-width", "Wider networks approach the limit", by_name),
        _nears("distance-depth", "Deeper networks approach the limit", by_name),
        _inner_layers(by_name.get("updates")),
    ]


def _learns(study: Study) -> Decision:
    """Whether the infinite network makes progress below log C, on average over the steps."""
    statement = "The infinite network beats chance"
    limits = wide(study, "shared")
    if not limits:
        diverged = any(name == "shared" for name, _ in study.measured.limits)
        if diverged:
            return Decision("loss-shared", statement, "bad", "training diverges")
        return Decision("loss-shared", statement, "open", "not measured")
    outputs = limits[max(limits)]
    gained = interval(lambda r: progress(study, r), outputs)
    return Decision("loss-shared", statement, _sign(gained), _nats(gained))


def _gap(finding: Finding | None) -> Decision:
    """Whether feedback through independent weights leaves the loss as it is."""
    statement = "Decoupled feedback changes nothing"
    if finding is None:
        return Decision("gap", statement, "open", "not measured")
    last = finding.rows[-1]
    apart = Interval(last["gap"], last["stderr"], last["low"], last["high"])
    # Noise may hide a difference, so that this never shows that there is none.
    tone: Tone = "bad" if apart.resolved else "open"
    return Decision("gap", statement, tone, _nats(apart))


def _nears(name: str, statement: str, by_name: dict[str, Finding]) -> Decision:
    """Whether the distance to the limit falls along an axis."""
    finding = by_name.get(name)
    if finding is None:
        return Decision(name, statement, "open", "not measured")
    axis = finding.axes.x
    slope = finding.slopes[-1]
    if not math.isfinite(slope["stderr"]):
        return Decision(name, statement, "open", "noise hides the trend")
    fall = Interval(-slope["slope"], slope["stderr"], -slope["high"], -slope["low"])
    return Decision(name, statement, _sign(fall), _power(axis, slope))


def _inner_layers(finding: Finding | None) -> Decision:
    """Whether the inner layers of blocks learn alike at every depth under the rates of Eq. 8."""
    statement = "Inner layers learn, by Eq. 8"
    tones: dict[str, Tone] = {"STABLE": "good", "COLLAPSES": "bad", "GROWS": "bad"}
    for slope in finding.slopes if finding is not None else ():
        if slope["rule"] == "depth-mup-inner" and slope["meter"] == "inner_update":
            tone = tones.get(slope["verdict"], "open")
            return Decision("updates", statement, tone, _power("depth", slope))
    return Decision("updates", statement, "open", "not measured")


def _sign(number: Interval) -> Tone:
    """Whether a number lies above zero."""
    if number.low > 0:
        return "good"
    return "bad" if number.high < 0 else "open"


def _nats(number: Interval) -> str:
    """Write ``0.22 nats (95 %: 0.21 to 0.24)``."""
    value, low, high = alike(number.value, number.low, number.high)
    return f"{value} nats (95 %: {low} to {high})"


def _power(axis: str, slope: Row) -> str:
    """Write ``width^−0.57 (95 %: −0.82 to −0.31)``."""
    value, low, high = alike(slope["slope"], slope["low"], slope["high"])
    return f"{axis}^{value} (95 %: {low} to {high})"


def _loss_sentence(study: Study) -> str:
    """Say where the loss of the deepest prediction starts and ends."""
    limits = wide(study, "shared")
    if not limits:
        return "No prediction of the limit stayed finite."
    deepest = max(limits)
    outputs = limits[deepest]
    first = interval(lambda r: study.mean_loss(r.mean(0))[0], outputs)
    last = interval(lambda r: study.mean_loss(r.mean(0))[-1], outputs)
    return (
        f"At infinite width and {depth_name(deepest)} the loss goes from {number(first.value, 3)} "
        f"to {last.in_words(' nats')} in {outputs.shape[1] - 1} updates of {study.config.batch} "
        "samples."
    )


def _next(study: Study, decisions: Sequence[Decision], command: str) -> Next:
    """Return the command that decides what is open, or that judges the other statements."""
    for decision in decisions:
        if decision.tone != "open":
            continue
        option = _MORE.get(decision.finding, "seeds")
        more = 2 * getattr(study.config, option)
        name = option.replace("_", "-")
        return Next(
            f"Run next: {more} {option.replace('_', ' ')}", again(command, f"--{name}", more)
        )
    return Next("Judge every statement of the paper", "nfd paper claims")


# ---- The page


def study_page(study: Study, findings: Sequence[Finding], command: str) -> AnswerPage:
    """Return the page of a study; ``command`` is the line that asked for it."""
    data = _shared_caption(study)
    answer = study_answer(study, findings, command)
    return AnswerPage(
        replace(answer, details=()),
        command,
        study.config.plain(),
        [Section("", [], table=answer.table)],
        [replace(finding, caption=f"{finding.caption} {data}") for finding in findings],
        _run_sections(study),
        {
            "complete": study.measured.complete,
            "run": study.facts(),
            "answers": [finding.headline for finding in findings],
        },
    )


def _shared_caption(study: Study) -> str:
    """Return what the captions of all findings share."""
    c = study.config
    return (
        f"Data: {study.dataset.title}, {c.steps} steps of {c.batch}, the same batches for all; "
        f"{c.activation}, T = {c.horizon:g}, eta_c = {c.eta_c:g}, cross-entropy in nats, inputs "
        f"normalised per channel. Infinitely wide: {c.replicates} networks of width "
        f"{c.limit_width:,} with {WEIGHTS} weights."
    )


def _run_sections(study: Study) -> list[Section]:
    """Return settings and times, folded."""
    facts = study.facts()
    times = [{"": name, "seconds": value} for name, value in facts.pop("seconds").items()]
    rows: list[Row] = []
    for name, value in (study.config.plain() | facts).items():
        if value is None:
            continue
        shown = " ".join(map(str, value)) if isinstance(value, tuple) else value
        rows.append({"": name.replace("_", " "), "value": shown})
    same = "The same command repeats it bit for bit."
    return [
        Section("Settings", [same], table=rows, folded=True),
        Section("Where the time went", [], table=times, folded=True),
    ]
