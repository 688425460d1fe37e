"""Data sets: what is read is what was written, and what cannot be read is named."""

from __future__ import annotations

import io
import os
import re
import tarfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nfd.data.describe import description
from nfd.data.sheet import contact_sheet
from PIL import Image
from sklearn.datasets import load_digits
from tests.waiting import PATIENCE

from nfd.core.errors import check_choice
from nfd.data import cifar10 as reader
from nfd.data import images as folders
from nfd.data.dataset import Dataset, Images
from nfd.data.digits import _shipped, digits
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


def test_a_whole_unpacked_directory_is_not_called_official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_RECORDS", 20)
    data = cifar10(unpacked(tmp_path))
    assert data.official is None
    assert "not verified" in data.source


Break = Callable[[Path], Path]


def changed(name: str, content: bytes) -> Break:
    return lambda root: unpacked(root, {**CONTENTS, name: content})


def cut_archive(root: Path) -> Path:
    path = binary(root / reader.ARCHIVE)
    path.write_bytes(path.read_bytes()[:200_000])
    return path


def damaged_archive(root: Path) -> Path:
    path = binary(root / reader.ARCHIVE)
    content = bytearray(path.read_bytes())
    content[100_000:100_200] = bytes(200)
    path.write_bytes(bytes(content))
    return path


def without(name: str) -> Break:
    return lambda root: unpacked(root, {k: v for k, v in CONTENTS.items() if k != name})


def pickled(root: Path) -> Path:
    (root / "cifar-10-batches-py").mkdir()
    return root


def pickled_archive(root: Path) -> Path:
    return archive(root / "renamed.tar.gz", [("cifar-10-batches-py/data_batch_1", b"\x80\x02pickle")])


def plain_file(root: Path) -> Path:
    path = root / "data_batch_9.bin"
    path.write_bytes(b"not an archive")
    return path


def sparse(root: Path) -> Path:
    with (unpacked(root) / "test_batch.bin").open("wb") as file:
        file.truncate(3_073_000_000)
    return root


LABEL = CONTENTS["data_batch_1.bin"][: 3 * 3073] + b"\xc8" + CONTENTS["data_batch_1.bin"][3 * 3073 + 1 :]
BAD: dict[str, tuple[Break, str]] = {
    "missing": (lambda root: root / "nowhere", "does not exist"),
    "empty": (lambda root: root, "holds no CIFAR-10 .binary version.; found nothing"),
    "truncated": (
        changed("data_batch_3.bin", CONTENTS["data_batch_3.bin"][:-5]),
        "data_batch_3.bin: record 19 at offset 58,387 is cut short: 3,068 of 3,073 bytes",
    ),
    "empty file": (changed("test_batch.bin", b""), r"test_batch.bin: record 0 at offset 0 is cut short"),
    "label": (changed("data_batch_1.bin", LABEL), r"data_batch_1.bin: label 200 at offset 9,219 \(record 3\)"),
    "lacking": (without("data_batch_4.bin"), r"lacks data_batch_4.bin"),
    "cut archive": (cut_archive, r"cut short or damaged near offset"),
    "damaged archive": (damaged_archive, r"cut short or damaged near offset"),
    "no archive": (plain_file, r"cut short or damaged near offset"),
    "python folder": (pickled, r"python version .* stored as pickles"),
    "python archive": (pickled_archive, r"python version .* Use the binary version instead"),
    "twice": (lambda r: binary(r / "a.tar.gz", (("x/test_batch.bin", records(2, 0)),)), "holds test_batch.bin twice"),
    "huge": (lambda r: archive(r / "a.tar.gz", [("x/test_batch.bin", bytes(30_730_001))]), "more than a CIFAR-10 file"),
    "bomb": (lambda r: archive(r / "a.tar.gz", [(f"x/{k}", bytes(30_000_000)) for k in range(9)]), "unpacked"),
    "names": (lambda r: archive(r / "a.tar.gz", [("x" * 120 + str(k), b"") for k in range(3)]), "lacks data_batch_1"),
    "sparse": (sparse, "3,073,000,000 bytes, more than the 30,730,000 of a CIFAR-10 file"),
    "short archive": (lambda r: archive(r / "a.tar.gz", [("x/test_batch.bin", records(2, 0))]), "lacks data_batch_1"),
}


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


