"""Kernels beside feature learning over many passes, from the stored numbers of version 0.2.0."""

from __future__ import annotations

from collections.abc import Sequence

from makers.pages.words import LEVEL, NUMBERS, paragraph, read_csv, sentence, where
from nfd.core.tables import Row

STORE = NUMBERS / "epochs-limits.csv"


def read() -> list[Row]:
    """The stored rows."""
    return read_csv(STORE)


def texts(rows: Sequence[Row]) -> dict[str, str]:
    """The text of docs/kernels-in-training.md."""
    wide = where(rows, name="infinite width, with the error of the resolution")
    nngp = where(rows, name="NNGP, depth 4")
    ntk = where(rows, name="NTK, depth 4")
    narrow = where(rows, name="width 64 over infinite width")
    text = paragraph(
        "Ten passes over 2,000 images of CIFAR-10 do not show a gain by features that turn: the "
        f"infinitely wide network errs on {sentence(wide, '.1f', ' %', LEVEL)} of the test images, "
        f"regression with the NNGP of the same depth on {sentence(nngp, '.1f', ' %')}, with the NTK "
        f"on {sentence(ntk, '.1f', ' %')}. Width 64 errs on {sentence(narrow, '.1f', ' points')} more."
    )
    return {"epochs": text}
