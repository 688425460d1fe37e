"""A contact sheet: some images of every class, as one picture."""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from nfd.data.dataset import Dataset

_COLUMNS = 12
_SMALLEST = 48  # pixels of a shown image; smaller ones are enlarged by a whole factor
_LARGEST = 160  # larger ones are shrunk
_LABEL = 132
_GAP = 4
_MOST_CLASSES = 40


def contact_sheet(dataset: Dataset) -> bytes:
    """PNG with a row per class (the first forty): its name and its first twelve training images."""
    _, height, width = dataset.shape
    factor = max(1, -(-_SMALLEST // max(height, width)))
    shrink = min(1.0, _LARGEST / max(height, width))
    size = max(1, round(factor * shrink * width)), max(1, round(factor * shrink * height))
    w, h = size[0] + _GAP, size[1] + _GAP
    classes = dataset.classes[:_MOST_CLASSES]
    sheet = Image.new("RGB", (_LABEL + _COLUMNS * w, len(classes) * h + _GAP), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    brightest = int(dataset.train.pixels.max()) or 1
    for row, name in enumerate(classes):
        top = row * h + _GAP
        draw.text((_GAP, top + h // 2), _shortened(name), fill="black", font=font, anchor="lm")
        chosen = (dataset.labels == row).nonzero().flatten()[:_COLUMNS]
        for column, pixels in enumerate(dataset.train.pixels[chosen]):
            sheet.paste(_tile(pixels, brightest, size), (_LABEL + column * w, top))
    out = io.BytesIO()
    sheet.save(out, "PNG")
    return out.getvalue()


def _tile(pixels: torch.Tensor, brightest: int, size: tuple[int, int]) -> Image.Image:
    scaled = (pixels.float() * (255 / brightest)).byte().permute(1, 2, 0).numpy()
    image = Image.fromarray(np.ascontiguousarray(scaled[:, :, 0] if scaled.shape[2] == 1 else scaled))
    larger = size[0] >= image.width
    return image.resize(size, Image.Resampling.NEAREST if larger else Image.Resampling.BOX).convert("RGB")


def _shortened(name: str) -> str:
    return name if len(name) <= 18 else name[:17] + "…"
