"""``python -m benchmarks.page [RESULT]``: docs/benchmarks.md from a result, the baseline unless another is named.

Every number on the page is formatted from JSON: from the result, or from benchmarks/earlier.json for what
``make bench`` does not measure.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

from benchmarks.check import BASELINE, LEAST
from benchmarks.kernels import DEPTH
from benchmarks.result import Result
from benchmarks.show import cell, markdown
from nfd.core.files import write_text

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
_EARLIER = Path(__file__).with_name("earlier.json")


@dataclass(frozen=True)
class Section:
    """A heading, what is said before and after its tables, and the parts they are of."""

    title: str
    parts: tuple[str, ...]
    before: str
    after: str = ""
    earlier: str = ""


SECTIONS = (
    Section(
        "Deferred against dense",
        ("dense",),
        "Times include initialisation; float32. The opponent is `benchmarks/dense.py`: fused `addmm` forward and "
        "backward, and in-place updates of the rank of the batch, without autograd or gradient matrices. It is "
        'faster than `nfd.ResNet(weights="dense")`. The share of the bound is the least time of all queries (below), '
        "divided by the whole time. The whole time also includes drawing all Gaussians and training the dense input "
        "and output layers.",
    ),
    Section(
        "Structured weights",
        ("structured", "structured-large", "structured-growth"),
        "First the same networks against the same opponent. Then networks whose dense weights would not fit into "
        "memory, each in its own process; the smaller one also with deferred weights. Last the time as the number of "
        "samples doubles, where every sample adds new directions.",
        "A step costs four transforms per layer, O(n log n), and nine passes over a vector of the width for every "
        "direction of the update: six thin products and three of the optimizer. At batches of 8 these products run "
        "at a third of the rate of large ones. From some 50 directions on they cost more than the transforms and "
        "limit the gain at small widths. 16 rows take only 1.3 times as long as 8, so vectors that multiply the same "
        "factor should be batched. Rows pass through a product in blocks of 2^18 numbers, which stay in the cache. "
        "This, and gathers in place of scatters, made a product of 256 rows two to three times faster on one core.",
    ),
    Section(
        "One query against its bound",
        ("query",),
        "A query reads the factors six times, four times without the response; the second reads of `Q` and `P` come "
        "right after the first. The bound is the larger of two times: these bytes at the measured bandwidth, and the "
        "operations at the measured rate of large matrix products.",
        "What keeps a query from it? Products of few rows with a factor run below both the rate of large products and "
        "the bandwidth, because the BLAS behind PyTorch is optimised for neither. At small widths the tens of small "
        "operations of a query count too. What was tried:",
        "tried on queries",
    ),
    Section(
        "Large networks",
        ("large",),
        "Each network is trained in its own process. Its factors take four vectors of the width per layer and sample.",
    ),
    Section(
        "On a GPU, or without one",
        ("wide",),
        "One wide network with deferred weights (`python -m benchmarks.gpu --device cuda`), on the device named in "
        "each row. The bound is the time of the reads and writes that cannot be avoided, at the bandwidth measured "
        "on that device.",
    ),
    Section(
        "The limit",
        ("reference",),
        "Reference problem A (online steps of one sample, tanh, mean squared error). `nfd.predict` runs against "
        "dense networks of an eighth of the width, with autograd and `torch.optim.SGD`. There are as many dense "
        "networks as reach the same standard error, since variances fall as one over the width. Their bias, which is "
        "eight times as large, is ignored.",
    ),
    Section(
        "Growth",
        ("growth",),
        "Time at a larger size over time at a smaller one, with deferred weights. It is linear in width and depth. "
        "It becomes quadratic in the number of samples once the products cost more than the fixed part of a query.",
    ),
    Section(
        "Kernels",
        ("grams", "horizons"),
        "Gram matrices of inputs in R^64 of different norms, T = 1, each in a fresh process, with the time of the "
        "table included. Memory is the peak beyond the inputs, over the size of the result. The bound is the time to "
        "write the result and to compute the products of the inputs; the rest evaluates the table, a recurrence per "
        "entry and coefficient. If norms differ and phi is not homogeneous, long horizons need larger tables, once "
        "per horizon. A warning says where a table is too coarse.",
    ),
    Section(
        "Kernels against others",
        ("recursion", "neural-tangents"),
        f"Infinite depth by `nfd`, table included, against {DEPTH} layers by others; relu, on digits (4,000 inputs: "
        "Gaussian inputs of different norms). The others are the arc-cosine recursion on whole Gram matrices in "
        "plain PyTorch (float64), and neural-tangents (JAX, CPU, float64; `make bench-neural-tangents` makes its "
        "environment). Its time leaves out compilation, ours includes the table. "
        "Its 4,000 inputs run in blocks of 1,000 (`neural_tangents.batch`), "
        "since the whole matrix would need 98 GB. Errors are relative to `sqrt(K(x, x) K(xbar, xbar))`; ours "
        "is the bound that `return_error=True` gives.",
    ),
    Section(
        "Definition 1 by particles",
        ("particles", "samples"),
        "Two measurements. `solve_nfd` against deferred networks with independent feedback, at the same standard "
        "error. And a long run, with many samples, against the memory traffic of its histories.",
    ),
    Section(
        "Plans and checks",
        ("plan", "check"),
        "A plan of a Transformer whose roles are found by tracing, against one forward and backward pass of the "
        "model on the same sample. A check of the paper's two-layer network, against training the same networks "
        "without meters.",
    ),
)


def page(result: Result) -> str:
    """The whole page."""
    earlier = json.loads(_EARLIER.read_text())
    made = [_section(section, result, earlier) for section in SECTIONS if any(p in result.parts for p in section.parts)]
    return "\n\n".join(["# Benchmarks", *_opening(result), *made]) + "\n"


def _opening(result: Result) -> list[str]:
    about = {name: cell(name, value) for name, value in result.machine.items()}
    said = [
        "This page compares the speed of the library with that of dense networks and of other libraries, and says how "
        "to measure it on your machine.",
        "*Made by `python -m benchmarks.page` from benchmarks/baseline.json, a result of `make bench`; no number "
        "is written by hand.*",
        f"Measured on {about['date'][:10]} on a shared machine: {about['processor']}, {about['cores']} cores, "
        f"{about['memory, GiB']} GiB, {about['threads']} threads; nfd {about['nfd']}, PyTorch {about['torch']}, Python "
        f"{about['python']}. It read {about['read, GB/s']} GB/s from memory and multiplied large matrices at "
        f"{about['float32 products, GFLOP/s']} GFLOP/s in float32 and {about['float64 products, GFLOP/s']} in "
        "float64.",
        "Trust the ratios more than the seconds, which are medians over rounds on one machine on one day. A ratio "
        "compares two measurements made one after the other, in every round. Brackets hold 95 % intervals over rounds "
        "(Student's t on logarithms). A share of the bound is the least possible time over the measured one. It uses "
        "the bandwidth and the product rate measured at the same moment.",
        "`make bench-check` measures again and compares ratios, not seconds. It fails if a ratio is worse by more than "
        f"the scatter of both runs (5 % chance for all ratios together) and by more than {cell('', LEAST)} times. "
        "`python -m benchmarks.check OLD NEW` compares any two results, such as those of two commits.",
    ]
    missing = [f"{name} ({reason})" for name, reason in result.missing.items()]
    if result.quick:
        said.append("**From a quick run, on small sizes: for trying the page, not for quoting.**")
    return [fill(text, 120) for text in said + ([f"Not measured: {'; '.join(missing)}."] if missing else [])]


def _section(section: Section, result: Result, earlier: dict[str, Sequence[dict[str, object]]]) -> str:
    tables = [markdown(result.parts[name]) for name in section.parts if name in result.parts]
    said = [f"## {section.title}", fill(section.before, 120, break_long_words=False, break_on_hyphens=False), *tables]
    if section.after:
        said.append(fill(section.after, 120, break_long_words=False, break_on_hyphens=False))
    if section.earlier:
        said.append(markdown(earlier[section.earlier]))
    return "\n\n".join(said)


def main() -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", nargs="?", type=Path, default=BASELINE)
    parser.add_argument("--out", type=Path, default=PAGE)
    arguments = parser.parse_args()
    try:
        write_text(arguments.out, page(Result.read(arguments.result)))
    except ValueError as error:
        print(f"benchmarks.page: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
