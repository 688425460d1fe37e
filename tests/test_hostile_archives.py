"""Archives made to harm: refused in words, in bounded memory and time, or read for what they are."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from fuzz.targets import TARGETS, archive, mutations, seeds

from nfd.paper.data.cifar10 import FOLDER, TEST, TRAIN, cifar10

RECORD = bytes(3073)
FILES = {f"{FOLDER}/{name}": RECORD for name in (*TRAIN, TEST)}


# ---- the targets of the fuzzer -------------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "count"), [("cifar", 150), ("plan", 400)])
def test_seeds_and_mutations_are_read_or_refused_in_words(target: str, count: int) -> None:
    answers = [TARGETS[target](content) for content in seeds(target)]
    assert any(isinstance(answer, Exception) for answer in answers)
    assert sum(not isinstance(answer, Exception) for answer in answers) >= 3
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


def link() -> bytes:
    def change(about: tarfile.TarInfo) -> None:
        about.type, about.linkname, about.size = tarfile.SYMTYPE, "/etc/passwd", 0

    return made(change)


def renamed(path: str) -> bytes:
    return made(lambda about: setattr(about, "name", path))


def with_pax(**headers: str) -> bytes:
    return made(lambda about: about.pax_headers.update(headers))


BAD_ARCHIVES: dict[str, tuple[Callable[[], bytes], str]] = {
    "symbolic link": (link, "is a link, a device or a path out of the archive"),
    "traversal": (lambda: renamed(f"../../{TEST}"), "a path out of the archive"),
    "absolute by pax": (lambda: with_pax(path=f"/{TEST}"), "a path out of the archive"),
    "size by pax": (lambda: with_pax(size="999999999999"), "more than a CIFAR-10 file has|damaged"),
    "negative size by pax": (lambda: with_pax(size="-512"), "damaged|cut short|lacks"),
    "twice": (lambda: renamed(f"other/{TRAIN[0]}"), "holds data_batch_1.bin twice"),
    "many entries": (lambda: archive({str(k): b"" for k in range(1100)}), "lacks data_batch_1.bin"),
    "nested": (lambda: archive({"cifar.tar.gz": gzip.compress(archive(FILES))}), "lacks data_batch_1.bin"),
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
