"""Checks of real networks, as a page: what scales, what does not, and what each rule does about it.

Run: python -m makers.checks [--size full] [--out docs]
Writes checks.md. ``--size full`` takes a few minutes on two cores; ``small`` shows the same in
seconds.
"""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import nfd
from nfd.core.names import RuleName
from nfd.data import digits

Batches = list[tuple[Any, Tensor]]

PAGE = """# Eight checks

Eight checks of networks whose scaling is known, to compare yours with.

Entries are exponents with 95 % intervals over seeds and sizes. Capitals are faults and limits; the rest is STABLE, or
UNCERTAIN (?) ([how often a check is wrong](verdicts.md)). The paper's two-layer networks, on digits, have depths 4 to
64, GPT-2, on Python source, 2 to 16, and plain blocks 2 to 8 (`python -m makers.checks`).

## Against depth

{depth}

Under uniform rates (`depth-mup`) inner layers learn less and less, under Eq. 8 their joint effect on the function grows,
and a multiplier of 1/L (`complete-p`) keeps both ([why](mathematics/inner-layers.md)).

## Against width

{width}

Under a rule for width the updates of layers stay as they are. The effect of inner layers on the function falls to a
limit, as in small sound networks: LIMIT is not a fault.

What to do about a verdict: [my check fails](howto/check-fails.md). Your own model: [check my
Transformer](howto/transformer.md).
"""

METERS = "inner_update", "activation_update", "function_update_inner"


def gpt2(width: int, depth: int) -> nn.Module:
    """A GPT-2 over bytes with heads of 16 and no dropout."""
    import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    config = transformers.GPT2Config(
        n_embd=width,
        n_layer=depth,
        n_head=width // 16,
        n_positions=64,
        vocab_size=256,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return transformers.GPT2LMHeadModel(config)


class Plain(nn.Module):
    """``h + W_2 relu(W_1 h)``, as a user would write it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        """The stream with this block's branch added."""
        out: Tensor = h + self.down(torch.relu(self.up(h)))
        return out


def plain(width: int, depth: int) -> nn.Module:
    """Digits to logits through residual blocks."""
    return nn.Sequential(
        nn.Linear(64, width),
        nn.Sequential(*[Plain(width) for _ in range(depth)]),
        nn.Linear(width, 10),
    )


def source_text(steps: int, batch: int, length: int) -> Batches:
    """Bytes of the standard library's source, and the bytes after them."""
    text = b"".join(
        path.read_bytes() for path in sorted(Path(inspect.getfile(json)).parent.glob("*.py"))
    )
    ids = torch.tensor(list(text))
    starts = torch.randint(
        0, len(ids) - length - 1, (steps, batch), generator=torch.Generator().manual_seed(0)
    )
    windows = ids[starts[:, :, None] + torch.arange(length + 1)]
    return [(w[:, :-1], w[:, 1:]) for w in windows]


def cells(check: nfd.Check, axis: str) -> list[str]:
    """The exponents of a check against an axis, with their verdicts unless they are STABLE."""
    rows = {row["meter"]: row for row in check.table if row["axis"] == axis}
    words = {"STABLE": "", "UNCERTAIN": "?"}
    texts = []
    for meter in METERS:
        row = rows[meter]
        word = words.get(row["verdict"], row["verdict"])
        texts.append(f"{row['value']:.2f} [{row['low']:.2f}, {row['high']:.2f}] {word}".rstrip())
    return texts


def grid(checks: Mapping[str, nfd.Check], axis: str) -> str:
    """A table in Markdown: a row for each of these checks."""
    head = ["network, rule, optimizer", *(f"`{meter}`" for meter in METERS)]
    rows = [
        head,
        ["---"] * len(head),
        *([title, *cells(check, axis)] for title, check in checks.items()),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


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

    def on_digits(rule: RuleName, optimizer: str, lr: float) -> nfd.Check:
        family = nfd.resnets(64, 10, block="two-layer", rule=rule, optimizer=optimizer)
        return nfd.check(family, images, [128 if full else 32], depths, lr, seeds=3, remedy=False)

    def on_text(rule: RuleName) -> nfd.Check:
        return nfd.check(
            gpt2, text, *gpt, lr=3e-3, rule=rule, optimizer="adamw", seeds=2, remedy=False
        )

    runs: Mapping[str, Callable[[], nfd.Check]] = {
        "two-layer, `depth-mup`, SGD": lambda: on_digits("depth-mup", "sgd", 0.1),
        "two-layer, Eq. 8, SGD": lambda: on_digits("depth-mup-inner", "sgd", 0.1),
        "two-layer, `complete-p`, SGD": lambda: on_digits("complete-p", "sgd", 0.1),
        "two-layer, `depth-mup`, Adam": lambda: on_digits("depth-mup", "adam", 0.03),
        "two-layer, Eq. 8, Adam": lambda: on_digits("depth-mup-inner", "adam", 0.03),
        "GPT-2, `mup`, AdamW": lambda: on_text("mup"),
        "GPT-2, `complete-p`, AdamW": lambda: on_text("complete-p"),
        "plain blocks, `standard`, SGD": lambda: nfd.check(
            plain,
            images[:3],
            *small,
            lr=0.1,
            rule="standard",
            optimizer="sgd",
            seeds=3,
            remedy=False,
        ),
    }
    checks = dict[str, nfd.Check]()
    for title, run in runs.items():
        checks[title] = run()
        print(f"{title}\n{checks[title]}\n", flush=True)
    wide = dict[str, nfd.Check]()
    for title, check in checks.items():
        widths = {row["width"] for row in check.rows}
        if len(widths) > 1:
            wide[title] = check
    page = PAGE.format(depth=grid(checks, "depth"), width=grid(wide, "width"))
    (a.out / "checks.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
