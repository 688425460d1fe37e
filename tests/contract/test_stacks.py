"""Models of several stacks, such as an encoder and a decoder: each is measured, judged and watched
by itself.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tests.contract.common import batches
from tests.models import gemma2, train
from torch import Tensor, nn

import nfd

BATCHES = batches(6)
SAMPLE = BATCHES[0][0]


class Block(nn.Module):
    """Pre-norm; ``kept`` below 1 lets the stream, and its gradient, fade from block to block, which
    no norm repairs.
    """

    def __init__(self, width: int, kept: float = 1.0, reads: bool = False) -> None:
        super().__init__()
        self.read = nn.Linear(width, width) if reads else None
        self.norm = nn.LayerNorm(width) if kept == 1 else nn.Identity()
        self.kept = kept
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width)

    def forward(self, h: Tensor, memory: Tensor | None = None) -> Tensor:
        z = (
            self.up(self.norm(h))
            if self.read is None
            else self.up(self.norm(h)) + self.read(memory)
        )
        out: Tensor = h + self.down(torch.relu(z))
        return out if self.kept == 1 else self.kept * out


class EncoderDecoder(nn.Module):
    """Every block of the decoder reads what the encoder ends with."""

    def __init__(self, width: int, depth: int, kept: float = 1.0) -> None:
        super().__init__()
        self.embed = nn.Linear(64, width)
        self.start = nn.Linear(64, width)
        self.encoder = nn.ModuleList(Block(width, kept) for _ in range(depth))
        self.decoder = nn.ModuleList(Block(width, reads=True) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.encoder:
            h = block(h)
        g = self.start(x)
        memory = self.norms[0](h)
        for block in self.decoder:
            g = block(g, memory)
        return self.head(self.norms[1](g))


def fading(width: int, depth: int) -> nn.Module:
    return EncoderDecoder(width, depth, kept=0.3)


def verdicts(check: nfd.Check) -> dict[tuple[str, str, str], str]:
    return {
        (row["meter"], row.get("stack", ""), row["axis"]): row["verdict"] for row in check.table
    }


# ---- a check


def test_every_stack_has_its_own_verdicts() -> None:
    settings: dict[str, Any] = {"rule": "mup", "optimizer": "adamw", "lr": 1e-3, "seeds": 3}
    sound, broken = (
        nfd.check(make, BATCHES[:2], [32], [2, 4, 8], **settings, remedy=False)
        for make in (EncoderDecoder, fading)
    )
    of_stacks = {(meter, stack) for meter, stack, _ in verdicts(sound) if stack}
    of_each = [{m for m, name in of_stacks if name == stack} for stack in ("encoder", "decoder")]
    assert of_each[0] == of_each[1]
    assert {"activation", "inner_update", "stream_update", "gradient"} <= of_each[0]
    # What only a whole network has.
    assert not of_each[0] & {"function_update", "function_update_inner", "loss"}
    assert {"function_update", "loss"} <= {m for m, stack, _ in verdicts(sound) if not stack}
    for check, encoder in ((sound, False), (broken, True)):
        slopes = {row["stack"]: row["slope"] for row in check.table if row["meter"] == "gradient"}
        assert (slopes["encoder"] < -1) == encoder
        assert slopes["decoder"] > -0.25
        told = [
            failure.event for failure in check.failures if failure.event.kind == "gradients-vanish"
        ]
        assert [event.layer for event in told] == (["encoder"] if encoder else [])
    assert "encoder" in str(broken)
    fades = [run["stacks"]["encoder"]["gradient"] for run in broken.runs if run["depth"] == 8]
    assert max(fades) < 0.01 < min(run["stacks"]["decoder"]["gradient"] for run in broken.runs)


def test_a_model_of_one_stack_has_rows_without_a_stack() -> None:
    class Decoder(EncoderDecoder):
        def __init__(self, width: int, depth: int) -> None:
            super().__init__(width, depth)
            self.encoder = nn.ModuleList()

    check = nfd.check(
        Decoder, BATCHES[:1], [16, 32], [2], rule="mup", optimizer="adamw", lr=1e-3, seeds=2
    )
    assert not any("stack" in row for row in check.table)
    assert "gradient" in check.runs[0]


def whisper(width: int, depth: int) -> Any:
    transformers = pytest.importorskip("transformers")
    heads = {
        f"{part}_{name}": value
        for part in ("encoder", "decoder")
        for name, value in (("layers", depth), ("attention_heads", 2), ("ffn_dim", 2 * width))
    }
    return transformers.WhisperForConditionalGeneration(
        transformers.WhisperConfig(
            vocab_size=32,
            num_mel_bins=8,
            d_model=width,
            max_source_positions=8,
            max_target_positions=8,
            dropout=0.0,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            suppress_tokens=None,
            begin_suppress_tokens=None,
            **heads,
        )
    )


@pytest.mark.filterwarnings("ignore")  # of transformers' own
def test_no_gradient_vanishes_in_whisper() -> None:
    torch.manual_seed(0)
    data = [{"input_features": torch.randn(8, 8, 16), "labels": torch.randint(3, 32, (8, 8))}]
    check = nfd.check(
        whisper, data, [32], [2, 4], rule="complete-p", optimizer="adamw", lr=1e-3, seeds=2
    )
    found = verdicts(check)
    for stack in ("model.encoder.layers", "model.decoder.layers"):
        assert found["gradient", stack, "depth"] not in ("COLLAPSES", "GROWS")
        assert all(0.8 < run["stacks"][stack]["gradient"] < 1.25 for run in check.runs)
    assert not check.failures


# ---- gradients where the stream is zero


@pytest.mark.filterwarnings("ignore")  # of transformers' own
@pytest.mark.parametrize("padded", [True, False])
def test_an_explosion_at_a_padding_id_is_named_as_that(padded: bool) -> None:
    torch.manual_seed(0)
    ids = torch.randint(1, 32, (8, 8))
    ids[0, :2] = 0 if padded else 1
    data = [{"input_ids": ids, "labels": ids}]
    check = nfd.check(
        gemma2, data, [32], [2, 4, 8], rule="complete-p", optimizer="adamw", lr=1e-3, seeds=2
    )
    kinds = [failure.event.kind for failure in check.failures]
    assert kinds == (["gradients-explode-at-zero"] if padded else [])
    assert ("padding" in " ".join(check.answer.sentences)) == padded
    # of all other positions
    assert verdicts(check)["gradient", "", "depth"] not in ("GROWS", "COLLAPSES")
    assert max(run["gradient"] for run in check.runs) < 100


class Exploding(nn.Module):
    """RMS norms without a skip, whose branches multiply gradients by 20 each."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(64, width, bias=False)
        self.head = nn.Linear(width, 10)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width, bias=False)) for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = 20 * block(h)
        return self.head(nn.functional.rms_norm(h, h.shape[-1:]))