def test_grey_images_have_one_channel_and_become_colour_beside_colour(tmp_path: Path) -> None:
    for name in ("a", "b"):
        picture(tmp_path / name / "0.png", mode="L")
        picture(tmp_path / name / "1.png", mode="L")
    assert image_folders(tmp_path).shape == (1, 5, 6)
    picture(tmp_path / "b" / "2.png")
    assert image_folders(tmp_path).shape == (3, 5, 6)


def test_image_size_scales_and_crops(tmp_path: Path) -> None:
    two_classes(tmp_path)
    picture(tmp_path / "cat" / "wide.jpg", size=(40, 20))
    assert image_folders(tmp_path, size=4).shape == (3, 4, 4)


def test_images_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = image_folders(two_classes(tmp_path / "data"))
    with monkeypatch.context() as patch:
        patch.setattr(folders, "_read", lambda *_: pytest.fail("decoded again"))
        assert image_folders(tmp_path / "data").fingerprint == first.fingerprint
    picture(tmp_path / "data" / "cat" / "0.png", seed=77)
    assert image_folders(tmp_path / "data").fingerprint != first.fingerprint


def test_the_cache_knows_where_images_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prints = []
    for name in ("here", "there"):
        two_classes(tmp_path / name / "data", 1 + len(prints))
        (tmp_path / name / "data" / "cat" / "0.png").unlink()
        picture(tmp_path / name / "data" / "cat" / "0.bmp", seed=len(prints))
        monkeypatch.chdir(tmp_path / name)
        for path in Path("data").rglob("*.*"):
            os.utime(path, ns=(1, 1))
        prints.append(image_folders("data").fingerprint)
    assert prints[0] != prints[1]


def test_links_to_folders_and_to_nowhere_are_noted(tmp_path: Path) -> None:
    two_classes(tmp_path / "data")
    (tmp_path / "data" / "cat" / "linked").symlink_to(tmp_path / "data" / "dog")
    (tmp_path / "data" / "dog" / "broken.png").symlink_to(tmp_path / "nowhere.png")
    (note,) = image_folders(tmp_path / "data").notes
    assert note.startswith("2 files that are no images were left out")


def test_part_names_may_have_capitals(tmp_path: Path) -> None:
    two_classes(tmp_path / "Train")
    two_classes(tmp_path / "Test", 2)
    assert len(image_folders(tmp_path).test) == 4


