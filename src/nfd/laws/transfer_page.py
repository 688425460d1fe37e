"""The pictures of a transfer: losses over the rate, what tuning small costs, and best rates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np

from nfd.core.estimates import UNKNOWN, Interval, mean
from nfd.core.tables import Row
from nfd.core.words import number, plural
from nfd.laws.best_rate import Scores, Size
from nfd.laws.rule_transfer import RuleTransfer, size_in_words, sizes_of
from nfd.laws.transfer_answer import LIMIT, STATES, rule_to_decide
from nfd.report.look import (
    BAND,
    BLUE,
    INK,
    ORANGE,
    PAPER,
    SOFT,
    VARIABLES,
    coloured,
    hover,
    on_lines,
    points,
    ramp,
    with_margin,
    x_log,
    y_linear,
    y_log,
)
from nfd.report.page import Section
from nfd.report.picture import Picture, picture

if TYPE_CHECKING:
    from nfd.laws.rate_against import RateAgainst
    from nfd.laws.transfer import Transfer

_HEIGHT = 210
# Pixels from one row of a chart of intervals to the next.
_STEP = 46
_SIZE_STEP = 26
_COLOURS = {"good": BLUE, "bad": ORANGE, "open": SOFT}
_LIMIT_WORDS = (
    "The part of the large network's loss reduction that is given up by using the small one's best "
    "rate. Interval left of 10 %: transfers. Right of it: costs. Across it: not decided."
)

_GAINS_WORDS = (
    "To be expected, by the spread that was seen: how well the cost and the drift of the best rate "
    "are then known (half of the interval), and the chance to decide. The cost is of the largest "
    "network, so that another size says nothing of it."
)


def first_sections(transfer: Transfer) -> list[Section]:
    """Losses of the small and the large network over the learning rate, for every rule."""
    rules = in_order(transfer)
    if len(rules[0].cells) < 2 and rules[0].against:
        return _settings(transfer)
    view = _View(transfer)
    pictures = [view.losses(answer) for answer in rules]
    return [Section("", [], pictures=pictures, key=view.key())]


def sections(transfer: Transfer) -> list[Section]:
    """All that a page shows below the answer."""
    parts = first_sections(transfer)
    rules = in_order(transfer)
    if any(math.isfinite(_share(answer).low) for answer in rules):
        chart = picture("cost", _costs(rules), label="What tuning small costs under each rule")
        parts.append(Section("What tuning small costs", [_LIMIT_WORDS], pictures=[chart]))
    if len(sizes_of(rules)) > 1:
        title = "The best rate at every size"
        text = (
            "Dots below each other: the rate carries over. Grey: the smallest network's interval."
        )
        span = _rate_span(rules)
        pictures = [_sizes(answer, span) for answer in rules]
        parts.append(Section(title, [text], pictures=pictures))
        parts += _settings(transfer)
    if transfer.gains:
        rows = [gain.row for gain in transfer.gains]
        title = "What one more seed buys against one more size"
        parts.append(Section(title, [_GAINS_WORDS], table=rows, folded=True))
    return [*parts, Section("All best rates and losses", [], table=transfer.levels, folded=True)]


def in_order(transfer: Transfer) -> list[RuleTransfer]:
    """The rules, the one that the answer is about first."""
    first = rule_to_decide(transfer.rules)
    return [first, *(answer for answer in transfer.rules if answer is not first)]


def curves(transfer: Transfer) -> list[Row]:
    """Mean losses with intervals, by rule, size and learning rate.

    ``seeds`` says which: those of the grid, or those that measured the cost, fresh or paired.
    """
    rows = list[Row]()
    for answer in transfer.rules:
        for size, cell in answer.cells.items():
            rows += [_place(answer, size, "grid") | row for row in _means(cell)]
        if answer.regret is not None:
            seeds = "fresh" if answer.decision is None else "paired"
            means = _means(answer.regret.new)
            rows += [_place(answer, answer.largest, seeds) | row for row in means]
    return rows


def _place(answer: RuleTransfer, size: Size, seeds: str) -> Row:
    return {"rule": answer.rule, "width": size[0], "depth": size[1], "seeds": seeds}


def _means(cell: Scores) -> list[Row]:
    """The mean loss at every rate over the seeds that were trained there.

    A network that diverged counts as knowing nothing.
    """
    rows = list[Row]()
    for log2_rate, losses in zip(cell.log2_eta.tolist(), cell.scores.T, strict=True):
        trained = losses[~np.isnan(losses)]
        rows.append({"lr": math.pow(2, log2_rate)} | mean(trained).limits)
    return rows


def _title(rule: str) -> str:
    if rule == "standard":
        return "PyTorch's defaults"
    if rule == "logged":
        return "Your runs"
    return f"With the plan {rule}"


def _share(answer: RuleTransfer) -> Interval:
    """What tuning small costs, in percent of the progress."""
    return UNKNOWN if answer.regret is None else answer.regret.share.scaled(100)


# ---- losses over the learning rate


class _View:
    """The axes that the charts of all rules share."""

    def __init__(self, transfer: Transfer) -> None:
        self.transfer = transfer
        rates = list[float]()
        losses = list[float]()
        for row in curves(transfer):
            if (row["width"], row["depth"]) in self.ends:
                rates.append(row["lr"])
                losses.append(row["value"])
        self.rates = with_margin(rates, "log")
        # Intervals of few seeds are longer than all curves: they are cut off at the edges.
        low, high = with_margin(losses, share=0.12)
        # Room for the text below a bar.
        self.losses_span = (low - 0.08 * (high - low), high)
        score = transfer.score.partition(",")[0]
        is_nats = "loss" in score and not transfer.is_log
        self.score = f"{score} (nats)" if is_nats else score

    @property
    def sizes(self) -> list[Size]:
        return sizes_of(self.transfer.rules)

    @property
    def ends(self) -> list[Size]:
        """The smallest and the largest size."""
        return list(dict.fromkeys([self.sizes[0], self.sizes[-1]]))

    def colours(self) -> list[str]:
        """The colours of the smallest and the largest network."""
        strong = ramp(len(self.sizes))
        return [ramp(2)[0] if len(self.ends) > 1 else strong[0], strong[-1]][-len(self.ends) :]

    def key(self) -> dict[str, str]:
        """What the colours mean."""
        names = ["small", "large"][-len(self.ends) :]
        key = dict[str, str]()
        for name, size, colour in zip(names, self.ends, self.colours(), strict=True):
            key[f"{name}: {size_in_words(size, self.sizes)}"] = VARIABLES[colour]
        if len(self.ends) > 1:
            key["best rate of the small one (95 %)"] = VARIABLES[BAND]
        cells = [cell for answer in self.transfer.rules for cell in answer.cells.values()]
        if any(len(cell.losses) > 1 for cell in cells):
            key["thin bars: 95 % of a mean loss"] = VARIABLES[SOFT]
        rules = self.transfer.rules
        which = "trained again with fresh seeds"
        if rules[0].decision is not None:
            which = "the seeds of both rates"
        if any(_is_paid(answer) for answer in rules):
            is_decided = any(_bar_colour(answer) == ORANGE for answer in rules if _is_paid(answer))
            name = f"what this rate costs the large one (◇ {which})"
            key[name] = "orange" if is_decided else "soft"
        elif any(answer.regret is not None for answer in rules):
            key[f"◇ the large one, {which}"] = "blue"
        return key

    def losses(self, answer: RuleTransfer) -> Picture:
        """Chart losses over the learning rate under one rule."""
        layers = [*self._strip(answer), *self._curves(answer), *self._fresh(answer)]
        layers += self._labels(answer)
        state = STATES[answer.verdict] if answer.regret is not None else None
        chart = alt.layer(*layers).properties(height=_HEIGHT)
        return picture(
            f"loss-{answer.rule}",
            chart,
            title=_title(answer.rule),
            note=_note(answer),
            state=state,
            label=f"{self.score} over the learning rate. {_title(answer.rule)}",
            kind="half",
        )

    def _axes(self) -> dict[str, Any]:
        return {
            "x": x_log("lr", "learning rate", self.rates),
            "y": y_linear("value", self.score, self.losses_span),
        }

    def _strip(self, answer: RuleTransfer) -> list[Any]:
        """The smallest network's best rate with its interval."""
        rate = answer.rate(self.sizes[0])
        if math.isnan(rate.value):
            return []
        low, high = _within((rate.low, rate.high), self.rates)
        text = f"best rate of the small network: {rate.in_words()}"
        row = {"lr": low, "to": high, "rate": rate.value, "text": hover(text)}
        base = points([row], x=x_log("lr", "learning rate", self.rates), description="text:N")
        line = points([row], x=x_log("rate", "learning rate", self.rates))
        return [
            base.encode(x2="to:Q").mark_rect(color=BAND, opacity=0.6),
            line.mark_rule(color=SOFT, strokeDash=[3, 2]),
        ]

    def _curves(self, answer: RuleTransfer) -> list[Any]:
        """Mean losses of the smallest and the largest network, with intervals."""
        rows = list[Row]()
        names = dict[str, str]()
        for size, colour in zip(self.ends, self.colours(), strict=True):
            # A search may end before it trains the large network.
            if size not in answer.cells:
                continue
            name = size_in_words(size, self.sizes)
            names[name] = colour
            for row in _means(answer.cells[size]):
                loss = Interval(row["value"], math.nan, row["low"], row["high"])
                text = f"{name} at {number(row['lr'])}: {loss.in_words()}"
                # One seed has no interval, and JSON no number for none.
                known = {key: one for key, one in row.items() if math.isfinite(one)}
                rows.append({"series": name, "text": hover(text)} | known)
        base = points(rows, **self._axes(), color=coloured(names))
        has_intervals = [row for row in rows if "low" in row]
        bars = points(has_intervals, **self._axes(), color=coloured(names))
        return [
            bars.encode(y=y_linear("low", self.score, self.losses_span), y2="high:Q").mark_rule(
                opacity=0.45, clip=True
            ),
            base.mark_line(clip=True, strokeWidth=2),
            base.encode(description="text:N").mark_circle(size=34, opacity=1, clip=True),
        ]

    def _fresh(self, answer: RuleTransfer) -> list[Any]:
        """The large network's losses of fresh seeds at both best rates, and what lies between."""
        if answer.regret is None:
            return []
        at_small, at_large = _means(answer.regret.new)
        colour = _bar_colour(answer) if _is_paid(answer) else BLUE
        seeds = "fresh seeds" if answer.decision is None else "seeds"
        rows = list[Row]()
        for row, whose in ((at_small, "small"), (at_large, "large")):
            loss = Interval(row["value"], math.nan, row["low"], row["high"])
            text = (
                f"{len(answer.regret.at_best)} {seeds} at the {whose} network's best rate, "
                f"{number(row['lr'])}: {loss.in_words()}"
            )
            rows.append(row | {"text": hover(text)})
        diamonds = points(rows, **self._axes(), description="text:N").mark_point(
            shape="diamond", size=70, color=colour, fill=PAPER, opacity=1, strokeWidth=2
        )
        if not _is_paid(answer):
            return [diamonds]
        bar = at_small | {"from": at_large["value"]}
        level = {"lr": at_large["lr"], "to": at_small["lr"], "value": at_large["value"]}
        axes = self._axes()
        return [
            points([level], **axes).encode(x2="to:Q").mark_rule(color=colour, strokeDash=[2, 2]),
            points([bar], **axes).encode(y2="from:Q").mark_rule(color=colour, strokeWidth=5),
            diamonds,
        ]

    def _labels(self, answer: RuleTransfer) -> list[Any]:
        """The small network's best rate, above the chart; what it costs, below the bar."""
        layers = []
        rate = answer.rate(self.sizes[0])
        if math.isfinite(rate.value):
            row = {"lr": rate.value, "value": self.losses_span[1], "name": number(rate.value)}
            base = points([row], **self._axes(), text="name:N")
            layers.append(base.mark_text(dy=-8, fontWeight=600, color=INK))
        if answer.regret is not None and _is_paid(answer):
            at_small, at_large = _means(answer.regret.new)
            name = f"{_nats(answer.regret.loss)} nats"
            row = {"lr": at_small["lr"], "value": at_large["value"], "name": name}
            base = points([row], **self._axes(), text="name:N")
            left = math.log(at_small["lr"] / self.rates[0])
            is_right = left > 0.75 * math.log(self.rates[1] / self.rates[0])
            # Beside the line of the small network's best rate.
            align, dx = ("right", -6) if is_right else ("left", 6)
            colour = _bar_colour(answer)
            layers.append(on_lines(base, dx=dx, dy=14, color=colour, fontWeight=600, align=align))
        return layers


