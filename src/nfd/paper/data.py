"""The data sets of the paper's figures: digits, and CIFAR-10 in the official binary layout.

CIFAR-10 is six files of records of one label byte and 3 x 32 x 32 pixel bytes, read from the
unpacked directory or from the archive. The python version of the archive holds pickles, which run
code when they are opened, and is refused.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zlib
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from numpy.typing import NDArray

from nfd.core import InputError, check_choice, expanded, undisturbed
from nfd.data import Dataset, Images, digits

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
ARCHIVE = "cifar-10-binary.tar.gz"
ARCHIVE_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
FOLDER = "cifar-10-batches-bin"
TRAIN = tuple(f"data_batch_{k}.bin" for k in range(1, 6))
TEST = "test_batch.bin"

_RECORD = 1 + 3 * 32 * 32
_WHERE = f"It is {ARCHIVE} at https://www.cs.toronto.edu/~kriz/cifar.html."


@undisturbed()
def load(name: str, directory: str | Path | None = None, *, seed: int = 0) -> Dataset:
    """Load a data set by name.

    Args:
        name: ``"digits"`` or ``"cifar10"``.
        directory: of the files; not needed for the digits.
        seed: of the split into training and test images, if the data do not bring one.

    Raises:
        ValueError: for an unknown name, and for files that are missing or cannot be read.
    """
    check_choice("data", name, ("digits", "cifar10"))
    if name == "digits":
        return digits(seed)
    if directory is None:
        raise InputError(
            f"data={name!r} needs data_dir, the directory that holds it. Give --data-dir DIR."
        )
    return cifar10(directory)


def cifar10(path: str | Path) -> Dataset:
    """Load CIFAR-10 from its archive, a directory that holds it, or the unpacked files.

    Raises:
        ValueError: when nothing of the kind is there, or a file is cut short or malformed, naming
            file and offset.
    """
    place = expanded(path)
    if not place.exists():
        raise InputError(
            f"data_dir {str(place)!r} does not exist. Point it at CIFAR-10's binary version. "
            f"{_WHERE}"
        )
    if place.is_dir():
        place = next((place / name for name in (ARCHIVE, FOLDER) if (place / name).exists()), place)
    names = (*TRAIN, TEST)
    # None: there is no checksum to verify the files by.
    is_official: bool | None = None
    if place.is_file():
        files = _from_archive(place)
        digest = hashlib.md5(place.read_bytes(), usedforsecurity=False).hexdigest()
        is_official = digest == ARCHIVE_MD5
        source = f"{place}: {'' if is_official else 'not '}the official file (MD5 {ARCHIVE_MD5})"
    else:
        files = {name: (place / name).read_bytes() for name in names if (place / name).exists()}
        source = (
            f"{place}: unpacked files, not verified (a checksum is published for the archive alone)"
        )
    missing = [name for name in names if name not in files]
    if missing:
        there = list(files)
        if place.is_dir():
            there = sorted(path.name for path in place.iterdir())[:5]
        raise InputError(
            f"{place} holds no {', '.join(missing)} of CIFAR-10's binary version; found "
            f"{', '.join(there) or 'nothing'}. {_WHERE}"
        )
    parts = {
        name: _images(np.frombuffer(content, np.uint8), f"{place}, {name}")
        for name, content in files.items()
    }
    train = [parts[name] for name in TRAIN]
    together = Images(torch.cat([p.pixels for p in train]), torch.cat([p.labels for p in train]))
    return Dataset("CIFAR-10", CLASSES, together, parts[TEST], source, is_official)


def _from_archive(archive: Path) -> dict[str, bytes]:
    """Read the six files without extracting anything."""
    files: dict[str, bytes] = {}
    try:
        # All of it is decompressed, as gzip has its checksum at the end.
        content = gzip.decompress(archive.read_bytes())
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            members = {PurePosixPath(member.name).name: member for member in tar if member.isfile()}
            for name in (*TRAIN, TEST):
                file = tar.extractfile(members[name]) if name in members else None
                if file is not None:
                    files[name] = file.read()
        return files
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise InputError(
            f"{archive}: damaged, or not a .tar.gz ({error}). Download it again. {_WHERE}"
        ) from None


def _images(content: NDArray[np.uint8], where: str) -> Images:
    count, rest = divmod(len(content), _RECORD)
    if rest or not count:
        raise InputError(
            f"{where}: record {count} at offset {count * _RECORD:,} is cut short: {rest:,} of "
            f"{_RECORD:,} bytes. Download the file again. {_WHERE}"
        )
    records = content.reshape(count, _RECORD)
    wrong = np.flatnonzero(records[:, 0] >= len(CLASSES))
    if len(wrong):
        raise InputError(
            f"{where}: label {records[wrong[0], 0]} at offset {int(wrong[0]) * _RECORD:,} (record "
            f"{wrong[0]}) is not in 0..9 ({len(wrong)} such records): this is not a CIFAR-10 file. "
            f"{_WHERE}"
        )
    labels = torch.from_numpy(records[:, 0].astype(np.int64))
    return Images(torch.from_numpy(records[:, 1:].copy()).view(count, 3, 32, 32), labels)
