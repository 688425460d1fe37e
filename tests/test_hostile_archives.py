"""Archives and image folders made to harm: refused in words, in bounded memory and time, or read for what they are."""

from __future__ import annotations

import gzip
import io
import os
import resource
import struct
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fuzz.targets import TARGETS, archive, mutations, seeds
from PIL import Image

from nfd.paper.data.cifar10 import FOLDER, TEST, TRAIN, cifar10
from nfd.paper.data.images import image_folders

RECORD = bytes(3073)
FILES = {f"{FOLDER}/{name}": RECORD for name in (*TRAIN, TEST)}


# ---- the targets of the fuzzer -------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_every_seed_is_read_or_refused_in_words(target: str) -> None:
    answers = [TARGETS[target](content) for content in seeds(target)]
    assert any(isinstance(answer, Exception) for answer in answers)
    assert sum(not isinstance(answer, Exception) for answer in answers) >= 3


@pytest.mark.parametrize(("target", "count"), [("cifar", 150), ("plan", 400)])
def test_mutations_are_read_or_refused_in_words(target: str, count: int) -> None:
    for content in mutations(target, count):
        TARGETS[target](content)


# ---- archives ------------------------------------------------------------------------------------------------


def made(change: Callable[[tarfile.TarInfo], object], name: str = TEST) -> bytes:
    """CIFAR-10's files, the last of which is changed in its header."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, content in FILES.items():
            about = tarfile.TarInfo(path)
            about.size = len(content)
            if path.endswith(name):
                change(about)
            tar.addfile(about, io.BytesIO(content) if about.isfile() else None)
    return written.getvalue()


def of_kind(kind: bytes, link: str = "/etc/passwd") -> bytes:
    def change(about: tarfile.TarInfo) -> None:
        about.type, about.linkname, about.size = kind, link, 0

    return made(change)


def renamed(path: str) -> bytes:
    return made(lambda about: setattr(about, "name", path))


def with_pax(**headers: str) -> bytes:
    return made(lambda about: about.pax_headers.update(headers))


def declared(size: int) -> bytes:
    """The header of a file of so many bytes, and none of them."""
    about = tarfile.TarInfo(f"{FOLDER}/{TEST}")
    about.size = size
    return about.tobuf(tarfile.GNU_FORMAT) + RECORD


def sparse() -> bytes:
    """A GNU sparse file that says it has a terabyte."""
    header = bytearray(tarfile.TarInfo(f"{FOLDER}/{TEST}").tobuf(tarfile.GNU_FORMAT))
    header[156:157] = b"S"
    header[483:495] = b"\x80" + struct.pack(">Q", 1 << 40).rjust(11, b"\0")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(1024)


BAD_ARCHIVES: dict[str, tuple[Callable[[], bytes], str]] = {
    "symbolic link": (lambda: of_kind(tarfile.SYMTYPE), "is a link, a device or a path out of the archive"),
    "hard link": (lambda: of_kind(tarfile.LNKTYPE, "data_batch_1.bin"), "is a link, a device"),
    "device": (lambda: of_kind(tarfile.CHRTYPE), "is a link, a device"),
    "pipe": (lambda: of_kind(tarfile.FIFOTYPE), "is a link, a device"),
    "folder of that name": (lambda: of_kind(tarfile.DIRTYPE), "is a link, a device"),
    "traversal": (lambda: renamed(f"../../{TEST}"), "a path out of the archive"),
    "hidden traversal": (lambda: renamed(f"{FOLDER}/../../{TEST}"), "a path out of the archive"),
    "absolute": (lambda: renamed(f"/var/{TEST}"), "a path out of the archive"),
    "absolute by pax": (lambda: with_pax(path=f"/{TEST}"), "a path out of the archive"),
    "size by pax": (lambda: with_pax(size="999999999999"), "more than a CIFAR-10 file has|damaged"),
    "negative size by pax": (lambda: with_pax(size="-512"), "damaged|cut short|lacks"),
    "no size by pax": (lambda: with_pax(size="nan"), "damaged|cut short|lacks"),
    "declared terabyte": (lambda: declared(1 << 40), "1,099,511,627,776 bytes, more than a CIFAR-10 file has"),
    "declared negative": (lambda: declared(-1), "damaged|cut short|lacks"),
    "sparse terabyte": (sparse, "more than a CIFAR-10 file has|damaged"),
    "twice": (lambda: renamed(f"other/{TRAIN[0]}"), "holds data_batch_1.bin twice"),
    "many entries": (lambda: archive({str(k): b"" for k in range(1100)}), "lacks data_batch_1.bin"),
    "nested": (lambda: archive({"cifar.tar.gz": gzip.compress(archive(FILES))}), "lacks data_batch_1.bin"),
    "gzip in gzip": (lambda: gzip.compress(archive(FILES)), "damaged"),
    "zip": (lambda: b"PK\x03\x04" + bytes(2000), "damaged"),
}


@pytest.mark.parametrize("case", BAD_ARCHIVES)
def test_bad_archives_are_refused(tmp_path: Path, case: str) -> None:
    make, message = BAD_ARCHIVES[case]
    path = tmp_path / "data.tar.gz"
    path.write_bytes(gzip.compress(make(), 1))
    with pytest.raises(ValueError, match=message) as refused:
        cifar10(path)
    assert str(path) in str(refused.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data.tar.gz"]


def test_the_sound_archive_of_these_files_is_read(tmp_path: Path) -> None:
    (tmp_path / "data.tar.gz").write_bytes(gzip.compress(with_pax(comment="x" * 5000)))
    assert len(cifar10(tmp_path / "data.tar.gz").test) == 1


BOMB = """
import resource, sys
from nfd.paper.data.cifar10 import cifar10
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    cifar10(sys.argv[1])
except ValueError as error:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("header", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.REGTYPE])
def test_a_bomb_takes_bounded_memory(tmp_path: Path, header: bytes) -> None:
    """Four gigabytes of zeros in four megabytes: as content, as a name, or as a header that is read whole."""
    about = tarfile.TarInfo("bomb")
    about.type, about.size = header, 4 << 30
    pressed = zlib.compressobj(9, wbits=31)
    with (tmp_path / "bomb.tar.gz").open("wb") as file:
        file.write(pressed.compress(about.tobuf(tarfile.GNU_FORMAT)))
        for _ in range(4 << 6):
            file.write(pressed.compress(bytes(16 << 20)))
        file.write(pressed.flush())
    done = subprocess.run(
        [sys.executable, "-c", BOMB, str(tmp_path / "bomb.tar.gz")], capture_output=True, text=True, timeout=600
    )
    kilobytes, _, said = done.stdout.partition(" ")
    assert "bomb.tar.gz" in said, done.stderr
    assert int(kilobytes) < 900 << 10  # what is read whole, and a copy or two of it