def test_an_explosion_everywhere_is_not_blamed_on_padding() -> None:
    x, y = BATCHES[0]
    x = torch.cat([torch.zeros(2, 64), x[2:]])
    options: Any = {"rule": "mup", "optimizer": "adamw", "lr": 1e-4, "remedy": False}
    check = nfd.check(Exploding, [(x, y)], [32], [2, 6], seeds=2, **options)
    assert "gradients-explode" in [failure.event.kind for failure in check.failures]


# ---- a watch


def test_every_stack_is_watched_by_itself() -> None:
    check = nfd.check(
        EncoderDecoder,
        BATCHES,
        [16, 32],
        [2, 4],
        rule="complete-p",
        optimizer="adamw",
        lr=3e-3,
        seeds=3,
        at=(1, 3, 6),
    )
    alerts = {}
    for fault in ("", "decoder.5.read"):
        torch.manual_seed(0)
        model = EncoderDecoder(64, 8)
        plan = nfd.plan(
            model, rule="complete-p", make_model=EncoderDecoder, base=(16, 2), sample=SAMPLE
        )
        plan.apply_(model)
        if fault:
            model.get_submodule(fault).weight.requires_grad_(False)
        watch = nfd.Watch(model, plan, SAMPLE, every=1, expected=check)
        with (
            pytest.warns(RuntimeWarning, match=rf"\({fault}\); relative weight change is 0")
            if fault
            else nullcontext()
        ):
            train(model, plan.make_optimizer(model, lr=3e-3), BATCHES, watch)
        alerts[fault] = [(alert.layer, alert.cause) for alert in watch.alerts]
        known = {(row.meter, row.layer) for row in watch.rows}
        for stack in ("encoder", "decoder"):
            assert {
                (f"{meter} of {stack}", None) for meter in ("activation", "inner_update")
            } <= known
        assert all(watch.band(row) is not None for row in watch.rows if row.meter == "change")
    assert alerts == {"": [], "decoder.5.read": [("decoder.5.read", "frozen")]}


# ---- a plan


def test_stacks_that_grow_by_different_factors_have_depths_of_their_own() -> None:
    model = EncoderDecoder(16, 8)
    base = EncoderDecoder(16, 2)
    model.decoder = model.decoder[:4]
    plan = nfd.plan(model, base=base, rule="complete-p", optimizer="sgd", sample=SAMPLE)
    for stack, deeper in (("encoder", 4.0), ("decoder", 2.0)):
        tuned = (
            torch.cat([block.down.weight.detach().flatten() for block in getattr(base, stack)])
            .square()
            .mean()
            .sqrt()
        )
        assert plan.std(f"{stack}.1.down.weight") == pytest.approx(float(tuned) / deeper, rel=1e-5)
        assert plan.rate(f"{stack}.1.down.weight") == pytest.approx(1 / deeper)  # of a branch
        assert f"l = {deeper:g} in {stack}" in str(plan)
    assert nfd.Plan.from_dict(plan.to_dict()) == plan
    even = nfd.plan(
        EncoderDecoder(16, 8), base=base, rule="complete-p", optimizer="sgd", sample=SAMPLE
    )
    assert even.depth == 4.0
    assert "l = 4 times" in str(even)
