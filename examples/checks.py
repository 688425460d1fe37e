"""Checks of real networks, as a page: what scales, what does not, and what each rule does about it.

Run: python examples/checks.py [--size full] [--out docs]
Writes checks.md. ``--size full`` takes a few minutes on two cores; ``small`` shows the same in seconds.
"""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import nfd
from nfd.data import digits

Batches = list[tuple[Any, Tensor]]

PAGE = """# Checks

Compare your own check with these eight checks of networks whose scaling is known.
Words and symbols are in the [glossary](glossary.md).

*Made by `python examples/checks.py`. Every table is the output of `print(nfd.check(...))`. Exponents are log-log slopes
with 95 % intervals over seeds and sizes; meters are defined in `nfd.meters.updates`. [How often a check is
wrong](verdicts.md) was measured.*

{sections}
"""

CASES = {
    "The paper's two-layer network, uniform rates": (
        "The updates of inner layers fall as L^-1/2 (Fig. 5, row 1 of the paper). That of the function stays constant."
    ),
    "The same, Eq. 8": (
        "Each inner update is now constant in depth, as the paper shows. But together they change the function by an "
        "amount that grows as sqrt(L)."
    ),
    "The same, multiplier 1/L (complete-p)": "Both are constant in depth.",
    "The two-layer network under Adam, uniform rates": (
        "Inner and outer rates both scale as L^-1/2. The inner updates collapse as under SGD."
    ),
    "The two-layer network under Adam, inner rate L^0": "The same trade-off as Eq. 8 under SGD.",
    "GPT-2 under AdamW, mup": (
        "With depth the updates grow, since every block adds its own update to the stream. With width they are nearly "
        "constant. One exception, function_update_inner, falls to a limit. The data are the source text of Python's "
        "json package, as bytes."
    ),
    "GPT-2 under AdamW, complete-p": "With the same text and rate, no meter collapses or grows with depth.",
    "A broken parameterisation: standard rates on residual blocks of plain linear layers": (
        "PyTorch's own initialisation and one rate for all tensors. Updates grow with width and with depth."
    ),
}


def gpt2(width: int, depth: int) -> nn.Module:
    """A GPT-2 over bytes with heads of 16 and no dropout."""
    import transformers

    transformers.logging.set_verbosity_error()
    config = transformers.GPT2Config(
        n_embd=width, n_layer=depth, n_head=width // 16, n_positions=64, vocab_size=256, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


class Plain(nn.Module):
    """``h + W_2 relu(W_1 h)``, as a user would write it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        """The stream with this block's branch added."""
        return h + self.down(torch.relu(self.up(h)))


def plain(width: int, depth: int) -> nn.Module:
    """Digits to logits through residual blocks."""
    return nn.Sequential(
        nn.Linear(64, width), nn.Sequential(*[Plain(width) for _ in range(depth)]), nn.Linear(width, 10)
    )


def source_text(steps: int, batch: int, length: int) -> Batches:
    """Bytes of the standard library's source, and the bytes after them."""
    text = b"".join(path.read_bytes() for path in sorted(Path(inspect.getfile(json)).parent.glob("*.py")))
    ids = torch.tensor(list(text))
    starts = torch.randint(0, len(ids) - length - 1, (steps, batch), generator=torch.Generator().manual_seed(0))
    windows = ids[starts[:, :, None] + torch.arange(length + 1)]
    return [(w[:, :-1], w[:, 1:]) for w in windows]


def section(title: str, found: nfd.Check) -> str:
    """A heading, what to see, and the report."""
    return f"## {title}\n\n{CASES[title]}\n\n```text\n{found}\n```"


def main() -> None:
    """Run every check and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=("small", "full"), default="full")
    parser.add_argument("--out", type=Path, default=Path("docs"))
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    full = a.size == "full"
    depths, steps = ([4, 8, 16, 32, 64], 10) if full else ([2, 4], 2)
    x, y = digits().batches(64, steps, 0)
    images = list(zip(x, y, strict=True))
    text = source_text(10 if full else 2, 8, 32)
    gpt = ([32, 64, 128, 256], [2, 4, 8, 16]) if full else ([32, 64], [2, 4])
    small = ([64, 128, 256, 512], [2, 4, 8]) if full else ([16, 32], [2, 4])

    def on_digits(rule: str, optimizer: str, lr: float) -> nfd.Check:
        family = nfd.resnets(64, 10, block="two-layer", rule=rule, optimizer=optimizer)
        return nfd.check(family, images, [128 if full else 32], depths, lr)

    def on_text(rule: str) -> nfd.Check:
        return nfd.check(gpt2, text, *gpt, lr=3e-3, rule=rule, optimizer="adamw", seeds=2)

    runs: Sequence[Callable[[], nfd.Check]] = (
        lambda: on_digits("depth-mup", "sgd", 0.1),
        lambda: on_digits("depth-mup-inner", "sgd", 0.1),
        lambda: on_digits("complete-p", "sgd", 0.1),
        lambda: on_digits("depth-mup", "adam", 0.03),
        lambda: on_digits("depth-mup-inner", "adam", 0.03),
        lambda: on_text("mup"),
        lambda: on_text("complete-p"),
        lambda: nfd.check(plain, images[:3], *small, lr=0.1, rule="standard", optimizer="sgd"),
    )
    sections = []
    for title, run in zip(CASES, runs, strict=True):
        sections.append(section(title, run()))
        print(sections[-1], flush=True)
    (a.out / "checks.md").write_text(PAGE.format(sections="\n\n".join(sections)), encoding="utf-8")


if __name__ == "__main__":
    main()