def _is_paid(answer: RuleTransfer) -> bool:
    """Whether tuning small is known to cost something, and is not known to cost little."""
    if answer.regret is None or answer.verdict == "TRANSFERS":
        return False
    return answer.regret.loss.low > 0


def _bar_colour(answer: RuleTransfer) -> str:
    """Orange only where it is decided that tuning small costs too much."""
    return ORANGE if answer.verdict == "COSTS" else SOFT


def _note(answer: RuleTransfer) -> str:
    """What tuning small costs, as the answer says it; in nats where progress is not known."""
    if answer.regret is None or math.isnan(answer.regret.loss.value):
        return ""
    share = answer.regret.share.scaled(100)
    if math.isnan(share.value):
        return f"tuning small costs {answer.regret.loss.in_words(' nats', 0.0)}"
    return f"tuning small gives up {share.in_words(' %', LIMIT)}"


def _nats(loss: Interval) -> str:
    """A loss as its interval's text has it."""
    return loss.in_words().partition(" ")[0]


def _within(span: tuple[float, float], limits: tuple[float, float]) -> tuple[float, float]:
    """A span, cut off at the ends of an axis; the axis where it is unknown."""
    low = limits[0] if math.isnan(span[0]) else max(span[0], limits[0])
    high = limits[1] if math.isnan(span[1]) else min(span[1], limits[1])
    return low, high


