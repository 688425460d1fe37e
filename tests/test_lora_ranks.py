"""The later look of LoRA's ranks has the seeds that it promised."""

from __future__ import annotations

from studies.lora_ranks import later_cells, read


def test_the_later_look_holds_its_seeds() -> None:
    stored = read()["later"]
    fewest = min(len(losses) for row in stored for losses in row["losses"].values())
    assert fewest >= min(later_cells().values())