def test_interrupting_the_decoding_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the third image; those after it are decoded only when the pool has been told to stop."""
    paths: list[str] = []
    read: list[str] = []
    stopped = threading.Event()
    decoded, shutdown = folders._decoded, ThreadPoolExecutor.shutdown

    def noted(files: Any, size: int | None, progress: bool) -> Any:
        paths.extend(file.path for file in files)
        return decoded(files, size, progress)

    def told(pool: ThreadPoolExecutor, *arguments: Any, **options: Any) -> None:
        shutdown(pool, *arguments, **options)
        stopped.set()

    def read_until_stopped(path: str, size: int | None) -> np.ndarray:
        read.append(path)
        if path == paths[2]:
            raise KeyboardInterrupt
        if path not in paths[:2]:
            assert stopped.wait(PATIENCE)
        return np.zeros((2, 2), np.uint8)

    monkeypatch.setattr(folders, "_decoded", noted)
    monkeypatch.setattr(folders, "_read", read_until_stopped)
    monkeypatch.setattr(folders, "_CHUNK", 1)
    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", told)
    with pytest.raises(KeyboardInterrupt):
        image_folders(two_classes(tmp_path, 200))
    assert len(read) <= 4 + (os.cpu_count() or 1)  # the first is read twice; of the others, those in hand


def test_a_damaged_cache_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NFD_CACHE", str(tmp_path / "cache"))
    first = image_folders(two_classes(tmp_path / "data"))
    (kept,) = (tmp_path / "cache").iterdir()
    kept.write_bytes(kept.read_bytes()[:100])
    assert image_folders(tmp_path / "data").fingerprint == first.fingerprint


def test_a_cache_that_cannot_be_written_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NFD_CACHE", str(tmp_path / "file" / "below"))
    assert "could not be kept" in image_folders(two_classes(tmp_path / "data")).notes[-1]


def damaged(root: Path) -> Path:
    path = two_classes(root) / "dog" / "1.png"
    path.write_bytes(path.read_bytes()[:60])
    return root


def sixteen_bits(root: Path) -> Path:
    Image.fromarray(np.zeros((5, 6), np.uint16)).save(two_classes(root) / "cat" / "9.png")
    return root


def also(root: Path, path: str) -> Path:
    picture(two_classes(root) / path, size=(7, 7))
    return root


def only_train(root: Path) -> Path:
    two_classes(root / "train")
    return root


def mixed(root: Path) -> Path:
    two_classes(root / "train")
    two_classes(root / "test")
    return two_classes(root)


def unknown_class(root: Path) -> Path:
    two_classes(root / "train")
    picture(root / "test" / "bird" / "0.png")
    return root


def one_class(root: Path) -> Path:
    picture(root / "cat" / "0.png")
    return root


BAD_FOLDERS: dict[str, tuple[Break, str]] = {
    "missing": (lambda root: root / "nowhere", "is not a directory"),
    "file": (lambda root: picture(root / "a.png"), "is not a directory"),
    "empty": (lambda root: root, "holds no images in class folders; found nothing"),
    "loose": (lambda root: also(root, "loose.png"), "1 images that are in no class folder, such as loose.png"),
    "size": (lambda root: also(root, "cat/other.png"), "has 7 x 7 pixels, the first image 6 x 5 .give --image-size"),
    "damaged": (damaged, r"1 of 10 images cannot be used: .*1.png cannot be read"),
    "depth": (sixteen_bits, "convert it to 8-bit"),
    "only train": (only_train, "beside 'train' there must be exactly one of test"),
    "mixed": (mixed, "mixes layouts"),
    "unknown class": (unknown_class, "class without training images: bird"),
    "one class": (one_class, "two classes are needed at least; found cat"),
}


@pytest.mark.parametrize("case", BAD_FOLDERS)
def test_bad_folders_are_refused(tmp_path: Path, case: str) -> None:
    make, message = BAD_FOLDERS[case]
    with pytest.raises(ValueError, match=message):
        image_folders(make(tmp_path))


def test_files_that_are_no_images_are_named_in_a_note(tmp_path: Path) -> None:
    (two_classes(tmp_path) / "cat" / "readme.txt").write_text("")
    (note,) = image_folders(tmp_path).notes
    assert note == f"1 files that are no images were left out, such as cat{os.sep}readme.txt."


# ---- what all data sets share --------------------------------------------------------------------------------


def test_normalisation_is_per_channel_with_training_statistics() -> None:
    data = digits()
    pixels = data.train.pixels.double()
    assert data.statistics[0].item() == pytest.approx(pixels.mean().item(), rel=1e-12)
    assert data.statistics[1].item() == pytest.approx(pixels.std().item(), rel=1e-12)
    assert abs(float(data.inputs.mean())) < 1e-6
    assert abs(float(data.inputs.std()) - 1) < 1e-6


def test_a_part_has_other_images_to_be_judged_by() -> None:
    """Training and validation images do not meet, and the former are the same with and without the latter."""
    data = digits()
    part, alone, rest = data.part(40, 30, 1), data.part(40, None, 1), data.part(None, 30, 1)
    assert (len(part.train), len(part.test), len(rest.train)) == (40, 30, len(data.train) - 30)
    assert torch.equal(part.inputs, alone.inputs)
    assert torch.equal(alone.test.pixels, data.test.pixels)
    assert torch.equal(rest.test.pixels, part.test.pixels)
    assert not torch.equal(data.part(40, None, 2).inputs, alone.inputs)
    assert data.part(None, None, 1) is data
    everything = data.part(len(data.train) - 30, 30, 1)
    pixels = torch.cat([everything.train.pixels, everything.test.pixels]).flatten(1)
    assert sorted(pixels.tolist()) == sorted(data.train.pixels.flatten(1).tolist())
    for train, validation in ((len(data.train), 1), (None, len(data.train))):
        with pytest.raises(ValueError, match="share the 1437 training images"):
            data.part(train, validation, 0)


def test_a_constant_channel_cannot_be_normalised() -> None:
    flat = Images(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match="every training pixel of channel 0 is the same"):
        Dataset("flat", ("a", "b"), flat, flat).batches(2, 1, 0)


def test_a_description_and_a_contact_sheet_show_what_is_there(tmp_path: Path) -> None:
    data = cifar10(unpacked(tmp_path))
    about = description(data)
    assert about["official"] == "no"
    assert about["images"] == "100 training, 20 test"
    assert about["shape"] == "3 channels of 32 x 32: d = 3,072"
    assert about["classes"].startswith("10: airplane ")
    sheet = np.asarray(Image.open(io.BytesIO(contact_sheet(data))))
    first = data.train.pixels[data.labels == 0][0].permute(1, 2, 0).numpy()
    assert data.train.pixels.max() == 255
    assert np.array_equal(sheet[4:68:2, 132:196:2], first)


def test_a_single_image_cannot_be_normalised() -> None:
    one = Images(torch.zeros(1, 1, 1, 1, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="every training pixel of channel 0 is the same"):
        Dataset("one", ("a", "b"), one, one).batches(1, 1, 0)


def test_large_images_are_shrunk_on_the_sheet() -> None:
    big = Images(torch.randint(0, 256, (2, 3, 600, 900), dtype=torch.uint8), torch.tensor([0, 1]))
    sheet = Image.open(io.BytesIO(contact_sheet(Dataset("big", ("a", "b"), big, big))))
    assert sheet.size == (132 + 12 * 164, 2 * 111 + 4)


def test_names_and_places_are_checked() -> None:
    with pytest.raises(ValueError, match="data must be one of 'digits', 'cifar10', 'images'"):
        load("mnist")
    with pytest.raises(ValueError, match="needs data_dir"):
        load("cifar10")
    assert check_choice("data", "digits", ("digits",)) == "digits"


def test_no_file_can_be_unpickled() -> None:
    """``runs/executors/messages.py`` alone unpickles, from pipes: tests/test_hostile_code.py holds it to that."""
    for path in (Path(__file__).parents[1] / "src").rglob("*.py"):
        if not path.match("runs/executors/messages.py"):
            assert not re.search(r"import pickle|pickle\.load|torch\.load|allow_pickle|np\.load\b", path.read_text()), (
                path
            )


@pytest.mark.parametrize("shipped", [True, False])
def test_the_digits_are_those_of_scikit_learn(shipped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read from its file, or by its function where a version of it keeps the file elsewhere."""
    raw = load_digits()
    if not shipped:
        monkeypatch.setattr("nfd.data.digits.find_spec", lambda name: None)
    pixels, labels = _shipped()
    assert torch.equal(pixels, torch.from_numpy(raw.data))
    assert torch.equal(labels.long(), torch.from_numpy(raw.target).long())
    assert digits().classes == tuple(map(str, raw.target_names))