# ---- what tuning small costs


def _costs(rules: Sequence[RuleTransfer]) -> Any:
    """An interval for every rule against the limit, in the colour of its state."""
    rows = list[Row]()
    ends = [0.0, 2 * LIMIT]
    for place, answer in enumerate(rules):
        share = _share(answer)
        if math.isnan(share.low):
            continue
        tone, state = STATES[answer.verdict]
        text = f"{_title(answer.rule)}: {share.in_words(' %', LIMIT)}"
        rows.append(
            {
                "name": _title(answer.rule),
                "state": state,
                "y": place,
                "colour": _COLOURS[tone],
                "text": hover(text),
            }
            | share.limits
        )
        ends += [share.low, share.high]
    low, high = with_margin(ends)
    height = _STEP * len(rules)
    title = "loss reduction given up by tuning small (%)"
    scale = alt.Scale(domain=[low, high], nice=False)
    x = alt.X("low:Q", title=title, scale=scale, axis=alt.Axis(grid=False, tickCount=6))
    y = alt.Y("y:Q", scale=alt.Scale(domain=[len(rules) - 0.45, -0.65]), axis=None)
    colour = alt.Color("colour:N", scale=None)
    base = points(rows, y=y, color=colour)
    allowed = points([{"low": low, "to": LIMIT}], x=x, x2="to:Q").mark_rect(color=BAND, opacity=0.6)
    # Names stand between the parts of the line.
    parts = [{"low": LIMIT, "y": row["y"] - 0.12, "end": row["y"] + 0.42} for row in rows]
    limit = points(parts, x=x, y=y, y2="end:Q").mark_rule(color=SOFT, strokeDash=[3, 2])
    dot = base.encode(x=alt.X("value:Q", title=title, scale=scale), description="text:N")
    names = points([row | {"at": low} for row in rows], y=y, text="name:N").encode(
        x=alt.X("at:Q", title=title, scale=scale)
    )
    return alt.layer(
        allowed,
        limit,
        base.encode(x=x, x2="high:Q").mark_rule(strokeWidth=3),
        dot.mark_circle(size=110, opacity=1),
        on_lines(names, align="left", dx=6, dy=-17, color=INK),
    ).properties(height=height)


