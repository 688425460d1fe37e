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
        "Against an earlier version",
        ("against",),
        "`python -m benchmarks.run --against COMMIT` checks the commit out beside this one and runs every job on both, "
        "in turn, each time in a process of its own with an empty cache. The goal of a cost is the most that new over "
        "old should be; the goal of `dense / ours` is how often our time should fit into that of the plain dense "
        "network (16 layers, 25 steps of 8). A goal is met or missed where the whole interval is on one side of it.",
    ),
    Section(
        "Deferred against dense",
        ("dense",),
        "Initialisation included, float32. The opponent is `benchmarks/dense.py`: fused `addmm` forward and "
        "backward, updates of the rank of the batch in place, no autograd and no gradient matrices, so faster than "
        '`nfd.ResNet(weights="dense")`. The share is that of the bound of all queries (below) in the whole of the '
        "time, which also draws every Gaussian and trains the dense ends.",
    ),
    Section(
        "Structured weights",
        ("structured", "structured-large", "structured-growth"),
        "The same against the same opponent. Then networks whose dense weights would not fit, each in a process of "
        "its own, the smaller beside deferred weights; and time as samples double, while all of them are new "
        "directions.",
        "A step costs four transforms a layer, O(n log n), and nine passes over a vector of the width for every "
        "direction of the update: six thin products and three of the optimizer. At batches of 8 these products run "
        "at a third of the rate of large ones, and outweigh the transforms from some 50 directions on: they, and not "
        "the transforms, bound the gain at small widths. 16 rows take 1.3 times as long as 8, so that what passes "
        "over one frame at one time should do so together. Rows pass through a product in "
        "blocks of 2^18 numbers, which stay in the cache: that and gathers in place of scatters made "
        "a product of 256 rows two to three times faster on one core.",
    ),
    Section(
        "One query against its bound",
        ("query",),
        "A query passes six times over the factors, four without response; the second passes over `Q` and `P` "
        "follow the first. Its bound is the larger of these bytes at the measured bandwidth and of their "
        "operations at the measured rate of large matrix products.",
        "What keeps it from the bound: products of few rows with a factor run below the rate of large products and "
        "below the bandwidth at once, since the BLAS behind PyTorch is made for neither; and at small widths the "
        "tens of small operations of a query (see the hot paths). What was tried:",
        "tried on queries",
    ),
    Section(
        "Large networks",
        ("large",),
        "Each in a process of its own. The factors are four vectors of the width per layer and sample.",
    ),
    Section(
        "On a GPU, or without one",
        ("wide",),
        "One wide network with deferred weights (`python -m benchmarks.gpu --device cuda`), on the device that the "
        "rows name. The bound is what must be read and written at least, at the bandwidth measured there.",
    ),
    Section(
        "The limit",
        ("reference",),
        "Reference problem A (online steps of one sample, tanh, mean squared error) by `nfd.predict`, against "
        "dense networks with autograd and `torch.optim.SGD` of an eighth of the width, as many as the same "
        "standard error needs (variances fall as one over the width; that their bias is eight times as large is "
        "not counted).",
    ),
    Section(
        "Growth",
        ("growth",),
        "Time at a larger size over that at a smaller one, deferred weights. Linear in width and depth; quadratic "
        "in the samples seen once the products outweigh the fixed cost of a query.",
    ),
    Section(
        "Networks trained together",
        ("stacks",),
        "One step of nfd.ResNet (one-layer blocks, ReLU, SGD) for many networks at once (`nfd.nets.stack.Stack`, "
        "as sweeps use it) against a loop over them with `torch.optim.SGD`, both on one thread; and the share of "
        "the time that the three matrix products per layer take at the rate of `torch.bmm` of the same shapes.",
        "What bounds the small ones is the number of operations, at small batches also the memory traffic of the "
        "weights. Three things help the large ones: weights step during backward, while their gradients are in the "
        "cache; phi'(h) is taken from phi(h), so that the stream is added to in place (ReLU); and no buffer is "
        "allocated where one can be written in place, since a page fault costs more here than the arithmetic.",
    ),
    Section(
        "Anyone's networks trained together",
        ("modules",),
        "One step of several networks of one size as one (`torch.func`), the optimizer's part included, against a loop "
        "over them as sweeps train them alone, by the processor's time on one thread; four residual blocks of width n, "
        "2 n, n, in the Transformer each after causal attention with heads of 16.",
        "Calls of operations are saved, and no arithmetic. So what bounds the gain is the time that a network alone "
        "spends in products and in the memory of its weights: where a product has few operations "
        "most of the time goes into calls, and the gain grows with the number of networks; where it has millions there "
        "is none. A Transformer of width 32 on 256 tokens a step is there already: operations on all networks by "
        "hand, without `vmap`, are no more than 1.4 times as fast as a loop. Sweeps train up to 16 networks together "
        "where a product has at most a million operations, five under Muon, counted for the first batch, and alone "
        "beyond (`nfd.training.together`). Muon gains most, as its Newton-Schulz steps are 15 small products for every "
        "matrix.",
    ),
    Section(
        "Kernels",
        ("grams", "horizons"),
        "Gram matrices of inputs in R^64 of different norms, each in a fresh process, table included, T = 1; "
        "memory is the peak beyond the inputs over the result. The bound is writing the result, and the products "
        "of the inputs: what is above it evaluates the table, a recurrence per entry and coefficient. Long "
        "horizons need larger tables where norms differ and phi is not homogeneous, once per horizon; what a table "
        "cannot resolve is warned of.",
    ),
    Section(
        "Kernels against others",
        ("recursion", "neural-tangents"),
        f"Infinite depth here, table included, relu, against {DEPTH} layers there, on digits, 4,000 inputs on Gaussian "
        "ones of different norms: the arc-cosine recursion on whole Gram matrices in plain PyTorch (float64), and "
        "neural-tangents (JAX, CPU, float64, compilation not counted; `make bench-neural-tangents` makes its "
        "environment). Errors are relative to `sqrt(K(x, x) K(xbar, xbar))`; ours is the bound that "
        "`return_error=True` gives.",
    ),
    Section(
        "Definition 1 by particles",
        ("variance", "particles", "samples"),
        "Variance of the outputs by plain sampling over that by others at the same number of particles, digits of "
        "problem A continued; above 1 is better. Then `solve_nfd` against deferred networks with independent "
        "feedback, at one standard error; then as many samples as particles are made for, against the memory "
        "traffic of their histories.",
        "Antithetic pairs win while the network is near its start and lose once it is trained at the higher rate; "
        "Sobol' points for u and v are the default.",
    ),
    Section(
        "Kernel regression",
        ("kernel-fit",),
        "`nfd kernel fit --data digits --kind ntk`, relu: answers with 95 % intervals, not times; and the same on "
        "CIFAR-10, measured once.",
        earlier="kernel regression",
    ),
    Section(
        "Plans and checks",
        ("plan", "check"),
        "A plan of a Transformer that finds its roles by measurement, against one forward and backward pass of the "
        "model itself on the same sample. A check of the paper's two-layer network, against training the same "
        "networks and measuring nothing.",
    ),
    Section(
        "Data",
        ("data",),
        "Random pixels in the layouts that are read, against the plainest reading: NumPy from the files, `tarfile` "
        "and the checksum one after the other, a loop over Pillow. Measured once, larger things:",
        earlier="large data",
    ),
    Section(
        "The study",
        ("study", "page"),
        "`nfd study` at its defaults, and a small one against the matrix products that it consists of, counted by "
        "operation, at the measured rate. Then the page with its charts as PDF and PNG, against the renderer "
        "alone.",
    ),
    Section(
        "Sweeps",
        ("sweep",),
        "Many short runs, against training the same groups in a loop on one thread: what is left are names, "
        "hand-outs and commits, and with processes the start of the workers, once.",
    ),
    Section(
        "What bounds the hot paths",
        ("paths",),
        "Where the commands spend their time (`python -m benchmarks.profile` also lists their functions). All "
        "operations of PyTorch are recorded; products alone, and the others alone, are run again one after the "
        "other, and what is left of the whole is Python, autograd and NumPy. It is negative where the others take "
        "longer alone than in the whole, whose buffers are still in the cache. Page faults are counted, at the "
        "price of one measured in the same run; they are part of the other columns.",
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
        "Here you see how fast the library is beside dense networks and other libraries, and how to measure it on your "
        "machine.",
        "*Made by `python -m benchmarks.page` from benchmarks/baseline.json, a result of `make bench`; no number "
        "is written by hand.*",
        f"Measured on {about['date'][:10]} on a shared machine: {about['processor']}, {about['cores']} cores, "
        f"{about['memory, GiB']} GiB, {about['threads']} threads; PyTorch {about['torch']}, Python "
        f"{about['python']}. It read {about['read, GB/s']} GB/s from memory and multiplied large matrices at "
        f"{about['float32 products, GFLOP/s']} GFLOP/s in float32 and {about['float64 products, GFLOP/s']} in "
        "float64.",
        "Read the ratios: seconds are medians over rounds of one machine on one day. A ratio compares two "
        "measurements made one after the other, and again in every round; in brackets are 95 % intervals over "
        "rounds (Student's t on logarithms). Shares of the bound compare with bandwidth and product rate measured "
        "at the same moment.",
        "`make bench-check` measures again and compares ratios, not seconds: it fails where one is worse beyond "
        f"the scatter of both runs (5 % for all together) and by more than {cell('', LEAST)} times. "
        "`python -m benchmarks.run --against COMMIT` runs an earlier commit and this one in turn.",
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
