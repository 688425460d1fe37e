"""What kernels in training say first: how far training moved them, with intervals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nfd.core.answer import Answer
from nfd.core.estimates import Interval
from nfd.core.tables import Row
from nfd.core.words import listed, plural

if TYPE_CHECKING:
    from nfd.limits.probes import TrainedKernels
    from nfd.report.page import Section


def kernels_answer(kernels: TrainedKernels) -> Answer:
    """Say how far training moved the kernels, and what speaks against the number."""
    about = (
        f"{plural(kernels.streams.value.shape[-1], 'probe')} at "
        f"{plural(len(kernels.times), 'depth')} and after {listed(kernels.steps)} updates"
    )
    name = main_kernel(kernels)
    if len(kernels.steps) == 1:
        return Answer(
            "good",
            "Before training",
            "These are kernels before training",
            because=f"They are of {about}; nfd.Kernels(steps=[...]) asks for later ones.",
            but=_continued(kernels.note),
            about=about,
            details=_shapes(kernels),
        )
    step = kernels.steps[-1]
    last = kernels.moved(name)[step]
    if math.isnan(last.value):
        return Answer(
            "bad",
            "Diverges",
            f"Kernels of step {step} are not numbers",
            but=_continued(kernels.note),
            about=about,
            table=_shown(kernels),
        )
    size, _, span = last.in_words().partition(" ")
    return Answer(
        "good" if kernels.converged else "open",
        "Moved" if kernels.converged else "Not converged",
        f"Training moved the {_in_words(name)} by {size} times its size",
        because=f"|K after - K before| / |K before| is {size} {span}".rstrip() + f", of {about}.",
        but=_continued(kernels.note),
        about=about,
        table=_shown(kernels),
        details=_shapes(kernels),
    )


def kernels_sections(kernels: TrainedKernels) -> list[Section]:
    """Return the table of how far kernels moved."""
    from nfd.report.page import Section

    return [Section("How far training moved the kernels", [], table=kernels.answer.table)]


def movement_rows(kernels: TrainedKernels) -> list[Row]:
    """Return how far each kernel is moved after each of the steps, a row for each pair."""
    rows = list[Row]()
    for name in _names(kernels):
        for step, moved in kernels.moved(name).items():
            rows.append({"kernel": name, "step": step, "stderr": moved.stderr, **moved.limits})
    return rows


def moved_in_words(kernels: TrainedKernels) -> str:
    """Say how far training moved the main kernel; empty where no number shows it."""
    if len(kernels.steps) == 1:
        return ""
    name = main_kernel(kernels)
    step = kernels.steps[-1]
    moved = kernels.moved(name)[step]
    if math.isnan(moved.value):
        return ""
    return (
        f"{plural(step, 'update')} moved the {_in_words(name)} by {moved.in_words()} times its size"
    )


def blur_note(kernels: TrainedKernels, replicates: int) -> str:
    """Say where noise blurs how far training moved the main kernel, and what would show it.

    Empty where the interval is narrower than the movement, or there is none.
    """
    if len(kernels.steps) == 1:
        return ""
    name = main_kernel(kernels)
    moved = kernels.moved(name)[kernels.steps[-1]]
    if not moved.high - moved.low > moved.value:
        return ""
    return (
        f"The interval of how far the {_in_words(name)} moved is wider than that movement, "
        f"{moved.in_words()}. {_remedy(moved, replicates)}"
    )


def _remedy(moved: Interval, replicates: int) -> str:
    """Say how many replicates would know a movement to a quarter, if noise is what blurs it."""
    if not moved.value > 0 or not math.isfinite(moved.stderr):
        return "Take more replicates or a larger width."
    needed = replicates * (2 * moved.stderr / (moved.value / 4)) ** 2
    if needed <= replicates:
        return "More replicates would not help: take a larger width."
    return f"About {math.ceil(needed):,} replicates would know it to a quarter, or a larger width."


def main_kernel(kernels: TrainedKernels) -> str:
    """Return the name of the kernel that answers speak of."""
    return "features" if kernels.tangent is None else "tangent"


def _names(kernels: TrainedKernels) -> list[str]:
    names = ["tangent", "features", "gradients", "streams"]
    return names[kernels.tangent is None :]


def _in_words(name: str) -> str:
    return "tangent kernel" if name == "tangent" else f"kernel of {name} at the output"


def _continued(note: str) -> str:
    return note[:1].lower() + note[1:]


def _shown(kernels: TrainedKernels) -> list[dict[str, str]]:
    """Return a row for each step, the last first, with how far each kernel moved."""
    rows = list[dict[str, str]]()
    moves = {name: kernels.moved(name) for name in _names(kernels)}
    for step in reversed(kernels.steps[1:]):
        row = {"moved by": f"step {step}"}
        row |= {name: _interval(moved[step]) for name, moved in moves.items()}
        rows.append(row)
    return rows


def _interval(moved: Interval) -> str:
    """Write ``1.7 (1.2 to 2.2)``."""
    return moved.in_words().replace("95 %: ", "")


def _shapes(kernels: TrainedKernels) -> list[str]:
    """Say which arrays there are."""
    shapes = [f"{name} {list(getattr(kernels, name).value.shape)}" for name in _names(kernels)]
    return [f"Arrays: {listed(shapes)}, as .value, .low, .high and .replicates of each."]
