"""Data sets: what is read is what was written, and what cannot be read is named."""

from __future__ import annotations

import io
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from nfd.cli import main
from nfd.data import _shipped, digits
from nfd.paper.data import cifar10 as reader
from nfd.paper.data import images as folders
from nfd.paper.data.cifar10 import cifar10
from nfd.paper.data.images import image_folders
from nfd.paper.data.load import load

FILES = (*reader.TRAIN, reader.TEST)


def records(count: int, seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, (count, 1), dtype=np.uint8)
    return np.concatenate([labels, rng.integers(0, 256, (count, 3072), dtype=np.uint8)], 1).tobytes()


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


# ---- CIFAR-10 ------------------------------------------------------------------------------------------------


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
    assert data.official is False
    assert "not the official file" in data.source
    second = np.frombuffer(CONTENTS["data_batch_2.bin"], np.uint8).reshape(20, 3073)
    assert data.train.labels[20:40].tolist() == second[:, 0].tolist()
    assert np.array_equal(data.train.pixels[20:40].flatten(1).numpy(), second[:, 1:])


def test_the_official_archive_is_known_by_its_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = binary(tmp_path / reader.ARCHIVE)
    monkeypatch.setattr(reader, "ARCHIVE_MD5", reader._md5(path))
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


LABEL = CONTENTS["data_batch_1.bin"][: 3 * 3073] + b"\xc8" + CONTENTS["data_batch_1.bin"][3 * 3073 + 1 :]
BAD: dict[str, tuple[Break, str]] = {
    "missing": (lambda root: root / "nowhere", "does not exist"),
    "empty": (lambda root: root, "holds no CIFAR-10 .binary version.; found nothing"),
    "truncated": (changed("data_batch_3.bin", CONTENTS["data_batch_3.bin"][:-5]),
                  "data_batch_3.bin: record 19 at offset 58,387 is cut short: 3,068 of 3,073 bytes"),
    "label": (changed("data_batch_1.bin", LABEL), r"data_batch_1.bin: label 200 at offset 9,219 \(record 3\)"),
    "lacking": (lambda root: unpacked(root, dict(list(CONTENTS.items())[1:])), r"lacks data_batch_1.bin"),
    "damaged": (damaged_archive, r"cut short or damaged near offset"),
    "pickles": (lambda r: archive(r / "a.tar.gz", [("cifar-10-batches-py/data_batch_1", b"\x80\x02pickle")]),
                r"python version .* Use the binary version instead"),
    "huge": (lambda r: archive(r / "a.tar.gz", [("x/test_batch.bin", bytes(30_730_001))]), "more than a CIFAR-10 file"),
    "bomb": (lambda r: archive(r / "a.tar.gz", [(f"x/{k}", bytes(30_000_000)) for k in range(9)]), "unpacked"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_cifar_is_refused_with_file_and_offset(tmp_path: Path, case: str) -> None:
    make, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        cifar10(make(tmp_path))


def test_real_cifar_has_the_statistics_of_cifar(cifar_files: Path) -> None:
    data = cifar10(cifar_files)
    mean, std = data.statistics
    torch.testing.assert_close(mean, torch.tensor([125.3, 123.0, 113.9], dtype=torch.float64), rtol=0.01, atol=0)
    torch.testing.assert_close(std, torch.tensor([63.0, 62.1, 66.7], dtype=torch.float64), rtol=0.01, atol=0)
    assert data.classes[int(data.labels[0])] == "frog"  # the first image of the first batch, as everybody knows


def test_a_figure_is_drawn_from_a_folder_of_cifar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What lies in the folder is seen without --data; a folder of nothing is a line, not a traceback."""
    files = unpacked(tmp_path / "data" / reader.FOLDER).parent
    asked = ["paper", "figure", "1", "--size", "smoke", "--executor", "inline", "--data-dir"]
    assert main([*asked, str(files), "--out", str(tmp_path / "out")]) == 0
    assert "networks to train on CIFAR-10" in capsys.readouterr().out
    (tmp_path / "nothing").mkdir()
    assert main([*asked, str(tmp_path / "nothing"), "--out", str(tmp_path / "other")]) == 2
    assert "found nothing" in capsys.readouterr().err


# ---- folders of images ---------------------------------------------------------------------------------------


def picture(path: Path, size: tuple[int, int] = (6, 5), mode: str = "RGB", seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(path)
    return path


def two_classes(root: Path, count: int = 5) -> Path:
    for name in ("cat", "dog"):
        for k in range(count):
            picture(root / name / f"{k}.png", seed=k)
    return root


def test_class_folders_are_split_by_the_seed(tmp_path: Path) -> None:
    data = image_folders(two_classes(tmp_path))
    assert data.classes == ("cat", "dog")
    assert data.shape == (3, 5, 6)
    assert (len(data.train), len(data.test)) == (8, 2)
    again = image_folders(tmp_path, seed=1)
    assert again.fingerprint != data.fingerprint


def test_train_and_test_folders_keep_their_parts_and_pixels(tmp_path: Path) -> None:
    two_classes(tmp_path / "train", 3)
    path = picture(tmp_path / "val" / "dog" / "x.png", seed=9)
    data = image_folders(tmp_path)
    assert (len(data.train), len(data.test)) == (6, 1)
    assert data.test_labels.tolist() == [1]
    assert np.array_equal(data.test.pixels[0].permute(1, 2, 0).numpy(), np.asarray(Image.open(path)))


def test_grey_and_wide_images_become_as_the_others(tmp_path: Path) -> None:
    for name in ("a", "b"):
        picture(tmp_path / name / "0.png", mode="L")
        picture(tmp_path / name / "1.png", mode="L")
    assert image_folders(tmp_path).shape == (1, 5, 6)
    picture(tmp_path / "b" / "2.png", size=(40, 20))
    assert image_folders(tmp_path, size=4).shape == (3, 4, 4)


def test_images_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = image_folders(two_classes(tmp_path / "data"))
    with monkeypatch.context() as patch:
        patch.setattr(folders, "_read", lambda *_: pytest.fail("decoded again"))
        assert image_folders(tmp_path / "data").fingerprint == first.fingerprint
    picture(tmp_path / "data" / "cat" / "0.png", seed=77)
    assert image_folders(tmp_path / "data").fingerprint != first.fingerprint


def with_file(path: str, content: bytes | None = None) -> Break:
    """Two classes, and a file beside their images: a picture of another size unless its bytes are given."""

    def make(root: Path) -> Path:
        place = two_classes(root) / path
        picture(place.with_suffix(".png"), size=(7, 7)).rename(place)
        if content is not None:
            place.write_bytes(content)
        return root

    return make


def parts(*names: str) -> Break:
    return lambda root: [two_classes(root / name) for name in names] and root


BAD_FOLDERS: dict[str, tuple[Break, str]] = {
    "missing": (lambda root: root / "nowhere", "is not a directory"),
    "empty": (lambda root: root, "holds no images in class folders; found nothing"),
    "loose": (with_file("loose.png"), "1 images that are in no class folder, such as loose.png"),
    "size": (with_file("cat/other.png"), "has 7 x 7 pixels, the first image 6 x 5 .give --image-size"),
    "damaged": (with_file("dog/odd.png", b"GIF89a"), r"1 of 11 images cannot be used: .*odd.png cannot be read"),
    "only train": (parts("train"), "beside 'train' there must be exactly one of test"),
    "mixed": (parts("train", "test", "."), "mixes layouts"),
    "unknown class": (lambda root: picture(parts("train")(root) / "test/bird/0.png").parents[2],
                      "class without training images: bird"),
    "one class": (lambda root: picture(root / "cat/0.png").parents[1], "two classes are needed at least; found cat"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_FOLDERS)
def test_bad_folders_are_refused(tmp_path: Path, case: str) -> None:
    make, message = BAD_FOLDERS[case]
    with pytest.raises(ValueError, match=message):
        image_folders(make(tmp_path))


def test_files_that_are_no_images_and_a_cache_that_fails_are_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = with_file("cat/readme.txt", b"")(tmp_path)
    assert image_folders(root).notes == ("1 files that are no images were left out, such as cat/readme.txt.",)
    monkeypatch.setenv("NFD_CACHE", str(root / "cat" / "readme.txt" / "below"))
    assert "could not be kept" in image_folders(root).notes[-1]


# ---- what all data sets share --------------------------------------------------------------------------------


def test_normalisation_is_per_channel_with_training_statistics() -> None:
    data = digits()
    pixels = data.train.pixels.double()
    assert data.statistics[0].item() == pytest.approx(pixels.mean().item(), rel=1e-12)
    assert data.statistics[1].item() == pytest.approx(pixels.std().item(), rel=1e-12)
    assert abs(float(data.inputs.mean())) < 1e-6
    assert abs(float(data.inputs.std()) - 1) < 1e-6


def test_names_and_places_are_checked() -> None:
    with pytest.raises(ValueError, match="data must be one of 'digits', 'cifar10', 'images'"):
        load("mnist")
    with pytest.raises(ValueError, match="needs data_dir"):
        load("cifar10")


@pytest.mark.parametrize("shipped", [True, False])
def test_the_digits_are_those_of_scikit_learn(shipped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read from its file, or by its function where a version of it keeps the file elsewhere."""
    raw = load_digits()
    if not shipped:
        monkeypatch.setattr(sys.modules["nfd.data"], "find_spec", lambda name: None)
    pixels, labels = _shipped()
    assert torch.equal(pixels, torch.from_numpy(raw.data))
    assert torch.equal(labels.long(), torch.from_numpy(raw.target).long())
    assert digits().classes == tuple(map(str, raw.target_names))
