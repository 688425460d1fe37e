"""Compare the trained network, the corrected definition and Definition 1 after some steps.

Setting: networks of depth 8 and horizon 1 learn 40 digits, one at a time, by SGD, +1 for even and
-1 for odd ones, at the rate of ``studies.two_limits_depth``. Looked at are, before training and
after 1, 5 and 40 steps, the outputs on 64 other digits and the feature kernel
``phi(h_t).phi(h_t') / n`` of the first 16 of them at t = 1/2. There are three groups of networks of
other seeds:

- standard: 24 dense networks of width 1,024, what everyone trains;
- corrected: 24 deferred networks of width 8,192 with shared feedback, the particle method of the
  corrected definition (docs/mathematics/infinite-depth.md);
- Definition 1: the same with independent feedback.

Distances are between means over the group, over the RMS of the second group, noise subtracted.

Written down before the main run: the corrected definition agrees with the standard network where
the interval of their distance contains 0 or lies below 5 %, and Definition 1 disagrees where its
interval lies above 5 %.

Run: ``python -m studies.corrected_definition`` takes ten minutes on one core, resumes, writes
``studies/corrected_definition.json`` and fills the page.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from makers.tables import fill_page
from nfd import SGD, ResNet
from nfd.core import Activation, Feedback, Weights, activation, derive
from nfd.core.files import write_text
from nfd.data import digits
from nfd.paper.two_limits import distance
from studies.two_limits import table
from studies.two_limits_depth import Case

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/two-limits.md"
NUMBERS = Path(__file__).with_suffix(".json")
STORE = ROOT / "build/corrected-definition"
DEPTH = 8
LOOKS = (0, 1, 5, 40)
# The looks of the page.
SHOWN = (LOOKS[1], LOOKS[-1])
OUTPUT_PROBES = 64
FEATURE_PROBES = 16
SEEDS = 24
ACTIVATIONS: tuple[Activation, ...] = ("relu", "tanh")

# Differences of this share of the size count as none.
NEAR = 0.05


@dataclass(frozen=True)
class Group:
    """Networks of one kind."""

    name: str
    width: int
    weights: Weights
    feedback: Feedback

    def network(self, case: Case, seed: int) -> ResNet:
        """Build a network whose seed no other group has."""
        return ResNet(
            64,
            1,
            self.width,
            DEPTH,
            horizon=case.horizon,
            activation=case.activation,
            weights=self.weights,
            feedback=self.feedback,
            seed=derive(0, "corrected", self.name, seed),
        )


STANDARD = Group("standard", 1024, "dense", "shared")
CORRECTED = Group("corrected", 8192, "deferred", "shared")
DEFINITION_1 = Group("Definition 1", 8192, "deferred", "independent")
GROUPS = (STANDARD, CORRECTED, DEFINITION_1)


def looked_at(net: ResNet, probes: Tensor, name: Activation) -> Tensor:
    """Return outputs, and the entries of the feature kernel in the middle, of probes [numbers]."""
    with torch.no_grad():
        streams = net.streams(probes)
        features = activation(name).phi(streams.h[DEPTH // 2, :FEATURE_PROBES].double())
        kernel = features @ features.T / net.width
    return torch.cat([streams.outputs[:, 0].double(), kernel.flatten()])


def trained(case: Case, net: ResNet) -> Tensor:
    """Train a network, and return what is looked at, [looks, numbers]."""
    data = digits()
    steps = LOOKS[-1]
    probes = data.inputs[steps : steps + OUTPUT_PROBES].float()
    net.reserve(steps)
    optimizer = SGD(net.param_groups(case.eta_c))
    looks = [looked_at(net, probes, case.activation)]
    for k in range(steps):
        optimizer.zero_grad()
        outputs = net(data.inputs[k : k + 1].float())
        torch.autograd.backward(case.loss(outputs, data.labels[k : k + 1]))
        optimizer.step()
        if k + 1 in LOOKS:
            looks.append(looked_at(net, probes, case.activation))
    return torch.stack(looks)


def stored(case: Case, group: Group) -> Tensor:
    """Return what is looked at in the networks of a group, [seeds, looks, numbers]."""
    STORE.mkdir(parents=True, exist_ok=True)
    networks: list[Tensor] = []
    for seed in range(SEEDS):
        file = STORE / f"{group.name}, {case.name}, {seed}.pt"
        if not file.exists():
            torch.save(trained(case, group.network(case, seed)), file)
        networks.append(torch.load(file))
    return torch.stack(networks)


def rows_of(case: Case) -> list[dict[str, Any]]:
    """Return the distances from the standard network, by quantity, group and look."""
    standard, corrected, decoupled = (stored(case, group) for group in GROUPS)
    quantities = {"outputs": slice(0, OUTPUT_PROBES), "features": slice(OUTPUT_PROBES, None)}
    rows: list[dict[str, Any]] = []
    for quantity, entries in quantities.items():
        for group, numbers in ((CORRECTED, corrected), (DEFINITION_1, decoupled)):
            for place, step in enumerate(LOOKS):
                if step == 0 and quantity == "outputs":
                    # They are zero at infinite width: there is nothing to divide by.
                    continue
                apart = distance(numbers[:, place, entries], standard[:, place, entries])
                row = {"activation": case.activation, "quantity": quantity, "group": group.name}
                rows.append(row | {"step": step} | apart.limits)
    return rows


def page_table(rows: list[dict[str, Any]]) -> str:
    """Return the distances as a table with a column for each look that is shown."""
    cells: dict[str, list[str]] = {}
    for row in rows:
        if row["step"] in SHOWN:
            name = f"{row['activation']}, {row['quantity']}, {row['group']}"
            cells.setdefault(name, []).append(_percent(row))
    return table(["", *(f"step {step}" for step in SHOWN)], cells)


def _percent(row: dict[str, Any]) -> str:
    value, low, high = (100 * row[limit] for limit in ("value", "low", "high"))
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"


def main() -> None:
    """Measure, and write what was found."""
    rows: list[dict[str, Any]] = []
    for name in ACTIVATIONS:
        rows += rows_of(Case(name))
    write_text(NUMBERS, json.dumps(rows, indent=1) + "\n")
    fill_page(PAGE, {"corrected": page_table(rows)})


if __name__ == "__main__":
    main()
