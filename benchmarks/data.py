"""Reading CIFAR-10 and folders of images, against the plainest way."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import md5
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks.measure import Round, Row, seconds
from benchmarks.ratio import Ratio
from nfd.data.cifar10 import ARCHIVE, FOLDER, TEST, TRAIN
from nfd.data.load import load


def reading(turn: Round) -> list[Row]:
    """Random pixels in the layouts that are read, against reading them in the plainest way."""
    with tempfile.TemporaryDirectory() as name, _environment("NFD_CACHE", f"{name}/cache"):
        folder = Path(name)
        records, images = (1000, 500) if turn.quick else (10_000, 6000)
        return [*_cifar10(folder, records), *_images(folder, images)]


def _cifar10(folder: Path, records: int) -> list[Row]:
    stream = np.random.default_rng(0)
    (folder / FOLDER).mkdir()
    for name in (*TRAIN, TEST):
        content = stream.integers(0, 256, (records, 3073), dtype=np.uint8)
        content[:, 0] %= 10
        content.tofile(folder / FOLDER / name)

    def plain() -> list[Tensor]:
        found = [np.fromfile(folder / FOLDER / name, np.uint8).reshape(-1, 3073) for name in (*TRAIN, TEST)]
        return [torch.from_numpy(np.ascontiguousarray(x[:, 1:])) for x in found]

    unpacked = _against("CIFAR-10, unpacked", 6 * records, lambda: load("cifar10", folder / FOLDER), plain)
    packed = folder / "packed" / ARCHIVE
    packed.parent.mkdir()
    with tarfile.open(packed, "w:gz", compresslevel=1) as tar:
        tar.add(folder / FOLDER, FOLDER)

    def extracted() -> None:
        content = packed.read_bytes()
        md5(content, usedforsecurity=False).hexdigest()
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            for member in tar:
                if file := tar.extractfile(member):
                    file.read()

    archive = _against("CIFAR-10, archive and checksum", 6 * records, lambda: load("cifar10", packed.parent), extracted)
    return [unpacked, archive]


def _images(folder: Path, files: int) -> list[Row]:
    stream = np.random.default_rng(0)
    root = folder / "images"
    for index in range(files):
        place = root / f"class {index % 10}" / f"{index}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(stream.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(place)

    def plain() -> list[Any]:
        return [np.asarray(Image.open(path).convert("RGB")) for path in sorted(root.rglob("*.jpg"))]

    first = _against("JPEG files, first time", files, lambda: load("images", root), plain)
    return [first, _against("JPEG files, later", files, lambda: load("images", root), plain)]


def _against(what: str, images: int, ours: Callable[[], object], plain: Callable[[], object]) -> Row:
    took, theirs = seconds(ours), seconds(plain)
    return {
        "data": what,
        "images": images,
        "ours, s": took,
        "plainest, s": theirs,
        "plainest / ours": Ratio.of(theirs / took),
    }


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """A variable of the environment for the length of a block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name) if before is None else os.environ.update({name: before})
