"""One nanoGPT scaled up in five ways, compared in loss, cost and the mistakes that are caught.

The ways are nothing, a sweep at full size, mup, CompleteP by hand, and nfd. The model (nanogpt.txt)
has nanoGPT's architecture in lines of ours: pre-norm, learned positions, four heads at every width,
no biases; its head is not tied to the embedding, and it starts as PyTorch starts its layers. It
trains on bytes of Python's library: 60 steps of 256, AdamW, no decay, a tenth of warm-up and a
linear fall to zero. The loss is that of 4,096 held-out bytes. Small is width 32 and depth 2, large
is width 128 and depth 8. Each way is a list of edits of that file, made by the script and counted
as changed lines; a mistake is an edit that was left out.

Written down before the main run; a pilot of one seed chose the start, the steps and the rates:

- Rate: least mean loss of 2 seeds on five octaves, refined by the parabola through its neighbours.
  ``sweep`` finds it on the large network, unedited; ``nothing``, ``by hand`` and ``nfd`` find it on
  the small one; ``mup`` at width 32 and depth 8, since its README asks for a base of the same
  depth. Cost: CPU time of these trainings, one thread.
- Loss: the large network at that rate, 5 new seeds. A way is as good as the sweep where the 95 %
  interval of its loss minus the sweep's, paired over seeds, lies below 0.03 nats; worse where it
  lies above; else undecided.
- Half and twice the rate, 2 of the new seeds: the rate is right where neither has the lower mean
  loss.
- Caught: mup by an error of ``set_base_shapes``, or by its coordinate check; by hand by coordinate
  checks in width and in depth, as the fork logs them; nfd by ``nfd.check``, a note of the plan, or
  an alert of ``nfd.Watch``. A coordinate check is a picture; here it speaks where the mean absolute
  output of a module after 5 steps has a power of size beyond 0.25 in a 95 % interval over 3 seeds.
  What an untouched way shows already counts for no mistake.

Added after the main run: nfd with a head that starts as in PyTorch's scaling, not smaller.

CompleteP's edits are those of EleutherAI/nanoGPT-mup, branch completep, commit 6f8bc3bd; mup is
version 1.0.0.

Run: ``PYTHONPATH=.:FOLDER_OF_MUP python -m studies.beside`` writes ``beside.json``, two tables of a
page, a chart.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from functools import partial
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import altair as alt
import torch
from torch import Tensor, nn
from torch.nn import functional

import nfd
from makers.pictures import chart, svg, title
from makers.tables import fill_page, markdown
from nfd.core.estimates import Interval, mean
from nfd.core.files import prepare_directory
from nfd.core.tables import Row
from nfd.report.charts import INK
from studies.byte_gpt import BYTES, held_out, windows
from studies.embedding_rate import warmed

SMALL = (32, 2)
LARGE = (128, 8)
STEPS = 60
SEEDS = range(2)
NEW = range(3, 8)
NEGLIGIBLE = 0.03
WIDER = [(32 * k, 2) for k in (1, 2, 4, 8)]
DEEPER = [(32, 2 * k) for k in (1, 2, 4, 8)]
RATES = [2.0**k for k in range(-8, -3)]
JSON = Path(__file__).with_suffix(".json")
Make = Callable[..., tuple[nn.Module, torch.optim.Optimizer]]

NANO = Path(__file__).with_name("nanogpt.txt").read_text()
ADAMW = "torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0)"
HEAD = "        self.head = nn.Linear(width, 256, bias=False)\n"
MADE = "    model = GPT(width, depth)\n"
ATTENTION = [("is_causal=True)", "is_causal=True, scale=8**0.5 / q.shape[-1])")]
PLANNED = (
    "    plan = nfd.plan(model, (32, 2), make_model=GPT, sample=torch.zeros(1, 64, "
    "dtype=torch.long))\n"
)

# The edits of a way, by the mistake that leaving them out is.
EDITS: dict[str, dict[str, list[tuple[str, str]]]] = {
    "nothing": {},
    "sweep": {},
    "mup": {
        "": [
            ("import torch\n", "import mup\nimport torch\n"),
            (MADE, MADE + "    mup.set_base_shapes(model, GPT(32, depth), delta=GPT(64, depth))\n"),
        ],
        "attention keeps 1/sqrt(d)": ATTENTION,
        "one rate for all": [(ADAMW, ADAMW.replace("torch.optim.AdamW", "mup.MuAdamW"))],
        "head forgotten": [(HEAD, HEAD.replace("nn.Linear", "mup.MuReadout"))],
    },
    "by hand": {
        "attention keeps 1/sqrt(d)": ATTENTION,
        "one rate for all": [
            (
                "    return model, " + ADAMW,
                (
                    "    hidden = [p for name, p in model.named_parameters() if "
                    "name.startswith('h.') and p.dim() == 2]\n    rest = [p for name, p in "
                    "model.named_parameters() if not (name.startswith('h.') and p.dim() == 2)]\n   "
                    " groups = [{'params': hidden, 'lr': lr * 32 / width}, {'params': rest}]\n    "
                    "eps = 1e-8 * (32 / width) * (2 / depth)\n    return model, "
                    "torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=eps, weight_decay=0)"
                ),
            )
        ],
        "head forgotten": [
            (
                "self.head(self.ln_f(self.h(x)))",
                "self.head(self.ln_f(self.h(x)) * (32 / x.shape[-1]))",
            )
        ],
        "start forgotten": [
            (HEAD, HEAD + "        self.head.weight.data *= (width / 32) ** 0.5\n")
        ],
        "branches without 1/L": [
            ("(self, width):", "(self, width, depth):"),
            ("Block(width)", "Block(width, depth)"),
            ("        self.ln_1,", "        self.branch = 2 / depth\n        self.ln_1,"),
            ("x + self.attn_proj", "x + self.branch * self.attn_proj"),
            ("x + self.mlp_proj", "x + self.branch * self.mlp_proj"),
        ],
    },
    "nfd": {
        "": [("import torch\n", "import nfd\nimport torch\n"), (MADE, MADE + PLANNED)],
        "attention keeps 1/sqrt(d)": ATTENTION,
        "one rate for all": [
            (ADAMW, "plan.make_optimizer(model, lr=lr, betas=(0.9, 0.95), weight_decay=0)")
        ],
        "start forgotten": [(PLANNED, PLANNED + "    plan.apply_(model, seed)\n")],
    },
}
APPLIED = "plan.apply_(model, seed)\n"
LARGER = (APPLIED, APPLIED + "    model.head.weight.data *= (width / 32) ** 0.5\n")
EDITS["nfd, larger head"] = {"": [*chain.from_iterable(EDITS["nfd"].values()), LARGER]}
MISTAKES = [name for name in EDITS["by hand"] if name]
WORDS = {
    "set_base_shapes": "`set_base_shapes`",
    "width,": "coordinates in width",
    "depth,": "coordinates in depth",
}
WORDS |= {"note": "a note of the plan", "check": "`nfd.check`", "watch": "`nfd.Watch`"}


def edited(way: str, without: str = "-") -> str:
    """The file of a way, all edits made but those of one mistake."""
    text = NANO
    for mistake, pairs in EDITS[way].items():
        if mistake == without:
            continue
        for old, new in pairs:
            text = text.replace(old, new)
    return text


def changed(text: str) -> int:
    """Lines that differ from the unedited file, counted on the side that has more."""
    matcher = SequenceMatcher(None, NANO.splitlines(), text.splitlines(), autojunk=False)
    blocks = matcher.get_opcodes()
    return sum(max(b - a, d - c) for kind, a, b, c, d in blocks if kind != "equal")


def loaded(way: str, without: str = "-") -> Any:
    """Load the file of a way, all edits made but those of one mistake, as a module."""
    module = ModuleType(f"{way} {without}")
    exec(edited(way, without), vars(module))
    return module


def trained(make: Make, size: tuple[int, int], lr: float, seed: int) -> float:
    """Train a model of a size; its loss on held-out bytes."""
    model, optimizer = make(*size, lr, seed)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(warmed, steps=STEPS, share=0.1))
    for rows in windows(STEPS, 4):
        stepped(model, optimizer, rows)
        schedule.step()
    with torch.no_grad():
        return min(float(loss_of(model, held_out()[0])), math.log(BYTES))


def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
    """The loss of the next byte; infinite where it is not a number."""
    logits = model(rows[:, :-1]).flatten(0, 1)
    return functional.cross_entropy(logits, rows[:, 1:].flatten()).nan_to_num(math.inf)


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, rows: Tensor) -> None:
    """Take one step of training."""
    optimizer.zero_grad()
    torch.autograd.backward(loss_of(model, rows))
    optimizer.step()


def tuned(make: Make, size: tuple[int, int]) -> dict[str, Any]:
    """The best rate of a size, the losses by rate, and the CPU minutes that it took."""
    begun = time.process_time()
    rates = [lr / 4 for lr in RATES] if size == LARGE else RATES
    by_rate = list[list[float]]()
    for lr in rates:
        by_rate.append([trained(make, size, lr, seed) for seed in SEEDS])
    losses = torch.tensor(by_rate, dtype=torch.float64)
    k = int(losses.mean(1).argmin())
    # Fails where the best rate lies at an end.
    low, best, high = losses.mean(1)[k - 1 : k + 2].tolist()
    lr = rates[k] * 2 ** ((low - high) / (2 * (low - 2 * best + high)))
    numbers = {"size": size, "lr": lr, "seconds": time.process_time() - begun}
    return numbers | {"rates": rates, "losses": losses.tolist()}


def coordinates(
    make: Make, sizes: Sequence[tuple[int, int]], lr: float, axis: str
) -> dict[str, str]:
    """Modules whose mean absolute output after 5 steps grows or falls with size, and the power."""
    sizes_of_outputs: dict[str, list[Tensor]] = {}
    for seed in range(3):
        for size in sizes:
            *rows, last = windows(6, 4)
            model, optimizer = make(*size, lr, seed)
            for batch in rows:
                stepped(model, optimizer, batch)
            for name, module in model.named_modules():
                # At every depth.
                if "." not in name or name.startswith("h.0."):
                    kept = sizes_of_outputs.setdefault(name or "logits", [])
                    module.register_forward_hook(
                        lambda _, args, out, kept=kept: kept.append(out.detach().abs().mean())
                    )
            loss_of(model, last)
    x = torch.tensor([math.log(width * depth) for width, depth in sizes], dtype=torch.float64)
    x = (x - x.mean()) / (x - x.mean()).square().sum()
    texts = dict[str, str]()
    for name, sizes_of_output in sizes_of_outputs.items():
        power = mean(torch.stack(sizes_of_output).double().log().view(3, -1) @ x)
        if power.low > 0.25 or power.high < -0.25:
            texts[f"{axis}, {name}"] = str(power)
    return texts


def seen(way: str, mistake: str, lr: float) -> dict[str, str]:
    """What the check of a way says, by where it says it."""
    module = loaded(way, mistake)
    if way != "nfd":
        try:
            wide = coordinates(module.make, WIDER, lr, "width")
        except AssertionError as error:
            return {"set_base_shapes": str(error)}
        if way != "by hand":
            return wide
        return wide | coordinates(module.make, DEEPER, lr, "depth")
    pairs = [(rows[:, :-1], rows[:, 1:]) for rows in windows(5, 4)]
    plan = nfd.plan(module.GPT(*LARGE), SMALL, make_model=module.GPT, sample=pairs[0][0])
    words = {f"note {note[:40]}": note for note in plan.notes}
    in_width = ([n for n, _ in WIDER], [2])
    in_depth = ([32], [L for _, L in DEEPER])
    for widths, depths in (in_width, in_depth):
        checked = nfd.check(module.GPT, pairs, widths, depths, lr=lr, seeds=3, remedy=False)
        words |= {f"check {suspect}": "" for suspect in checked.suspects}
        for fault in checked.faults:
            words[f"check {fault['axis']} {fault['meter']}"] = str(fault["verdict"])
    model, optimizer = module.make(*LARGE, lr, 0)
    with warnings.catch_warnings(action="ignore"):
        watch = nfd.Watch(model, plan, pairs[0][0], every=1, seed=0)
        for ids, targets in pairs[:3]:
            stepped(model, optimizer, torch.cat([ids, targets[:, -1:]], 1))
            watch.step()
    return words | {f"watch {alert.step} {str(alert)[8:48]}": str(alert) for alert in watch.alerts}


def measured(way: str) -> dict[str, Any]:
    """The rate and losses of a way, and what its check says of every mistake.

    They are read where they were kept.
    """
    path = prepare_directory("build/beside") / f"{way}.json"
    if not path.exists():
        make = loaded(way).make
        size = {"sweep": LARGE, "mup": (SMALL[0], LARGE[1])}.get(way, SMALL)
        numbers = tuned(make, size) | {"lines": changed(edited(way)), "others": {}, "said": {}}
        numbers["new"] = [trained(make, LARGE, numbers["lr"], seed) for seed in NEW]
        if len(EDITS[way]) > 1:
            for factor in (0.5, 2):
                lr = factor * numbers["lr"]
                numbers["others"][factor] = [trained(make, LARGE, lr, seed) for seed in NEW[:2]]
            mistakes = [mistake for mistake in MISTAKES if mistake in EDITS[way]]
            for mistake in ("-", *mistakes):
                numbers["said"][mistake] = seen(way, mistake, numbers["lr"])
        path.write_text(json.dumps(numbers))
    return cast("dict[str, Any]", json.loads(path.read_text()))


def caught(numbers: dict[str, Any], mistake: str) -> str:
    """What the check of a way says of a mistake and not of the untouched file."""
    if mistake not in numbers["said"]:
        return "no such line"
    untouched = numbers["said"]["-"]
    places = sorted({text.split()[0] for text in numbers["said"][mistake] if text not in untouched})
    if not places:
        return "**not seen**"
    return "caught: " + " and ".join(WORDS[place] for place in places)


def main() -> None:
    """Measure; then write the numbers, the tables and the chart."""
    torch.set_num_threads(1)
    numbers = {way: measured(way) for way in EDITS}
    sweep = torch.tensor(numbers["sweep"]["new"])
    rows = [compared(way, of_way, sweep) for way, of_way in numbers.items()]
    checked = {way: of_way for way, of_way in numbers.items() if of_way["said"]}
    mistakes = list[Row]()
    for mistake in MISTAKES:
        cells = {way: caught(of_way, mistake) for way, of_way in checked.items()}
        mistakes.append({"left out": mistake} | cells)
    JSON.write_text(json.dumps(numbers, indent=1) + "\n")
    docs = Path(__file__).parents[1] / "docs"
    fill_page(
        docs / "against-others.md", {"beside": markdown(rows), "mistakes": markdown(mistakes)}
    )
    (docs / "images/beside.svg").write_text(svg(drawn(numbers), 1.6))


def compared(way: str, numbers: dict[str, Any], sweep: Tensor) -> Row:
    """The row of a way.

    Its loss, and that minus the loss of the sweep, are added to its numbers.
    """
    losses = torch.tensor(numbers["new"])
    loss = mean(losses)
    difference = mean(losses - sweep)
    numbers |= {"loss": loss.limits, "over the sweep": difference.limits}
    row: Row = {
        "": way,
        "lines changed": numbers["lines"],
        "CPU seconds": numbers["seconds"],
        "rate": numbers["lr"],
    }
    against_sweep = "" if way == "sweep" else f"{difference}, {word_of(difference)}"
    return row | {"loss": loss.unsigned, "minus the sweep's": against_sweep}


def word_of(difference: Interval) -> str:
    """Whether a way is as good as the sweep, by the criteria above."""
    if difference.high < NEGLIGIBLE:
        return "as good"
    if difference.low > NEGLIGIBLE:
        return "worse"
    return "undecided"


def drawn(numbers: dict[str, Any]) -> Any:
    """The final loss of every way against the time that its rate took."""
    axis = alt.Axis(
        title="CPU seconds to find the rate, logarithmic", values=[5, 10, 20, 40], format="d"
    )
    x = alt.X("seconds:Q", scale=alt.Scale(type="log", domain=[2.5, 60], nice=False), axis=axis)
    y = alt.Y("value:Q", scale=alt.Scale(zero=False), title="final loss")
    points = [{"way": way, **of_way, **of_way["loss"]} for way, of_way in numbers.items()]
    base = chart(points).encode(x=x, y=y)
    bars = base.mark_rule(strokeWidth=1.5, color=INK).encode(
        y=alt.Y("low:Q", title="final loss"), y2="high:Q"
    )
    picture = bars + base.mark_point(filled=True, size=50, opacity=1, color=INK)
    picture += (
        base.transform_filter("datum.way == 'by hand'")
        .mark_text(align="right", dx=-7)
        .encode(text="way:N")
    )
    picture += (
        base.transform_filter("datum.way != 'by hand'")
        .mark_text(align="left", dx=7)
        .encode(text="way:N")
    )
    picture.title = title(
        "The rate of a small model costs a sixth of a sweep's time, and with a large head no loss"
    )
    return picture.properties(width=288, height=200)


if __name__ == "__main__":
    main()
