"""How often a watch raises an alert on a sound training, and whether it names a fault.

Both are measured by repetition.
Every draw has batches of its own and trains a ladder of small networks. Under the bands that it
gives, large networks are trained: in the first draws one for each fault and a sound one, which
should raise no alert, in later ones several sound ones. Each is a line of a JSON file as soon as it
is trained; a measurement that is stopped goes on where it was.

    python -m calibration.alarms RESULTS [DRAWS FAULTY [SETTING]]

A setting is a rule and an optimizer, such as "mup, adamw"; without one all are measured.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import nfd
from nfd.core.estimates import share
from nfd.core.names import RuleName
from nfd.core.random import derive
from nfd.core.tables import rows_as_text
from nfd.data import digits
from nfd.meters.check import Meters
from nfd.meters.updates import DEFINITION
from nfd.scaling.combined import CombinedOptimizer
from nfd.watch import Cause
from nfd.watch.bands import Bands, Ladder
from nfd.watch.causes import Alarm

WIDTHS = (32, 64)
DEPTHS = (2, 4)
SEEDS = 3
WIDE = 128
DEEP = 8
STEPS = 24
EVERY = 3
LOOKS = (1, 2, 3, 6, 9, 12, 18, 24)
# The rate of AdamW beside Muon.
REST_RATE = 3e-3
# The share by which decay shrinks weights in one step.
SHRINKAGE = 3e-5
BATCH = 16
# The seventh block, from 0.
SEVENTH = 6
_SOUND = "sound"
# Sound networks of a draw without faults.
SOUND = 5

Row = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """What trains the networks of a draw.

    Attributes:
        rule, optimizer: of the plan.
        rate: the learning rate at the base.
        first: the number of the first draw.
    """

    rule: RuleName
    optimizer: str
    rate: float
    first: int = 0

    def __str__(self) -> str:
        return f"{self.rule}, {self.optimizer}"

    @property
    def decay(self) -> float:
        """Weight decay at the base."""
        return SHRINKAGE / self.rate

    @property
    def rest_rate(self) -> float | None:
        """The rate at the base of what Muon leaves to AdamW."""
        return REST_RATE if self.optimizer == "muon" else None


SETTINGS = (
    Setting("complete-p", "adamw", 3e-3),
    Setting("complete-p", "sgd", 0.1),
    Setting("complete-p", "muon", 0.02),
    Setting("mup", "adamw", 3e-3),
    Setting("depth-mup", "adamw", 3e-3),
    # The limit of families with faults was chosen on draws 0 to 3, on a GPT-2 and on an encoder.
    Setting("standard", "adamw", 3e-3, first=20),
)


class Block(nn.Module):
    """A pre-norm block of two layers; ``factor`` is 1 but for a fault."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.factor = 1.0

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = h + self.factor * self.down(torch.relu(self.up(self.norm(h))))
        return out


def make_model(width: int, depth: int) -> nn.Sequential:
    """Images of digits to classes."""
    blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
    return nn.Sequential(nn.Linear(64, width), blocks, nn.LayerNorm(width), nn.Linear(width, 10))


def wrong_multiplier(model: Any, groups: list[Row]) -> None:
    """The branch of block 7 counts four times."""
    model[1][SEVENTH].factor = 4.0


def doubled(model: Any, groups: list[Row]) -> None:
    """The branch of block 7 counts twice."""
    model[1][SEVENTH].factor = 2.0


def frozen(model: Any, groups: list[Row]) -> None:
    """Block 7 does not train."""
    model[1][SEVENTH].requires_grad_(requires_grad=False)


def forgotten_rate(model: Any, groups: list[Row]) -> None:
    """The embedding has the learning rate of the blocks, a quarter of what it should have."""
    of_embedding = {id(p) for p in model[0].parameters()}
    for group in list(groups):
        apart = [p for p in group["params"] if id(p) in of_embedding]
        if apart:
            group["params"] = [p for p in group["params"] if id(p) not in of_embedding]
            groups.append(group | {"params": apart, "lr": group["lr"] / 4})