# ---- best rates


def _rate_span(rules: Iterable[RuleTransfer]) -> tuple[float, float]:
    """The rates of all best rates and grids' ends that they have in common."""
    rates = list[float]()
    for answer in rules:
        for size, cell in answer.cells.items():
            rate = answer.rate(size)
            rates += [rate.value, rate.low, rate.high]
            if not cell.has_optimum:
                rates.append(_end(cell))
    return with_margin(rates, "log")


def _end(cell: Scores) -> float:
    """The rate at the end of the grid at which the best one lies; its middle if nobody knows."""
    place = {-1: 0, 1: -1}.get(cell.edge, len(cell.log2_eta) // 2)
    return math.pow(2, float(cell.log2_eta[place]))


def _sizes(answer: RuleTransfer, span: tuple[float, float]) -> Picture:
    """The best rate of every size below the others, beside the smallest network's interval."""
    sizes = [*answer.cells]
    names = [size_in_words(size, sizes) for size in sizes]
    rows = list[Row]()
    ended = list[Row]()
    for name, size in zip(names, sizes, strict=True):
        cell = answer.cells[size]
        rate = answer.rate(size)
        if math.isnan(rate.value):
            reason = "nothing learnt" if not cell.learns else "at the end of the grid"
            ended.append({"size": name, "lr": _end(cell), "name": reason})
            continue
        low, high = _within((rate.low, rate.high), span)
        if math.isnan(rate.low):
            low = high = rate.value
        text = hover(f"{name}: {rate.in_words()}")
        rows.append({"size": name, "lr": rate.value, "low": low, "high": high, "text": text})
    title = "best learning rate"
    y = alt.Y("size:N", sort=None, title=None, scale=alt.Scale(domain=names), axis=_NO_LINES)
    base = points(rows, y=y, x=x_log("lr", title, span))
    layers = []
    smallest = answer.rate(sizes[0])
    if math.isfinite(smallest.low):
        low, high = _within((smallest.low, smallest.high), span)
        strip = points([{"lr": low, "to": high}], x=x_log("lr", title, span), x2="to:Q")
        layers.append(strip.mark_rect(color=BAND, opacity=0.6))
    layers += [
        base.encode(x=x_log("low", title, span), x2="high:Q").mark_rule(
            color=BLUE, strokeWidth=2.5
        ),
        base.encode(description="text:N").mark_circle(size=80, opacity=1, color=BLUE),
    ]
    if ended:
        marks = points(ended, y=y, x=x_log("lr", title, span), text="name:N")
        align = "right" if ended[0]["lr"] > math.sqrt(span[0] * span[1]) else "left"
        layers.append(on_lines(marks, align=align, color=SOFT))
    return picture(
        f"sizes-{answer.rule}",
        alt.layer(*layers).properties(height=_SIZE_STEP * len(sizes)),
        title=_title(answer.rule),
        label=f"The best learning rate of {plural(len(sizes), 'size')}. {_title(answer.rule)}",
        kind="half",
    )


_NO_LINES = alt.Axis(grid=False, ticks=False, domain=False)


def _settings(transfer: Transfer) -> list[Section]:
    """The best rate against every further setting."""
    parts = list[Section]()
    settings = dict[str, None]()
    for answer in transfer.rules:
        settings |= dict.fromkeys(answer.against)
    for setting in settings:
        pictures = list[Picture]()
        sentences = list[str]()
        for against in (one.against[setting] for one in transfer.rules if setting in one.against):
            sentences.append(against.sentence)
            pictures += _against(against)
        # The first section of a page that is about a setting only stands below its answer.
        title = f"The best rate against {setting}" if len(sizes_of(transfer.rules)) > 1 else ""
        parts.append(Section(title, sentences if title else [], pictures=pictures))
    return parts


def _against(against: RateAgainst) -> list[Picture]:
    """The best rate of the largest network over one setting."""
    size = against.sizes[-1]
    rows = list[Row]()
    for value in against.values:
        rate = against.cells[size, value].rate()
        # A logarithmic axis has no place for 0.
        if math.isfinite(rate.value) and value > 0:
            low = rate.low if math.isfinite(rate.low) else rate.value
            high = rate.high if math.isfinite(rate.high) else rate.value
            text = hover(f"{against.setting} {value:g}: {rate.in_words()}")
            rows.append({"x": value, "lr": rate.value, "low": low, "high": high, "text": text})
    if not rows:
        return []
    values = [row["x"] for row in rows]
    rates = [row[name] for row in rows for name in ("low", "high")]
    x = x_log("x", against.setting, with_margin(values, "log"), values=values)
    span = with_margin(rates, "log", share=0.1)
    title = "best learning rate"
    base = points(rows, x=x, y=y_log("lr", title, span))
    chart = alt.layer(
        base.mark_line(color=BLUE, strokeWidth=2),
        base.encode(y=y_log("low", title, span), y2="high:Q").mark_rule(color=BLUE),
        base.encode(description="text:N").mark_circle(color=BLUE, size=60, opacity=1),
    ).properties(height=_HEIGHT)
    caption = f"At {size_in_words(size, against.sizes)}. Bars: 95 %."
    return [
        picture(
            f"rate-{against.setting}-{against.rule}",
            chart,
            title=_title(against.rule),
            caption=caption,
            label=f"The best learning rate over {against.setting}. {_title(against.rule)}",
            kind="half",
        )
    ]
