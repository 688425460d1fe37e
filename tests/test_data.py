"""Data sets: what is read is what was written, and what cannot be read is named."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from nfd.cli import main
from nfd.data import digits
from nfd.paper import data as reader
from nfd.paper.data import cifar10, load

FILES = (*reader.TRAIN, reader.TEST)


def records(count: int, seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, (count, 1), dtype=np.uint8)
    return np.concatenate(
        [labels, rng.integers(0, 256, (count, 3072), dtype=np.uint8)], 1
    ).tobytes()


CONTENTS = {name: records(20, k) for k, name in enumerate(FILES)}


def unpacked(folder: Path, contents: dict[str, bytes] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (contents or CONTENTS).items():
        (folder / name).write_bytes(content)
    return folder


def archive(path: Path, members: list[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def binary(path: Path, extra: tuple[tuple[str, bytes], ...] = ()) -> Path:
    return archive(path, [*((f"cifar-10-batches-bin/{n}", c) for n, c in CONTENTS.items()), *extra])


# ---- CIFAR-10


@pytest.mark.parametrize("layout", ["files", "parent", "archive", "folder of archive"])
def test_cifar_is_read_from_every_layout(tmp_path: Path, layout: str) -> None:
    place = {
        "files": lambda: unpacked(tmp_path / "d"),
        "parent": lambda: unpacked(tmp_path / "d" / reader.FOLDER).parent,
        "archive": lambda: binary(tmp_path / "any-name.tar.gz"),
        "folder of archive": lambda: binary(tmp_path / reader.ARCHIVE).parent,
    }[layout]()
    data = cifar10(place)
    assert data.shape == (3, 32, 32)
    assert (len(data.train), len(data.test)) == (100, 20)
    assert data.official is (False if "archive" in layout else None)
    second = np.frombuffer(CONTENTS["data_batch_2.bin"], np.uint8).reshape(20, 3073)
    assert data.train.labels[20:40].tolist() == second[:, 0].tolist()
    assert np.array_equal(data.train.pixels[20:40].flatten(1).numpy(), second[:, 1:])


def test_the_official_archive_is_known_by_its_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = binary(tmp_path / reader.ARCHIVE)
    monkeypatch.setattr(reader, "ARCHIVE_MD5", hashlib.md5(path.read_bytes()).hexdigest())
    assert cifar10(path).official is True
    assert "the official file" in cifar10(path).source


Break = Callable[[Path], Path]


def changed(name: str, content: bytes) -> Break:
    return lambda root: unpacked(root, {**CONTENTS, name: content})


def damaged_archive(root: Path) -> Path:
    path = binary(root / reader.ARCHIVE)
    content = bytearray(path.read_bytes())
    content[100_000:100_200] = bytes(200)
    path.write_bytes(bytes(content))
    return path


LABEL = (
    CONTENTS["data_batch_1.bin"][: 3 * 3073]
    + b"\xc8"
    + CONTENTS["data_batch_1.bin"][3 * 3073 + 1 :]
)
BAD: dict[str, tuple[Break, str]] = {
    "missing": (lambda root: root / "nowhere", "does not exist"),
    "empty": (lambda root: root, "found nothing"),
    "truncated": (
        changed("data_batch_3.bin", CONTENTS["data_batch_3.bin"][:-5]),
        "data_batch_3.bin: record 19 at offset 58,387 is cut short: 3,068 of 3,073 bytes",
    ),
    "label": (
        changed("data_batch_1.bin", LABEL),
        r"data_batch_1.bin: label 200 at offset 9,219 \(record 3\)",
    ),
    "lacking": (
        lambda root: unpacked(root, dict(list(CONTENTS.items())[1:])),
        r"holds no data_batch_1.bin",
    ),
    "damaged": (damaged_archive, "damaged, or not"),
    "pickles": (
        lambda r: archive(
            r / "a.tar.gz", [("cifar-10-batches-py/data_batch_1", b"\x80\x02pickle")]
        ),
        "binary version",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_cifar_is_refused_with_file_and_offset(tmp_path: Path, case: str) -> None:
    make, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        cifar10(make(tmp_path))


def test_real_cifar_has_the_statistics_of_cifar(cifar_files: Path) -> None:
    data = cifar10(cifar_files)
    mean, std = data.statistics
    torch.testing.assert_close(
        mean, torch.tensor([125.3, 123.0, 113.9], dtype=torch.float64), rtol=0.01, atol=0
    )
    torch.testing.assert_close(
        std, torch.tensor([63.0, 62.1, 66.7], dtype=torch.float64), rtol=0.01, atol=0
    )
    # the first image of the first batch, as everybody knows
    assert data.classes[int(data.labels[0])] == "frog"


def test_a_figure_is_drawn_from_a_folder_of_cifar(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What lies in the folder is seen without --data; a folder of nothing is a line, not a
    traceback.
    """
    files = unpacked(tmp_path / "data" / reader.FOLDER).parent
    asked = ["paper", "figure", "1", "--size", "smoke", "--executor", "inline", "--data-dir"]
    assert main([*asked, str(files), "--out", str(tmp_path / "out")]) == 0
    assert "networks to train on CIFAR-10" in capsys.readouterr().out
    (tmp_path / "nothing").mkdir()
    assert main([*asked, str(tmp_path / "nothing"), "--out", str(tmp_path / "other")]) == 2
    assert "found nothing" in capsys.readouterr().err


# ---- what all data sets share


def test_normalisation_is_per_channel_with_training_statistics() -> None:
    data = digits()
    pixels = data.train.pixels.double()
    assert data.statistics[0].item() == pytest.approx(pixels.mean().item(), rel=1e-12)
    assert data.statistics[1].item() == pytest.approx(pixels.std().item(), rel=1e-12)
    assert abs(float(data.inputs.mean())) < 1e-6
    assert abs(float(data.inputs.std()) - 1) < 1e-6


def test_names_and_places_are_checked() -> None:
    with pytest.raises(ValueError, match="data must be one of 'digits', 'cifar10'"):
        load("mnist")
    with pytest.raises(ValueError, match="needs data_dir"):
        load("cifar10")


def test_the_digits_are_those_of_scikit_learn() -> None:
    raw = load_digits()
    data = digits()
    assert data.classes == tuple(map(str, raw.target_names))
    ours = torch.cat([data.train.pixels, data.test.pixels]).flatten(1)
    theirs = torch.from_numpy(raw.data)
    assert sorted(map(tuple, ours.tolist())) == sorted(map(tuple, theirs.to(torch.uint8).tolist()))
