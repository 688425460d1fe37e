"""Folders of images, one folder per class, decoded once and kept as bytes in a cache.

``DIR/CLASS/*.jpg``, split by the seed, or ``DIR/train/CLASS/*.jpg`` beside ``DIR/test/CLASS/*.jpg``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from nfd.core import InputError, bar, expanded
from nfd.data import Dataset, Images
from nfd.paper.data.cache import Cache

_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_TEST_NAMES = ("test", "val", "valid", "validation")
_GREY, _COLOUR = ("1", "L"), ("CMYK", "LA", "P", "PA", "RGB", "RGBA", "YCbCr")
_MOST_PIXELS = 1 << 26  # of one image, before it is shrunk
_MOST_BYTES = 8 << 30  # of the whole decoded data set
_CHUNK = 64

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class _File:
    path: str
    part: str
    label: str
    stamp: str


def image_folders(
    directory: str | Path, *, size: int | None = None, seed: int = 0, progress: bool | None = False
) -> Dataset:
    """The images of ``directory`` as a data set.

    Args:
        directory: holds a folder per class, or ``train`` and ``test`` (or ``val``) that do.
        size: side in pixels that every image is cropped and scaled to; None when all have the same size.
        seed: decides the test part where there is no folder for it.
        progress: show a bar while decoding.

    Raises:
        ValueError: naming the folder or the files that are missing, mixed up or unreadable.
    """
    root = expanded(directory)
    files, notes = _listed(root.resolve())
    if size is not None and 3 * size * size * len(files) > _MOST_BYTES:
        raise _too_large(len(files), size, size)
    cache = Cache([PIL.__version__, str(size), *(f.stamp for f in files)])
    pixels = cache.load(len(files))
    if pixels is None:
        pixels = _decoded(files, size, progress)
        notes += cache.save(pixels)
    classes = sorted({f.label for f in files if f.part != "test"})
    labels = torch.tensor([classes.index(f.label) for f in files])
    whole = Images(pixels, labels)
    testing = torch.tensor([f.part == "test" for f in files])
    brought = bool(testing.any())
    train, test = (whole[~testing], whole[testing]) if brought else whole.split(seed)
    source, split_by = f"{root}: images in class folders", None if brought else seed
    return Dataset(root.resolve().name, tuple(classes), train, test, source, None, notes, split_by)


# ---- finding the files ---------------------------------------------------------------------------------------


def _listed(root: Path) -> tuple[list[_File], tuple[str, ...]]:
    if not root.is_dir():
        raise InputError(
            f"data_dir {str(root)!r} is not a directory. Give one that holds a folder of images per class."
        )
    parts = _parts(root)
    files: list[_File] = []
    others: list[str] = []
    for part, folder in parts.items():
        for path, label, stamp in _class_files(folder):
            if path.lower().endswith(_SUFFIXES):
                files.append(_File(path, part, label, stamp))
            else:
                others.append(os.path.relpath(path, root))
    if not files:
        names = ", ".join(sorted(p.name for p in root.iterdir())[:5]) or "nothing"
        raise InputError(f"data_dir {str(root)!r} holds no images in class folders; found {names}.")
    _check_classes(files, root)
    notes = (f"{len(others)} files that are no images were left out, such as {others[0]}.",) if others else ()
    return files, notes


def _parts(root: Path) -> dict[str, Path]:
    """Part to folder: ``{"train": ..., "test": ...}``, or ``{"": root}`` where the seed splits."""
    names = [e.name for e in _entries(root) if _is(e.is_dir)]
    training = [name for name in names if name.lower() == "train"]
    if not training or not any(_is(e.is_dir) for e in _entries(root / training[0])):
        return {"": root}
    tests = [name for name in names if name.lower() in _TEST_NAMES]
    rest = [name for name in names if name not in (training[0], *tests)]
    if len(tests) != 1 or rest:
        raise InputError(
            f"data_dir {str(root)!r} mixes layouts: beside 'train' there must be exactly one of "
            f"{', '.join(_TEST_NAMES)}, and nothing else; found {', '.join(names)}."
        )
    return {"train": root / training[0], "test": root / tests[0]}


def _class_files(folder: Path) -> Iterator[tuple[str, str, str]]:
    """(path, class, what changes when the file does), sorted; loose images beside class folders are an error."""
    entries = _entries(folder)
    loose = [e.name for e in entries if _is(e.is_file) and e.name.lower().endswith(_SUFFIXES)]
    if loose:
        raise InputError(
            f"{folder} holds {len(loose)} images that are in no class folder, such as {loose[0]}. Move each into the "
            "folder of its class."
        )
    for entry in entries:
        if _is(entry.is_dir):
            _check_link(entry, folder)
            for path, stamp in _walk(entry.path):
                yield path, entry.name, f"{entry.name} {stamp}"


def _check_link(entry: os.DirEntry[str], folder: Path) -> None:
    """A class may be a link to a folder elsewhere, but not to one that holds the classes or is one of them."""
    if entry.is_symlink():
        inside, target = folder.resolve(), Path(entry.path).resolve()
        if inside == target or inside in target.parents or target in inside.parents:
            raise InputError(
                f"{entry.path} is a link to {target}, which holds this folder or lies in it: its images would be of "
                "two classes. Remove the link."
            )


def _walk(folder: str) -> Iterator[tuple[str, str]]:
    for entry in _entries(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path)
        elif _is(entry.is_file):
            status = entry.stat()
            yield entry.path, f"{entry.path} {status.st_size} {status.st_mtime_ns}"
        else:  # links to folders or to nowhere are no images, whatever their names say
            yield entry.path + os.sep, ""


def _is(query: Callable[[], bool]) -> bool:
    """The answer of the file system; False of links that lead in a circle."""
    try:
        return query()
    except OSError:
        return False


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """What is in a folder and not hidden, by name."""
    with os.scandir(folder) as entries:
        return sorted((e for e in entries if not e.name.startswith(".")), key=lambda e: e.name)


def _check_classes(files: Sequence[_File], root: Path) -> None:
    known = {f.label for f in files if f.part != "test"}
    unknown = sorted({f.label for f in files if f.part == "test"} - known)
    if unknown:
        raise InputError(f"{root}: the test part has a class without training images: {', '.join(unknown)}.")
    if len(known) < 2:
        raise InputError(f"{root}: two classes are needed at least; found {', '.join(sorted(known)) or 'none'}.")
    if any(f.part == "train" for f in files) and not any(f.part == "test" for f in files):
        raise InputError(f"{root}: the test part holds no images.")


# ---- decoding ------------------------------------------------------------------------------------------------


def _decoded(files: Sequence[_File], size: int | None, progress: bool | None) -> torch.Tensor:
    """Pixels ``[N, channels, height, width]`` of every file."""
    first = _read(files[0].path, size)
    chunks = [files[k : k + _CHUNK] for k in range(0, len(files), _CHUNK)]
    colour = first.ndim == 3
    if len(files) * first.nbytes * (1 if colour else 3) > _MOST_BYTES:
        raise _too_large(len(files), first.shape[1], first.shape[0])

    def decode(chunk: Sequence[_File]) -> list[Bytes | str]:
        return [_attempt(f.path, size, first.shape[:2]) for f in chunk]

    arrays: list[Bytes] = []
    bad: list[str] = []
    with bar("decode images", enabled=progress) as progress_bar, ThreadPoolExecutor(os.cpu_count()) as pool:
        progress_bar.plan(float(len(files)), f"decode {len(files):,} images")
        try:
            for done in pool.map(decode, chunks):
                arrays += [a for a in done if not isinstance(a, str)]
                bad += [a for a in done if isinstance(a, str)]
                progress_bar.advance(float(len(done)))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if bad:
        more = f" (and {len(bad) - 3:,} more)" if len(bad) > 3 else ""
        raise InputError(f"{len(bad):,} of {len(files):,} images cannot be used: {'; '.join(bad[:3])}{more}.")
    if any(a.ndim == 3 for a in arrays):
        arrays = [a if a.ndim == 3 else np.repeat(a[:, :, None], 3, 2) for a in arrays]
    pixels = torch.from_numpy(np.stack(arrays))
    return pixels[:, None] if pixels.dim() == 3 else pixels.permute(0, 3, 1, 2).contiguous()


def _too_large(count: int, width: int, height: int) -> ValueError:
    return InputError(
        f"{count:,} images of {width} x {height} pixels would need {3 * count * width * height / 2**30:.0f} GiB "
        "of memory. Make them smaller with --image-size."
    )


def _attempt(path: str, size: int | None, shape: tuple[int, ...]) -> Bytes | str:
    """The pixels, or why they cannot be had."""
    try:
        pixels = _read(path, size)
    except InputError as error:
        return str(error)
    if pixels.shape[:2] != shape:
        (h, w), (height, width) = pixels.shape[:2], shape
        return f"{path} has {w} x {h} pixels, the first image {width} x {height} (give --image-size to scale them all)"
    return pixels


def _read(path: str, size: int | None) -> Bytes:
    """``[height, width]`` grey or ``[height, width, 3]`` colour."""
    try:
        with Image.open(path, formats=_FORMATS) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise InputError(f"{path} has {image.width} x {image.height} pixels, more than {_MOST_PIXELS:,}")
            if image.mode not in (*_GREY, *_COLOUR):
                raise InputError(f"{path} has pixels of kind {image.mode!r}; convert it to 8-bit grey or colour")
            if size is not None:
                image.draft(image.mode, (size, size))
            plain = image.convert("L" if image.mode in _GREY else "RGB")
            return np.asarray(plain if size is None else ImageOps.fit(plain, (size, size), Image.Resampling.BICUBIC))
    except InputError:
        raise
    except Exception as error:  # Pillow raises many kinds for damaged files
        raise InputError(f"{path} cannot be read ({type(error).__name__}: {error})") from None
