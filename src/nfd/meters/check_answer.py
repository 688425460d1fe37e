"""The answer of a check: its state, the decision, the evidence, and what to run next."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nfd.core.answer import NOT_DECIDED, Answer, Next
from nfd.core.estimates import Interval
from nfd.core.names import AXES, OPTIMIZER, RULE, Axis
from nfd.core.tables import Row
from nfd.core.words import listed, number, plural, quoted
from nfd.meters.changes import EDITS, NEEDS, Change, by_tensor, in_short
from nfd.meters.meter import CLEAR_EXPONENT, METERS, Meter
from nfd.meters.ratios import TIMES
from nfd.meters.suspects import Quantity
from nfd.meters.updates import meter_of
from nfd.meters.verdict import is_fault, matters, seeds_needed

if TYPE_CHECKING:
    from nfd.meters.check import Check

# Seeds beyond this multiple cost more than one more size, which shortens intervals too.
_MOST_SEEDS = 4
# Letters of a tensor's name in a terminal
_LONGEST_NAME = 24
# The exponents of known mistakes lie from -1 to 2: an interval longer than this leaves them all.
_LONGEST_INTERVAL = 3.0

_BROKEN = {
    "not-finite": "Training breaks: numbers are not finite",
    "loss-rose": "The loss rises: the learning rate is too large",
    "gradient-not-finite": "Training breaks: the gradient is not finite",
    "gradients-vanish": "Gradients vanish on their way to the first block",
    "gradients-explode": "Gradients explode on their way to the first block",
    "gradients-explode-at-zero": "Gradients explode where the stream is zero",
    "experts-dead": "Some experts get no token",
    "router-collapsed": "A router chooses one expert for most tokens",
}
# What a lower learning rate may mend
_BY_RATE = ("not-finite", "loss-rose")


def answer_of(check: Check) -> Answer:
    """Return the answer of a check, with advice in Python."""
    about = about_of(check)
    if check.model and not check.model.startswith("<"):
        about = f"{check.model} · {about}"
    if not check.ok:
        return _wrong(check, about)
    if undecided_that_matter(check) or not is_anything_judged(check):
        return _open(check, about)
    return _sound(check, about)


def about_of(check: Check) -> str:
    """The rule, sizes and seeds of a check, and how many of its networks decided."""
    rule = "PyTorch's defaults" if check.rule == "standard" else f"plan {check.rule}"
    parts = [rule]
    for axis in AXES:
        sizes = check.sizes[axis]
        noun = axis if len(sizes) == 1 else f"{axis}s"
        parts.append(f"{noun} {', '.join(map(str, sizes))}")
    parts.append(plural(check.seeds, "seed"))
    trained = len(check.runs)
    if trained < check.asked.most:
        parts.append(f"{trained} of {check.asked.most} networks")
    return " · ".join(parts)


def _with_training(check: Check, evidence: str) -> str:
    """Add to the evidence what was assumed of training, and which sizes were left out."""
    return " ".join(part for part in (evidence, check.assumed, left_out(check)) if part)


def left_out(check: Check) -> str:
    """Say which sizes of the call were not trained, as the ends decided; empty where all were."""
    parts = []
    for axis in AXES:
        sizes = [str(size) for size in check.asked.sizes[axis] if size not in check.sizes[axis]]
        if sizes:
            noun = axis if len(sizes) == 1 else f"{axis}s"
            parts.append(f"{noun} {', '.join(sizes)}")
    if not parts:
        return ""
    return f"Not trained: {listed(parts)}."


# ---- Something is wrong


def _wrong(check: Check, about: str) -> Answer:
    """The answer where something scales wrongly or breaks."""
    if check.failures:
        first = check.failures[0]
        state = "Training breaks"
        title = _BROKEN[first.event.kind]
        because = f"{str(first)[:1].upper()}{str(first)[1:]}."
    else:
        is_measured = bool(quantities(filter(is_fault, check.table)))
        state = "Will not scale as it is" if is_measured else "Predicted not to scale"
        title = _title_of_changes(check.changes) if check.changes else _title_of_faults(check)
        because = " ".join(part for part in (_evidence(check), _of_remedy(check)) if part)
    return Answer(
        "bad",
        state,
        title,
        _with_training(check, because),
        _unmended_in_words(check),
        next=_next_of_fault(check),
        about=about,
        table=terminal_rows(check),
        details=details_of(check),
    )


def _title_of_changes(changes: Sequence[Change]) -> str:
    """Say how many tensors need what."""
    count = len(by_tensor(changes))
    if all(change.quantity == "attention logits" for change in changes):
        return "Attention logits grow with width: add heads, or scale them down"
    needs = list(dict.fromkeys(NEEDS[change.quantity] for change in changes))
    what = "other settings"
    if len(needs) <= 2:
        first, *others = needs
        what = " or ".join([first, *(need.removeprefix("another ") for need in others)])
    verb = "needs" if count == 1 else "need"
    return f"{plural(count, 'tensor')} {verb} {what}"


def _title_of_faults(check: Check) -> str:
    """Say how many measured quantities change, and with what."""
    faults = quantities(filter(is_fault, check.table))
    axes = {axis for _, axis, _ in faults}
    when = "as the network grows"
    if axes == {"depth"}:
        when = "as the network gets deeper"
    elif axes == {"width"}:
        when = "as the network gets wider"
    count = plural(len(faults), "measured quantity", "measured quantities")
    return f"{count} {_verb(check)} {when}"


def _verb(check: Check) -> str:
    """What faults do, as a verb of all of them."""
    count = len(quantities(filter(is_fault, check.table)))
    verb = _verb_of(check)
    return f"{verb}s" if count == 1 else verb


def _verb_of(check: Check) -> str:
    """What faults do: grow, shrink or, if some do either, change."""
    verdicts = {row["verdict"] for row in check.table if is_fault(row)}
    verb = "change"
    if verdicts == {"GROWS"}:
        verb = "grow"
    elif verdicts == {"COLLAPSES"}:
        verb = "shrink"
    return verb


def _evidence(check: Check) -> str:
    """Count the quantities that change with size."""
    every = quantities(check.table)
    faults = quantities(filter(is_fault, check.table))
    if not faults:
        return (
            f"Predicted, not measured: {_by_plan(check)}; the {len(every)} measured quantities do "
            "not show it yet."
        )
    axes = [axis for axis in AXES if any(axis == of for _, of, _ in faults)]
    text = f"{len(faults)} of {len(every)} measured quantities {_verb(check)} with "
    text += " or ".join(axes)
    known = [row for row in filter(is_fault, check.table) if is_told(row)]
    if known:
        steepest = max(known, key=lambda row: abs(row["slope"]))
        text += f", by up to {power_in_words(steepest)}"
    undecided = len(undecided_rows(check))
    if undecided:
        text += f"; {_not_decided(undecided)}"
    return f"{text}."


def _not_decided(count: int) -> str:
    verb = "is" if count == 1 else "are"
    return f"{count} {verb} not decided"


def _by_plan(check: Check) -> str:
    """Say by how much the plan of the model differs, where no measured quantity shows it."""
    if not check.changes:
        return "by the plan some tensors should differ"
    worst = max(check.changes, key=lambda change: change.strength)
    axes = [axis for axis in AXES if axis in worst.ratios] or AXES
    largest = listed([f"{axis} {check.sizes[axis][-1]}" for axis in axes])
    what = f"the {worst.quantity} of {quoted([worst.tensor], 1)}"
    if not worst.strength:
        return f"by the plan {what} should differ at {largest}"
    times = number(math.exp(worst.strength))
    side = "large" if worst.now > worst.sound else "small"
    be = "are" if worst.quantity.endswith("s") else "is"
    return f"by the plan {what} {be} {times} times too {side} at {largest}"


def _of_remedy(check: Check) -> str:
    """Say what the plan that should prevent it does to the same networks."""
    remedy = check.remedy
    if remedy is None:
        return ""
    if remedy.broken:
        return f"With the plan {remedy.rule} training breaks as well."
    faults = quantities(filter(is_fault, check.table))
    left = quantities(remedy.faults)
    verb = "does" if len(left) == 1 else "do"
    what = f"{len(left)} still {verb}"
    if not left and not faults:
        what = "they stay so"
    elif not left:
        what = f"none {_verb_of(check)}s"
    undecided = sum(
        row["step"] == check.steps and row["verdict"] == "UNCERTAIN" for row in remedy.table
    )
    if undecided:
        what += f", {_not_decided(undecided)}"
    return f"With the plan {remedy.rule} {what}."


def unmended(check: Check) -> list[Change]:
    """What the plan that should prevent what is wrong leaves as it is.

    Its own networks say so; where they were not trained, what no plan sets.
    """
    if check.remedy is None:
        return [change for change in check.changes if change.quantity in EDITS]
    left = {(suspect.tensor, suspect.quantity) for suspect in check.remedy.suspects}
    return [change for change in check.changes if (change.tensor, change.quantity) in left]


def edits(check: Check) -> list[str]:
    """What to edit in the model, because no plan can set it."""
    quantities_left = (change.quantity for change in unmended(check))
    return [EDITS[quantity] for quantity in dict.fromkeys(quantities_left) if quantity in EDITS]


def _unmended_in_words(check: Check) -> str:
    """Say what no plan sets, or the plan did not mend, and what to edit in the model."""
    left = unmended(check)
    if len(check.changes) == len(left) and len(edits(check)) == 1:
        # Then the next step says it all.
        return ""
    by_quantity = dict[Quantity, list[str]]()
    for change in left:
        by_quantity.setdefault(change.quantity, []).append(change.tensor)
    parts = []
    for quantity, tensors in by_quantity.items():
        what = f"the {quantity} of {quoted(tensors, 1)}"
        if quantity in EDITS:
            parts.append(f"no plan can set {what}: {EDITS[quantity]}")
        elif check.remedy is not None:
            verb = "is" if len(tensors) == 1 else "are"
            parts.append(f"with the plan {check.remedy.rule} {what} {verb} as wrong")
    return f"{'; '.join(parts)}." if parts else ""


def first_edit(check: Check) -> str:
    """The label of the next step where the model is to be edited first; else an empty text."""
    what = edits(check)
    if not what:
        return ""
    return f"First edit the model: {what[0]}. Then check again"


def _next_of_fault(check: Check) -> Next:
    """What to do about what is wrong, in Python."""
    kinds = {failure.event.kind for failure in check.failures}
    if kinds.intersection(_BY_RATE) and check.cure is None:
        return Next("Run next: a lower learning rate", call_of(check, lr=check.lr / 10))
    if edits(check):
        return Next(first_edit(check), call_of(check, rule=check.cure or check.rule))
    if check.plans_itself:
        if check.cure is None:
            return Next("Read every cause", "check.wrong")
        return Next(
            f"Train by the rule {check.cure}", f"family = family.under(rule={check.cure!r})"
        )
    optimizer = _optimizer(check)
    if check.cure is not None:
        rule = "" if check.cure == RULE else f", rule={check.cure!r}"
        code = [
            transfer_of(check, check.cure),
            f"plan = nfd.plan(model, {check.base}, make_model=make_model{rule}{optimizer}, "
            f"sample={_sample(check)})",
            "plan.apply_(model, seed=0); "
            f"optimizer = plan.make_optimizer(model, lr=lr{check.recipe})",
        ]
        return Next(find_rate_label(check.cure), "\n".join(code))
    rule = "" if check.rule == RULE else f", rule={check.rule!r}"
    code = [
        f"plan = nfd.plan(model, {check.base}, make_model=make_model{rule}{optimizer}, "
        f"sample={_sample(check)})",
        "print(plan)",
    ]
    return Next("Compare your tensors with their plan", "\n".join(code))


def find_rate_label(rule: str) -> str:
    """The label of what follows where a plan helps: the check's own rate is nobody's best."""
    return f"The plan {rule} makes these changes. Find its learning rate, then train"


def transfer_of(check: Check, rule: str) -> str:
    """Write the call that finds the learning rate under a rule, at both ends of the sizes."""
    widths, depths = (_ends(check.sizes[axis]) for axis in AXES)
    rules = "" if rule == RULE else f", rules=({rule!r},)"
    sizes = f"{widths}, {depths}"
    return f"nfd.transfer(make_model, {check.data}, {sizes}{rules}{_optimizer(check)})"


def _sample(check: Check) -> str:
    """Write what a plan is traced with."""
    return "task.sample" if check.data == "task" else "nfd.Task(batches).sample"


# ---- Nothing is wrong


def _sound(check: Check, about: str) -> Answer:
    """The answer where everything scales."""
    title = f"Every measured quantity keeps its scale {span_of(check)}"
    rows = [row for row in last_rows(check) if is_told(row)]
    rows = [row for row in rows if row["verdict"] == "STABLE"] or rows
    because = ""
    if rows:
        steepest = max(rows, key=lambda row: abs(row["slope"]))
        because = (
            f"The steepest is {name_of(steepest)}, which goes as {power_in_words(steepest)}; "
            f"beyond {number(CLEAR_EXPONENT)} it would be a fault."
        )
    undecided = len(undecided_rows(check))
    if undecided:
        of_all = f" Of {len(quantities(check.table))} quantities {_not_decided(undecided)}"
        because = f"{because}{of_all}, and none looks like a mistake.".strip()
    return Answer(
        "good",
        "Scales",
        title,
        _with_training(check, because),
        next=Next("Find the learning rate next", transfer_of(check, check.rule)),
        about=about,
        table=terminal_rows(check),
        details=details_of(check),
    )


def _open(check: Check, about: str) -> Answer:
    """The answer where nothing is wrong, but what matters is not decided."""
    rows = undecided_that_matter(check)
    judged = quantities(check.table)
    if not rows:
        return Answer(
            "open",
            NOT_DECIDED,
            "No quantity of this model could be measured",
            str(check.table[0]["cause"]) if check.table else "",
            next=Next("Name the residual blocks", call_of(check, blocks="layers.*")),
            about=about,
            details=details_of(check),
        )
    more = more_networks(check)
    count = plural(len(quantities(rows)), "quantity", "quantities")
    title = f"Nothing is wrong so far, but {count} may be: {more.what} would tell"
    worst = max(rows, key=_doubt)
    because = f"Not decided yet of {len(judged)} quantities: {name_of(worst)}. "
    if is_told(worst):
        because = (
            f"{name_of(worst)} goes as {power_in_words(worst)}, and the limit is "
            f"{number(CLEAR_EXPONENT)}."
        )
    options: dict[str, Any] = {"seeds": more.seeds} if more.seeds else {}
    code = call_of(check, sizes=more.sizes, **options)
    return Answer(
        "open",
        NOT_DECIDED,
        title,
        _with_training(check, because.strip()),
        next=Next(more.label, code),
        about=about,
        table=terminal_rows(check),
        details=details_of(check),
    )


def _doubt(row: Row) -> float:
    """How far the interval of a row reaches."""
    reach = max(abs(row["low"]), abs(row["high"]))
    return reach if math.isfinite(reach) else math.inf


@dataclass(frozen=True)
class MoreNetworks:
    """The networks that would decide what is open: more seeds, or one more size.

    Attributes:
        what: in words. label: what to run, with the number of trainings and their time.
        seeds: of each network; 0 where they stay as they are.
        sizes: of every axis.
    """

    what: str
    label: str
    seeds: int
    sizes: Mapping[Axis, Sequence[int]]


def more_networks(check: Check) -> MoreNetworks:
    """Estimate which networks would decide what is open."""
    rows = undecided_that_matter(check)
    needed = max(seeds_needed(row, check.seeds) for row in rows)
    sizes: dict[Axis, Sequence[int]] = {axis: list(check.sizes[axis]) for axis in AXES}
    seeds = 0
    if needed <= _MOST_SEEDS * check.seeds:
        seeds = max(math.ceil(needed), check.seeds + 2)
        what = f"{seeds} seeds"
    else:
        axis: Axis = max(rows, key=_doubt)["axis"]
        sizes[axis] = [*sizes[axis], 2 * sizes[axis][-1]]
        what = f"{axis} {sizes[axis][-1]}"
    count = len(sizes["width"]) * len(sizes["depth"]) * (seeds or check.seeds)
    bound = "at most " if not seeds and check.asked.seeds is None else ""
    label = f"Run next: {what}, {bound}{count} short trainings"
    each = check.seconds / max(1, len(check.runs))
    if each * count >= 1:
        label += f", about {_duration(each * count)} of one core"
    return MoreNetworks(what, label, seeds, sizes)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{number(seconds)} seconds"
    if seconds < 5400:
        return f"{number(seconds / 60)} minutes"
    return f"{number(seconds / 3600)} hours"


# ---- What is counted, and names


def quantities(rows: Iterable[Row]) -> list[tuple[str, Axis, str]]:
    """The different quantities of rows: a meter along an axis, of a stack."""
    return list(dict.fromkeys((row["meter"], row["axis"], row.get("stack", "")) for row in rows))


def last_rows(check: Check) -> list[Row]:
    """The rows of the table after the last step, or of quantities of one step."""
    return [row for row in check.table if row["step"] == check.steps]


def undecided_rows(check: Check) -> list[Row]:
    """The rows after the last step that are not decided."""
    return [row for row in last_rows(check) if row["verdict"] == "UNCERTAIN"]


def undecided_that_matter(check: Check) -> list[Row]:
    """The rows after the last step that may hide a fault."""
    return [row for row in last_rows(check) if matters(row)]


def is_anything_judged(check: Check) -> bool:
    """Whether any quantity beside the loss was measured."""
    return any(math.isfinite(row["slope"]) and row["meter"] != "loss" for row in check.table)


def name_of(row: Row) -> str:
    """The quantity of a row as charts name it, with its stack."""
    meter: Meter = METERS[row["meter"]]
    return meter_of(meter.title, row.get("stack", ""))


def is_told(row: Row) -> bool:
    """Whether the networks tell the exponent of a row: its interval is not too long to say."""
    return math.isfinite(row["slope"]) and not row["high"] - row["low"] > _LONGEST_INTERVAL


def power_in_words(row: Row) -> str:
    """Write the exponent of a row as ``width^0.12 (95 %: 0.02 to 0.22)``, or ``not decided``."""
    if not is_told(row):
        return "not decided"
    slope = Interval(row["slope"], math.nan, row["low"], row["high"])
    return f"{row['axis']}^{slope.in_words(limit=CLEAR_EXPONENT)}"


def ratio_of(row: Row, sizes: Sequence[int]) -> str:
    """Write by which factor a quantity changes over these sizes: four times is ``x 4``."""
    ratio = math.pow(sizes[-1] / sizes[0], row["slope"])
    return f"{TIMES} {number(ratio)}"


def span_of(check: Check) -> str:
    """The sizes of a check: ``from width 32 to 128 and depth 2 to 8``."""
    parts = []
    for axis in AXES:
        sizes = check.sizes[axis]
        if len(sizes) > 1:
            parts.append(f"{axis} {sizes[0]} to {sizes[-1]}")
    return f"from {listed(parts)}"


def _ends(sizes: Sequence[int]) -> list[int]:
    return sorted({sizes[0], sizes[-1]})


def _optimizer(check: Check) -> str:
    return "" if check.optimizer == OPTIMIZER else f", optimizer={check.optimizer!r}"


def call_of(check: Check, sizes: Mapping[Axis, Sequence[int]] | None = None, **changed: Any) -> str:
    """Write the call of this check again, with other sizes or settings."""
    asked = check.asked.sizes if sizes is None else sizes
    settings: dict[str, Any] = {"lr": check.lr}
    if changed.setdefault("rule", check.rule) == RULE:
        changed.pop("rule")
    if check.optimizer != OPTIMIZER:
        settings["optimizer"] = check.optimizer
    if check.asked.seeds is not None:
        settings["seeds"] = check.asked.seeds
    options = []
    for name, value in (settings | changed).items():
        text = f"{value:g}" if isinstance(value, float) else repr(value)
        options.append(f"{name}={text}")
    lists = ", ".join(str(list(asked[axis])) for axis in AXES)
    return f"nfd.check(make_model, {check.data}, {lists}, {', '.join(options)})"


# ---- The table in a terminal, and all sentences


def terminal_rows(check: Check) -> list[dict[str, str]]:
    """What to change, a row for each kind of tensors, in few letters."""
    tensors = by_tensor(check.changes)
    if not tensors:
        return _rows_of_faults(check)
    largest = ", ".join(f"{axis} {check.sizes[axis][-1]} ({axis[0]})" for axis in AXES)
    columns = {column_of(change) for change in check.changes}
    in_order = [name for name in ("learning rate", "initial std", "also") if name in columns]
    names = short_names(list(tensors))
    widest = dict[str, int]()
    for change in check.changes:
        column = column_of(change)
        widest[column] = max(widest.get(column, 0), len(change.values))
    rows = []
    for tensor, changes in tensors.items():
        row = {f"at {largest}": names[tensor]}
        for column in in_order:
            of_column = [change for change in changes if column_of(change) == column]
            nothing = "" if column == "also" else "fine"
            name = "change" if in_order == ["also"] else title_of(column, check.changes)
            row[name] = "; ".join(_cell(one, widest[column]) for one in of_column) or nothing
        rows.append(row)
    return rows


def _cell(change: Change, width: int) -> str:
    """What a quantity is, what it should be, and by what to divide it."""
    if column_of(change) == "also":
        words = [change.quantity, change.values, in_short(change)]
        return "  ".join(word for word in words if word)
    return f"{change.values:{width}}  {in_short(change)}".rstrip()


def _rows_of_faults(check: Check) -> list[dict[str, str]]:
    """The measured quantities that are wrong, where no tensor is named."""
    rows = []
    for row in filter(is_fault, check.table):
        sizes = check.sizes[row["axis"]]
        span = f"{row['axis']} {sizes[0]} to {sizes[-1]}"
        cells = {"quantity": name_of(row), "change": ratio_of(row, sizes), "from": span}
        if len(check.at) > 1:
            cells["after step"] = str(row["step"])
        rows.append(cells | {"as (95 %)": power_in_words(row)})
    return rows


def column_of(change: Change) -> str:
    """The column of the table that has a change."""
    if change.quantity == "initial value":
        return "initial std"
    if change.quantity in ("learning rate", "initial std"):
        return change.quantity
    return "also"


def title_of(column: str, changes: Iterable[Change]) -> str:
    """The title of a column: a constant has an initial value, and no initial std."""
    quantities = {change.quantity for change in changes if column_of(change) == column}
    if "initial value" not in quantities:
        return column
    return "initial value" if len(quantities) == 1 else "initial std or value"


def short_names(tensors: Sequence[str]) -> dict[str, str]:
    """Cut long names at the front where what is left still says which tensor it is."""
    names = {}
    for tensor in tensors:
        names[tensor] = _tail(tensor)
    counts = list(names.values())
    return {name: short if counts.count(short) == 1 else name for name, short in names.items()}


def _tail(name: str) -> str:
    """The last parts of a name that are short enough, and at least the last two."""
    parts = name.split(".")
    while len(".".join(parts)) > _LONGEST_NAME - 1 and len(parts) > 2:
        parts = parts[1:]
    tail = ".".join(parts)
    return tail if tail == name else f"…{tail}"


def details_of(check: Check) -> list[str]:
    """All that was found, in sentences: what is wrong, notes, and every quantity."""
    return [*check.sentences, *quantity_sentences(check)]


def quantity_sentences(check: Check) -> list[str]:
    """A line for every quantity: what it changes by, and the verdict."""
    lines = []
    for row in sorted(check.table, key=lambda row: not is_fault(row)):
        if row["step"] != check.steps and not is_fault(row):
            continue
        step = f" after step {row['step']}" if len(check.at) > 1 else ""
        name = f"{name_of(row)} with {row['axis']}{step}"
        if not math.isfinite(row["slope"]):
            lines.append(f"{name}: {row['verdict']}. {row['cause']}")
            continue
        ratio = ratio_of(row, check.sizes[row["axis"]])
        if not is_told(row):
            ratio += " in these networks"
        lines.append(f"{name}: {ratio}, {power_in_words(row)}, {row['verdict']}")
    return lines