def strong_decay(model: Any, groups: list[Row]) -> None:
    """Decay shrinks the weights faster than training renews them."""
    for group in groups:
        group["weight_decay"] *= 1000


FAULTS: dict[str, tuple[Callable[[Any, list[Row]], None], Cause, str | None]] = {
    "wrong multiplier in block 7": (wrong_multiplier, Cause.MULTIPLIER, "1.6"),
    "branch of block 7 twice": (doubled, Cause.MULTIPLIER, "1.6"),
    "block 7 frozen": (frozen, Cause.FROZEN, "1.6"),
    "forgotten rate of the embedding": (forgotten_rate, Cause.RATE, "0"),
    "decay that stops learning": (strong_decay, Cause.DECAY, None),
}


def batches(draw: int) -> list[tuple[Tensor, Tensor]]:
    """The batches of a draw."""
    x, y = digits().batches(size=BATCH, steps=STEPS, seed=draw)
    return list(zip(x, y, strict=True))


def ladder(draw: int, setting: Setting) -> Ladder:
    """The small networks of a draw, as ``nfd.check`` measures them."""
    task = nfd.Task(batches(draw), weight_decay=setting.decay, adamw_lr=setting.rest_rate)
    family = nfd.Family(make_model, (WIDTHS[0], DEPTHS[0]), setting.rule, setting.optimizer)
    seeds = range(draw * SEEDS, (draw + 1) * SEEDS)
    trials = [
        nfd.Trial(family, task, width, depth, seed, setting.rate, observe=(Meters(LOOKS),))
        for width, depth, seed in product(WIDTHS, DEPTHS, seeds)
    ]
    with nfd.Sweep(progress=False) as sweep:
        records = sweep.run(trials)
        networks = [
            {"width": r.config["width"], "depth": r.config["depth"], **r.observed[0]}
            for r in records
        ]
    names = {"rule": setting.rule, "optimizer": setting.optimizer, "definition": DEFINITION}
    # What a check of these networks says is not asked again: it finds faults under ``standard`` in
    # every draw.
    is_sound = setting.rule != "standard"
    return Ladder.of({**names, "ok": is_sound, "base": family.base, "networks": networks})


def watched(
    draw: int,
    setting: Setting,
    bands: Bands,
    seed: int,
    fault: Callable[[Any, list[Row]], None] | None = None,
) -> Row:
    """Train a network of 128 x 8 under a watch, sound or with a fault.

    Returns:
        Its alerts, and by meter how many of its numbers lay in their 95 % intervals.
    """
    pairs = batches(draw)
    alarm = Alarm(bands)
    torch.manual_seed(seed)
    model = make_model(WIDE, DEEP)
    sample = pairs[0][0]
    base = {"make_model": make_model, "base": (WIDTHS[0], DEPTHS[0])}
    plan = nfd.plan(model, rule=setting.rule, optimizer=setting.optimizer, sample=sample, **base)  # type: ignore[arg-type]
    plan.apply_(model, seed=seed)
    groups = plan.param_groups(
        model, lr=setting.rate, weight_decay=setting.decay, adamw_lr=setting.rest_rate
    )
    if fault is not None:
        fault(model, groups)
    muon_groups = [group for group in groups if group.get("use_muon")]
    rest_groups = [group for group in groups if not group.get("use_muon")]
    kind = torch.optim.SGD if setting.optimizer == "sgd" else torch.optim.AdamW
    parts: list[torch.optim.Optimizer] = [kind(rest_groups)]
    if muon_groups:
        parts.append(torch.optim.Muon(muon_groups))
    optimizer = CombinedOptimizer(parts)
    watch = nfd.Watch(model, plan, sample, EVERY, alarm, seed=seed)
    inside = Counter[str]()
    total = Counter[str]()
    for x, y in pairs:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        for row in watch.step():
            band = alarm.band(row)
            if band is not None:
                total[row.meter] += 1
                inside[row.meter] += abs(band.deviation) <= bands.alone
    alerts = [[a.step, a.since, a.meter, a.layer, a.cause] for a in watch.alerts]
    return {"alerts": alerts, "inside": dict(inside), "total": dict(total)}


