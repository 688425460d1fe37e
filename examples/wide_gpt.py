"""A GPT of any width under Muon, its wide matrices in structured layers: bytes of Python's own
library, on a laptop.

python examples/wide_gpt.py                                                # width 256, seconds
python examples/wide_gpt.py --width 16384 --layers 4 --tokens 15000  # 13 billion, not stored
python examples/wide_gpt.py --dense                                   # the same model, stored
python examples/wide_gpt.py --out out/wide                                 # keep the losses
"""

from __future__ import annotations

import argparse
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import nfd
from nfd.core.files import prepare_directory, write_json
from nfd.core.machine import peak_memory

BATCH = 8
LENGTH = 32
HEAD = 64
BYTES = 256


class Block(nn.Module):
    """Pre-norm attention, with heads of one size, and an MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        x = self.norm1(h)
        q, k, v = (
            m(x).unflatten(-1, (-1, HEAD)).transpose(1, 2)
            for m in (self.query, self.key, self.value)
        )
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.out(attended.transpose(1, 2).flatten(2))
        return h + self.down(nn.functional.gelu(self.up(self.norm2(h))))


class GPT(nn.Module):
    """Bytes to the logits of the next byte; without buffers, so that it can be made on the meta
    device.
    """

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(BYTES, width)
        self.positions = nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, BYTES, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.tokens(ids) + self.positions.weight)))


def batches(
    steps: int, files: tuple[str, ...] = ("typing.py", "inspect.py"), seed: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Bytes of modules of Python's own library, and the bytes that follow, [batch, length] each."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = torch.tensor(list(b"".join((folder / name).read_bytes() for name in files)))
    stream = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(len(text) - LENGTH, (BATCH, 1), generator=stream)
        rows = text[starts + torch.arange(LENGTH + 1)]
        yield rows[:, :-1], rows[:, 1:]


def held_out(count: int) -> list[tuple[Tensor, Tensor]]:
    """Batches of a file that no network is trained on."""
    return list(batches(count, ("argparse.py",), seed=1))


def main(
    width: int,
    layers: int,
    tokens: int,
    dense: bool,
    lr: float,
    adamw_lr: float,
    seed: int = 0,
    out: str | None = None,
) -> list[float]:
    """Train; returns the loss before every step, and keeps it in the folder ``out``."""
    torch.manual_seed(seed)
    with torch.device("cpu" if dense else "meta"):
        model: nn.Module = GPT(width, layers)
    plan = nfd.plan(
        model,
        rule="complete-p",
        make_model=GPT,
        base=(64, 2),
        optimizer="muon",
        sample=torch.zeros(2, LENGTH, dtype=torch.long),
    )
    model = plan.apply_(model, seed) if dense else nfd.defer(model, plan, resolution=0.2, seed=seed)
    # in the same precision for both
    optimizer = plan.make_optimizer(model, lr=lr, adamw_lr=adamw_lr, make=nfd.Muon)
    run = {
        "weights": "dense" if dense else "structured",
        "width": width,
        "layers": layers,
        "tokens": tokens,
        "seed": seed,
        "lr": lr,
        "adamw_lr": adamw_lr,
    }
    losses = list[float]()
    began = time.perf_counter()
    for step, (ids, targets) in enumerate(batches(max(1, tokens // (BATCH * LENGTH)))):
        # before the pass, so that gradients and vectors are not held together
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        ranks = [layer.rank for layer in model.modules() if isinstance(layer, nfd.StructuredLinear)]
        rank = max(ranks, default=width)
        seconds = time.perf_counter() - began
        gib = peak_memory() / 2**30
        told = (
            f"step {step + 1:>3}: loss {losses[-1]:.4f}, largest rank {rank}, {seconds:.1f} s, "
            f"{gib:.2f} GiB"
        )
        print(told, flush=True)
        if out is not None:
            name = f"{run['weights']}-{width}-{layers}-{tokens}-{seed}.json"
            row = run | {
                "steps": step + 1,
                "seconds": seconds,
                "gib": gib,
                "rank": rank,
                "losses": losses,
            }
            write_json(prepare_directory(out) / name, row)
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=256, help=f"a multiple of {HEAD}")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=2048, help="of training, in steps of 256")
    parser.add_argument(
        "--lr", type=float, default=0.02, help="of Muon, at width 64 and two layers"
    )
    parser.add_argument("--adamw-lr", type=float, default=3e-3)
    parser.add_argument("--dense", action="store_true", help="stored weights")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the network; the batches are the same"
    )
    parser.add_argument(
        "--out", help="a folder: a JSON with losses, seconds and peak memory is written there"
    )
    main(**vars(parser.parse_args()))