# ---- folders of images ---------------------------------------------------------------------------------------


def png(path: Path, size: tuple[int, int] = (6, 5)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)).save(path)
    return path


def classes(root: Path) -> Path:
    for k in range(10):
        png(root / ("cat" if k % 2 else "dog") / f"{k}.png")
    return root


def declares(path: Path, width: int, height: int) -> None:
    """A PNG that says it is so large, and holds nothing."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")))


@pytest.mark.parametrize("size", [(9000, 9000), (60_000, 60_000), (2**31 - 1, 2**31 - 1), (2**31 - 1, 1), (0, 5)])
@pytest.mark.parametrize("scaled", [None, 4])
def test_pictures_that_say_they_are_huge_are_refused(tmp_path: Path, size: tuple[int, int], scaled: int | None) -> None:
    declares(classes(tmp_path) / "cat" / "bomb.png", *size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"1 of 11 images cannot be used: .*bomb\.png"):
        image_folders(tmp_path, size=scaled)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


NO_PICTURES = (
    *(b"", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"<html><script>1</script></html>", b"GIF89a" + b"\xff" * 30),
    *(b"%!PS-Adobe-3.0 EPSF-3.0\n", b"RIFF\xff\xff\xff\xffWEBP", b"P6 99999999999999999999 1 255\n", b"MZ" + bytes(99)),
)


@pytest.mark.parametrize("content", NO_PICTURES)
def test_what_is_no_picture_is_named(tmp_path: Path, content: bytes) -> None:
    (classes(tmp_path) / "cat" / "odd.png").write_bytes(content)
    with pytest.raises(ValueError, match=r"1 of 11 images cannot be used: .*odd\.png cannot be read"):
        image_folders(tmp_path, size=4)


def test_links_inside_classes_are_not_followed_and_classes_elsewhere_are(tmp_path: Path) -> None:
    root = classes(tmp_path / "images")
    (root / "cat" / "up").symlink_to("..")
    (root / "cat" / "self.png").symlink_to("self.png")
    (root / "cat" / "passwd.png").symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match=r"1 of 11 images cannot be used: .*passwd\.png cannot be read"):
        image_folders(root)
    (root / "cat" / "passwd.png").unlink()
    png(tmp_path / "elsewhere" / "a.png")
    (root / "emu").symlink_to(tmp_path / "elsewhere")
    found = image_folders(root)
    assert found.classes == ("cat", "dog", "emu")
    assert len(found.train) + len(found.test) == 11
    assert "2 files that are no images" in found.notes[0]


def test_a_pipe_with_the_name_of_a_picture_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(classes(tmp_path) / "cat" / "pipe.png")
    assert "such as cat/pipe.png" in image_folders(tmp_path).notes[0]