def measured(path: Path, setting: Setting, draws: int, faulty: int) -> list[Row]:
    """The rows of all draws under a setting; those that the file lacks are trained."""
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [row for row in map(json.loads, lines) if row["setting"] == str(setting)]
    done = {(row["draw"], row["case"]) for row in rows}
    for draw in range(setting.first, setting.first + draws):
        has_faults = draw < setting.first + faulty
        cases = [_SOUND, *FAULTS] if has_faults else [f"{_SOUND} {k}" for k in range(SOUND)]
        missing = [case for case in cases if (draw, case) not in done]
        if not missing:
            continue
        bands = Bands(ladder(draw, setting), WIDE, DEEP, [DEEP])
        for case in missing:
            fault = FAULTS[case][0] if case in FAULTS else None
            seed = draw if case in (_SOUND, *FAULTS) else derive(draw, case)
            place = {"setting": str(setting), "draw": draw, "case": case, "limit": bands.limit}
            rows.append(place | watched(draw, setting, bands, seed, fault))
            with path.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    return rows


def counted(count: int, total: int) -> Row:
    """A share with its 95 % interval."""
    interval = share(count, total)
    return {"networks": total, "share": interval.value, "low": interval.low, "high": interval.high}


def named(case: str, row: Row) -> bool:
    """Whether the first alert names the cause and the layer of a fault."""
    if not row["alerts"]:
        return False
    _, cause, layer = FAULTS[case]
    _, _, _, alert_layer, alert_cause = row["alerts"][0]
    is_layer = layer is None or str(alert_layer).startswith(layer)
    return bool(alert_cause == cause and is_layer)


def summary(rows: list[Row]) -> list[Row]:
    """A row for each statement: sound networks with alerts, named faults, coverage by meter."""
    sound = [row for row in rows if row["case"].startswith(_SOUND)]
    alarmed = sum(bool(row["alerts"]) for row in sound)
    table = [{"what": "sound, alert raised", **counted(alarmed, len(sound))}]
    for case in FAULTS:
        with_fault = [row for row in rows if row["case"] == case]
        named_faults = sum(named(case, row) for row in with_fault)
        table.append({"what": f"{case}, named", **counted(named_faults, len(with_fault))})
    inside = Counter[str]()
    total = Counter[str]()
    for row in sound:
        inside.update(row["inside"])
        total.update(row["total"])
    for meter in sorted(total):
        table.append(
            {
                "what": f"{meter} in its own 95 % interval",
                "networks": len(sound),
                "share": inside[meter] / total[meter],
            }
        )
    return table


def page_row(setting: Setting, rows: list[Row]) -> str:
    """A setting's row of the table in docs/howto/watch.md.

    It has the sound networks that raise an alert, and the faults that are named.
    """
    sound, *faults = [row for row in summary(rows) if "low" in row]
    named_faults = sum(count_of(row) for row in faults)
    networks = sum(row["networks"] for row in faults)
    cells = f"{count_of(sound)} of {sound['networks']} | {named_faults} of {networks}"
    return f"| `{setting.rule}`, {setting.optimizer} | {cells} |"


def count_of(row: Row) -> int:
    """The networks that a share counts."""
    return round(float(row["share"]) * int(row["networks"]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    counts = [int(text) for text in sys.argv[2:4]]
    chosen = sys.argv[4:]
    for setting in SETTINGS:
        if not chosen or str(setting) in chosen:
            rows = measured(Path(sys.argv[1]), setting, *(counts or [12, 7]))
            print(f"== {setting}", rows_as_text(summary(rows)), page_row(setting, rows), sep="\n")
