"""CIFAR-10 in the official binary layout: six files of records of one label byte and 3 x 32 x 32 pixel bytes.

Read from the unpacked directory or straight from the archive. The python version of the archive holds pickles, which
can run code when they are opened, and is refused.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray

from nfd.core import InputError, expanded
from nfd.data import Dataset, Images

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
ARCHIVE = "cifar-10-binary.tar.gz"
ARCHIVE_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
FOLDER = "cifar-10-batches-bin"
TRAIN = tuple(f"data_batch_{k}.bin" for k in range(1, 6))
TEST = "test_batch.bin"
FILES = (*TRAIN, TEST)

_SHAPE = (3, 32, 32)
_RECORD = 1 + 3 * 32 * 32
_RECORDS = 10_000
_MOST_UNPACKED = 256 << 20
_PYTHON = ("cifar-10-python.tar.gz", "cifar-10-batches-py", *(name.removesuffix(".bin") for name in FILES))
_WHERE = f"It is {ARCHIVE} at https://www.cs.toronto.edu/~kriz/cifar.html."

Bytes = NDArray[np.uint8]


def cifar10(path: str | Path) -> Dataset:
    """CIFAR-10 from the archive, a directory that holds it, or the directory of the unpacked files.

    Raises:
        ValueError: when nothing of the kind is there, when it is the python version, or when a file is cut short or
            malformed, naming the file and the offset.
    """
    place = expanded(path)
    if not place.exists():
        raise InputError(f"data_dir {str(place)!r} does not exist. Point it at CIFAR-10's binary version. {_WHERE}")
    archive, folder = _find(place)
    if archive is not None:
        md5 = _md5(archive)
        official = md5 == ARCHIVE_MD5
        source = f"{archive}: the official file (MD5 {ARCHIVE_MD5})"
        if not official:
            source = f"{archive}: not the official file (its MD5 is {md5}, the official one {ARCHIVE_MD5})"
        return _dataset(_from_archive(archive), archive, source, official)
    _check_present(folder, [path.name for path in folder.iterdir() if path.is_file()])
    files = {name: _read(folder / name) for name in FILES}
    if all(len(content) == _RECORDS * _RECORD for content in files.values()):
        source = f"{folder}: unpacked files, not verified (a checksum is published for the archive alone)"
        return _dataset(files, folder, source, None)
    return _dataset(files, folder, f"{folder}: not the official files (these hold 10,000 records each)", False)


def _dataset(files: Mapping[str, Bytes], place: Path, source: str, official: bool | None) -> Dataset:
    parts = {name: _images(content, f"{place}, {name}") for name, content in files.items()}
    train = [parts[name] for name in TRAIN]
    together = Images(torch.cat([p.pixels for p in train]), torch.cat([p.labels for p in train]))
    return Dataset("CIFAR-10", CLASSES, together, parts[TEST], source, official)


def _images(content: Bytes, where: str) -> Images:
    count, rest = divmod(len(content), _RECORD)
    if rest or not count:
        raise InputError(
            f"{where}: record {count} at offset {count * _RECORD:,} is cut short: {rest:,} of {_RECORD:,} bytes. "
            f"Download the file again. {_WHERE}"
        )
    records = content.reshape(count, _RECORD)
    wrong = np.flatnonzero(records[:, 0] >= len(CLASSES))
    if len(wrong):
        raise InputError(
            f"{where}: label {records[wrong[0], 0]} at offset {int(wrong[0]) * _RECORD:,} (record {wrong[0]}) is not "
            f"in 0..9 ({len(wrong)} such records): this is not a CIFAR-10 file. {_WHERE}"
        )
    labels = torch.from_numpy(records[:, 0].astype(np.int64))
    return Images(torch.from_numpy(records[:, 1:].copy()).view(count, *_SHAPE), labels)


def _find(place: Path) -> tuple[Path | None, Path]:
    """The archive, or None, and the directory of the unpacked files."""
    if place.is_file():
        if place.name in _PYTHON:
            raise _python_version(place)
        return place, place.parent
    names = {p.name for p in place.iterdir()}
    if ARCHIVE in names:
        return place / ARCHIVE, place
    if FOLDER in names:
        return None, place / FOLDER
    if any(name in names for name in FILES):
        return None, place
    if any(name in names for name in _PYTHON):
        raise _python_version(place)
    names_there = ", ".join(sorted(names)[:5]) or "nothing"
    raise InputError(f"data_dir {str(place)!r} holds no CIFAR-10 (binary version); found {names_there}. {_WHERE}")


def _python_version(place: Path) -> ValueError:
    return InputError(
        f"{place} is the python version of CIFAR-10. It is stored as pickles, which can run code when opened, and is "
        f"not read. Use the binary version instead. {_WHERE}"
    )


def _check_present(place: Path, names: Collection[str]) -> None:
    missing = [name for name in FILES if name not in names]
    if missing:
        raise InputError(f"{place} lacks {', '.join(missing)}. Download or unpack the archive again. {_WHERE}")


def _read(path: Path) -> Bytes:
    size = path.stat().st_size
    if size > _RECORDS * _RECORD:
        raise InputError(f"{path}: {size:,} bytes, more than the {_RECORDS * _RECORD:,} of a CIFAR-10 file. {_WHERE}")
    return np.fromfile(path, np.uint8)


def _from_archive(archive: Path) -> dict[str, Bytes]:
    """The six files, read without extracting anything."""
    files: dict[str, Bytes] = {}
    with archive.open("rb") as raw, gzip.GzipFile(fileobj=raw) as zipped:
        try:
            content = zipped.read(_MOST_UNPACKED + 1)  # to the end, where gzip has its checksum
            if len(content) > _MOST_UNPACKED:
                raise tarfile.ReadError(f"more than {_MOST_UNPACKED:,} bytes unpacked")
            with tarfile.open(fileobj=io.BytesIO(content), mode="r|") as tar:
                for name, file in _members(tar, archive):
                    if name in files:
                        raise InputError(f"{archive}: holds {name} twice.")
                    files[name] = np.frombuffer(file.read(), np.uint8)
        except (tarfile.TarError, EOFError, zlib.error, OSError, RecursionError) as error:
            raise InputError(
                f"{archive}: cut short or damaged near offset {raw.tell():,} ({error}), or not a .tar.gz: no other "
                f"archive is read. Download it again. {_WHERE}"
            ) from None
    _check_present(archive, files)
    return files


def _members(tar: tarfile.TarFile, archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    for member in tar:
        path = PurePosixPath(member.name)
        name = path.name
        if name in _PYTHON and member.isfile():
            raise _python_version(archive)
        if member.size > _RECORDS * _RECORD:
            raise InputError(f"{archive}, {name}: {member.size:,} bytes, more than a CIFAR-10 file has.")
        if name not in FILES:
            continue
        if not member.isfile() or path.is_absolute() or ".." in path.parts:
            raise InputError(
                f"{archive}: its entry {member.name!r} is a link, a device or a path out of the archive, not a file in "
                f"it; this is not CIFAR-10. {_WHERE}"
            )
        file = tar.extractfile(member)
        if file is not None:
            yield name, file


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
